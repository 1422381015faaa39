//! Parts of a rank on the GPU's kernels: the bits of the CPU's parts, whose subtrees are
//! the whole.

use crate::common::{Bench, Numbers, agree, bits, encode};
use ironstar_device::*;
use ironstar_quant::Format;
use std::sync::Arc;

/// A product of a part: format, rows and columns of the part, inputs.
const PRODUCTS: [(Format, [usize; 2], usize); 9] = [
    (Format::Q8_0, [40, 96], 1),
    (Format::Q8_0, [24, 512], 3),
    (Format::Q8_0, [8, 256], 35),
    (Format::Q2K, [16, 768], 1),
    (Format::Q2K, [24, 256], 70),
    (Format::Iq2Xxs, [8, 512], 2),
    (Format::Mxfp4, [32, 64], 9),
    (Format::F16, [16, 160], 1),
    (Format::F32, [24, 64], 5),
];

fn part(
    bench: &mut Bench,
    format: Format,
    sizes: [usize; 3],
    of: (&Arc<Vec<u8>>, usize),
) -> Matrix {
    let ([stack, rows, columns], (bytes, shards)) = (sizes, of);
    let name = "a test's part";
    let source =
        MatrixSource { name, format, rows, columns, stack, bytes: bytes.clone(), planes: None };
    bench.cpu.matrix_part(source, MatrixPart { shards, strides: None }).expect("a right shape")
}

#[test]
fn products_of_a_part_are_those_of_the_cpu() {
    for (format, [rows, columns], n) in PRODUCTS {
        let mut numbers = Numbers(columns as u64);
        let bytes = encode(format, &numbers.floats(rows * columns, 0.5));
        let x = numbers.floats(n * columns, 1.0);
        for shards in [4, 2, 1] {
            let [found, wanted] = [Bench::gpu(), Bench::scalar()].map(|mut bench| {
                bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
                let matrix = part(&mut bench, format, [1, rows, columns], (&bytes, shards));
                let (x, out) = (bench.floats(&x), bench.zeros(n * rows));
                let a = Project { x, rows: n, outputs: &[(matrix, out)] };
                bench.cpu.project(&a).expect("a product");
                bits(&bench.read(out))
            });
            let name = format!("{shards} shards of {rows} x {columns} {format:?}, {n} rows");
            agree(format, &[found], &[wanted], &name);
        }
    }
}

/// A part in a place where all of K is needed is refused, as is one that cannot be folded.
#[test]
fn parts_that_do_not_fit_are_refused() {
    let mut bench = Bench::gpu();
    bench.cpu.begin(&Step::single(&[0], 0)).expect("a step");
    let bytes = encode(Format::Q8_0, &[0.5; 12 * 64]);
    let matrix = part(&mut bench, Format::Q8_0, [1, 12, 64], (&bytes, 4));
    let (x, out) = (bench.zeros(64), bench.zeros(12));
    let error = bench.cpu.project_grouped(&ProjectGrouped { x, matrix, groups: 1, out });
    let text = error.expect_err("a part").to_string();
    assert!(text.contains("4 of the eight shards"), "{text}");
    let name = "odd";
    let (format, rows, columns, stack) = (Format::Q8_0, 12, 64, 1);
    let source = MatrixSource { name, format, rows, columns, stack, bytes, planes: None };
    let text = bench
        .cpu
        .matrix_part(source, MatrixPart { shards: 1, strides: None })
        .expect_err("12 rows in 8 parts")
        .to_string();
    assert!(text.contains("8 equal parts"), "{text}");
}

struct FfnCase {
    experts: usize,
    top_k: usize,
    d: usize,
    /// Of a rank.
    inner: usize,
    shared_inner: usize,
    formats: [Format; 2],
}

const FFNS: [FfnCase; 4] = [
    FfnCase {
        experts: 6,
        top_k: 3,
        d: 256,
        inner: 256,
        shared_inner: 96,
        formats: [Format::Q2K, Format::Q8_0],
    },
    // Two ranks have the columns of the kernels of chosen experts.
    FfnCase {
        experts: 4,
        top_k: 2,
        d: 256,
        inner: 1024,
        shared_inner: 256,
        formats: [Format::Q2K, Format::Q8_0],
    },
    FfnCase {
        experts: 9,
        top_k: 4,
        d: 64,
        inner: 96,
        shared_inner: 64,
        formats: [Format::Mxfp4, Format::Q8_0],
    },
    FfnCase {
        experts: 4,
        top_k: 2,
        d: 32,
        inner: 64,
        shared_inner: 32,
        formats: [Format::F32, Format::F16],
    },
];

fn experts_of(mut bench: Bench, case: &FfnCase, cells: Cells, n: usize) -> Vec<u32> {
    let FfnCase { experts, top_k, d, inner, shared_inner, formats } = *case;
    let mut numbers = Numbers(17);
    bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
    let held = cells.held().len();
    let shapes = [(formats[0], held, inner, 4), (formats[1], 1, shared_inner, cells.count)];
    let [routed, shared] = shapes.map(|(format, stack, inner, shards)| {
        let all = stack * inner * d;
        let [gate, up, down] = [(); 3].map(|()| encode(format, &numbers.floats(all, 0.15)));
        Ffn {
            gate: bench.encoded(format, [stack, inner, d], gate),
            up: bench.encoded(format, [stack, inner, d], up),
            down: part(&mut bench, format, [stack, d, inner], (&down, shards)),
        }
    });
    let x = numbers.floats(n * d, 1.0);
    let weights = numbers.floats(n * top_k, 1.0);
    let mut row = || {
        let mut ids: Vec<u32> = (0..u32::try_from(experts).expect("few")).collect();
        while ids.len() > top_k {
            ids.remove(numbers.below(ids.len()));
        }
        ids
    };
    let ids: Vec<u32> = (0..n).flat_map(|_| row()).collect();
    let (x, ids, weights) = (bench.floats(&x), bench.ids(&ids), bench.floats(&weights));
    let out = bench.zeros(n * d);
    let a = Experts { x, routed, shared, ids, weights, top_k, limit: 7.0, out };
    bench.cpu.experts_part(&a, cells).expect("fits");
    bits(&bench.read(out))
}

/// Slots of experts that another rank holds are passed over, and those behind them are not.
#[test]
fn slots_of_other_ranks_between_a_ranks_own() {
    let case = FfnCase {
        experts: 8,
        top_k: 3,
        d: 4096,
        inner: 32,
        shared_inner: 32,
        formats: [Format::Mxfp4, Format::Q8_0],
    };
    let cells = Cells::of_part(Part { rank: 2, ranks: 4 }, case.experts);
    let [found, wanted] =
        [Bench::gpu(), Bench::scalar()].map(|bench| experts_of(bench, &case, cells, 4));
    assert!(found == wanted);
}

/// Sizes at which the kernels of chosen experts, and those of many rows, take a rank's part.
#[test]
fn cells_of_many_rows() {
    let case = FfnCase {
        experts: 8,
        top_k: 3,
        d: 256,
        inner: 1024,
        shared_inner: 256,
        formats: [Format::Q2K, Format::Q8_0],
    };
    let cells = Cells::of_part(Part { rank: 1, ranks: 2 }, case.experts);
    for n in [2, 7, 40] {
        let [found, wanted] =
            [Bench::gpu(), Bench::scalar()].map(|bench| experts_of(bench, &case, cells, n));
        assert!(found == wanted, "{n} rows");
    }
}

#[test]
fn cells_of_a_rank_are_those_of_the_cpu() {
    for (index, case) in FFNS.iter().enumerate() {
        for (ranks, rank) in [(2, 0), (2, 1), (4, 2), (8, 5)] {
            let cells = Cells::of_part(Part { rank, ranks }, case.experts);
            for n in [1, 5] {
                let found = experts_of(Bench::gpu(), case, cells, n);
                let wanted = experts_of(Bench::scalar(), case, cells, n);
                assert!(found == wanted, "case {index}, rank {rank} of {ranks}, {n} rows");
            }
        }
    }
}
