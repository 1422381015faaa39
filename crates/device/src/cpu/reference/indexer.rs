//! The indexer (spec/deepseek_v4.md 2.7): which compressed rows a row may attend to.
//!
//! Score of a row: over heads in order, `fma(g_h, relu(q_h . k), acc)` from +0, with
//! g_h = weight_h * (width * heads)^-0.5. With FP4 rows the dots are exact integers a block
//! (`ironstar_quant::fp4::indexer_dot`); with F32 rows they have eight lanes and the tree.

use super::grow;
use crate::cpu::codes::{self, Codes, Portable, Query, Tile};
#[cfg(target_arch = "x86_64")]
use crate::cpu::codes::{Avx2, Avx512};
use crate::cpu::isa::{Kernel, launch, parts};
use crate::cpu::lanes::dot8;
use crate::cpu::math::order_key;
use crate::cpu::pool::Pool;
use crate::cpu::rope::{RowTable, rotate};
use crate::cpu::share::Pieces;
use crate::cpu::spare::Spare;
use crate::cpu::steps;
use crate::cpu::store::{Ask, Data, Fp4Row};
use crate::cpu::{Cpu, Isa, check, size};
use crate::{Element, Error, IndexSelect};
use ironstar_quant::{fp4, hadamard};
use std::cell::Ref;
use std::marker::PhantomData;
use std::ops::Range;

const OPERATION: &str = "index_select";

/// Keys of an item.
const KEYS: usize = 16 * codes::KEYS;
/// Rows of an item, so that unpacked keys serve more than one.
const ROWS: usize = 8;
/// Scores that are held at a time, in elements; bounds the memory of a long prefill.
const SCORES_MAX: usize = 1 << 22;

/// Memory of the indexer.
#[derive(Default)]
pub(super) struct Scratch {
    /// Rounded queries [n, heads].
    queries: Vec<Query>,
    /// Weights with their factor [n, heads].
    weights: Vec<f32>,
    /// Runs of up to [`ROWS`] rows of one span, of a batch.
    runs: Vec<Range<usize>>,
    /// [rows of a batch, keys]
    scores: Vec<f32>,
    /// Order keys a part.
    order: Vec<u64>,
    /// For each span, all of its rows.
    all: Vec<Range<usize>>,
    held: Spare<Ref<'static, Data>>,
    keys: Spare<Keys<'static>>,
}

/// Rotates and rounds queries: one item a head.
struct Queries<'a> {
    table: RowTable<'a>,
    heads: usize,
    q: Pieces<'a, f32>,
    queries: Option<Pieces<'a, Query>>,
}

impl Kernel for Queries<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, items: Range<usize>) {
        for item in items {
            // SAFETY: each head belongs to one part.
            let q = unsafe { self.q.get(item) };
            rotate(q, self.table.row(item / self.heads));
            hadamard(q);
            if let Some(queries) = &self.queries {
                let mut row = [0u8; fp4::INDEXER_BYTES];
                fp4::encode_rows(q, &mut row);
                // SAFETY: as above.
                let query = unsafe { queries.get(item) };
                query[0] = Query::new(&row);
            }
        }
    }
}

/// Rows of one span's indexer keys.
#[derive(Clone, Copy)]
enum Keys<'a> {
    F32(&'a [f32]),
    Fp4(&'a [Fp4Row]),
}

/// Which compressed rows each row of the step is scored with.
#[derive(Clone, Copy)]
struct Sight<'a> {
    rows: &'a steps::Rows,
    ratio: usize,
    /// Per span, the run of its compressed rows that is looked at.
    runs: &'a [Range<usize>],
}

impl Sight<'_> {
    /// First compressed row that a row of the step is scored with, and how many there are.
    #[inline(always)]
    fn of(&self, row: usize) -> (usize, usize) {
        let run = &self.runs[self.rows.span_of[row]];
        (run.start, self.all(row).min(run.end).saturating_sub(run.start))
    }

    /// Compressed rows that a row may see.
    #[inline(always)]
    fn all(&self, row: usize) -> usize {
        (self.rows.positions[row] + 1) / self.ratio
    }

    /// Most that any row is scored with.
    fn most(&self) -> usize {
        (0..self.rows.len()).map(|row| self.of(row).1).max().unwrap_or(0)
    }
}

/// Scores of a batch of rows: an item is a run of rows and up to [`KEYS`] keys.
#[derive(Clone, Copy)]
struct Batch<'a> {
    q: &'a [f32],
    queries: &'a [Query],
    weights: &'a [f32],
    heads: usize,
    width: usize,
    sight: Sight<'a>,
    /// First row of the batch.
    first: usize,
    runs: &'a [Range<usize>],
    /// Per span, those of its run.
    keys: &'a [Keys<'a>],
    /// Blocks of keys of a row.
    blocks: usize,
    /// `[rows of the batch][blocks]`, pieces of [`KEYS`].
    out: &'a Pieces<'a, f32>,
}

struct Scores<'a, C> {
    batch: Batch<'a>,
    codes: PhantomData<C>,
}

impl Batch<'_> {
    /// Scores of a row with a block of keys, and how many of them the row may see.
    ///
    /// # Safety
    /// Nobody else may use this row and block.
    #[expect(clippy::mut_from_ref, reason = "the contract makes the scores the caller's own")]
    #[inline(always)]
    unsafe fn out(&self, row: usize, block: usize) -> &mut [f32] {
        let count = self.sight.of(row).1.saturating_sub(block * KEYS).min(KEYS);
        // SAFETY: the caller's promise.
        let out = unsafe { self.out.get((row - self.first) * self.blocks + block) };
        &mut out[..count]
    }

    #[inline(always)]
    fn floats(&self, keys: &[f32], run: Range<usize>, block: usize) {
        for row in run {
            let heads = row * self.heads..(row + 1) * self.heads;
            let q = &self.q[heads.start * self.width..heads.end * self.width];
            // SAFETY: each run and block belongs to one part.
            let out = unsafe { self.out(row, block) };
            let keys = keys[block * KEYS * self.width..].chunks_exact(self.width);
            for (out, key) in out.iter_mut().zip(keys) {
                let dots = q.chunks_exact(self.width).map(|q| dot8(q, key));
                *out = weigh(dots, &self.weights[heads.clone()]);
            }
        }
    }

    #[inline(always)]
    fn codes<C: Codes>(&self, keys: &[Fp4Row], run: Range<usize>, block: usize) {
        // The last row of a run sees most.
        let visible = self.sight.of(run.end - 1).1;
        let mut tile = Tile::new();
        for start in (block * KEYS..visible.min((block + 1) * KEYS)).step_by(codes::KEYS) {
            let at = start - block * KEYS;
            tile.fill::<C>(&keys[start..]);
            for row in run.clone() {
                // SAFETY: each run and block belongs to one part.
                let out = unsafe { self.out(row, block) };
                if at >= out.len() {
                    continue;
                }
                let heads = row * self.heads..(row + 1) * self.heads;
                let scores = tile.score::<C>(&self.queries[heads.clone()], &self.weights[heads]);
                out[at..].iter_mut().zip(scores).for_each(|(out, score)| *out = score);
            }
        }
    }
}

impl<C: Codes> Kernel for Scores<'_, C> {
    #[inline(always)]
    fn run(&self, _part: usize, items: Range<usize>) {
        let batch = &self.batch;
        for item in items {
            let run = batch.runs[item / batch.blocks].clone();
            let block = item % batch.blocks;
            match batch.keys[batch.sight.rows.span_of[run.start]] {
                Keys::F32(keys) => batch.floats(keys, run, block),
                Keys::Fp4(keys) => batch.codes::<C>(keys, run, block),
            }
        }
    }
}

/// The sum over heads.
#[inline(always)]
fn weigh(dots: impl Iterator<Item = f32>, weights: &[f32]) -> f32 {
    dots.zip(weights).fold(0.0, |score, (dot, weight)| {
        let relu = if dot < 0.0 { 0.0 } else { dot };
        weight.mul_add(relu, score)
    })
}

/// The choice of each row of a batch.
struct Choose<'a> {
    scores: &'a [f32],
    /// Keys between two rows of scores.
    stride: usize,
    first: usize,
    top_k: usize,
    sight: Sight<'a>,
    order: Pieces<'a, u64>,
    out: &'a Chosen<'a>,
}

/// Where a choice goes: row numbers that ascend, or keys ([`crate::Backend::index_best`]).
enum Chosen<'a> {
    Rows(Pieces<'a, u32>),
    Keys(Pieces<'a, u64>),
}

impl Kernel for Choose<'_> {
    #[inline(always)]
    fn run(&self, part: usize, items: Range<usize>) {
        // SAFETY: each part has its own scratch.
        let order = unsafe { self.order.get(part) };
        for item in items {
            let row = self.first + item;
            let (start, count) = self.sight.of(row);
            if self.sight.all(row) <= self.top_k {
                if let Chosen::Rows(out) = self.out {
                    // SAFETY: each row belongs to one part.
                    let out = unsafe { out.get(row) };
                    (0u32..).zip(&mut out[..count]).for_each(|(id, out)| *out = id);
                }
                continue;
            }
            let scores = &self.scores[item * self.stride..][..count];
            let order = &mut order[..count];
            for ((id, order), score) in (start as u64..).zip(&mut *order).zip(scores) {
                *order = u64::from(!order_key(*score)) << 32 | id;
            }
            if count > self.top_k {
                order.select_nth_unstable(self.top_k - 1);
            }
            match self.out {
                Chosen::Rows(out) => {
                    // SAFETY: each row belongs to one part.
                    let out = unsafe { out.get(row) };
                    for (out, order) in out.iter_mut().zip(&*order) {
                        *out =
                            u32::try_from(order & u64::from(u32::MAX)).expect("masked to 32 bits");
                    }
                    out.sort_unstable();
                }
                Chosen::Keys(out) => {
                    // SAFETY: each row belongs to one part.
                    let out = unsafe { out.get(row) };
                    out.iter_mut().zip(&*order).for_each(|(out, order)| *out = *order);
                }
            }
        }
    }
}

fn check_shape(cpu: &Cpu, a: &IndexSelect<'_>) -> Result<(), Error> {
    check(
        OPERATION,
        a.ratio > 0 && a.top_k > 0 && a.heads > 0 && a.width.is_power_of_two(),
        || format!("ratio {}, top {}, {} heads of {}", a.ratio, a.top_k, a.heads, a.width),
        "all positive, the width a power of two",
    )?;
    check(
        OPERATION,
        2 * a.rope.pairs <= a.width && a.rows.len() == cpu.rows.spans.len(),
        || format!("{} pairs, rows of {} spans", a.rope.pairs, a.rows.len()),
        "rotated pairs fit, one buffer of rows a span",
    )?;
    let element = a.rows.first().map(|rows| rows.element);
    check(
        OPERATION,
        a.rows.iter().all(|rows| Some(rows.element) == element)
            && (element != Some(Element::Fp4Row) || a.width == fp4::INDEXER_DIMS),
        || format!("rows of {element:?} and width {}", a.width),
        "one kind of rows; FP4 rows have 128 dims",
    )?;
    let last = cpu.rows.positions.iter().max().map_or(0, |t| (t + 1) / a.ratio);
    check(
        OPERATION,
        u32::try_from(last).is_ok(),
        || format!("{last} rows"),
        "row numbers fit 32 bits",
    )
}

pub(crate) fn index_select(cpu: &mut Cpu, a: &IndexSelect<'_>) -> Result<(), Error> {
    let n = cpu.rows.len();
    if n == 0 {
        return Ok(());
    }
    check_shape(cpu, a)?;
    let mut runs = std::mem::take(&mut cpu.scratch.indexer.all);
    runs.clear();
    runs.resize(a.rows.len(), 0..usize::MAX);
    let made = choose(cpu, a, &runs, None);
    cpu.scratch.indexer.all = runs;
    made
}

pub(crate) fn index_best(
    cpu: &mut Cpu,
    a: &IndexSelect<'_>,
    runs: &[Range<usize>],
    best: &mut [u64],
) -> Result<(), Error> {
    best.fill(u64::MAX);
    if best.is_empty() {
        return Ok(());
    }
    check_shape(cpu, a)?;
    check(
        OPERATION,
        runs.len() == a.rows.len() && best.len() == size(&[cpu.rows.len(), a.top_k]),
        || format!("{} runs, {} keys", runs.len(), best.len()),
        "a run for each span, and top_k keys for each row",
    )?;
    choose(cpu, a, runs, Some(best))
}

/// Scores and chooses, over a run of each span's rows; gives keys where there is room for them.
fn choose(
    cpu: &mut Cpu,
    a: &IndexSelect<'_>,
    runs: &[Range<usize>],
    best: Option<&mut [u64]>,
) -> Result<(), Error> {
    let n = cpu.rows.len();
    let ask = |operand| Ask { operation: OPERATION, operand };
    let mut q = cpu.store.f32_mut(ask("q"), a.q, size(&[n, a.heads, a.width]))?;
    let weights = cpu.store.f32(ask("weights"), a.weights, size(&[n, a.heads]))?;
    let mut ids;
    let out = match best {
        Some(best) => Chosen::Keys(Pieces::new(best, a.top_k)),
        None => {
            ids = cpu.store.u32_mut(ask("out"), a.out, size(&[n, a.top_k]))?;
            Chosen::Rows(Pieces::new(&mut ids, a.top_k))
        }
    };
    let mut held = cpu.scratch.indexer.held.list();
    for (rows, span) in a.rows.iter().zip(&cpu.rows.spans) {
        let visible = (span.position + span.rows.len()) / a.ratio;
        let fp4_row = rows.element == Element::Fp4Row;
        let len = if fp4_row { visible } else { size(&[visible, a.width]) };
        let elements = [Element::F32, Element::Fp4Row];
        held.push(cpu.store.data(ask("rows"), *rows, &elements, len)?);
    }
    let mut keys = cpu.scratch.indexer.keys.list();
    keys.extend(held.iter().zip(runs).map(|(data, run)| match &**data {
        Data::Fp4(rows) => Keys::Fp4(&rows[run.start.min(rows.len())..]),
        Data::F32(rows) => Keys::F32(&rows[size(&[run.start, a.width]).min(rows.len())..]),
        Data::Bf16(_) | Data::U32(_) => Keys::F32(&[]),
    }));
    let scratch = &mut cpu.scratch.indexer;
    let sight = Sight { rows: &cpu.rows, ratio: a.ratio, runs };
    let scoring = (0..n).any(|row| sight.all(row) > a.top_k);
    let most = sight.most();
    let items = n * a.heads;
    let fp4_rows = matches!(keys.first(), Some(Keys::Fp4(_)));
    let queries = grow(&mut scratch.queries, if fp4_rows { items } else { 0 });
    if scoring {
        let kernel = Queries {
            table: cpu.ropes.at(OPERATION, a.rope, &cpu.pool, &cpu.rows)?,
            heads: a.heads,
            q: Pieces::new(&mut q, a.width),
            queries: fp4_rows.then(|| Pieces::new(queries, 1)),
        };
        launch(&cpu.pool, cpu.isa, parts(&cpu.pool, items, 16 * a.width), items, &kernel);
    }
    #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^24")]
    let factor = 1.0 / ((a.width * a.heads) as f32).sqrt();
    let scaled = grow(&mut scratch.weights, items);
    scaled.iter_mut().zip(&*weights).for_each(|(scaled, weight)| *scaled = weight * factor);
    let blocks = if scoring { most.div_ceil(KEYS) } else { 0 };
    let stride = blocks * KEYS;
    let batch = (SCORES_MAX / stride.max(1)).clamp(1, n);
    for first in (0..n).step_by(batch) {
        let rows = batch.min(n - first);
        cut_runs(&cpu.rows, first..first + rows, &mut scratch.runs);
        let blocks_out = Pieces::new(grow(&mut scratch.scores, rows * stride), KEYS);
        let scores = Batch {
            q: &q,
            queries: &scratch.queries,
            weights: &scratch.weights,
            heads: a.heads,
            width: a.width,
            sight,
            first,
            runs: &scratch.runs,
            keys: &keys,
            blocks,
            out: &blocks_out,
        };
        match cpu.isa {
            Isa::Scalar => score::<Portable>(&cpu.pool, cpu.isa, scores),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => score::<Avx2>(&cpu.pool, cpu.isa, scores),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => score::<Avx512>(&cpu.pool, cpu.isa, scores),
            _ => score::<Portable>(&cpu.pool, cpu.isa, scores),
        }
        let cut = parts(&cpu.pool, rows, 16 * most);
        let kernel = Choose {
            scores: &scratch.scores,
            stride,
            first,
            top_k: a.top_k,
            sight,
            order: Pieces::new(grow(&mut scratch.order, cut * most), most),
            out: &out,
        };
        launch(&cpu.pool, cpu.isa, cut, rows, &kernel);
    }
    scratch.keys.keep(keys);
    scratch.held.keep(held);
    Ok(())
}

/// Scores a batch with the codes of an instruction set.
fn score<C: Codes>(pool: &Pool, isa: Isa, batch: Batch<'_>) {
    let items = batch.runs.len() * batch.blocks;
    let cut = parts(pool, items, KEYS * batch.heads * batch.width / 8);
    launch(pool, isa, cut, items, &Scores::<C> { batch, codes: PhantomData });
}

/// Cuts rows into runs of one span.
fn cut_runs(rows: &steps::Rows, batch: Range<usize>, runs: &mut Vec<Range<usize>>) {
    runs.clear();
    for span in &rows.spans {
        let (start, end) = (span.rows.start.max(batch.start), span.rows.end.min(batch.end));
        runs.extend((start..end).step_by(ROWS).map(|row| row..end.min(row + ROWS)));
    }
}
