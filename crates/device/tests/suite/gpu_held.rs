//! Products of one row that hold weights before the row is there have the bits of others: pieces
//! that fit their slots and that do not, rows that end inside a piece, every kind of input.

use crate::common::{Bench, Numbers, bits, encode};
use ironstar_device::*;
use ironstar_quant::Format;

/// Columns, rows of two matrices, groups.
type Case = (usize, [usize; 2], usize);

const CASES: [Case; 3] = [(1024, [37, 5], 1), (1024, [74, 0], 2), (4096, [120, 0], 2)];

/// Products of floats and, of 1,024 columns, of their norm: the bits of all outputs.
fn products(mut bench: Bench, case: Case) -> Vec<Vec<u32>> {
    let (columns, rows, groups) = case;
    let mut numbers = Numbers(columns as u64);
    bench.cpu.begin(&Step::single(&[0], 0)).expect("a step");
    let mut values = numbers.floats(groups * columns, 1.0);
    values[40..72].fill(0.0);
    let x = bench.floats(&values);
    let mut outputs = Vec::new();
    for rows in rows.into_iter().filter(|rows| *rows > 0) {
        let bytes = encode(Format::Q8_0, &numbers.floats(rows * columns, 0.2));
        let matrix = bench.encoded(Format::Q8_0, [1, rows, columns], bytes);
        outputs.push((matrix, bench.zeros(rows)));
    }
    let mut found = Vec::new();
    let mut read = |bench: &mut Bench| {
        found.extend(outputs.iter().map(|(_, out)| bits(&bench.read(*out))));
    };
    if groups > 1 {
        let (matrix, out) = outputs[0];
        bench.cpu.project_grouped(&ProjectGrouped { x, matrix, groups, out }).expect("fits");
        read(&mut bench);
        return found;
    }
    bench.cpu.project(&Project { x, rows: 1, outputs: &outputs }).expect("fits");
    read(&mut bench);
    if columns == 1024 {
        let (y, weight) = (
            bench.floats(&numbers.floats(columns, 1.0)),
            bench.floats(&numbers.floats(columns, 1.0)),
        );
        bench.cpu.rms_norm(&RmsNorm { x: y, rows: 1, weight, eps: 1e-6, out: y }).expect("fits");
        bench.cpu.project(&Project { x: y, rows: 1, outputs: &outputs }).expect("fits");
        read(&mut bench);
    }
    found
}

#[test]
fn weights_that_were_there_before_the_row() {
    let without = GpuConfig { disabled: Shortcuts::HELD, ..GpuConfig::default() };
    for case in CASES {
        let held = products(Bench::gpu(), case);
        assert!(held == products(Bench::gpu_with(without), case), "other kernels, {case:?}");
        // Norms of devices differ; their products are made last.
        let own = case.1.iter().filter(|rows| **rows > 0).count();
        assert!(held[..own] == products(Bench::scalar(), case)[..own], "the CPU's, {case:?}");
        assert!(held == products(Bench::small_gpu(), case), "little memory, {case:?}");
    }
}

/// Kernels that were not taken would prove nothing: those of a product of a norm, and of grouped
/// ones of few pieces and of more.
#[test]
fn kernels_that_hold_weights_are_taken() {
    let mut gpu = Gpu::host(GpuConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let arena = gpu.arena();
    gpu.begin(&Step::single(&[0], 0)).expect("a step");
    let mut matrix = |rows: usize, columns: usize| {
        let (format, bytes) = (Format::Q8_0, encode(Format::Q8_0, &vec![0.5; rows * columns]));
        gpu.matrix(MatrixSource { name: "m", format, rows, columns, stack: 1, bytes })
            .expect("fits")
    };
    let (normed, low, high) = (matrix(9, 1024), matrix(8, 1024), matrix(32, 4096));
    let mut zeros = |len| gpu.alloc(arena, Element::F32, len).expect("small");
    let [x, weight, y, out] = [1024, 1024, 8192, 32].map(&mut zeros);
    let small = [2048, 9, 8].map(&mut zeros);
    gpu.rms_norm(&RmsNorm { x, rows: 1, weight, eps: 1e-6, out: x }).expect("fits");
    gpu.project(&Project { x, rows: 1, outputs: &[(normed, small[1])] }).expect("fits");
    for (x, matrix, out) in [(small[0], low, small[2]), (y, high, out)] {
        gpu.project_grouped(&ProjectGrouped { x, matrix, groups: 2, out }).expect("fits");
    }
    gpu.finish().expect("no fault");
    for name in ["held_low_q8_0", "held_normed_q8_0", "held_q8_0"] {
        let count = gpu.launches().kernels.iter().find(|(own, _)| *own == name).map(|(_, n)| *n);
        assert_eq!(count, Some(1), "{name}");
    }
}
