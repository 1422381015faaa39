//! The router and the expert sum.

use super::super::arguments::{ActivateArgs, CellsArgs, RouteArgs, SortArgs, TileOfSlots};
use super::super::owed::{Owed, Work};
use super::super::record::Place;
use super::super::store::Ask;
use super::super::{FEW_ROWS, Gpu, SOME_ROWS, Scratch, Shortcuts, Weights, check, size, small};
use super::decode::{self, Staged};
use super::products::{INPUTS, Input, Inputs, Product, Sorted, Stacked, TILE_INPUTS, product};
use super::{GROUP, ROW_GROUP, SIMDGROUPS, big, chosen, cluster, few};
use crate::{Cells, Error, Experts, Ffn, Matrix, Route, RouteBy};
use ironstar_quant::Activation;

/// `EXPERTS_MAX` and `CHOICES_MAX` of the kernels.
const EXPERTS_MAX: usize = 1024;
const CHOICES_MAX: usize = 64;
/// From so many slots on, they are sorted by several groups, each of which has a chunk of them.
const SORT_TOGETHER: usize = 512;
/// `SORT_CHUNK` of the kernels.
const SORT_CHUNK: usize = 256;

pub(in super::super) fn route(gpu: &mut Gpu, a: &Route) -> Result<(), Error> {
    let operation = "route";
    let ask = |operand| Ask { operation, operand };
    let n = gpu.rows.len();
    check(
        operation,
        (1..=a.experts).contains(&a.top_k) && a.experts <= EXPERTS_MAX && a.top_k <= CHOICES_MAX,
        || format!("{} of {} experts", a.top_k, a.experts),
        "at least one and not more than there are; on a GPU at most 64 of 1024",
    )?;
    let logits = gpu.f32(ask("logits"), a.logits, size(&[n, a.experts]))?;
    let (bias, table, table_rows) = match a.by {
        RouteBy::Score { bias } => (gpu.f32(ask("bias"), bias, a.experts)?, Place::NONE, 0),
        RouteBy::Token { table } => {
            let rows = table.len / a.top_k;
            let last = gpu.rows.tokens.iter().max().map_or(0, |token| *token as usize);
            let found = || format!("token {last}, table of {rows} tokens");
            check(operation, last < rows, found, "each token has experts of the model")?;
            (Place::NONE, gpu.u32(ask("table"), table, table.len)?, rows)
        }
    };
    let ids = gpu.u32(ask("ids"), a.ids, size(&[n, a.top_k]))?;
    let weights = gpu.f32(ask("weights"), a.weights, size(&[n, a.top_k]))?;
    let arguments = RouteArgs {
        experts: small(operation, a.experts)?,
        top_k: small(operation, a.top_k)?,
        by_token: u32::from(matches!(a.by, RouteBy::Token { .. })),
        table_rows: small(operation, table_rows)?,
        scale: a.scale,
        rows: gpu.n(),
    };
    let places = [logits, bias, table, gpu.tokens(), ids, weights];
    if cluster::choose(gpu, places, &arguments)? {
        return Ok(());
    }
    let grid = [arguments.rows, 1, 1];
    match arguments.experts > 32 {
        true => gpu.launch("route_ranks", grid, ROW_GROUP, &places, &arguments),
        false => gpu.launch("route", grid, 32, &places, &arguments),
    }
}

/// The three matrices of an FFN, checked against the width, the stack and the shards of the last.
fn ffn_weights<'a>(
    gpu: &Gpu,
    ffn: &'a Ffn,
    [d, stack, shards]: [usize; 3],
) -> Result<Matrices<'a>, Error> {
    let inner = ffn.gate.rows;
    for (matrix, rows, columns) in [(ffn.gate, inner, d), (ffn.up, inner, d), (ffn.down, d, inner)]
    {
        check(
            "experts",
            [matrix.rows, matrix.columns, matrix.stack] == [rows, columns, stack],
            || format!("a matrix {} x {} x {}", matrix.stack, matrix.rows, matrix.columns),
            &format!("{stack} x {rows} x {columns}"),
        )?;
    }
    let folded = gpu.held("experts", ffn.down)?.folded;
    let found = folded.map_or(8, |folded| folded.shards);
    check(
        "experts",
        found == shards,
        || format!("a last matrix of {found} shards"),
        &format!("{shards} for the cells that are asked for"),
    )?;
    let down = folded.map_or(ffn.down, |folded| folded.matrix);
    let weights = [
        gpu.weights("experts", ffn.gate)?,
        gpu.weights("experts", ffn.up)?,
        gpu.weights("experts", down)?,
    ];
    Ok(Matrices { ffn, weights, down, ways: 8 / shards })
}

/// The matrices of an FFN.
#[derive(Clone, Copy)]
pub(super) struct Matrices<'a> {
    pub ffn: &'a Ffn,
    pub weights: [Weights; 3],
    /// The last as kernels see it, and how many rows of the part a row of it has (`part.rs`).
    pub down: Matrix,
    pub ways: usize,
}

/// Gate, up, inner, scales of inner and the result of the shared expert, and of the chosen ones.
const SHARED: [Scratch; 5] = [
    Scratch::SharedGate,
    Scratch::SharedUp,
    Scratch::SharedInner,
    Scratch::SharedInnerScales,
    Scratch::Shards,
];
const ROUTED: [Scratch; 5] =
    [Scratch::Gate, Scratch::Up, Scratch::Inner, Scratch::InnerScales, Scratch::Halves];

/// One FFN over its slots: what its steps share.
pub(super) struct Half<'a> {
    pub matrices: Matrices<'a>,
    pub slots: usize,
    pub per_row: usize,
    pub stacked: Option<Stacked>,
    /// Weight of each slot.
    pub gains: Option<Place>,
    pub scratch: [Scratch; 5],
    /// 2: halves, 8: shards; of the last matrix as kernels see it.
    pub planes_out: u32,
}

impl Half<'_> {
    /// What the products of this FFN share.
    fn product_of<'p>(
        &self,
        outputs: &'p [(Matrix, Place)],
        x: Input,
        per_row: usize,
        planes_out: u32,
    ) -> Product<'p> {
        Product {
            operation: "experts",
            outputs,
            x,
            slots: self.slots,
            groups: 1,
            planes_out,
            per_row,
            stacked: self.stacked,
        }
    }

    /// Gate and up.
    fn open(
        &self,
        gpu: &mut Gpu,
        inputs: &mut Inputs,
        x: Place,
        shape: [usize; 2],
    ) -> Result<[Place; 2], Error> {
        let Matrices { ffn, weights, .. } = self.matrices;
        let inner = ffn.gate.rows;
        let gate = gpu.scratch(self.scratch[0], size(&[self.slots, inner, 4]))?;
        let up = gpu.scratch(self.scratch[1], size(&[self.slots, inner, 4]))?;
        let outputs = [(ffn.gate, gate), (ffn.up, up)];
        let activations = [weights[0].activation(), weights[1].activation()];
        if activations[0] == activations[1] {
            let x = Input::Made(inputs.get(gpu, activations[0], x, shape)?);
            product(gpu, &self.product_of(&outputs, x, self.per_row, 1))?;
        } else {
            for (output, activation) in outputs.chunks(1).zip(activations) {
                let x = Input::Made(inputs.get(gpu, activation, x, shape)?);
                product(gpu, &self.product_of(output, x, self.per_row, 1))?;
            }
        }
        Ok([gate, up])
    }

    /// The activation of gate and up, and down into planes.
    fn close(&self, gpu: &mut Gpu, [gate, up]: [Place; 2], limit: f32) -> Result<Place, Error> {
        let operation = "experts";
        let Matrices { ffn, down, ways, .. } = self.matrices;
        let planes = self.planes_out as usize;
        let out = gpu.scratch(self.scratch[4], size(&[self.slots, planes, down.rows, 4]))?;
        let rows = gpu.rows.len();
        let alone = self.stacked.is_some() && chosen::stages(gpu, operation, down, rows)?;
        let staged = alone || (rows == 1 && decode::stages(gpu, operation, down)?);
        if rows == 1 && !staged && self.gains.is_some() {
            let why = || format!("down is {:?}, or it is disabled", down.format);
            gpu.goes_without(Shortcuts::STAGED, operation, why)?;
        }
        let x = match staged {
            true => Input::Staged(Staged::Activated {
                gate,
                up,
                gains: self.gains,
                limit,
                ways: small(operation, ways)?,
            }),
            false => Input::Made(self.activate(gpu, [gate, up], ffn.gate.rows, limit)?),
        };
        product(gpu, &self.product_of(&[(down, out)], x, 1, self.planes_out))?;
        Ok(out)
    }

    /// The inner row of every slot as the last matrix wants it, once for each of its ways.
    fn activate(
        &self,
        gpu: &mut Gpu,
        [gate, up]: [Place; 2],
        inner: usize,
        limit: f32,
    ) -> Result<[Place; 2], Error> {
        let operation = "experts";
        let Matrices { weights, ways, .. } = self.matrices;
        let activation = weights[2].activation();
        let block = activation.block().unwrap_or(256);
        let quantised = activation != Activation::F32;
        let blocks = size(&[self.slots, inner.div_ceil(block)]);
        let element = if quantised { 1 } else { 4 };
        let out = gpu.scratch(self.scratch[2], size(&[self.slots, ways, inner, element]))?;
        let scales = gpu.scratch(self.scratch[3], size(&[blocks, ways, 4]))?;
        let arguments = ActivateArgs {
            blocks: small(operation, blocks)?,
            block: small(operation, block)?,
            width: small(operation, inner)?,
            weighted: u32::from(self.gains.is_some()),
            limit,
            quantised: u32::from(quantised),
            copies: small(operation, ways)?,
        };
        let places = [gate, up, self.gains.unwrap_or(Place::NONE), out, scales];
        let whole = inner.is_multiple_of(block);
        let (name, each) = match activation {
            Activation::Int8x256 if whole => ("activate_256", SIMDGROUPS),
            Activation::Int8x32 if whole && self.slots > SOME_ROWS => ("activate_32", GROUP / 4),
            _ => ("activate", SIMDGROUPS),
        };
        let grid = [arguments.blocks.div_ceil(each), 1, 1];
        gpu.launch(name, grid, GROUP, &places, &arguments)?;
        Ok([out, if quantised { scales } else { Place::NONE }])
    }
}

/// Slots sorted by expert and cut into tiles of up to `width`.
fn sort(
    gpu: &mut Gpu,
    ids: Place,
    [slots, experts]: [usize; 2],
    width: usize,
) -> Result<Sorted, Error> {
    let operation = "experts";
    let tiles = slots.min(slots / width + experts);
    let order = gpu.scratch(Scratch::Order, size(&[slots, 4]))?;
    let starts = gpu.scratch(Scratch::Starts, size(&[experts + 1, 4]))?;
    let list = gpu.scratch(Scratch::Tiles, size(&[tiles, size_of::<TileOfSlots>()]))?;
    let arguments = SortArgs {
        slots: small(operation, slots)?,
        experts: small(operation, experts)?,
        tiles: small(operation, tiles)?,
        width: small(operation, width)?,
    };
    if slots < SORT_TOGETHER {
        gpu.launch("sort_slots", [1, 1, 1], ROW_GROUP, &[ids, order, starts, list], &arguments)?;
    } else {
        let chunks = slots.div_ceil(SORT_CHUNK);
        let counts = gpu.scratch(Scratch::Counts, size(&[chunks, experts, 4]))?;
        let grid = [small(operation, chunks)?, 1, 1];
        gpu.launch("count_slots", grid, ROW_GROUP, &[ids, counts], &arguments)?;
        let places = [ids, counts, order, starts, list];
        gpu.launch("place_slots", grid, ROW_GROUP, &places, &arguments)?;
    }
    Ok(Sorted { order, tiles: list, count: tiles, width })
}

/// The slots of a step of more than one row, in tiles for the kernels that the formats have.
fn sorted(
    gpu: &mut Gpu,
    routed: &[Weights; 3],
    columns: [usize; 3],
    ids: Place,
    [n, slots, stack]: [usize; 3],
) -> Result<Option<Sorted>, Error> {
    let matrices = [0, 1, 2].map(|i| (routed[i].format(), columns[i]));
    if n == 1 || matrices.iter().all(|matrix| chosen::takes(gpu, *matrix, n).is_some()) {
        return Ok(None);
    }
    let integer = routed.iter().all(|weights| weights.activation() != Activation::F32);
    let few = few::experts(gpu, matrices, [n, slots]);
    if n <= few::ROWS_MAX && !few {
        let why = || format!("experts of {:?}, or it is disabled", matrices.map(|m| m.0));
        gpu.goes_without(Shortcuts::FEW, "experts", why)?;
    }
    let width = match integer {
        true if few => few::SLOTS,
        true => big::experts(gpu, matrices, [slots, stack]).unwrap_or(TILE_INPUTS),
        false => INPUTS,
    };
    Ok(Some(sort(gpu, ids, [slots, stack], width)?))
}

pub(in super::super) fn experts(gpu: &mut Gpu, a: &Experts, cells: Cells) -> Result<(), Error> {
    let operation = "experts";
    let ask = |operand| Ask { operation, operand };
    let (n, d, stack) = (gpu.rows.len(), a.routed.gate.columns, a.routed.gate.stack);
    check(
        operation,
        cells.is_subtree() && cells.held().len() == stack,
        || format!("{cells:?} of {stack} experts"),
        "a subtree of the eight, and the experts of its groups",
    )?;
    let halves = if cells.count == 8 { 8 } else { 4 };
    let routed = ffn_weights(gpu, &a.routed, [d, stack, halves])?;
    let shared = ffn_weights(gpu, &a.shared, [d, 1, cells.count])?;
    check(
        operation,
        a.top_k > 0 && stack <= EXPERTS_MAX,
        || format!("{n} rows of {} of {stack} experts", a.top_k),
        "at least one expert a row; on a GPU at most 1024 in all",
    )?;
    let slots = size(&[n, a.top_k]);
    let x = gpu.f32(ask("x"), a.x, size(&[n, d]))?;
    let ids = gpu.u32(ask("ids"), a.ids, slots)?;
    let weights = gpu.f32(ask("weights"), a.weights, slots)?;
    let out = gpu.f32(ask("out"), a.out, size(&[n, d]))?;
    if n == 0 {
        return Ok(());
    }
    let bytes = |m: &Matrices<'_>| m.weights.iter().map(|w| w.matrix_bytes).sum::<u64>();
    // Which experts are chosen is known to the device only: this is the most it can read.
    gpu.counters.expert_bytes += slots.min(stack) as u64 * bytes(&routed);
    gpu.counters.dense_bytes += bytes(&shared);

    let local = super::part::local_ids(gpu, ids, slots, cells)?;
    let columns = [d, d, routed.down.columns];
    let sorted = sorted(gpu, &routed.weights, columns, local, [n, slots, stack])?;
    let mut inputs = Inputs::default();
    let shared = Half {
        matrices: shared,
        slots: n,
        per_row: 1,
        stacked: None,
        gains: None,
        scratch: SHARED,
        planes_out: 8,
    };
    let routed = Half {
        matrices: routed,
        slots,
        per_row: a.top_k,
        stacked: Some(Stacked { ids: local, sorted }),
        gains: Some(weights),
        scratch: ROUTED,
        planes_out: 2,
    };
    let [shards, halves] = products(gpu, [&shared, &routed], &mut inputs, (x, [n, d]), a.limit)?;
    add_cells(gpu, [ids, halves, shards, out], cells, [d, a.top_k])
}

/// What the last matrices of the shared expert and of the chosen ones give.
fn products(
    gpu: &mut Gpu,
    [shared, routed]: [&Half<'_>; 2],
    inputs: &mut Inputs,
    (x, shape): (Place, [usize; 2]),
    limit: f32,
) -> Result<[Place; 2], Error> {
    if let Some(made) = super::shared::products(gpu, [shared, routed], inputs, (x, shape), limit)? {
        return Ok(made);
    }
    if gpu.rows.len() > FEW_ROWS {
        // The shared expert's gate and up are made beside the router. Groups of more than that and
        // those of chosen ones would keep each other out: they have all of a multiprocessor's
        // memory.
        let opened = gpu.beside_in(4, |gpu| shared.open(gpu, inputs, x, shape))?;
        let shards = shared.close(gpu, opened, limit)?;
        let inner = routed.open(gpu, inputs, x, shape)?;
        return Ok([shards, routed.close(gpu, inner, limit)?]);
    }
    let opened = gpu.beside(|gpu| shared.open(gpu, inputs, x, shape))?;
    // Groups of a product that only wait would keep those of gate and up out: it begins when what
    // it waits for has ended.
    let shards = gpu.afresh(|gpu| shared.close(gpu, opened, limit))?;
    let inner = routed.open(gpu, inputs, x, shape)?;
    Ok([shards, routed.close(gpu, inner, limit)?])
}

/// The sum of the cells; `places` are ids, halves, shards and the result.
fn add_cells(
    gpu: &mut Gpu,
    places: [Place; 4],
    cells: Cells,
    [width, top_k]: [usize; 2],
) -> Result<(), Error> {
    if cells.count < 8 {
        return super::part::add_cells(gpu, places, cells, [width, top_k]);
    }
    let arguments = CellsArgs {
        width: small("experts", width)?,
        top_k: small("experts", top_k)?,
        experts: small("experts", cells.experts)?,
        pad: 0,
    };
    let [ids, halves, shards, out] = places;
    if gpu.rows.len() <= SOME_ROWS || !width.is_multiple_of(4) {
        let grid = [arguments.width.div_ceil(GROUP), gpu.n(), 1];
        return gpu.launch("expert_cells", grid, GROUP, &places, &arguments);
    }
    let places = [ids, halves, shards];
    if !gpu.takes(Shortcuts::SPREAD) {
        return make_cells(gpu, places, out, &arguments);
    }
    let len = size(&[gpu.rows.len(), width]);
    gpu.owe(Owed { at: out, len, work: Work::Cells { places, arguments } })
}

/// Groups of kernels whose threads have four dims of a row each.
pub(super) fn fours(gpu: &Gpu, width: u32) -> [u32; 3] {
    [width.div_ceil(4 * GROUP), gpu.n(), 1]
}

/// The sum of the cells of very many rows.
pub(in super::super) fn make_cells(
    gpu: &mut Gpu,
    [ids, halves, shards]: [Place; 3],
    out: Place,
    arguments: &CellsArgs,
) -> Result<(), Error> {
    let grid = fours(gpu, arguments.width);
    gpu.launch("expert_cells_four", grid, GROUP, &[ids, halves, shards, out], arguments)
}
