//! Shortcuts of a step of few rows change no bit: each one left out, and launches that may run
//! beside each other in another order.

use crate::common::{Bench, Numbers, bits, encode};
use ironstar_device::*;
use ironstar_quant::Format;
use std::sync::Arc;

/// Formats of router, gate and up, down, and of the shared expert.
const MIXES: [[Format; 4]; 2] = [
    [Format::F16, Format::Iq2Xxs, Format::Q2K, Format::Q8_0],
    [Format::Bf16, Format::Mxfp4, Format::Mxfp4, Format::F16],
];

const WIDTH: usize = 1024;
const INNER: usize = 256;
const EXPERTS: usize = 3;
const TOP_K: usize = 2;

/// The mix of four streams to a row.
fn mix(weights: HcWeights, norm: Buffer, [x, out, post, comb]: [Buffer; 4]) -> HcPre {
    let (norm_eps, hc_eps, iterations) = (1e-6, 1e-6, 4);
    HcPre { x, streams: 4, weights, norm, norm_eps, hc_eps, iterations, out, post, comb }
}

/// Three sublayers of `n` rows: mix, router, experts, spread; the bits of the streams and of each
/// sublayer's output. Encoded matrices are kept for the next call.
fn sublayers(
    mut bench: Bench,
    n: usize,
    [router, gate, down, shared]: [Format; 4],
    encoded: &mut Vec<Arc<Vec<u8>>>,
) -> Vec<Vec<u32>> {
    let mut numbers = Numbers(11);
    bench.cpu.begin(&Step::single(&vec![3; n], 0)).expect("a step");
    let mut count = 0;
    let mut matrix = |bench: &mut Bench, format: Format, shape: [usize; 3]| {
        if count == encoded.len() {
            encoded.push(encode(format, &numbers.floats(shape.iter().product(), 0.1)));
        }
        count += 1;
        bench.encoded(format, shape, encoded[count - 1].clone())
    };
    let mixing = matrix(&mut bench, Format::F16, [1, 24, 4 * WIDTH]);
    let logits = matrix(&mut bench, router, [1, EXPERTS, WIDTH]);
    let mut ffn = |bench: &mut Bench, stack, [gate, down]: [Format; 2]| Ffn {
        gate: matrix(bench, gate, [stack, INNER, WIDTH]),
        up: matrix(bench, gate, [stack, INNER, WIDTH]),
        down: matrix(bench, down, [stack, WIDTH, INNER]),
    };
    let (routed, shared) =
        (ffn(&mut bench, EXPERTS, [gate, down]), ffn(&mut bench, 1, [shared, shared]));
    let mut numbers = Numbers(12);
    let x = bench.floats(&numbers.floats(n * 4 * WIDTH, 1.0));
    let norm = bench.floats(&numbers.floats(WIDTH, 1.0));
    let base = bench.floats(&numbers.floats(24, 0.5));
    let (scale, bias) = (bench.floats(&[0.7, 1.1, 0.9]), bench.floats(&[0.0; EXPERTS]));
    let [y, z] = [WIDTH, WIDTH].map(|len| bench.zeros(n * len));
    let [post, comb, scores, weights] = [4, 16, EXPERTS, TOP_K].map(|len| bench.zeros(n * len));
    let ids = bench.empty(Element::U32, n * TOP_K);
    let hc = HcWeights { matrix: mixing, base, scale };
    let mut seen = Vec::new();
    // The first turns make room, which runs what was put off.
    for turn in 0..4 {
        bench.cpu.hc_pre(&mix(hc, norm, [x, y, post, comb])).expect("fits");
        bench.cpu.project(&Project { x: y, rows: n, outputs: &[(logits, scores)] }).expect("fits");
        let route = Route {
            logits: scores,
            experts: EXPERTS,
            by: RouteBy::Score { bias },
            top_k: TOP_K,
            scale: 1.5,
            ids,
            weights,
        };
        bench.cpu.route(&route).expect("fits");
        let (limit, top_k) = (2.0, TOP_K);
        let sum = Experts { x: y, routed, shared, ids, weights, top_k, limit, out: z };
        bench.cpu.experts(&sum).expect("fits");
        let spread = HcPost { z, x, streams: 4, width: WIDTH, post, comb };
        bench.cpu.hc_post(&spread).expect("fits");
        if turn == 2 {
            // What is read between two sublayers is there.
            seen.push(bits(&bench.read(x)));
        }
    }
    seen.extend([x, y, z, post, comb].map(|buffer| bits(&bench.read(buffer))));
    assert!(seen.iter().flatten().all(|v| f32::from_bits(*v).is_finite()), "finite numbers");
    seen
}

#[test]
fn no_shortcut_changes_a_bit() {
    let names = ["lanes", "staged", "spread", "index", "pooled", "cluster"];
    let all = names.map(|name| Shortcuts::named(name).expect(name));
    let none = all.into_iter().fold(Shortcuts::NONE, Shortcuts::with);
    for (mix, n) in [(MIXES[0], 1), (MIXES[1], 1), (MIXES[0], 3), (MIXES[0], 11), (MIXES[0], 37)] {
        let mut encoded = Vec::new();
        let mut run = |disabled, reorder| {
            let config = GpuConfig { disabled, reorder, ..GpuConfig::default() };
            sublayers(Bench::gpu_with(config), n, mix, &mut encoded)
        };
        let wanted = run(none, false);
        let taken = run(Shortcuts::NONE, false);
        assert!(taken == wanted, "all shortcuts with {mix:?}, {n} rows");
        assert!(run(Shortcuts::NONE, true) == wanted, "another order with {mix:?}, {n} rows");
    }
}

/// Names of the kernels that a spread, a mix and a sum of experts of `n` rows run on a device that
/// was made without some shortcuts and then told to leave out others.
fn kernels(n: usize, disabled: Shortcuts, then: Shortcuts) -> Vec<&'static str> {
    let config = GpuConfig { disabled, ..GpuConfig::default() };
    let mut gpu = Gpu::host(config).unwrap_or_else(|error| panic!("{error}"));
    if then != disabled {
        assert!(gpu.leave_out(then).expect("nothing was recorded"));
    }
    let arena = gpu.arena();
    gpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
    let matrix = |gpu: &mut Gpu, format: Format, stack: usize, rows: usize, columns: usize| {
        let bytes = encode(format, &vec![0.5; stack * rows * columns]);
        gpu.matrix(MatrixSource { name: "m", format, rows, columns, stack, bytes, planes: None })
            .expect("fits")
    };
    let mixing = matrix(&mut gpu, Format::F16, 1, 24, 4 * WIDTH);
    let mut ffn = |stack, down| Ffn {
        gate: matrix(&mut gpu, Format::Q8_0, stack, INNER, WIDTH),
        up: matrix(&mut gpu, Format::Q8_0, stack, INNER, WIDTH),
        down: matrix(&mut gpu, down, stack, WIDTH, INNER),
    };
    let (routed, shared) = (ffn(2, Format::Q2K), ffn(1, Format::Q8_0));
    let mut zeros = |len| gpu.alloc(arena, Element::F32, len).expect("small");
    let [x, y, z, norm] = [n * 4 * WIDTH, n * WIDTH, n * WIDTH, WIDTH].map(&mut zeros);
    let [post, comb, base, scale, weights] = [n * 4, n * 16, 24, 3, n].map(&mut zeros);
    let ids = gpu.alloc(arena, Element::U32, n).expect("small");
    gpu.hc_post(&HcPost { z, x, streams: 4, width: WIDTH, post, comb }).expect("fits");
    let hc = HcPre {
        x,
        streams: 4,
        weights: HcWeights { matrix: mixing, base, scale },
        norm,
        norm_eps: 1e-6,
        hc_eps: 1e-6,
        iterations: 2,
        out: y,
        post,
        comb,
    };
    gpu.hc_pre(&hc).expect("fits");
    let sum = Experts { x: y, routed, shared, ids, weights, top_k: 1, limit: 2.0, out: z };
    gpu.experts(&sum).expect("fits");
    gpu.finish().expect("no fault");
    let run = gpu.launches().kernels.into_iter().filter(|(_, count)| *count > 0);
    let mut names: Vec<_> = run.map(|(name, _)| name).collect();
    names.sort_unstable();
    names
}

/// A shortcut that is not taken would prove nothing.
#[test]
fn shortcuts_are_taken() {
    let taken = ["decode_q8_0", "expert_cells", "hc_post_pre_1024", "staged_q2_k", "staged_q8_0"];
    let (none, both) = (Shortcuts::NONE, Shortcuts::STAGED.with(Shortcuts::SPREAD));
    assert_eq!(kernels(1, none, none), taken);
    assert_eq!(kernels(1, both, none), taken, "taken again");
    let left = ["activate", "activate_256", "decode_q2_k", "decode_q8_0", "expert_cells"];
    let left = [&left[..], &["hc_post_four", "hc_pre_1024", "shards_f16"]].concat();
    assert_eq!(kernels(1, both, both), left);
    assert_eq!(kernels(1, none, both), left, "left out later");
    let some = kernels(2, none, none);
    assert!(some.contains(&"post_shards_some_f16") && !some.contains(&"hc_post_four"), "{some:?}");
    let many = kernels(37, none, none);
    assert!(many.contains(&"spread_mix_f16") && !many.contains(&"hc_post_four"), "{many:?}");
}

/// What is required is an error where it would be left out: a format without a kernel for it, or
/// one that is disabled.
#[test]
fn a_required_shortcut_is_taken_or_an_error() {
    let run = |mix, disabled, required| {
        let config = GpuConfig { disabled, required, ..GpuConfig::default() };
        let backend = Bench::gpu_with(config);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            sublayers(backend, 1, mix, &mut Vec::new());
        }))
        .map_err(|panic| *panic.downcast::<String>().expect("an error's text"))
    };
    let both = Shortcuts::STAGED.with(Shortcuts::SPREAD);
    assert_eq!(run(MIXES[0], Shortcuts::NONE, both), Ok(()));
    let error = run(MIXES[1], Shortcuts::NONE, Shortcuts::STAGED).expect_err("MXFP4 has none");
    assert!(error.contains("staged") && error.contains("Mxfp4"), "{error}");
    let error = run(MIXES[0], Shortcuts::SPREAD, both).expect_err("it is disabled");
    assert!(error.contains("spread"), "{error}");
}
