//! AVX-512 (F, BW, VL, VNNI, VBMI) and GFNI: sixteen lanes.

use super::inputs::{WEIGHT_OFFSET, narrow_words};
use super::pair::Pair;
use super::simd::{Codes, GRID_BYTES, Simd, TileKernel, at};
use std::arch::asm;
use std::arch::x86_64::*;

/// Grid points of IQ2_XXS as pairs of coordinates m and m + 4, two bits each: for each index a byte
/// with those of m = 0 and 1, then one with those of m = 2 and 3. Those of an even m lie at bits 0
/// and 3, where [`SIGNED`] looks; those of an odd m at bits 6, 7 and 2, 5.
static PAIRS: [[u8; 256]; 2] = {
    let mut bytes = [[0; 256]; 2];
    let mut i = 0;
    while i < 256 {
        let mut half = 0;
        while half < 2 {
            let (low, high) = (GRID_BYTES[0][i] >> (4 * half), GRID_BYTES[1][i] >> (4 * half));
            let even = low & 3 | (high & 3) << 3;
            let odd = (low & 12) << 4 | high & 4 | (high & 8) << 2;
            bytes[half][i] = even | odd;
            half += 1;
        }
        i += 1;
    }
    bytes
};

/// Bits of a byte that are made of those of another one: bit i is the parity of `from[i]`.
const fn bits(from: [u8; 8]) -> i64 {
    let [a, b, c, d, e, f, g, h] = from;
    i64::from_le_bytes([h, g, f, e, d, c, b, a])
}

/// Brings the coordinates of an odd m to where those of an even m are.
const ODD: i64 = bits([1 << 6, 1 << 7, 0, 1 << 2, 1 << 5, 0, 0, 0]);
/// For each m, brings the signs of coordinates m and m + 4 to bits 2 and 5. The sign of the last
/// one is the parity of the others.
const SIGNS: [i64; 4] = [
    bits([0, 0, 1, 0, 0, 1 << 4, 0, 0]),
    bits([0, 0, 1 << 1, 0, 0, 1 << 5, 0, 0]),
    bits([0, 0, 1 << 2, 0, 0, 1 << 6, 0, 0]),
    bits([0, 0, 1 << 3, 0, 0, 0x7f, 0, 0]),
];
/// Bits 2 and 5.
const SIGN_BITS: i8 = 0x24;

/// Codes by coordinate and sign, three bits: the lowest three of an index, then the next three.
static SIGNED: [[u8; 64]; 2] = {
    let mut bytes = [[0; 64]; 2];
    let mut i = 0;
    while i < 64 {
        let mut half = 0;
        while half < 2 {
            let bits = i >> (3 * half);
            let magnitude = ironstar_quant::iq2_xxs::MAGNITUDES[bits & 3].cast_unsigned();
            let minus = bits & 4 != 0;
            bytes[half][i] =
                if minus { WEIGHT_OFFSET - magnitude } else { WEIGHT_OFFSET + magnitude };
            half += 1;
        }
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

/// Indices of 256 entries: the bytes, and which of them have bit 6, bit 7, and both.
struct Index {
    bytes: __m512i,
    quarters: [__mmask64; 3],
}

impl Index {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn new(bytes: __m512i) -> Self {
        let bit_6 = _mm512_movepi8_mask(_mm512_add_epi8(bytes, bytes));
        let bit_7 = _mm512_movepi8_mask(bytes);
        Index { bytes, quarters: [bit_6, bit_7, bit_6 & bit_7] }
    }

    /// `table[byte]` for each byte: a quarter of the table after the other, each over what it is
    /// right for; or `TWO` quarters at a time.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn lookup<const TWO: bool>(&self, table: &[u8; 256]) -> __m512i {
        let Index { bytes, quarters: [second, third, fourth] } = *self;
        if TWO {
            let [a, b] = [load_table(table, 0), load_table(table, 1)];
            let [c, d] = [load_table(table, 2), load_table(table, 3)];
            let found = _mm512_permutex2var_epi8(a, bytes, b);
            return _mm512_mask_mov_epi8(found, third, _mm512_permutex2var_epi8(c, bytes, d));
        }
        let found = _mm512_permutexvar_epi8(bytes, load_table(table, 0));
        let found = _mm512_mask_permutexvar_epi8(found, second, bytes, load_table(table, 1));
        let found = _mm512_mask_permutexvar_epi8(found, third, bytes, load_table(table, 2));
        _mm512_mask_permutexvar_epi8(found, fourth, bytes, load_table(table, 3))
    }
}

/// Coordinates of an odd m from a byte of [`PAIRS`].
#[inline]
#[target_feature(enable = "avx512f,gfni")]
fn odd(pairs: __m512i) -> __m512i {
    _mm512_gf2p8affine_epi64_epi8::<0>(pairs, _mm512_set1_epi64(ODD))
}

/// Two coordinates, each with its sign, which `place` brings there.
#[inline]
#[target_feature(enable = "avx512f,gfni")]
fn pair(coordinates: __m512i, signs: __m512i, place: i64) -> __m512i {
    let signs = _mm512_gf2p8affine_epi64_epi8::<0>(signs, _mm512_set1_epi64(place));
    _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi8(SIGN_BITS), signs, coordinates)
}

/// Sixteen rows in a vector. An instruction that looks in `TWO` quarters of a table of 256 is one
/// step of some processors; on others it costs as much as three that look in one.
pub(crate) struct Sixteen<const TWO: bool>;

/// What is right for every processor.
pub(crate) type Avx512 = Sixteen<false>;

/// Whether this processor looks in two quarters as fast as in one: those of AMD do.
pub(super) fn looks_in_two() -> bool {
    let found = __cpuid(0);
    [found.ebx, found.edx, found.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}

impl<const TWO: bool> Simd for Sixteen<TWO> {
    const LANES: usize = 16;
    const INT_ROWS: usize = 8;
    const FLOAT_ROWS: usize = 6;
    const PANELS: bool = true;
    type I = __m512i;
    type F = __m512;
    type Two = Pair<TWO>;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,gfni,avx2,fma,f16c")]
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
    #[target_feature(enable = "avx512f,gfni")]
    unsafe fn byte_bits(a: __m512i, by: i32, count: i32, to: i32) -> __m512i {
        if by == 0 && to == 0 {
            return _mm512_and_si512(a, _mm512_set1_epi32(((1 << count) - 1) * 0x0101_0101));
        }
        // Byte 7 - i says which bits make bit i: of a matrix that changes nothing it is bit i. Such
        // a matrix shifted by whole bytes shifts bits; rows of zeros make zeros.
        let same = 0x0102_0408_1020_4080u64;
        let moved = if by < to { same >> (8 * (to - by)) } else { same << (8 * (by - to)) };
        let kept = u64::MAX >> (64 - 8 * count) << (8 * (8 - to - count));
        let matrix = _mm512_set1_epi64((moved & kept).cast_signed());
        _mm512_gf2p8affine_epi64_epi8::<0>(a, matrix)
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
        let indices = Index::new(indices);
        [indices.lookup::<TWO>(&GRID_BYTES[0]), indices.lookup::<TWO>(&GRID_BYTES[1])]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    unsafe fn group_codes(indices: __m512i, packed: __m512i) -> [[__m512i; 4]; 2] {
        // Byte i gets the eight bits from 7 i on, of which seven are used.
        let at = _mm512_set1_epi64(0x352e_2720_150e_0700);
        let signs = _mm512_multishift_epi64_epi8(at, packed);
        let first = Index::new(indices).lookup::<TWO>(&PAIRS[0]);
        let second = Index::new(indices).lookup::<TWO>(&PAIRS[1]);
        // Written out: calls from inside `map` would stay calls.
        let a = pair(first, signs, SIGNS[0]);
        let b = pair(odd(first), signs, SIGNS[1]);
        let c = pair(second, signs, SIGNS[2]);
        let d = pair(odd(second), signs, SIGNS[3]);
        let (low, high) = (load_table(&SIGNED[0], 0), load_table(&SIGNED[1], 0));
        [
            [
                _mm512_permutexvar_epi8(a, low),
                _mm512_permutexvar_epi8(b, low),
                _mm512_permutexvar_epi8(c, low),
                _mm512_permutexvar_epi8(d, low),
            ],
            [
                _mm512_permutexvar_epi8(a, high),
                _mm512_permutexvar_epi8(b, high),
                _mm512_permutexvar_epi8(c, high),
                _mm512_permutexvar_epi8(d, high),
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

#[cfg(test)]
mod tests {
    use super::super::supers::grid_codes;
    use super::{__m512i, Simd, Sixteen};
    use crate::cpu::Isa;

    type Codes = unsafe fn(__m512i, __m512i) -> [[__m512i; 4]; 2];

    /// Of either way to look up, on whatever machine this is.
    #[test]
    fn codes_of_a_group_are_those_of_its_grid_points() {
        if !Isa::Avx512.is_present() {
            return;
        }
        let word = |i: usize| u32::try_from(i).expect("small").wrapping_mul(0x9e37_79b9);
        for first in 0..256 {
            let indices: [u32; 16] = std::array::from_fn(|i| word(first * 32 + i));
            let packed: [u32; 16] = std::array::from_fn(|i| word(first * 32 + 16 + i));
            let of = |codes: Codes| {
                // SAFETY: the machine has the set; vectors are sixteen words.
                unsafe {
                    let load = |from: &[u32; 16]| Sixteen::<true>::load(from.as_ptr().cast());
                    let codes = codes(load(&indices), load(&packed));
                    std::mem::transmute::<[[__m512i; 4]; 2], [[u32; 16]; 8]>(codes)
                }
            };
            let wanted = of(grid_codes::<Sixteen<false>>);
            assert_eq!(of(Sixteen::<false>::group_codes), wanted, "one by one, {first}");
            assert_eq!(of(Sixteen::<true>::group_codes), wanted, "two at a time, {first}");
            assert_eq!(of(grid_codes::<Sixteen<true>>), wanted, "grid points, {first}");
        }
    }
}
