//! Products of many rows on the GPU's integer tiles: every format, odd numbers of rows and slots,
//! groups and stacks of experts give the bits of the scalar CPU path.

use crate::common::{Bench, Numbers, bits, encode};
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

/// Products of several matrices with the same rows of `x`, on the CPU and on a GPU.
fn products(
    gpu: fn() -> Bench,
    format: Format,
    columns: usize,
    rows: &[usize],
    coded: &[Arc<Vec<u8>>],
    (x, n): (&[f32], usize),
) -> [Vec<Vec<u32>>; 2] {
    [Bench::scalar(), gpu()].map(|mut bench| {
        bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
        let x = bench.floats(x);
        let outputs: Vec<_> = rows
            .iter()
            .zip(coded)
            .map(|(rows, bytes)| {
                let matrix = bench.encoded(format, [1, *rows, columns], bytes.clone());
                (matrix, bench.zeros(n * rows))
            })
            .collect();
        bench.cpu.project(&Project { x, rows: n, outputs: &outputs }).expect("fits");
        outputs.iter().map(|(_, out)| bits(&bench.read(*out))).collect()
    })
}

/// `project_grouped` of one Q8_0 matrix, made by `code`, gives the same bits on both.
fn same_groups(
    [groups, rows, columns, n]: [usize; 4],
    seed: u64,
    code: fn(&mut Numbers, Format, usize) -> Arc<Vec<u8>>,
) {
    let mut numbers = Numbers(seed);
    let bytes = code(&mut numbers, Format::Q8_0, rows * columns);
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

#[test]
fn every_format() {
    for format in integer_formats() {
        // Eleven blocks: shards of one and of two.
        let block = format.info().block_elements;
        let (rows, columns, n) = (21, 11 * block, 67);
        let mut numbers = Numbers(block as u64);
        let rows = [rows, rows + 9];
        let coded = rows.map(|rows| matrix(&mut numbers, format, rows * columns));
        let x = numbers.floats(n * columns, 1.0);
        let [cpu, gpu] = products(Bench::gpu, format, columns, &rows, &coded, (&x, n));
        assert!(cpu == gpu, "{format}: other bits");
        assert!(cpu[0].iter().any(|v| *v != cpu[0][0]), "{format}: a constant compares nothing");
    }
}

#[test]
fn groups() {
    same_groups([3, 60, 96, 19], 3, matrix);
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

/// Random blocks with all codes, scales and signs; their f16 scales are about a hundredth.
fn blocks(numbers: &mut Numbers, format: Format, values: usize) -> Arc<Vec<u8>> {
    let info = format.info();
    let mut bytes = vec![0u8; values / info.block_elements * info.block_bytes];
    for (byte, value) in bytes.iter_mut().zip(numbers.floats(values, 128.0)) {
        // Two of the mantissa's bytes, mixed.
        let [low, middle, ..] = value.to_bits().to_le_bytes();
        *byte = low ^ middle;
    }
    let halves: &[usize] = match format {
        Format::Q2K => &[80, 82],
        Format::Q4K => &[0, 2],
        Format::Mxfp4 => &[],
        _ => &[0],
    };
    for (index, block) in bytes.chunks_exact_mut(info.block_bytes).enumerate() {
        for at in halves {
            // 2^-7 times 1 to 2, either sign.
            block[at + 1] = 0x20 | u8::from(index % 3 == 0) << 7;
        }
        if format == Format::Mxfp4 {
            // 2^-8 to 2^-6, and the two smallest of all.
            block[0] = [119, 120, 121, 0, 1][index % 5];
        }
    }
    Arc::new(bytes)
}

/// Formats of the large tiles with a number of columns: nine blocks of 256 make shards of one and
/// of two, five leave some empty.
const BIG_FORMATS: [(Format, usize); 5] = [
    (Format::Q8_0, 1024),
    (Format::Mxfp4, 1024),
    (Format::Q2K, 1280),
    (Format::Q4K, 2304),
    (Format::Iq2Xxs, 2304),
];

/// Large tiles: rows and slots that end inside of them, two matrices in one launch.
fn large_product(gpu: fn() -> Bench, format: Format, columns: usize) {
    let (rows, n) = ([140, 9], 161);
    let mut numbers = Numbers(columns as u64 + 5);
    let coded = rows.map(|rows| blocks(&mut numbers, format, rows * columns));
    let x = numbers.floats(n * columns, 1.0);
    let [cpu, gpu] = products(gpu, format, columns, &rows, &coded, (&x, n));
    let differing = |k: usize| cpu[k].iter().zip(&gpu[k]).filter(|(a, b)| a != b).count();
    assert!(cpu == gpu, "{format}: {} and {} other bits", differing(0), differing(1));
}

fn large_products(gpu: fn() -> Bench) {
    for (format, columns) in BIG_FORMATS {
        large_product(gpu, format, columns);
    }
}

/// As a card with much shared memory whose simdgroups multiply each for itself.
fn apart() -> GpuConfig {
    GpuConfig { disabled: Shortcuts::WIDE, ..GpuConfig::default() }
}

#[test]
fn large_where_no_four_multiplies() {
    large_product(|| Bench::gpu_with(apart()), Format::Q8_0, 1024);
    let mut bench = Bench::gpu_with(GpuConfig { required: Shortcuts::WIDE, ..apart() });
    bench.cpu.begin(&Step::single(&[0; 128], 0)).expect("a step");
    let matrix = blocks(&mut Numbers(3), Format::Q8_0, 1024);
    let matrix = bench.encoded(Format::Q8_0, [1, 1, 1024], matrix);
    let (x, out) = (bench.floats(&[1.0; 128 * 1024]), bench.zeros(128));
    let outputs = &[(matrix, out)];
    let error = bench.cpu.project(&Project { x, rows: 128, outputs }).expect_err("disabled");
    assert!(error.to_string().contains("without the shortcut wide"), "{error}");
}

/// Groups that make a tile and end; others go on, here one with all tiles.
#[test]
fn large_tile_by_tile() {
    let ends = || {
        let disabled = Shortcuts::ONWARD;
        Bench::gpu_with(GpuConfig { disabled, ..GpuConfig::default() })
    };
    large_product(ends, Format::Q8_0, 1024);
    large_product(ends, Format::Iq2Xxs, 2304);
}

#[test]
fn large() {
    large_products(Bench::gpu);
    // Every shard has a block, so that a tile is told of the next one by the way.
    large_product(Bench::gpu, Format::Q2K, 2048);
}

/// Two bits where matrices do not take weights from registers.
#[test]
fn large_through_shared_memory() {
    let flow = || {
        let disabled = Shortcuts::DIRECT;
        Bench::gpu_with(GpuConfig { disabled, ..GpuConfig::default() })
    };
    large_product(flow, Format::Q2K, 1280);
    large_product(flow, Format::Iq2Xxs, 2304);
}

/// Last tiles of as many slots as each width of the matrices has.
#[test]
fn large_widths() {
    for format in [Format::Q2K, Format::Iq2Xxs] {
        for n in [16, 33, 64, 72, 88, 104].map(|last| 128 + last) {
            let mut numbers = Numbers(n as u64);
            let coded = [blocks(&mut numbers, format, 20 * 512)];
            let x = numbers.floats(n * 512, 1.0);
            let [cpu, gpu] = products(Bench::gpu, format, 512, &[20], &coded, (&x, n));
            assert!(cpu == gpu, "{format}, {n} slots: other bits");
        }
    }
}

/// The kernels of devices with little shared memory.
#[test]
fn large_on_small_devices() {
    large_products(Bench::small_gpu);
}

/// Large tiles of floats, low ones and a tall one: rows and slots that end inside of them, two
/// matrices in one launch.
#[test]
fn large_floats() {
    for (format, rows, columns) in [(Format::Bf16, [70, 24], 768), (Format::Bf16, [130, 129], 1024)]
    {
        let n = 131;
        let mut numbers = Numbers(77);
        let coded = rows.map(|rows| matrix(&mut numbers, format, rows * columns));
        let x = numbers.floats(n * columns, 1.0);
        let [cpu, gpu] = products(Bench::gpu, format, columns, &rows, &coded, (&x, n));
        assert!(cpu == gpu, "{format}: other bits");
        if rows[0] >= 128 {
            let fours = || {
                let disabled = Shortcuts::PAIRS;
                Bench::gpu_with(GpuConfig { disabled, ..GpuConfig::default() })
            };
            let [_, gpu] = products(fours, format, columns, &rows, &coded, (&x, n));
            assert!(cpu == gpu, "{format} in fours: other bits");
        }
    }
}

/// Large tiles of groups (`project_grouped`), and of K in several steps a shard.
#[test]
fn large_groups() {
    same_groups([2, 80, 2048, 130], 5, blocks);
}

/// Two experts, one with most of the slots, and a shared one of so many inner elements; once more,
/// of another input, before anybody looks at the first sum.
fn same_experts([top_k, d, inner, shared_inner, n]: [usize; 5]) {
    let experts = 2;
    let formats = [Format::Iq2Xxs, Format::Iq2Xxs, Format::Q2K];
    let mut numbers = Numbers(21);
    let routed_bytes = formats.map(|f| (f, blocks(&mut numbers, f, experts * inner * d)));
    let shared_bytes = [Format::Q8_0; 3].map(|f| (f, blocks(&mut numbers, f, shared_inner * d)));
    let [x, other] = [1.0, 2.0].map(|size| numbers.floats(n * d, size));
    let weights = numbers.floats(n * top_k, 0.5);
    let id = |row: usize, k: usize| u32::from(!row.is_multiple_of(9) || k != 0);
    let ids: Vec<u32> = (0..n * top_k).map(|i| id(i / top_k, i % top_k)).collect();
    let [cpu, gpu] = both().map(|mut bench| {
        bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
        let mut ffn = |stack, inner: usize, bytes: &[(Format, Arc<Vec<u8>>); 3]| {
            let mut one = |part: usize, shape: [usize; 2]| {
                let (format, bytes) = &bytes[part];
                bench.encoded(*format, [stack, shape[0], shape[1]], bytes.clone())
            };
            Ffn { gate: one(0, [inner, d]), up: one(1, [inner, d]), down: one(2, [d, inner]) }
        };
        let routed = ffn(experts, inner, &routed_bytes);
        let shared = ffn(1, shared_inner, &shared_bytes);
        let (weights, ids) = (bench.floats(&weights), bench.ids(&ids));
        let outs = [&x, &other].map(|x| {
            let (x, out) = (bench.floats(x), bench.zeros(n * d));
            let call = Experts { x, routed, shared, ids, weights, top_k, limit: 7.0, out };
            bench.cpu.experts(&call).expect("fits");
            out
        });
        outs.map(|out| bits(&bench.read(out)))
    });
    assert!(cpu == gpu, "other bits");
}

/// Experts on large tiles of many slots and of few: one with most of the slots, one with some.
#[test]
fn large_stacks() {
    for n in [13, 40] {
        same_experts([2, 1024, 768, 32, n]);
    }
}

/// So many slots that several groups sort them.
#[test]
fn many_slots() {
    same_experts([4, 256, 256, 32, 130]);
}

/// Large tiles whose shards stay apart: those of the shared expert's last matrix.
#[test]
fn large_shards() {
    same_experts([1, 256, 256, 1024, 130]);
}

/// The streams of `n` equal-seeded rows mixed on a GPU: what is left of the rows `kept`, each of
/// which is in a step of its own if `alone`.
fn mixed(n: usize, width: usize, kept: [usize; 2], alone: bool) -> Vec<u32> {
    let streams = 4;
    let mut numbers = Numbers(31);
    let all = numbers.floats(n * streams * width, 1.0);
    let matrix = encode(Format::F16, &numbers.floats(24 * streams * width, 0.2));
    let norm = numbers.floats(width, 1.0);
    let mut bench = Bench::gpu();
    let mut mix = |x: &[f32]| {
        let n = x.len() / (streams * width);
        bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
        let x = bench.floats(x);
        let matrix = bench.encoded(Format::F16, [1, 24, streams * width], matrix.clone());
        let (base, scale) = (bench.floats(&[0.3; 24]), bench.floats(&[0.7, 1.1, 0.9]));
        let (norm, out) = (bench.floats(&norm), bench.zeros(n * width));
        let (post, comb) = (bench.zeros(n * streams), bench.zeros(n * streams * streams));
        let weights = HcWeights { matrix, base, scale };
        let (norm_eps, hc_eps, iterations) = (1e-6, 1e-6, 3);
        let call =
            HcPre { x, streams, weights, norm, norm_eps, hc_eps, iterations, out, post, comb };
        bench.cpu.hc_pre(&call).expect("fits");
        [out, post, comb].map(|buffer| bits(&bench.read(buffer)))
    };
    let whole = if alone { Default::default() } else { mix(&all) };
    let of = |whole: &[Vec<u32>; 3], row: usize| {
        let part = |values: &Vec<u32>, each: usize| values[row * each..(row + 1) * each].to_vec();
        let [out, post, comb] = whole;
        [part(out, width), part(post, streams), part(comb, streams * streams)].concat()
    };
    let mut one = |row: usize| match alone {
        true => of(&mix(&all[row * streams * width..(row + 1) * streams * width]), 0),
        false => of(&whole, row),
    };
    kept.map(&mut one).concat()
}

/// Shards of the mixing matrix, made by groups of their own for many rows, give the bits of single
/// rows.
#[test]
fn mixing_of_many_rows() {
    for (n, width) in [(128, 256), (19, 1024)] {
        let kept = [0, n - 1];
        assert!(mixed(n, width, kept, false) == mixed(n, width, kept, true), "other bits of {n}");
    }
}

/// Rows of a compressor and its rings after steps of so many tokens, with groups of 64.
fn compressed(mut bench: Bench, steps: &[usize]) -> Vec<Vec<u32>> {
    let (ratio, width, tokens, capacity) = (64, 128, 200, 96);
    let mut numbers = Numbers(33);
    let frequencies: Vec<f32> = (0..32).map(|i| 0.7f32.powi(i)).collect();
    let rope = bench.cpu.rope(&frequencies).expect("a table");
    let all = [0, 1].map(|_| numbers.floats(tokens * width, 2.0));
    let (positions, norm) = (numbers.floats(ratio * width, 1.0), numbers.floats(width, 1.0));
    let (positions, norm) = (bench.floats(&positions), bench.floats(&norm));
    let [values, scores, rows] =
        [capacity, capacity, tokens / ratio].map(|rows| bench.zeros(rows * width));
    let states = [CompressState { values, scores, capacity, rows }];
    let mut at = 0;
    for n in steps {
        bench.cpu.begin(&Step::single(&vec![0; *n], at)).expect("a step");
        let [values, scores] = [0, 1].map(|i| bench.floats(&all[i][at * width..(at + n) * width]));
        let (kind, eps, parts) = (RowKind::Kv { round_trip: true }, 1e-6, 1);
        let states = &states;
        let call = Compress {
            values,
            scores,
            positions,
            norm,
            eps,
            rope,
            ratio,
            parts,
            width,
            kind,
            states,
        };
        bench.cpu.compress(&call).expect("fits");
        at += n;
    }
    [values, scores, rows].map(|buffer| bits(&bench.read(buffer))).to_vec()
}

/// Groups of many tokens that close in a long step.
#[test]
fn long_groups() {
    let wanted = compressed(Bench::scalar(), &[200]);
    assert!(compressed(Bench::gpu(), &[200]) == wanted, "other bits");
    assert!(compressed(Bench::gpu(), &[70, 16, 114]) == wanted, "other bits in parts");
}
