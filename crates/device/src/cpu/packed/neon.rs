//! Arm with the dot product extension (Apple M1 and later, Graviton 2 and later): four lanes. With
//! the matrix extension (Apple M2, Graviton 3) two input rows share an instruction where a format
//! has blocks of 32.
//!
//! The standard library's functions for these instructions are not stable, so they are written as
//! assembly; everything else is intrinsics.

use super::inputs::Record32;
use super::simd::{Codes, GRID_BYTES, Simd, TileKernel, at};
use std::arch::aarch64::*;
use std::arch::asm;

/// Four rows in a vector; with the matrix extension if `I8MM`.
pub(crate) struct Neon<const I8MM: bool>;

/// # Safety
/// The machine has the extension.
#[target_feature(enable = "neon,dotprod")]
unsafe fn enter_dot<S: Simd>(kernel: impl TileKernel) {
    // SAFETY: the caller's promise.
    unsafe { kernel.run::<S>() }
}

/// # Safety
/// The machine has both extensions.
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn enter_i8mm<S: Simd>(kernel: impl TileKernel) {
    // SAFETY: the caller's promise.
    unsafe { kernel.run::<S>() }
}

/// `acc` plus the products of two rows of eight signed bytes with two others: a0 b0, a0 b1, a1 b0,
/// a1 b1.
///
/// # Safety
/// The machine has the matrix extension.
#[inline]
#[target_feature(enable = "neon,i8mm")]
unsafe fn mma(acc: int32x4_t, a: int8x16_t, b: int32x4_t) -> int32x4_t {
    let mut sum = acc;
    // SAFETY: the machine has the extension by the caller's promise; only registers are touched.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// The dots of 32 signed codes of each of four rows with two inputs.
///
/// # Safety
/// The machine has the matrix extension; both point to records.
#[inline]
#[target_feature(enable = "neon,i8mm")]
unsafe fn dot_pair(codes: &[int32x4_t; 8], x: [*const Record32; 2]) -> [int32x4_t; 2] {
    let (mut first, mut last) = (vdupq_n_s32(0), vdupq_n_s32(0));
    for (eight, pair) in codes.as_chunks::<2>().0.iter().enumerate() {
        // SAFETY: eights 0..4 of 32 codes; the extension by the caller's promise.
        unsafe {
            let from =
                |x: *const Record32| vld1_s8((&raw const (*x).codes).cast::<i8>().add(8 * eight));
            let inputs = vcombine_s8(from(x[0]), from(x[1]));
            first = mma(first, inputs, vzip1q_s32(pair[0], pair[1]));
            last = mma(last, inputs, vzip2q_s32(pair[0], pair[1]));
        }
    }
    let (first, last) = (vreinterpretq_s64_s32(first), vreinterpretq_s64_s32(last));
    let rows = [vzip1q_s64(first, last), vzip2q_s64(first, last)];
    [vreinterpretq_s32_s64(rows[0]), vreinterpretq_s32_s64(rows[1])]
}

/// `acc` plus, in each lane, the dot of its four signed bytes with bytes `4 LANE..4 LANE + 4` of
/// `x`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn dot_lane<const LANE: usize>(acc: int32x4_t, codes: int32x4_t, x: int8x16_t) -> int32x4_t {
    let mut sum = acc;
    // SAFETY: the machine has the extension by the caller's promise; only registers are touched.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {codes:v}.16b, {x:v}.4b[{lane}]",
            sum = inout(vreg) sum,
            codes = in(vreg) codes,
            x = in(vreg) x,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Four groups of codes with sixteen bytes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn dot_groups(acc: int32x4_t, codes: [int32x4_t; 4], x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let acc = dot_lane::<0>(acc, codes[0], x);
        let acc = dot_lane::<1>(acc, codes[1], x);
        let acc = dot_lane::<2>(acc, codes[2], x);
        dot_lane::<3>(acc, codes[3], x)
    }
}

/// Four words of inputs.
///
/// # Safety
/// `x` has them, `STRIDE` words apart.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn four_words<const STRIDE: usize>(x: *const u8) -> int8x16_t {
    // SAFETY: the caller's promise.
    unsafe {
        if STRIDE == 1 {
            return vld1q_s8(x.cast());
        }
        let word = |i: usize| at::<STRIDE>(x, i).cast::<u32>().read_unaligned();
        vld1q_s8([word(0), word(1), word(2), word(3)].as_ptr().cast())
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn bytes(a: int32x4_t) -> uint8x16_t {
    vreinterpretq_u8_s32(a)
}

#[inline]
#[target_feature(enable = "neon")]
fn lanes(a: uint8x16_t) -> int32x4_t {
    vreinterpretq_s32_u8(a)
}

impl<const I8MM: bool> Simd for Neon<I8MM> {
    const LANES: usize = 4;
    const INT_ROWS: usize = 4;
    const FLOAT_ROWS: usize = 2;
    const BY_ROWS: bool = I8MM;
    type I = int32x4_t;
    type F = float32x4_t;
    type Two = Self;

    unsafe fn enter(kernel: impl TileKernel) {
        // SAFETY: the caller's promise.
        unsafe { if I8MM { enter_i8mm::<Self>(kernel) } else { enter_dot::<Self>(kernel) } }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load(from: *const u8) -> int32x4_t {
        // SAFETY: 16 readable bytes by the caller's promise.
        lanes(unsafe { vld1q_u8(from) })
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn broadcast(from: *const u8) -> int32x4_t {
        // SAFETY: 4 readable bytes by the caller's promise.
        vdupq_n_s32(unsafe { from.cast::<i32>().read_unaligned() })
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn splat(value: i32) -> int32x4_t {
        vdupq_n_s32(value)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn table(table: &[u8; 16]) -> int32x4_t {
        // SAFETY: the array has the 16 bytes.
        lanes(unsafe { vld1q_u8(table.as_ptr()) })
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn and(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        vandq_s32(a, b)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn or(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        vorrq_s32(a, b)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn xor(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        veorq_s32(a, b)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn shr(a: int32x4_t, by: i32) -> int32x4_t {
        let shifted = vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-by));
        vreinterpretq_s32_u32(shifted)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn shl(a: int32x4_t, by: i32) -> int32x4_t {
        vshlq_s32(a, vdupq_n_s32(by))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn signed_byte(a: int32x4_t, index: i32) -> int32x4_t {
        vshrq_n_s32::<24>(vshlq_s32(a, vdupq_n_s32(24 - 8 * index)))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn even_bytes(a: int32x4_t) -> int32x4_t {
        let halves = vreinterpretq_s16_s32(a);
        vreinterpretq_s32_s16(vshrq_n_s16::<8>(vshlq_n_s16::<8>(halves)))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn odd_bytes(a: int32x4_t) -> int32x4_t {
        vreinterpretq_s32_s16(vshrq_n_s16::<8>(vreinterpretq_s16_s32(a)))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn lookup(table: int32x4_t, a: int32x4_t) -> int32x4_t {
        lanes(vqtbl1q_u8(bytes(table), bytes(a)))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn add_signed(base: int32x4_t, a: int32x4_t, signs: int32x4_t, bit: i32) -> int32x4_t {
        let minus = vtstq_u8(bytes(signs), vdupq_n_u8(1 << bit));
        let signed = vsubq_u8(veorq_u8(bytes(a), minus), minus);
        lanes(vaddq_u8(bytes(base), signed))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn add(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        vaddq_s32(a, b)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn mul(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        vmulq_s32(a, b)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn madd16(acc: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
        let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
        vaddq_s32(acc, vpaddq_s32(low, vmull_high_s16(a, b)))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn mul16(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        vreinterpretq_s32_s16(vmulq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)))
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn dot16<C: Codes, const STRIDE: usize>(
        acc: int32x4_t,
        codes: &[int32x4_t; 4],
        x: *const u8,
    ) -> int32x4_t {
        // The instruction takes signed bytes.
        const { assert!(C::MAX <= 127) };
        // SAFETY: four words and the extension by the caller's promise.
        unsafe { dot_groups(acc, *codes, four_words::<STRIDE>(x)) }
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn dots_signed<const R: usize, const STRIDE: usize>(
        codes: &[int32x4_t; 8],
        x: [*const u8; R],
    ) -> [int32x4_t; R] {
        let [a, b, c, d, e, f, g, h] = *codes;
        // SAFETY: the caller's promise; `x` are records.
        unsafe {
            let mut sums = [Self::splat(0); R];
            let (pairs, rest) = sums.as_chunks_mut::<2>();
            let (inputs, last) = x.as_chunks::<2>();
            let dot = |x: *const u8| {
                let sum = dot_groups(Self::splat(0), [a, b, c, d], four_words::<STRIDE>(x));
                dot_groups(sum, [e, f, g, h], four_words::<STRIDE>(at::<STRIDE>(x, 4)))
            };
            for (sums, inputs) in pairs.iter_mut().zip(inputs) {
                *sums = if I8MM && STRIDE == 1 {
                    dot_pair(codes, inputs.map(<*const u8>::cast))
                } else {
                    [dot(inputs[0]), dot(inputs[1])]
                };
            }
            for (sum, x) in rest.iter_mut().zip(last) {
                *sum = dot(*x);
            }
            sums
        }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn grid(indices: int32x4_t) -> [int32x4_t; 2] {
        let index = bytes(indices);
        let mut halves = [indices; 2];
        for (half, table) in halves.iter_mut().zip(&GRID_BYTES) {
            // An index beyond the 64 bytes of a quarter leaves what is there.
            let mut found = vdupq_n_u8(0);
            for (quarter, first) in table.as_chunks::<64>().0.iter().zip([0u8, 64, 128, 192]) {
                // SAFETY: the quarter has 64 bytes.
                let quarter = unsafe { vld1q_u8_x4(quarter.as_ptr()) };
                found = vqtbx4q_u8(found, quarter, vsubq_u8(index, vdupq_n_u8(first)));
            }
            *half = lanes(found);
        }
        halves
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn zero() -> float32x4_t {
        vdupq_n_f32(0.0)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn splat_f32(value: f32) -> float32x4_t {
        vdupq_n_f32(value)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn from_i32(a: int32x4_t) -> float32x4_t {
        vcvtq_f32_s32(a)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn add_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vaddq_f32(a, b)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn mul_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vmulq_f32(a, b)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmaq_f32(c, a, b)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn fms(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmaq_f32(vnegq_f32(c), a, b)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load_f32(from: *const u8) -> float32x4_t {
        // SAFETY: 16 readable bytes by the caller's promise.
        vreinterpretq_f32_u8(unsafe { vld1q_u8(from) })
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load_f16(from: *const u8) -> float32x4_t {
        // SAFETY: 8 readable bytes by the caller's promise.
        vcvt_f32_f16(vreinterpret_f16_u8(unsafe { vld1_u8(from) }))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load_bf16(from: *const u8) -> float32x4_t {
        // SAFETY: 8 readable bytes by the caller's promise.
        let halves = vreinterpret_u16_u8(unsafe { vld1_u8(from) });
        vreinterpretq_f32_u32(vshll_n_u16::<16>(halves))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load_half_e8m0(from: *const u8) -> float32x4_t {
        // SAFETY: 4 readable bytes by the caller's promise.
        let four = vdup_n_u32(unsafe { from.cast::<u32>().read_unaligned() });
        let e = vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(four))));
        let normal = vshlq_n_u32::<23>(vsubq_u32(e, vdupq_n_u32(1)));
        // The halves of 2^-127 and 2^-126 are subnormal.
        let tiny = vshlq_u32(vdupq_n_u32(0x0020_0000), vreinterpretq_s32_u32(e));
        let is_tiny = vcltq_u32(e, vdupq_n_u32(2));
        vreinterpretq_f32_u32(vbslq_u32(is_tiny, tiny, normal))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn store(to: *mut f32, a: float32x4_t) {
        // SAFETY: 16 writable bytes by the caller's promise.
        unsafe { vst1q_f32(to, a) }
    }
}
