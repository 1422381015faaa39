//! How long a rank burns its core for a message before it lets others run.

use std::time::{Duration, Instant};

/// The three stages of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Polling without a pause.
    pub spin: Duration,
    /// Then polling with the core offered to others at each look.
    pub offer: Duration,
    /// Then sleeping between looks, this long at most.
    pub rest: Duration,
}

impl Pace {
    /// For ranks that each have cores of their own.
    pub const SPINNING: Pace = Pace {
        spin: Duration::from_micros(50),
        offer: Duration::from_micros(200),
        rest: Duration::from_micros(500),
    };
    /// For ranks that share cores with each other or with other programs.
    pub const BLOCKING: Pace = Pace {
        spin: Duration::ZERO,
        offer: Duration::from_micros(20),
        rest: Duration::from_micros(500),
    };

    /// This pace for one of `ranks` ranks on a machine of `cores` cores: who spins where others
    /// wait for the core only holds up what it waits for (120 us for 20 at a gate of 16 KiB).
    #[must_use]
    pub fn shared(self, ranks: usize, cores: usize) -> Self {
        if ranks > cores { Self::BLOCKING } else { self }
    }
}

/// One wait under a [`Pace`].
#[derive(Debug)]
pub(crate) struct Waiting {
    pace: Pace,
    start: Instant,
    /// When something moved last.
    moved: Instant,
    looks: u32,
}

/// What to do before the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look again at once.
    Look,
    /// Check the deadline and the watch, then look again.
    Check,
    /// Check them, then sleep this long at most.
    Rest(Duration),
}

/// Looks between two questions to the clock, which costs as much as several looks.
const LOOKS: u32 = 32;

impl Waiting {
    pub fn new(pace: Pace, now: Instant) -> Self {
        Self { pace, start: now, moved: now, looks: 0 }
    }

    /// Since when it is waited.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// After a look that found something (`moved`) or nothing.
    pub fn next(&mut self, moved: bool) -> Next {
        if moved {
            self.looks = 0;
            return Next::Look;
        }
        self.looks += 1;
        if self.looks == 1 {
            self.moved = Instant::now();
        }
        let spins = !self.pace.spin.is_zero();
        if spins && !self.looks.is_multiple_of(LOOKS) {
            std::hint::spin_loop();
            return Next::Look;
        }
        let idle = self.moved.elapsed();
        if idle < self.pace.spin {
            Next::Check
        } else if idle < self.pace.spin + self.pace.offer {
            std::thread::yield_now();
            Next::Check
        } else {
            Next::Rest(self.pace.rest)
        }
    }
}

#[cfg(test)]
mod tests;
