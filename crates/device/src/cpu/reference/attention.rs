//! Attention of many heads over one shared key (spec/deepseek_v4.md 2.5 steps 6 to 8).
//!
//! Keys in order: chosen compressed rows ascending, then window positions ascending. Order of sums:
//! a score has sixteen lanes (dim mod 16) by fma, then the balanced tree (a row is never cut over ranks,
//! so this need not be the eight shards); the denominator has eight lanes (key mod 8), the tree, then
//! the sink; an output dim is one chain of fma over the keys. A row's order depends on its position only.

use super::grow;
use crate::cpu::isa::{Kernel, launch, parts};
use crate::cpu::math::exp;
use crate::cpu::rope::{RowTable, rotate_back};
use crate::cpu::share::{Pieces, RowPieces, Rows};
use crate::cpu::steps;
use crate::cpu::store::{Ask, Data};
use crate::cpu::{Cpu, check, size};
use crate::{Attend, Element, Error, StoreWindow};
use ironstar_quant::tree8;
use std::cell::Ref;
use std::ops::Range;

/// Keys that are unpacked at a time for all heads of a block.
const TILE: usize = 32;
/// Most heads that share an unpacked tile.
const HEADS_MAX: usize = 16;

const FLOATS: [Element; 2] = [Element::F32, Element::Bf16];

/// What a span's rows may see.
struct SpanKeys<'a> {
    ring: Rows<'a>,
    compressed: Rows<'a>,
}

struct RowsOfHeads<'a> {
    q: &'a [f32],
    kv: Rows<'a>,
    sinks: &'a [f32],
    spans: Vec<SpanKeys<'a>>,
    rows: &'a steps::Rows,
    window: usize,
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
    /// A tile of keys and the scores of a block, for each part.
    scratch: Pieces<'a, f32>,
    out: Pieces<'a, f32>,
}

/// The keys of one row.
struct Keys<'a> {
    kv: Rows<'a>,
    span: &'a SpanKeys<'a>,
    /// `None`: the compressed rows 0..compressed.
    choice: Option<&'a [u32]>,
    compressed: usize,
    /// First window position, and first position of the span with its row.
    window: usize,
    position: usize,
    first_row: usize,
    capacity: usize,
    len: usize,
}

/// Compressed rows that position `t` attends to.
fn compressed_count(t: usize, ratio: usize, top_k: Option<usize>) -> usize {
    let visible = (t + 1).checked_div(ratio).unwrap_or(0);
    top_k.map_or(visible, |top_k| visible.min(top_k))
}

impl Keys<'_> {
    #[inline(always)]
    fn load(&self, key: usize, to: &mut [f32]) {
        if key < self.compressed {
            let row = self.choice.map_or(key, |choice| choice[key] as usize);
            return self.span.compressed.load(row, to);
        }
        let position = self.window + key - self.compressed;
        match position.checked_sub(self.position) {
            Some(offset) => self.kv.load(self.first_row + offset, to),
            None => self.span.ring.load(position % self.capacity, to),
        }
    }
}

impl RowsOfHeads<'_> {
    fn keys(&self, row: usize) -> Keys<'_> {
        let (t, index) = (self.rows.positions[row], self.rows.span_of[row]);
        let span = &self.rows.spans[index];
        let window = (t + 1).saturating_sub(self.window);
        let choice = self.choice.map(|(choice, top_k)| &choice[row * top_k..][..top_k]);
        let compressed = compressed_count(t, self.ratio, choice.map(<[u32]>::len));
        Keys {
            kv: self.kv,
            span: &self.spans[index],
            choice,
            compressed,
            window,
            position: span.position,
            first_row: span.rows.start,
            capacity: self.capacity,
            len: compressed + t + 1 - window,
        }
    }
}

impl Kernel for RowsOfHeads<'_> {
    #[inline(always)]
    fn run(&self, part: usize, items: Range<usize>) {
        let width = self.width;
        // SAFETY: each part has its own scratch.
        let (tile, scores) = unsafe { self.scratch.get(part) }.split_at_mut(TILE * width);
        let blocks = self.heads / self.block;
        #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^24")]
        let scale = 1.0 / (width as f32).sqrt();
        for item in items {
            let (row, first) = (item / blocks, item % blocks * self.block);
            let keys = self.keys(row);
            let q = &self.q[(row * self.heads + first) * width..][..self.block * width];
            // SAFETY: each block of heads belongs to one part.
            let out = unsafe { self.out.get(item) };
            for start in (0..keys.len).step_by(TILE) {
                let count = load_tile(&keys, start, tile, width);
                for (q, scores) in q.chunks_exact(width).zip(scores.chunks_exact_mut(keys.len)) {
                    let keys = tile.chunks_exact(width);
                    for (score, key) in scores[start..][..count].iter_mut().zip(keys) {
                        *score = dot16(q, key) * scale;
                    }
                }
            }
            let mut sums = [0f32; HEADS_MAX];
            for (head, scores) in scores.chunks_exact_mut(keys.len).take(self.block).enumerate() {
                sums[head] = weigh(scores, self.sinks[first + head]);
            }
            out.fill(0.0);
            for start in (0..keys.len).step_by(TILE) {
                let count = load_tile(&keys, start, tile, width);
                for (out, scores) in out.chunks_exact_mut(width).zip(scores.chunks_exact(keys.len))
                {
                    for (p, key) in scores[start..][..count].iter().zip(tile.chunks_exact(width)) {
                        for (out, key) in out.iter_mut().zip(key) {
                            *out = p.mul_add(*key, *out);
                        }
                    }
                }
            }
            for (out, sum) in out.chunks_exact_mut(width).zip(sums) {
                out.iter_mut().for_each(|v| *v /= sum);
                rotate_back(out, self.table.row(row));
            }
        }
    }
}

/// Unpacks up to `TILE` keys; returns how many.
#[inline(always)]
fn load_tile(keys: &Keys<'_>, start: usize, tile: &mut [f32], width: usize) -> usize {
    let count = (keys.len - start).min(TILE);
    for (i, to) in tile.chunks_exact_mut(width).take(count).enumerate() {
        keys.load(start + i, to);
    }
    count
}

/// Turns scores into unnormalised weights, relative to the largest of scores and sink, and returns the
/// denominator.
#[inline(always)]
fn weigh(scores: &mut [f32], sink: f32) -> f32 {
    let max = scores.iter().fold(sink, |max, v| if *v > max { *v } else { max });
    let mut lanes = [0f32; 8];
    let (chunks, rest) = scores.as_chunks_mut::<8>();
    for chunk in chunks {
        for j in 0..8 {
            chunk[j] = exp(chunk[j] - max);
            lanes[j] += chunk[j];
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *v = exp(*v - max);
        *lane += *v;
    }
    tree8(&lanes) + exp(sink - max)
}

/// Sixteen lanes by fma, then the balanced tree.
#[inline(always)]
fn dot16(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (a, b) in a.iter().zip(b) {
        for j in 0..16 {
            lanes[j] = a[j].mul_add(b[j], lanes[j]);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane = a.mul_add(*b, *lane);
    }
    let pairs: [f32; 8] = std::array::from_fn(|j| lanes[2 * j] + lanes[2 * j + 1]);
    tree8(&pairs)
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
    let mut held: Vec<(Ref<'_, Data>, Option<Ref<'_, Data>>)> = Vec::with_capacity(a.rings.len());
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
    let spans = held.iter().map(|(ring, compressed)| SpanKeys {
        ring: Rows::new(ring),
        compressed: compressed.as_deref().map_or(Rows::F32(&[]), Rows::new),
    });
    let top_k = choice.as_ref().map(|(_, top_k)| *top_k);
    let count = |t: &usize| compressed_count(*t, ratio, top_k) + (*t + 1).min(a.window);
    let keys_max = cpu.rows.positions.iter().map(count).max().unwrap_or(0);
    let block = (1..=HEADS_MAX.min(a.heads)).rev().find(|b| a.heads.is_multiple_of(*b));
    let block = block.expect("one divides everything");
    let items = n * a.heads / block;
    let parts = parts(&cpu.pool, items, 2 * block * width * keys_max);
    let piece = TILE * width + block * keys_max;
    let kernel = RowsOfHeads {
        q: &q,
        kv: Rows::new(&kv),
        sinks: &sinks,
        spans: spans.collect(),
        rows: &cpu.rows,
        window: a.window,
        capacity: a.capacity,
        ratio,
        choice: choice.as_ref().map(|(choice, top_k)| (&**choice, *top_k)),
        table: cpu.ropes.at("attend", a.rope, &cpu.pool, &cpu.rows)?,
        heads: a.heads,
        block,
        width,
        scratch: Pieces::new(grow(&mut cpu.scratch.parts, parts * piece), piece),
        out: Pieces::new(&mut out, block * width),
    };
    launch(&cpu.pool, cpu.isa, parts, items, &kernel);
    Ok(())
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
