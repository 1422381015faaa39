//! The table of formats: what the rest of the engine knows about a weight type is a row of it.

use crate::activation::Int8Blocks;
use crate::{bf16, f16, f32 as float32, iq2_xxs, mxfp4, q2_k, q3_k, q4_0, q4_k, q5_k, q6_k, q8_0};

/// A storage format of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of binary32.
    Bf16,
    /// 4 bits and an f16 scale per 32.
    Q4_0,
    /// 8 bits and an f16 scale per 32.
    Q8_0,
    /// 2 bits, 4-bit scales and minimums per 16, super-blocks of 256.
    Q2K,
    /// 3 bits, 6-bit scales per 16, super-blocks of 256.
    Q3K,
    /// 4 bits, 6-bit scales and minimums per 32, super-blocks of 256.
    Q4K,
    /// 5 bits, 6-bit scales and minimums per 32, super-blocks of 256.
    Q5K,
    /// 6 bits, 8-bit scales per 16, super-blocks of 256.
    Q6K,
    /// 2.06 bits: grid of 256 points per 8 elements, signs, 4-bit scales per 32.
    Iq2Xxs,
    /// FP4 (e2m1) with an e8m0 scale per 32.
    Mxfp4,
}

/// What a row of weights is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Plain f32 values.
    F32,
    /// int8 codes with one scale per 32.
    Int8x32,
    /// int8 codes with one scale per 256.
    Int8x256,
}

/// The dot product of one shard: a run of whole blocks (DESIGN 5).
#[derive(Clone, Copy, Debug)]
pub enum Dot {
    /// Eight lanes by fma, then the tree over lanes. `(weights, x)`.
    Float(fn(&[u8], &[f32]) -> f32),
    /// Exact integers inside a block, fma in block order. `(weights, x)`.
    Int(fn(&[u8], Int8Blocks<'_>) -> f32),
}

/// An encoder: `(values, importance, out)`, row-wise; `values` is whole blocks, `importance` (one
/// non-negative weight a value) steers which errors matter.
///
/// The same input always gives the same bytes. Integer formats store NaN as 0 and clamp magnitudes
/// to 65504 (MXFP4: to 6 * 2^125); F32, F16 and BF16 keep NaN and infinities. Q8_0 and the float
/// formats take no notice of importances; elsewhere a negative or non-finite one counts as 0.
pub type Encode = fn(&[f32], Option<&[f32]>, &mut [u8]);

/// Everything there is to know about a format.
#[derive(Clone, Copy, Debug)]
pub struct FormatInfo {
    /// The format this row describes.
    pub format: Format,
    /// Its name in GGUF tools, e.g. `Q8_0`.
    pub name: &'static str,
    /// Its type id in a GGUF file.
    pub gguf_id: u32,
    /// Elements in a block; 1 for float formats.
    pub block_elements: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// What its rows are multiplied with.
    pub activation: Activation,
    /// Decodes whole blocks: `(blocks, out)`. Panics if the lengths disagree.
    pub decode: fn(&[u8], &mut [f32]),
    /// Encodes whole blocks, where an encoder exists. Panics if the lengths disagree.
    pub encode: Option<Encode>,
    /// The dot product of one shard.
    pub dot: Dot,
}

impl FormatInfo {
    /// Elements in the unit that shards are cut on: a block, or 32 for float formats.
    pub const fn shard_unit(&self) -> usize {
        match self.activation {
            Activation::F32 => 32,
            Activation::Int8x32 | Activation::Int8x256 => self.block_elements,
        }
    }
}

/// All formats, in the order of [`Format`].
pub static FORMATS: &[FormatInfo] = &[
    float32::INFO,
    f16::INFO,
    bf16::INFO,
    q4_0::INFO,
    q8_0::INFO,
    q2_k::INFO,
    q3_k::INFO,
    q4_k::INFO,
    q5_k::INFO,
    q6_k::INFO,
    iq2_xxs::INFO,
    mxfp4::INFO,
];

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.info().name)
    }
}

impl Format {
    /// The format's row of [`FORMATS`].
    pub fn info(self) -> &'static FormatInfo {
        &FORMATS[self as usize]
    }

    /// The format with this GGUF type id, if we have it.
    pub fn from_gguf_id(id: u32) -> Option<Self> {
        FORMATS.iter().find(|info| info.gguf_id == id).map(|info| info.format)
    }

    /// The format with this name, in any letter case, if we have it.
    pub fn from_name(name: &str) -> Option<Self> {
        FORMATS.iter().find(|info| info.name.eq_ignore_ascii_case(name)).map(|info| info.format)
    }

    /// Bytes of a row; `None` if `columns` is not a whole number of blocks or the size overflows.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        let info = self.info();
        if !columns.is_multiple_of(info.block_elements) {
            return None;
        }
        (columns / info.block_elements).checked_mul(info.block_bytes)
    }
}
