//! How two ranks make an RDMA link: what they tell each other on a control connection, which then
//! stays with the link.
//!
//! Each side says which connections it can make; both take the best that they share and tell where
//! their queue pairs are. When both have posted their receives and connected, each sends a message
//! and says whether the other's came. If one did not, both make new queue pairs and try again: a
//! direction that is dead stays dead, and only a message shows it.

use super::{Channel, Word, random};
use crate::error::Error;
use crate::link::{Abilities, Half, Limits, Site, Verbs, VerbsAddress, VerbsLink, VerbsSettings};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Queue pairs that are tried for one link.
const ATTEMPTS: u32 = 4;
/// How long the first message of an attempt may take.
const WARM: Duration = Duration::from_millis(500);

/// What is said while an RDMA link is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub enum VerbsWord {
    /// Which connections the speaker can make.
    Can {
        /// Reliable ones.
        reliable: bool,
        /// Unreliable ones.
        unreliable: bool,
        /// The largest packet, as the library numbers them.
        mtu: i32,
    },
    /// Where its end is.
    At {
        /// The queue pair.
        address: VerbsAddress,
    },
    /// Its receives are posted and it can send.
    Ready,
    /// Whether the first message came, and its own left.
    Warm {
        /// Both happened.
        passed: bool,
    },
}

/// Makes a link with the rank at the other end of `channel`, which does the same. `limits` are
/// those of both, or none for what suits the connection.
pub fn connect_verbs(
    mut channel: Channel,
    verbs: &VerbsSettings,
    limits: Option<Limits>,
    end: Instant,
) -> Result<VerbsLink, Error> {
    match converse(&mut channel, verbs, limits, end) {
        Ok((half, tag)) => {
            let who = channel.who().to_owned();
            let (stream, _, early) = channel.into_parts();
            if !early.is_empty() {
                return Err(Error::Wire {
                    who,
                    found: format!("{} bytes after the last word", early.len()),
                    wanted: "the link carries the rest".into(),
                });
            }
            half.into_link(tag, stream)
        }
        Err(error) => {
            // The other side hears why, unless it is what it said.
            let _ = channel.say(&Word::Abort { reason: error.to_string() });
            Err(error)
        }
    }
}

/// Whether a rank at `address` could make RDMA links: said at once, before others are waited for.
pub(super) fn check(settings: &VerbsSettings, address: IpAddr) -> Result<(), Error> {
    let verbs = Verbs::load(settings.library.as_deref())?;
    // An address that stands for all says nothing of the device.
    if address.is_unspecified() {
        return Ok(());
    }
    Site::find(&verbs, settings, address).map(|_| ())
}

/// The conversation; the connected half and the number of the connection.
fn converse(
    channel: &mut Channel,
    settings: &VerbsSettings,
    limits: Option<Limits>,
    end: Instant,
) -> Result<(Half, u32), Error> {
    let local = channel.local()?.ip();
    let verbs = Verbs::load(settings.library.as_deref())?;
    let site = Site::find(&verbs, settings, local)?;
    let Abilities { reliable, unreliable, mtu } = site.abilities();
    let said = exchange(channel, VerbsWord::Can { reliable, unreliable, mtu }, end)?;
    let VerbsWord::Can { reliable, unreliable, mtu } = said else {
        return Err(unexpected(channel, &Word::Verbs(said)));
    };
    let mut half = site.open(Abilities { reliable, unreliable, mtu }, limits)?;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            half.rebuild()?;
        }
        let psn = u32::try_from(random() & 0xff_ffff).expect("24 bits");
        let address = half.address(psn);
        let said = exchange(channel, VerbsWord::At { address }, end)?;
        let VerbsWord::At { address: peer } = said else {
            return Err(unexpected(channel, &Word::Verbs(said)));
        };
        half.connect(address, peer)?;
        expect(channel, VerbsWord::Ready, end)?;
        // Both ends know both numbers: an old message of another connection has another sum.
        let tag = address.psn ^ peer.psn ^ (attempt << 24);
        let passed = half.warm(tag, end.min(Instant::now() + WARM))?;
        let said = exchange(channel, VerbsWord::Warm { passed }, end)?;
        let VerbsWord::Warm { passed: theirs } = said else {
            return Err(unexpected(channel, &Word::Verbs(said)));
        };
        if passed && theirs {
            return Ok((half, tag));
        }
    }
    Err(Error::System {
        doing: format!("sending a first message over RDMA to {}", channel.who()),
        found: format!(
            "{ATTEMPTS} connections carried none; are both devices on one network, and is the GID \
             of each the address that the other reaches (RoCE v2 needs UDP port 4791 open)?"
        ),
    })
}

/// Says a word and hears one.
fn exchange(channel: &mut Channel, word: VerbsWord, end: Instant) -> Result<VerbsWord, Error> {
    channel.say(&Word::Verbs(word))?;
    match channel.hear(end)? {
        Some(Word::Verbs(said)) => Ok(said),
        Some(Word::Abort { reason }) => Err(Error::System {
            doing: format!("making an RDMA link with {}", channel.who()),
            found: format!("it gave up: {reason}"),
        }),
        Some(other) => Err(unexpected(channel, &other)),
        None => Err(Error::Wire {
            who: channel.who().into(),
            found: "nothing in time".into(),
            wanted: "both ends make an RDMA link together".into(),
        }),
    }
}

fn expect(channel: &mut Channel, word: VerbsWord, end: Instant) -> Result<(), Error> {
    let said = exchange(channel, word, end)?;
    if said == word { Ok(()) } else { Err(unexpected(channel, &Word::Verbs(said))) }
}

fn unexpected(channel: &Channel, word: &Word) -> Error {
    Error::Wire {
        who: channel.who().into(),
        found: format!("{word:?}"),
        wanted: "the next word of an RDMA link is due".into(),
    }
}
