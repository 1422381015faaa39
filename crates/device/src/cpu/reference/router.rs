//! Choice of experts and their weights (spec/deepseek_v4.md 2.8 steps 1 to 3).

use super::grow;
use crate::cpu::isa::{Kernel, launch, parts};
use crate::cpu::math::{order_key, softplus};
use crate::cpu::share::Pieces;
use crate::cpu::store::Ask;
use crate::cpu::{Cpu, check, size};
use crate::{Error, Route, RouteBy};
use std::ops::Range;

const OPERATION: &str = "route";

enum Choice<'a> {
    Bias(&'a [f32]),
    Table { ids: &'a [u32], tokens: &'a [u32] },
}

struct RouteRows<'a> {
    logits: &'a [f32],
    experts: usize,
    top_k: usize,
    scale: f32,
    choice: Choice<'a>,
    scores: Pieces<'a, f32>,
    ids: Pieces<'a, u32>,
    weights: Pieces<'a, f32>,
}

impl Kernel for RouteRows<'_> {
    #[inline(always)]
    fn run(&self, part: usize, rows: Range<usize>) {
        // SAFETY: each part has its own scratch.
        let scores = unsafe { self.scores.get(part) };
        for row in rows {
            let logits = &self.logits[row * self.experts..][..self.experts];
            for (score, logit) in scores.iter_mut().zip(logits) {
                *score = softplus(*logit).sqrt();
            }
            // SAFETY: each row belongs to one part.
            let (ids, weights) = unsafe { (self.ids.get(row), self.weights.get(row)) };
            match self.choice {
                Choice::Bias(bias) => choose(scores, bias, ids),
                Choice::Table { ids: table, tokens } => {
                    let from = tokens[row] as usize * self.top_k;
                    ids.copy_from_slice(&table[from..][..self.top_k]);
                    ids.sort_unstable();
                }
            }
            let mut sum = 0f32;
            for (weight, id) in weights.iter_mut().zip(&*ids) {
                *weight = scores[*id as usize];
                sum += *weight;
            }
            weights.iter_mut().for_each(|weight| *weight = *weight / sum * self.scale);
        }
    }
}

/// The ids of the largest score plus bias, ties to the lower id, ascending. `ids` is kept as a list
/// sorted by rank while the scores are walked once.
fn choose(scores: &[f32], bias: &[f32], ids: &mut [u32]) {
    let key = |id: usize| order_key(scores[id] + bias[id]);
    let mut len = 0;
    for id in 0..scores.len() {
        let own = key(id);
        let beaten = |other: &u32| key(*other as usize) < own;
        let at = ids[..len].iter().position(beaten).unwrap_or(len);
        if at == ids.len() {
            continue;
        }
        len = (len + 1).min(ids.len());
        ids.copy_within(at..len - 1, at + 1);
        ids[at] = u32::try_from(id).expect("checked: ids are u32");
    }
    ids.sort_unstable();
}

pub(crate) fn route(cpu: &mut Cpu, a: &Route) -> Result<(), Error> {
    let ask = |operand| Ask { operation: OPERATION, operand };
    let (n, rows) = (cpu.rows.len(), &cpu.rows);
    check(
        OPERATION,
        (1..=a.experts).contains(&a.top_k) && u32::try_from(a.experts).is_ok(),
        || format!("{} of {} experts", a.top_k, a.experts),
        "at least one and not more than there are",
    )?;
    let logits = cpu.store.f32(ask("logits"), a.logits, size(&[n, a.experts]))?;
    let (bias, table);
    let choice = match a.by {
        RouteBy::Score { bias: buffer } => {
            bias = cpu.store.f32(ask("bias"), buffer, a.experts)?;
            Choice::Bias(&bias)
        }
        RouteBy::Token { table: buffer } => {
            table = cpu.store.u32(ask("table"), buffer, buffer.len)?;
            for token in &rows.tokens {
                let ids = (*token as usize).checked_mul(a.top_k);
                let ids = ids.and_then(|from| table.get(from..from.checked_add(a.top_k)?));
                let found = || match ids {
                    None => format!("token {token}, table of {} tokens", table.len() / a.top_k),
                    Some(ids) => format!("experts {ids:?} for token {token}"),
                };
                let ok = ids.is_some_and(|ids| ids.iter().all(|id| (*id as usize) < a.experts));
                check(OPERATION, ok, found, "each token has experts of the model")?;
            }
            Choice::Table { ids: &table, tokens: &rows.tokens }
        }
    };
    let mut ids = cpu.store.u32_mut(ask("ids"), a.ids, size(&[n, a.top_k]))?;
    let mut weights = cpu.store.f32_mut(ask("weights"), a.weights, size(&[n, a.top_k]))?;
    let parts = parts(&cpu.pool, n, 32 * a.experts);
    let kernel = RouteRows {
        logits: &logits,
        experts: a.experts,
        top_k: a.top_k,
        scale: a.scale,
        choice,
        scores: Pieces::new(grow(&mut cpu.scratch.parts, parts * a.experts), a.experts),
        ids: Pieces::new(&mut ids, a.top_k),
        weights: Pieces::new(&mut weights, a.top_k),
    };
    launch(&cpu.pool, cpu.isa, parts, n, &kernel);
    Ok(())
}
