//! A stream of bytes may be cut anywhere: messages come out the same, and a stream that lies or
//! ends is an error and never a wrong message.

use crate::links::SMALL;
use crate::support::ciphers;
use ironstar_cluster::{ByteLink, Bytes, Link, LinkError};
use std::io::{Error, ErrorKind};
use std::time::Duration;

/// What a link writes into, and pieces that it reads.
#[derive(Default)]
struct Script {
    written: Vec<u8>,
    /// Most bytes that one write takes; every other write takes none.
    write_max: usize,
    would_block: bool,
    /// The pieces to be read, the first last; an empty one is "nothing now".
    pieces: Vec<Vec<u8>>,
    ends: bool,
}

impl Bytes for Script {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let Some(piece) = self.pieces.pop() else {
            return if self.ends { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        };
        if piece.is_empty() {
            return Err(Error::from(ErrorKind::WouldBlock));
        }
        let count = piece.len().min(into.len());
        into[..count].copy_from_slice(&piece[..count]);
        if count < piece.len() {
            self.pieces.push(piece[count..].to_vec());
        }
        Ok(count)
    }

    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        self.would_block = !self.would_block;
        if self.would_block {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = from.len().min(self.write_max);
        self.written.extend_from_slice(&from[..count]);
        Ok(count)
    }

    fn rest(&mut self, _writing: bool, _at_most: Duration) {}
}

const MESSAGES: [&[u8]; 4] = [b"first", b"", &[9; 300], b"and the last one"];

/// The bytes of all messages, written through writes of `write_max` bytes.
fn written(sealed: bool, write_max: usize) -> Vec<u8> {
    let cipher = sealed.then(|| ciphers().0);
    let script = Script { write_max, ..Script::default() };
    let mut link = ByteLink::new(script, SMALL, cipher, &[]).expect("no early bytes");
    for message in MESSAGES {
        link.send(message, &[]).expect("within the limits");
    }
    while !link.flush().expect("a script does not fail") {}
    std::mem::take(&mut link.stream().written)
}

/// What comes out of a link that reads `pieces`, and how it ends.
fn read(sealed: bool, mut pieces: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, LinkError) {
    pieces.reverse();
    let cipher = sealed.then(|| ciphers().1);
    let script = Script { pieces, ends: true, ..Script::default() };
    let mut link = ByteLink::new(script, SMALL, cipher, &[]).expect("no early bytes");
    for _ in 0..SMALL.posted_max {
        link.post_recv(SMALL.message_bytes_max).expect("within the grant");
    }
    let mut messages = Vec::new();
    loop {
        match link.receive() {
            Ok(Some(message)) => messages.push(message.to_vec()),
            Ok(None) => {}
            Err(error) => return (messages, error),
        }
    }
}

#[test]
fn every_split_of_the_bytes_gives_the_same_messages() {
    for sealed in [false, true] {
        let bytes = written(sealed, usize::MAX);
        for at in 0..=bytes.len() {
            let pieces = vec![bytes[..at].to_vec(), Vec::new(), bytes[at..].to_vec()];
            let (messages, end) = read(sealed, pieces);
            assert_eq!(
                (messages.as_slice(), end),
                (&MESSAGES.map(<[u8]>::to_vec)[..], LinkError::Closed)
            );
        }
        let single = bytes.iter().map(|&byte| vec![byte]).collect();
        assert_eq!(read(sealed, single).0, MESSAGES);
    }
}

#[test]
fn writes_that_take_little_lose_nothing() {
    let whole = written(false, usize::MAX);
    for write_max in [1, 2, 7, 100] {
        assert_eq!(written(false, write_max), whole);
        assert_eq!(read(true, vec![written(true, write_max)]).0, MESSAGES);
    }
}

#[test]
fn a_stream_that_ends_anywhere_gives_only_whole_messages() {
    for sealed in [false, true] {
        let bytes = written(sealed, usize::MAX);
        for at in 0..bytes.len() {
            let (messages, end) = read(sealed, vec![bytes[..at].to_vec()]);
            assert_eq!(end, LinkError::Closed);
            assert!(messages.len() < MESSAGES.len() && messages == MESSAGES[..messages.len()]);
        }
    }
}

#[test]
fn a_sealed_stream_with_any_bit_flipped_gives_no_wrong_message() {
    let bytes = written(true, usize::MAX);
    for bit in 0..8 * bytes.len() {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (messages, end) = read(true, vec![bytes]);
        let right = messages.len() < MESSAGES.len() && messages == MESSAGES[..messages.len()];
        assert!(right, "bit {bit}: {} messages, then {end}", messages.len());
    }
}

#[test]
fn a_length_that_lies_reserves_nothing() {
    for length in [301_u32, 1 << 20, u32::MAX] {
        let (messages, error) = read(false, vec![length.to_le_bytes().to_vec()]);
        assert!(messages.is_empty() && matches!(error, LinkError::Wrong { .. }), "{error}");
    }
}
