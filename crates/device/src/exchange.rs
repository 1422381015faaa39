//! What the ranks of a group say to each other: gates of fixed size in a fixed order, the bytes of
//! rank 0 to all, and bytes from one to another. Transports move bytes; nobody else's reduction
//! adds our numbers.
//!
//! Every rank passes the same gates in the same order, each once with [`Exchange::post`] and once
//! with [`Exchange::wait`]; between them it may compute. A gate that fails leaves the group broken:
//! all later calls fail at once with the first reason, until [`Exchange::reform`] has given the
//! group a new epoch. [`Local`] is a group inside one process.

mod local;

pub use local::{Local, LocalGroup};
use std::sync::Arc;

/// What a gate carries; kinds are counted and timed apart, and a message of another kind or length
/// than the one that is due is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum GateKind {
    /// Partial rows of attention's output projection.
    Attention = 0,
    /// Partial rows of the expert sum.
    Ffn = 1,
    /// The best compressed rows of a part of them.
    Index = 2,
    /// Logits of a part of the vocabulary.
    Vocabulary = 3,
    /// Whether a command was carried out; nothing in it is added.
    Status = 4,
}

impl GateKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [GateKind; 5] = [
        GateKind::Attention,
        GateKind::Ffn,
        GateKind::Index,
        GateKind::Vocabulary,
        GateKind::Status,
    ];

    /// Name for printing.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            GateKind::Attention => "attention",
            GateKind::Ffn => "ffn",
            GateKind::Index => "index",
            GateKind::Vocabulary => "vocabulary",
            GateKind::Status => "status",
        }
    }
}

/// How often each kind of gate was passed, and what it carried; in the order of [`GateKind::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounts {
    /// Gates that were waited for.
    pub gates: [u64; 5],
    /// Bytes that this rank gave.
    pub bytes: [u64; 5],
}

impl GateCounts {
    /// Gates of one kind.
    #[must_use]
    pub fn of(&self, kind: GateKind) -> u64 {
        self.gates[kind as usize]
    }

    /// Counts one gate.
    pub fn count(&mut self, kind: GateKind, bytes: usize) {
        self.gates[kind as usize] += 1;
        self.bytes[kind as usize] += bytes as u64;
    }
}

/// Why a group could not exchange something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// A rank has gone: its process ended, or its link is down.
    #[error("rank {rank} is lost ({found}); start it again, and the group goes on")]
    Lost {
        /// Which rank.
        rank: usize,
        /// What was seen.
        found: String,
    },
    /// A rank did not answer in time.
    #[error(
        "rank {rank} was silent for {waited_ms} ms at a gate of kind {gate}; look whether it runs \
         and whether the link is up, or allow more time"
    )]
    Late {
        /// Which rank.
        rank: usize,
        /// How long it was waited for.
        waited_ms: u64,
        /// What was waited for.
        gate: &'static str,
    },
    /// A message that is not the one that is due, or whose checksum is wrong.
    #[error("rank {rank} sent {found}, but {wanted} is due; the link or a program is at fault")]
    Wrong {
        /// Which rank.
        rank: usize,
        /// What came.
        found: String,
        /// What should have come.
        wanted: String,
    },
    /// Another rank gave up, and says why.
    #[error("rank {rank} gave up: {reason}")]
    Aborted {
        /// Which rank.
        rank: usize,
        /// Its reason.
        reason: String,
    },
    /// This end was used wrongly: a bug in the caller.
    #[error("exchange: {found}, but {wanted}")]
    Misuse {
        /// What was done.
        found: String,
        /// What is needed.
        wanted: String,
    },
}

/// One rank's end of a group.
pub trait Exchange: Send {
    /// This rank's number, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn ranks(&self) -> usize;

    /// Begins a gate: `mine` is on its way to all others when this returns. Every rank gives as
    /// many bytes. A gate must be waited for before the next is posted.
    fn post(&mut self, gate: GateKind, mine: &[u8]) -> Result<(), ExchangeError>;

    /// Ends the gate: `all` becomes every rank's part in rank order, this rank's own included
    /// (`ranks * mine.len()` bytes). Waits no longer than the group's deadline.
    fn wait(&mut self, all: &mut [u8]) -> Result<(), ExchangeError>;

    /// [`Exchange::post`] and [`Exchange::wait`].
    fn gather(&mut self, gate: GateKind, mine: &[u8], all: &mut [u8]) -> Result<(), ExchangeError> {
        self.post(gate, mine)?;
        self.wait(all)
    }

    /// Gives rank 0's `bytes` to all others, whose own are replaced. Not a gate: rank 0 goes on at
    /// once, and the others wait as long as rank 0 lives, since a server may be idle for hours.
    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<(), ExchangeError>;

    /// Gives bytes to one other rank, behind what it was given before; not a gate. Returns when
    /// they are queued. The queue is bounded, and so is the wait for room in it.
    fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), ExchangeError>;

    /// The next bytes that a rank gave to this one with [`Exchange::send`]. The wait is bounded, by
    /// more than a gate's: what they depend on may take long to compute.
    fn receive(&mut self, from: usize) -> Result<Vec<u8>, ExchangeError>;

    /// Breaks the group and tells the others why, so that nobody waits for a deadline.
    fn abort(&mut self, reason: &str);

    /// Waits, bounded, until every rank is there again, a replacement included, and begins a new
    /// epoch, which it gives. Rank 0 may be long in coming, since it reforms when it has something
    /// to do: then this fails and is called again. What was under way before is dropped on all
    /// ranks. The ranks that are left keep their process and all that is loaded.
    fn reform(&mut self) -> Result<u64, ExchangeError>;

    /// The epoch: 0 at first, more after each [`Exchange::reform`].
    fn epoch(&self) -> u64;

    /// What was exchanged so far.
    fn counts(&self) -> GateCounts;

    /// What tells another thread of this epoch's end, where something does.
    fn alarm(&self) -> Option<Arc<dyn Alarm>> {
        None
    }
}

/// Whether the group of an epoch still stands, for threads that do not have the exchange.
pub trait Alarm: Send + Sync {
    /// Why it is broken, if it is. Cheap while it is not.
    fn error(&self) -> Option<ExchangeError>;
    /// Breaks it; the first reason stays.
    fn fail(&self, error: ExchangeError);
}

#[cfg(test)]
mod tests;
