//! Largest errors, in units of the last place of the exact value.

use super::*;
use std::ops::RangeInclusive;

/// Largest error over floats evenly spaced by their bits, so that all magnitudes take part.
fn worst(range: RangeInclusive<f32>, f: fn(f32) -> f32, exact: fn(f64) -> f64) -> (f64, f32) {
    let mut worst = (0.0, 0.0);
    for step in 0..=u32::MAX / 1021 {
        let x = f32::from_bits(step * 1021);
        if !range.contains(&x) {
            continue;
        }
        let wanted = exact(f64::from(x));
        // The distance between floats at the wanted value; subnormals have the smallest normal's.
        let exponent = wanted.abs().log2().floor().max(-126.0);
        let error = (f64::from(f(x)) - wanted).abs() / (exponent - 23.0).exp2();
        if error.is_nan() || error > worst.0 {
            worst = (error, x);
        }
    }
    worst
}

#[track_caller]
fn check(range: RangeInclusive<f32>, f: fn(f32) -> f32, exact: fn(f64) -> f64, bound: f64) {
    let (error, x) = worst(range, f, exact);
    assert!(error <= bound, "{error} ulp at {x}, more than {bound}");
    // The documented bound is the measured one, not a guess far above it.
    assert!(error > 0.6 * bound, "{error} ulp at {x}: document less than {bound}");
}

#[test]
fn exp_is_within_an_ulp() {
    check(-87.0..=88.7, exp, libm::exp, 1.0);
}

#[test]
fn exp_at_the_ends() {
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp(-1e30), 0.0);
    assert_eq!(exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(exp(1e30), f32::INFINITY);
    assert!(exp(f32::NAN).is_nan());
    // Subnormal results are rounded once.
    check(-103.0..=-87.0, exp, libm::exp, 1.0);
}

#[test]
fn sigmoid_and_silu() {
    check(-87.0..=87.0, sigmoid, |x| 1.0 / (1.0 + libm::exp(-x)), 2.5);
    check(-87.0..=87.0, silu, |x| x / (1.0 + libm::exp(-x)), 2.5);
    assert_eq!((sigmoid(-1e30), sigmoid(1e30)), (0.0, 1.0));
    assert!(silu(f32::NAN).is_nan());
}

#[test]
fn logarithms() {
    check(0.0..=1.0, ln1p, libm::log1p, 1.0);
    let exact = |x: f64| x.max(0.0) + libm::log1p(libm::exp(-x.abs()));
    check(-87.0..=1000.0, softplus, exact, 2.0);
    assert!(softplus(f32::NAN).is_nan());
    assert_eq!(softplus(f32::INFINITY), f32::INFINITY);
    assert_eq!(softplus(-1e30), 0.0);
}

#[test]
fn keys_order_floats() {
    let ascending = [f32::NEG_INFINITY, -2.0, -1e-40, 0.0, 1e-40, 1.0, f32::INFINITY];
    for pair in ascending.windows(2) {
        assert!(order_key(pair[0]) < order_key(pair[1]), "{pair:?}");
    }
    assert_eq!(order_key(-0.0), order_key(0.0));
    assert!(order_key(f32::NAN) < order_key(f32::NEG_INFINITY));
    assert!(order_key(-f32::NAN) < order_key(f32::NEG_INFINITY));
}
