//! MPI: messages between the processes that `mpirun` or `srun` has started, over whatever fabric
//! the machine's MPI knows.
//!
//! A link has memory for as many messages each way as may be under way, and two more. Receives are
//! posted before the peer may send, as on every link, and MPI matches them in their order. Each
//! message begins with 16 bytes: its length, a number of the connection, and its own number. MPI
//! does not tell that a peer has gone, so an end that goes sends a last message that says so; one
//! that dies is noticed on the control connection, and by `mpirun`, which ends all.

mod library;

pub use library::Mpi;
use library::{Request, Room};

use super::{Limits, Link, LinkError, Posted, Taken};
use crate::error::Error;
use crate::message::HEADER_BYTES;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes in front of every message.
const PREFIX: usize = 16;
/// Receives that are posted beyond the grant: what goes beyond it arrives, and is found; and the
/// last message of an end that goes.
const SPARE: usize = 2;
/// The length of that message.
const GONE: u32 = u32::MAX;
/// How long an end that goes waits until what it has sent has left.
const GRACE: Duration = Duration::from_millis(500);
/// How long a link sleeps between looks.
const NAP: Duration = Duration::from_micros(50);
/// Tags that MPI promises to have.
const TAGS: u32 = 32_768;

/// Which MPI, and whether it has begun. Clones are the same.
#[derive(Clone, Default)]
pub struct MpiSettings {
    /// The library; the system's Open MPI or MPICH if it is not named.
    pub library: Option<PathBuf>,
    begun: Arc<Mutex<Option<Arc<Mpi>>>>,
}

impl std::fmt::Debug for MpiSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MpiSettings").field("library", &self.library).finish_non_exhaustive()
    }
}

impl MpiSettings {
    /// The library, which begins at the first call.
    pub fn get(&self) -> Result<Arc<Mpi>, Error> {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mpi) = &*begun {
            return Ok(Arc::clone(mpi));
        }
        let mpi = Mpi::begin(self.library.as_ref())?;
        *begun = Some(Arc::clone(&mpi));
        Ok(mpi)
    }

    /// The library, if it has the group's ranks: the launcher's are the group's.
    pub(crate) fn of_group(&self, rank: usize, ranks: usize) -> Result<Arc<Mpi>, Error> {
        let mpi = self.get()?;
        if (mpi.rank(), mpi.ranks()) != (rank, ranks) {
            let (is, of) = (mpi.rank(), mpi.ranks());
            return Err(Error::Settings {
                found: format!(
                    "rank {rank} of {ranks} is process {is} of {of} to {}",
                    mpi.version()
                ),
                wanted: "start all ranks by one mpirun of the same MPI, with --ranks auto".into(),
            });
        }
        Ok(mpi)
    }
}

/// What two links between two processes differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpiPlace {
    /// Number of the peer among the processes.
    pub peer: usize,
    /// Tag of what is sent, and of what comes.
    pub tags: [u16; 2],
    /// A number that stands in every message.
    pub nonce: u32,
}

impl MpiPlace {
    /// The link of an epoch for gates or for `records`.
    pub(crate) fn of_epoch(peer: usize, epoch: u32, records: bool, nonce: u64) -> Self {
        let tag = (epoch % (TAGS / 2)) * 2 + u32::from(records);
        let tag = u16::try_from(tag).expect("below 2^15");
        let nonce = u32::try_from(nonce & u64::from(u32::MAX)).expect("masked to 32 bits");
        Self { peer, tags: [tag; 2], nonce }
    }
}

/// A link over MPI.
pub struct MpiLink {
    mpi: Arc<Mpi>,
    room: Room,
    posted: Posted,
    slots: usize,
    slot_bytes: usize,
    peer: c_int,
    tags: [c_int; 2],
    nonce: u32,
    sent: u64,
    received: u64,
    /// By slot: sends under way, and receives.
    sends: Vec<Request>,
    receives: Vec<Request>,
    /// Messages that had no slot, head and body in a row.
    backlog: VecDeque<Vec<u8>>,
    message: Vec<u8>,
    is_closed: bool,
    failed: Option<LinkError>,
}

impl MpiLink {
    /// A link with `place.peer`, which makes the other end. Posts its receives.
    pub fn new(mpi: Arc<Mpi>, place: MpiPlace, limits: Limits) -> Result<Self, LinkError> {
        let slots = limits.posted_max + SPARE;
        let slot_bytes = (PREFIX + limits.message_bytes_max).next_multiple_of(64);
        let room = Room::new(2 * slots * slot_bytes).map_err(|e| LinkError::System {
            doing: "making memory for messages",
            found: e.to_string(),
        })?;
        let peer = c_int::try_from(place.peer).map_err(|_| LinkError::Misuse {
            found: format!("rank {}", place.peer),
            wanted: "ranks of MPI have 31 bits".into(),
        })?;
        let none = || std::iter::repeat_with(Request::default).take(slots).collect();
        let mut link = Self {
            mpi,
            room,
            posted: Posted::new(limits),
            slots,
            slot_bytes,
            peer,
            tags: place.tags.map(c_int::from),
            nonce: place.nonce,
            sent: 0,
            received: 0,
            sends: none(),
            receives: none(),
            backlog: VecDeque::new(),
            message: vec![0; limits.message_bytes_max],
            is_closed: false,
            failed: None,
        };
        for slot in 0..slots {
            link.post(slot)?;
        }
        Ok(link)
    }

    fn post(&mut self, slot: usize) -> Result<(), LinkError> {
        let range = ((self.slots + slot) * self.slot_bytes, self.slot_bytes);
        let posted = self.room.receive(&self.mpi, range, (self.peer, self.tags[1]));
        self.receives[slot] = posted.map_err(|code| system("posting an MPI receive", code))?;
        Ok(())
    }

    fn slot_of(&self, number: u64) -> usize {
        usize::try_from(number % self.slots as u64).expect("it is less than a usize")
    }

    /// Sends a message if its slot is free.
    fn try_send(&mut self, length: u32, head: &[u8], body: &[u8]) -> Result<bool, LinkError> {
        let slot = self.slot_of(self.sent);
        let free = self.room.test(&self.mpi, &mut self.sends[slot]);
        if !free.map_err(|code| system("sending by MPI", code))? {
            return Ok(false);
        }
        let mut prefix = [0; PREFIX];
        prefix[..4].copy_from_slice(&length.to_le_bytes());
        prefix[4..8].copy_from_slice(&self.nonce.to_le_bytes());
        prefix[8..].copy_from_slice(&self.sent.to_le_bytes());
        let at = slot * self.slot_bytes;
        self.room.map().write(at, &prefix);
        self.room.map().write(at + PREFIX, head);
        self.room.map().write(at + PREFIX + head.len(), body);
        let range = (at, PREFIX + head.len() + body.len());
        let sent = self.room.send(&self.mpi, range, (self.peer, self.tags[0]));
        self.sends[slot] = sent.map_err(|code| system("sending by MPI", code))?;
        self.sent += 1;
        Ok(true)
    }

    /// Sends what waits, as long as slots are free.
    fn push_backlog(&mut self) -> Result<(), LinkError> {
        while let Some(message) = self.backlog.pop_front() {
            if !self.try_send(length_of(&message), &message, &[])? {
                self.backlog.push_front(message);
                break;
            }
        }
        Ok(())
    }

    /// Where the next message is and how long, if one is there, checked; its receive is used up.
    fn next_slot(&mut self) -> Result<Option<(usize, usize)>, LinkError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.is_closed {
            return Err(LinkError::Closed);
        }
        self.push_backlog()?;
        let slot = self.slot_of(self.received);
        let came = self.room.test(&self.mpi, &mut self.receives[slot]);
        if !came.map_err(|code| system("receiving by MPI", code))? {
            return Ok(None);
        }
        let at = (self.slots + slot) * self.slot_bytes;
        let mut prefix = [0; PREFIX];
        self.room.map().read(at, &mut prefix);
        let [a, b, c, d, nonce @ .., _, _, _, _, _, _, _, _] = prefix;
        let (length, nonce) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(nonce));
        let number = u64::from_le_bytes(*prefix.last_chunk().expect("sixteen bytes"));
        if (nonce, number) != (self.nonce, self.received) {
            return Err(LinkError::Wrong {
                found: format!("message {number} of connection {nonce:08x}"),
                wanted: format!("message {} of {:08x} is due", self.received, self.nonce),
            });
        }
        if length == GONE {
            self.is_closed = true;
            return Err(LinkError::Closed);
        }
        self.posted.check_arrival(u64::from(length))?;
        self.posted.take();
        Ok(Some((at + PREFIX, usize::try_from(length).expect("it was compared with a usize"))))
    }

    /// The first error is the link's.
    fn kept<T>(&mut self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        result.inspect_err(|error| {
            self.failed.get_or_insert(error.clone());
        })
    }

    /// The message of [`MpiLink::next_slot`] was copied out: its slot is posted again.
    fn free(&mut self) -> Result<(), LinkError> {
        let slot = self.slot_of(self.received);
        self.received += 1;
        let posted = self.post(slot);
        self.kept(posted)
    }

    /// Whether every send has left.
    fn has_left(&mut self) -> Result<bool, LinkError> {
        let mut left = self.backlog.is_empty();
        for request in &mut self.sends {
            let done = self.room.test(&self.mpi, request);
            left &= done.map_err(|code| system("sending by MPI", code))?;
        }
        Ok(left)
    }
}

impl Link for MpiLink {
    fn limits(&self) -> Limits {
        self.posted.limits
    }

    fn post_recv(&mut self, bytes: usize) -> Result<(), LinkError> {
        self.posted.post(bytes)
    }

    fn send(&mut self, head: &[u8], body: &[u8]) -> Result<(), LinkError> {
        self.posted.check_length(head.len() + body.len())?;
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.is_closed {
            return Err(LinkError::Closed);
        }
        self.push_backlog()?;
        let length = length_of(head).saturating_add(length_of(body));
        if self.backlog.is_empty() && self.try_send(length, head, body)? {
            return Ok(());
        }
        if self.backlog.len() >= self.posted.limits.posted_max {
            return Err(LinkError::Misuse {
                found: format!("{} messages wait for MPI", self.backlog.len()),
                wanted: "a sender keeps to its grant".into(),
            });
        }
        self.backlog.push_back([head, body].concat());
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<&[u8]>, LinkError> {
        let next = self.next_slot();
        let Some((at, length)) = self.kept(next)? else { return Ok(None) };
        self.room.map().read(at, &mut self.message[..length]);
        self.free()?;
        Ok(Some(&self.message[..length]))
    }

    fn receive_into(
        &mut self,
        head: &mut [u8; HEADER_BYTES],
        body: &mut [u8],
    ) -> Result<Option<Taken>, LinkError> {
        let next = self.next_slot();
        let Some((at, length)) = self.kept(next)? else { return Ok(None) };
        let taken = self.room.map().take(at, length, head, body);
        self.free()?;
        Ok(Some(taken))
    }

    /// MPI may need this end's calls to move a long message: it is on its way once it has left.
    fn flush(&mut self) -> Result<bool, LinkError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.push_backlog()?;
        let left = self.has_left();
        self.kept(left)
    }

    fn rest(&mut self, at_most: Duration) {
        std::thread::sleep(at_most.min(NAP));
    }
}

impl Drop for MpiLink {
    /// What was given leaves first, if it can, then the word that this end has gone.
    fn drop(&mut self) {
        let start = Instant::now();
        let mut said = self.failed.is_some() || self.is_closed;
        while start.elapsed() < GRACE {
            if self.push_backlog().is_err() {
                break;
            }
            if !said && self.backlog.is_empty() {
                said = self.try_send(GONE, &[], &[]).unwrap_or(true);
            }
            if said && self.has_left().unwrap_or(true) {
                break;
            }
            std::thread::yield_now();
        }
        for request in &mut self.receives {
            self.room.cancel(&self.mpi, request);
        }
        let end = Instant::now() + GRACE;
        while self.receives.iter().any(Request::is_active) && Instant::now() < end {
            for request in &mut self.receives {
                // One that fails has ended too.
                let _ = self.room.test(&self.mpi, request);
            }
        }
    }
}

fn length_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("its length was compared with the limit")
}

fn system(doing: &'static str, code: c_int) -> LinkError {
    LinkError::System { doing, found: format!("MPI gives error {code}") }
}
