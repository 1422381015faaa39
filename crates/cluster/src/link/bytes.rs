//! Messages over any stream of bytes: a length of four bytes, then the message, sealed where the
//! two ends share a key. Reads may be cut anywhere.

use super::{Limits, Link, LinkError, Posted};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;

/// A stream of bytes that never waits: `WouldBlock` says that nothing can be moved now.
/// TCP and the cut-up streams of the tests are the two.
pub trait Bytes: Send {
    /// Reads some bytes; 0 is the end of the stream.
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize>;

    /// Writes some bytes.
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize>;

    /// Writes some bytes of several pieces in a row.
    fn write_pieces(&mut self, pieces: [&[u8]; 3]) -> std::io::Result<usize> {
        let piece = pieces.into_iter().find(|piece| !piece.is_empty());
        self.write(piece.unwrap_or(&[]))
    }

    /// Sleeps until bytes can be read, or written too if `writing`, and no longer than `at_most`.
    fn rest(&mut self, writing: bool, at_most: Duration);

    /// A second handle, to sleep at; see [`Link::sleeper`].
    fn sleeper(&self) -> Option<TcpStream> {
        None
    }
}

/// Longest plain text of one sealed piece: Noise allows 65,535 bytes with the tag.
const PIECE: usize = 65_519;
/// What sealing adds to a piece.
const TAG: usize = 16;
/// Bytes of the length in front of a message.
const PREFIX: usize = 4;

/// A link over a stream of bytes.
pub struct ByteLink<S> {
    stream: S,
    cipher: Option<Box<snow::TransportState>>,
    posted: Posted,
    /// Bytes that wait to be written, from `written` on.
    out: Vec<u8>,
    written: usize,
    /// Bytes that were read: the message that was given out last ends at `consumed`.
    inbox: Vec<u8>,
    filled: usize,
    consumed: usize,
    /// A message after opening.
    opened: Vec<u8>,
    plain: Vec<u8>,
}

impl<S: Bytes> ByteLink<S> {
    /// A link over `stream`. `early` are bytes of the link that were read already.
    pub fn new(
        stream: S,
        limits: Limits,
        cipher: Option<snow::TransportState>,
        early: &[u8],
    ) -> Result<Self, LinkError> {
        let room = PREFIX + sealed(limits.message_bytes_max, cipher.is_some());
        if early.len() > room {
            return Err(LinkError::Wrong {
                found: format!("{} bytes came before the link was made", early.len()),
                wanted: format!("{room} are the most"),
            });
        }
        // Twice a message, so that one read takes what is there and moving the rest is rare.
        let mut inbox = vec![0; 2 * room];
        inbox[..early.len()].copy_from_slice(early);
        Ok(Self {
            stream,
            cipher: cipher.map(Box::new),
            posted: Posted::new(limits),
            out: Vec::with_capacity(room),
            written: 0,
            inbox,
            filled: early.len(),
            consumed: 0,
            opened: Vec::new(),
            plain: Vec::new(),
        })
    }

    /// The stream below, for tests.
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    fn write_out(&mut self) -> Result<(), LinkError> {
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => self.written += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(system("sending", &e)),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// Bytes of the whole next message in the inbox with its prefix, if that much is there.
    fn whole(&self) -> Result<Option<usize>, LinkError> {
        let rest = &self.inbox[self.consumed..self.filled];
        let Some((prefix, rest)) = rest.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let length = u32::from_le_bytes(*prefix);
        self.posted.check_arrival(u64::from(length))?;
        let length = usize::try_from(length).expect("it was compared with a usize");
        let stored = sealed(length, self.cipher.is_some());
        Ok((rest.len() >= stored).then_some(PREFIX + stored))
    }

    /// Writes without a copy in between; what the stream does not take waits.
    fn write_now(&mut self, pieces: [&[u8]; 3]) -> Result<(), LinkError> {
        let mut taken = match self.stream.write_pieces(pieces) {
            Ok(taken) => taken,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
            Err(e) => return Err(system("sending", &e)),
        };
        for piece in pieces {
            let here = taken.min(piece.len());
            self.out.extend_from_slice(&piece[here..]);
            taken -= here;
        }
        Ok(())
    }

    /// Reads once; whether anything came.
    fn fill(&mut self) -> Result<bool, LinkError> {
        if self.filled == self.inbox.len() {
            self.inbox.copy_within(self.consumed..self.filled, 0);
            self.filled -= self.consumed;
            self.consumed = 0;
        }
        match self.stream.read(&mut self.inbox[self.filled..]) {
            Ok(0) => Err(LinkError::Closed),
            Ok(n) => {
                self.filled += n;
                Ok(true)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(e) => Err(system("receiving", &e)),
        }
    }
}

impl<S: Bytes> Link for ByteLink<S> {
    fn limits(&self) -> Limits {
        self.posted.limits
    }

    fn post_recv(&mut self, bytes: usize) -> Result<(), LinkError> {
        self.posted.post(bytes)
    }

    fn send(&mut self, head: &[u8], body: &[u8]) -> Result<(), LinkError> {
        let length = head.len() + body.len();
        self.posted.check_length(length)?;
        let prefix = u32::try_from(length).map_err(|_| LinkError::Misuse {
            found: format!("a message of {length} bytes"),
            wanted: "lengths have 32 bits".into(),
        })?;
        if self.cipher.is_none() && self.out.is_empty() {
            return self.write_now([&prefix.to_le_bytes(), head, body]);
        }
        self.out.extend_from_slice(&prefix.to_le_bytes());
        if let Some(cipher) = &mut self.cipher {
            self.plain.clear();
            self.plain.extend_from_slice(head);
            self.plain.extend_from_slice(body);
            // An empty message is sealed too: nobody else may put one in.
            let empty: &[u8] = &[];
            let none = self.plain.is_empty().then_some(empty);
            for piece in self.plain.chunks(PIECE).chain(none) {
                let start = self.out.len();
                self.out.resize(start + piece.len() + TAG, 0);
                let done = cipher.write_message(piece, &mut self.out[start..]);
                done.map_err(|e| system("sealing", &e))?;
            }
        } else {
            self.out.extend_from_slice(head);
            self.out.extend_from_slice(body);
        }
        self.write_out()
    }

    fn receive(&mut self) -> Result<Option<&[u8]>, LinkError> {
        if !self.out.is_empty() {
            self.write_out()?;
        }
        if self.consumed == self.filled {
            (self.consumed, self.filled) = (0, 0);
        }
        let mut whole = self.whole()?;
        if whole.is_none() && self.fill()? {
            whole = self.whole()?;
        }
        let Some(whole) = whole else { return Ok(None) };
        let stored = self.consumed + PREFIX..self.consumed + whole;
        self.consumed += whole;
        self.posted.take();
        let Some(cipher) = &mut self.cipher else { return Ok(Some(&self.inbox[stored])) };
        self.opened.resize(stored.len(), 0);
        let mut length = 0;
        for piece in self.inbox[stored].chunks(PIECE + TAG) {
            let done = cipher.read_message(piece, &mut self.opened[length..]);
            length += done.map_err(|_| LinkError::Wrong {
                found: "a message that the shared key does not open".into(),
                wanted: "only the peer may write on this link".into(),
            })?;
        }
        Ok(Some(&self.opened[..length]))
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        self.write_out()?;
        Ok(self.out.is_empty())
    }

    fn rest(&mut self, at_most: Duration) {
        let writing = !self.out.is_empty();
        self.stream.rest(writing, at_most);
    }

    fn sleeper(&self) -> Option<TcpStream> {
        self.stream.sleeper()
    }
}

/// Bytes that a message of `length` takes in the stream.
fn sealed(length: usize, cipher: bool) -> usize {
    if cipher { length + length.div_ceil(PIECE).max(1) * TAG } else { length }
}

fn system(doing: &'static str, error: &dyn std::fmt::Display) -> LinkError {
    LinkError::System { doing, found: error.to_string() }
}
