//! FP4: e2m1 codes with e8m0 scales per 32, packed as published (low nibble = even column), the
//! model's round trip, and the indexer rows that are multiplied as integers.

use crate::fp8::{Grid, ShapeError, block_magnitude, ceil_pow2, e8m0_to_f32, f32_to_e8m0};

/// Twice the value of each e2m1 code: an integer. Bit 3 is the sign; code 8 is minus zero.
pub const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Values that share a scale.
pub const BLOCK: usize = 32;

/// Exact value of an e2m1 code; only the low four bits count.
pub const fn e2m1_to_f32(code: u8) -> f32 {
    let magnitude = DOUBLED[(code & 7) as usize] as f32 * 0.5;
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Nearest e2m1 code, ties to the even code; magnitudes above 6 become 6. Negative values that
/// round to zero become code 8, minus zero. NaN becomes 0: callers turn it away before.
pub const fn f32_to_e2m1(value: f32) -> u8 {
    // Borders between codes; a value on a border goes to the even code.
    let a = value.abs();
    let code = (a > 0.25) as u8
        + (a >= 0.75) as u8
        + (a > 1.25) as u8
        + (a >= 1.75) as u8
        + (a > 2.5) as u8
        + (a >= 3.5) as u8
        + (a > 5.0) as u8;
    if value < 0.0 { code | 8 } else { code }
}

/// Decodes packed rows: two codes a byte, the even column in the low nibble; scales are e8m0, one
/// per 32 columns of a row. Value = code * scale.
pub fn decode(
    rows: usize,
    columns: usize,
    codes: &[u8],
    scales: &[u8],
    out: &mut [f32],
) -> Result<(), ShapeError> {
    let grid = Grid { rows, columns, block_rows: 1, block_columns: BLOCK };
    grid.check(columns.div_ceil(2), codes.len(), scales.len(), out.len())?;
    if out.is_empty() {
        return Ok(());
    }
    let row_codes = codes.chunks_exact(columns.div_ceil(2));
    let row_scales = scales.chunks_exact(columns.div_ceil(BLOCK));
    for ((out, codes), scales) in out.chunks_exact_mut(columns).zip(row_codes).zip(row_scales) {
        for (column, out) in out.iter_mut().enumerate() {
            let code = codes[column / 2] >> (4 * (column % 2));
            *out = e2m1_to_f32(code) * e8m0_to_f32(scales[column / BLOCK]);
        }
    }
    Ok(())
}

/// The scale of a block, or NaN if it holds a NaN or an infinity (spec/deepseek_v4.md 2.9).
fn block_scale(x: &[f32]) -> f32 {
    // 6 * 2^-126: the scale of a block of zeros is then 2^-126, the smallest normal.
    const FLOOR: f32 = 6.0 * f32::MIN_POSITIVE;
    let magnitude = block_magnitude(x, FLOOR);
    if magnitude.is_nan() { f32::NAN } else { ceil_pow2(magnitude * (1.0 / 6.0)) }
}

/// FP4 block round trip (spec/deepseek_v4.md 2.9): per block of `block` values,
/// a = max(|x|, 6 * 2^-126), scale = 2^ceil(log2(a / 6)), x = e2m1(x / scale) * scale.
///
/// A block with a NaN or an infinity becomes NaN throughout. Negative values that round to zero
/// leave minus zero. Panics unless `x` is whole blocks.
pub fn round_trip(x: &mut [f32], block: usize) {
    assert!(block > 0 && x.len().is_multiple_of(block), "{} values, block {block}", x.len());
    for x in x.chunks_exact_mut(block) {
        let scale = block_scale(x);
        for v in x {
            *v = if scale.is_nan() { scale } else { e2m1_to_f32(f32_to_e2m1(*v / scale)) * scale };
        }
    }
}

/// Values of an indexer row.
pub const INDEXER_DIMS: usize = 128;
/// Bytes of an indexer row: 64 of codes (low nibble = even dim), 4 of e8m0 scales.
pub const INDEXER_BYTES: usize = INDEXER_DIMS / 2 + INDEXER_DIMS / BLOCK;

/// Packs rows of 128 values into indexer rows by the rule of [`round_trip`]; decoding gives exactly
/// the round trip's values. A block with a NaN or an infinity gets the NaN scale.
///
/// Panics unless `x` is whole rows and `out` has one row for each.
pub fn encode_rows(x: &[f32], out: &mut [u8]) {
    assert!(x.len().is_multiple_of(INDEXER_DIMS), "{} values are not whole rows", x.len());
    assert_eq!(out.len(), x.len() / INDEXER_DIMS * INDEXER_BYTES, "bytes of the rows");
    for (x, out) in x.chunks_exact(INDEXER_DIMS).zip(out.chunks_exact_mut(INDEXER_BYTES)) {
        let (codes, scales) = out.split_at_mut(INDEXER_DIMS / 2);
        let blocks = x.chunks_exact(BLOCK).zip(codes.chunks_exact_mut(BLOCK / 2));
        for ((x, codes), out_scale) in blocks.zip(scales) {
            let scale = block_scale(x);
            *out_scale = f32_to_e8m0(scale);
            for (pair, out) in x.chunks_exact(2).zip(codes) {
                *out = f32_to_e2m1(pair[0] / scale) | (f32_to_e2m1(pair[1] / scale) << 4);
            }
        }
    }
}

/// Decodes one indexer row.
pub fn decode_row(row: &[u8; INDEXER_BYTES], out: &mut [f32; INDEXER_DIMS]) {
    for (dim, out) in out.iter_mut().enumerate() {
        let code = row[dim / 2] >> (4 * (dim % 2));
        *out = e2m1_to_f32(code) * e8m0_to_f32(row[INDEXER_DIMS / 2 + dim / BLOCK]);
    }
}

/// Dot product of two indexer rows: per block of 32 the exact i32 sum of doubled codes, then
/// `acc = fma(2^(ea + eb) / 4, isum, acc)` in block order from +0.
///
/// The factor is formed from the exponents: below 2^-126 it is zero, above 2^127 infinity, so no
/// machine's handling of subnormals matters; a NaN scale makes it NaN.
pub fn indexer_dot(a: &[u8; INDEXER_BYTES], b: &[u8; INDEXER_BYTES]) -> f32 {
    let (a_codes, a_scales) = a.split_at(INDEXER_DIMS / 2);
    let (b_codes, b_scales) = b.split_at(INDEXER_DIMS / 2);
    let codes = a_codes.chunks_exact(BLOCK / 2).zip(b_codes.chunks_exact(BLOCK / 2));
    let mut acc = 0f32;
    for ((a, b), (&ea, &eb)) in codes.zip(a_scales.iter().zip(b_scales)) {
        acc = product_scale(ea, eb).mul_add(doubled_dot(a, b) as f32, acc);
    }
    acc
}

/// Sum of products of doubled codes.
fn doubled_dot(a: &[u8], b: &[u8]) -> i32 {
    let doubled = |code: u8| i32::from(DOUBLED[usize::from(code & 15)]);
    let pairs = a.iter().zip(b);
    pairs.map(|(&a, &b)| doubled(a) * doubled(b) + doubled(a >> 4) * doubled(b >> 4)).sum()
}

/// 2^(ea - 127) * 2^(eb - 127) / 4.
fn product_scale(ea: u8, eb: u8) -> f32 {
    if ea == 255 || eb == 255 {
        return f32::NAN;
    }
    // The sum of exponents in f32's own bias: ea + eb - 127 - 2.
    match (u32::from(ea) + u32::from(eb)).saturating_sub(129) {
        0 => 0.0,
        biased @ 1..=254 => f32::from_bits(biased << 23),
        _ => f32::INFINITY,
    }
}
