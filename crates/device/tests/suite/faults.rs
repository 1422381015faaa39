//! Calls that do not fit are errors that say what was found and what was wanted, never a panic.

use crate::common::{Bench, Numbers};
use ironstar_device::*;
use ironstar_quant::Format;
use std::sync::Arc;

#[track_caller]
fn refused<T>(result: Result<T, Error>, words: &[&str]) {
    let Err(error) = result else { panic!("accepted") };
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "no '{word}' in: {text}");
    }
}

#[test]
fn released_buffers() {
    let mut bench = Bench::scalar();
    let arena = bench.cpu.arena();
    let old = bench.cpu.alloc(arena, Element::F32, 4).expect("small");
    bench.cpu.release(arena);
    refused(bench.cpu.write_f32(old, 0, &[1.0]), &["write_f32", "not alive"]);
    refused(bench.cpu.alloc(arena, Element::F32, 4), &["alloc", "not alive"]);
    // A new buffer in the same slot is not the old one.
    let new = bench.zeros(4);
    refused(bench.cpu.read_f32(old, 0, &mut [0.0]), &["not alive"]);
    bench.cpu.write_f32(new, 0, &[1.0]).expect("alive");
    bench.cpu.release(arena);
    assert_eq!(bench.read(new)[0], 1.0, "a second release touches nothing");
}

#[test]
fn buffers_of_another_size_or_kind() {
    let mut bench = Bench::scalar();
    let (floats, ids) = (bench.zeros(4), bench.empty(Element::U32, 4));
    refused(bench.cpu.write_f32(floats, 3, &[1.0, 2.0]), &["4 elements", "at least 5"]);
    refused(bench.cpu.write_f32(floats, usize::MAX, &[1.0]), &["4 elements"]);
    refused(bench.cpu.write_f32(ids, 0, &[1.0]), &["U32", "F32"]);
    refused(bench.cpu.write(floats, 0, &[1, 2, 3]), &["3 bytes", "whole elements of 4"]);
    refused(bench.cpu.read(ids, 2, &mut [0; 12]), &["4 elements", "at least 5"]);
    let huge = bench.cpu.alloc(bench.arena, Element::F32, usize::MAX / 8);
    refused(huge, &["out of memory", "bytes"]);
    refused(bench.cpu.alloc(bench.arena, Element::F32, usize::MAX), &["out of memory"]);
}

#[test]
fn matrices_that_are_not_whole() {
    let mut bench = Bench::scalar();
    let source = |format, rows, columns, stack, bytes| MatrixSource {
        name: "blk.0.attn_kv.weight",
        format,
        rows,
        columns,
        stack,
        bytes: Arc::new(vec![0u8; bytes]),
        planes: None,
    };
    let words = ["blk.0.attn_kv.weight", "bytes"];
    refused(bench.cpu.matrix(source(Format::Q8_0, 2, 64, 1, 135)), &words);
    refused(bench.cpu.matrix(source(Format::Q8_0, 2, 63, 1, 136)), &words);
    refused(bench.cpu.matrix(source(Format::F32, 0, 8, 1, 0)), &words);
    refused(bench.cpu.matrix(source(Format::F32, usize::MAX, usize::MAX, 9, 4)), &words);
    bench.cpu.matrix(source(Format::Q8_0, 2, 64, 1, 136)).expect("whole");
    // A matrix of another backend.
    let mut other = Bench::scalar();
    let matrix = other.matrix(Format::F32, [1, 2, 2], &[1.0; 4]);
    let (x, out) = (bench.zeros(2), bench.zeros(2));
    let project = Project { x, rows: 1, outputs: &[(matrix, out)] };
    refused(bench.cpu.project(&project), &["project", "not alive"]);
}

#[test]
fn steps_with_gaps() {
    let mut bench = Bench::scalar();
    let span = |rows, position| Span { rows, position };
    let mut begin =
        |tokens: usize, spans: Vec<Span>| bench.cpu.begin(&Step { tokens: vec![0; tokens], spans });
    refused(begin(2, vec![span(0..1, 0)]), &["begin", "2 tokens"]);
    refused(begin(2, vec![span(1..2, 0)]), &["begin", "order"]);
    refused(begin(2, vec![span(0..1, 0), span(0..2, 0)]), &["begin", "order"]);
    refused(begin(2, vec![span(0..2, usize::MAX)]), &["begin", "position"]);
    begin(2, vec![span(0..1, 7), span(1..1, 3), span(1..2, 0)]).expect("an empty span is one");
    begin(0, vec![]).expect("an empty step is one");
}

#[test]
fn tokens_and_experts_out_of_range() {
    let mut bench = Bench::scalar();
    bench.cpu.begin(&Step::single(&[1, 8], 0)).expect("a step");
    let table = bench.matrix(Format::F32, [1, 8, 4], &[1.0; 32]);
    let out = bench.zeros(8);
    refused(bench.cpu.embed(&Embed { table, streams: 1, out }), &["token 8", "8 rows"]);

    let logits = bench.zeros(8);
    let (ids, weights) = (bench.empty(Element::U32, 4), bench.zeros(4));
    let mut route = |by, top_k| {
        let route = Route { logits, experts: 4, by, top_k, scale: 1.0, ids, weights };
        bench.cpu.route(&route)
    };
    let bias = RouteBy::Score { bias: logits };
    refused(route(bias, 5), &["5 of 4 experts"]);
    refused(route(bias, 0), &["0 of 4 experts"]);
    let table = bench.ids(&[0, 1, 2, 3]);
    let mut route = |table| {
        let by = RouteBy::Token { table };
        let route = Route { logits, experts: 4, by, top_k: 2, scale: 1.0, ids, weights };
        bench.cpu.route(&route)
    };
    refused(route(table), &["token 8", "2 tokens"]);
    let table = bench.ids(&[9; 18]);
    let mut route = |table| {
        let by = RouteBy::Token { table };
        let route = Route { logits, experts: 4, by, top_k: 2, scale: 1.0, ids, weights };
        bench.cpu.route(&route)
    };
    refused(route(table), &["experts [9, 9]", "token 1"]);

    let square = bench.matrix(Format::F32, [4, 4, 4], &[1.0; 64]);
    let plain = bench.matrix(Format::F32, [1, 4, 4], &[1.0; 16]);
    let routed = Ffn { gate: square, up: square, down: square };
    let shared = Ffn { gate: plain, up: plain, down: plain };
    let ids = bench.ids(&[0, 1, 2, 4]);
    let (x, out) = (bench.zeros(8), bench.zeros(8));
    let experts = Experts { x, routed, shared, ids, weights, top_k: 2, limit: 1.0, out };
    refused(bench.cpu.experts(&experts), &["expert 4 of 4"]);
    let experts = Experts { shared: routed, ..experts };
    refused(bench.cpu.experts(&experts), &["4 x 4 x 4", "1 x 4 x 4"]);
}

#[test]
fn operands_that_alias() {
    let mut bench = Bench::scalar();
    bench.cpu.begin(&Step::single(&[0], 0)).expect("a step");
    let (x, post) = (bench.zeros(8), bench.zeros(16));
    let aliased = HcPost { z: x, x, streams: 2, width: 4, post, comb: post };
    refused(bench.cpu.hc_post(&aliased), &["x", "their own buffer"]);
    let gather = GatherRows { x, width: 4, rows: &[0], out: x, at: 1 };
    refused(bench.cpu.gather_rows(&gather), &["their own buffer"]);
    let matrix = bench.matrix(Format::F32, [1, 8, 8], &[1.0; 64]);
    let project = Project { x, rows: 1, outputs: &[(matrix, x)] };
    refused(bench.cpu.project(&project), &["their own buffer"]);
}

#[test]
fn attention_operands() {
    let mut bench = Bench::scalar();
    let step = Step::single(&[0], 9);
    bench.cpu.begin(&step).expect("a step");
    let rope = bench.cpu.rope(&[1.0]).expect("a table");
    let (q, kv, out) = (bench.zeros(16), bench.zeros(8), bench.zeros(16));
    let ring = bench.zeros(4 * 8);
    let good = Attend {
        q,
        kv,
        sinks: bench.zeros(2),
        heads: 2,
        rope,
        window: 4,
        mutual: false,
        rings: &[ring],
        capacity: 4,
        compressed: None,
        out,
    };
    bench.cpu.attend(&good).expect("fits");
    refused(bench.cpu.attend(&Attend { rings: &[], ..good }), &["attend"]);
    refused(bench.cpu.attend(&Attend { window: 5, ..good }), &["window of 5", "rings of 4"]);
    refused(bench.cpu.attend(&Attend { window: 0, ..good }), &["window of 0"]);
    refused(bench.cpu.attend(&Attend { capacity: 0, ..good }), &["attend"]);
    refused(bench.cpu.attend(&Attend { heads: 0, ..good }), &["attend"]);
    let half = bench.empty(Element::Bf16, 8);
    refused(bench.cpu.attend(&Attend { kv: half, ..good }), &["Bf16", "equal elements"]);
    let rows = [bench.zeros(2 * 8)];
    let (ids, few) = (bench.ids(&[0, 5]), bench.ids(&[1]));
    let compressed = CompressedRows { rows: &rows, ratio: 5, choice: Some((ids, 2)) };
    let with = |compressed| Attend { compressed: Some(compressed), ..good };
    refused(bench.cpu.attend(&with(compressed)), &["compressed row Some(5)", "visible"]);
    let short = CompressedRows { choice: Some((few, 2)), ..compressed };
    refused(bench.cpu.attend(&with(short)), &["choice", "at least 2"]);
    let many = CompressedRows { ratio: 1, choice: None, ..compressed };
    refused(bench.cpu.attend(&with(many)), &["compressed rows", "at least 80"]);
    let none = CompressedRows { ratio: 0, ..compressed };
    refused(bench.cpu.attend(&with(none)), &["ratio 0"]);
    let store = StoreWindow { kv, width: 8, rings: &[], capacity: 4 };
    refused(bench.cpu.store_window(&store), &["store_window"]);
}

#[test]
fn compressor_operands() {
    let mut bench = Bench::scalar();
    bench.cpu.begin(&Step::single(&[0; 8], 4)).expect("a step");
    let state = CompressState {
        values: bench.zeros(8 * 16),
        scores: bench.zeros(8 * 16),
        capacity: 8,
        rows: bench.zeros(3 * 8),
    };
    let states = [state];
    let good = Compress {
        values: bench.zeros(8 * 16),
        scores: bench.zeros(8 * 16),
        positions: bench.zeros(4 * 16),
        norm: bench.zeros(8),
        eps: 1e-6,
        rope: bench.cpu.rope(&[1.0]).expect("a table"),
        ratio: 4,
        parts: 2,
        width: 8,
        kind: RowKind::Kv { round_trip: false },
        states: &states,
    };
    bench.cpu.compress(&good).expect("fits");
    refused(bench.cpu.compress(&Compress { ratio: 0, ..good }), &["ratio 0"]);
    refused(bench.cpu.compress(&Compress { parts: 3, ..good }), &["parts 3"]);
    refused(bench.cpu.compress(&Compress { width: 7, ..good }), &["norm of 8"]);
    let round_trip = RowKind::Kv { round_trip: true };
    refused(bench.cpu.compress(&Compress { kind: round_trip, ..good }), &["blocks of 64"]);
    refused(bench.cpu.compress(&Compress { states: &[], ..good }), &["one state a span"]);
    let small = [CompressState { capacity: 7, ..state }];
    refused(bench.cpu.compress(&Compress { states: &small, ..good }), &["rings of 7"]);
    let full = [CompressState { rows: bench.zeros(2 * 8), ..state }];
    refused(bench.cpu.compress(&Compress { states: &full, ..good }), &["room for 2", "3 are"]);
    let packed = [CompressState { rows: bench.empty(Element::Fp4Row, 9), ..state }];
    refused(bench.cpu.compress(&Compress { states: &packed, ..good }), &["FP4 rows"]);
}

/// Infinities, NaN and huge values run through every float path without a panic.
#[test]
fn values_that_are_no_numbers() {
    let mut numbers = Numbers(1);
    let mut bench = Bench::new(CpuConfig::default());
    bench.cpu.begin(&Step::single(&[0; 3], 0)).expect("a step");
    let mut values = numbers.floats(3 * 128, 1e30);
    (values[0], values[130], values[300]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let x = bench.floats(&values);
    let norm = bench.floats(&[1.0; 128]);
    let rope = bench.cpu.rope(&[1.0; 32]).expect("a table");
    let kv = bench.zeros(3 * 128);
    let keys = KvRows { x, norm, eps: 1e-6, rope, round_trip: true, out: kv };
    bench.cpu.kv_rows(&keys).expect("fits");
    let matrix = bench.matrix(Format::Q8_0, [1, 3, 128], &numbers.floats(3 * 128, 1.0));
    let out = bench.zeros(9);
    bench.cpu.project(&Project { x, rows: 3, outputs: &[(matrix, out)] }).expect("fits");
    assert!(bench.read(out).iter().any(|v| !v.is_finite()), "a fault shows");
    let rows = [bench.empty(Element::Fp4Row, 3)];
    let select = IndexSelect {
        q: x,
        weights: out,
        heads: 1,
        width: 128,
        rope,
        ratio: 1,
        top_k: 1,
        rows: &rows,
        out: bench.empty(Element::U32, 3),
    };
    bench.cpu.index_select(&select).expect("fits");
    let attend = Attend {
        q: x,
        kv,
        sinks: norm,
        heads: 1,
        rope,
        window: 2,
        mutual: false,
        rings: &[bench.zeros(2 * 128)],
        capacity: 2,
        compressed: None,
        out: bench.zeros(3 * 128),
    };
    bench.cpu.attend(&attend).expect("fits");
}
