//! A rank's part of the weights (DESIGN 5): which bytes of which tensor, and which rank counts a
//! model allows.
//!
//! Heads, output groups, the inner width of experts and the vocabulary go by output rows. `wo_b`
//! and the last matrix of an FFN go along K, on the borders of shards. Routed experts go by the
//! cells of their sum: half of the inner width, and from four ranks on groups of experts. All else
//! is held by every rank.

use super::load::{Data, find};
use super::shape::Shape;
use super::weights::{Cut, Field, Kind, TensorSpec};
use crate::{Error, PlanLine};
use ironstar_device::{Cells, Part, SharedBytes, Strides};
use ironstar_gguf::{Bytes, Gguf, TensorKind};
use ironstar_quant::Format;
use std::ops::Range;
use std::sync::Arc;

/// Matrices of a stack, rows of a matrix and columns of a row that a rank holds, and how many of
/// the eight shards of K the columns are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub stack: Range<usize>,
    pub rows: Range<usize>,
    pub columns: Range<usize>,
    pub shards: usize,
}

impl Piece {
    /// What a rank holds of a tensor. The rank count is one that [`check_ranks`] allows.
    pub fn of(spec: &TensorSpec, part: Part) -> Piece {
        let dim = |at: usize| spec.dims.get(at).copied().unwrap_or(1);
        let (columns, rows, stack) = (dim(0), dim(1), dim(2));
        let whole = Piece { stack: 0..stack, rows: 0..rows, columns: 0..columns, shards: 8 };
        if part.ranks == 1 {
            return whole;
        }
        let cells = Cells::of_part(part, stack);
        let half = Part { rank: cells.first / 4, ranks: 2 };
        match (spec.kind, spec.cut) {
            (_, Cut::Whole) => whole,
            (Kind::Routed, Cut::Rows) => {
                Piece { stack: cells.held(), rows: half.of(rows), ..whole }
            }
            (Kind::Routed, Cut::Columns) => {
                let columns = half.of(columns);
                Piece { stack: cells.held(), columns, shards: half.shards(), ..whole }
            }
            (Kind::Vector, Cut::Rows) => Piece { columns: part.of(columns), ..whole },
            (_, Cut::Rows) => Piece { rows: part.of(rows), ..whole },
            (_, Cut::Columns) => {
                Piece { columns: part.of(columns), shards: part.shards(), ..whole }
            }
        }
    }

    pub fn elements(&self) -> usize {
        self.stack.len() * self.rows.len() * self.columns.len()
    }
}

/// Refuses rank counts that the shape does not allow.
pub(super) fn check_ranks(shape: &Shape, part: Part) -> Result<(), Error> {
    let ranks = part.ranks;
    let refuse =
        |found: String, wanted: &str| Err(Error::Ranks { ranks, found, wanted: wanted.to_owned() });
    if !matches!(ranks, 1 | 2 | 4 | 8) || part.rank >= ranks {
        return refuse(format!("rank {} of {ranks}", part.rank), "there can be 1, 2, 4 or 8");
    }
    if !shape.output_groups.is_multiple_of(ranks) {
        let found = format!("it has {} output groups", shape.output_groups);
        return refuse(found, "their number must be a multiple of the ranks");
    }
    if shape.vocabulary < ranks {
        return refuse(format!("it has {} tokens", shape.vocabulary), "every rank must hold some");
    }
    let cells = |rank: usize| Cells::of_part(Part { rank, ranks }, shape.experts).held();
    if (0..ranks).any(|rank| cells(rank).is_empty()) {
        let found = format!("it has {} experts", shape.experts);
        return refuse(found, "every rank must hold some");
    }
    Ok(())
}

/// Refuses a part of K that does not end on a block of the tensor's format, or a part of the rows
/// that its input on the same rank does not have.
pub(super) fn check_tensor(spec: &TensorSpec, kind: TensorKind, part: Part) -> Result<(), Error> {
    let (TensorKind::Block(format), Cut::Columns, true) = (kind, spec.cut, part.ranks > 1) else {
        return Ok(());
    };
    let parts = if spec.kind == Kind::Routed { 2 } else { part.ranks };
    let unit = format.info().shard_unit();
    let (blocks, rest) = (spec.dims[0] / unit, spec.dims[0] % unit);
    if rest == 0 && blocks > 0 && blocks.is_multiple_of(parts) {
        return Ok(());
    }
    Err(Error::Ranks {
        ranks: part.ranks,
        found: format!(
            "tensor `{}` has {} columns of {}, in blocks of {unit}",
            spec.name,
            spec.dims[0],
            format.info().name
        ),
        wanted: format!("they must make {parts} equal parts of whole blocks"),
    })
}

/// A run of somebody's bytes.
struct Slice {
    bytes: Bytes,
    range: Range<usize>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

/// Bytes that hold a piece, and where its rows lie in them unless behind one another.
pub(super) fn cut(
    spec: &TensorSpec,
    format: Format,
    piece: &Piece,
    data: &Data,
) -> (SharedBytes, Option<Strides>) {
    let (bytes, all) = (data.bytes.clone(), 0..data.bytes.len());
    let info = format.info();
    let size = |columns: usize| columns / info.block_elements * info.block_bytes;
    let rows = spec.dims.get(1).copied().unwrap_or(1);
    let row = size(spec.dims[0]);
    let matrix = rows * row;
    let start = piece.stack.start * matrix + piece.rows.start * row + size(piece.columns.start);
    let whole_rows = piece.columns.len() == spec.dims[0];
    if whole_rows && (piece.stack.len() == 1 || piece.rows.len() == rows) {
        let len = piece.stack.len() * piece.rows.len() * row;
        match data.planes {
            None => return (Arc::new(Slice { bytes, range: start..start + len }), None),
            Some(planes) if len as u64 == planes.block_bytes() => {
                return (Arc::new(Slice { bytes, range: all }), None);
            }
            // Some rows of planes lie apart.
            Some(_) => {}
        }
    }
    (Arc::new(Slice { bytes, range: all }), Some(Strides { start, row, matrix }))
}

/// What a rank holds of a file's weights: lines of its share of what is cut, and of what every rank
/// holds. The rank count is checked as at load.
pub fn rank_plan(
    gguf: &Gguf,
    shape: &Shape,
    specs: &[TensorSpec],
    part: Part,
) -> Result<Vec<PlanLine>, Error> {
    check_ranks(shape, part)?;
    let mut lines = [
        "routed experts",
        "attention, shared experts and output head",
        "held by every rank: embedding",
        "held by every rank: indexer and compressors",
        "held by every rank: low ranks, router, mixes and norms",
    ]
    .map(|what| PlanLine { what, bytes: 0 });
    for spec in specs {
        let Some(info) = find(gguf, spec)? else { continue };
        check_tensor(spec, info.kind, part)?;
        let all = gguf.place(info)?.range.len();
        let piece = Piece::of(spec, part);
        let elements: usize = spec.dims.iter().product();
        // Bytes go with elements, since a piece is whole blocks.
        let mine = (all as u128 * piece.elements() as u128) / (elements.max(1) as u128);
        let line = match (spec.kind, spec.cut, spec.field) {
            (Kind::Routed, _, _) => 0,
            (_, Cut::Rows | Cut::Columns, _) => 1,
            (_, _, Field::Embedding | Field::SparkMarkovEmbedding) => 2,
            (
                _,
                _,
                Field::IndexQuery
                | Field::IndexWeights
                | Field::IndexCompressorPositions
                | Field::IndexCompressorValues
                | Field::IndexCompressorScores
                | Field::IndexCompressorNorm
                | Field::CompressorPositions
                | Field::CompressorValues
                | Field::CompressorScores
                | Field::CompressorNorm,
            ) => 3,
            _ => 4,
        };
        lines[line].bytes += u64::try_from(mine).unwrap_or(u64::MAX);
    }
    Ok(lines.into())
}
