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

/// Sums of the words of one column each, over rows k of n: of even columns the sum of w(k) and that
/// of (n - k) w(k), then the same of odd ones. Adding is what vectors of 64 bits do fast.
type Columns = [[u64; ROW / 8]; 4];

/// Adds whole rows, and copies them if `COPY`.
///
/// # Safety
/// `from` has so many rows that may be read, and if `COPY` then `into` has as many that may be
/// written and none in common with them.
#[inline(always)]
unsafe fn add_rows<const COPY: bool>(from: *const u8, into: *mut u8, rows: usize) -> Columns {
    let [mut low, mut low_running, mut high, mut high_running] = Columns::default();
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
        // Whole arrays at a time, so that the compiler makes vectors of them.
        let longs = longs.map(u64::to_le);
        low = plus(low, longs.map(|long| long & u64::from(u32::MAX)));
        high = plus(high, longs.map(|long| long >> 32));
        low_running = plus(low_running, low);
        high_running = plus(high_running, high);
    }
    [low, low_running, high, high_running]
}

#[inline(always)]
fn plus<const N: usize>(mut sums: [u64; N], more: [u64; N]) -> [u64; N] {
    for lane in 0..N {
        sums[lane] = sums[lane].wrapping_add(more[lane]);
    }
    sums
}

/// [`add_rows`] in vectors of 256 bits.
///
/// # Safety
/// As for [`add_rows`], on a machine with AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2")]
unsafe fn add_rows_wide<const COPY: bool>(from: *const u8, into: *mut u8, rows: usize) -> Columns {
    // SAFETY: the caller's word.
    unsafe { add_rows::<COPY>(from, into, rows) }
}

/// [`add_rows`] for any machine.
///
/// # Safety
/// As for [`add_rows`].
#[inline(never)]
unsafe fn add_rows_plain<const COPY: bool>(from: *const u8, into: *mut u8, rows: usize) -> Columns {
    // SAFETY: the caller's word.
    unsafe { add_rows::<COPY>(from, into, rows) }
}

/// Adds `len` bytes, and copies them if `COPY`, as fast as this machine can.
///
/// # Safety
/// As for [`add_rows`], with `len` bytes instead of rows.
unsafe fn dispatch<const COPY: bool>(
    from: *const u8,
    into: *mut u8,
    len: usize,
    first: u64,
) -> u64 {
    let rows = len / ROW;
    #[cfg(target_arch = "x86_64")]
    let columns = if is_x86_feature_detected!("avx2") {
        // SAFETY: the machine has AVX2; the rest is the caller's word.
        unsafe { add_rows_wide::<COPY>(from, into, rows) }
    } else {
        // SAFETY: the caller's word.
        unsafe { add_rows_plain::<COPY>(from, into, rows) }
    };
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's word.
    let columns = unsafe { add_rows_plain::<COPY>(from, into, rows) };
    let done = rows * ROW;
    let mut tail = [0_u8; ROW];
    // SAFETY: what is left is less than a row, and inside of both ranges.
    unsafe {
        std::ptr::copy_nonoverlapping(from.add(done), tail.as_mut_ptr(), len - done);
        if COPY {
            std::ptr::copy_nonoverlapping(tail.as_ptr(), into.add(done), len - done);
        }
    }
    let (rows, tail) = (rows as u64, &tail[..(len - done).next_multiple_of(4)]);
    placed(&columns, rows, first).wrapping_add(one_by_one(tail, first.wrapping_add(WORDS * rows)))
}

/// Words of a row.
const WORDS: u64 = (ROW / 4) as u64;

/// The sum with places from the sums of columns: word `at` of row k stands at
/// `first + at + WORDS * k`.
fn placed([low, low_running, high, high_running]: &Columns, rows: u64, first: u64) -> u64 {
    let even = low.iter().zip(low_running).zip((0_u64..).step_by(2));
    let odd = high.iter().zip(high_running).zip((1_u64..).step_by(2));
    even.chain(odd).fold(0, |sum, ((&plain, &running), at)| {
        let by_row = rows.wrapping_mul(plain).wrapping_sub(running);
        sum.wrapping_add(plain.wrapping_mul(factor(first.wrapping_add(at))))
            .wrapping_add(by_row.wrapping_mul(2 * WORDS))
    })
}

/// The sum of whole words with places from `first` on.
fn one_by_one(words: &[u8], first: u64) -> u64 {
    words.as_chunks::<4>().0.iter().zip(0_u64..).fold(0, |sum, (word, at)| {
        let word = u64::from(u32::from_le_bytes(*word));
        sum.wrapping_add(word.wrapping_mul(factor(first.wrapping_add(at))))
    })
}

/// What the word of a place is multiplied with.
fn factor(place: u64) -> u64 {
    place.wrapping_mul(2).wrapping_add(1)
}

#[cfg(test)]
mod tests;
