//! Products of one row: which kernel of `fast/decode.k` makes them, and how it is launched.

use super::super::arguments::{ProductArgs, ShardsArgs};
use super::super::owed::Work;
use super::super::record::Place;
use super::super::{Gpu, SOME_ROWS, Scratch, Shortcuts, size, small};
use super::ROW_GROUP;
use crate::{Error, Matrix};
use ironstar_quant::{Activation, Format};

/// `DECODE_PLACES`, `DECODE_UNROLL`, `SHORT_COLUMNS`, `SHORT_TILE` and `SHARD_COLUMNS` of the
/// kernels.
const PLACES: u32 = 1280;
pub(super) const UNROLL: u32 = 4;
const SHORT_COLUMNS: u32 = 2048;
const SHORT_TILE: u32 = 17_408;
const SHARD_COLUMNS_MAX: usize = 3584;
/// Most units of sixteen bytes of a row: a thread of a group each.
const UNITS_MAX: u32 = 512;
/// Groups that keep a large card busy; small float products are cut finer.
const RUNS: u64 = 128;
/// Most rows of a group of floats.
const FLOAT_ROWS_MAX: u64 = 4;
/// Shards of a row.
const SHARDS: usize = 8;

/// A launch of a decode kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Kernel.
    pub name: &'static str,
    /// Threads of a group.
    pub group: u32,
    /// Rows of a run.
    pub rows: u32,
    /// Groups along x; each makes every so many-th run.
    pub groups: u32,
}

/// The kernel of a format, units of sixteen bytes of a block, and how many groups of 256 and of 512
/// threads a multiprocessor holds by the kernel's registers (`cargo xtask kernel-check` records
/// them).
fn integer_kernel(format: Format) -> Option<(&'static str, u32, [u32; 2])> {
    match format {
        Format::Q4_0 => Some(("decode_q4_0", 1, [3, 1])),
        Format::Q8_0 => Some(("decode_q8_0", 2, [4, 2])),
        Format::Q2K => Some(("decode_q2_k", 4, [2, 1])),
        Format::Q4K => Some(("decode_q4_k", 8, [2, 1])),
        Format::Iq2Xxs => Some(("decode_iq2_xxs", 4, [3, 1])),
        Format::Mxfp4 => Some(("decode_mxfp4", 1, [3, 1])),
        _ => None,
    }
}

fn runs(a: &ProductArgs, rows: u32) -> u32 {
    a.rows.iter().map(|all| all.div_ceil(rows)).sum()
}

/// The launch of a format with integer blocks, one slot after another.
pub(super) fn integers(multiprocessors: u32, format: Format, a: &ProductArgs) -> Option<Plan> {
    let (name, units, resident) = integer_kernel(format)?;
    let elements = u32::try_from(format.info().block_elements).ok()?;
    let blocks = a.columns / elements;
    let threads = (blocks * units).next_power_of_two().max(32);
    if threads > UNITS_MAX {
        return None;
    }
    let group = threads.max(256);
    let rows = UNROLL * (group / threads);
    let pitch = blocks.div_ceil(8) | 1;
    if rows * 8 * pitch > PLACES {
        return None;
    }
    let resident = multiprocessors * resident[usize::from(group > 256)];
    let each = (resident / a.slots.saturating_mul(a.groups).max(1)).clamp(1, 1 << 15);
    Some(Plan { name, group, rows, groups: runs(a, rows).min(each) })
}

fn floats(format: Format, a: &ProductArgs) -> Option<Plan> {
    let names = match format {
        Format::F16 => ["decode_f16", "decode_f16_short"],
        Format::Bf16 => ["decode_bf16", "decode_bf16_short"],
        _ => return None,
    };
    if !a.columns.is_multiple_of(32) {
        return None;
    }
    if a.columns <= SHORT_COLUMNS && a.columns.is_multiple_of(256) {
        let rows = SHORT_TILE / (8 * 16 * ((a.columns / 64) | 1));
        return Some(Plan { name: names[1], group: 128, rows, groups: runs(a, rows) });
    }
    let all: u64 = a.rows.iter().map(|rows| u64::from(*rows)).sum();
    let all = all * u64::from(a.slots) * u64::from(a.groups);
    // The largest power of two that is within both.
    let rows = 1u32 << (all / RUNS).clamp(1, FLOAT_ROWS_MAX).ilog2();
    Some(Plan { name: names[0], group: ROW_GROUP, rows, groups: runs(a, rows) })
}

/// The launch for one row (or one slot after another) of these matrices, if there is a kernel.
pub(super) fn plan(multiprocessors: u32, format: Format, a: &ProductArgs) -> Option<Plan> {
    if a.slots > 65_535 || a.groups > 65_535 {
        return None;
    }
    match format.info().activation {
        Activation::F32 => floats(format, a),
        _ => integers(multiprocessors, format, a),
    }
}

/// Records a planned launch; `places` as the other products have them.
pub(super) fn launch(
    gpu: &mut Gpu,
    plan: &Plan,
    places: &[Place],
    arguments: &mut ProductArgs,
) -> Result<(), Error> {
    // Float kernels do not read the groups, which may be more than fit.
    arguments.run = plan.rows | plan.groups << 16;
    let grid = [plan.groups, arguments.slots, arguments.groups];
    // Behind the experts' ids is what scales the slots of a staged input.
    gpu.launch(plan.name, grid, plan.group, &places[..12], arguments)
}

/// Runs of a group from which on there are several groups in its place, and how many.
const LONG_RUNS: u32 = 32;
const LONG_WAVES: u32 = 6;

/// Most columns whose blocks a group holds; `STAGED_COLUMNS` of the kernels.
const STAGED_COLUMNS: usize = 8192;

/// Floats of which the groups of a product for one row make its int8 blocks themselves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Staged {
    /// The activation of gate and up, times a weight for each slot; a row of the matrix meets it so
    /// many times (`part.rs`).
    Activated { gate: Place, up: Place, gains: Option<Place>, limit: f32, ways: u32 },
    /// The floats as they are, so many times.
    Plain { x: Place, ways: u32 },
    /// What a norm makes of them, which is owed.
    Normed { x: Place, weight: Place, eps: f32 },
}

impl Staged {
    /// Puts what is read where kernels look for it; what a norm makes is not theirs to settle.
    pub fn put(self, places: &mut [Place; 13], arguments: &mut ProductArgs) {
        arguments.width = arguments.columns;
        match self {
            Staged::Activated { gate, up, gains, limit, ways } => {
                arguments.width /= ways.max(1);
                places[8..10].copy_from_slice(&[gate, up]);
                places[11] = gains.unwrap_or(Place::NONE);
                arguments.source = if gains.is_some() { 2 } else { 1 };
                arguments.bound = limit;
            }
            Staged::Plain { x, ways } => {
                arguments.width /= ways.max(1);
                places[8] = x;
            }
            Staged::Normed { x, weight, eps } => {
                places[8] = x;
                places[11] = weight;
                arguments.bound = eps;
            }
        }
    }
}

fn staged_kernel(format: Format) -> Option<&'static str> {
    match format {
        Format::Q8_0 => Some("staged_q8_0"),
        Format::Q2K => Some("staged_q2_k"),
        Format::Q4K => Some("staged_q4_k"),
        Format::Iq2Xxs => Some("staged_iq2_xxs"),
        _ => None,
    }
}

/// The launch for one row of so many columns, which does not depend on the rows of the matrix.
fn plan_of_columns(
    gpu: &Gpu,
    operation: &'static str,
    format: Format,
    columns: usize,
) -> Result<Option<Plan>, Error> {
    let columns = small(operation, columns)?;
    let arguments = ProductArgs { columns, slots: 1, groups: 1, ..ProductArgs::default() };
    Ok(plan(gpu.room(), format, &arguments))
}

/// Whether this matrix has a kernel for one row that activates gate and up itself.
pub(super) fn stages(gpu: &Gpu, operation: &'static str, matrix: Matrix) -> Result<bool, Error> {
    let format = gpu.weights(operation, matrix)?.format();
    Ok(gpu.takes(Shortcuts::STAGED)
        && staged_kernel(format).is_some()
        && matrix.columns <= STAGED_COLUMNS
        && plan_of_columns(gpu, operation, format, matrix.columns)?.is_some())
}

/// A row as the input of products that make its blocks themselves, if they all can and nobody has
/// left them; the matrices' rows meet it so many times.
pub(super) fn stages_row(
    gpu: &Gpu,
    operation: &'static str,
    x: Place,
    activation: Activation,
    outputs: &[(Matrix, Place)],
    ways: usize,
) -> Result<Option<Staged>, Error> {
    let Some((first, _)) = outputs.first() else { return Ok(None) };
    let made = gpu.prepared(x, activation, [1, first.columns]).is_some();
    if made || !gpu.takes(Shortcuts::STAGED) {
        return Ok(None);
    }
    for (matrix, _) in outputs {
        if gpu.weights(operation, *matrix)?.format() != Format::Q8_0 {
            return Ok(None);
        }
    }
    let Some(plan) = plan_of_columns(gpu, operation, Format::Q8_0, first.columns)? else {
        return Ok(None);
    };
    let Some(owed) = gpu.owed_of(x) else {
        return Ok(Some(Staged::Plain { x, ways: small(operation, ways)? }));
    };
    Ok(match owed.work {
        Work::Norm { weight, arguments }
            if ways == 1
                && plan.group == ROW_GROUP
                && arguments.width as usize == first.columns =>
        {
            Some(Staged::Normed { x, weight, eps: arguments.eps })
        }
        _ => None,
    })
}

/// Records a planned launch whose groups make their input's blocks.
pub(super) fn launch_staged(
    gpu: &mut Gpu,
    format: Format,
    plan: &Plan,
    staged: Staged,
    mut places: [Place; 13],
    arguments: &mut ProductArgs,
) -> Result<(), Error> {
    let mut groups = plan.groups;
    staged.put(&mut places, arguments);
    let name = match staged {
        Staged::Activated { .. } => staged_kernel(format).expect("`stages` asked for the same"),
        Staged::Plain { .. } => {
            // Of a long matrix some multiprocessors have read their part much earlier than others:
            // groups that come later even that out.
            if runs(arguments, plan.rows) >= LONG_RUNS * groups {
                groups = (groups * LONG_WAVES).min(65_535);
            }
            "floats_q8_0"
        }
        Staged::Normed { x, .. } => {
            gpu.take_along(x);
            if super::ahead::launch_normed(gpu, &places, arguments)? {
                return Ok(());
            }
            // Key rows are made meanwhile, and shall not wait for a place.
            groups -= groups / 4;
            "normed_q8_0"
        }
    };
    launch(gpu, &Plan { name, groups, ..*plan }, &places, arguments)
}

/// The kernel that makes the shards of a wide half-width matrix times few rows, if it is one.
pub(super) fn shards_kernel(
    gpu: &Gpu,
    operation: &'static str,
    matrix: Matrix,
    rows: usize,
) -> Result<Option<&'static str>, Error> {
    let name = match gpu.weights(operation, matrix)?.format() {
        Format::F16 => "shards_f16",
        Format::Bf16 => "shards_bf16",
        _ => return Ok(None),
    };
    let longest = 32 * (matrix.columns / 32).div_ceil(SHARDS);
    let fits = matrix.columns.is_multiple_of(32)
        && longest <= SHARD_COLUMNS_MAX
        && (rows <= 1 || (rows <= SOME_ROWS && gpu.takes(Shortcuts::FEW)));
    Ok(fits.then_some(name))
}

/// `[rows, matrix.rows, 8]`: those shards.
pub(super) fn shards(
    gpu: &mut Gpu,
    operation: &'static str,
    matrix: Matrix,
    x: Place,
    rows: usize,
) -> Result<Option<Place>, Error> {
    let Some(name) = shards_kernel(gpu, operation, matrix, rows)? else { return Ok(None) };
    let weights = gpu.weights(operation, matrix)?;
    let out = gpu.scratch(Scratch::Mixes, size(&[rows, matrix.rows, SHARDS, 4]))?;
    let (all, columns) = (small(operation, matrix.rows)?, small(operation, matrix.columns)?);
    let arguments = ShardsArgs { rows: all, columns };
    let grid = [8, arguments.rows.div_ceil(4), small(operation, rows)?];
    let places = [Place::At(weights.address), x, out];
    gpu.launch(name, grid, ROW_GROUP, &places, &arguments)?;
    Ok(Some(out))
}

#[cfg(test)]
mod tests;
