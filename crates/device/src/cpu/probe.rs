//! How fast memory can be read at most: what decoding is measured against.

use super::isa::{Isa, Kernel, launch};
use super::packed::layout::{LINE, Lines};
use super::pool::Pool;
use super::share::Pieces;
use std::ops::Range;

/// Makes different words of different numbers.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A line of memory.
type Line = [u64; LINE / 8];

/// Memory that is read over and over, in every way that might be the fastest on some machine.
///
/// It lies on huge pages like packed weights, so neither side walks more page tables than the
/// other, and it is used as they are: all of it, then all of it again. So a cache that keeps a part
/// of the weights from one token to the next keeps as much of this.
pub struct ReadProbe {
    data: Lines,
    isa: Isa,
    pool: Pool,
    sums: Vec<u64>,
}

impl ReadProbe {
    /// Ways of reading.
    pub const WAYS: usize = 4;
    /// Runs that a thread reads side by side, and how many bytes ahead it asks for lines; 0 leaves
    /// that to the processor.
    const HOW: [(usize, usize); Self::WAYS] = [(1, 0), (1, 4096), (2, 1024), (2, 2048)];

    /// So many bytes for so many threads to read; fewer if memory is short, `None` if there is
    /// hardly any.
    #[must_use]
    pub fn new(bytes: usize, threads: usize) -> Option<Self> {
        let pool = Pool::new(threads);
        let halves = (0..5).map(|times| bytes >> times);
        let mut data = halves.filter(|bytes| *bytes >= LINE).find_map(Lines::zeroed)?;
        // SAFETY: any bytes are whole numbers.
        let (_, lines, _) = unsafe { data.align_to_mut::<Line>() };
        let (all, threads) = (lines.len(), pool.threads());
        let pieces = Pieces::new(lines, 1);
        // Written by whoever reads it, so that every page is there: untouched ones are all the same
        // page of zeros.
        pool.run(threads, &|part| {
            for at in cut(all, threads, part) {
                // SAFETY: each line belongs to one part.
                let line = unsafe { pieces.get(at) };
                let number = |word: usize| (at * LINE / 8 + word) as u64;
                line[0] = std::array::from_fn(|word| number(word).wrapping_mul(SPREAD));
            }
        });
        Some(ReadProbe { data, isa: Isa::best(), sums: vec![0; threads], pool })
    }

    /// Bytes of a pass.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.data.len() / LINE * LINE
    }

    /// Reads everything once; the result is there so that nobody can leave out the reading.
    pub fn pass(&mut self, way: usize) -> u64 {
        let (streams, ahead) = Self::HOW[way % Self::WAYS];
        // SAFETY: any bytes are whole numbers; a line has the alignment of the memory.
        let (_, lines, _) = unsafe { self.data.align_to::<Line>() };
        let threads = self.pool.threads();
        let sums = Pieces::new(&mut self.sums, 1);
        let kernel = Pass { lines, threads, streams, ahead, sums };
        launch(&self.pool, self.isa, threads, threads, &kernel);
        self.sums.iter().fold(0, |all, sum| all ^ sum)
    }
}

/// Part `part` of `parts` equal ones of `0..all`.
fn cut(all: usize, parts: usize, part: usize) -> Range<usize> {
    all / parts * part + all % parts * part / parts
        ..all / parts * (part + 1) + all % parts * (part + 1) / parts
}

/// One pass: an item is a thread's stretch.
struct Pass<'a> {
    lines: &'a [Line],
    threads: usize,
    streams: usize,
    ahead: usize,
    sums: Pieces<'a, u64>,
}

impl Kernel for Pass<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, items: Range<usize>) {
        for item in items {
            let lines = &self.lines[cut(self.lines.len(), self.threads, item)];
            // SAFETY: each sum belongs to one item.
            let sum = unsafe { self.sums.get(item) };
            sum[0] = match self.streams {
                1 => checksum::<1>(lines, self.ahead),
                _ => checksum::<2>(lines, self.ahead),
            };
        }
    }
}

/// Everything, as `S` runs side by side; a sum for each word of a line and run, so that none waits
/// for another.
#[inline(always)]
fn checksum<const S: usize>(lines: &[Line], ahead: usize) -> u64 {
    let mut sums = [[0u64; LINE / 8]; S];
    let run = lines.len() / S;
    let add = |sum: &mut Line, line: &Line| {
        for (sum, word) in sum.iter_mut().zip(line) {
            *sum ^= word;
        }
    };
    for at in 0..run {
        for (stream, sum) in sums.iter_mut().enumerate() {
            let line = &lines[stream * run + at];
            if ahead > 0 {
                prefetch(std::ptr::from_ref(line).cast::<u8>().wrapping_add(ahead));
            }
            add(sum, line);
        }
    }
    for line in &lines[S * run..] {
        add(&mut sums[0], line);
    }
    sums.as_flattened().iter().fold(0, |all, sum| all ^ sum)
}

/// Asks for the line of memory at `at`, which may be anywhere.
#[inline(always)]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction, and it takes any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::ReadProbe;

    #[test]
    fn every_way_reads_everything() {
        for threads in [1, 3] {
            let bytes = (3 << 20) + 64;
            let mut probe = ReadProbe::new(bytes, threads).expect("memory");
            assert_eq!(probe.bytes(), bytes);
            let (words, _) = probe.data.as_chunks::<8>();
            let wanted = words.iter().fold(0, |sum, word| sum ^ u64::from_ne_bytes(*word));
            assert_ne!(wanted, 0);
            for way in 0..ReadProbe::WAYS {
                assert_eq!(probe.pass(way), wanted, "way {way} of {threads} threads");
            }
        }
    }
}
