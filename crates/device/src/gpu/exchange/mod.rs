//! Sums over the cards of one process, without the host: gates in each other's memory.
//!
//! Each rank drives its card from a thread of its own. A card has a [`window`] that the others
//! write; `kernels/gates.k` sends, waits and adds in one launch, so that a step with its gates is
//! one graph. The number of a gate is that of the step's first, which lies in the step's data, and
//! a place in the step.
//!
//! Ranks in processes of their own open each other's windows by handles, or have them in memory of
//! the host: [`apart`] says which, [`agree`] how they find out what works, [`carrier`] what goes
//! beyond this machine.
//!
//! A gate that fails leaves its mark in the card's memory, and the gates after it do nothing. The
//! mark is looked at before anything is believed that was computed behind a gate ([`look`]): at
//! every read, and at the end of a step.

mod agree;
mod apart;
mod carrier;
mod map;
mod nccl;
mod peer;
mod ranks;
mod rows;
#[cfg(all(test, feature = "host-driver"))]
mod tests;
mod thread;
mod window;
mod words;

pub use agree::GateRoute;
pub(super) use apart::{Apart, are_left_out, join_epoch, note};
#[cfg(feature = "host-driver")]
pub(crate) use map::Offer;
pub(crate) use map::{Lent, Map};
#[cfg(feature = "cuda")]
pub(crate) use map::{NAME_AT, name_of};
pub use nccl::Nccl;
pub(super) use nccl::{Gatherer, bytes_of_gather, waiting};
pub use peer::GatePeer;
pub(super) use ranks::Ranks;
pub(super) use rows::{share, share_words, sum_own};
pub use window::Peers;
pub(crate) use window::Window;

use super::arguments::GateArgs;
use super::driver::Address;
use super::record::Place;
use super::store::Ask;
use super::{Gpu, small};
use crate::{Buffer, Error, Exchange, ExchangeError, GateKind, Part};
use std::time::Duration;

/// `GATE_UNITS`, `GATE_CHUNK`, `GATE_CHUNKS`, `GATE_HEAD` and `GATE_TIMES` of the kernels.
const UNITS: usize = 32_768;
const CHUNK: usize = 4096;
const CHUNKS: usize = 1024;
const HEAD: usize = 256;
const TIMES: usize = 1024;
/// Numbers before the times in the fate.
const MARK: usize = 4;
/// Threads of a group that sends words, and chunks.
const WORDS_GROUP: u32 = 128;
const CHUNKS_GROUP: u32 = 512;
/// Floats from which on chunks are faster than words, where both are possible.
const CHUNKS_MIN: usize = 12 * CHUNK;
/// Gates of the self-test.
const TRIES: usize = 8;
/// How long a gate of the self-test may take: kernels are loaded at the first launch.
const TRY_LIMIT: Duration = Duration::from_secs(20);

/// A card's place among its peers.
pub(super) struct Gates {
    /// Keeps the windows, which launches write.
    _peers: Peers,
    rank: usize,
    ranks: usize,
    /// The windows' addresses, on this card.
    table: Address,
    /// The mark of a failure, and the times of the last gates.
    fate: Address,
    limit: Duration,
    /// In which epoch gates are counted.
    epoch: u64,
    /// Number of the last gate of the epoch.
    sequence: u32,
    /// Kinds of the gates whose fate nobody has looked at, from which number on.
    pending: (u32, Vec<GateKind>),
    /// Whether rows of a step can go through the windows too.
    rows: bool,
}

/// [`crate::Backend::splits_rows`].
pub(super) fn splits_rows(gpu: &Gpu) -> bool {
    are_left_out(gpu) || gpu.gates.as_ref().is_some_and(|gates| gates.rows)
}

/// The step's first number and epoch on the card, and that number here.
#[derive(Clone, Copy)]
pub(super) struct StepGates {
    now: Place,
    base: u32,
}

impl Gates {
    /// Which of the ranks this is.
    pub(super) fn part(&self) -> Part {
        Part { rank: self.rank, ranks: self.ranks }
    }
}

impl Gpu {
    /// The same with gates in its peers' memory; the exchange says which rank it is. All ranks call
    /// this at the same time, since they try the gates. Where those do not work, sums go through
    /// the exchange, and the reason is given. A gate waits no longer than `limit`.
    pub fn with_peers(
        mut self,
        peers: &Peers,
        limit: Duration,
    ) -> Result<(Self, Option<String>), Error> {
        self.join(peers, TRY_LIMIT)?;
        let exchange = self.exchange.as_mut().expect("`join` has seen it");
        let mut all = vec![0; exchange.ranks()];
        // Opening a card may take longer than a gate.
        exchange.gather(GateKind::Status, &[1], &mut all)?;
        let tried = self.try_gates(TRY_LIMIT);
        let exchange = self.exchange.as_mut().expect("`join` has seen it");
        exchange.gather(GateKind::Status, &[u8::from(tried.is_ok())], &mut all)?;
        if all.contains(&0) {
            self.gates = None;
            let reason = match tried {
                Err(error) => error.to_string(),
                Ok(()) => "another rank's card failed".into(),
            };
            return Ok((self, Some(reason)));
        }
        self.gates.as_mut().expect("`join` has made them").limit = limit;
        self.recorder.graphs = self.config.graphs;
        Ok((self, None))
    }

    /// Takes the place among the peers that the exchange gives.
    fn join(&mut self, peers: &Peers, limit: Duration) -> Result<(), Error> {
        let refuse = |found: String| Error::Shape {
            operation: "with_peers",
            found,
            wanted: format!("one of the group that {} windows were made for", peers.ranks()),
        };
        let exchange = self.exchange.as_mut().ok_or_else(|| refuse("a device alone".into()))?;
        let (rank, ranks, epoch) = (exchange.rank(), exchange.ranks(), exchange.epoch());
        if ranks != peers.ranks() || !matches!(ranks, 2 | 4 | 8) {
            return Err(refuse(format!("a rank of {ranks}")));
        }
        exchange.watch(peers.clone());
        let driver = &mut *self.driver;
        let table = driver.alloc(8 * ranks as u64)?;
        let fate = driver.alloc(4 * (MARK + TIMES) as u64)?;
        let addresses = peers.addresses().flat_map(|address| address.0.to_le_bytes());
        driver.upload(table, &addresses.collect::<Vec<u8>>())?;
        let (sequence, pending) = (0, (0, Vec::new()));
        let peers = peers.clone();
        self.gates = Some(Gates {
            _peers: peers,
            rank,
            ranks,
            table,
            fate,
            limit,
            epoch,
            sequence,
            pending,
            rows: true,
        });
        Ok(())
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// [`crate::Backend::gate_times`], of at most the last thousand.
pub(super) fn times(gpu: &mut Gpu) -> Result<Vec<f64>, Error> {
    let Some(gates) = &gpu.gates else { return Ok(Vec::new()) };
    let mut bytes = vec![0; 4 * TIMES];
    let at = gates.fate.offset(4 * MARK as u64);
    gpu.flush()?;
    gpu.driver.download(at, &mut bytes)?;
    let each = f64::from(gpu.driver.facts().clock_khz.max(1)) / 1e3;
    let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    Ok(words.filter(|ticks| *ticks > 0).map(|ticks| f64::from(ticks) / each).collect())
}

/// [`crate::Backend::sum_ranks`].
pub(super) fn sum(
    gpu: &mut Gpu,
    gate: GateKind,
    buffer: Buffer,
    len: usize,
) -> Result<bool, Error> {
    if are_left_out(gpu) {
        return Ok(true);
    }
    if gpu.nccl.is_some() {
        return nccl::sum(gpu, gate, buffer, len);
    }
    if !enter(gpu)? {
        return Ok(false);
    }
    let ask = Ask { operation: "sum_ranks", operand: "the part" };
    let Place::At(x) = gpu.f32(ask, buffer, len)? else {
        unreachable!("buffers lie in memory that stays")
    };
    pass(gpu, gate, (x, len), len >= CHUNKS_MIN && len.is_multiple_of(4))?;
    if let Some(exchange) = gpu.exchange.as_mut().filter(|exchange| !exchange.is_carried()) {
        exchange.passed(gate, 4 * len);
    }
    Ok(true)
}

/// Whether there are gates; they are then those of the group's epoch.
fn enter(gpu: &mut Gpu) -> Result<bool, Error> {
    let (Some(exchange), Some(gates)) = (&gpu.exchange, &mut gpu.gates) else { return Ok(false) };
    let epoch = exchange.epoch();
    if gates.epoch != epoch && gpu.apart.is_some() {
        // Windows of processes belong to an epoch: `join_epoch` has not made those of this one.
        agree::Side::detach(gpu);
        return Ok(false);
    }
    if gates.epoch != epoch {
        // Everything of the old epoch has been waited for, since it broke.
        (gates.epoch, gates.sequence, gates.pending) = (epoch, 0, (0, Vec::new()));
        let fate = gates.fate;
        gpu.step.gates = None;
        gpu.flush()?;
        gpu.driver.upload(fate, &[0; 4 * MARK])?;
    }
    Ok(true)
}

/// Records the gates of a sum of so many floats, in chunks (then a multiple of four) or in words.
fn pass(
    gpu: &mut Gpu,
    gate: GateKind,
    (x, len): (Address, usize),
    chunked: bool,
) -> Result<(), Error> {
    let piece = if chunked { CHUNK * CHUNKS } else { 3 * UNITS };
    for start in (0..len).step_by(piece) {
        let len = piece.min(len - start);
        let (now, mut arguments, windows, fate) = next(gpu, gate)?;
        arguments.len = small("sum_ranks", len)?;
        let sequence = gpu.gates.as_ref().map_or(0, |gates| gates.sequence);
        if let Some(exchange) = &mut gpu.exchange {
            exchange.expect(gate, sequence, len, chunked);
        }
        let x = Place::At(x.offset(4 * start as u64));
        let places = [windows, now, x, fate];
        if chunked {
            // Groups that wait must all run at the same time.
            let groups = small("sum_ranks", len.div_ceil(CHUNK))?.min(gpu.multiprocessors());
            arguments.groups = groups;
            gpu.launch("gate_chunks", [groups, 1, 1], CHUNKS_GROUP, &places, &arguments)?;
        } else {
            let units = arguments.len.div_ceil(3);
            let grid = [units.div_ceil(WORDS_GROUP), 1, 1];
            let carried = gpu.exchange.as_ref().is_some_and(Ranks::is_carried);
            // What is carried goes whole: a group that waits must not keep others from sending.
            let legs: &[u32] = match carried && grid[0] > gpu.multiprocessors() {
                true => &[1, 2],
                false => &[0],
            };
            for leg in legs {
                arguments.leg = *leg;
                gpu.launch("gate_words", grid, WORDS_GROUP, &places, &arguments)?;
            }
        }
    }
    Ok(())
}

/// The next gate of the step: where its number begins, and what does not change with it.
fn next(gpu: &mut Gpu, gate: GateKind) -> Result<(Place, GateArgs, Place, Place), Error> {
    let gates = gpu.gates.as_mut().expect("the caller has seen them");
    let step = match gpu.step.gates {
        Some(step) => step,
        None => {
            let epoch = u32::try_from(gates.epoch).unwrap_or(u32::MAX);
            let words = [gates.sequence, epoch].into_iter().flat_map(u32::to_le_bytes);
            let step = StepGates { now: gpu.recorder.put(words), base: gates.sequence };
            *gpu.step.gates.insert(step)
        }
    };
    gates.sequence = gates.sequence.wrapping_add(1);
    if gates.pending.1.is_empty() {
        gates.pending.0 = gates.sequence;
    }
    gates.pending.1.push(gate);
    let arguments = GateArgs {
        limit: u64::try_from(gates.limit.as_nanos()).unwrap_or(u64::MAX),
        index: gates.sequence.wrapping_sub(step.base),
        rank: small("sum_ranks", gates.rank)?,
        ranks: small("sum_ranks", gates.ranks)?,
        ..GateArgs::default()
    };
    Ok((step.now, arguments, Place::At(gates.table), Place::At(gates.fate)))
}

/// The gate that has failed since the last look, and who was missing.
fn mark(gpu: &mut Gpu) -> Result<Option<(GateKind, usize)>, Error> {
    let Some(gates) = &mut gpu.gates else { return Ok(None) };
    let (first, kinds) = std::mem::take(&mut gates.pending);
    if kinds.is_empty() {
        return Ok(None);
    }
    let mut bytes = [0; 4 * MARK];
    gpu.driver.download(gates.fate, &mut bytes)?;
    let word = |at: usize| u32::from_le_bytes(bytes.as_chunks::<4>().0[at]);
    if word(0) == 0 {
        return Ok(None);
    }
    let at = usize::try_from(word(1).wrapping_sub(first)).unwrap_or(usize::MAX);
    let gate = kinds.get(at).copied().unwrap_or(GateKind::Status);
    Ok(Some((gate, usize::try_from(word(2)).unwrap_or(usize::MAX))))
}

/// Refuses what was computed behind a gate that failed. The group is broken then.
pub(super) fn look(gpu: &mut Gpu) -> Result<(), Error> {
    nccl::look(gpu)?;
    let Some((gate, rank)) = mark(gpu)? else { return Ok(()) };
    let waited_ms = gpu.gates.as_ref().map_or(0, |gates| milliseconds(gates.limit));
    let late = ExchangeError::Late { rank, waited_ms, gate: gate.name() };
    let Some(exchange) = &mut gpu.exchange else { return Err(late.into()) };
    // Where somebody has given up, their reason is the reason.
    let first = match exchange.post(GateKind::Status, &[]) {
        Err(first) => first,
        Ok(()) => {
            exchange.abort(&late.to_string());
            late
        }
    };
    Err(first.into())
}
