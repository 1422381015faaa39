//! MXFP4: 32 FP4 (e2m1) codes and an e8m0 scale. Value = (2^(e-127) / 2) * (doubled code).
//!
//! Codes doubled are the integers 0, 1, 2, 3, 4, 6, 8, 12 and their negatives. Dot, per block,
//! isum of doubled codes exact in i32: `acc = fma(half_scale * d_x, isum, acc)`.
//!
//! GGUF gives e = 255 the value 2^128 (so half of it is finite); the OCP format calls it NaN, and so
//! does [`crate::fp4`].

use crate::block::{Block, decode_blocks, dot_blocks};
use crate::format::{Activation, Dot, Format, FormatInfo};
use crate::fp4::DOUBLED;

/// This format's row of the table.
pub const INFO: FormatInfo = FormatInfo {
    format: Format::Mxfp4,
    name: "MXFP4",
    gguf_id: 39,
    block_elements: 32,
    block_bytes: size_of::<Mxfp4>(),
    activation: Activation::Int8x32,
    decode: |blocks, out| decode_blocks(blocks, out, Mxfp4::decode),
    encode: None,
    dot: Dot::Int(|weights, x| dot_blocks(weights, x, Mxfp4::dot)),
};

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
        DOUBLED[usize::from(if i < 16 {
            self.qs[i] & 15
        } else {
            self.qs[i - 16] >> 4
        })]
    }

    fn decode(&self, out: &mut [f32; 32]) {
        let d = half_scale(self.e);
        for (i, out) in out.iter_mut().enumerate() {
            *out = d * f32::from(self.doubled(i));
        }
    }

    fn dot(&self, x: &[i8; 32], d_x: f32, acc: f32) -> f32 {
        let products = x
            .iter()
            .enumerate()
            .map(|(i, &x)| i32::from(self.doubled(i)) * i32::from(x));
        let isum: i32 = products.sum();
        (half_scale(self.e) * d_x).mul_add(isum as f32, acc)
    }
}
