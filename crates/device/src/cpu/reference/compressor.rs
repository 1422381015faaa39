//! Compressors (spec/deepseek_v4.md 2.6): a row for each closed group of tokens, pooled dim by dim.

use super::grow;
use super::heads::{KV_BLOCK, check_row};
use crate::cpu::isa::{Kernel, launch, parts};
use crate::cpu::lanes::rms_norm_in_place;
use crate::cpu::math::exp;
use crate::cpu::rope::{RowTable, rotate};
use crate::cpu::share::{Pieces, RowPieces};
use crate::cpu::spare::Spare;
use crate::cpu::store::{Ask, Data};
use crate::cpu::{Cpu, check, reference, size};
use crate::{Compress, Element, Error, RowKind, Span};
use ironstar_quant::{fp4, fp8, hadamard};
use std::cell::{Ref, RefMut};
use std::ops::Range;

const OPERATION: &str = "compress";

/// Values and scores of a state's ring.
type Ring = (Ref<'static, [f32]>, Ref<'static, [f32]>);

/// Memory of the compressors' lists.
#[derive(Default)]
pub(super) struct Scratch {
    /// Groups that close: (span, group).
    groups: Vec<(usize, usize)>,
    rings: Spare<Ring>,
    outs: Spare<RefMut<'static, Data>>,
    tokens: Spare<Tokens<'static>>,
    pieces: Spare<RowPieces<'static>>,
}

/// Groups of a span that close in this step.
fn closing(span: &Span, ratio: usize) -> Range<usize> {
    span.position / ratio..(span.position + span.rows.len()) / ratio
}

/// Values and scores of one span by position: those of the step, and earlier ones in rings.
struct Tokens<'a> {
    span: Span,
    values: &'a [f32],
    scores: &'a [f32],
    ring_values: &'a [f32],
    ring_scores: &'a [f32],
    capacity: usize,
    /// parts * width
    width: usize,
}

impl<'a> Tokens<'a> {
    /// (values, scores) of a token, [parts * width] each.
    #[inline(always)]
    fn at(&self, position: usize) -> (&'a [f32], &'a [f32]) {
        let (values, scores, row) = match position.checked_sub(self.span.position) {
            Some(offset) => (self.values, self.scores, self.span.rows.start + offset),
            None => (self.ring_values, self.ring_scores, position % self.capacity),
        };
        (&values[row * self.width..][..self.width], &scores[row * self.width..][..self.width])
    }
}

struct AddPositions<'a> {
    at: &'a [usize],
    positions: &'a [f32],
    ratio: usize,
    width: usize,
    scores: Pieces<'a, f32>,
}

impl Kernel for AddPositions<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, rows: Range<usize>) {
        for row in rows {
            let add = &self.positions[self.at[row] % self.ratio * self.width..][..self.width];
            // SAFETY: each row belongs to one part.
            let scores = unsafe { self.scores.get(row) };
            scores.iter_mut().zip(add).for_each(|(score, add)| *score += add);
        }
    }
}

/// What all groups of one call share.
#[derive(Clone, Copy)]
struct Rule<'a> {
    norm: &'a [f32],
    eps: f32,
    table: RowTable<'a>,
    ratio: usize,
    parts: usize,
    kind: RowKind,
}

struct Groups<'a> {
    rule: Rule<'a>,
    tokens: &'a [Tokens<'a>],
    /// (span, group)
    groups: &'a [(usize, usize)],
    /// A row and its rotation a part.
    scratch: Pieces<'a, f32>,
    out: &'a [RowPieces<'a>],
}

impl Kernel for Groups<'_> {
    #[inline(always)]
    fn run(&self, part: usize, items: Range<usize>) {
        let rule = &self.rule;
        let width = rule.norm.len();
        // SAFETY: each part has its own scratch.
        let (row, angles) = unsafe { self.scratch.get(part) }.split_at_mut(width);
        for item in items {
            let (span, group) = self.groups[item];
            pool_group(rule, &self.tokens[span], group, row);
            rms_norm_in_place(row, rule.norm, rule.eps);
            rule.table.fill(group * rule.ratio, angles);
            rotate(row, angles);
            match rule.kind {
                RowKind::Kv { round_trip: false } => {}
                RowKind::Kv { round_trip: true } => {
                    fp8::round_trip(&mut row[..width - angles.len()], KV_BLOCK);
                }
                RowKind::Index => hadamard(row),
            }
            // SAFETY: each group of a span belongs to one part.
            unsafe { self.out[span].store(group, row) };
        }
    }
}

/// Softmax over the group's slots for each dim, times the values: slots in token order, first the
/// previous group's first halves where groups overlap, then this group's last part.
#[inline(always)]
fn pool_group(rule: &Rule<'_>, tokens: &Tokens<'_>, group: usize, row: &mut [f32]) {
    const LANES: usize = 16;
    let (ratio, width) = (rule.ratio, row.len());
    let first = group * ratio;
    let before = if rule.parts == 2 && group > 0 { first - ratio..first } else { 0..0 };
    let last_part = (rule.parts - 1) * width;
    let slots = || {
        let before = before.clone().map(|position| (position, 0));
        before.chain((first..first + ratio).map(|position| (position, last_part)))
    };
    for start in (0..width).step_by(LANES) {
        let count = (width - start).min(LANES);
        let mut max = [f32::NEG_INFINITY; LANES];
        for (position, offset) in slots() {
            let scores = &tokens.at(position).1[offset + start..][..count];
            for (max, score) in max.iter_mut().zip(scores) {
                *max = if *score > *max { *score } else { *max };
            }
        }
        let (mut sum, mut mixed) = ([0f32; LANES], [0f32; LANES]);
        for (position, offset) in slots() {
            let (values, scores) = tokens.at(position);
            let (mut value, mut score) = ([0f32; LANES], [0f32; LANES]);
            value[..count].copy_from_slice(&values[offset + start..][..count]);
            score[..count].copy_from_slice(&scores[offset + start..][..count]);
            for i in 0..LANES {
                let e = exp(score[i] - max[i]);
                sum[i] += e;
                mixed[i] = e.mul_add(value[i], mixed[i]);
            }
        }
        for (row, (mixed, sum)) in row[start..][..count].iter_mut().zip(mixed.iter().zip(&sum)) {
            *row = mixed / sum;
        }
    }
}

fn check_shape(cpu: &Cpu, a: &Compress<'_>) -> Result<(), Error> {
    let overlap = a.parts == 2;
    check(
        OPERATION,
        a.ratio > 0 && (overlap || a.parts == 1) && a.norm.len == a.width,
        || format!("ratio {}, parts {}, norm of {}", a.ratio, a.parts, a.norm.len),
        "a ratio, 1 or 2 parts, a norm as wide as a row",
    )?;
    let round_trip = a.kind == RowKind::Kv { round_trip: true };
    check_row(OPERATION, a.width, a.rope.pairs, round_trip)?;
    check(
        OPERATION,
        a.kind != RowKind::Index || a.width.is_power_of_two(),
        || format!("indexer rows of {}", a.width),
        "the Hadamard rotation needs a power of two",
    )?;
    check(
        OPERATION,
        a.states.len() == cpu.rows.spans.len(),
        || format!("{} states for {} spans", a.states.len(), cpu.rows.spans.len()),
        "one state a span",
    )?;
    for (state, span) in a.states.iter().zip(&cpu.rows.spans) {
        check(
            OPERATION,
            state.capacity >= a.parts.saturating_mul(a.ratio),
            || format!("rings of {}", state.capacity),
            "rings hold the tokens of the groups that a row is made of",
        )?;
        let fp4_row = state.rows.element == Element::Fp4Row;
        check(
            OPERATION,
            !fp4_row || (a.kind == RowKind::Index && a.width == fp4::INDEXER_DIMS),
            || format!("{:?} of width {} into FP4 rows", a.kind, a.width),
            "FP4 rows hold indexer rows of 128 dims",
        )?;
        let per_row = if fp4_row { 1 } else { a.width };
        let groups = closing(span, a.ratio).end;
        check(
            OPERATION,
            size(&[groups, per_row]) <= state.rows.len,
            || format!("room for {} rows", state.rows.len / per_row),
            format_args!("{groups} are needed at this position"),
        )?;
    }
    Ok(())
}

pub(crate) fn compress(cpu: &mut Cpu, a: &Compress<'_>) -> Result<(), Error> {
    check_shape(cpu, a)?;
    add_positions(cpu, a)?;
    close_groups(cpu, a)?;
    keep_open(cpu, a)
}

fn ask(operand: &'static str) -> Ask {
    Ask { operation: OPERATION, operand }
}

/// Scores get their place in the group added.
fn add_positions(cpu: &Cpu, a: &Compress<'_>) -> Result<(), Error> {
    let (n, width) = (cpu.rows.len(), a.parts * a.width);
    let mut scores = cpu.store.f32_mut(ask("scores"), a.scores, size(&[n, width]))?;
    let positions = cpu.store.f32(ask("positions"), a.positions, size(&[a.ratio, width]))?;
    let kernel = AddPositions {
        at: &cpu.rows.positions,
        positions: &positions,
        ratio: a.ratio,
        width,
        scores: Pieces::new(&mut scores, width),
    };
    launch(&cpu.pool, cpu.isa, parts(&cpu.pool, n, width / 2), n, &kernel);
    Ok(())
}

/// Copies the step's last tokens into the rings.
fn keep_open(cpu: &Cpu, a: &Compress<'_>) -> Result<(), Error> {
    let (n, width) = (cpu.rows.len(), a.parts * a.width);
    let values = cpu.store.f32(ask("values"), a.values, size(&[n, width]))?;
    let scores = cpu.store.f32(ask("scores"), a.scores, size(&[n, width]))?;
    for (state, span) in a.states.iter().zip(&cpu.rows.spans) {
        let ring = size(&[state.capacity, width]);
        let mut ring_values = cpu.store.f32_mut(ask("state.values"), state.values, ring)?;
        let mut ring_scores = cpu.store.f32_mut(ask("state.scores"), state.scores, ring)?;
        for row in span.rows.end - span.rows.len().min(state.capacity)..span.rows.end {
            let slot = cpu.rows.positions[row] % state.capacity;
            let (from, to) = (row * width..(row + 1) * width, slot * width..(slot + 1) * width);
            ring_values[to.clone()].copy_from_slice(&values[from.clone()]);
            ring_scores[to].copy_from_slice(&scores[from]);
        }
    }
    Ok(())
}

/// Rows of all groups that close in this step.
fn close_groups(cpu: &mut Cpu, a: &Compress<'_>) -> Result<(), Error> {
    let (n, width) = (cpu.rows.len(), a.parts * a.width);
    let values = cpu.store.f32(ask("values"), a.values, size(&[n, width]))?;
    let scores = cpu.store.f32(ask("scores"), a.scores, size(&[n, width]))?;
    let norm = cpu.store.f32(ask("norm"), a.norm, a.width)?;
    let reference::Scratch { compressor: scratch, parts: rows, .. } = &mut cpu.scratch;
    scratch.groups.clear();
    for (index, span) in cpu.rows.spans.iter().enumerate() {
        scratch.groups.extend(closing(span, a.ratio).map(|group| (index, group)));
    }
    let items = scratch.groups.len();
    if items == 0 {
        return Ok(());
    }
    let (mut rings, mut outs) = (scratch.rings.list(), scratch.outs.list());
    for state in a.states {
        let ring = size(&[state.capacity, width]);
        rings.push((
            cpu.store.f32(ask("state.values"), state.values, ring)?,
            cpu.store.f32(ask("state.scores"), state.scores, ring)?,
        ));
        let elements = [Element::F32, Element::Bf16, Element::Fp4Row];
        outs.push(cpu.store.data_mut(ask("state.rows"), state.rows, &elements, 0)?);
    }
    let states = rings.iter().zip(a.states).zip(&cpu.rows.spans);
    let mut tokens = scratch.tokens.list();
    tokens.extend(states.map(|(((ring_values, ring_scores), state), span)| Tokens {
        span: span.clone(),
        values: &values,
        scores: &scores,
        ring_values,
        ring_scores,
        capacity: state.capacity,
        width,
    }));
    let mut out = scratch.pieces.list();
    out.extend(outs.iter_mut().map(|data| RowPieces::new(data, a.width)));
    let table = cpu.ropes.at(OPERATION, a.rope, &cpu.pool, &cpu.rows)?;
    let work = 20 * a.parts * a.ratio * a.width + 4096;
    let parts = parts(&cpu.pool, items, work);
    let piece = a.width + 2 * a.rope.pairs;
    let kernel = Groups {
        rule: Rule { norm: &norm, eps: a.eps, table, ratio: a.ratio, parts: a.parts, kind: a.kind },
        tokens: &tokens,
        groups: &scratch.groups,
        scratch: Pieces::new(grow(rows, parts * piece), piece),
        out: &out,
    };
    launch(&cpu.pool, cpu.isa, parts, items, &kernel);
    scratch.tokens.keep(tokens);
    scratch.pieces.keep(out);
    scratch.rings.keep(rings);
    scratch.outs.keep(outs);
    Ok(())
}
