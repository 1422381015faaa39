//! Pieces of text that are one token.

use std::collections::HashMap;

use super::bpe::Seed;

/// Tokens by their bytes. Most pieces are short words; these are keys without a pointer, so that
/// a look-up touches one place in memory.
pub(crate) struct WholeTokens {
    short: HashMap<u128, u32, Seed>,
    long: HashMap<Box<[u8]>, u32, Seed>,
}

impl WholeTokens {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { short: HashMap::with_hasher(seed), long: HashMap::with_hasher(seed) }
    }

    pub(crate) fn insert(&mut self, piece: &[u8], id: u32) {
        match short_key(piece) {
            Some(key) => self.short.insert(key, id),
            None => self.long.insert(piece.into(), id),
        };
    }

    #[inline]
    pub(crate) fn get(&self, piece: &[u8]) -> Option<u32> {
        match short_key(piece) {
            Some(key) => self.short.get(&key).copied(),
            None => self.long.get(piece).copied(),
        }
    }
}

/// Up to 15 bytes and their number as one number.
#[inline]
fn short_key(piece: &[u8]) -> Option<u128> {
    let mut key = [0; 16];
    key[..15].get_mut(..piece.len())?.copy_from_slice(piece);
    key[15] = u8::try_from(piece.len()).ok()?;
    Some(u128::from_le_bytes(key))
}
