//! A card's end of its group: the exchange that carries orders, and the windows by which the
//! others' kernels learn at once that this rank has given up.

use super::carrier::{Boxes, Carrier, Inner, Job};
use super::thread::Looker;
use super::{Peers, Window};
use crate::{Alarm, Error, Exchange, ExchangeError, GateCounts, GateKind};
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether the group still stands.
const LOOK: Duration = Duration::from_millis(5);

/// The exchange of a rank that may have peers.
pub(in super::super) struct Ranks {
    /// Dropped before the exchange, which it uses.
    carrier: Option<Carrier>,
    sentry: Option<Looker>,
    inner: Inner,
    rank: usize,
    ranks: usize,
    epoch: u64,
    /// What the exchange knows of the epoch.
    alarm: Option<Arc<dyn Alarm>>,
    /// Dropped behind the exchange, so that who hears of it finds the reason there.
    watch: Option<Watch>,
    /// Gates in the peers' memory.
    passed: GateCounts,
}

impl Ranks {
    pub fn new(inner: Box<dyn Exchange>) -> Self {
        let (rank, ranks, epoch) = (inner.rank(), inner.ranks(), inner.epoch());
        let (alarm, passed) = (inner.alarm(), GateCounts::default());
        let (carrier, sentry, watch) = (None, None, None);
        let inner = Inner::new(inner);
        Ranks { carrier, sentry, inner, rank, ranks, epoch, alarm, watch, passed }
    }

    /// From now on the peers' kernels are told when this rank gives up.
    pub fn watch(&mut self, peers: Peers) {
        self.watch = Some(Watch { peers, rank: self.rank, epoch: self.epoch });
    }

    /// From now on the kernels that wait at this window of the rank's own are told when the group
    /// is broken.
    pub fn guard(&mut self, window: Arc<dyn Window>) -> Result<(), Error> {
        let Some(alarm) = self.alarm.clone() else { return Ok(()) };
        self.sentry = Some(sentry(alarm, window, self.epoch)?);
        Ok(())
    }

    /// From now on a thread carries the gates that are told by [`Ranks::expect`].
    pub(super) fn carry(&mut self, boxes: Boxes, limit: Duration) -> Result<(), Error> {
        self.carrier = Some(Carrier::start(self.inner.clone(), boxes, limit)?);
        Ok(())
    }

    /// Whether a thread carries gates.
    pub fn is_carried(&self) -> bool {
        self.carrier.is_some()
    }

    /// A gate was recorded that a thread will carry, if one does.
    pub fn expect(&mut self, gate: GateKind, sequence: u32, floats: usize, chunked: bool) {
        let epoch = u32::try_from(self.epoch).unwrap_or(u32::MAX);
        if let Some(carrier) = &mut self.carrier {
            carrier.expect(Job { gate, sequence, epoch, floats, chunked });
        }
    }

    /// No peers any more, without giving up.
    pub fn alone(&mut self) {
        (self.carrier, self.sentry, self.watch) = (None, None, None);
    }

    /// Counts a gate that did not go through the exchange.
    pub fn passed(&mut self, gate: GateKind, bytes: usize) {
        self.passed.count(gate, bytes);
    }

    /// The exchange, once no gate is under way.
    fn settled(&self) -> std::sync::MutexGuard<'_, Box<dyn Exchange>> {
        self.carrier.iter().for_each(Carrier::settle);
        self.inner.lock()
    }
}

/// Tells the peers' kernels that this rank has given up its epoch.
struct Watch {
    peers: Peers,
    rank: usize,
    epoch: u64,
}

impl Watch {
    fn give_up(&self) {
        self.peers.give_up(self.rank, self.epoch);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// A thread that tells this rank's kernels when the group is broken: a process that has died tells
/// nobody.
fn sentry(alarm: Arc<dyn Alarm>, window: Arc<dyn Window>, epoch: u64) -> Result<Looker, Error> {
    let word = u32::try_from(epoch).unwrap_or(u32::MAX).wrapping_add(1);
    Looker::start("gates-watch", LOOK, move || {
        let broken = alarm.error().is_some();
        if broken {
            window.tell(word);
        }
        broken
    })
}

impl Exchange for Ranks {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn post(&mut self, gate: GateKind, mine: &[u8]) -> Result<(), ExchangeError> {
        self.settled().post(gate, mine)
    }

    fn wait(&mut self, all: &mut [u8]) -> Result<(), ExchangeError> {
        self.settled().wait(all)
    }

    fn gather(&mut self, gate: GateKind, mine: &[u8], all: &mut [u8]) -> Result<(), ExchangeError> {
        self.settled().gather(gate, mine, all)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
        self.settled().broadcast(bytes)
    }

    fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), ExchangeError> {
        self.settled().send(to, bytes)
    }

    fn receive(&mut self, from: usize) -> Result<Vec<u8>, ExchangeError> {
        self.settled().receive(from)
    }

    fn abort(&mut self, reason: &str) {
        self.carrier.iter().for_each(Carrier::give_up);
        match (&self.alarm, &self.carrier) {
            // The thread may have the exchange, and waits there for others.
            (Some(alarm), Some(_)) => {
                alarm.fail(ExchangeError::Aborted { rank: self.rank, reason: reason.into() });
            }
            _ => self.inner.lock().abort(reason),
        }
        self.watch.iter().for_each(Watch::give_up);
    }

    fn reform(&mut self) -> Result<u64, ExchangeError> {
        self.watch.iter().for_each(Watch::give_up);
        (self.carrier, self.sentry) = (None, None);
        let mut inner = self.inner.lock();
        let epoch = inner.reform()?;
        (self.epoch, self.alarm) = (epoch, inner.alarm());
        drop(inner);
        self.watch.iter_mut().for_each(|watch| watch.epoch = epoch);
        Ok(epoch)
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn counts(&self) -> GateCounts {
        let mut all = self.settled().counts();
        all.gates.iter_mut().zip(self.passed.gates).for_each(|(all, own)| *all += own);
        all.bytes.iter_mut().zip(self.passed.bytes).for_each(|(all, own)| *all += own);
        all
    }

    fn alarm(&self) -> Option<Arc<dyn Alarm>> {
        self.alarm.clone()
    }
}
