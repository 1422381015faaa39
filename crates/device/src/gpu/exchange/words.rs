//! A processor's side of windows: it puts and takes what the kernels of gates do
//! (`kernels/gates.k`), by the same keys and sums.

use super::map::Map;
use super::{CHUNK, CHUNKS, HEAD, UNITS};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Turns of a wait between two looks at the clock.
const LOOK: u32 = 256;
/// How long a wait keeps its core.
const SPIN: Duration = Duration::from_micros(200);

/// One rank's part of one gate in a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// How many ranks the window is for, and whose part it is.
    pub ranks: usize,
    pub from: usize,
    /// The gate's number in its epoch.
    pub sequence: u32,
    pub epoch: u32,
    /// Whether it goes in chunks.
    pub chunked: bool,
}

/// A wait that ends: false when it is over.
pub(super) struct Wait<'a> {
    limit: Duration,
    begun: Instant,
    turns: u32,
    given_up: &'a dyn Fn() -> bool,
}

impl<'a> Wait<'a> {
    /// At most so long, and until somebody gives up.
    pub fn new(limit: Duration, given_up: &'a dyn Fn() -> bool) -> Wait<'a> {
        Wait { limit, begun: Instant::now(), turns: 0, given_up }
    }

    fn goes_on(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        std::hint::spin_loop();
        if !self.turns.is_multiple_of(LOOK) {
            return true;
        }
        let waited = self.begun.elapsed();
        if waited > SPIN {
            std::thread::yield_now();
        }
        waited <= self.limit && !(self.given_up)()
    }
}

/// Three words and the one that proves them.
fn fold([x, y, z]: [u32; 3]) -> u32 {
    x ^ y.rotate_left(11) ^ z.rotate_left(22)
}

/// What a word at a place of a chunk adds to its sum.
fn checked(word: u32, at: usize) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "places of a chunk are few")]
    let factor = (2 * at + 1) as u32;
    word.wrapping_mul(factor)
}

impl Slot {
    fn key(&self) -> u32 {
        self.sequence.wrapping_mul(0x9e37_79b1)
            ^ self.epoch.wrapping_add(1).wrapping_mul(0x85eb_ca6b)
    }

    /// The number of this part among those of both parities.
    fn place(&self) -> usize {
        usize::from(self.sequence % 2 == 1) * self.ranks + self.from
    }

    fn words_at(&self) -> usize {
        HEAD + self.place() * 16 * UNITS
    }

    fn flags_at(&self) -> usize {
        HEAD + 2 * self.ranks * 16 * UNITS + self.place() * 16 * CHUNKS
    }

    fn chunks_at(&self) -> usize {
        HEAD + 2 * self.ranks * 16 * (UNITS + CHUNKS) + self.place() * 4 * CHUNKS * CHUNK
    }

    /// The number of its first word of 64 bits.
    #[cfg(all(test, feature = "host-driver"))]
    pub fn first_word(&self) -> usize {
        self.words_at() / 8
    }

    /// Puts floats, as bytes.
    pub fn put(&self, map: &Map, bytes: &[u8]) {
        if self.chunked {
            let chunks = bytes.chunks(4 * CHUNK).enumerate();
            return chunks.for_each(|(number, chunk)| self.put_chunk(map, number, chunk));
        }
        for (unit, three) in bytes.chunks(12).enumerate() {
            let mut words = [0; 3];
            for (to, word) in words.iter_mut().zip(three.as_chunks::<4>().0) {
                *to = u32::from_le_bytes(*word);
            }
            put16(map, self.words_at() + 16 * unit, words, self.key());
        }
    }

    fn put_chunk(&self, map: &Map, number: usize, bytes: &[u8]) {
        let at = (self.chunks_at() + number * 4 * CHUNK) / 8;
        let mut sum = 0u32;
        for (index, pair) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let pair = u64::from_le_bytes(*pair);
            sum = sum.wrapping_add(checked(low(pair), 2 * index));
            sum = sum.wrapping_add(checked(high(pair), 2 * index + 1));
            map.word(at + index).store(pair, Ordering::Relaxed);
        }
        // The flag is not there before what it speaks of.
        fence(Ordering::SeqCst);
        put16(map, self.flags_at() + 16 * number, flag(sum, number, bytes.len()), self.key());
    }

    /// Takes floats as bytes once they are there; false when the wait is over before.
    pub fn take(&self, map: &Map, bytes: &mut [u8], wait: &mut Wait<'_>) -> bool {
        if self.chunked {
            let mut chunks = bytes.chunks_mut(4 * CHUNK).enumerate();
            return chunks.all(|(number, chunk)| self.take_chunk(map, number, chunk, wait));
        }
        for (unit, three) in bytes.chunks_mut(12).enumerate() {
            let at = self.words_at() + 16 * unit;
            let words = loop {
                let (words, proof) = get16(map, at);
                if proof == self.key() ^ fold(words) {
                    break words;
                }
                if !wait.goes_on() {
                    return false;
                }
            };
            for (to, word) in three.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                *to = word.to_le_bytes();
            }
        }
        true
    }

    fn take_chunk(&self, map: &Map, number: usize, bytes: &mut [u8], wait: &mut Wait<'_>) -> bool {
        let at = (self.chunks_at() + number * 4 * CHUNK) / 8;
        loop {
            let (words, proof) = get16(map, self.flags_at() + 16 * number);
            let told = flag(words[0], number, bytes.len());
            if words == told && proof == self.key() ^ fold(words) {
                fence(Ordering::Acquire);
                let mut sum = 0u32;
                for (index, to) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let pair = map.word(at + index).load(Ordering::Relaxed);
                    sum = sum.wrapping_add(checked(low(pair), 2 * index));
                    sum = sum.wrapping_add(checked(high(pair), 2 * index + 1));
                    *to = pair.to_le_bytes();
                }
                if sum == words[0] {
                    return true;
                }
            }
            if !wait.goes_on() {
                return false;
            }
        }
    }
}

fn flag(sum: u32, number: usize, bytes: usize) -> [u32; 3] {
    let small = |value: usize| u32::try_from(value).expect("places of a window are few");
    [sum, small(number), small(bytes / 16)]
}

fn low(pair: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    let word = pair as u32;
    word
}

fn high(pair: u64) -> u32 {
    low(pair >> 32)
}

fn put16(map: &Map, at: usize, words: [u32; 3], key: u32) {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let [x, y, z] = words;
    map.word(at / 8).store(pair(x, y), Ordering::Relaxed);
    map.word(at / 8 + 1).store(pair(z, key ^ fold(words)), Ordering::Relaxed);
}

fn get16(map: &Map, at: usize) -> ([u32; 3], u32) {
    let first = map.word(at / 8).load(Ordering::Relaxed);
    let second = map.word(at / 8 + 1).load(Ordering::Relaxed);
    ([low(first), high(first), low(second)], high(second))
}
