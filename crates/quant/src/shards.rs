//! The cut of K into eight shards of whole blocks, and the tree that adds them (DESIGN 5).
//!
//! Any work split that keeps shards whole and adds them by the same tree has the same bits: eight
//! lanes of a row, a split K of eight, or 1, 2, 4 or 8 ranks that own subtrees.

use std::ops::Range;

use crate::activation::Int8Blocks;
use crate::format::{Activation, Dot, Format};

/// Shards of a row.
pub const SHARDS: usize = 8;

/// Blocks of shard `shard`: of n blocks, shard i has floor(i n/8) .. floor((i+1) n/8).
#[inline]
pub fn shard_blocks(blocks: usize, shard: usize) -> Range<usize> {
    assert!(shard < SHARDS, "shard {shard} of {SHARDS}");
    // floor(i n/8) without forming i * n, which could overflow.
    let (eighth, rest) = (blocks / SHARDS, blocks % SHARDS);
    let border = |i: usize| i * eighth + i * rest / SHARDS;
    border(shard)..border(shard + 1)
}

/// [`shard_blocks`] of a part of a row: `blocks` blocks that are `shards` of the eight (1, 2, 4 or
/// 8). Where the row's blocks divide by the number of such parts, these are the same blocks.
#[inline]
pub fn part_blocks(blocks: usize, shards: usize, shard: usize) -> Range<usize> {
    let subtree = shards.is_power_of_two() && shards <= SHARDS;
    assert!(subtree && shard < shards, "shard {shard} of {shards}");
    // Shifts: kernels ask for every shard of every tile, and a division by a variable is slow.
    let (by, rest) = (shards.trailing_zeros(), blocks & (shards - 1));
    let border = |i: usize| i * (blocks >> by) + ((i * rest) >> by);
    border(shard)..border(shard + 1)
}

/// The subtree of [`tree8`] over 1, 2, 4 or 8 neighbouring shards.
#[inline]
pub fn subtree(parts: &[f32]) -> f32 {
    match *parts {
        [a] => a,
        [a, b] => a + b,
        [a, b, c, d] => tree4(&[a, b, c, d]),
        [a, b, c, d, e, f, g, h] => tree8(&[a, b, c, d, e, f, g, h]),
        _ => panic!("{} shards are no subtree", parts.len()),
    }
}

/// Adds eight parts: ((0+1)+(2+3))+((4+5)+(6+7)).
#[inline]
pub fn tree8(parts: &[f32; 8]) -> f32 {
    let [a, b, c, d, e, f, g, h] = *parts;
    tree4(&[a, b, c, d]) + tree4(&[e, f, g, h])
}

/// Adds four parts: (0+1)+(2+3).
#[inline]
pub fn tree4(parts: &[f32; 4]) -> f32 {
    (parts[0] + parts[1]) + (parts[2] + parts[3])
}

/// A row of activations in the form that a weight format is multiplied with.
#[derive(Clone, Copy, Debug)]
pub enum Row<'a> {
    /// For formats with [`Activation::F32`].
    F32(&'a [f32]),
    /// For formats with [`Activation::Int8x32`] or [`Activation::Int8x256`].
    Int8(Int8Blocks<'a>),
}

/// The dot product of each shard of a row; an empty shard is +0.
///
/// The cut is on blocks of the format; for float formats on 32 elements, where the last unit may be
/// short. Panics if `weights` and `x` differ in length or the form of `x` is not the format's.
pub fn dot_shards(format: Format, weights: &[u8], x: Row<'_>) -> [f32; SHARDS] {
    dot_part(format, weights, x, SHARDS)
}

/// [`dot_shards`] of a part of a row that is `shards` of the eight; the others are +0.
pub fn dot_part(format: Format, weights: &[u8], x: Row<'_>, shards: usize) -> [f32; SHARDS] {
    let info = format.info();
    let columns = match x {
        Row::F32(x) => x.len(),
        Row::Int8(x) => x.codes.len(),
    };
    assert_eq!(Some(weights.len()), format.row_bytes(columns), "bytes of {columns} columns");
    let unit = info.shard_unit();
    std::array::from_fn(|shard| {
        if shard >= shards {
            return 0.0;
        }
        let blocks = part_blocks(columns.div_ceil(unit), shards, shard);
        let elements = (blocks.start * unit).min(columns)..(blocks.end * unit).min(columns);
        let byte = |element: usize| element / info.block_elements * info.block_bytes;
        let weights = &weights[byte(elements.start)..byte(elements.end)];
        match (info.dot, x) {
            (Dot::Float(dot), Row::F32(x)) => dot(weights, &x[elements]),
            (Dot::Int(dot), Row::Int8(x)) => {
                dot(weights, Int8Blocks { codes: &x.codes[elements], scales: &x.scales[blocks] })
            }
            _ => panic!("{} rows are multiplied with {:?}", info.name, info.activation),
        }
    })
}

/// The dot product of a row: the tree over its shards.
pub fn dot(format: Format, weights: &[u8], x: Row<'_>) -> f32 {
    tree8(&dot_shards(format, weights, x))
}

impl Activation {
    /// Elements that share a scale; `None` for plain f32.
    pub const fn block(self) -> Option<usize> {
        match self {
            Self::F32 => None,
            Self::Int8x32 => Some(32),
            Self::Int8x256 => Some(256),
        }
    }
}

/// The float dot of one shard: lane j takes the elements j mod 8 by fma from +0; tree over lanes.
pub(crate) fn dot_lanes<const BYTES: usize>(
    weights: &[u8],
    x: &[f32],
    value: impl Fn([u8; BYTES]) -> f32,
) -> f32 {
    let weights = crate::block::chunks(weights);
    assert_eq!(weights.len(), x.len(), "weights and activations");
    let mut lanes = [0f32; 8];
    for (weights, x) in weights.chunks(8).zip(x.chunks(8)) {
        for ((lane, &weight), &x) in lanes.iter_mut().zip(weights).zip(x) {
            *lane = value(weight).mul_add(x, *lane);
        }
    }
    tree8(&lanes)
}
