//! Activation rows, prepared once for all matrices that they meet.
//!
//! A block of codes lies beside its scale and its sums, so that a kernel needs one pointer a row.

use super::super::isa::Isa;
use super::super::pool::Pool;
use super::super::share::Whole;
use super::super::spare::grow;
use ironstar_quant::Activation;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::sync::Mutex;

/// A block of 32 codes with what belongs to it.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Record32 {
    /// Codes in order.
    pub codes: [i8; 32],
    /// What a code is worth.
    pub scale: f32,
    /// Sum of the codes; the second is 0, so that both are one lane of `Simd::madd16`.
    pub sum: [i16; 2],
    /// The sum times -128: what weights that are 128 too large add, negated.
    pub offset: i32,
}

/// A block of activations as kernels see it: words of four bytes.
///
/// # Safety
/// The first `WORDS` words of a value are initialised.
pub(crate) unsafe trait Words: Copy {
    /// Words that kernels read.
    const WORDS: usize;
}

// SAFETY: all fields are whole words, one after the other.
unsafe impl Words for Record32 {
    const WORDS: usize = 11;
}

// SAFETY: as above; what the alignment adds comes behind them.
unsafe impl Words for Record256 {
    const WORDS: usize = 77;
}

// SAFETY: as above.
unsafe impl Words for Woven256 {
    const WORDS: usize = 73;
}

/// Words of a [`Record32`] behind its codes.
pub(crate) mod narrow_words {
    pub(crate) const SCALE: usize = 8;
    pub(crate) const SUM: usize = 9;
    pub(crate) const OFFSET: usize = 10;
}

/// Words of a [`Record256`] behind its codes.
pub(crate) mod wide_words {
    pub(crate) const SUMS_16: usize = 64;
    pub(crate) const SUMS_32: usize = 72;
    pub(crate) const SCALE: usize = 76;
}

/// Words of a [`Woven256`] behind its codes.
pub(crate) mod woven_words {
    pub(crate) const OFFSETS: usize = 64;
    pub(crate) const SCALE: usize = 72;
}

const _: () = {
    assert!(offset_of!(Record32, scale) == 4 * narrow_words::SCALE);
    assert!(offset_of!(Record32, sum) == 4 * narrow_words::SUM);
    assert!(offset_of!(Record32, offset) == 4 * narrow_words::OFFSET);
    assert!(offset_of!(Record256, sums_16) == 4 * wide_words::SUMS_16);
    assert!(offset_of!(Record256, sums_32) == 4 * wide_words::SUMS_32);
    assert!(offset_of!(Record256, scale) == 4 * wide_words::SCALE);
    assert!(offset_of!(Woven256, offsets) == 4 * woven_words::OFFSETS);
    assert!(offset_of!(Woven256, scale) == 4 * woven_words::SCALE);
};

/// A block of 256 codes with what belongs to it.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Record256 {
    /// Codes in order.
    pub codes: [i8; 256],
    /// Sums of 16 codes, in [`paired`] order.
    pub sums_16: [i16; 16],
    /// Sums of 32 codes, in [`paired`] order.
    pub sums_32: [i16; 8],
    /// What a code is worth.
    pub scale: f32,
}

impl Default for Record256 {
    fn default() -> Self {
        Record256 { codes: [0; 256], sums_16: [0; 16], sums_32: [0; 8], scale: 0.0 }
    }
}

/// A block of 256 codes as IQ2_XXS wants it.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Woven256 {
    /// Codes woven: in each 32, byte 4 m + i is code 8 i + m.
    pub codes: [i8; 256],
    /// For each 32, the sum of its codes times -[`WEIGHT_OFFSET`].
    pub offsets: [i32; 8],
    /// What a code is worth.
    pub scale: f32,
}

impl Default for Woven256 {
    fn default() -> Self {
        Woven256 { codes: [0; 256], offsets: [0; 8], scale: 0.0 }
    }
}

/// What weights of IQ2_XXS are too large by when they meet codes.
pub(crate) const WEIGHT_OFFSET: u8 = 43;

/// Position of piece `i` among the sums: of four pieces 0 and 2 are neighbours, then 1 and 3, which
/// is how bytes fall into 16-bit halves (`Simd::even_bytes`, `Simd::odd_bytes`).
pub(crate) const fn paired(i: usize) -> usize {
    i / 4 * 4 + [0, 2, 1, 3][i % 4]
}

/// Prepared rows as kernels see them: where they lie, and how many there are.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    rows: usize,
    columns: usize,
    activation: Option<Activation>,
    values: *const f32,
    narrow: *const Record32,
    wide: *const Record256,
    woven: *const Woven256,
    life: PhantomData<&'a Inputs>,
}

// SAFETY: a `View` only reads, like the `&Inputs` or `&[f32]` that it was made of.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// Rows that are multiplied as they are. Panics if `x` is not that long.
    pub fn of_floats(x: &'a [f32], rows: usize, columns: usize) -> Self {
        let x = &x[..rows * columns];
        let activation = Some(Activation::F32);
        let (values, life) = (x.as_ptr(), PhantomData);
        let (narrow, wide, woven) = (std::ptr::null(), std::ptr::null(), std::ptr::null());
        View { rows, columns, activation, values, narrow, wide, woven, life }
    }

    /// How many rows were prepared.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input width.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Whether these rows suit a matrix.
    pub fn suits(&self, activation: Activation, columns: usize) -> bool {
        self.activation == Some(activation) && self.columns == columns
    }

    /// Blocks of one row that is there, and prepared so.
    #[inline(always)]
    fn row<T>(&self, from: *const T, is: Activation, block: usize, row: usize) -> &'a [T] {
        assert!(row < self.rows && self.activation == Some(is), "row {row} of {}", self.rows);
        let blocks = self.columns / block;
        // SAFETY: as many as that lie there for each row, initialised, as long as `'a`.
        unsafe { std::slice::from_raw_parts(from.add(row * blocks), blocks) }
    }

    /// One row of `Activation::F32`.
    #[inline(always)]
    pub fn values(&self, row: usize) -> &'a [f32] {
        self.row(self.values, Activation::F32, 1, row)
    }

    /// One row of `Activation::Int8x32`.
    #[inline(always)]
    pub fn narrow(&self, row: usize) -> &'a [Record32] {
        self.row(self.narrow, Activation::Int8x32, 32, row)
    }

    /// One row of `Activation::Int8x256`.
    #[inline(always)]
    pub fn wide(&self, row: usize) -> &'a [Record256] {
        self.row(self.wide, Activation::Int8x256, 256, row)
    }

    /// The same, woven.
    #[inline(always)]
    pub fn woven(&self, row: usize) -> &'a [Woven256] {
        self.row(self.woven, Activation::Int8x256, 256, row)
    }

    /// One row of the activations of int8, as the scalar dots want it: codes and scales.
    pub fn codes(&self, row: usize) -> (Vec<i8>, Vec<f32>) {
        if self.activation == Some(Activation::Int8x32) {
            let records = self.narrow(row);
            let codes = records.iter().flat_map(|record| record.codes);
            return (codes.collect(), records.iter().map(|record| record.scale).collect());
        }
        let records = self.wide(row);
        let codes = records.iter().flat_map(|record| record.codes);
        (codes.collect(), records.iter().map(|record| record.scale).collect())
    }
}

/// Activation rows in the form that a matrix wants, shared by all matrices of equal [`Activation`].
///
/// What is prepared is the same on every instruction set, bit for bit: that of
/// [`ironstar_quant::quantize_int8`].
#[derive(Default)]
pub(crate) struct Inputs {
    rows: usize,
    columns: usize,
    activation: Option<Activation>,
    /// [rows, columns / 32], for `Activation::Int8x32`
    narrow: Vec<Record32>,
    /// [rows, columns / 256], for `Activation::Int8x256`
    wide: Vec<Record256>,
    /// The same, woven
    woven: Vec<Woven256>,
}

/// Blocks of one part of the work.
enum Blocks<'a> {
    Narrow(&'a [[f32; 32]], &'a mut [Record32]),
    Wide(&'a [[f32; 256]], &'a mut [Record256], &'a mut [Woven256]),
}

impl Inputs {
    /// Takes over `rows` rows of `columns` values, quantised as `activation` says; reuses its
    /// buffers. Of floats there is nothing to keep: those are a [`View::of_floats`].
    ///
    /// Panics unless `columns` is whole blocks of the activation and `x` is that long.
    pub fn prepare(
        &mut self,
        pool: &Pool,
        activation: Activation,
        x: &[f32],
        rows: usize,
        columns: usize,
    ) {
        self.prepare_on(Isa::best(), pool, activation, x, rows, columns);
    }

    /// [`Inputs::prepare`] compiled for one instruction set, which the machine must have.
    pub fn prepare_on(
        &mut self,
        isa: Isa,
        pool: &Pool,
        activation: Activation,
        x: &[f32],
        rows: usize,
        columns: usize,
    ) {
        let x = &x[..rows * columns];
        (self.rows, self.columns, self.activation) = (rows, columns, Some(activation));
        let block = activation.block().unwrap_or(1);
        assert!(columns.is_multiple_of(block), "{columns} columns in blocks of {block}");
        let blocks = match activation {
            Activation::F32 => return,
            Activation::Int8x32 => {
                Blocks::Narrow(x.as_chunks().0, grow(&mut self.narrow, x.len() / block))
            }
            Activation::Int8x256 => Blocks::Wide(
                x.as_chunks().0,
                grow(&mut self.wide, x.len() / block),
                grow(&mut self.woven, x.len() / block),
            ),
        };
        quantise_parts(isa, pool, blocks, x.len());
    }

    /// Room for `rows` rows of `columns` values, which are prepared one by one; those of
    /// `Activation::F32` lie at `values`. Panics unless `columns` is whole blocks.
    pub fn open<'a>(
        &'a mut self,
        activation: Activation,
        [rows, columns]: [usize; 2],
        values: Whole<'a, f32>,
    ) -> Open<'a> {
        let (block, count) = (activation.block().unwrap_or(1), rows * columns);
        assert!(columns.is_multiple_of(block), "{columns} columns in blocks of {block}");
        match activation {
            Activation::F32 => assert!(count <= values.len(), "{rows} x {columns} values"),
            Activation::Int8x32 => {
                grow(&mut self.narrow, count / block);
            }
            Activation::Int8x256 => {
                grow(&mut self.wide, count / block);
                grow(&mut self.woven, count / block);
            }
        }
        (self.rows, self.columns, self.activation) = (rows, columns, Some(activation));
        let narrow = self.narrow.as_mut_ptr();
        let (wide, woven) = (self.wide.as_mut_ptr(), self.woven.as_mut_ptr());
        let view = View {
            rows,
            columns,
            activation: Some(activation),
            values: values.start(),
            narrow,
            wide,
            woven,
            life: PhantomData,
        };
        Open { isa: Isa::best(), view, narrow, wide, woven }
    }

    /// What was prepared.
    pub fn view(&self) -> View<'_> {
        View {
            rows: self.rows,
            columns: self.columns,
            activation: self.activation,
            values: std::ptr::null(),
            narrow: self.narrow.as_ptr(),
            wide: self.wide.as_ptr(),
            woven: self.woven.as_ptr(),
            life: PhantomData,
        }
    }
}

/// Rows that are prepared one by one, by whichever thread has made their values.
pub(crate) struct Open<'a> {
    isa: Isa,
    view: View<'a>,
    narrow: *mut Record32,
    wide: *mut Record256,
    woven: *mut Woven256,
}

// SAFETY: rows are written by the contract of `prepare`, each by one thread.
unsafe impl Sync for Open<'_> {}

impl<'a> Open<'a> {
    /// The rows; nobody may look at one before it has been prepared, nor while.
    pub fn view(&self) -> View<'a> {
        self.view
    }

    /// Prepares one row, whose values are `x`.
    ///
    /// # Safety
    /// Nobody else may use this row during the call.
    pub unsafe fn prepare(&self, row: usize, x: &[f32]) {
        assert!(row < self.view.rows && x.len() == self.view.columns, "row {row}");
        let isa = self.isa;
        match self.view.activation {
            Some(Activation::Int8x32) => {
                let blocks = x.len() / 32;
                // SAFETY: as many records lie there for each row; the caller's promise.
                let to = unsafe { row_mut(self.narrow, row, blocks) };
                quantise(isa, &mut Blocks::Narrow(x.as_chunks().0, to));
            }
            Some(Activation::Int8x256) => {
                let blocks = x.len() / 256;
                // SAFETY: as above.
                let (to, woven) =
                    unsafe { (row_mut(self.wide, row, blocks), row_mut(self.woven, row, blocks)) };
                quantise(isa, &mut Blocks::Wide(x.as_chunks().0, to, woven));
            }
            Some(Activation::F32) | None => {}
        }
    }
}

/// # Safety
/// `blocks` values lie at each row from `start` on, and nobody else uses those of this one.
unsafe fn row_mut<'b, T>(start: *mut T, row: usize, blocks: usize) -> &'b mut [T] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(start.add(row * blocks), blocks) }
}

impl<'a> Blocks<'a> {
    /// Takes the first `count` blocks off.
    fn split(&mut self, count: usize) -> Blocks<'a> {
        fn cut<'a, T>(slice: &mut &'a mut [T], at: usize) -> &'a mut [T] {
            slice.split_off_mut(..at).expect("parts add up to the whole")
        }
        match self {
            Blocks::Narrow(x, records) => {
                let (first, rest) = x.split_at(count);
                *x = rest;
                Blocks::Narrow(first, cut(records, count))
            }
            Blocks::Wide(x, records, woven) => {
                let (first, rest) = x.split_at(count);
                *x = rest;
                Blocks::Wide(first, cut(records, count), cut(woven, count))
            }
        }
    }
}

fn quantise_parts(isa: Isa, pool: &Pool, mut blocks: Blocks<'_>, values: usize) {
    /// Values of a part: about ten microseconds.
    const PART: usize = 1 << 15;
    let count = match &blocks {
        Blocks::Narrow(x, _) => x.len(),
        Blocks::Wide(x, ..) => x.len(),
    };
    let parts = (values / PART).min(4 * pool.threads()).min(count);
    if parts < 2 || pool.threads() == 1 {
        return quantise(isa, &mut blocks);
    }
    let cut = |part: usize| count * part / parts;
    let pieces: Vec<_> =
        (0..parts).map(|part| Mutex::new(blocks.split(cut(part + 1) - cut(part)))).collect();
    pool.run(parts, &|part| {
        // Each piece is locked once, by its part.
        if let Ok(mut piece) = pieces[part].lock() {
            quantise(isa, &mut piece);
        }
    });
}

fn quantise(isa: Isa, blocks: &mut Blocks<'_>) {
    match isa {
        Isa::Scalar => quantise_blocks(blocks, round_scalar, weave_scalar),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` above `Scalar` is only made for a machine that has it.
        Isa::Avx2 | Isa::Avx512 | Isa::Amx => unsafe { quantise_avx2(blocks) },
        _ => quantise_blocks(blocks, round_scalar, weave_scalar),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantise_avx2(blocks: &mut Blocks<'_>) {
    use super::avx2::{round, weave};
    quantise_blocks(blocks, |x, by, codes| round(x, by, codes), |from, to| weave(from, to));
}

#[inline(always)]
fn quantise_blocks(
    blocks: &mut Blocks<'_>,
    round: impl Fn(&[f32; 32], f32, &mut [i8; 32]) -> [i16; 2],
    weave: impl Fn(&[i8; 32], &mut [i8; 32]),
) {
    match blocks {
        Blocks::Narrow(x, records) => {
            for (x, record) in x.iter().zip(records.iter_mut()) {
                let mut sums = [0; 2];
                record.scale = quantise_block(x, &mut record.codes, &mut sums, &round);
                record.sum = [sums[0] + sums[1], 0];
                record.offset = -128 * i32::from(record.sum[0]);
            }
        }
        Blocks::Wide(x, records, woven) => {
            for ((x, record), woven) in x.iter().zip(records.iter_mut()).zip(woven.iter_mut()) {
                let mut sums = [0; 16];
                record.scale = quantise_block(x, &mut record.codes, &mut sums, &round);
                for (i, pair) in sums.as_chunks::<2>().0.iter().enumerate() {
                    let sum = pair[0] + pair[1];
                    woven.offsets[i] = -i32::from(WEIGHT_OFFSET) * i32::from(sum);
                    record.sums_16[paired(2 * i)] = pair[0];
                    record.sums_16[paired(2 * i + 1)] = pair[1];
                    record.sums_32[paired(i)] = sum;
                }
                woven.scale = record.scale;
                let to = woven.codes.as_chunks_mut().0.iter_mut();
                for (from, to) in record.codes.as_chunks().0.iter().zip(to) {
                    weave(from, to);
                }
            }
        }
    }
}

/// [`ironstar_quant::quantize_int8`] of one block, and the sums of 16 codes each. Returns the
/// scale.
#[inline(always)]
fn quantise_block<const BLOCK: usize>(
    x: &[f32; BLOCK],
    codes: &mut [i8; BLOCK],
    sums: &mut [i16],
    round: &impl Fn(&[f32; 32], f32, &mut [i8; 32]) -> [i16; 2],
) -> f32 {
    const INFINITY: u32 = 0x7f80_0000;
    // Magnitudes order like their bits; everything that is not finite is at infinity or above.
    let max = x.iter().fold(0u32, |max, v| max.max(v.to_bits() & 0x7fff_ffff));
    let inverse = 127.0 / f32::from_bits(max);
    if max >= INFINITY || !inverse.is_finite() {
        codes.fill(0);
        sums.fill(0);
        return if max >= INFINITY { f32::NAN } else { 0.0 };
    }
    let blocks = x.as_chunks().0.iter().zip(codes.as_chunks_mut().0);
    for ((x, codes), sums) in blocks.zip(sums.as_chunks_mut().0) {
        *sums = round(x, inverse, codes);
    }
    f32::from_bits(max) / 127.0
}

/// x * by to the nearest integer, ties to even, and the sums of sixteen; within -127..=127.
#[inline(always)]
fn round_scalar(x: &[f32; 32], by: f32, codes: &mut [i8; 32]) -> [i16; 2] {
    /// Adding it moves the nearest integer into the low bits.
    const ROUND: f32 = 12_582_912.0;
    for (code, v) in codes.iter_mut().zip(x) {
        *code = (v * by + ROUND).to_bits().to_le_bytes()[0].cast_signed();
    }
    let sum = |codes: &[i8]| codes.iter().map(|&code| i16::from(code)).sum();
    [sum(&codes[..16]), sum(&codes[16..])]
}

/// Byte 8 i + m to 4 m + i.
#[inline(always)]
fn weave_scalar(from: &[i8; 32], to: &mut [i8; 32]) {
    *to = std::array::from_fn(|at| from[at % 4 * 8 + at / 4]);
}
