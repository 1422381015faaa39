//! The indexer.

use super::super::arguments::IndexArgs;
use super::super::lanes::hidden;
use super::super::record::Place;
use super::super::store::Ask;
use super::super::text::pool_bytes;
use super::super::{FEW_ROWS, Gpu, SOME_ROWS, Scratch, Shortcuts, check, exchange, size, small};
use super::GROUP;
use super::heads::check_row;
use crate::{Element, Error, GateKind, IndexSelect, Part};
use ironstar_quant::fp4;

const OPERATION: &str = "index_select";

/// Scores that are held at a time, in elements; bounds the memory of a long prefill.
const SCORES_MAX: usize = 1 << 26;
/// Threads of a group that scores few rows: a simdgroup sixteen heads at a time.
const FEW_GROUP: u32 = 128;
/// Threads of a group that makes queries of 128 dims of few rows, eight lanes each.
const QUERY_GROUP: u32 = 32;
/// `INDEX_ROWS` of the kernels.
const TILE_ROWS: u32 = 16;
/// Threads of a group that scores on matrix units, and its keys.
const TILE_GROUP: u32 = 128;
/// The same where four simdgroups multiply together (`tiles_index_four.k`), and the rows.
const FOUR_GROUP: u32 = 640;
const FOUR_ROWS: u32 = 64;
const FOUR_KEYS: u32 = 192;
/// Threads of a group that chooses.
const CHOOSE_GROUP: u32 = 512;
/// The same for few rows, each of which should not wait for a small group.
const WIDE_GROUP: u32 = 1024;
/// So many times the choice are seen where very many rows hold their scores in registers.
const LONG: usize = 4;

/// The kernel of a cluster that does all of it for one row, its groups and their threads, and most
/// heads and keys.
const CLUSTER: &str = "index_cluster";
const CLUSTER_GROUPS: u32 = 16;
const CLUSTER_GROUP: u32 = 512;
const CLUSTER_HEADS: usize = 64;
const CLUSTER_KEYS: usize = 2048;

fn check_shape(gpu: &Gpu, a: &IndexSelect<'_>) -> Result<(), Error> {
    check(
        OPERATION,
        a.ratio > 0 && a.top_k > 0 && a.heads > 0 && a.width.is_power_of_two(),
        || format!("ratio {}, top {}, {} heads of {}", a.ratio, a.top_k, a.heads, a.width),
        "all positive, the width a power of two",
    )?;
    check_row(OPERATION, a.width, a.rope.pairs, false)?;
    check(
        OPERATION,
        a.rows.len() == gpu.rows.spans.len(),
        || format!("rows of {} spans", a.rows.len()),
        "one buffer of rows a span",
    )?;
    let element = a.rows.first().map(|rows| rows.element);
    check(
        OPERATION,
        a.rows.iter().all(|rows| Some(rows.element) == element)
            && (element != Some(Element::Fp4Row) || a.width == fp4::INDEXER_DIMS),
        || format!("rows of {element:?} and width {}", a.width),
        "one kind of rows; FP4 rows have 128 dims",
    )
}

/// Refuses to go without the kernel for few rows where it is required.
fn require(gpu: &Gpu, n: usize, taken: bool) -> Result<(), Error> {
    if taken || n > FEW_ROWS {
        return Ok(());
    }
    let why = || "rows of floats, or it is disabled".to_owned();
    gpu.goes_without(Shortcuts::INDEX, OPERATION, why)
}

/// Scores of `count` of a step's `n` rows; `places` are queries, weights, positions, spans, rows,
/// and the result.
fn score(
    gpu: &mut Gpu,
    arguments: &mut IndexArgs,
    places: &[Place; 6],
    [n, count]: [usize; 2],
) -> Result<(), Error> {
    let few = n <= SOME_ROWS && gpu.takes(Shortcuts::INDEX);
    let (name, keys, group) = match (arguments.fp4 == 1, few) {
        (true, true) => ("index_scores_few", 32, FEW_GROUP),
        (true, false) => ("index_scores_fp4", GROUP, GROUP),
        (false, _) => ("index_scores_f32", GROUP, GROUP),
    };
    let tiles = arguments.stride.div_ceil(arguments.ranks).div_ceil(keys);
    let count = small(OPERATION, count)?;
    gpu.through_tables(hidden::INDEX, 0);
    if name == "index_scores_fp4" && n > SOME_ROWS && gpu.takes(Shortcuts::SCORES) {
        arguments.groups = count;
        if multiplies_together(gpu) {
            let all = arguments.stride.div_ceil(FOUR_KEYS) * count.div_ceil(FOUR_ROWS);
            arguments.run = all.min(gpu.multiprocessors());
            let grid = [arguments.run, 1, 1];
            return gpu.launch("index_scores_four", grid, FOUR_GROUP, places, arguments);
        }
        let keys = arguments.stride.div_ceil(TILE_GROUP);
        let grid = [keys, count.div_ceil(TILE_ROWS), 1];
        return gpu.launch("index_scores_tiles", grid, TILE_GROUP, places, arguments);
    }
    gpu.launch(name, [tiles, count, 1], group, places, arguments)
}

/// Whether four simdgroups multiply together what lies in shared memory.
fn multiplies_together(gpu: &Gpu) -> bool {
    let facts = gpu.driver.facts();
    let room = facts.signals && facts.group_bytes >= pool_bytes("index_scores_four");
    room && gpu.takes(Shortcuts::FOUR)
}

/// The kernel that chooses for so many rows, and threads of its group.
fn choose_kernel(gpu: &Gpu, n: usize, long: bool) -> (&'static str, u32) {
    match n <= SOME_ROWS && gpu.driver.facts().group_max >= WIDE_GROUP {
        true => ("index_choose_few", WIDE_GROUP),
        false if long && gpu.takes(Shortcuts::SCORES) => ("index_choose_many", CHOOSE_GROUP),
        false => ("index_choose", CHOOSE_GROUP),
    }
}

/// Candidates that the threads of `index_merge` can hold: four each.
const MERGE_MAX: usize = 4096;

/// [`crate::Backend::index_together`].
pub(in super::super) fn together(gpu: &mut Gpu, a: &IndexSelect<'_>) -> Result<bool, Error> {
    let part = gpu.part();
    let n = gpu.rows.len();
    let fp4_rows = a.rows.iter().all(|rows| rows.element == Element::Fp4Row);
    let keys_max = a.rows.iter().map(|rows| rows.len).max().unwrap_or(0);
    let fits = gpu.gates.is_some()
        && exchange::splits_rows(gpu)
        && n > 0
        && n <= SOME_ROWS
        && gpu.takes(Shortcuts::INDEX)
        && fp4_rows
        && keys_max > a.top_k
        && size(&[n, keys_max]) <= SCORES_MAX
        && size(&[slots(a.top_k), part.ranks]) <= MERGE_MAX
        && gpu.driver.facts().group_max >= WIDE_GROUP;
    select(gpu, a, if fits { part } else { Part::WHOLE })?;
    Ok(true)
}

/// Candidates of a rank and row: what a gate carries begins at multiples of four words.
fn slots(top_k: usize) -> usize {
    top_k.next_multiple_of(4)
}

/// What the ranks chose, each from its run, becomes the choice of all.
fn merge(
    gpu: &mut Gpu,
    arguments: IndexArgs,
    [scores, positions, out]: [Place; 3],
    n: usize,
) -> Result<(), Error> {
    let Part { rank, ranks } = gpu.part();
    let words = size(&[2, n, usize::try_from(arguments.slots).unwrap_or(usize::MAX)]);
    let all = gpu.scratch(Scratch::Candidates, size(&[ranks, words, 4]))?;
    let Place::At(first) = all else { unreachable!("scratch lies in memory that stays") };
    let mine = Place::At(first.offset(4 * size(&[rank, words]) as u64));
    let rows = small(OPERATION, n)?;
    let grid = [arguments.slots.div_ceil(GROUP), rows, 1];
    gpu.launch("index_pack", grid, GROUP, &[scores, positions, out, mine], &arguments)?;
    let starts: Vec<usize> = (0..=ranks).map(|rank| rank * words).collect();
    exchange::share_words(gpu, GateKind::Index, all, &starts)?;
    let arguments = IndexArgs { row0: rows, ..arguments };
    gpu.launch("index_merge", [rows, 1, 1], WIDE_GROUP, &[all, positions, out], &arguments)
}

/// [`crate::Backend::index_select`].
pub(in super::super) fn index_select(gpu: &mut Gpu, a: &IndexSelect<'_>) -> Result<(), Error> {
    select(gpu, a, Part::WHOLE)
}

/// Whether one launch makes the whole choice: that of one row that sees few rows of FP4.
fn by_cluster(gpu: &Gpu, a: &IndexSelect<'_>, part: Part, fp4_rows: bool) -> bool {
    let facts = gpu.driver.facts();
    let [span] = &*gpu.rows.spans else { return false };
    let visible = (span.position + span.rows.len()) / a.ratio;
    span.rows.len() == 1
        && part.ranks == 1
        && fp4_rows
        && a.width == fp4::INDEXER_DIMS
        && a.heads <= CLUSTER_HEADS
        && visible <= CLUSTER_KEYS
        && facts.clusters
        && facts.group_max >= CLUSTER_GROUP
        && gpu.takes(Shortcuts::INDEX)
        && gpu.takes(Shortcuts::CLUSTER)
}

/// What does not depend on the rows.
fn arguments_of(a: &IndexSelect<'_>, part: Part) -> Result<IndexArgs, Error> {
    #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^24")]
    let factor = 1.0 / ((a.width * a.heads) as f32).sqrt();
    Ok(IndexArgs {
        heads: small(OPERATION, a.heads)?,
        width: small(OPERATION, a.width)?,
        pairs: small(OPERATION, a.rope.pairs)?,
        ratio: small(OPERATION, a.ratio)?,
        top_k: small(OPERATION, a.top_k)?,
        rank: small(OPERATION, part.rank)?,
        ranks: small(OPERATION, part.ranks)?,
        slots: small(OPERATION, slots(a.top_k))?,
        factor,
        single: u32::from(a.rows.len() == 1),
        ..IndexArgs::default()
    })
}

/// The choice from all rows, or as one of several ranks, which all do this.
fn select(gpu: &mut Gpu, a: &IndexSelect<'_>, part: Part) -> Result<(), Error> {
    let n = gpu.rows.len();
    if n == 0 {
        return Ok(());
    }
    check_shape(gpu, a)?;
    let ask = |operand| Ask { operation: OPERATION, operand };
    let q = gpu.f32(ask("q"), a.q, size(&[n, a.heads, a.width]))?;
    let weights = gpu.f32(ask("weights"), a.weights, size(&[n, a.heads]))?;
    let out = gpu.u32(ask("out"), a.out, size(&[n, a.top_k]))?;
    let fp4_rows = a.rows.iter().any(|rows| rows.element == Element::Fp4Row);
    let mut rows = Vec::with_capacity(a.rows.len());
    // Room for as many rows as a buffer can hold, so that launches do not depend on positions.
    let (mut keys_max, mut seen) = (0, 0);
    for (buffer, span) in a.rows.iter().zip(&gpu.rows.spans) {
        let visible = (span.position + span.rows.len()) / a.ratio;
        let per_row = if fp4_rows { 1 } else { a.width };
        let len = size(&[visible, per_row]);
        let elements = [Element::F32, Element::Fp4Row];
        rows.push(gpu.store.address(ask("rows"), *buffer, &elements, len)?);
        (keys_max, seen) = (keys_max.max(buffer.len / per_row), seen.max(visible));
    }
    // Rows of scores are whole sixteens of bytes.
    let (many, stride) = (n > SOME_ROWS, keys_max.max(1).next_multiple_of(4));
    let (positions, span_of) = (gpu.positions(), gpu.span_of());
    let (table, rows) = (gpu.angles(OPERATION, a.rope)?, gpu.table(rows));
    let mut arguments = IndexArgs {
        fp4: u32::from(fp4_rows),
        stride: small(OPERATION, stride)?,
        ..arguments_of(a, part)?
    };
    if by_cluster(gpu, a, part, fp4_rows && keys_max > a.top_k) {
        let places = [q, table, weights, positions, rows, out];
        gpu.through_tables(hidden::INDEX, 0);
        return gpu.launch(CLUSTER, [CLUSTER_GROUPS, 1, 1], CLUSTER_GROUP, &places, &arguments);
    }
    let queries = gpu.scratch(Scratch::Queries, size(&[n, a.heads, fp4::INDEXER_BYTES]))?;
    // Launches of few rows do not depend on positions, so that they are replayed.
    let scoring = keys_max > a.top_k && (!many || seen > a.top_k);
    if scoring {
        let places = [q, table, positions, queries];
        let (name, group, each) = match (fp4_rows && a.width == 128, n <= SOME_ROWS) {
            (true, true) => ("index_queries_128", QUERY_GROUP, QUERY_GROUP / 8),
            (true, false) => ("index_queries_128", GROUP, GROUP / 8),
            (false, _) => ("index_queries", GROUP, 1),
        };
        let grid = [arguments.heads.div_ceil(each), gpu.n(), 1];
        gpu.launch(name, grid, group, &places, &arguments)?;
    }
    let batch = (SCORES_MAX / keys_max.max(1)).clamp(1, n);
    let scores = gpu.scratch(Scratch::Scores, size(&[batch, stride, 4]))?;
    for first in (0..n).step_by(batch) {
        let count = batch.min(n - first);
        arguments.row0 = small(OPERATION, first)?;
        if scoring {
            require(gpu, n, n <= SOME_ROWS && gpu.takes(Shortcuts::INDEX) && fp4_rows)?;
            let q = if fp4_rows { queries } else { q };
            let places = [q, weights, positions, span_of, rows, scores];
            score(gpu, &mut arguments, &places, [n, count])?;
        }
        let (places, grid) = ([scores, positions, out], [small(OPERATION, count)?, 1, 1]);
        let (name, group) = choose_kernel(gpu, n, many && seen > LONG * a.top_k);
        gpu.launch(name, grid, group, &places, &arguments)?;
    }
    if part.ranks > 1 {
        // All rows were one batch.
        merge(gpu, arguments, [scores, positions, out], n)?;
    }
    Ok(())
}

#[cfg(all(test, feature = "host-driver"))]
mod tests;
