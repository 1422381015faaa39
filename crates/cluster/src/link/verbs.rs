//! RDMA: messages between registered memory of two machines, without their systems in between.
//!
//! A link is one queue pair with memory for as many messages each way as may be under way, and two
//! more. All receives are posted before the peer may send for the first time (the handshake of
//! `control/verbs.rs` proves it with a message of the longest kind), and each is posted again as
//! soon as its message was copied out, so the device always has at least as many as this end
//! granted.
//!
//! Each message begins with 16 bytes: its length, a number of the connection, and its own number.
//! An unreliable connection loses messages without a word, and on Thunderbolt a send and its
//! receive must span equally many frames of 4 KiB: there all messages have one size, and the length
//! in front says what counts. A device says nothing when its peer dies, so the link keeps the
//! control connection that it was made on: its end is the link's.

mod abi;
mod choice;
mod device;

pub use choice::{VerbsConnection, VerbsSettings};
pub(crate) use device::Verbs;

use super::{Limits, Link, LinkError, Posted, Taken};
use crate::error::Error;
use crate::message::HEADER_BYTES;
use abi::{WC_RECV, Wc};
use choice::{Chosen, choose};
use device::{Device, Endpoint, FRAME, Route, SEND, SLOTS_MIN, Wanted};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes in front of every message.
const PREFIX: usize = 16;
/// Receives that are posted beyond the grant: what goes beyond it arrives, and is found.
const SPARE: usize = 2;
/// Looks without a message between two looks at the control connection.
const LOOKS: u32 = 512;
/// How long after its end messages may still arrive.
const GRACE: Duration = Duration::from_millis(20);
/// How long a link sleeps between looks.
const NAP: Duration = Duration::from_micros(50);
/// What an unreliable connection carries: 16 KiB of a gate, its header and the prefix, in five
/// frames. Time on Thunderbolt goes by frames.
const FRAMED: Limits = Limits { message_bytes_max: 5 * FRAME - PREFIX, posted_max: 16 };

/// Which connections two ends may have, by what one of them offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// Reliable ones.
    pub reliable: bool,
    /// Unreliable ones.
    pub unreliable: bool,
    /// The largest packet, as the library numbers them.
    pub mtu: i32,
}

/// A device that was chosen, before its peer is known.
pub(crate) struct Site {
    device: Device,
    chosen: Chosen,
    abilities: Abilities,
}

impl Site {
    /// Finds the device for a link whose control connection has the address `local` here.
    pub fn find(
        verbs: &Arc<Verbs>,
        settings: &VerbsSettings,
        local: IpAddr,
    ) -> Result<Self, Error> {
        let mut devices = verbs.devices()?;
        let ports: Vec<_> = devices.iter().flat_map(Device::ports).collect();
        let chosen = choose(&ports, settings, local)?;
        let at = devices.iter().position(|device| device.name() == chosen.port.device);
        let device = devices.swap_remove(at.expect("a port of one of the devices"));
        let (may, wants) = (settings.connection, VerbsConnection::Any);
        let reliable = device.probe(true).map_err(|error| error.to_string());
        let unreliable = device.probe(false).map_err(|error| error.to_string());
        let abilities = Abilities {
            reliable: reliable.is_ok() && (may == wants || may == VerbsConnection::Reliable),
            unreliable: unreliable.is_ok() && (may == wants || may == VerbsConnection::Unreliable),
            mtu: chosen.port.mtu,
        };
        if !abilities.reliable && !abilities.unreliable {
            let say = |made: Result<(), String>| made.err().unwrap_or_else(|| "not wanted".into());
            let (rc, uc) = (say(reliable), say(unreliable));
            return Err(Error::System {
                doing: format!("making a connection on {}", chosen.port.device),
                found: format!("reliable: {rc}; unreliable: {uc}"),
            });
        }
        Ok(Self { device, chosen, abilities })
    }

    /// What this end can do.
    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Makes this end of a connection of the kind that both ends have. `limits` are those that
    /// are wanted, or none for what suits the kind.
    pub fn open(self, peer: Abilities, limits: Option<Limits>) -> Result<Half, Error> {
        let own = self.abilities;
        let reliable = own.reliable && peer.reliable;
        if !(reliable || own.unreliable && peer.unreliable) {
            let say = |a: Abilities| match (a.reliable, a.unreliable) {
                (true, true) => "both kinds",
                (true, false) => "reliable ones only",
                _ => "unreliable ones only",
            };
            return Err(Error::Settings {
                found: format!("RDMA connections: {} here, {} there", say(own), say(peer)),
                wanted: "both ends need one kind in common, or another transport".into(),
            });
        }
        let limits = limits.unwrap_or(if reliable { Limits::GATES } else { FRAMED });
        let slot_bytes = (PREFIX + limits.message_bytes_max).next_multiple_of(FRAME);
        if slot_bytes as u64 > u64::from(self.chosen.port.message_bytes_max) {
            return Err(Error::Settings {
                found: format!("messages of {slot_bytes} bytes"),
                wanted: format!(
                    "{} sends at most {}",
                    self.chosen.port.device, self.chosen.port.message_bytes_max
                ),
            });
        }
        let wanted = Wanted { reliable, slots: limits.posted_max + SPARE, slot_bytes };
        let end = Endpoint::open(self.device, wanted)?;
        let mtu = own.mtu.min(peer.mtu).max(1);
        Ok(Half { end, chosen: self.chosen, mtu, message_bytes_max: limits.message_bytes_max })
    }
}

/// Where one end of a connection is, and what it holds: told to the peer over the control
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VerbsAddress {
    /// Number of the queue pair.
    pub qpn: u32,
    /// Number of its first packet.
    pub psn: u32,
    /// Its port's number in an InfiniBand subnet.
    pub lid: u16,
    /// Its port's address.
    pub gid: [u8; 16],
    /// Messages that it holds.
    pub slots: usize,
    /// Bytes of each.
    pub slot_bytes: usize,
}

impl VerbsAddress {
    /// Numbers of the wire have 24 bits; counts are bounded by what this end asked for.
    fn is_bounded(&self) -> bool {
        self.qpn < 1 << 24 && self.psn < 1 << 24 && self.slots >= SLOTS_MIN
    }
}

/// One end of a connection that is being made.
pub(crate) struct Half {
    end: Endpoint,
    chosen: Chosen,
    mtu: c_int,
    message_bytes_max: usize,
}

impl Half {
    /// Where this end is, with a first packet of this number.
    pub fn address(&self, psn: u32) -> VerbsAddress {
        VerbsAddress {
            qpn: self.end.qpn(),
            psn,
            lid: self.chosen.port.lid,
            gid: self.chosen.gid.map_or([0; 16], |place| place.gid),
            slots: self.end.slots(),
            slot_bytes: self.end.slot_bytes(),
        }
    }

    /// Posts all receives and connects.
    pub fn connect(&mut self, own: VerbsAddress, peer: VerbsAddress) -> Result<(), Error> {
        if !peer.is_bounded() || peer.slot_bytes != own.slot_bytes {
            return Err(Error::Settings {
                found: format!("the peer's end of an RDMA link is {peer:?}"),
                wanted: format!("slots of {} bytes, at least {SLOTS_MIN}", own.slot_bytes),
            });
        }
        self.end.lower_slots(peer.slots);
        let port = self.chosen.port.number;
        self.end.init(port)?;
        for slot in 0..self.end.slots() {
            self.end.post_receive(slot).map_err(|number| refused("posting a receive", number))?;
        }
        let VerbsAddress { qpn, psn, lid, gid, .. } = peer;
        let route = Route { qpn, psn, lid, gid };
        let place = self.chosen.gid.map(|place| place.index);
        self.end.connect(port, place, self.mtu, own.psn, &route)
    }

    /// Sends a message of the longest kind, and waits for the peer's until `until`: whether it
    /// came and this one left. `tag` is a number of the attempt.
    pub fn warm(&mut self, tag: u32, until: Instant) -> Result<bool, Error> {
        let mut prefix = [0; PREFIX];
        prefix[4..8].copy_from_slice(&tag.to_le_bytes());
        self.end.write(0, 0, &prefix);
        let bytes = self.end.slot_bytes();
        self.end.post_send(0, bytes).map_err(|n| refused("sending the first message", n))?;
        let (mut left, mut came) = (false, false);
        let mut ended = [Wc::default(); 4];
        while !(left && came) {
            let count = self.end.poll(&mut ended).map_err(|n| refused("polling", n))?;
            for wc in &ended[..count] {
                if wc.status != 0 {
                    return Ok(false);
                }
                if wc.opcode & WC_RECV == 0 {
                    left = true;
                    continue;
                }
                let slot = usize::try_from(wc.wr_id).unwrap_or(usize::MAX);
                let mut there = [0; PREFIX];
                self.end.read(slot, 0, &mut there);
                came = there == prefix && wc.byte_len as usize == bytes;
                let posted = self.end.post_receive(slot);
                posted.map_err(|number| refused("posting a receive", number))?;
            }
            if Instant::now() >= until {
                return Ok(left && came);
            }
            if count == 0 {
                std::thread::yield_now();
            }
        }
        Ok(true)
    }

    /// A new queue pair for the next attempt.
    pub fn rebuild(&mut self) -> Result<(), Error> {
        self.end.rebuild()
    }

    /// The link, over a connection that has carried a message both ways. `stream` is the control
    /// connection, of which nothing more is to be read.
    pub fn into_link(self, tag: u32, stream: TcpStream) -> Result<VerbsLink, Error> {
        stream.set_nonblocking(true).map_err(|e| Error::System {
            doing: "setting up the control connection of an RDMA link".into(),
            found: e.to_string(),
        })?;
        let slots = self.end.slots();
        let limits =
            Limits { message_bytes_max: self.message_bytes_max, posted_max: slots - SPARE };
        Ok(VerbsLink {
            stream,
            posted: Posted::new(limits),
            tag,
            sent: 0,
            left: 0,
            received: 0,
            backlog: VecDeque::new(),
            arrived: VecDeque::with_capacity(slots),
            message: vec![0; self.message_bytes_max],
            empty_looks: 0,
            closed: None,
            failed: None,
            end: self.end,
        })
    }
}

/// A link over RDMA.
pub struct VerbsLink {
    end: Endpoint,
    /// The control connection: its end is the link's.
    stream: TcpStream,
    posted: Posted,
    /// The number of the connection that stands in every message.
    tag: u32,
    /// Messages that were given to the device, and those whose send has ended.
    sent: u64,
    left: u64,
    received: u64,
    /// Messages that the device had no room for, head and body in a row.
    backlog: VecDeque<Vec<u8>>,
    /// Slots that messages have come to, with their bytes.
    arrived: VecDeque<(usize, u32)>,
    message: Vec<u8>,
    empty_looks: u32,
    /// When the control connection was found ended.
    closed: Option<Instant>,
    failed: Option<LinkError>,
}

impl VerbsLink {
    /// Takes what the device says has ended.
    fn poll(&mut self) {
        let mut ended = [Wc::default(); 16];
        let count = match self.end.poll(&mut ended) {
            Ok(count) => count,
            Err(number) => return self.fail(system("asking the RDMA device", number)),
        };
        for wc in &ended[..count] {
            let is_send = wc.wr_id & SEND != 0;
            if wc.status != 0 {
                self.ended_badly(is_send, wc);
            } else if is_send {
                self.left += 1;
            } else {
                // The number is this end's own.
                let slot = usize::try_from(wc.wr_id).unwrap_or(usize::MAX);
                self.arrived.push_back((slot, wc.byte_len));
            }
        }
    }

    /// The first error counts; the rest of what was under way comes back with it.
    fn ended_badly(&mut self, is_send: bool, wc: &Wc) {
        let (name, means) = abi::status(wc.status);
        let found = format!("{name} ({}): {means}", wc.status);
        const LENGTH: c_int = 1;
        const TOO_SMALL_THERE: c_int = 9;
        self.fail(match wc.status {
            LENGTH | TOO_SMALL_THERE => LinkError::Wrong {
                found,
                wanted: "messages and receives of one size on both ends".into(),
            },
            _ => {
                let doing = if is_send { "an RDMA send ended" } else { "an RDMA receive ended" };
                LinkError::System { doing, found }
            }
        });
    }

    fn fail(&mut self, error: LinkError) {
        if self.failed.is_none() {
            self.look_at_peer();
            // A device reports a peer that has ended as one that does not answer.
            let gone = self.closed.is_some() && matches!(error, LinkError::System { .. });
            self.failed = Some(if gone { LinkError::Closed } else { error });
        }
    }

    /// Whether the control connection still stands.
    fn look_at_peer(&mut self) {
        self.empty_looks = 0;
        if self.closed.is_some() {
            return;
        }
        match self.stream.peek(&mut [0]) {
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock) => {}
            Err(e) if matches!(e.kind(), std::io::ErrorKind::Interrupted) => {}
            // Nothing more is to be said on it: a word is as wrong as its end.
            _ => self.closed = Some(Instant::now()),
        }
    }

    /// Gives the device what waits, as long as it takes it.
    fn push_backlog(&mut self) -> Result<(), LinkError> {
        while let Some(message) = self.backlog.pop_front() {
            if !self.try_send(&message, &[])? {
                self.backlog.push_front(message);
                break;
            }
        }
        Ok(())
    }

    /// Sends a message if a slot and the device are free.
    fn try_send(&mut self, head: &[u8], body: &[u8]) -> Result<bool, LinkError> {
        let slots = self.end.slots() as u64;
        if self.sent - self.left >= slots {
            return Ok(false);
        }
        let slot = usize::try_from(self.sent % slots).expect("it is less than a usize");
        let length = head.len() + body.len();
        let mut prefix = [0; PREFIX];
        let short = u32::try_from(length).expect("its length was compared with the limit");
        prefix[..4].copy_from_slice(&short.to_le_bytes());
        prefix[4..8].copy_from_slice(&self.tag.to_le_bytes());
        prefix[8..].copy_from_slice(&self.sent.to_le_bytes());
        self.end.write(slot, 0, &prefix);
        self.end.write(slot, PREFIX, head);
        self.end.write(slot, PREFIX + head.len(), body);
        let bytes = if self.end.frames() { self.end.slot_bytes() } else { PREFIX + length };
        match self.end.post_send(slot, bytes) {
            Ok(()) => {
                self.sent += 1;
                Ok(true)
            }
            // A full queue empties as long as something is under way.
            Err(_) if self.sent > self.left => Ok(false),
            Err(number) => Err(system("giving a message to the RDMA device", number)),
        }
    }

    /// The length of the message in a slot, checked; its receive is used up.
    fn length_of(&mut self, slot: usize, bytes: u32) -> Result<usize, LinkError> {
        let wrong = |found: String, wanted: String| LinkError::Wrong { found, wanted };
        let bytes = bytes as usize;
        if !(PREFIX..=self.end.slot_bytes()).contains(&bytes) {
            let wanted = format!("{PREFIX} to {}", self.end.slot_bytes());
            return Err(wrong(format!("a message of {bytes} bytes with its prefix"), wanted));
        }
        let mut prefix = [0; PREFIX];
        self.end.read(slot, 0, &mut prefix);
        let [a, b, c, d, tag @ .., _, _, _, _, _, _, _, _] = prefix;
        let length = u32::from_le_bytes([a, b, c, d]);
        let tag = u32::from_le_bytes(tag);
        let number = u64::from_le_bytes(*prefix.last_chunk().expect("sixteen bytes"));
        if (tag, number) != (self.tag, self.received) {
            return Err(wrong(
                format!("message {number} of connection {tag:08x}"),
                format!("message {} of {:08x} is due: one was lost", self.received, self.tag),
            ));
        }
        self.posted.check_arrival(u64::from(length))?;
        let length = length as usize;
        if PREFIX + length > bytes {
            let wanted = format!("its prefix says {length}");
            return Err(wrong(format!("a message cut to {} bytes", bytes - PREFIX), wanted));
        }
        self.posted.take();
        Ok(length)
    }

    /// The message of a slot was copied out: the slot is posted again.
    fn free(&mut self, slot: usize) -> Result<(), LinkError> {
        self.received += 1;
        let posted = self.end.post_receive(slot);
        posted.map_err(|number| system("posting an RDMA receive", number))
    }

    /// The slot of the next message and its length, if one is there.
    fn next_slot(&mut self) -> Result<Option<(usize, usize)>, LinkError> {
        if !self.backlog.is_empty() && self.failed.is_none() {
            self.push_backlog()?;
        }
        // Looked at before the device is: a thread that was stopped meanwhile sees what arrived.
        let over = self.closed.is_some_and(|since| since.elapsed() >= GRACE);
        if self.arrived.is_empty() {
            self.poll();
        }
        let Some((slot, bytes)) = self.arrived.pop_front() else {
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            self.empty_looks += 1;
            if self.empty_looks >= LOOKS {
                self.look_at_peer();
            }
            return if over { Err(LinkError::Closed) } else { Ok(None) };
        };
        let length = self.length_of(slot, bytes);
        self.kept(length).map(|length| Some((slot, length)))
    }

    /// The first error of a message is the link's.
    fn kept<T>(&mut self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        result.inspect_err(|error| {
            self.failed.get_or_insert(error.clone());
        })
    }
}

impl Link for VerbsLink {
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
        if self.closed.is_some() {
            return Err(LinkError::Closed);
        }
        if self.sent - self.left >= self.end.slots() as u64 {
            self.poll();
        }
        self.push_backlog()?;
        if self.backlog.is_empty() && self.try_send(head, body)? {
            return Ok(());
        }
        if self.backlog.len() >= self.posted.limits.posted_max {
            return Err(LinkError::Misuse {
                found: format!("{} messages wait for the RDMA device", self.backlog.len()),
                wanted: "a sender keeps to its grant".into(),
            });
        }
        self.backlog.push_back([head, body].concat());
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<&[u8]>, LinkError> {
        let Some((slot, length)) = self.next_slot()? else { return Ok(None) };
        self.end.read(slot, PREFIX, &mut self.message[..length]);
        let freed = self.free(slot);
        self.kept(freed)?;
        Ok(Some(&self.message[..length]))
    }

    fn receive_into(
        &mut self,
        head: &mut [u8; HEADER_BYTES],
        body: &mut [u8],
    ) -> Result<Option<Taken>, LinkError> {
        let Some((slot, length)) = self.next_slot()? else { return Ok(None) };
        let taken = self.end.take((slot, PREFIX), length, head, body);
        let freed = self.free(slot);
        self.kept(freed)?;
        Ok(Some(taken))
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        self.poll();
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.push_backlog()?;
        Ok(self.backlog.is_empty())
    }

    fn rest(&mut self, at_most: Duration) {
        std::thread::sleep(at_most.min(NAP));
        self.look_at_peer();
    }
}

impl Drop for VerbsLink {
    /// What was given to the device leaves before its queue pair ends, if it can leave at all.
    fn drop(&mut self) {
        let (start, mut over) = (Instant::now(), false);
        while self.failed.is_none() && (self.sent > self.left || !self.backlog.is_empty()) && !over
        {
            // As above: the last look is after the time is over.
            over = start.elapsed() >= GRACE;
            self.poll();
            if self.push_backlog().is_err() {
                break;
            }
            std::thread::yield_now();
        }
    }
}

fn system(doing: &'static str, number: c_int) -> LinkError {
    let found = std::io::Error::from_raw_os_error(number.abs()).to_string();
    LinkError::System { doing, found }
}

fn refused(doing: &str, number: c_int) -> Error {
    let found = std::io::Error::from_raw_os_error(number.abs()).to_string();
    Error::System { doing: doing.into(), found }
}
