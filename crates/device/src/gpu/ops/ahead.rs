//! Products of one row whose weights are in shared memory before the row is there
//! (`fast/row_ahead.k`).

use super::super::arguments::ProductArgs;
use super::super::prepared::LEFT;
use super::super::record::Place;
use super::super::text::pool_bytes;
use super::super::{Gpu, Shortcuts, size};
use crate::Error;
use ironstar_quant::Format;

/// Threads of a group.
const GROUP: u32 = 256;
/// Kernels of a grouped product and of a plain one, their columns, and rows of a group.
const GROUPED: (&str, u32, u32) = ("ahead_q8_0_4096", 4096, 32);
const PLAIN: (&str, u32, u32) = ("ahead_q8_0_8192", 8192, 16);
/// That of a row whose norm is made on the way.
const NORMED: (&str, u32, u32) = ("ahead_normed_q8_0", 1024, 128);

/// Whether this device has a kernel for one row of a plain matrix.
fn fits(gpu: &Gpu, (name, columns, each): (&str, u32, u32), a: &ProductArgs) -> bool {
    let [rows, others @ ..] = a.rows;
    let plain = a.slots == 1 && a.stacked == 0 && a.planes_out == 1 && others == [0; 3];
    let room = gpu.driver.facts().group_bytes >= pool_bytes(name) && a.groups <= 65_535;
    plain
        && a.columns == columns
        && rows.is_multiple_of(each)
        && room
        && gpu.takes(Shortcuts::AHEAD)
}

/// Records the launch of a row in Q8_0 whose norm is made on the way, if this device has a kernel.
pub(super) fn launch_normed(
    gpu: &mut Gpu,
    places: &[Place],
    arguments: &ProductArgs,
) -> Result<bool, Error> {
    if !fits(gpu, NORMED, arguments) || arguments.groups != 1 {
        return Ok(false);
    }
    let own = [places[0], places[1], places[8], places[11]];
    gpu.launch(NORMED.0, [arguments.rows[0] / NORMED.2, 1, 1], GROUP, &own, arguments)?;
    Ok(true)
}

/// Records the launch, if this device has a kernel for one such row. A grouped product leaves
/// blocks of its result beside it, for the product that takes that.
pub(super) fn launch(
    gpu: &mut Gpu,
    operation: &'static str,
    format: Format,
    places: &[Place],
    arguments: &mut ProductArgs,
) -> Result<bool, Error> {
    let grouped = operation == "project_grouped";
    let kernel = if grouped { GROUPED } else { PLAIN };
    let (name, columns, each) = kernel;
    let (a, rows) = (&*arguments, arguments.rows[0]);
    if format != Format::Q8_0 || !fits(gpu, kernel, a) {
        if a.slots == 1 && a.stacked == 0 && (grouped || a.columns == columns) {
            let why = || format!("{format:?}, {rows} rows of {} columns", a.columns);
            gpu.goes_without(Shortcuts::AHEAD, operation, why)?;
        }
        return Ok(false);
    }
    let mut left = [Place::NONE; 2];
    // A rank's product of a part of K takes floats.
    if grouped && gpu.part().ranks == 1 {
        arguments.source = 1;
        left = gpu.prepare_narrow(
            places[1],
            [1, size(&[arguments.groups as usize, rows as usize])],
            LEFT,
        )?;
    }
    let own = [places[0], places[1], places[8], places[9], left[0], left[1]];
    gpu.launch(name, [rows / each, 1, arguments.groups], GROUP, &own, arguments)?;
    Ok(true)
}
