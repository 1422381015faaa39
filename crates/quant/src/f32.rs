//! F32: IEEE binary32, little endian.

use crate::block::chunks;
use crate::format::{Activation, Dot, Format, FormatInfo};
use crate::shards::dot_lanes;

/// This format's row of the table.
pub const INFO: FormatInfo = FormatInfo {
    format: Format::F32,
    name: "F32",
    gguf_id: 0,
    block_elements: 1,
    block_bytes: 4,
    activation: Activation::F32,
    decode,
    encode: Some(encode),
    dot: Dot::Float(|weights, x| dot_lanes(weights, x, f32::from_le_bytes)),
};

/// Reads values as they are.
fn decode(blocks: &[u8], out: &mut [f32]) {
    let blocks = chunks(blocks);
    assert_eq!(blocks.len(), out.len(), "values to read and to write");
    for (out, &bytes) in out.iter_mut().zip(blocks) {
        *out = f32::from_le_bytes(bytes);
    }
}

/// Writes values as they are, NaN and infinities included.
fn encode(values: &[f32], _importance: Option<&[f32]>, out: &mut [u8]) {
    assert_eq!(out.len(), values.len() * 4, "bytes and values");
    for (out, value) in out.chunks_exact_mut(4).zip(values) {
        out.copy_from_slice(&value.to_le_bytes());
    }
}
