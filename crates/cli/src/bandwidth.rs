//! How fast this machine reads memory, and how much processor time this program took.

use std::time::Instant;

/// Bytes that the processor's bandwidth is measured on: more than any of its caches.
const PROBE_BYTES: usize = 1 << 30;
/// Passes over them; the fastest counts, since other programs only slow it down.
const PASSES: usize = 4;

/// Bytes a second at which so many threads together read memory.
#[must_use]
pub fn of_host(threads: usize) -> f64 {
    // Written, so that every page is there: untouched pages are all the same page of zeros.
    let data: Vec<u64> = (0..PROBE_BYTES as u64 / 8).collect();
    let part = data.len().div_ceil(threads.max(1));
    let pass = || {
        let begun = Instant::now();
        let sum = std::thread::scope(|scope| {
            let threads: Vec<_> =
                data.chunks(part).map(|part| scope.spawn(move || checksum(part))).collect();
            threads.into_iter().map(|t| t.join().expect("adding does not panic")).fold(0, xor)
        });
        std::hint::black_box(sum);
        begun.elapsed().as_secs_f64()
    };
    let fastest = (0..PASSES).map(|_| pass()).fold(f64::INFINITY, f64::min);
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let bytes = PROBE_BYTES as f64;
    bytes / fastest
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

/// A moment, by the clock and by the processor time of all threads that live.
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
    /// Of all threads together; only Linux tells.
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

/// Sum of the run times of this process's threads. Threads that ended are not in it: a pool must
/// live from one moment to the other.
fn processor_seconds() -> Option<f64> {
    let mut nanos = 0u64;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        // A thread may end while we look.
        let Ok(text) = std::fs::read_to_string(task.ok()?.path().join("schedstat")) else {
            continue;
        };
        nanos += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    #[expect(clippy::cast_precision_loss, reason = "a time for people")]
    let seconds = nanos as f64 / 1e9;
    Some(seconds)
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
        if let Some(processor) = spent.processor {
            // Other tests of this process run beside it, so only the lower side means something.
            assert!(processor > 0.0, "{spent:?}");
        } else {
            assert!(!cfg!(target_os = "linux"));
        }
    }
}
