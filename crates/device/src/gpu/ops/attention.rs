//! Attention.

use super::super::arguments::{AttendArgs, HeadArgs};
use super::super::lanes::hidden;
use super::super::owed::{Owed, Work};
use super::super::prepared::NARROW;
use super::super::record::Place;
use super::super::store::Ask;
use super::super::text::pool_bytes;
use super::super::{Gpu, SOME_ROWS, Scratch, Shortcuts, check, size, small};
use super::heads::FEW_WIDTH;
use super::{GROUP, SIMDGROUPS};
use crate::{Attend, Element, Error};

/// Keys of a tile of scores; `ATTEND_KEYS` of the kernel.
const KEYS: u32 = 64;
/// Heads that share the loading of keys; `ATTEND_HEADS` of the kernel.
const HEADS: u32 = 4;
/// Heads of a group on matrix units; `HEADS_TILE` of the kernel.
const TILE_HEADS: u32 = 16;
/// Heads of a group that share keys; `HEADS_WIDE` of the kernel.
const WIDE_HEADS: u32 = 64;
/// The width of heads that four simdgroups multiply together; `FOUR_WIDTH` of the kernel.
const FOUR_WIDTH: usize = 512;
/// The most pairs of them that are turned.
const FOUR_PAIRS: u32 = 32;
/// Threads of such a group.
const TILE_GROUP: u32 = 512;
/// `KEYS_TILE` of the kernels; scores of a head are whole tiles.
const KEYS_TILE: usize = 32;
/// Keys up to which the kernel with less shared memory has them all at a time.
const KEYS_SHORT: usize = 12 * KEYS_TILE;
/// The kernel of one row in one launch, its groups, the width of its heads and the most tiles of
/// keys: `ROW_GROUPS` and `ROW_TILES` of the kernel.
const ROW: &str = "attend_row";
const ROW_GROUPS: u32 = 16;
const ROW_WIDTH: u32 = 512;
const ROW_TILES: usize = 20;
/// Groups of scores that a multiprocessor has at a time, and turns of groups that mix from which on
/// fewer of them have more each.
const SCORES_AT_ONCE: u32 = 2;
const MIX_TURNS: u32 = 2;
/// Scores that are held at a time, in elements; bounds the memory of a long prefill.
const SCORES_MAX: usize = 1 << 26;

const OPERATION: &str = "attend";

/// Whether keys of bf16 of this width go to `tiles_attend.k`: the same for one row and for many.
fn on_matrix_units(gpu: &Gpu, width: usize) -> bool {
    let room = gpu.driver.facts().group_bytes >= pool_bytes("attend_tiles");
    room && width.is_multiple_of(64) && width <= 512
}

/// Checks the operands and gives the width of a head.
fn check_attend(gpu: &Gpu, a: &Attend<'_>) -> Result<usize, Error> {
    let spans = gpu.rows.spans.len();
    let width = a.rings.first().map_or(0, |ring| ring.len.checked_div(a.capacity).unwrap_or(0));
    check(
        OPERATION,
        width > 0 && width.is_multiple_of(2) && 2 * a.rope.pairs <= width && a.heads > 0,
        || format!("{} heads of {width}, {} rotated pairs", a.heads, a.rope.pairs),
        "heads and dims, an even number of them on a GPU",
    )?;
    let compressed = a.compressed.map_or(spans, |compressed| compressed.rows.len());
    check(
        OPERATION,
        a.rings.len() == spans && compressed == spans,
        || format!("{} rings and {compressed} compressed rows for {spans} spans", a.rings.len()),
        "one of each a span",
    )?;
    check(
        OPERATION,
        (1..=a.capacity).contains(&a.window),
        || format!("a window of {} in rings of {}", a.window, a.capacity),
        "rings hold the window",
    )?;
    let ratio_missing = a.compressed.is_some_and(|compressed| compressed.ratio == 0);
    check(OPERATION, !ratio_missing, || "ratio 0".to_owned(), "tokens a compressed row")?;
    for ring in a.rings {
        check(
            OPERATION,
            ring.element == a.kv.element,
            || format!("rings of {:?} and rows of {:?}", ring.element, a.kv.element),
            "equal elements: a key's bits may not depend on when it is read",
        )?;
    }
    Ok(width)
}

/// Tables of the spans' rings and compressed rows, and the most compressed rows that a row reads.
fn key_tables(gpu: &mut Gpu, a: &Attend<'_>, width: usize) -> Result<([Place; 2], usize), Error> {
    let ask = |operand| Ask { operation: OPERATION, operand };
    let floats = [Element::F32, Element::Bf16];
    let mut rings = Vec::with_capacity(a.rings.len());
    for ring in a.rings {
        let len = size(&[a.capacity, width]);
        rings.push(gpu.store.address(ask("ring"), *ring, &floats, len)?);
    }
    let rings = gpu.table(rings);
    let Some(compressed) = a.compressed else { return Ok(([rings, Place::NONE], 0)) };
    let (mut rows, mut most) = (Vec::with_capacity(a.rings.len()), 0);
    let first = compressed.rows.first().map(|buffer| buffer.element);
    for (buffer, span) in compressed.rows.iter().zip(&gpu.rows.spans) {
        let visible = (span.position + span.rows.len()) / compressed.ratio;
        let len = size(&[visible, width]);
        rows.push(gpu.store.address(ask("compressed rows"), *buffer, &floats, len)?);
        most = most.max(buffer.len / width);
        let found = || format!("compressed rows of {:?}", buffer.element);
        check(OPERATION, Some(buffer.element) == first, found, "one kind of rows")?;
    }
    let most = compressed.choice.map_or(most, |(_, top_k)| most.min(top_k));
    Ok(([rings, gpu.table(rows)], most))
}

/// What the kernels are told, from the first row on.
fn numbers(a: &Attend<'_>, [width, top_k, stride]: [usize; 3]) -> Result<AttendArgs, Error> {
    let rows = a.compressed.and_then(|compressed| compressed.rows.first());
    #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^24")]
    let scale = 1.0 / (width as f32).sqrt();
    Ok(AttendArgs {
        heads: small(OPERATION, a.heads)?,
        width: small(OPERATION, width)?,
        pairs: small(OPERATION, a.rope.pairs)?,
        window: small(OPERATION, a.window)?,
        capacity: small(OPERATION, a.capacity)?,
        ratio: small(OPERATION, a.compressed.map_or(0, |compressed| compressed.ratio))?,
        top_k: small(OPERATION, top_k)?,
        stride: small(OPERATION, stride)?,
        row0: 0,
        kv_bf16: u32::from(a.kv.element == Element::Bf16),
        rows_bf16: u32::from(rows.is_some_and(|rows| rows.element == Element::Bf16)),
        scale,
        mutual: u32::from(a.mutual),
        made: 0,
        eps: 0.0,
        single: u32::from(a.rings.len() == 1),
        splits: 0,
    })
}

fn fits_few(gpu: &Gpu) -> bool {
    gpu.driver.facts().group_bytes >= pool_bytes("attend_few_mix")
}

/// Whether one row has its attention in one launch, which is one of clusters.
fn in_one_launch(gpu: &Gpu, a: &AttendArgs, n: u32) -> bool {
    let facts = gpu.driver.facts();
    let room = facts.clusters && facts.group_bytes >= pool_bytes(ROW);
    let fits = n == 1 && a.width == ROW_WIDTH && a.stride as usize <= ROW_TILES * KEYS_TILE;
    fits && room && gpu.takes(Shortcuts::CLUSTER) && gpu.takes(Shortcuts::ATTEND)
}

/// Whether 64 heads of a row in one group have work for all of its simdgroups.
fn shares_keys(gpu: &Gpu, heads: u32) -> bool {
    let whole = heads.div_ceil(TILE_HEADS).is_multiple_of(WIDE_HEADS / TILE_HEADS);
    let room = gpu.driver.facts().group_bytes >= pool_bytes("attend_heads");
    whole && room && gpu.takes(Shortcuts::HEADS)
}

/// Whether four simdgroups multiply together what lies in shared memory.
fn multiplies_together(gpu: &Gpu, width: usize, pairs: u32) -> bool {
    let facts = gpu.driver.facts();
    let room = facts.signals && facts.group_bytes >= pool_bytes("attend_four");
    width == FOUR_WIDTH && pairs <= FOUR_PAIRS && room && gpu.takes(Shortcuts::FOUR)
}

/// Whether attention of very many rows makes such query heads on its way.
pub(super) fn makes_heads(gpu: &Gpu, width: usize, heads: &HeadArgs) -> bool {
    heads.pairs.is_multiple_of(4)
        && shares_keys(gpu, heads.heads)
        && multiplies_together(gpu, width, heads.pairs)
}

/// The next launch makes what is owed of the queries on its way, if it can; says whether it does.
fn take_heads(gpu: &mut Gpu, a: &mut AttendArgs, q: Place, table: Place) -> bool {
    let Some(Owed { work: Work::Heads { table: own, arguments }, .. }) = gpu.owed_of(q) else {
        return false;
    };
    let fits = own == table && arguments.heads == a.heads && a.width as usize == FEW_WIDTH;
    if fits {
        (a.made, a.eps) = (2 | arguments.norm, arguments.eps);
        gpu.take_along(q);
    }
    fits
}

/// The launches of `fast/attend.k`, whose result is that of `attend_tiles`. Where small groups
/// would take turns on the card, `fast/attend_some.k` makes scores and mix.
fn attend_few(
    gpu: &mut Gpu,
    a: &AttendArgs,
    n: u32,
    q: Place,
    keys: [Place; 7],
    [sinks, table, out]: [Place; 3],
) -> Result<(), Error> {
    let [kv, choice, positions, span_of, spans, rings, rows] = keys;
    let heads = size(&[n as usize, a.heads as usize]);
    let stride = a.stride as usize;
    let tiles = a.heads.div_ceil(TILE_HEADS);
    let [codes, scales] = gpu.prepare_narrow(out, [heads, a.width as usize], NARROW)?;
    let mut arguments = *a;
    if in_one_launch(gpu, a, n) {
        take_heads(gpu, &mut arguments, q, table);
        let places = [
            q, kv, choice, positions, span_of, spans, rings, rows, sinks, table, out, codes, scales,
        ];
        gpu.through_tables(hidden::RINGS | hidden::ROWS, 0);
        gpu.launch(ROW, [ROW_GROUPS, n, tiles], TILE_GROUP, &places, &arguments)?;
        gpu.overwritten(q, usize::MAX);
        return Ok(());
    }
    let scores = gpu.scratch(Scratch::Scores, size(&[heads, stride, 4]))?;
    let sums = gpu.scratch(Scratch::Sums, size(&[heads, 4]))?;
    let weights = gpu.scratch(Scratch::Weights, size(&[heads, stride, 2]))?;
    let shrinks = gpu.scratch(Scratch::Shrinks, size(&[heads, stride / KEYS_TILE, 4]))?;
    take_heads(gpu, &mut arguments, q, table);
    let places = [q, kv, choice, positions, span_of, spans, rings, rows, table, scores];
    let (all, each) = (small(OPERATION, stride / KEYS_TILE)?, n.saturating_mul(tiles));
    let splits = (SCORES_AT_ONCE * gpu.multiprocessors() / each.max(1)).max(1);
    arguments.splits = if n == 1 { all } else { splits.min(all) };
    let name = match arguments.splits < all {
        true => "attend_some_scores",
        false => "attend_few_scores",
    };
    let a = &arguments;
    gpu.through_tables(hidden::RINGS | hidden::ROWS, 0);
    gpu.launch(name, [a.splits, n, tiles], TILE_GROUP, &places, a)?;
    gpu.overwritten(q, usize::MAX);
    let places = [scores, sinks, positions, span_of, spans, weights, shrinks, sums];
    gpu.launch("attend_few_weights", [a.heads.div_ceil(2), n, 1], 64, &places, a)?;
    let places = [
        weights, shrinks, sums, kv, choice, positions, span_of, spans, rings, rows, table, out,
        codes, scales,
    ];
    gpu.through_tables(hidden::RINGS | hidden::ROWS, 0);
    let has = |name| gpu.driver.facts().group_bytes >= pool_bytes(name);
    let groups = (a.width / 64).saturating_mul(each);
    if n > 1 && has("attend_some_mix") && groups > MIX_TURNS * gpu.multiprocessors() {
        let grid = [a.width / 64, n, a.heads.div_ceil(WIDE_HEADS)];
        return gpu.launch("attend_some_mix", grid, TILE_GROUP, &places, a);
    }
    let long = has("attend_few_mix_long") && stride > KEYS_SHORT;
    let name = if long { "attend_few_mix_long" } else { "attend_few_mix" };
    gpu.launch(name, [a.width / 64, n, tiles], TILE_GROUP, &places, a)
}

/// The launch of very many rows over keys of bf16: tiles of them, on matrix units.
fn attend_tiles(
    gpu: &mut Gpu,
    a: &mut AttendArgs,
    n: u32,
    q: Place,
    keys: [Place; 7],
    [sinks, table, out]: [Place; 3],
) -> Result<(), Error> {
    let [kv, choice, positions, span_of, spans, rings, rows] = keys;
    let mut places = [Place::NONE; 13];
    places[..11].copy_from_slice(&[
        q, kv, choice, positions, span_of, spans, rings, rows, sinks, table, out,
    ]);
    let together = multiplies_together(gpu, a.width as usize, a.pairs);
    let (name, each) = match (shares_keys(gpu, a.heads), together) {
        (true, true) => ("attend_four", WIDE_HEADS),
        (true, false) => ("attend_heads", WIDE_HEADS),
        (false, _) => ("attend_tiles", TILE_HEADS),
    };
    let four = name == "attend_four";
    if four {
        let shape = [size(&[n as usize, a.heads as usize]), a.width as usize];
        places[11..].copy_from_slice(&gpu.prepare_narrow(out, shape, NARROW)?);
    }
    let made = four && take_heads(gpu, a, q, table);
    let places = if four { &places[..] } else { &places[..11] };
    gpu.launch(name, [a.heads.div_ceil(each), n, 1], TILE_GROUP, places, a)?;
    if made {
        gpu.overwritten(q, usize::MAX);
    }
    Ok(())
}

pub(in super::super) fn attend(gpu: &mut Gpu, a: &Attend<'_>) -> Result<(), Error> {
    let n = gpu.rows.len();
    if n == 0 {
        return Ok(());
    }
    let ask = |operand| Ask { operation: OPERATION, operand };
    let width = check_attend(gpu, a)?;
    let q = gpu.f32(ask("q"), a.q, size(&[n, a.heads, width]))?;
    let kv = gpu.floats(ask("kv"), a.kv, size(&[n, width]))?;
    let sinks = gpu.f32(ask("sinks"), a.sinks, a.heads)?;
    let out = gpu.f32(ask("out"), a.out, size(&[n, a.heads, width]))?;
    let choice = match a.compressed.and_then(|compressed| compressed.choice) {
        None => None,
        Some((buffer, top_k)) => {
            check(OPERATION, top_k > 0, || "a choice of 0".to_owned(), "at least one row")?;
            Some((gpu.u32(ask("choice"), buffer, size(&[n, top_k]))?, top_k))
        }
    };
    let ([rings, rows], compressed_max) = key_tables(gpu, a, width)?;
    let table = gpu.angles(OPERATION, a.rope)?;
    let (positions, span_of, spans) = (gpu.positions(), gpu.span_of(), gpu.spans());
    // Mutual rows come on top of the window.
    let window_max = a.window.saturating_add(if a.mutual { n } else { 0 });
    let stride = compressed_max.saturating_add(window_max).next_multiple_of(32);
    let mut arguments = numbers(a, [width, choice.map_or(0, |(_, top_k)| top_k), stride])?;
    let heads = arguments.heads;
    let choice = choice.map_or(Place::NONE, |(choice, _)| choice);
    let bf16 = arguments.kv_bf16 == 1 && (arguments.ratio == 0 || arguments.rows_bf16 == 1);
    if bf16 && on_matrix_units(gpu, width) && n <= SOME_ROWS && fits_few(gpu) {
        let keys = [kv, choice, positions, span_of, spans, rings, rows];
        return attend_few(gpu, &arguments, small(OPERATION, n)?, q, keys, [sinks, table, out]);
    }
    if bf16 && on_matrix_units(gpu, width) {
        let keys = [kv, choice, positions, span_of, spans, rings, rows];
        return attend_tiles(
            gpu,
            &mut arguments,
            small(OPERATION, n)?,
            q,
            keys,
            [sinks, table, out],
        );
    }
    // What `fast/attention.k` takes; its sums are those of `attention.k`.
    let tiled = bf16 && width.is_multiple_of(32) && width <= 512;
    let batch = (SCORES_MAX / size(&[stride, a.heads])).clamp(1, n);
    let scores = gpu.scratch(Scratch::Scores, size(&[batch, a.heads, stride, 4]))?;
    let sums = gpu.scratch(Scratch::Sums, size(&[batch, a.heads, 4]))?;
    for first in (0..n).step_by(batch) {
        let count = small(OPERATION, batch.min(n - first))?;
        arguments.row0 = small(OPERATION, first)?;
        let places = [q, kv, choice, positions, span_of, spans, rings, rows, scores];
        let (name, grid) = match tiled {
            true => ("scores_bf16", [arguments.stride.div_ceil(16), heads.div_ceil(8), count]),
            false => ("attend_scores", [arguments.stride.div_ceil(KEYS), heads, count]),
        };
        gpu.launch(name, grid, GROUP, &places, &arguments)?;
        let places = [scores, sinks, positions, span_of, spans, sums];
        let grid = [heads.div_ceil(SIMDGROUPS), count, 1];
        gpu.launch("attend_weights", grid, GROUP, &places, &arguments)?;
        let places = [scores, kv, choice, positions, span_of, spans, rings, rows, sums, table, out];
        let plain = [(arguments.width / 2).div_ceil(GROUP), heads.div_ceil(HEADS), count];
        let (name, grid) = match tiled {
            true => ("mix_bf16", [arguments.width / 32, heads.div_ceil(8), count]),
            false => ("attend_mix", plain),
        };
        gpu.launch(name, grid, GROUP, &places, &arguments)?;
    }
    Ok(())
}
