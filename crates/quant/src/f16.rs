//! F16: IEEE binary16, little endian, and its conversions, which scales of other formats use too.

use crate::block::chunks;
use crate::format::{Activation, Dot, Format, FormatInfo};
use crate::shards::dot_lanes;

/// This format's row of the table.
pub const INFO: FormatInfo = FormatInfo {
    format: Format::F16,
    name: "F16",
    gguf_id: 1,
    block_elements: 1,
    block_bytes: 2,
    activation: Activation::F32,
    decode,
    encode: Some(encode),
    dot: Dot::Float(|weights, x| dot_lanes(weights, x, f16_bytes_to_f32)),
};

/// Exact value of an f16. NaN keeps sign and payload and becomes quiet.
pub const fn f16_to_f32(bits: u16) -> f32 {
    let sign = ((bits & 0x8000) as u32) << 16;
    let exponent = ((bits >> 10) & 31) as u32;
    let mantissa = (bits & 0x3ff) as u32;
    let magnitude = match exponent {
        // Subnormal: mantissa * 2^-24, exact in f32.
        0 => (mantissa as f32 * (1.0 / 16_777_216.0)).to_bits(),
        31 if mantissa != 0 => 0x7fc0_0000 | (mantissa << 13),
        31 => 0x7f80_0000,
        _ => ((exponent + 127 - 15) << 23) | (mantissa << 13),
    };
    f32::from_bits(sign | magnitude)
}

/// Nearest f16, ties to even. Too large becomes infinity; NaN stays a NaN of its sign.
#[expect(clippy::cast_possible_truncation, reason = "every branch is masked to 15 bits")]
pub const fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let half = if magnitude > 0x7f80_0000 {
        0x7e00 | ((magnitude >> 13) & 0x3ff) as u16
    } else if magnitude >= 0x4780_0000 {
        0x7c00 // 65536 and more
    } else if magnitude >= 0x3880_0000 {
        // Normal, 2^-14 and more: rebase the exponent; a carry out of the mantissa is the right
        // answer, up to infinity from 65520.
        let rebased = magnitude - ((127 - 15) << 23);
        ((rebased + 0xfff + ((rebased >> 13) & 1)) >> 13) as u16
    } else {
        // Subnormal: adding 0.5 (one ulp of which is 2^-24) rounds to a multiple of 2^-24.
        ((f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()) as u16
    };
    sign | half
}

/// The value of an f16 in little-endian bytes.
pub(crate) const fn f16_bytes_to_f32(bytes: [u8; 2]) -> f32 {
    f16_to_f32(u16::from_le_bytes(bytes))
}

fn decode(blocks: &[u8], out: &mut [f32]) {
    let blocks = chunks(blocks);
    assert_eq!(blocks.len(), out.len(), "values to read and to write");
    for (out, &bytes) in out.iter_mut().zip(blocks) {
        *out = f16_bytes_to_f32(bytes);
    }
}

/// Rounds to nearest; see [`f32_to_f16`] for NaN and large values. Importance has no use here.
fn encode(values: &[f32], _importance: Option<&[f32]>, out: &mut [u8]) {
    assert_eq!(out.len(), values.len() * 2, "bytes and values");
    for (out, &value) in out.chunks_exact_mut(2).zip(values) {
        out.copy_from_slice(&f32_to_f16(value).to_le_bytes());
    }
}
