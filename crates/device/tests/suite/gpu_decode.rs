//! One row has the bits that it has among others: `fast/decode.k` against `products.k` and against
//! the CPU, on the host driver, over every format, ragged shards, and rows that end inside a run.

use crate::common::{Bench, Numbers, agree, bits, encode};
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
            agree(info.format, &both, &wanted, &name);
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
        // Shapes for matrix units.
        Case { columns: 1024, rows: [37, 70], groups: 1 },
        Case { columns: 2048, rows: [40, 0], groups: 2 },
    ];
    // Rows that are fewer than a run of most kernels, and shards of one unit and none.
    let small = Case { columns: 96, rows: [3, 4], groups: 1 };
    let halves = GpuConfig { disabled: Shortcuts::HALVES, ..GpuConfig::default() };
    for (format, n) in [(Format::F16, 5), (Format::Bf16, 16)] {
        let mut numbers = Numbers(4);
        let coded = small.rows.map(|rows| encode(format, &numbers.floats(rows * 96, 0.5)));
        let x = numbers.floats(n * small.columns, 1.0);
        let found = outputs(Bench::gpu(), &small, format, &coded, &x);
        assert!(found == outputs(Bench::scalar(), &small, format, &coded, &x), "{format}");
        let each = outputs(Bench::gpu_with(halves), &small, format, &coded, &x);
        assert!(found == each, "{format}, each row by itself");
    }
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
            let wanted = outputs(Bench::scalar(), case, info.format, &coded, &x);
            agree(info.format, &found, &wanted, &name);
            if n == 9 {
                let other = outputs(Bench::gpu_with(others), case, info.format, &coded, &x);
                assert!(found == other, "{name}, other kernels");
            }
        }
    }
}

/// Shards of three stages, whose inputs stay beside the parts of one run, and of five, whose inputs
/// come again for every run.
#[test]
fn some_rows_of_many_columns() {
    for (columns, rows, n) in [(3072, [70, 37], 9), (5120, [70, 0], 3)] {
        let case = Case { columns, rows, groups: 1 };
        let mut numbers = Numbers(columns as u64);
        let coded =
            case.rows.map(|rows| encode(Format::Q8_0, &numbers.floats(rows * columns, 0.5)));
        let x = numbers.floats(n * columns, 1.0);
        let found = outputs(Bench::gpu(), &case, Format::Q8_0, &coded, &x);
        assert!(found == outputs(Bench::scalar(), &case, Format::Q8_0, &coded, &x), "{columns}");
    }
}

/// Products of `y` in formats of each kind of activation.
fn products_of(bench: &mut Bench, y: Buffer, [n, width]: [usize; 2]) -> Vec<Vec<u32>> {
    let mut numbers = Numbers(5);
    let formats = [Format::Q8_0, Format::Iq2Xxs, Format::F16];
    let outputs = formats.map(|format| {
        let bytes = encode(format, &numbers.floats(8 * width, 0.2));
        (bench.encoded(format, [1, 8, width], bytes), bench.zeros(n * 8))
    });
    bench.cpu.project(&Project { x: y, rows: n, outputs: &outputs }).expect("fits");
    outputs.iter().map(|(_, out)| bits(&bench.read(*out))).collect()
}

/// The blocks that mixing and norms leave beside their result are those that a product would make
/// of it, and what is written over the result is not passed over.
#[test]
fn blocks_that_were_left_are_those_of_the_floats() {
    for (width, n) in [(1024, 1), (1024, 2), (1024, 9), (4096, 16)] {
        let streams = 4;
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
            let left = products_of(&mut bench, out, [n, width]);
            let values = bench.read(out);
            let fresh = bench.floats(&values);
            assert!(left == products_of(&mut bench, fresh, [n, width]), "{n} rows, step {index}");
            seen.push(left);
        }
        assert!(seen[0] != seen[1] && seen[1] != seen[2], "every step changes the products");
    }
}

/// A grouped product leaves blocks of its result that are those a product would make of it.
#[test]
fn blocks_of_a_grouped_product_are_those_of_its_floats() {
    blocks_of_a_grouped_product([9, 2, 64, 1024]);
}

fn blocks_of_a_grouped_product([n, groups, rows, columns]: [usize; 4]) {
    let mut bench = Bench::gpu();
    let mut numbers = Numbers(3);
    bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
    let mut matrix = |bench: &mut Bench, rows: usize, columns: usize| {
        let bytes = encode(Format::Q8_0, &numbers.floats(rows * columns, 0.2));
        bench.encoded(Format::Q8_0, [1, rows, columns], bytes)
    };
    let first = matrix(&mut bench, groups * rows, columns);
    let second = matrix(&mut bench, 7, groups * rows);
    let mut x = Numbers(4).floats(n * groups * columns, 1.0);
    // A row whose blocks are none.
    x[(n - 1) * groups * columns] = f32::INFINITY;
    let x = bench.floats(&x);
    let out = bench.zeros(n * groups * rows);
    bench.cpu.project_grouped(&ProjectGrouped { x, matrix: first, groups, out }).expect("fits");
    let product = |bench: &mut Bench, x: Buffer| {
        let out = bench.zeros(n * 7);
        let a = Project { x, rows: n, outputs: &[(second, out)] };
        bench.cpu.project(&a).expect("fits");
        bits(&bench.read(out))
    };
    let left = product(&mut bench, out);
    let values = bench.read(out);
    let fresh = bench.floats(&values);
    assert!(left == product(&mut bench, fresh));
}

/// One row whose weights are in shared memory before it is there (`fast/row_ahead.k`): the bits of
/// other kernels and of the CPU, and blocks that are those of the floats.
#[test]
fn weights_before_their_row() {
    let ahead = Shortcuts::named("ahead").expect("it is one");
    let required = GpuConfig { required: ahead, ..GpuConfig::default() };
    let without = GpuConfig { disabled: ahead, ..GpuConfig::default() };
    let cases = [
        Case { columns: 4096, rows: [128, 0], groups: 2 },
        Case { columns: 8192, rows: [48, 0], groups: 1 },
    ];
    for case in cases {
        let mut numbers = Numbers(case.columns as u64);
        let weights = numbers.floats(case.rows[0] * case.columns, 0.2);
        let coded = [encode(Format::Q8_0, &weights)];
        let mut x = numbers.floats(case.groups * case.columns, 1.0);
        for nan in [false, true] {
            if nan {
                x[case.columns - 1] = f32::NAN;
            }
            let found = outputs(Bench::gpu_with(required), &case, Format::Q8_0, &coded, &x);
            let other = outputs(Bench::gpu_with(without), &case, Format::Q8_0, &coded, &x);
            assert!(found == other, "{} columns, {nan}: other kernels", case.columns);
            let wanted = outputs(Bench::scalar(), &case, Format::Q8_0, &coded, &x);
            agree(Format::Q8_0, &found, &wanted, "weights before their row");
        }
    }
    blocks_of_a_grouped_product([1, 2, 64, 4096]);
}

/// A norm and products of its result in formats of several kinds: the products and the row.
fn normed(mut bench: Bench, columns: usize, n: usize) -> Vec<Vec<u32>> {
    let mut numbers = Numbers(columns as u64);
    // Of 1,024 columns as many rows as `fast/row_ahead.k` takes.
    let q8_0 = if columns == 1024 { 256 } else { 9 };
    bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
    let x = bench.floats(&numbers.floats(2 * columns, 1.0)[..n * columns]);
    let weight = bench.floats(&numbers.floats(columns, 1.0));
    let outputs =
        [(Format::Bf16, 21), (Format::Q8_0, q8_0), (Format::Bf16, 5)].map(|(format, rows)| {
            let bytes = encode(format, &numbers.floats(rows * columns, 0.2));
            (bench.encoded(format, [1, rows, columns], bytes), bench.zeros(n * rows))
        });
    bench.cpu.rms_norm(&RmsNorm { x, rows: n, weight, eps: 1e-6, out: x }).expect("fits");
    bench.cpu.project(&Project { x, rows: n, outputs: &outputs }).expect("fits");
    let outputs = outputs.map(|(_, out)| out);
    outputs.into_iter().chain([x]).map(|out| bits(&bench.read(out))).collect()
}

/// Products of several kinds behind a norm that is put off have the bits of one that is not, and of
/// two rows.
#[test]
fn norms_that_are_put_off() {
    let plain = GpuConfig { disabled: Shortcuts::STAGED, ..GpuConfig::default() };
    let others = GpuConfig { disabled: Shortcuts::AHEAD, ..GpuConfig::default() };
    for columns in [256, 768, 1024, 2048] {
        let found = normed(Bench::gpu(), columns, 1);
        if columns == 1024 {
            assert!(found == normed(Bench::gpu_with(others), columns, 1), "other kernels");
        }
        let at_once = normed(Bench::gpu_with(plain), columns, 1);
        assert!(found == at_once, "{columns} columns, the norm at once");
        for (one, two) in found.iter().zip(normed(Bench::gpu(), columns, 2)) {
            assert!(one[..] == two[..one.len()], "{columns} columns, two rows");
        }
    }
}

/// Rows that go through a low rank, heads, attention and its output.
struct AttentionRows {
    position: usize,
    rows: usize,
    ratio: usize,
    top_k: usize,
}

const RANK: usize = 256;
const HEADS: usize = 20;
const HEAD: usize = 512;
const RING: usize = 64;

/// Random rows of keys.
fn keys(bench: &mut Bench, numbers: &mut Numbers, rows: usize) -> Buffer {
    let values = numbers.floats(rows * HEAD, 1.0);
    let bytes = values.iter().flat_map(|v| ironstar_quant::f32_to_bf16(*v).to_le_bytes());
    let buffer = bench.empty(Element::Bf16, rows * HEAD);
    bench.cpu.write(buffer, 0, &bytes.collect::<Vec<u8>>()).expect("fits");
    buffer
}

/// Bits that these steps leave of all rows: the low rank, attention, both output products.
fn attention(
    mut bench: Bench,
    case: &AttentionRows,
    encoded: &[Arc<Vec<u8>>; 3],
    steps: &[usize],
) -> [Vec<u32>; 4] {
    let mut numbers = Numbers(case.position as u64);
    let end = case.position + case.rows;
    let [ring, compressed] = [RING, end].map(|rows| keys(&mut bench, &mut numbers, rows));
    let low = numbers.floats(case.rows * RANK, 2.0);
    let plain = numbers.floats(case.rows * HEAD, 2.0);
    let frequencies: Vec<f32> = (0..32).map(|i| 0.7f32.powi(i)).collect();
    let rope = bench.cpu.rope(&frequencies).expect("a table");
    let [q_b, out_a, out_b] =
        [(0, [1, HEADS * HEAD, RANK]), (1, [1, 512, HEADS * HEAD / 2]), (2, [1, 40, 512])]
            .map(|(i, shape)| bench.encoded(Format::Q8_0, shape, encoded[i].clone()));
    let (norm, kv_norm) = (numbers.floats(RANK, 1.0), numbers.floats(HEAD, 1.0));
    let (norm, kv_norm) = (bench.floats(&norm), bench.floats(&kv_norm));
    let sinks = numbers.floats(HEADS, 1.0);
    let sinks = bench.floats(&sinks);
    let (eps, mut at) = (1e-6, 0);
    let mut found: [Vec<u32>; 4] = Default::default();
    for n in steps.iter().copied() {
        bench.cpu.begin(&Step::single(&vec![0; n], case.position + at)).expect("a step");
        let x = bench.floats(&low[at * RANK..][..n * RANK]);
        let kv_plain = bench.floats(&plain[at * HEAD..][..n * HEAD]);
        let [q, attended] = [n * HEADS * HEAD; 2].map(|len| bench.zeros(len));
        let (a, b, kv) =
            (bench.zeros(n * 512), bench.zeros(n * 40), bench.empty(Element::Bf16, n * HEAD));
        bench.cpu.rms_norm(&RmsNorm { x, rows: n, weight: norm, eps, out: x }).expect("fits");
        bench.cpu.project(&Project { x, rows: n, outputs: &[(q_b, q)] }).expect("fits");
        let heads = QueryHeads { q, heads: HEADS, width: HEAD, eps: Some(eps), rope };
        bench.cpu.query_heads(&heads).expect("fits");
        let key = KvRows { x: kv_plain, norm: kv_norm, eps, rope, round_trip: true, out: kv };
        bench.cpu.kv_rows(&key).expect("fits");
        let choices = (at..at + n).flat_map(|row| row..row + case.top_k);
        let choices: Vec<u32> = choices.map(|i| u32::try_from(i).expect("small")).collect();
        let choice = bench.ids(&choices);
        let (rows, rings) = ([compressed], [ring]);
        let attend = Attend {
            q,
            kv,
            sinks,
            heads: HEADS,
            rope,
            window: RING - 16,
            mutual: false,
            rings: &rings,
            capacity: RING,
            compressed: Some(CompressedRows {
                rows: &rows,
                ratio: case.ratio,
                choice: (case.top_k > 0).then_some((choice, case.top_k)),
            }),
            out: attended,
        };
        bench.cpu.attend(&attend).expect("fits");
        let window = StoreWindow { kv, width: HEAD, rings: &rings, capacity: RING };
        bench.cpu.store_window(&window).expect("fits");
        let grouped = ProjectGrouped { x: attended, matrix: out_a, groups: 2, out: a };
        bench.cpu.project_grouped(&grouped).expect("fits");
        bench.cpu.project(&Project { x: a, rows: n, outputs: &[(out_b, b)] }).expect("fits");
        for (found, buffer) in found.iter_mut().zip([x, attended, a, b]) {
            found.extend(bits(&bench.read(buffer)));
        }
        at += n;
    }
    assert!(found.iter().flatten().all(|v| f32::from_bits(*v).is_finite()), "finite numbers");
    found
}

/// One row at a time, with everything that it does on its way, has the bits of many rows; so has a
/// device with little shared memory, and one that leaves the shortcuts out.
#[test]
fn attention_of_one_row_and_of_many() {
    let mut numbers = Numbers(21);
    let lens = [HEADS * HEAD * RANK, 512 * HEADS * HEAD / 2, 40 * 512];
    let encoded = lens.map(|len| encode(Format::Q8_0, &numbers.floats(len, 0.1)));
    let cases = [
        AttentionRows { position: 60, rows: 6, ratio: 4, top_k: 9 },
        AttentionRows { position: 700, rows: 5, ratio: 1, top_k: 0 },
    ];
    let plain = GpuConfig { disabled: Shortcuts::STAGED, ..GpuConfig::default() };
    for case in cases {
        let many = attention(Bench::gpu(), &case, &encoded, &[case.rows]);
        let ones = vec![1; case.rows];
        let name = format!("from {} on", case.position);
        assert!(attention(Bench::gpu(), &case, &encoded, &ones) == many, "one by one {name}");
        let two = attention(Bench::small_gpu(), &case, &encoded, &[case.rows - 3, 1, 2]);
        assert!(two == many, "little memory {name}");
        let plain = attention(Bench::gpu_with(plain), &case, &encoded, &[case.rows - 1, 1]);
        assert!(plain == many, "without shortcuts {name}");
    }
}
