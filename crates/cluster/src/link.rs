//! One ordered pipe of messages to one peer, both ways at once.
//!
//! A [`Link`] moves whole messages and knows nothing of gates. What holds on every transport:
//! receives are posted before the peer may send, a message that meets no posted receive is an error
//! and not a surprise, and no call waits: the caller polls and watches its own deadline. `tests/`
//! runs one suite over every transport.

mod bytes;
mod map;
mod memory;
#[cfg(feature = "mpi")]
mod mpi;
mod shm;
mod tcp;
mod verbs;

pub use bytes::{ByteLink, Bytes};
pub use memory::MemoryLink;
#[cfg(feature = "mpi")]
pub use mpi::{Mpi, MpiLink, MpiPlace, MpiSettings};
pub use shm::{ShmLink, ShmSize};
pub(crate) use tcp::rest_at;
pub use tcp::{TcpLink, tune};
pub(crate) use verbs::{Abilities, Half, Site, Verbs};
pub use verbs::{VerbsAddress, VerbsConnection, VerbsLink, VerbsSettings};

use crate::message::{HEADER_BYTES, copy_payload};
use std::collections::VecDeque;
use std::net::TcpStream;
use std::time::Duration;

/// What a link can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest message, in bytes.
    pub message_bytes_max: usize,
    /// Receives that may be posted at once.
    pub posted_max: usize,
}

impl Limits {
    /// What gates use unless a transport grants less: messages of 64 KiB and a header, 16 of them.
    pub const GATES: Limits = Limits { message_bytes_max: 64 * 1024 + 64, posted_max: 16 };
}

/// Why a link stopped working. It does not come back; the group makes a new one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The other end has gone.
    #[error("the connection was closed by the other end")]
    Closed,
    /// The system reports an error.
    #[error("{doing}: {found}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the system says.
        found: String,
    },
    /// What arrived is no message of this link.
    #[error("{found}, but {wanted}")]
    Wrong {
        /// What arrived.
        found: String,
        /// What may arrive.
        wanted: String,
    },
    /// This end broke the rules of the link: a bug in the caller.
    #[error("link: {found}, but {wanted}")]
    Misuse {
        /// What was done.
        found: String,
        /// What is allowed.
        wanted: String,
    },
}

/// A message that was taken with [`Link::receive_into`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its bytes, the header's among them.
    pub length: usize,
    /// What `payload_sum` gives for the bytes that were copied.
    pub payload_sum: u64,
}

/// One ordered, message-framed, full-duplex pipe to one peer.
pub trait Link: Send {
    /// What it can carry.
    fn limits(&self) -> Limits;

    /// Makes room for one more message of at most `bytes`. Receives are used in the order in which
    /// they were posted.
    fn post_recv(&mut self, bytes: usize) -> Result<(), LinkError>;

    /// Takes one message, `head` and `body` in a row, and begins to send it. Does not wait.
    fn send(&mut self, head: &[u8], body: &[u8]) -> Result<(), LinkError>;

    /// Moves what can be moved now, and gives the next message that is there, if one is. The
    /// bytes stay until the next call. Does not wait.
    fn receive(&mut self) -> Result<Option<&[u8]>, LinkError>;

    /// [`Link::receive`] of a message of which it is known how long it must be: its header goes to
    /// `head` and its payload to `body`, summed on the way. One of another length is used up, and
    /// both are left as they are.
    fn receive_into(
        &mut self,
        head: &mut [u8; HEADER_BYTES],
        body: &mut [u8],
    ) -> Result<Option<Taken>, LinkError> {
        let Some(message) = self.receive()? else { return Ok(None) };
        let mut taken = Taken { length: message.len(), payload_sum: 0 };
        if let Some((first, payload)) = message.split_first_chunk::<HEADER_BYTES>()
            && payload.len() == body.len()
        {
            *head = *first;
            taken.payload_sum = copy_payload(payload, body);
        }
        Ok(Some(taken))
    }

    /// Moves what can be moved now; whether all that was given to [`Link::send`] is on its way.
    fn flush(&mut self) -> Result<bool, LinkError>;

    /// Sleeps until something may have moved, and no longer than `at_most`.
    fn rest(&mut self, at_most: Duration);

    /// A second handle of the link's connection, to sleep at without the link until something
    /// comes; `None` where nothing tells of that.
    fn sleeper(&self) -> Option<TcpStream> {
        None
    }
}

/// The posted receives of a link: their sizes, oldest first.
#[derive(Debug)]
struct Posted {
    sizes: VecDeque<usize>,
    limits: Limits,
}

impl Posted {
    fn new(limits: Limits) -> Self {
        Self { sizes: VecDeque::with_capacity(limits.posted_max), limits }
    }

    /// One more receive; never beyond what was granted, since some hardware takes it and corrupts
    /// later.
    fn post(&mut self, bytes: usize) -> Result<(), LinkError> {
        if self.sizes.len() >= self.limits.posted_max {
            return Err(LinkError::Misuse {
                found: format!("receive {} was posted", self.sizes.len() + 1),
                wanted: format!("{} are granted", self.limits.posted_max),
            });
        }
        self.check_length(bytes)?;
        self.sizes.push_back(bytes);
        Ok(())
    }

    /// Whether a message of `bytes` may be sent or posted at all.
    fn check_length(&self, bytes: usize) -> Result<(), LinkError> {
        if bytes > self.limits.message_bytes_max {
            return Err(LinkError::Misuse {
                found: format!("a message of {bytes} bytes"),
                wanted: format!("{} are the most", self.limits.message_bytes_max),
            });
        }
        Ok(())
    }

    /// A message of `bytes` has begun to arrive: it must fit the next receive.
    fn check_arrival(&self, bytes: u64) -> Result<(), LinkError> {
        let wrong = |wanted: String| LinkError::Wrong {
            found: format!("a message of {bytes} bytes arrived"),
            wanted,
        };
        if bytes > self.limits.message_bytes_max as u64 {
            return Err(wrong(format!("{} are the most", self.limits.message_bytes_max)));
        }
        match self.sizes.front() {
            None => Err(wrong("no receive is posted: the sender went beyond its grant".into())),
            Some(&room) if bytes > room as u64 => {
                Err(wrong(format!("the receive that was posted has {room}")))
            }
            Some(_) => Ok(()),
        }
    }

    /// The oldest receive is used up.
    fn take(&mut self) {
        self.sizes.pop_front();
    }
}
