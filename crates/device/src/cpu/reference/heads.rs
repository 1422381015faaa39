//! Query heads and key/value rows (spec/deepseek_v4.md 2.5 steps 2 and 3).

use super::grow;
use crate::cpu::isa::{Kernel, launch, parts};
use crate::cpu::lanes::{rms_factor, rms_scale};
use crate::cpu::rope::{RowTable, rotate};
use crate::cpu::share::{Pieces, RowPieces};
use crate::cpu::store::Ask;
use crate::cpu::{Cpu, check, size};
use crate::{Element, Error, KvRows, QueryHeads};
use ironstar_quant::fp8;
use std::ops::Range;

/// Block of the FP8 round trip of keys and values.
pub(super) const KV_BLOCK: usize = 64;

/// The unrotated dims of a row are whole blocks of the round trip, where there is one.
pub(super) fn check_row(
    operation: &'static str,
    width: usize,
    pairs: usize,
    round_trip: bool,
) -> Result<(), Error> {
    let plain = width.checked_sub(2 * pairs);
    check(
        operation,
        width > 0 && plain.is_some_and(|plain| !round_trip || plain.is_multiple_of(KV_BLOCK)),
        || format!("rows of {width} with {pairs} rotated pairs"),
        "the rotated pairs fit, and the dims before them are whole blocks of 64",
    )
}

struct Heads<'a> {
    table: RowTable<'a>,
    heads: usize,
    eps: Option<f32>,
    q: Pieces<'a, f32>,
}

impl Kernel for Heads<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, items: Range<usize>) {
        for item in items {
            // SAFETY: each head belongs to one part.
            let q = unsafe { self.q.get(item) };
            if let Some(eps) = self.eps {
                let factor = rms_factor(q, eps);
                q.iter_mut().for_each(|v| *v *= factor);
            }
            rotate(q, self.table.row(item / self.heads));
        }
    }
}

pub(crate) fn query_heads(cpu: &mut Cpu, a: &QueryHeads) -> Result<(), Error> {
    let operation = "query_heads";
    let n = cpu.rows.len();
    check_row(operation, a.width, a.rope.pairs, false)?;
    check(operation, a.heads > 0, || "no heads".to_owned(), "at least one")?;
    let ask = Ask { operation, operand: "q" };
    let mut q = cpu.store.f32_mut(ask, a.q, size(&[n, a.heads, a.width]))?;
    let table = cpu.ropes.at(operation, a.rope, &cpu.pool, &cpu.rows)?;
    let q = Pieces::new(&mut q, a.width);
    let kernel = Heads { table, heads: a.heads, eps: a.eps, q };
    let items = n * a.heads;
    launch(&cpu.pool, cpu.isa, parts(&cpu.pool, items, 2 * a.width), items, &kernel);
    Ok(())
}

struct KeyRows<'a> {
    x: &'a [f32],
    norm: &'a [f32],
    eps: f32,
    table: RowTable<'a>,
    round_trip: bool,
    rows: Pieces<'a, f32>,
    out: RowPieces<'a>,
}

impl Kernel for KeyRows<'_> {
    #[inline(always)]
    fn run(&self, part: usize, items: Range<usize>) {
        let width = self.norm.len();
        // SAFETY: each part has its own row.
        let row = unsafe { self.rows.get(part) };
        for item in items {
            let x = &self.x[item * width..][..width];
            rms_scale(x, rms_factor(x, self.eps), self.norm, row);
            rotate(row, self.table.row(item));
            if self.round_trip {
                fp8::round_trip(&mut row[..width - 2 * self.table.pairs()], KV_BLOCK);
            }
            // SAFETY: each item belongs to one part.
            unsafe { self.out.store(item, row) };
        }
    }
}

pub(crate) fn kv_rows(cpu: &mut Cpu, a: &KvRows) -> Result<(), Error> {
    let operation = "kv_rows";
    let ask = |operand| Ask { operation, operand };
    let (n, width) = (cpu.rows.len(), a.norm.len);
    check_row(operation, width, a.rope.pairs, a.round_trip)?;
    let x = cpu.store.f32(ask("x"), a.x, size(&[n, width]))?;
    let norm = cpu.store.f32(ask("norm"), a.norm, width)?;
    let floats = [Element::F32, Element::Bf16];
    let mut out = cpu.store.data_mut(ask("out"), a.out, &floats, size(&[n, width]))?;
    let table = cpu.ropes.at(operation, a.rope, &cpu.pool, &cpu.rows)?;
    let parts = parts(&cpu.pool, n, 16 * width);
    let kernel = KeyRows {
        x: &x,
        norm: &norm,
        eps: a.eps,
        table,
        round_trip: a.round_trip,
        rows: Pieces::new(grow(&mut cpu.scratch.parts, parts * width), width),
        out: RowPieces::new(&mut out, width),
    };
    launch(&cpu.pool, cpu.isa, parts, n, &kernel);
    Ok(())
}
