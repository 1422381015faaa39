//! Activation rows, prepared once for all matrices that they meet.

use super::super::isa::Isa;
use super::super::pool::Pool;
use ironstar_quant::{Activation, Int8Blocks, Row, quantize_int8};

/// Sums kept for a block of 256 codes: of 16 pieces of 16 codes, then of 8 pieces of 32, both in
/// [`paired`] order; the rest is padding.
pub(crate) const SUMS: usize = 32;
/// Where the sums of 32 codes start.
pub(crate) const SUMS_32: usize = 16;

/// Position of piece `i` among the sums: of four pieces 0 and 2 are neighbours, then 1 and 3, which is
/// how bytes fall into 16-bit halves (`Simd::even_bytes`, `Simd::odd_bytes`).
pub(crate) const fn paired(i: usize) -> usize {
    i / 4 * 4 + [0, 2, 1, 3][i % 4]
}

/// Activation rows in the form that a matrix wants, shared by all matrices of equal [`Activation`].
///
/// What is prepared is the same on every instruction set, bit for bit: that of
/// [`ironstar_quant::quantize_int8`].
#[derive(Default)]
pub(crate) struct Inputs {
    pub(super) rows: usize,
    pub(super) columns: usize,
    activation: Option<Activation>,
    /// [rows, columns], for `Activation::F32`
    pub(super) values: Vec<f32>,
    /// [rows, columns]
    pub(super) codes: Vec<i8>,
    /// [rows, blocks]
    pub(super) scales: Vec<f32>,
    /// [rows, blocks] for blocks of 32, [rows, blocks, SUMS] for blocks of 256
    pub(super) sums: Vec<i16>,
    /// [rows, columns] for blocks of 256: in each 32, byte 4 m + i is code 8 i + m
    pub(super) woven: Vec<i8>,
}

/// Slices of one or more whole rows.
struct Rows<'a> {
    x: &'a [f32],
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [i16],
    woven: &'a mut [i8],
}

impl Inputs {
    /// Takes over `rows` rows of `columns` values, quantised as `activation` says; reuses its buffers.
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
        /// About ten microseconds.
        const PART: usize = 1 << 15;
        let x = &x[..rows * columns];
        (self.rows, self.columns, self.activation) = (rows, columns, Some(activation));
        let Some(block) = activation.block() else {
            self.values.clear();
            self.values.extend_from_slice(x);
            return;
        };
        assert!(columns.is_multiple_of(block), "{columns} columns in blocks of {block}");
        let wide = block == 256;
        let sums = if wide { SUMS } else { 1 };
        self.codes.resize(x.len(), 0);
        self.scales.resize(x.len() / block, 0.0);
        self.sums.resize(x.len() / block * sums, 0);
        self.woven.resize(if wide { x.len() } else { 0 }, 0);
        let blocks = x.len() / block;
        let parts = (x.len() / PART).min(4 * pool.threads()).clamp(1, blocks.max(1));
        let mut rest = Rows {
            x,
            codes: &mut self.codes,
            scales: &mut self.scales,
            sums: &mut self.sums,
            woven: &mut self.woven,
        };
        if parts == 1 {
            return quantise(isa, &mut rest, wide);
        }
        let pieces: Vec<_> = (0..parts)
            .map(|part| {
                let blocks = blocks * (part + 1) / parts - blocks * part / parts;
                std::sync::Mutex::new(rest.split(blocks, block, sums, wide))
            })
            .collect();
        pool.run(parts, &|part| {
            // Each part locks its own piece once.
            if let Ok(mut piece) = pieces[part].lock() {
                quantise(isa, &mut piece, wide);
            }
        });
    }

    /// How many rows were prepared.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// One row as the scalar dots want it.
    pub fn row(&self, row: usize) -> Row<'_> {
        if self.activation == Some(Activation::F32) {
            return Row::F32(&self.values[row * self.columns..][..self.columns]);
        }
        let scales = self.scales.len() / self.rows;
        Row::Int8(Int8Blocks {
            codes: &self.codes[row * self.columns..][..self.columns],
            scales: &self.scales[row * scales..][..scales],
        })
    }

    /// Whether these rows suit a matrix.
    pub fn suits(&self, activation: Activation, columns: usize) -> bool {
        self.activation == Some(activation) && self.columns == columns
    }
}

impl<'a> Rows<'a> {
    /// Takes the first `blocks` blocks off.
    fn split(&mut self, blocks: usize, block: usize, sums: usize, wide: bool) -> Rows<'a> {
        fn cut<'a, T>(slice: &mut &'a mut [T], at: usize) -> &'a mut [T] {
            slice.split_off_mut(..at).expect("parts add up to the whole")
        }
        let (x, rest) = self.x.split_at(blocks * block);
        self.x = rest;
        Rows {
            x,
            codes: cut(&mut self.codes, blocks * block),
            scales: cut(&mut self.scales, blocks),
            sums: cut(&mut self.sums, blocks * sums),
            woven: cut(&mut self.woven, if wide { blocks * block } else { 0 }),
        }
    }
}

fn quantise(isa: Isa, rows: &mut Rows<'_>, wide: bool) {
    match isa {
        Isa::Scalar => {
            quantize_int8(rows.x, if wide { 256 } else { 32 }, rows.codes, rows.scales);
            sum_up(rows, wide);
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` above `Scalar` is only made for a machine that has it.
        Isa::Avx2 | Isa::Avx512 => unsafe { quantise_avx2(rows, wide) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => quantise_body(rows, wide),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantise_avx2(rows: &mut Rows<'_>, wide: bool) {
    quantise_body(rows, wide);
}

#[inline(always)]
fn quantise_body(rows: &mut Rows<'_>, wide: bool) {
    if wide {
        quantise_blocks::<256>(rows);
    } else {
        quantise_blocks::<32>(rows);
    }
    sum_up(rows, wide);
}

#[inline(always)]
fn quantise_blocks<const BLOCK: usize>(rows: &mut Rows<'_>) {
    let codes = rows.codes.as_chunks_mut::<BLOCK>().0;
    for ((x, codes), scale) in
        rows.x.as_chunks::<BLOCK>().0.iter().zip(codes).zip(&mut *rows.scales)
    {
        *scale = quantise_block(x, codes);
    }
}

/// `ironstar_quant::quantize_int8` of one block, in a form that compilers turn into vectors.
#[inline(always)]
fn quantise_block<const BLOCK: usize>(x: &[f32; BLOCK], codes: &mut [i8; BLOCK]) -> f32 {
    /// Adding it moves the nearest integer, ties to even, into the low bits.
    const ROUND: f32 = 12_582_912.0;
    const INFINITY: u32 = 0x7f80_0000;
    // Magnitudes order like their bits; everything that is not finite is at infinity or above.
    let max = x.iter().fold(0u32, |max, v| max.max(v.to_bits() & 0x7fff_ffff));
    let inverse = 127.0 / f32::from_bits(max);
    if max >= INFINITY || !inverse.is_finite() {
        codes.fill(0);
        return if max >= INFINITY { f32::NAN } else { 0.0 };
    }
    for (code, v) in codes.iter_mut().zip(x) {
        // The code is within -127..=127, so its low byte is all of it.
        *code = (v * inverse + ROUND).to_bits().to_le_bytes()[0].cast_signed();
    }
    f32::from_bits(max) / 127.0
}

#[inline(always)]
fn sum_up(rows: &mut Rows<'_>, wide: bool) {
    if !wide {
        for (codes, sum) in rows.codes.as_chunks::<32>().0.iter().zip(&mut *rows.sums) {
            *sum = sum_of(codes);
        }
        return;
    }
    let (blocks, sums) = (rows.codes.as_chunks::<256>().0, rows.sums.as_chunks_mut::<SUMS>().0);
    for (block, sums) in blocks.iter().zip(sums) {
        for (i, codes) in block.as_chunks::<16>().0.iter().enumerate() {
            sums[paired(i)] = sum_of(codes);
        }
        for i in 0..8 {
            sums[SUMS_32 + paired(i)] = sums[paired(2 * i)] + sums[paired(2 * i + 1)];
        }
    }
    let woven = rows.woven.as_chunks_mut::<32>().0;
    for (codes, woven) in rows.codes.as_chunks::<32>().0.iter().zip(woven) {
        *woven = std::array::from_fn(|at| codes[at % 4 * 8 + at / 4]);
    }
}

/// At most 32 * 127: fits.
#[inline(always)]
fn sum_of<const N: usize>(codes: &[i8; N]) -> i16 {
    codes.iter().map(|&code| i16::from(code)).sum()
}
