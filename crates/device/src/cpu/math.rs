//! Elementary functions in f32 from fused multiply-adds and integer steps only, so that every
//! instruction set and every loop gives equal bits. No branches: loops over them vectorise.
//!
//! Largest errors against f64, measured by `tests.rs` over the stated ranges, in units of the last
//! place: see each function.

/// e^x. Largest error 1.0 ulp over [-87, 88.7]; gradual below, infinity above 88.73, NaN kept.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer that sits in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts; the first has so few bits that its products with exponents are exact.
    const LN2_HIGH: f32 = 0.693_145_75;
    const LN2_LOW: f32 = 1.428_606_8e-6;
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_HIGH, x);
    let r = n.mul_add(-LN2_LOW, r);
    let p = 1.987_569_1e-4f32;
    let p = p.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let e = (p * r).mul_add(r, r) + 1.0;
    // 2^n in two factors, since n may leave the range of normal exponents.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127).cast_unsigned() & 0xff) << 23);
    e * power(half) * power(n.wrapping_sub(half))
}

/// 1 / (1 + e^-x). Largest error 2.5 ulp over [-87, 87].
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x / (1 + e^-x). Largest error 2.5 ulp over [-87, 87].
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// ln(1 + x) for x in [0, 1]. Largest error 1.0 ulp.
#[inline(always)]
pub(crate) fn ln1p(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_145_75;
    const LN2_LOW: f32 = 1.428_606_8e-6;
    // u = 1 + x rounded; what the rounding lost comes back as c = lost / u.
    let u = 1.0 + x;
    let c = (x - (u - 1.0)) / u;
    let upper = u > std::f32::consts::SQRT_2;
    let f = if upper { 0.5 * u - 1.0 } else { u - 1.0 };
    let k = if upper { 1.0f32 } else { 0.0 };
    // ln(1 + f) = f - (f^2/2 - s (f^2/2 + R)), s = f/(2+f), R = sum of 2 s^2i/(2i+1), i >= 1.
    let s = f / (2.0 + f);
    let z = s * s;
    let r = 0.222_222_22f32;
    let r = r.mul_add(z, 0.285_714_3);
    let r = r.mul_add(z, 0.4);
    let r = r.mul_add(z, 0.666_666_7) * z;
    let half_square = 0.5 * f * f;
    let tail = s.mul_add(half_square + r, k.mul_add(LN2_LOW, c));
    k.mul_add(LN2_HIGH, f - (half_square - tail))
}

/// ln(1 + e^x) as max(x, 0) + ln1p(e^-|x|). Largest error 2.0 ulp over [-87, 1000].
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    let positive = if x > 0.0 { x } else { 0.0 };
    positive + ln1p(exp(-x.abs()))
}

/// An integer that orders floats: larger floats have larger keys, -0 equals +0, NaN is last.
#[inline(always)]
pub(crate) fn order_key(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    let key = if bits >> 31 == 0 { bits | 0x8000_0000 } else { !bits };
    if x.is_nan() { 0 } else { key }
}

#[cfg(test)]
mod tests;
