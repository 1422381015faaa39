//! Q2_K: 256 two-bit codes; per 16 a 4-bit scale and a 4-bit minimum; f16 d and dmin.
//! Value = (d * scale) * q - (dmin * minimum).
//!
//! Dot, per super-block, I = sum scale q x and J = sum minimum x exact in i32:
//! `acc = fma(d_x, fma(d, I, -(dmin * J)), acc)`.

use crate::block::{Block, F16_LIMIT, decode_blocks, dot_blocks, encode_blocks};
use crate::f16::f16_bytes_to_f32;
use crate::fit::{Ranges, SuperBlock, fit_super};
use crate::format::{Activation, Dot, Format, FormatInfo};
use crate::k_blocks::{SUPER, Unpacked};

/// This format's row of the table.
pub const INFO: FormatInfo = FormatInfo {
    format: Format::Q2K,
    name: "Q2_K",
    gguf_id: 10,
    block_elements: SUPER,
    block_bytes: size_of::<Q2K>(),
    activation: Activation::Int8x256,
    decode: |blocks, out| {
        decode_blocks(blocks, out, |block: &Q2K, out| {
            let [d, dmin] = block.d();
            block.unpack().decode_affine(d, dmin, out);
        });
    },
    encode: Some(|values, importance, out| {
        encode_blocks(values, importance, out, F16_LIMIT, Q2K::encode);
    }),
    dot: Dot::Int(|weights, x| {
        dot_blocks(weights, x, |block: &Q2K, x, d_x, acc| {
            let [d, dmin] = block.d();
            block.unpack().dot_affine(d, dmin, x, d_x, acc)
        })
    }),
};

const RANGES: Ranges = Ranges { codes: (0, 3), scales: (0, 15), minimum_max: 15 };

/// The block as stored.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Q2K {
    /// Per 16 elements: scale in the low nibble, minimum in the high one.
    pub scales: [u8; 16],
    /// Codes: byte l of half h (32 bytes each) holds elements 128 h + 32 s + l at bits 2 s.
    pub qs: [u8; 64],
    /// Scale of scales, f16.
    pub d: [u8; 2],
    /// Scale of minimums, f16.
    pub dmin: [u8; 2],
}
const _: () = assert!(size_of::<Q2K>() == 84);
// SAFETY: repr(C) of byte arrays only.
unsafe impl Block for Q2K {}

impl Q2K {
    /// d and dmin.
    fn d(&self) -> [f32; 2] {
        [self.d, self.dmin].map(f16_bytes_to_f32)
    }

    fn unpack(&self) -> Unpacked<16> {
        let code = |i: usize| (self.qs[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32))) & 3;
        Unpacked {
            codes: std::array::from_fn(|i| code(i).cast_signed()),
            scales: self.scales.map(|packed| (packed & 15).cast_signed()),
            minimums: self.scales.map(|packed| (packed >> 4).cast_signed()),
        }
    }

    fn encode(values: &[f32; SUPER], weights: &[f32; SUPER], out: &mut Self) {
        let SuperBlock { integers, d, dmin } = fit_super::<16>(values, weights, RANGES);
        let code = |i: usize| integers.codes[i].cast_unsigned();
        let scale = |sub: usize| integers.scales[sub].cast_unsigned();
        let minimum = |sub: usize| integers.minimums[sub].cast_unsigned();
        out.scales = std::array::from_fn(|sub| scale(sub) | (minimum(sub) << 4));
        out.qs = std::array::from_fn(|l| {
            let first = l / 32 * 128 + l % 32;
            (0..4).fold(0, |byte, s| byte | (code(first + 32 * s) << (2 * s)))
        });
        (out.d, out.dmin) = (d.to_le_bytes(), dmin.to_le_bytes());
    }
}
