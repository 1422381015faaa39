//! Products of chosen experts with one slot after the other: when `fast/top_experts.k` and
//! `fast/top_pool.k` make them, and how these are launched.

use super::super::arguments::ProductArgs;
use super::super::record::Place;
use super::super::text::pool_bytes;
use super::super::{Gpu, SOME_ROWS, Shortcuts, check};
use crate::{Error, Matrix};
use ironstar_quant::Format;

/// Threads of a group, `CHOSEN_SET` of the kernels, and simdgroups of a group.
const GROUP: u32 = 512;
const SET: u32 = 4;
const SIMDGROUPS: u32 = 16;
/// How many sets of rows a simdgroup makes while a group is set up: it fills its tables and waits
/// for its input.
const START: u32 = 1;

/// The kernels of a format for so many columns, which are eight equal shards: the one whose weights
/// come by copies, and the one where they come to registers, which is no slower for one row.
fn kernels(format: Format, columns: usize) -> [Option<&'static str>; 2] {
    match (format, columns) {
        (Format::Iq2Xxs, 4096) => [Some("chosen_iq2_xxs_pooled"), Some("chosen_iq2_xxs")],
        (Format::Q2K, 2048) => [Some("chosen_q2_k_pooled"), Some("chosen_q2_k")],
        (Format::Q4K, 4096) => [None, Some("chosen_q4_k")],
        (Format::Q4K, 2048) => [None, Some("chosen_q4_k_last")],
        (Format::Mxfp4, 4096) => [Some("chosen_mxfp4_pooled"), None],
        (Format::Mxfp4, 2048) => [Some("chosen_mxfp4_last_pooled"), None],
        _ => [None; 2],
    }
}

/// Whether weights of a kernel come by copies.
fn copies(name: &str) -> bool {
    name.ends_with("_pooled")
}

/// Whether its groups activate gate and up themselves; others take blocks.
pub(super) fn activates(name: &str) -> bool {
    ["chosen_q2_k", "chosen_q4_k_last"].contains(&name.trim_end_matches("_pooled"))
}

/// The kernel for a step of so many rows, if this device has one for the matrix.
pub(super) fn takes(
    gpu: &Gpu,
    (format, columns): (Format, usize),
    rows: usize,
) -> Option<&'static str> {
    let able = |name: &&'static str| {
        (!activates(name) || gpu.takes(Shortcuts::STAGED))
            && (rows <= 1 || gpu.takes(Shortcuts::FEW))
            && (!copies(name) || gpu.takes(Shortcuts::POOLED))
            && gpu.driver.facts().group_bytes >= pool_bytes(name)
    };
    let [pooled, plain] = kernels(format, columns);
    let order = if rows > 1 { [pooled, plain] } else { [plain, pooled] };
    order.into_iter().flatten().find(able).filter(|_| rows <= SOME_ROWS)
}

/// Whether the last matrix of a step's experts has a kernel that activates gate and up itself.
pub(super) fn stages(
    gpu: &Gpu,
    operation: &'static str,
    matrix: Matrix,
    rows: usize,
) -> Result<bool, Error> {
    let format = gpu.weights(operation, matrix)?.format();
    Ok(takes(gpu, (format, matrix.columns), rows).is_some_and(activates))
}

/// Groups along x that share the sets of one slot: as many as end soonest, when a multiprocessor
/// has one group at a time.
fn groups(multiprocessors: u32, slots: u32, sets: u32) -> u32 {
    let time = |groups: u32| {
        let waves = slots.saturating_mul(groups).div_ceil(multiprocessors);
        waves.saturating_mul(sets.div_ceil(SIMDGROUPS * groups) + START)
    };
    let most = sets.div_ceil(SIMDGROUPS).min(multiprocessors).max(1);
    (1..=most).min_by_key(|groups| time(*groups)).unwrap_or(1)
}

/// Sets of rows of a slot.
fn sets(arguments: &ProductArgs) -> u32 {
    arguments.rows.iter().map(|rows| rows.div_ceil(SET)).sum()
}

/// Groups along x where a slot has groups of its own.
pub(super) fn groups_of(gpu: &Gpu, arguments: &ProductArgs) -> u32 {
    groups(gpu.room(), arguments.slots, sets(arguments))
}

/// The groups of a launch.
fn spread(gpu: &Gpu, name: &str, arguments: &mut ProductArgs) -> Result<[u32; 3], Error> {
    if !copies(name) {
        arguments.run = groups_of(gpu, arguments);
        return Ok([arguments.run, arguments.slots, 1]);
    }
    let sets = sets(arguments);
    let all = arguments.slots.checked_mul(sets).filter(|all| *all < 1 << 29);
    let found = || format!("{} slots of {sets} sets of rows", arguments.slots);
    check("experts", all.is_some(), found, "fewer than 2^29 in all")?;
    arguments.run = all.map_or(1, |all| gpu.room().min(all).max(1));
    Ok([arguments.run, 1, 1])
}

/// Records a launch; `places` as the other products have them.
pub(super) fn launch(
    gpu: &mut Gpu,
    name: &'static str,
    places: &[Place],
    arguments: &mut ProductArgs,
) -> Result<(), Error> {
    if gpu.rows.len() > 1 && ["chosen_iq2_xxs", "chosen_q2_k"].contains(&name) {
        let why = || "a group's shared memory is too small, or it is disabled".to_owned();
        gpu.goes_without(Shortcuts::POOLED, "experts", why)?;
    }
    let grid = spread(gpu, name, arguments)?;
    gpu.launch(name, grid, GROUP, &places[..12], arguments)
}

#[cfg(test)]
mod tests {
    use super::groups;

    /// A slot's gate and up, and its last matrix, are 1,024 sets of rows in Flash.
    #[test]
    fn groups_fill_the_card() {
        assert_eq!(groups(132, 6, 1024), 22, "one wave, three sets a simdgroup");
        assert_eq!(groups(132, 96, 1024), 4, "three waves");
        assert_eq!(groups(132, 1, 3), 1, "no group without a set");
        assert_eq!(groups(1, 6, 64), 1);
    }
}
