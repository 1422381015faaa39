//! Two neighbouring vectors of AVX-512 as one: thirty-two rows.
//!
//! With sixteen rows every dot of a panel takes its word from memory by itself, and loads are what
//! bounds it: of twelve inputs 129 for 96 dots, two a cycle. Here a word that is in a register
//! meets two vectors of weights: of six inputs 78 loads for 96 dots. A lane never meets another
//! one, so bits are those of single vectors.

use super::avx512::Sixteen;
use super::inputs::narrow_words;
use super::simd::{Codes, Simd, TileKernel, at};
use super::tile::FloatFormat;
use std::arch::x86_64::*;

/// The rows of two tiles, if they have been unpacked side by side.
pub(crate) struct Pair<const TWO: bool>;

type I = [__m512i; 2];
type F = [__m512; 2];

/// Operations on either half for itself: of vectors, or of values that both have.
macro_rules! halves {
    ($(
        fn $name:ident($($of_both:ident: $kind:ty),* $(; $($vector:ident: $type:ty),+)?)
            -> $result:ty;
    )*) => {
        $(
            #[inline(always)]
            unsafe fn $name($($($vector: $type,)+)? $($of_both: $kind),*) -> $result {
                // SAFETY: the caller's promise.
                unsafe {
                    [
                        Sixteen::<TWO>::$name($($($vector[0],)+)? $($of_both),*),
                        Sixteen::<TWO>::$name($($($vector[1],)+)? $($of_both),*),
                    ]
                }
            }
        )*
    };
}

/// Loads, a vector of `bytes` behind the other.
macro_rules! loads {
    ($(fn $name:ident() -> $result:ty, $bytes:literal;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name(from: *const u8) -> $result {
                // SAFETY: the caller's promise.
                unsafe { [Sixteen::<TWO>::$name(from), Sixteen::<TWO>::$name(from.add($bytes))] }
            }
        )*
    };
}

/// A word of an input, for both halves.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn word(from: *const u8) -> __m512i {
    // SAFETY: 4 readable bytes by the caller's promise.
    _mm512_set1_epi32(unsafe { from.cast::<i32>().read_unaligned() })
}

/// Adds dots of 4 codes of each row with a word of each input.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn add_dots<const R: usize, const STRIDE: usize>(
    acc: &mut [I; R],
    codes: I,
    x: &[*const u8; R],
    index: usize,
) {
    for r in 0..R {
        // SAFETY: the inputs have the word, by the caller's promise.
        let x = unsafe { word(at::<STRIDE>(x[r], index)) };
        acc[r][0] = _mm512_dpbusd_epi32(acc[r][0], codes[0], x);
        acc[r][1] = _mm512_dpbusd_epi32(acc[r][1], codes[1], x);
    }
}

impl<const TWO: bool> Simd for Pair<TWO> {
    const LANES: usize = 32;
    const INT_ROWS: usize = 6;
    const FLOAT_ROWS: usize = 6;
    const PANELS: bool = true;
    type I = I;
    type F = F;
    type Two = Self;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,gfni,avx2,fma,f16c")]
    unsafe fn enter(kernel: impl TileKernel) {
        // SAFETY: the caller's promise.
        unsafe { kernel.run::<Self>() }
    }

    #[inline(always)]
    unsafe fn dot16<C: Codes, const STRIDE: usize>(acc: I, codes: &[I; 4], x: *const u8) -> I {
        // SAFETY: the caller's promise.
        unsafe { Self::dots::<C, 1, STRIDE, 1>([acc], &[*codes], [x])[0] }
    }

    #[inline(always)]
    unsafe fn dots<C: Codes, const R: usize, const STRIDE: usize, const Q: usize>(
        acc: [I; R],
        codes: &[[I; 4]; Q],
        x: [*const u8; R],
    ) -> [I; R] {
        let mut acc = acc;
        for (index, &codes) in codes.as_flattened().iter().enumerate() {
            // SAFETY: `4 Q` words by the caller's promise.
            unsafe { add_dots::<R, STRIDE>(&mut acc, codes, &x, index) }
        }
        acc
    }

    #[inline(always)]
    unsafe fn dots_signed<const R: usize, const STRIDE: usize>(
        codes: &[I; 8],
        x: [*const u8; R],
    ) -> [I; R] {
        let mut codes = *codes;
        // SAFETY: the caller's promise.
        unsafe {
            let bias = Self::splat(i32::from_ne_bytes([128; 4]));
            for codes in &mut codes {
                *codes = Self::xor(*codes, bias);
            }
            Self::dots_biased::<R, STRIDE>(&codes, x)
        }
    }

    #[inline(always)]
    unsafe fn dots_biased<const R: usize, const STRIDE: usize>(
        codes: &[I; 8],
        x: [*const u8; R],
    ) -> [I; R] {
        // SAFETY: `x` are records; eight words of codes.
        unsafe {
            let mut acc = [Self::splat(0); R];
            for r in 0..R {
                acc[r] = Self::broadcast(at::<STRIDE>(x[r], narrow_words::OFFSET));
            }
            for (index, &codes) in codes.iter().enumerate() {
                add_dots::<R, STRIDE>(&mut acc, codes, &x, index);
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: the caller's promise.
        unsafe { Sixteen::<TWO>::prefetch(at) }
    }

    #[inline(always)]
    unsafe fn prefetch_far(at: *const u8) {
        // SAFETY: the caller's promise.
        unsafe { Sixteen::<TWO>::prefetch_far(at) }
    }

    #[inline(always)]
    unsafe fn grid(indices: I) -> [I; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let [low, high] = [Sixteen::<TWO>::grid(indices[0]), Sixteen::<TWO>::grid(indices[1])];
            [[low[0], high[0]], [low[1], high[1]]]
        }
    }

    #[inline(always)]
    unsafe fn weights<W: FloatFormat>(from: *const u8, apart: usize) -> F {
        // SAFETY: the caller's promise.
        unsafe {
            [W::load::<Sixteen<TWO>>(from), W::load::<Sixteen<TWO>>(from.wrapping_add(apart))]
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, a: F) {
        // SAFETY: 128 writable bytes by the caller's promise.
        unsafe {
            Sixteen::<TWO>::store(to, a[0]);
            Sixteen::<TWO>::store(to.add(16), a[1]);
        }
    }

    loads! {
        fn load() -> I, 64;
        fn load_f32() -> F, 64;
        fn load_f16() -> F, 32;
        fn load_bf16() -> F, 32;
        fn load_half_e8m0() -> F, 16;
    }

    halves! {
        fn broadcast(from: *const u8) -> I;
        fn splat(value: i32) -> I;
        fn table(bytes: &[u8; 16]) -> I;
        fn and(; a: I, b: I) -> I;
        fn or(; a: I, b: I) -> I;
        fn xor(; a: I, b: I) -> I;
        fn shr(by: i32; a: I) -> I;
        fn shl(by: i32; a: I) -> I;
        fn signed_byte(index: i32; a: I) -> I;
        fn even_bytes(; a: I) -> I;
        fn odd_bytes(; a: I) -> I;
        fn lookup(; table: I, a: I) -> I;
        fn add_signed(bit: i32; base: I, a: I, signs: I) -> I;
        fn add(; a: I, b: I) -> I;
        fn mul(; a: I, b: I) -> I;
        fn madd16(; acc: I, a: I, b: I) -> I;
        fn mul16(; a: I, b: I) -> I;
        fn zero() -> F;
        fn splat_f32(value: f32) -> F;
        fn from_i32(; a: I) -> F;
        fn add_f32(; a: F, b: F) -> F;
        fn mul_f32(; a: F, b: F) -> F;
        fn fma(; a: F, b: F, c: F) -> F;
        fn fms(; a: F, b: F, c: F) -> F;
    }
}
