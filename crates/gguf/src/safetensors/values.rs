//! The values of published tensors: scales applied, packed pairs taken apart.

use super::{Checkpoint, Dtype, names};
use crate::{Bytes, Error};
use ironstar_quant::{bf16_to_f32, f16_to_f32, fp4, fp8};
use std::ops::Range;

impl Checkpoint {
    /// The values of a tensor as floats; whole numbers and doubles are rounded to the nearest.
    ///
    /// E4M3 matrices are multiplied with their grid of scales, pairs of FP4 with theirs. The sides
    /// of the grid's blocks follow from both shapes: they are powers of two (spec 7.1: 128).
    pub fn to_f32(&self, name: &str) -> Result<Vec<f32>, Error> {
        self.rows_to_f32(name, 0..usize::MAX)
    }

    /// [`Checkpoint::to_f32`] of some rows, as many of them as there are: the first dim counts
    /// rows, and a tensor of one dim is one row.
    pub fn rows_to_f32(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>, Error> {
        let dtype = self.need(name)?.dtype;
        let scales = names::scales_of(name);
        match dtype {
            Dtype::F8E4M3 if self.tensor(&scales).is_some() => self.fp8(name, &scales, rows),
            Dtype::I8 | Dtype::U8 if self.tensor(&scales).is_some() => self.fp4(name, rows),
            _ => self.plain(name, rows),
        }
    }

    /// The whole numbers of a tensor (I64 or I32).
    pub fn to_i64(&self, name: &str) -> Result<Vec<i64>, Error> {
        let bytes = self.bytes(name)?;
        match self.need(name)?.dtype {
            Dtype::I64 => Ok(each(&bytes, i64::from_le_bytes)),
            Dtype::I32 => Ok(each(&bytes, |b| i32::from_le_bytes(b).into())),
            other => Err(self.wrong(name, format!("it holds {other:?}"), "I64 or I32 is wanted")),
        }
    }

    /// Codes, E8M0 scales, rows and columns of a matrix of packed FP4 pairs, as stored: byte j of
    /// a row holds columns 2j (low half) and 2j + 1, scales are one per 32 columns of a row
    /// (spec 7.1). Enough for a repacking without loss.
    pub fn fp4_parts(&self, name: &str) -> Result<(Bytes, Bytes, usize, usize), Error> {
        let (dtype, scales) = (self.need(name)?.dtype, names::scales_of(name));
        let Some(scale_dtype) = self.tensor(&scales).map(|meta| meta.dtype) else {
            let found = format!("{dtype:?} without '{scales}'");
            return Err(self.wrong(name, found, "packed FP4 with its scales is wanted"));
        };
        let (rows, pairs) = self.matrix(name)?;
        let grid = self.matrix(&scales)?;
        let columns = pairs * 2;
        let known = matches!(dtype, Dtype::I8 | Dtype::U8)
            && matches!(scale_dtype, Dtype::F8E8M0 | Dtype::U8);
        if !known || !columns.is_multiple_of(fp4::BLOCK) || grid != (rows, columns / fp4::BLOCK) {
            let found = format!(
                "{rows} x {pairs} of {dtype:?} with scales {} x {} of {scale_dtype:?}",
                grid.0, grid.1
            );
            let wanted = "pairs of FP4 (I8) and one F8_E8M0 scale per 32 columns are wanted";
            return Err(self.wrong(name, found, wanted));
        }
        Ok((self.bytes(name)?, self.bytes(&scales)?, rows, columns))
    }

    /// Dims of the values, outermost first: FP4 pairs count twice.
    pub fn value_shape(&self, name: &str) -> Result<Vec<u64>, Error> {
        let meta = self.need(name)?;
        let mut shape = meta.shape.clone();
        let packed = matches!(meta.dtype, Dtype::I8 | Dtype::U8)
            && self.tensor(&names::scales_of(name)).is_some();
        if let Some(columns) = shape.last_mut().filter(|_| packed) {
            *columns *= 2;
        }
        Ok(shape)
    }

    /// Rows and columns of a matrix.
    fn matrix(&self, name: &str) -> Result<(usize, usize), Error> {
        let shape = &self.need(name)?.shape;
        let sides = match shape.as_slice() {
            [rows, columns] => usize::try_from(*rows).ok().zip(usize::try_from(*columns).ok()),
            _ => None,
        };
        sides.ok_or_else(|| self.wrong(name, format!("its dims are {shape:?}"), "two are wanted"))
    }

    /// E4M3 with a grid of scales.
    fn fp8(&self, name: &str, scales: &str, rows: Range<usize>) -> Result<Vec<f32>, Error> {
        let (all, columns) = self.matrix(name)?;
        let grid = self.matrix(scales)?;
        let (Some(block_rows), Some(block_columns)) =
            (block_side(all, grid.0), block_side(columns, grid.1))
        else {
            let found = format!("{} x {} scales for {all} x {columns} values", grid.0, grid.1);
            return Err(self.wrong(
                scales,
                found,
                "blocks with sides of a power of two are wanted",
            ));
        };
        // Scales cover whole blocks of rows, so decoding starts at one.
        let Range { start, end } = clip(&rows, all);
        let first = start / block_rows;
        let skipped = start - first * block_rows;
        let (codes, scales) = (self.bytes(name)?, self.plain(scales, 0..usize::MAX)?);
        let codes = &codes[first * block_rows * columns..end * columns];
        let scales = &scales[first * grid.1..end.div_ceil(block_rows) * grid.1];
        let mut values = vec![0.0; codes.len()];
        let rows = end - first * block_rows;
        let grid = fp8::Grid { rows, columns, block_rows, block_columns };
        fp8::decode(grid, codes, scales, &mut values)
            .map_err(|cause| self.wrong(name, cause.to_string(), "another shape is wanted"))?;
        values.drain(..skipped * columns);
        Ok(values)
    }

    /// FP4 pairs with E8M0 scales.
    fn fp4(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>, Error> {
        let (codes, scales, all, columns) = self.fp4_parts(name)?;
        let rows = clip(&rows, all);
        let codes = &codes[rows.start * columns / 2..rows.end * columns / 2];
        let per_row = columns / fp4::BLOCK;
        let scales = &scales[rows.start * per_row..rows.end * per_row];
        let mut values = vec![0.0; codes.len() * 2];
        fp4::decode(rows.len(), columns, codes, scales, &mut values)
            .map_err(|cause| self.wrong(name, cause.to_string(), "another shape is wanted"))?;
        Ok(values)
    }

    /// Values that no other tensor scales.
    fn plain(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>, Error> {
        let (bytes, meta) = (self.bytes(name)?, self.need(name)?);
        let all = if meta.shape.len() < 2 { 1 } else { meta.shape[0] };
        let all = usize::try_from(all).unwrap_or(usize::MAX).max(1);
        let row = bytes.len() / all;
        let rows = clip(&rows, all);
        let bytes = &bytes[rows.start * row..rows.end * row];
        #[expect(clippy::cast_possible_truncation, reason = "rounding a stored double once")]
        let narrow = |bytes| f64::from_le_bytes(bytes) as f32;
        Ok(match meta.dtype {
            Dtype::F64 => each(bytes, narrow),
            Dtype::F32 => each(bytes, f32::from_le_bytes),
            Dtype::F16 => each(bytes, |b| f16_to_f32(u16::from_le_bytes(b))),
            Dtype::Bf16 => each(bytes, |b| bf16_to_f32(u16::from_le_bytes(b))),
            Dtype::F8E4M3 => each(bytes, |[code]| fp8::e4m3_to_f32(code)),
            Dtype::F8E8M0 => each(bytes, |[code]| fp8::e8m0_to_f32(code)),
            Dtype::I64 => each(bytes, |b| i64::from_le_bytes(b) as f32),
            Dtype::I32 => each(bytes, |b| i32::from_le_bytes(b) as f32),
            Dtype::I16 => each(bytes, |b| i16::from_le_bytes(b).into()),
            Dtype::I8 => each(bytes, |b| i8::from_le_bytes(b).into()),
            Dtype::U8 => each(bytes, |[b]| b.into()),
            Dtype::Bool => return Err(self.wrong(name, "it holds Bool", "numbers are wanted")),
        })
    }
}

/// The part of some rows that is there.
fn clip(rows: &Range<usize>, all: usize) -> Range<usize> {
    let end = rows.end.min(all);
    rows.start.min(end)..end
}

/// The side of blocks, a power of two, of which `count` cover `size`. There is at most one that
/// matters: for one block any side that covers it is the same.
fn block_side(size: usize, count: usize) -> Option<usize> {
    if count == 0 {
        return None;
    }
    let side = size.div_ceil(count).next_power_of_two();
    (size.div_ceil(side) == count).then_some(side)
}

/// Every `N` bytes as a value.
fn each<T, const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|bytes| value(*bytes)).collect()
}
