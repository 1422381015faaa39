//! Every other rank of the rendezvous: joins, makes its links, and joins again after a break.

use super::door::Door;
use super::hub::check_reach;
use super::words::{Join, Roster};
use super::{Channel, Formed, Settings, Word, links, monitor, random};
use crate::error::{Error, Refusal};
use crate::watch::Watch;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long between two tries to join.
const RETRY: Duration = Duration::from_millis(50);

/// A rank above 0, and what it remembers from one epoch to the next.
pub struct Member {
    settings: Settings,
    hub: SocketAddr,
    /// The rank that was asked for, and later the one that was given.
    rank: Option<usize>,
    ranks: Option<usize>,
    instance: u64,
}

impl Member {
    /// Will join the group at `hub`, as `rank` of `ranks` where these are known.
    pub fn new(
        hub: SocketAddr,
        rank: Option<usize>,
        ranks: Option<usize>,
        settings: Settings,
    ) -> Result<Self, Error> {
        check_reach(hub, &settings)?;
        Ok(Self { settings, hub, rank, ranks, instance: random() })
    }

    /// Joins, or joins again, and waits until the group starts. Rank 0 may come later than this
    /// rank, so connections are tried again until the deadline; a refusal that time cannot mend
    /// ends it at once. `committed` as in [`super::Hub::form`].
    pub fn form(&mut self, committed: u64) -> Result<Formed, Error> {
        let start = Instant::now();
        let end = start + self.settings.deadlines.form;
        let mut told = None;
        loop {
            let error = match self.attempt(committed, end) {
                Ok(formed) => return Ok(formed),
                Err(error) => error,
            };
            let passes = match &error {
                // Somebody may have gone, and rank 0 not know it yet.
                Error::Refused { refusal, .. } => *refusal == Refusal::Full,
                Error::Settings { .. } => false,
                _ => true,
            };
            if !passes {
                return Err(error);
            }
            if Instant::now() >= end {
                let waited_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                // The last try may have been cut short: what rank 0 said counts for more.
                let error = told.unwrap_or(error);
                let what = format!("joining the group at {}: {error}", self.hub);
                return Err(Error::Late { waited_ms, what });
            }
            if matches!(error, Error::Refused { .. }) {
                told = Some(error);
            }
            std::thread::sleep(RETRY);
        }
    }

    fn attempt(&mut self, committed: u64, end: Instant) -> Result<Formed, Error> {
        let deadlines = self.settings.deadlines;
        let mut channel = Channel::dial(self.hub, self.settings.key.as_ref(), deadlines.handshake)?;
        // Others reach this rank where it reaches rank 0.
        let own = SocketAddr::new(channel.local()?.ip(), 0);
        let door = Door::open(own, self.settings.key.clone(), deadlines.handshake)?;
        channel.say(&Word::Join(Join {
            identity: self.settings.identity.clone(),
            rank: self.rank,
            ranks: self.ranks,
            instance: self.instance,
            sealed: self.settings.key.is_some() && !self.settings.trusted_link,
            address: door.address(),
            committed,
        }))?;
        let roster = self.await_roster(&mut channel, end)?;
        let watch = Watch::default();
        let formed = links::make(&roster, &self.settings, &door, &mut Vec::new(), &watch)?;
        channel.say(&Word::Linked)?;
        match channel.hear(Instant::now() + 2 * deadlines.links)? {
            Some(Word::Start) => {}
            other => return Err(unexpected(&channel, other, "the group was to start")),
        }
        self.rank = Some(roster.rank);
        self.ranks = Some(roster.addresses.len());
        monitor::spawn(0, channel, deadlines, watch).map_err(|e| Error::System {
            doing: "starting a thread".into(),
            found: e.to_string(),
        })?;
        Ok(formed)
    }

    /// Waits for the others. Rank 0 says several times a second how many there are; a silent one
    /// is given up.
    fn await_roster(&self, channel: &mut Channel, end: Instant) -> Result<Roster, Error> {
        let silence = self.settings.deadlines.silence;
        loop {
            match channel.hear(end.min(Instant::now() + silence))? {
                Some(Word::Waiting { .. }) => {}
                Some(Word::Refused { refusal, reason }) => {
                    return Err(Error::Refused { refusal, reason });
                }
                Some(Word::Roster(mut roster)) => {
                    // Rank 0 may listen on all its addresses; this is one that was reached.
                    if let Some(first) = roster.addresses.first_mut() {
                        *first = self.hub;
                    }
                    let ranks = roster.addresses.len();
                    let fits = (1..ranks).contains(&roster.rank)
                        && self.ranks.is_none_or(|told| told == ranks)
                        && self.rank.is_none_or(|told| told == roster.rank)
                        && roster.addresses.iter().all(|&a| check_reach(a, &self.settings).is_ok());
                    if !fits {
                        let word = Some(Word::Roster(roster));
                        return Err(unexpected(channel, word, "a roster with this rank in it"));
                    }
                    return Ok(roster);
                }
                None if Instant::now() < end => {
                    return Err(Error::Late {
                        waited_ms: u64::try_from(silence.as_millis()).unwrap_or(u64::MAX),
                        what: format!("rank 0 at {} says nothing", channel.who()),
                    });
                }
                other => return Err(unexpected(channel, other, "the roster is due")),
            }
        }
    }
}

fn unexpected(channel: &Channel, word: Option<Word>, wanted: &str) -> Error {
    Error::Wire {
        who: channel.who().into(),
        found: word.map_or_else(|| "nothing in time".into(), |word| format!("{word:?}")),
        wanted: wanted.into(),
    }
}
