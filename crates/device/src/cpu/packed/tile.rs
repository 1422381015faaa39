//! The loops around a tile kernel: tiles, groups, activation rows, shards, and where results go.

use super::TILE_ROWS;
use super::floats;
use super::inputs::{View, Words};
use super::layout::{FIELDS, LINE, Plan, Runs};
use super::panel::{PANEL_ROWS, Panels, Rows, kernel_rows};
use super::simd::{Simd, TileKernel};
use ironstar_quant::{Format, SHARDS, part_blocks};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Where results go: for each input row (or pick) `planes` planes of `rows` values.
#[derive(Clone, Copy)]
pub(crate) struct Sink {
    /// Start of `[at][planes][rows]`.
    pub out: *mut f32,
    /// 1, or as many as there are shards; 2 of eight shards are the halves.
    pub planes: usize,
    /// Rows of a plane.
    pub rows: usize,
}

// SAFETY: parts of a product write different elements (tiles times input rows), see `Part`.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

/// Some tiles of a matrix times some input rows: what one thread does.
///
/// Invariants, checked by `product::Task::new`: `tiles` are tiles of the matrix; every pick is a
/// row of `x`; `x` suits the matrix; `out` has `[at][planes][rows]` elements, and nobody else
/// touches those of these tiles and inputs.
#[derive(Clone)]
pub(crate) struct Part<'a> {
    /// Shape of a tile.
    pub plan: &'a Plan,
    /// Tiles of the matrix from `first_tile` on.
    pub bytes: &'a [u8],
    /// The tile that `bytes` starts with.
    pub first_tile: usize,
    /// The tiles to do.
    pub tiles: Range<usize>,
    /// Rows of the matrix.
    pub rows: usize,
    /// How many of the eight shards of K the columns are: 1, 2, 4 or 8.
    pub shards: usize,
    /// Input row (or pick) j meets the rows of group j mod `groups`.
    pub groups: usize,
    /// Input rows.
    pub x: View<'a>,
    /// Which of them; `None` means all.
    pub picks: Option<&'a [u32]>,
    /// Of each group's inputs, these: at most [`INPUTS`].
    pub inputs: Range<usize>,
    /// The same inputs side by side, if somebody laid them out.
    pub panels: Option<Panels<'a>>,
    /// Results.
    pub sink: Sink,
}

impl Part<'_> {
    /// Number of a group's input in the output, and its row.
    #[inline(always)]
    pub fn input(&self, group: usize, input: usize) -> (usize, usize) {
        let at = input * self.groups + group;
        (at, self.picks.map_or(at, |picks| picks[at] as usize))
    }

    /// The tiles that [`Simd::Two`] does: pairs of tiles with rows of one group.
    fn pairs(&self) -> Range<usize> {
        let Range { start, end } = self.tiles;
        let group_rows = self.rows / self.groups;
        // Groups begin with a pair, or each would have to be looked at.
        let first = if self.groups == 1 { start } else { start.next_multiple_of(2) };
        if first >= end || self.groups > 1 && !group_rows.is_multiple_of(2 * TILE_ROWS) {
            return start..start;
        }
        first..first + (end - first) / 2 * 2
    }
}

/// A weight format whose products are integers inside a block.
pub(crate) trait IntFormat: Rows {
    /// Whether [`Simd::dots_signed`] does its products, so that many rows at once pay.
    const BY_ROWS: bool = false;
    /// Which one.
    const FORMAT: Format;
    /// How its blocks follow each other in a tile.
    const RUNS: Runs = Runs::of(Self::FORMAT);
    /// Cache lines of a tile's first field that a block takes.
    const LINES: usize = Self::RUNS.sizes[0] / LINE;
    /// Vectors that a block unpacks to.
    const UNPACKED: usize;
    /// How far ahead weights are asked for.
    const AHEAD: usize = NEAR;

    /// Advances the accumulators by one block, by the expression of the format's file in
    /// `ironstar_quant`, and asks for the lines that are due. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has `S`; the fields are those of a block of a tile of this format, offset to the
    /// vector's rows; `x` are records whose words lie `STRIDE` words apart.
    unsafe fn step<S: Simd, const R: usize, const STRIDE: usize>(
        fields: [*const u8; FIELDS],
        due: Due,
        x: [*const u8; R],
        acc: &mut [S::F; R],
    );

    /// Does all the work on a block of weights that does not depend on what it meets: vectors of
    /// codes and scales that [`IntFormat::unpacked_step`] reads, for panel after panel, `STEP`
    /// vectors apart: those between are of other tiles. Only for instruction sets with
    /// [`Simd::PANELS`]. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for `step`; `UNPACKED` vectors can be written, `STEP` apart.
    unsafe fn unpack<S: Simd, const STEP: usize>(fields: [*const u8; FIELDS], to: *mut S::I);

    /// [`IntFormat::step`] of an unpacked block. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for `step`; `unpack` wrote the block.
    unsafe fn unpacked_step<S: Simd, const R: usize, const STRIDE: usize>(
        from: *const S::I,
        x: [*const u8; R],
        acc: &mut [S::F; R],
    );
}

/// The codes of the block whose lines are to be asked for meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Due(*const u8);

impl Due {
    /// Asks for part `part` of `PARTS` of the block's `lines` lines, and maybe for some of the next
    /// block's. A format spreads them over its work: a core waits for some sixteen lines at most,
    /// and whatever else is not in its first-level cache waits with them.
    ///
    /// # Safety
    /// The machine has `S`.
    #[inline(always)]
    pub unsafe fn ask<S: Simd, const PARTS: usize>(self, lines: usize, part: usize) {
        let lines = lines.div_ceil(PARTS);
        for line in 0..lines {
            let line = self.0.wrapping_add((part * lines + line) * LINE);
            // SAFETY: the caller's promise; any address may be asked for.
            unsafe { S::prefetch(line) };
        }
    }
}

/// A weight format of plain numbers.
pub(crate) trait FloatFormat {
    /// Bytes of an element.
    const BYTES: usize;

    /// A vector of weights. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has `S`; LANES elements are readable.
    unsafe fn load<S: Simd>(from: *const u8) -> S::F;
}

/// Products of an integer format.
pub(crate) struct IntTiles<'a, F>(pub &'a Part<'a>, pub PhantomData<F>);

/// Products of a float format.
pub(crate) struct FloatTiles<'a, F>(pub &'a Part<'a>, pub PhantomData<F>);

impl<F: IntFormat> TileKernel for IntTiles<'_, F> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let part = self.0;
        let mut pairs = part.tiles.start..part.tiles.start;
        // SAFETY: the machine has `S`; the rest is the invariant of `Part`.
        unsafe {
            if S::PANELS
                && S::Two::LANES > TILE_ROWS
                && let Some(pass) = unpacking::<F>(part, 2)
            {
                pairs = part.pairs();
                each_vector::<S::Two>(part, pairs.clone(), pass, int_pairs::<S, F>);
            }
            let unpacking = if S::PANELS { unpacking::<F>(part, 1) } else { None };
            let pass = unpacking.unwrap_or_else(|| resident(part, 1));
            for tiles in [part.tiles.start..pairs.start, pairs.end..part.tiles.end] {
                each_vector::<S>(part, tiles, pass, int_inputs::<S, F>);
            }
        }
    }
}

impl<F: FloatFormat> TileKernel for FloatTiles<'_, F> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the machine has `S`; the rest is the invariant of `Part`.
        unsafe {
            let part = self.0;
            let mut pairs = part.tiles.start..part.tiles.start;
            if S::Two::LANES > TILE_ROWS && part.inputs.len() >= floats::MANY {
                pairs = part.pairs();
                let pass = resident(part, tiles_of::<S::Two>());
                each_vector::<S::Two>(part, pairs.clone(), pass, floats::inputs::<S::Two, F>);
            }
            for tiles in [part.tiles.start..pairs.start, pairs.end..part.tiles.end] {
                each_vector::<S>(part, tiles, resident(part, 1), floats::inputs::<S, F>);
            }
        }
    }
}

/// Most input rows of a part, so that they stay in the second-level cache while tiles pass by.
pub(crate) const INPUTS: usize = 96;
/// How far ahead weights are asked for, in bytes: more than a core reads while an idle memory
/// answers, since a busy one takes longer. Tiles are one stream: what lies there may be of a later
/// one.
pub(super) const NEAR: usize = 8 << 10;
/// The same for formats of two bits, whose bytes are more work, so that a core by itself looks less
/// far ahead: with one row of 4,096 an EPYC (2026-11-30, `product_speed`) reads Q2_K at 54 GB/s in
/// place of 50, IQ2_XXS at 39 in place of 37; Q8_0 would be read at 43 in place of 46.
pub(super) const FAR: usize = 12 << 10;
/// Bytes of a tile that stay in the first-level cache while input rows pass by.
const RESIDENT: usize = 24 << 10;

/// Vectors that unpacked weights of a pass may take.
const ROOM: usize = RESIDENT / LINE;

/// What a pass over the inputs of a part takes of a tile.
#[derive(Clone, Copy)]
struct Pass {
    /// Shards.
    shards: usize,
    /// Whether their weights are unpacked first.
    unpacks: bool,
}

/// As many shards of some tiles as stay in the first-level cache.
fn resident(part: &Part<'_>, tiles: usize) -> Pass {
    let shards = RESIDENT * part.shards / (part.plan.tile_bytes * tiles).max(1);
    Pass { shards: shards.clamp(1, part.shards), unpacks: false }
}

/// The same for unpacked weights of some tiles at a time, if there is room and more than one panel
/// meets them.
fn unpacking<F: IntFormat>(part: &Part<'_>, tiles: usize) -> Option<Pass> {
    let blocks = part.plan.blocks.div_ceil(part.shards).max(1);
    let shards = (ROOM / (blocks * F::UNPACKED * tiles)).min(part.shards);
    // Equal passes, since each asks for as many shards of the next one as it has.
    let passes = part.shards.div_ceil(shards.max(1));
    let shards = part.shards.div_ceil(passes).min(shards);
    let pays = part.panels.is_some() && part.inputs.len() > PANEL_ROWS && shards > 0;
    pays.then_some(Pass { shards, unpacks: true })
}

/// Most lanes of a vector.
const MOST_LANES: usize = 2 * TILE_ROWS;

/// Shards of the inputs of a part until they are added, the same one of all inputs side by side:
/// few are in use at a time, and those shall lie in few lines.
type Shards<S> = [[MaybeUninit<<S as Simd>::F>; INPUTS]; SHARDS];

/// Where the shards of inputs go, input after input.
///
/// The last pass over the shards of some inputs stores what comes of them. If it is the only one,
/// the next inputs use the same memory, which stays in the first-level cache.
pub(super) struct Gather<'a, S: Simd> {
    all: &'a mut Shards<S>,
    /// The next input of the part.
    pub next: usize,
    /// The shards of a pass.
    pub shards: Range<usize>,
    /// Whether those are all.
    whole: bool,
    /// Whether their weights are unpacked first.
    unpacks: bool,
}

/// One vector of rows of one group of a part.
pub(super) struct Vector<'a> {
    pub part: &'a Part<'a>,
    /// Fields of the (first) tile, at the vector's rows.
    pub fields: [*const u8; FIELDS],
    /// Which group's inputs.
    pub group: usize,
    /// First row of the vector, counted from the group's first; may be before it.
    first: isize,
    /// Which lanes are rows of the group.
    lanes: Range<usize>,
    /// First block of each shard, and the end; not for float formats, whose shards are finer.
    shard_starts: &'a [usize; SHARDS + 1],
}

/// The fields of a vector's blocks, one block after the other.
struct Walk<F> {
    fields: [*const u8; FIELDS],
    /// Blocks of the run from here on.
    left: usize,
    format: PhantomData<F>,
}

impl<F: IntFormat> Walk<F> {
    /// Starts at a block of one of the vector's tiles.
    #[inline(always)]
    fn new(vector: &Vector<'_>, tile: usize, block: usize) -> Self {
        let ([codes, scales], first) = (F::RUNS.start(block), F::RUNS.start(0)[0]);
        let at = vector.part.plan.tile_bytes * tile;
        let fields = [
            vector.fields[0].wrapping_add(at + codes - first),
            vector.fields[1].wrapping_add(at + scales),
        ];
        Walk { fields, left: F::RUNS.count - block % F::RUNS.count, format: PhantomData }
    }

    /// The fields of the block that is next.
    #[inline(always)]
    fn next(&mut self) -> [*const u8; FIELDS] {
        let fields = self.fields;
        self.left -= 1;
        let mut steps = F::RUNS.sizes;
        if self.left == 0 {
            (steps, self.left) = (F::RUNS.steps(), F::RUNS.count);
        }
        self.fields = [fields[0].wrapping_add(steps[0]), fields[1].wrapping_add(steps[1])];
        fields
    }
}

/// Tiles of a vector, if one is more than a part of a tile.
pub(super) const fn tiles_of<S: Simd>() -> usize {
    S::LANES.div_ceil(TILE_ROWS)
}

/// Calls `f` for every vector of rows of some tiles and each group that has rows in it: for as many
/// shards at a time as stay in the first-level cache. What came out is stored by the last call, in
/// [`Gather::done`].
///
/// # Safety
/// The machine has `S`; the invariants of `Part`, whose tiles these are; where vectors are of two
/// tiles, [`Part::pairs`]; `f` takes the shards that it is asked for of every input of the part.
#[inline(always)]
unsafe fn each_vector<S: Simd>(
    part: &Part<'_>,
    tiles: Range<usize>,
    pass: Pass,
    f: unsafe fn(&Vector<'_>, Gather<'_, S>),
) {
    let group_rows = part.rows / part.groups;
    let Pass { shards: step, unpacks } = pass;
    assert!(part.inputs.len() <= INPUTS, "{} inputs in a part", part.inputs.len());
    let mut scratch: Shards<S> = [[MaybeUninit::uninit(); INPUTS]; SHARDS];
    // Once for all tiles: of short rows the borders cost as much as a block.
    let mut shard_starts = [part.plan.blocks; SHARDS + 1];
    for (shard, start) in shard_starts.iter_mut().enumerate().take(part.shards) {
        *start = part_blocks(part.plan.blocks, part.shards, shard).start;
    }
    for tile in tiles.step_by(tiles_of::<S>()) {
        let bytes = &part.bytes[(tile - part.first_tile) * part.plan.tile_bytes..]
            [..tiles_of::<S>() * part.plan.tile_bytes];
        for start in (0..TILE_ROWS).step_by(S::LANES) {
            let fields =
                part.plan.offsets(start).map(|offset| bytes[offset.min(bytes.len())..].as_ptr());
            let rows = tile * TILE_ROWS + start..part.rows.min(tile * TILE_ROWS + start + S::LANES);
            if rows.is_empty() {
                continue;
            }
            // Without groups nothing is divided: that takes as long as a block or two.
            let groups = if part.groups == 1 {
                0..=0
            } else {
                rows.start / group_rows..=(rows.end - 1) / group_rows
            };
            for group in groups {
                let begin = rows.start.max(group * group_rows) - rows.start;
                let end = rows.end.min((group + 1) * group_rows) - rows.start;
                let first = rows.start.cast_signed() - (group * group_rows).cast_signed();
                let lanes = begin..end;
                let shard_starts = &shard_starts;
                let vector = Vector { part, fields, group, first, lanes, shard_starts };
                // SAFETY: the caller's promise; shards come in order.
                unsafe {
                    let (next, whole) = (part.inputs.start, step >= part.shards);
                    for first in (0..part.shards).step_by(step) {
                        let shards = first..(first + step).min(part.shards);
                        f(&vector, Gather { all: &mut scratch, next, shards, whole, unpacks });
                    }
                }
            }
        }
    }
}

impl<S: Simd> Gather<'_, S> {
    /// How many inputs have not been taken.
    #[inline(always)]
    pub fn len(&self, vector: &Vector<'_>) -> usize {
        vector.part.inputs.end - self.next
    }

    /// Where the shards of the next `count` inputs go.
    #[inline(always)]
    pub fn slots(&mut self, vector: &Vector<'_>, count: usize) -> Slots<S> {
        let at = if self.whole { 0 } else { self.next - vector.part.inputs.start };
        assert!(at + count <= INPUTS, "{count} inputs from {at} on");
        let first = self.all.as_mut_ptr().cast::<S::F>().wrapping_add(at);
        Slots { first, count, of_plane: vector.part.shards / vector.part.sink.planes }
    }

    /// Goes on behind the next `count` inputs.
    ///
    /// # Safety
    /// The machine has `S`; the vector is that of this pass; all shards of the pass have been
    /// put into their [`Gather::slots`].
    #[inline(always)]
    pub unsafe fn done(&mut self, vector: &Vector<'_>, count: usize) {
        if self.shards.end == vector.part.shards {
            let slots = self.slots(vector, count);
            // SAFETY: the caller's promise; the passes before have written the other shards.
            unsafe { vector.emit_all::<S>(self.next, &slots) };
        }
        self.next += count;
    }
}

/// Where the shards of some inputs are, and their sums: of two neighbours of the tree in the place
/// of the first one.
pub(super) struct Slots<S: Simd> {
    /// That of shard 0 of the first input.
    first: *mut S::F,
    /// Inputs.
    count: usize,
    /// Shards that a result is the sum of, a power of two.
    of_plane: usize,
}

impl<S: Simd> Slots<S> {
    /// The inputs from one on, of a part of `len`.
    #[inline(always)]
    fn part(&self, first: usize, len: usize) -> Self {
        let start = first.min(self.count);
        let count = len.min(self.count - start);
        Slots { first: self.first.wrapping_add(start), count, of_plane: self.of_plane }
    }

    /// The place of a shard of an input.
    #[inline(always)]
    fn at(&self, shard: usize, input: usize) -> *mut S::F {
        self.first.wrapping_add(shard * INPUTS + input)
    }

    /// Takes a shard of each input, and adds whatever parts of the tree it completes. Shards come
    /// in order.
    ///
    /// # Safety
    /// The machine has `S`; there is such a shard; those before have been taken.
    #[inline(always)]
    pub unsafe fn put<const R: usize>(&self, shard: usize, values: [S::F; R]) {
        let (mut values, mut span) = (values, 1);
        // SAFETY: places of shards and inputs that are there; what is read has been written.
        unsafe {
            while span < self.of_plane && shard & span != 0 {
                for (r, value) in values.iter_mut().enumerate() {
                    if r < self.count {
                        let before = self.at(shard + 1 - 2 * span, r).read();
                        *value = S::add_f32(before, *value);
                    }
                }
                span *= 2;
            }
            for (r, value) in values.iter().enumerate() {
                if r < self.count {
                    self.at(shard + 1 - span, r).write(*value);
                }
            }
        }
    }
}

impl Vector<'_> {
    /// What panel `panel` asks for of a tile while `blocks` are multiplied: its share of what lies
    /// behind them, which is the next vector's tile behind the last one.
    #[inline(always)]
    fn next_pass<S: Simd, F: IntFormat>(
        &self,
        blocks: Range<usize>,
        panel: usize,
        tile: usize,
    ) -> Next {
        let (plan, panels) = (self.part.plan, self.part.inputs.len().div_ceil(PANEL_ROWS));
        let of_block = F::RUNS.sizes[0] + F::RUNS.sizes[1];
        let all = (blocks.len() * of_block).div_ceil(LINE);
        let share = all.div_ceil(panels);
        let (from, lines) = (panel * share, share.min(all.saturating_sub(panel * share)));
        let last = blocks.end == plan.blocks;
        let behind = if last { tiles_of::<S>() * plan.tile_bytes } else { blocks.end * of_block };
        let first = self.fields[0].wrapping_sub(F::RUNS.start(0)[0]);
        let at = first.wrapping_add(tile * plan.tile_bytes + behind + from * LINE);
        // Of short rows some shards have no blocks.
        let count = blocks.len().max(1);
        Next { at, each: lines / count, more: lines % count }
    }

    /// Number of the group's input `input` in the output, and its row.
    #[inline(always)]
    pub fn input(&self, input: usize) -> (usize, usize) {
        self.part.input(self.group, input)
    }

    /// Asks for the memory that results of some inputs from `first` on go to: each of them takes a
    /// line of its own, which a store would have to wait for. Never inlined: the compiler would
    /// prepare the loops of all callers for every tile, even for those that have no panels.
    ///
    /// # Safety
    /// The machine has `S`.
    #[inline(never)]
    pub unsafe fn expect<S: Simd>(&self, first: usize, count: usize) {
        let (sink, groups) = (&self.part.sink, self.part.groups);
        for input in first..first + count {
            let at = (input * groups + self.group) * sink.planes;
            for plane in at..at + sink.planes {
                // The line before has come with the rows before.
                for lanes in 1..=tiles_of::<S>() {
                    let last = lanes * S::LANES / tiles_of::<S>() - 1;
                    let to = sink.out.wrapping_add(self.row(plane * sink.rows, last));
                    // SAFETY: the caller's promise; any address may be asked for.
                    unsafe { S::prefetch_far(to.cast_const().cast()) }
                }
            }
        }
    }

    /// Stores what came of the shards of some inputs from `first` on.
    ///
    /// # Safety
    /// The machine has `S`; the invariants of `Part`; all shards have been taken.
    #[inline(always)]
    unsafe fn emit_all<S: Simd>(&self, first: usize, slots: &Slots<S>) {
        let planes = self.part.sink.planes;
        // By number: the steps of a zipped iterator stay calls here.
        let mut input = 0;
        while input < slots.count {
            let (at, mut plane) = ((first + input) * self.part.groups + self.group, 0);
            while plane < planes {
                // SAFETY: the machine has `S`; the sink has the plane; its sum is there.
                unsafe { self.put::<S>(at, plane, slots.at(plane * slots.of_plane, input).read()) }
                plane += 1;
            }
            input += 1;
        }
    }

    /// Stores the lanes of one plane.
    ///
    /// # Safety
    /// The machine has `S`; the sink has the plane; the invariants of `Part`.
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, at: usize, plane: usize, value: S::F) {
        let sink = &self.part.sink;
        let plane = (at * sink.planes + plane) * sink.rows;
        if self.lanes.len() == S::LANES {
            // SAFETY: all lanes are rows of the plane, LANES values from the first on.
            unsafe { S::store(sink.out.add(self.row(plane, 0)), value) }
        } else {
            let mut values = [0f32; MOST_LANES];
            // SAFETY: a vector has at most MOST_LANES lanes; the caller's promise.
            unsafe {
                S::store(values.as_mut_ptr(), value);
                self.put_lanes(plane, &values);
            }
        }
    }

    /// Where a lane's value of a plane goes that starts at `plane`.
    #[inline(always)]
    fn row(&self, plane: usize, lane: usize) -> usize {
        plane.wrapping_add(self.first.wrapping_add_unsigned(lane).cast_unsigned())
    }

    /// Stores the lanes that are rows of the group. Never inlined: the compiler would prepare this
    /// loop, for every place that it is copied to, ahead of every tile.
    ///
    /// # Safety
    /// The sink has the plane; the invariants of `Part`.
    #[cold]
    #[inline(never)]
    unsafe fn put_lanes(&self, plane: usize, values: &[f32; MOST_LANES]) {
        for lane in self.lanes.clone() {
            // SAFETY: the lanes are rows of the plane.
            unsafe { self.part.sink.out.add(self.row(plane, lane)).write(values[lane]) }
        }
    }
}

/// Some shards of one vector of rows times all its inputs, several inputs at a time.
///
/// # Safety
/// The machine has `S`; the vector is one of a part, which has its invariants.
#[inline(always)]
unsafe fn int_inputs<S: Simd, F: IntFormat>(vector: &Vector<'_>, mut to: Gather<'_, S>) {
    if S::PANELS {
        if let Some(panels) = &vector.part.panels {
            // SAFETY: the caller's promise; the panels are those of the part's inputs.
            return unsafe { int_panels::<S, F>(vector, panels, to) };
        }
        // A small part: kernels for a few rows do.
        // SAFETY: the caller's promise; inputs stay in the part's range.
        unsafe {
            while to.len(vector) >= 3 {
                int_rows::<S, F, 4>(vector, &mut to);
            }
        }
    }
    // SAFETY: the caller's promise; inputs stay in the part's range.
    unsafe {
        while S::INT_ROWS >= 16 && F::BY_ROWS && to.len(vector) >= 16 {
            int_rows::<S, F, 16>(vector, &mut to);
        }
        // What is left over is filled up to the next kernel: a weight is decoded once for all of
        // them, and that costs more than a row or two.
        while S::INT_ROWS >= 8 && !S::PANELS && to.len(vector) >= 7 {
            int_rows::<S, F, 8>(vector, &mut to);
        }
        if S::INT_ROWS >= 8 && !S::PANELS && to.len(vector) >= 5 {
            int_rows::<S, F, 6>(vector, &mut to);
        }
        while !S::PANELS && to.len(vector) >= 3 {
            int_rows::<S, F, 4>(vector, &mut to);
        }
        if to.len(vector) == 2 {
            int_rows::<S, F, 2>(vector, &mut to);
        }
        if to.len(vector) > 0 {
            int_rows::<S, F, 1>(vector, &mut to);
        }
    }
}

/// The next `R` inputs, or all where there are fewer: then the last one is done again in the places
/// that are left, and nothing is kept of that.
///
/// # Safety
/// As for [`int_inputs`].
#[inline(always)]
unsafe fn int_rows<S: Simd, F: IntFormat, const R: usize>(
    vector: &Vector<'_>,
    to: &mut Gather<'_, S>,
) {
    let blocks = vector.part.plan.blocks;
    let (count, shards) = (to.len(vector).min(R), to.shards.clone());
    let start = to.next;
    let rows: [_; R] = std::array::from_fn(|r| {
        let (_, row) = vector.input(start + r.min(count - 1));
        F::records(&vector.part.x, row)[..blocks].as_ptr().cast()
    });
    let (record, first) = (size_of::<F::Record>(), start == vector.part.inputs.start);
    // SAFETY: the machine has `S`; a row has `blocks` records by the slices above; all shards of
    // the pass are written.
    unsafe {
        let slots = to.slots(vector, count);
        int_shards::<S, F, R, 1>(vector, rows, record, first, shards, slots);
        to.done(vector, count);
    }
}

/// All inputs of a part from their panels.
///
/// # Safety
/// As for [`int_inputs`]; `panels` hold the part's inputs.
#[inline(always)]
unsafe fn int_panels<S: Simd, F: IntFormat>(
    vector: &Vector<'_>,
    panels: &Panels<'_>,
    mut to: Gather<'_, S>,
) {
    let from = panels.of_group(vector.group);
    let blocks = vector.shard_starts[to.shards.start]..vector.shard_starts[to.shards.end];
    if !to.unpacks {
        // SAFETY: the caller's promise.
        return unsafe { each_panel::<S, F, false>(vector, from, std::ptr::null(), &mut to) };
    }
    let mut room = [const { MaybeUninit::<S::I>::uninit() }; ROOM];
    // SAFETY: the caller's promise.
    unsafe {
        let room = unpack::<S, F, 1>(vector, blocks, &mut room);
        each_panel::<S, F, true>(vector, from, room, &mut to);
    }
}

/// [`int_panels`] of two tiles, unpacked side by side.
///
/// # Safety
/// As for [`int_panels`]; the machine has `S::Two`; the vector is of two tiles.
#[inline(always)]
unsafe fn int_pairs<S: Simd, F: IntFormat>(vector: &Vector<'_>, mut to: Gather<'_, S::Two>) {
    let panels = vector.part.panels.as_ref().expect("weights are unpacked for panels");
    let from = panels.of_group(vector.group);
    let blocks = vector.shard_starts[to.shards.start]..vector.shard_starts[to.shards.end];
    let mut room = [const { MaybeUninit::<S::I>::uninit() }; ROOM];
    // SAFETY: the caller's promise; a vector of two tiles is one of each, side by side.
    unsafe {
        let room = unpack::<S, F, 2>(vector, blocks, &mut room).cast();
        each_panel::<S::Two, F, true>(vector, from, room, &mut to);
    }
}

/// Unpacks blocks of some tiles: vector by vector, of one tile after the other.
///
/// # Safety
/// The machine has `S`; the vector is of so many tiles.
#[inline(always)]
unsafe fn unpack<S: Simd, F: IntFormat, const TILES: usize>(
    vector: &Vector<'_>,
    blocks: Range<usize>,
    room: &mut [MaybeUninit<S::I>; ROOM],
) -> *const S::I {
    let room = room[..blocks.len() * F::UNPACKED * TILES].as_mut_ptr().cast::<S::I>();
    for tile in 0..TILES {
        let mut walk = Walk::<F>::new(vector, tile, blocks.start);
        for at in 0..blocks.len() {
            // SAFETY: the caller's promise; the slice has as many vectors as blocks unpack to.
            unsafe { F::unpack::<S, TILES>(walk.next(), room.add(at * F::UNPACKED * TILES + tile)) }
        }
    }
    room
}

/// The panels of [`int_panels`], times unpacked weights (if `U`) or those of the tile.
///
/// # Safety
/// As for [`int_panels`]; `room` has the unpacked blocks of the shards.
#[inline(always)]
unsafe fn each_panel<S: Simd, F: IntFormat, const U: bool>(
    vector: &Vector<'_>,
    from: &[u32],
    room: *const S::I,
    to: &mut Gather<'_, S>,
) {
    let mut from = from;
    loop {
        let count = to.len(vector).min(PANEL_ROWS);
        if count == 0 {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            match (kernel_rows(count), tiles_of::<S>()) {
                (2, _) => int_panel::<S, F, 2, 2, U>(vector, from, count, room, to),
                (3, _) => int_panel::<S, F, 3, 3, U>(vector, from, count, room, to),
                (4, _) => int_panel::<S, F, 4, 4, U>(vector, from, count, room, to),
                (6, _) => int_panel::<S, F, 6, 6, U>(vector, from, count, room, to),
                (8, 1) => int_panel::<S, F, 8, 8, U>(vector, from, count, room, to),
                (8, _) => int_panel::<S, F, 8, 4, U>(vector, from, count, room, to),
                (10, 1) => int_panel::<S, F, 10, 10, U>(vector, from, count, room, to),
                (10, _) => int_panel::<S, F, 10, 5, U>(vector, from, count, room, to),
                (_, 1) => {
                    int_panel::<S, F, PANEL_ROWS, PANEL_ROWS, U>(vector, from, count, room, to)
                }
                _ => int_panel::<S, F, PANEL_ROWS, 6, U>(vector, from, count, room, to),
            }
        }
        if to.len(vector) > 0 {
            from = &from[PANEL_ROWS * vector.part.plan.blocks * F::Record::WORDS..];
        }
    }
}

/// One panel of `R` rows, the first `count` of which count; unpacked weights meet `H` at a time.
///
/// # Safety
/// As for [`each_panel`].
#[inline(always)]
unsafe fn int_panel<S: Simd, F: IntFormat, const R: usize, const H: usize, const U: bool>(
    vector: &Vector<'_>,
    from: &[u32],
    count: usize,
    room: *const S::I,
    to: &mut Gather<'_, S>,
) {
    let record = F::Record::WORDS * 4 * R;
    let from = from[..vector.part.plan.blocks * F::Record::WORDS * R].as_ptr().cast::<u8>();
    let (shards, inputs) = (to.shards.clone(), &vector.part.inputs);
    let (first, panel) = (to.next == inputs.start, (to.next - inputs.start) / PANEL_ROWS);
    // SAFETY: the machine has `S`; the panel has all blocks by the slice above; all shards of the
    // pass are written.
    unsafe {
        if to.shards.end == vector.part.shards {
            vector.expect::<S>(to.next, count);
        }
        let slots = to.slots(vector, count);
        if U {
            for part in 0..R / H {
                let rows = columns::<H>(from, part * H);
                let slots = slots.part(part * H, H);
                // Each part asks for another tile, if there are as many.
                let asks = (panel, part);
                unpacked_shards::<S, F, H, R>(
                    vector,
                    rows,
                    record,
                    asks,
                    shards.clone(),
                    room,
                    slots,
                );
            }
        } else {
            int_shards::<S, F, R, R>(vector, columns(from, 0), record, first, shards, slots);
        }
        to.done(vector, count);
    }
}

/// Rows of a panel from one on.
#[inline(always)]
fn columns<const R: usize>(panel: *const u8, first: usize) -> [*const u8; R] {
    let mut rows = [panel; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = panel.wrapping_add(4 * (first + r));
    }
    rows
}

/// [`int_shards`] of unpacked weights. Asks for a share of the weights that the next pass unpacks:
/// that of a panel, of a tile.
///
/// # Safety
/// As for [`int_shards`]; `room` has the unpacked blocks of the shards.
#[inline(always)]
unsafe fn unpacked_shards<S: Simd, F: IntFormat, const R: usize, const STRIDE: usize>(
    vector: &Vector<'_>,
    rows: [*const u8; R],
    record: usize,
    (panel, tile): (usize, usize),
    shards: Range<usize>,
    room: *const S::I,
    to: Slots<S>,
) {
    let (start, end) = (vector.shard_starts[shards.start], vector.shard_starts[shards.end]);
    let mut next = vector.next_pass::<S, F>(start..end, panel, tile);
    // SAFETY: the caller's promise.
    unsafe {
        next.ask::<S>(next.more);
        for shard in shards {
            let mut acc = [S::zero(); R];
            for block in vector.shard_starts[shard]..vector.shard_starts[shard + 1] {
                next.ask::<S>(next.each);
                let mut x = rows;
                for x in &mut x {
                    *x = x.add(block * record);
                }
                let from = room.add((block - start) * F::UNPACKED);
                F::unpacked_step::<S, R, STRIDE>(from, x, &mut acc);
            }
            to.put(shard, acc);
        }
    }
}

/// What a panel asks for of the weights of the next pass.
struct Next {
    /// The next line.
    at: *const u8,
    /// Lines beside each block.
    each: usize,
    /// Lines before the first one.
    more: usize,
}

impl Next {
    /// Asks for some lines.
    ///
    /// # Safety
    /// The machine has `S`.
    #[inline(always)]
    unsafe fn ask<S: Simd>(&mut self, lines: usize) {
        for _ in 0..lines {
            // SAFETY: the caller's promise; any address may be asked for.
            unsafe { S::prefetch_far(self.at) }
            self.at = self.at.wrapping_add(LINE);
        }
    }
}

/// Some shards of `R` rows whose blocks lie `record` bytes apart; the first of them count. Asks for
/// weights ahead if these rows are the first to meet them.
///
/// # Safety
/// The machine has `S`; the vector is one of a part, which has its invariants; the rows have as
/// many blocks as the tile, with words `STRIDE` words apart.
#[inline(always)]
unsafe fn int_shards<S: Simd, F: IntFormat, const R: usize, const STRIDE: usize>(
    vector: &Vector<'_>,
    rows: [*const u8; R],
    record: usize,
    first: bool,
    shards: Range<usize>,
    to: Slots<S>,
) {
    let mut walk = Walk::<F>::new(vector, 0, vector.shard_starts[shards.start]);
    // Later rows ask for what is there.
    let ahead = if first { F::AHEAD } else { 0 };
    // SAFETY: the caller's promise.
    unsafe {
        for shard in shards {
            let mut acc = [S::zero(); R];
            for block in vector.shard_starts[shard]..vector.shard_starts[shard + 1] {
                let fields = walk.next();
                let due = Due(fields[0].wrapping_add(ahead));
                S::prefetch(fields[1].wrapping_add(ahead));
                let mut x = rows;
                for x in &mut x {
                    *x = x.add(block * record);
                }
                F::step::<S, R, STRIDE>(fields, due, x, &mut acc);
            }
            to.put(shard, acc);
        }
    }
}
