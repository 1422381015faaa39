//! Conformance of row-wise operations: over shapes, odd sizes and seeds, every instruction set, 1
//! to 3 threads and any cut of the rows into steps give the bits of the scalar path on one thread
//! in one step. The GPU's kernels (on the host driver) are held to them too: any cut gives equal
//! bits, and they are those of the CPU up to a tolerance. Operations with state are in `layer.rs`.

use crate::common::{Bench, Numbers, bits, configurations, cut, encode, near};
use ironstar_device::*;
use ironstar_quant::Format;
use std::ops::Range;
use std::sync::Arc;

/// Runs some of the rows and gives the bits of their outputs, row by row.
type Rows = Box<dyn FnMut(&mut Bench, Range<usize>) -> Vec<u32>>;

fn run(make: &dyn Fn(&mut Bench) -> Rows, mut bench: Bench, steps: &[usize]) -> Vec<u32> {
    let mut rows = make(&mut bench);
    let (mut at, mut out) = (0, Vec::new());
    for n in steps {
        let tokens: Vec<u32> = (at..at + n).map(token).collect();
        bench.cpu.begin(&Step::single(&tokens, at)).expect("a step");
        out.extend(rows(&mut bench, at..at + n));
        at += n;
    }
    out
}

/// The token of a row: any below 16.
fn token(row: usize) -> u32 {
    u32::try_from(row * 7 % 16).expect("small")
}

/// Largest difference between the GPU's kernels and the CPU, against the largest value. Where
/// nothing is said the bits are equal.
fn gpu_tolerance(what: &str) -> f32 {
    match what {
        // Sums over a row have as many lanes as a group has threads.
        "rms_norm" => 1e-6,
        "hc" => 4e-6,
        _ => 0.0,
    }
}

#[track_caller]
fn everywhere(what: &str, rows: usize, make: impl Fn(&mut Bench) -> Rows) {
    let wanted = run(&make, Bench::scalar(), &[rows]);
    let mut numbers = Numbers(rows as u64);
    for config in configurations() {
        for steps in [vec![rows], vec![1; rows], cut(&mut numbers, rows, 8)] {
            let found = run(&make, Bench::new(config), &steps);
            assert!(found == wanted, "{what}: other bits with {config:?} and steps {steps:?}");
        }
    }
    let finite = wanted.iter().all(|v| f32::from_bits(*v).is_finite());
    assert!(finite, "{what}: numbers that are not finite compare nothing");
    assert!(wanted.iter().any(|v| *v != wanted[0]), "{what}: a constant compares nothing");

    let gpu = run(&make, Bench::gpu(), &[rows]);
    if let Err(difference) = near(&gpu, &wanted, gpu_tolerance(what)) {
        panic!("{what} on a GPU: {difference}");
    }
    for steps in [vec![1; rows], cut(&mut numbers, rows, 8)] {
        let found = run(&make, Bench::gpu(), &steps);
        assert!(found == gpu, "{what}: other bits on a GPU with steps {steps:?}");
    }
}

/// Uploads some rows of `values`.
fn slice(bench: &mut Bench, values: &[f32], width: usize, rows: &Range<usize>) -> Buffer {
    bench.floats(&values[rows.start * width..rows.end * width])
}

#[test]
fn embed() {
    for (format, width, streams) in [
        (Format::F32, 5, 1),
        (Format::F16, 33, 4),
        (Format::Bf16, 64, 3),
        (Format::Q8_0, 96, 4),
        (Format::Mxfp4, 64, 2),
    ] {
        let values = Numbers(1).floats(16 * width, 1.0);
        everywhere("embed", 19, |bench| {
            let table = bench.matrix(format, [1, 16, width], &values);
            Box::new(move |bench, rows| {
                let out = bench.zeros(rows.len() * streams * width);
                bench.cpu.embed(&Embed { table, streams, out }).expect("fits");
                bits(&bench.read(out))
            })
        });
    }
}

#[test]
fn hyper_connections() {
    for (streams, width, format) in [
        (4, 64, Format::F32),
        (4, 40, Format::F16),
        (4, 1024, Format::F16),
        (3, 7, Format::F32),
        (1, 33, Format::Bf16),
    ] {
        let (n, wide, mixes) = (21, streams * width, (2 + streams) * streams);
        let mut numbers = Numbers(width as u64);
        let x = numbers.floats(n * wide, 1.0);
        let z = numbers.floats(n * width, 1.0);
        let matrix = numbers.floats(mixes * wide, 0.2);
        let head = numbers.floats(streams * wide, 0.2);
        let (base, norm) = (numbers.floats(mixes, 1.0), numbers.floats(width, 1.0));
        everywhere("hc", n, |bench| {
            let (x, z) = (x.clone(), z.clone());
            let (base, scale) = (bench.floats(&base), bench.floats(&[0.7, 1.1, 0.9]));
            let matrix = bench.matrix(format, [1, mixes, wide], &matrix);
            let head = bench.matrix(format, [1, streams, wide], &head);
            let weights = HcWeights { matrix, base, scale };
            let norm = bench.floats(&norm);
            Box::new(move |bench, rows| {
                let n = rows.len();
                let x = slice(bench, &x, wide, &rows);
                let z = slice(bench, &z, width, &rows);
                let (out, post) = (bench.zeros(n * width), bench.zeros(n * streams));
                let comb = bench.zeros(n * streams * streams);
                let (norm_eps, hc_eps, iterations) = (1e-6, 1e-6, 20);
                let pre = HcPre {
                    x,
                    streams,
                    weights,
                    norm,
                    norm_eps,
                    hc_eps,
                    iterations,
                    out,
                    post,
                    comb,
                };
                bench.cpu.hc_pre(&pre).expect("fits");
                let first = bench.read(out);
                bench.cpu.hc_post(&HcPost { z, x, streams, width, post, comb }).expect("fits");
                bench
                    .cpu
                    .add_to_streams(&AddToStreams { row: z, x, streams, width })
                    .expect("fits");
                let weights = HcWeights { matrix: head, ..weights };
                let head = HcHead { x, rows: n, streams, weights, norm, norm_eps, hc_eps, out };
                bench.cpu.hc_head(&head).expect("fits");
                let (x, last) = (bench.read(x), bench.read(out));
                let row = |i: usize| {
                    let parts = [&first[i * width..][..width], &x[i * wide..][..wide]];
                    [bits(&parts.concat()), bits(&last[i * width..][..width])].concat()
                };
                (0..n).flat_map(row).collect()
            })
        });
    }
}

#[test]
fn rms_norm() {
    for width in [1, 7, 8, 33, 512] {
        let mut numbers = Numbers(width as u64);
        let (x, weight) = (numbers.floats(17 * width, 2.0), numbers.floats(width, 1.0));
        everywhere("rms_norm", 17, |bench| {
            let (x, weight) = (x.clone(), bench.floats(&weight));
            Box::new(move |bench, rows| {
                let x = slice(bench, &x, width, &rows);
                let out = bench.zeros(x.len);
                let norm = RmsNorm { x, rows: rows.len(), weight, eps: 1e-6, out };
                bench.cpu.rms_norm(&norm).expect("fits");
                let apart = bits(&bench.read(out));
                bench.cpu.rms_norm(&RmsNorm { out: x, ..norm }).expect("fits");
                assert_eq!(bits(&bench.read(x)), apart, "in place");
                apart
            })
        });
    }
}

#[test]
fn steering() {
    for width in [1, 7, 33, 512] {
        let mut numbers = Numbers(width as u64);
        let (x, v) = (numbers.floats(17 * width, 2.0), numbers.floats(3 * width, 0.3));
        everywhere("steer", 17, |bench| {
            let (x, directions) = (x.clone(), bench.floats(&v));
            Box::new(move |bench, rows| {
                let x = slice(bench, &x, width, &rows);
                let steer = Steer { x, directions, row: 2, width, scale: -0.75 };
                bench.cpu.steer(&steer).expect("fits");
                bits(&bench.read(x))
            })
        });
    }
}

/// The definition in f64, and what it is for: a unit direction at scale 1 is gone afterwards.
#[test]
fn steering_takes_a_direction_out() {
    let width = 96;
    let mut numbers = Numbers(4);
    let (plain, raw) = (numbers.floats(2 * width, 2.0), numbers.floats(width, 1.0));
    let dot = |a: &[f32], b: &[f32]| {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
    };
    #[expect(clippy::cast_possible_truncation, reason = "a unit vector in f32")]
    let unit: Vec<f32> = raw.iter().map(|v| v / dot(&raw, &raw).sqrt() as f32).collect();
    for scale in [1.0, 0.5, -2.0, 0.0] {
        let mut bench = Bench::new(CpuConfig::default());
        bench.cpu.begin(&Step::single(&[0, 1], 0)).expect("a step");
        let (x, directions) = (bench.floats(&plain), bench.floats(&unit));
        bench.cpu.steer(&Steer { x, directions, row: 0, width, scale }).expect("fits");
        for (before, after) in plain.chunks(width).zip(bench.read(x).chunks(width)) {
            let along = dot(before, &unit);
            for ((before, after), v) in before.iter().zip(after).zip(&unit) {
                let wanted = f64::from(*before) - f64::from(scale) * along * f64::from(*v);
                assert!((f64::from(*after) - wanted).abs() < 1e-5, "{after}, wanted {wanted}");
            }
            if scale == 1.0 {
                assert!(dot(after, &unit).abs() < 1e-5, "nothing is left of it");
            }
        }
    }
}

#[test]
fn projections() {
    for (format, rows, columns) in [
        (Format::F32, 5, 40),
        (Format::F16, 17, 96),
        (Format::Bf16, 16, 256),
        (Format::Q8_0, 33, 96),
        (Format::Mxfp4, 64, 256),
        (Format::Q4K, 24, 512),
        (Format::Q2K, 7, 256),
        (Format::Q6K, 16, 768),
    ] {
        let mut numbers = Numbers(columns as u64);
        let groups = if rows % 8 == 0 { 2 } else { 1 };
        let x = numbers.floats(13 * groups * columns, 1.0);
        let values = numbers.floats(rows * columns, 0.1);
        everywhere(format.info().name, 13, |bench| {
            let x = x.clone();
            let matrix = bench.matrix(format, [1, rows, columns], &values);
            let other = bench.matrix(Format::F32, [1, rows, columns], &values);
            Box::new(move |bench, range| {
                let n = range.len();
                let x = slice(bench, &x, groups * columns, &range);
                let outs = [0; 3].map(|_| bench.zeros(n * groups * rows));
                let outputs = [(matrix, outs[0]), (other, outs[1])];
                let project = Project { x, rows: n * groups, outputs: &outputs };
                bench.cpu.project(&project).expect("fits");
                let out = outs[2];
                let grouped = ProjectGrouped { x, matrix, groups, out };
                bench.cpu.project_grouped(&grouped).expect("fits");
                let [plain, float, grouped] = outs.map(|out| bench.read(out));
                let per_group = rows / groups;
                for (i, grouped) in grouped[..n * rows].chunks_exact(per_group).enumerate() {
                    let group = i % groups * per_group;
                    let plain = &plain[i * rows + group..][..per_group];
                    assert_eq!(bits(grouped), bits(plain), "a group is rows of the matrix");
                }
                let row = |i: usize| bits(&[&plain[i..=i], &float[i..=i]].concat());
                (0..plain.len()).flat_map(row).collect()
            })
        });
    }
}

#[test]
fn query_heads_and_key_rows() {
    for (heads, width, pairs, eps) in [
        (3, 128, 32, Some(1e-6)),
        (1, 70, 3, None),
        (8, 66, 1, Some(1e-6)),
        (2, 64, 0, None),
        (3, 512, 32, Some(1e-6)),
    ] {
        let mut numbers = Numbers(width as u64);
        let q = numbers.floats(11 * heads * width, 3.0);
        let x = numbers.floats(11 * width, 3.0);
        let norm = numbers.floats(width, 1.0);
        let frequencies: Vec<f32> = (0..pairs).map(|i| 0.7f32.powi(i)).collect();
        everywhere("heads", 11, |bench| {
            let (q, x) = (q.clone(), x.clone());
            let norm = bench.floats(&norm);
            let rope = bench.cpu.rope(&frequencies).expect("a table");
            let round_trip = (width - 2 * frequencies.len()).is_multiple_of(64);
            Box::new(move |bench, rows| {
                let n = rows.len();
                let q = slice(bench, &q, heads * width, &rows);
                let x = slice(bench, &x, width, &rows);
                bench.cpu.query_heads(&QueryHeads { q, heads, width, eps, rope }).expect("fits");
                let out = bench.zeros(n * width);
                let key = KvRows { x, norm, eps: 1e-6, rope, round_trip, out };
                bench.cpu.kv_rows(&key).expect("fits");
                let half = bench.empty(Element::Bf16, n * width);
                bench.cpu.kv_rows(&KvRows { out: half, ..key }).expect("fits");
                let (q, out, half) = (bench.read(q), bench.read(out), bench.read_bytes(half));
                for (value, half) in out.iter().zip(half.as_chunks::<2>().0) {
                    let rounded = ironstar_quant::f32_to_bf16(*value);
                    assert_eq!(u16::from_le_bytes(*half), rounded, "bf16 of {value}");
                }
                let row = |i: usize| {
                    let wide = heads * width;
                    bits(&[&q[i * wide..][..wide], &out[i * width..][..width]].concat())
                };
                (0..n).flat_map(row).collect()
            })
        });
    }
}

#[test]
fn route() {
    for (experts, top_k) in [(16, 6), (1, 1), (7, 7), (256, 8), (33, 3)] {
        let mut numbers = Numbers(experts as u64);
        let mut logits = numbers.floats(29 * experts, 4.0);
        // Ties, among them of whole rows.
        logits[..experts].fill(0.25);
        logits[2 * experts - 1] = logits[experts];
        let mut bias = numbers.floats(experts, 0.3);
        bias.iter_mut().step_by(3).for_each(|bias| *bias = 0.0);
        let table: Vec<u32> =
            (0..16 * top_k).map(|i| u32::try_from((i * 5 + 3) % experts).expect("small")).collect();
        everywhere("route", 29, |bench| {
            let logits = logits.clone();
            let (bias, table) = (bench.floats(&bias), bench.ids(&table));
            Box::new(move |bench, rows| {
                let n = rows.len();
                let logits = slice(bench, &logits, experts, &rows);
                let by = [RouteBy::Score { bias }, RouteBy::Token { table }].map(|by| {
                    let (ids, weights) =
                        (bench.empty(Element::U32, n * top_k), bench.zeros(n * top_k));
                    let route = Route { logits, experts, by, top_k, scale: 1.5, ids, weights };
                    bench.cpu.route(&route).expect("fits");
                    (bench.read_ids(ids), bits(&bench.read(weights)))
                });
                let row = |i: usize| {
                    let own = i * top_k..(i + 1) * top_k;
                    let ids = by.iter().flat_map(|(ids, _)| ids[own.clone()].to_vec());
                    let weights = by.iter().flat_map(|(_, w)| w[own.clone()].to_vec());
                    ids.chain(weights).collect::<Vec<_>>()
                };
                (0..n).flat_map(row).collect()
            })
        });
    }
}

/// Ties go to the lower id, and a NaN loses against every number.
#[test]
fn route_of_ties_and_faults() {
    let mut bench = Bench::scalar();
    bench.cpu.begin(&Step::single(&[0, 0], 0)).expect("a step");
    let logits = bench.floats(&[1.0, 1.0, 1.0, 1.0, f32::NAN, -2.0, f32::NAN, -3.0]);
    let bias = bench.zeros(4);
    let (ids, weights) = (bench.empty(Element::U32, 4), bench.zeros(4));
    let by = RouteBy::Score { bias };
    let route = Route { logits, experts: 4, by, top_k: 2, scale: 1.0, ids, weights };
    bench.cpu.route(&route).expect("fits");
    assert_eq!(bench.read_ids(ids), [0, 1, 1, 3]);
}

struct ExpertCase {
    experts: usize,
    top_k: usize,
    d: usize,
    inner: usize,
    shared_inner: usize,
    routed: Format,
    shared: Format,
}

/// Values of the six matrices: routed gate, up, down, then shared.
fn expert_matrices(numbers: &mut Numbers, case: &ExpertCase) -> [Vec<f32>; 6] {
    let ExpertCase { experts, d, inner, shared_inner, .. } = *case;
    let routed = experts * inner * d;
    [routed, routed, routed, shared_inner * d, shared_inner * d, shared_inner * d]
        .map(|len| numbers.floats(len, 0.15))
}

/// The matrices in their formats: some encoders search long, so this is done once a case.
fn encode_experts(case: &ExpertCase, values: &[Vec<f32>; 6]) -> Vec<Arc<Vec<u8>>> {
    let formats = [[case.routed; 3], [case.shared; 3]];
    let pairs = formats.as_flattened().iter().zip(values);
    pairs.map(|(format, values)| encode(*format, values)).collect()
}

fn expert_ffns(bench: &mut Bench, case: &ExpertCase, encoded: &[Arc<Vec<u8>>]) -> [Ffn; 2] {
    let ExpertCase { experts, d, inner, shared_inner, routed, shared, .. } = *case;
    let mut ffn = |format, stack, inner, encoded: &[Arc<Vec<u8>>]| Ffn {
        gate: bench.encoded(format, [stack, inner, d], encoded[0].clone()),
        up: bench.encoded(format, [stack, inner, d], encoded[1].clone()),
        down: bench.encoded(format, [stack, d, inner], encoded[2].clone()),
    };
    [ffn(routed, experts, inner, &encoded[..3]), ffn(shared, 1, shared_inner, &encoded[3..])]
}

/// Ascending ids for each row.
fn expert_ids(numbers: &mut Numbers, rows: usize, case: &ExpertCase) -> Vec<u32> {
    let mut row = || {
        let mut ids: Vec<u32> = (0..u32::try_from(case.experts).expect("small")).collect();
        while ids.len() > case.top_k {
            ids.remove(numbers.below(ids.len()));
        }
        ids
    };
    (0..rows).flat_map(|_| row()).collect()
}

const EXPERT_CASES: [ExpertCase; 5] = [
    ExpertCase {
        experts: 16,
        top_k: 4,
        d: 64,
        inner: 96,
        shared_inner: 96,
        routed: Format::Mxfp4,
        shared: Format::Q8_0,
    },
    ExpertCase {
        experts: 6,
        top_k: 3,
        d: 256,
        inner: 256,
        shared_inner: 512,
        routed: Format::Q2K,
        shared: Format::Q8_0,
    },
    ExpertCase {
        experts: 1,
        top_k: 1,
        d: 33,
        inner: 17,
        shared_inner: 5,
        routed: Format::F32,
        shared: Format::F16,
    },
    ExpertCase {
        experts: 5,
        top_k: 5,
        d: 256,
        inner: 256,
        shared_inner: 256,
        routed: Format::Q4K,
        shared: Format::Q4K,
    },
    ExpertCase {
        experts: 9,
        top_k: 2,
        d: 32,
        inner: 64,
        shared_inner: 32,
        routed: Format::F32,
        shared: Format::F32,
    },
];

// One test a case, so that they run side by side.
#[test]
fn experts_mxfp4() {
    experts(&EXPERT_CASES[0]);
}

#[test]
fn experts_q2_k() {
    experts(&EXPERT_CASES[1]);
}

#[test]
fn one_expert_of_odd_floats() {
    experts(&EXPERT_CASES[2]);
}

#[test]
fn all_experts_q4_k() {
    experts(&EXPERT_CASES[3]);
}

#[test]
fn experts_of_floats() {
    experts(&EXPERT_CASES[4]);
}

fn experts(case: &ExpertCase) {
    let mut numbers = Numbers(case.experts as u64);
    let (n, d, top_k) = (14, case.d, case.top_k);
    let values = expert_matrices(&mut numbers, case);
    let (x, weights) = (numbers.floats(n * d, 1.0), numbers.floats(n * top_k, 1.0));
    let ids = expert_ids(&mut numbers, n, case);
    let encoded = encode_experts(case, &values);
    everywhere("experts", n, |bench| {
        let [routed, shared] = expert_ffns(bench, case, &encoded);
        let (x, weights, ids) = (x.clone(), weights.clone(), ids.clone());
        Box::new(move |bench, rows| {
            let experts = Experts {
                x: slice(bench, &x, d, &rows),
                routed,
                shared,
                ids: bench.ids(&ids[rows.start * top_k..rows.end * top_k]),
                weights: slice(bench, &weights, top_k, &rows),
                top_k,
                limit: 1.5,
                out: bench.zeros(rows.len() * d),
            };
            bench.cpu.experts(&experts).expect("fits");
            bits(&bench.read(experts.out))
        })
    });
}

/// The float cases against plain f64 sums, and the counters of all cases against the ids.
#[test]
fn experts_against_plain_sums() {
    for case in &EXPERT_CASES {
        let mut numbers = Numbers(case.experts as u64 + 100);
        let (n, d, top_k) = (6, case.d, case.top_k);
        let values = expert_matrices(&mut numbers, case);
        let (x, weights) = (numbers.floats(n * d, 1.0), numbers.floats(n * top_k, 1.0));
        let ids = expert_ids(&mut numbers, n, case);
        let config = CpuConfig { float_products: true, ..CpuConfig::default() };
        let mut bench = Bench::new(config);
        let [routed, shared] = expert_ffns(&mut bench, case, &encode_experts(case, &values));
        bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
        let experts = Experts {
            x: bench.floats(&x),
            routed,
            shared,
            ids: bench.ids(&ids),
            weights: bench.floats(&weights),
            top_k,
            limit: 1.5,
            out: bench.zeros(n * d),
        };
        let before = bench.cpu.counters();
        bench.cpu.experts(&experts).expect("fits");
        let after = bench.cpu.counters();
        assert!(after.dense_bytes > before.dense_bytes);
        let distinct: std::collections::BTreeSet<u32> = ids.iter().copied().collect();
        let read = after.expert_bytes - before.expert_bytes;
        assert_eq!(read % distinct.len() as u64, 0, "each distinct expert once");
        assert!(read > 0);
        if case.routed != Format::F32 {
            continue;
        }
        let found = bench.read(experts.out);
        for row in 0..n {
            let x = &x[row * d..][..d];
            let own = row * top_k..(row + 1) * top_k;
            let mut wanted = plain_ffn(x, &values[3..], 0, case.shared_inner, 1.0);
            for (id, weight) in ids[own.clone()].iter().zip(&weights[own]) {
                let part = plain_ffn(x, &values[..3], *id as usize, case.inner, *weight);
                wanted.iter_mut().zip(part).for_each(|(wanted, part)| *wanted += part);
            }
            for (found, wanted) in found[row * d..][..d].iter().zip(wanted) {
                // Values are about one; F16 weights of the shared expert are off by 2^-11.
                let bound = if case.shared == Format::F32 { 1e-5 } else { 2e-3 };
                let error = (f64::from(*found) - wanted).abs();
                assert!(error < bound, "{found} for {wanted}");
            }
        }
    }
}

fn plain_ffn(x: &[f32], values: &[Vec<f32>], id: usize, inner: usize, weight: f32) -> Vec<f64> {
    let d = x.len();
    let dot =
        |a: &[f32], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * b).sum() };
    let x: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    let h: Vec<f64> = (0..inner)
        .map(|i| {
            let row = (id * inner + i) * d;
            let gate = dot(&values[0][row..][..d], &x).min(1.5);
            let up = dot(&values[1][row..][..d], &x).clamp(-1.5, 1.5);
            gate / (1.0 + (-gate).exp()) * up * f64::from(weight)
        })
        .collect();
    (0..d).map(|i| dot(&values[2][(id * d + i) * inner..][..inner], &h)).collect()
}

#[test]
fn gather_rows_copies_and_converts() {
    let mut bench = Bench::scalar();
    let x = bench.floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let out = bench.zeros(8);
    let gather = GatherRows { x, width: 2, rows: &[2, 0, 2], out, at: 1 };
    bench.cpu.gather_rows(&gather).expect("fits");
    assert_eq!(bench.read(out), [0.0, 0.0, 5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
    let half = bench.empty(Element::Bf16, 2);
    let gather = GatherRows { x, width: 2, rows: &[1], out: half, at: 0 };
    bench.cpu.gather_rows(&gather).expect("fits");
    let out = bench.zeros(2);
    let gather = GatherRows { x: half, width: 2, rows: &[0], out, at: 0 };
    bench.cpu.gather_rows(&gather).expect("fits");
    assert_eq!(bench.read(out), [3.0, 4.0]);
}
