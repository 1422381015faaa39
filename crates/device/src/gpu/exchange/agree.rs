//! How ranks in processes of their own find the fastest way of their gates that works for all: they
//! tell each other what they would do and where their windows are, try it with known data, and
//! vote. Every rank hears all votes, so all go the same way.

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
}

impl GateRoute {
    /// All of them by their names.
    pub const NAMES: [(&'static str, GateRoute); 3] =
        [("host", GateRoute::Host), ("carried", GateRoute::Carried), ("shared", GateRoute::Shared)];

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
    /// Gets ready for a route by these maps: each rank's window, or the card's box for parts that
    /// it gives and then the one for parts that it gets.
    fn attach(&mut self, route: GateRoute, maps: Vec<Arc<Map>>) -> Result<(), Error>;
    /// Sums known data over all ranks: [`tries`].
    fn attempt(&mut self) -> Result<(), Error>;
    /// Forgets what it is ready for.
    fn detach(&mut self);
}

/// Words of an offer on the way.
const WORDS: usize = 5;

/// Finds the route; with the reason why it is not a faster one of those that this rank would go.
pub(super) fn agree(
    side: &mut dyn Side,
    most: GateRoute,
) -> Result<(GateRoute, Option<String>), Error> {
    let (rank, ranks) = (side.group().rank(), side.group().ranks());
    let mut reason = None;
    let own = match most {
        GateRoute::Shared => Some(Arc::new(Map::new(bytes(ranks))?)),
        _ => None,
    };
    let offer = own.as_ref().map(|map| map.offer()).unwrap_or_default();
    let offers = tell(side.group(), most, offer)?;
    let mut route = offers.iter().map(|(most, _)| *most).min().unwrap_or(GateRoute::Host);
    if route < most {
        reason = Some("another rank goes no other way".to_owned());
    }
    while route > GateRoute::Host {
        let maps = || match (route, &own) {
            (GateRoute::Shared, Some(own)) => all_maps(own, rank, &offers),
            _ => Ok(vec![Arc::new(Map::new(bytes(ranks))?), Arc::new(Map::new(bytes(ranks))?)]),
        };
        let ready = maps().and_then(|maps| side.attach(route, maps));
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
        route = if route == GateRoute::Shared { GateRoute::Carried } else { GateRoute::Host };
    }
    Ok((route, reason))
}

fn reason_of(result: Result<(), Error>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "it did not work for another rank".into())
}

/// Every rank's route and window.
fn tell(
    exchange: &mut dyn Exchange,
    most: GateRoute,
    offer: Offer,
) -> Result<Vec<(GateRoute, Offer)>, Error> {
    let words = [most as u64, offer.process, offer.descriptor, offer.nonce, offer.bytes];
    let mine: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let mut all = vec![0; mine.len() * exchange.ranks()];
    exchange.gather(GateKind::Status, &mine, &mut all)?;
    let read = |bytes: &[u8]| {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [most, process, descriptor, nonce, bytes] = words;
        let route = GateRoute::NAMES.iter().find(|(_, route)| *route as u64 == most);
        let route = route.map_or(GateRoute::Host, |(_, route)| *route);
        (route, Offer { process, descriptor, nonce, bytes })
    };
    Ok(all.chunks(8 * WORDS).map(read).collect())
}

/// Every rank's window, in the order of ranks.
fn all_maps(
    own: &Arc<Map>,
    rank: usize,
    offers: &[(GateRoute, Offer)],
) -> Result<Vec<Arc<Map>>, Error> {
    let each = offers.iter().enumerate();
    let open = |(from, (_, offer)): (usize, &(GateRoute, Offer))| match from == rank {
        true => Ok(own.clone()),
        false => Map::open(offer, own.len()).map(Arc::new),
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
