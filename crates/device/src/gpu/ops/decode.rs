//! When a product has one row, and which kernel of `fast/decode.k` makes it.

use super::super::arguments::ProductArgs;
use ironstar_quant::{Format, SHARDS};

/// `DECODE_BLOCKS` of the kernels.
const BLOCKS: u32 = 2048;
/// Most rows of a group: eight threads a row, and 256 in all; floats have 64 a row.
const ROWS_MAX: u32 = 32;
const FLOAT_ROWS_MAX: u32 = 4;
/// Groups that keep a large card busy; smaller products are cut finer, down to a row a group.
const RUNS: u32 = 800;

/// A launch of a decode kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Kernel.
    pub name: &'static str,
    /// Output rows of a group.
    pub rows_each: u32,
    /// Groups along x.
    pub runs: u32,
}

/// The launch for one row (or one slot after another) of these matrices, if there is a kernel.
pub(super) fn plan(format: Format, a: &ProductArgs) -> Option<Plan> {
    let name = match format {
        Format::F16 => "decode_f16",
        Format::Bf16 => "decode_bf16",
        Format::Q4_0 => "decode_q4_0",
        Format::Q8_0 => "decode_q8_0",
        Format::Q2K => "decode_q2_k",
        Format::Q4K => "decode_q4_k",
        Format::Iq2Xxs => "decode_iq2_xxs",
        Format::Mxfp4 => "decode_mxfp4",
        Format::F32 | Format::Q3K | Format::Q5K | Format::Q6K => return None,
    };
    let most = match format {
        Format::F16 | Format::Bf16 => {
            let whole = a.columns.is_multiple_of(32);
            if whole { FLOAT_ROWS_MAX } else { 0 }
        }
        _ => {
            let shards = u32::try_from(SHARDS).expect("there are eight");
            let elements =
                u32::try_from(format.info().block_elements).expect("a block has at most 256");
            (BLOCKS / (a.columns / elements).next_multiple_of(shards)).min(ROWS_MAX)
        }
    };
    if most == 0 || a.slots > 65_535 || a.groups > 65_535 {
        return None;
    }
    let rows: u64 = a.rows.iter().map(|rows| u64::from(*rows)).sum();
    let all = rows * u64::from(a.slots) * u64::from(a.groups);
    let wanted = u32::try_from(all / u64::from(RUNS)).unwrap_or(u32::MAX);
    // The largest power of two that is within both.
    let rows_each = 1u32 << wanted.min(most).max(1).ilog2();
    let runs = a.rows.iter().map(|rows| rows.div_ceil(rows_each)).sum();
    Some(Plan { name, rows_each, runs })
}

#[cfg(test)]
mod tests;
