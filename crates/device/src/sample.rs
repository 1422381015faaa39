//! The float steps of sampling, on the host: the largest logits, logits to whole-number weights,
//! and sums over those from a logit up.
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

/// Lanes of the loops below.
const LANES: usize = 16;

/// Logits of a block, for which one maximum and one sum are kept.
pub const LOGIT_BLOCK: usize = 64;

/// Writes the largest logit of each block and says whether all logits are numbers or -inf.
///
/// # Panics
/// When there is not one maximum a block.
pub fn block_maxima(logits: &[f32], maxima: &mut [f32]) -> bool {
    assert_eq!(logits.len().div_ceil(LOGIT_BLOCK), maxima.len(), "one maximum a block");
    on(Isa::best(), Maxima { logits, maxima })
}

/// Writes a weight for each logit and returns their sum. `max` is the largest logit, finite; the
/// others are at most that or negative infinity, which weighs nothing. `scale` is finite and not
/// negative.
///
/// # Panics
/// When the lengths differ or exceed [`WEIGHTS_MAX`].
pub fn exp_weights(logits: &[f32], max: f32, scale: f64, weights: &mut [u64]) -> u64 {
    assert_eq!(logits.len(), weights.len(), "one weight a logit");
    assert!(logits.len() <= WEIGHTS_MAX, "sums of weights fit 64 bits");
    on(Isa::best(), Weigh { logits, max, scale, weights })
}

/// Tokens with logits from `least` up: writes their weight in each block, and returns how many they
/// are and their weight. Blocks whose maximum is below `least` are not looked at.
///
/// # Panics
/// When the lengths do not fit.
pub fn weights_from(
    logits: &[f32],
    weights: &[u64],
    maxima: &[f32],
    least: f32,
    sums: &mut [u64],
) -> (usize, u64) {
    assert_eq!(logits.len(), weights.len(), "one weight a logit");
    assert_eq!(logits.len().div_ceil(LOGIT_BLOCK), maxima.len(), "one maximum a block");
    assert_eq!(maxima.len(), sums.len(), "one sum a block");
    on(Isa::best(), Sums { logits, weights, maxima, least, sums })
}

/// Tokens with logits from `high` up: returns how many they are and their weight. Writes the ids of
/// those from `low` up and below `high`, ascending.
///
/// # Panics
/// When the lengths do not fit.
pub fn weights_split(
    logits: &[f32],
    weights: &[u64],
    maxima: &[f32],
    (low, high): (f32, f32),
    ids: &mut Vec<u32>,
) -> (usize, u64) {
    assert_eq!(logits.len(), weights.len(), "one weight a logit");
    assert_eq!(logits.len().div_ceil(LOGIT_BLOCK), maxima.len(), "one maximum a block");
    ids.clear();
    on(Isa::best(), Split { logits, weights, maxima, low, high, ids })
}

/// A loop that is compiled again for each instruction set: `run` is always inlined.
trait Work {
    type Out;
    fn run(self, isa: Isa) -> Self::Out;
}

fn on<W: Work>(isa: Isa, work: W) -> W::Out {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: callers pass sets that the machine has: `Isa::best`, in tests `Isa::available`.
        Isa::Avx2 => unsafe { avx2(work) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 => unsafe { avx512(work) },
        _ => work.run(Isa::Scalar),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<W: Work>(work: W) -> W::Out {
    work.run(Isa::Avx2)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
fn avx512<W: Work>(work: W) -> W::Out {
    work.run(Isa::Avx512)
}

struct Maxima<'a> {
    logits: &'a [f32],
    maxima: &'a mut [f32],
}

impl Work for Maxima<'_> {
    type Out = bool;

    #[inline(always)]
    fn run(self, _: Isa) -> bool {
        const LANES: usize = 16;
        // As whole numbers with a sign, +inf and what has its sign and is no number are the
        // largest; without a sign, the others that are no numbers are beyond -inf.
        let mut bounds = ([i32::MIN; LANES], [0u32; LANES]);
        let (blocks, rest) = self.logits.as_chunks::<LOGIT_BLOCK>();
        for (out, block) in self.maxima.iter_mut().zip(blocks) {
            *out = maximum(block, &mut bounds);
        }
        if let Some(out) = self.maxima.get_mut(blocks.len()) {
            let mut block = [f32::NEG_INFINITY; LOGIT_BLOCK];
            block[..rest.len()].copy_from_slice(rest);
            *out = maximum(&block, &mut bounds);
        }
        let infinite = f32::INFINITY.to_bits().cast_signed();
        let forbidden = f32::NEG_INFINITY.to_bits();
        bounds.0.iter().all(|s| *s < infinite) && bounds.1.iter().all(|u| *u <= forbidden)
    }
}

/// The largest of a block; `bounds` take in its bits, with and without a sign.
#[inline(always)]
fn maximum(block: &[f32; LOGIT_BLOCK], bounds: &mut ([i32; LANES], [u32; LANES])) -> f32 {
    let (mut signed, mut unsigned) = *bounds;
    let mut max = [f32::NEG_INFINITY; LANES];
    for row in block.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let bits = row[lane].to_bits();
            max[lane] = if row[lane] > max[lane] { row[lane] } else { max[lane] };
            signed[lane] = signed[lane].max(bits.cast_signed());
            unsigned[lane] = unsigned[lane].max(bits);
        }
    }
    *bounds = (signed, unsigned);
    max.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

struct Weigh<'a> {
    logits: &'a [f32],
    max: f32,
    scale: f64,
    weights: &'a mut [u64],
}

impl Work for Weigh<'_> {
    type Out = u64;

    #[inline(always)]
    fn run(self, _: Isa) -> u64 {
        let max = f64::from(self.max);
        let mut sum = 0u64;
        for (weight, &logit) in self.weights.iter_mut().zip(self.logits) {
            *weight = weight_of((f64::from(logit) - max) * self.scale);
            sum = sum.wrapping_add(*weight);
        }
        sum
    }
}

struct Sums<'a> {
    logits: &'a [f32],
    weights: &'a [u64],
    maxima: &'a [f32],
    least: f32,
    sums: &'a mut [u64],
}

impl Work for Sums<'_> {
    type Out = (usize, u64);

    #[inline(always)]
    fn run(self, isa: Isa) -> (usize, u64) {
        let (mut count, mut sum) = (0, 0);
        let blocks = self.logits.chunks(LOGIT_BLOCK).zip(self.weights.chunks(LOGIT_BLOCK));
        for ((out, &max), (logits, weights)) in self.sums.iter_mut().zip(self.maxima).zip(blocks) {
            *out = 0;
            if max >= self.least {
                let found = split(isa, logits, weights, (self.least, self.least));
                *out = found.weight;
                count += found.above.count_ones() as usize;
                sum += found.weight;
            }
        }
        (count, sum)
    }
}

struct Split<'a> {
    logits: &'a [f32],
    weights: &'a [u64],
    maxima: &'a [f32],
    low: f32,
    high: f32,
    ids: &'a mut Vec<u32>,
}

impl Work for Split<'_> {
    type Out = (usize, u64);

    #[inline(always)]
    fn run(self, isa: Isa) -> (usize, u64) {
        let (mut count, mut sum) = (0, 0);
        let blocks = self.logits.chunks(LOGIT_BLOCK).zip(self.weights.chunks(LOGIT_BLOCK));
        for ((start, &max), (logits, weights)) in
            (0..).step_by(LOGIT_BLOCK).zip(self.maxima).zip(blocks)
        {
            if max < self.low {
                continue;
            }
            let found = split(isa, logits, weights, (self.low, self.high));
            count += found.above.count_ones() as usize;
            sum += found.weight;
            let mut between = found.between;
            while between != 0 {
                self.ids.push(start + between.trailing_zeros());
                between &= between - 1;
            }
        }
        (count, sum)
    }
}

/// A block's tokens about two logits: a bit for each of those from `high` up, their weight, and a
/// bit for each of those from `low` up and below `high`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    above: u64,
    weight: u64,
    between: u64,
}

#[inline(always)]
fn split(isa: Isa, logits: &[f32], weights: &[u64], (low, high): (f32, f32)) -> Found {
    #[cfg(target_arch = "x86_64")]
    if let (Isa::Avx512, Ok(logits), Ok(weights)) = (isa, logits.try_into(), weights.try_into()) {
        // SAFETY: `on` passes sets that the machine has.
        return unsafe { split_avx512(logits, weights, (low, high)) };
    }
    let _ = isa;
    let mut found = Found::default();
    for (place, (&logit, &weight)) in logits.iter().zip(weights).enumerate() {
        let above = logit >= high;
        found.above |= u64::from(above) << place;
        found.weight += if above { weight } else { 0 };
        found.between |= u64::from((logit >= low) & !above) << place;
    }
    found
}

/// [`split`] of a whole block; a comparison is a bit mask here, and masks the sum.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
fn split_avx512(
    logits: &[f32; LOGIT_BLOCK],
    weights: &[u64; LOGIT_BLOCK],
    (low, high): (f32, f32),
) -> Found {
    use std::arch::x86_64::*;
    let (low, high) = (_mm512_set1_ps(low), _mm512_set1_ps(high));
    let mut found = Found::default();
    let mut sums = [_mm512_setzero_si512(); 2];
    let rows =
        logits.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<8>().0.as_chunks::<2>().0);
    for (row, (logits, weights)) in rows.enumerate() {
        // SAFETY: a row is 16 floats, and its weights are twice 8 whole numbers.
        let (logits, weights) = unsafe {
            let load = |half: &[u64; 8]| _mm512_loadu_si512(half.as_ptr().cast());
            (_mm512_loadu_ps(logits.as_ptr()), [load(&weights[0]), load(&weights[1])])
        };
        let above = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(logits, high);
        let from = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(logits, low);
        for (half, (sum, weights)) in sums.iter_mut().zip(weights).enumerate() {
            let mask = above.to_le_bytes()[half];
            *sum = _mm512_mask_add_epi64(*sum, mask, *sum, weights);
        }
        found.above |= u64::from(above) << (LANES * row);
        found.between |= u64::from(from & !above) << (LANES * row);
    }
    found.weight = _mm512_reduce_add_epi64(_mm512_add_epi64(sums[0], sums[1])).cast_unsigned();
    found
}

/// rne(2^44 e^x) for x <= 0, within one or 2^-36 of it; 0 from about -31 on. Not a number counts as
/// -40.
#[inline(always)]
fn weight_of(x: f64) -> u64 {
    // Adding 1.5 * 2^52 rounds to an integer that sits in the low bits of the sum.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // Adding 2^52 does the same for what is not negative and below 2^52.
    const WHOLE: f64 = 4_503_599_627_370_496.0;
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
    let power = f64::from_bits(shifted.to_bits().wrapping_add(1023 + u64::from(WEIGHT_BITS)) << 52);
    p.mul_add(power, WHOLE).to_bits() & ((1 << 52) - 1)
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

    fn weigh(isa: Isa, logits: &[f32], scale: f64, weights: &mut [u64]) -> u64 {
        on(isa, Weigh { logits, max: 0.0, scale, weights })
    }

    #[test]
    fn maxima_and_sums_are_those_of_plain_loops() {
        let mut logits = inputs();
        for count in [1, 63, 64, 65, 1000, 5000] {
            let logits = &mut logits[..count];
            logits.reverse();
            let blocks = count.div_ceil(LOGIT_BLOCK);
            let wanted: Vec<f32> = logits
                .chunks(LOGIT_BLOCK)
                .map(|b| b.iter().copied().fold(f32::NEG_INFINITY, f32::max))
                .collect();
            let weights: Vec<u64> = (0..count as u64).map(|i| i * i % 1009).collect();
            for isa in Isa::available() {
                let (mut maxima, mut sums) = (vec![0.0; blocks], vec![7; blocks]);
                assert!(on(isa, Maxima { logits, maxima: &mut maxima }));
                assert!(maxima == wanted, "{} of {count}", isa.name());
                let mut ids = vec![9];
                for (low, high) in [(-30.0, -20.5), (f32::NEG_INFINITY, -44.0), (-1.0, 1.0)] {
                    let (weights, maxima, ids) = (&weights[..], &maxima[..], &mut ids);
                    ids.clear();
                    let found = on(isa, Split { logits, weights, maxima, low, high, ids });
                    let above = || (0..count).filter(|&i| logits[i] >= high);
                    let weight = above().map(|i| weights[i]).sum::<u64>();
                    assert_eq!(found, (above().count(), weight), "{} {high}", isa.name());
                    let between = (0..count).filter(|&i| (low..high).contains(&logits[i]));
                    assert!(ids.iter().map(|&i| i as usize).eq(between), "{} {low}", isa.name());
                }
                for least in [f32::NEG_INFINITY, -44.0, -20.5, -0.0, 0.0, 1.0] {
                    let kept = || (0..count).filter(|&i| logits[i] >= least);
                    let (weights, maxima, sums) = (&weights[..], &maxima[..], &mut sums[..]);
                    let found = on(isa, Sums { logits, weights, maxima, least, sums });
                    let weight = kept().map(|i| weights[i]).sum::<u64>();
                    assert_eq!(found, (kept().count(), weight), "{} from {least}", isa.name());
                    for (block, &sum) in sums.iter().enumerate() {
                        let inside = kept().filter(|i| i / LOGIT_BLOCK == block);
                        assert_eq!(sum, inside.map(|i| weights[i]).sum::<u64>());
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_no_logit_is_seen_anywhere() {
        for wrong in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for (count, at) in [(1, 0), (64, 63), (65, 64), (200, 130), (200, 199)] {
                let mut logits = vec![f32::NEG_INFINITY; count];
                let mut maxima = vec![0.0; count.div_ceil(LOGIT_BLOCK)];
                for isa in Isa::available() {
                    assert!(on(isa, Maxima { logits: &logits, maxima: &mut maxima }));
                }
                logits[at] = wrong;
                for isa in Isa::available() {
                    assert!(!on(isa, Maxima { logits: &logits, maxima: &mut maxima }));
                }
            }
        }
    }

    #[test]
    fn weights_are_the_exponential_rounded() {
        let logits = inputs();
        let mut weights = vec![0; logits.len()];
        for scale in [1.0, 0.25, 3.0, 0.0] {
            let sum = weigh(Isa::Scalar, &logits, scale, &mut weights);
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
        let sum = weigh(Isa::Scalar, &logits, 0.7, &mut wanted);
        for isa in Isa::available() {
            let mut weights = vec![0; logits.len()];
            assert_eq!(weigh(isa, &logits, 0.7, &mut weights), sum, "{}", isa.name());
            assert!(weights == wanted, "{}", isa.name());
        }
    }
}
