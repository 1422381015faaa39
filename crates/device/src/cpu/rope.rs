//! Rotary tables and the rotation of adjacent pairs (spec/deepseek_v4.md 2.4).

use super::isa::{Kernel, launch, parts};
use super::pool::Pool;
use super::share::Pieces;
use super::steps::Rows;
use crate::{Error, Rope};
use std::ops::Range;

/// One rotary table: its frequencies, and cosines and sines at the step's positions.
#[derive(Debug, Default)]
pub(crate) struct Table {
    frequencies: Vec<f32>,
    /// `[rows][pairs][2]`, filled on first use in a step.
    rows: Vec<f32>,
    filled: bool,
}

/// Tables at the positions of the step.
#[derive(Clone, Copy)]
pub(crate) struct RowTable<'a> {
    frequencies: &'a [f32],
    rows: &'a [f32],
}

/// Every table of a backend.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    tables: Vec<Table>,
}

/// Cosine and sine of `position * frequency`: the angle in f32, the functions in f64 rounded once,
/// as the published tables are within an ulp.
fn cos_sin(frequency: f32, position: usize) -> [f32; 2] {
    #[expect(clippy::cast_precision_loss, reason = "the published angle is this f32 product")]
    let angle = f64::from(position as f32 * frequency);
    // The two functions at once have the bits of each, and reduce the angle once.
    let (sin, cos) = libm::sincos(angle);
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is meant")]
    let rounded = [cos as f32, sin as f32];
    rounded
}

/// Fills one position's table.
pub(crate) fn fill(frequencies: &[f32], position: usize, out: &mut [f32]) {
    for (out, frequency) in out.as_chunks_mut::<2>().0.iter_mut().zip(frequencies) {
        *out = cos_sin(*frequency, position);
    }
}

struct FillRows<'a> {
    frequencies: &'a [f32],
    positions: &'a [usize],
    out: Pieces<'a, f32>,
}

impl Kernel for FillRows<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, items: Range<usize>) {
        for row in items {
            // SAFETY: each row belongs to one part.
            fill(self.frequencies, self.positions[row], unsafe { self.out.get(row) });
        }
    }
}

impl Tables {
    pub fn add(&mut self, frequencies: &[f32]) -> Rope {
        let id = u32::try_from(self.tables.len()).expect("a few tables a model");
        self.tables.push(Table { frequencies: frequencies.to_vec(), ..Table::default() });
        Rope { id, pairs: frequencies.len() }
    }

    /// Forgets the last step's positions.
    pub fn begin(&mut self) {
        for table in &mut self.tables {
            table.filled = false;
        }
    }

    /// The table at the positions of the step.
    pub fn at(
        &mut self,
        operation: &'static str,
        rope: Rope,
        pool: &Pool,
        rows: &Rows,
    ) -> Result<RowTable<'_>, Error> {
        let table = self
            .tables
            .get_mut(rope.id as usize)
            .filter(|table| table.frequencies.len() == rope.pairs)
            .ok_or(Error::Handle { operation, id: rope.id })?;
        let pairs = 2 * rope.pairs;
        if !table.filled {
            let n = rows.positions.len();
            table.rows.resize(n * pairs, 0.0);
            let kernel = FillRows {
                frequencies: &table.frequencies,
                positions: &rows.positions,
                out: Pieces::new(&mut table.rows, pairs),
            };
            // The functions are library calls: no instruction set makes them faster.
            if pairs > 0 {
                let parts = parts(pool, n, pairs * 64);
                launch(pool, super::Isa::Scalar, parts, n, &kernel);
            }
            table.filled = true;
        }
        Ok(RowTable { frequencies: &table.frequencies, rows: &table.rows })
    }
}

impl<'a> RowTable<'a> {
    /// `[pairs][2]` of a row of the step.
    #[inline(always)]
    pub fn row(&self, row: usize) -> &'a [f32] {
        let pairs = 2 * self.frequencies.len();
        &self.rows[row * pairs..][..pairs]
    }

    /// Pairs that are rotated.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// The table of any position, into `out` `[pairs][2]`.
    pub fn fill(&self, position: usize, out: &mut [f32]) {
        fill(self.frequencies, position, out);
    }
}

/// Rotates the last dims of `x`: (a, b) becomes (a cos - b sin, a sin + b cos). `x` holds at least
/// as many dims as the table.
#[inline(always)]
pub(crate) fn rotate(x: &mut [f32], table: &[f32]) {
    turn(x, table, 1.0);
}

/// The inverse of [`rotate`].
#[inline(always)]
pub(crate) fn rotate_back(x: &mut [f32], table: &[f32]) {
    turn(x, table, -1.0);
}

#[inline(always)]
fn turn(x: &mut [f32], table: &[f32], direction: f32) {
    let tail = x.len() - table.len();
    let pairs = x[tail..].as_chunks_mut::<2>().0.iter_mut();
    for ([a, b], [cos, sin]) in pairs.zip(table.as_chunks::<2>().0) {
        let sin = sin * direction;
        let rotated = a.mul_add(*cos, -(*b * sin));
        *b = a.mul_add(sin, *b * cos);
        *a = rotated;
    }
}

#[cfg(test)]
mod tests;
