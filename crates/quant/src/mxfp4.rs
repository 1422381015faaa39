//! MXFP4: 32 FP4 (e2m1) codes and an e8m0 scale. Value = (2^(e-127) / 2) * (doubled code).
//!
//! Codes doubled are the integers 0, 1, 2, 3, 4, 6, 8, 12 and their negatives. Dot, per block,
//! isum of doubled codes exact in i32: `acc = fma(half_scale * d_x, isum, acc)`.
//!
//! GGUF gives e = 255 the value 2^128 (so half of it is finite); the OCP format calls it NaN, and
//! so does [`crate::fp4`].

use thiserror::Error;

use crate::block::{Block, as_blocks_mut, chunks, decode_blocks, dot_blocks, encode_blocks};
use crate::format::{Activation, Dot, Format, FormatInfo};
use crate::fp4::{DOUBLED, e2m1_to_f32, f32_to_e2m1};

/// This format's row of the table.
pub const INFO: FormatInfo = FormatInfo {
    format: Format::Mxfp4,
    name: "MXFP4",
    gguf_id: 39,
    block_elements: 32,
    block_bytes: size_of::<Mxfp4>(),
    activation: Activation::Int8x32,
    decode: |blocks, out| decode_blocks(blocks, out, Mxfp4::decode),
    encode: Some(|values, importance, out| {
        encode_blocks(values, importance, out, LIMIT, Mxfp4::encode);
    }),
    dot: Dot::Int(|weights, x| dot_blocks(weights, x, Mxfp4::dot)),
};

/// Largest magnitude that every scale the encoder tries can hold: 6 * 2^125. Larger ones are
/// clamped.
const LIMIT: f32 = 6.0 * f32::from_bits(252 << 23);

/// The block as stored.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Mxfp4 {
    /// Exponent of the scale, biased by 127.
    pub e: u8,
    /// Codes: low nibbles are elements 0..16, high nibbles 16..32.
    pub qs: [u8; 16],
}
const _: () = assert!(size_of::<Mxfp4>() == 17);
// SAFETY: repr(C) of bytes only.
unsafe impl Block for Mxfp4 {}

/// Half the scale of a block: 2^(e - 128), exact for every e.
pub const fn half_scale(e: u8) -> f32 {
    match e {
        // The two exponents whose half is subnormal: 2^-128 and 2^-127.
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits((e as u32 - 1) << 23),
    }
}

impl Mxfp4 {
    /// Doubled code of element `i`, -12..=12.
    fn doubled(&self, i: usize) -> i8 {
        DOUBLED[usize::from(if i < 16 { self.qs[i] & 15 } else { self.qs[i - 16] >> 4 })]
    }

    fn decode(&self, out: &mut [f32; 32]) {
        let d = half_scale(self.e);
        for (i, out) in out.iter_mut().enumerate() {
            *out = d * f32::from(self.doubled(i));
        }
    }

    /// The scale that puts the largest magnitude into 4..8, or one of its neighbours where that
    /// costs less. Values that are e2m1 codes times one power of two come back exactly.
    fn encode(values: &[f32; 32], weights: &[f32; 32], out: &mut Self) {
        let max = values.iter().fold(0f32, |max, v| max.max(v.abs()));
        // Biased exponent of 2^(floor(log2 max) - 2); subnormal values count as exponent 0.
        let exponent = (max.to_bits() >> 23).saturating_sub(2);
        let mut best = (f32::INFINITY, 0);
        for candidate in [exponent, exponent + 1, exponent.saturating_sub(1)] {
            let e = u8::try_from(candidate.min(254)).expect("clamped to 254");
            // In units of the first candidate's scale, so that no square leaves f32's range.
            let unit = half_scale(e) / half_scale(u8::try_from(exponent).expect("at most 252"));
            let mut error = 0f32;
            for (&v, &w) in values.iter().zip(weights) {
                let ratio = v / half_scale(e) * 0.5;
                let miss = (e2m1_to_f32(f32_to_e2m1(ratio)) - ratio) * unit;
                error += w * miss * miss;
            }
            if error < best.0 {
                best = (error, e);
            }
        }
        out.e = best.1;
        let code = |i: usize| f32_to_e2m1(values[i] / half_scale(out.e) * 0.5);
        out.qs = std::array::from_fn(|i| code(i) | (code(i + 16) << 4));
    }

    fn dot(&self, x: &[i8; 32], d_x: f32, acc: f32) -> f32 {
        let products =
            x.iter().enumerate().map(|(i, &x)| i32::from(self.doubled(i)) * i32::from(x));
        let isum: i32 = products.sum();
        (half_scale(self.e) * d_x).mul_add(isum as f32, acc)
    }
}

/// Repacks one published FP4 row (low nibble = even column, e8m0 scales apart) into blocks: the
/// same codes and exponents in another order, nothing is rounded.
///
/// The published NaN scale (255) has no counterpart here and would become 2^128, so it is refused.
/// Panics unless the lengths are those of whole blocks.
pub fn repack_published(codes: &[u8], scales: &[u8], out: &mut [u8]) -> Result<(), NanScale> {
    let (blocks, codes) = (as_blocks_mut::<Mxfp4>(out), chunks::<u8, 16>(codes));
    assert_eq!(blocks.len(), codes.len(), "blocks to write and blocks of codes");
    assert_eq!(blocks.len(), scales.len(), "blocks and scales");
    if let Some(block) = scales.iter().position(|&e| e == 255) {
        return Err(NanScale { block });
    }
    for ((out, codes), &e) in blocks.iter_mut().zip(codes).zip(scales) {
        let code = |column: usize| (codes[column / 2] >> (4 * (column % 2))) & 15;
        out.e = e;
        out.qs = std::array::from_fn(|i| code(i) | (code(i + 16) << 4));
    }
    Ok(())
}

/// A published FP4 row has a scale that is not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "block {block} of the row: found the scale 255, which is NaN, wanted 0 to 254; \
     the checkpoint is damaged: fetch it again"
)]
pub struct NanScale {
    /// Index of the block in the row.
    pub block: usize,
}
