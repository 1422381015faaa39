//! Byte-pair merging: the pair of lowest rank is joined first, ties from the left.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};

/// Pieces up to this many symbols are merged by rescanning; longer ones with a heap, whose time
/// is n log n whatever the text.
const RESCAN_MAX: usize = 48;

/// What two neighbouring symbols become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merge {
    pub(crate) rank: u32,
    pub(crate) id: u32,
}

/// Merges by the pair of ids they join.
pub(crate) struct Merges {
    by_pair: HashMap<u64, Merge, Seed>,
    /// Merge of every two single bytes, `first * 256 + second`: half of all look-ups.
    by_bytes: Vec<Option<Merge>>,
}

/// Scratch space of one encoding call, so that a piece costs no allocation.
#[derive(Default)]
pub(crate) struct Scratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
}

/// One symbol of a piece under merging. In the rescanned form only `id` and `merge` count.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    /// Neighbours as indices; `NONE` at the ends.
    previous: u32,
    next: u32,
    /// Merge of this symbol with the next one.
    merge: Option<Merge>,
}

const NONE: u32 = u32::MAX;

impl Merges {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { by_pair: HashMap::with_hasher(seed), by_bytes: Vec::new() }
    }

    /// Adds a merge; returns the earlier one if the pair was there already.
    pub(crate) fn insert(&mut self, left: u32, right: u32, merge: Merge) -> Option<Merge> {
        self.by_pair.insert(pair(left, right), merge)
    }

    /// Builds the table of byte pairs once all merges are in.
    pub(crate) fn finish(&mut self, byte_ids: &[u32; 256]) {
        self.by_bytes =
            (0..256 * 256).map(|at| self.get(byte_ids[at / 256], byte_ids[at % 256])).collect();
    }

    fn get(&self, left: u32, right: u32) -> Option<Merge> {
        self.by_pair.get(&pair(left, right)).copied()
    }

    /// Appends the ids of one piece.
    pub(crate) fn encode(
        &self,
        piece: &[u8],
        byte_ids: &[u32; 256],
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) {
        scratch.symbols.clear();
        for (at, &byte) in piece.iter().enumerate() {
            let merge = match piece.get(at + 1) {
                Some(&next) => self.by_bytes[usize::from(byte) << 8 | usize::from(next)],
                None => None,
            };
            let id = byte_ids[usize::from(byte)];
            scratch.symbols.push(Symbol { id, previous: NONE, next: NONE, merge });
        }
        if piece.len() <= RESCAN_MAX {
            self.merge_by_rescan(&mut scratch.symbols);
            ids.extend(scratch.symbols.iter().map(|symbol| symbol.id));
        } else {
            self.merge_by_heap(scratch, ids);
        }
    }

    fn merge_by_rescan(&self, symbols: &mut Vec<Symbol>) {
        loop {
            let mut best: Option<(usize, Merge)> = None;
            for (at, symbol) in symbols.iter().enumerate() {
                if let Some(merge) = symbol.merge
                    && best.is_none_or(|(_, found)| merge.rank < found.rank)
                {
                    best = Some((at, merge));
                }
            }
            let Some((at, merge)) = best else { return };
            symbols.remove(at + 1);
            symbols[at].id = merge.id;
            symbols[at].merge = symbols.get(at + 1).and_then(|next| self.get(merge.id, next.id));
            if at > 0 {
                symbols[at - 1].merge = self.get(symbols[at - 1].id, merge.id);
            }
        }
    }

    /// The same with a heap of (rank, position). An entry is stale, and skipped, when the symbol
    /// at its position is gone or now merges by another rank.
    fn merge_by_heap(&self, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let Scratch { symbols, heap } = scratch;
        let count = u32::try_from(symbols.len()).expect("pieces are shorter than 4 GiB");
        heap.clear();
        for at in 0..count {
            let symbol = &mut symbols[at as usize];
            symbol.previous = if at == 0 { NONE } else { at - 1 };
            symbol.next = if at + 1 == count { NONE } else { at + 1 };
            if let Some(merge) = symbol.merge {
                heap.push(Reverse((merge.rank, at)));
            }
        }
        while let Some(Reverse((rank, at))) = heap.pop() {
            let symbol = symbols[at as usize];
            let Some(merge) = symbol.merge.filter(|merge| merge.rank == rank) else {
                continue;
            };
            let gone = symbol.next;
            let next = symbols[gone as usize].next;
            symbols[gone as usize].merge = None;
            let joined = Symbol { id: merge.id, next, merge: None, ..symbol };
            symbols[at as usize] = joined;
            if next != NONE {
                symbols[next as usize].previous = at;
                self.offer(symbols, heap, at, next);
            }
            if joined.previous != NONE {
                self.offer(symbols, heap, joined.previous, at);
            }
        }
        let mut at = 0;
        while at != NONE {
            ids.push(symbols[at as usize].id);
            at = symbols[at as usize].next;
        }
    }

    /// Looks up the merge of two neighbours and queues it.
    fn offer(
        &self,
        symbols: &mut [Symbol],
        heap: &mut BinaryHeap<Reverse<(u32, u32)>>,
        left: u32,
        right: u32,
    ) {
        let merge = self.get(symbols[left as usize].id, symbols[right as usize].id);
        symbols[left as usize].merge = merge;
        if let Some(merge) = merge {
            heap.push(Reverse((merge.rank, left)));
        }
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Builds [`Mix`] hashers. Seeded afresh for each tokenizer, so that no file can be made whose
/// entries all collide; ids never depend on it, because the maps are only looked up.
#[derive(Clone, Copy)]
pub(crate) struct Seed(u64);

impl Seed {
    pub(crate) fn random() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Seed {
    type Hasher = Mix;

    fn build_hasher(&self) -> Mix {
        Mix(self.0)
    }
}

/// A short hash for short keys: eight bytes a step, each step a 128-bit product folded in two.
pub(crate) struct Mix(u64);

impl Mix {
    #[inline]
    fn step(&mut self, word: u64) {
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        let product = u128::from(self.0 ^ word) * u128::from(ODD);
        let bytes = product.to_le_bytes();
        let (low, high) = bytes.split_at(8);
        self.0 = little_endian(low) ^ little_endian(high);
    }
}

impl Hasher for Mix {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.step(little_endian(chunk));
        }
        let rest = chunks.remainder();
        self.step(little_endian(rest) ^ (rest.len() as u64) << 56);
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.step(word);
    }

    #[inline]
    fn write_u128(&mut self, word: u128) {
        let bytes = word.to_le_bytes();
        let (low, high) = bytes.split_at(8);
        self.step(little_endian(low));
        self.step(little_endian(high));
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.step(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// At most eight bytes as a number.
#[inline]
fn little_endian(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}
