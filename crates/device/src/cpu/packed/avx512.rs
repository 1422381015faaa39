//! AVX-512 (F, BW, VL, VNNI, VBMI): sixteen lanes.

use super::inputs::{WEIGHT_OFFSET, narrow_words};
use super::simd::{Codes, GRID_BYTES, Simd, TileKernel, at};
use std::arch::asm;
use std::arch::x86_64::*;

/// Grid points of IQ2_XXS so that one shift serves two coordinates: for each index a byte of
/// coordinates 0 1 4 5, then one of 2 3 6 7, two bits each, the first lowest.
static PAIRS: [[u8; 256]; 2] = {
    let mut bytes = [[0; 256]; 2];
    let mut i = 0;
    while i < 256 {
        let (low, high) = (GRID_BYTES[0][i], GRID_BYTES[1][i]);
        bytes[0][i] = low & 15 | (high & 15) << 4;
        bytes[1][i] = low >> 4 | high & 0xf0;
        i += 1;
    }
    bytes
};

/// Seven signs with their parity on top.
static SIGNS: [u8; 128] = {
    let mut bytes = [0; 128];
    let mut i = 0u8;
    while i < 128 {
        bytes[i as usize] = i | if i.count_ones() % 2 == 1 { 0x80 } else { 0 };
        i += 1;
    }
    bytes
};

/// Codes by coordinate (bits 0 and 1) and sign (bit 2); the bits above do not count.
static SIGNED: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut i = 0;
    while i < 64 {
        let magnitude = ironstar_quant::iq2_xxs::MAGNITUDES[i & 3].cast_unsigned();
        bytes[i] = if i & 4 == 0 { WEIGHT_OFFSET + magnitude } else { WEIGHT_OFFSET - magnitude };
        i += 1;
    }
    bytes
};

/// Sixty-four bytes of a table.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_table(bytes: &[u8], part: usize) -> __m512i {
    let bytes: *const u8 = bytes[64 * part..64 * (part + 1)].as_ptr();
    // SAFETY: the slice has 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.cast()) }
}

/// `table[byte]` for each byte, from 256 entries; `upper` are the bytes above 127.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn lookup_256(table: &[u8; 256], bytes: __m512i, upper: __mmask64) -> __m512i {
    let first = _mm512_permutex2var_epi8(load_table(table, 0), bytes, load_table(table, 1));
    let second = _mm512_permutex2var_epi8(load_table(table, 2), bytes, load_table(table, 3));
    _mm512_mask_blend_epi8(upper, first, second)
}

/// Sixteen rows in a vector.
pub(crate) struct Avx512;

impl Simd for Avx512 {
    const LANES: usize = 16;
    const INT_ROWS: usize = 8;
    const FLOAT_ROWS: usize = 12;
    const PANELS: bool = true;
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
        let mut acc = acc;
        // By name: of the intrinsic the compiler makes a multiplication and an addition, which wait
        // less for each other but are one instruction more.
        // SAFETY: the instruction set is there; nothing but `acc` changes.
        unsafe {
            asm!(
                "vpdpwssd {acc}, {a}, {b}",
                acc = inout(zmm_reg) acc,
                a = in(zmm_reg) a,
                b = in(zmm_reg) b,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        acc
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn mul16(a: __m512i, b: __m512i) -> __m512i {
        _mm512_mullo_epi16(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn dot16<C: Codes, const STRIDE: usize>(
        acc: __m512i,
        codes: &[__m512i; 4],
        x: *const u8,
    ) -> __m512i {
        let mut acc = acc;
        for (word, &codes) in codes.iter().enumerate() {
            // SAFETY: four words by the caller's promise.
            let x = unsafe { Self::broadcast(at::<STRIDE>(x, word)) };
            acc = _mm512_dpbusd_epi32(acc, codes, x);
        }
        acc
    }

    // Word by word: a row's sum waits for its last step, the next row's does not.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn dots<C: Codes, const R: usize, const STRIDE: usize, const Q: usize>(
        acc: [__m512i; R],
        codes: &[[__m512i; 4]; Q],
        x: [*const u8; R],
    ) -> [__m512i; R] {
        let mut acc = acc;
        for (word, &codes) in codes.as_flattened().iter().enumerate() {
            for r in 0..R {
                // SAFETY: `4 Q` words by the caller's promise.
                let x = unsafe { Self::broadcast(at::<STRIDE>(x[r], word)) };
                acc[r] = _mm512_dpbusd_epi32(acc[r], codes, x);
            }
        }
        acc
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn dots_signed<const R: usize, const STRIDE: usize>(
        codes: &[__m512i; 8],
        x: [*const u8; R],
    ) -> [__m512i; R] {
        let (mut codes, bias) = (*codes, _mm512_set1_epi8(-128));
        for codes in &mut codes {
            *codes = _mm512_xor_si512(*codes, bias);
        }
        // SAFETY: the caller's promise.
        unsafe { Self::dots_biased::<R, STRIDE>(&codes, x) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn dots_biased<const R: usize, const STRIDE: usize>(
        codes: &[__m512i; 8],
        x: [*const u8; R],
    ) -> [__m512i; R] {
        let mut acc = [_mm512_setzero_si512(); R];
        for r in 0..R {
            // SAFETY: `x` are records.
            acc[r] = unsafe { Self::broadcast(at::<STRIDE>(x[r], narrow_words::OFFSET)) };
        }
        for (word, &codes) in codes.iter().enumerate() {
            for r in 0..R {
                // SAFETY: eight words of codes.
                let x = unsafe { Self::broadcast(at::<STRIDE>(x[r], word)) };
                acc[r] = _mm512_dpbusd_epi32(acc[r], codes, x);
            }
        }
        acc
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn prefetch(at: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }

    // Of the baseline, so that a function that is not compiled for this set can do it.
    #[inline(always)]
    unsafe fn prefetch_far(at: *const u8) {
        // SAFETY: every x86-64 has it; any address may be asked for.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    unsafe fn grid(indices: __m512i) -> [__m512i; 2] {
        let upper = _mm512_movepi8_mask(indices);
        [lookup_256(&GRID_BYTES[0], indices, upper), lookup_256(&GRID_BYTES[1], indices, upper)]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    unsafe fn group_codes(indices: __m512i, packed: __m512i) -> [[__m512i; 4]; 2] {
        // Byte i gets the eight bits from 7 i on, of which the table looks at seven.
        let at = _mm512_set1_epi64(0x352e_2720_150e_0700);
        let signs = _mm512_multishift_epi64_epi8(at, packed);
        let signs = _mm512_permutex2var_epi8(load_table(&SIGNS, 0), signs, load_table(&SIGNS, 1));
        let upper = _mm512_movepi8_mask(indices);
        let first = lookup_256(&PAIRS[0], indices, upper);
        let second = lookup_256(&PAIRS[1], indices, upper);
        // Coordinates m and m + 4 in bits 0, 1 and 4, 5; their signs in bits 2 and 6. Written out:
        // calls from inside `map` would stay calls.
        let nibbles = _mm512_set1_epi8(0x44);
        let a = _mm512_slli_epi32::<2>(signs);
        let a = _mm512_ternarylogic_epi32::<0xca>(nibbles, a, first);
        let (b, first) = (_mm512_slli_epi32::<1>(signs), _mm512_srli_epi32::<2>(first));
        let b = _mm512_ternarylogic_epi32::<0xca>(nibbles, b, first);
        let c = _mm512_ternarylogic_epi32::<0xca>(nibbles, signs, second);
        let (d, second) = (_mm512_srli_epi32::<1>(signs), _mm512_srli_epi32::<2>(second));
        let d = _mm512_ternarylogic_epi32::<0xca>(nibbles, d, second);
        let table = load_table(&SIGNED, 0);
        [
            [
                _mm512_permutexvar_epi8(a, table),
                _mm512_permutexvar_epi8(b, table),
                _mm512_permutexvar_epi8(c, table),
                _mm512_permutexvar_epi8(d, table),
            ],
            [
                _mm512_permutexvar_epi8(_mm512_srli_epi32::<4>(a), table),
                _mm512_permutexvar_epi8(_mm512_srli_epi32::<4>(b), table),
                _mm512_permutexvar_epi8(_mm512_srli_epi32::<4>(c), table),
                _mm512_permutexvar_epi8(_mm512_srli_epi32::<4>(d), table),
            ],
        ]
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
