//! Frequencies of the rotary tables, in the published order of roundings (spec 2.4).

use super::shape::Shape;

/// For layers without compression and the draft block: no YaRN.
pub(super) fn plain(shape: &Shape) -> Vec<f32> {
    (0..shape.rope_width / 2).map(|i| frequency(shape.rope_base, i, shape.rope_width)).collect()
}

/// For layers with compression: fast frequencies are kept, slow ones divided by the factor, with a
/// ramp between.
pub(super) fn yarn(shape: &Shape) -> Vec<f32> {
    let (low, high) = ramp_ends(shape);
    let pairs = shape.rope_width / 2;
    (0..pairs)
        .map(|i| {
            let f = frequency(shape.compress_rope_base, i, shape.rope_width);
            let ramp = ((as_f32(i) - low) / (high - low)).clamp(0.0, 1.0);
            let keep = 1.0 - ramp;
            (f / shape.yarn_factor) * (1.0 - keep) + f * keep
        })
        .collect()
}

/// 1 / base^(2i / width), each step rounded to f32.
fn frequency(base: f32, pair: usize, width: usize) -> f32 {
    let exponent = as_f32(2 * pair) / as_f32(width);
    #[expect(clippy::cast_possible_truncation, reason = "the published table rounds here")]
    let power = libm::pow(f64::from(base), f64::from(exponent)) as f32;
    1.0 / power
}

/// The pairs between which frequencies change over.
fn ramp_ends(shape: &Shape) -> (f32, f32) {
    let width = f64::from(as_f32(shape.rope_width));
    let context = f64::from(as_f32(shape.yarn_original_context));
    let base = f64::from(shape.compress_rope_base);
    let pair_of = |rotations: f32| {
        let turns = context / (f64::from(rotations) * 2.0 * std::f64::consts::PI);
        width * libm::log(turns) / (2.0 * libm::log(base))
    };
    let low = libm::floor(pair_of(shape.yarn_beta_fast)).max(0.0);
    let high = libm::ceil(pair_of(shape.yarn_beta_slow)).min(width - 1.0);
    #[expect(clippy::cast_possible_truncation, reason = "small whole numbers")]
    let (low, high) = (low as f32, high as f32);
    if low == high { (low, high + 0.001) } else { (low, high) }
}

fn as_f32(n: usize) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "shapes limit all such numbers to 2^24")]
    let value = n as f32;
    value
}
