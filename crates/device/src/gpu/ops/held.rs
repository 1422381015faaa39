//! Q8_0 products of one row that have weights in shared memory before the row is there: which
//! kernel of `fast/staged_held.k` makes them, and how it is launched.

use super::super::arguments::ProductArgs;
use super::super::record::Place;
use super::super::text::pool_bytes;
use super::super::{Gpu, Shortcuts};
use crate::Error;
use ironstar_quant::Format;

/// Threads of a group: `HELD_THREADS`, and a simdgroup that copies.
const GROUP: u32 = 288;
/// `HELD_SLOTS`, and four bytes for each word of `HELD_INPUT`.
const SLOTS_MAX: u32 = 32;
const SIGNALS: u32 = 1024;
/// Columns are multiples of this, which a norm is made of once.
const COLUMNS: u32 = 1024;
const COLUMNS_MAX: u32 = 8192;
/// Rows of a piece: of a normed row, whose columns are few, and of blocks.
const ROWS: [u32; 2] = [8, 4];
/// Most bytes of a group's pieces: of larger matrices what is held would be little.
const BYTES_MAX: u32 = 1 << 20;
/// Bytes on their way to a multiprocessor while launches before still run: half of what keeps the
/// memory busy, so that it stays quick for them.
const COMING: u32 = 18 << 10;

/// A launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    name: &'static str,
    /// Rows of a piece.
    rows: u32,
    /// Groups along x.
    groups: u32,
    /// Pieces that a group holds, and how many are on their way at once.
    slots: u32,
    pace: u32,
    /// Whether the next launch is set up once all is asked for: what it asks for itself would
    /// otherwise come before what is needed first.
    late: bool,
}

/// The launch of a format for one row, of which blocks or what a norm makes is wanted, if this
/// device has a kernel for these matrices.
pub(super) fn plan(gpu: &Gpu, format: Format, normed: bool, a: &ProductArgs) -> Option<Plan> {
    let facts = gpu.driver.facts();
    let shape = a.columns.is_multiple_of(COLUMNS)
        && (COLUMNS..=COLUMNS_MAX).contains(&a.columns)
        && (!normed || a.columns == COLUMNS);
    let one = a.stacked == 0 && a.slots == 1 && a.per_row == 1 && (1..=65_535).contains(&a.groups);
    let able = format == Format::Q8_0 && facts.signals && !gpu.beside;
    if !(shape && one && able && gpu.takes(Shortcuts::HELD)) {
        return None;
    }
    let rows = ROWS[usize::from(!normed)];
    let runs: u32 = a.rows.iter().map(|all| all.div_ceil(rows)).sum();
    let each = runs.div_ceil((gpu.multiprocessors() / a.groups).max(1));
    let (bytes, head) = (rows * (a.columns + a.columns / 16), SIGNALS + a.columns + a.columns / 8);
    if each == 0 || each.checked_mul(bytes).is_none_or(|all| all > BYTES_MAX) {
        return None;
    }
    let low = head + each * bytes <= pool_bytes("held_low_q8_0");
    let name = match (normed, low) {
        (true, _) => "held_normed_q8_0",
        (false, true) => "held_low_q8_0",
        (false, false) => "held_q8_0",
    };
    let pool = pool_bytes(name);
    let slots = (pool.saturating_sub(head) / bytes).min(each).min(SLOTS_MAX);
    if slots == 0 || facts.group_bytes < pool {
        return None;
    }
    let pace = (COMING / bytes).clamp(1, slots);
    let late = name == "held_q8_0";
    Some(Plan { name, rows, groups: runs.div_ceil(each), slots, pace, late })
}

/// Records a planned launch; `places` as `decode.rs` has them.
pub(super) fn launch(
    gpu: &mut Gpu,
    plan: &Plan,
    places: &[Place],
    arguments: &mut ProductArgs,
) -> Result<(), Error> {
    arguments.run = plan.rows | plan.groups << 16;
    arguments.source |= plan.slots << 8 | plan.pace << 16 | u32::from(plan.late) << 24;
    let grid = [plan.groups, 1, arguments.groups];
    gpu.launch(plan.name, grid, GROUP, &places[..12], arguments)
}
