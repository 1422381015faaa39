//! The links of one rank to all others, made from a roster.

use super::door::{Door, Guest};
use super::words::{LinkHello, Roster};
use super::{Channel, Settings, Transport, Word};
use crate::error::Error;
use crate::link::{Limits, Link, LinkError, ShmLink, TcpLink, tune};
use crate::mesh::{Mesh, Place};
use crate::watch::Watch;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long between two tries to reach a rank.
const RETRY: Duration = Duration::from_millis(10);

/// Makes all links of the rank that `roster` is for, and the mesh over them with its receives
/// posted. `strangers` gets guests that want something else.
pub(super) fn mesh(
    roster: &Roster,
    settings: &Settings,
    door: &Door,
    strangers: &mut Vec<Guest>,
    watch: Watch,
) -> Result<Mesh, Error> {
    let end = Instant::now() + settings.deadlines.links;
    let ranks = roster.addresses.len();
    let links = match roster.transport {
        Transport::Tcp => tcp(roster, settings, door, strangers, end)?,
        Transport::Shm => shm(roster, settings, end)?,
    };
    let place = Place { rank: roster.rank, ranks, epoch: roster.epoch };
    Mesh::new(place, links, settings.timing, watch).map_err(|e| Error::System {
        doing: "posting the first receives".into(),
        found: e.to_string(),
    })
}

type Links = Vec<(usize, Box<dyn Link>)>;

/// Dials the ranks below and answers those above.
fn tcp(
    roster: &Roster,
    settings: &Settings,
    door: &Door,
    strangers: &mut Vec<Guest>,
    end: Instant,
) -> Result<Links, Error> {
    let Roster { rank, epoch, nonce, .. } = *roster;
    let mut links: Links = Vec::new();
    for (other, &address) in roster.addresses[..rank].iter().enumerate() {
        let hello = LinkHello { nonce, epoch, from: rank, to: other };
        let channel = loop {
            let left = end.saturating_duration_since(Instant::now());
            let time = settings.deadlines.handshake.min(left.max(Duration::from_millis(1)));
            match Channel::dial(address, settings.key.as_ref(), time) {
                Ok(channel) => break channel,
                Err(error @ Error::Refused { .. }) => return Err(error),
                Err(error) if left.is_zero() => return Err(error),
                Err(_) => std::thread::sleep(RETRY),
            }
        };
        links.push((other, Box::new(link(greet(channel, hello, end)?, settings)?)));
    }
    let above = rank + 1..roster.addresses.len();
    while links.len() + 1 < roster.addresses.len() {
        let Some(mut guest) = door.next(end) else {
            let missing: Vec<_> =
                above.filter(|r| links.iter().all(|(other, _)| other != r)).collect();
            return Err(Error::Late {
                waited_ms: u64::try_from(settings.deadlines.links.as_millis()).unwrap_or(u64::MAX),
                what: format!("no link from ranks {missing:?}; can they reach {}?", door.address()),
            });
        };
        match guest.word {
            Word::Link(hello)
                if (hello.nonce, hello.epoch, hello.to) == (nonce, epoch, rank)
                    && above.contains(&hello.from)
                    && links.iter().all(|(other, _)| *other != hello.from) =>
            {
                guest.channel.say(&Word::Linked)?;
                links.push((hello.from, Box::new(link(guest.channel, settings)?)));
            }
            // Somebody of an attempt that failed: it hears of it when its connection closes.
            Word::Link(_) => {}
            _ => strangers.push(guest),
        }
    }
    Ok(links)
}

fn greet(mut channel: Channel, hello: LinkHello, end: Instant) -> Result<Channel, Error> {
    channel.say(&Word::Link(hello))?;
    match channel.hear(end)? {
        Some(Word::Linked) => Ok(channel),
        other => Err(Error::Wire {
            who: channel.who().into(),
            found: other.map_or_else(|| "nothing in time".into(), |word| format!("{word:?}")),
            wanted: "the link was to be confirmed".into(),
        }),
    }
}

fn link(channel: Channel, settings: &Settings) -> Result<TcpLink, Error> {
    let who = channel.who().to_string();
    let (stream, cipher, early) = channel.into_parts();
    tune(&stream).map_err(|e| Error::System {
        doing: format!("setting up the link to {who}"),
        found: e.to_string(),
    })?;
    let cipher = cipher.filter(|_| !settings.trusted_link);
    TcpLink::new(stream, Limits::GATES, cipher, &early).map_err(|e| failed(&e))
}

fn shm(roster: &Roster, settings: &Settings, end: Instant) -> Result<Links, Error> {
    let path = |low: usize, high: usize| -> PathBuf {
        settings.folder.join(format!("ironstar-{:016x}-{low}-{high}", roster.nonce))
    };
    let (rank, nonce) = (roster.rank, roster.nonce);
    let mut links: Links = Vec::new();
    // All files of this rank first: the ranks above wait for them.
    for other in rank + 1..roster.addresses.len() {
        let made = ShmLink::create(&path(rank, other), Limits::GATES, nonce);
        links.push((other, Box::new(made.map_err(|e| failed(&e))?)));
    }
    for other in 0..rank {
        let opened = ShmLink::open(&path(other, rank), Limits::GATES, nonce, end);
        links.push((other, Box::new(opened.map_err(|e| failed(&e))?)));
    }
    Ok(links)
}

fn failed(error: &LinkError) -> Error {
    Error::System { doing: "making a link".into(), found: error.to_string() }
}
