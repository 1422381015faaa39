//! What a group's links cost, measured, and whether they are worth it for a model.

use ironstar_device::{Exchange, ExchangeError, GateKind};
use std::time::{Duration, Instant};

/// Bytes that each rank gives, and how often: small ones for the time of a gate, large ones for
/// the rate. About a second over a link of 1 GB/s.
const SIZES: [(usize, usize); 6] = [
    (64, 500),
    (4 * 1024, 500),
    (16 * 1024, 500),
    (64 * 1024, 200),
    (1024 * 1024, 20),
    (16 * 1024 * 1024, 3),
];

/// What gates of one size cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTime {
    /// Bytes that each rank gives.
    pub bytes: usize,
    /// The middle of all times.
    pub p50: Duration,
    /// The shortest.
    pub best: Duration,
}

impl LinkTime {
    /// Bytes that a rank sends to one other in a second, from the middle time.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.p50.as_secs_f64().max(1e-9)
    }
}

/// Times gates of several sizes. All ranks call it together, and every rank checks every byte that
/// it gets.
pub fn measure(group: &mut dyn Exchange) -> Result<Vec<LinkTime>, ExchangeError> {
    let (rank, ranks) = (group.rank(), group.ranks());
    let mark = |rank: usize| rank.to_le_bytes()[0].wrapping_mul(37).wrapping_add(1);
    let mut times = Vec::new();
    for (bytes, repeats) in SIZES {
        let (mine, mut all) = (vec![mark(rank); bytes], vec![0; ranks * bytes]);
        let mut each = Vec::with_capacity(repeats);
        for _ in 0..repeats {
            all.fill(0);
            let start = Instant::now();
            group.gather(GateKind::Status, &mine, &mut all)?;
            each.push(start.elapsed());
        }
        for (from, part) in all.chunks_exact(bytes).enumerate() {
            if part.iter().any(|&byte| byte != mark(from)) {
                let (found, wanted) = ("other bytes".into(), "those of the self-test".into());
                return Err(ExchangeError::Wrong { rank: from, found, wanted });
            }
        }
        each.sort_unstable();
        times.push(LinkTime { bytes, p50: each[repeats / 2], best: each[0] });
    }
    Ok(times)
}

/// What one token costs on one rank, to be split over several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// Time of a token on a single rank.
    pub single: Duration,
    /// Share of it that every rank does in full, from 0 to 1.
    pub replicated: f64,
    /// Gates of a token.
    pub gates: u32,
    /// Commands and sampling of a token.
    pub control: Duration,
}

impl StepCost {
    /// Tokens a second of `ranks` ranks whose gates cost `gate` each:
    /// 1 / (single * (replicated + (1 - replicated) / ranks) + gates * gate + control). One rank
    /// has no gates and no commands.
    #[must_use]
    pub fn tokens_per_second(&self, ranks: usize, gate: Duration) -> f64 {
        let single = self.single.as_secs_f64();
        if ranks <= 1 {
            return 1.0 / single.max(1e-9);
        }
        let split = self.replicated + (1.0 - self.replicated) / ranks as f64;
        let gates = f64::from(self.gates) * gate.as_secs_f64();
        1.0 / (single * split + gates + self.control.as_secs_f64()).max(1e-9)
    }

    /// The time of a gate above which `ranks` ranks are slower than one; `None` if they always
    /// are.
    #[must_use]
    pub fn gate_that_pays(&self, ranks: usize) -> Option<Duration> {
        let saved = self.single.as_secs_f64() * (1.0 - self.replicated);
        let saved = saved * (1.0 - 1.0 / ranks.max(1) as f64) - self.control.as_secs_f64();
        let each = saved / f64::from(self.gates.max(1));
        (each > 0.0).then(|| Duration::from_secs_f64(each))
    }
}

#[cfg(test)]
mod tests;
