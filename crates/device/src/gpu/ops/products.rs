//! Matrices times rows.

use super::super::arguments::{ProductArgs, QuantiseArgs};
use super::super::record::Place;
use super::super::store::Ask;
use super::super::{Gpu, SOME_ROWS, Scratch, Shortcuts, check, size, small};
use super::{GROUP, SIMDGROUPS, ahead, chosen, decode, few, halves};
use crate::{Error, Matrix, Project, ProjectGrouped};
use ironstar_quant::{Activation, Format};

/// Quarters of the device for products of one row of several kinds: the first ones of floats, whose
/// groups have half of a multiprocessor's registers and would keep others out, and later ones of
/// integers.
const FLOATS_FIRST: u32 = 3;
const INTEGERS_LATER: u32 = 2;

/// Matrices of a launch.
const MATRICES: usize = 4;
/// Inputs of a tile of plain sums.
pub(super) const INPUTS: usize = 8;
/// Inputs of a tile on matrix units, and its rows; those of `tiles.k`.
pub(super) const TILE_INPUTS: usize = 64;
const TILE_ROWS: u32 = 16;
/// Float rows of a simdgroup for many inputs; that of `products.k`.
const FLOAT_ROWS: u32 = 4;

/// Slots sorted by expert and cut into tiles.
#[derive(Clone, Copy)]
pub(super) struct Sorted {
    pub order: Place,
    pub tiles: Place,
    /// Most tiles that there may be.
    pub count: usize,
    /// Most slots of a tile.
    pub width: usize,
}

/// Experts of the slots of a product over a stack.
#[derive(Clone, Copy)]
pub(super) struct Stacked {
    /// `[slots]`: expert of each slot.
    pub ids: Place,
    /// The slots sorted by expert; `None`: each slot alone.
    pub sorted: Option<Sorted>,
}

/// What a product multiplies with.
#[derive(Clone, Copy)]
pub(super) enum Input {
    /// Codes and scales, or floats and nothing.
    Made([Place; 2]),
    /// Floats of which a kernel for one row makes the blocks itself.
    Staged(decode::Staged),
}

/// Products of equal rows.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub operation: &'static str,
    /// Matrices of equal column counts and activations with their outputs.
    pub outputs: &'a [(Matrix, Place)],
    pub x: Input,
    /// Outputs a group.
    pub slots: usize,
    /// Slot s of group g is input s * groups + g and meets the g-th part of the rows.
    pub groups: usize,
    /// 1: the tree over shards; 2: both halves; 8: every shard.
    pub planes_out: u32,
    /// Slots that share an input row.
    pub per_row: usize,
    pub stacked: Option<Stacked>,
}

impl<'a> Product<'a> {
    /// Every row meets every matrix.
    pub fn plain(
        operation: &'static str,
        outputs: &'a [(Matrix, Place)],
        x: Input,
        rows: usize,
    ) -> Self {
        Product {
            operation,
            outputs,
            x,
            slots: rows,
            groups: 1,
            planes_out: 1,
            per_row: 1,
            stacked: None,
        }
    }
}

/// Names of a format's kernels: one input, and [`INPUTS`].
fn kernels(format: Format) -> [&'static str; 2] {
    match format {
        Format::F32 => ["product_f32_1", "product_f32_8"],
        Format::F16 => ["product_f16_1", "product_f16_8"],
        Format::Bf16 => ["product_bf16_1", "product_bf16_8"],
        Format::Q4_0 => ["product_q4_0_1", "product_q4_0_8"],
        Format::Q8_0 => ["product_q8_0_1", "product_q8_0_8"],
        Format::Q2K => ["product_q2_k_1", "product_q2_k_8"],
        Format::Q3K => ["product_q3_k_1", "product_q3_k_8"],
        Format::Q4K => ["product_q4_k_1", "product_q4_k_8"],
        Format::Q5K => ["product_q5_k_1", "product_q5_k_8"],
        Format::Q6K => ["product_q6_k_1", "product_q6_k_8"],
        Format::Iq2Xxs => ["product_iq2_xxs_1", "product_iq2_xxs_8"],
        Format::Mxfp4 => ["product_mxfp4_1", "product_mxfp4_8"],
    }
}

/// Name of a format's kernel on matrix units. Float formats have none and are never asked for.
fn tile_kernel(format: Format) -> &'static str {
    match format {
        Format::Q4_0 => "tile_q4_0",
        Format::Q2K => "tile_q2_k",
        Format::Q3K => "tile_q3_k",
        Format::Q4K => "tile_q4_k",
        Format::Q5K => "tile_q5_k",
        Format::Q6K => "tile_q6_k",
        Format::Iq2Xxs => "tile_iq2_xxs",
        Format::Mxfp4 => "tile_mxfp4",
        Format::Q8_0 | Format::F32 | Format::F16 | Format::Bf16 => "tile_q8_0",
    }
}

/// Rows prepared for each kind of activation that an operation's matrices want.
#[derive(Default)]
pub(super) struct Inputs {
    made: [Option<[Place; 2]>; 3],
}

impl Inputs {
    /// `x` [rows, columns] as an activation; made at the first call for it.
    pub fn get(
        &mut self,
        gpu: &mut Gpu,
        activation: Activation,
        x: Place,
        [rows, columns]: [usize; 2],
    ) -> Result<[Place; 2], Error> {
        let (slot, block, codes, scales) = match activation {
            Activation::F32 => return Ok([x, Place::NONE]),
            Activation::Int8x32 => (1, 32, Scratch::Codes32, Scratch::Scales32),
            Activation::Int8x256 => (2, 256, Scratch::Codes256, Scratch::Scales256),
        };
        if let Some(made) = self.made[slot].or_else(|| gpu.prepared(x, activation, [rows, columns]))
        {
            return Ok(made);
        }
        let blocks = size(&[rows, columns / block]);
        let made =
            [gpu.scratch(codes, size(&[rows, columns]))?, gpu.scratch(scales, size(&[blocks, 4]))?];
        let arguments =
            QuantiseArgs { blocks: small("project", blocks)?, block: small("project", block)? };
        let (name, grid) = match rows {
            0..super::big::ROWS_MIN => ("quantise", arguments.blocks.div_ceil(SIMDGROUPS)),
            _ => ("quantise_rows", small("project", size(&[rows, columns]))?.div_ceil(8 * GROUP)),
        };
        gpu.launch(name, [grid, 1, 1], GROUP, &[x, made[0], made[1]], &arguments)?;
        self.made[slot] = Some(made);
        Ok(made)
    }
}

/// Records products: matrices of one format go into one launch.
pub(super) fn product(gpu: &mut Gpu, p: &Product<'_>) -> Result<(), Error> {
    let mut left: Vec<(Matrix, Place)> = p.outputs.to_vec();
    let mut split: halves::Split = None;
    while let Some((first, _)) = left.first().copied() {
        let format = gpu.weights(p.operation, first)?.format();
        let mut batch = Vec::new();
        let mut others = Vec::new();
        for (matrix, out) in left {
            let same = gpu.weights(p.operation, matrix)?.format() == format;
            match same && batch.len() < MATRICES && matrix.stack == first.stack {
                true => batch.push((matrix, out)),
                false => others.push((matrix, out)),
            }
        }
        launch(gpu, p, format, &batch, &mut split)?;
        left = others;
    }
    Ok(())
}

/// The kernel for tiles of so many inputs, and how many simdgroups the rows need.
fn kernel_of(format: Format, width: usize, rows: &[u32; 4]) -> (&'static str, u32) {
    let units =
        |each: u32| rows.iter().fold(0u32, |sum, rows| sum.saturating_add(rows.div_ceil(each)));
    let [one, many] = kernels(format);
    match width {
        1 => (one, units(1)),
        TILE_INPUTS => (tile_kernel(format), units(TILE_ROWS)),
        _ if format.info().activation == Activation::F32 => (many, units(FLOAT_ROWS)),
        _ => (many, units(1)),
    }
}

/// Inputs of a tile of this product: [`TILE_INPUTS`] on matrix units, else one to [`INPUTS`].
fn tile_width(p: &Product<'_>, format: Format) -> usize {
    let integer = format.info().activation != Activation::F32;
    match p.stacked {
        Some(Stacked { sorted: Some(sorted), .. }) => sorted.width,
        Some(Stacked { sorted: None, .. }) => 1,
        None if p.slots > INPUTS && integer => TILE_INPUTS,
        None => p.slots.min(INPUTS),
    }
}

fn launch(
    gpu: &mut Gpu,
    p: &Product<'_>,
    format: Format,
    batch: &[(Matrix, Place)],
    split: &mut halves::Split,
) -> Result<(), Error> {
    let (operation, first) = (p.operation, batch[0].0);
    let mut arguments = ProductArgs {
        columns: small(operation, first.columns)?,
        slots: small(operation, p.slots)?,
        groups: small(operation, p.groups)?,
        planes_out: p.planes_out,
        per_row: small(operation, p.per_row)?,
        stacked: u32::from(p.stacked.is_some()),
        stack: small(operation, first.stack)?,
        ..ProductArgs::default()
    };
    // Words of the inputs are counted in 32 bits.
    small(operation, size(&[p.slots, p.groups, first.columns.div_ceil(4)]))?;
    let mut places = [Place::NONE; 2 * MATRICES + 5];
    for (index, (matrix, out)) in batch.iter().enumerate() {
        let weights = gpu.weights(operation, *matrix)?;
        arguments.planes[index] = weights.planes();
        arguments.rows[index] = small(operation, matrix.rows / p.groups)?;
        places[2 * index] = Place::At(weights.address);
        places[2 * index + 1] = *out;
    }
    places[10] = p.stacked.map_or(Place::NONE, |stacked| stacked.ids);
    if launch_chosen(gpu, p, (format, first.columns), &mut places, &mut arguments)? {
        return Ok(());
    }
    let made = match p.x {
        Input::Made(made) => made,
        Input::Staged(staged) => {
            let plan = decode::plan(gpu.room(), format, &arguments);
            let plan = plan.expect("`decode::stages` asked for the same");
            return decode::launch_staged(gpu, format, &plan, staged, places, &mut arguments);
        }
    };
    if halves::takes(gpu, operation, format, first.columns) {
        return halves::launch(gpu, made[0], split, &mut places, &mut arguments);
    }
    places[8..10].copy_from_slice(&made);
    if ahead::launch(gpu, operation, format, &places, &mut arguments)?
        || launch_alone(gpu, p, format, &places, &mut arguments)?
        || launch_few(gpu, p, format, &mut places, &mut arguments)?
    {
        return Ok(());
    }
    let large = large(gpu, p, format, &arguments);
    let width = large.map_or_else(|| tile_width(p, format), |kernel| kernel.slots);
    let mut tiles = p.slots.div_ceil(width.max(1));
    if let Some(Stacked { sorted: Some(sorted), .. }) = p.stacked {
        places[11] = sorted.order;
        places[12] = sorted.tiles;
        tiles = sorted.count;
    }
    if let Some(kernel) = large {
        super::big::goes_wide(gpu, operation, (format, p.stacked.is_some()), &kernel)?;
        let inputs = size(&[p.slots / p.per_row.max(1), p.groups]);
        places[10] = super::big::sums(gpu, format, made[0], [inputs, first.columns])?;
        let grid = super::big::grid(gpu, &kernel, &mut arguments, small(operation, tiles)?);
        let (name, group) = (kernel.name, kernel.group);
        return launch_checked(gpu, operation, name, grid, group, &places, &arguments);
    }
    let (name, units) = kernel_of(format, width, &arguments.rows);
    let grid = [units.div_ceil(SIMDGROUPS), small(operation, tiles)?, arguments.groups];
    launch_checked(gpu, operation, name, grid, GROUP, &places, &arguments)
}

/// The kernel for large tiles, if it is one for them.
fn large(
    gpu: &Gpu,
    p: &Product<'_>,
    format: Format,
    arguments: &ProductArgs,
) -> Option<super::big::Kernel> {
    match p.stacked {
        None => super::big::plain(gpu, format, arguments),
        Some(Stacked { sorted: Some(sorted), .. }) => {
            super::big::stacked(gpu, format, arguments, sorted.width)
        }
        Some(_) => None,
    }
}

/// Launches a kernel that takes one slot of chosen experts after the other, if there is one.
fn launch_chosen(
    gpu: &mut Gpu,
    p: &Product<'_>,
    matrix: (Format, usize),
    places: &mut [Place; 2 * MATRICES + 5],
    arguments: &mut ProductArgs,
) -> Result<bool, Error> {
    let name = p.stacked.and_then(|_| chosen::takes(gpu, matrix, gpu.rows.len()));
    let Some(name) = name else { return Ok(false) };
    match (p.x, chosen::activates(name)) {
        (Input::Staged(staged), true) => staged.put(places, arguments),
        (Input::Made(made), false) => places[8..10].copy_from_slice(&made),
        _ => return Ok(false),
    }
    chosen::launch(gpu, name, &places[..], arguments)?;
    Ok(true)
}

/// Launches a kernel for one row after the other, or one for half-width floats of two to some rows.
fn launch_alone(
    gpu: &mut Gpu,
    p: &Product<'_>,
    format: Format,
    places: &[Place],
    arguments: &mut ProductArgs,
) -> Result<bool, Error> {
    if let Some(plan) = few::floats(gpu, format, arguments) {
        few::launch_groups(gpu, &plan, places, arguments)?;
        return Ok(true);
    }
    // Else half-width floats of some rows are read by each, from a cache that holds them.
    let some = [Format::F16, Format::Bf16].contains(&format) && gpu.takes(Shortcuts::FEW);
    let most = if some { SOME_ROWS } else { 1 };
    let alone = p.stacked.map_or(p.slots <= most, |stacked| stacked.sorted.is_none());
    let plan = decode::plan(gpu.room(), format, arguments).filter(|_| alone);
    let Some(plan) = plan else { return Ok(false) };
    decode::launch(gpu, &plan, places, arguments)?;
    Ok(true)
}

/// Launches a kernel for two to some rows, if there is one for them.
fn launch_few(
    gpu: &mut Gpu,
    p: &Product<'_>,
    format: Format,
    places: &mut [Place; 2 * MATRICES + 5],
    arguments: &mut ProductArgs,
) -> Result<bool, Error> {
    let plain = p.stacked.is_none() && (2..=few::ROWS_MAX).contains(&p.slots);
    if let Some(plan) = few::tiles(gpu, format, arguments).filter(|_| plain) {
        few::launch_tiles(gpu, p.operation, &plan, &places[..], arguments)?;
        return Ok(true);
    }
    let tiles = match p.stacked {
        None => (2..=few::ROWS_MAX).contains(&p.slots).then(|| p.slots.div_ceil(few::SLOTS)),
        Some(Stacked { sorted, .. }) => {
            let sorted = sorted.filter(|sorted| sorted.width == few::SLOTS);
            sorted.map(|sorted| {
                (places[11], places[12]) = (sorted.order, sorted.tiles);
                sorted.count
            })
        }
    };
    let Some(tiles) = tiles else { return Ok(false) };
    if let Some(plan) = few::plan(gpu, format, arguments, tiles) {
        few::launch(gpu, &plan, &places[..], arguments, small(p.operation, tiles)?)?;
        return Ok(true);
    }
    if format.info().activation != Activation::F32 {
        let why = || format!("{format:?} with {} columns, or it is disabled", arguments.columns);
        gpu.goes_without(Shortcuts::FEW, p.operation, why)?;
    }
    Ok(false)
}

/// Launches, if the grid is one that devices have.
fn launch_checked(
    gpu: &mut Gpu,
    operation: &'static str,
    name: &'static str,
    grid: [u32; 3],
    group: u32,
    places: &[Place],
    arguments: &ProductArgs,
) -> Result<(), Error> {
    check(
        operation,
        grid[1] <= 65_535 && grid[2] <= 65_535,
        || format!("a grid of {grid:?} groups"),
        "fewer rows at a time",
    )?;
    gpu.launch(name, grid, group, places, arguments)
}

pub(in super::super) fn project(gpu: &mut Gpu, a: &Project<'_>) -> Result<(), Error> {
    let operation = "project";
    let ask = |operand| Ask { operation, operand };
    let Some((first, _)) = a.outputs.first() else { return Ok(()) };
    if let [(matrix, out)] = a.outputs
        && let Some(folded) = gpu.held(operation, *matrix)?.folded
    {
        return super::part::project(gpu, a, folded, (*matrix, *out));
    }
    let columns = first.columns;
    let x = gpu.f32(ask("x"), a.x, size(&[a.rows, columns]))?;
    let mut by_activation: Vec<(Activation, Vec<(Matrix, Place)>)> = Vec::new();
    for (matrix, out) in a.outputs {
        check(
            operation,
            matrix.columns == columns && matrix.stack == 1,
            || format!("a matrix of {} columns, stack {}", matrix.columns, matrix.stack),
            "the matrices are plain and have equal columns",
        )?;
        let weights = gpu.weights(operation, *matrix)?;
        let len = size(&[a.rows, matrix.rows]);
        let out = gpu.f32(ask("an output"), *out, len)?;
        gpu.overwritten(out, len);
        gpu.counters.dense_bytes += weights.matrix_bytes;
        let activation = weights.activation();
        match by_activation.iter_mut().find(|(own, _)| *own == activation) {
            Some((_, outputs)) => outputs.push((*matrix, out)),
            None => by_activation.push((activation, vec![(*matrix, out)])),
        }
    }
    if let (1, [(_, outputs)]) = (a.rows, &*by_activation)
        && let [(matrix, out)] = **outputs
        && super::cluster::takes_router(gpu, matrix, [x, out])
    {
        return Ok(());
    }
    // The first are waited for soonest. Of several rows the others leave the memory to them; one
    // row's shall begin at once.
    let mut inputs = Inputs::default();
    let several = by_activation.len() > 1;
    if several {
        super::streams::norm_owed(gpu, x)?;
    }
    for (index, (activation, outputs)) in by_activation.into_iter().enumerate() {
        let staged = match a.rows {
            1 => decode::stages_row(gpu, operation, x, activation, &outputs, 1)?,
            _ => None,
        };
        let x = match staged {
            Some(staged) => Input::Staged(staged),
            None => Input::Made(inputs.get(gpu, activation, x, [a.rows, columns])?),
        };
        let p = Product::plain(operation, &outputs, x, a.rows);
        let run = |gpu: &mut Gpu| product(gpu, &p);
        match (several, index, a.rows) {
            (true, 0, 1) if activation == Activation::F32 => gpu.in_quarters(FLOATS_FIRST, run)?,
            (true, 1.., 1) if activation == Activation::F32 => gpu.beside(run)?,
            (true, 1.., 1) => gpu.beside_in(INTEGERS_LATER, run)?,
            (true, 1.., _) => gpu.behind(run)?,
            _ => run(gpu)?,
        }
    }
    Ok(())
}

pub(in super::super) fn project_grouped(gpu: &mut Gpu, a: &ProjectGrouped) -> Result<(), Error> {
    let operation = "project_grouped";
    let ask = |operand| Ask { operation, operand };
    let (matrix, n) = (a.matrix, gpu.rows.len());
    check(
        operation,
        a.groups > 0 && matrix.rows.is_multiple_of(a.groups) && matrix.stack == 1,
        || format!("{} rows in {} groups, stack {}", matrix.rows, a.groups, matrix.stack),
        "the rows of a plain matrix make equal groups",
    )?;
    let weights = gpu.weights(operation, matrix)?;
    let x = gpu.f32(ask("x"), a.x, size(&[n, a.groups, matrix.columns]))?;
    let out = gpu.f32(ask("out"), a.out, size(&[n, matrix.rows]))?;
    gpu.counters.dense_bytes += weights.matrix_bytes;
    let shape = [n * a.groups, matrix.columns];
    let outputs = [(matrix, out)];
    let x = Input::Made(Inputs::default().get(gpu, weights.activation(), x, shape)?);
    let plain = Product::plain(operation, &outputs, x, n);
    product(gpu, &Product { groups: a.groups, ..plain })
}
