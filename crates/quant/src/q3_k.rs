//! Q3_K: 256 three-bit codes; per 16 a signed 6-bit scale; f16 d.
//! Value = (d * scale) * q, q in -4..=3, scale in -32..=31.
//!
//! Dot, per super-block, I = sum scale q x exact in i32: `acc = fma(d * d_x, I, acc)`.

use crate::block::{Block, F16_LIMIT, decode_blocks, dot_blocks, encode_blocks};
use crate::f16::f16_bytes_to_f32;
use crate::fit::{Ranges, SuperBlock, fit_super};
use crate::format::{Activation, Dot, Format, FormatInfo};
use crate::k_blocks::{SUPER, Unpacked};

/// This format's row of the table.
pub const INFO: FormatInfo = FormatInfo {
    format: Format::Q3K,
    name: "Q3_K",
    gguf_id: 11,
    block_elements: SUPER,
    block_bytes: size_of::<Q3K>(),
    activation: Activation::Int8x256,
    decode: |blocks, out| {
        decode_blocks(blocks, out, |block: &Q3K, out| {
            block.unpack().decode_scaled(f16_bytes_to_f32(block.d), out);
        });
    },
    encode: Some(|values, importance, out| {
        encode_blocks(values, importance, out, F16_LIMIT, Q3K::encode);
    }),
    dot: Dot::Int(|weights, x| {
        dot_blocks(weights, x, |block: &Q3K, x, d_x, acc| {
            block.unpack().dot_scaled(f16_bytes_to_f32(block.d), x, d_x, acc)
        })
    }),
};

const RANGES: Ranges = Ranges { codes: (-4, 3), scales: (-32, 31), minimum_max: 0 };

/// The block as stored.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Q3K {
    /// Third bits: bit b of byte l is element 32 b + l; a *clear* bit means minus four.
    pub hmask: [u8; 32],
    /// Low two bits: byte l of half h (32 bytes each) holds elements 128 h + 32 s + l at bits 2 s.
    pub qs: [u8; 64],
    /// Scales plus 32: low nibbles of 0..8 and 8..16 in bytes 0..8 (low, high nibble); top two bits
    /// of scale i in byte 8 + i % 4 at bits 2 (i / 4).
    pub scales: [u8; 12],
    /// Scale of scales, f16.
    pub d: [u8; 2],
}
const _: () = assert!(size_of::<Q3K>() == 110);
// SAFETY: repr(C) of byte arrays only.
unsafe impl Block for Q3K {}

impl Q3K {
    fn unpack(&self) -> Unpacked<16> {
        let code = |i: usize| {
            let low = (self.qs[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32))) & 3;
            let high = (self.hmask[i % 32] >> (i / 32)) & 1;
            (low | (high << 2)).cast_signed() - 4
        };
        let scale = |i: usize| {
            let low = (self.scales[i % 8] >> (4 * (i / 8))) & 15;
            let high = (self.scales[8 + i % 4] >> (2 * (i / 4))) & 3;
            (low | (high << 4)).cast_signed() - 32
        };
        Unpacked {
            codes: std::array::from_fn(code),
            scales: std::array::from_fn(scale),
            minimums: [0; 16],
        }
    }

    fn encode(values: &[f32; SUPER], weights: &[f32; SUPER], out: &mut Self) {
        let SuperBlock { integers, d, .. } = fit_super::<16>(values, weights, RANGES);
        let code = |i: usize| (integers.codes[i] + 4).cast_unsigned();
        let scale = |sub: usize| (integers.scales[sub] + 32).cast_unsigned();
        out.hmask = std::array::from_fn(|l| {
            (0..8).fold(0, |byte, b| byte | ((code(32 * b + l) >> 2) << b))
        });
        out.qs = std::array::from_fn(|l| {
            let first = l / 32 * 128 + l % 32;
            (0..4).fold(0, |byte, s| byte | ((code(first + 32 * s) & 3) << (2 * s)))
        });
        for i in 0..8 {
            out.scales[i] = (scale(i) & 15) | (scale(i + 8) << 4);
        }
        for i in 0..4 {
            out.scales[8 + i] =
                (0..4).fold(0, |byte, k| byte | ((scale(4 * k + i) >> 4) << (2 * k)));
        }
        out.d = d.to_le_bytes();
    }
}
