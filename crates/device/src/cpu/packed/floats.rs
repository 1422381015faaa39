//! Float formats: one vector of rows times the inputs of a part.

use super::TILE_ROWS;
use super::layout::LINE;
use super::panel::{PANEL_ROWS, kernel_rows};
use super::simd::Simd;
use super::tile::{FloatFormat, Gather, Vector};
use ironstar_quant::part_blocks;
use std::ops::Range;

/// How far ahead weights are asked for, in bytes: with so little work beside a line farther is no
/// faster.
const AHEAD: usize = 4096;

/// Some shards of one vector of rows times all its inputs, several inputs at a time.
///
/// # Safety
/// As for `int_inputs` of `tile.rs`.
#[inline(always)]
pub(super) unsafe fn inputs<S: Simd, F: FloatFormat>(vector: &Vector<'_>, mut to: Gather<'_, S>) {
    // SAFETY: the caller's promise; inputs stay in the part's range; the panels are theirs.
    unsafe {
        if S::PANELS
            && let Some(panels) = &vector.part.panels
        {
            return float_panels::<S, F>(vector, panels.of_group(vector.group), to);
        }
        while S::FLOAT_ROWS >= 6 && to.len(vector) >= 6 {
            float_rows::<S, F, 6, 4>(vector, &mut to);
        }
        while S::FLOAT_ROWS >= 3 && to.len(vector) >= 3 {
            float_rows::<S, F, 3, 8>(vector, &mut to);
        }
        while S::FLOAT_ROWS >= 2 && to.len(vector) >= 2 {
            float_rows::<S, F, 2, 8>(vector, &mut to);
        }
        while to.len(vector) > 0 {
            float_rows::<S, F, 1, 8>(vector, &mut to);
        }
    }
}

/// All inputs of a part from their panels.
///
/// # Safety
/// As for [`inputs`]; `from` are the panels of the vector's group.
#[inline(always)]
unsafe fn float_panels<S: Simd, F: FloatFormat>(
    vector: &Vector<'_>,
    mut from: &[u32],
    mut to: Gather<'_, S>,
) {
    let columns = vector.part.plan.blocks;
    loop {
        let count = to.len(vector).min(PANEL_ROWS);
        if count == 0 {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            match kernel_rows(count) {
                2 => float_panel::<S, F, 2, 8>(vector, from, count, &mut to),
                3 => float_panel::<S, F, 3, 8>(vector, from, count, &mut to),
                4 => float_panel::<S, F, 4, 4>(vector, from, count, &mut to),
                6 => float_panel::<S, F, 6, 4>(vector, from, count, &mut to),
                8 => float_panel::<S, F, 8, 2>(vector, from, count, &mut to),
                10 => float_panel::<S, F, 10, 2>(vector, from, count, &mut to),
                _ => float_panel::<S, F, PANEL_ROWS, 2>(vector, from, count, &mut to),
            }
        }
        if to.len(vector) > 0 {
            from = &from[PANEL_ROWS * columns..];
        }
    }
}

/// One panel of `R` rows, the first `count` of which count, `L` accumulators of each at a time.
///
/// # Safety
/// As for [`float_panels`].
#[inline(always)]
unsafe fn float_panel<S: Simd, F: FloatFormat, const R: usize, const L: usize>(
    vector: &Vector<'_>,
    from: &[u32],
    count: usize,
    to: &mut Gather<'_, S>,
) {
    let from = from[..vector.part.plan.blocks * R].as_ptr().cast::<f32>();
    let mut values = [from; R];
    for (r, values) in values.iter_mut().enumerate() {
        *values = from.wrapping_add(r);
    }
    // SAFETY: the caller's promise; the panel has all columns by the slice above.
    unsafe { float_shards::<S, F, R, L, R>(vector, &values, count, to) }
}

/// Elements of a shard: float shards are cut on 32 elements, the last may be short.
fn shard_elements(columns: usize, shards: usize, shard: usize) -> Range<usize> {
    let units = part_blocks(columns.div_ceil(32), shards, shard);
    (units.start * 32).min(columns)..(units.end * 32).min(columns)
}

/// The next `R` inputs.
///
/// # Safety
/// As for [`inputs`]; there are so many.
#[inline(always)]
unsafe fn float_rows<S: Simd, F: FloatFormat, const R: usize, const L: usize>(
    vector: &Vector<'_>,
    to: &mut Gather<'_, S>,
) {
    let (x, start) = (vector.part.x, to.next);
    let values: [_; R] = std::array::from_fn(|r| x.values(vector.input(start + r).1).as_ptr());
    // SAFETY: the caller's promise; a row has as many values as the tile has columns.
    unsafe { float_shards::<S, F, R, L, 1>(vector, &values, R, to) }
}

/// The next `count` of `R` inputs, whose elements lie `STRIDE` apart: an accumulator for each
/// element index mod 8, `L` of the eight at a time: the fewer there are, the more inputs meet a
/// loaded weight. Their tree adds neighbours first, so a pass of two or four of them is done when
/// it ends.
///
/// # Safety
/// As for [`inputs`]; `values` have all columns.
#[inline(always)]
unsafe fn float_shards<
    S: Simd,
    F: FloatFormat,
    const R: usize,
    const L: usize,
    const STRIDE: usize,
>(
    vector: &Vector<'_>,
    values: &[*const f32; R],
    count: usize,
    to: &mut Gather<'_, S>,
) {
    let columns = vector.part.x.columns();
    let (first, shards) = (to.next == vector.part.inputs.start, to.shards.clone());
    // SAFETY: the machine has `S`; elements are below `columns`, as many as values and tile have;
    // all shards of the pass are written.
    unsafe {
        if shards.end == vector.part.shards {
            vector.expect::<S>(to.next, count);
        }
        let slots = to.slots(vector, count);
        for shard in shards {
            let elements = shard_elements(columns, vector.part.shards, shard);
            let sums = float_shard::<S, F, R, L, STRIDE>(vector, values, (elements, first));
            slots.put(shard, sums);
        }
        to.done(vector, count);
    }
}

/// One shard of [`float_shards`], which asks for weights ahead if these rows are the first.
///
/// # Safety
/// The machine has `S`; the elements are in the tile and in the values.
#[inline(always)]
unsafe fn float_shard<
    S: Simd,
    F: FloatFormat,
    const R: usize,
    const L: usize,
    const STRIDE: usize,
>(
    vector: &Vector<'_>,
    values: &[*const f32; R],
    (elements, first): (Range<usize>, bool),
) -> [S::F; R] {
    // SAFETY: the caller's promise.
    unsafe {
        // Sums of two neighbouring accumulators, of four of them in the first one's place.
        let mut pairs = [[S::zero(); 4]; R];
        for lanes in 0..8 / L {
            let mut acc = [[S::zero(); L]; R];
            let mut k = elements.start + lanes * L;
            while k + L <= elements.end {
                if first && lanes == 0 {
                    let weights = vector.fields[0].wrapping_add(k * TILE_ROWS * F::BYTES + AHEAD);
                    for line in 0..8 * TILE_ROWS * F::BYTES / LINE {
                        S::prefetch(weights.wrapping_add(line * LINE));
                    }
                }
                for lane in 0..L {
                    float_step::<S, F, R, L, STRIDE>(vector, values, k + lane, lane, &mut acc);
                }
                k += 8;
            }
            for lane in 0..L {
                if k + lane < elements.end {
                    float_step::<S, F, R, L, STRIDE>(vector, values, k + lane, lane, &mut acc);
                }
            }
            for (pairs, acc) in pairs.iter_mut().zip(&acc) {
                for pair in 0..L / 2 {
                    pairs[lanes * L / 2 + pair] = S::add_f32(acc[2 * pair], acc[2 * pair + 1]);
                }
            }
        }
        let mut sums = [S::zero(); R];
        for r in 0..R {
            let p = pairs[r];
            // Written out: a closure would not have the instruction set.
            let (low, high) = (S::add_f32(p[0], p[1]), S::add_f32(p[2], p[3]));
            sums[r] = S::add_f32(low, high);
        }
        sums
    }
}

/// Element `k` of `R` inputs.
///
/// # Safety
/// The machine has `S`; element `k` is in the tile and in the values.
#[inline(always)]
unsafe fn float_step<
    S: Simd,
    F: FloatFormat,
    const R: usize,
    const L: usize,
    const STRIDE: usize,
>(
    vector: &Vector<'_>,
    values: &[*const f32; R],
    k: usize,
    lane: usize,
    acc: &mut [[S::F; L]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let w = F::load::<S>(vector.fields[0].add(k * TILE_ROWS * F::BYTES));
        for (acc, values) in acc.iter_mut().zip(values) {
            acc[lane] = S::fma(w, S::splat_f32(*values.add(k * STRIDE)), acc[lane]);
        }
    }
}
