//! Float formats: one vector of rows times the inputs of a part.
//!
//! Inputs stay where they are: a row is one stream, and with two tiles at a time an element meets
//! thirty-two output rows once it is in a register, so panels would save less than they cost.

use super::TILE_ROWS;
use super::layout::LINE;
use super::simd::Simd;
use super::tile::{FloatFormat, Gather, Vector, tiles_of};
use ironstar_quant::part_blocks;
use std::ops::Range;

/// How far ahead weights are asked for, in bytes: with so little work beside a line farther is no
/// faster.
const AHEAD: usize = 4096;
/// The same for each of many inputs, in elements.
const INPUT_AHEAD: usize = 256;
/// Inputs that are many: there is a turn for either of two tiles.
pub(super) const MANY: usize = 12;

/// Some shards of one vector of rows times all its inputs, several inputs at a time.
///
/// # Safety
/// As for `int_inputs` of `tile.rs`.
#[inline(always)]
pub(super) unsafe fn inputs<S: Simd, F: FloatFormat>(vector: &Vector<'_>, mut to: Gather<'_, S>) {
    // SAFETY: the caller's promise; inputs stay in the part's range.
    unsafe {
        if tiles_of::<S>() > 1 {
            while to.len(vector) >= 6 {
                float_rows::<S, F, 6, 2>(vector, &mut to);
            }
            while to.len(vector) >= 3 {
                float_rows::<S, F, 3, 4>(vector, &mut to);
            }
            while to.len(vector) > 0 {
                float_rows::<S, F, 1, 8>(vector, &mut to);
            }
            return;
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

/// Elements of a shard: float shards are cut on 32 elements, the last may be short.
fn shard_elements(columns: usize, shards: usize, shard: usize) -> Range<usize> {
    let units = part_blocks(columns.div_ceil(32), shards, shard);
    (units.start * 32).min(columns)..(units.end * 32).min(columns)
}

/// What is asked for beside every eight elements.
struct Ahead {
    /// Whether weights that come shortly; else a share of those of the next pass over a tile.
    soon: bool,
    /// How far behind these weights that share lies.
    bytes: usize,
    /// Which of the lines of eight elements it is.
    lines: Range<usize>,
}

impl Ahead {
    /// Lines of eight elements of weights.
    const fn lines<F: FloatFormat>() -> usize {
        8 * TILE_ROWS * F::BYTES / LINE
    }

    /// For the `R` inputs from `start` on. One tile's weights are asked for by the first inputs
    /// that meet them, shortly before; with two tiles the many inputs share the next pass, each
    /// time lines of the other tile.
    #[inline(always)]
    fn of<S: Simd, F: FloatFormat, const R: usize>(
        vector: &Vector<'_>,
        shards: &Range<usize>,
        start: usize,
    ) -> Self {
        let (part, at) = (vector.part, start - vector.part.inputs.start);
        let tiles = tiles_of::<S>();
        if tiles == 1 {
            return Ahead { soon: at == 0, bytes: AHEAD, lines: 0..0 };
        }
        let (all, turn) = (Self::lines::<F>(), at / R);
        let share = all.div_ceil(part.inputs.len().div_ceil(R * tiles));
        let lines = (turn / tiles * share).min(all)..((turn / tiles + 1) * share).min(all);
        let first = |shard| {
            shard_elements(part.x.columns(), part.shards, shard).start * TILE_ROWS * F::BYTES
        };
        let next = if shards.end == part.shards {
            tiles * part.plan.tile_bytes
        } else {
            first(shards.end)
        };
        let bytes = next - first(shards.start) + turn % tiles * part.plan.tile_bytes;
        Ahead { soon: false, bytes, lines }
    }

    /// Asks for what is due beside the weights of element `k`, and for what comes of inputs if
    /// there are many.
    ///
    /// # Safety
    /// The machine has `S`.
    #[inline(always)]
    unsafe fn ask<S: Simd, F: FloatFormat>(
        &self,
        weights: *const u8,
        inputs: &[*const f32],
        k: usize,
    ) {
        // SAFETY: the caller's promise; any address may be asked for.
        unsafe {
            if self.soon {
                for line in 0..Self::lines::<F>() {
                    S::prefetch(weights.wrapping_add(self.bytes + line * LINE));
                }
            }
            for line in self.lines.clone() {
                S::prefetch_far(weights.wrapping_add(self.bytes + line * LINE));
            }
            if tiles_of::<S>() > 1 {
                for input in inputs {
                    S::prefetch(input.wrapping_add(k + INPUT_AHEAD).cast());
                }
            }
        }
    }
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
    let (x, start, shards) = (vector.part.x, to.next, to.shards.clone());
    let values: [_; R] = std::array::from_fn(|r| x.values(vector.input(start + r).1).as_ptr());
    let ahead = Ahead::of::<S, F, R>(vector, &shards, start);
    // SAFETY: the machine has `S`; elements are below `columns`, as many as values and tile have;
    // all shards of the pass are written.
    unsafe {
        if shards.end == vector.part.shards {
            vector.expect::<S>(start, R);
        }
        let slots = to.slots(vector, R);
        for shard in shards {
            let elements = shard_elements(x.columns(), vector.part.shards, shard);
            slots.put(shard, float_shard::<S, F, R, L>(vector, &values, elements, &ahead));
        }
        to.done(vector, R);
    }
}

/// One shard of `R` inputs: an accumulator for each element index mod 8, `L` of the eight at a
/// time: the fewer there are, the more inputs meet a loaded weight. Their tree adds neighbours
/// first, so a pass of two or four of them is done when it ends.
///
/// # Safety
/// The machine has `S`; the elements are in the tile and in the values.
#[inline(always)]
unsafe fn float_shard<S: Simd, F: FloatFormat, const R: usize, const L: usize>(
    vector: &Vector<'_>,
    values: &[*const f32; R],
    elements: Range<usize>,
    ahead: &Ahead,
) -> [S::F; R] {
    // SAFETY: the caller's promise.
    unsafe {
        // Sums of two neighbouring accumulators, of four of them in the first one's place.
        let mut pairs = [[S::zero(); 4]; R];
        for lanes in 0..8 / L {
            let mut acc = [[S::zero(); L]; R];
            let mut k = elements.start + lanes * L;
            while k + L <= elements.end {
                if lanes == 0 {
                    let weights = vector.fields[0].wrapping_add(k * TILE_ROWS * F::BYTES);
                    ahead.ask::<S, F>(weights, values, k);
                }
                for lane in 0..L {
                    float_step::<S, F, R, L>(vector, values, k + lane, lane, &mut acc);
                }
                k += 8;
            }
            for lane in 0..L {
                if k + lane < elements.end {
                    float_step::<S, F, R, L>(vector, values, k + lane, lane, &mut acc);
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
unsafe fn float_step<S: Simd, F: FloatFormat, const R: usize, const L: usize>(
    vector: &Vector<'_>,
    values: &[*const f32; R],
    k: usize,
    lane: usize,
    acc: &mut [[S::F; L]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let weights = vector.fields[0].add(k * TILE_ROWS * F::BYTES);
        let w = S::weights::<F>(weights, vector.part.plan.tile_bytes);
        for (acc, values) in acc.iter_mut().zip(values) {
            acc[lane] = S::fma(w, S::splat_f32(*values.add(k)), acc[lane]);
        }
    }
}
