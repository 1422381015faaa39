//! The port of a rank: everybody may knock, and a stranger, a liar or somebody who says nothing
//! holds up nobody else.

use super::{Channel, Key, Word};
use crate::error::{Error, Refusal};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Handshakes that are under way at once; more knocks are hung up on.
const HANDSHAKES_MAX: usize = 32;
/// Refused guests that are remembered for the message of somebody who waits in vain.
const REFUSED_MAX: usize = 8;
/// How long the door sleeps between looks whether it is to be closed.
const LOOK: Duration = Duration::from_millis(20);

/// Somebody who has shown the key and said a first word.
pub(super) struct Guest {
    /// The connection.
    pub channel: Channel,
    /// The first word.
    pub word: Word,
}

/// An open port with a thread that answers it.
pub(super) struct Door {
    address: SocketAddr,
    guests: Receiver<Guest>,
    stop: Arc<AtomicBool>,
    full: Arc<AtomicBool>,
    refused: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

struct Answering {
    key: Option<Key>,
    time: Duration,
    guests: Sender<Guest>,
    full: Arc<AtomicBool>,
    busy: Arc<AtomicUsize>,
    refused: Arc<Mutex<Vec<String>>>,
}

impl Door {
    /// Opens a port; port 0 is any free one.
    pub fn open(address: SocketAddr, key: Option<Key>, time: Duration) -> Result<Self, Error> {
        let failed = |e: std::io::Error| Error::System {
            doing: format!("listening on {address}"),
            found: e.to_string(),
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (sender, guests) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let full = Arc::new(AtomicBool::new(false));
        let refused = Arc::new(Mutex::new(Vec::new()));
        let answering = Answering {
            key,
            time,
            guests: sender,
            full: Arc::clone(&full),
            busy: Arc::default(),
            refused: Arc::clone(&refused),
        };
        let flag = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("cluster-door".into())
            .spawn(move || answering.run(&listener, &flag))
            .map_err(failed)?;
        Ok(Self { address, guests, stop, full, refused, thread: Some(thread) })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next guest, if one comes before `end`.
    pub fn next(&self, end: Instant) -> Option<Guest> {
        self.guests.recv_timeout(end.saturating_duration_since(Instant::now())).ok()
    }

    /// Says whether ranks that want to join are told at once that there is no place.
    pub fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Release);
    }

    /// What was wrong with those who were not let in, the last few.
    pub fn refused(&self) -> Vec<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Remembers one more.
    pub fn note_refused(&self, text: String) {
        note(&self.refused, text);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It cannot panic, and if it did the port is closed all the same.
            let _ = thread.join();
        }
    }
}

fn note(refused: &Mutex<Vec<String>>, text: String) {
    let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
    if refused.len() == REFUSED_MAX {
        refused.remove(0);
    }
    refused.push(text);
}

impl Answering {
    fn run(&self, listener: &TcpListener, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            match listener.accept() {
                Ok((stream, _)) => self.answer(stream),
                // No knock, or one that was gone at once.
                Err(_) => {
                    use rustix::event::{PollFd, PollFlags, Timespec, poll};
                    let time = Timespec::try_from(LOOK).ok();
                    let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], time.as_ref());
                }
            }
        }
    }

    /// Does a handshake on a thread of its own.
    fn answer(&self, stream: TcpStream) {
        if self.busy.load(Ordering::Acquire) >= HANDSHAKES_MAX {
            return;
        }
        self.busy.fetch_add(1, Ordering::AcqRel);
        let (key, time) = (self.key.clone(), self.time);
        let (guests, refused) = (self.guests.clone(), Arc::clone(&self.refused));
        let (busy, full) = (Arc::clone(&self.busy), Arc::clone(&self.full));
        let thread = std::thread::Builder::new().name("cluster-knock".into()).spawn(move || {
            match greet(stream, key.as_ref(), time) {
                Ok(Guest { mut channel, word: Word::Join(_) }) if full.load(Ordering::Acquire) => {
                    let reason = "the group has all its ranks".into();
                    let _ = channel.say(&Word::Refused { refusal: Refusal::Full, reason });
                }
                // A door that was closed meanwhile needs no guest.
                Ok(guest) => drop(guests.send(guest)),
                Err(error) => note(&refused, error.to_string()),
            }
            busy.fetch_sub(1, Ordering::AcqRel);
        });
        if thread.is_err() {
            self.busy.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn greet(stream: TcpStream, key: Option<&Key>, time: Duration) -> Result<Guest, Error> {
    let end = Instant::now() + time;
    let mut channel = Channel::answer(stream, key, time)?;
    match channel.hear(end)? {
        Some(word) => Ok(Guest { channel, word }),
        None => Err(Error::Wire {
            who: channel.who().into(),
            found: "no first word in time".into(),
            wanted: "a rank says what it wants".into(),
        }),
    }
}
