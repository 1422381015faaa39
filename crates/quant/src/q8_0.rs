//! Q8_0: 32 signed bytes and an f16 scale. Value = d * q.
//!
//! Dot, per block, isum exact in i32: `acc = fma(d * d_x, isum, acc)`.

use crate::block::{Block, F16_LIMIT, decode_blocks, dot_blocks, encode_blocks};
use crate::f16::{f16_bytes_to_f32, f32_to_f16};
use crate::fit::{nearest, ratio};
use crate::format::{Activation, Dot, Format, FormatInfo};

/// This format's row of the table.
pub const INFO: FormatInfo = FormatInfo {
    format: Format::Q8_0,
    name: "Q8_0",
    gguf_id: 8,
    block_elements: 32,
    block_bytes: size_of::<Q8_0>(),
    activation: Activation::Int8x32,
    decode: |blocks, out| decode_blocks(blocks, out, Q8_0::decode),
    encode: Some(|values, importance, out| {
        encode_blocks(values, importance, out, F16_LIMIT, Q8_0::encode);
    }),
    dot: Dot::Int(|weights, x| dot_blocks(weights, x, Q8_0::dot)),
};

/// The block as stored.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Q8_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Codes in order.
    pub qs: [i8; 32],
}
const _: () = assert!(size_of::<Q8_0>() == 34);
// SAFETY: repr(C) of byte arrays only.
unsafe impl Block for Q8_0 {}

impl Q8_0 {
    fn decode(&self, out: &mut [f32; 32]) {
        let d = f16_bytes_to_f32(self.d);
        for (out, &q) in out.iter_mut().zip(&self.qs) {
            *out = d * f32::from(q);
        }
    }

    /// The largest magnitude gets code 127; codes are nearest for the scale as stored.
    fn encode(values: &[f32; 32], _weights: &[f32; 32], out: &mut Self) {
        let max = values.iter().fold(0f32, |max, v| max.max(v.abs()));
        out.d = f32_to_f16(max / 127.0).to_le_bytes();
        let inverse = ratio(1.0, f16_bytes_to_f32(out.d));
        out.qs = values.map(|v| nearest(v * inverse, (-127, 127)));
    }

    fn dot(&self, x: &[i8; 32], d_x: f32, acc: f32) -> f32 {
        let isum: i32 = self.qs.iter().zip(x).map(|(&q, &x)| i32::from(q) * i32::from(x)).sum();
        (f16_bytes_to_f32(self.d) * d_x).mul_add(isum as f32, acc)
    }
}
