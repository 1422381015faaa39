//! What a group's links cost, measured, and whether they are worth it for a model.

use crate::stream::{Record, Stream};
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
    /// What 99 of 100 do not pass.
    pub p99: Duration,
    /// The shortest.
    pub best: Duration,
}

impl LinkTime {
    /// From all times of a size.
    fn of(bytes: usize, mut each: Vec<Duration>) -> Option<Self> {
        each.sort_unstable();
        let (best, p50) = (*each.first()?, each[each.len() / 2]);
        let p99 = each[each.len() * 99 / 100];
        Some(LinkTime { bytes, p50, p99, best })
    }

    /// Bytes that a rank sends to one other in a second, from the middle time.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.p50.as_secs_f64().max(1e-9)
    }
}

/// Times gates of several sizes. All ranks call it together, and every rank checks every byte that
/// it gets.
pub fn measure(group: &mut dyn Exchange) -> Result<Vec<LinkTime>, ExchangeError> {
    measure_sizes(group, &SIZES)
}

/// [`measure`] of given sizes in bytes, each so often.
pub fn measure_sizes(
    group: &mut dyn Exchange,
    sizes: &[(usize, usize)],
) -> Result<Vec<LinkTime>, ExchangeError> {
    let (rank, ranks) = (group.rank(), group.ranks());
    let mark = |rank: usize| rank.to_le_bytes()[0].wrapping_mul(37).wrapping_add(1);
    let mut times = Vec::new();
    for &(bytes, repeats) in sizes {
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
        times.extend(LinkTime::of(bytes, each));
    }
    Ok(times)
}

/// Times orders of rank 0 that all answer by a small gate: what is beyond the gate itself is the
/// order. All ranks call it together.
pub fn measure_orders(
    group: &mut dyn Exchange,
    bytes: usize,
    repeats: usize,
) -> Result<Duration, ExchangeError> {
    let answer = SIZES[0].0;
    let gate = measure_sizes(group, &[(answer, repeats)])?;
    let (mine, mut all) = (vec![0; answer], vec![0; answer * group.ranks()]);
    let mut each = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let mut order = vec![7; bytes];
        let start = Instant::now();
        group.broadcast(&mut order)?;
        group.gather(GateKind::Status, &mine, &mut all)?;
        each.push(start.elapsed());
    }
    let both = LinkTime::of(bytes, each).map_or(Duration::ZERO, |time| time.p50);
    Ok(both.saturating_sub(gate.first().map_or(Duration::ZERO, |time| time.p50)))
}

/// Times a record from one rank to the other of a stream: half of a way there and back. Both ends
/// call it together, one of them as the `first`.
pub fn measure_hop(
    stream: &Stream,
    is_first: bool,
    (bytes, repeats): (usize, usize),
    patience: Duration,
) -> Result<Option<LinkTime>, ExchangeError> {
    let mut each = Vec::with_capacity(repeats);
    for tag in 0..repeats as u64 {
        let start = Instant::now();
        if is_first {
            stream.send(Record { tag, bytes: vec![1; bytes] }, patience)?;
            stream.receive(patience)?;
        } else {
            let record = stream.receive(patience)?;
            stream.send(record, patience)?;
        }
        each.push(start.elapsed() / 2);
    }
    Ok(LinkTime::of(bytes, each))
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
