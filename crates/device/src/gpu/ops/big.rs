//! Products of very many rows on the large tiles of `tiles_big.k`, `tiles_flow.k`,
//! `tiles_direct.k`, `tiles_wide.k`
//! and `tiles_float.k`: when, and with what launch.

use super::super::arguments::{ProductArgs, QuantiseArgs};
use super::super::record::Place;
use super::super::text::pool_bytes;
use super::super::{Gpu, Scratch, Shortcuts, size, small};
use super::ROW_GROUP;
use crate::Error;
use ironstar_quant::Format;

/// From so many rows on, kernels for many rows make the inputs ready.
pub(super) const ROWS_MIN: usize = 32;
/// Fewer slots are better off in the smaller tiles.
const SLOTS_MIN: usize = 128;
/// Slots an expert, on average, that are worth the decoding of its weights for a large tile.
const SLOTS_EACH: usize = 12;
/// Fewer rows are better off in low float tiles.
const TALL_MIN: usize = 128;
/// Rows and slots of an integer tile; `BIG` of the kernels.
const ROWS: u32 = 128;
pub(super) const SLOTS: usize = 128;
/// Rows of one where a multiprocessor holds several groups.
const FLOW_ROWS: u32 = 64;
/// Rows of a lean one.
const LEAN_ROWS: u32 = 192;
/// Slots of a slim one, and how many of an expert, on average, are better off there: 48 are a third
/// faster, and 12 were not; where weights go straight to registers, fewer are too, and up to 96.
const SLIM: usize = 64;
const SLIM_EACH: [usize; 2] = [32, 56];
const LEAN_EACH: [usize; 2] = [SLOTS_EACH, 112];
/// Rows of a float tile, low and tall, and `FLOATS_SLOTS` of the kernels.
const FLOAT_ROWS: [u32; 2] = [64, 128];
const FLOAT_SLOTS: usize = 32;
/// `FEW_ROWS` and `FEW_SLOTS` of the kernels.
const FEW_ROWS: u32 = 32;
const FEW_SLOTS: usize = 128;

/// Kernels for tall tiles, and those whose threads have pairs.
const TALL_PAIRS: [(&str, &str); 2] =
    [("big_f16_tall", "big_f16_pairs"), ("big_bf16_tall", "big_bf16_pairs")];
/// For plain products of Q8_0 where a barrier has two halves.
const WIDE_Q8_0: &str = "wide_q8_0";

/// A kernel for large tiles, and what its launch needs to know.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    pub name: &'static str,
    /// Threads of a group.
    pub group: u32,
    /// Rows and slots of a tile.
    rows: u32,
    pub slots: usize,
    /// Whether it multiplies floats.
    float: bool,
    /// Groups that a multiprocessor should have shared memory for.
    together: u32,
    /// Whether it takes weights from registers (`tiles_direct.k`, `tiles_lean.k`): its groups go on
    /// from tile to tile.
    direct: bool,
}

impl Kernel {
    /// A kernel for integers, of which a multiprocessor should have shared memory for `together`
    /// groups.
    const fn integers(
        name: &'static str,
        group: u32,
        rows: u32,
        slots: usize,
        together: u32,
    ) -> Self {
        Kernel { name, group, rows, slots, float: false, together, direct: false }
    }

    /// One for floats.
    const fn floats(name: &'static str, rows: u32, slots: usize) -> Self {
        Kernel { name, group: 256, rows, slots, float: true, together: 1, direct: false }
    }
}

/// The kernels for matrices of this format and width, the better ones first: every shard of K has
/// whole steps, of 128 elements for integers and of 32 for floats.
fn kernels(format: Format, columns: usize) -> Option<[Kernel; 2]> {
    let whole = |multiple| columns > 0 && columns.is_multiple_of(multiple);
    let integers = |multiple, group, names: [&'static str; 2]| {
        whole(multiple).then(|| names.map(|name| Kernel::integers(name, group, ROWS, SLOTS, 1)))
    };
    let flows = |[flow, big]: [&'static str; 2]| {
        whole(256).then(|| {
            [
                Kernel::integers(flow, 256, FLOW_ROWS, SLOTS, 2),
                Kernel::integers(big, 512, ROWS, SLOTS, 1),
            ]
        })
    };
    let floats = |names: [&'static str; 2]| {
        let kernel = |i: usize| Kernel::floats(names[i], FLOAT_ROWS[i], FLOAT_SLOTS);
        // A tall tile takes twice as many columns at a time.
        whole(256).then(|| [kernel(usize::from(whole(512))), kernel(0)])
    };
    match format {
        Format::Q8_0 => integers(1024, 256, ["big_q8_0_pooled", "big_q8_0"]),
        Format::Mxfp4 => integers(1024, 512, ["big_mxfp4_pooled", "big_mxfp4"]),
        Format::Q2K => flows(["flow_q2_k", "big_q2_k"]),
        Format::Q4K => integers(256, 512, ["big_q4_k_pooled", "big_q4_k"]),
        Format::Iq2Xxs => flows(["flow_iq2_xxs", "big_iq2_xxs"]),
        Format::F16 => floats(["big_f16", "big_f16_tall"]),
        Format::Bf16 => floats(["big_bf16", "big_bf16_tall"]),
        _ => None,
    }
}

/// The kernel, if this device can run one; `rows` are the fewest of a matrix.
fn able(gpu: &Gpu, format: Format, [columns, rows]: [usize; 2]) -> Option<Kernel> {
    if let Some(kernel) = direct(gpu, format, columns, SLOTS) {
        return Some(kernel);
    }
    let facts = gpu.driver.facts();
    let fits = |kernel: &Kernel| {
        facts.group_bytes >= room(kernel)
            && facts.group_max >= kernel.group
            // A tall tile of few rows would be empty for the most part.
            && (!kernel.float || kernel.rows == FLOAT_ROWS[0] || rows >= TALL_MIN)
    };
    let kernel = kernels(format, columns)?.into_iter().find(fits)?;
    // Those whose threads have pairs of rows and slots need the same.
    let pairs = TALL_PAIRS.iter().find(|(name, _)| *name == kernel.name);
    let pairs = pairs.filter(|_| gpu.takes(Shortcuts::PAIRS));
    Some(Kernel { name: pairs.map_or(kernel.name, |(_, pairs)| pairs), ..kernel })
}

/// The kernel for tiles of so many slots whose weights go straight to matrices' registers.
fn direct(gpu: &Gpu, format: Format, columns: usize, slots: usize) -> Option<Kernel> {
    let lean = slots == SLIM;
    let name = match (format, lean) {
        (Format::Q2K, true) => "lean_q2_k",
        (Format::Q2K, false) => "direct_q2_k",
        (Format::Iq2Xxs, true) => "lean_iq2_xxs",
        (Format::Iq2Xxs, false) => "direct_iq2_xxs",
        _ => return None,
    };
    let (group, rows) = if lean { (512, LEAN_ROWS) } else { (256, ROWS) };
    let kernel = Kernel { direct: true, ..Kernel::integers(name, group, rows, slots, 1) };
    let facts = gpu.driver.facts();
    let fits = facts.signals && facts.group_bytes >= room(&kernel);
    (fits && gpu.takes(Shortcuts::DIRECT) && columns > 0 && columns.is_multiple_of(256))
        .then_some(kernel)
}

/// The kernel for tiles of few slots.
fn slim(gpu: &Gpu, format: Format, columns: usize) -> Option<Kernel> {
    if let Some(kernel) = direct(gpu, format, columns, SLIM) {
        return Some(kernel);
    }
    let name = match format {
        Format::Q2K => "slim_q2_k",
        Format::Iq2Xxs => "slim_iq2_xxs",
        _ => return None,
    };
    let kernel = Kernel::integers(name, 256, ROWS, SLIM, 2);
    let fits = gpu.driver.facts().group_bytes >= room(&kernel);
    (fits && columns > 0 && columns.is_multiple_of(256)).then_some(kernel)
}

/// Whether so many slots of so many experts are better off in slim tiles.
fn slim_pays(gpu: &Gpu, slots: usize, stack: usize) -> bool {
    let lean = gpu.driver.facts().signals && gpu.takes(Shortcuts::DIRECT);
    let [least, most] = if lean { LEAN_EACH } else { SLIM_EACH };
    (least * stack..=most * stack).contains(&slots)
}

/// Shared memory that a multiprocessor should have for a kernel's groups.
fn room(kernel: &Kernel) -> u32 {
    kernel.together * pool_bytes(kernel.name)
}

/// Columns, and the fewest rows of a matrix of a launch.
fn shape(a: &ProductArgs) -> [usize; 2] {
    let rows = a.rows.iter().filter(|rows| **rows > 0).min();
    [a.columns as usize, rows.map_or(0, |rows| *rows as usize)]
}

/// Whether the inputs' offsets are bytes of 32 bits.
fn near(a: &ProductArgs) -> bool {
    let inputs = u64::from(a.slots) * u64::from(a.groups) / u64::from(a.per_row.max(1));
    inputs * u64::from(a.columns) <= u64::from(u32::MAX)
}

/// The kernel for a plain product, if it has slots enough.
pub(super) fn plain(gpu: &Gpu, format: Format, a: &ProductArgs) -> Option<Kernel> {
    let many = a.slots as usize >= SLOTS_MIN && near(a);
    let wide = many.then(|| wide(gpu, format, a.columns)).flatten();
    if wide.is_some() {
        return wide;
    }
    let kernel = many.then(|| able(gpu, format, shape(a))).flatten()?;
    Some(few(gpu, format, a).filter(|_| kernel.float).unwrap_or(kernel))
}

/// The kernel for a plain product where a barrier has two halves.
fn wide(gpu: &Gpu, format: Format, columns: u32) -> Option<Kernel> {
    let name = match format {
        Format::Q8_0 if columns > 0 && columns.is_multiple_of(1024) => WIDE_Q8_0,
        _ => return None,
    };
    let facts = gpu.driver.facts();
    let fits = facts.signals && facts.group_bytes >= pool_bytes(name);
    let kernel = Kernel::integers(name, 640, ROWS, SLOTS, 1);
    (fits && gpu.takes(Shortcuts::WIDE)).then_some(kernel)
}

/// Says that a plain product of very many rows of Q8_0 goes without `wide`, where it must not.
pub(super) fn goes_wide(
    gpu: &Gpu,
    operation: &'static str,
    (format, stacked): (Format, bool),
    kernel: &Kernel,
) -> Result<(), Error> {
    if format != Format::Q8_0 || stacked || kernel.name == WIDE_Q8_0 {
        return Ok(());
    }
    gpu.goes_without(Shortcuts::WIDE, operation, || "the device lacks it, or it is disabled".into())
}

/// The kernel for one matrix of few rows whose shards stay apart.
fn few(gpu: &Gpu, format: Format, a: &ProductArgs) -> Option<Kernel> {
    let name = match format {
        Format::F16 => "big_f16_few",
        Format::Bf16 => "big_bf16_few",
        _ => return None,
    };
    let kernel = Kernel::floats(name, FEW_ROWS, FEW_SLOTS);
    let fits = a.rows[0] <= FEW_ROWS && a.rows[1..] == [0; 3] && shards_apart(&kernel, a);
    (fits && gpu.driver.facts().group_bytes >= pool_bytes(name)).then_some(kernel)
}

/// Whether z goes over the shards of floats.
fn shards_apart(kernel: &Kernel, a: &ProductArgs) -> bool {
    kernel.float && a.planes_out == 8 && a.groups == 1 && a.stacked == 0
}

/// The kernel for slots sorted by expert in tiles of `width`, if they are large ones.
pub(super) fn stacked(gpu: &Gpu, format: Format, a: &ProductArgs, width: usize) -> Option<Kernel> {
    if !near(a) {
        return None;
    }
    match width {
        SLOTS => able(gpu, format, shape(a)),
        SLIM if slim_pays(gpu, a.slots as usize, a.stack as usize) => {
            slim(gpu, format, a.columns as usize)
        }
        _ => None,
    }
}

/// Slots of the large tiles that the matrices of an FFN go to, if for so many slots of so many
/// experts it pays.
pub(super) fn experts(
    gpu: &Gpu,
    matrices: [(Format, usize); 3],
    [slots, stack]: [usize; 2],
) -> Option<usize> {
    let able = |(format, columns): (Format, usize)| {
        able(gpu, format, [columns, 0]).is_some_and(|kernel| !kernel.float)
            && size(&[slots, columns]) <= u32::MAX as usize
    };
    let slim = |(format, columns)| slim(gpu, format, columns).is_some();
    let large = slots >= SLOTS_EACH * stack && matrices.into_iter().all(able);
    let width = match slim_pays(gpu, slots, stack) && matrices.into_iter().all(slim) {
        true => SLIM,
        false => SLOTS,
    };
    large.then_some(width)
}

/// Whether shards of a float product are made by groups of their own: so is a product of few rows
/// and many columns spread over the device.
pub(super) fn apart(gpu: &Gpu, format: Format, columns: usize, rows: usize) -> bool {
    let float = able(gpu, format, [columns, 0]).is_some_and(|kernel| kernel.float);
    rows >= SLOTS_MIN && float && size(&[rows, columns]) <= u32::MAX as usize
}

/// The sums of the inputs' sub-blocks, where the format has minimums.
pub(super) fn sums(
    gpu: &mut Gpu,
    format: Format,
    codes: Place,
    [inputs, columns]: [usize; 2],
) -> Result<Place, Error> {
    if !matches!(format, Format::Q2K | Format::Q4K) {
        return Ok(Place::NONE);
    }
    let blocks = size(&[inputs, columns / 256]);
    let out = gpu.scratch(Scratch::InputSums, size(&[blocks, 32]))?;
    let arguments = QuantiseArgs { blocks: small("project", blocks)?, block: 256 };
    let grid = [small("project", size(&[blocks, 16]))?.div_ceil(ROW_GROUP), 1, 1];
    gpu.launch("input_sums", grid, ROW_GROUP, &[codes, out], &arguments)?;
    Ok(out)
}

/// Groups along x, y and z; in the arguments, whether z goes over shards, or how many tiles further
/// a group goes on: slots first, so that groups that run together share weights; experts'
/// rows first, so that they share inputs.
pub(super) fn grid(gpu: &Gpu, kernel: &Kernel, a: &mut ProductArgs, tiles: u32) -> [u32; 3] {
    let rows: u32 = a.rows.iter().map(|rows| rows.div_ceil(kernel.rows)).sum();
    // Of several groups a multiprocessor one works while another begins: they end with their tile.
    let stay = kernel.together == 1 && gpu.takes(Shortcuts::ONWARD);
    let at_once = stay.then(|| gpu.multiprocessors());
    if kernel.name == WIDE_Q8_0 {
        let all = tiles.saturating_mul(rows).saturating_mul(a.groups);
        a.run = at_once.map_or(all, |groups| all.min(groups));
        return [a.run, 1, 1];
    }
    if shards_apart(kernel, a) {
        a.run = 1;
        return [tiles, rows, 8];
    }
    if kernel.direct {
        let all = tiles.saturating_mul(rows);
        a.source = tiles;
        a.run = at_once.map_or(all, |groups| all.min(groups.div_ceil(a.groups)));
        return [a.run, 1, a.groups];
    }
    match a.stacked {
        0 => [tiles, rows, a.groups],
        _ => [rows, tiles, a.groups],
    }
}
