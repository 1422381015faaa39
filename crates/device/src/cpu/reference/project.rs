//! Matrices times rows.

use super::grow;
use crate::cpu::product::{Job, Output, products};
use crate::cpu::spare::Spare;
use crate::cpu::store::Ask;
use crate::cpu::{Cpu, Weights, check, size, weights};
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

/// One plain product into scratch: [rows, matrix.rows].
pub(super) fn into_mixes<'a>(
    pool: &crate::cpu::pool::Pool,
    weights: &Weights,
    inputs: &mut super::InputSet,
    x: &[f32],
    shape: [usize; 3],
    mixes: &'a mut Vec<f32>,
) -> &'a [f32] {
    let [rows, columns, matrix_rows] = shape;
    let mixes = grow(mixes, rows * matrix_rows);
    let activation = weights.activation();
    inputs.prepare(pool, [activation], x, [rows, columns]);
    let x = inputs.get(activation, x, [rows, columns]);
    let out = Output::Tree(&mut *mixes);
    products(pool, [Job { weights, stack: 0, groups: 1, x, picks: None, out }]);
    mixes
}
