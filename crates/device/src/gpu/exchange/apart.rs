//! Gates of a card whose peers are driven by other processes.

use super::agree::{CardOffer, GateRoute, Side, agree, tries};
use super::carrier::Boxes;
use super::map::{Map, nonce};
use super::window::{Window, bytes};
use super::{Peers, mark, milliseconds, pass};
use crate::gpu::record::Place;
use crate::gpu::{Gpu, Scratch};
use crate::{Error, Exchange, ExchangeError, GateKind};
use std::sync::Arc;
use std::time::Duration;

/// What a card's gates with other processes should be, and what they are.
pub(in crate::gpu) struct Apart {
    most: GateRoute,
    limit: Duration,
    route: GateRoute,
    /// In which epoch that was found, if it was.
    epoch: Option<u64>,
    /// What nobody has been told yet.
    note: Option<String>,
    /// Gates are passed by doing nothing.
    left_out: bool,
    /// The window on this card, once there is one. It is kept from epoch to epoch, since other
    /// processes may still have it: words of another epoch are no words (`gates.k`).
    own: Option<OwnWindow>,
}

/// A window on this card, and what other processes open it by.
struct OwnWindow {
    window: Arc<dyn Window>,
    offer: CardOffer,
}

impl Gpu {
    /// The same with gates inside its graphs where its group's other ranks, each a process with a
    /// card of its own, can have them too: at most by `most`. A gate waits no longer than `limit`.
    /// They are tried in each new epoch, with half of the time, since the votes behind a try wait
    /// no longer than a gate ([`crate::Backend::join_epoch`]).
    #[must_use]
    pub fn with_gates(mut self, most: GateRoute, limit: Duration) -> Self {
        let (route, epoch, note, left_out, own) = (GateRoute::Host, None, None, false, None);
        self.apart = Some(Apart { most, limit, route, epoch, note, left_out, own });
        self
    }

    /// The same with gates that do nothing, so that its speed is that of a rank whose gates cost
    /// nothing, and all that it computes is wrong.
    #[must_use]
    pub fn with_gates_left_out(mut self) -> Self {
        self.recorder.graphs = self.config.graphs;
        self = self.with_gates(GateRoute::Host, Duration::ZERO);
        self.apart.iter_mut().for_each(|apart| apart.left_out = true);
        self
    }
}

/// [`crate::Backend::join_epoch`].
pub(in crate::gpu) fn join_epoch(gpu: &mut Gpu) -> Result<(), Error> {
    let (Some(apart), Some(exchange)) = (&gpu.apart, &gpu.exchange) else { return Ok(()) };
    let (epoch, most, limit) = (exchange.epoch(), apart.most, apart.limit);
    if apart.epoch == Some(epoch) || apart.left_out {
        return Ok(());
    }
    gpu.flush()?;
    gpu.driver.finish()?;
    gpu.detach();
    let (route, reason) = agree(gpu, most)?;
    if let Some(gates) = &mut gpu.gates {
        gates.limit = limit;
    }
    gpu.recorder.graphs = gpu.config.graphs && gpu.gates.is_some();
    let apart = gpu.apart.as_mut().expect("it was there");
    let how = match route {
        GateRoute::Peer => "meet in the cards' memory, inside the graph of a token",
        GateRoute::Shared => "meet in memory of this machine, inside the graph of a token",
        GateRoute::Carried => "are carried by a thread, inside the graph of a token",
        GateRoute::Host => "go through the host, which stops every step at every gate",
    };
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    if apart.epoch.is_none() || apart.route != route {
        apart.note = Some(format!("sums of cards {how}{reason}"));
    }
    (apart.route, apart.epoch) = (route, Some(epoch));
    Ok(())
}

/// [`crate::Backend::gates_note`].
pub(in crate::gpu) fn note(gpu: &mut Gpu) -> Option<String> {
    gpu.apart.as_mut()?.note.take()
}

/// Whether gates do nothing.
pub(in crate::gpu) fn are_left_out(gpu: &Gpu) -> bool {
    gpu.apart.as_ref().is_some_and(|apart| apart.left_out)
}

impl Side for Gpu {
    fn group(&mut self) -> &mut dyn Exchange {
        self.exchange.as_mut().expect("`join_epoch` has seen it")
    }

    fn window(&mut self) -> Result<CardOffer, Error> {
        let ranks = self.group().ranks();
        let apart = self.apart.as_mut().expect("`join_epoch` has seen it");
        if let Some(own) = &apart.own {
            return Ok(own.offer);
        }
        let nonce = nonce();
        let (window, handle) = self.driver.window(bytes(ranks), nonce)?;
        let offer = CardOffer { nonce, handle };
        apart.own = Some(OwnWindow { window, offer });
        Ok(offer)
    }

    fn open(&mut self, cards: &[CardOffer]) -> Result<(), Error> {
        let (rank, ranks) = (self.group().rank(), self.group().ranks());
        let own = self.apart.as_ref().and_then(|apart| apart.own.as_ref());
        let own = own.expect("`window` has made it").window.clone();
        let windows = cards.iter().enumerate().map(|(at, card)| match at == rank {
            true => Ok(own.clone()),
            false => self.driver.open_window(&card.handle, bytes(ranks), card.nonce),
        });
        let windows = windows.collect::<Result<_, _>>()?;
        self.enter_windows(windows, own)
    }

    fn attach(&mut self, route: GateRoute, maps: Vec<Arc<Map>>) -> Result<(), Error> {
        let (rank, ranks) = (self.group().rank(), self.group().ranks());
        let lent = maps.iter().map(|map| self.driver.lend(map).map(Arc::new));
        let lent = lent.collect::<Result<Vec<_>, _>>()?;
        let window = |at: usize| lent[at].clone() as Arc<dyn Window>;
        if route == GateRoute::Shared {
            return self.enter_windows((0..ranks).map(window).collect(), window(rank));
        }
        let windows = (0..ranks).map(|other| window(usize::from(other == rank))).collect();
        self.enter_windows(windows, window(1))?;
        let limit = self.apart.as_ref().map_or(Duration::ZERO, |apart| apart.limit);
        let exchange = self.exchange.as_mut().expect("`join_epoch` has seen it");
        exchange.carry(Boxes { out: maps[0].clone(), inbox: maps[1].clone() }, limit)?;
        self.gates.as_mut().expect("`join` has made them").rows = false;
        Ok(())
    }

    fn attempt(&mut self) -> Result<(), Error> {
        let limit = self.apart.as_ref().map_or(Duration::ZERO, |apart| apart.limit);
        self.try_gates(limit / 2)
    }

    fn detach(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.alone();
        }
        if let Some(gates) = self.gates.take() {
            self.driver.free(gates.table);
            self.driver.free(gates.fate);
        }
        self.step.gates = None;
        self.recorder.graphs = false;
    }
}

impl Gpu {
    /// Takes its place among these windows, of which it waits at its own.
    fn enter_windows(
        &mut self,
        windows: Vec<Arc<dyn Window>>,
        own: Arc<dyn Window>,
    ) -> Result<(), Error> {
        let limit = self.apart.as_ref().map_or(Duration::ZERO, |apart| apart.limit);
        self.join(&Peers::of(windows), limit / 2)?;
        self.exchange.as_mut().expect("`join_epoch` has seen it").guard(own)
    }

    /// Sends known data through gates of both kinds, and looks at what comes.
    pub(super) fn try_gates(&mut self, limit: Duration) -> Result<(), Error> {
        let place = self.gates.as_ref().map_or((0, 0), |gates| (gates.rank, gates.ranks));
        let Place::At(x) = self.scratch(Scratch::PartInput, 4 * (super::CHUNK + 8))? else {
            unreachable!("scratch lies in memory that stays")
        };
        tries(place, |values, chunked| {
            let mut bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.driver.upload(x, &bytes)?;
            pass(self, GateKind::Ffn, (x, values.len()), chunked)?;
            self.flush()?;
            self.driver.download(x, &mut bytes)?;
            if let Some((gate, from)) = mark(self)? {
                let (waited_ms, gate) = (milliseconds(limit), gate.name());
                return Err(ExchangeError::Late { rank: from, waited_ms, gate }.into());
            }
            for (value, word) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*word);
            }
            Ok(())
        })
    }
}

#[cfg(all(test, feature = "host-driver"))]
mod tests;
