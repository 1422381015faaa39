//! A rank's parts: matrices that are some of the eight shards of K, and some of the cells of the
//! expert sum (DESIGN 5).
//!
//! A part of K is held folded: 8 / shards rows behind one another make a row of eight shards, so
//! that every kernel of products serves it, and its inputs are repeated as often. What the tree
//! would add last stays apart as planes, which are the rows of the part: row w * (rows / ways) + r
//! is way w of the folded row r.

use super::super::arguments::{CellsPartArgs, LocalArgs, PairsArgs, RepeatArgs};
use super::super::record::Place;
use super::super::store::Ask;
use super::super::weights::Laid;
use super::super::{Folded, Gpu, SOME_ROWS, Scratch, Weights, check, size, small};
use super::products::{Input, Product, product};
use super::{GROUP, SIMDGROUPS, decode};
use crate::{Backend, Buffer, Cells, Error, Matrix, MatrixPart, MatrixSource, Project, Strides};
use ironstar_quant::Activation;

/// [`Backend::matrix_part`].
pub(in super::super) fn matrix(
    gpu: &mut Gpu,
    source: MatrixSource<'_>,
    part: MatrixPart,
) -> Result<Matrix, Error> {
    let operation = "matrix_part";
    let MatrixSource { name, format, rows, columns, stack, .. } = source;
    let shards = part.shards;
    check(
        operation,
        matches!(shards, 1 | 2 | 4 | 8),
        || format!("{name} has {shards} shards"),
        "1, 2, 4 or 8 are a subtree",
    )?;
    let ways = 8 / shards;
    let unit = format.info().shard_unit();
    check(
        operation,
        ways == 1 || (rows.is_multiple_of(ways) && columns.is_multiple_of(unit)),
        || format!("{name} has {rows} rows of {columns}"),
        &format!("on a GPU {ways} equal parts of the rows, and whole units of {unit} columns"),
    )?;
    let Some(strides) = part.strides.or_else(|| behind_one_another(&source, ways)) else {
        return gpu.matrix(source);
    };
    let laid = Laid::rows(&source, strides, ways)?;
    if ways == 1 {
        return gpu.place_matrix(name, [stack, rows, columns], &laid);
    }
    let folded = [stack, rows / ways, size(&[columns, ways])];
    let folded = Folded { matrix: gpu.place_matrix(name, folded, &laid)?, shards };
    let weights = Weights { folded: Some(folded), ..gpu.weights(operation, folded.matrix)? };
    let id = small(operation, gpu.matrices.len())?;
    let matrix = Matrix { id, format, rows, columns, stack };
    gpu.matrices.push((matrix, weights));
    Ok(matrix)
}

/// Where rows lie that nothing is said of; nowhere if they are to be as they are.
fn behind_one_another(source: &MatrixSource<'_>, ways: usize) -> Option<Strides> {
    let row = source.format.row_bytes(source.columns).unwrap_or(0);
    (ways > 1).then_some(Strides { start: 0, row, matrix: size(&[row, source.rows]) })
}

/// Rows as the products of a folded matrix want them: each as often as there are ways.
fn repeated(
    gpu: &mut Gpu,
    activation: Activation,
    x: Place,
    [rows, columns]: [usize; 2],
    ways: usize,
) -> Result<[Place; 2], Error> {
    let operation = "project";
    let copies = small(operation, ways)?;
    let len = size(&[rows, columns]);
    let Some(block) = activation.block() else {
        let out = gpu.scratch(Scratch::PartInput, size(&[len, ways, 4]))?;
        let (blocks, per_row) = (small(operation, len)?, small(operation, columns)?);
        let arguments = RepeatArgs { blocks, block: 1, per_row, copies };
        let grid = [blocks.div_ceil(GROUP), 1, 1];
        gpu.launch("repeat_floats", grid, GROUP, &[x, out], &arguments)?;
        return Ok([out, Place::NONE]);
    };
    let codes = gpu.scratch(Scratch::PartInput, size(&[len, ways]))?;
    let scales = gpu.scratch(Scratch::PartScales, size(&[len / block, ways, 4]))?;
    let arguments = RepeatArgs {
        blocks: small(operation, len / block)?,
        block: small(operation, block)?,
        per_row: small(operation, columns / block)?,
        copies,
    };
    let (name, groups) = match rows {
        0..super::big::ROWS_MIN => ("quantise_part", arguments.blocks.div_ceil(SIMDGROUPS)),
        _ => ("quantise_rows_part", small(operation, len)?.div_ceil(8 * GROUP)),
    };
    gpu.launch(name, [groups, 1, 1], GROUP, &[x, codes, scales], &arguments)?;
    Ok([codes, scales])
}

/// [`Backend::project`] of one matrix that is a part of K.
pub(super) fn project(
    gpu: &mut Gpu,
    a: &Project<'_>,
    folded: Folded,
    (matrix, out): (Matrix, Buffer),
) -> Result<(), Error> {
    let operation = "project";
    let ask = |operand| Ask { operation, operand };
    let shape = [a.rows, matrix.columns];
    let x = gpu.f32(ask("x"), a.x, size(&shape))?;
    let len = size(&[a.rows, matrix.rows]);
    let out = gpu.f32(ask("an output"), out, len)?;
    let weights = gpu.weights(operation, folded.matrix)?;
    gpu.counters.dense_bytes += weights.matrix_bytes;
    let (planes_out, made) = match folded.shards {
        4 => (2, out),
        1 => (8, out),
        _ => (8, gpu.scratch(Scratch::PartShards, size(&[len, 2, 4]))?),
    };
    let outputs = [(folded.matrix, made)];
    let (activation, ways) = (weights.activation(), folded.ways());
    let staged = match a.rows {
        1 => decode::stages_row(gpu, operation, x, activation, &outputs, ways)?,
        _ => None,
    };
    let x = match staged {
        Some(staged) => Input::Staged(staged),
        None => Input::Made(repeated(gpu, activation, x, shape, ways)?),
    };
    let plain = Product::plain(operation, &outputs, x, a.rows);
    product(gpu, &Product { planes_out, ..plain })?;
    if made == out {
        return Ok(());
    }
    let arguments =
        PairsArgs { rows: small(operation, len)?, width: small(operation, matrix.rows)? };
    let grid = [arguments.rows.div_ceil(GROUP), 1, 1];
    gpu.launch("add_pairs", grid, GROUP, &[made, out], &arguments)
}

/// Experts of the slots among those that are held; the ids themselves where all are.
pub(super) fn local_ids(
    gpu: &mut Gpu,
    ids: Place,
    slots: usize,
    cells: Cells,
) -> Result<Place, Error> {
    let held = cells.held();
    if held.len() == cells.experts {
        return Ok(ids);
    }
    let operation = "experts";
    let out = gpu.scratch(Scratch::LocalIds, size(&[slots, 4]))?;
    let arguments = LocalArgs {
        slots: small(operation, slots)?,
        first: small(operation, held.start)?,
        count: small(operation, held.len())?,
    };
    let grid = [arguments.slots.div_ceil(GROUP), 1, 1];
    gpu.launch("local_ids", grid, GROUP, &[ids, out], &arguments)?;
    Ok(out)
}

/// The subtree's sum of some cells; `places` are ids, halves, shards and the result.
pub(super) fn add_cells(
    gpu: &mut Gpu,
    places: [Place; 4],
    cells: Cells,
    [width, top_k]: [usize; 2],
) -> Result<(), Error> {
    let operation = "experts";
    let arguments = CellsPartArgs {
        width: small(operation, width)?,
        top_k: small(operation, top_k)?,
        experts: small(operation, cells.experts)?,
        first: small(operation, cells.first)?,
        count: small(operation, cells.count)?,
    };
    // Fours of dims do not cross from way to way.
    let fours = gpu.rows.len() > SOME_ROWS && width.is_multiple_of(4 * 8);
    let (name, each) = match fours {
        true => ("expert_cells_part_four", 4),
        false => ("expert_cells_part", 1),
    };
    let grid = [arguments.width.div_ceil(GROUP * each), gpu.n(), 1];
    gpu.launch(name, grid, GROUP, &places, &arguments)
}
