//! Handles: sizes and a number, so that callers can check shapes but never touch memory.

use ironstar_quant::Format;
use std::sync::Arc;

/// Bytes that somebody else owns and keeps alive: a mapped file, an embedded model, a vector.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// 4 bytes.
    F32,
    /// 2 bytes; writing rounds to nearest even.
    Bf16,
    /// 4 bytes: ids and indices.
    U32,
    /// An indexer row of 128 dims: 64 bytes of FP4 codes, then 4 bytes of E8M0 scales.
    Fp4Row,
}

impl Element {
    /// Size of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Element::F32 | Element::U32 => 4,
            Element::Bf16 => 2,
            Element::Fp4Row => 68,
        }
    }
}

/// A group of buffers with one lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arena(pub(crate) u32);

/// A resident buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub(crate) id: u32,
    /// Tells a released buffer from a later one with the same id.
    pub(crate) generation: u32,
    /// Elements of the buffer before this one's first.
    pub(crate) first: usize,
    /// What it holds.
    pub element: Element,
    /// How many of them.
    pub len: usize,
}

impl Buffer {
    /// The same without its first so many elements, for [`crate::Backend::narrow`].
    #[must_use]
    pub fn behind(self, elements: usize) -> Buffer {
        let skipped = elements.min(self.len);
        Buffer { first: self.first + skipped, len: self.len - skipped, ..self }
    }
}

/// A resident weight matrix, or a stack of equal ones (experts).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    pub(crate) id: u32,
    /// Block format of a row.
    pub format: Format,
    /// Output width.
    pub rows: usize,
    /// Input width.
    pub columns: usize,
    /// How many matrices lie behind one another; 1 for a plain one.
    pub stack: usize,
}

/// A rotary table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rope {
    pub(crate) id: u32,
    /// Pairs of dims that it rotates: the last `2 * pairs` of a head.
    pub pairs: usize,
}
