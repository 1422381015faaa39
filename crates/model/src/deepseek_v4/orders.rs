//! What rank 0 tells the others to do, as bytes: one order before each step, and one whenever a
//! session's state has to be the same everywhere.
//!
//! Positions are never told alone: an order names the position that a state stands at, and who
//! receives it goes there ([`super::follow`]). Bytes come over a wire, so nothing in them is
//! believed: a length is checked against what is left before anything is made of it.

use super::halves::Shared;
use crate::Error;
use ironstar_device::{Error as DeviceError, ExchangeError, Span, Step};

/// An order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Is this the same model, run the same way? Answered by a status.
    Meet { identity: Vec<u8> },
    /// A session's state at some position; nothing saved is position 0. Answered by a status.
    Take { id: u32, context: usize, saved: Vec<u8> },
    /// The first bytes of what the next [`Order::Take`] has saved, where that is long.
    More { saved: Vec<u8> },
    /// The session has ended.
    Release { id: u32 },
    /// A step of these sessions, one a span, with the rows that want logits and draft logits, and
    /// what the ranks share of it.
    Step {
        ids: Vec<u32>,
        step: Step,
        logits: Vec<usize>,
        drafts: Option<Vec<usize>>,
        shared: Shared,
    },
    /// Guesses of a session's next tokens; `most` is missing where one row of logits is wanted.
    Draft { id: u32, position: usize, token: u32, most: Option<usize> },
    /// All sessions are steered like this from their next step on, or not at all where there are no
    /// directions: their file, and the bits of the scales of attention and FFN. Answered by a
    /// status.
    Steer { directions: Vec<u8>, scales: [u32; 2] },
    /// Nothing follows.
    Stop,
    /// In a pipeline instead of [`Order::Meet`]: which layers each node has, and how many bits a
    /// value of the streams has on its way. Answered by a status.
    Plan { ends: Vec<usize>, bits: u32, identity: Vec<u8> },
    /// In a pipeline: give rank 0 what this node has of a part of a state that stands at a
    /// position.
    Save { id: u32, position: usize, part: Part },
    /// In a pipeline: rank 0 gives what this node has of a part of a state.
    Load { id: u32, part: Part },
    /// Are all there? Whoever hears it does nothing.
    Look,
}

/// A part of a state's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All at a position.
    Whole(usize),
    /// Rows that a block has closed.
    Block(usize),
    /// What a position needs beside the blocks before it.
    Checkpoint(usize),
}

impl Order {
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        match self {
            Order::Meet { identity } => {
                to.push(0);
                put_bytes(&mut to, identity);
            }
            Order::Take { id, context, saved } => {
                to.push(1);
                put(&mut to, u64::from(*id));
                put_size(&mut to, *context);
                put_bytes(&mut to, saved);
            }
            Order::Release { id } => {
                to.push(2);
                put(&mut to, u64::from(*id));
            }
            Order::Step { ids, step, logits, drafts, shared } => {
                to.push(3);
                put_list(&mut to, ids.iter().map(|id| u64::from(*id)));
                put_list(&mut to, step.tokens.iter().map(|token| u64::from(*token)));
                let spans = step.spans.iter();
                let spans = spans.flat_map(|s| [s.rows.start, s.rows.end, s.position]);
                put_list(&mut to, spans.map(wide));
                put_list(&mut to, logits.iter().map(|row| wide(*row)));
                to.push(u8::from(drafts.is_some()));
                put_list(&mut to, drafts.iter().flatten().map(|row| wide(*row)));
                to.push(u8::from(shared.index));
                put_size(&mut to, shared.first_rows);
                to.push(u8::from(shared.rows));
            }
            Order::Draft { id, position, token, most } => {
                to.push(4);
                put(&mut to, u64::from(*id));
                put_size(&mut to, *position);
                put(&mut to, u64::from(*token));
                to.push(u8::from(most.is_some()));
                put_size(&mut to, most.unwrap_or(0));
            }
            Order::Steer { directions, scales } => {
                to.push(11);
                put_bytes(&mut to, directions);
                scales.iter().for_each(|bits| put(&mut to, u64::from(*bits)));
            }
            Order::Stop => to.push(5),
            Order::More { saved } => {
                to.push(6);
                put_bytes(&mut to, saved);
            }
            Order::Plan { ends, bits, identity } => {
                to.push(7);
                put_list(&mut to, ends.iter().map(|end| wide(*end)));
                put(&mut to, u64::from(*bits));
                put_bytes(&mut to, identity);
            }
            Order::Save { id, position, part } => {
                to.push(8);
                put(&mut to, u64::from(*id));
                put_size(&mut to, *position);
                put_part(&mut to, *part);
            }
            Order::Load { id, part } => {
                to.push(9);
                put(&mut to, u64::from(*id));
                put_part(&mut to, *part);
            }
            Order::Look => to.push(10),
        }
        to
    }

    pub fn decode(bytes: &[u8]) -> Result<Order, Error> {
        let mut from = Reader(bytes);
        let order = match from.byte()? {
            0 => Order::Meet { identity: from.bytes()? },
            1 => Order::Take { id: from.id()?, context: from.size()?, saved: from.bytes()? },
            2 => Order::Release { id: from.id()? },
            3 => from.step()?,
            4 => {
                let (id, position, token) = (from.id()?, from.size()?, from.id()?);
                let (some, most) = (from.byte()? != 0, from.size()?);
                Order::Draft { id, position, token, most: some.then_some(most) }
            }
            5 => Order::Stop,
            6 => Order::More { saved: from.bytes()? },
            7 => {
                let ends = from.list(Reader::size)?;
                Order::Plan { ends, bits: from.id()?, identity: from.bytes()? }
            }
            8 => Order::Save { id: from.id()?, position: from.size()?, part: from.part()? },
            9 => Order::Load { id: from.id()?, part: from.part()? },
            10 => Order::Look,
            11 => Order::Steer { directions: from.bytes()?, scales: [from.id()?, from.id()?] },
            kind => return wrong(format!("an order of kind {kind}"), "kinds 0 to 11 are known"),
        };
        if !from.0.is_empty() {
            return wrong(format!("{} bytes behind an order", from.0.len()), "none are due");
        }
        Ok(order)
    }
}

pub(super) fn wide(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

pub(super) fn put(to: &mut Vec<u8>, n: u64) {
    to.extend_from_slice(&n.to_le_bytes());
}

pub(super) fn put_size(to: &mut Vec<u8>, n: usize) {
    put(to, wide(n));
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    put_size(to, bytes.len());
    to.extend_from_slice(bytes);
}

fn put_part(to: &mut Vec<u8>, part: Part) {
    let (kind, at) = match part {
        Part::Whole(at) => (0, at),
        Part::Block(at) => (1, at),
        Part::Checkpoint(at) => (2, at),
    };
    to.push(kind);
    put_size(to, at);
}

pub(super) fn put_list(to: &mut Vec<u8>, list: impl Iterator<Item = u64>) {
    let at = to.len();
    put(to, 0);
    let mut count = 0u64;
    for n in list {
        put(to, n);
        count += 1;
    }
    to[at..at + 8].copy_from_slice(&count.to_le_bytes());
}

pub(super) fn wrong<T>(found: String, wanted: &str) -> Result<T, Error> {
    let error = ExchangeError::Wrong { rank: 0, found, wanted: wanted.to_owned() };
    Err(DeviceError::from(error).into())
}

/// What is left of an order or an answer.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub fn byte(&mut self) -> Result<u8, Error> {
        let Some((first, rest)) = self.0.split_first() else {
            return wrong("an order that ends early".into(), "more bytes are due");
        };
        self.0 = rest;
        Ok(*first)
    }

    pub fn number(&mut self) -> Result<u64, Error> {
        let Some((first, rest)) = self.0.split_first_chunk::<8>() else {
            return wrong("an order that ends early".into(), "more bytes are due");
        };
        self.0 = rest;
        Ok(u64::from_le_bytes(*first))
    }

    pub fn size(&mut self) -> Result<usize, Error> {
        let number = self.number()?;
        match usize::try_from(number) {
            Ok(size) => Ok(size),
            Err(_) => wrong(format!("a size of {number}"), "it must fit this machine"),
        }
    }

    pub fn id(&mut self) -> Result<u32, Error> {
        let number = self.number()?;
        match u32::try_from(number) {
            Ok(id) => Ok(id),
            Err(_) => wrong(format!("{number} as an id"), "ids are below 2^32"),
        }
    }

    fn bytes(&mut self) -> Result<Vec<u8>, Error> {
        let len = self.size()?;
        let Some((first, rest)) = self.0.split_at_checked(len) else {
            return wrong(format!("{len} bytes, of which {} are there", self.0.len()), "all");
        };
        self.0 = rest;
        Ok(first.to_vec())
    }

    /// Floats behind their number.
    pub fn floats(&mut self) -> Result<Vec<f32>, Error> {
        let len = self.size()?;
        let Some((floats, rest)) = self.0.split_at_checked(len.saturating_mul(4)) else {
            return wrong(format!("{len} floats in {} bytes", self.0.len()), "all");
        };
        self.0 = rest;
        Ok(floats.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect())
    }

    fn part(&mut self) -> Result<Part, Error> {
        let (kind, at) = (self.byte()?, self.size()?);
        Ok(match kind {
            0 => Part::Whole(at),
            1 => Part::Block(at),
            2 => Part::Checkpoint(at),
            _ => return wrong(format!("a part of kind {kind}"), "kinds 0 to 2 are known"),
        })
    }

    pub fn list<T>(
        &mut self,
        mut of: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let len = self.size()?;
        if len > self.0.len() / 8 {
            return wrong(format!("a list of {len} in {} bytes", self.0.len()), "whole numbers");
        }
        (0..len).map(|_| of(self)).collect()
    }

    fn step(&mut self) -> Result<Order, Error> {
        let (ids, tokens) = (self.list(Self::id)?, self.list(Self::id)?);
        let numbers = self.list(Self::size)?;
        let (threes, rest) = numbers.as_chunks::<3>();
        if !rest.is_empty() || threes.len() != ids.len() {
            return wrong(format!("{} numbers of spans", numbers.len()), "three for each session");
        }
        let span =
            |[start, end, position]: &[usize; 3]| Span { rows: *start..*end, position: *position };
        let spans = threes.iter().map(span).collect();
        let logits = self.list(Self::size)?;
        let (some, drafts) = (self.byte()? != 0, self.list(Self::size)?);
        let (index, first_rows) = (self.byte()? != 0, self.size()?);
        let shared = Shared { index, first_rows, rows: self.byte()? != 0 };
        let step = Step { tokens, spans };
        Ok(Order::Step { ids, step, logits, drafts: some.then_some(drafts), shared })
    }
}

/// Bytes of an answer to an order.
const STATUS_BYTES: usize = 256;

/// What a rank answers: that it did as told, or why not.
pub(super) fn status(outcome: Result<(), &str>) -> [u8; STATUS_BYTES] {
    let mut bytes = [0; STATUS_BYTES];
    if let Err(reason) = outcome {
        bytes[0] = 1;
        let end = reason.floor_char_boundary(STATUS_BYTES - 1);
        bytes[1..=end].copy_from_slice(&reason.as_bytes()[..end]);
    }
    bytes
}

/// The first rank that did not do as told, with its reason.
pub(super) fn refusal(all: &[u8]) -> Option<(usize, String)> {
    let rank = all.chunks_exact(STATUS_BYTES).position(|status| status[0] != 0)?;
    let text = &all[rank * STATUS_BYTES + 1..(rank + 1) * STATUS_BYTES];
    let end = text.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
    Some((rank, String::from_utf8_lossy(&text[..end]).into_owned()))
}

#[cfg(test)]
mod tests;
