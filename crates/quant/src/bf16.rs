//! BF16: the upper half of binary32, little endian.

use crate::block::chunks;
use crate::format::{Activation, Dot, Format, FormatInfo};
use crate::shards::dot_lanes;

/// This format's row of the table.
pub const INFO: FormatInfo = FormatInfo {
    format: Format::Bf16,
    name: "BF16",
    gguf_id: 30,
    block_elements: 1,
    block_bytes: 2,
    activation: Activation::F32,
    decode,
    encode: Some(encode),
    dot: Dot::Float(|weights, x| {
        dot_lanes(weights, x, |bytes| bf16_to_f32(u16::from_le_bytes(bytes)))
    }),
};

/// Exact value of a bf16.
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Nearest bf16, ties to even. Too large becomes infinity; NaN stays a (quiet) NaN of its sign.
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

fn decode(blocks: &[u8], out: &mut [f32]) {
    let blocks = chunks(blocks);
    assert_eq!(blocks.len(), out.len(), "values to read and to write");
    for (out, &bytes) in out.iter_mut().zip(blocks) {
        *out = bf16_to_f32(u16::from_le_bytes(bytes));
    }
}

/// Rounds to nearest; see [`f32_to_bf16`] for NaN and large values. Importance has no use here.
fn encode(values: &[f32], _importance: Option<&[f32]>, out: &mut [u8]) {
    assert_eq!(out.len(), values.len() * 2, "bytes and values");
    for (out, &value) in out.chunks_exact_mut(2).zip(values) {
        out.copy_from_slice(&f32_to_bf16(value).to_le_bytes());
    }
}
