//! Matrix products: weights as they are resident, and batches of products as one parallel region.
//!
//! A result never depends on how a product was cut: each output value is computed whole by one
//! thread, in the order of DESIGN 5.

use super::CpuConfig;
use super::isa::Isa;
use super::packed::layout::{Lines, Plan};
use super::packed::panel::PANEL_ROWS;
use super::packed::tile::{INPUTS, Part, Sink};
use super::packed::{Kernel, TILE_ROWS, kernel};
use super::pool::Pool;
use super::share::Pieces;
use crate::{Error, MatrixSource, SharedBytes};
use ironstar_quant::{Activation, Format, Int8Blocks, Row, SHARDS, dot_part, subtree, tree4};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

pub(crate) use super::packed::inputs::{Inputs, Open, View};

/// One matrix or a stack of equal ones.
pub(crate) struct Weights {
    format: Format,
    rows: usize,
    columns: usize,
    row_bytes: usize,
    /// How many of the eight shards of K the columns are.
    shards: usize,
    activation: Activation,
    layout: Layout,
}

/// Which bytes were packed as what: a matrix that comes with the same [`SharedBytes`] as an earlier
/// one shares its tiles.
///
/// The handle is what makes two sources the same. An address alone would not: other bytes can come
/// to lie there.
#[derive(Default)]
pub(crate) struct Packed {
    known: HashMap<(*const (), Shape), (Source, Weak<Lines>)>,
}

type Source = Weak<dyn AsRef<[u8]> + Send + Sync>;

// SAFETY: the addresses are compared and never followed.
unsafe impl Send for Packed {}

/// Shape of a stack of matrices.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    format: Format,
    stack: usize,
    rows: usize,
    columns: usize,
}

impl Packed {
    fn find(&self, bytes: &SharedBytes, shape: Shape) -> Option<Arc<Lines>> {
        let (source, lines) = self.known.get(&(Arc::as_ptr(bytes).cast(), shape))?;
        // While a weak handle lives its address is not given to anything else.
        source.upgrade()?;
        lines.upgrade()
    }

    fn keep(&mut self, bytes: &SharedBytes, shape: Shape, lines: &Arc<Lines>) {
        self.known.retain(|_, (source, _)| source.strong_count() > 0);
        let value = (Arc::downgrade(bytes), Arc::downgrade(lines));
        self.known.insert((Arc::as_ptr(bytes).cast(), shape), value);
    }
}

/// How weights lie in memory.
enum Layout {
    /// As in the file and in place, multiplied by the scalar dots.
    File(SharedBytes),
    /// Copied into tiles (`packed`): the bytes of the file, permuted.
    Tiles { kernel: Kernel, plan: Plan, lines: Arc<Lines> },
    /// As in the file and in place; a tile is decoded to floats whenever it is used. For checking.
    Decoded { kernel: Kernel, plan: Plan, bytes: SharedBytes },
}

/// Where a product goes: for each input row (or pick), `matrix.rows / groups` values or as many
/// planes.
pub(crate) enum Output<'a> {
    /// `[picks][rows]`: the tree over all shards that the matrix has.
    Tree(&'a mut [f32]),
    /// `[picks][2][rows]`: the trees of shards 0 to 3 and 4 to 7, of a matrix that has all.
    Halves(&'a mut [f32]),
    /// `[picks][shards][rows]`: every shard that the matrix has.
    Shards(&'a mut [f32]),
}

/// One product of a batch.
pub(crate) struct Job<'a> {
    /// The matrix.
    pub weights: &'a Weights,
    /// Which of its stack.
    pub stack: usize,
    /// The matrix's rows are cut into so many equal groups; input row (or pick) number j meets
    /// group j mod groups. 1 for a plain product.
    pub groups: usize,
    /// Input rows.
    pub x: View<'a>,
    /// Which of them; `None` means all.
    pub picks: Option<&'a [u32]>,
    /// Result.
    pub out: Output<'a>,
}

impl Weights {
    /// Makes the matrix resident. The caller has checked that the bytes fit the shape.
    pub fn new(
        source: &MatrixSource<'_>,
        config: &CpuConfig,
        pool: &Pool,
        packed: &mut Packed,
    ) -> Result<Self, Error> {
        let &MatrixSource { format, rows, columns, stack, .. } = source;
        let bytes = source.bytes.clone();
        let found = (*bytes).as_ref().len();
        let shape = || format!("{stack} x {rows} x {columns} {}", format.info().name);
        let row_bytes = format.row_bytes(columns).filter(|row| {
            row.checked_mul(rows).and_then(|bytes| bytes.checked_mul(stack)) == Some(found)
        });
        let row_bytes = row_bytes.ok_or_else(|| Error::Shape {
            operation: "matrix",
            found: format!("{} has {found} bytes", source.name),
            wanted: format!("{} has another size", shape()),
        })?;
        let isa = config.isa.unwrap_or_else(Isa::best);
        let decoded = config.float_products && format.info().activation != Activation::F32;
        let stored = if decoded { Format::F32 } else { format };
        let layout = match (kernel(isa, stored), Plan::new(stored, columns)) {
            (Some(kernel), Some(plan)) if decoded => Layout::Decoded { kernel, plan, bytes },
            (Some(kernel), Some(plan)) => {
                let shape = Shape { format, stack, rows, columns };
                let lines = match packed.find(&bytes, shape) {
                    Some(lines) => lines,
                    None => {
                        let lines = pack(&plan, (*bytes).as_ref(), [stack, rows, row_bytes], pool);
                        let lines = Arc::new(lines.ok_or_else(|| Error::Memory {
                            device: "cpu",
                            what: source.name.to_owned(),
                            wanted: found as u64,
                        })?);
                        packed.keep(&bytes, shape, &lines);
                        lines
                    }
                };
                Layout::Tiles { kernel, plan, lines }
            }
            _ => Layout::File(bytes),
        };
        let activation = if decoded { Activation::F32 } else { format.info().activation };
        Ok(Weights { format, rows, columns, row_bytes, shards: SHARDS, activation, layout })
    }

    /// The same, whose columns are a part of K of so many of its eight shards: 1, 2, 4 or 8.
    pub fn of_shards(self, shards: usize) -> Self {
        Weights { shards, ..self }
    }

    /// How many of the eight shards of K the columns are.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// What its inputs have to be prepared as.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Output width.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of one matrix of the stack in the file; tiles have the same but for rows that fill up
    /// the last one.
    pub fn bytes_per_matrix(&self) -> u64 {
        (self.rows * self.row_bytes) as u64
    }

    /// Decodes one row to floats.
    pub fn decode_row(&self, stack: usize, row: usize, out: &mut [f32]) {
        /// Bytes that are put together at a time: more than a block of any format.
        const RUN: usize = 1024;
        let decode = self.format.info().decode;
        match &self.layout {
            Layout::File(bytes) | Layout::Decoded { bytes, .. } => {
                decode(self.file_row((**bytes).as_ref(), stack, row), out);
            }
            Layout::Tiles { plan, lines, .. } => {
                let tile = &self.tiles(plan, lines, stack)[row / TILE_ROWS * plan.tile_bytes..]
                    [..plan.tile_bytes];
                let (bytes, values) = (self.row_bytes / plan.blocks, out.len() / plan.blocks);
                let mut buffer = [0; RUN];
                let runs = out.chunks_mut((RUN / bytes).max(1) * values);
                for (run, out) in runs.enumerate() {
                    let buffer = &mut buffer[..out.len() / values * bytes];
                    plan.unpack_row(tile, row % TILE_ROWS, run * (RUN / bytes), buffer);
                    decode(buffer, out);
                }
            }
        }
    }

    /// Row of the file.
    fn file_row<'a>(&self, bytes: &'a [u8], stack: usize, row: usize) -> &'a [u8] {
        &bytes[(stack * self.rows + row) * self.row_bytes..][..self.row_bytes]
    }

    /// Tiles of one matrix.
    fn tiles<'a>(&self, plan: &Plan, bytes: &'a [u8], stack: usize) -> &'a [u8] {
        let size = self.rows.div_ceil(TILE_ROWS) * plan.tile_bytes;
        &bytes[stack * size..][..size]
    }
}

/// Copies a stack of matrices into tiles; `None` if there is no memory.
fn pack(plan: &Plan, from: &[u8], shape: [usize; 3], pool: &Pool) -> Option<Lines> {
    let [stack, rows, row_bytes] = shape;
    let tiles = rows.div_ceil(TILE_ROWS);
    let all = stack.checked_mul(tiles)?;
    let bytes = all.checked_mul(plan.tile_bytes)?;
    let mut lines = Lines::zeroed(bytes)?;
    if bytes == 0 {
        return Some(lines);
    }
    let pieces = Pieces::new(&mut lines, plan.tile_bytes);
    let parts = all.min(pool.threads() * 8);
    pool.run(parts, &|part| {
        for tile in cut(all, parts, part) {
            let (matrix, first) = (tile / tiles, tile % tiles * TILE_ROWS);
            let last = rows.min(first + TILE_ROWS);
            let rows =
                &from[(matrix * rows + first) * row_bytes..(matrix * rows + last) * row_bytes];
            // SAFETY: each tile belongs to one part.
            plan.pack(rows, unsafe { pieces.get(tile) });
        }
    });
    Some(lines)
}

/// Part `part` of `parts` equal ones of `0..all`.
pub(crate) fn cut(all: usize, parts: usize, part: usize) -> Range<usize> {
    let at = |part: usize| part * (all / parts) + part * (all % parts) / parts;
    at(part)..at(part + 1)
}

/// Runs a batch of independent products as one parallel region.
///
/// Panics if a job's operands do not fit together: inputs prepared as the matrix wants, picks that
/// exist, an output of the right length.
pub(crate) fn products<'a>(pool: &Pool, jobs: impl IntoIterator<Item = Job<'a>>) {
    let batch = Batch::new(pool, jobs);
    if batch.is_small() || pool.threads() == 1 {
        (0..batch.parts).for_each(|part| batch.run(part, pool));
    } else {
        pool.run(batch.parts, &|part| batch.run(part, pool));
    }
    batch.keep(pool);
}

/// Independent products, cut into parts.
///
/// Parts become smaller towards the end of a batch: each takes a share of what is left, so that
/// threads that are not equally fast end at nearly the same time, and there are few parts.
pub(crate) struct Batch<'a> {
    tasks: Vec<Task<'a>>,
    pieces: Vec<Piece>,
    parts: usize,
    work: usize,
}

/// Some tiles of a task: as many parts as the task's inputs make.
pub(crate) struct Piece {
    task: usize,
    tiles: Range<usize>,
    first_part: usize,
}

impl<'a> Batch<'a> {
    /// Cuts jobs into parts. Panics as [`products`] does.
    pub fn new(pool: &Pool, jobs: impl IntoIterator<Item = Job<'a>>) -> Self {
        let (mut tasks, pieces) = pool.lists();
        tasks.extend(jobs.into_iter().map(Task::new));
        let work = tasks.iter().map(|task| task.work).fold(0, usize::saturating_add);
        let mut batch = Batch { tasks, pieces, parts: 0, work };
        batch.cut(pool.threads());
        batch
    }

    fn cut(&mut self, threads: usize) {
        let mut left = self.work;
        for (number, task) in self.tasks.iter().enumerate() {
            let mut tiles = 0..task.tiles();
            while task.input_parts > 0 && !tiles.is_empty() {
                let share = if threads == 1 { left } else { left / (2 * threads) };
                let count = task.tiles_of(share, threads).min(tiles.len());
                let end = tiles.start + count;
                let (tiles_of_piece, first_part) = (tiles.start..end, self.parts);
                self.pieces.push(Piece { task: number, tiles: tiles_of_piece, first_part });
                self.parts += task.input_parts;
                left = left.saturating_sub(task.work / task.tiles() * count);
                tiles.start = end;
            }
        }
    }

    /// How many parts there are.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Whether other threads are not worth calling.
    pub fn is_small(&self) -> bool {
        self.work < 2 * PART_WORK
    }

    /// Does one part.
    pub fn run(&self, part: usize, pool: &Pool) {
        let at = self.pieces.partition_point(|piece| piece.first_part <= part) - 1;
        let piece = &self.pieces[at];
        self.tasks[piece.task].run(piece.tiles.clone(), part - piece.first_part, pool);
    }

    /// Gives its memory back.
    pub fn keep(self, pool: &Pool) {
        pool.keep_lists(self.tasks, self.pieces);
    }
}

/// Work of the smallest part that is worth a hand-over: about a microsecond, as multiplications by
/// a tile kernel with one input row.
const PART_WORK: usize = 1 << 15;
/// Tiles of a part that make panels of its inputs worth their copy.
const GATHER_TILES: usize = 6;
/// Tiles of a part of several inputs, so that the copy is hardly seen.
const SEVERAL_TILES: usize = 8;

/// A job with what is known of its cost.
pub(crate) struct Task<'a> {
    weights: &'a Weights,
    stack: usize,
    groups: usize,
    x: View<'a>,
    picks: Option<&'a [u32]>,
    sink: Sink,
    /// Inputs of each group.
    inputs: usize,
    work: usize,
    /// How many parts these are; 0 if there are none.
    input_parts: usize,
}

impl<'a> Task<'a> {
    fn new(job: Job<'a>) -> Self {
        let Job { weights, stack, groups, x, picks, out } = job;
        let (planes, out) = match out {
            Output::Tree(out) => (1, out),
            Output::Halves(out) => (2, out),
            Output::Shards(out) => (weights.shards, out),
        };
        // Everything that the kernels' unsafe code relies on.
        let inputs = picks.map_or(x.rows(), <[u32]>::len);
        let exist = picks.is_none_or(|picks| picks.iter().all(|&pick| (pick as usize) < x.rows()));
        assert!(exist, "picks are rows of the input");
        assert!(x.suits(weights.activation, weights.columns), "inputs prepared for the matrix");
        let whole = weights.rows.is_multiple_of(groups) && inputs.is_multiple_of(groups);
        assert!(whole, "{} rows and {inputs} inputs in {groups} groups", weights.rows);
        let rows = weights.rows / groups;
        assert_eq!(out.len(), inputs * planes * rows, "values of the product");
        let has_halves = planes != 2 || matches!(weights.shards, 2 | SHARDS);
        assert!(has_halves, "halves of {} shards", weights.shards);

        let inputs = inputs / groups;
        // A loaded weight serves all inputs, so the first input costs as much as several others.
        let one = weights.rows.div_ceil(TILE_ROWS) * TILE_ROWS * weights.columns;
        let slow = if matches!(weights.layout, Layout::Tiles { .. }) { 1 } else { 32 };
        let work = if inputs == 0 { 0 } else { one.saturating_mul((4 + inputs) * slow / 5) };
        let sink = Sink { out: out.as_mut_ptr(), planes, rows };
        let input_parts = inputs.div_ceil(INPUTS);
        Task { weights, stack, groups, x, picks, sink, inputs, work, input_parts }
    }

    fn tiles(&self) -> usize {
        self.weights.rows.div_ceil(TILE_ROWS)
    }

    /// Tiles of a piece whose parts have about `share` of the work each.
    fn tiles_of(&self, share: usize, threads: usize) -> usize {
        let all = self.tiles();
        let least = if self.inputs > 1 { SEVERAL_TILES.min(all.div_ceil(threads)) } else { 1 };
        // Parts of many inputs are of equal size, so there have to be more of them than threads.
        let most = if self.input_parts > 1 { all.div_ceil(threads) } else { all };
        let of_tile = (self.work / all / self.input_parts).max(1);
        (share.max(PART_WORK) / of_tile).clamp(least, most.max(least))
    }

    /// Does one part: some tiles times one of the parts of the inputs.
    fn run(&self, tiles: Range<usize>, input_part: usize, pool: &Pool) {
        let weights = self.weights;
        // Whole panels, but for the last part.
        let panels = cut(self.inputs.div_ceil(PANEL_ROWS), self.input_parts, input_part);
        let inputs = panels.start * PANEL_ROWS..self.inputs.min(panels.end * PANEL_ROWS);
        match &weights.layout {
            Layout::File(bytes) => self.run_scalar((**bytes).as_ref(), tiles, inputs),
            Layout::Tiles { kernel, plan, lines } => {
                let bytes = weights.tiles(plan, lines, self.stack);
                let worth = inputs.len() > 1 && tiles.len() >= GATHER_TILES;
                let part = self.part(plan, bytes, 0, tiles, inputs);
                let gather = kernel.gather.filter(|_| worth);
                // SAFETY: the kernel was chosen for this machine; `new` checked what `Part` asks,
                // and parts are pairs of different tiles and inputs.
                let run = |part: &Part<'_>| unsafe { (kernel.run)(part) };
                match gather {
                    None => run(&part),
                    Some(gather) => pool.with_buffer(|buffer| {
                        let panels = Some(gather(&part, buffer));
                        run(&Part { panels, ..part });
                    }),
                }
            }
            Layout::Decoded { kernel, plan, bytes } => {
                let Some(mut lines) = Lines::zeroed(plan.tile_bytes) else {
                    return self.run_scalar((**bytes).as_ref(), tiles, inputs);
                };
                for tile in tiles {
                    self.decode_tile((**bytes).as_ref(), plan, tile, &mut lines);
                    let tiles = tile..tile + 1;
                    let part = self.part(plan, &lines, tile, tiles, inputs.clone());
                    // SAFETY: as above.
                    unsafe { (kernel.run)(&part) }
                }
            }
        }
    }

    fn part<'b>(
        &'b self,
        plan: &'b Plan,
        bytes: &'b [u8],
        first_tile: usize,
        tiles: Range<usize>,
        inputs: Range<usize>,
    ) -> Part<'b> {
        let &Task { groups, x, picks, sink, .. } = self;
        Part {
            plan,
            bytes,
            first_tile,
            tiles,
            rows: self.weights.rows,
            shards: self.weights.shards,
            groups,
            x,
            picks,
            inputs,
            panels: None,
            sink,
        }
    }

    /// Decodes the rows of a tile and packs them as floats.
    fn decode_tile(&self, bytes: &[u8], plan: &Plan, tile: usize, out: &mut [u8]) {
        let weights = self.weights;
        let first = tile * TILE_ROWS;
        let rows = first..weights.rows.min(first + TILE_ROWS);
        let mut values = vec![0f32; rows.len() * weights.columns];
        for (row, values) in rows.zip(values.chunks_exact_mut(weights.columns)) {
            (weights.format.info().decode)(weights.file_row(bytes, self.stack, row), values);
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        plan.pack(&bytes, out);
    }

    /// The reference: one dot after another.
    fn run_scalar(&self, bytes: &[u8], tiles: Range<usize>, inputs: Range<usize>) {
        let weights = self.weights;
        let info = weights.format.info();
        let rows = tiles.start * TILE_ROWS..weights.rows.min(tiles.end * TILE_ROWS);
        let as_floats = weights.activation == Activation::F32 && info.activation != Activation::F32;
        let mut values = vec![0f32; if as_floats { weights.columns } else { 0 }];
        for input in inputs.start * self.groups..inputs.end * self.groups {
            let row_of = self.picks.map_or(input, |picks| picks[input] as usize);
            let quantised;
            let x = if weights.activation == Activation::F32 {
                Row::F32(self.x.values(row_of))
            } else {
                quantised = self.x.codes(row_of);
                Row::Int8(Int8Blocks { codes: &quantised.0, scales: &quantised.1 })
            };
            let group = input % self.groups * self.sink.rows;
            for row in rows.start.max(group)..rows.end.min(group + self.sink.rows) {
                let row_bytes = weights.file_row(bytes, self.stack, row);
                let shards = if as_floats {
                    (info.decode)(row_bytes, &mut values);
                    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                    dot_part(Format::F32, &bytes, x, weights.shards)
                } else {
                    dot_part(weights.format, row_bytes, x, weights.shards)
                };
                self.emit(input, row - group, &shards);
            }
        }
    }

    /// Stores the shards of one value.
    fn emit(&self, at: usize, row: usize, shards: &[f32; 8]) {
        let put = |plane: usize, value: f32| {
            let index = (at * self.sink.planes + plane) * self.sink.rows + row;
            // SAFETY: the output has `[at][planes][rows]` values (checked in `new`), and this one
            // belongs to this part alone.
            unsafe { self.sink.out.add(index).write(value) }
        };
        let [a, b, c, d, e, f, g, h] = *shards;
        let shards = &shards[..self.weights.shards];
        match self.sink.planes {
            2 if shards.len() == SHARDS => {
                put(0, tree4(&[a, b, c, d]));
                put(1, tree4(&[e, f, g, h]));
            }
            planes if planes == shards.len() => {
                shards.iter().enumerate().for_each(|(plane, &shard)| put(plane, shard));
            }
            _ => put(0, subtree(shards)),
        }
    }
}

#[cfg(test)]
mod tests;
