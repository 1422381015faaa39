//! Sums of cards by NVIDIA's library, where that is asked for: it gathers every rank's part inside
//! the graph of a step, and our kernel adds the parts by the tree. Nothing of the library adds.
//!
//! A group of one epoch has a communicator on each rank. Who gives up ends those of the others, so
//! that their kernels end; the next epoch makes new ones, and lists of launches name the epoch, so
//! that no old graph is replayed.

use super::super::arguments::{Arguments, GatherAddArgs};
use super::super::driver::{Address, Collective, Entrance, GATHER};
use super::super::record::Place;
use super::super::store::Ask;
use super::super::{Gpu, Scratch, size, small};
use super::thread::Looker;
use super::window::Window;
use super::{Peers, milliseconds};
use crate::{Buffer, Error, Exchange, ExchangeError, GateKind, Part};
use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::mpsc::{SendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What it is called where nobody names a file.
const LIBRARY: &str = "libnccl.so.2";
/// The oldest version whose calls inside a recording are known: 2.14, as the library counts.
const VERSION_MIN: c_int = 21_400;
/// `ncclSuccess` and `ncclUint8`.
const SUCCESS: c_int = 0;
const BYTES: c_int = 1;
/// `NCCL_UNIQUE_ID_BYTES`.
const ID_BYTES: usize = 128;
const GROUP: u32 = 256;
/// How long a call may take before its communicator is ended under it, and how often it is looked.
const CALL: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(1);
/// How often it is looked at least whether a call waits too long.
const WATCH: Duration = Duration::from_secs(1);

/// What a communicator is made of.
#[derive(Clone, Copy)]
#[repr(C)]
struct UniqueId([u8; ID_BYTES]);

type Comm = *mut c_void;

crate::library_functions! {
    ncclGetVersion: fn(*mut c_int) -> c_int;
    ncclGetUniqueId: fn(*mut UniqueId) -> c_int;
    ncclCommInitRank: fn(*mut Comm, c_int, UniqueId, c_int) -> c_int;
    ncclCommAbort: fn(Comm) -> c_int;
    ncclAllGather: fn(*const c_void, *mut c_void, usize, c_int, Comm, *mut c_void) -> c_int;
    ncclGetErrorString: fn(c_int) -> *const c_char;
}

/// A rank's communicator.
#[derive(Clone, Copy)]
enum Seat {
    Empty,
    /// With a number of calls that are in the library with it.
    Open(Comm, usize),
    /// Somebody has given up, or this rank has waited for so many milliseconds.
    Ended(Option<u64>),
}

struct Shared {
    functions: Functions,
    /// Never unloaded: it has threads of its own.
    _library: ManuallyDrop<Library>,
    seats: Vec<Mutex<Seat>>,
}

// SAFETY: the library may be called from any thread; a communicator is used under its seat's lock.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// The library, and the communicators of the ranks of this process.
#[derive(Clone)]
pub struct Nccl(Arc<Shared>);

/// A rank's place in it.
pub(in super::super) struct Gatherer {
    nccl: Nccl,
    part: Part,
    /// In which epoch the communicator was made.
    epoch: Option<u64>,
    waits: Arc<Waits>,
    _watchdog: Looker,
}

impl Nccl {
    /// Loads the library for so many ranks of this process.
    pub fn load(path: Option<&Path>, ranks: usize) -> Result<Nccl, Error> {
        let name = path.unwrap_or(Path::new(LIBRARY));
        let refuse = |found: String| Error::Unsupported {
            found: format!("transport nccl ({found})"),
            wanted: "NVIDIA's libnccl.so.2 of version 2.14 or later where the loader looks, or \
                     --transport peer, which needs no library and is faster"
                .into(),
        };
        // SAFETY: loading runs the library's own start, which is NVIDIA's.
        let library = unsafe { Library::new(name) }.map_err(|error| refuse(error.to_string()))?;
        let functions = Functions::find(&library).map_err(|error| refuse(error.to_string()))?;
        let mut version = 0;
        // SAFETY: the out-parameter lives here.
        let status = unsafe { (functions.ncclGetVersion)(&raw mut version) };
        if status != SUCCESS || version < VERSION_MIN {
            return Err(refuse(format!("its version is {version}")));
        }
        let seats = (0..ranks).map(|_| Mutex::new(Seat::Empty)).collect();
        Ok(Nccl(Arc::new(Shared { functions, _library: ManuallyDrop::new(library), seats })))
    }

    /// Windows that are no memory: telling one ends its rank's communicator.
    fn seats(&self) -> Peers {
        let seat = |rank| Arc::new(SeatWindow { nccl: self.clone(), rank }) as Arc<dyn Window>;
        Peers::of((0..self.0.seats.len()).map(seat).collect())
    }

    fn seat(&self, rank: usize) -> MutexGuard<'_, Seat> {
        self.0.seats[rank].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn checked(&self, doing: &'static str, status: c_int) -> Result<(), Error> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the library gives a constant text for every number.
        let text = unsafe { (self.0.functions.ncclGetErrorString)(status) };
        let found = match text.is_null() {
            true => format!("status {status}"),
            // SAFETY: not null, ends with zero and stays.
            false => unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        let advice = "NCCL_DEBUG=INFO in the environment makes the library say more";
        Err(Error::Device { device: "nccl".into(), doing, found, advice })
    }

    /// What a group is made of, on rank 0.
    fn id(&self) -> Result<UniqueId, Error> {
        let mut id = UniqueId([0; ID_BYTES]);
        // SAFETY: the out-parameter lives here.
        let status = unsafe { (self.0.functions.ncclGetUniqueId)(&raw mut id) };
        self.checked("making a group", status).map(|()| id)
    }

    /// Makes a rank's communicator; waits for the others, who do the same, as long as the limit
    /// says. The call itself waits for ever and can be ended by nobody, since there is no
    /// communicator yet: it has a thread, which is left behind then and gives back what it gets.
    fn open(
        &self,
        part: Part,
        id: UniqueId,
        (entrance, limit): (Box<dyn Entrance>, Duration),
    ) -> Result<(), Error> {
        let (done, come) = sync_channel(0);
        let nccl = self.clone();
        let join = move || {
            let joined = entrance.enter().and_then(|()| nccl.join(part, id));
            // Nobody waits any more.
            if let Err(SendError(Ok(comm))) = done.send(joined) {
                // SAFETY: it was just made, and nobody else has it.
                unsafe { (nccl.0.functions.ncclCommAbort)(comm as Comm) };
            }
        };
        super::thread::start("nccl-join", join)?;
        let joined = come.recv_timeout(limit);
        let comm =
            joined.map_err(|_| late(part.rank, "joining a group", milliseconds(limit)))??;
        *self.seat(part.rank) = Seat::Open(comm as Comm, 0);
        Ok(())
    }

    /// The address of a new communicator.
    fn join(&self, Part { rank, ranks }: Part, id: UniqueId) -> Result<usize, Error> {
        let number = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        let mut comm = std::ptr::null_mut();
        // SAFETY: the out-parameter lives here; the rank's device is current on this thread.
        let status = unsafe {
            (self.0.functions.ncclCommInitRank)(&raw mut comm, number(ranks), id, number(rank))
        };
        self.checked("joining a group", status).map(|()| comm as usize)
    }

    /// Ends a rank's communicator and with it its kernels. A call that is in the library is waited
    /// for, since it is short; one that is stuck there ends by this too. With it goes how long the
    /// rank has waited, if that is why.
    fn end(&self, rank: usize, waited_ms: Option<u64>) {
        let begun = Instant::now();
        let comm = loop {
            let mut seat = self.seat(rank);
            match *seat {
                Seat::Open(_, calls) if calls > 0 && begun.elapsed() < CALL => {}
                Seat::Open(comm, _) => {
                    *seat = Seat::Ended(waited_ms);
                    break comm;
                }
                Seat::Empty | Seat::Ended(_) => return,
            }
            drop(seat);
            std::thread::sleep(LOOK);
        };
        // The library tells the kernels to end, and then waits until every graph that was recorded
        // with the communicator is gone. Those belong to the rank's own thread, which drops them
        // when it opens the next epoch ([`open_epoch`]) or with its card: nobody waits for that.
        let (nccl, comm) = (self.clone(), comm as usize);
        // SAFETY: it was open, and no call begins with it any more; the library lets another thread
        // end one that a call is stuck with.
        let abort = move || unsafe { (nccl.0.functions.ncclCommAbort)(comm as Comm) };
        let left_behind = super::thread::start("nccl-end", move || {
            abort();
        });
        // Without a thread it stays open, and what waits for it ends by its own limit.
        drop(left_behind);
    }

    /// The communicator for a call, until [`Nccl::leave`].
    fn enter(&self, rank: usize) -> Option<Comm> {
        match &mut *self.seat(rank) {
            Seat::Open(comm, calls) => {
                *calls += 1;
                Some(*comm)
            }
            Seat::Empty | Seat::Ended(_) => None,
        }
    }

    fn leave(&self, rank: usize) {
        if let Seat::Open(_, calls) = &mut *self.seat(rank) {
            *calls = calls.saturating_sub(1);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for seat in &mut self.seats {
            let seat = seat.get_mut().unwrap_or_else(PoisonError::into_inner);
            if let Seat::Open(comm, _) = seat {
                // SAFETY: the last user is gone.
                unsafe { (self.functions.ncclCommAbort)(*comm) };
            }
        }
    }
}

/// A rank, as whoever gives up tells it.
struct SeatWindow {
    nccl: Nccl,
    rank: usize,
}

impl Window for SeatWindow {
    fn address(&self) -> Address {
        Address::NULL
    }

    fn tell(&self, _word: u32) {
        self.nccl.end(self.rank, None);
    }
}

/// Since when a rank's thread is in a call that may wait for other ranks, and how long it may be.
struct Waits {
    since: Mutex<Option<Instant>>,
    limit: Mutex<Duration>,
}

impl Waits {
    fn new(limit: Duration) -> Waits {
        Waits { since: Mutex::new(None), limit: Mutex::new(limit) }
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limit(&self) -> MutexGuard<'_, Duration> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the call has lasted, if that is too long.
    fn overdue(&self) -> Option<Duration> {
        let waited = self.since().map(|since| since.elapsed())?;
        (waited > *self.limit()).then_some(waited)
    }
}

/// A call that may wait for other ranks, until this is dropped.
#[must_use]
pub(in super::super) struct Waiting(Option<Arc<Waits>>);

/// From here on the rank may wait for others; a call inside another is part of that.
pub(in super::super) fn waiting(gpu: &Gpu) -> Waiting {
    let Some(own) = &gpu.nccl else { return Waiting(None) };
    let mut since = own.waits.since();
    let is_outer = since.is_none();
    if is_outer {
        *since = Some(Instant::now());
    }
    Waiting(is_outer.then(|| own.waits.clone()))
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(waits) = &self.0 {
            *waits.since() = None;
        }
    }
}

/// Gathers on a stream for one rank.
struct RankGather {
    nccl: Nccl,
    rank: usize,
}

impl Collective for RankGather {
    fn gather(
        &self,
        from: Address,
        to: Address,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let ended = || ended(self.rank, *self.nccl.seat(self.rank));
        let Some(comm) = self.nccl.enter(self.rank) else { return Err(ended()) };
        let (from, to) = (from.0 as *const c_void, to.0 as *mut c_void);
        // SAFETY: the driver has checked both ranges; who ends the communicator waits for calls.
        let status =
            unsafe { (self.nccl.0.functions.ncclAllGather)(from, to, bytes, BYTES, comm, stream) };
        self.nccl.leave(self.rank);
        self.nccl.checked("gathering parts", status).map_err(|error| {
            // Who ends a communicator knows more than the library says.
            let seat = *self.nccl.seat(self.rank);
            if matches!(seat, Seat::Ended(Some(_))) { ended() } else { error }
        })
    }

    fn ranks(&self) -> usize {
        self.nccl.0.seats.len()
    }
}

impl Gpu {
    /// The same with sums by the library; the exchange says which rank it is. All ranks call this
    /// at the same time. Where it does not work, sums go through the exchange, and the reason is
    /// given. The library waits for a rank that is stuck as long as that lives: a call that waits
    /// longer than `limit` is ended, and the group is broken. It may wait for a whole step.
    pub fn with_nccl(
        mut self,
        nccl: &Nccl,
        limit: Duration,
    ) -> Result<(Self, Option<String>), Error> {
        let part = part_of(&mut self, nccl.0.seats.len())?;
        let exchange = self.exchange.as_mut().expect("`part_of` has seen it");
        exchange.watch(nccl.seats());
        let by = RankGather { nccl: nccl.clone(), rank: part.rank };
        self.driver.collective(Arc::new(by))?;
        let waits = Arc::new(Waits::new(limit));
        let _watchdog = watchdog(nccl.clone(), part.rank, waits.clone())?;
        self.nccl = Some(Gatherer { nccl: nccl.clone(), part, epoch: None, waits, _watchdog });
        let tried = open_epoch(&mut self).and_then(|()| attempt(&mut self));
        let mut all = vec![0; part.ranks];
        let exchange = self.exchange.as_mut().expect("`part_of` has seen it");
        exchange.gather(GateKind::Status, &[u8::from(tried.is_ok())], &mut all)?;
        if all.contains(&0) {
            self.nccl = None;
            let other = || "another rank's card failed".into();
            let reason = tried.map_or_else(|error| error.to_string(), |()| other());
            return Ok((self, Some(reason)));
        }
        self.recorder.graphs = self.config.graphs;
        Ok((self, None))
    }
}

/// A thread that ends a rank's communicator when a call has waited too long for the others.
fn watchdog(nccl: Nccl, rank: usize, waits: Arc<Waits>) -> Result<Looker, Error> {
    let every = (*waits.limit() / 8).min(WATCH);
    Looker::start("nccl-watch", every, move || {
        if let Some(waited) = waits.overdue() {
            nccl.end(rank, Some(milliseconds(waited)));
        }
        false
    })
}

/// The device's place among so many ranks.
fn part_of(gpu: &mut Gpu, ranks: usize) -> Result<Part, Error> {
    let exchange = gpu.exchange.as_ref();
    let part = exchange.map(|all| Part { rank: all.rank(), ranks: all.ranks() });
    let found = || part.map_or("a device alone".into(), |part| format!("a rank of {}", part.ranks));
    let wanted = format!("one of the {ranks} that the library was loaded for");
    let part = part.filter(|part| part.ranks == ranks && matches!(ranks, 2 | 4 | 8));
    part.ok_or_else(|| Error::Shape { operation: "with_nccl", found: found(), wanted })
}

/// Makes the communicators of the exchange's epoch. Whether rank 0 could begin all ranks know
/// before any of them waits inside the library.
fn open_epoch(gpu: &mut Gpu) -> Result<(), Error> {
    let _waiting = waiting(gpu);
    gpu.flush()?;
    gpu.driver.finish()?;
    // The library waits for graphs of the last epoch when it ends that one's communicator.
    let lanes = gpu.recorder.lanes;
    gpu.recorder.start_over(&mut *gpu.driver, lanes);
    let (Some(exchange), Some(gatherer)) = (&mut gpu.exchange, &mut gpu.nccl) else {
        return Ok(());
    };
    let (nccl, part, epoch) = (gatherer.nccl.clone(), gatherer.part, exchange.epoch());
    let mut mine = [0; 1 + ID_BYTES];
    let id = if part.rank == 0 { Some(nccl.id()) } else { None };
    if let Some(Ok(id)) = &id {
        mine[0] = 1;
        mine[1..].copy_from_slice(&id.0);
    }
    let mut all = vec![0; mine.len() * part.ranks];
    exchange.gather(GateKind::Status, &mine, &mut all)?;
    if let Some(Err(error)) = id {
        return Err(error);
    }
    if all[0] == 0 {
        let (found, wanted) = ("no group of the library".into(), "rank 0 makes one".into());
        return Err(ExchangeError::Wrong { rank: 0, found, wanted }.into());
    }
    let mut id = UniqueId([0; ID_BYTES]);
    id.0.copy_from_slice(&all[1..][..ID_BYTES]);
    let limit = *gatherer.waits.limit();
    nccl.open(part, id, (gpu.driver.entrance()?, limit))?;
    gatherer.epoch = Some(epoch);
    Ok(())
}

/// Sums known data, and looks at what comes.
fn attempt(gpu: &mut Gpu) -> Result<(), Error> {
    const LEN: usize = 1003;
    let Part { rank, ranks } = gpu.nccl.as_ref().map_or(Part::WHOLE, |own| own.part);
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let value = |rank: usize, at: usize| (rank * 977 + at * 7) as f32 * 0.37 - 1000.0;
    let Place::At(x) = gpu.scratch(Scratch::PartInput, 4 * LEN)? else {
        unreachable!("scratch lies in memory that stays")
    };
    let mine: Vec<u8> = (0..LEN).flat_map(|at| value(rank, at).to_le_bytes()).collect();
    let _waiting = waiting(gpu);
    gpu.driver.upload(x, &mine)?;
    add(gpu, x, LEN)?;
    gpu.flush()?;
    let mut bytes = vec![0; 4 * LEN];
    gpu.driver.download(x, &mut bytes)?;
    for (at, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
        let parts: Vec<f32> = (0..ranks).map(|rank| value(rank, at)).collect();
        let (found, wanted) = (f32::from_le_bytes(*word), ironstar_quant::subtree(&parts));
        if found.to_bits() != wanted.to_bits() {
            let (found, wanted) = (format!("{found} at {at} of a sum"), wanted.to_string());
            return Err(ExchangeError::Wrong { rank, found, wanted }.into());
        }
    }
    Ok(())
}

/// [`crate::Backend::sum_ranks`].
pub(in super::super) fn sum(
    gpu: &mut Gpu,
    gate: GateKind,
    buffer: Buffer,
    len: usize,
) -> Result<bool, Error> {
    let epoch = gpu.exchange.as_ref().map(|exchange| exchange.epoch());
    if gpu.nccl.as_ref().and_then(|own| own.epoch) != epoch {
        open_epoch(gpu)?;
    }
    let ask = Ask { operation: "sum_ranks", operand: "the part" };
    let Place::At(x) = gpu.f32(ask, buffer, len)? else {
        unreachable!("buffers lie in memory that stays")
    };
    add(gpu, x, len)?;
    if let Some(exchange) = &mut gpu.exchange {
        exchange.passed(gate, 4 * len);
    }
    Ok(true)
}

/// Records the gather and the addition.
fn add(gpu: &mut Gpu, x: Address, len: usize) -> Result<(), Error> {
    let Some(Gatherer { part, epoch, .. }) = &gpu.nccl else { return Ok(()) };
    let (ranks, epoch) = (part.ranks, epoch.unwrap_or(0));
    let parts = gpu.scratch(Scratch::Gathered, size(&[len, ranks, 4]))?;
    let (x, len) = (Place::At(x), small("sum_ranks", len)?);
    let gather = GatherArgs { bytes: 4 * u64::from(len), epoch };
    gpu.launch(GATHER, [1, 1, 1], GROUP, &[x, parts], &gather)?;
    let arguments = GatherAddArgs { len, ranks: small("sum_ranks", ranks)? };
    let grid = [len.div_ceil(GROUP), 1, 1];
    gpu.launch("gather_add", grid, GROUP, &[parts, x], &arguments)
}

/// What a recorded gather says: no kernel reads it.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct GatherArgs {
    bytes: u64,
    /// Lists of another epoch are other lists.
    epoch: u64,
}
// SAFETY: repr(C) of two 8-byte numbers.
unsafe impl Arguments for GatherArgs {
    const NAME: &'static str = "GatherArgs";
}

/// Bytes of each rank's part, of what was recorded.
pub(in super::super) fn bytes_of_gather(arguments: &[u8]) -> usize {
    let bytes = arguments.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn ended(rank: usize, seat: Seat) -> Error {
    if let Seat::Ended(Some(waited_ms)) = seat {
        return late(rank, "gathering parts", waited_ms);
    }
    let (found, wanted) = ("a communicator that was ended", "one that is whole");
    ExchangeError::Misuse { found: found.into(), wanted: wanted.into() }.into()
}

/// Nobody knows which of the others did not come.
fn late(rank: usize, doing: &str, waited_ms: u64) -> Error {
    let reason =
        format!("{doing} by NVIDIA's library took {waited_ms} ms: another rank lives but is stuck");
    ExchangeError::Aborted { rank, reason }.into()
}

/// Refuses what was computed after somebody gave up.
pub(super) fn look(gpu: &mut Gpu) -> Result<(), Error> {
    let Some(own) = &gpu.nccl else { return Ok(()) };
    let (rank, seat) = (own.part.rank, *own.nccl.seat(own.part.rank));
    if !matches!(seat, Seat::Ended(_)) {
        return Ok(());
    }
    let Some(exchange) = &mut gpu.exchange else { return Ok(()) };
    match exchange.post(GateKind::Status, &[]) {
        Err(first) => Err(first.into()),
        Ok(()) => {
            let error = ended(rank, seat);
            exchange.abort(&error.to_string());
            Err(error)
        }
    }
}

#[cfg(all(test, feature = "host-driver"))]
mod tests;
