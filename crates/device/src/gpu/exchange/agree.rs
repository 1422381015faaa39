//! How ranks in processes of their own find the fastest way of their gates that works for all: they
//! tell each other what they would do and where their windows are, try it with known data, and
//! vote. Every rank hears all votes, so all go the same way.

use super::super::driver::{HANDLE_BYTES, Handle};
use super::map::{Map, Offer};
use super::window::bytes;
use super::{CHUNK, TRIES};
use crate::{Error, Exchange, ExchangeError, GateKind};
use std::sync::Arc;

/// How cards of several processes exchange sums; a later one is faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GateRoute {
    /// The step stops at every gate, and the host exchanges.
    Host,
    /// Inside the graph of a step: a thread carries what the card puts into memory of the host.
    Carried,
    /// Inside the graph of a step: all cards write and read memory of this host that all have.
    Shared,
    /// Inside the graph of a step: every card writes into the others' memory, which their processes
    /// have opened to it.
    Peer,
}

impl GateRoute {
    /// All of them by their names.
    pub const NAMES: [(&'static str, GateRoute); 4] = [
        ("host", GateRoute::Host),
        ("carried", GateRoute::Carried),
        ("shared", GateRoute::Shared),
        ("peer", GateRoute::Peer),
    ];

    /// What is tried where this did not work.
    fn next(self) -> GateRoute {
        match self {
            GateRoute::Peer => GateRoute::Shared,
            GateRoute::Shared => GateRoute::Carried,
            GateRoute::Carried | GateRoute::Host => GateRoute::Host,
        }
    }

    /// As flags and reports call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, route)| *route == self);
        found.map_or("", |(name, _)| name)
    }
}

/// One rank's side of an attempt.
pub(super) trait Side {
    /// What the ranks talk over meanwhile.
    fn group(&mut self) -> &mut dyn Exchange;
    /// This rank's window in the memory of its card.
    fn window(&mut self) -> Result<CardOffer, Error>;
    /// Gets ready to write into the windows of the others' cards; its own is not opened.
    fn open(&mut self, cards: &[CardOffer]) -> Result<(), Error>;
    /// Gets ready for a route by these maps: each rank's window, or the card's box for parts that
    /// it gives and then the one for parts that it gets.
    fn attach(&mut self, route: GateRoute, maps: Vec<Arc<Map>>) -> Result<(), Error>;
    /// Sums known data over all ranks: [`tries`].
    fn attempt(&mut self) -> Result<(), Error>;
    /// Forgets what it is ready for.
    fn detach(&mut self);
}

/// Where a process has a window in the memory of its card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CardOffer {
    pub nonce: u64,
    pub handle: Handle,
}

/// What a rank would do, and where its windows are.
#[derive(Clone, Copy, Debug)]
struct Told {
    most: GateRoute,
    map: Offer,
    card: CardOffer,
}

/// Bytes of it on the way: six words, and the handle.
const BYTES: usize = 6 * 8 + HANDLE_BYTES;

/// Finds the route; with the reason why it is not a faster one of those that this rank would go.
pub(super) fn agree(
    side: &mut dyn Side,
    most: GateRoute,
) -> Result<(GateRoute, Option<String>), Error> {
    let (rank, ranks) = (side.group().rank(), side.group().ranks());
    let (mut own, mut reason) = (most, None);
    let mut card = CardOffer { nonce: 0, handle: [0; HANDLE_BYTES] };
    if own == GateRoute::Peer {
        match side.window() {
            Ok(offer) => card = offer,
            Err(error) => (own, reason) = (own.next(), Some(error.to_string())),
        }
    }
    let window = match own {
        GateRoute::Peer | GateRoute::Shared => Some(Arc::new(Map::new(bytes(ranks))?)),
        _ => None,
    };
    let map = window.as_ref().map(|map| map.offer()).unwrap_or_default();
    let all = tell(side.group(), &Told { most: own, map, card })?;
    let mut route = all.iter().map(|told| told.most).min().unwrap_or(GateRoute::Host);
    if route < own {
        reason = Some("another rank goes no other way".to_owned());
    }
    while route > GateRoute::Host {
        let maps = || match (route, &window) {
            (GateRoute::Shared, Some(own)) => all_maps(own, rank, &all),
            _ => Ok(vec![Arc::new(Map::new(bytes(ranks))?), Arc::new(Map::new(bytes(ranks))?)]),
        };
        let cards = || all.iter().map(|told| told.card).collect::<Vec<_>>();
        let ready = match route {
            GateRoute::Peer => side.open(&cards()),
            _ => maps().and_then(|maps| side.attach(route, maps)),
        };
        if all_say(side.group(), ready.is_ok())? {
            let went = side.attempt();
            if all_say(side.group(), went.is_ok())? {
                return Ok((route, reason));
            }
            reason = Some(reason_of(went));
        } else {
            reason = Some(reason_of(ready));
        }
        side.detach();
        route = route.next();
    }
    Ok((route, reason))
}

fn reason_of(result: Result<(), Error>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "it did not work for another rank".into())
}

/// What every rank tells.
fn tell(exchange: &mut dyn Exchange, told: &Told) -> Result<Vec<Told>, Error> {
    let Told { most, map, card } = told;
    let words = [*most as u64, map.process, map.descriptor, map.nonce, map.bytes, card.nonce];
    let mut mine: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    mine.extend(card.handle);
    let mut all = vec![0; BYTES * exchange.ranks()];
    exchange.gather(GateKind::Status, &mine, &mut all)?;
    Ok(all.as_chunks::<BYTES>().0.iter().map(heard).collect())
}

/// What a rank has told.
fn heard(bytes: &[u8; BYTES]) -> Told {
    let words = bytes.as_chunks::<8>().0;
    let word = |at: usize| u64::from_le_bytes(words[at]);
    let route = GateRoute::NAMES.iter().find(|(_, route)| *route as u64 == word(0));
    let most = route.map_or(GateRoute::Host, |(_, route)| *route);
    let map = Offer { process: word(1), descriptor: word(2), nonce: word(3), bytes: word(4) };
    let mut handle = [0; HANDLE_BYTES];
    handle.copy_from_slice(&bytes[BYTES - HANDLE_BYTES..]);
    Told { most, map, card: CardOffer { nonce: word(5), handle } }
}

/// Every rank's window, in the order of ranks.
fn all_maps(own: &Arc<Map>, rank: usize, all: &[Told]) -> Result<Vec<Arc<Map>>, Error> {
    let each = all.iter().enumerate();
    let open = |(from, told): (usize, &Told)| match from == rank {
        true => Ok(own.clone()),
        false => Map::open(&told.map, own.len()).map(Arc::new),
    };
    each.map(open).collect()
}

fn all_say(exchange: &mut dyn Exchange, mine: bool) -> Result<bool, ExchangeError> {
    let mut all = vec![0; exchange.ranks()];
    exchange.gather(GateKind::Status, &[u8::from(mine)], &mut all)?;
    Ok(all.iter().all(|one| *one == 1))
}

/// Sums known data in words and in chunks, and looks at what comes. `sum` gets the floats of this
/// rank and how they go, and leaves those of all.
pub(super) fn tries(
    (rank, ranks): (usize, usize),
    mut sum: impl FnMut(&mut [f32], bool) -> Result<(), Error>,
) -> Result<(), Error> {
    let value = |rank: usize, turn: usize, at: usize| {
        let number = (rank * 977 + turn * 131 + at * 7) % 10_007;
        #[expect(clippy::cast_precision_loss, reason = "below 2^24")]
        let value = number as f32 * 0.37 - 1000.0;
        value
    };
    for turn in 0..TRIES {
        let chunked = turn % 4 == 3;
        let len = if chunked { CHUNK + 8 } else { 1000 - turn };
        let mut all: Vec<f32> = (0..len).map(|at| value(rank, turn, at)).collect();
        sum(&mut all, chunked)?;
        for (at, found) in all.iter().enumerate() {
            let parts: Vec<f32> = (0..ranks).map(|rank| value(rank, turn, at)).collect();
            let wanted = ironstar_quant::subtree(&parts);
            if found.to_bits() != wanted.to_bits() {
                let found = format!("{found} at {at} of gate {turn}");
                let wanted = wanted.to_string();
                return Err(ExchangeError::Wrong { rank, found, wanted }.into());
            }
        }
    }
    Ok(())
}
