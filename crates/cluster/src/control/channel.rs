//! One control connection: the first bytes in the clear, the key, and frames of words.

use super::Word;
use crate::error::{Error, Refusal};
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Version of everything that ranks say to each other. Another major version is refused; a minor
/// one may say more.
pub const VERSION: (u16, u16) = (1, 0);
/// Bytes that each side sends first.
pub const PREAMBLE_BYTES: usize = 16;
const MAGIC: [u8; 8] = *b"IRONSTAR";
/// Longest frame of a word: what Noise seals in one piece.
const FRAME_BYTES_MAX: usize = 60_000;
const TAG: usize = 16;
const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// First byte of a frame of the handshake.
const HANDSHAKE: u8 = 0;
const REFUSED: u8 = 1;
/// What a browser or a port scan gets to read.
const STRANGER: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n\
    This port is for ranks of an ironstar cluster; use `ironstar worker --join`.\n";

/// The key that all ranks of a group share.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    /// Keys are in no log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// A key of 64 hexadecimal digits, as `openssl rand -hex 32` makes them.
    pub fn from_hex(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let wrong = |found: String| Error::Settings {
            found,
            wanted: "a key has 64 hexadecimal digits (`openssl rand -hex 32` makes one)".into(),
        };
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong(format!("a key of {} characters", text.chars().count())));
        }
        let mut key = [0; 32];
        for (byte, at) in key.iter_mut().zip((0..64).step_by(2)) {
            let digits = u8::from_str_radix(&text[at..at + 2], 16);
            *byte = digits.map_err(|_| wrong("a key with other characters".into()))?;
        }
        Ok(Self(key))
    }

    /// A new key from the system's random numbers.
    pub fn random() -> Result<Self, Error> {
        let pair = builder()?.generate_keypair().map_err(|e| noise(&e))?;
        let key = pair.private.try_into().map_err(|_| Error::System {
            doing: "making a key".into(),
            found: "a private key has other than 32 bytes".into(),
        })?;
        Ok(Self(key))
    }

    /// The 64 digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What each side says first, in the clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// Protocol version.
    pub version: (u16, u16),
    /// Whether the side has a key.
    pub has_key: bool,
}

impl Preamble {
    /// This program's.
    #[must_use]
    pub fn ours(has_key: bool) -> Self {
        Self { version: VERSION, has_key }
    }

    /// Its bytes: magic, major, minor, 1 for a key, zeros.
    #[must_use]
    pub fn to_bytes(self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.0.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.version.1.to_le_bytes());
        bytes[12] = u8::from(self.has_key);
        bytes
    }

    /// Reads them; `None` if they are not ours.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; PREAMBLE_BYTES]) -> Option<Self> {
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let ours = bytes[..8] == MAGIC && bytes[12] <= 1;
        ours.then(|| Self { version: (number(8), number(10)), has_key: bytes[12] == 1 })
    }

    /// Whether two sides can talk.
    pub fn agree(self, theirs: Preamble, who: &str) -> Result<(), Error> {
        let refused = |refusal, reason| Err(Error::Refused { refusal, reason });
        if self.version.0 != theirs.version.0 {
            let (ours, other) = (self.version, theirs.version);
            let reason = format!(
                "{who} speaks version {}.{} of the cluster protocol and this program {}.{}; run \
                 the same release on all machines",
                other.0, other.1, ours.0, ours.1
            );
            return refused(Refusal::Version, reason);
        }
        match (self.has_key, theirs.has_key) {
            (true, false) => {
                let reason = format!("{who} has no key and this rank has one; give both the same");
                refused(Refusal::Key, reason)
            }
            (false, true) => {
                let reason =
                    format!("{who} wants a key and this rank has none; give both the same");
                refused(Refusal::Key, reason)
            }
            _ => Ok(()),
        }
    }
}

/// A connection on which words are said.
pub struct Channel {
    stream: TcpStream,
    who: String,
    cipher: Option<Box<snow::TransportState>>,
    inbox: Vec<u8>,
}

impl Channel {
    /// Dials and does the handshake.
    pub fn dial(address: SocketAddr, key: Option<&Key>, time: Duration) -> Result<Self, Error> {
        let end = Instant::now() + time;
        let stream = TcpStream::connect_timeout(&address, time)
            .map_err(|e| system(format!("connecting to {address}"), &e))?;
        let mut channel = Self::over(stream, time)?;
        let ours = Preamble::ours(key.is_some());
        channel.write(&ours.to_bytes())?;
        let theirs = channel.exact::<PREAMBLE_BYTES>(end)?;
        let Some(their) = Preamble::from_bytes(&theirs) else {
            return Err(channel.wrong("other first bytes".into(), "an ironstar cluster speaks"));
        };
        ours.agree(their, &channel.who)?;
        if let Some(key) = key {
            let prologue = [ours.to_bytes(), theirs].concat();
            let mut noise_state = state(key, &prologue, true)?;
            let mut message = vec![0; 256];
            let length = noise_state.write_message(&[], &mut message).map_err(|e| noise(&e))?;
            channel.handshake_frame(HANDSHAKE, &message[..length])?;
            let answer = channel.handshake_answer(end)?;
            if noise_state.read_message(&answer, &mut message).is_err() {
                return Err(wrong_key(&channel.who));
            }
            let transport = noise_state.into_transport_mode().map_err(|e| noise(&e))?;
            channel.cipher = Some(Box::new(transport));
        }
        Ok(channel)
    }

    /// Answers somebody who dialled. Whoever is no rank is told what this port is.
    pub fn answer(stream: TcpStream, key: Option<&Key>, time: Duration) -> Result<Self, Error> {
        let end = Instant::now() + time;
        let mut channel = Self::over(stream, time)?;
        let theirs = channel.exact::<PREAMBLE_BYTES>(end)?;
        let Some(their) = Preamble::from_bytes(&theirs) else {
            channel.write(STRANGER)?;
            return Err(channel.wrong("other first bytes".into(), "a rank says who it is"));
        };
        let ours = Preamble::ours(key.is_some());
        channel.write(&ours.to_bytes())?;
        ours.agree(their, &channel.who)?;
        if let Some(key) = key {
            let prologue = [theirs, ours.to_bytes()].concat();
            let mut noise_state = state(key, &prologue, false)?;
            let message = channel.handshake_answer(end)?;
            let mut answer = vec![0; 256];
            if noise_state.read_message(&message, &mut answer).is_err() {
                channel.handshake_frame(REFUSED, b"another key")?;
                return Err(wrong_key(&channel.who));
            }
            let length = noise_state.write_message(&[], &mut answer).map_err(|e| noise(&e))?;
            channel.handshake_frame(HANDSHAKE, &answer[..length])?;
            let transport = noise_state.into_transport_mode().map_err(|e| noise(&e))?;
            channel.cipher = Some(Box::new(transport));
        }
        Ok(channel)
    }

    fn over(stream: TcpStream, time: Duration) -> Result<Self, Error> {
        let who = stream.peer_addr().map_or_else(|_| "a peer".into(), |a| a.to_string());
        let setup = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| stream.set_write_timeout(Some(time)));
        setup.map_err(|e| system(format!("setting up the connection to {who}"), &e))?;
        Ok(Self { stream, who, cipher: None, inbox: Vec::new() })
    }

    /// The other side's address, as text.
    #[must_use]
    pub fn who(&self) -> &str {
        &self.who
    }

    /// This side's address.
    pub fn local(&self) -> Result<SocketAddr, Error> {
        self.stream.local_addr().map_err(|e| system("asking for an address".into(), &e))
    }

    /// Says a word.
    pub fn say(&mut self, word: &Word) -> Result<(), Error> {
        let text = serde_json::to_vec(word).map_err(|e| system("writing a word".into(), &e))?;
        let body = match &mut self.cipher {
            None => text,
            Some(cipher) => {
                let mut sealed = vec![0; text.len() + TAG];
                let length = cipher.write_message(&text, &mut sealed).map_err(|e| noise(&e))?;
                sealed.truncate(length);
                sealed
            }
        };
        let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= FRAME_BYTES_MAX);
        let Some(length) = length else {
            return Err(Error::Settings {
                found: format!("a word of {} bytes", body.len()),
                wanted: format!("{FRAME_BYTES_MAX} are the most"),
            });
        };
        self.write(&[&length.to_le_bytes()[..], &body].concat())
    }

    /// The next word, if it comes before `end`.
    pub fn hear(&mut self, end: Instant) -> Result<Option<Word>, Error> {
        loop {
            if let Some((length, rest)) = self.inbox.split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > FRAME_BYTES_MAX {
                    let wanted = format!("{FRAME_BYTES_MAX} are the most");
                    return Err(self.wrong(format!("a frame of {length} bytes"), &wanted));
                }
                if rest.len() >= length {
                    let frame = rest[..length].to_vec();
                    self.inbox.drain(..4 + length);
                    return self.open(&frame).map(Some);
                }
            }
            if !self.fill(end)? {
                return Ok(None);
            }
        }
    }

    /// The connection, its key state, and what was read beyond the last word.
    #[must_use]
    pub fn into_parts(self) -> (TcpStream, Option<snow::TransportState>, Vec<u8>) {
        (self.stream, self.cipher.map(|cipher| *cipher), self.inbox)
    }

    fn open(&mut self, frame: &[u8]) -> Result<Word, Error> {
        let mut plain = vec![0; frame.len()];
        let text = match &mut self.cipher {
            None => frame,
            Some(cipher) => match cipher.read_message(frame, &mut plain) {
                Ok(length) => &plain[..length],
                Err(_) => {
                    return Err(self.wrong(
                        "a word that the key does not open".into(),
                        "the \
                    same key seals all words",
                    ));
                }
            },
        };
        serde_json::from_slice(text).map_err(|e| self.wrong(format!("no word ({e})"), "one is due"))
    }

    /// Reads until `end`; whether anything came.
    fn fill(&mut self, end: Instant) -> Result<bool, Error> {
        let mut bytes = [0; 4096];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let set = self.stream.set_read_timeout(Some(left));
            set.map_err(|e| system("setting a timeout".into(), &e))?;
            match self.stream.read(&mut bytes) {
                Ok(0) => {
                    return Err(system(format!("reading from {}", self.who), &"it hung up"));
                }
                Ok(count) => {
                    self.inbox.extend_from_slice(&bytes[..count]);
                    return Ok(true);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(false);
                }
                Err(e) => return Err(system(format!("reading from {}", self.who), &e)),
            }
        }
    }

    /// Exactly `N` bytes before `end`.
    fn exact<const N: usize>(&mut self, end: Instant) -> Result<[u8; N], Error> {
        loop {
            if let Some((bytes, _)) = self.inbox.split_first_chunk::<N>() {
                let bytes = *bytes;
                self.inbox.drain(..N);
                return Ok(bytes);
            }
            if !self.fill(end)? {
                let found = format!("{} of {N} bytes in time", self.inbox.len());
                return Err(self.wrong(found, "a handshake goes on without a pause"));
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.stream.write_all(bytes);
        written.map_err(|e| system(format!("writing to {}", self.who), &e))
    }

    fn handshake_frame(&mut self, kind: u8, bytes: &[u8]) -> Result<(), Error> {
        let length = u8::try_from(bytes.len()).expect("handshake messages have 48 bytes");
        self.write(&[&[kind, length], bytes].concat())
    }

    fn handshake_answer(&mut self, end: Instant) -> Result<Vec<u8>, Error> {
        let [kind, length] = self.exact::<2>(end)?;
        let mut bytes = Vec::with_capacity(usize::from(length));
        for _ in 0..length {
            bytes.push(self.exact::<1>(end)?[0]);
        }
        match kind {
            HANDSHAKE => Ok(bytes),
            // What it says is not authenticated: only that it refuses is used.
            REFUSED => Err(wrong_key(&self.who)),
            _ => Err(self.wrong(format!("frame {kind}"), "the handshake goes on")),
        }
    }

    fn wrong(&self, found: String, wanted: &str) -> Error {
        Error::Wire { who: self.who.clone(), found, wanted: wanted.into() }
    }
}

fn builder() -> Result<snow::Builder<'static>, Error> {
    Ok(snow::Builder::new(NOISE.parse().map_err(|e| noise(&e))?))
}

fn state(key: &Key, prologue: &[u8], first: bool) -> Result<snow::HandshakeState, Error> {
    let params = NOISE.parse().map_err(|e| noise(&e))?;
    let builder = snow::Builder::new(params).prologue(prologue).map_err(|e| noise(&e))?;
    let builder = builder.psk(0, &key.0).map_err(|e| noise(&e))?;
    let built = if first { builder.build_initiator() } else { builder.build_responder() };
    built.map_err(|e| noise(&e))
}

fn wrong_key(who: &str) -> Error {
    let reason = format!("{who} and this rank have different keys; give both the same file");
    Error::Refused { refusal: Refusal::Key, reason }
}

fn noise(error: &snow::Error) -> Error {
    system("the encrypted handshake".into(), error)
}

fn system(doing: String, error: &dyn fmt::Display) -> Error {
    Error::System { doing, found: error.to_string() }
}
