//! Q4_0: 32 nibbles and an f16 scale. Value = d * (q - 8).
//!
//! Dot, per block, isum = sum (q - 8) x exact in i32: `acc = fma(d * d_x, isum, acc)`.

use crate::block::{Block, F16_LIMIT, decode_blocks, dot_blocks, encode_blocks};
use crate::f16::{f16_bytes_to_f32, f32_to_f16};
use crate::fit::{fit_symmetric, nearest, ratio};
use crate::format::{Activation, Dot, Format, FormatInfo};

/// This format's row of the table.
pub const INFO: FormatInfo = FormatInfo {
    format: Format::Q4_0,
    name: "Q4_0",
    gguf_id: 2,
    block_elements: 32,
    block_bytes: size_of::<Q4_0>(),
    activation: Activation::Int8x32,
    decode: |blocks, out| decode_blocks(blocks, out, Q4_0::decode),
    encode: Some(|values, importance, out| {
        encode_blocks(values, importance, out, F16_LIMIT, Q4_0::encode);
    }),
    dot: Dot::Int(|weights, x| dot_blocks(weights, x, Q4_0::dot)),
};

const CODES: (i8, i8) = (-8, 7);

/// The block as stored.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Q4_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Codes: low nibbles are elements 0..16, high nibbles 16..32.
    pub qs: [u8; 16],
}
const _: () = assert!(size_of::<Q4_0>() == 18);
// SAFETY: repr(C) of byte arrays only.
unsafe impl Block for Q4_0 {}

impl Q4_0 {
    /// Code of element `i` less its offset, -8..=7.
    fn code(&self, i: usize) -> i8 {
        let nibble = if i < 16 { self.qs[i] & 15 } else { self.qs[i - 16] >> 4 };
        nibble.cast_signed() - 8
    }

    fn decode(&self, out: &mut [f32; 32]) {
        let d = f16_bytes_to_f32(self.d);
        for (i, out) in out.iter_mut().enumerate() {
            *out = d * f32::from(self.code(i));
        }
    }

    fn encode(values: &[f32; 32], weights: &[f32; 32], out: &mut Self) {
        out.d = f32_to_f16(fit_symmetric(values, weights, CODES)).to_le_bytes();
        let inverse = ratio(1.0, f16_bytes_to_f32(out.d));
        let code = |i: usize| (nearest(values[i] * inverse, CODES) + 8).cast_unsigned();
        out.qs = std::array::from_fn(|i| code(i) | (code(i + 16) << 4));
    }

    fn dot(&self, x: &[i8; 32], d_x: f32, acc: f32) -> f32 {
        let products = x.iter().enumerate().map(|(i, &x)| i32::from(self.code(i)) * i32::from(x));
        let isum: i32 = products.sum();
        (f16_bytes_to_f32(self.d) * d_x).mul_add(isum as f32, acc)
    }
}
