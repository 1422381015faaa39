//! The one float step of sampling: logits to whole-number weights, on the host.
//!
//! A weight is `rne(2^44 e^((logit - max) * scale))`, with e^x computed from f64 products and sums
//! in the order written here and nothing else (no fused steps, no library call), so that every
//! machine and every instruction set gives the same integers. All that follows from weights is
//! exact and needs no order.

use crate::Isa;

/// Weight of the largest logit is two to this power.
pub const WEIGHT_BITS: u32 = 44;

/// Most logits that may be weighed at once, so that no sum of weights overflows.
pub const WEIGHTS_MAX: usize = 1 << 19;

/// Writes a weight for each logit and returns their sum. `max` is the largest logit, finite; the
/// others are at most that or negative infinity, which weighs nothing. `scale` is finite and not
/// negative.
///
/// # Panics
/// When the lengths differ or exceed [`WEIGHTS_MAX`].
pub fn exp_weights(logits: &[f32], max: f32, scale: f64, weights: &mut [u64]) -> u64 {
    assert_eq!(logits.len(), weights.len(), "one weight a logit");
    assert!(logits.len() <= WEIGHTS_MAX, "sums of weights fit 64 bits");
    run(Isa::best(), logits, max, scale, weights)
}

fn run(isa: Isa, logits: &[f32], max: f32, scale: f64, weights: &mut [u64]) -> u64 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: callers pass sets that the machine has: `Isa::best`, in tests `Isa::available`.
        Isa::Avx2 => unsafe { avx2(logits, max, scale, weights) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 => unsafe { avx512(logits, max, scale, weights) },
        _ => weigh(logits, max, scale, weights),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(logits: &[f32], max: f32, scale: f64, weights: &mut [u64]) -> u64 {
    weigh(logits, max, scale, weights)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
fn avx512(logits: &[f32], max: f32, scale: f64, weights: &mut [u64]) -> u64 {
    weigh(logits, max, scale, weights)
}

#[inline(always)]
fn weigh(logits: &[f32], max: f32, scale: f64, weights: &mut [u64]) -> u64 {
    let max = f64::from(max);
    let mut sum = 0u64;
    for (weight, &logit) in weights.iter_mut().zip(logits) {
        *weight = weight_of((f64::from(logit) - max) * scale);
        sum = sum.wrapping_add(*weight);
    }
    sum
}

/// rne(2^44 e^x) for x <= 0, within one or 2^-36 of it; 0 from about -31 on. Not a number counts as
/// -40.
#[inline(always)]
fn weight_of(x: f64) -> u64 {
    // Adding 1.5 * 2^52 rounds to an integer that sits in the low bits of the sum.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // Adding 2^52 does the same for what is not negative and below 2^52.
    const WHOLE: f64 = 4_503_599_627_370_496.0;
    const SCALE: f64 = 17_592_186_044_416.0;
    let x = if x > -40.0 { x } else { -40.0 };
    let shifted = x.mul_add(std::f64::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-std::f64::consts::LN_2, x);
    // Taylor, 1/9! first: the rest is below 1e-11 of the sum where |r| <= ln(2)/2.
    let p = 2.755_731_922_398_589e-6;
    let p = r.mul_add(p, 2.480_158_730_158_73e-5);
    let p = r.mul_add(p, 1.984_126_984_126_984e-4);
    let p = r.mul_add(p, 1.388_888_888_888_889e-3);
    let p = r.mul_add(p, 8.333_333_333_333_333e-3);
    let p = r.mul_add(p, 4.166_666_666_666_666_4e-2);
    let p = r.mul_add(p, 1.666_666_666_666_666_6e-1);
    let p = r.mul_add(p, 0.5);
    let p = r.mul_add(p, 1.0);
    let p = r.mul_add(p, 1.0);
    let power = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    (p * power).mul_add(SCALE, WHOLE).to_bits() & ((1 << 52) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps over [-45, 0] and the ends.
    fn inputs() -> Vec<f32> {
        let mut all: Vec<f32> = (0..=u16::MAX).map(|i| -f32::from(i) * 45.0 / 65_535.0).collect();
        all.extend([0.0, -0.0, f32::NEG_INFINITY, f32::MIN, -1e-30, -31.0, -40.0]);
        all
    }

    #[test]
    fn weights_are_the_exponential_rounded() {
        let logits = inputs();
        let mut weights = vec![0; logits.len()];
        for scale in [1.0, 0.25, 3.0, 0.0] {
            let sum = run(Isa::Scalar, &logits, 0.0, scale, &mut weights);
            assert_eq!(sum, weights.iter().sum::<u64>());
            for (&logit, &weight) in logits.iter().zip(&weights) {
                if logit.is_infinite() && scale == 0.0 {
                    continue;
                }
                let wanted = libm::exp(f64::from(logit) * scale) * 2f64.powi(44);
                #[expect(clippy::cast_precision_loss, reason = "at most 2^44")]
                let error = (weight as f64 - wanted).abs();
                assert!(
                    error <= 1.0 + wanted * 2f64.powi(-36),
                    "e^({logit} * {scale}): {weight}, wanted {wanted}"
                );
            }
        }
    }

    #[test]
    fn the_largest_weighs_two_to_the_44() {
        let mut weights = [7; 4];
        let sum = exp_weights(&[1.5, f32::NEG_INFINITY, 1.5, -60.0], 1.5, 1.0, &mut weights);
        assert_eq!((weights, sum), ([1 << 44, 0, 1 << 44, 0], 2 << 44));
    }

    #[test]
    fn every_instruction_set_gives_the_same_weights() {
        let logits = inputs();
        let mut wanted = vec![0; logits.len()];
        let sum = run(Isa::Scalar, &logits, 0.0, 0.7, &mut wanted);
        for isa in Isa::available() {
            let mut weights = vec![0; logits.len()];
            assert_eq!(run(isa, &logits, 0.0, 0.7, &mut weights), sum, "{}", isa.name());
            assert!(weights == wanted, "{}", isa.name());
        }
    }
}
