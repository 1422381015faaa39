//! AVX2 with FMA and F16C: eight lanes. Byte products go through 16 bits, which must not saturate.

use super::simd::{Codes, GRID_BYTES, Simd, TileKernel, at};
use std::arch::x86_64::*;

/// Eight rows in a vector.
pub(crate) struct Avx2;

/// [`GRID_BYTES`] as what a gather reads.
static GRID_WORDS: [i32; 256] = {
    let mut words = [0; 256];
    let mut i = 0;
    while i < 256 {
        words[i] = i32::from_le_bytes([GRID_BYTES[0][i], GRID_BYTES[1][i], 0, 0]);
        i += 1;
    }
    words
};

impl Simd for Avx2 {
    const LANES: usize = 8;
    const INT_ROWS: usize = 4;
    const FLOAT_ROWS: usize = 1;
    type I = __m256i;
    type F = __m256;
    type Two = Self;

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn enter(kernel: impl TileKernel) {
        // SAFETY: the caller's promise.
        unsafe { kernel.run::<Self>() }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: 32 readable bytes by the caller's promise.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn broadcast(from: *const u8) -> __m256i {
        // SAFETY: 4 readable bytes by the caller's promise.
        _mm256_set1_epi32(unsafe { from.cast::<i32>().read_unaligned() })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn splat(value: i32) -> __m256i {
        _mm256_set1_epi32(value)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn table(bytes: &[u8; 16]) -> __m256i {
        // SAFETY: the array has the 16 bytes.
        _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
        _mm256_and_si256(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        _mm256_or_si256(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn xor(a: __m256i, b: __m256i) -> __m256i {
        _mm256_xor_si256(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn shr(a: __m256i, by: i32) -> __m256i {
        _mm256_srlv_epi32(a, _mm256_set1_epi32(by))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn shl(a: __m256i, by: i32) -> __m256i {
        _mm256_sllv_epi32(a, _mm256_set1_epi32(by))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn signed_byte(a: __m256i, index: i32) -> __m256i {
        let top = _mm256_sllv_epi32(a, _mm256_set1_epi32(24 - 8 * index));
        _mm256_srai_epi32::<24>(top)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn even_bytes(a: __m256i) -> __m256i {
        _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(a))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn odd_bytes(a: __m256i) -> __m256i {
        _mm256_srai_epi16::<8>(a)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn lookup(table: __m256i, a: __m256i) -> __m256i {
        _mm256_shuffle_epi8(table, a)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn add_signed(base: __m256i, a: __m256i, signs: __m256i, bit: i32) -> __m256i {
        let bit = _mm256_set1_epi32(i32::from_ne_bytes([1 << bit; 4]));
        let minus = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bit), bit);
        let signed = _mm256_sub_epi8(_mm256_xor_si256(a, minus), minus);
        _mm256_add_epi8(base, signed)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi32(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn mul(a: __m256i, b: __m256i) -> __m256i {
        _mm256_mullo_epi32(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn madd16(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi32(acc, _mm256_madd_epi16(a, b))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn mul16(a: __m256i, b: __m256i) -> __m256i {
        _mm256_mullo_epi16(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn dot16<C: Codes, const STRIDE: usize>(
        acc: __m256i,
        codes: &[__m256i; 4],
        x: *const u8,
    ) -> __m256i {
        // Pairs of products are at most 2 * 127 * MAX: how many of them does an i16 hold?
        const { assert!(2 * 127 * C::MAX <= 32767) };
        let groups = const { 32767 / (2 * 127 * C::MAX) };
        let pairs = |group: usize| {
            // SAFETY: four words by the caller's promise; the machine has the set.
            let x = unsafe { Self::broadcast(at::<STRIDE>(x, group)) };
            _mm256_maddubs_epi16(codes[group], x)
        };
        let ones = _mm256_set1_epi16(1);
        let wide = |pairs: __m256i| _mm256_madd_epi16(pairs, ones);
        let add16 = |a: __m256i, b: __m256i| _mm256_add_epi16(a, b);
        let sum = if groups >= 4 {
            wide(add16(add16(pairs(0), pairs(1)), add16(pairs(2), pairs(3))))
        } else if groups >= 2 {
            let (first, second) = (add16(pairs(0), pairs(1)), add16(pairs(2), pairs(3)));
            _mm256_add_epi32(wide(first), wide(second))
        } else {
            let first = _mm256_add_epi32(wide(pairs(0)), wide(pairs(1)));
            let second = _mm256_add_epi32(wide(pairs(2)), wide(pairs(3)));
            _mm256_add_epi32(first, second)
        };
        _mm256_add_epi32(acc, sum)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn dots_signed<const R: usize, const STRIDE: usize>(
        codes: &[__m256i; 8],
        x: [*const u8; R],
    ) -> [__m256i; R] {
        let (ones, mut acc) = (_mm256_set1_epi16(1), [_mm256_setzero_si256(); R]);
        for r in 0..R {
            for (word, &codes) in codes.iter().enumerate() {
                // SAFETY: eight words of codes.
                let x = unsafe { Self::broadcast(at::<STRIDE>(x[r], word)) };
                // |code| <= 128 and |x| <= 127: a pair of products stays at 32512 or less.
                let x = _mm256_sign_epi8(x, codes);
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), x);
                acc[r] = _mm256_add_epi32(acc[r], _mm256_madd_epi16(pairs, ones));
            }
        }
        acc
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn grid(indices: __m256i) -> [__m256i; 2] {
        let byte = _mm256_set1_epi32(0xff);
        let (mut low, mut high) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        for i in 0..4 {
            let at = _mm256_set1_epi32(8 * i);
            let index = _mm256_and_si256(_mm256_srlv_epi32(indices, at), byte);
            // SAFETY: indices are below 256, the length of the table.
            let point = unsafe { _mm256_i32gather_epi32::<4>(GRID_WORDS.as_ptr(), index) };
            let (first, second) = (_mm256_and_si256(point, byte), _mm256_srli_epi32::<8>(point));
            low = _mm256_or_si256(low, _mm256_sllv_epi32(first, at));
            high = _mm256_or_si256(high, _mm256_sllv_epi32(second, at));
        }
        [low, high]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn zero() -> __m256 {
        _mm256_setzero_ps()
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn splat_f32(value: f32) -> __m256 {
        _mm256_set1_ps(value)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn from_i32(a: __m256i) -> __m256 {
        _mm256_cvtepi32_ps(a)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn add_f32(a: __m256, b: __m256) -> __m256 {
        _mm256_add_ps(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn mul_f32(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn fms(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmsub_ps(a, b, c)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load_f32(from: *const u8) -> __m256 {
        // SAFETY: 32 readable bytes by the caller's promise.
        unsafe { _mm256_loadu_ps(from.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load_f16(from: *const u8) -> __m256 {
        // SAFETY: 16 readable bytes by the caller's promise.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(from.cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load_bf16(from: *const u8) -> __m256 {
        // SAFETY: 16 readable bytes by the caller's promise.
        let halves = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(from.cast()) });
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load_half_e8m0(from: *const u8) -> __m256 {
        // SAFETY: 8 readable bytes by the caller's promise.
        let e = _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(from.cast()) });
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
        // The halves of 2^-127 and 2^-126 are subnormal.
        let tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
        let is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
        _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, is_tiny))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store(to: *mut f32, a: __m256) {
        // SAFETY: 32 writable bytes by the caller's promise.
        unsafe { _mm256_storeu_ps(to, a) }
    }
}

/// x * by to the nearest integer, ties to even, and the sums of sixteen; within -127..=127.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn round(x: &[f32; 32], by: f32, codes: &mut [i8; 32]) -> [i16; 2] {
    let by = _mm256_set1_ps(by);
    let eight = |i: usize| {
        // SAFETY: eights 0..4 of 32 values.
        let x = unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * i)) };
        _mm256_cvtps_epi32(_mm256_mul_ps(x, by))
    };
    let (low, high) =
        (_mm256_packs_epi32(eight(0), eight(1)), _mm256_packs_epi32(eight(2), eight(3)));
    // Packing works in 128-bit halves: fours come out as 0 2 4 6 1 3 5 7.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), bytes) }
    // The sum of a half's 16 bytes is less than 2^15, so its low 16 bits are all of it.
    let fours =
        _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
    let eights = _mm256_hadd_epi32(fours, fours);
    let sums = _mm256_hadd_epi32(eights, eights);
    let low = |sums: __m128i| {
        let [low, high, ..] = _mm_cvtsi128_si32(sums).to_le_bytes();
        i16::from_le_bytes([low, high])
    };
    [low(_mm256_castsi256_si128(sums)), low(_mm256_extracti128_si256::<1>(sums))]
}

/// Byte 8 i + m to 4 m + i.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn weave(from: &[i8; 32], to: &mut [i8; 32]) {
    // Pairs (8 i + m, 8 i + 8 + m) inside each half, then pairs of both halves side by side.
    let pairs = _mm256_setr_epi8(
        0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15, //
        0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15,
    );
    // SAFETY: 32 bytes.
    let from = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
    let from = _mm256_shuffle_epi8(from, pairs);
    let (low, high) = (_mm256_castsi256_si128(from), _mm256_extracti128_si256::<1>(from));
    let woven = _mm256_set_m128i(_mm_unpackhi_epi16(low, high), _mm_unpacklo_epi16(low, high));
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), woven) }
}
