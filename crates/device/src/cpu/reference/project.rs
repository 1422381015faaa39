//! Matrices times rows.

use super::{InputSet, grow};
use crate::cpu::isa::{Kernel, call, parts};
use crate::cpu::pool::Pool;
use crate::cpu::product::{Batch, Job, Output, cut, products};
use crate::cpu::share::Whole;
use crate::cpu::spare::Spare;
use crate::cpu::store::Ask;
use crate::cpu::{Cpu, Isa, Weights, check, size, weights};
use crate::{Error, Project, ProjectGrouped};
use std::cell::RefMut;

/// Matrices with their outputs.
pub(super) type Outputs = Spare<(&'static Weights, RefMut<'static, [f32]>)>;

pub(crate) fn project(cpu: &mut Cpu, a: &Project<'_>) -> Result<(), Error> {
    let operation = "project";
    let ask = |operand| Ask { operation, operand };
    let Some((first, _)) = a.outputs.first() else { return Ok(()) };
    let columns = first.columns;
    let x = cpu.store.f32(ask("x"), a.x, size(&[a.rows, columns]))?;
    let mut made = cpu.scratch.outputs.list();
    for (matrix, out) in a.outputs {
        check(
            operation,
            matrix.columns == columns && matrix.stack == 1,
            || format!("a matrix of {} columns, stack {}", matrix.columns, matrix.stack),
            "the matrices are plain and have equal columns",
        )?;
        let weights = weights(&cpu.matrices, operation, *matrix)?;
        let out = cpu.store.f32_mut(ask("an output"), *out, size(&[a.rows, matrix.rows]))?;
        made.push((weights, out));
    }
    let activations = made.iter().map(|(weights, _)| weights.activation());
    let inputs = &mut cpu.scratch.inputs;
    inputs.prepare(&cpu.pool, activations, &x, [a.rows, columns]);
    let jobs = made.iter_mut().map(|(weights, out)| {
        cpu.counters.dense_bytes += weights.bytes_per_matrix();
        let x = inputs.get(weights.activation(), &x, [a.rows, columns]);
        Job { weights, stack: 0, groups: 1, x, picks: None, out: Output::Tree(out) }
    });
    products(&cpu.pool, jobs);
    cpu.scratch.outputs.keep(made);
    Ok(())
}

pub(crate) fn project_grouped(cpu: &mut Cpu, a: &ProjectGrouped) -> Result<(), Error> {
    let operation = "project_grouped";
    let ask = |operand| Ask { operation, operand };
    let (matrix, n) = (a.matrix, cpu.rows.len());
    check(
        operation,
        a.groups > 0 && matrix.rows.is_multiple_of(a.groups) && matrix.stack == 1,
        || format!("{} rows in {} groups, stack {}", matrix.rows, a.groups, matrix.stack),
        "the rows of a plain matrix make equal groups",
    )?;
    let weights = weights(&cpu.matrices, operation, matrix)?;
    let x = cpu.store.f32(ask("x"), a.x, size(&[n, a.groups, matrix.columns]))?;
    let mut out = cpu.store.f32_mut(ask("out"), a.out, size(&[n, matrix.rows]))?;
    let activation = weights.activation();
    let inputs = &mut cpu.scratch.inputs;
    inputs.prepare(&cpu.pool, [activation], &x, [n * a.groups, matrix.columns]);
    cpu.counters.dense_bytes += weights.bytes_per_matrix();
    let x = inputs.get(activation, &x, [n * a.groups, matrix.columns]);
    let out = Output::Tree(&mut out);
    products(&cpu.pool, [Job { weights, stack: 0, groups: a.groups, x, picks: None, out }]);
    Ok(())
}

/// One plain product into scratch, `[rows, matrix.rows]`, and what makes rows of it, as one region.
pub(super) fn of_mixes<'a, K: Kernel>(
    (pool, isa): (&Pool, Isa),
    weights: &Weights,
    (inputs, mixes): (&mut InputSet, &'a mut Vec<f32>),
    x: &[f32],
    ([rows, columns], work): ([usize; 2], usize),
    kernel: impl FnOnce(Whole<'a, f32>) -> K,
) {
    let mixes = Whole::new(grow(mixes, rows * weights.rows()));
    inputs.prepare(pool, [weights.activation()], x, [rows, columns]);
    let x = inputs.get(weights.activation(), x, [rows, columns]);
    // SAFETY: nobody else looks before the product has ended.
    let out = Output::Tree(unsafe { mixes.part(0..mixes.len()) });
    let job = Job { weights, stack: 0, groups: 1, x, picks: None, out };
    let (batch, kernel, parts) = (Batch::new(pool, [job]), kernel(mixes), parts(pool, rows, work));
    pool.run_stages(
        batch.is_small() && parts < 2,
        &[
            (batch.parts(), &|part| batch.run(part, pool)),
            (parts, &|part| call(isa, &kernel, part, cut(rows, parts, part))),
        ],
    );
    batch.keep(pool);
}
