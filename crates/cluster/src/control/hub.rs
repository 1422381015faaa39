//! Rank 0 of the rendezvous: seats who belongs to the group, refuses who does not, and starts it.

use super::door::{Door, Guest};
use super::words::{Join, Roster};
use super::{Channel, Formed, Settings, Transport, Word, links, monitor, random, verbs};
use crate::error::{Error, Refusal};
use crate::watch::Watch;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Ranks that a group may have.
pub const RANKS_MAX: usize = 64;
/// How long a rank that was part of the group has its place kept for it.
const GRACE: Duration = Duration::from_millis(500);
/// Time between two words to those who wait.
const WAITING: Duration = Duration::from_millis(250);
/// Guests without a place that are kept.
const PARKED_MAX: usize = 64;

/// Rank 0's port and what it remembers from one epoch to the next.
pub struct Hub {
    settings: Settings,
    ranks: usize,
    transport: Transport,
    door: Door,
    next_epoch: u32,
    /// Number of the process that had each rank last.
    former: Vec<Option<u64>>,
    parked: Vec<Guest>,
}

struct Seat {
    channel: Channel,
    join: Join,
}

impl Hub {
    /// Opens the port. Nothing beyond this machine is listened to without a key, unless the link
    /// is said to be private.
    pub fn bind(
        address: SocketAddr,
        ranks: usize,
        transport: Transport,
        settings: Settings,
    ) -> Result<Self, Error> {
        if !(1..=RANKS_MAX).contains(&ranks) {
            return Err(Error::Settings {
                found: format!("{ranks} ranks"),
                wanted: format!("a group has 1 to {RANKS_MAX}"),
            });
        }
        check_reach(address, &settings)?;
        if transport == Transport::Verbs {
            verbs::check(&settings.verbs, address.ip())?;
        }
        if transport == Transport::Mpi {
            links::check_mpi()?;
        }
        let door = Door::open(address, settings.key.clone(), settings.deadlines.handshake)?;
        let (former, parked) = (vec![None; ranks], Vec::new());
        Ok(Self { settings, ranks, transport, door, next_epoch: 0, former, parked })
    }

    /// Where the others join.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.door.address()
    }

    /// Waits until every rank is there and has its links, and starts the next epoch. `committed`
    /// is the last step that this rank has committed; the last that all have comes back.
    pub fn form(&mut self, committed: u64) -> Result<Formed, Error> {
        let start = Instant::now();
        let end = start + self.settings.deadlines.form;
        let mut seats: Vec<Option<Seat>> = (1..self.ranks).map(|_| None).collect();
        self.door.set_full(false);
        loop {
            self.fill_seats(&mut seats, start, end)?;
            let whole: Vec<Seat> = seats.iter_mut().filter_map(Option::take).collect();
            let epoch = self.next_epoch;
            self.next_epoch = epoch.checked_add(1).ok_or_else(|| Error::Settings {
                found: "2^32 epochs".into(),
                wanted: "start the group anew".into(),
            })?;
            match self.start(whole, epoch, committed) {
                Ok(formed) => {
                    self.door.set_full(true);
                    while let Some(guest) = self.door.next(start) {
                        self.refuse_full(guest);
                    }
                    return Ok(formed);
                }
                // The ranks come again when their connection closes.
                Err(error) if Instant::now() < end => self.door.note_refused(error.to_string()),
                Err(error) => return Err(error),
            }
        }
    }

    /// What [`Hub::form`] waited for in vain.
    fn late(&self, seats: &[Option<Seat>], start: Instant) -> Error {
        let missing: Vec<usize> =
            (1..self.ranks).filter(|rank| seats[rank - 1].is_none()).collect();
        let mut what = format!(
            "ranks {missing:?} of {} have not joined at {}; start them with `ironstar worker \
             --join {}`",
            self.ranks,
            self.address(),
            self.address()
        );
        for text in self.door.refused().iter().rev().take(2) {
            what += &format!("; not let in: {text}");
        }
        let waited_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        Error::Late { waited_ms, what }
    }

    fn fill_seats(
        &mut self,
        seats: &mut [Option<Seat>],
        start: Instant,
        end: Instant,
    ) -> Result<(), Error> {
        let mut told = Instant::now();
        let mut guests = std::mem::take(&mut self.parked);
        while seats.iter().any(Option::is_none) {
            let parked = start.elapsed() < GRACE;
            for guest in guests.drain(..) {
                self.seat(seats, guest, parked);
            }
            if seats.iter().all(Option::is_some) {
                break;
            }
            if told.elapsed() >= WAITING {
                told = Instant::now();
                self.tell(seats);
            }
            if Instant::now() >= end {
                return Err(self.late(seats, start));
            }
            guests.extend(self.door.next(end.min(Instant::now() + Duration::from_millis(50))));
            guests.append(&mut self.parked);
        }
        // Whoever is left over has no place in this epoch.
        for guest in std::mem::take(&mut self.parked) {
            self.refuse_full(guest);
        }
        Ok(())
    }

    /// Says how many are there to those who wait; whoever does not hear it gives up the seat.
    fn tell(&self, seats: &mut [Option<Seat>]) {
        let present = 1 + seats.iter().flatten().count();
        for seat in seats.iter_mut() {
            let word = Word::Waiting { present, ranks: self.ranks };
            let gone = seat.as_mut().is_some_and(|seat| {
                // A rank that waits says nothing: anything that can be read is its end.
                seat.channel.say(&word).is_err()
                    || !matches!(seat.channel.hear(Instant::now() + PEEK), Ok(None))
            });
            if gone {
                *seat = None;
            }
        }
    }

    fn seat(&mut self, seats: &mut [Option<Seat>], mut guest: Guest, parking: bool) {
        let join = match guest.word {
            Word::Join(join) if join.is_bounded() => join,
            // A link of an attempt that failed.
            _ => return,
        };
        if let Some((refusal, reason)) = self.objection(&join) {
            self.door.note_refused(format!("{}: {reason}", guest.channel.who()));
            let _ = guest.channel.say(&Word::Refused { refusal, reason });
            return;
        }
        let free = |rank: &usize| seats[rank - 1].is_none();
        let rank = match join.rank {
            Some(rank) if free(&rank) => rank,
            Some(rank) => {
                let reason = format!("rank {rank} has joined already; give each rank once");
                self.door.note_refused(format!("{}: {reason}", guest.channel.who()));
                let _ = guest.channel.say(&Word::Refused { refusal: Refusal::Rank, reason });
                return;
            }
            None => {
                // Places of ranks that may come back are kept for a moment.
                let fresh = (1..self.ranks).find(|r| free(r) && self.former[*r].is_none());
                let any = (1..self.ranks).find(free).filter(|_| !parking);
                let Some(rank) = fresh.or(any) else {
                    guest.word = Word::Join(join);
                    if self.parked.len() < PARKED_MAX {
                        self.parked.push(guest);
                    }
                    return;
                };
                rank
            }
        };
        seats[rank - 1] = Some(Seat { channel: guest.channel, join });
    }

    /// Why somebody cannot be part of this group, whatever place there is.
    fn objection(&self, join: &Join) -> Option<(Refusal, String)> {
        let (ours, theirs) = (&self.settings.identity, &join.identity);
        if ours.model != theirs.model {
            let reason = format!(
                "the group runs model {} (build {}) and this rank has {} (build {}); give all \
                 ranks the same file",
                ours.model, ours.build, theirs.model, theirs.build
            );
            return Some((Refusal::Model, reason));
        }
        if ours.layout != theirs.layout {
            let reason = format!(
                "the group runs with `{}` and this rank with `{}`; give all ranks the same \
                 settings",
                ours.layout, theirs.layout
            );
            return Some((Refusal::Layout, reason));
        }
        let sealed = self.settings.key.is_some() && !self.settings.trusted_link;
        if join.sealed != sealed {
            let say = |sealed| if sealed { "encrypts its links" } else { "does not" };
            let reason = format!(
                "the group {} and this rank {}; say `--trusted-link` on all or on none",
                say(sealed),
                say(join.sealed)
            );
            return Some((Refusal::Layout, reason));
        }
        if let Some(ranks) = join.ranks.filter(|&ranks| ranks != self.ranks) {
            let reason =
                format!("the group has {} ranks and this one was told {ranks}", self.ranks);
            return Some((Refusal::Layout, reason));
        }
        if let Some(rank) = join.rank.filter(|rank| !(1..self.ranks).contains(rank)) {
            let reason = format!("there is no rank {rank} to join: 1 to {} do", self.ranks - 1);
            return Some((Refusal::Rank, reason));
        }
        None
    }

    fn refuse_full(&self, mut guest: Guest) {
        let reason = format!("the group of {} has all its ranks", self.ranks);
        let _ = guest.channel.say(&Word::Refused { refusal: Refusal::Full, reason });
    }

    /// Gives everybody the roster, makes this rank's links, and starts when all have theirs.
    fn start(&mut self, mut seats: Vec<Seat>, epoch: u32, committed: u64) -> Result<Formed, Error> {
        let committed = seats.iter().map(|seat| seat.join.committed).fold(committed, u64::min);
        let addresses: Vec<SocketAddr> = std::iter::once(self.address())
            .chain(seats.iter().map(|seat| seat.join.address))
            .collect();
        let nonce = random();
        let (transport, streams) = (self.transport, self.settings.streams);
        let roster = |rank: usize| {
            let addresses = addresses.clone();
            Roster { rank, epoch, nonce, transport, streams, addresses, committed }
        };
        for (index, seat) in seats.iter_mut().enumerate() {
            seat.channel.say(&Word::Roster(roster(index + 1)))?;
        }
        let watch = Watch::default();
        let formed = links::make(&roster(0), &self.settings, &self.door, &mut self.parked, &watch)?;
        let end = Instant::now() + self.settings.deadlines.links;
        for (index, seat) in seats.iter_mut().enumerate() {
            match seat.channel.hear(end)? {
                Some(Word::Linked) => {}
                other => {
                    return Err(Error::Wire {
                        who: format!("rank {} at {}", index + 1, seat.channel.who()),
                        found: other.map_or_else(|| "nothing".into(), |w| format!("{w:?}")),
                        wanted: "it was to make its links in time".into(),
                    });
                }
            }
        }
        for (index, mut seat) in seats.into_iter().enumerate() {
            seat.channel.say(&Word::Start)?;
            self.former[index + 1] = Some(seat.join.instance);
            monitor::spawn(index + 1, seat.channel, self.settings.deadlines, watch.clone())
                .map_err(|e| Error::System {
                    doing: "starting a thread".into(),
                    found: e.to_string(),
                })?;
        }
        Ok(formed)
    }
}

/// How long it is looked whether a rank that waits has hung up.
const PEEK: Duration = Duration::from_millis(1);

/// Whether `address` may be spoken to.
pub(super) fn check_reach(address: SocketAddr, settings: &Settings) -> Result<(), Error> {
    if address.ip().is_loopback() || settings.key.is_some() || settings.trusted_link {
        return Ok(());
    }
    Err(Error::Settings {
        found: format!("{address} is beyond this machine and there is no key"),
        wanted: "prompts travel on this connection: make one key for all ranks (`openssl rand \
                 -hex 32`), or say that the cable is private"
            .into(),
    })
}
