//! Float formats and those with blocks of 32: a block of weights of a vector of rows times the same
//! block of `R` activation rows, by the expressions of the format's file in `ironstar_quant`.

use super::TILE_ROWS;
use super::inputs::{Record32, View, narrow_words};
use super::layout::FIELDS;
use super::panel::Rows;
use super::simd::{Codes, Simd, at};
use super::tile::{Due, FloatFormat, IntFormat};
use ironstar_quant::Format;

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;
pub(crate) struct Q8_0;
pub(crate) struct Q4_0;
pub(crate) struct Mxfp4;

impl FloatFormat for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_f32(from) }
    }
}

impl FloatFormat for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_f16(from) }
    }
}

impl FloatFormat for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_bf16(from) }
    }
}

/// Word `index` of a vector of rows, of the field that starts at `from`.
///
/// # Safety
/// The machine has `S`; the field has the word.
#[inline(always)]
pub(super) unsafe fn word<S: Simd>(from: *const u8, index: usize) -> S::I {
    // SAFETY: the caller's promise.
    unsafe { S::load(from.add(index * TILE_ROWS * 4)) }
}

/// Half word `index` of a vector of rows as f16.
///
/// # Safety
/// As for [`word`].
#[inline(always)]
pub(super) unsafe fn half<S: Simd>(from: *const u8, index: usize) -> S::F {
    // SAFETY: the caller's promise.
    unsafe { S::load_f16(from.add(index * TILE_ROWS * 2)) }
}

/// The same byte everywhere.
///
/// # Safety
/// The machine has `S`.
#[inline(always)]
pub(super) unsafe fn bytes<S: Simd>(value: u8) -> S::I {
    // SAFETY: the caller's promise.
    unsafe { S::splat(i32::from_ne_bytes([value; 4])) }
}

/// `acc = fma(d * d_x, isum, acc)`.
///
/// # Safety
/// The machine has `S`.
#[inline(always)]
pub(super) unsafe fn scaled<S: Simd>(d: S::F, d_x: f32, isum: S::I, acc: S::F) -> S::F {
    // SAFETY: the caller's promise.
    unsafe { S::fma(S::mul_f32(d, S::splat_f32(d_x)), S::from_i32(isum), acc) }
}

/// Vectors of an unpacked block of 32: codes that are 128 too large, then d.
const UNPACKED: usize = 9;

/// Writes an unpacked block, as [`IntFormat::unpack`] does.
///
/// # Safety
/// The machine has `S`; [`UNPACKED`] vectors can be written, `STEP` apart.
#[inline(always)]
unsafe fn put<S: Simd, const STEP: usize>(codes: &[S::I; 8], d: S::F, to: *mut S::I) {
    // SAFETY: the caller's promise.
    unsafe {
        for (i, codes) in codes.iter().enumerate() {
            to.add(i * STEP).write(*codes);
        }
        to.add(8 * STEP).cast::<S::F>().write(d);
    }
}

/// [`IntFormat::unpacked_step`] of a block that [`put`] wrote.
///
/// # Safety
/// The machine has `S`; `from` is such a block; `x` are records of 32.
#[inline(always)]
unsafe fn unpacked<S: Simd, const R: usize, const STRIDE: usize>(
    from: *const S::I,
    x: [*const u8; R],
    acc: &mut [S::F; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut codes = [S::splat(0); 8];
        for (i, codes) in codes.iter_mut().enumerate() {
            *codes = from.add(i).read();
        }
        let isums = S::dots_biased::<R, STRIDE>(&codes, x);
        add_scaled::<S, R, STRIDE>(from.add(8).cast::<S::F>().read(), &isums, x, acc);
    }
}

impl Rows for Q8_0 {
    type Record = Record32;

    #[inline(always)]
    fn records<'a>(x: &View<'a>, row: usize) -> &'a [Record32] {
        x.narrow(row)
    }
}

impl IntFormat for Q8_0 {
    const FORMAT: Format = Format::Q8_0;
    const BY_ROWS: bool = true;
    const UNPACKED: usize = UNPACKED;

    #[inline(always)]
    unsafe fn step<S: Simd, const R: usize, const STRIDE: usize>(
        fields: [*const u8; FIELDS],
        due: Due,
        x: [*const u8; R],
        acc: &mut [S::F; R],
    ) {
        // SAFETY: the caller's promise; a block has 8 words and a scale.
        unsafe {
            due.ask::<S, 1>(Self::LINES, 0);
            let mut codes = [S::splat(0); 8];
            for (i, codes) in codes.iter_mut().enumerate() {
                *codes = word::<S>(fields[0], i);
            }
            let d = half::<S>(fields[1], 0);
            let isums = S::dots_signed::<R, STRIDE>(&codes, x);
            add_scaled::<S, R, STRIDE>(d, &isums, x, acc);
        }
    }

    #[inline(always)]
    unsafe fn unpack<S: Simd, const STEP: usize>(fields: [*const u8; FIELDS], to: *mut S::I) {
        // SAFETY: the caller's promise; a block has 8 words and a scale.
        unsafe {
            let mut codes = [S::splat(0); 8];
            for (i, codes) in codes.iter_mut().enumerate() {
                *codes = S::xor(word::<S>(fields[0], i), bytes::<S>(128));
            }
            put::<S, STEP>(&codes, half::<S>(fields[1], 0), to);
        }
    }

    #[inline(always)]
    unsafe fn unpacked_step<S: Simd, const R: usize, const STRIDE: usize>(
        from: *const S::I,
        x: [*const u8; R],
        acc: &mut [S::F; R],
    ) {
        // SAFETY: the caller's promise.
        unsafe { unpacked::<S, R, STRIDE>(from, x, acc) }
    }
}

/// The 32 nibbles of a block: the low ones of its four words, then the high ones. Loops over
/// vectors are written out here and in `supers.rs`: a closure has not the instruction set of the
/// function that it is in, so what it calls may stay a call.
///
/// # Safety
/// The machine has `S`; the field has the block.
#[inline(always)]
unsafe fn nibbles<S: Simd>(from: *const u8) -> [[S::I; 4]; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let (mut low, mut high) = ([S::splat(0); 4], [S::splat(0); 4]);
        for (i, (low, high)) in low.iter_mut().zip(&mut high).enumerate() {
            let word = word::<S>(from, i);
            *low = S::byte_bits(word, 0, 4, 0);
            *high = S::byte_bits(word, 4, 4, 0);
        }
        [low, high]
    }
}

/// [`scaled`] for every row, with the scales of its record.
///
/// # Safety
/// The machine has `S`; `x` are records of 32.
#[inline(always)]
unsafe fn add_scaled<S: Simd, const R: usize, const STRIDE: usize>(
    d: S::F,
    isums: &[S::I; R],
    x: [*const u8; R],
    acc: &mut [S::F; R],
) {
    for r in 0..R {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = at::<STRIDE>(x[r], narrow_words::SCALE).cast::<f32>().read_unaligned();
            acc[r] = scaled::<S>(d, scale, isums[r], acc[r]);
        }
    }
}

/// A block of 32 codes, elements 0..16 and 16..32, that are `offset` too large.
///
/// # Safety
/// The machine has `S`; `x` are records of 32.
#[inline(always)]
unsafe fn narrow<S: Simd, C: Codes, const R: usize, const STRIDE: usize>(
    codes: &[[S::I; 4]; 2],
    offset: i16,
    d: S::F,
    x: [*const u8; R],
    acc: &mut [S::F; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let offset = S::splat(i32::from(-offset) & 0xffff);
        let mut isums = [S::splat(0); R];
        if S::BY_ROWS {
            let [[a, b, c, d0], [e, f, g, h]] = *codes;
            isums = S::dots_signed::<R, STRIDE>(&[a, b, c, d0, e, f, g, h], x);
        }
        for r in 0..R {
            let sum = S::broadcast(at::<STRIDE>(x[r], narrow_words::SUM));
            isums[r] = S::madd16(isums[r], sum, offset);
        }
        if !S::BY_ROWS {
            isums = S::dots::<C, R, STRIDE, 2>(isums, codes, x);
        }
        add_scaled::<S, R, STRIDE>(d, &isums, x, acc);
    }
}

impl Codes for Q4_0 {
    const MAX: i32 = 15;
}

impl Rows for Q4_0 {
    type Record = Record32;

    #[inline(always)]
    fn records<'a>(x: &View<'a>, row: usize) -> &'a [Record32] {
        x.narrow(row)
    }
}

impl IntFormat for Q4_0 {
    const FORMAT: Format = Format::Q4_0;
    const BY_ROWS: bool = true;
    const UNPACKED: usize = UNPACKED;

    #[inline(always)]
    unsafe fn step<S: Simd, const R: usize, const STRIDE: usize>(
        fields: [*const u8; FIELDS],
        due: Due,
        x: [*const u8; R],
        acc: &mut [S::F; R],
    ) {
        // SAFETY: the caller's promise; a block has 4 words and a scale.
        unsafe {
            due.ask::<S, 1>(Self::LINES, 0);
            let codes = nibbles::<S>(fields[0]);
            narrow::<S, Self, R, STRIDE>(&codes, 8, half::<S>(fields[1], 0), x, acc);
        }
    }

    #[inline(always)]
    unsafe fn unpack<S: Simd, const STEP: usize>(fields: [*const u8; FIELDS], to: *mut S::I) {
        // SAFETY: the caller's promise; a block has 4 words and a scale. No sum leaves its byte.
        unsafe {
            let [[a, b, c, d], [e, f, g, h]] = nibbles::<S>(fields[0]);
            let mut codes = [a, b, c, d, e, f, g, h];
            for codes in &mut codes {
                *codes = S::add(*codes, bytes::<S>(128 - 8));
            }
            put::<S, STEP>(&codes, half::<S>(fields[1], 0), to);
        }
    }

    #[inline(always)]
    unsafe fn unpacked_step<S: Simd, const R: usize, const STRIDE: usize>(
        from: *const S::I,
        x: [*const u8; R],
        acc: &mut [S::F; R],
    ) {
        // SAFETY: the caller's promise.
        unsafe { unpacked::<S, R, STRIDE>(from, x, acc) }
    }
}

/// Doubled codes of MXFP4 plus `offset`.
const fn mxfp4_codes(offset: u8) -> [u8; 16] {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = ironstar_quant::fp4::DOUBLED[i].cast_unsigned().wrapping_add(offset);
        i += 1;
    }
    codes
}

/// For dots of codes that have no sign but are small, and for those of any code byte.
static MXFP4_CODES: [[u8; 16]; 2] = [mxfp4_codes(12), mxfp4_codes(128)];

impl Codes for Mxfp4 {
    const MAX: i32 = 24;
}

impl Rows for Mxfp4 {
    type Record = Record32;

    #[inline(always)]
    fn records<'a>(x: &View<'a>, row: usize) -> &'a [Record32] {
        x.narrow(row)
    }
}

impl IntFormat for Mxfp4 {
    const FORMAT: Format = Format::Mxfp4;
    const BY_ROWS: bool = true;
    const UNPACKED: usize = UNPACKED;

    #[inline(always)]
    unsafe fn step<S: Simd, const R: usize, const STRIDE: usize>(
        fields: [*const u8; FIELDS],
        due: Due,
        x: [*const u8; R],
        acc: &mut [S::F; R],
    ) {
        // SAFETY: the caller's promise; a block has 4 words and a scale byte; nibbles are below 16.
        unsafe {
            due.ask::<S, 1>(Self::LINES, 0);
            let mut codes = nibbles::<S>(fields[0]);
            let table = S::table(&MXFP4_CODES[usize::from(S::PANELS)]);
            for codes in codes.as_flattened_mut() {
                *codes = S::lookup(table, *codes);
            }
            let d = S::load_half_e8m0(fields[1]);
            if S::PANELS {
                let [[a, b, c, d0], [e, f, g, h]] = codes;
                let isums = S::dots_biased::<R, STRIDE>(&[a, b, c, d0, e, f, g, h], x);
                return add_scaled::<S, R, STRIDE>(d, &isums, x, acc);
            }
            narrow::<S, Self, R, STRIDE>(&codes, 12, d, x, acc);
        }
    }

    #[inline(always)]
    unsafe fn unpack<S: Simd, const STEP: usize>(fields: [*const u8; FIELDS], to: *mut S::I) {
        // SAFETY: the caller's promise; a block has 4 words and a scale byte; nibbles are below 16.
        unsafe {
            let [[a, b, c, d], [e, f, g, h]] = nibbles::<S>(fields[0]);
            let mut codes = [a, b, c, d, e, f, g, h];
            let table = S::table(&MXFP4_CODES[1]);
            for codes in &mut codes {
                *codes = S::lookup(table, *codes);
            }
            put::<S, STEP>(&codes, S::load_half_e8m0(fields[1]), to);
        }
    }

    #[inline(always)]
    unsafe fn unpacked_step<S: Simd, const R: usize, const STRIDE: usize>(
        from: *const S::I,
        x: [*const u8; R],
        acc: &mut [S::F; R],
    ) {
        // SAFETY: the caller's promise.
        unsafe { unpacked::<S, R, STRIDE>(from, x, acc) }
    }
}
