//! Formats with super-blocks of 256: one block of a vector of rows times the same block of `R`
//! activation rows, by the expressions of the format's file in `ironstar_quant`.

use super::inputs::{Record256, View, WEIGHT_OFFSET, Woven256, wide_words, woven_words};
use super::layout::FIELDS;
use super::narrow::{bytes, half, scaled, word};
use super::panel::Rows;
use super::simd::{Codes, Simd, at};
use super::tile::{Due, FAR, IntFormat, NEAR};
use ironstar_quant::Format;

pub(crate) struct Q2K;
pub(crate) struct Q3K;
pub(crate) struct Q4K;
pub(crate) struct Q5K;
pub(crate) struct Q6K;
pub(crate) struct Iq2Xxs;

/// What differs between the K formats: a super-block is 16 pieces of 16 codes.
trait Super: Codes {
    /// Which one.
    const FORMAT: Format;
    /// Pieces that share a scale: 1 or 2.
    const PIECES: usize;
    /// What stored codes are too large by; 0 where there are minimums.
    const OFFSET: i32;
    /// Whether there are minimums (and dmin).
    const MINIMUMS: bool;
    /// Whether codes times their scale, which is not negative, still are bytes.
    const FOLDS: bool = false;
    /// As [`IntFormat::AHEAD`].
    const AHEAD: usize = NEAR;

    /// Scales and minimums as signed bytes, four to a lane, in order; the first 4 / PIECES lanes of
    /// each count. Without minimums the second are the scales again.
    ///
    /// # Safety
    /// The machine has `S`; `words` is a block.
    unsafe fn scales<S: Simd>(words: *const u8) -> [[S::I; 4]; 2];

    /// Stored codes of a piece, four words.
    ///
    /// # Safety
    /// As for `scales`; `piece` is below 16.
    unsafe fn codes<S: Simd>(words: *const u8, piece: usize) -> [S::I; 4];
}

/// Where what a block unpacks to lies, in vectors: codes of sixteen pieces (times their scale, if
/// the format folds), scales, minimums as 16-bit halves, d and dmin.
mod parts {
    pub(super) const SCALES: usize = 64;
    pub(super) const MINIMUMS: usize = 80;
    pub(super) const D: usize = 88;
    pub(super) const ALL: usize = 90;
}

impl<F: Super> Rows for F {
    type Record = Record256;

    #[inline(always)]
    fn records<'a>(x: &View<'a>, row: usize) -> &'a [Record256] {
        x.wide(row)
    }
}

impl<F: Super> IntFormat for F {
    const FORMAT: Format = F::FORMAT;
    const UNPACKED: usize = parts::ALL;
    const AHEAD: usize = F::AHEAD;

    #[inline(always)]
    unsafe fn step<S: Simd, const R: usize, const STRIDE: usize>(
        fields: [*const u8; FIELDS],
        due: Due,
        x: [*const u8; R],
        acc: &mut [S::F; R],
    ) {
        // SAFETY: the caller's promise; a block has so many words and one or two f16.
        unsafe {
            let words = fields[0];
            let [scales, minimums] = F::scales::<S>(words);
            let mut sums = [S::splat(0); R];
            for (quad, &minimums) in minimums[..4 / F::PIECES].iter().enumerate() {
                let halves = [S::even_bytes(minimums), S::odd_bytes(minimums)];
                add_minimums::<S, F, R, STRIDE>(quad, halves, x, &mut sums);
            }
            // J first, so that its registers are free for I.
            let (start, minimums) = if F::MINIMUMS {
                let dmin = half::<S>(fields[1], 1);
                ([S::splat(0); R], scaled_minimums::<S, R>(dmin, &sums))
            } else {
                (offsets::<S, F, R>(&sums), [S::zero(); R])
            };
            let mut i = start;
            for (quad, &scales) in scales[..4 / F::PIECES].iter().enumerate() {
                if F::PIECES == 1 {
                    due.ask::<S, 4>(Self::LINES, quad);
                }
                for sub in 0..4 {
                    let at = 4 * quad + sub;
                    if F::PIECES == 2 {
                        due.ask::<S, 8>(Self::LINES, at);
                    }
                    let scale = S::signed_byte(scales, shift(sub));
                    let folds = folds::<S, F>() && R >= 4;
                    let (codes, scale) = prepared::<S, F>(words, at, scale, folds);
                    add_products::<S, F, R, STRIDE>(at, &codes, scale, folds, x, &mut i);
                }
            }
            let d = half::<S>(fields[1], 0);
            add_block::<S, F, R, STRIDE>(d, &i, &minimums, x, acc);
        }
    }

    #[inline(always)]
    unsafe fn unpack<S: Simd, const STEP: usize>(fields: [*const u8; FIELDS], to: *mut S::I) {
        // SAFETY: the caller's promise; as in `step`, and `ALL` vectors can be written.
        unsafe {
            let words = fields[0];
            let [scales, minimums] = F::scales::<S>(words);
            for (quad, &minimums) in minimums[..4 / F::PIECES].iter().enumerate() {
                let to = to.add((parts::MINIMUMS + 2 * quad) * STEP);
                to.write(S::even_bytes(minimums));
                to.add(STEP).write(S::odd_bytes(minimums));
            }
            unpack_quad::<S, F, 0, STEP>(words, scales[0], to);
            unpack_quad::<S, F, 1, STEP>(words, scales[1], to);
            if F::PIECES == 1 {
                unpack_quad::<S, F, 2, STEP>(words, scales[2], to);
                unpack_quad::<S, F, 3, STEP>(words, scales[3], to);
            }
            let d = to.add(parts::D * STEP).cast::<S::F>();
            if F::MINIMUMS {
                d.write(half::<S>(fields[1], 0));
                d.add(STEP).write(half::<S>(fields[1], 1));
            } else {
                d.write(half::<S>(fields[1], 0));
            }
        }
    }

    #[inline(always)]
    unsafe fn unpacked_step<S: Simd, const R: usize, const STRIDE: usize>(
        from: *const S::I,
        x: [*const u8; R],
        acc: &mut [S::F; R],
    ) {
        // SAFETY: the caller's promise; `unpack` wrote what is read.
        unsafe {
            let mut sums = [S::splat(0); R];
            for quad in 0..4 / F::PIECES {
                let at = from.add(parts::MINIMUMS + 2 * quad);
                add_minimums::<S, F, R, STRIDE>(quad, [at.read(), at.add(1).read()], x, &mut sums);
            }
            let d = from.add(parts::D).cast::<S::F>();
            let (start, minimums) = if F::MINIMUMS {
                ([S::splat(0); R], scaled_minimums::<S, R>(d.add(1).read(), &sums))
            } else {
                (offsets::<S, F, R>(&sums), [S::zero(); R])
            };
            let mut i = start;
            for at in 0..16 / F::PIECES {
                let mut codes = [[S::splat(0); 4]; 2];
                let words = codes[..F::PIECES].as_flattened_mut();
                for (word, codes) in words.iter_mut().enumerate() {
                    *codes = from.add(4 * at * F::PIECES + word).read();
                }
                let scale = from.add(parts::SCALES + at).read();
                add_products::<S, F, R, STRIDE>(at, &codes, scale, folds::<S, F>(), x, &mut i);
            }
            add_block::<S, F, R, STRIDE>(d.read(), &i, &minimums, x, acc);
        }
    }
}

/// Codes and scales of quad `Q` of four (pairs of) pieces, to where they belong in an unpacked
/// block. The number is a constant so that shifts are.
///
/// # Safety
/// The machine has `S`; `words` is a block; there is such a quad; [`parts::ALL`] vectors can be
/// written, `STEP` apart.
#[inline(always)]
unsafe fn unpack_quad<S: Simd, F: Super, const Q: usize, const STEP: usize>(
    words: *const u8,
    scales: S::I,
    to: *mut S::I,
) {
    for sub in 0..4 {
        let at = 4 * Q + sub;
        // SAFETY: the caller's promise.
        unsafe {
            let scale = S::signed_byte(scales, shift(sub));
            let (codes, scale) = prepared::<S, F>(words, at, scale, folds::<S, F>());
            to.add((parts::SCALES + at) * STEP).write(scale);
            for (word, codes) in codes[..F::PIECES].as_flattened().iter().enumerate() {
                to.add((4 * at * F::PIECES + word) * STEP).write(*codes);
            }
        }
    }
}

/// Whether codes are multiplied by their scale before they meet rows.
#[inline(always)]
const fn folds<S: Simd, F: Super>() -> bool {
    F::FOLDS && S::PANELS
}

/// Whether the dot of a piece is below 2^15, so that multiply and add are one instruction.
#[inline(always)]
const fn is_small<F: Super>() -> bool {
    F::MAX * 127 * 16 < 1 << 15
}

/// What codes that are too large add, negated: what I starts from.
///
/// # Safety
/// The machine has `S`.
#[inline(always)]
unsafe fn offsets<S: Simd, F: Super, const R: usize>(sums: &[S::I; R]) -> [S::I; R] {
    let mut offsets = *sums;
    for offset in &mut offsets {
        // SAFETY: the caller's promise.
        *offset = unsafe { S::mul(*offset, S::splat(-F::OFFSET)) };
    }
    offsets
}

/// dmin * J of every row.
///
/// # Safety
/// The machine has `S`.
#[inline(always)]
unsafe fn scaled_minimums<S: Simd, const R: usize>(dmin: S::F, sums: &[S::I; R]) -> [S::F; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut minimums = [S::zero(); R];
        for (minimum, j) in minimums.iter_mut().zip(sums) {
            *minimum = S::mul_f32(dmin, S::from_i32(*j));
        }
        minimums
    }
}

/// The end of a step: `d_x (d I - dmin J)` or `d d_x I` more.
///
/// # Safety
/// The machine has `S`; `x` has a block.
#[inline(always)]
unsafe fn add_block<S: Simd, F: Super, const R: usize, const STRIDE: usize>(
    d: S::F,
    i: &[S::I; R],
    minimums: &[S::F; R],
    x: [*const u8; R],
    acc: &mut [S::F; R],
) {
    for (r, acc) in acc.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = scale_of::<STRIDE>(x[r]);
            if F::MINIMUMS {
                let inner = S::fms(d, S::from_i32(i[r]), minimums[r]);
                *acc = S::fma(S::splat_f32(scale), inner, *acc);
            } else {
                *acc = scaled::<S>(d, scale, i[r], *acc);
            }
        }
    }
}

/// Scale of a record of 256.
///
/// # Safety
/// `x` is one.
#[inline(always)]
unsafe fn scale_of<const STRIDE: usize>(x: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { at::<STRIDE>(x, wide_words::SCALE).cast::<f32>().read_unaligned() }
}

/// The same word of every row.
///
/// # Safety
/// `x` are records that have the word.
#[inline(always)]
unsafe fn words_at<const R: usize, const STRIDE: usize>(
    x: [*const u8; R],
    word: usize,
) -> [*const u8; R] {
    let mut x = x;
    for x in &mut x {
        // SAFETY: the caller's promise.
        *x = unsafe { at::<STRIDE>(*x, word) };
    }
    x
}

// Loops over rows below count: an iterator over an array of pointers by value copies it to memory.

/// Adds to J, the sum over pieces of minimum times the sum of x, four (pairs of) pieces, whose
/// minimums are the even and the odd halves.
///
/// # Safety
/// The machine has `S`; `x` has a block; there is such a quad.
#[inline(always)]
unsafe fn add_minimums<S: Simd, F: Super, const R: usize, const STRIDE: usize>(
    quad: usize,
    [even, odd]: [S::I; 2],
    x: [*const u8; R],
    j: &mut [S::I; R],
) {
    let sums = if F::PIECES == 1 { wide_words::SUMS_16 } else { wide_words::SUMS_32 };
    let (first, last) = (sums + 2 * quad, sums + 2 * quad + 1);
    for r in 0..R {
        // SAFETY: the caller's promise; a record has 16 sums of pieces and 8 of pairs of them.
        unsafe {
            j[r] = S::madd16(j[r], even, S::broadcast(at::<STRIDE>(x[r], first)));
            j[r] = S::madd16(j[r], odd, S::broadcast(at::<STRIDE>(x[r], last)));
        }
    }
}

/// Codes of the pieces of scale `at`, and the scale, as [`add_products`] wants them.
///
/// # Safety
/// The machine has `S`; `words` is a block; `scale` is its scale `at`.
#[inline(always)]
unsafe fn prepared<S: Simd, F: Super>(
    words: *const u8,
    at: usize,
    scale: S::I,
    folds: bool,
) -> ([[S::I; 4]; 2], S::I) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut codes = [[S::splat(0); 4]; 2];
        for (piece, codes) in codes.iter_mut().enumerate().take(F::PIECES) {
            *codes = F::codes::<S>(words, at * F::PIECES + piece);
        }
        if folds {
            // Bytes times a small number: no product reaches the next byte.
            let scale = S::or(scale, S::shl(scale, 16));
            for codes in codes[..F::PIECES].as_flattened_mut() {
                *codes = S::mul16(*codes, scale);
            }
        }
        let half = is_small::<F>() && !folds;
        (codes, if half { S::and(scale, S::splat(0xffff)) } else { scale })
    }
}

/// Adds to I, the sum over pieces of scale times the dot of stored codes and x, those of scale
/// `at`.
///
/// # Safety
/// The machine has `S`; `x` has a block; codes and scale are [`prepared`].
#[inline(always)]
unsafe fn add_products<S: Simd, F: Super, const R: usize, const STRIDE: usize>(
    at: usize,
    codes: &[[S::I; 4]; 2],
    scale: S::I,
    folds: bool,
    x: [*const u8; R],
    i: &mut [S::I; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let x = words_at::<R, STRIDE>(x, 4 * at * F::PIECES);
        if folds {
            *i = S::dots::<Folded, R, STRIDE, 1>(*i, &[codes[0]], x);
        } else if is_small::<F>() {
            for (piece, &codes) in codes[..F::PIECES].iter().enumerate() {
                let x = words_at::<R, STRIDE>(x, 4 * piece);
                let dots = S::dots::<F, R, STRIDE, 1>([S::splat(0); R], &[codes], x);
                for r in 0..R {
                    i[r] = S::madd16(i[r], dots[r], scale);
                }
            }
        } else {
            let mut dots = S::dots::<F, R, STRIDE, 1>([S::splat(0); R], &[codes[0]], x);
            if F::PIECES == 2 {
                let x = words_at::<R, STRIDE>(x, 4);
                dots = S::dots::<F, R, STRIDE, 1>(dots, &[codes[1]], x);
            }
            for r in 0..R {
                i[r] = S::add(i[r], S::mul(dots[r], scale));
            }
        }
    }
}

/// Of each byte of four words from `index` on, `count` bits from bit `by` on, brought to bit `to`.
///
/// # Safety
/// The machine has `S`; the block has the words.
#[inline(always)]
unsafe fn bits_to<S: Simd>(
    words: *const u8,
    index: usize,
    (by, count, to): (usize, i32, i32),
) -> [S::I; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut out = [S::splat(0); 4];
        for (i, out) in out.iter_mut().enumerate() {
            *out = S::byte_bits(word::<S>(words, index + i), shift(by), count, to);
        }
        out
    }
}

/// [`bits_to`] the lowest.
///
/// # Safety
/// As for [`bits_to`].
#[inline(always)]
unsafe fn bits<S: Simd>(words: *const u8, index: usize, by: usize, count: i32) -> [S::I; 4] {
    // SAFETY: the caller's promise.
    unsafe { bits_to::<S>(words, index, (by, count, 0)) }
}

/// Adds [`bits_to`] to `low`, which has none there.
///
/// # Safety
/// As for [`bits_to`].
#[inline(always)]
unsafe fn with_bits<S: Simd>(
    low: [S::I; 4],
    words: *const u8,
    index: usize,
    from: (usize, i32, i32),
) -> [S::I; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let high = bits_to::<S>(words, index, from);
        let mut out = low;
        for (out, high) in out.iter_mut().zip(&high) {
            *out = S::or(*out, *high);
        }
        out
    }
}

#[inline(always)]
fn shift(by: usize) -> i32 {
    i32::try_from(by).expect("shifts are below 32")
}

/// Codes times their scale.
struct Folded;

impl Codes for Folded {
    const MAX: i32 = 45;
}

impl Codes for Q2K {
    const MAX: i32 = 3;
}

impl Super for Q2K {
    const FORMAT: Format = Format::Q2K;
    const PIECES: usize = 1;
    const OFFSET: i32 = 0;
    const MINIMUMS: bool = true;
    const FOLDS: bool = true;
    const AHEAD: usize = FAR;

    #[inline(always)]
    unsafe fn scales<S: Simd>(words: *const u8) -> [[S::I; 4]; 2] {
        // SAFETY: the caller's promise; words 0..4.
        unsafe { [bits::<S>(words, 0, 0, 4), bits::<S>(words, 0, 4, 4)] }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(words: *const u8, piece: usize) -> [S::I; 4] {
        // Half h, shift 2 s and 16 bytes of 32: element 128 h + 32 s + l.
        let (half, by, side) = (piece / 8, piece % 8 / 2 * 2, piece % 2);
        // SAFETY: the caller's promise; words 4..20.
        unsafe { bits::<S>(words, 4 + half * 8 + side * 4, by, 2) }
    }
}

impl Codes for Q3K {
    const MAX: i32 = 7;
}

impl Super for Q3K {
    const FORMAT: Format = Format::Q3K;
    const PIECES: usize = 1;
    const OFFSET: i32 = 4;
    const MINIMUMS: bool = false;

    #[inline(always)]
    unsafe fn scales<S: Simd>(words: *const u8) -> [[S::I; 4]; 2] {
        // SAFETY: the caller's promise; words 24..27.
        unsafe {
            let (low0, low1) = (word::<S>(words, 24), word::<S>(words, 25));
            let top = word::<S>(words, 26);
            let scale = |low: S::I, at: i32, quad: i32| {
                let low = S::byte_bits(low, at, 4, 0);
                let top = S::byte_bits(top, 2 * quad, 2, 4);
                // Less 32: with 128 added nothing is borrowed from the next byte; then it is
                // undone.
                let byte = S::or(low, top);
                S::xor(S::add(byte, bytes::<S>(128 - 32)), bytes::<S>(128))
            };
            let scales =
                [scale(low0, 0, 0), scale(low1, 0, 1), scale(low0, 4, 2), scale(low1, 4, 3)];
            [scales, scales]
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(words: *const u8, piece: usize) -> [S::I; 4] {
        let (half, by, side) = (piece / 8, piece % 8 / 2 * 2, piece % 2);
        // SAFETY: the caller's promise; words 8..24 and 0..8.
        unsafe {
            let low = bits::<S>(words, 8 + half * 8 + side * 4, by, 2);
            with_bits::<S>(low, words, side * 4, (piece / 2, 1, 2))
        }
    }
}

impl Codes for Q4K {
    const MAX: i32 = 15;
}

/// Scales and minimums of Q4_K and Q5_K from the first three words.
///
/// # Safety
/// The machine has `S`; `words` is a block.
#[inline(always)]
unsafe fn scales6<S: Simd>(words: *const u8) -> [[S::I; 4]; 2] {
    // SAFETY: the caller's promise; words 0..3.
    unsafe {
        let (scales, minimums) = (word::<S>(words, 0), word::<S>(words, 1));
        let rest = word::<S>(words, 2);
        let (low6, low4, top2) = (bytes::<S>(63), bytes::<S>(15), bytes::<S>(0x30));
        let upper =
            |first: S::I, rest: S::I| S::or(S::and(rest, low4), S::and(S::shr(first, 2), top2));
        let (s0, s1) = (S::and(scales, low6), upper(scales, rest));
        let (m0, m1) = (S::and(minimums, low6), upper(minimums, S::shr(rest, 4)));
        [[s0, s1, s1, s1], [m0, m1, m1, m1]]
    }
}

impl Super for Q4K {
    const FORMAT: Format = Format::Q4K;
    const PIECES: usize = 2;
    const OFFSET: i32 = 0;
    const MINIMUMS: bool = true;

    #[inline(always)]
    unsafe fn scales<S: Simd>(words: *const u8) -> [[S::I; 4]; 2] {
        // SAFETY: the caller's promise.
        unsafe { scales6::<S>(words) }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(words: *const u8, piece: usize) -> [S::I; 4] {
        let (quarter, by, side) = (piece / 4, piece % 4 / 2 * 4, piece % 2);
        // SAFETY: the caller's promise; words 3..35.
        unsafe { bits::<S>(words, 3 + quarter * 8 + side * 4, by, 4) }
    }
}

impl Codes for Q5K {
    const MAX: i32 = 31;
}

impl Super for Q5K {
    const FORMAT: Format = Format::Q5K;
    const PIECES: usize = 2;
    const OFFSET: i32 = 0;
    const MINIMUMS: bool = true;

    #[inline(always)]
    unsafe fn scales<S: Simd>(words: *const u8) -> [[S::I; 4]; 2] {
        // SAFETY: the caller's promise.
        unsafe { scales6::<S>(words) }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(words: *const u8, piece: usize) -> [S::I; 4] {
        let (quarter, by, side) = (piece / 4, piece % 4 / 2 * 4, piece % 2);
        // SAFETY: the caller's promise; words 11..43 and 3..11.
        unsafe {
            let low = bits::<S>(words, 11 + quarter * 8 + side * 4, by, 4);
            with_bits::<S>(low, words, 3 + side * 4, (piece / 2, 1, 4))
        }
    }
}

impl Codes for Q6K {
    const MAX: i32 = 63;
}

impl Super for Q6K {
    const FORMAT: Format = Format::Q6K;
    const PIECES: usize = 1;
    const OFFSET: i32 = 32;
    const MINIMUMS: bool = false;

    #[inline(always)]
    unsafe fn scales<S: Simd>(words: *const u8) -> [[S::I; 4]; 2] {
        // SAFETY: the caller's promise; words 48..52.
        unsafe {
            let mut scales = [S::splat(0); 4];
            for (i, scales) in scales.iter_mut().enumerate() {
                *scales = word::<S>(words, 48 + i);
            }
            [scales, scales]
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(words: *const u8, piece: usize) -> [S::I; 4] {
        let half = piece / 8;
        // Low bits: 64 bytes a half, nibble by element / 64. High bits: 32 bytes, by element / 32.
        let (at4, by4) = (half * 16 + piece % 4 * 4, piece % 8 / 4 * 4);
        let (at2, by2) = (32 + half * 8 + piece % 2 * 4, piece % 8 / 2 * 2);
        // SAFETY: the caller's promise; words 0..32 and 32..48.
        unsafe {
            let low = bits::<S>(words, at4, by4, 4);
            with_bits::<S>(low, words, at2, (by2, 2, 4))
        }
    }
}

impl Codes for Iq2Xxs {
    const MAX: i32 = 2 * WEIGHT_OFFSET as i32;
}

/// Magnitudes of the two-bit coordinates of grid points, for [`Simd::lookup`].
static MAGNITUDES: [u8; 16] = {
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 4 {
        bytes[i] = ironstar_quant::iq2_xxs::MAGNITUDES[i].cast_unsigned();
        i += 1;
    }
    bytes
};

/// For [`Simd::lookup`]: bit 7 if the number of ones is odd.
static PARITY: [u8; 16] = {
    let mut bytes = [0; 16];
    let mut i = 0u8;
    while i < 16 {
        bytes[i as usize] = if i.count_ones() % 2 == 1 { 0x80 } else { 0 };
        i += 1;
    }
    bytes
};

/// Vectors of an unpacked group: codes, then the scale as a float; behind all groups comes d.
const GROUP: usize = 9;

/// Groups whose sum of scales times dots is below 2^24 in magnitude, so that floats add it exactly.
const EXACT: usize = 4;

const _: () = {
    assert!(EXACT == 4);
    let (mut largest, mut i) = (0, 0);
    while i < 256 {
        let (mut sum, mut at) = (0, 0);
        while at < 8 {
            let magnitude = (ironstar_quant::iq2_xxs::GRID[i] >> (2 * at)) & 3;
            sum += ironstar_quant::iq2_xxs::MAGNITUDES[magnitude as usize] as i32;
            at += 1;
        }
        largest = if sum > largest { sum } else { largest };
        i += 1;
    }
    assert!(4 * 31 * 4 * largest * 127 < 1 << 24);
};

impl Rows for Iq2Xxs {
    type Record = Woven256;

    #[inline(always)]
    fn records<'a>(x: &View<'a>, row: usize) -> &'a [Woven256] {
        x.woven(row)
    }
}

impl IntFormat for Iq2Xxs {
    const FORMAT: Format = Format::Iq2Xxs;
    const UNPACKED: usize = 8 * GROUP + 1;
    const AHEAD: usize = FAR;

    #[inline(always)]
    unsafe fn step<S: Simd, const R: usize, const STRIDE: usize>(
        fields: [*const u8; FIELDS],
        due: Due,
        x: [*const u8; R],
        acc: &mut [S::F; R],
    ) {
        // SAFETY: the caller's promise; a block has 16 words and an f16, x has eight groups of 32
        // codes and as many offsets.
        unsafe {
            let words = fields[0];
            let mut i = [S::splat(0); R];
            for group in 0..8 {
                due.ask::<S, 8>(Self::LINES, group);
                let (codes, scale) = group_of::<S>(words, group);
                let dots = group_dots::<S, R, STRIDE>(&codes, group, x);
                for r in 0..R {
                    i[r] = S::add(i[r], S::mul(dots[r], scale));
                }
            }
            let d = S::mul_f32(half::<S>(fields[1], 0), S::splat_f32(0.125));
            for (r, acc) in acc.iter_mut().enumerate() {
                let scale = at::<STRIDE>(x[r], woven_words::SCALE).cast::<f32>().read_unaligned();
                *acc = scaled::<S>(d, scale, i[r], *acc);
            }
        }
    }

    #[inline(always)]
    unsafe fn unpack<S: Simd, const STEP: usize>(fields: [*const u8; FIELDS], to: *mut S::I) {
        // SAFETY: the caller's promise; as in `step`, and `UNPACKED` vectors can be written.
        unsafe {
            let words = fields[0];
            for group in 0..8 {
                let (codes, scale) = group_of::<S>(words, group);
                for (word, codes) in codes.as_flattened().iter().enumerate() {
                    to.add((GROUP * group + word) * STEP).write(*codes);
                }
                to.add((GROUP * group + 8) * STEP).cast::<S::F>().write(S::from_i32(scale));
            }
            let d = S::mul_f32(half::<S>(fields[1], 0), S::splat_f32(0.125));
            to.add(8 * GROUP * STEP).cast::<S::F>().write(d);
        }
    }

    #[inline(always)]
    unsafe fn unpacked_step<S: Simd, const R: usize, const STRIDE: usize>(
        from: *const S::I,
        x: [*const u8; R],
        acc: &mut [S::F; R],
    ) {
        // SAFETY: the caller's promise; `unpack` wrote what is read.
        unsafe {
            // Two exact sums: adding them rounds as the conversion of the whole would.
            let low = exact_sums::<S, R, STRIDE>(from, 0, x);
            let high = exact_sums::<S, R, STRIDE>(from, EXACT, x);
            let d = from.add(8 * GROUP).cast::<S::F>().read();
            for (r, acc) in acc.iter_mut().enumerate() {
                let scale = at::<STRIDE>(x[r], woven_words::SCALE).cast::<f32>().read_unaligned();
                let i = S::add_f32(low[r], high[r]);
                *acc = S::fma(S::mul_f32(d, S::splat_f32(scale)), i, *acc);
            }
        }
    }
}

/// The sum of scale times dot over [`EXACT`] groups of an unpacked block from `first` on.
///
/// # Safety
/// The machine has `S`; `from` is such a block and `x` has one; it has the groups.
#[inline(always)]
unsafe fn exact_sums<S: Simd, const R: usize, const STRIDE: usize>(
    from: *const S::I,
    first: usize,
    x: [*const u8; R],
) -> [S::F; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [S::zero(); R];
        for group in first..first + EXACT {
            let mut codes = [[S::splat(0); 4]; 2];
            for (word, codes) in codes.as_flattened_mut().iter_mut().enumerate() {
                *codes = from.add(GROUP * group + word).read();
            }
            let scale = from.add(GROUP * group + 8).cast::<S::F>().read();
            let dots = group_dots::<S, R, STRIDE>(&codes, group, x);
            for r in 0..R {
                sums[r] = S::fma(S::from_i32(dots[r]), scale, sums[r]);
            }
        }
        sums
    }
}

/// Codes of a group of 32, and twice its upper four bits plus one.
///
/// # Safety
/// The machine has `S`; `words` is a block; `group` is below 8.
#[inline(always)]
unsafe fn group_of<S: Simd>(words: *const u8, group: usize) -> ([[S::I; 4]; 2], S::I) {
    // SAFETY: the caller's promise.
    unsafe {
        let signs = word::<S>(words, 2 * group + 1);
        let codes = S::group_codes(word::<S>(words, 2 * group), signs);
        (codes, S::or(S::and(S::shr(signs, 27), S::splat(0x1e)), S::splat(1)))
    }
}

/// Dots of a group with every row.
///
/// # Safety
/// The machine has `S`; `x` has a block; `group` is below 8.
#[inline(always)]
unsafe fn group_dots<S: Simd, const R: usize, const STRIDE: usize>(
    codes: &[[S::I; 4]; 2],
    group: usize,
    x: [*const u8; R],
) -> [S::I; R] {
    // SAFETY: the caller's promise.
    unsafe {
        // What the codes are too large by is in what the dots start from.
        let mut dots = [S::splat(0); R];
        for r in 0..R {
            dots[r] = S::broadcast(at::<STRIDE>(x[r], woven_words::OFFSETS + group));
        }
        let woven = words_at::<R, STRIDE>(x, 8 * group);
        if R > 2 {
            return S::dots::<Iq2Xxs, R, STRIDE, 2>(dots, codes, woven);
        }
        // Of few rows each half for itself: eight steps that wait for each other take longer than
        // all other work on a group.
        let rest = words_at::<R, STRIDE>(woven, 4);
        let low = S::dots::<Iq2Xxs, R, STRIDE, 1>(dots, &[codes[0]], woven);
        let high = S::dots::<Iq2Xxs, R, STRIDE, 1>([S::splat(0); R], &[codes[1]], rest);
        for r in 0..R {
            dots[r] = S::add(low[r], high[r]);
        }
        dots
    }
}

/// Signed magnitudes plus 43 of 32 elements in woven order: byte i of word m is element 8 i + m.
///
/// # Safety
/// The machine has `S`.
#[inline(always)]
pub(super) unsafe fn grid_codes<S: Simd>(indices: S::I, packed: S::I) -> [[S::I; 4]; 2] {
    // SAFETY: the caller's promise; bytes that are looked up are masked to 4 bits.
    unsafe {
        // Byte i: the seven signs of point i, then their parity.
        let seven = |i: i32| S::and(S::shl(packed, i), S::splat(0x7f << (8 * i)));
        let signs = S::or(S::or(seven(0), seven(1)), S::or(seven(2), seven(3)));
        let nibble = bytes::<S>(15);
        let folded = S::and(S::xor(signs, S::shr(signs, 4)), nibble);
        let signs = S::or(signs, S::lookup(S::table(&PARITY), folded));

        let (table, two_bits, base) =
            (S::table(&MAGNITUDES), bytes::<S>(3), bytes::<S>(WEIGHT_OFFSET));
        let points = S::grid(indices);
        let code = |m: i32| {
            let point = if m < 4 { points[0] } else { points[1] };
            let coordinate = S::and(S::shr(point, m % 4 * 2), two_bits);
            S::add_signed(base, S::lookup(table, coordinate), signs, m)
        };
        [[code(0), code(1), code(2), code(3)], [code(4), code(5), code(6), code(7)]]
    }
}
