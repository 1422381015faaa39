//! A thread that carries what a card has put into memory of the host to the other ranks, over the
//! exchange, and what they give back to where the card waits for it: gates between cards of
//! several machines, inside the graph of a token.
//!
//! Which gates come, and in which order, is known when they are recorded. The exchange belongs to
//! this thread as long as any is under way; whoever else wants it waits for that
//! ([`Carrier::settle`]).

use super::map::Map;
use super::words::{Slot, Wait};
use crate::{Error, Exchange, ExchangeError, GateKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// An exchange that two threads use in turn.
#[derive(Clone)]
pub(super) struct Inner(Arc<Mutex<Box<dyn Exchange>>>);

impl Inner {
    pub fn new(exchange: Box<dyn Exchange>) -> Inner {
        Inner(Arc::new(Mutex::new(exchange)))
    }

    pub fn lock(&self) -> MutexGuard<'_, Box<dyn Exchange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the card puts its parts, and where it waits for those of the others.
#[derive(Clone)]
pub(super) struct Boxes {
    pub out: Arc<Map>,
    pub inbox: Arc<Map>,
}

/// A gate that will come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub gate: GateKind,
    pub sequence: u32,
    pub epoch: u32,
    pub floats: usize,
    pub chunked: bool,
}

/// What thread and owner have in common.
#[derive(Default)]
struct State {
    /// Gates that were carried, or given up.
    done: Mutex<u64>,
    changed: Condvar,
    /// Nothing is carried any more.
    over: AtomicBool,
}

/// The owner's end of the thread, which ends with it.
pub(super) struct Carrier {
    jobs: Option<Sender<Job>>,
    sent: u64,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Carrier {
    /// Starts the thread. A part that the card does not put for so long ends the epoch.
    pub fn start(inner: Inner, boxes: Boxes, limit: Duration) -> Result<Carrier, Error> {
        let (jobs, come) = channel();
        let state = Arc::new(State::default());
        let shared = state.clone();
        let run = move || carry_all(&come, &inner, &boxes, &shared, limit);
        let thread = Some(super::thread::start("gates", run)?);
        Ok(Carrier { jobs: Some(jobs), sent: 0, state, thread })
    }

    /// One more gate was recorded.
    pub fn expect(&mut self, job: Job) {
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        self.sent += u64::from(sent);
    }

    /// Waits until all gates were carried, each within its time.
    pub fn settle(&self) {
        let mut done = self.state.done.lock().unwrap_or_else(PoisonError::into_inner);
        while *done < self.sent {
            done = self.state.changed.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// No part of the card is waited for any more.
    pub fn give_up(&self) {
        self.state.over.store(true, Ordering::Release);
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.give_up();
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Whatever ended it was told to the group.
            let _ended = thread.join();
        }
    }
}

fn carry_all(come: &Receiver<Job>, inner: &Inner, boxes: &Boxes, state: &State, limit: Duration) {
    let mut room = Room::default();
    while let Ok(job) = come.recv() {
        if !state.over.load(Ordering::Acquire)
            && carry(job, inner, boxes, state, limit, &mut room).is_err()
        {
            state.over.store(true, Ordering::Release);
            // The card's kernels wait no longer; the exchange knows why.
            boxes.inbox.tell(job.epoch.wrapping_add(1));
        }
        *state.done.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        state.changed.notify_all();
    }
}

/// Bytes of a gate, kept from one to the next.
#[derive(Default)]
struct Room {
    mine: Vec<u8>,
    all: Vec<u8>,
}

fn carry(
    job: Job,
    inner: &Inner,
    boxes: &Boxes,
    state: &State,
    limit: Duration,
    Room { mine, all }: &mut Room,
) -> Result<(), ExchangeError> {
    let (rank, ranks, alarm) = {
        let exchange = inner.lock();
        (exchange.rank(), exchange.ranks(), exchange.alarm())
    };
    let given_up = || {
        state.over.load(Ordering::Acquire)
            || alarm.as_ref().is_some_and(|alarm| alarm.error().is_some())
    };
    let bytes = 4 * job.floats;
    mine.resize(bytes, 0);
    all.resize(ranks * bytes, 0);
    let Job { sequence, epoch, chunked, .. } = job;
    let slot = |from| Slot { ranks, from, sequence, epoch, chunked };
    let there = slot(rank).take(&boxes.out, mine, &mut Wait::new(limit, &given_up));
    let mut exchange = inner.lock();
    if !there {
        let waited_ms = super::milliseconds(limit);
        let late = ExchangeError::Late { rank, waited_ms, gate: job.gate.name() };
        exchange.abort(&late.to_string());
        return Err(late);
    }
    exchange.gather(job.gate, mine, all)?;
    drop(exchange);
    for (from, part) in all.chunks(bytes.max(1)).enumerate().filter(|(from, _)| *from != rank) {
        slot(from).put(&boxes.inbox, part);
    }
    Ok(())
}
