//! Panels: up to twelve activation rows side by side, as `[block][word][row]`.
//!
//! A kernel for many rows broadcasts the same word of one row after the other. In a panel those are
//! neighbours: one pointer instead of twelve, and lines of memory in the order of use. Copying
//! costs about as much as one or two tiles of weights, so small parts go without.

use super::inputs::{View, Words};
use super::tile::Part;
use std::ops::Range;

/// Rows of a whole panel.
pub(crate) const PANEL_ROWS: usize = 12;

/// Rows of the kernel that takes `count` rows, at most [`PANEL_ROWS`].
pub(crate) fn kernel_rows(count: usize) -> usize {
    [2, 3, 4, 6, 8, 10].into_iter().find(|rows| *rows >= count).unwrap_or(PANEL_ROWS)
}

/// Rows that a panel layout of so many inputs has.
fn padded(inputs: usize) -> usize {
    let rest = inputs % PANEL_ROWS;
    inputs - rest + if rest == 0 { 0 } else { kernel_rows(rest) }
}

/// The inputs of a part: whole panels, then one that fits the rest.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    words: &'a [u32],
    first_group: usize,
    /// Words of a group's panels.
    group_words: usize,
}

impl<'a> Panels<'a> {
    /// Panels of the inputs of one group that the part's tiles have rows of.
    #[inline(always)]
    pub fn of_group(&self, group: usize) -> &'a [u32] {
        &self.words[(group - self.first_group) * self.group_words..][..self.group_words]
    }
}

/// What the rows of an input are made of.
pub(crate) trait Rows {
    /// A block.
    type Record: Words;

    /// The blocks of a row.
    fn records<'a>(x: &View<'a>, row: usize) -> &'a [Self::Record];
}

/// Lays out the inputs of a part in a buffer.
pub(crate) type GatherFn = for<'a> fn(&Part<'_>, &'a mut Vec<u32>) -> Panels<'a>;

/// [`GatherFn`] of rows. Rows that fill up a panel are zeros.
pub(crate) fn gather<'a, F: Rows>(part: &Part<'_>, buffer: &'a mut Vec<u32>) -> Panels<'a> {
    let (blocks, words) = (part.plan.blocks, F::Record::WORDS);
    let group_rows = part.rows / part.groups;
    let first_group = part.tiles.start * super::TILE_ROWS / group_rows;
    let last_row = part.rows.min(part.tiles.end * super::TILE_ROWS).max(1) - 1;
    let groups = last_row / group_rows + 1 - first_group;
    let group_words = padded(part.inputs.len()) * blocks * words;
    if buffer.len() < groups * group_words {
        buffer.resize(groups * group_words, 0);
    }
    let buffer = &mut buffer[..groups * group_words];
    for (group, to) in buffer.chunks_exact_mut(group_words.max(1)).enumerate() {
        let mut inputs = part.inputs.clone();
        for to in to.chunks_mut(PANEL_ROWS * blocks * words) {
            let next = inputs.end.min(inputs.start + PANEL_ROWS);
            let (group, of_panel) = (first_group + group, inputs.start..next);
            match to.len() / (blocks * words) {
                2 => fill::<F, 2>(part, group, of_panel, to),
                3 => fill::<F, 3>(part, group, of_panel, to),
                4 => fill::<F, 4>(part, group, of_panel, to),
                6 => fill::<F, 6>(part, group, of_panel, to),
                8 => fill::<F, 8>(part, group, of_panel, to),
                10 => fill::<F, 10>(part, group, of_panel, to),
                _ => fill::<F, PANEL_ROWS>(part, group, of_panel, to),
            }
            inputs.start = next;
        }
    }
    Panels { words: buffer, first_group, group_words }
}

/// Fills a panel of `R` rows with inputs, and zeros behind them: some blocks of all rows, then the
/// next ones, so that what is written stays near.
fn fill<F: Rows, const R: usize>(
    part: &Part<'_>,
    group: usize,
    inputs: Range<usize>,
    to: &mut [u32],
) {
    let (blocks, words) = (part.plan.blocks, F::Record::WORDS);
    let (to, _) = to.as_chunks_mut::<R>();
    let count = inputs.len();
    let mut rows: [&[F::Record]; R] = [&[]; R];
    for (row, input) in rows.iter_mut().zip(inputs) {
        *row = F::records(&part.x, part.input(group, input).1);
        assert_eq!(row.len(), blocks, "the rows have the matrix's columns");
    }
    let run = (RUN / words).max(1);
    for (at, to) in to.chunks_mut(run * words).enumerate() {
        if count < R {
            to.as_flattened_mut().fill(0);
        }
        for (row, records) in rows.iter().enumerate().take(count) {
            for (record, to) in records[at * run..].iter().zip(to.chunks_exact_mut(words)) {
                // SAFETY: that many words of a record are initialised; it is aligned to words.
                let record =
                    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast(), words) };
                for (to, word) in to.iter_mut().zip(record) {
                    to[row] = *word;
                }
            }
        }
    }
}

/// Words of a row that are copied before those of the next one.
const RUN: usize = 64;
