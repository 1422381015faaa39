//! The float steps of sampling, on the host: the largest logits, logits to whole-number weights,
//! and sums over those from a logit up.
//!
//! A weight is `rne(2^44 e^((logit - max) * scale))`, with e^x computed from f64 operations in the
//! order written in [`weight_of`] and nothing else (fused where written so, no library call), so
//! that every machine and every instruction set gives the same integers. All that follows from
//! weights is exact and needs no order.

use crate::Isa;

/// Weight of the largest logit is two to this power.
pub const WEIGHT_BITS: u32 = 44;

/// Most logits that may be weighed at once, so that no sum of weights overflows.
pub const WEIGHTS_MAX: usize = 1 << 19;

/// Lanes of the loops below.
const LANES: usize = 16;

/// Logits of a block, for which one maximum and one sum are kept.
pub const LOGIT_BLOCK: usize = 64;

/// Logits of a stride, for which [`weights_split`] keeps a sum.
pub const LOGIT_STRIDE: usize = 32 * LOGIT_BLOCK;

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
    on(Isa::best(), Weigh { logits, max, scale: sixteenths(scale), weights })
}

/// Counts the logits of every `every`-th whole block that lie from `low` up and below `top`, by
/// steps of 1 / `per_step` from `top` down; what is beyond the last step counts in it. Returns how
/// many logits were looked at. One that lies within a rounding of a step's end may count in either.
///
/// # Panics
/// When `every` is 0 or there are no steps.
pub fn logit_steps(
    logits: &[f32],
    every: usize,
    (low, top): (f32, f32),
    per_step: f32,
    counts: &mut [u32],
) -> usize {
    assert!(!counts.is_empty(), "there is a step");
    counts.fill(0);
    on(Isa::best(), Steps { logits, every, low, top, per_step, counts })
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

/// What [`weights_split`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parted {
    /// Tokens with logits from `high` up.
    pub count: usize,
    /// Their weight.
    pub weight: u64,
    /// Tokens with logits from `low` up and below `high`.
    pub between: usize,
}

/// Parts a row by two logits. Writes the ids of the tokens between them, ascending, to the
/// beginning of `ids`, and the weight of those from `high` up in each [`LOGIT_STRIDE`]. Blocks
/// whose maximum is below `low` are not looked at.
///
/// # Panics
/// When the lengths do not fit; `ids` needs room for all tokens and [`LOGIT_BLOCK`] more.
pub fn weights_split(
    logits: &[f32],
    weights: &[u64],
    maxima: &[f32],
    (low, high): (f32, f32),
    ids: &mut [u32],
    strides: &mut [u64],
) -> Parted {
    assert_eq!(logits.len(), weights.len(), "one weight a logit");
    assert_eq!(logits.len().div_ceil(LOGIT_BLOCK), maxima.len(), "one maximum a block");
    assert_eq!(logits.len().div_ceil(LOGIT_STRIDE), strides.len(), "one sum a stride");
    assert!(logits.len() + LOGIT_BLOCK <= ids.len(), "room for every id");
    on(Isa::best(), Split { logits, weights, maxima, low, high, ids, strides })
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
    /// Of [`sixteenths`].
    scale: f64,
    weights: &'a mut [u64],
}

impl Work for Weigh<'_> {
    type Out = u64;

    #[inline(always)]
    fn run(self, isa: Isa) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Avx512 {
            // SAFETY: `on` passes sets that the machine has.
            return unsafe { weigh_avx512(self) };
        }
        let _ = isa;
        let max = f64::from(self.max);
        let mut sum = 0u64;
        for (weight, &logit) in self.weights.iter_mut().zip(self.logits) {
            *weight = weight_of((f64::from(logit) - max) * self.scale);
            sum = sum.wrapping_add(*weight);
        }
        sum
    }
}

/// [`Weigh`] with [`weight_of`] spelled in vectors: compilers read the table one entry at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
fn weigh_avx512(Weigh { logits, max, scale, weights }: Weigh<'_>) -> u64 {
    use std::arch::x86_64::*;
    let whole = |x: u64| _mm512_set1_epi64(x.cast_signed());
    // SAFETY: the table has 16 entries of 8 bytes.
    let table = unsafe {
        let load = |start| _mm512_loadu_pd(POWERS.as_ptr().add(start).cast());
        [load(0), load(8)]
    };
    let (wide_max, scales) = (_mm512_set1_pd(f64::from(max)), _mm512_set1_pd(scale));
    let [c1, c2, c3, c4] = POLYNOMIAL.map(|c| _mm512_set1_pd(c));
    let (round, least, one) = (_mm512_set1_pd(ROUND), _mm512_set1_pd(LEAST), _mm512_set1_pd(1.0));
    let mut sums = [_mm512_setzero_si512(); 2];
    let rows = logits.as_chunks::<LANES>().0.iter().zip(weights.as_chunks_mut::<LANES>().0);
    for (logits, weights) in rows {
        for (half, sum) in sums.iter_mut().enumerate() {
            // SAFETY: a half is 8 of the 16 floats.
            let logits = unsafe { _mm256_loadu_ps(logits.as_ptr().add(8 * half)) };
            let t = _mm512_mul_pd(_mm512_sub_pd(_mm512_cvtps_pd(logits), wide_max), scales);
            // The second operand where the first is no number.
            let t = _mm512_max_pd(t, least);
            let shifted = _mm512_add_pd(t, round);
            let r = _mm512_sub_pd(t, _mm512_sub_pd(shifted, round));
            let p = _mm512_fmadd_pd(r, c4, c3);
            let p = _mm512_fmadd_pd(r, p, c2);
            let p = _mm512_fmadd_pd(r, p, c1);
            let p = _mm512_fmadd_pd(r, p, one);
            let bits = _mm512_castpd_si512(shifted);
            // Of an index it takes the lowest four bits.
            let power = _mm512_castpd_si512(_mm512_permutex2var_pd(table[0], bits, table[1]));
            let power = _mm512_add_epi64(power, _mm512_slli_epi64::<48>(bits));
            let sum_bits = _mm512_fmadd_pd(p, _mm512_castsi512_pd(power), _mm512_set1_pd(WHOLE));
            let weight = _mm512_and_si512(_mm512_castpd_si512(sum_bits), whole((1 << 52) - 1));
            // SAFETY: a half is 8 of the 16 weights.
            unsafe { _mm512_storeu_si512(weights.as_mut_ptr().add(8 * half).cast(), weight) };
            *sum = _mm512_add_epi64(*sum, weight);
        }
    }
    let mut sum = _mm512_reduce_add_epi64(_mm512_add_epi64(sums[0], sums[1])).cast_unsigned();
    let done = logits.len() / LANES * LANES;
    for (weight, &logit) in weights[done..].iter_mut().zip(&logits[done..]) {
        *weight = weight_of((f64::from(logit) - f64::from(max)) * scale);
        sum = sum.wrapping_add(*weight);
    }
    sum
}

struct Steps<'a> {
    logits: &'a [f32],
    every: usize,
    low: f32,
    top: f32,
    per_step: f32,
    counts: &'a mut [u32],
}

impl Work for Steps<'_> {
    type Out = usize;

    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "a few hundred steps")]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "-1 is no place")]
    fn run(self, _: Isa) -> usize {
        let last = (self.counts.len() - 1) as f32;
        let mut places = [0i32; LOGIT_BLOCK];
        let mut looked_at = 0;
        for block in self.logits.as_chunks::<LOGIT_BLOCK>().0.iter().step_by(self.every) {
            looked_at += LOGIT_BLOCK;
            for (place, &logit) in places.iter_mut().zip(block) {
                let step = (self.top - logit) * self.per_step;
                let step = if step < last { step } else { last };
                *place = if logit >= self.low && logit < self.top { step as i32 } else { -1 };
            }
            for &place in &places {
                if let Some(count) = self.counts.get_mut(place as usize) {
                    *count += 1;
                }
            }
        }
        looked_at
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
    ids: &'a mut [u32],
    strides: &'a mut [u64],
}

impl Work for Split<'_> {
    type Out = Parted;

    #[inline(always)]
    fn run(self, isa: Isa) -> Parted {
        let mut parted = Parted::default();
        let blocks = self.logits.chunks(LOGIT_BLOCK).zip(self.weights.chunks(LOGIT_BLOCK));
        self.strides.fill(0);
        for (index, (&max, (logits, weights))) in self.maxima.iter().zip(blocks).enumerate() {
            if max < self.low {
                continue;
            }
            let out = &mut self.ids[parted.between..];
            let found = split(isa, logits, weights, (self.low, self.high));
            parted.count += found.above.count_ones() as usize;
            parted.weight += found.weight;
            self.strides[index / (LOGIT_STRIDE / LOGIT_BLOCK)] += found.weight;
            parted.between += write_ids(isa, index * LOGIT_BLOCK, found.between, out);
        }
        parted
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

/// Writes `start` and on for each bit that is set, and says how many; may write on up to
/// [`LANES`] behind them.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a row has at most 2^19 tokens")]
fn write_ids(isa: Isa, start: usize, bits: u64, out: &mut [u32]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 {
        // SAFETY: `on` passes sets that the machine has.
        return unsafe { write_ids_avx512(start as u32, bits, out) };
    }
    let _ = isa;
    let (mut left, mut count) = (bits, 0);
    while left != 0 {
        out[count] = start as u32 + left.trailing_zeros();
        (left, count) = (left & (left - 1), count + 1);
    }
    count
}

/// [`write_ids`] without a branch for each bit, which nothing could foresee.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,popcnt")]
fn write_ids_avx512(start: u32, bits: u64, out: &mut [u32]) -> usize {
    use std::arch::x86_64::*;
    let mut ids = _mm512_add_epi32(
        _mm512_set1_epi32(start.cast_signed()),
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    );
    let mut count = 0;
    for row in 0..LOGIT_BLOCK / LANES {
        #[expect(clippy::cast_possible_truncation, reason = "the row's 16 bits")]
        let mask = (bits >> (LANES * row)) as u16;
        let out = &mut out[count..count + LANES];
        // SAFETY: there is room for 16 numbers.
        unsafe {
            _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_maskz_compress_epi32(mask, ids))
        };
        count += mask.count_ones() as usize;
        ids = _mm512_add_epi32(ids, _mm512_set1_epi32(16));
    }
    count
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

/// 2^(i / 16) as bits.
#[rustfmt::skip]
const EXACT_POWERS: [u64; 16] = [
    0x3FF0_0000_0000_0000, 0x3FF0_B558_6CF9_890F, 0x3FF1_72B8_3C7D_517B, 0x3FF2_387A_6E75_6238,
    0x3FF3_06FE_0A31_B715, 0x3FF3_DEA6_4C12_3422, 0x3FF4_BFDA_D536_2A27, 0x3FF5_AB07_DD48_5429,
    0x3FF6_A09E_667F_3BCD, 0x3FF7_A114_73EB_0187, 0x3FF8_ACE5_422A_A0DB, 0x3FF9_C491_82A3_F090,
    0x3FFA_E89F_995A_D3AD, 0x3FFC_199B_DD85_529C, 0x3FFD_5818_DCFB_A487, 0x3FFE_A4AF_A2A4_90DA,
];

/// Such that adding `k << 48` to entry `k mod 16` gives the bits of 2^([`WEIGHT_BITS`] + k / 16).
const POWERS: [u64; 16] = {
    let (mut powers, mut i) = (EXACT_POWERS, 0);
    while i < 16 {
        powers[i] += ((WEIGHT_BITS as u64) << 52) - ((i as u64) << 48);
        i += 1;
    }
    powers
};

/// 2^(r / 16) is 1 + c1 r + ... + c4 r^4 within 2^-38 where |r| is at most 1/2: Taylor's terms with
/// the fifth spread over the first and third (Chebyshev).
#[rustfmt::skip]
const POLYNOMIAL: [f64; 4] = [
    0.043_321_698_760_160_89, 9.383_847_928_089_871e-4, 1.355_120_515_049_591e-5,
    1.467_610_032_291_943e-7,
];

/// Adding 1.5 * 2^52 rounds to an integer that sits in the low bits of the sum.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// Adding 2^52 does the same for what is not negative and below 2^52.
const WHOLE: f64 = 4_503_599_627_370_496.0;
/// From here down all weigh nothing.
const LEAST: f64 = -1024.0;

/// A scale in sixteenths of powers of two, finite.
pub(crate) fn sixteenths(scale: f64) -> f64 {
    (scale * (16.0 * std::f64::consts::LOG2_E)).min(f64::MAX)
}

/// rne(2^44 2^(t / 16)) for t <= 0, within one or 2^-36 of it; 0 from about -31 * 16 / ln(2) on.
/// Not a number counts as [`LEAST`].
#[inline(always)]
fn weight_of(t: f64) -> u64 {
    let t = if t > LEAST { t } else { LEAST };
    let shifted = t + ROUND;
    let r = t - (shifted - ROUND);
    let [c1, c2, c3, c4] = POLYNOMIAL;
    let p = r.mul_add(c4, c3);
    let p = r.mul_add(p, c2);
    let p = r.mul_add(p, c1);
    let p = r.mul_add(p, 1.0);
    let bits = shifted.to_bits();
    let index = usize::try_from(bits & 15).expect("four bits");
    let power = f64::from_bits(POWERS[index].wrapping_add(bits << 48));
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
        on(isa, Weigh { logits, max: 0.0, scale: sixteenths(scale), weights })
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
                let mut ids = vec![9; count + LOGIT_BLOCK];
                let mut strides = vec![5; count.div_ceil(LOGIT_STRIDE)];
                for (low, high) in [(-30.0, -20.5), (f32::NEG_INFINITY, -44.0), (-1.0, 1.0)] {
                    let (weights, maxima) = (&weights[..], &maxima[..]);
                    let (ids, strides) = (&mut ids[..], &mut strides[..]);
                    let found = on(isa, Split { logits, weights, maxima, low, high, ids, strides });
                    let above = || (0..count).filter(|&i| logits[i] >= high);
                    let between = || (0..count).filter(|&i| (low..high).contains(&logits[i]));
                    let weight = above().map(|i| weights[i]).sum::<u64>();
                    let (count, between) = (above().count(), between().collect::<Vec<_>>());
                    let wanted = Parted { count, weight, between: between.len() };
                    assert_eq!(found, wanted, "{} {high}", isa.name());
                    let ids = ids[..found.between].iter().map(|&i| i as usize);
                    assert!(ids.eq(between), "{} {low}", isa.name());
                    for (stride, &sum) in strides.iter().enumerate() {
                        let inside = above().filter(|i| i / LOGIT_STRIDE == stride);
                        assert_eq!(sum, inside.map(|i| weights[i]).sum::<u64>());
                    }
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
    fn powers_are_the_nearest_numbers() {
        for (i, &bits) in (0u32..).zip(&EXACT_POWERS) {
            let power = libm::exp2(f64::from(i) / 16.0);
            assert!(power.to_bits().abs_diff(bits) <= 1, "{i}");
            // Four square roots lead from a power's sixteenth power back to it.
            let whole = f64::from_bits(bits).powi(16);
            assert!((whole / 2f64.powi(i32::try_from(i).unwrap()) - 1.0).abs() < 1e-14, "{i}");
        }
    }

    #[test]
    fn steps_are_counted_from_the_top() {
        let logits = inputs();
        let (low, top) = (-40.0, -3.0);
        for isa in Isa::available() {
            let mut counts = vec![0; 50];
            let every = 3;
            let work =
                Steps { logits: &logits, every, low, top, per_step: 2.0, counts: &mut counts };
            assert_eq!(on(isa, work), logits.len() / LOGIT_BLOCK / 3 * LOGIT_BLOCK + LOGIT_BLOCK);
            let mut wanted = vec![0; 50];
            for block in logits.chunks_exact(LOGIT_BLOCK).step_by(every) {
                for &logit in block.iter().filter(|l| (low..top).contains(*l)) {
                    let step = ((top - logit) * 2.0).floor().min(49.0);
                    let place = (0..50u8).rfind(|s| f32::from(*s) <= step).expect("one is 0");
                    wanted[usize::from(place)] += 1;
                }
            }
            assert_eq!(counts, wanted, "{}", isa.name());
        }
    }

    #[test]
    fn the_largest_weighs_two_to_the_44() {
        for scale in [0.0, 1e-300, 0.37, 1.0, 1e9, 1e308, f64::MAX] {
            let mut weights = [7; 2];
            exp_weights(&[1.5, f32::NEG_INFINITY], 1.5, scale, &mut weights);
            assert_eq!(weights, [1 << 44, 0], "{scale}");
        }
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
