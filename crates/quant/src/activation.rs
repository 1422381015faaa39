//! Activations as int8 blocks (DESIGN 5, "Quantised products").

/// A row of activations in int8 blocks.
#[derive(Clone, Copy, Debug)]
pub struct Int8Blocks<'a> {
    /// One code an element.
    pub codes: &'a [i8],
    /// One scale a block: per 32 or 256 codes, as the weight format names.
    pub scales: &'a [f32],
}

/// Rounds `x` to int8 in blocks of `block` elements.
///
/// With m the largest magnitude of a block: scale = m/127, code = rne(x * (127/m)). A block of
/// zeros, or of values so small that 127/m is not finite, becomes zeros with scale 0. A block with
/// a NaN or an infinity becomes zero codes with scale NaN, so that the fault shows in every product
/// and is not rounded away.
///
/// Panics unless `x` is whole blocks and `codes`, `scales` have their lengths.
pub fn quantize_int8(x: &[f32], block: usize, codes: &mut [i8], scales: &mut [f32]) {
    assert!(block > 0 && x.len().is_multiple_of(block), "{} values, block {block}", x.len());
    assert_eq!(codes.len(), x.len(), "codes and values");
    assert_eq!(scales.len(), x.len() / block, "scales and blocks");
    for ((x, codes), scale) in
        x.chunks_exact(block).zip(codes.chunks_exact_mut(block)).zip(scales.iter_mut())
    {
        *scale = quantize_block(x, codes);
    }
}

/// Rounds one block and returns its scale.
fn quantize_block(x: &[f32], codes: &mut [i8]) -> f32 {
    let max = x.iter().fold(0f32, |max, v| max.max(v.abs()));
    let inverse = 127.0 / max;
    let finite = x.iter().all(|v| v.is_finite());
    if !finite || !inverse.is_finite() {
        codes.fill(0);
        return if finite { 0.0 } else { f32::NAN };
    }
    for (code, v) in codes.iter_mut().zip(x) {
        #[expect(clippy::cast_possible_truncation, reason = "|v| <= max, so the code is <= 127")]
        let rounded = (v * inverse).round_ties_even() as i8;
        *code = rounded;
    }
    max / 127.0
}
