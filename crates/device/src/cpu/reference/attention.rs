//! Attention of many heads over one shared key (spec/deepseek_v4.md 2.5 steps 6 to 8).
//!
//! Keys in order: chosen compressed rows ascending, then window positions ascending. Order of sums:
//! a score has sixteen lanes (dim mod 16) by fma, then the balanced tree (a row is never cut over
//! ranks, so this need not be the eight shards); the denominator has eight lanes (key mod 8), the
//! tree, then the sink; an output dim is one chain of fma over the keys. A row's order depends on
//! its position only (and on its span, where its rows see one another).

use super::grow;
use crate::cpu::isa::{Kernel, launch, parts};
use crate::cpu::math::exp;
use crate::cpu::pool::Pool;
use crate::cpu::rope::{RowTable, rotate_back};
use crate::cpu::share::{Pieces, RowPieces, Rows};
use crate::cpu::spare::Spare;
use crate::cpu::steps;
use crate::cpu::store::{Ask, Data};
use crate::cpu::wide::Wide;
#[cfg(target_arch = "x86_64")]
use crate::cpu::wide::{Avx2, Avx512};
use crate::cpu::{Cpu, Isa, check, size};
use crate::{Attend, Element, Error, Span, StoreWindow};
use ironstar_quant::tree8;
use std::cell::Ref;
use std::marker::PhantomData;
use std::ops::Range;

/// Keys that are unpacked at a time for all heads of a block: with the queries of a few heads they
/// stay in the first-level cache.
const TILE: usize = 16;
/// Compressed rows that stay unpacked between scores and values, if a row has no more.
const KEPT: usize = 64;
/// Rows whose windows are unpacked together.
const GROUP: usize = 16;
/// Most heads that share an unpacked tile.
const HEADS_MAX: usize = 64;
/// Keys that a head meets at a time.
const KEYS: usize = 4;
/// Lanes; tiles and scratch rows are padded to them with zeros.
const LANES: usize = 16;

/// Floats of scratch that a row takes.
const fn padded(width: usize) -> usize {
    width.next_multiple_of(LANES)
}

/// The same of an unpacked key: a line more, or the same dims of many keys, whose widths are powers
/// of two, would be in few sets of the first-level cache.
const fn key_stride(width: usize) -> usize {
    padded(width) + LANES
}

const FLOATS: [Element; 2] = [Element::F32, Element::Bf16];

/// A ring and the compressed rows of a span.
type Held = (Ref<'static, Data>, Option<Ref<'static, Data>>);

/// Memory of attention's lists.
#[derive(Default)]
pub(super) struct Scratch {
    held: Spare<Held>,
    spans: Spare<SpanKeys<'static>>,
}

/// What a span's rows may see.
struct SpanKeys<'a> {
    ring: Rows<'a>,
    compressed: Rows<'a>,
}

/// The operands of one call, checked.
struct Plan<'a> {
    q: &'a [f32],
    kv: Rows<'a>,
    sinks: &'a [f32],
    spans: &'a [SpanKeys<'a>],
    rows: &'a steps::Rows,
    window: usize,
    mutual: bool,
    capacity: usize,
    /// Tokens a compressed row; 0 where there are none.
    ratio: usize,
    /// Choice [n, top_k] and top_k.
    choice: Option<(&'a [u32], usize)>,
    table: RowTable<'a>,
    heads: usize,
    /// Heads of an item.
    block: usize,
    width: usize,
    /// For each part: a tile of keys, queries and outputs of a block, and its scores.
    scratch: Pieces<'a, f32>,
    out: Pieces<'a, f32>,
}

/// The kernel: one row and a block of heads an item. `H` heads and `D` wides of an output row are
/// held in registers; they do not touch the order.
struct RowsOfHeads<'a, V, const H: usize, const D: usize> {
    plan: Plan<'a>,
    wide: PhantomData<V>,
}

/// The keys of one row.
struct Keys<'a> {
    /// `None`: the compressed rows 0..compressed.
    choice: Option<&'a [u32]>,
    compressed: usize,
    /// First window position.
    window: usize,
    len: usize,
}

/// Compressed rows that position `t` attends to.
fn compressed_count(t: usize, ratio: usize, top_k: Option<usize>) -> usize {
    let visible = (t + 1).checked_div(ratio).unwrap_or(0);
    top_k.map_or(visible, |top_k| visible.min(top_k))
}

/// First position and end of the window that position `t` of a span sees.
fn window_of(t: usize, span: &Span, window: usize, mutual: bool) -> (usize, usize) {
    if mutual {
        (span.position.saturating_sub(window), span.position + span.rows.len())
    } else {
        ((t + 1).saturating_sub(window), t + 1)
    }
}

/// Scores of a head are this far apart: behind those of a last tile that begins anywhere.
fn score_stride(keys: usize) -> usize {
    keys.next_multiple_of(TILE) + TILE
}

impl Plan<'_> {
    fn keys(&self, row: usize) -> Keys<'_> {
        let t = self.rows.positions[row];
        let (window, end) = self.window_of(row);
        let choice = self.choice.map(|(choice, top_k)| &choice[row * top_k..][..top_k]);
        let compressed = compressed_count(t, self.ratio, choice.map(<[u32]>::len));
        Keys { choice, compressed, window, len: compressed + end - window }
    }

    fn window_of(&self, row: usize) -> (usize, usize) {
        let span = &self.rows.spans[self.rows.span_of[row]];
        window_of(self.rows.positions[row], span, self.window, self.mutual)
    }

    /// Unpacks what the windows of rows of one span show, from position `start` to `end`.
    #[inline(always)]
    fn load_window(&self, index: usize, (start, end): (usize, usize), to: &mut [f32]) {
        let (span, keys) = (&self.rows.spans[index], &self.spans[index]);
        for (position, to) in (start..end).zip(to.chunks_exact_mut(key_stride(self.width))) {
            let to = &mut to[..self.width];
            match position.checked_sub(span.position) {
                Some(offset) => self.kv.load(span.rows.start + offset, to),
                None => keys.ring.load(position % self.capacity, to),
            }
        }
    }

    /// Unpacks up to [`TILE`] compressed rows of a row's keys from `start` on; returns how many.
    #[inline(always)]
    fn load_tile(&self, index: usize, keys: &Keys<'_>, start: usize, to: &mut [f32]) -> usize {
        let count = (keys.compressed - start).min(TILE);
        for (key, to) in (start..start + count).zip(to.chunks_exact_mut(key_stride(self.width))) {
            let row = keys.choice.map_or(key, |choice| choice[key] as usize);
            self.spans[index].compressed.load(row, &mut to[..self.width]);
        }
        count
    }

    /// How many keys a part has room for: of the windows of [`GROUP`] rows, and a tile more, since
    /// the last tile of a window may begin anywhere.
    fn window_room(&self) -> usize {
        let mutual = self.rows.spans.iter().map(|span| span.rows.len()).max().unwrap_or(0);
        self.window + if self.mutual { mutual } else { GROUP - 1 } + TILE
    }
}

/// What a part works in.
struct Bench<'a> {
    /// Unpacked keys of the windows of a group of rows, from position `start` on.
    window: &'a mut [f32],
    start: usize,
    /// Unpacked compressed rows.
    tile: &'a mut [f32],
    /// Queries of a block of heads, and what comes out.
    q: &'a mut [f32],
    mixed: &'a mut [f32],
    scores: &'a mut [f32],
}

impl<V: Wide, const H: usize, const D: usize> Kernel for RowsOfHeads<'_, V, H, D> {
    #[inline(always)]
    fn run(&self, part: usize, items: Range<usize>) {
        let (plan, block) = (&self.plan, self.plan.block);
        let (padded, of_key) = (padded(plan.width), key_stride(plan.width));
        // SAFETY: each part has its own scratch.
        let scratch = unsafe { plan.scratch.get(part) };
        let (window, scratch) = scratch.split_at_mut(plan.window_room() * of_key);
        let (tile, scratch) = scratch.split_at_mut(KEPT * of_key);
        let (q, scratch) = scratch.split_at_mut(block * padded);
        let (mixed, scores) = scratch.split_at_mut(block * padded);
        if padded > plan.width {
            window.fill(0.0);
            tile.fill(0.0);
            q.fill(0.0);
        }
        let mut bench = Bench { window, start: 0, tile, q, mixed, scores };
        let blocks = plan.heads / block;
        let mut item = items.start;
        while item < items.end {
            // A group of rows of one span, whose windows overlap.
            let (row, index) = (item / blocks, plan.rows.span_of[item / blocks]);
            let last = (row + GROUP).min(plan.rows.spans[index].rows.end) - 1;
            let end = items.end.min((last + 1) * blocks);
            let last = (end - 1) / blocks;
            bench.start = plan.window_of(row).0;
            plan.load_window(index, (bench.start, plan.window_of(last).1), bench.window);
            for item in item..end {
                self.item(item, index, &mut bench);
            }
            item = end;
        }
    }
}

impl<V: Wide, const H: usize, const D: usize> RowsOfHeads<'_, V, H, D> {
    /// A block of heads of a row.
    #[inline(always)]
    fn item(&self, item: usize, index: usize, bench: &mut Bench<'_>) {
        let plan = &self.plan;
        let (width, block) = (plan.width, plan.block);
        let (padded, of_key) = (padded(width), key_stride(width));
        let blocks = plan.heads / block;
        #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^24")]
        let scale = 1.0 / (width as f32).sqrt();
        let (row, first) = (item / blocks, item % blocks * block);
        let keys = plan.keys(row);
        let (stride, c) = (score_stride(keys.len), keys.compressed);
        let Bench { window, start, tile, q, mixed, scores } = bench;
        let window = &window[(keys.window - *start) * of_key..];
        let from = &plan.q[(row * plan.heads + first) * width..][..block * width];
        let q = if width == padded {
            from
        } else {
            for (q, from) in q.chunks_exact_mut(padded).zip(from.chunks_exact(width)) {
                q[..width].copy_from_slice(from);
            }
            &**q
        };
        // Few compressed rows stay until their values are wanted.
        let place = |start: usize| if c <= KEPT { start * of_key } else { 0 };
        for start in (0..c).step_by(TILE) {
            let tile = &mut tile[place(start)..][..TILE * of_key];
            plan.load_tile(index, &keys, start, tile);
            score_tile::<V, H>((q, padded), tile, scale, &mut scores[start..], stride);
        }
        for start in (0..keys.len - c).step_by(TILE) {
            let tile = &window[start * of_key..][..TILE * of_key];
            score_tile::<V, H>((q, padded), tile, scale, &mut scores[c + start..], stride);
        }
        let mut sums = [0f32; HEADS_MAX];
        for (head, scores) in scores.chunks_exact_mut(stride).take(block).enumerate() {
            sums[head] = weigh(&mut scores[..keys.len], plan.sinks[first + head]);
        }
        if c > KEPT {
            for start in (0..c).step_by(TILE) {
                let count = plan.load_tile(index, &keys, start, tile);
                let (weights, tile) = (&scores[start..], &tile[..count * of_key]);
                let begins = start == 0;
                mix_keys::<V, H, D>(weights, stride, (tile, of_key), begins, (mixed, padded));
            }
        } else if c > 0 {
            let tile = &tile[..c * of_key];
            mix_keys::<V, H, D>(scores, stride, (tile, of_key), true, (mixed, padded));
        }
        // The first keys begin the sums; a row sees itself, so there is one here.
        let window = &window[..(keys.len - c) * of_key];
        mix_keys::<V, H, D>(&scores[c..], stride, (window, of_key), c == 0, (mixed, padded));
        // SAFETY: each block of heads belongs to one part.
        let out = unsafe { plan.out.get(item) };
        let heads = out.chunks_exact_mut(width).zip(mixed.chunks_exact(padded));
        for ((out, mixed), sum) in heads.zip(sums) {
            out.iter_mut().zip(mixed).for_each(|(out, mixed)| *out = mixed / sum);
            rotate_back(out, plan.table.row(row));
        }
    }
}

/// Scores of every head of a block with every place of a tile: `scores[head * stride + key]`.
/// Queries are `padded` floats each.
#[inline(always)]
fn score_tile<V: Wide, const H: usize>(
    (q, padded): (&[f32], usize),
    tile: &[f32],
    scale: f32,
    scores: &mut [f32],
    stride: usize,
) {
    let heads = q.len() / padded;
    let whole = heads / H * H;
    for head in (0..whole).step_by(H) {
        let q = &q[head * padded..][..H * padded];
        score_heads::<V, H>(q, tile, scale, &mut scores[head * stride..], stride);
    }
    for head in whole..heads {
        let q = &q[head * padded..][..padded];
        score_heads::<V, 1>(q, tile, scale, &mut scores[head * stride..], stride);
    }
}

/// The first `chunks` wides of `R` rows, cut to that length where the compiler sees it.
#[inline(always)]
fn wides_of_rows<const R: usize>(rows: &[f32], chunks: usize) -> [&[[f32; LANES]]; R] {
    let (wides, _) = rows.as_chunks::<LANES>();
    let stride = wides.len() / R;
    let mut of_rows: [&[[f32; LANES]]; R] = [&[]; R];
    for (row, of_row) in of_rows.iter_mut().enumerate() {
        *of_row = &wides[row * stride..][..chunks];
    }
    of_rows
}

/// [`score_tile`] for `H` heads.
#[inline(always)]
fn score_heads<V: Wide, const H: usize>(
    q: &[f32],
    tile: &[f32],
    scale: f32,
    scores: &mut [f32],
    stride: usize,
) {
    let chunks = q.len() / H / LANES;
    let q = wides_of_rows::<H>(q, chunks);
    for (key, keys) in tile.chunks_exact(tile.len() / TILE * KEYS).enumerate() {
        let (key, keys) = (key * KEYS, wides_of_rows::<KEYS>(keys, chunks));
        let mut lanes = [[V::zero(); KEYS]; H];
        for chunk in 0..chunks {
            // Loops and not `from_fn`, whose closure would be a call without the instruction set.
            let mut of_keys = [V::zero(); KEYS];
            for (to, key) in of_keys.iter_mut().zip(&keys) {
                *to = V::load(&key[chunk]);
            }
            for (lanes, q) in lanes.iter_mut().zip(&q) {
                let q = V::load(&q[chunk]);
                for (lane, key) in lanes.iter_mut().zip(of_keys) {
                    *lane = q.fma(key, *lane);
                }
            }
        }
        let (fours, rest) = lanes.as_chunks::<4>();
        for (at, four) in fours.iter().enumerate() {
            for (head, sums) in V::quads(*four).into_iter().enumerate() {
                put(&mut scores[(4 * at + head) * stride + key..], sums, scale);
            }
        }
        for (head, lanes) in rest.iter().enumerate() {
            put(&mut scores[(4 * fours.len() + head) * stride + key..], V::trees(*lanes), scale);
        }
    }
}

/// Stores a head's scores with some keys.
#[inline(always)]
fn put(to: &mut [f32], sums: [f32; KEYS], scale: f32) {
    for (to, sum) in to.iter_mut().zip(sums) {
        *to = sum * scale;
    }
}

/// Adds keys, `of_key` floats apart, weighted, to the outputs of a block of heads, or begins these.
/// Some dims of all keys and heads after the other: those stay in the first-level cache.
#[inline(always)]
fn mix_keys<V: Wide, const H: usize, const D: usize>(
    weights: &[f32],
    stride: usize,
    (keys, of_key): (&[f32], usize),
    begins: bool,
    (mixed, padded): (&mut [f32], usize),
) {
    let (heads, chunks) = (mixed.len() / padded, padded / LANES);
    let whole = chunks / D * D;
    let (keys, _) = keys.as_chunks::<LANES>();
    let (mixed, _) = mixed.as_chunks_mut::<LANES>();
    for chunk in (0..whole).step_by(D) {
        let dims = (chunk, of_key / LANES);
        mix_heads::<V, H, D>((weights, stride), keys, dims, begins, (mixed, heads));
    }
    for chunk in whole..chunks {
        let dims = (chunk, of_key / LANES);
        mix_heads::<V, H, 1>((weights, stride), keys, dims, begins, (mixed, heads));
    }
}

/// [`mix_keys`] for `D` wides of dims from one on, of all heads.
#[inline(always)]
fn mix_heads<V: Wide, const H: usize, const D: usize>(
    (weights, stride): (&[f32], usize),
    keys: &[[f32; LANES]],
    dims: (usize, usize),
    begins: bool,
    (mixed, heads): (&mut [[f32; LANES]], usize),
) {
    let chunks = mixed.len() / heads;
    let whole = heads / H * H;
    for head in (0..whole).step_by(H) {
        let mixed = &mut mixed[head * chunks..][..H * chunks];
        mix_dims::<V, H, D>((&weights[head * stride..], stride), keys, dims, begins, mixed);
    }
    for head in whole..heads {
        let mixed = &mut mixed[head * chunks..][..chunks];
        mix_dims::<V, 1, D>((&weights[head * stride..], stride), keys, dims, begins, mixed);
    }
}

/// [`mix_heads`] for `H` heads.
#[inline(always)]
fn mix_dims<V: Wide, const H: usize, const D: usize>(
    (weights, stride): (&[f32], usize),
    keys: &[[f32; LANES]],
    (chunk, of_key): (usize, usize),
    begins: bool,
    mixed: &mut [[f32; LANES]],
) {
    let (count, chunks) = (keys.len() / of_key, mixed.len() / H);
    let mut of_heads: [&[f32]; H] = [&[]; H];
    for (head, of_head) in of_heads.iter_mut().enumerate() {
        *of_head = &weights[head * stride..][..count];
    }
    let mut lanes = [[V::zero(); D]; H];
    if !begins {
        for (head, lanes) in lanes.iter_mut().enumerate() {
            for (d, lane) in lanes.iter_mut().enumerate() {
                *lane = V::load(&mixed[head * chunks + chunk + d]);
            }
        }
    }
    for (key, dims) in keys.chunks_exact(of_key).enumerate() {
        let mut wides = [V::zero(); D];
        for (to, from) in wides.iter_mut().zip(&dims[chunk..chunk + D]) {
            *to = V::load(from);
        }
        for (lanes, weights) in lanes.iter_mut().zip(&of_heads) {
            let weight = V::splat(weights[key]);
            for (lane, wide) in lanes.iter_mut().zip(wides) {
                *lane = weight.fma(wide, *lane);
            }
        }
    }
    for (head, lanes) in lanes.into_iter().enumerate() {
        for (d, lane) in lanes.into_iter().enumerate() {
            lane.store(&mut mixed[head * chunks + chunk + d]);
        }
    }
}

/// Turns scores into unnormalised weights, relative to the largest of scores and sink, and returns
/// the denominator. One plain loop a step, since those are what a compiler makes vectors of; the
/// largest is the same in whatever order it is looked for.
#[inline(always)]
fn weigh(scores: &mut [f32], sink: f32) -> f32 {
    let mut largest = [sink; LANES];
    let (chunks, rest) = scores.as_chunks::<LANES>();
    for chunk in chunks {
        for (largest, v) in largest.iter_mut().zip(chunk) {
            *largest = if *v > *largest { *v } else { *largest };
        }
    }
    let max = rest.iter().chain(&largest).fold(sink, |max, v| if *v > max { *v } else { max });
    for v in scores.iter_mut() {
        *v = exp(*v - max);
    }
    let mut lanes = [0f32; 8];
    let (chunks, rest) = scores.as_chunks::<8>();
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane += v;
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane += *v;
    }
    tree8(&lanes) + exp(sink - max)
}

fn check_attend(cpu: &Cpu, a: &Attend<'_>) -> Result<usize, Error> {
    let (operation, spans) = ("attend", cpu.rows.spans.len());
    let width = a.rings.first().map_or(0, |ring| ring.len.checked_div(a.capacity).unwrap_or(0));
    check(
        operation,
        width > 0 && 2 * a.rope.pairs <= width && a.heads > 0,
        || format!("{} heads of {width}, {} rotated pairs", a.heads, a.rope.pairs),
        "heads and dims",
    )?;
    let compressed = a.compressed.map_or(spans, |compressed| compressed.rows.len());
    check(
        operation,
        a.rings.len() == spans && compressed == spans,
        || format!("{} rings and {compressed} compressed rows for {spans} spans", a.rings.len()),
        "one of each a span",
    )?;
    check(
        operation,
        (1..=a.capacity).contains(&a.window),
        || format!("a window of {} in rings of {}", a.window, a.capacity),
        "rings hold the window",
    )?;
    let ratio_missing = a.compressed.is_some_and(|compressed| compressed.ratio == 0);
    check(operation, !ratio_missing, || "ratio 0".to_owned(), "tokens a compressed row")?;
    for ring in a.rings {
        check(
            operation,
            ring.element == a.kv.element,
            || format!("rings of {:?} and rows of {:?}", ring.element, a.kv.element),
            "equal elements: a key's bits may not depend on when it is read",
        )?;
    }
    Ok(width)
}

/// Checks that each row's choice is among the rows that it may see.
fn check_choice(
    rows: &steps::Rows,
    ratio: usize,
    choice: &[u32],
    top_k: usize,
) -> Result<(), Error> {
    for (t, choice) in rows.positions.iter().zip(choice.chunks_exact(top_k.max(1))) {
        let visible = (t + 1) / ratio;
        let choice = &choice[..visible.min(top_k)];
        let bad = choice.iter().find(|row| **row as usize >= visible);
        let found = || format!("compressed row {bad:?} at position {t}");
        check("attend", bad.is_none(), found, "rows that are visible there")?;
    }
    Ok(())
}

pub(crate) fn attend(cpu: &mut Cpu, a: &Attend<'_>) -> Result<(), Error> {
    let n = cpu.rows.len();
    if n == 0 {
        return Ok(());
    }
    let ask = |operand| Ask { operation: "attend", operand };
    let width = check_attend(cpu, a)?;
    let q = cpu.store.f32(ask("q"), a.q, size(&[n, a.heads, width]))?;
    let kv = cpu.store.data(ask("kv"), a.kv, &FLOATS, size(&[n, width]))?;
    let sinks = cpu.store.f32(ask("sinks"), a.sinks, a.heads)?;
    let mut out = cpu.store.f32_mut(ask("out"), a.out, size(&[n, a.heads, width]))?;
    let ratio = a.compressed.map_or(0, |compressed| compressed.ratio);
    let choice_of = a.compressed.and_then(|compressed| compressed.choice);
    let choice = match choice_of {
        Some((buffer, top_k)) => {
            let choice = cpu.store.u32(ask("choice"), buffer, size(&[n, top_k]))?;
            check_choice(&cpu.rows, ratio, &choice, top_k)?;
            Some((choice, top_k))
        }
        None => None,
    };
    let mut held: Vec<(Ref<'_, Data>, Option<Ref<'_, Data>>)> = cpu.scratch.attention.held.list();
    for (index, span) in cpu.rows.spans.iter().enumerate() {
        let len = size(&[a.capacity, width]);
        let ring = cpu.store.data(ask("ring"), a.rings[index], &FLOATS, len)?;
        let visible = (span.position + span.rows.len()).checked_div(ratio).unwrap_or(0);
        let compressed = a.compressed.map(|compressed| {
            let len = size(&[visible, width]);
            cpu.store.data(ask("compressed rows"), compressed.rows[index], &FLOATS, len)
        });
        held.push((ring, compressed.transpose()?));
    }
    let mut spans = cpu.scratch.attention.spans.list();
    spans.extend(held.iter().map(|(ring, compressed)| SpanKeys {
        ring: Rows::new(ring),
        compressed: compressed.as_deref().map_or(Rows::F32(&[]), Rows::new),
    }));
    let top_k = choice.as_ref().map(|(_, top_k)| *top_k);
    let count = |row: usize| {
        let (t, span) = (cpu.rows.positions[row], &cpu.rows.spans[cpu.rows.span_of[row]]);
        let (window, end) = window_of(t, span, a.window, a.mutual);
        compressed_count(t, ratio, top_k) + end - window
    };
    let keys_max = (0..n).map(count).max().unwrap_or(0);
    let work = 2 * a.heads * width * keys_max;
    // As many heads as possible share the unpacking of keys, as long as every part has an item.
    let wanted = parts(&cpu.pool, n * a.heads, work / a.heads).div_ceil(4);
    let fits = |b: &usize| a.heads.is_multiple_of(*b) && n * (a.heads / b) >= wanted;
    let block = (1..=HEADS_MAX.min(a.heads)).rev().find(fits).unwrap_or(1);
    let items = n * a.heads / block;
    let parts = parts(&cpu.pool, items, work * block / a.heads);
    let plan = Plan {
        q: &q,
        kv: Rows::new(&kv),
        sinks: &sinks,
        spans: &spans,
        rows: &cpu.rows,
        window: a.window,
        mutual: a.mutual,
        capacity: a.capacity,
        ratio,
        choice: choice.as_ref().map(|(choice, top_k)| (&**choice, *top_k)),
        table: cpu.ropes.at("attend", a.rope, &cpu.pool, &cpu.rows)?,
        heads: a.heads,
        block,
        width,
        scratch: Pieces::new(&mut [], 1),
        out: Pieces::new(&mut out, block * width),
    };
    let keys = (plan.window_room() + KEPT) * key_stride(width);
    let piece = keys + block * (2 * padded(width) + score_stride(keys_max));
    let scratch = Pieces::new(grow(&mut cpu.scratch.parts, parts * piece), piece);
    let plan = Plan { scratch, ..plan };
    match cpu.isa {
        Isa::Scalar => run::<[f32; 16], 1, 1>(&cpu.pool, cpu.isa, parts, items, plan),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => run::<Avx2, 1, 4>(&cpu.pool, cpu.isa, parts, items, plan),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => run::<Avx512, 4, 4>(&cpu.pool, cpu.isa, parts, items, plan),
        _ => run::<[f32; 16], 1, 1>(&cpu.pool, cpu.isa, parts, items, plan),
    }
    cpu.scratch.attention.spans.keep(spans);
    cpu.scratch.attention.held.keep(held);
    Ok(())
}

/// Runs the plan with the registers of an instruction set.
fn run<V: Wide, const H: usize, const D: usize>(
    pool: &Pool,
    isa: Isa,
    parts: usize,
    items: usize,
    plan: Plan<'_>,
) {
    let kernel = RowsOfHeads::<V, H, D> { plan, wide: PhantomData };
    launch(pool, isa, parts, items, &kernel);
}

pub(crate) fn store_window(cpu: &mut Cpu, a: &StoreWindow<'_>) -> Result<(), Error> {
    let operation = "store_window";
    let ask = |operand| Ask { operation, operand };
    let rows = &cpu.rows;
    check(
        operation,
        a.rings.len() == rows.spans.len() && a.capacity > 0 && a.width > 0,
        || format!("{} rings of {} x {}", a.rings.len(), a.capacity, a.width),
        "one ring a span, not empty",
    )?;
    let kv = cpu.store.data(ask("kv"), a.kv, &FLOATS, size(&[rows.len(), a.width]))?;
    let row = grow(&mut cpu.scratch.parts, a.width);
    for (ring, span) in a.rings.iter().zip(&rows.spans) {
        let len = size(&[a.capacity, a.width]);
        let mut ring = cpu.store.data_mut(ask("ring"), *ring, &[a.kv.element], len)?;
        let ring = RowPieces::new(&mut ring, a.width);
        for from in span.rows.end - span.rows.len().min(a.capacity)..span.rows.end {
            Rows::new(&kv).load(from, row);
            // SAFETY: this thread alone works on the ring.
            unsafe { ring.store(rows.positions[from] % a.capacity, row) };
        }
    }
    Ok(())
}
