//! Compressors.

use super::super::arguments::CompressArgs;
use super::super::lanes::hidden;
use super::super::record::Place;
use super::super::store::Ask;
use super::super::{Gpu, Scratch, check, size, small};
use super::ROW_GROUP;
use super::heads::check_row;
use crate::{Compress, Element, Error, ROLLBACK_ROWS, RowKind};
use ironstar_quant::fp4;

const OPERATION: &str = "compress";
/// Tokens of groups from which on several groups of threads pool a row, and their threads.
const LONG_TOKENS: usize = 32;
const POOL_GROUP: u32 = 64;

fn check_shape(gpu: &Gpu, a: &Compress<'_>) -> Result<(), Error> {
    check(
        OPERATION,
        a.ratio > 0 && (a.parts == 2 || a.parts == 1) && a.norm.len == a.width,
        || format!("ratio {}, parts {}, norm of {}", a.ratio, a.parts, a.norm.len),
        "a ratio, 1 or 2 parts, a norm as wide as a row",
    )?;
    check_row(OPERATION, a.width, a.rope.pairs, a.kind == RowKind::Kv { round_trip: true })?;
    check(
        OPERATION,
        a.kind != RowKind::Index || a.width.is_power_of_two(),
        || format!("indexer rows of {}", a.width),
        "the Hadamard rotation needs a power of two",
    )?;
    check(
        OPERATION,
        a.states.len() == gpu.rows.spans.len(),
        || format!("{} states for {} spans", a.states.len(), gpu.rows.spans.len()),
        "one state a span",
    )?;
    let first = a.states.first();
    for (state, span) in a.states.iter().zip(&gpu.rows.spans) {
        check(
            OPERATION,
            state.capacity >= a.parts.saturating_mul(a.ratio),
            || format!("rings of {}", state.capacity),
            "rings hold the tokens of the groups that a row is made of",
        )?;
        let alike = first.is_some_and(|first| {
            first.capacity == state.capacity && first.rows.element == state.rows.element
        });
        check(
            OPERATION,
            alike,
            || format!("rings of {} and rows of {:?}", state.capacity, state.rows.element),
            "states of equal shape",
        )?;
        let fp4_row = state.rows.element == Element::Fp4Row;
        check(
            OPERATION,
            !fp4_row || (a.kind == RowKind::Index && a.width == fp4::INDEXER_DIMS),
            || format!("{:?} of width {} into FP4 rows", a.kind, a.width),
            "FP4 rows hold indexer rows of 128 dims",
        )?;
        let per_row = if fp4_row { 1 } else { a.width };
        let groups = (span.position + span.rows.len()) / a.ratio;
        check(
            OPERATION,
            size(&[groups, per_row]) <= state.rows.len,
            || format!("room for {} rows", state.rows.len / per_row),
            &format!("{groups} are needed at this position"),
        )?;
    }
    Ok(())
}

pub(in super::super) fn compress(gpu: &mut Gpu, a: &Compress<'_>) -> Result<(), Error> {
    let ask = |operand| Ask { operation: OPERATION, operand };
    check_shape(gpu, a)?;
    let Some(first) = a.states.first() else { return Ok(()) };
    let (n, wide) = (gpu.rows.len(), a.parts * a.width);
    let values = gpu.f32(ask("values"), a.values, size(&[n, wide]))?;
    let scores = gpu.f32(ask("scores"), a.scores, size(&[n, wide]))?;
    let positions = gpu.f32(ask("positions"), a.positions, size(&[a.ratio, wide]))?;
    let norm = gpu.f32(ask("norm"), a.norm, a.width)?;
    let mut states = Vec::with_capacity(3 * a.states.len());
    for state in a.states {
        let ring = size(&[state.capacity, wide]);
        let elements = [Element::F32, Element::Bf16, Element::Fp4Row];
        states.extend([
            gpu.store.address(ask("state.values"), state.values, &[Element::F32], ring)?,
            gpu.store.address(ask("state.scores"), state.scores, &[Element::F32], ring)?,
            gpu.store.address(ask("state.rows"), state.rows, &elements, 0)?,
        ]);
    }
    let angles = gpu.closing_angles(OPERATION, a.rope, a.ratio)?;
    let (groups, closing) = gpu.closing(a.ratio);
    let closing = small(OPERATION, closing)?;
    let arguments = CompressArgs {
        ratio: small(OPERATION, a.ratio)?,
        parts: small(OPERATION, a.parts)?,
        width: small(OPERATION, a.width)?,
        pairs: small(OPERATION, a.rope.pairs)?,
        round_trip: u32::from(a.kind == RowKind::Kv { round_trip: true }),
        index: u32::from(a.kind == RowKind::Index),
        storage: match first.rows.element {
            Element::F32 | Element::U32 => 0,
            Element::Bf16 => 1,
            Element::Fp4Row => 2,
        },
        capacity: small(OPERATION, first.capacity)?,
        closing,
        eps: a.eps,
        single: u32::from(a.states.len() == 1),
    };
    let (at, span_of, spans) = (gpu.positions(), gpu.span_of(), gpu.spans());
    let states = gpu.table(states);
    let places = [values, scores, positions, norm, angles, groups, at, span_of, spans, states];
    let n = gpu.n();
    // The slots of a short span's tokens are not those that its groups read.
    let slack = first.capacity.saturating_sub(a.parts * a.ratio).min(ROLLBACK_ROWS);
    let (rows, kept) = match a.kind {
        RowKind::Index => (hidden::INDEX, hidden::INDEX_KEPT),
        RowKind::Kv { .. } => (hidden::ROWS, hidden::KEPT),
    };
    // A token that closes no group makes no row, and nobody waits for it. (Lists of more rows would
    // be too many.)
    let memory = if n > 1 || gpu.closes(a.ratio) { rows | kept } else { kept };
    let together = gpu.rows.spans.iter().all(|span| span.rows.len() <= slack);
    let pooled = match !together && a.parts * a.ratio >= LONG_TOKENS {
        true => Some(gpu.scratch(Scratch::Pooled, size(&[closing as usize, a.width, 4]))?),
        false => None,
    };
    gpu.through_tables(memory, memory);
    if together {
        return gpu.beside(|gpu| {
            gpu.launch("compress", [closing + n, 1, 1], ROW_GROUP, &places, &arguments)
        });
    }
    close(gpu, &places, &arguments, pooled, memory)?;
    gpu.through_tables(memory, memory);
    let keep = CompressArgs { closing: 0, ..arguments };
    gpu.launch("compress", [n, 1, 1], ROW_GROUP, &places, &keep)
}

/// The rows of groups that close; those of long groups are pooled before.
fn close(
    gpu: &mut Gpu,
    places: &[Place; 10],
    arguments: &CompressArgs,
    pooled: Option<Place>,
    memory: u8,
) -> Result<(), Error> {
    let closing = arguments.closing;
    let Some(pooled) = pooled else {
        return gpu.launch("compress", [closing, 1, 1], ROW_GROUP, places, arguments);
    };
    let [values, scores, positions, _, _, groups, _, _, spans, states] = *places;
    let from = [values, scores, positions, groups, spans, states, pooled];
    let grid = [closing, arguments.width.div_ceil(POOL_GROUP), 1];
    gpu.launch("pool_long", grid, POOL_GROUP, &from, arguments)?;
    let mut places = *places;
    places[0] = pooled;
    gpu.through_tables(memory, memory);
    gpu.launch("compress_pooled", [closing, 1, 1], ROW_GROUP, &places, arguments)
}
