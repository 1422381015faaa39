//! Blocks as structs over bytes, and the loops over blocks that all formats share.
//!
//! The two casts below are the crate's only unsafe code.

use crate::activation::Int8Blocks;

/// A block layout that may be laid over any bytes.
///
/// # Safety
/// The type is `repr(C)` (or transparent) and made of `u8`, `i8` and arrays of them only: alignment
/// one, no padding, every bit pattern valid.
pub unsafe trait Block: Copy {
    /// Bytes of a block.
    const BYTES: usize = size_of::<Self>();
}

/// Sees `bytes` as blocks. Panics unless the length is a whole number of blocks.
pub fn as_blocks<B: Block>(bytes: &[u8]) -> &[B] {
    const { assert!(align_of::<B>() == 1 && size_of::<B>() > 0) };
    check_whole(bytes.len(), B::BYTES);
    // SAFETY: `Block` promises that any bytes are a valid `B`; alignment one is asserted above, and
    // the length is a whole number of blocks, so the range is the slice's own.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / B::BYTES) }
}

/// Sees `bytes` as blocks to write. Panics unless the length is a whole number of blocks.
pub fn as_blocks_mut<B: Block>(bytes: &mut [u8]) -> &mut [B] {
    const { assert!(align_of::<B>() == 1 && size_of::<B>() > 0) };
    check_whole(bytes.len(), B::BYTES);
    // SAFETY: as in `as_blocks`; `B` has no padding, so what is written through it is plain bytes,
    // and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / B::BYTES) }
}

fn check_whole(bytes: usize, block: usize) {
    assert!(bytes.is_multiple_of(block), "{bytes} bytes are not whole blocks of {block}");
}

/// Splits a slice into arrays of `N`. Panics unless it is a whole number of them.
pub(crate) fn chunks<T, const N: usize>(values: &[T]) -> &[[T; N]] {
    let (whole, rest) = values.as_chunks();
    assert!(rest.is_empty(), "{} values are not whole blocks of {N}", values.len());
    whole
}

fn chunks_mut<T, const N: usize>(values: &mut [T]) -> &mut [[T; N]] {
    let count = values.len();
    let (whole, rest) = values.as_chunks_mut();
    assert!(rest.is_empty(), "{count} values are not whole blocks of {N}");
    whole
}

/// Decodes every block with `decode`.
pub(crate) fn decode_blocks<B: Block, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&B, &mut [f32; N]),
) {
    let (blocks, out) = (as_blocks::<B>(bytes), chunks_mut(out));
    assert_eq!(blocks.len(), out.len(), "blocks to read and blocks to write");
    for (block, out) in blocks.iter().zip(out) {
        decode(block, out);
    }
}

/// Dot product of one shard: `step(block, codes, activation scale, acc)` in block order from +0.
pub(crate) fn dot_blocks<B: Block, const N: usize>(
    bytes: &[u8],
    x: Int8Blocks<'_>,
    step: impl Fn(&B, &[i8; N], f32, f32) -> f32,
) -> f32 {
    let (blocks, codes) = (as_blocks::<B>(bytes), chunks(x.codes));
    assert_eq!(blocks.len(), codes.len(), "blocks of weights and of activations");
    assert_eq!(blocks.len(), x.scales.len(), "blocks of weights and activation scales");
    let mut acc = 0.0;
    for ((block, codes), &scale) in blocks.iter().zip(codes).zip(x.scales) {
        acc = step(block, codes, scale, acc);
    }
    acc
}

/// Largest magnitude that formats with an f16 scale store; larger values are clamped to it.
pub(crate) const F16_LIMIT: f32 = 65504.0;

/// Encodes every block with `encode(values, weights, block)`.
///
/// Values arrive finite: NaN has become 0, magnitudes beyond `limit` the limit. Weights are
/// positive, see [`weights`]; without importances they are ones.
pub(crate) fn encode_blocks<B: Block, const N: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    limit: f32,
    encode: impl Fn(&[f32; N], &[f32; N], &mut B),
) {
    let (values, out) = (chunks::<f32, N>(values), as_blocks_mut::<B>(out));
    assert_eq!(values.len(), out.len(), "blocks to read and blocks to write");
    let importance = importance.map(chunks::<f32, N>);
    if let Some(importance) = importance {
        assert_eq!(importance.len(), values.len(), "blocks of importances and of values");
    }
    let clean = |v: f32| if v.is_nan() { 0.0 } else { v.clamp(-limit, limit) };
    for (index, (values, out)) in values.iter().zip(out).enumerate() {
        let weights = importance.map_or([1.0; N], |importance| weights(&importance[index]));
        encode(&values.map(clean), &weights, out);
    }
}

/// Importances of a block brought to a largest value of 1 to 2 and not under a millionth, so that
/// sums of squares stay in range and a column that no text has used is still stored sensibly.
///
/// A negative or non-finite importance counts as 0; a block of zeros is all ones.
fn weights<const N: usize>(importance: &[f32; N]) -> [f32; N] {
    let clean = importance.map(|w| if w.is_finite() && w > 0.0 { w } else { 0.0 });
    let max = clean.iter().fold(0f32, |max, w| max.max(*w));
    if max < f32::MIN_POSITIVE {
        return [1.0; N];
    }
    // Divided by a power of two, which rounds nothing.
    let power = f32::from_bits(max.to_bits() & 0x7f80_0000);
    clean.map(|w| (w / power).max(1e-6))
}
