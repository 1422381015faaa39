//! Operations against golden vectors of DeepSeek's published code
//! (tests/golden/make/oracle/op_vectors.py is the list of keys). Round trips and the Hadamard
//! rotation alone are compared in crate `quant`.

use crate::common::{Bench, Golden, assert_close};
use ironstar_device::*;
use ironstar_quant::Format;

const FILE: &str = "oracle/op_vectors.safetensors";

/// Rounds as the published table does: each step to f32 (spec/deepseek_v4.md 2.4).
fn frequencies(base: f64, yarn: bool) -> Vec<f32> {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is the point")]
    (0..32u8)
        .map(|i| {
            let e = f32::from(2 * i) / 64.0;
            let f = 1.0 / base.powf(f64::from(e)) as f32;
            let smooth = 1.0 - ((f32::from(i) - 15.0) / 10.0).clamp(0.0, 1.0);
            if yarn { f / 16.0 * (1.0 - smooth) + f * smooth } else { f }
        })
        .collect()
}

fn compress_rope(bench: &mut Bench) -> Rope {
    bench.cpu.rope(&frequencies(160_000.0, true)).expect("a table")
}

fn no_rope(bench: &mut Bench) -> Rope {
    bench.cpu.rope(&[]).expect("an empty table")
}

/// A step of single rows at any positions.
fn rows_at(positions: &[usize]) -> Step {
    let span = |(row, position): (usize, &usize)| Span { rows: row..row + 1, position: *position };
    let spans = positions.iter().enumerate().map(span).collect();
    Step { tokens: vec![0; positions.len()], spans }
}

fn golden_positions(golden: &Golden) -> Vec<usize> {
    let position = |p: i32| usize::try_from(p).expect("not negative");
    golden.ints("rope_pos").into_iter().map(position).collect()
}

#[test]
fn rotary_tables() {
    let golden = Golden::open(FILE);
    let mut bench = Bench::scalar();
    bench.cpu.begin(&rows_at(&golden_positions(&golden))).expect("a step");
    for (name, base, yarn) in [("window", 10_000.0, false), ("compress", 160_000.0, true)] {
        let rope = bench.cpu.rope(&frequencies(base, yarn)).expect("a table");
        // Pairs (1, 0) turn into (cos, sin).
        let q = bench.floats(&[1.0, 0.0].repeat(8 * 32));
        bench
            .cpu
            .query_heads(&QueryHeads { q, heads: 1, width: 64, eps: None, rope })
            .expect("fits");
        let turned = bench.read(q);
        let (cos, sin): (Vec<f32>, Vec<f32>) =
            turned.as_chunks().0.iter().map(|[c, s]| (c, s)).unzip();
        assert_close(name, &cos, &golden.floats(&format!("rope_{name}_cos")), 6e-8);
        assert_close(name, &sin, &golden.floats(&format!("rope_{name}_sin")), 6e-8);
    }
}

#[test]
fn rotation() {
    let golden = Golden::open(FILE);
    let mut bench = Bench::scalar();
    let rope = compress_rope(&mut bench);
    bench.cpu.begin(&rows_at(&golden_positions(&golden))).expect("a step");
    let q = bench.floats(&golden.floats("rope_in"));
    bench.cpu.query_heads(&QueryHeads { q, heads: 4, width: 64, eps: None, rope }).expect("fits");
    assert_close("rope_out", &bench.read(q), &golden.floats("rope_out"), 3e-7);
}

/// Attention to the own key alone gives the key, turned back.
#[test]
fn rotation_undone() {
    let golden = Golden::open(FILE);
    let (input, wanted) = (golden.floats("rope_in"), golden.floats("rope_out_inverse"));
    let mut bench = Bench::scalar();
    let rope = compress_rope(&mut bench);
    bench.cpu.begin(&rows_at(&golden_positions(&golden))).expect("a step");
    let sinks = bench.floats(&[f32::NEG_INFINITY]);
    let (q, out) = (bench.zeros(8 * 64), bench.zeros(8 * 64));
    let rings: Vec<Buffer> = (0..8).map(|_| bench.zeros(64)).collect();
    for head in 0..4 {
        let of_head = |all: &[f32]| -> Vec<f32> {
            let rows = all.chunks_exact(4 * 64);
            rows.flat_map(|row| row[head * 64..][..64].to_vec()).collect()
        };
        let kv = bench.floats(&of_head(&input));
        let attend = Attend {
            q,
            kv,
            sinks,
            heads: 1,
            rope,
            window: 1,
            mutual: false,
            rings: &rings,
            capacity: 1,
            compressed: None,
            out,
        };
        bench.cpu.attend(&attend).expect("fits");
        assert_close("rope_out_inverse", &bench.read(out), &of_head(&wanted), 3e-7);
    }
}

/// Mixes are made exact by streams that are 8 in one place: the mean square is 1 and the product
/// with a matrix of mixes / 8 gives the mixes.
#[test]
fn sinkhorn() {
    let golden = Golden::open(FILE);
    let mixes = golden.floats("sinkhorn_mixes");
    let mut bench = Bench::scalar();
    let (n, s, d) = (6, 4, 16);
    let (mut x, mut matrix) = (vec![0f32; n * s * d], vec![0f32; 24 * s * d]);
    for row in 0..n {
        x[row * s * d + row] = 8.0;
        (0..24).for_each(|i| matrix[i * s * d + row] = mixes[row * 24 + i] / 8.0);
    }
    let weights = HcWeights {
        matrix: bench.matrix(Format::F32, [1, 24, s * d], &matrix),
        base: bench.floats(&golden.floats("sinkhorn_base")),
        scale: bench.floats(&golden.floats("sinkhorn_scale")),
    };
    let pre = HcPre {
        x: bench.floats(&x),
        streams: s,
        weights,
        norm: bench.floats(&[1.0; 16]),
        norm_eps: 0.0,
        hc_eps: 1e-6,
        iterations: 20,
        out: bench.zeros(n * d),
        post: bench.zeros(n * s),
        comb: bench.zeros(n * s * s),
    };
    bench.cpu.begin(&Step::single(&[0; 6], 0)).expect("a step");
    bench.cpu.hc_pre(&pre).expect("fits");
    assert_close("post", &bench.read(pre.post), &golden.floats("sinkhorn_post"), 3e-7);
    assert_close("comb", &bench.read(pre.comb), &golden.floats("sinkhorn_comb"), 3e-7);
}

/// RMSNorm of rows in f64, weights 1.
fn normed(x: &[f32], width: usize, eps: f64) -> Vec<f32> {
    let row = |row: &[f32]| -> Vec<f32> {
        let square = |v: &f32| f64::from(*v) * f64::from(*v);
        let mean = row.iter().map(square).sum::<f64>() / row.len() as f64;
        let factor = 1.0 / (mean + eps).sqrt();
        #[expect(clippy::cast_possible_truncation, reason = "compared with a tolerance")]
        row.iter().map(|v| (f64::from(*v) * factor) as f32).collect()
    };
    x.chunks_exact(width).flat_map(row).collect()
}

#[test]
fn hyper_connections() {
    let golden = Golden::open(FILE);
    let mut bench = Bench::scalar();
    let (n, s, d) = (6, 4, 32);
    let weights = HcWeights {
        matrix: bench.matrix(Format::F32, [1, 24, s * d], &golden.floats("hc_fn")),
        base: bench.floats(&golden.floats("sinkhorn_base")),
        scale: bench.floats(&golden.floats("sinkhorn_scale")),
    };
    let pre = HcPre {
        x: bench.floats(&golden.floats("hc_streams")),
        streams: s,
        weights,
        norm: bench.floats(&vec![1.0; d]),
        norm_eps: 1e-6,
        hc_eps: 1e-6,
        iterations: 20,
        out: bench.zeros(n * d),
        post: bench.zeros(n * s),
        comb: bench.zeros(n * s * s),
    };
    bench.cpu.begin(&Step::single(&[0; 6], 0)).expect("a step");
    bench.cpu.hc_pre(&pre).expect("fits");
    let wanted = normed(&golden.floats("hc_pre_out"), d, 1e-6);
    assert_close("hc_pre_out", &bench.read(pre.out), &wanted, 1e-6);
    assert_close("hc_post_w", &bench.read(pre.post), &golden.floats("hc_post_w"), 1e-6);
    assert_close("hc_comb", &bench.read(pre.comb), &golden.floats("hc_comb"), 1e-6);
    let z = bench.floats(&golden.floats("hc_sub_out"));
    let HcPre { x, post, comb, .. } = pre;
    bench.cpu.hc_post(&HcPost { z, x, streams: s, width: d, post, comb }).expect("fits");
    assert_close("hc_post_out", &bench.read(x), &golden.floats("hc_post_out"), 2e-6);
}

#[test]
fn router() {
    let golden = Golden::open(FILE);
    let mut bench = Bench::scalar();
    bench.cpu.begin(&Step::single(&[0; 8], 0)).expect("a step");
    let x = bench.floats(&golden.floats("gate_in"));
    let matrix = bench.matrix(Format::F32, [1, 16, 32], &golden.floats("gate_w"));
    let logits = bench.zeros(8 * 16);
    bench.cpu.project(&Project { x, rows: 8, outputs: &[(matrix, logits)] }).expect("fits");
    let bias = bench.floats(&golden.floats("gate_bias"));
    let route = Route {
        logits,
        experts: 16,
        by: RouteBy::Score { bias },
        top_k: 6,
        scale: 1.5,
        ids: bench.empty(Element::U32, 48),
        weights: bench.zeros(48),
    };
    bench.cpu.route(&route).expect("fits");
    let (ids, weights) = (bench.read_ids(route.ids), bench.read(route.weights));
    let (golden_ids, golden_weights) = (golden.ints("gate_idx"), golden.floats("gate_weights"));
    for row in 0..8 {
        let own = row * 6..(row + 1) * 6;
        let pair = |i: usize| (u32::try_from(golden_ids[i]).expect("an id"), golden_weights[i]);
        let mut wanted: Vec<_> = own.clone().map(pair).collect();
        wanted.sort_by_key(|(id, _)| *id);
        let (wanted_ids, wanted_weights): (Vec<u32>, Vec<f32>) = wanted.into_iter().unzip();
        assert_eq!(ids[own.clone()], wanted_ids, "row {row}");
        assert_close("gate_weights", &weights[own], &wanted_weights, 3e-7);
    }
}

/// The golden expert is the shared one; the routed one here is all zeros.
#[test]
fn expert() {
    let golden = Golden::open(FILE);
    let mut bench = Bench::scalar();
    bench.cpu.begin(&Step::single(&[0; 8], 0)).expect("a step");
    let mut matrix = |values: &[f32]| bench.matrix(Format::F32, [1, 32, 32], values);
    let shared = Ffn {
        gate: matrix(&golden.floats("expert_w1")),
        up: matrix(&golden.floats("expert_w3")),
        down: matrix(&golden.floats("expert_w2")),
    };
    let zero = matrix(&[0.0; 32 * 32]);
    let experts = Experts {
        x: bench.floats(&golden.floats("expert_in")),
        routed: Ffn { gate: zero, up: zero, down: zero },
        shared,
        ids: bench.ids(&[0; 8]),
        weights: bench.zeros(8),
        top_k: 1,
        limit: 10.0,
        out: bench.zeros(8 * 32),
    };
    bench.cpu.experts(&experts).expect("fits");
    // Values reach several hundred: two units in the last place there.
    assert_close("expert_out", &bench.read(experts.out), &golden.floats("expert_out"), 2e-4);
}

#[test]
fn compressors() {
    for ratio in [4, 8] {
        for steps in [vec![21], vec![1; 21], vec![3, 9, 2, 7]] {
            compressor(ratio, &steps);
        }
    }
}

fn compressor(ratio: usize, steps: &[usize]) {
    let golden = Golden::open(FILE);
    let name = |part: &str| format!("comp{ratio}_{part}");
    let mut bench = Bench::scalar();
    let (parts, width, tokens, capacity) = (if ratio == 4 { 2 } else { 1 }, 128, 21, 16);
    let wide = parts * width;
    let rope = compress_rope(&mut bench);
    let matrix = |bench: &mut Bench, part: &str| {
        bench.matrix(Format::F32, [1, wide, 32], &golden.floats(&name(part)))
    };
    let (wkv, wgate) = (matrix(&mut bench, "wkv"), matrix(&mut bench, "wgate"));
    let input = golden.floats(&name("in"));
    let state = CompressState {
        values: bench.zeros(capacity * wide),
        scores: bench.zeros(capacity * wide),
        capacity,
        rows: bench.zeros(tokens / ratio * width),
    };
    let (positions, norm) =
        (bench.floats(&golden.floats(&name("ape"))), bench.floats(&golden.floats(&name("norm"))));
    let mut at = 0;
    for n in steps {
        bench.cpu.begin(&Step::single(&vec![0; *n], at)).expect("a step");
        let x = bench.floats(&input[at * 32..(at + n) * 32]);
        let (values, scores) = (bench.zeros(n * wide), bench.zeros(n * wide));
        let outputs = &[(wkv, values), (wgate, scores)];
        bench.cpu.project(&Project { x, rows: *n, outputs }).expect("fits");
        let compress = Compress {
            values,
            scores,
            positions,
            norm,
            eps: 1e-6,
            rope,
            ratio,
            parts,
            width,
            kind: RowKind::Kv { round_trip: false },
            states: &[state],
        };
        bench.cpu.compress(&compress).expect("fits");
        at += n;
    }
    assert_close(&name("rows"), &bench.read(state.rows), &golden.floats(&name("rows")), 2e-6);
    // The golden frontier: with overlap rows 0..4 are the group before, 4.. the open one.
    let first = tokens / ratio * ratio - (parts - 1) * ratio;
    for (part, buffer) in [("state_kv", state.values), ("state_score", state.scores)] {
        let (ring, wanted) = (bench.read(buffer), golden.floats(&name(part)));
        for (row, position) in (first..tokens).enumerate() {
            let slot = position % capacity * wide;
            let found = &ring[slot..slot + wide];
            assert_close(&name(part), found, &wanted[row * wide..(row + 1) * wide], 2e-6);
        }
    }
}

/// The golden rows see arbitrary keys: here the last one is the own row, the others are compressed
/// rows.
#[test]
fn attention_with_sink() {
    let golden = Golden::open(FILE);
    let (q, kv, wanted) =
        (golden.floats("attn_q"), golden.floats("attn_kv"), golden.floats("attn_out"));
    for (row, (seen, own)) in [(&[0u32, 1][..], 2), (&[3], 9), (&[4, 5, 6], 7)].iter().enumerate() {
        let mut bench = Bench::scalar();
        bench.cpu.begin(&Step::single(&[0], 10)).expect("a step");
        let rows = bench.floats(&[&kv[..], &[0.0; 128]].concat());
        let compressed =
            CompressedRows { rows: &[rows], ratio: 1, choice: Some((bench.ids(seen), seen.len())) };
        let attend = Attend {
            q: bench.floats(&q[row * 256..(row + 1) * 256]),
            kv: bench.floats(&kv[own * 128..(own + 1) * 128]),
            sinks: bench.floats(&golden.floats("attn_sink")),
            heads: 2,
            rope: no_rope(&mut bench),
            window: 1,
            mutual: false,
            rings: &[bench.zeros(128)],
            capacity: 1,
            compressed: Some(compressed),
            out: bench.zeros(256),
        };
        bench.cpu.attend(&attend).expect("fits");
        assert_close(
            "attn_out",
            &bench.read(attend.out),
            &wanted[row * 256..(row + 1) * 256],
            5e-7,
        );
    }
}

/// Keys that are one-hot show which of them a row saw: window 4 of 7 positions, then ratio 4 of 9.
#[test]
fn which_keys_are_seen() {
    let golden = Golden::open(FILE);
    let one_hot = |count: usize, first: usize| -> Vec<f32> {
        let row = |i: usize| (0..32).map(move |dim| f32::from(u8::from(dim == first + i)));
        (0..count).flat_map(row).collect()
    };
    for (key, tokens, window, ratio) in
        [("window_idx_prefill_7_of_4", 7, 4, 0), ("compress_idx_prefill_9_ratio4", 9, 1, 4)]
    {
        let mut bench = Bench::scalar();
        bench.cpu.begin(&Step::single(&vec![0; tokens], 0)).expect("a step");
        let rows = [bench.floats(&one_hot(2, 16))];
        let attend = Attend {
            q: bench.zeros(tokens * 32),
            kv: bench.floats(&one_hot(tokens, 0)),
            sinks: bench.zeros(1),
            heads: 1,
            rope: no_rope(&mut bench),
            window,
            mutual: false,
            rings: &[bench.zeros(4 * 32)],
            capacity: 4,
            compressed: (ratio > 0).then_some(CompressedRows { rows: &rows, ratio, choice: None }),
            out: bench.zeros(tokens * 32),
        };
        bench.cpu.attend(&attend).expect("fits");
        let out = bench.read(attend.out);
        let golden_ids = golden.ints(key);
        for (t, out) in out.chunks_exact(32).enumerate() {
            let per_row = golden_ids.len() / tokens;
            let listed = &golden_ids[t * per_row..(t + 1) * per_row];
            let mut wanted: Vec<usize> =
                listed.iter().filter_map(|i| usize::try_from(*i).ok()).collect();
            if ratio > 0 {
                // The list counts compressed rows behind the tokens' own; the window here is t
                // itself.
                wanted.iter_mut().for_each(|i| *i += 16 - tokens);
                wanted.push(t);
            }
            wanted.sort_unstable();
            let seen: Vec<usize> = (0..32).filter(|dim| out[*dim] > 0.0).collect();
            assert_eq!(seen, wanted, "{key} row {t}");
        }
    }
}
