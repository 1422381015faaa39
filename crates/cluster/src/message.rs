//! The header of every message between two ranks, and the checksum over it and the payload.
//!
//! 64 bytes, little-endian: magic (4), epoch (4), class (4), part (4), parts (4), payload length
//! (4), bytes of the whole exchange (8), number of the exchange (8), number of the message on its
//! link (8), the caller's number (8), checksum (8). Everything is checked on every message: a lost,
//! repeated, late or damaged one is found before a number of it is used.

use crate::sum::{copy_summed, placed_sum};
use std::fmt;

/// Bytes in front of every payload.
pub const HEADER_BYTES: usize = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"IRG1");
/// Place of a payload's first word.
pub(crate) const PAYLOAD_PLACE: u64 = HEADER_BYTES as u64 / 4;
/// Where the checksum stands: the last eight bytes of the header.
const SUM_AT: usize = HEADER_BYTES - 8;

/// What a message says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The group's epoch.
    pub epoch: u32,
    /// What is exchanged: the number of a `GateKind`, [`Header::BROADCAST`] or [`Header::ACK`].
    pub class: u32,
    /// Which part of the exchange this is, from 0.
    pub part: u32,
    /// How many parts it has.
    pub parts: u32,
    /// Bytes of the whole exchange.
    pub total: u64,
    /// Number of the exchange in its epoch, from 1.
    pub exchange: u64,
    /// Number of the message on its link and direction, from 1.
    pub sequence: u64,
    /// What a record is, in its sender's numbering; 0 for gates.
    pub tag: u64,
}

/// What is wrong with the bytes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Shorter than a header, or its length is not that of the payload.
    Length {
        /// Bytes that came.
        found: usize,
    },
    /// Not a message of gates, or of another version of them.
    Magic,
    /// The checksum of what came is not the one that it carries.
    Sum,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Length { found } => write!(f, "a message cut to {found} bytes"),
            Damage::Magic => f.write_str("bytes that are no message"),
            Damage::Sum => f.write_str("a message with a wrong checksum"),
        }
    }
}

impl Header {
    /// Class of rank 0's bytes to all.
    pub const BROADCAST: u32 = 16;
    /// Class of the empty answer to each part of them, or of a record.
    pub const ACK: u32 = 17;
    /// Class of a record of a stream.
    pub const RECORD: u32 = 18;

    /// The 64 bytes that go in front of `payload`.
    #[must_use]
    pub fn seal(&self, payload: &[u8]) -> [u8; HEADER_BYTES] {
        self.seal_summed(payload.len(), payload_sum(payload))
    }

    /// [`Header::seal`] for a payload whose [`payload_sum`] is known: the same bytes go to several
    /// ranks, and are summed once.
    #[must_use]
    pub fn seal_summed(&self, payload_bytes: usize, payload_sum: u64) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let length = u32::try_from(payload_bytes).expect("a message is far below 4 GiB");
        let words = [MAGIC, self.epoch, self.class, self.part, self.parts, length];
        for (at, word) in words.into_iter().enumerate() {
            bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let longs = [self.total, self.exchange, self.sequence, self.tag];
        for (at, word) in longs.into_iter().enumerate() {
            bytes[24 + 8 * at..32 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        let sum = placed_sum(&bytes, 0).wrapping_add(payload_sum);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Checks a message and takes it apart.
    pub fn open(message: &[u8]) -> Result<(Self, &[u8]), Damage> {
        let Some((head, payload)) = message.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Damage::Length { found: message.len() });
        };
        let header = Self::open_summed(head, payload.len(), || payload_sum(payload))?;
        Ok((header, payload))
    }

    /// [`Header::open`] of a message whose payload has `payload_bytes` and this [`payload_sum`].
    pub fn open_summed(
        head: &[u8; HEADER_BYTES],
        payload_bytes: usize,
        payload_sum: impl FnOnce() -> u64,
    ) -> Result<Self, Damage> {
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let long =
            |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        if word(0) != MAGIC {
            return Err(Damage::Magic);
        }
        if u64::from(word(20)) != payload_bytes as u64 {
            return Err(Damage::Length { found: HEADER_BYTES + payload_bytes });
        }
        let mut unsummed = *head;
        unsummed[SUM_AT..].fill(0);
        if long(SUM_AT) != placed_sum(&unsummed, 0).wrapping_add(payload_sum()) {
            return Err(Damage::Sum);
        }
        Ok(Header {
            epoch: word(4),
            class: word(8),
            part: word(12),
            parts: word(16),
            total: long(24),
            exchange: long(32),
            sequence: long(40),
            tag: long(48),
        })
    }
}

/// A payload's share of its message's checksum: its words' places follow those of the header's
/// sixteen.
#[must_use]
pub fn payload_sum(payload: &[u8]) -> u64 {
    placed_sum(payload, PAYLOAD_PLACE)
}

/// Copies a payload; its [`payload_sum`].
#[must_use]
pub fn copy_payload(payload: &[u8], into: &mut [u8]) -> u64 {
    copy_summed(payload, into, PAYLOAD_PLACE)
}

#[cfg(test)]
mod tests;
