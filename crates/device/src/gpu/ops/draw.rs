//! Tokens drawn from rows of logits.

use super::super::arguments::{DrawArgs, DrawPart, DrawRow, bytes_of};
use super::super::record::Place;
use super::super::store::Ask;
use super::super::{Gpu, Scratch, check, exchange, size, small};
use super::ROW_GROUP;
use crate::sample::sixteenths;
use crate::{Draw, DrawRows, Error, LOGIT_STRIDE, WEIGHTS_MAX};

const OPERATION: &str = "draw";
/// `DRAW_FEW` and `DRAW_HOST` of the kernels; strides are [`LOGIT_STRIDE`].
const GROUP: u32 = 1024;
const HOST: u32 = u32::MAX;

fn settings(row: &Draw) -> DrawRow {
    DrawRow {
        scale: sixteenths(row.scale.unwrap_or(1.0)).to_bits(),
        number: row.number,
        part: row.part,
        least: row.weight,
        count: row.count,
        first: u32::from(row.scale.is_none()),
    }
}

pub(in super::super) fn draw(gpu: &mut Gpu, a: &DrawRows<'_>) -> Result<Vec<Option<u32>>, Error> {
    let n = a.rows.len();
    let fine = |row: &Draw| row.scale.is_none_or(|scale| scale.is_finite() && scale >= 0.0);
    check(
        OPERATION,
        (1..=WEIGHTS_MAX).contains(&a.tokens) && a.rows.iter().all(fine),
        || format!("rows of {} logits, {:?}", a.tokens, a.rows),
        "1 to 2^19 logits, and finite scales that are not negative",
    )?;
    let ask = Ask { operation: OPERATION, operand: "logits" };
    let logits = gpu.f32(ask, a.logits, size(&[n, a.tokens]))?;
    if n == 0 {
        return Ok(Vec::new());
    }
    let strides = a.tokens.div_ceil(LOGIT_STRIDE);
    let arguments =
        DrawArgs { tokens: small(OPERATION, a.tokens)?, strides: small(OPERATION, strides)? };
    let rows = a.rows.iter().flat_map(|row| bytes_of(&settings(row)).to_vec());
    let how = gpu.recorder.put(rows.collect::<Vec<u8>>());
    let tops = gpu.scratch(Scratch::DrawTops, size(&[n, strides, 8]))?;
    let weights = gpu.scratch(Scratch::DrawWeights, size(&[n, a.tokens, 8]))?;
    let parts = gpu.scratch(Scratch::DrawParts, size(&[n, strides, size_of::<DrawPart>()]))?;
    let drawn = gpu.scratch(Scratch::Drawn, size(&[n, 4]))?;
    let (count, wide) = (small(OPERATION, n)?, arguments.strides);
    gpu.launch("draw_tops", [wide, count, 1], ROW_GROUP, &[logits, tops], &arguments)?;
    if a.rows.iter().any(|row| row.scale.is_some()) {
        let places = [logits, how, tops, weights, parts];
        gpu.launch("draw_weights", [wide, count, 1], ROW_GROUP, &places, &arguments)?;
    }
    let places = [logits, how, tops, weights, parts, drawn];
    gpu.launch("draw_token", [count, 1, 1], GROUP, &places, &arguments)?;
    read(gpu, drawn, n)
}

/// The ids that were drawn; one that is no token is for the host to find out about.
fn read(gpu: &mut Gpu, drawn: Place, n: usize) -> Result<Vec<Option<u32>>, Error> {
    let _waiting = exchange::waiting(gpu);
    gpu.flush()?;
    let Place::At(address) = drawn else { unreachable!("scratch lies in memory that stays") };
    let mut bytes = vec![0; 4 * n];
    gpu.driver.download(address, &mut bytes)?;
    exchange::look(gpu)?;
    let ids = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    Ok(ids.map(|id| (id != HOST).then_some(id)).collect())
}
