//! One row has the bits that it has among others: `fast/decode.k` against `products.k` and against
//! the CPU, on the host driver, over every format, ragged shards, and rows that end inside a run.

use crate::common::{Bench, Numbers, bits, encode};
use ironstar_device::*;
use ironstar_quant::{FORMATS, Format};
use std::sync::Arc;

struct Case {
    columns: usize,
    rows: [usize; 2],
    groups: usize,
}

const CASES: [Case; 5] = [
    Case { columns: 256, rows: [3, 40], groups: 1 },
    Case { columns: 2304, rows: [37, 5], groups: 1 },
    // Large enough to be cut into planes on the device.
    Case { columns: 4096, rows: [300, 2], groups: 1 },
    Case { columns: 512, rows: [830, 801], groups: 1 },
    Case { columns: 512, rows: [96, 0], groups: 4 },
];

/// Outputs of one call of `project` or `project_grouped` for these rows of the input.
fn outputs(
    mut bench: Bench,
    case: &Case,
    format: Format,
    coded: &[Arc<Vec<u8>>],
    x: &[f32],
) -> Vec<Vec<u32>> {
    let n = x.len() / (case.groups * case.columns);
    bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
    let input = bench.floats(x);
    let mut made = Vec::new();
    for (rows, bytes) in case.rows.iter().zip(coded).filter(|(rows, _)| **rows > 0) {
        let matrix = bench.encoded(format, [1, *rows, case.columns], bytes.clone());
        made.push((matrix, bench.zeros(n * rows)));
    }
    if case.groups == 1 {
        let a = Project { x: input, rows: n, outputs: &made };
        bench.cpu.project(&a).expect("a product");
    } else {
        let (matrix, out) = made[0];
        let a = ProjectGrouped { x: input, matrix, groups: case.groups, out };
        bench.cpu.project_grouped(&a).expect("a product");
    }
    made.iter().map(|(_, out)| bits(&bench.read(*out))).collect()
}

#[test]
fn one_row_among_others_and_alone() {
    for info in FORMATS.iter().filter(|info| info.encode.is_some()) {
        for case in &CASES {
            let mut numbers = Numbers(7);
            let coded: Vec<_> = case
                .rows
                .iter()
                .map(|rows| encode(info.format, &numbers.floats(rows * case.columns, 0.5)))
                .collect();
            let width = case.groups * case.columns;
            let x = numbers.floats(2 * width, 1.0);
            let both = outputs(Bench::gpu(), case, info.format, &coded, &x);
            let wanted = outputs(Bench::scalar(), case, info.format, &coded, &x);
            let name = format!("{} {:?} {}", info.name, case.rows, case.columns);
            assert!(both == wanted, "two rows of {name}");
            for row in 0..2 {
                let x = &x[row * width..(row + 1) * width];
                let alone = outputs(Bench::gpu(), case, info.format, &coded, x);
                for (matrix, (alone, both)) in alone.iter().zip(&both).enumerate() {
                    let at = row * alone.len();
                    let same = alone[..] == both[at..at + alone.len()];
                    assert!(same, "row {row} alone, matrix {matrix} of {name}");
                }
            }
        }
    }
}

/// Two to sixteen rows, whose kernels read a weight once for eight of them, have the bits of the
/// CPU's rows and of other kernels.
#[test]
fn some_rows_at_once() {
    let cases = [
        Case { columns: 2304, rows: [37, 5], groups: 1 },
        Case { columns: 512, rows: [40, 0], groups: 2 },
    ];
    let others = GpuConfig { disabled: Shortcuts::FEW, ..GpuConfig::default() };
    for info in FORMATS.iter().filter(|info| info.encode.is_some()) {
        for (case, n) in cases.iter().flat_map(|case| [3, 9, 16].map(|n| (case, n))) {
            let mut numbers = Numbers(n as u64);
            let coded: Vec<_> = case
                .rows
                .iter()
                .map(|rows| encode(info.format, &numbers.floats(rows * case.columns, 0.5)))
                .collect();
            let x = numbers.floats(n * case.groups * case.columns, 1.0);
            let found = outputs(Bench::gpu(), case, info.format, &coded, &x);
            let name = format!("{n} rows of {} {:?}", info.name, case.rows);
            assert!(found == outputs(Bench::scalar(), case, info.format, &coded, &x), "{name}");
            if n == 9 {
                let other = outputs(Bench::gpu_with(others), case, info.format, &coded, &x);
                assert!(found == other, "{name}, other kernels");
            }
        }
    }
}

/// Products of `y` in formats of each kind of activation.
fn products_of(bench: &mut Bench, y: Buffer, n: usize) -> Vec<Vec<u32>> {
    let mut numbers = Numbers(5);
    let formats = [Format::Q8_0, Format::Iq2Xxs, Format::F16];
    let outputs = formats.map(|format| {
        let bytes = encode(format, &numbers.floats(8 * 1024, 0.2));
        (bench.encoded(format, [1, 8, 1024], bytes), bench.zeros(n * 8))
    });
    bench.cpu.project(&Project { x: y, rows: n, outputs: &outputs }).expect("fits");
    outputs.iter().map(|(_, out)| bits(&bench.read(*out))).collect()
}

/// The blocks that mixing and norms leave beside their result are those that a product would make
/// of it, and what is written over the result is not passed over.
#[test]
fn blocks_that_were_left_are_those_of_the_floats() {
    let (streams, width) = (4, 1024);
    for n in [1, 2] {
        let mut bench = Bench::gpu();
        let mut numbers = Numbers(n as u64);
        bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
        let x = numbers.floats(n * streams * width, 1.0);
        let x = bench.floats(&x);
        let matrix = encode(Format::F16, &numbers.floats(24 * streams * width, 0.2));
        let matrix = bench.encoded(Format::F16, [1, 24, streams * width], matrix);
        let (base, scale) = (bench.floats(&[0.3; 24]), bench.floats(&[0.7, 1.1, 0.9]));
        let norm = bench.floats(&numbers.floats(width, 1.0));
        let (out, post) = (bench.zeros(n * width), bench.zeros(n * streams));
        let comb = bench.zeros(n * streams * streams);
        let weights = HcWeights { matrix, base, scale };
        let (norm_eps, hc_eps, iterations) = (1e-6, 1e-6, 3);
        let pre =
            HcPre { x, streams, weights, norm, norm_eps, hc_eps, iterations, out, post, comb };
        let rms = RmsNorm { x: out, rows: n, weight: norm, eps: 1e-6, out };
        let steps: [&dyn Fn(&mut Bench); 3] = [
            &|bench| bench.cpu.hc_pre(&pre).expect("fits"),
            &|bench| bench.cpu.rms_norm(&rms).expect("fits"),
            &|bench| bench.cpu.write_f32(out, 3, &[5.0, -7.0]).expect("fits"),
        ];
        let mut seen = Vec::new();
        for (index, step) in steps.into_iter().enumerate() {
            step(&mut bench);
            let left = products_of(&mut bench, out, n);
            let values = bench.read(out);
            let fresh = bench.floats(&values);
            assert!(left == products_of(&mut bench, fresh, n), "{n} rows, step {index}");
            seen.push(left);
        }
        assert!(seen[0] != seen[1] && seen[1] != seen[2], "every step changes the products");
    }
}
