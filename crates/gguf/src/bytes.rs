//! Bytes that keep their owner alive: a range of a mapped file, a vector, a part of the binary.

use std::ops::{Deref, Range};
use std::sync::Arc;

/// Where bytes live.
#[derive(Debug)]
pub(crate) enum Store {
    Map(memmap2::Mmap),
    Vec(Vec<u8>),
    Static(&'static [u8]),
}

impl Deref for Store {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Store::Map(map) => map,
            Store::Vec(vec) => vec,
            Store::Static(bytes) => bytes,
        }
    }
}

/// A range of somebody's bytes; cloning is cheap and keeps the owner alive.
#[derive(Clone, Debug)]
pub struct Bytes {
    store: Arc<Store>,
    range: Range<usize>,
}

impl Bytes {
    /// `None` if the range is not inside.
    pub(crate) fn new(store: &Arc<Store>, range: Range<usize>) -> Option<Self> {
        store.get(range.clone())?;
        Some(Bytes { store: Arc::clone(store), range })
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.store[self.range.clone()]
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
