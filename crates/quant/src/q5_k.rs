//! Q5_K: 256 five-bit codes; per 32 a 6-bit scale and a 6-bit minimum; f16 d and dmin.
//! Value = (d * scale) * q - (dmin * minimum).
//!
//! Dot, per super-block, I = sum scale q x and J = sum minimum x exact in i32:
//! `acc = fma(d_x, fma(d, I, -(dmin * J)), acc)`.

use crate::block::{Block, F16_LIMIT, decode_blocks, dot_blocks, encode_blocks};
use crate::f16::f16_bytes_to_f32;
use crate::fit::{Ranges, SuperBlock, fit_super};
use crate::format::{Activation, Dot, Format, FormatInfo};
use crate::k_blocks::{SUPER, Unpacked, pack_scales6, unpack_scales6};

/// This format's row of the table.
pub const INFO: FormatInfo = FormatInfo {
    format: Format::Q5K,
    name: "Q5_K",
    gguf_id: 13,
    block_elements: SUPER,
    block_bytes: size_of::<Q5K>(),
    activation: Activation::Int8x256,
    decode: |blocks, out| {
        decode_blocks(blocks, out, |block: &Q5K, out| {
            let [d, dmin] = block.d();
            block.unpack().decode_affine(d, dmin, out);
        });
    },
    encode: Some(|values, importance, out| {
        encode_blocks(values, importance, out, F16_LIMIT, Q5K::encode);
    }),
    dot: Dot::Int(|weights, x| {
        dot_blocks(weights, x, |block: &Q5K, x, d_x, acc| {
            let [d, dmin] = block.d();
            block.unpack().dot_affine(d, dmin, x, d_x, acc)
        })
    }),
};

const RANGES: Ranges = Ranges { codes: (0, 31), scales: (0, 63), minimum_max: 63 };

/// The block as stored.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Q5K {
    /// Scale of scales, f16.
    pub d: [u8; 2],
    /// Scale of minimums, f16.
    pub dmin: [u8; 2],
    /// Eight 6-bit scales and minimums, packed as `k_blocks::unpack_scales6` says.
    pub scales: [u8; 12],
    /// Fifth bits: bit b of byte l is element 32 b + l.
    pub qh: [u8; 32],
    /// Low four bits: byte l of quarter c (32 bytes each) holds element 64 c + l in its low nibble
    /// and 64 c + 32 + l in its high one.
    pub qs: [u8; 128],
}
const _: () = assert!(size_of::<Q5K>() == 176);
// SAFETY: repr(C) of byte arrays only.
unsafe impl Block for Q5K {}

impl Q5K {
    /// d and dmin.
    fn d(&self) -> [f32; 2] {
        [self.d, self.dmin].map(f16_bytes_to_f32)
    }

    fn unpack(&self) -> Unpacked<8> {
        let code = |i: usize| {
            let low = (self.qs[i / 64 * 32 + i % 32] >> (4 * (i % 64 / 32))) & 15;
            let high = (self.qh[i % 32] >> (i / 32)) & 1;
            (low | (high << 4)).cast_signed()
        };
        let (scales, minimums) = unpack_scales6(&self.scales);
        Unpacked { codes: std::array::from_fn(code), scales, minimums }
    }

    fn encode(values: &[f32; SUPER], weights: &[f32; SUPER], out: &mut Self) {
        let SuperBlock { integers, d, dmin } = fit_super::<8>(values, weights, RANGES);
        let code = |i: usize| integers.codes[i].cast_unsigned();
        out.scales = pack_scales6(&integers.scales, &integers.minimums);
        out.qh = std::array::from_fn(|l| {
            (0..8).fold(0, |byte, b| byte | ((code(32 * b + l) >> 4) << b))
        });
        out.qs = std::array::from_fn(|l| {
            let first = l / 32 * 64 + l % 32;
            (code(first) & 15) | (code(first + 32) << 4)
        });
        (out.d, out.dmin) = (d.to_le_bytes(), dmin.to_le_bytes());
    }
}
