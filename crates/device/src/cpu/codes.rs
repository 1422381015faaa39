//! Integer dots of FP4 indexer rows in tiles: sixteen keys are sixteen lanes, so a query's code
//! meets them all at once and the sum over heads needs no sums over lanes.
//!
//! `ironstar_quant::fp4::indexer_dot` is the definition; the integers are exact and the floats
//! follow its order, so the bits are equal.

use super::store::Fp4Row;
use ironstar_quant::fp4::{BLOCK, DOUBLED, INDEXER_DIMS};

/// Keys of a tile.
pub(crate) const KEYS: usize = 16;
/// Blocks of a row, each with its scale.
const BLOCKS: usize = INDEXER_DIMS / BLOCK;
/// Four dims are one step of a dot.
const STEPS: usize = BLOCK / 4;
/// Added to doubled codes, -12 to 12, so that they have no sign.
const OFFSET: i8 = 12;
/// Stands for the NaN scale: any sum of exponents with it is larger than [`NAN_ABOVE`].
const NAN_EXPONENT: i32 = 1 << 20;
const NAN_ABOVE: i32 = 1 << 16;

/// Four dims of sixteen keys.
type Step = [u8; 4 * KEYS];

/// Sixteen keys: doubled codes plus [`OFFSET`], and exponents, by block.
#[repr(align(64))]
pub(crate) struct Tile {
    codes: [[Step; STEPS]; BLOCKS],
    exponents: [[i32; KEYS]; BLOCKS],
}

/// One head's query.
#[derive(Clone, Copy, Default)]
pub(crate) struct Query {
    /// Doubled codes.
    codes: [[[i8; 4]; STEPS]; BLOCKS],
    /// What the keys' offset adds to a block's dot, negated.
    start: [i32; BLOCKS],
    /// Exponents less 129: with a key's exponent the bits of the product of scales, over 4.
    exponents: [i32; BLOCKS],
}

fn exponent(code: u8, less: i32) -> i32 {
    if code == 255 { NAN_EXPONENT } else { i32::from(code) - less }
}

/// Codes of four dims, two bytes of a row.
fn doubled(bytes: [u8; 2]) -> [i8; 4] {
    let code = |code: u8| DOUBLED[usize::from(code & 15)];
    [code(bytes[0]), code(bytes[0] >> 4), code(bytes[1]), code(bytes[1] >> 4)]
}

impl Query {
    /// Unpacks a rounded query.
    pub fn new(row: &Fp4Row) -> Self {
        let mut query = Query::default();
        let (codes, scales) = row.split_at(INDEXER_DIMS / 2);
        let steps = query.codes.as_flattened_mut().iter_mut();
        for (step, bytes) in steps.zip(codes.as_chunks::<2>().0) {
            *step = doubled(*bytes);
        }
        for (block, scale) in scales.iter().enumerate() {
            let codes = query.codes[block].as_flattened();
            let sum: i32 = codes.iter().map(|code| i32::from(*code)).sum();
            query.start[block] = -i32::from(OFFSET) * sum;
            query.exponents[block] = exponent(*scale, 129);
        }
        query
    }
}

/// What an instruction set does its own way.
pub(crate) trait Codes: Sync {
    /// Doubles the codes of eight dims a key: the steps of its first and its last four.
    fn expand(words: &[u32; KEYS]) -> [Step; 2];
    /// `start` plus a block's dot for each key; exact.
    fn block(keys: &[Step; STEPS], query: &[[i8; 4]; STEPS], start: i32) -> [i32; KEYS];
}

/// As the compiler likes.
pub(crate) struct Portable;

impl Codes for Portable {
    #[inline(always)]
    fn expand(words: &[u32; KEYS]) -> [Step; 2] {
        let mut steps = [[0u8; 4 * KEYS]; 2];
        for (key, word) in words.iter().enumerate() {
            let bytes = word.to_le_bytes();
            for (step, bytes) in steps.iter_mut().zip(bytes.as_chunks::<2>().0) {
                let codes = doubled(*bytes).map(|code| (code + OFFSET).cast_unsigned());
                step[4 * key..][..4].copy_from_slice(&codes);
            }
        }
        steps
    }

    #[inline(always)]
    fn block(keys: &[Step; STEPS], query: &[[i8; 4]; STEPS], start: i32) -> [i32; KEYS] {
        let mut sums = [start; KEYS];
        for (keys, query) in keys.iter().zip(query) {
            for (sum, codes) in sums.iter_mut().zip(keys.as_chunks::<4>().0) {
                for (code, query) in codes.iter().zip(query) {
                    *sum += i32::from(*code) * i32::from(*query);
                }
            }
        }
        sums
    }
}

impl Tile {
    /// A tile to be filled.
    pub const fn new() -> Self {
        Tile { codes: [[[0; 4 * KEYS]; STEPS]; BLOCKS], exponents: [[0; KEYS]; BLOCKS] }
    }

    /// Unpacks up to sixteen keys; places without a key hold anything.
    #[inline(always)]
    pub fn fill<C: Codes>(&mut self, rows: &[Fp4Row]) {
        let mut words = [[0u32; KEYS]; INDEXER_DIMS / 8];
        for (key, row) in rows.iter().enumerate().take(KEYS) {
            let (codes, scales) = row.split_at(INDEXER_DIMS / 2);
            for (word, bytes) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
                word[key] = u32::from_le_bytes(*bytes);
            }
            for (exponents, scale) in self.exponents.iter_mut().zip(scales) {
                exponents[key] = exponent(*scale, 0);
            }
        }
        let steps = self.codes.as_flattened_mut().as_chunks_mut::<2>().0;
        for (steps, words) in steps.iter_mut().zip(&words) {
            *steps = C::expand(words);
        }
    }

    /// Each key's sum over heads in order: `fma(weight, relu(dot), score)` from +0.
    #[inline(always)]
    pub fn score<C: Codes>(&self, heads: &[Query], weights: &[f32]) -> [f32; KEYS] {
        let mut scores = [0f32; KEYS];
        for (query, weight) in heads.iter().zip(weights) {
            let mut dots = [0f32; KEYS];
            for block in 0..BLOCKS {
                let sums = C::block(&self.codes[block], &query.codes[block], query.start[block]);
                for i in 0..KEYS {
                    let scale = scale(self.exponents[block][i] + query.exponents[block]);
                    #[expect(clippy::cast_precision_loss, reason = "below 2^13, exact")]
                    let sum = sums[i] as f32;
                    dots[i] = scale.mul_add(sum, dots[i]);
                }
            }
            for i in 0..KEYS {
                let relu = if dots[i] < 0.0 { 0.0 } else { dots[i] };
                scores[i] = weight.mul_add(relu, scores[i]);
            }
        }
        scores
    }
}

/// The power of two with these exponent bits: below them zero, above them infinity, or NaN.
#[inline(always)]
fn scale(exponent: i32) -> f32 {
    let bits = exponent.clamp(0, 255).cast_unsigned() << 23;
    f32::from_bits(if exponent > NAN_ABOVE { 0x7fc0_0000 } else { bits })
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Codes, KEYS, STEPS, Step};
    use std::arch::x86_64::*;

    /// Doubled codes plus the offset.
    const TABLE: [i8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

    /// AVX2; used in functions compiled for it only.
    pub(crate) struct Avx2;

    /// AVX-512 with VNNI; used in functions compiled for it only.
    pub(crate) struct Avx512;

    /// From two bytes of codes in the low half of each word to four codes, one a byte.
    #[inline(always)]
    fn spread256(words: __m256i) -> __m256i {
        // SAFETY: called from functions compiled for AVX2 only.
        unsafe {
            let pairs = _mm256_shuffle_epi8(
                words,
                _mm256_broadcastsi128_si256(_mm_setr_epi8(
                    0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1,
                )),
            );
            let codes = _mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4));
            let codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
            let table = _mm_loadu_si128(TABLE.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
        }
    }

    impl Codes for Avx2 {
        #[inline(always)]
        fn expand(words: &[u32; KEYS]) -> [Step; 2] {
            let mut steps = [[0u8; 64]; 2];
            for half in 0..2 {
                // SAFETY: compiled for AVX2; eight words are read and 32 bytes written at `half`.
                unsafe {
                    let words = _mm256_loadu_si256(words.as_ptr().add(8 * half).cast());
                    let (low, high) = (spread256(words), spread256(_mm256_srli_epi32(words, 16)));
                    _mm256_storeu_si256(steps[0].as_mut_ptr().add(32 * half).cast(), low);
                    _mm256_storeu_si256(steps[1].as_mut_ptr().add(32 * half).cast(), high);
                }
            }
            steps
        }

        #[inline(always)]
        fn block(keys: &[Step; STEPS], query: &[[i8; 4]; STEPS], start: i32) -> [i32; KEYS] {
            let mut out = [0i32; KEYS];
            // SAFETY: compiled for AVX2; a step has 64 bytes, the result sixteen sums. A pair of
            // products is at most 2 * 24 * 12, far from saturating.
            unsafe {
                let ones = _mm256_set1_epi16(1);
                let mut sums = [_mm256_set1_epi32(start); 2];
                for (keys, query) in keys.iter().zip(query) {
                    let query = _mm256_set1_epi32(i32::from_le_bytes(query.map(i8::cast_unsigned)));
                    for (half, sum) in sums.iter_mut().enumerate() {
                        let keys = _mm256_loadu_si256(keys.as_ptr().add(32 * half).cast());
                        let pairs = _mm256_maddubs_epi16(keys, query);
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                    }
                }
                _mm256_storeu_si256(out.as_mut_ptr().cast(), sums[0]);
                _mm256_storeu_si256(out.as_mut_ptr().add(8).cast(), sums[1]);
            }
            out
        }
    }

    impl Codes for Avx512 {
        #[inline(always)]
        fn expand(words: &[u32; KEYS]) -> [Step; 2] {
            Avx2::expand(words)
        }

        #[inline(always)]
        fn block(keys: &[Step; STEPS], query: &[[i8; 4]; STEPS], start: i32) -> [i32; KEYS] {
            let mut out = [0i32; KEYS];
            // SAFETY: compiled for AVX-512 with VNNI; a step has 64 bytes, the result sixteen sums.
            unsafe {
                let mut sum = _mm512_set1_epi32(start);
                for (keys, query) in keys.iter().zip(query) {
                    let query = _mm512_set1_epi32(i32::from_le_bytes(query.map(i8::cast_unsigned)));
                    sum = _mm512_dpbusd_epi32(sum, _mm512_loadu_si512(keys.as_ptr().cast()), query);
                }
                _mm512_storeu_si512(out.as_mut_ptr().cast(), sum);
            }
            out
        }
    }
}

#[cfg(test)]
mod tests;
