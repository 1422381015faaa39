//! A group inside one process: threads that meet in one place under a lock.

use super::{Exchange, ExchangeError, GateCounts, GateKind};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where the ranks meet.
struct Hub {
    state: Mutex<State>,
    changed: Condvar,
    deadline: Duration,
}

struct State {
    epoch: u64,
    broken: Option<ExchangeError>,
    ranks: Vec<Seat>,
}

/// What one rank finds in its place.
#[derive(Default)]
struct Seat {
    is_taken: bool,
    /// Whether somebody sat there and has gone.
    was_left: bool,
    /// Whether it waits for a new epoch.
    is_reforming: bool,
    /// From each rank, the gates that it has posted.
    inbox: Vec<VecDeque<(GateKind, Arc<[u8]>)>>,
    /// What rank 0 has broadcast.
    orders: VecDeque<Arc<[u8]>>,
    /// From each rank, what it gave to this one alone.
    records: Vec<VecDeque<Vec<u8>>>,
}

/// A group of ranks in one process.
#[derive(Clone)]
pub struct LocalGroup(Arc<Hub>);

impl LocalGroup {
    /// A group of so many ranks, none of which is there yet; each gate waits no longer than
    /// `deadline`.
    #[must_use]
    pub fn new(ranks: usize, deadline: Duration) -> LocalGroup {
        let seat = || Seat {
            inbox: vec![VecDeque::new(); ranks],
            records: vec![VecDeque::new(); ranks],
            ..Seat::default()
        };
        let ranks = (0..ranks).map(|_| seat()).collect();
        let state = Mutex::new(State { epoch: 0, broken: None, ranks });
        LocalGroup(Arc::new(Hub { state, changed: Condvar::new(), deadline }))
    }

    /// Takes a rank's place, where nobody sits. One that comes into a broken group must
    /// [`Exchange::reform`] with the others.
    pub fn join(&self, rank: usize) -> Result<Local, ExchangeError> {
        let mut state = self.0.lock();
        let ranks = state.ranks.len();
        let seat = state.ranks.get_mut(rank).filter(|seat| !seat.is_taken);
        let Some(seat) = seat else {
            let (found, wanted) = (format!("rank {rank} joins"), format!("a free one of {ranks}"));
            return Err(ExchangeError::Misuse { found, wanted });
        };
        (seat.is_taken, seat.was_left) = (true, false);
        let epoch = state.epoch;
        drop(state);
        let (hub, posted, counts) = (self.0.clone(), None, GateCounts::default());
        Ok(Local { hub, rank, ranks, epoch, posted, counts, kept: None })
    }

    /// All ranks of a new group.
    #[must_use]
    pub fn whole(ranks: usize, deadline: Duration) -> Vec<Local> {
        let group = LocalGroup::new(ranks, deadline);
        (0..ranks).map(|rank| group.join(rank).expect("nobody has joined yet")).collect()
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One rank of a [`LocalGroup`].
pub struct Local {
    hub: Arc<Hub>,
    rank: usize,
    ranks: usize,
    epoch: u64,
    posted: Option<(GateKind, Arc<[u8]>)>,
    counts: GateCounts,
    /// Dropped when this end has left the group.
    kept: Option<Box<dyn Any + Send>>,
}

impl State {
    /// Breaks the group, if it is not broken.
    fn fail(&mut self, error: ExchangeError) -> ExchangeError {
        self.broken.get_or_insert(error).clone()
    }

    fn check(&self, epoch: u64) -> Result<(), ExchangeError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if self.epoch != epoch {
            let (found, wanted) =
                (format!("epoch {epoch}"), format!("epoch {}: reform first", self.epoch));
            return Err(ExchangeError::Misuse { found, wanted });
        }
        Ok(())
    }
}

impl Local {
    /// Keeps something as long as this end of the group lives, and lets it go when the others know
    /// that it has left: what waits for the other ranks' threads.
    #[must_use]
    pub fn keeping(mut self, kept: impl Any + Send) -> Self {
        self.kept = Some(Box::new(kept));
        self
    }

    /// Waits until `ready` gives something, the group breaks, or time is up; then `late` says what
    /// was missing.
    fn wait_for<T>(
        &self,
        bounded: bool,
        mut ready: impl FnMut(&mut State) -> Option<T>,
        late: impl FnOnce(&State, u64) -> ExchangeError,
    ) -> Result<T, ExchangeError> {
        let start = Instant::now();
        let mut state = self.hub.lock();
        loop {
            // What was said before the group broke is still heard.
            if state.epoch == self.epoch
                && let Some(found) = ready(&mut state)
            {
                return Ok(found);
            }
            state.check(self.epoch)?;
            let waited = start.elapsed();
            if !bounded {
                state = self.hub.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let Some(left) = self.hub.deadline.checked_sub(waited).filter(|d| !d.is_zero()) else {
                let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                let error = late(&state, waited_ms);
                let error = state.fail(error);
                self.hub.changed.notify_all();
                return Err(error);
            };
            let waited = self.hub.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Breaks the group with an error of this end.
    fn misuse(&self, found: String, wanted: String) -> ExchangeError {
        let error = self.hub.lock().fail(ExchangeError::Misuse { found, wanted });
        self.hub.changed.notify_all();
        error
    }
}

impl Exchange for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn post(&mut self, gate: GateKind, mine: &[u8]) -> Result<(), ExchangeError> {
        if let Some((before, _)) = &self.posted {
            let found = format!("{} posted before {} was waited for", gate.name(), before.name());
            return Err(self.misuse(found, "one gate at a time".into()));
        }
        let bytes: Arc<[u8]> = mine.into();
        let mut state = self.hub.lock();
        state.check(self.epoch)?;
        for (rank, seat) in state.ranks.iter_mut().enumerate() {
            if rank != self.rank {
                seat.inbox[self.rank].push_back((gate, bytes.clone()));
            }
        }
        drop(state);
        self.hub.changed.notify_all();
        self.posted = Some((gate, bytes));
        Ok(())
    }

    fn wait(&mut self, all: &mut [u8]) -> Result<(), ExchangeError> {
        let Some((gate, mine)) = self.posted.take() else {
            return Err(self.misuse("nothing was posted".into(), "a gate to wait for".into()));
        };
        if all.len() != mine.len() * self.ranks {
            let found = format!("room for {} bytes", all.len());
            let wanted = format!("{} parts of {}", self.ranks, mine.len());
            return Err(self.misuse(found, wanted));
        }
        for rank in 0..self.ranks {
            let to = &mut all[rank * mine.len()..(rank + 1) * mine.len()];
            if rank == self.rank {
                to.copy_from_slice(&mine);
                continue;
            }
            let me = self.rank;
            let take = |state: &mut State| state.ranks[me].inbox[rank].pop_front();
            let late =
                |_: &State, waited_ms| ExchangeError::Late { rank, waited_ms, gate: gate.name() };
            let (kind, bytes) = self.wait_for(true, take, late)?;
            if kind != gate || bytes.len() != mine.len() {
                let found = format!("{} bytes of kind {}", bytes.len(), kind.name());
                let wanted = format!("{} of kind {}", mine.len(), gate.name());
                let error = ExchangeError::Wrong { rank, found, wanted };
                let error = self.hub.lock().fail(error);
                self.hub.changed.notify_all();
                return Err(error);
            }
            to.copy_from_slice(&bytes);
        }
        self.counts.count(gate, mine.len());
        Ok(())
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
        if self.rank == 0 {
            let mut state = self.hub.lock();
            state.check(self.epoch)?;
            let shared: Arc<[u8]> = bytes[..].into();
            for seat in state.ranks.iter_mut().skip(1) {
                seat.orders.push_back(shared.clone());
            }
            drop(state);
            self.hub.changed.notify_all();
            return Ok(());
        }
        let me = self.rank;
        let take = |state: &mut State| state.ranks[me].orders.pop_front();
        let never = |_: &State, waited_ms| ExchangeError::Late { rank: 0, waited_ms, gate: "" };
        *bytes = self.wait_for(false, take, never)?.to_vec();
        Ok(())
    }

    fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), ExchangeError> {
        if to == self.rank || to >= self.ranks {
            let found = format!("bytes for rank {to} of {}", self.ranks);
            return Err(self.misuse(found, "another rank".into()));
        }
        let mut state = self.hub.lock();
        state.check(self.epoch)?;
        let me = self.rank;
        state.ranks[to].records[me].push_back(bytes);
        drop(state);
        self.hub.changed.notify_all();
        Ok(())
    }

    fn receive(&mut self, from: usize) -> Result<Vec<u8>, ExchangeError> {
        if from == self.rank || from >= self.ranks {
            let found = format!("bytes of rank {from} of {}", self.ranks);
            return Err(self.misuse(found, "another rank".into()));
        }
        let me = self.rank;
        let take = |state: &mut State| state.ranks[me].records[from].pop_front();
        let late =
            |_: &State, waited_ms| ExchangeError::Late { rank: from, waited_ms, gate: "record" };
        self.wait_for(true, take, late)
    }

    fn abort(&mut self, reason: &str) {
        let error = ExchangeError::Aborted { rank: self.rank, reason: reason.to_owned() };
        self.hub.lock().fail(error);
        self.hub.changed.notify_all();
    }

    fn reform(&mut self) -> Result<u64, ExchangeError> {
        self.posted = None;
        let start = Instant::now();
        let mut state = self.hub.lock();
        let before = state.epoch;
        let me = self.rank;
        state.ranks[me].is_reforming = true;
        // The others learn that nothing under way will end.
        let lost = || ExchangeError::Lost { rank: me, found: "it left for a new epoch".into() };
        state.broken.get_or_insert_with(lost);
        self.hub.changed.notify_all();
        loop {
            if state.epoch != before {
                break;
            }
            if state.ranks.iter().all(|seat| seat.is_taken && seat.is_reforming) {
                state.epoch += 1;
                state.broken = None;
                for seat in &mut state.ranks {
                    seat.is_reforming = false;
                    seat.inbox.iter_mut().for_each(VecDeque::clear);
                    seat.orders.clear();
                    seat.records.iter_mut().for_each(VecDeque::clear);
                }
                self.hub.changed.notify_all();
                break;
            }
            // Epochs begin with rank 0, which is not replaced.
            let leaderless = me > 0 && state.ranks[0].was_left;
            let left = self.hub.deadline.checked_sub(start.elapsed());
            let Some(left) = left.filter(|d| !d.is_zero() && !leaderless) else {
                state.ranks[me].is_reforming = false;
                let missing = state.ranks.iter().position(|seat| !seat.is_reforming);
                let rank = if leaderless { 0 } else { missing.unwrap_or(me) };
                if state.ranks[rank].is_taken {
                    let waited_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                    return Err(ExchangeError::Late { rank, waited_ms, gate: "new epoch" });
                }
                let found = "it did not come back".to_owned();
                return Err(ExchangeError::Lost { rank, found });
            };
            let waited = self.hub.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.epoch = state.epoch;
        Ok(self.epoch)
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn counts(&self) -> GateCounts {
        self.counts
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        let seat = &mut state.ranks[self.rank];
        (seat.is_taken, seat.was_left, seat.is_reforming) = (false, true, false);
        let (rank, found) = (self.rank, "its end was dropped".to_owned());
        state.fail(ExchangeError::Lost { rank, found });
        drop(state);
        self.hub.changed.notify_all();
    }
}
