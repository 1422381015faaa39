//! FP8: e4m3fn values, e8m0 scales, block-scaled matrices as published, and the model's round trip.

use thiserror::Error;

/// Largest finite e4m3fn value.
pub const E4M3_MAX: f32 = 448.0;

/// Parts of a block-scaled matrix do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{part} of a {rows} x {columns} matrix: found {found}, wanted {wanted}; \
     the tensor and its scales do not belong together"
)]
pub struct ShapeError {
    /// Which part: codes, scales, output, or the side of a block.
    pub part: &'static str,
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub columns: usize,
    /// Elements found.
    pub found: usize,
    /// Elements wanted.
    pub wanted: usize,
}

/// A matrix's shape and the size of the blocks that share a scale (128 x 128 for FP8 weights).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub columns: usize,
    /// Rows of a block; the last one may be short.
    pub block_rows: usize,
    /// Columns of a block; the last one may be short.
    pub block_columns: usize,
}

impl Grid {
    /// Elements of the scale matrix, ceil(rows / block_rows) x ceil(columns / block_columns).
    ///
    /// Panics if a side of the block is zero.
    pub fn scales(&self) -> usize {
        let scale_rows = self.rows.div_ceil(self.block_rows);
        scale_rows.saturating_mul(self.columns.div_ceil(self.block_columns))
    }

    /// Checks that codes, scales and output have the lengths that belong to this shape, for codes
    /// that fill `code_bytes` bytes a row.
    pub(crate) fn check(
        &self,
        code_bytes: usize,
        codes: usize,
        scales: usize,
        out: usize,
    ) -> Result<(), ShapeError> {
        let (rows, columns) = (self.rows, self.columns);
        let block = self.block_rows.min(self.block_columns).min(1);
        let wanted = |part, found, wanted| {
            let error = ShapeError { part, rows, columns, found, wanted };
            if found == wanted { Ok(()) } else { Err(error) }
        };
        wanted("block side", block, 1)?;
        wanted("bytes of codes", codes, rows.saturating_mul(code_bytes))?;
        wanted("scales", scales, self.scales())?;
        wanted("output values", out, rows.saturating_mul(columns))
    }
}

/// Exact value of an e4m3fn code; 0x7f and 0xff are NaN, there are no infinities.
pub const fn e4m3_to_f32(code: u8) -> f32 {
    let exponent = (code >> 3) & 15;
    let mantissa = code & 7;
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa as f32 * (1.0 / 512.0),
        _ => f32::from_bits(((exponent as u32 + 120) << 23) | ((mantissa as u32) << 20)),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Nearest e4m3fn code, ties to even; magnitudes above 448, infinities included, become 448; NaN
/// becomes the NaN of its sign.
#[expect(clippy::cast_possible_truncation, reason = "every branch yields at most 0x7f")]
pub const fn f32_to_e4m3(value: f32) -> u8 {
    let sign = ((value.to_bits() >> 24) & 0x80) as u8;
    let magnitude = value.abs();
    let code = if value.is_nan() {
        0x7f
    } else if magnitude >= E4M3_MAX {
        0x7e
    } else if magnitude >= 1.0 / 64.0 {
        // Normal: rebase the exponent from 127 to 7, round away 20 mantissa bits.
        let rebased = magnitude.to_bits() - (120 << 23);
        ((rebased + 0x7_ffff + ((rebased >> 20) & 1)) >> 20) as u8
    } else {
        // Subnormal: one ulp of 2^14 is 2^-9, so the sum rounds to a multiple of 2^-9.
        ((magnitude + 16384.0).to_bits() - 16384f32.to_bits()) as u8
    };
    sign | code
}

/// Value of an e8m0 scale, 2^(code - 127); 255 is NaN.
pub const fn e8m0_to_f32(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits((code as u32) << 23),
    }
}

/// The e8m0 code of a power of two; other positive values give the power of two at or above them,
/// clamped to 2^-127 ..= 2^127. NaN, infinities, zero and negative values give 255 (NaN).
#[expect(clippy::cast_possible_truncation, reason = "the exponent field has eight bits")]
pub const fn f32_to_e8m0(value: f32) -> u8 {
    if !(value > 0.0 && value.is_finite()) {
        return 255;
    }
    let bits = value.to_bits();
    if bits <= 0x0040_0000 {
        return 0;
    }
    let up = (bits >> 23) as u8 + (bits & 0x7f_ffff != 0) as u8;
    if up > 254 { 254 } else { up }
}

/// Decodes an e4m3fn matrix (row major) whose blocks share a scale: value = code * scale.
pub fn decode(grid: Grid, codes: &[u8], scales: &[f32], out: &mut [f32]) -> Result<(), ShapeError> {
    grid.check(grid.columns, codes.len(), scales.len(), out.len())?;
    if codes.is_empty() {
        return Ok(());
    }
    let scale_columns = grid.columns.div_ceil(grid.block_columns);
    let rows = codes.chunks_exact(grid.columns).zip(out.chunks_exact_mut(grid.columns));
    for (row, (codes, out)) in rows.enumerate() {
        let scales = &scales[row / grid.block_rows * scale_columns..][..scale_columns];
        for (column, (out, &code)) in out.iter_mut().zip(codes).enumerate() {
            *out = e4m3_to_f32(code) * scales[column / grid.block_columns];
        }
    }
    Ok(())
}

/// The smallest power of two that is not below `value`, by the exponent's bits. For normal positive
/// values; a value above 2^127 gives infinity.
pub(crate) const fn ceil_pow2(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(((bits >> 23) + (bits & 0x7f_ffff != 0) as u32) << 23)
}

/// The largest magnitude of a block, at least `floor`; NaN if any value is not finite.
pub(crate) fn block_magnitude(x: &[f32], floor: f32) -> f32 {
    if x.iter().all(|v| v.is_finite()) {
        x.iter().fold(floor, |max, v| max.max(v.abs()))
    } else {
        f32::NAN
    }
}

/// FP8 block round trip (spec/deepseek_v4.md 2.9): per block of `block` values, a = max(|x|, 1e-4),
/// scale = 2^ceil(log2(a * (1/448))), x = e4m3fn(x / scale) * scale.
///
/// A block with a NaN or an infinity becomes NaN throughout; a value just below 2^128 may round up
/// to infinity. Panics unless `x` is whole blocks.
pub fn round_trip(x: &mut [f32], block: usize) {
    assert!(block > 0 && x.len().is_multiple_of(block), "{} values, block {block}", x.len());
    for x in x.chunks_exact_mut(block) {
        let magnitude = block_magnitude(x, 1e-4);
        if magnitude.is_nan() {
            x.fill(f32::NAN);
            continue;
        }
        let scale = ceil_pow2(magnitude * (1.0 / E4M3_MAX));
        for v in x {
            *v = e4m3_to_f32(f32_to_e4m3(*v / scale)) * scale;
        }
    }
}
