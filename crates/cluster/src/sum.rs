//! The checksum of words and their places, alone or while the bytes are copied: what is moved is
//! read once.

/// Bytes that are added side by side: eight words of 64 bits, or sixteen of 32.
const ROW: usize = 64;

/// Sum of the 32-bit words of `bytes`, each times `2 * place + 1`, modulo 2^64; `first` is the
/// place of the first. Any single wrong word and any two words that changed places give another
/// sum (a difference below 2^32 times a factor below 2^32 is no multiple of 2^64), and it does not
/// matter in which order a device adds. A last word is filled with zeros; lengths are checked
/// apart.
#[must_use]
pub fn placed_sum(bytes: &[u8], first: u64) -> u64 {
    // SAFETY: the range is the slice's, and nothing is written.
    unsafe { dispatch::<false>(bytes.as_ptr(), std::ptr::null_mut(), bytes.len(), first) }
}

/// Copies `from` to `into`, which is as long; its [`placed_sum`].
#[must_use]
pub fn copy_summed(from: &[u8], into: &mut [u8], first: u64) -> u64 {
    assert_eq!(from.len(), into.len(), "a copy has its source's length");
    // SAFETY: both ranges are the slices', which do not overlap.
    unsafe { dispatch::<true>(from.as_ptr(), into.as_mut_ptr(), from.len(), first) }
}

/// [`copy_summed`] from memory that somebody else may write meanwhile. Each byte is read once, so
/// that the sum is that of the bytes that were copied.
///
/// # Safety
/// `from` has as many bytes as `into`, and none of them in common with it.
pub(crate) unsafe fn copy_summed_from(from: *const u8, into: &mut [u8], first: u64) -> u64 {
    // SAFETY: the caller's word for `from`; `into` is a slice.
    unsafe { dispatch::<true>(from, into.as_mut_ptr(), into.len(), first) }
}

/// The fastest body that this machine runs; all give equal sums.
///
/// # Safety
/// As for [`body`].
unsafe fn dispatch<const COPY: bool>(
    from: *const u8,
    into: *mut u8,
    len: usize,
    first: u64,
) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        /// # Safety
        /// As for [`body`], on a machine with AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn wide<const COPY: bool>(
            from: *const u8,
            into: *mut u8,
            len: usize,
            first: u64,
        ) -> u64 {
            // SAFETY: the caller's word.
            unsafe { body::<COPY>(from, into, len, first) }
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has AVX2; the rest is the caller's word.
            return unsafe { wide::<COPY>(from, into, len, first) };
        }
    }
    // SAFETY: the caller's word.
    unsafe { body::<COPY>(from, into, len, first) }
}

/// Adds, and copies if `COPY`.
///
/// # Safety
/// `from` has `len` bytes that may be read, and if `COPY` then `into` has as many that may be
/// written and none in common with them.
#[inline(always)]
unsafe fn body<const COPY: bool>(from: *const u8, into: *mut u8, len: usize, first: u64) -> u64 {
    // For each of a row's words w, over rows k of n: `plain` ends as the sum of w(k), `running` as
    // the sum of (n - k) w(k). Adding is what vectors of 64 bits do fast.
    let [mut low, mut low_running, mut high, mut high_running] = [[0_u64; ROW / 8]; 4];
    let rows = len / ROW;
    for row in 0..rows {
        let at = row * ROW;
        // SAFETY: a whole row inside of both ranges; any alignment will do.
        let longs = unsafe {
            let longs = from.add(at).cast::<[u64; ROW / 8]>().read_unaligned();
            if COPY {
                into.add(at).cast::<[u64; ROW / 8]>().write_unaligned(longs);
            }
            longs
        };
        for lane in 0..ROW / 8 {
            let long = longs[lane].to_le();
            low[lane] = low[lane].wrapping_add(long & u64::from(u32::MAX));
            high[lane] = high[lane].wrapping_add(long >> 32);
            low_running[lane] = low_running[lane].wrapping_add(low[lane]);
            high_running[lane] = high_running[lane].wrapping_add(high[lane]);
        }
    }
    let (words, rows_long) = ((ROW / 4) as u64, rows as u64);
    let mut sum = 0_u64;
    // Word `at` of row k stands at `first + at + words * k`.
    let mut add = |at: u64, plain: u64, running: u64| {
        let by_row = rows_long.wrapping_mul(plain).wrapping_sub(running);
        let place = first.wrapping_add(at);
        sum = sum
            .wrapping_add(plain.wrapping_mul(place.wrapping_mul(2).wrapping_add(1)))
            .wrapping_add(by_row.wrapping_mul(2 * words));
    };
    for lane in 0..ROW / 8 {
        add(2 * lane as u64, low[lane], low_running[lane]);
        add(2 * lane as u64 + 1, high[lane], high_running[lane]);
    }
    let done = rows * ROW;
    let mut tail = [0_u8; ROW];
    // SAFETY: what is left is less than a row, and inside of both ranges.
    unsafe {
        std::ptr::copy_nonoverlapping(from.add(done), tail.as_mut_ptr(), len - done);
        if COPY {
            std::ptr::copy_nonoverlapping(tail.as_ptr(), into.add(done), len - done);
        }
    }
    let mut place = first.wrapping_add(words * rows_long);
    for word in tail[..(len - done).next_multiple_of(4)].as_chunks::<4>().0 {
        let word = u64::from(u32::from_le_bytes(*word));
        sum = sum.wrapping_add(word.wrapping_mul(place.wrapping_mul(2).wrapping_add(1)));
        place = place.wrapping_add(1);
    }
    sum
}

#[cfg(test)]
mod tests;
