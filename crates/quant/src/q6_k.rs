//! Q6_K: 256 six-bit codes; per 16 a signed 8-bit scale; f16 d.
//! Value = (d * scale) * q, q in -32..=31.
//!
//! Dot, per super-block, I = sum scale q x exact in i32: `acc = fma(d * d_x, I, acc)`.

use crate::block::{Block, F16_LIMIT, decode_blocks, dot_blocks, encode_blocks};
use crate::f16::f16_bytes_to_f32;
use crate::fit::{Ranges, SuperBlock, fit_super};
use crate::format::{Activation, Dot, Format, FormatInfo};
use crate::k_blocks::{SUPER, Unpacked};

/// This format's row of the table.
pub const INFO: FormatInfo = FormatInfo {
    format: Format::Q6K,
    name: "Q6_K",
    gguf_id: 14,
    block_elements: SUPER,
    block_bytes: size_of::<Q6K>(),
    activation: Activation::Int8x256,
    decode: |blocks, out| {
        decode_blocks(blocks, out, |block: &Q6K, out| {
            block.unpack().decode_scaled(f16_bytes_to_f32(block.d), out);
        });
    },
    encode: Some(|values, importance, out| {
        encode_blocks(values, importance, out, F16_LIMIT, Q6K::encode);
    }),
    dot: Dot::Int(|weights, x| {
        dot_blocks(weights, x, |block: &Q6K, x, d_x, acc| {
            block.unpack().dot_scaled(f16_bytes_to_f32(block.d), x, d_x, acc)
        })
    }),
};

const RANGES: Ranges = Ranges { codes: (-32, 31), scales: (-128, 127), minimum_max: 0 };

/// The block as stored.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Q6K {
    /// Low four bits: byte l of half h (64 bytes each) holds element 128 h + l in its low nibble
    /// and 128 h + 64 + l in its high one.
    pub ql: [u8; 128],
    /// High two bits: byte l of half h (32 bytes each) holds elements 128 h + 32 s + l at bits 2 s.
    pub qh: [u8; 64],
    /// Scale per 16 elements.
    pub scales: [i8; 16],
    /// Scale of scales, f16.
    pub d: [u8; 2],
}
const _: () = assert!(size_of::<Q6K>() == 210);
// SAFETY: repr(C) of byte arrays only.
unsafe impl Block for Q6K {}

impl Q6K {
    fn unpack(&self) -> Unpacked<16> {
        let code = |i: usize| {
            let low = (self.ql[i / 128 * 64 + i % 64] >> (4 * (i % 128 / 64))) & 15;
            let high = (self.qh[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32))) & 3;
            (low | (high << 4)).cast_signed() - 32
        };
        Unpacked { codes: std::array::from_fn(code), scales: self.scales, minimums: [0; 16] }
    }

    fn encode(values: &[f32; SUPER], weights: &[f32; SUPER], out: &mut Self) {
        let SuperBlock { integers, d, .. } = fit_super::<16>(values, weights, RANGES);
        let code = |i: usize| (integers.codes[i] + 32).cast_unsigned();
        out.ql = std::array::from_fn(|l| {
            let first = l / 64 * 128 + l % 64;
            (code(first) & 15) | (code(first + 64) << 4)
        });
        out.qh = std::array::from_fn(|l| {
            let first = l / 32 * 128 + l % 32;
            (0..4).fold(0, |byte, s| byte | ((code(first + 32 * s) >> 4) << (2 * s)))
        });
        out.scales = integers.scales;
        out.d = d.to_le_bytes();
    }
}
