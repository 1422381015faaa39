//! Products of chosen experts with one slot after the other: when `fast/top_experts.k` makes them,
//! and how it is launched.

use super::super::arguments::ProductArgs;
use super::super::record::Place;
use super::super::text::pool_bytes;
use super::super::{Gpu, SOME_ROWS, Shortcuts};
use crate::{Error, Matrix};
use ironstar_quant::Format;

/// Threads of a group, `CHOSEN_SET` of the kernels, and simdgroups of a group.
const GROUP: u32 = 512;
const SET: u32 = 4;
const SIMDGROUPS: u32 = 16;
/// How many sets of rows a simdgroup makes while a group is set up: it fills its tables and waits
/// for its input.
const START: u32 = 1;

/// The kernel of a format for so many columns, which are eight equal shards.
fn kernel(format: Format, columns: usize) -> Option<&'static str> {
    match (format, columns) {
        (Format::Iq2Xxs, 4096) => Some("chosen_iq2_xxs"),
        (Format::Q2K, 2048) => Some("chosen_q2_k"),
        (Format::Q4K, 4096) => Some("chosen_q4_k"),
        (Format::Q4K, 2048) => Some("chosen_q4_k_last"),
        _ => None,
    }
}

/// Whether its groups activate gate and up themselves; others take blocks.
pub(super) fn activates(name: &str) -> bool {
    ["chosen_q2_k", "chosen_q4_k_last"].contains(&name)
}

/// The kernel for a step of so many rows, if this device has one for the matrix.
pub(super) fn takes(
    gpu: &Gpu,
    (format, columns): (Format, usize),
    rows: usize,
) -> Option<&'static str> {
    let name = kernel(format, columns)?;
    let able = (!activates(name) || gpu.takes(Shortcuts::STAGED))
        && (rows <= 1 || gpu.takes(Shortcuts::FEW))
        && gpu.driver.facts().group_bytes >= pool_bytes(name);
    (rows <= SOME_ROWS && able).then_some(name)
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

/// The groups of a launch.
fn spread(gpu: &Gpu, arguments: &mut ProductArgs) -> [u32; 3] {
    let sets = arguments.rows.iter().map(|rows| rows.div_ceil(SET)).sum();
    arguments.run = groups(gpu.room(), arguments.slots, sets);
    [arguments.run, arguments.slots, 1]
}

/// Records a launch; `places` as the other products have them.
pub(super) fn launch(
    gpu: &mut Gpu,
    name: &'static str,
    places: &[Place],
    arguments: &mut ProductArgs,
) -> Result<(), Error> {
    let grid = spread(gpu, arguments);
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
