//! Slices that the parts of one operation write at the same time, each its own pieces.

use super::store::{Data, Fp4Row};
use ironstar_quant::f32_to_bf16;
use std::marker::PhantomData;
use std::ops::Range;

/// A slice cut into pieces of equal length.
pub(crate) struct Pieces<'a, T> {
    start: *mut T,
    pieces: usize,
    piece: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Pieces` is a `&mut [T]` whose pieces are handed to threads, each to one at a time (the
// contract of `get`), which is sound for values that may be sent.
unsafe impl<T: Send> Sync for Pieces<'_, T> {}

impl<'a, T> Pieces<'a, T> {
    /// Cuts `slice` into pieces of `piece` elements; a rest is left out. There is no end of empty
    /// pieces.
    pub fn new(slice: &'a mut [T], piece: usize) -> Self {
        let pieces = slice.len().checked_div(piece).unwrap_or(usize::MAX);
        Pieces { start: slice.as_mut_ptr(), pieces, piece, life: PhantomData }
    }

    /// One piece. Panics if there is no such piece.
    ///
    /// # Safety
    /// Nobody else may use this piece while the reference lives.
    #[expect(clippy::mut_from_ref, reason = "the contract makes the piece the caller's own")]
    #[inline(always)]
    pub unsafe fn get(&self, index: usize) -> &mut [T] {
        assert!(index < self.pieces, "piece {index} of {}", self.pieces);
        // SAFETY: inside the slice by the assertion; not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(index * self.piece), self.piece) }
    }
}

/// A slice that the stages of one region write and read, piece after piece.
#[derive(Clone, Copy)]
pub(crate) struct Whole<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Whole` is a `&mut [T]` whose parts are handed to threads by the contracts of `part`
// and `read`, which is sound for values that may be sent and shared.
unsafe impl<T: Send + Sync> Sync for Whole<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Whole<'_, T> {}

impl<'a, T> Whole<'a, T> {
    /// All of `slice`.
    pub fn new(slice: &'a mut [T]) -> Self {
        Whole { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where it starts.
    pub fn start(&self) -> *mut T {
        self.start
    }

    /// Some elements for writing. Panics if there are no such.
    ///
    /// # Safety
    /// Nobody else may use these elements while the reference is used.
    #[inline(always)]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the slice by the assertion; not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Some elements for reading. Panics if there are no such.
    ///
    /// # Safety
    /// Nobody may write these elements while the reference is used.
    #[inline(always)]
    pub unsafe fn read(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the slice by the assertion; not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }
}

/// Rows of any storage that holds floats, written row by row.
pub(crate) enum RowPieces<'a> {
    F32(Pieces<'a, f32>),
    Bf16(Pieces<'a, u16>),
    Fp4(Pieces<'a, Fp4Row>),
}

impl<'a> RowPieces<'a> {
    /// Rows of `width` values; ids have none.
    pub fn new(data: &'a mut Data, width: usize) -> Self {
        match data {
            Data::F32(v) => RowPieces::F32(Pieces::new(v, width)),
            Data::Bf16(v) => RowPieces::Bf16(Pieces::new(v, width)),
            Data::Fp4(v) => RowPieces::Fp4(Pieces::new(v, 1)),
            Data::U32(_) => RowPieces::F32(Pieces::new(&mut [], width)),
        }
    }

    /// Stores one row, rounded as the storage asks.
    ///
    /// # Safety
    /// Nobody else may use this row during the call.
    #[inline(always)]
    pub unsafe fn store(&self, row: usize, values: &[f32]) {
        match self {
            RowPieces::F32(rows) => {
                // SAFETY: the caller's promise.
                unsafe { rows.get(row) }.copy_from_slice(values);
            }
            RowPieces::Bf16(rows) => {
                // SAFETY: the caller's promise.
                let to = unsafe { rows.get(row) };
                for (to, value) in to.iter_mut().zip(values) {
                    *to = f32_to_bf16(*value);
                }
            }
            RowPieces::Fp4(rows) => {
                // SAFETY: the caller's promise.
                let to = unsafe { rows.get(row) };
                ironstar_quant::fp4::encode_rows(values, to.as_flattened_mut());
            }
        }
    }
}

/// Rows of floats in either storage, for reading.
#[derive(Clone, Copy)]
pub(crate) enum Rows<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
}

impl<'a> Rows<'a> {
    /// The rows of a buffer that holds floats; ids and indexer rows have none.
    pub fn new(data: &'a Data) -> Self {
        match data {
            Data::F32(v) => Rows::F32(v),
            Data::Bf16(v) => Rows::Bf16(v),
            Data::U32(_) | Data::Fp4(_) => Rows::F32(&[]),
        }
    }

    /// Reads one row.
    #[inline(always)]
    pub fn load(self, row: usize, to: &mut [f32]) {
        let width = to.len();
        match self {
            Rows::F32(v) => to.copy_from_slice(&v[row * width..][..width]),
            Rows::Bf16(v) => {
                for (to, from) in to.iter_mut().zip(&v[row * width..][..width]) {
                    *to = f32::from_bits(u32::from(*from) << 16);
                }
            }
        }
    }
}
