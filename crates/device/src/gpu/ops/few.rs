//! Products of two to some rows: when `fast/few.k` makes them, and how it is launched.

use super::super::arguments::ProductArgs;
use super::super::prepared::LEFT;
use super::super::record::Place;
use super::super::text::pool_bytes;
use super::super::{Gpu, SOME_ROWS, Shortcuts, size};
use super::decode::{Plan, UNROLL, integers};
use crate::Error;
use ironstar_quant::Format;

/// `SOME_SLOTS` and `SOME_PLACES` of the kernels.
pub(super) const SLOTS: usize = 8;
const PLACES: u32 = 1088;
/// More rows are better off on matrix units.
pub(super) const ROWS_MAX: usize = SOME_ROWS;

fn kernel(format: Format) -> Option<&'static str> {
    match format {
        Format::Q4_0 => Some("few_q4_0"),
        Format::Q8_0 => Some("few_q8_0"),
        Format::Q2K => Some("few_q2_k"),
        Format::Q4K => Some("few_q4_k"),
        Format::Iq2Xxs => Some("few_iq2_xxs"),
        Format::Mxfp4 => Some("few_mxfp4"),
        _ => None,
    }
}

/// The launch for so many tiles of slots, if this device has a kernel for these matrices.
pub(super) fn plan(gpu: &Gpu, format: Format, a: &ProductArgs, tiles: usize) -> Option<Plan> {
    let name = kernel(format)?;
    let room = gpu.driver.facts().group_bytes >= pool_bytes(name);
    if !gpu.takes(Shortcuts::FEW) || !room || a.groups > 65_535 || tiles > 65_535 {
        return None;
    }
    let slots = u32::try_from(tiles).ok()?;
    let plan = integers(gpu.multiprocessors(), format, &ProductArgs { slots, ..*a })?;
    let elements = u32::try_from(format.info().block_elements).ok()?;
    let pitch = (a.columns / elements).div_ceil(8) | 1;
    debug_assert!(plan.rows.is_multiple_of(UNROLL), "a run has whole turns of all threads");
    (plan.rows * 8 * pitch <= PLACES).then_some(Plan { name, ..plan })
}

/// `RING_RUN`, and a stage of four blocks in each of eight shards.
const TILE_RUN: u32 = 32;
const TILE_COLUMNS: u32 = 1024;
const TILE_GROUP: u32 = 256;

/// The launch on matrix units for all rows at once, if this device has a kernel for these matrices.
pub(super) fn tiles(gpu: &Gpu, format: Format, a: &ProductArgs) -> Option<Plan> {
    let name = "few_tiles_q8_0";
    let shape = a.columns.is_multiple_of(TILE_COLUMNS);
    let room = gpu.driver.facts().group_bytes >= pool_bytes(name);
    let able = format == Format::Q8_0 && shape && room && a.groups <= 65_535;
    if !able || !gpu.takes(Shortcuts::FEW) {
        return None;
    }
    let runs: u32 = a.rows.iter().map(|rows| rows.div_ceil(TILE_RUN)).sum();
    // A group has a multiprocessor for itself: one too many would wait for another's end.
    let groups = runs.min(gpu.room() / a.groups).max(1);
    Some(Plan { name, group: TILE_GROUP, rows: TILE_RUN, groups })
}

/// Records the launch of `tiles`. A grouped product leaves blocks of its result beside it, for the
/// product that takes that.
pub(super) fn launch_tiles(
    gpu: &mut Gpu,
    operation: &str,
    plan: &Plan,
    places: &[Place],
    arguments: &mut ProductArgs,
) -> Result<(), Error> {
    let mut own = [Place::NONE; 12];
    own[..10].copy_from_slice(&places[..10]);
    let [rows, others @ ..] = arguments.rows;
    // A rank's product of a part of K takes floats.
    let whole = gpu.part().ranks == 1
        && rows.is_multiple_of(TILE_RUN)
        && others == [0; 3]
        && arguments.planes_out == 1;
    if operation == "project_grouped" && whole {
        let columns = size(&[arguments.groups as usize, rows as usize]);
        arguments.source = 1;
        let left = gpu.prepare_narrow(own[1], [arguments.slots as usize, columns], LEFT)?;
        own[10..].copy_from_slice(&left);
    }
    launch_groups(gpu, plan, &own, arguments)
}

/// Records the launch of `floats`, or what is told of `tiles`.
pub(super) fn launch_groups(
    gpu: &mut Gpu,
    plan: &Plan,
    places: &[Place],
    arguments: &mut ProductArgs,
) -> Result<(), Error> {
    arguments.run = plan.groups;
    let grid = [plan.groups, 1, arguments.groups];
    gpu.launch(plan.name, grid, plan.group, places, arguments)
}

/// Rows of a run of `few_floats.k`: where there are enough of them to fill the device, and where
/// not.
const FLOAT_RUNS: [u32; 2] = [16, 4];
const FLOAT_GROUP: u32 = 256;
/// A unit of every shard; columns are whole ones.
const FLOAT_UNIT: u32 = 32;

/// The launch of half-width floats for all rows at once, if this device has a kernel for them.
pub(super) fn floats(gpu: &Gpu, format: Format, a: &ProductArgs) -> Option<Plan> {
    let names = match format {
        Format::F16 => ["few_f16", "few_f16_low"],
        Format::Bf16 => ["few_bf16", "few_bf16_low"],
        _ => return None,
    };
    let some = a.stacked == 0 && a.per_row == 1 && (2..=ROWS_MAX).contains(&(a.slots as usize));
    let able = some && a.columns.is_multiple_of(FLOAT_UNIT) && a.groups <= 65_535;
    if !able || !gpu.takes(Shortcuts::FEW) || !gpu.takes(Shortcuts::HALVES) {
        return None;
    }
    let runs = |each: u32| a.rows.iter().map(|rows| rows.div_ceil(each)).sum::<u32>();
    let full = u64::from(runs(FLOAT_RUNS[0])) * u64::from(a.groups);
    // Three groups for four multiprocessors do as much as more of the small ones.
    let idle = 4 * full < 3 * u64::from(gpu.multiprocessors());
    let low = usize::from(idle || a.rows.iter().all(|rows| *rows <= FLOAT_RUNS[1]));
    let (name, rows) = (names[low], FLOAT_RUNS[low]);
    let room = gpu.driver.facts().group_bytes >= pool_bytes(name);
    room.then_some(Plan { name, group: FLOAT_GROUP, rows, groups: runs(rows) })
}

/// Whether matrices of an FFN that so many slots of a step's rows meet have kernels.
pub(super) fn experts(gpu: &Gpu, matrices: [(Format, usize); 3], [n, slots]: [usize; 2]) -> bool {
    let able = |(format, columns): (Format, usize)| {
        let Ok(columns) = u32::try_from(columns) else { return false };
        let arguments = ProductArgs { columns, groups: 1, ..ProductArgs::default() };
        plan(gpu, format, &arguments, slots).is_some()
    };
    n <= ROWS_MAX && matrices.into_iter().all(able)
}

/// Records a planned launch; `places` as the other products have them.
pub(super) fn launch(
    gpu: &mut Gpu,
    plan: &Plan,
    places: &[Place],
    arguments: &mut ProductArgs,
    tiles: u32,
) -> Result<(), Error> {
    arguments.run = plan.rows | plan.groups << 16;
    let grid = [plan.groups, tiles, arguments.groups];
    gpu.launch(plan.name, grid, plan.group, places, arguments)
}
