//! A card's end of its group: the exchange that carries orders, and the windows by which the
//! others' kernels learn at once that this rank has given up.

use super::Peers;
use crate::{Exchange, ExchangeError, GateCounts, GateKind};

/// The exchange of a rank that may have peers.
pub(in super::super) struct Ranks {
    inner: Box<dyn Exchange>,
    /// Dropped behind the exchange, so that who hears of it finds the reason there.
    watch: Option<Watch>,
    /// Gates in the peers' memory.
    passed: GateCounts,
}

impl Ranks {
    pub fn new(inner: Box<dyn Exchange>) -> Self {
        Ranks { inner, watch: None, passed: GateCounts::default() }
    }

    /// From now on the peers' kernels are told when this rank gives up.
    pub fn watch(&mut self, peers: Peers) {
        let (rank, epoch) = (self.inner.rank(), self.inner.epoch());
        self.watch = Some(Watch { peers, rank, epoch });
    }

    /// Counts a gate that did not go through the exchange.
    pub fn passed(&mut self, gate: GateKind, bytes: usize) {
        self.passed.count(gate, bytes);
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

impl Exchange for Ranks {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    fn post(&mut self, gate: GateKind, mine: &[u8]) -> Result<(), ExchangeError> {
        self.inner.post(gate, mine)
    }

    fn wait(&mut self, all: &mut [u8]) -> Result<(), ExchangeError> {
        self.inner.wait(all)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
        self.inner.broadcast(bytes)
    }

    fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), ExchangeError> {
        self.inner.send(to, bytes)
    }

    fn receive(&mut self, from: usize) -> Result<Vec<u8>, ExchangeError> {
        self.inner.receive(from)
    }

    fn abort(&mut self, reason: &str) {
        self.inner.abort(reason);
        self.watch.iter().for_each(Watch::give_up);
    }

    fn reform(&mut self) -> Result<u64, ExchangeError> {
        self.watch.iter().for_each(Watch::give_up);
        let epoch = self.inner.reform()?;
        self.watch.iter_mut().for_each(|watch| watch.epoch = epoch);
        Ok(epoch)
    }

    fn epoch(&self) -> u64 {
        self.inner.epoch()
    }

    fn counts(&self) -> GateCounts {
        let mut all = self.inner.counts();
        all.gates.iter_mut().zip(self.passed.gates).for_each(|(all, own)| *all += own);
        all.bytes.iter_mut().zip(self.passed.bytes).for_each(|(all, own)| *all += own);
        all
    }
}
