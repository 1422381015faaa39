//! Microseconds of each operation that is not a matrix product, for one row and for many:
//! `cargo run --release -p ironstar-device --example op_speed -- [nano|flash] [scalar|avx2|avx512]
//! [threads]`.
//!
//! First what a region costs whose parts do nothing. Positions are 4,000 and 20,000 tokens;
//! attention of ratio-4 layers reads its top rows, of ratio-128 layers all rows.
#![expect(clippy::print_stdout, reason = "an example shows its numbers")]

use ironstar_device::*;
use ironstar_quant::Format;
use std::sync::Arc;
use std::time::Instant;

struct Shape {
    d: usize,
    heads: usize,
    width: usize,
    index_heads: usize,
    top_k: usize,
    window: usize,
    experts: usize,
    chosen: usize,
    inner: usize,
    position: usize,
}

const NANO: Shape = Shape {
    d: 256,
    heads: 8,
    width: 128,
    index_heads: 4,
    top_k: 64,
    window: 64,
    experts: 16,
    chosen: 2,
    inner: 256,
    position: 4_000,
};

const FLASH: Shape = Shape {
    d: 4096,
    heads: 64,
    width: 512,
    index_heads: 64,
    top_k: 512,
    window: 128,
    experts: 16,
    chosen: 6,
    inner: 2048,
    position: 20_000,
};

/// Values between -1 and 1.
fn value(i: usize) -> f32 {
    f32::from(u8::try_from(i * 37 % 251).expect("below 251")) / 125.0 - 1.0
}

struct Bench {
    cpu: Cpu,
    arena: Arena,
    n: usize,
}

impl Bench {
    fn buffer(&mut self, element: Element, len: usize) -> Buffer {
        self.cpu.alloc(self.arena, element, len).expect("memory")
    }

    fn floats(&mut self, len: usize) -> Buffer {
        let buffer = self.buffer(Element::F32, len);
        let value =
            |i: usize| f32::from(u8::try_from(i * 37 % 251).expect("below 251")) / 125.0 - 1.0;
        let values: Vec<f32> = (0..len).map(value).collect();
        self.cpu.write_f32(buffer, 0, &values).expect("fits");
        buffer
    }

    fn matrix(&mut self, format: Format, [stack, rows, columns]: [usize; 3]) -> Matrix {
        let values: Vec<f32> = (0..columns).map(value).map(|v| v / 16.0).collect();
        let mut row = vec![0; format.row_bytes(columns).expect("whole blocks")];
        (format.info().encode.expect("an encoder"))(&values, None, &mut row);
        let bytes: Arc<Vec<u8>> = Arc::new(row.repeat(rows * stack));
        self.cpu
            .matrix(MatrixSource { name: "speed", format, rows, columns, stack, bytes })
            .expect("fits")
    }

    /// The best of several rounds, in microseconds a row.
    fn time(&mut self, what: &str, mut run: impl FnMut(&mut Cpu) -> Result<(), Error>) {
        let mut best = f64::INFINITY;
        let start = Instant::now();
        let mut rounds = 0;
        while rounds < 3 || (start.elapsed().as_millis() < 300 && rounds < 200) {
            let begin = Instant::now();
            run(&mut self.cpu).expect("fits");
            best = best.min(begin.elapsed().as_secs_f64() * 1e6);
            rounds += 1;
        }
        let rows = u32::try_from(self.n).expect("few");
        println!("  {what:<28} {best:10.1} us, {:9.2} us a row", best / f64::from(rows));
    }
}

fn hyper_connections(bench: &mut Bench, shape: &Shape) {
    let (n, d, streams) = (bench.n, shape.d, 4);
    let weights = HcWeights {
        matrix: bench.matrix(Format::F16, [1, 24, 4 * d]),
        base: bench.floats(24),
        scale: bench.floats(3),
    };
    let x = bench.floats(n * 4 * d);
    let pre = HcPre {
        x,
        streams,
        weights,
        norm: bench.floats(d),
        norm_eps: 1e-6,
        hc_eps: 1e-6,
        iterations: 20,
        out: bench.floats(n * d),
        post: bench.floats(n * 4),
        comb: bench.floats(n * 16),
    };
    bench.time("hc_pre", |cpu| cpu.hc_pre(&pre));
    let HcPre { post, comb, out: z, .. } = pre;
    bench.time("hc_post", |cpu| cpu.hc_post(&HcPost { z, x, streams, width: d, post, comb }));
    let (weight, out, eps) = (pre.norm, pre.out, 1e-6);
    bench.time("rms_norm", |cpu| cpu.rms_norm(&RmsNorm { x, rows: n, weight, eps, out }));
}

fn attention(bench: &mut Bench, shape: &Shape) {
    let (n, heads, width) = (bench.n, shape.heads, shape.width);
    let rope = bench.cpu.rope(&[0.3; 32]).expect("a table");
    let q = bench.floats(n * heads * width);
    let eps = Some(1e-6);
    bench.time("query_heads", |cpu| cpu.query_heads(&QueryHeads { q, heads, width, eps, rope }));
    let kv = bench.buffer(Element::Bf16, n * width);
    let (x, norm) = (bench.floats(n * width), bench.floats(width));
    let keys = KvRows { x, norm, eps: 1e-6, rope, round_trip: true, out: kv };
    bench.time("kv_rows", |cpu| cpu.kv_rows(&keys));
    let capacity = shape.window + ROLLBACK_ROWS;
    let rings = [bench.buffer(Element::Bf16, capacity * width)];
    let end = shape.position + n;
    let rows = [bench.buffer(Element::Bf16, end / 4 * width)];
    let choice = bench.buffer(Element::U32, n * shape.top_k);
    let ids: Vec<u8> = (0..n * shape.top_k)
        .flat_map(|i| u32::try_from(i % shape.top_k * 2).expect("small").to_le_bytes())
        .collect();
    bench.cpu.write(choice, 0, &ids).expect("fits");
    let mut attend = Attend {
        q,
        kv,
        sinks: bench.floats(heads),
        heads,
        rope,
        window: shape.window,
        mutual: false,
        rings: &rings,
        capacity,
        compressed: None,
        out: bench.floats(n * heads * width),
    };
    bench.time("attend, window", |cpu| cpu.attend(&attend));
    let choice = Some((choice, shape.top_k));
    attend.compressed = Some(CompressedRows { rows: &rows, ratio: 4, choice });
    bench.time("attend, ratio 4", |cpu| cpu.attend(&attend));
    attend.compressed = Some(CompressedRows { rows: &rows, ratio: 128, choice: None });
    bench.time("attend, ratio 128", |cpu| cpu.attend(&attend));
    bench.time("store_window", |cpu| {
        cpu.store_window(&StoreWindow { kv, width, rings: &rings, capacity })
    });
    let index = [bench.buffer(Element::Fp4Row, end / 4)];
    let select = IndexSelect {
        q: bench.floats(n * shape.index_heads * 128),
        weights: bench.floats(n * shape.index_heads),
        heads: shape.index_heads,
        width: 128,
        rope,
        ratio: 4,
        top_k: shape.top_k,
        rows: &index,
        out: bench.buffer(Element::U32, n * shape.top_k),
    };
    bench.time("index_select", |cpu| cpu.index_select(&select));
}

fn compressors(bench: &mut Bench, shape: &Shape) {
    let (n, end) = (bench.n, shape.position + bench.n);
    let rope = bench.cpu.rope(&[0.3; 32]).expect("a table");
    for (what, width, ratio, kind) in [
        ("compress, ratio 4", shape.width, 4, RowKind::Kv { round_trip: true }),
        ("compress, ratio 128", shape.width, 128, RowKind::Kv { round_trip: true }),
        ("compress, indexer", 128, 4, RowKind::Index),
    ] {
        let parts = if ratio == 4 { 2 } else { 1 };
        let capacity = parts * ratio + ROLLBACK_ROWS;
        let rows = match kind {
            RowKind::Index => bench.buffer(Element::Fp4Row, end / ratio),
            RowKind::Kv { .. } => bench.buffer(Element::Bf16, end / ratio * width),
        };
        let state = CompressState {
            values: bench.floats(capacity * parts * width),
            scores: bench.floats(capacity * parts * width),
            capacity,
            rows,
        };
        let compress = Compress {
            values: bench.floats(n * parts * width),
            scores: bench.floats(n * parts * width),
            positions: bench.floats(ratio * parts * width),
            norm: bench.floats(width),
            eps: 1e-6,
            rope,
            ratio,
            parts,
            width,
            kind,
            states: &[state],
        };
        bench.time(what, |cpu| cpu.compress(&compress));
    }
}

fn experts(bench: &mut Bench, shape: &Shape) {
    let (n, d) = (bench.n, shape.d);
    let logits = bench.floats(n * shape.experts);
    let bias = bench.floats(shape.experts);
    let route = Route {
        logits,
        experts: shape.experts,
        by: RouteBy::Score { bias },
        top_k: shape.chosen,
        scale: 1.5,
        ids: bench.buffer(Element::U32, n * shape.chosen),
        weights: bench.floats(n * shape.chosen),
    };
    bench.time("route", |cpu| cpu.route(&route));
    let mut ffn = |format, stack| Ffn {
        gate: bench.matrix(format, [stack, shape.inner, d]),
        up: bench.matrix(format, [stack, shape.inner, d]),
        down: bench.matrix(format, [stack, d, shape.inner]),
    };
    let (routed, shared) = (ffn(Format::Mxfp4, shape.experts), ffn(Format::Q8_0, 1));
    let experts = Experts {
        x: bench.floats(n * d),
        routed,
        shared,
        ids: route.ids,
        weights: route.weights,
        top_k: shape.chosen,
        limit: 10.0,
        out: bench.floats(n * d),
    };
    bench.time("experts", |cpu| cpu.experts(&experts));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let shape = if has("flash") { &FLASH } else { &NANO };
    let isa = Isa::ALL.into_iter().find(|isa| has(isa.name()));
    let threads = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(0);
    let config = CpuConfig { threads, isa, float_products: false };
    let mut cpu = Cpu::new(config).expect("an instruction set of this machine");
    let nanoseconds = cpu.region_cost(10_000).as_nanos();
    println!("a region of {} threads takes {nanoseconds} ns", cpu.threads());
    for n in [1, 8, 128] {
        let mut cpu = Cpu::new(config).expect("an instruction set of this machine");
        println!("{n} rows, {}, {} threads", cpu.isa().name(), cpu.threads());
        let arena = cpu.arena();
        let mut bench = Bench { cpu, arena, n };
        bench.cpu.begin(&Step::single(&vec![0; n], shape.position)).expect("a step");
        hyper_connections(&mut bench, shape);
        attention(&mut bench, shape);
        compressors(&mut bench, shape);
        experts(&mut bench, shape);
    }
}
