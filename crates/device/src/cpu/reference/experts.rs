//! The expert sum (spec/deepseek_v4.md 2.8 steps 4 and 5) in the eight cells of DESIGN 5.
//!
//! The (row, choice) pairs of the step are sorted by expert, so that each distinct expert is read
//! once for all its rows; a pair's place in that order is where its products lie. A rank that
//! computes some of the cells leaves out the pairs of experts that it does not hold.

use super::{InputSet, grow};
use crate::cpu::isa::{Kernel, launch, parts};
use crate::cpu::math::silu;
use crate::cpu::pool::Pool;
use crate::cpu::product::{Job, Output, Weights, products};
use crate::cpu::share::Pieces;
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
    inner: InputSet,
    shared_inner: InputSet,
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

/// `gate = silu(min(gate, limit)) * clamp(up, -limit, limit) * weight`, rows of one width.
struct Activate<'a> {
    up: &'a [f32],
    /// `None`: the shared expert, which has no weight.
    weights: Option<&'a [f32]>,
    limit: f32,
    width: usize,
    gate: Pieces<'a, f32>,
}

impl Kernel for Activate<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, rows: Range<usize>) {
        let limit = self.limit;
        for row in rows {
            let up = &self.up[row * self.width..][..self.width];
            // SAFETY: each row belongs to one part.
            let gate = unsafe { self.gate.get(row) };
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

fn activate(
    pool: &Pool,
    isa: Isa,
    [rows, width]: [usize; 2],
    limit: f32,
    [gate, up]: [&mut [f32]; 2],
    weights: Option<&[f32]>,
) {
    let kernel = Activate { up, weights, limit, width, gate: Pieces::new(gate, width) };
    launch(pool, isa, parts(pool, rows, 8 * width), rows, &kernel);
}

/// Adds the halves of the chosen experts and the shards of the shared expert: cells 4h+g from +0,
/// experts ascending, the shared shard last, then the tree.
struct Sum<'a> {
    cells: Cells,
    ids: &'a [u32],
    places: &'a [u32],
    top_k: usize,
    halves: &'a [f32],
    shards: &'a [f32],
    out: Pieces<'a, f32>,
    width: usize,
}

impl Kernel for Sum<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, rows: Range<usize>) {
        const LANES: usize = 16;
        let (width, count) = (self.width, self.cells.count);
        let (planes, first) = (half_planes(self.cells), self.cells.first % 4);
        for row in rows {
            let ids = &self.ids[row * self.top_k..][..self.top_k];
            let places = &self.places[row * self.top_k..][..self.top_k];
            let shards = &self.shards[row * count * width..][..count * width];
            // SAFETY: each row belongs to one part.
            let out = unsafe { self.out.get(row) };
            for start in (0..width).step_by(LANES) {
                let lanes = (width - start).min(LANES);
                let mut cells = [[0f32; LANES]; 8];
                let add = |cell: &mut [f32; LANES], from: &[f32]| {
                    // A whole run is an array, so that its loop is an addition of vectors.
                    if let Some(from) = from[start..].first_chunk::<LANES>() {
                        (0..LANES).for_each(|i| cell[i] += from[i]);
                    } else {
                        cell.iter_mut().zip(&from[start..]).for_each(|(cell, v)| *cell += v);
                    }
                };
                for (id, place) in ids.iter().zip(places) {
                    if *place == NOWHERE {
                        continue;
                    }
                    let group = expert_group(*id as usize, self.cells.experts) - first;
                    let halves = &self.halves[*place as usize * planes * width..][..planes * width];
                    add(&mut cells[group], &halves[..width]);
                    if planes == 2 {
                        add(&mut cells[4 + group], &halves[width..]);
                    }
                }
                for (cell, shard) in cells.iter_mut().zip(shards.chunks_exact(width)) {
                    add(cell, shard);
                }
                // The tree, all lanes at once: neighbours, then neighbours of those.
                let mut left = count;
                while left > 1 {
                    left /= 2;
                    for cell in 0..left {
                        let (a, b) = (cells[2 * cell], cells[2 * cell + 1]);
                        for i in 0..LANES {
                            cells[cell][i] = a[i] + b[i];
                        }
                    }
                }
                out[start..][..lanes].copy_from_slice(&cells[0][..lanes]);
            }
        }
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
    gate_and_up(&cpu.pool, scratch, (&cpu.scratch.inputs, &x), all, [n, pairs, stack]);

    let (inner, shared_inner) = (a.routed.gate.rows, a.shared.gate.rows);
    let weights = Some(&scratch.weights[..pairs]);
    let gate = &mut scratch.gate[..pairs * inner];
    let up = &mut scratch.up[..pairs * inner];
    activate(&cpu.pool, cpu.isa, [pairs, inner], a.limit, [&mut *gate, up], weights);
    scratch.inner.prepare(&cpu.pool, [routed.down.activation()], gate, [pairs, inner]);
    let gate = &mut scratch.shared_gate[..n * shared_inner];
    let up = &mut scratch.shared_up[..n * shared_inner];
    activate(&cpu.pool, cpu.isa, [n, shared_inner], a.limit, [&mut *gate, up], None);
    scratch.shared_inner.prepare(&cpu.pool, [shared.down.activation()], gate, [n, shared_inner]);
    down(&cpu.pool, scratch, all, [n, pairs, stack, d], half_planes(cells));

    let kernel = Sum {
        cells,
        ids: &ids,
        places: &scratch.places,
        top_k: a.top_k,
        halves: &scratch.halves,
        shards: &scratch.shards,
        out: Pieces::new(&mut out, d),
        width: d,
    };
    launch(&cpu.pool, cpu.isa, parts(&cpu.pool, n, (a.top_k + 8) * d), n, &kernel);
    Ok(())
}

/// The first two products of every chosen expert and of the shared one, in one batch.
fn gate_and_up(
    pool: &Pool,
    scratch: &mut Scratch,
    (inputs, x): (&InputSet, &[f32]),
    [routed, shared]: [&FfnWeights<'_>; 2],
    [n, pairs, stack]: [usize; 3],
) {
    let (inner, shared_inner) = (routed.gate.rows(), shared.gate.rows());
    let Scratch { starts, rows, gate, up, shared_gate, shared_up, .. } = scratch;
    let x = |weights: &Weights| inputs.get(weights.activation(), x, [n, weights.columns()]);
    let of_routed =
        [(routed.gate, gate), (routed.up, up)].into_iter().flat_map(|(weights, out)| {
            let mut rest = grow(out, pairs * inner);
            let (x, rows) = (x(weights), &*rows);
            held_experts(starts, stack).map(move |(expert, range)| {
                let out = rest.split_off_mut(..range.len() * inner).expect("room for all pairs");
                let (picks, out) = (Some(&rows[range]), Output::Tree(out));
                Job { weights, stack: expert, groups: 1, x, picks, out }
            })
        });
    let shared = [(shared.gate, shared_gate), (shared.up, shared_up)];
    let of_shared = shared.into_iter().map(|(weights, out)| {
        let out = Output::Tree(grow(out, n * shared_inner));
        Job { weights, stack: 0, groups: 1, x: x(weights), picks: None, out }
    });
    products(pool, of_routed.chain(of_shared));
}

/// Experts that have pairs, each with the places of those.
fn held_experts(starts: &[usize], stack: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let all = (0..stack).map(|expert| (expert, starts[expert]..starts[expert + 1]));
    all.filter(|(_, range)| !range.is_empty())
}

/// The last product, routed experts in halves (or the one half), the shared one in shards.
fn down(
    pool: &Pool,
    scratch: &mut Scratch,
    [routed, shared]: [&FfnWeights<'_>; 2],
    [n, pairs, stack, d]: [usize; 4],
    planes: usize,
) {
    let Scratch { starts, gate, shared_gate, inner, shared_inner, halves, shards, picks, .. } =
        scratch;
    let places = grow_places(picks, pairs);
    let mut rest = grow(halves, pairs * planes * d);
    let weights = routed.down;
    let x = inner.get(weights.activation(), gate, [pairs, weights.columns()]);
    let of_routed = held_experts(starts, stack).map(|(expert, range)| {
        let out = rest.split_off_mut(..range.len() * planes * d).expect("room for all pairs");
        let out = if planes == 2 { Output::Halves(out) } else { Output::Tree(out) };
        Job { weights, stack: expert, groups: 1, x, picks: Some(&places[range]), out }
    });
    let weights = shared.down;
    let x = shared_inner.get(weights.activation(), shared_gate, [n, weights.columns()]);
    let out = Output::Shards(grow(shards, n * weights.shards() * d));
    let of_shared = Job { weights, stack: 0, groups: 1, x, picks: None, out };
    products(pool, of_routed.chain([of_shared]));
}

/// 0, 1, 2, ...: picks of consecutive pairs.
fn grow_places(places: &mut Vec<u32>, len: usize) -> &[u32] {
    let have = places.len();
    places.extend((have..len).map(|i| u32::try_from(i).expect("checked: pairs fit u32")));
    &places[..len]
}
