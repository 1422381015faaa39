//! How fast this machine reads memory, and how much processor time this program took.

use ironstar_device::ReadProbe;
use std::time::Instant;

/// Bytes that the processor's bandwidth is measured on: more than any of its caches.
const PROBE_BYTES: usize = 1 << 30;
/// Passes of each way of reading; the fastest of all counts, since other programs only slow it
/// down.
const PASSES: usize = 2;

/// How fast memory is read, in bytes a second.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// By the clock.
    pub wall: f64,
    /// By the processor time of a thread, times the threads: what the clock would show if nothing
    /// else ran.
    pub processor: Option<f64>,
}

impl Rate {
    /// The faster of two measurements of one machine.
    #[must_use]
    pub fn best(self, other: Rate) -> Rate {
        let both = self.processor.zip(other.processor);
        let processor = both.map(|(a, b)| a.max(b)).or(self.processor).or(other.processor);
        Rate { wall: self.wall.max(other.wall), processor }
    }
}

/// The rate at which so many threads together read memory: the best of several passes of every
/// way of reading. Nothing where there is no memory to read.
#[must_use]
pub fn of_host(threads: usize) -> Rate {
    let nothing = Rate { wall: 0.0, processor: None };
    let Some(mut probe) = ReadProbe::new(PROBE_BYTES, threads.max(1)) else { return nothing };
    #[expect(clippy::cast_precision_loss, reason = "rates for people")]
    let (bytes, threads) = (probe.bytes() as f64, threads.max(1) as f64);
    let mut pass = |way: usize| {
        let begun = Moment::now();
        std::hint::black_box(probe.pass(way));
        let Seconds { wall, processor } = begun.elapsed();
        Rate { wall: bytes / wall, processor: processor.map(|seconds| bytes / seconds * threads) }
    };
    // In turn, so that a disturbance does not meet all passes of one way.
    let ways = (0..PASSES).flat_map(|_| 0..ReadProbe::WAYS);
    ways.map(&mut pass).fold(nothing, Rate::best)
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
