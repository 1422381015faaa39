//! The links of one rank to all others, made from a roster.

use super::door::{Door, Guest};
use super::words::{LinkHello, Purpose, Roster};
use super::{Channel, Formed, Settings, Transport, Word, connect_verbs};
use crate::error::Error;
use crate::link::{Limits, Link, LinkError, ShmLink, TcpLink, tune};
#[cfg(feature = "mpi")]
use crate::link::{MpiLink, MpiPlace};
use crate::mesh::{Mesh, Place, Timing};
use crate::stream::Stream;
use crate::watch::Watch;
use std::net::SocketAddr;
use std::num::NonZero;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long between two tries to reach a rank.
const RETRY: Duration = Duration::from_millis(10);

/// Makes all links of the rank that `roster` is for: the mesh and the streams, with their receives
/// posted. `strangers` gets guests that want something else.
pub(super) fn make(
    roster: &Roster,
    settings: &Settings,
    door: &Door,
    strangers: &mut Vec<Guest>,
    watch: &Watch,
) -> Result<Formed, Error> {
    let end = Instant::now() + settings.deadlines.links;
    let ranks = roster.addresses.len();
    let purposes: &[Purpose] =
        if roster.streams { &[Purpose::Gates, Purpose::Records] } else { &[Purpose::Gates] };
    let made = match roster.transport {
        Transport::Tcp => {
            let connected = connect(roster, purposes, settings, door, strangers, end)?;
            let make = |one: Connected| one.make(|channel| link(channel, settings));
            connected.into_iter().map(make).collect::<Result<_, _>>()?
        }
        Transport::Verbs => {
            let mut connected = connect(roster, purposes, settings, door, strangers, end)?;
            // Both ends of a link talk to each other meanwhile and to nobody else. In this order
            // the lowest two ranks that have not are free for each other, so somebody always goes
            // on.
            connected.sort_by_key(|one| (one.rank, one.purpose));
            let verbs = |channel| connect_verbs(channel, &settings.verbs, None, end);
            let make = |one: Connected| one.make(verbs);
            connected.into_iter().map(make).collect::<Result<_, _>>()?
        }
        Transport::Shm => shm(roster, purposes, settings, end)?,
        Transport::Mpi => mpi(roster, purposes, settings)?,
    };
    let place = Place { rank: roster.rank, ranks, epoch: roster.epoch };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let pace = settings.timing.pace.shared(ranks_here(roster), cores);
    let mut gates = Vec::new();
    let mut streams: Vec<Option<Stream>> = (0..ranks).map(|_| None).collect();
    let posting = |e: ironstar_device::ExchangeError| Error::System {
        doing: "posting the first receives".into(),
        found: e.to_string(),
    };
    for Made { rank, purpose, link } in made {
        match purpose {
            Purpose::Gates => gates.push((rank, link)),
            Purpose::Records => {
                let stream = Stream::new(rank, place.epoch, link, pace, watch.clone());
                streams[rank] = Some(stream.map_err(posting)?);
            }
        }
    }
    let timing = Timing { pace, ..settings.timing };
    let mesh = Mesh::new(place, gates, timing, watch.clone()).map_err(posting)?;
    Ok(Formed { mesh, streams, committed: roster.committed })
}

/// How many ranks share this machine, as far as their addresses tell.
fn ranks_here(roster: &Roster) -> usize {
    match roster.transport {
        Transport::Shm => roster.addresses.len(),
        Transport::Tcp | Transport::Verbs | Transport::Mpi => {
            let own = roster.addresses[roster.rank].ip();
            roster.addresses.iter().filter(|address| address.ip() == own).count()
        }
    }
}

/// One link that stands.
struct Made {
    rank: usize,
    purpose: Purpose,
    link: Box<dyn Link>,
}

/// A connection to a rank, of which a link is made.
struct Connected {
    rank: usize,
    purpose: Purpose,
    channel: Channel,
}

impl Connected {
    fn make<L: Link + 'static>(
        self,
        link: impl FnOnce(Channel) -> Result<L, Error>,
    ) -> Result<Made, Error> {
        let (rank, purpose) = (self.rank, self.purpose);
        Ok(Made { rank, purpose, link: Box::new(link(self.channel)?) })
    }
}

/// Dials the ranks below and answers those above.
fn connect(
    roster: &Roster,
    purposes: &[Purpose],
    settings: &Settings,
    door: &Door,
    strangers: &mut Vec<Guest>,
    end: Instant,
) -> Result<Vec<Connected>, Error> {
    let Roster { rank, epoch, nonce, .. } = *roster;
    let mut made: Vec<Connected> = Vec::new();
    for (other, &address) in roster.addresses[..rank].iter().enumerate() {
        for &purpose in purposes {
            let hello = LinkHello { nonce, epoch, from: rank, to: other, purpose };
            let channel = greet(dial(address, settings, end)?, hello, end)?;
            made.push(Connected { rank: other, purpose, channel });
        }
    }
    let above = rank + 1..roster.addresses.len();
    let is_new = |made: &[Connected], hello: &LinkHello| {
        made.iter().all(|one| (one.rank, one.purpose) != (hello.from, hello.purpose))
    };
    while made.len() < (roster.addresses.len() - 1) * purposes.len() {
        let Some(mut guest) = door.next(end) else {
            let missing: Vec<_> =
                above.filter(|rank| made.iter().all(|one| one.rank != *rank)).collect();
            return Err(Error::Late {
                waited_ms: u64::try_from(settings.deadlines.links.as_millis()).unwrap_or(u64::MAX),
                what: format!("no link from ranks {missing:?}; can they reach {}?", door.address()),
            });
        };
        match guest.word {
            Word::Link(hello)
                if (hello.nonce, hello.epoch, hello.to) == (nonce, epoch, rank)
                    && above.contains(&hello.from)
                    && purposes.contains(&hello.purpose)
                    && is_new(&made, &hello) =>
            {
                guest.channel.say(&Word::Linked)?;
                let channel = guest.channel;
                made.push(Connected { rank: hello.from, purpose: hello.purpose, channel });
            }
            // Somebody of an attempt that failed: it hears of it when its connection closes.
            Word::Link(_) => {}
            _ => strangers.push(guest),
        }
    }
    Ok(made)
}

/// Reaches a rank that may not listen yet.
fn dial(address: SocketAddr, settings: &Settings, end: Instant) -> Result<Channel, Error> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let time = settings.deadlines.handshake.min(left.max(Duration::from_millis(1)));
        match Channel::dial(address, settings.key.as_ref(), time) {
            Ok(channel) => return Ok(channel),
            Err(error @ Error::Refused { .. }) => return Err(error),
            Err(error) if left.is_zero() => return Err(error),
            Err(_) => std::thread::sleep(RETRY),
        }
    }
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

fn shm(
    roster: &Roster,
    purposes: &[Purpose],
    settings: &Settings,
    end: Instant,
) -> Result<Vec<Made>, Error> {
    let path = |low: usize, high: usize, purpose: Purpose| -> PathBuf {
        let kind = if purpose == Purpose::Gates { "gates" } else { "records" };
        settings.folder.join(format!("ironstar-{:016x}-{low}-{high}-{kind}", roster.nonce))
    };
    let (rank, nonce, limits) = (roster.rank, roster.nonce, Limits::GATES);
    let mut made: Vec<Made> = Vec::new();
    // All files of this rank first: the ranks above wait for them.
    for (other, &purpose) in pairs(rank + 1..roster.addresses.len(), purposes) {
        let link = ShmLink::create(&path(rank, other, purpose), limits, nonce);
        made.push(Made { rank: other, purpose, link: Box::new(link.map_err(|e| failed(&e))?) });
    }
    for (other, &purpose) in pairs(0..rank, purposes) {
        let link = ShmLink::open(&path(other, rank, purpose), limits, nonce, end);
        made.push(Made { rank: other, purpose, link: Box::new(link.map_err(|e| failed(&e))?) });
    }
    Ok(made)
}

/// Whether this program can make links over MPI. The library itself begins with the first link,
/// since it waits there for all of its processes.
pub(super) fn check_mpi() -> Result<(), Error> {
    if cfg!(feature = "mpi") { Ok(()) } else { Err(without_mpi()) }
}

#[cfg(feature = "mpi")]
fn mpi(roster: &Roster, purposes: &[Purpose], settings: &Settings) -> Result<Vec<Made>, Error> {
    let (rank, ranks) = (roster.rank, roster.addresses.len());
    let mpi = settings.mpi.of_group(rank, ranks)?;
    let others = pairs(0..rank, purposes).chain(pairs(rank + 1..ranks, purposes));
    others
        .map(|(other, &purpose)| {
            let is_records = purpose == Purpose::Records;
            let place = MpiPlace::of_epoch(other, roster.epoch, is_records, roster.nonce);
            let link = MpiLink::new(mpi.clone(), place, Limits::GATES).map_err(|e| failed(&e))?;
            Ok(Made { rank: other, purpose, link: Box::new(link) })
        })
        .collect()
}

#[cfg(not(feature = "mpi"))]
fn mpi(_: &Roster, _: &[Purpose], _: &Settings) -> Result<Vec<Made>, Error> {
    Err(without_mpi())
}

fn without_mpi() -> Error {
    Error::Settings {
        found: "a program that was built without MPI".into(),
        wanted: "build it with `--features mpi`, or choose another transport".into(),
    }
}

/// Every rank with every purpose.
fn pairs(ranks: Range<usize>, purposes: &[Purpose]) -> impl Iterator<Item = (usize, &Purpose)> {
    ranks.flat_map(move |rank| purposes.iter().map(move |purpose| (rank, purpose)))
}

fn failed(error: &LinkError) -> Error {
    Error::System { doing: "making a link".into(), found: error.to_string() }
}
