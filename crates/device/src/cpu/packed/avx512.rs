//! AVX-512 (F, BW, VL, VNNI, VBMI): sixteen lanes.

use super::simd::{Codes, GRID_BYTES, Simd, TileKernel};
use std::arch::x86_64::*;

/// Sixteen rows in a vector.
pub(crate) struct Avx512;

impl Simd for Avx512 {
    const LANES: usize = 16;
    const INT_ROWS: usize = 8;
    const FLOAT_ROWS: usize = 3;
    type I = __m512i;
    type F = __m512;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
    unsafe fn enter(kernel: impl TileKernel) {
        // SAFETY: the caller's promise.
        unsafe { kernel.run::<Self>() }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: 64 readable bytes by the caller's promise.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn broadcast(from: *const u8) -> __m512i {
        // SAFETY: 4 readable bytes by the caller's promise.
        _mm512_set1_epi32(unsafe { from.cast::<i32>().read_unaligned() })
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn splat(value: i32) -> __m512i {
        _mm512_set1_epi32(value)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn table(bytes: &[u8; 16]) -> __m512i {
        // SAFETY: the array has the 16 bytes.
        _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        _mm512_and_si512(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        _mm512_xor_si512(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn shr(a: __m512i, by: i32) -> __m512i {
        _mm512_srlv_epi32(a, _mm512_set1_epi32(by))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn shl(a: __m512i, by: i32) -> __m512i {
        _mm512_sllv_epi32(a, _mm512_set1_epi32(by))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn signed_byte(a: __m512i, index: i32) -> __m512i {
        let top = _mm512_sllv_epi32(a, _mm512_set1_epi32(24 - 8 * index));
        _mm512_srai_epi32::<24>(top)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn even_bytes(a: __m512i) -> __m512i {
        _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(a))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn odd_bytes(a: __m512i) -> __m512i {
        _mm512_srai_epi16::<8>(a)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn lookup(table: __m512i, a: __m512i) -> __m512i {
        _mm512_shuffle_epi8(table, a)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn add_signed(base: __m512i, a: __m512i, signs: __m512i, bit: i32) -> __m512i {
        let bit = _mm512_set1_epi32(i32::from_ne_bytes([1 << bit; 4]));
        let minus = _mm512_test_epi8_mask(signs, bit);
        _mm512_mask_sub_epi8(_mm512_add_epi8(base, a), minus, base, a)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn mul(a: __m512i, b: __m512i) -> __m512i {
        _mm512_mullo_epi32(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn madd16(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        _mm512_dpwssd_epi32(acc, a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn dot16<C: Codes>(acc: __m512i, codes: &[__m512i; 4], x: *const i8) -> __m512i {
        let mut acc = acc;
        for (group, &codes) in codes.iter().enumerate() {
            // SAFETY: 16 readable bytes by the caller's promise.
            let x = unsafe { Self::broadcast(x.add(4 * group).cast()) };
            acc = _mm512_dpbusd_epi32(acc, codes, x);
        }
        acc
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn dot32_signed(codes: &[__m512i; 8], x: &[i8; 32], sum: &[i16; 2]) -> __m512i {
        // Codes plus 128 are unsigned; the sum of x takes the 128 back.
        let (plus, minus) = (_mm512_set1_epi8(-128), _mm512_set1_epi32(-128 & 0xffff));
        // SAFETY: `sum` has 4 bytes.
        let sum = unsafe { Self::broadcast(sum.as_ptr().cast()) };
        let mut acc = _mm512_dpwssd_epi32(_mm512_setzero_si512(), sum, minus);
        for (group, &codes) in codes.iter().enumerate() {
            // SAFETY: `x` has 32 bytes.
            let x = unsafe { Self::broadcast(x.as_ptr().add(4 * group).cast()) };
            acc = _mm512_dpbusd_epi32(acc, _mm512_xor_si512(codes, plus), x);
        }
        acc
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    unsafe fn grid(indices: __m512i) -> [__m512i; 2] {
        let upper = _mm512_movepi8_mask(indices);
        GRID_BYTES.each_ref().map(|bytes| {
            let quarter = |i: usize| {
                let bytes: *const u8 = bytes[64 * i..64 * (i + 1)].as_ptr();
                // SAFETY: the slice has 64 bytes.
                unsafe { _mm512_loadu_si512(bytes.cast()) }
            };
            let first = _mm512_permutex2var_epi8(quarter(0), indices, quarter(1));
            let second = _mm512_permutex2var_epi8(quarter(2), indices, quarter(3));
            _mm512_mask_blend_epi8(upper, first, second)
        })
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn zero() -> __m512 {
        _mm512_setzero_ps()
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn splat_f32(value: f32) -> __m512 {
        _mm512_set1_ps(value)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn from_i32(a: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(a)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add_f32(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn mul_f32(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn fms(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmsub_ps(a, b, c)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_f32(from: *const u8) -> __m512 {
        // SAFETY: 64 readable bytes by the caller's promise.
        unsafe { _mm512_loadu_ps(from.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_f16(from: *const u8) -> __m512 {
        // SAFETY: 32 readable bytes by the caller's promise.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_bf16(from: *const u8) -> __m512 {
        // SAFETY: 32 readable bytes by the caller's promise.
        let halves = _mm512_cvtepu16_epi32(unsafe { _mm256_loadu_si256(from.cast()) });
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_half_e8m0(from: *const u8) -> __m512 {
        // SAFETY: 16 readable bytes by the caller's promise.
        let e = _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(from.cast()) });
        let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
        // The halves of 2^-127 and 2^-126 are subnormal.
        let tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
        let is_tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
        _mm512_castsi512_ps(_mm512_mask_blend_epi32(is_tiny, normal, tiny))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store(to: *mut f32, a: __m512) {
        // SAFETY: 64 writable bytes by the caller's promise.
        unsafe { _mm512_storeu_ps(to, a) }
    }
}
