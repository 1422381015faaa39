//! The expert sum (spec/deepseek_v4.md 2.8 steps 4 and 5) in the eight cells of DESIGN 5.
//!
//! The (row, choice) pairs of the step are sorted by expert, so that each distinct expert is read
//! once for all its rows; a pair's place in that order is where its products lie. A rank that
//! computes some of the cells leaves out the pairs of experts that it does not hold.

use super::{InputSet, grow};
use crate::cpu::isa::{Kernel, call, parts};
use crate::cpu::math::silu;
use crate::cpu::pool::Pool;
use crate::cpu::product::{Batch, Inputs, Job, Open, Output, View, Weights, cut};
use crate::cpu::share::Whole;
use crate::cpu::store::Ask;
use crate::cpu::{Cpu, Isa, check, size, weights};
use crate::{Cells, Error, Experts, Ffn, Matrix};
use std::ops::Range;

const OPERATION: &str = "experts";

/// Memory between the products.
#[derive(Default)]
pub(super) struct Scratch {
    /// First pair of each expert, and one past the last: [experts + 1].
    starts: Vec<usize>,
    /// Place of each (row, choice) in the order by expert.
    places: Vec<u32>,
    /// Row of each pair in that order.
    rows: Vec<u32>,
    /// Weight of each pair in that order.
    weights: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    shared_gate: Vec<f32>,
    shared_up: Vec<f32>,
    inner: Inputs,
    shared_inner: Inputs,
    /// `[pairs][2][d]`, or `[pairs][1][d]` where only one half is computed
    halves: Vec<f32>,
    /// `[n][cells][d]`
    shards: Vec<f32>,
    /// 0, 1, 2, ...
    picks: Vec<u32>,
}

/// Place of a pair whose expert is not held.
const NOWHERE: u32 = u32::MAX;

/// Sorts the pairs of the experts that are held by expert, and by row inside an expert; gives how
/// many there are.
fn sort_pairs(
    scratch: &mut Scratch,
    ids: &[u32],
    weights: &[f32],
    top_k: usize,
    held: &Range<usize>,
) -> usize {
    let experts = held.len();
    let local = |id: u32| held.contains(&(id as usize)).then(|| id as usize - held.start);
    let starts = grow(&mut scratch.starts, experts + 2);
    starts.fill(0);
    // Counts two places ahead turn into starts one place ahead, and into ends while pairs are
    // placed.
    ids.iter().filter_map(|id| local(*id)).for_each(|id| starts[id + 2] += 1);
    (2..experts + 2).for_each(|i| starts[i] += starts[i - 1]);
    let places = grow(&mut scratch.places, ids.len());
    let rows = grow(&mut scratch.rows, ids.len());
    let sorted = grow(&mut scratch.weights, ids.len());
    for (pair, id) in ids.iter().enumerate() {
        let Some(id) = local(*id) else {
            places[pair] = NOWHERE;
            continue;
        };
        let place = &mut starts[id + 1];
        places[pair] = u32::try_from(*place).expect("checked: pairs fit u32");
        rows[*place] = u32::try_from(pair / top_k).expect("checked: pairs fit u32");
        sorted[*place] = weights[pair];
        *place += 1;
    }
    starts[experts]
}

/// One kind of expert between its products: values of gate and up, row by row, become the input of
/// the last product.
struct Middle<'a> {
    gate: Whole<'a, f32>,
    up: Whole<'a, f32>,
    /// `None`: the shared expert, which has no weight.
    weights: Option<&'a [f32]>,
    limit: f32,
    width: usize,
    inputs: Open<'a>,
}

/// `gate = silu(min(gate, limit)) * clamp(up, -limit, limit) * weight`
impl Kernel for Middle<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, rows: Range<usize>) {
        let limit = self.limit;
        for row in rows {
            let values = row * self.width..(row + 1) * self.width;
            // SAFETY: the products before have ended, and each row belongs to one part.
            let (gate, up) = unsafe { (self.gate.part(values.clone()), self.up.read(values)) };
            for (gate, up) in gate.iter_mut().zip(up) {
                let g = if *gate > limit { limit } else { *gate };
                let u = if *up > limit { limit } else { *up };
                let u = if u < -limit { -limit } else { u };
                *gate = silu(g) * u;
            }
            if let Some(weights) = self.weights {
                gate.iter_mut().for_each(|gate| *gate *= weights[row]);
            }
        }
    }
}

impl Middle<'_> {
    /// One row, from the first products' values to the last one's input.
    fn row(&self, isa: Isa, row: usize) {
        call(isa, self, 0, row..row + 1);
        // SAFETY: as in `run`; the last product begins when all rows are there.
        unsafe {
            let values = self.gate.read(row * self.width..(row + 1) * self.width);
            self.inputs.prepare(row, values);
        }
    }
}

/// Adds the halves of the chosen experts and the shards of the shared expert: cells 4h+g from +0,
/// experts ascending, the shared shard last, then the tree.
struct Sum<'a> {
    cells: Cells,
    ids: &'a [u32],
    places: &'a [u32],
    top_k: usize,
    halves: Whole<'a, f32>,
    shards: Whole<'a, f32>,
    out: Whole<'a, f32>,
    width: usize,
}

/// Values that are summed at a time: so few that the cells stay in the first-level cache, so many
/// that each of some twenty runs of memory is read for a while before the next one.
const RUN: usize = 1024;

impl Kernel for Sum<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, items: Range<usize>) {
        let runs = self.width.div_ceil(RUN);
        let mut cells = [[0f32; RUN]; 8];
        for item in items {
            self.add(item / runs, item % runs * RUN, &mut cells);
        }
    }
}

impl Sum<'_> {
    /// A run of values of a row.
    #[inline(always)]
    fn add(&self, row: usize, start: usize, cells: &mut [[f32; RUN]; 8]) {
        let (width, count) = (self.width, self.cells.count);
        let (planes, first) = (half_planes(self.cells), self.cells.first % 4);
        let len = (width - start).min(RUN);
        let ids = &self.ids[row * self.top_k..][..self.top_k];
        let places = &self.places[row * self.top_k..][..self.top_k];
        for cell in &mut cells[..count] {
            cell[..len].fill(0.0);
        }
        for (id, place) in ids.iter().zip(places) {
            if *place == NOWHERE {
                continue;
            }
            let group = expert_group(*id as usize, self.cells.experts) - first;
            for plane in 0..planes {
                let at = (*place as usize * planes + plane) * width + start;
                // SAFETY: all products have ended.
                add_to(&mut cells[4 * plane + group], unsafe { self.halves.read(at..at + len) });
            }
        }
        let out = row * width + start;
        // SAFETY: each run of values belongs to one part.
        let out = unsafe { self.out.part(out..out + len) };
        match count {
            8 => self.finish::<8>(row, start, cells, out),
            4 => self.finish::<4>(row, start, cells, out),
            2 => self.finish::<2>(row, start, cells, out),
            _ => self.finish::<1>(row, start, cells, out),
        }
    }

    /// Adds the shards of the shared expert to `N` cells, and these by the tree: all at once, so
    /// that nothing but the result is stored.
    #[inline(always)]
    fn finish<const N: usize>(
        &self,
        row: usize,
        start: usize,
        cells: &[[f32; RUN]; 8],
        out: &mut [f32],
    ) {
        let (mut shards, mut of_cells): ([&[f32]; N], [&[f32]; N]) = ([&[]; N], [&[]; N]);
        for cell in 0..N {
            let at = (row * N + cell) * self.width + start;
            // Cut once more, so that the compiler sees all lengths equal.
            // SAFETY: all products have ended.
            shards[cell] = &unsafe { self.shards.read(at..at + out.len()) }[..out.len()];
            of_cells[cell] = &cells[cell][..out.len()];
        }
        for (i, out) in out.iter_mut().enumerate() {
            let mut sums = [0f32; N];
            for cell in 0..N {
                sums[cell] = of_cells[cell][i] + shards[cell][i];
            }
            // The tree: neighbours, then neighbours of those.
            let mut step = 1;
            while step < N {
                for cell in (0..N).step_by(2 * step) {
                    sums[cell] += sums[cell + step];
                }
                step *= 2;
            }
            *out = sums[0];
        }
    }
}

/// `to += from`, value by value.
#[inline(always)]
fn add_to(to: &mut [f32; RUN], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

/// The group g of four whose ids are floor(g E/4) .. floor((g+1) E/4).
fn expert_group(id: usize, experts: usize) -> usize {
    (1..4).filter(|g| id >= g * experts / 4).count()
}

/// Planes of a routed expert's last product: both halves, or the one that is computed.
fn half_planes(cells: Cells) -> usize {
    if cells.count == 8 { 2 } else { 1 }
}

struct FfnWeights<'a> {
    gate: &'a Weights,
    up: &'a Weights,
    down: &'a Weights,
}

fn ffn_weights<'a>(
    matrices: &'a [(Matrix, Weights)],
    ffn: &Ffn,
    d: usize,
    stack: usize,
) -> Result<FfnWeights<'a>, Error> {
    let inner = ffn.gate.rows;
    for (matrix, rows, columns) in [(ffn.gate, inner, d), (ffn.up, inner, d), (ffn.down, d, inner)]
    {
        check(
            OPERATION,
            [matrix.rows, matrix.columns, matrix.stack] == [rows, columns, stack],
            || format!("a matrix {} x {} x {}", matrix.stack, matrix.rows, matrix.columns),
            format_args!("{stack} x {rows} x {columns}"),
        )?;
    }
    Ok(FfnWeights {
        gate: weights(matrices, OPERATION, ffn.gate)?,
        up: weights(matrices, OPERATION, ffn.up)?,
        down: weights(matrices, OPERATION, ffn.down)?,
    })
}

impl FfnWeights<'_> {
    fn bytes(&self) -> u64 {
        [self.gate, self.up, self.down].iter().map(|weights| weights.bytes_per_matrix()).sum()
    }
}

/// Refuses matrices that are not the part of the sum that is asked for.
fn check_cells(
    cells: Cells,
    [routed, shared]: [&FfnWeights<'_>; 2],
    stack: usize,
) -> Result<Range<usize>, Error> {
    let halves = if cells.count == 8 { 8 } else { 4 };
    let held = cells.held();
    check(
        OPERATION,
        cells.is_subtree()
            && held.len() == stack
            && routed.down.shards() == halves
            && shared.down.shards() == cells.count,
        || {
            let (routed, shared) = (routed.down.shards(), shared.down.shards());
            format!("{cells:?} of {stack} experts in {routed} and {shared} shards")
        },
        "the experts and shards of the cells",
    )?;
    Ok(held)
}

pub(crate) fn experts(cpu: &mut Cpu, a: &Experts, cells: Cells) -> Result<(), Error> {
    let ask = |operand| Ask { operation: OPERATION, operand };
    let (n, d, stack) = (cpu.rows.len(), a.routed.gate.columns, a.routed.gate.stack);
    let routed = ffn_weights(&cpu.matrices, &a.routed, d, stack)?;
    let shared = ffn_weights(&cpu.matrices, &a.shared, d, 1)?;
    let pairs = size(&[n, a.top_k]);
    let held = check_cells(cells, [&routed, &shared], stack)?;
    check(
        OPERATION,
        a.top_k > 0 && u32::try_from(pairs).is_ok(),
        || format!("{n} rows of {} experts", a.top_k),
        "at least one expert a row",
    )?;
    let x = cpu.store.f32(ask("x"), a.x, size(&[n, d]))?;
    let ids = cpu.store.u32(ask("ids"), a.ids, pairs)?;
    let last = ids.iter().max().map_or(0, |id| *id as usize);
    let all = cells.experts;
    check(OPERATION, last < all, || format!("expert {last} of {all}"), "ids of the experts")?;
    let weights = cpu.store.f32(ask("weights"), a.weights, pairs)?;
    let mut out = cpu.store.f32_mut(ask("out"), a.out, size(&[n, d]))?;

    let scratch = &mut cpu.scratch.experts;
    let pairs = sort_pairs(scratch, &ids, &weights, a.top_k, &held);
    let distinct = scratch.starts[..=stack].windows(2).filter(|w| w[0] < w[1]).count();
    cpu.counters.expert_bytes += distinct as u64 * routed.bytes();
    cpu.counters.dense_bytes += shared.bytes();

    let all = [&routed, &shared];
    let activations = all.iter().flat_map(|ffn| [ffn.gate.activation(), ffn.up.activation()]);
    cpu.scratch.inputs.prepare(&cpu.pool, activations, &x, [n, d]);
    let sizes = Sizes { n, pairs, stack, d, top_k: a.top_k, limit: a.limit, cells };
    let x = (&cpu.scratch.inputs, &*x);
    evaluate(&cpu.pool, cpu.isa, scratch, x, all, &sizes, (&ids, &mut out));
    Ok(())
}

/// Sizes of one call.
struct Sizes {
    n: usize,
    pairs: usize,
    stack: usize,
    d: usize,
    top_k: usize,
    limit: f32,
    cells: Cells,
}

/// All products, what lies between them, and the sum, as one region of four stages.
fn evaluate(
    pool: &Pool,
    isa: Isa,
    scratch: &mut Scratch,
    (inputs, x): (&InputSet, &[f32]),
    [routed, shared]: [&FfnWeights<'_>; 2],
    s: &Sizes,
    (ids, out): (&[u32], &mut [f32]),
) {
    let Scratch { starts, places, rows, weights, picks, halves, shards, .. } = scratch;
    let (gate, up, inner) = (&mut scratch.gate, &mut scratch.up, &mut scratch.inner);
    let (shared_gate, shared_up) = (&mut scratch.shared_gate, &mut scratch.shared_up);
    let shared_inner = &mut scratch.shared_inner;
    let planes = half_planes(s.cells);
    let width = routed.gate.rows();
    let gate = Whole::new(grow(gate, s.pairs * width));
    let of_pairs = Middle {
        gate,
        up: Whole::new(grow(up, s.pairs * width)),
        weights: Some(&weights[..s.pairs]),
        limit: s.limit,
        width,
        inputs: inner.open(routed.down.activation(), [s.pairs, width], gate),
    };
    let width = shared.gate.rows();
    let gate = Whole::new(grow(shared_gate, s.n * width));
    let of_rows = Middle {
        gate,
        up: Whole::new(grow(shared_up, s.n * width)),
        weights: None,
        limit: s.limit,
        width,
        inputs: shared_inner.open(shared.down.activation(), [s.n, width], gate),
    };
    let halves = Whole::new(grow(halves, s.pairs * planes * s.d));
    let shards = Whole::new(grow(shards, s.n * shared.down.shards() * s.d));
    let picks = grow_places(picks, s.pairs);
    let x = |weights: &Weights| inputs.get(weights.activation(), x, [s.n, s.d]);
    let held = || held_experts(starts, s.stack);
    let first =
        Batch::new(pool, first_products([routed, shared], [&of_pairs, &of_rows], x, rows, held));
    let last = Batch::new(
        pool,
        last_products(
            [routed, shared],
            [&of_pairs, &of_rows],
            [halves, shards],
            (picks, planes),
            held,
        ),
    );
    let sum = Sum {
        cells: s.cells,
        ids,
        places,
        top_k: s.top_k,
        halves,
        shards,
        out: Whole::new(out),
        width: s.d,
    };
    let middle = s.pairs + s.n;
    let cut_middle = parts(pool, middle, 16 * of_pairs.width.max(of_rows.width));
    let runs = s.n * s.d.div_ceil(RUN);
    // Values are read once each, which takes longer than a multiplication.
    let cut_sum = parts(pool, runs, 4 * (s.top_k + 8) * RUN.min(s.d));
    let row = |item: usize| match item.checked_sub(s.pairs) {
        None => of_pairs.row(isa, item),
        Some(item) => of_rows.row(isa, item),
    };
    pool.run_stages(
        first.is_small(),
        &[
            (first.parts(), &|part| first.run(part, pool)),
            (cut_middle, &|part| cut(middle, cut_middle, part).for_each(row)),
            (last.parts(), &|part| last.run(part, pool)),
            (cut_sum, &|part| call(isa, &sum, part, cut(runs, cut_sum, part))),
        ],
    );
    first.keep(pool);
    last.keep(pool);
}

/// Experts that have pairs, each with the places of those.
fn held_experts(
    starts: &[usize],
    stack: usize,
) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
    let all = (0..stack).map(|expert| (expert, starts[expert]..starts[expert + 1]));
    all.filter(|(_, range)| !range.is_empty())
}

/// Gate and up of every chosen expert and of the shared one.
fn first_products<'a, H: Iterator<Item = (usize, Range<usize>)>>(
    [routed, shared]: [&'a FfnWeights<'_>; 2],
    [of_pairs, of_rows]: [&Middle<'a>; 2],
    x: impl Fn(&Weights) -> View<'a>,
    rows: &'a [u32],
    held: impl Fn() -> H,
) -> impl Iterator<Item = Job<'a>> {
    let width = of_pairs.width;
    let to = [(routed.gate, of_pairs.gate), (routed.up, of_pairs.up)];
    let of_routed = to.map(|(weights, out)| {
        let x = x(weights);
        held().map(move |(expert, range)| {
            // SAFETY: each pair belongs to one product, and nobody reads before all have ended.
            let out = unsafe { out.part(range.start * width..range.end * width) };
            let (picks, out) = (Some(&rows[range]), Output::Tree(out));
            Job { weights, stack: expert, groups: 1, x, picks, out }
        })
    });
    let to = [(shared.gate, of_rows.gate), (shared.up, of_rows.up)];
    let of_shared = to.map(|(weights, out)| {
        // SAFETY: as above.
        let out = Output::Tree(unsafe { out.part(0..out.len()) });
        Job { weights, stack: 0, groups: 1, x: x(weights), picks: None, out }
    });
    of_routed.into_iter().flatten().chain(of_shared)
}

/// The last product, routed experts in halves (or the one half), the shared one in shards.
fn last_products<'a, H: Iterator<Item = (usize, Range<usize>)>>(
    [routed, shared]: [&'a FfnWeights<'_>; 2],
    [of_pairs, of_rows]: [&Middle<'a>; 2],
    [halves, shards]: [Whole<'a, f32>; 2],
    (picks, planes): (&'a [u32], usize),
    held: impl Fn() -> H,
) -> impl Iterator<Item = Job<'a>> {
    let (weights, x) = (routed.down, of_pairs.inputs.view());
    let size = planes * weights.rows();
    let of_routed = held().map(move |(expert, range)| {
        // SAFETY: each pair belongs to one product, and nobody reads before all have ended.
        let out = unsafe { halves.part(range.start * size..range.end * size) };
        let out = if planes == 2 { Output::Halves(out) } else { Output::Tree(out) };
        Job { weights, stack: expert, groups: 1, x, picks: Some(&picks[range]), out }
    });
    let (weights, x) = (shared.down, of_rows.inputs.view());
    // SAFETY: as above.
    let out = Output::Shards(unsafe { shards.part(0..shards.len()) });
    of_routed.chain([Job { weights, stack: 0, groups: 1, x, picks: None, out }])
}

/// 0, 1, 2, ...: picks of consecutive pairs.
fn grow_places(places: &mut Vec<u32>, len: usize) -> &[u32] {
    let have = places.len();
    places.extend((have..len).map(|i| u32::try_from(i).expect("checked: pairs fit u32")));
    &places[..len]
}
