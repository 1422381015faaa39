//! A group that exchanges nothing: what gates cost is the difference to it.

use crate::profile::{GateTimes, Recorder};
use ironstar_device::{Exchange, ExchangeError, GateCounts, GateKind};
use std::time::Instant;

/// One rank that takes its own part for everybody's. Times are those of a rank without gates;
/// results are wrong by intent, and nobody else takes part.
pub struct Alone {
    rank: usize,
    ranks: usize,
    epoch: u64,
    posted: Option<Posted>,
    counts: GateCounts,
    recorder: Option<Recorder>,
}

/// A gate that is posted and not waited for.
struct Posted {
    gate: GateKind,
    mine: Vec<u8>,
    begun: Instant,
    ended: Instant,
}

impl Alone {
    /// Plays `rank` of `ranks`.
    #[must_use]
    pub fn new(rank: usize, ranks: usize) -> Self {
        let counts = GateCounts::default();
        Self { rank, ranks, epoch: 0, posted: None, counts, recorder: None }
    }

    /// Writes every gate from now on into a notebook.
    pub fn record_into(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }
}

impl Exchange for Alone {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn post(&mut self, gate: GateKind, mine: &[u8]) -> Result<(), ExchangeError> {
        if self.posted.is_some() {
            return Err(misuse("a gate is posted while another waits", "wait for it first"));
        }
        let (begun, mine) = (Instant::now(), mine.to_vec());
        self.posted = Some(Posted { gate, mine, begun, ended: Instant::now() });
        Ok(())
    }

    fn wait(&mut self, all: &mut [u8]) -> Result<(), ExchangeError> {
        let waited = Instant::now();
        let Some(Posted { gate, mine, begun, ended }) = self.posted.take() else {
            return Err(misuse("a wait without a gate", "post one first"));
        };
        if all.len() != self.ranks * mine.len() {
            return Err(misuse("room of another length", "room for every rank's part"));
        }
        if !mine.is_empty() {
            all.chunks_exact_mut(mine.len()).for_each(|part| part.copy_from_slice(&mine));
        }
        self.counts.count(gate, mine.len());
        if let Some(recorder) = &self.recorder {
            let times = GateTimes {
                gates: 1,
                post: ended - begun,
                overlap: waited - ended,
                release: waited.elapsed(),
                ..GateTimes::default()
            };
            recorder.gate(gate, mine.len(), begun, times);
        }
        Ok(())
    }

    fn broadcast(&mut self, _bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
        if self.rank > 0 {
            return Err(misuse("nobody is rank 0", "play rank 0"));
        }
        if let Some(recorder) = &self.recorder {
            recorder.step();
        }
        Ok(())
    }

    fn send(&mut self, _to: usize, _bytes: Vec<u8>) -> Result<(), ExchangeError> {
        Ok(())
    }

    fn receive(&mut self, _from: usize) -> Result<Vec<u8>, ExchangeError> {
        Err(misuse("bytes of another rank", "gates only: nobody else takes part"))
    }

    fn abort(&mut self, _reason: &str) {}

    fn reform(&mut self) -> Result<u64, ExchangeError> {
        self.posted = None;
        self.epoch += 1;
        Ok(self.epoch)
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn counts(&self) -> GateCounts {
        self.counts
    }
}

fn misuse(found: &str, wanted: &str) -> ExchangeError {
    ExchangeError::Misuse { found: found.into(), wanted: wanted.into() }
}
