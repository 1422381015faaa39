//! How fast this machine reads memory, and how much processor time this program took.

use std::time::Instant;

/// Bytes that the processor's bandwidth is measured on: more than any of its caches.
const PROBE_BYTES: usize = 1 << 30;
/// Passes over them; the fastest counts, since other programs only slow it down.
const PASSES: usize = 4;

/// How fast memory is read, in bytes a second.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// By the clock.
    pub wall: f64,
    /// By the processor time of a thread, times the threads: what the clock would show if nothing
    /// else ran.
    pub processor: Option<f64>,
}

/// The rate at which so many threads together read memory: the best of several passes.
#[must_use]
pub fn of_host(threads: usize) -> Rate {
    // Written, so that every page is there: untouched pages are all the same page of zeros.
    let data: Vec<u64> = (0..PROBE_BYTES as u64 / 8).collect();
    let part = data.len().div_ceil(threads.max(1));
    let pass = || {
        let begun = Moment::now();
        let sum = std::thread::scope(|scope| {
            let threads: Vec<_> =
                data.chunks(part).map(|part| scope.spawn(move || checksum(part))).collect();
            threads.into_iter().map(|t| t.join().expect("adding does not panic")).fold(0, xor)
        });
        std::hint::black_box(sum);
        begun.elapsed()
    };
    let passes: Vec<Seconds> = (0..PASSES).map(|_| pass()).collect();
    #[expect(clippy::cast_precision_loss, reason = "rates for people")]
    let (bytes, threads) = (PROBE_BYTES as f64, threads as f64);
    let wall = passes.iter().map(|pass| pass.wall).fold(f64::INFINITY, f64::min);
    let processor = passes.iter().filter_map(|pass| pass.processor).reduce(f64::min);
    Rate { wall: bytes / wall, processor: processor.map(|seconds| bytes / seconds * threads) }
}

fn xor(a: u64, b: u64) -> u64 {
    a ^ b
}

/// Eight sums, so that no addition waits for the one before.
fn checksum(part: &[u64]) -> u64 {
    let mut sums = [0u64; 8];
    for eight in part.chunks_exact(8) {
        for (sum, value) in sums.iter_mut().zip(eight) {
            *sum ^= value;
        }
    }
    sums.into_iter().fold(0, xor)
}

/// A moment, by the clock and by the processor time of this program.
#[derive(Clone, Copy)]
pub struct Moment {
    wall: Instant,
    processor: Option<f64>,
}

/// Seconds between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds {
    /// By the clock.
    pub wall: f64,
    /// Of all threads together, where the system tells.
    pub processor: Option<f64>,
}

impl Moment {
    /// This moment.
    #[must_use]
    pub fn now() -> Moment {
        Moment { wall: Instant::now(), processor: processor_seconds() }
    }

    /// Since then.
    #[must_use]
    pub fn elapsed(self) -> Seconds {
        let wall = self.wall.elapsed().as_secs_f64();
        let processor = processor_seconds().zip(self.processor).map(|(now, then)| now - then);
        Seconds { wall, processor }
    }
}

/// What all threads took, those that ended too.
#[cfg(unix)]
fn processor_seconds() -> Option<f64> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "a time for people")]
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|part| part as f64);
    Some(seconds + nanos / 1e9)
}

/// Not known here.
#[cfg(not(unix))]
fn processor_seconds() -> Option<f64> {
    None
}

#[cfg(test)]
mod tests {
    use super::Moment;

    #[test]
    fn processor_time_is_that_of_work() {
        let begun = Moment::now();
        let mut x = 1u64;
        while begun.elapsed().wall < 0.05 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        let spent = begun.elapsed();
        // Other tests of this process run beside it, so only the lower side means something.
        assert!(!cfg!(unix) || spent.processor > Some(0.0), "{spent:?}");
    }
}
