//! Products of very many rows on the large tiles of `tiles_big.k` and `tiles_float.k`: when, and
//! with what launch.

use super::super::arguments::{ProductArgs, QuantiseArgs};
use super::super::record::Place;
use super::super::text::pool_bytes;
use super::super::{Gpu, Scratch, size, small};
use super::ROW_GROUP;
use crate::Error;
use ironstar_quant::Format;

/// From so many rows on, kernels for many rows make the inputs ready.
pub(super) const ROWS_MIN: usize = 32;
/// Threads of a group.
pub(super) const GROUP: u32 = 256;
/// Fewer slots are better off in the smaller tiles.
const SLOTS_MIN: usize = 128;
/// Slots an expert, on average, that are worth the decoding of its weights for a large tile.
const SLOTS_EACH: usize = 12;
/// Rows of an integer tile; `BIG` of the kernels.
const ROWS: u32 = 128;
/// `FLOATS_ROWS` and `FLOATS_SLOTS` of the kernels.
const FLOAT_ROWS: u32 = 64;
const FLOAT_SLOTS: usize = 32;

/// The kernel for matrices of this format and width, if there is one: every shard of K has the same
/// number of whole steps, of 128 elements for integers and of 64 for floats.
fn kernel(format: Format, columns: u32) -> Option<&'static str> {
    let (name, multiple) = match format {
        Format::Q8_0 => ("big_q8_0", 1024),
        Format::Q2K => ("big_q2_k", 2048),
        Format::Iq2Xxs => ("big_iq2_xxs", 2048),
        Format::F16 => ("big_f16", 512),
        Format::Bf16 => ("big_bf16", 512),
        _ => return None,
    };
    (columns > 0 && columns.is_multiple_of(multiple)).then_some(name)
}

/// The kernel, if this device can run it on these inputs, whose offsets are bytes of 32 bits.
fn able(gpu: &Gpu, format: Format, a: &ProductArgs) -> Option<&'static str> {
    let facts = gpu.driver.facts();
    let fits = |name: &&str| facts.group_bytes >= pool_bytes(name) && facts.group_max >= GROUP;
    let inputs = u64::from(a.slots) * u64::from(a.groups) / u64::from(a.per_row.max(1));
    let small = inputs * u64::from(a.columns) <= u64::from(u32::MAX);
    kernel(format, a.columns).filter(fits).filter(|_| small)
}

/// The kernel for a plain product, if it has slots enough.
pub(super) fn plain(gpu: &Gpu, format: Format, a: &ProductArgs) -> Option<&'static str> {
    (a.slots as usize >= SLOTS_MIN).then(|| able(gpu, format, a)).flatten()
}

/// The kernel for slots sorted by expert in tiles of `width`, if there are enough for an expert.
pub(super) fn stacked(
    gpu: &Gpu,
    format: Format,
    a: &ProductArgs,
    width: usize,
) -> Option<&'static str> {
    let many = a.slots as usize >= SLOTS_EACH * a.stack as usize;
    (many && slots_of(format) == width).then(|| able(gpu, format, a)).flatten()
}

/// The sums of the inputs' sub-blocks, where the format has minimums.
pub(super) fn sums(
    gpu: &mut Gpu,
    format: Format,
    codes: Place,
    [inputs, columns]: [usize; 2],
) -> Result<Place, Error> {
    if format != Format::Q2K {
        return Ok(Place::NONE);
    }
    let blocks = size(&[inputs, columns / 256]);
    let out = gpu.scratch(Scratch::InputSums, size(&[blocks, 32]))?;
    let arguments = QuantiseArgs { blocks: small("project", blocks)?, block: 256 };
    let grid = [small("project", size(&[blocks, 16]))?.div_ceil(ROW_GROUP), 1, 1];
    gpu.launch("input_sums", grid, ROW_GROUP, &[codes, out], &arguments)?;
    Ok(out)
}

/// Slots of a tile of this format.
pub(super) fn slots_of(format: Format) -> usize {
    match format {
        Format::F16 | Format::Bf16 => FLOAT_SLOTS,
        Format::Q8_0 => 128,
        _ => 64,
    }
}

/// Groups along x and y: slots first, so that groups that run together share weights; experts'
/// rows first, so that they share inputs.
pub(super) fn grid(format: Format, a: &ProductArgs, tiles: u32) -> [u32; 3] {
    let each = if slots_of(format) == FLOAT_SLOTS { FLOAT_ROWS } else { ROWS };
    let rows = a.rows.iter().map(|rows| rows.div_ceil(each)).sum();
    match a.stacked {
        0 => [tiles, rows, a.groups],
        _ => [rows, tiles, a.groups],
    }
}
