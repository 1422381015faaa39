//! A group that exchanges nothing: what gates cost is the difference to it.

use ironstar_device::{Exchange, ExchangeError, GateCounts, GateKind};

/// One rank that takes its own part for everybody's. Times are those of a rank without gates;
/// results are wrong by intent, and nobody else takes part.
pub struct Alone {
    rank: usize,
    ranks: usize,
    epoch: u64,
    posted: Option<(GateKind, Vec<u8>)>,
    counts: GateCounts,
}

impl Alone {
    /// Plays `rank` of `ranks`.
    #[must_use]
    pub fn new(rank: usize, ranks: usize) -> Self {
        Self { rank, ranks, epoch: 0, posted: None, counts: GateCounts::default() }
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
        self.posted = Some((gate, mine.to_vec()));
        Ok(())
    }

    fn wait(&mut self, all: &mut [u8]) -> Result<(), ExchangeError> {
        let Some((gate, mine)) = self.posted.take() else {
            return Err(misuse("a wait without a gate", "post one first"));
        };
        if all.len() != self.ranks * mine.len() {
            return Err(misuse("room of another length", "room for every rank's part"));
        }
        if !mine.is_empty() {
            all.chunks_exact_mut(mine.len()).for_each(|part| part.copy_from_slice(&mine));
        }
        self.counts.count(gate, mine.len());
        Ok(())
    }

    fn broadcast(&mut self, _bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
        if self.rank == 0 { Ok(()) } else { Err(misuse("nobody is rank 0", "play rank 0")) }
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
