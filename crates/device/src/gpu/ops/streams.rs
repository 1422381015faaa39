//! Embedding, hyper-connections, norms, row copies.

use super::super::arguments::{
    EmbedArgs, GatherArgs, HcArgs, MixingArgs, RmsArgs, ShardsArgs, SpreadArgs, SpreadMixArgs,
    SteerArgs,
};
use super::super::owed::{Owed, Work};
use super::super::prepared::NARROW;
use super::super::record::Place;
use super::super::store::Ask;
use super::super::text::pool_bytes;
use super::super::{Gpu, Pending, SOME_ROWS, Scratch, Shortcuts, check, size, small};
use super::experts::fours;
use super::products::{Input, Product, product};
use super::{GROUP, ROW_GROUP, STREAMS_GROUP, big, cluster, decode, halves};
use crate::{
    AddToStreams, Element, Embed, Error, GatherRows, HcHead, HcPost, HcPre, HcWeights, Matrix,
    RmsNorm, Steer,
};
use ironstar_quant::{Activation, Format};

/// `STREAMS_MAX` and `SOME_COLUMNS` of the kernels.
const STREAMS_MAX: usize = 8;
const SOME_COLUMNS: usize = 2048;

/// The kernel of a spread and the mix behind it of very many rows, and rows of a group.
const SPREAD_MIX: &str = "spread_mix_f16";
const MANY_ROWS: u32 = 32;

fn check_streams(operation: &'static str, streams: usize, width: usize) -> Result<(), Error> {
    check(
        operation,
        (1..=STREAMS_MAX).contains(&streams) && width > 0,
        || format!("{streams} streams of {width}"),
        "1 to 8 streams that are not empty",
    )
}

fn embed_kernel(format: Format) -> &'static str {
    match format {
        Format::F32 => "embed_f32",
        Format::F16 => "embed_f16",
        Format::Bf16 => "embed_bf16",
        Format::Q4_0 => "embed_q4_0",
        Format::Q8_0 => "embed_q8_0",
        Format::Q2K => "embed_q2_k",
        Format::Q3K => "embed_q3_k",
        Format::Q4K => "embed_q4_k",
        Format::Q5K => "embed_q5_k",
        Format::Q6K => "embed_q6_k",
        Format::Iq2Xxs => "embed_iq2_xxs",
        Format::Mxfp4 => "embed_mxfp4",
    }
}

pub(in super::super) fn embed(gpu: &mut Gpu, a: &Embed) -> Result<(), Error> {
    let operation = "embed";
    let (n, width) = (gpu.rows.len(), a.table.columns);
    check_streams(operation, a.streams, width)?;
    let table = gpu.weights(operation, a.table)?;
    let last = gpu.rows.tokens.iter().max().map_or(0, |token| *token as usize);
    let found = || format!("token {last} with a table of {} rows", a.table.rows);
    check(operation, last < a.table.rows, found, "tokens are rows of the table")?;
    let ask = Ask { operation, operand: "out" };
    let out = gpu.f32(ask, a.out, size(&[n, a.streams, width]))?;
    gpu.counters.dense_bytes += table.matrix_bytes / a.table.rows as u64 * n as u64;
    let arguments = EmbedArgs {
        planes: table.planes(),
        width: small(operation, size(&[a.streams, width]))? / small(operation, a.streams)?,
        streams: small(operation, a.streams)?,
        rows: small(operation, a.table.rows)?,
        pad: 0,
    };
    let places = [Place::At(table.address), gpu.tokens(), out];
    let each = if table.format().info().block_elements == 1 { 1 } else { 32 };
    let grid = [gpu.n(), (arguments.width / each).div_ceil(GROUP), 1];
    gpu.launch(embed_kernel(table.format()), grid, GROUP, &places, &arguments)
}

pub(in super::super) fn rms_norm(gpu: &mut Gpu, a: &RmsNorm) -> Result<(), Error> {
    let operation = "rms_norm";
    let ask = |operand| Ask { operation, operand };
    let width = a.weight.len;
    let len = size(&[a.rows, width]);
    let weight = gpu.f32(ask("weight"), a.weight, width)?;
    let x = gpu.f32(ask("x"), a.x, len)?;
    let out = gpu.f32(ask("out"), a.out, len)?;
    let arguments = RmsArgs { width: small(operation, width)?, eps: a.eps };
    if !width.is_multiple_of(32) {
        return norm_plain(gpu, [x, weight, out], small(operation, a.rows)?, &arguments);
    }
    if a.rows == 1 && x == out && gpu.takes(Shortcuts::STAGED) {
        let work = Work::Norm { weight, arguments };
        return gpu.owe(Owed { at: x, len: width, work });
    }
    norm_blocks(gpu, [x, weight, out], a.rows, &arguments)
}

/// A norm that leaves floats only.
pub(in super::super) fn norm_plain(
    gpu: &mut Gpu,
    places: [Place; 3],
    rows: u32,
    arguments: &RmsArgs,
) -> Result<(), Error> {
    gpu.launch("rms_norm", [rows, 1, 1], ROW_GROUP, &places, arguments)
}

/// A norm that leaves int8 blocks beside the floats.
fn norm_blocks(
    gpu: &mut Gpu,
    [x, weight, out]: [Place; 3],
    rows: usize,
    arguments: &RmsArgs,
) -> Result<(), Error> {
    let [codes, scales] = gpu.prepare_narrow(out, [rows, arguments.width as usize], NARROW)?;
    let places = [x, weight, out, codes, scales];
    let grid = [small("rms_norm", rows)?, 1, 1];
    gpu.launch("rms_norm_blocks", grid, ROW_GROUP, &places, arguments)
}

/// Records a norm that is owed of a row, for readers of its floats and of its blocks.
pub(super) fn norm_owed(gpu: &mut Gpu, x: Place) -> Result<(), Error> {
    match gpu.owed_of(x) {
        Some(Owed { len, work: Work::Norm { weight, arguments }, .. }) => {
            gpu.overwritten(x, len);
            norm_blocks(gpu, [x, weight, x], 1, &arguments)
        }
        _ => Ok(()),
    }
}

/// The matrix that mixes these streams.
fn check_mixes(
    operation: &'static str,
    weights: &HcWeights,
    [streams, width]: [usize; 2],
    wanted: usize,
) -> Result<Matrix, Error> {
    let matrix = weights.matrix;
    let columns = size(&[streams, width]);
    check(
        operation,
        matrix.rows == wanted && matrix.columns == columns && matrix.stack == 1,
        || format!("a matrix of {} x {}", matrix.rows, matrix.columns),
        &format!("{streams} streams of {width} need {wanted} x {columns}"),
    )?;
    Ok(matrix)
}

/// What a mix is told, whichever kernel makes it, with coefficients that are sums already.
pub(super) fn hc_args(operation: &'static str, a: &HcPre) -> Result<HcArgs, Error> {
    Ok(HcArgs {
        streams: small(operation, a.streams)?,
        width: small(operation, a.norm.len)?,
        iterations: small(operation, a.iterations)?,
        norm_eps: a.norm_eps,
        hc_eps: a.hc_eps,
        shards: 0,
        split: 0,
        halves: 0,
    })
}

/// The coefficients of all streams before they are split: `[rows, matrix.rows]`, or with another
/// number than 0 as the second, eight shards of each (`HcArgs`).
fn mixes(
    gpu: &mut Gpu,
    operation: &'static str,
    weights: &HcWeights,
    x: Place,
    rows: usize,
) -> Result<(Place, u32), Error> {
    let matrix = weights.matrix;
    let own = gpu.weights(operation, matrix)?;
    check(
        operation,
        own.activation() == Activation::F32,
        || format!("a mixing matrix in {}", own.format()),
        "mixing matrices are floats",
    )?;
    gpu.counters.dense_bytes += own.matrix_bytes;
    if let Some(shards) = decode::shards(gpu, operation, matrix, x, rows)? {
        return Ok((shards, 1));
    }
    if big::apart(gpu, own.format(), matrix.columns, rows) {
        let out = gpu.scratch(Scratch::Mixes, size(&[rows, 8, matrix.rows, 4]))?;
        let outputs = [(matrix, out)];
        let plain = Product::plain(operation, &outputs, Input::Made([x, Place::NONE]), rows);
        product(gpu, &Product { planes_out: 8, ..plain })?;
        return Ok((out, small(operation, matrix.rows)?));
    }
    let out = gpu.scratch(Scratch::Mixes, size(&[rows, matrix.rows, 4]))?;
    let outputs = [(matrix, out)];
    product(gpu, &Product::plain(operation, &outputs, Input::Made([x, Place::NONE]), rows))?;
    Ok((out, 0))
}

pub(in super::super) fn hc_pre(gpu: &mut Gpu, a: &HcPre) -> Result<(), Error> {
    let operation = "hc_pre";
    let ask = |operand| Ask { operation, operand };
    let (n, s, width) = (gpu.rows.len(), a.streams, a.norm.len);
    check_streams(operation, s, width)?;
    let x = gpu.f32(ask("x"), a.x, size(&[n, s, width]))?;
    let count = (2 + s) * s;
    let base = gpu.f32(ask("base"), a.weights.base, count)?;
    let scale = gpu.f32(ask("scale"), a.weights.scale, 3)?;
    let norm = gpu.f32(ask("norm"), a.norm, width)?;
    let out = gpu.f32(ask("out"), a.out, size(&[n, width]))?;
    let post = gpu.f32(ask("post"), a.post, n * s)?;
    let comb = gpu.f32(ask("comb"), a.comb, n * s * s)?;
    check(operation, a.iterations > 0, || "no Sinkhorn pass".to_owned(), "at least one")?;
    let matrix = check_mixes(operation, &a.weights, [s, width], count)?;
    gpu.cut()?;
    if cluster::put_off(gpu, a, [x, base, scale, norm, out, post, comb])? {
        return Ok(());
    }
    let ahead = match gpu.weights(operation, matrix)?.activation() {
        Activation::F32 => spread_and_mix(gpu, &a.weights, x)?,
        _ => None,
    };
    let (from, mixes, shards) = match ahead {
        Some(ahead) => {
            gpu.counters.dense_bytes += gpu.weights(operation, matrix)?.matrix_bytes;
            ahead
        }
        None => {
            let (mixes, shards) = mixes(gpu, operation, &a.weights, x, n)?;
            (x, mixes, shards)
        }
    };
    let (few, many) = (n <= SOME_ROWS, n > SOME_ROWS && registers_kernel(s, width).is_some());
    let arguments = HcArgs {
        shards,
        split: if many { 2 } else { u32::from(few) },
        halves: u32::from(halves::left(gpu, n, width)),
        ..hc_args(operation, a)?
    };
    let mut places = [Place::NONE; 15];
    places[..8].copy_from_slice(&[from, mixes, base, scale, norm, out, post, comb]);
    let grid = [gpu.n(), 1, 1];
    let Some((name, sections)) = registers_kernel(s, width) else {
        return gpu.launch("hc_pre", grid, STREAMS_GROUP, &places[..8], &arguments);
    };
    let blocks = gpu.prepare(out, [n, width])?;
    places[8..12].copy_from_slice(&blocks);
    // Behind the sections of the result a group makes the coefficients of the spread, and one more
    // moves the streams to their place.
    let parts = if few { sections + 1 + u32::from(ahead.is_some()) } else { 1 };
    places[12] = x;
    if arguments.halves == 1 {
        places[13..].copy_from_slice(&gpu.prepare_halves([n, width])?);
    }
    gpu.launch(name, [gpu.n(), parts, 1], STREAMS_GROUP, &places, &arguments)?;
    if !many {
        return Ok(());
    }
    let HcArgs { iterations, hc_eps: eps, .. } = arguments;
    let arguments = MixingArgs { rows: gpu.n(), iterations, eps, pad: 0 };
    // Half a simdgroup a row.
    let grid = [gpu.n().div_ceil(GROUP / 16), 1, 1];
    gpu.launch("hc_mixing", grid, GROUP, &[comb], &arguments)
}

pub(in super::super) fn hc_head(gpu: &mut Gpu, a: &HcHead) -> Result<(), Error> {
    let operation = "hc_head";
    let ask = |operand| Ask { operation, operand };
    let (n, s, width) = (a.rows, a.streams, a.norm.len);
    check_streams(operation, s, width)?;
    let x = gpu.f32(ask("x"), a.x, size(&[n, s, width]))?;
    let base = gpu.f32(ask("base"), a.weights.base, s)?;
    let scale = gpu.f32(ask("scale"), a.weights.scale, 1)?;
    let norm = gpu.f32(ask("norm"), a.norm, width)?;
    let out = gpu.f32(ask("out"), a.out, size(&[n, width]))?;
    check_mixes(operation, &a.weights, [s, width], s)?;
    let (mixes, shards) = mixes(gpu, operation, &a.weights, x, n)?;
    let arguments = HcArgs {
        streams: small(operation, s)?,
        width: small(operation, width)?,
        iterations: 0,
        norm_eps: a.norm_eps,
        hc_eps: a.hc_eps,
        shards,
        split: 0,
        halves: 0,
    };
    let places = [x, mixes, base, scale, norm, out];
    let grid = [small(operation, n)?, 1, 1];
    let name = match (s, width) {
        (4, 1024) => "hc_head_1024",
        (4, 4096) => "hc_head_4096",
        (4, 7168) => "hc_head_7168",
        _ => "hc_head",
    };
    gpu.launch(name, grid, STREAMS_GROUP, &places, &arguments)
}

pub(in super::super) fn hc_post(gpu: &mut Gpu, a: &HcPost) -> Result<(), Error> {
    let operation = "hc_post";
    let ask = |operand| Ask { operation, operand };
    let (n, s, width) = (gpu.rows.len(), a.streams, a.width);
    check_streams(operation, s, width)?;
    let z = gpu.f32(ask("z"), a.z, size(&[n, width]))?;
    let post = gpu.f32(ask("post"), a.post, n * s)?;
    let comb = gpu.f32(ask("comb"), a.comb, n * s * s)?;
    let x = gpu.f32(ask("x"), a.x, size(&[n, s, width]))?;
    let arguments = SpreadArgs { streams: small(operation, s)?, width: small(operation, width)? };
    let pending = Pending { places: [z, x, post, comb], arguments };
    gpu.settle()?;
    let fits = n == 1 || some_spread(gpu, n, width) || many_spread(gpu, n);
    let able = registers_kernel(s, width).is_some() && fits;
    if able && gpu.takes(Shortcuts::SPREAD) {
        gpu.pending = Some(pending);
        return Ok(());
    }
    if n <= SOME_ROWS {
        let why = || format!("{s} streams of {width}, or it is disabled");
        gpu.goes_without(Shortcuts::SPREAD, operation, why)?;
    }
    spread(gpu, &pending)
}

/// Whether `fast/streams_some.k` spreads so many rows on the way to the next mix.
fn some_spread(gpu: &Gpu, rows: usize, width: usize) -> bool {
    let room = gpu.driver.facts().group_bytes >= pool_bytes("post_shards_some_f16");
    rows <= SOME_ROWS && width / 2 <= SOME_COLUMNS && room && gpu.takes(Shortcuts::FEW)
}

/// Whether `fast/streams_many.k` spreads so many rows on the way to the next mix.
fn many_spread(gpu: &Gpu, rows: usize) -> bool {
    rows > SOME_ROWS && gpu.driver.facts().group_bytes >= pool_bytes(SPREAD_MIX)
}

/// Records a spread by itself.
pub(in super::super) fn spread(gpu: &mut Gpu, pending: &Pending) -> Result<(), Error> {
    let SpreadArgs { streams, width } = pending.arguments;
    let [z, x, post, comb] = pending.places;
    if let Some(Owed { work: Work::Cells { places, arguments }, .. }) = gpu.owed_of(z)
        && streams == 4
        && arguments.width == width
    {
        let [ids, halves, shards] = places;
        gpu.overwritten(z, usize::MAX);
        let (grid, places) = (fours(gpu, width), [ids, halves, shards, z, x, post, comb]);
        return gpu.launch("hc_post_cells", grid, GROUP, &places, &arguments);
    }
    let (name, each) = match streams == 4 && width.is_multiple_of(4) {
        true => ("hc_post_four", 4),
        false => ("hc_post", 1),
    };
    let grid = [width.div_ceil(GROUP * each), gpu.n(), 1];
    gpu.launch(name, grid, GROUP, &pending.places, &pending.arguments)
}

/// The streams as a pending spread leaves them, the shards of a mixing matrix times those, and how
/// these lie (`HcArgs`); `None`: there is no pending spread of these streams, or no kernel. Streams
/// of few rows are in scratch memory then.
fn spread_and_mix(
    gpu: &mut Gpu,
    weights: &HcWeights,
    x: Place,
) -> Result<Option<(Place, Place, u32)>, Error> {
    let Some(Pending { places: [z, own, post, comb], arguments }) = gpu.pending else {
        return Ok(None);
    };
    let (matrix, operation) = (weights.matrix, "hc_pre");
    let n = gpu.rows.len();
    let spread = size(&[arguments.streams as usize, arguments.width as usize]);
    if own != x || matrix.columns != spread {
        return Ok(None);
    }
    if n > SOME_ROWS {
        return spread_many(gpu, operation, matrix);
    }
    let Some(name) = decode::shards_kernel(gpu, operation, matrix, n)? else {
        let why = || format!("a matrix of {:?}", matrix.format);
        gpu.goes_without(Shortcuts::SPREAD, operation, why)?;
        return Ok(None);
    };
    let name = match (name == "shards_f16", n == 1) {
        (true, true) => "post_shards_f16",
        (false, true) => "post_shards_bf16",
        (true, false) => "post_shards_some_f16",
        (false, false) => "post_shards_some_bf16",
    };
    // Scratch memory that has to grow runs what was recorded, the spread with it.
    let next = gpu.scratch(Scratch::Streams, size(&[n, matrix.columns, 4]))?;
    let out = gpu.scratch(Scratch::Mixes, size(&[n, matrix.rows, 8, 4]))?;
    if gpu.pending.take().is_none() {
        return Ok(None);
    }
    let own = gpu.weights(operation, matrix)?;
    let arguments =
        ShardsArgs { rows: small(operation, matrix.rows)?, columns: small(operation, spread)? };
    let places = [Place::At(own.address), z, x, post, comb, next, out];
    let grid = match n {
        1 => [8, arguments.rows.div_ceil(4), 1],
        _ => [8, gpu.n(), 1],
    };
    gpu.launch(name, grid, STREAMS_GROUP, &places, &arguments)?;
    Ok(Some((next, out, 1)))
}

/// The same of very many rows, in their place.
fn spread_many(
    gpu: &mut Gpu,
    operation: &'static str,
    matrix: Matrix,
) -> Result<Option<(Place, Place, u32)>, Error> {
    let own = gpu.weights(operation, matrix)?;
    if own.format() != Format::F16 {
        return Ok(None);
    }
    let address = Place::At(own.address);
    // Scratch memory that has to grow runs what was recorded, the spread with it.
    let mixes = gpu.scratch(Scratch::Mixes, size(&[gpu.rows.len(), 8, matrix.rows, 4]))?;
    let Some(Pending { places: [z, x, post, comb], arguments }) = gpu.pending.take() else {
        return Ok(None);
    };
    let (rows, width) = (gpu.n(), arguments.width);
    let (arguments, grid) = (SpreadMixArgs { rows, width }, [rows.div_ceil(MANY_ROWS), 2, 1]);
    gpu.launch(SPREAD_MIX, grid, STREAMS_GROUP, &[address, z, x, post, comb, mixes], &arguments)?;
    Ok(Some((x, mixes, small(operation, matrix.rows)?)))
}

/// Kernels of `fast/streams.k` have the sums of `hc_pre` for the widths of known models, and leave
/// the result as blocks too. Their sections of a row are groups of their own where rows are few.
fn registers_kernel(streams: usize, width: usize) -> Option<(&'static str, u32)> {
    match (streams, width) {
        (4, 1024) => Some(("hc_pre_1024", 2)),
        (4, 4096) => Some(("hc_pre_4096", 4)),
        (4, 7168) => Some(("hc_pre_7168", 7)),
        _ => None,
    }
}

pub(in super::super) fn add_to_streams(gpu: &mut Gpu, a: &AddToStreams) -> Result<(), Error> {
    let operation = "add_to_streams";
    let (n, width) = (gpu.rows.len(), a.width);
    check_streams(operation, a.streams, width)?;
    let row = gpu.f32(Ask { operation, operand: "row" }, a.row, size(&[n, width]))?;
    let x = gpu.f32(Ask { operation, operand: "x" }, a.x, size(&[n, a.streams, width]))?;
    let arguments =
        SpreadArgs { streams: small(operation, a.streams)?, width: small(operation, width)? };
    let grid = [arguments.width.div_ceil(GROUP), gpu.n(), 1];
    gpu.launch("add_to_streams", grid, GROUP, &[row, x], &arguments)
}

pub(in super::super) fn steer(gpu: &mut Gpu, a: &Steer) -> Result<(), Error> {
    let operation = "steer";
    let ask = |operand| Ask { operation, operand };
    let n = gpu.rows.len();
    let end = size(&[a.row.saturating_add(1), a.width]);
    let directions = gpu.f32(ask("directions"), a.directions, end)?;
    let x = gpu.f32(ask("x"), a.x, size(&[n, a.width]))?;
    let arguments = SteerArgs {
        width: small(operation, a.width)?,
        direction: small(operation, a.row)?,
        scale: a.scale,
        rows: gpu.n(),
    };
    // Eight lanes a row.
    let grid = [gpu.n().div_ceil(GROUP / 8), 1, 1];
    gpu.launch("steer", grid, GROUP, &[x, directions], &arguments)
}

pub(in super::super) fn gather_rows(gpu: &mut Gpu, a: &GatherRows<'_>) -> Result<(), Error> {
    let operation = "gather_rows";
    let ask = |operand| Ask { operation, operand };
    let last = a.rows.iter().max().map_or(0, |row| row.saturating_add(1));
    let x = gpu.floats(ask("x"), a.x, size(&[last, a.width]))?;
    let len = size(&[a.at.saturating_add(a.rows.len()), a.width]);
    let out = gpu.floats(ask("out"), a.out, len)?;
    let mut rows = Vec::with_capacity(4 * a.rows.len());
    for row in a.rows {
        rows.extend(small(operation, *row)?.to_le_bytes());
    }
    let rows = gpu.recorder.put(rows);
    let arguments = GatherArgs {
        width: small(operation, a.width)?,
        at: small(operation, a.at)?,
        from_bf16: u32::from(a.x.element == Element::Bf16),
        to_bf16: u32::from(a.out.element == Element::Bf16),
    };
    let grid = [arguments.width.div_ceil(GROUP), small(operation, a.rows.len())?, 1];
    gpu.launch("gather_rows", grid, GROUP, &[x, rows, out], &arguments)
}
