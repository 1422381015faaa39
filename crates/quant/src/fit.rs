//! The search behind the encoders: codes, scales and minimums with the least weighted square error.
//!
//! Two moves, both plain least squares. For a run of values alone: try a ladder of scales, round to
//! codes, solve for the best real scale (and minimum) of those codes. For a super-block: quantise
//! those to the integers the format has, look at their neighbours, refit d and dmin to everything
//! chosen, and repeat while the error falls. Scalar f32 in a fixed order: the same input always
//! gives the same bytes.

use crate::block::chunks;
use crate::f16::{f16_to_f32, f32_to_f16};
use crate::k_blocks::{SUPER, Unpacked};
use crate::shards::tree8;

/// Values below this are zero to every format with an f16 scale.
const TINY: f32 = 1e-20;

/// The integers a format has, inclusive.
#[derive(Clone, Copy)]
pub(crate) struct Ranges {
    pub codes: (i8, i8),
    pub scales: (i8, i8),
    /// 0 for formats without minimums.
    pub minimum_max: i8,
}

/// A super-block as chosen.
pub(crate) struct SuperBlock<const SUBS: usize> {
    pub integers: Unpacked<SUBS>,
    /// f16 bits.
    pub d: u16,
    /// f16 bits.
    pub dmin: u16,
}

/// Nearest code for `ratio`, within `range`; NaN gives 0.
#[expect(clippy::cast_possible_truncation, reason = "clamped to the range of an i8; NaN gives 0")]
pub(crate) fn nearest(ratio: f32, range: (i8, i8)) -> i8 {
    nearest_float(ratio, range) as i8
}

/// Nearest code for `ratio`, within `range`, ties to even, as a float.
fn nearest_float(ratio: f32, range: (i8, i8)) -> f32 {
    // At 1.5 * 2^23 one ulp is 1: the sum rounds to an integer, without a call on plain x86-64.
    const ROUND: f32 = 12_582_912.0;
    ratio.clamp(f32::from(range.0), f32::from(range.1)) + ROUND - ROUND
}

/// Sums of N terms over values and weights, in eight lanes and the tree over lanes.
fn lane_sums<const N: usize>(
    x: &[f32],
    w: &[f32],
    terms: impl Fn(f32, f32) -> [f32; N],
) -> [f32; N] {
    let mut lanes = [[0f32; 8]; N];
    for (x, w) in chunks::<f32, 8>(x).iter().zip(chunks::<f32, 8>(w)) {
        for lane in 0..8 {
            for (lanes, term) in lanes.iter_mut().zip(terms(x[lane], w[lane])) {
                lanes[lane] += term;
            }
        }
    }
    lanes.map(|lanes| tree8(&lanes))
}

/// `a / b`, or 0 where that is not finite.
pub(crate) fn ratio(a: f32, b: f32) -> f32 {
    let ratio = a / b;
    if ratio.is_finite() { ratio } else { 0.0 }
}

/// The signed value of largest magnitude.
fn peak(values: impl IntoIterator<Item = f32>) -> f32 {
    values.into_iter().fold(0f32, |peak, v| if v.abs() > peak.abs() { v } else { peak })
}

/// The scale (of either sign) that fits x = scale * code best.
pub(crate) fn fit_symmetric(x: &[f32], w: &[f32], codes: (i8, i8)) -> f32 {
    let peak = peak(x.iter().copied());
    if peak.abs() < TINY {
        return 0.0;
    }
    let (mut best_scale, mut best_gain) = (peak / f32::from(codes.0), 0f32);
    for step in LADDER {
        // The peak goes to about the lowest code, which reaches further than the highest.
        let inverse = f32::from(codes.0) * step / peak;
        let [xq, qq] = lane_sums(x, w, |x, w| {
            let q = nearest_float(x * inverse, codes);
            [w * x * q, w * q * q]
        });
        // With its best scale xq / qq a set of codes removes xq^2 / qq of the square sum.
        let gain = ratio(xq * xq, qq);
        if gain > best_gain {
            (best_gain, best_scale) = (gain, xq / qq);
        }
    }
    best_scale
}

/// The scale and minimum, neither negative, that fit x = scale * code - minimum best.
fn fit_affine(x: &[f32], w: &[f32], code_max: i8) -> (f32, f32) {
    let low = x.iter().fold(0f32, |low, &v| low.min(v));
    let high = x.iter().fold(low, |high, &v| high.max(v));
    if high - low < TINY {
        return (0.0, -low);
    }
    let (mut best, mut best_error) = ((0.0, 0.0), f32::INFINITY);
    for step in LADDER {
        let mut fit = ((high - low) / (f32::from(code_max) * step), -low);
        // The codes of a fit have a better fit, whose codes have a better one.
        for _ in 0..2 {
            fit = refit_affine(x, w, code_max, fit);
        }
        let error = affine_error(x, w, (0, code_max), fit);
        if error < best_error {
            (best_error, best) = (error, fit);
        }
    }
    best
}

/// Fractions of the code range that the extreme value is tried at: beyond 1 it is clipped.
const LADDER: [f32; 13] =
    [1.0, 0.76, 0.80, 0.84, 0.88, 0.91, 0.94, 0.97, 1.03, 1.06, 1.09, 1.13, 1.18];

/// The best scale and minimum for the codes that `fit` gives.
fn refit_affine(x: &[f32], w: &[f32], code_max: i8, fit: (f32, f32)) -> (f32, f32) {
    let (scale, minimum) = fit;
    let inverse = ratio(1.0, scale);
    let [ll, lr, rr, xl, xr] = lane_sums(x, w, |x, w| {
        let q = nearest_float((x + minimum) * inverse, (0, code_max));
        [w * q * q, w * q, w, w * x * q, w * x]
    });
    Normal { ll, lr, rr, xl, xr }.solve().unwrap_or(fit)
}

/// Sums of the least squares problem x = a * left - b * right with a, b >= 0.
struct Normal {
    ll: f32,
    lr: f32,
    rr: f32,
    xl: f32,
    xr: f32,
}

impl Normal {
    /// `(a, b)`, b held at zero where it would be negative; `None` if `left` is zero throughout.
    fn solve(&self) -> Option<(f32, f32)> {
        let determinant = self.ll * self.rr - self.lr * self.lr;
        if determinant > 0.0 {
            let a = (self.xl * self.rr - self.xr * self.lr) / determinant;
            let b = (self.xl * self.lr - self.xr * self.ll) / determinant;
            if a.is_finite() && b.is_finite() && b >= 0.0 {
                return Some((a, b));
            }
        }
        let a = self.xl / self.ll;
        a.is_finite().then_some((a, 0.0))
    }
}

/// Weighted square error of x = scale * code - minimum with the nearest codes.
fn affine_error(x: &[f32], w: &[f32], codes: (i8, i8), (scale, minimum): (f32, f32)) -> f32 {
    let inverse = ratio(1.0, scale);
    let [error] = lane_sums(x, w, |x, w| {
        let q = nearest_float((x + minimum) * inverse, codes);
        let miss = scale * q - minimum - x;
        [w * miss * miss]
    });
    error
}

/// Chooses every integer of a super-block.
pub(crate) fn fit_super<const SUBS: usize>(
    x: &[f32; SUPER],
    w: &[f32; SUPER],
    ranges: Ranges,
) -> SuperBlock<SUBS> {
    let width = SUPER / SUBS;
    let targets: [(f32, f32); SUBS] = std::array::from_fn(|sub| {
        let (x, w) = (&x[sub * width..][..width], &w[sub * width..][..width]);
        if ranges.minimum_max == 0 {
            (fit_symmetric(x, w, ranges.codes), 0.0)
        } else {
            fit_affine(x, w, ranges.codes.1)
        }
    });
    let anchor = if ranges.scales.0 < 0 { ranges.scales.0 } else { ranges.scales.1 };
    let mut d = peak(targets.map(|(scale, _)| scale)) / f32::from(anchor);
    let mut dmin = ratio(peak(targets.map(|(_, min)| min)), f32::from(ranges.minimum_max));
    let mut best: Option<(f32, SuperBlock<SUBS>)> = None;
    for _ in 0..ROUNDS_MAX {
        let (d_bits, dmin_bits) = (f32_to_f16(d), f32_to_f16(dmin));
        let stored = (f16_to_f32(d_bits), f16_to_f32(dmin_bits));
        let (error, integers) = choose_integers(x, w, ranges, &targets, stored);
        if best.as_ref().is_some_and(|(best_error, _)| *best_error <= error) {
            break;
        }
        (d, dmin) = refit_super(x, w, &integers).unwrap_or((d, dmin));
        best = Some((error, SuperBlock { integers, d: d_bits, dmin: dmin_bits }));
    }
    best.expect("the first round always sets it").1
}

/// Rounds of refitting d and dmin; the error rarely falls after the third.
const ROUNDS_MAX: usize = 4;

/// The best scale, minimum and codes of each sub-block for given d and dmin, and the whole error.
fn choose_integers<const SUBS: usize>(
    x: &[f32; SUPER],
    w: &[f32; SUPER],
    ranges: Ranges,
    targets: &[(f32, f32); SUBS],
    (d, dmin): (f32, f32),
) -> (f32, Unpacked<SUBS>) {
    let width = SUPER / SUBS;
    let mut chosen = Unpacked { codes: [0; SUPER], scales: [0; SUBS], minimums: [0; SUBS] };
    let mut total = 0f32;
    for (sub, &(scale, minimum)) in targets.iter().enumerate() {
        let (x, w) = (&x[sub * width..][..width], &w[sub * width..][..width]);
        let mut best = (f32::INFINITY, (0, 0), (0.0, 0.0));
        for scale in neighbours(ratio(scale, d), ranges.scales) {
            for minimum in neighbours(ratio(minimum, dmin), (0, ranges.minimum_max)) {
                let fit = (d * f32::from(scale), dmin * f32::from(minimum));
                let error = affine_error(x, w, ranges.codes, fit);
                if error < best.0 {
                    best = (error, (scale, minimum), fit);
                }
            }
        }
        let (error, (scale, minimum), fit) = best;
        (chosen.scales[sub], chosen.minimums[sub]) = (scale, minimum);
        let inverse = ratio(1.0, fit.0);
        for (code, &x) in chosen.codes[sub * width..][..width].iter_mut().zip(x) {
            *code = nearest((x + fit.1) * inverse, ranges.codes);
        }
        total += error;
    }
    (total, chosen)
}

/// The nearest integer and those beside it, within `range`; the first of equals is kept.
fn neighbours(ratio: f32, range: (i8, i8)) -> [i8; 3] {
    let middle = nearest(ratio, range);
    [middle, middle.saturating_sub(1).max(range.0), middle.saturating_add(1).min(range.1)]
}

/// The best d and dmin for chosen integers.
fn refit_super<const SUBS: usize>(
    x: &[f32; SUPER],
    w: &[f32; SUPER],
    chosen: &Unpacked<SUBS>,
) -> Option<(f32, f32)> {
    let mut sums = Normal { ll: 0.0, lr: 0.0, rr: 0.0, xl: 0.0, xr: 0.0 };
    for (i, (&x, &w)) in x.iter().zip(w).enumerate() {
        let sub = i / (SUPER / SUBS);
        let left = f32::from(chosen.scales[sub]) * f32::from(chosen.codes[i]);
        let right = f32::from(chosen.minimums[sub]);
        sums.ll += w * left * left;
        sums.lr += w * left * right;
        sums.rr += w * right * right;
        sums.xl += w * x * left;
        sums.xr += w * x * right;
    }
    sums.solve()
}
