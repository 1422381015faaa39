//! Products of many rows on the GPU's integer tiles: every format, odd numbers of rows and slots,
//! groups and stacks of experts give the bits of the scalar CPU path.

mod common;

use common::{Bench, Numbers, bits, encode};
use ironstar_device::*;
use ironstar_quant::{Activation, FORMATS, Format};
use std::sync::Arc;

fn both() -> [Bench; 2] {
    [Bench::scalar(), Bench::gpu()]
}

fn integer_formats() -> impl Iterator<Item = Format> {
    let integer = FORMATS.iter().filter(|info| info.activation != Activation::F32);
    integer.map(|info| info.format)
}

/// Random blocks whose scales are finite: encoded values, with all codes and signs.
fn matrix(numbers: &mut Numbers, format: Format, values: usize) -> Arc<Vec<u8>> {
    encode(format, &numbers.floats(values, 0.2))
}

#[test]
fn every_format() {
    for format in integer_formats() {
        // Eleven blocks: shards of one and of two.
        let block = format.info().block_elements;
        let (rows, columns, n) = (21, 11 * block, 67);
        let mut numbers = Numbers(block as u64);
        let bytes = matrix(&mut numbers, format, rows * columns);
        let other = matrix(&mut numbers, format, (rows + 9) * columns);
        let x = numbers.floats(n * columns, 1.0);
        let [cpu, gpu] = both().map(|mut bench| {
            bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
            let first = bench.encoded(format, [1, rows, columns], bytes.clone());
            let second = bench.encoded(format, [1, rows + 9, columns], other.clone());
            let x = bench.floats(&x);
            let outs = [bench.zeros(n * rows), bench.zeros(n * (rows + 9))];
            let outputs = [(first, outs[0]), (second, outs[1])];
            bench.cpu.project(&Project { x, rows: n, outputs: &outputs }).expect("fits");
            outs.map(|out| bits(&bench.read(out)))
        });
        assert!(cpu == gpu, "{format}: other bits");
        assert!(cpu[0].iter().any(|v| *v != cpu[0][0]), "{format}: a constant compares nothing");
    }
}

#[test]
fn groups() {
    let (groups, rows, columns, n) = (3, 60, 96, 19);
    let mut numbers = Numbers(3);
    let bytes = matrix(&mut numbers, Format::Q8_0, rows * columns);
    let x = numbers.floats(n * groups * columns, 1.0);
    let [cpu, gpu] = both().map(|mut bench| {
        bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
        let matrix = bench.encoded(Format::Q8_0, [1, rows, columns], bytes.clone());
        let (x, out) = (bench.floats(&x), bench.zeros(n * rows));
        bench.cpu.project_grouped(&ProjectGrouped { x, matrix, groups, out }).expect("fits");
        bits(&bench.read(out))
    });
    assert!(cpu == gpu, "other bits");
}

/// Experts with none, few and more than a tile of rows.
#[test]
fn stacks() {
    let (experts, top_k, d, inner, n) = (5, 2, 256, 256, 90);
    for (routed, down) in [(Format::Iq2Xxs, Format::Q2K), (Format::Mxfp4, Format::Mxfp4)] {
        let mut numbers = Numbers(11);
        let stack = |numbers: &mut Numbers, format| matrix(numbers, format, experts * inner * d);
        let routed_bytes =
            [routed, routed, down].map(|format| (format, stack(&mut numbers, format)));
        let shared_bytes =
            [Format::Q8_0; 3].map(|format| (format, matrix(&mut numbers, format, inner * d)));
        let x = numbers.floats(n * d, 1.0);
        let weights = numbers.floats(n * top_k, 0.5);
        // Expert 3 is in most rows, expert 2 in none.
        let ids: Vec<u32> =
            (0..n).flat_map(|row| if row % 9 == 0 { [0, 4] } else { [1, 3] }).collect();
        let [cpu, gpu] = both().map(|mut bench| {
            bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
            let mut ffn = |stack, bytes: &[(Format, Arc<Vec<u8>>); 3]| {
                let mut one = |part: usize, shape: [usize; 2]| {
                    let (format, bytes) = &bytes[part];
                    bench.encoded(*format, [stack, shape[0], shape[1]], bytes.clone())
                };
                Ffn { gate: one(0, [inner, d]), up: one(1, [inner, d]), down: one(2, [d, inner]) }
            };
            let (routed, shared) = (ffn(experts, &routed_bytes), ffn(1, &shared_bytes));
            let (x, ids) = (bench.floats(&x), bench.ids(&ids));
            let (weights, out) = (bench.floats(&weights), bench.zeros(n * d));
            let limit = 7.0;
            let call = Experts { x, routed, shared, ids, weights, top_k, limit, out };
            bench.cpu.experts(&call).expect("fits");
            bits(&bench.read(out))
        });
        assert!(cpu == gpu, "{routed} and {down}: other bits");
    }
}
