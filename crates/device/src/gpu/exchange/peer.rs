//! A processor as the other end of a card's gates: for measurements, and for tests that need no
//! second card. Its sums are plain additions by the same tree.

use super::agree::{CardOffer, GateRoute, Side, agree, tries};
use super::map::Map;
use super::words::{Slot, Wait};
use super::{CHUNK, CHUNKS, CHUNKS_MIN, UNITS, milliseconds};
use crate::{Error, Exchange, ExchangeError, GateKind};
use std::sync::Arc;
use std::time::Duration;

/// A rank without a card, which passes the gates that cards pass.
pub struct GatePeer {
    exchange: Box<dyn Exchange>,
    route: GateRoute,
    /// Every rank's window, where they are shared.
    windows: Vec<Arc<Map>>,
    limit: Duration,
    sequence: u32,
    answers: bool,
    /// This rank's part of a gate, and all ranks', kept from one gate to the next.
    mine: Vec<u8>,
    all: Vec<u8>,
}

impl GatePeer {
    /// A rank of a group whose others call [`crate::Backend::join_epoch`] at the same time, by at
    /// most this route.
    pub fn join(
        exchange: Box<dyn Exchange>,
        most: GateRoute,
        limit: Duration,
    ) -> Result<GatePeer, Error> {
        // It has no card whose memory others could open.
        let most = most.min(GateRoute::Shared);
        let (route, windows) = (GateRoute::Host, Vec::new());
        let (sequence, answers, mine, all) = (0, false, Vec::new(), Vec::new());
        let mut peer = GatePeer { exchange, route, windows, limit, sequence, answers, mine, all };
        (peer.route, _) = agree(&mut peer, most)?;
        Ok(peer)
    }

    /// How the gates go.
    #[must_use]
    pub fn route(&self) -> GateRoute {
        self.route
    }

    /// What the ranks talk over.
    pub fn exchange(&mut self) -> &mut dyn Exchange {
        &mut *self.exchange
    }

    /// The last gate's number.
    #[cfg(all(test, feature = "host-driver"))]
    pub(super) fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Every rank's window.
    #[cfg(all(test, feature = "host-driver"))]
    pub(super) fn windows(&self) -> &[Arc<Map>] {
        &self.windows
    }

    /// Whether it gives its part only when it has the others', where windows are shared: a whole
    /// way there and back, as a measurement may want it.
    pub fn set_answering(&mut self, answers: bool) {
        self.answers = answers;
    }

    /// Passes a gate: the values become the sums over all ranks.
    pub fn sum(&mut self, gate: GateKind, values: &mut [f32]) -> Result<(), Error> {
        let chunked = values.len() >= CHUNKS_MIN && values.len().is_multiple_of(4);
        self.pass(gate, values, chunked)
    }

    fn pass(&mut self, gate: GateKind, values: &mut [f32], chunked: bool) -> Result<(), Error> {
        let piece = if chunked { CHUNK * CHUNKS } else { 3 * UNITS };
        let ranks = self.exchange.ranks();
        for values in values.chunks_mut(piece) {
            let bytes = 4 * values.len();
            let (mut mine, mut all) =
                (std::mem::take(&mut self.mine), std::mem::take(&mut self.all));
            mine.resize(bytes, 0);
            all.resize(ranks * bytes, 0);
            for (to, value) in mine.as_chunks_mut::<4>().0.iter_mut().zip(&*values) {
                *to = value.to_le_bytes();
            }
            let met = match self.route {
                GateRoute::Shared => self.meet(gate, &mine, &mut all, chunked),
                _ => self.exchange.gather(gate, &mine, &mut all).map_err(Error::from),
            };
            (self.mine, self.all) = (mine, all);
            met?;
            add(values, &self.all, ranks);
        }
        Ok(())
    }

    /// Puts this rank's part into all windows, and takes the others' from its own.
    fn meet(
        &mut self,
        gate: GateKind,
        mine: &[u8],
        all: &mut [u8],
        chunked: bool,
    ) -> Result<(), Error> {
        let (rank, ranks, length) = (self.exchange.rank(), self.exchange.ranks(), mine.len());
        all[rank * length..][..length].copy_from_slice(mine);
        self.sequence = self.sequence.wrapping_add(1);
        let epoch = u32::try_from(self.exchange.epoch()).unwrap_or(u32::MAX);
        let sequence = self.sequence;
        let slot = |from| Slot { ranks, from, sequence, epoch, chunked };
        let alarm = self.exchange.alarm();
        let given_up = || alarm.as_ref().is_some_and(|alarm| alarm.error().is_some());
        let put = || {
            let others = self.windows.iter().enumerate().filter(|(to, _)| *to != rank);
            others.for_each(|(_, window)| slot(rank).put(window, mine));
        };
        if !self.answers {
            put();
        }
        for (from, part) in all.chunks_mut(length).enumerate().filter(|(from, _)| *from != rank) {
            let mut wait = Wait::new(self.limit, &given_up);
            if !slot(from).take(&self.windows[rank], part, &mut wait) {
                let (waited_ms, gate) = (milliseconds(self.limit), gate.name());
                let late = ExchangeError::Late { rank: from, waited_ms, gate };
                let reason = alarm.as_ref().and_then(|alarm| alarm.error()).unwrap_or(late);
                self.exchange.abort(&reason.to_string());
                return Err(reason.into());
            }
        }
        if self.answers {
            put();
        }
        Ok(())
    }
}

/// The sums over all ranks' floats.
fn add(values: &mut [f32], all: &[u8], ranks: usize) {
    let bytes = 4 * values.len();
    if ranks == 2 {
        let (first, second) = all.split_at(bytes);
        let both = first.as_chunks::<4>().0.iter().zip(second.as_chunks::<4>().0);
        for (value, (a, b)) in values.iter_mut().zip(both) {
            *value = f32::from_le_bytes(*a) + f32::from_le_bytes(*b);
        }
        return;
    }
    for (at, value) in values.iter_mut().enumerate() {
        let part = |rank: usize| f32::from_le_bytes(all[rank * bytes..].as_chunks::<4>().0[at]);
        let parts: Vec<f32> = (0..ranks).map(part).collect();
        *value = ironstar_quant::subtree(&parts);
    }
}

fn no_card() -> Error {
    let wanted = "windows in memory of the host".to_owned();
    Error::Unsupported { found: "a rank without a card".into(), wanted }
}

impl Side for GatePeer {
    fn group(&mut self) -> &mut dyn Exchange {
        &mut *self.exchange
    }

    fn window(&mut self) -> Result<CardOffer, Error> {
        Err(no_card())
    }

    fn open(&mut self, _: &[CardOffer]) -> Result<(), Error> {
        Err(no_card())
    }

    fn attach(&mut self, route: GateRoute, maps: Vec<Arc<Map>>) -> Result<(), Error> {
        (self.route, self.windows, self.sequence) = (route, maps, 0);
        Ok(())
    }

    fn attempt(&mut self) -> Result<(), Error> {
        let place = (self.exchange.rank(), self.exchange.ranks());
        tries(place, |values, chunked| self.pass(GateKind::Ffn, values, chunked))
    }

    fn detach(&mut self) {
        (self.route, self.windows) = (GateRoute::Host, Vec::new());
    }
}
