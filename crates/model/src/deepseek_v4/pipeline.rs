//! A layer pipeline: nodes that each have some consecutive layers of one model.
//!
//! ```text
//!  rank 0: embedding, layers 0..a ──streams──▶ rank 1: layers a..b ──streams──▶ rank 2: .., head
//!     ▲  │ orders to all                                                             │
//!     │  └───────────────────────────────────────────────────────────────────────────┤
//!     └──────────────────────────── logits, guesses ─────────────────────────────────┘
//! ```
//!
//! Rank 0 has the sessions. It tells all nodes of a step and evaluates its own layers; the streams
//! of the step's rows go from node to node, and the last gives logits straight back. A step that
//! wants no logits is not waited for, so chunk i + 1 of a prompt is on rank 0 while chunk i is on
//! rank 1; at most [`Pipe::window`] steps are under way.
//!
//! A state's rows are where their layers are. Its saved bytes are those of one machine: rank 0 asks
//! the nodes for theirs and puts them in order, and gives them back in the same way. When a node is
//! lost, its rows are: states beyond position 0 are *lost* from then on, whoever uses one gets the
//! reason, and it is evaluated again or restored in the next epoch, which the others enter with the
//! weights that they have.

mod follow;

use super::follow::{NEVER, Shared};
use super::orders::{Order, Part, refusal, status, wrong};
use super::results::Given;
use super::{Stages, State, Wire};
use crate::{Error, Output};
use ironstar_device::{Backend, Buffer, Error as DeviceError, Exchange, ExchangeError, GateKind};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes of a state in one record.
const RECORD_BYTES: usize = 64 << 20;
/// Orders that may be told to a node that is busy: they meet posted receives of its links.
const ORDERS_MAX: usize = 12;
/// Most steps that are under way; answers of as many fit into the queues of a stream.
const WINDOW_MAX: usize = 8;

/// A node's place in a pipeline, before its model is loaded.
pub struct Pipeline {
    stages: Stages,
    wire: Wire,
    exchange: Box<dyn Exchange>,
    /// What rank 0 says that all must have in common, to be answered when this node has loaded.
    heard: Option<Vec<u8>>,
}

impl Pipeline {
    /// Rank 0 of a group, which tells the others the cut.
    pub fn lead(
        exchange: Box<dyn Exchange>,
        stages: Stages,
        wire: Wire,
    ) -> Result<Pipeline, Error> {
        if exchange.ranks() != stages.count() || exchange.rank() != 0 {
            let found = format!("rank {} of {}", exchange.rank(), exchange.ranks());
            let wanted = format!("rank 0 of {} cuts the layers", stages.count());
            return Err(Error::Ranks { ranks: stages.count(), found, wanted });
        }
        Ok(Pipeline { stages, wire, exchange, heard: None })
    }

    /// Another rank: hears the cut. A group that breaks meanwhile is formed again as long as
    /// `goes_on` says so.
    pub fn hear(
        mut exchange: Box<dyn Exchange>,
        goes_on: &mut dyn FnMut(&ExchangeError) -> bool,
    ) -> Result<Pipeline, Error> {
        let ranks = exchange.ranks();
        let mut bytes = Vec::new();
        let mut broken = exchange.broadcast(&mut bytes).err();
        while let Some(error) = broken {
            if !goes_on(&error) {
                return Err(DeviceError::from(error).into());
            }
            // Both are bounded by the group's deadlines, apart from waiting while rank 0 is idle.
            broken = exchange.reform().and_then(|_| exchange.broadcast(&mut bytes)).err();
        }
        let Order::Plan { ends, bits, identity } = Order::decode(&bytes)? else {
            return wrong("another order first".into(), "the cut of a pipeline is due");
        };
        let (stages, wire) = (Stages::new(ends)?, Wire::of_bits(bits));
        let Some(wire) = wire.filter(|_| stages.count() == ranks) else {
            let found = format!("a cut for {} nodes, {bits} bits", stages.count());
            return wrong(found, &format!("{ranks} nodes; 32, 16 or 8 bits"));
        };
        Ok(Pipeline { stages, wire, exchange, heard: Some(identity) })
    }

    /// The cut.
    #[must_use]
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Which node this is.
    #[must_use]
    pub fn stage(&self) -> usize {
        self.exchange.rank()
    }
}

/// A node's end of a pipeline.
pub(super) struct Pipe {
    pub stages: Stages,
    pub stage: usize,
    wire: Wire,
    /// On rank 0, the epoch in which all are ready; [`NEVER`] while the group is broken.
    ready_in: AtomicU64,
    line: Mutex<Line>,
}

/// What changes of a pipeline's end.
struct Line {
    exchange: Box<dyn Exchange>,
    heard: Option<Vec<u8>>,
    /// Whether the epoch has ended.
    is_broken: bool,
    /// Why the last epoch ended.
    why: Option<ExchangeError>,
    /// Number of the last order in this epoch that moves streams or is answered.
    orders: u64,
    /// Steps of rank 0 that were not answered yet: how many orders each was the last of.
    under_way: VecDeque<usize>,
    /// Orders after the last of them.
    told: usize,
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} of layers {}", self.stage, self.stages)
    }
}

impl Line {
    fn tell(&mut self, order: &Order) -> Result<(), Error> {
        if self.under_way.iter().sum::<usize>() + self.told >= ORDERS_MAX {
            self.settle(0)?;
            self.told = 0;
        }
        self.told += 1;
        self.exchange.broadcast(&mut order.encode()).map_err(DeviceError::from)?;
        Ok(())
    }

    fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), Error> {
        Ok(self.exchange.send(to, bytes).map_err(DeviceError::from)?)
    }

    fn receive(&mut self, from: usize) -> Result<Vec<u8>, Error> {
        Ok(self.exchange.receive(from).map_err(DeviceError::from)?)
    }

    /// Bytes of any length, in records.
    fn send_all(&mut self, to: usize, bytes: &[u8]) -> Result<(), Error> {
        bytes.chunks(RECORD_BYTES).try_for_each(|part| self.send(to, part.to_vec()))
    }

    fn receive_all(&mut self, from: usize, total: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while all.len() < total {
            let part = self.receive(from)?;
            if part.is_empty() || part.len() > total - all.len() {
                let found = format!("{} bytes of a state after {}", part.len(), all.len());
                return wrong(found, &format!("{total} in all"));
            }
            all.extend_from_slice(&part);
        }
        Ok(all)
    }

    /// All nodes tell whether they did as told; on rank 0 an error is the first refusal.
    fn answers(&mut self, mine: Result<(), String>) -> Result<(), Error> {
        let mine = status(mine.as_ref().copied().map_err(String::as_str));
        let ranks = self.exchange.ranks();
        let mut all = vec![0; mine.len() * ranks];
        self.exchange.gather(GateKind::Status, &mine, &mut all).map_err(DeviceError::from)?;
        match refusal(&all) {
            Some((rank, reason)) if self.exchange.rank() == 0 => {
                let wanted = "all nodes must be able to".to_owned();
                Err(Error::Ranks { ranks, found: format!("node {rank}: {reason}"), wanted })
            }
            _ => Ok(()),
        }
    }

    /// Waits for answers until at most so many steps are under way.
    fn settle(&mut self, most: usize) -> Result<(), Error> {
        let last = self.exchange.ranks() - 1;
        while self.under_way.len() > most {
            let bytes = self.receive(last)?;
            let due = self.orders + 1 - self.under_way.len() as u64;
            // Nobody wants its logits: there are none.
            Given::decode(&bytes, due, 0)?;
            self.under_way.pop_front();
        }
        Ok(())
    }
}

impl Pipe {
    pub fn new(pipeline: Pipeline) -> Pipe {
        let Pipeline { stages, wire, exchange, heard } = pipeline;
        let (stage, ready_in) = (exchange.rank(), AtomicU64::new(NEVER));
        let (is_broken, why, orders, told) = (false, None, 0, 0);
        let under_way = VecDeque::new();
        let line = Line { exchange, heard, is_broken, why, orders, under_way, told };
        Pipe { stages, stage, wire, ready_in, line: Mutex::new(line) }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_last(&self) -> bool {
        self.stage == self.stages.last()
    }

    fn window(&self) -> usize {
        (self.stages.count() + 1).min(WINDOW_MAX)
    }

    /// Whether what the other nodes had of a state is gone.
    pub fn is_lost(&self, shared: &Shared) -> bool {
        self.stage == 0 && !self.is_ready_for(shared)
    }

    fn is_ready_for(&self, shared: &Shared) -> bool {
        let epoch = self.ready_in.load(Ordering::Relaxed);
        epoch != NEVER && shared.known.is(epoch)
    }

    /// Why a state was lost.
    pub fn why(&self) -> Error {
        let why = self.line().why.clone();
        let nobody = || ExchangeError::Lost { rank: 1, found: "its part of a state".into() };
        DeviceError::from(why.unwrap_or_else(nobody)).into()
    }

    /// After a failure: nobody waits for this node, and states are lost.
    pub fn broke(&self, error: &Error) {
        self.end(&mut self.line(), error);
    }

    fn end(&self, line: &mut Line, error: &Error) {
        let reason = match error {
            Error::Device(DeviceError::Exchange(reason)) => reason.clone(),
            other => {
                let (rank, reason) = (self.stage, other.to_string());
                line.exchange.abort(&reason);
                ExchangeError::Aborted { rank, reason }
            }
        };
        self.ready_in.store(NEVER, Ordering::Relaxed);
        (line.is_broken, line.why) = (true, Some(reason));
        line.under_way.clear();
    }

    /// On rank 0: does something with the others, when they are ready and know these states. If
    /// that breaks the group and no state is lost by it, it is tried once more in a new epoch.
    fn with<T>(
        &self,
        states: &[&State],
        identity: &[u8],
        work: &mut dyn FnMut(&mut Line) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let is_begun = |state: &&&State| state.position() > 0;
        let mut is_again = false;
        loop {
            if states.iter().any(|state| state.is_lost()) {
                return Err(self.why());
            }
            let mut line = self.line();
            let done = self.ready(&mut line, states, identity).and_then(|()| work(&mut line));
            match done {
                Err(error) if is_of_group(&error) => {
                    self.end(&mut line, &error);
                    if is_again || states.iter().any(|state| is_begun(&state)) {
                        return Err(error);
                    }
                    is_again = true;
                }
                other => return other,
            }
        }
    }

    fn ready(&self, line: &mut Line, states: &[&State], identity: &[u8]) -> Result<(), Error> {
        if line.is_broken {
            line.exchange.reform().map_err(DeviceError::from)?;
            line.is_broken = false;
        }
        let epoch = line.exchange.epoch();
        if self.ready_in.load(Ordering::Relaxed) != epoch {
            (line.orders, line.told) = (0, 0);
            line.under_way.clear();
            let (ends, bits) = (self.stages.ends().to_vec(), self.wire.bits());
            line.tell(&Order::Plan { ends, bits, identity: identity.to_vec() })?;
            line.answers(Ok(()))?;
            self.ready_in.store(epoch, Ordering::Relaxed);
        }
        for state in states.iter().filter(|state| !state.shared.known.is(epoch)) {
            line.settle(0)?;
            let (id, context) = (state.shared.id, state.context());
            line.tell(&Order::Take { id, context, saved: Vec::new() })?;
            line.answers(Ok(()))?;
            state.shared.known.set(epoch);
        }
        Ok(())
    }

    /// On rank 0: waits until all have loaded the same model, for as long as `patience`.
    pub fn meet(&self, identity: &[u8], patience: Duration) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            let mut line = self.line();
            match self.ready(&mut line, &[], identity) {
                Err(error) if is_of_group(&error) => {
                    self.end(&mut line, &error);
                    // Bounded by the group's deadline; who is not ready yet comes to the next one.
                    if start.elapsed() >= patience {
                        return Err(error);
                    }
                }
                other => return other,
            }
        }
    }

    /// On rank 0: ends the others.
    pub fn dismiss(&self) {
        if self.stage == 0 {
            // Who does not hear it is gone, or will see that this rank is.
            let _gone = self.line().tell(&Order::Stop);
        }
    }

    /// On rank 0: sees whether all are there; states are lost from now on if not.
    pub fn look(&self) {
        let mut line = self.line();
        if self.stage == 0
            && !line.is_broken
            // Whoever waits for their answers sees it too.
            && line.under_way.is_empty()
            && let Err(error) = line.tell(&Order::Look)
        {
            self.end(&mut line, &error);
        }
    }

    /// On rank 0: tells of a step, which gets the number that comes back.
    pub fn lead_step(
        &self,
        states: &[&State],
        identity: &[u8],
        order: &Order,
    ) -> Result<u64, Error> {
        let most = self.window() - 1;
        self.with(states, identity, &mut |line| {
            line.settle(most)?;
            line.tell(order)?;
            line.orders += 1;
            let told = std::mem::take(&mut line.told);
            line.under_way.push_back(told);
            Ok(line.orders)
        })
    }

    /// On rank 0: what a step gave, when all before it have ended.
    pub fn output(&self, vocabulary: usize) -> Result<Output, Error> {
        let mut line = self.line();
        line.settle(1)?;
        let bytes = line.receive(self.stages.last())?;
        line.under_way.clear();
        match Given::decode(&bytes, line.orders, vocabulary)? {
            Given::Output(output) => Ok(output),
            _ => wrong("guesses".into(), "the logits of a step"),
        }
    }

    /// On rank 0: guesses of the last node.
    pub fn draft(
        &self,
        state: &State,
        identity: &[u8],
        vocabulary: usize,
        order: &Order,
    ) -> Result<Given, Error> {
        self.with(&[state], identity, &mut |line| {
            line.settle(0)?;
            line.tell(order)?;
            line.orders += 1;
            let bytes = line.receive(self.stages.last())?;
            Given::decode(&bytes, line.orders, vocabulary)
        })
    }

    /// On rank 0: bytes that each other node has of a part of a state.
    pub fn save(
        &self,
        state: &State,
        identity: &[u8],
        part: Part,
        sizes: &[usize],
    ) -> Result<Vec<Vec<u8>>, Error> {
        if sizes.iter().skip(1).all(|size| *size == 0) {
            return Ok(vec![Vec::new(); sizes.len()]);
        }
        let (id, position) = (state.shared.id, state.position());
        self.with(&[state], identity, &mut |line| {
            line.settle(0)?;
            line.tell(&Order::Save { id, position, part })?;
            let mut all = vec![Vec::new()];
            for (rank, size) in sizes.iter().enumerate().skip(1) {
                all.push(line.receive_all(rank, *size)?);
            }
            Ok(all)
        })
    }

    /// On rank 0: gives every other node its bytes of a part of a state.
    pub fn load(
        &self,
        state: &State,
        identity: &[u8],
        part: Part,
        bytes: &[Vec<u8>],
    ) -> Result<(), Error> {
        // Blocks before it were given in this epoch.
        let follows = match part {
            Part::Whole(_) => false,
            Part::Block(block) => block > 0,
            Part::Checkpoint(position) => position >= super::BLOCK_TOKENS,
        };
        if follows && !self.is_ready_for(&state.shared) {
            return Err(self.why());
        }
        let epoch = self.ready_in.load(Ordering::Relaxed);
        let id = state.shared.id;
        self.with(&[state], identity, &mut |line| {
            if follows && line.exchange.epoch() != epoch {
                let found = "a new epoch, without the rows before".to_owned();
                return Err(DeviceError::from(ExchangeError::Lost { rank: 1, found }).into());
            }
            line.settle(0)?;
            line.tell(&Order::Load { id, part })?;
            for (rank, bytes) in bytes.iter().enumerate().skip(1) {
                line.send_all(rank, bytes)?;
            }
            Ok(())
        })
    }

    /// On rank 0: the session has ended.
    pub fn tell_release(&self, shared: &Shared) {
        if self.stage == 0 && self.is_ready_for(shared) {
            // In a broken group nobody keeps it.
            let _gone = self.line().tell(&Order::Release { id: shared.id });
        }
    }

    /// Gives the streams of a step's rows to the next node.
    pub fn pass_on(
        &self,
        backend: &mut dyn Backend,
        number: u64,
        (x, len): (Buffer, usize),
    ) -> Result<(), Error> {
        let mut floats = vec![0; len * 4];
        backend.read(x, 0, &mut floats)?;
        let mut bytes = Vec::with_capacity(8 + self.wire.bytes(len));
        bytes.extend_from_slice(&number.to_le_bytes());
        self.wire.encode(&floats, &mut bytes);
        self.line().send(self.stage + 1, bytes)
    }

    /// Takes the streams of a step's rows from the node before.
    pub fn take_over(
        &self,
        backend: &mut dyn Backend,
        number: u64,
        (x, len): (Buffer, usize),
    ) -> Result<(), Error> {
        let bytes = self.line().receive(self.stage - 1)?;
        let Some((found, values)) = bytes.split_first_chunk::<8>() else {
            return wrong(format!("{} bytes of activations", bytes.len()), "a number first");
        };
        let found = u64::from_le_bytes(*found);
        if found != number {
            return wrong(format!("activations of step {found}"), &format!("those of {number}"));
        }
        let floats = self.wire.decode(values, len)?;
        backend.write(x, 0, &floats)?;
        Ok(())
    }
}

fn is_of_group(error: &Error) -> bool {
    matches!(error, Error::Device(DeviceError::Exchange(_)))
}
