//! Products of F16 matrices on matrix units (`tiles_halves.k`, `fast/halves.k`): which products
//! those are, and how they are launched.

use super::super::arguments::{AddShardsArgs, ProductArgs, SplitArgs};
use super::super::record::Place;
use super::super::text::pool_bytes;
use super::super::{Gpu, SOME_ROWS, Scratch, Shortcuts, size, small};
use super::{GROUP, ROW_GROUP, SIMDGROUPS};
use crate::Error;
use ironstar_quant::Format;

/// A unit of 32 columns in each of eight shards.
const COLUMNS: usize = 256;
const SHARDS: usize = 8;
/// `HALVES_ONE_COLUMNS`: most columns of a row that a group splits itself.
const ONE_COLUMNS_MAX: u32 = 8192;
/// `HALVES_UNITS` of 256 columns, and rows of a run whose weights a group has ahead.
const AHEAD: [u32; 2] = [16 * 256, 2];
/// Groups of the kernel for one row that a multiprocessor holds, and most that its arguments say.
const GROUPS_EACH: u32 = 2;
const GROUPS_MAX: u32 = 65_535;
/// Bytes of `parts` of kernels of few rows, beside the pool.
const PARTS: u32 = 4 * 128 * 17;
/// Most rows of weights of a run, and slots of an operand.
const RUN: u32 = 16;
const SLOTS: u32 = 16;
/// Rows and slots of a tile; `16 N` and `64 M` of the kernels.
const LOW: (&str, u32) = ("halves_low", 64);
const TALL: (&str, u32) = ("halves_tall", 128);
/// Slots of a tile of `tiles_halves_four.k`, and kernels with their rows and threads, taller first.
const FOUR_SLOTS: u32 = 128;
const FOUR: [(&str, u32, u32); 2] = [("halves_four", 128, 256), ("halves_four_low", 64, 128)];
/// Of so many multiprocessors one should have a group.
const FOUR_SPARSE: u32 = 3;
/// Two units of 32 columns in each of eight shards.
const FOUR_COLUMNS: u32 = 512;

/// Whether these products are made on matrix units, whatever the number of rows: an operation's
/// product of a shape has one definition. The exact mode has floats.
pub(super) fn takes(gpu: &Gpu, operation: &str, format: Format, columns: usize) -> bool {
    operation == "project"
        && format == Format::F16
        && !gpu.config.float_products
        && columns > 0
        && columns.is_multiple_of(COLUMNS)
}

/// Rows as operands and the factors of their shards, and whether it is `tiles_halves_four.k` that
/// they were made for.
pub(super) type Split = Option<(bool, [Place; 2])>;

/// Records the product of `x` [slots, columns]; `split` keeps the halves of it that a product of
/// the same rows before made.
pub(super) fn launch(
    gpu: &mut Gpu,
    x: Place,
    split: &mut Split,
    places: &mut [Place; 13],
    arguments: &mut ProductArgs,
) -> Result<(), Error> {
    if arguments.slots == 1 && arguments.columns <= ONE_COLUMNS_MAX {
        places[8] = x;
        return launch_one(gpu, places, arguments);
    }
    if let Some((name, rows, group)) = four(gpu, arguments) {
        let made = match *split {
            Some((true, made)) => made,
            _ => split.insert((true, made_for_four(gpu, x, arguments)?)).1,
        };
        places[8..10].copy_from_slice(&made);
        let all = arguments.slots.div_ceil(FOUR_SLOTS).saturating_mul(runs(arguments, rows));
        let onward = gpu.takes(Shortcuts::ONWARD);
        arguments.run = if onward { all.min(gpu.multiprocessors()) } else { all };
        return gpu.launch(name, [arguments.run, 1, 1], group, places, arguments);
    }
    let made = match *split {
        Some((false, made)) => made,
        _ => split.insert((false, made_of(gpu, x, arguments)?)).1,
    };
    places[8..10].copy_from_slice(&made);
    let Some((name, side)) = tile(gpu, arguments) else {
        let groups = cut(gpu.multiprocessors(), arguments);
        let grid = [groups, arguments.slots.div_ceil(SLOTS), 1];
        let ring = gpu.driver.facts().group_bytes >= pool_bytes("halves_ring") + PARTS;
        let name = if ring { "halves_ring" } else { "halves_few" };
        return gpu.launch(name, grid, ROW_GROUP, places, arguments);
    };
    let grid = [arguments.slots.div_ceil(side), runs(arguments, side), 1];
    let one = arguments.rows[1..] == [0; 3] && arguments.planes_out == 1;
    if one && name == LOW.0 && grid[0] * grid[1] <= gpu.multiprocessors() {
        return launch_apart(gpu, grid, places, arguments);
    }
    gpu.launch(name, grid, ROW_GROUP, places, arguments)
}

/// Tiles that would leave a multiprocessor with one group at most, which waits for its own copies:
/// each shard of a tile has a group of its own, and another launch adds the shards.
fn launch_apart(
    gpu: &mut Gpu,
    [tiles, runs, _]: [u32; 3],
    places: &[Place; 13],
    arguments: &ProductArgs,
) -> Result<(), Error> {
    let (rows, slots) = (arguments.rows[0], arguments.slots);
    let all = small("project", size(&[rows as usize, slots as usize]))?;
    let shards = gpu.scratch(Scratch::SplitShards, size(&[all as usize, SHARDS, 4]))?;
    let mut apart = *places;
    apart[1] = shards;
    gpu.launch("halves_apart", [tiles, runs, 8], ROW_GROUP, &apart, arguments)?;
    let sums = AddShardsArgs { rows, slots };
    gpu.launch("add_shards", [all.div_ceil(GROUP), 1, 1], GROUP, &[shards, places[1]], &sums)
}

/// One row: each group has all weights of one run ahead, or groups go on from run to run.
fn launch_one(gpu: &mut Gpu, places: &[Place], arguments: &mut ProductArgs) -> Result<(), Error> {
    let all = cut(gpu.room(), arguments);
    let most = GROUPS_EACH * gpu.room();
    let [columns, rows] = AHEAD;
    let short = runs(arguments, rows);
    if arguments.columns <= columns && short <= most {
        arguments.run = rows;
        return gpu.launch("halves_ahead", [short, 1, 1], ROW_GROUP, places, arguments);
    }
    let groups = all.min(most).min(GROUPS_MAX);
    arguments.run |= groups << 16;
    gpu.launch("halves_one", [groups, 1, 1], ROW_GROUP, places, arguments)
}

/// Bytes of so many rows as operands, whole ones, and of the factors of their shards.
pub(in super::super) fn room(rows: usize, columns: usize) -> [usize; 2] {
    let rows = rows.next_multiple_of(SLOTS as usize);
    [size(&[rows, columns, 4]), size(&[rows, SHARDS, 4])]
}

/// Whether a mix of so many rows leaves these operands: where sections of its groups are shards.
pub(super) fn left(gpu: &Gpu, rows: usize, width: usize) -> bool {
    (2..=SOME_ROWS).contains(&rows) && [1024, 4096].contains(&width) && !gpu.config.float_products
}

/// Rows as operands and the factors of their shards.
fn made_of(gpu: &mut Gpu, x: Place, a: &ProductArgs) -> Result<[Place; 2], Error> {
    let (slots, columns) = (a.slots as usize, a.columns as usize);
    if let Some(made) = gpu.prepared_halves(x, [slots, columns]) {
        return Ok(made);
    }
    let rows = a.slots.div_ceil(SLOTS) * SLOTS;
    let [operands, factors] = room(slots, columns);
    let made = [
        gpu.scratch(Scratch::SplitHalves, operands)?,
        gpu.scratch(Scratch::SplitFactors, factors)?,
    ];
    // A simdgroup makes a shard of two rows.
    let shards = small("project", size(&[rows as usize / 2, SHARDS]))?;
    let grid = [shards.div_ceil(SIMDGROUPS), 1, 1];
    let arguments = SplitArgs { rows: a.slots, columns: a.columns };
    gpu.launch("halves_split", grid, GROUP, &[x, made[0], made[1]], &arguments)?;
    Ok(made)
}

/// The same for `tiles_halves_four.k`, whole tiles of them.
fn made_for_four(gpu: &mut Gpu, x: Place, a: &ProductArgs) -> Result<[Place; 2], Error> {
    let rows = (a.slots as usize).next_multiple_of(FOUR_SLOTS as usize);
    let [operands, factors] = room(rows, a.columns as usize);
    let made = [
        gpu.scratch(Scratch::SplitHalves, operands)?,
        gpu.scratch(Scratch::SplitFactors, factors)?,
    ];
    // A simdgroup makes a shard of eight rows.
    let grid = [small("project", size(&[rows / 8, SHARDS]))?.div_ceil(SIMDGROUPS), 1, 1];
    let arguments = SplitArgs { rows: a.slots, columns: a.columns };
    gpu.launch("halves_split_four", grid, GROUP, &[x, made[0], made[1]], &arguments)?;
    Ok(made)
}

/// The kernel of `tiles_halves_four.k` whose tiles leave few multiprocessors idle, its rows and
/// threads.
fn four(gpu: &Gpu, a: &ProductArgs) -> Option<(&'static str, u32, u32)> {
    let facts = gpu.driver.facts();
    let each = gpu.multiprocessors();
    let tiles = |rows: u32| u64::from(a.slots.div_ceil(FOUR_SLOTS)) * u64::from(runs(a, rows));
    let [(_, tall, _), (_, low, _)] = FOUR;
    let able = |(name, rows, _): &(&str, u32, u32)| {
        let (least, fits) = match *rows == tall {
            true => (each, runs(a, tall) < runs(a, low)),
            false => (each.div_ceil(FOUR_SPARSE), true),
        };
        fits && facts.group_bytes >= pool_bytes(name) && tiles(*rows) >= u64::from(least)
    };
    let whole = a.columns.is_multiple_of(FOUR_COLUMNS) && runs(a, low) <= 65_535;
    let many = facts.signals && a.slots > SLOTS && whole;
    FOUR.into_iter().find(able).filter(|_| many && gpu.takes(Shortcuts::FOUR))
}

fn runs(a: &ProductArgs, rows: u32) -> u32 {
    a.rows.iter().fold(0, |sum: u32, all| sum.saturating_add(all.div_ceil(rows)))
}

/// Cuts the rows into runs that fill so many multiprocessors, if they can: how many there are.
fn cut(multiprocessors: u32, a: &mut ProductArgs) -> u32 {
    a.run = RUN;
    while a.run > 2 && runs(a, a.run) < multiprocessors {
        a.run /= 2;
    }
    runs(a, a.run)
}

/// The tiles for so many rows, and their side.
fn tile(gpu: &Gpu, a: &ProductArgs) -> Option<(&'static str, u32)> {
    let room = |(name, _): (&str, u32)| gpu.driver.facts().group_bytes >= pool_bytes(name);
    let many = a.slots > SLOTS && runs(a, LOW.1) <= 65_535;
    let fills = |side: u32| u64::from(a.slots.div_ceil(side)) * u64::from(runs(a, side));
    let tall = room(TALL) && fills(TALL.1) >= u64::from(gpu.multiprocessors());
    many.then_some(if tall { TALL } else { LOW }).filter(|tile| room(*tile))
}

#[cfg(test)]
mod tests;
