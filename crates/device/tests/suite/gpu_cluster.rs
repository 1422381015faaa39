//! Launches of groups that exchange by shared memory: the bits of the launches that they stand for.

use crate::common::{Bench, Numbers, bits, encode};
use ironstar_device::*;
use ironstar_quant::Format;
use std::sync::Arc;

/// A spread and a mix of one row, twice: the bits of the streams, the row and the coefficients, and
/// of a product that takes the row's blocks.
fn spread_and_mix(
    disabled: Shortcuts,
    width: usize,
    matrices: &[(Format, Arc<Vec<u8>>); 3],
    x: &[f32],
) -> Vec<Vec<u32>> {
    let config = GpuConfig { disabled, ..GpuConfig::default() };
    let mut bench = Bench::gpu_with(config);
    let mut numbers = Numbers(width as u64);
    bench.cpu.begin(&Step::single(&[3], 0)).expect("a step");
    let shapes = [[1, 24, 4 * width], [1, 8, width], [1, 8, width]];
    let [matrix, narrow, wide] = [0, 1, 2].map(|i| {
        let (format, bytes) = &matrices[i];
        bench.encoded(*format, shapes[i], bytes.clone())
    });
    let x = bench.floats(x);
    let z = bench.floats(&numbers.floats(width, 1.0));
    let norm = bench.floats(&numbers.floats(width, 1.0));
    let (base, scale) = (bench.floats(&numbers.floats(24, 0.5)), bench.floats(&[0.7, 1.1, 0.9]));
    let (post, comb) =
        (bench.floats(&numbers.floats(4, 1.0)), bench.floats(&numbers.floats(16, 1.0)));
    let [out, a, b] = [width, 8, 8].map(|len| bench.zeros(len));
    let weights = HcWeights { matrix, base, scale };
    for _ in 0..2 {
        let spread = HcPost { z, x, streams: 4, width, post, comb };
        bench.cpu.hc_post(&spread).expect("fits");
        let (norm_eps, hc_eps, iterations) = (1e-6, 1e-6, 7);
        let mix =
            HcPre { x, streams: 4, weights, norm, norm_eps, hc_eps, iterations, out, post, comb };
        bench.cpu.hc_pre(&mix).expect("fits");
        for (matrix, to) in [(narrow, a), (wide, b)] {
            bench
                .cpu
                .project(&Project { x: out, rows: 1, outputs: &[(matrix, to)] })
                .expect("fits");
        }
    }
    [x, out, post, comb, a, b].map(|buffer| bits(&bench.read(buffer))).to_vec()
}

#[test]
fn a_spread_with_its_mix_has_the_bits_of_three_launches() {
    let cluster = Shortcuts::named("cluster").expect("it is one");
    let inputs =
        [(1024, None), (1024, Some(f32::INFINITY)), (1024, Some(0.0)), (4096, None), (7168, None)];
    for (width, special) in inputs {
        let mut numbers = Numbers(7);
        let mut matrix = |format, rows, columns: usize| {
            (format, encode(format, &numbers.floats(rows * columns, 0.2)))
        };
        let matrices = [
            matrix(Format::F16, 24, 4 * width),
            matrix(Format::Q8_0, 8, width),
            matrix(Format::Q4K, 8, width),
        ];
        let mut x = numbers.floats(4 * width, 1.0);
        match special {
            Some(0.0) => x.fill(0.0),
            Some(value) => x[width + 77] = value,
            None => {}
        }
        let wanted = spread_and_mix(cluster, width, &matrices, &x);
        let found = spread_and_mix(Shortcuts::NONE, width, &matrices, &x);
        assert!(found == wanted, "{width} wide, with {special:?}");
    }
}

const WIDTH: usize = 4096;
const EXPERTS: usize = 256;
const TOP_K: usize = 6;

/// The same with a router of 256 experts and their choice, by scores or by a table: what they
/// leave. `looks`: somebody reads what the router says before experts are chosen.
fn choice(
    disabled: Shortcuts,
    [mixing, router]: [&Arc<Vec<u8>>; 2],
    (by_token, looks): (bool, bool),
) -> (Vec<Vec<u32>>, Vec<u32>) {
    let config = GpuConfig { disabled, ..GpuConfig::default() };
    let mut bench = Bench::gpu_with(config);
    let mut numbers = Numbers(5);
    bench.cpu.begin(&Step::single(&[3], 0)).expect("a step");
    let matrix = bench.encoded(Format::F16, [1, 24, 4 * WIDTH], mixing.clone());
    let router = bench.encoded(Format::F16, [1, EXPERTS, WIDTH], router.clone());
    let [x, z, norm] = [4 * WIDTH, WIDTH, WIDTH].map(|len| bench.floats(&numbers.floats(len, 1.0)));
    let [base, post, comb] = [24, 4, 16].map(|len| bench.floats(&numbers.floats(len, 0.5)));
    let (scale, bias) = (bench.floats(&[0.7, 1.1, 0.9]), numbers.floats(EXPERTS, 0.3));
    let [out, logits, weights] = [WIDTH, EXPERTS, TOP_K].map(|len| bench.zeros(len));
    let ids = bench.empty(Element::U32, TOP_K);
    let by = match by_token {
        true => RouteBy::Token {
            table: bench.ids(&(0..8 * 6).map(|i| i * 37 % 256).collect::<Vec<_>>()),
        },
        false => RouteBy::Score { bias: bench.floats(&bias) },
    };
    let weights_of_mix = HcWeights { matrix, base, scale };
    bench.cpu.hc_post(&HcPost { z, x, streams: 4, width: WIDTH, post, comb }).expect("fits");
    let (norm_eps, hc_eps, iterations) = (1e-6, 1e-6, 20);
    let mix = HcPre {
        x,
        streams: 4,
        weights: weights_of_mix,
        norm,
        norm_eps,
        hc_eps,
        iterations,
        out,
        post,
        comb,
    };
    bench.cpu.hc_pre(&mix).expect("fits");
    bench.cpu.project(&Project { x: out, rows: 1, outputs: &[(router, logits)] }).expect("fits");
    if looks {
        let _seen = bench.read(logits);
    }
    let route = Route { logits, experts: EXPERTS, by, top_k: TOP_K, scale: 1.5, ids, weights };
    bench.cpu.route(&route).expect("fits");
    let seen = [x, out, post, comb, logits, weights].map(|buffer| bits(&bench.read(buffer)));
    let ids = bench.read_ids(ids);
    (seen.to_vec(), ids)
}

#[test]
fn a_choice_of_experts_with_the_mix_before_it_has_the_bits_of_five_launches() {
    let cluster = Shortcuts::named("cluster").expect("it is one");
    let mut numbers = Numbers(9);
    let mixing = encode(Format::F16, &numbers.floats(24 * 4 * WIDTH, 0.2));
    let router = encode(Format::F16, &numbers.floats(EXPERTS * WIDTH, 0.05));
    for by in [(false, false), (true, false), (false, true)] {
        let wanted = choice(cluster, [&mixing, &router], by);
        let found = choice(Shortcuts::NONE, [&mixing, &router], by);
        assert!(found == wanted, "by a table or looked at: {by:?}");
    }
}
