//! A group of ranks on one model: rank 0 leads, the others follow.
//!
//! Rank 0 has the sessions. Before each step it tells the others what comes, and all ranks then run
//! the same pass on their parts, with gates where partial sums meet. The others keep a state for
//! each session, which holds the same as rank 0's: key/value and compressed rows belong to all
//! heads, so every rank computes them, and a saved state is that of one device.
//!
//! A state becomes known to the others when the first order names it, with all that it holds; so
//! it does again after it was changed from outside (restored, loaded from a store), and in each new
//! epoch of the group. That is all there is to recovery: a broken group forms again, a
//! replacement has loaded its part and knows nothing, and rank 0's states are the truth.

use super::orders::{Order, refusal, status};
use super::{Model, State};
use crate::{Directions, Error, LogitsFor, SteeringScales, Step, Wanted};
use ironstar_device::{Backend, Error as DeviceError, ExchangeError, GateCounts, GateKind};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Most bytes of a state in one order; transports bound what they take.
const SAVED_BYTES_MAX: usize = 16 << 20;

/// No epoch.
pub(super) const NEVER: u64 = u64::MAX;

/// In which epoch the others know something.
#[derive(Debug)]
pub(super) struct Known(AtomicU64);

impl Default for Known {
    fn default() -> Self {
        Known(AtomicU64::new(NEVER))
    }
}

impl Known {
    pub fn is(&self, epoch: u64) -> bool {
        self.0.load(Ordering::Relaxed) == epoch
    }

    pub fn set(&self, epoch: u64) {
        self.0.store(epoch, Ordering::Relaxed);
    }

    pub fn forget(&self) {
        self.set(NEVER);
    }
}

/// What the others know of a state.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub id: u32,
    pub known: Known,
    /// Lowest position that the others' rings can go back to, where theirs hold less.
    pub floor: AtomicUsize,
}

/// What a rank holds while it follows.
#[derive(Default)]
struct Held {
    states: HashMap<u32, State>,
    /// The first bytes of the state that comes next.
    saved: Vec<u8>,
}

/// Something that a rank tells while it follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The group broke, and this is why; the rank waits for a new epoch.
    Broken(ExchangeError),
    /// It still waits. Rank 0 begins an epoch when it has something to do, so this may go on; who
    /// knows that rank 0 is gone for good says so.
    Waiting(ExchangeError),
    /// A new epoch has begun.
    Epoch(u64),
}

impl Model {
    /// Whether this device computes with others.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.kept.pipe.as_ref().map_or(self.part.ranks, |pipe| pipe.stages.count())
    }

    /// Gates that the backend's rank has passed.
    #[must_use]
    pub fn gate_counts(backend: &mut dyn Backend) -> GateCounts {
        backend.exchange().map(|exchange| exchange.counts()).unwrap_or_default()
    }

    /// On rank 0: waits until all ranks have loaded the same model, for as long as `patience`;
    /// they may take minutes.
    pub fn meet(&self, backend: &mut dyn Backend, patience: Duration) -> Result<(), Error> {
        if let Some(pipe) = &self.kept.pipe {
            return pipe.meet(&self.meeting(), patience);
        }
        let start = Instant::now();
        loop {
            match self.prepare(backend, &[]) {
                // A rank that gave up before it had anything to do will not come.
                Err(Error::Device(DeviceError::Exchange(reason)))
                    if !matches!(reason, ExchangeError::Aborted { .. })
                        && start.elapsed() < patience => {}
                other => return other,
            }
            // Bounded by the group's deadline; who is not ready yet comes to the next one.
            let exchange = backend.exchange().expect("`prepare` has failed on it");
            let _not_yet = exchange.reform();
        }
    }

    /// On rank 0: ends the others' [`Model::follow`].
    pub fn dismiss(&self, backend: &mut dyn Backend) {
        if let Some(pipe) = &self.kept.pipe {
            pipe.dismiss();
        } else if let Some(exchange) = backend.exchange().filter(|exchange| exchange.rank() == 0) {
            // Who does not hear it is gone, or will see that this rank is.
            let _gone = exchange.broadcast(&mut Order::Stop.encode());
        }
    }

    /// On rank 0, before a pass: tells the others. A group that was broken is formed again first.
    pub(super) fn lead(
        &self,
        backend: &mut dyn Backend,
        states: &[&State],
        order: &Order,
    ) -> Result<(), Error> {
        if self.part.ranks == 1 || self.part.rank > 0 {
            return Ok(());
        }
        match self.tell(backend, states, order) {
            Err(Error::Device(DeviceError::Exchange(_))) => {}
            other => return other,
        }
        let exchange = backend.exchange().expect("a part is loaded on a backend in a group");
        exchange.reform().map_err(DeviceError::from)?;
        self.tell(backend, states, order)
    }

    /// After a failure inside a pass: the others must not wait at a gate for this rank.
    pub(super) fn give_up(&self, backend: &mut dyn Backend, error: &Error) {
        if let Some(pipe) = &self.kept.pipe {
            pipe.broke(error);
            return;
        }
        let by_group = matches!(error, Error::Device(DeviceError::Exchange(_)));
        if let Some(exchange) = backend.exchange().filter(|_| !by_group && self.part.ranks > 1) {
            exchange.abort(&error.to_string());
        }
    }

    fn tell(
        &self,
        backend: &mut dyn Backend,
        states: &[&State],
        order: &Order,
    ) -> Result<(), Error> {
        self.prepare(backend, states)?;
        broadcast(backend, order)
    }

    /// Makes sure that the others are ready for orders about these states.
    fn prepare(&self, backend: &mut dyn Backend, states: &[&State]) -> Result<(), Error> {
        let Some(exchange) = backend.exchange() else { return Ok(()) };
        let epoch = exchange.epoch();
        if !self.met.is(epoch) {
            broadcast(backend, &Order::Meet { identity: self.meeting() })?;
            answers(backend, Ok(()))?;
            backend.join_epoch()?;
            self.met.set(epoch);
        }
        if self.was_steered && !self.steering_told.is(epoch) {
            let (directions, scales) = match &self.steering {
                None => (Vec::new(), [0.0; 2]),
                Some(how) => (how.told.to_bytes(), [how.scales.attention, how.scales.ffn]),
            };
            let scales = scales.map(f32::to_bits);
            broadcast(backend, &Order::Steer { directions, scales })?;
            answers(backend, Ok(()))?;
            self.steering_told.set(epoch);
        }
        for state in states.iter().filter(|state| !state.shared.known.is(epoch)) {
            let position = state.position();
            let saved = if position == 0 { Vec::new() } else { state.save(backend)? };
            let (id, context) = (state.shared.id, state.context());
            let mut pieces = saved.chunks(SAVED_BYTES_MAX).map(<[u8]>::to_vec).peekable();
            while let Some(saved) = pieces.next_if(|piece| piece.len() == SAVED_BYTES_MAX) {
                broadcast(backend, &Order::More { saved })?;
            }
            let saved = pieces.next().unwrap_or_default();
            broadcast(backend, &Order::Take { id, context, saved })?;
            answers(backend, Ok(()))?;
            state.shared.floor.store(position, Ordering::Relaxed);
            state.shared.known.set(epoch);
        }
        Ok(())
    }

    /// What all ranks must have in common.
    pub(super) fn meeting(&self) -> Vec<u8> {
        self.kept.meeting()
    }

    /// On every rank but 0: does what rank 0 orders, until it says that nothing follows, or
    /// `on_event` does not go on. What breaks the group is told and survived: weights stay, and
    /// the states of sessions come again.
    pub fn follow(
        &mut self,
        backend: &mut dyn Backend,
        on_event: &mut dyn FnMut(Followed) -> bool,
    ) -> Result<(), Error> {
        if self.kept.pipe.is_some() {
            return self.follow_pipe(backend, on_event);
        }
        let mut held = Held::default();
        loop {
            let end = match self.obey_one(backend, &mut held) {
                Ok(true) => continue,
                Ok(false) => None,
                Err(error) => Some(error),
            };
            std::mem::take(&mut held).states.into_values().for_each(|state| state.release(backend));
            match end {
                None => return Ok(()),
                Some(error) => rejoin(backend, error, on_event)?,
            }
        }
    }

    /// Hears an order and carries it out; false is the last.
    fn obey_one(&mut self, backend: &mut dyn Backend, held: &mut Held) -> Result<bool, Error> {
        let states = &mut held.states;
        let Some(exchange) = backend.exchange() else { return Ok(false) };
        let mut bytes = Vec::new();
        exchange.broadcast(&mut bytes).map_err(DeviceError::from)?;
        match Order::decode(&bytes)? {
            Order::Stop => return Ok(false),
            Order::Meet { identity } => {
                if answers(backend, self.kept.meets(&identity))? {
                    backend.join_epoch()?;
                }
            }
            Order::More { saved } => held.saved.extend_from_slice(&saved),
            Order::Take { id, context, saved } => {
                let mut all = std::mem::take(&mut held.saved);
                all.extend_from_slice(&saved);
                let taken = self.take(backend, states, (id, context), &all);
                answers(backend, taken.map_err(|error| error.to_string()))?;
            }
            Order::Steer { directions, scales } => {
                let scales = scales.map(f32::from_bits);
                let steered = self.follow_steering(backend, &directions, scales);
                answers(backend, steered.map_err(|error| error.to_string()))?;
            }
            Order::Release { id } => {
                if let Some(state) = states.remove(&id) {
                    state.release(backend);
                }
            }
            Order::Step { ids, step, logits, drafts, shared } => {
                let wanted = Wanted {
                    logits: LogitsFor::Rows(&logits),
                    drafts: drafts.as_deref().map_or(LogitsFor::None, LogitsFor::Rows),
                };
                on_states(states, (&ids, &step), State::go_to, |all| {
                    self.forward_shared(backend, &step, all, &wanted, shared)
                })?;
            }
            Order::Plan { .. } | Order::Save { .. } | Order::Load { .. } | Order::Look => {
                let (found, wanted) = ("an order of a pipeline".to_owned(), "for ranks".to_owned());
                let error = ExchangeError::Wrong { rank: 0, found, wanted };
                return Err(DeviceError::from(error).into());
            }
            Order::Draft { id, position, token, most } => {
                let state = states.get_mut(&id).ok_or_else(|| unknown(id))?;
                state.go_to(position)?;
                match most {
                    None => self.draft(backend, state, token).map(|_| ())?,
                    Some(most) => self.draft_tokens(backend, state, token, most).map(|_| ())?,
                }
            }
        }
        Ok(true)
    }

    /// Steers as rank 0 does.
    fn follow_steering(
        &mut self,
        backend: &mut dyn Backend,
        directions: &[u8],
        [attention, ffn]: [f32; 2],
    ) -> Result<(), Error> {
        if directions.is_empty() {
            return self.steer(backend, None);
        }
        let (layers, width) = (self.kept.shape.layers, self.kept.shape.width);
        let directions = Directions::from_bytes(directions, layers, width)?;
        self.steer(backend, Some((&directions, SteeringScales { attention, ffn })))
    }

    /// Makes a session's state what rank 0 says it is.
    fn take(
        &self,
        backend: &mut dyn Backend,
        states: &mut HashMap<u32, State>,
        (id, context): (u32, usize),
        saved: &[u8],
    ) -> Result<(), Error> {
        if let Some(old) = states.remove(&id) {
            if old.context() == context {
                states.insert(id, old);
            } else {
                old.release(backend);
            }
        }
        let state = match states.entry(id) {
            std::collections::hash_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(self.new_state(backend, context)?)
            }
        };
        if saved.is_empty() { state.truncate(0) } else { state.restore(backend, saved) }
    }
}

impl State {
    /// [`State::go_to`] on a node of a pipeline, where rank 0 may have gone back to 0 unheard.
    pub(super) fn go_there(&mut self, position: usize) -> Result<(), Error> {
        if position == 0 { self.truncate(0) } else { self.go_to(position) }
    }

    /// To the position at which rank 0's state stands: rows of the last step are kept, or taken
    /// back.
    fn go_to(&mut self, position: usize) -> Result<(), Error> {
        match position.checked_sub(self.position()) {
            Some(0) => Ok(()),
            Some(rows) => self.advance(rows),
            None => self.truncate(position),
        }
    }

    /// Tells the others that the session has ended.
    pub(super) fn tell_release(&self, backend: &mut dyn Backend) {
        let Some(exchange) = backend.exchange().filter(|exchange| exchange.rank() == 0) else {
            return;
        };
        if self.shared.known.is(exchange.epoch()) {
            // In a broken group nobody keeps it.
            let _gone = exchange.broadcast(&mut Order::Release { id: self.shared.id }.encode());
        }
    }
}

/// Work on the states that a step is about, each where rank 0's stands: they are taken out of those
/// that are held, and put back whatever comes of it.
pub(super) fn on_states<T>(
    held: &mut HashMap<u32, State>,
    (ids, step): (&[u32], &Step),
    go_to: fn(&mut State, usize) -> Result<(), Error>,
    work: impl FnOnce(&mut [&mut State]) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut mine = Vec::with_capacity(ids.len());
    let there = ids.iter().zip(&step.spans).try_for_each(|(id, span)| {
        let mut state = held.remove(id).ok_or_else(|| unknown(*id))?;
        let there = go_to(&mut state, span.position);
        mine.push((*id, state));
        there
    });
    let made = there.and_then(|()| {
        let mut all: Vec<&mut State> = mine.iter_mut().map(|(_, state)| state).collect();
        work(&mut all)
    });
    held.extend(mine);
    made
}

/// Rank 0 speaks of a session that it never told of.
pub(super) fn unknown(id: u32) -> Error {
    let found = format!("an order about session {id}");
    let wanted = "it was told of before".to_owned();
    DeviceError::from(ExchangeError::Wrong { rank: 0, found, wanted }).into()
}

fn broadcast(backend: &mut dyn Backend, order: &Order) -> Result<(), Error> {
    let exchange = backend.exchange().expect("a part is loaded on a backend in a group");
    exchange.broadcast(&mut order.encode()).map_err(DeviceError::from)?;
    Ok(())
}

/// All ranks tell whether they did as told, and hear whether all did; on rank 0 an error is the
/// first refusal.
fn answers(backend: &mut dyn Backend, mine: Result<(), String>) -> Result<bool, Error> {
    let exchange = backend.exchange().expect("a part is loaded on a backend in a group");
    let mine = status(mine.as_ref().copied().map_err(String::as_str));
    let ranks = exchange.ranks();
    let mut all = vec![0; mine.len() * ranks];
    exchange.gather(GateKind::Status, &mine, &mut all).map_err(DeviceError::from)?;
    match refusal(&all) {
        Some((rank, reason)) if exchange.rank() == 0 => {
            let wanted = "all ranks must be able to".to_owned();
            Err(Error::Ranks { ranks, found: format!("rank {rank}: {reason}"), wanted })
        }
        refused => Ok(refused.is_none()),
    }
}

/// After a failure: tells the others, and waits for a new epoch as long as rank 0 is there.
fn rejoin(
    backend: &mut dyn Backend,
    error: Error,
    on_event: &mut dyn FnMut(Followed) -> bool,
) -> Result<(), Error> {
    let Some(exchange) = backend.exchange() else { return Err(error) };
    let reason = match error {
        Error::Device(DeviceError::Exchange(reason)) => reason,
        other => {
            let (rank, reason) = (exchange.rank(), other.to_string());
            exchange.abort(&reason);
            ExchangeError::Aborted { rank, reason }
        }
    };
    wait_for_epoch(reason, || exchange.reform(), on_event)
}

/// Waits until a broken group forms again, as long as `on_event` goes on.
pub(super) fn wait_for_epoch(
    reason: ExchangeError,
    mut reform: impl FnMut() -> Result<u64, ExchangeError>,
    on_event: &mut dyn FnMut(Followed) -> bool,
) -> Result<(), Error> {
    let mut goes_on = on_event(Followed::Broken(reason.clone()));
    let mut last = reason;
    while goes_on {
        // Bounded by the group's deadline.
        match reform() {
            Ok(epoch) => {
                on_event(Followed::Epoch(epoch));
                return Ok(());
            }
            Err(error) => {
                last = error.clone();
                goes_on = on_event(Followed::Waiting(error));
            }
        }
    }
    Err(DeviceError::from(last).into())
}
