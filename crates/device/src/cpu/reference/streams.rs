//! The residual streams: embedding, hyper-connections (spec/deepseek_v4.md 2.1 to 2.3), row copies.

use super::grow;
use super::project::of_mixes;
use crate::cpu::isa::{Kernel, launch, parts};
use crate::cpu::lanes::{rms_factor, rms_norm_in_place};
use crate::cpu::math::{exp, sigmoid};
use crate::cpu::share::{Pieces, RowPieces, Rows, Whole};
use crate::cpu::store::Ask;
use crate::cpu::{Cpu, Weights, check, size, weights};
use crate::{AddToStreams, Element, Embed, Error, GatherRows, HcHead, HcPost, HcPre};
use std::ops::Range;

/// More streams than any model has; bounds the arrays on the stack.
const STREAMS_MAX: usize = 8;

fn check_streams(operation: &'static str, streams: usize, width: usize) -> Result<(), Error> {
    check(
        operation,
        (1..=STREAMS_MAX).contains(&streams) && width > 0,
        || format!("{streams} streams of {width}"),
        "1 to 8 streams that are not empty",
    )
}

struct EmbedRows<'a> {
    tokens: &'a [u32],
    table: &'a Weights,
    width: usize,
    out: Pieces<'a, f32>,
}

impl Kernel for EmbedRows<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, rows: Range<usize>) {
        for row in rows {
            // SAFETY: each row belongs to one part.
            let out = unsafe { self.out.get(row) };
            let (first, others) = out.split_at_mut(self.width);
            self.table.decode_row(0, self.tokens[row] as usize, first);
            others.chunks_exact_mut(self.width).for_each(|other| other.copy_from_slice(first));
        }
    }
}

pub(crate) fn embed(cpu: &mut Cpu, a: &Embed) -> Result<(), Error> {
    let operation = "embed";
    let (n, width) = (cpu.rows.len(), a.table.columns);
    check_streams(operation, a.streams, width)?;
    let table = weights(&cpu.matrices, operation, a.table)?;
    let last = cpu.rows.tokens.iter().max().map_or(0, |token| *token as usize);
    let found = || format!("token {last} with a table of {} rows", a.table.rows);
    check(operation, last < a.table.rows, found, "tokens are rows of the table")?;
    let ask = Ask { operation, operand: "out" };
    let mut out = cpu.store.f32_mut(ask, a.out, size(&[n, a.streams, width]))?;
    cpu.counters.dense_bytes += table.bytes_per_matrix() / a.table.rows as u64 * n as u64;
    let out = Pieces::new(&mut out, a.streams * width);
    let kernel = EmbedRows { tokens: &cpu.rows.tokens, table, width, out };
    launch(&cpu.pool, cpu.isa, parts(&cpu.pool, n, 4 * width), n, &kernel);
    Ok(())
}

/// `out = sum over streams of weights[j] * x[j]`, streams in order by fma from +0.
#[inline(always)]
fn mix(x: &[f32], weights: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for (x, weight) in x.chunks_exact(out.len()).zip(weights) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = weight.mul_add(*x, *out);
        }
    }
}

struct PreRows<'a> {
    x: &'a [f32],
    mixes: Whole<'a, f32>,
    streams: usize,
    base: &'a [f32],
    scale: &'a [f32],
    norm: &'a [f32],
    norm_eps: f32,
    hc_eps: f32,
    iterations: usize,
    out: Pieces<'a, f32>,
    post: Pieces<'a, f32>,
    comb: Pieces<'a, f32>,
}

/// Rows whose coefficients are split at the same time, one a lane.
const BATCH: usize = 16;
/// One value of each row of a batch.
type Lanes = [f32; BATCH];

impl Kernel for PreRows<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, rows: Range<usize>) {
        for first in rows.clone().step_by(BATCH) {
            let rows = first..rows.end.min(first + BATCH);
            let mut pre = [[0f32; STREAMS_MAX]; BATCH];
            if rows.len() < BATCH / 4 {
                for (row, pre) in rows.clone().zip(&mut pre) {
                    self.coefficients(row, pre);
                }
            } else {
                self.coefficients_of_batch(rows.clone(), &mut pre);
            }
            for (row, pre) in rows.zip(&pre) {
                let x = &self.x[row * self.streams * self.norm.len()..];
                // SAFETY: each row belongs to one part.
                let out = unsafe { self.out.get(row) };
                mix(&x[..self.streams * self.norm.len()], &pre[..self.streams], out);
                rms_norm_in_place(out, self.norm, self.norm_eps);
            }
        }
    }
}

impl PreRows<'_> {
    /// What the mixes of a row are scaled by.
    #[inline(always)]
    fn factor(&self, row: usize) -> f32 {
        let width = self.streams * self.norm.len();
        rms_factor(&self.x[row * width..][..width], self.norm_eps)
    }

    #[inline(always)]
    fn coefficients(&self, row: usize, pre: &mut [f32; STREAMS_MAX]) {
        let s = self.streams;
        let (factor, count) = (self.factor(row), (2 + s) * s);
        // SAFETY: the product has ended, and each row belongs to one part.
        let (m, post, comb) = unsafe {
            let mixes = self.mixes.read(row * count..(row + 1) * count);
            (mixes, self.post.get(row), self.comb.get(row))
        };
        let value =
            |i: usize, scale: usize| (m[i] * factor).mul_add(self.scale[scale], self.base[i]);
        for j in 0..s {
            pre[j] = sigmoid(value(j, 0)) + self.hc_eps;
            post[j] = 2.0 * sigmoid(value(s + j, 1));
        }
        for (jk, comb) in comb.iter_mut().enumerate() {
            *comb = value(2 * s + jk, 2);
        }
        sinkhorn(comb, s, self.hc_eps, self.iterations);
    }

    /// [`PreRows::coefficients`] of several rows: the same steps on every lane.
    #[inline(always)]
    fn coefficients_of_batch(&self, rows: Range<usize>, pre: &mut [[f32; STREAMS_MAX]; BATCH]) {
        let (s, count) = (self.streams, (2 + self.streams) * self.streams);
        let mut values = [[0f32; BATCH]; (2 + STREAMS_MAX) * STREAMS_MAX];
        for (lane, row) in rows.clone().enumerate() {
            // SAFETY: the product has ended.
            let m = unsafe { self.mixes.read(row * count..(row + 1) * count) };
            let factor = self.factor(row);
            for (value, m) in values.iter_mut().zip(m) {
                value[lane] = m * factor;
            }
        }
        for (i, value) in values[..count].iter_mut().enumerate() {
            let (scale, base) = (self.scale[(i / s).min(2)], self.base[i]);
            for v in value.iter_mut() {
                *v = v.mul_add(scale, base);
            }
        }
        let (gates, comb) = values.split_at_mut(2 * s);
        for gate in &mut *gates {
            for v in gate.iter_mut() {
                *v = sigmoid(*v);
            }
        }
        let comb = &mut comb[..s * s];
        sinkhorn_lanes(comb, s, self.hc_eps, self.iterations);
        for ((lane, row), pre) in rows.enumerate().zip(pre) {
            // SAFETY: each row belongs to one part.
            let (post, out) = unsafe { (self.post.get(row), self.comb.get(row)) };
            for j in 0..s {
                pre[j] = gates[j][lane] + self.hc_eps;
                post[j] = 2.0 * gates[s + j][lane];
            }
            for (out, comb) in out.iter_mut().zip(&*comb) {
                *out = comb[lane];
            }
        }
    }
}

/// [`sinkhorn`] of one square a lane.
#[inline(always)]
fn sinkhorn_lanes(c: &mut [Lanes], streams: usize, eps: f32, iterations: usize) {
    for row in c.chunks_exact_mut(streams) {
        let (mut max, mut sum) = ([f32::NEG_INFINITY; BATCH], [0f32; BATCH]);
        for v in &*row {
            for i in 0..BATCH {
                max[i] = if v[i] > max[i] { v[i] } else { max[i] };
            }
        }
        for v in &mut *row {
            for i in 0..BATCH {
                v[i] = exp(v[i] - max[i]);
            }
            for i in 0..BATCH {
                sum[i] += v[i];
            }
        }
        for v in row {
            for i in 0..BATCH {
                v[i] = v[i] / sum[i] + eps;
            }
        }
    }
    lanes_to_one(c, streams, 1, eps);
    for _ in 1..iterations {
        lanes_to_one(c, 1, streams, eps);
        lanes_to_one(c, streams, 1, eps);
    }
}

/// Divides groups of `streams` values by their sum plus eps: those `step` apart, group after group
/// `next` apart.
#[inline(always)]
fn lanes_to_one(c: &mut [Lanes], step: usize, next: usize, eps: f32) {
    let streams = step.max(next);
    for first in (0..streams).map(|group| group * next) {
        let mut sum = [0f32; BATCH];
        for v in c[first..].iter().step_by(step).take(streams) {
            for i in 0..BATCH {
                sum[i] += v[i];
            }
        }
        for sum in &mut sum {
            *sum += eps;
        }
        for v in c[first..].iter_mut().step_by(step).take(streams) {
            for i in 0..BATCH {
                v[i] /= sum[i];
            }
        }
    }
}

/// Softmax over k plus eps, columns, then `iterations - 1` times rows and columns, each divided by
/// its sum plus eps. `c` is [j, k]; sums run in ascending index.
#[inline(always)]
fn sinkhorn(c: &mut [f32], streams: usize, eps: f32, iterations: usize) {
    match streams {
        1 => sinkhorn_of::<1>(c, eps, iterations),
        2 => sinkhorn_of::<2>(c, eps, iterations),
        3 => sinkhorn_of::<3>(c, eps, iterations),
        4 => sinkhorn_of::<4>(c, eps, iterations),
        5 => sinkhorn_of::<5>(c, eps, iterations),
        6 => sinkhorn_of::<6>(c, eps, iterations),
        7 => sinkhorn_of::<7>(c, eps, iterations),
        _ => sinkhorn_of::<8>(c, eps, iterations),
    }
}

/// [`sinkhorn`] of a square that fits registers.
#[inline(always)]
fn sinkhorn_of<const S: usize>(c: &mut [f32], eps: f32, iterations: usize) {
    let (from, _) = c.as_chunks_mut::<S>();
    let mut c = [[0f32; S]; S];
    for (c, from) in c.iter_mut().zip(&*from) {
        let max = from.iter().fold(f32::NEG_INFINITY, |max, v| if *v > max { *v } else { max });
        let mut sum = 0f32;
        for (c, v) in c.iter_mut().zip(from) {
            *c = exp(v - max);
            sum += *c;
        }
        for c in c {
            *c = *c / sum + eps;
        }
    }
    columns_to_one(&mut c, eps);
    for _ in 1..iterations {
        for row in &mut c {
            let sum = row.iter().fold(0.0, |sum, v| sum + v) + eps;
            for v in row {
                *v /= sum;
            }
        }
        columns_to_one(&mut c, eps);
    }
    from.copy_from_slice(&c);
}

#[inline(always)]
fn columns_to_one<const S: usize>(c: &mut [[f32; S]; S], eps: f32) {
    let mut sums = [0f32; S];
    for row in &*c {
        for k in 0..S {
            sums[k] += row[k];
        }
    }
    for row in c {
        for k in 0..S {
            row[k] /= sums[k] + eps;
        }
    }
}

pub(crate) fn hc_pre(cpu: &mut Cpu, a: &HcPre) -> Result<(), Error> {
    let operation = "hc_pre";
    let ask = |operand| Ask { operation, operand };
    let (n, s, width) = (cpu.rows.len(), a.streams, a.norm.len);
    check_streams(operation, s, width)?;
    let matrix = a.weights.matrix;
    let mixes = (2 + s) * s;
    check(
        operation,
        matrix.rows == mixes && matrix.columns == size(&[s, width]) && matrix.stack == 1,
        || format!("a matrix of {} x {}", matrix.rows, matrix.columns),
        format_args!("{s} streams of {width} need {mixes} x {}", size(&[s, width])),
    )?;
    let weights = weights(&cpu.matrices, operation, matrix)?;
    let x = cpu.store.f32(ask("x"), a.x, size(&[n, s, width]))?;
    let base = cpu.store.f32(ask("base"), a.weights.base, mixes)?;
    let scale = cpu.store.f32(ask("scale"), a.weights.scale, 3)?;
    let norm = cpu.store.f32(ask("norm"), a.norm, width)?;
    let mut out = cpu.store.f32_mut(ask("out"), a.out, size(&[n, width]))?;
    let mut post = cpu.store.f32_mut(ask("post"), a.post, n * s)?;
    let mut comb = cpu.store.f32_mut(ask("comb"), a.comb, n * s * s)?;
    let scratch = &mut cpu.scratch;
    cpu.counters.dense_bytes += weights.bytes_per_matrix();
    let (inputs, on) = ((&mut scratch.inputs, &mut scratch.mixes), (&cpu.pool, cpu.isa));
    let shape = ([n, matrix.columns], 3 * s * width + 1024);
    of_mixes(on, weights, inputs, &x, shape, |mixes| PreRows {
        x: &x,
        mixes,
        streams: s,
        base: &base,
        scale: &scale,
        norm: &norm,
        norm_eps: a.norm_eps,
        hc_eps: a.hc_eps,
        iterations: a.iterations,
        out: Pieces::new(&mut out, width),
        post: Pieces::new(&mut post, s),
        comb: Pieces::new(&mut comb, s * s),
    });
    Ok(())
}

struct PostRows<'a> {
    z: &'a [f32],
    post: &'a [f32],
    comb: &'a [f32],
    streams: usize,
    width: usize,
    x: Pieces<'a, f32>,
}

/// Dims of all streams that are in registers at a time.
const LANES: usize = 16;

impl Kernel for PostRows<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, rows: Range<usize>) {
        match self.streams {
            1 => self.rows::<1>(rows),
            2 => self.rows::<2>(rows),
            3 => self.rows::<3>(rows),
            4 => self.rows::<4>(rows),
            5 => self.rows::<5>(rows),
            6 => self.rows::<6>(rows),
            7 => self.rows::<7>(rows),
            _ => self.rows::<8>(rows),
        }
    }
}

impl PostRows<'_> {
    #[inline(always)]
    fn rows<const S: usize>(&self, rows: Range<usize>) {
        let width = self.width;
        for row in rows {
            let z = &self.z[row * width..][..width];
            // SAFETY: each row belongs to one part.
            let x = unsafe { self.x.get(row) };
            let whole = width / LANES * LANES;
            for start in (0..whole).step_by(LANES) {
                self.dims::<S>(row, z, x, start, LANES);
            }
            if whole < width {
                self.dims::<S>(row, z, x, whole, width - whole);
            }
        }
    }

    /// `count` dims of a row of all streams.
    #[inline(always)]
    fn dims<const S: usize>(
        &self,
        row: usize,
        z: &[f32],
        x: &mut [f32],
        start: usize,
        count: usize,
    ) {
        let post = &self.post[row * S..][..S];
        let (comb, _) = self.comb[row * S * S..][..S * S].as_chunks::<S>();
        let (mut old, mut z_lanes) = ([[0f32; LANES]; S], [0f32; LANES]);
        z_lanes[..count].copy_from_slice(&z[start..][..count]);
        for (j, old) in old.iter_mut().enumerate() {
            old[..count].copy_from_slice(&x[j * self.width + start..][..count]);
        }
        for k in 0..S {
            let mut new = [0f32; LANES];
            for (new, z) in new.iter_mut().zip(&z_lanes) {
                *new = post[k] * z;
            }
            for j in 0..S {
                for i in 0..LANES {
                    new[i] = comb[j][k].mul_add(old[j][i], new[i]);
                }
            }
            x[k * self.width + start..][..count].copy_from_slice(&new[..count]);
        }
    }
}

pub(crate) fn hc_post(cpu: &mut Cpu, a: &HcPost) -> Result<(), Error> {
    let operation = "hc_post";
    let ask = |operand| Ask { operation, operand };
    let (n, s, width) = (cpu.rows.len(), a.streams, a.width);
    check_streams(operation, s, width)?;
    let z = cpu.store.f32(ask("z"), a.z, size(&[n, width]))?;
    let post = cpu.store.f32(ask("post"), a.post, n * s)?;
    let comb = cpu.store.f32(ask("comb"), a.comb, n * s * s)?;
    let mut x = cpu.store.f32_mut(ask("x"), a.x, size(&[n, s, width]))?;
    let x = Pieces::new(&mut x, s * width);
    let kernel = PostRows { z: &z, post: &post, comb: &comb, streams: s, width, x };
    launch(&cpu.pool, cpu.isa, parts(&cpu.pool, n, s * s * width / 4), n, &kernel);
    Ok(())
}

struct HeadRows<'a> {
    x: &'a [f32],
    mixes: Whole<'a, f32>,
    streams: usize,
    base: &'a [f32],
    scale: f32,
    norm: &'a [f32],
    norm_eps: f32,
    hc_eps: f32,
    out: Pieces<'a, f32>,
}

impl Kernel for HeadRows<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, rows: Range<usize>) {
        let (s, width) = (self.streams, self.norm.len());
        for row in rows {
            let x = &self.x[row * s * width..][..s * width];
            let factor = rms_factor(x, self.norm_eps);
            // SAFETY: the product has ended, and each row belongs to one part.
            let (m, out) = unsafe { (self.mixes.read(row * s..(row + 1) * s), self.out.get(row)) };
            let mut pre = [0f32; STREAMS_MAX];
            for j in 0..s {
                let value = (m[j] * factor).mul_add(self.scale, self.base[j]);
                pre[j] = sigmoid(value) + self.hc_eps;
            }
            mix(x, &pre[..s], out);
            rms_norm_in_place(out, self.norm, self.norm_eps);
        }
    }
}

pub(crate) fn hc_head(cpu: &mut Cpu, a: &HcHead) -> Result<(), Error> {
    let operation = "hc_head";
    let ask = |operand| Ask { operation, operand };
    let (n, s, width) = (a.rows, a.streams, a.norm.len);
    check_streams(operation, s, width)?;
    let matrix = a.weights.matrix;
    check(
        operation,
        matrix.rows == s && matrix.columns == size(&[s, width]) && matrix.stack == 1,
        || format!("a matrix of {} x {}", matrix.rows, matrix.columns),
        format_args!("{s} streams of {width} need {s} x {}", size(&[s, width])),
    )?;
    let weights = weights(&cpu.matrices, operation, matrix)?;
    let x = cpu.store.f32(ask("x"), a.x, size(&[n, s, width]))?;
    let base = cpu.store.f32(ask("base"), a.weights.base, s)?;
    let scale = cpu.store.f32(ask("scale"), a.weights.scale, 1)?[0];
    let norm = cpu.store.f32(ask("norm"), a.norm, width)?;
    let mut out = cpu.store.f32_mut(ask("out"), a.out, size(&[n, width]))?;
    let scratch = &mut cpu.scratch;
    cpu.counters.dense_bytes += weights.bytes_per_matrix();
    let (inputs, on) = ((&mut scratch.inputs, &mut scratch.mixes), (&cpu.pool, cpu.isa));
    let shape = ([n, matrix.columns], 3 * s * width);
    of_mixes(on, weights, inputs, &x, shape, |mixes| HeadRows {
        x: &x,
        mixes,
        streams: s,
        base: &base,
        scale,
        norm: &norm,
        norm_eps: a.norm_eps,
        hc_eps: a.hc_eps,
        out: Pieces::new(&mut out, width),
    });
    Ok(())
}

struct AddRows<'a> {
    row: &'a [f32],
    width: usize,
    x: Pieces<'a, f32>,
}

impl Kernel for AddRows<'_> {
    #[inline(always)]
    fn run(&self, _part: usize, rows: Range<usize>) {
        for row in rows {
            let add = &self.row[row * self.width..][..self.width];
            // SAFETY: each row belongs to one part.
            let x = unsafe { self.x.get(row) };
            for x in x.chunks_exact_mut(self.width) {
                x.iter_mut().zip(add).for_each(|(x, add)| *x += add);
            }
        }
    }
}

pub(crate) fn add_to_streams(cpu: &mut Cpu, a: &AddToStreams) -> Result<(), Error> {
    let operation = "add_to_streams";
    let (n, width) = (cpu.rows.len(), a.width);
    check_streams(operation, a.streams, width)?;
    let row = cpu.store.f32(Ask { operation, operand: "row" }, a.row, size(&[n, width]))?;
    let len = size(&[n, a.streams, width]);
    let mut x = cpu.store.f32_mut(Ask { operation, operand: "x" }, a.x, len)?;
    let kernel = AddRows { row: &row, width, x: Pieces::new(&mut x, a.streams * width) };
    launch(&cpu.pool, cpu.isa, parts(&cpu.pool, n, a.streams * width / 2), n, &kernel);
    Ok(())
}

pub(crate) fn gather_rows(cpu: &mut Cpu, a: &GatherRows<'_>) -> Result<(), Error> {
    let operation = "gather_rows";
    let floats = [Element::F32, Element::Bf16];
    let last = a.rows.iter().max().map_or(0, |row| row.saturating_add(1));
    let ask = |operand| Ask { operation, operand };
    let x = cpu.store.data(ask("x"), a.x, &floats, size(&[last, a.width]))?;
    let len = size(&[a.at.saturating_add(a.rows.len()), a.width]);
    let mut out = cpu.store.data_mut(ask("out"), a.out, &floats, len)?;
    let (x, out) = (Rows::new(&x), RowPieces::new(&mut out, a.width));
    let row = grow(&mut cpu.scratch.parts, a.width);
    for (index, from) in a.rows.iter().enumerate() {
        x.load(*from, row);
        // SAFETY: this thread alone works on `out`.
        unsafe { out.store(a.at + index, row) };
    }
    Ok(())
}
