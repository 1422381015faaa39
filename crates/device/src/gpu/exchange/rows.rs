//! Rows of a step that each rank has some of ([`crate::Backend::sum_rows`],
//! [`crate::Backend::share_rows`]).

use super::super::arguments::{GateArgs, RowsArgs};
use super::super::record::Place;
use super::super::store::Ask;
use super::super::{Gpu, check, size, small};
use super::{CHUNK, CHUNKS, CHUNKS_GROUP, are_left_out, enter, next};
use crate::{Element, Error, GateKind, RowsOf};
use std::ops::Range;

/// `ROWS_SEGMENTS` of the kernels.
const SEGMENTS: usize = 6;
/// Ranges of rows begin at multiples of this, so that all rows of words do at sixteen bytes.
const ALIGNED: usize = 4;
/// Least rows of a rank in a gate.
const LEAST: usize = 2 * ALIGNED;

const OPERATION: &str = "share_rows";

/// A buffer's rows in words.
#[derive(Clone, Copy)]
struct Segment {
    place: Place,
    words: usize,
}

/// [`crate::Backend::sum_rows`].
pub(in super::super) fn sum_own(
    gpu: &mut Gpu,
    gate: GateKind,
    part: RowsOf,
    starts: &[usize],
) -> Result<(), Error> {
    let found = || format!("a sum of {:?}", part.buffer.element);
    check(OPERATION, part.buffer.element == Element::F32, found, "parts are f32")?;
    run(gpu, gate, &[part], starts, true)
}

/// [`crate::Backend::share_rows`].
pub(in super::super) fn share(
    gpu: &mut Gpu,
    gate: GateKind,
    rows: &[RowsOf],
    starts: &[usize],
) -> Result<(), Error> {
    rows.chunks(SEGMENTS).try_for_each(|rows| run(gpu, gate, rows, starts, false))
}

fn run(
    gpu: &mut Gpu,
    gate: GateKind,
    rows: &[RowsOf],
    starts: &[usize],
    sums: bool,
) -> Result<(), Error> {
    if are_left_out(gpu) {
        return Ok(());
    }
    if !enter(gpu)? {
        let found = "rows of several ranks without gates between them".to_owned();
        let wanted = "`Backend::splits_rows` says where they can be shared".to_owned();
        return Err(Error::Unsupported { found, wanted });
    }
    let all = starts.last().copied().unwrap_or(0);
    let segments =
        rows.iter().map(|rows| segment(gpu, *rows, all)).collect::<Result<Vec<_>, _>>()?;
    meet(gpu, gate, &segments, starts, sums)
}

/// All ranks get all words of a place, of which each has its own, from `starts[rank]` on; whoever
/// asks has seen that there are gates.
pub(in super::super) fn share_words(
    gpu: &mut Gpu,
    gate: GateKind,
    place: Place,
    starts: &[usize],
) -> Result<(), Error> {
    enter(gpu)?;
    meet(gpu, gate, &[Segment { place, words: 1 }], starts, false)
}

/// One meeting of all ranks, in as many gates as it needs.
fn meet(
    gpu: &mut Gpu,
    gate: GateKind,
    segments: &[Segment],
    starts: &[usize],
    sums: bool,
) -> Result<(), Error> {
    let ranks = gpu.gates.as_ref().map_or(0, |gates| gates.ranks);
    let lens: Vec<usize> = starts.windows(2).map(|w| w[1].saturating_sub(w[0])).collect();
    let fits = lens.len() == ranks
        && lens.iter().all(|len| *len >= LEAST)
        && starts[..ranks].iter().all(|start| start.is_multiple_of(ALIGNED));
    let wanted = "a range for each rank, at multiples of four rows, of eight at least";
    check(OPERATION, fits, || format!("rows {starts:?} of {ranks} ranks"), wanted)?;
    let all = starts[ranks];
    let pieces = pieces(segments, &lens);
    let found = || format!("rows {starts:?} in {pieces} gates");
    check(OPERATION, lens.iter().all(|len| len / pieces >= LEAST), found, "fewer or shorter rows")?;
    for piece in 0..pieces {
        let range = |rank: usize| {
            let rows = piece_of(lens[rank], pieces, piece);
            (starts[rank] + rows.start, rows.len())
        };
        let ranges: Vec<(usize, usize)> = (0..ranks).map(range).collect();
        launch(gpu, gate, segments, &ranges, sums)?;
    }
    let rank = gpu.gates.as_ref().map_or(0, |gates| gates.rank);
    let words: usize = segments.iter().map(|segment| segment.words).sum();
    let given = if sums { all - lens[rank] } else { lens[rank] };
    if let Some(exchange) = &mut gpu.exchange {
        exchange.passed(gate, size(&[given, words, 4]));
    }
    Ok(())
}

fn segment(gpu: &Gpu, rows: RowsOf, all: usize) -> Result<Segment, Error> {
    let RowsOf { buffer, width } = rows;
    let bytes = size(&[width, buffer.element.bytes()]);
    let found = || format!("rows of {width} {:?}", buffer.element);
    check(OPERATION, bytes > 0 && bytes.is_multiple_of(4), found, "whole words, and some")?;
    let ask = Ask { operation: OPERATION, operand: "rows" };
    let place = match buffer.element {
        Element::U32 => gpu.u32(ask, buffer, size(&[all, width]))?,
        _ => gpu.floats(ask, buffer, size(&[all, width]))?,
    };
    small(OPERATION, size(&[all, bytes / 4]))?;
    Ok(Segment { place, words: bytes / 4 })
}

/// A piece of so many rows, which begins at a multiple of [`ALIGNED`].
fn piece_of(rows: usize, pieces: usize, piece: usize) -> Range<usize> {
    let border = |at: usize| match at == pieces {
        true => rows,
        false => rows * at / pieces / ALIGNED * ALIGNED,
    };
    border(piece)..border(piece + 1)
}

/// Into how many gates these numbers of rows have to go; more than there are rows where one row is
/// longer than a gate.
fn pieces(segments: &[Segment], lens: &[usize]) -> usize {
    let fits = |rows: usize| {
        let words = segments.iter().map(|segment| size(&[rows, segment.words]));
        words.map(|words| words.div_ceil(CHUNK)).sum::<usize>() <= CHUNKS
    };
    let most = lens.iter().copied().max().unwrap_or(0);
    let all_fit = |pieces: &usize| {
        let of = |len: &usize| (0..*pieces).all(|piece| fits(piece_of(*len, *pieces, piece).len()));
        lens.iter().all(of)
    };
    (1..=most).find(all_fit).unwrap_or(most + 1)
}

fn launch(
    gpu: &mut Gpu,
    gate: GateKind,
    segments: &[Segment],
    ranges: &[(usize, usize)],
    sums: bool,
) -> Result<(), Error> {
    let (now, GateArgs { limit, index, rank, ranks, .. }, windows, fate) = next(gpu, gate)?;
    let mut a = RowsArgs { limit, index, rank, ranks, ..RowsArgs::default() };
    a.segments = small(OPERATION, segments.len())?;
    for (at, (first, count)) in ranges.iter().enumerate() {
        (a.first[at], a.count[at]) = (small(OPERATION, *first)?, small(OPERATION, *count)?);
    }
    let mut most = 0;
    for (at, segment) in segments.iter().enumerate() {
        a.words[at] = small(OPERATION, segment.words)?;
        let longest = ranges.iter().map(|(_, count)| size(&[*count, segment.words]));
        most += longest.max().unwrap_or(0).div_ceil(CHUNK);
    }
    // Groups that wait must all run at the same time.
    a.groups = small(OPERATION, most)?.min(gpu.multiprocessors());
    let grid = [a.groups, 1, 1];
    if sums {
        let places = [windows, now, segments[0].place, fate];
        return gpu.launch("rows_sum", grid, CHUNKS_GROUP, &places, &a);
    }
    let mut places = [Place::NONE; 9];
    for (to, segment) in places[2..].iter_mut().zip(segments) {
        *to = segment.place;
    }
    (places[0], places[1], places[8]) = (windows, now, fate);
    gpu.launch("rows_share", grid, CHUNKS_GROUP, &places, &a)
}

#[cfg(test)]
mod tests;
