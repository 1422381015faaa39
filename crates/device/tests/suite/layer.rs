//! Operations with state, run as one attention layer: key rows, two compressors, indexer,
//! attention, window. Any cut into steps, any neighbours in a step, any threads and instruction
//! set, and steps that are dropped and run again give the bits of one step of scalar code on one
//! thread.

use crate::common::{Bench, Numbers, bits, configurations, cut, near};
use ironstar_device::*;
use ironstar_quant::fp4;
use std::ops::Range;

#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: usize,
    /// Width of keys and of indexer rows.
    width: usize,
    pairs: usize,
    window: usize,
    ratio: usize,
    parts: usize,
    index_heads: usize,
    /// 0: no indexer, every visible row is read.
    top_k: usize,
    /// Storage of keys, and of indexer rows.
    rows: Element,
    index_rows: Element,
    tokens: usize,
}

const SHAPES: [Shape; 6] = [
    Shape {
        heads: 8,
        width: 128,
        pairs: 32,
        window: 32,
        ratio: 4,
        parts: 2,
        index_heads: 16,
        top_k: 12,
        rows: Element::Bf16,
        index_rows: Element::Fp4Row,
        tokens: 150,
    },
    Shape {
        heads: 3,
        width: 128,
        pairs: 32,
        window: 5,
        ratio: 4,
        parts: 2,
        index_heads: 5,
        top_k: 7,
        rows: Element::F32,
        index_rows: Element::F32,
        tokens: 60,
    },
    Shape {
        heads: 16,
        width: 64,
        pairs: 0,
        window: 9,
        ratio: 8,
        parts: 1,
        index_heads: 1,
        top_k: 0,
        rows: Element::Bf16,
        index_rows: Element::F32,
        tokens: 100,
    },
    Shape {
        heads: 34,
        width: 32,
        pairs: 3,
        window: 1,
        ratio: 1,
        parts: 1,
        index_heads: 2,
        top_k: 3,
        rows: Element::F32,
        index_rows: Element::F32,
        tokens: 40,
    },
    Shape {
        heads: 6,
        width: 512,
        pairs: 32,
        window: 70,
        ratio: 128,
        parts: 1,
        index_heads: 1,
        top_k: 0,
        rows: Element::Bf16,
        index_rows: Element::F32,
        tokens: 140,
    },
    Shape {
        heads: 1,
        width: 8,
        pairs: 4,
        window: 4,
        ratio: 2,
        parts: 1,
        index_heads: 3,
        top_k: 1,
        rows: Element::F32,
        index_rows: Element::F32,
        tokens: 33,
    },
];

/// Random inputs of one session.
struct Inputs {
    q: Vec<f32>,
    kv: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    index_q: Vec<f32>,
    index_weights: Vec<f32>,
}

impl Inputs {
    fn new(shape: &Shape, seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let mut floats = |width: usize, std| numbers.floats(shape.tokens * width, std);
        let wide = shape.parts * shape.width;
        Inputs {
            q: floats(shape.heads * shape.width, 2.0),
            kv: floats(shape.width, 1.0),
            values: floats(wide, 1.0),
            scores: floats(wide, 2.0),
            index_q: floats(shape.index_heads * shape.width, 1.0),
            index_weights: floats(shape.index_heads, 1.0),
        }
    }
}

struct Session {
    inputs: Inputs,
    position: usize,
    ring: Buffer,
    state: CompressState,
    index_state: CompressState,
}

struct Layer {
    shape: Shape,
    rope: Rope,
    norm: Buffer,
    sinks: Buffer,
    table: Buffer,
    sessions: Vec<Session>,
}

impl Layer {
    fn new(bench: &mut Bench, shape: Shape, seeds: &[u64]) -> Self {
        let mut numbers = Numbers(77);
        let wide = shape.parts * shape.width;
        let rows = shape.tokens / shape.ratio;
        let session = |seed: &u64| {
            let capacity = shape.parts * shape.ratio + ROLLBACK_ROWS;
            let mut state = |element| CompressState {
                values: bench.zeros(capacity * wide),
                scores: bench.zeros(capacity * wide),
                capacity,
                rows: match element {
                    Element::Fp4Row => bench.empty(element, rows),
                    _ => bench.empty(element, rows * shape.width),
                },
            };
            let (state, index_state) = (state(shape.rows), state(shape.index_rows));
            let ring = bench.empty(shape.rows, (shape.window + ROLLBACK_ROWS) * shape.width);
            let inputs = Inputs::new(&shape, *seed);
            Session { inputs, position: 0, ring, state, index_state }
        };
        let sessions = seeds.iter().map(session).collect();
        let frequencies: Vec<f32> = numbers.floats(shape.pairs, 1.0);
        Layer {
            shape,
            rope: bench.cpu.rope(&frequencies).expect("a table"),
            norm: bench.floats(&numbers.floats(shape.width, 1.0)),
            sinks: bench.floats(&numbers.floats(shape.heads, 1.0)),
            table: bench.floats(&numbers.floats(shape.ratio * wide, 1.0)),
            sessions,
        }
    }

    /// The next rows of some sessions as one step; the bits of each session's rows.
    fn step(&mut self, bench: &mut Bench, rows: &[(usize, usize)]) -> Vec<Vec<u32>> {
        let shape = self.shape;
        let mut spans = Vec::new();
        let mut n = 0;
        for (session, count) in rows {
            spans.push(Span { rows: n..n + count, position: self.sessions[*session].position });
            n += count;
        }
        let step = Step { tokens: vec![0; n], spans: spans.clone() };
        bench.cpu.begin(&step).expect("a step");
        let ranges: Vec<(usize, Range<usize>)> = rows
            .iter()
            .map(|(session, count)| {
                let position = self.sessions[*session].position;
                (*session, position..position + count)
            })
            .collect();
        let mut gather = |width: usize, of: fn(&Inputs) -> &Vec<f32>| {
            let part = |(session, range): &(usize, Range<usize>)| {
                let all = of(&self.sessions[*session].inputs);
                all[range.start * width..range.end * width].to_vec()
            };
            bench.floats(&ranges.iter().flat_map(part).collect::<Vec<f32>>())
        };
        let wide = shape.parts * shape.width;
        let q = gather(shape.heads * shape.width, |i| &i.q);
        let x = gather(shape.width, |i| &i.kv);
        let values = gather(wide, |i| &i.values);
        let (scores, scores_again) = (gather(wide, |i| &i.scores), gather(wide, |i| &i.scores));
        let index_q = gather(shape.index_heads * shape.width, |i| &i.index_q);
        let index_weights = gather(shape.index_heads, |i| &i.index_weights);

        let of = |pick: fn(&Session) -> CompressState| -> Vec<CompressState> {
            rows.iter().map(|(session, _)| pick(&self.sessions[*session])).collect()
        };
        let (states, index_states) = (of(|s| s.state), of(|s| s.index_state));
        let (rope, norm, eps) = (self.rope, self.norm, 1e-6);
        let round_trip = (shape.width - 2 * shape.pairs).is_multiple_of(64);
        let kv = bench.empty(shape.rows, n * shape.width);
        bench.cpu.kv_rows(&KvRows { x, norm, eps, rope, round_trip, out: kv }).expect("fits");
        let compress = Compress {
            values,
            scores,
            positions: self.table,
            norm,
            eps,
            rope,
            ratio: shape.ratio,
            parts: shape.parts,
            width: shape.width,
            kind: RowKind::Kv { round_trip },
            states: &states,
        };
        bench.cpu.compress(&compress).expect("fits");
        let index = Compress {
            scores: scores_again,
            kind: RowKind::Index,
            states: &index_states,
            ..compress
        };
        bench.cpu.compress(&index).expect("fits");
        let choice = bench.empty(Element::U32, n * shape.top_k.max(1));
        let index_rows: Vec<Buffer> = index_states.iter().map(|state| state.rows).collect();
        if shape.top_k > 0 {
            let select = IndexSelect {
                q: index_q,
                weights: index_weights,
                heads: shape.index_heads,
                width: shape.width,
                rope,
                ratio: shape.ratio,
                top_k: shape.top_k,
                rows: &index_rows,
                out: choice,
            };
            bench.cpu.index_select(&select).expect("fits");
        }
        let compressed_rows: Vec<Buffer> = states.iter().map(|state| state.rows).collect();
        let rings: Vec<Buffer> = rows.iter().map(|(s, _)| self.sessions[*s].ring).collect();
        let capacity = shape.window + ROLLBACK_ROWS;
        let out = bench.zeros(n * shape.heads * shape.width);
        let compressed = CompressedRows {
            rows: &compressed_rows,
            ratio: shape.ratio,
            choice: (shape.top_k > 0).then_some((choice, shape.top_k)),
        };
        let attend = Attend {
            q,
            kv,
            sinks: self.sinks,
            heads: shape.heads,
            rope,
            window: shape.window,
            mutual: false,
            rings: &rings,
            capacity,
            compressed: Some(compressed),
            out,
        };
        bench.cpu.attend(&attend).expect("fits");
        let store = StoreWindow { kv, width: shape.width, rings: &rings, capacity };
        bench.cpu.store_window(&store).expect("fits");

        let (out, choice) = (bench.read(out), bench.read_ids(choice));
        assert!(out.iter().all(|v| v.is_finite()), "numbers that are not finite compare nothing");
        let wide = shape.heads * shape.width;
        let mut outputs = Vec::new();
        for ((session, range), span) in ranges.iter().zip(spans) {
            let mut own = Vec::new();
            for (row, t) in span.rows.zip(range.clone()) {
                own.extend(bits(&out[row * wide..][..wide]));
                let chosen = shape.top_k.min((t + 1) / shape.ratio);
                own.extend(&choice[row * shape.top_k..][..chosen]);
            }
            self.sessions[*session].position = range.end;
            outputs.push(own);
        }
        outputs
    }

    /// All rows a session has appended.
    fn appended(&self, bench: &mut Bench) -> Vec<Vec<u8>> {
        let states = self.sessions.iter().flat_map(|s| [s.state.rows, s.index_state.rows]);
        states.map(|rows| bench.read_bytes(rows)).collect()
    }
}

/// Outputs and appended rows of one session.
fn alone(shape: Shape, config: CpuConfig, seed: u64, steps: &[usize]) -> (Vec<u32>, Vec<Vec<u8>>) {
    alone_in(Bench::new(config), shape, seed, steps)
}

fn alone_in(
    mut bench: Bench,
    shape: Shape,
    seed: u64,
    steps: &[usize],
) -> (Vec<u32>, Vec<Vec<u8>>) {
    let mut layer = Layer::new(&mut bench, shape, &[seed]);
    let step = |n: &usize| layer.step(&mut bench, &[(0, *n)]).remove(0);
    let out = steps.iter().flat_map(step).collect();
    (out, layer.appended(&mut bench))
}

fn scalar() -> CpuConfig {
    CpuConfig { threads: 1, isa: Some(Isa::Scalar), float_products: false }
}

#[test]
fn any_cut_any_threads_any_instruction_set() {
    for (index, shape) in SHAPES.into_iter().enumerate() {
        let wanted = alone(shape, scalar(), 5, &[shape.tokens]);
        let mut numbers = Numbers(index as u64);
        for (turn, config) in configurations().into_iter().enumerate() {
            let steps = match turn % 3 {
                0 => vec![1; shape.tokens],
                1 => cut(&mut numbers, shape.tokens, shape.tokens),
                _ => cut(&mut numbers, shape.tokens, 9),
            };
            let same = alone(shape, config, 5, &steps) == wanted;
            assert!(same, "other bits with {shape:?}, {config:?} and steps {steps:?}");
            let same = alone(shape, config, 5, &[shape.tokens]) == wanted;
            assert!(same, "other bits with {shape:?} and {config:?}");
        }
    }
}

/// Outputs of three sessions whose rows share steps in a random manner.
fn together(mut bench: Bench, shape: Shape, seeds: [u64; 3]) -> [Vec<u32>; 3] {
    let mut layer = Layer::new(&mut bench, shape, &seeds);
    let mut numbers = Numbers(9);
    let mut outputs = [const { Vec::new() }; 3];
    while layer.sessions.iter().any(|session| session.position < shape.tokens) {
        let mut rows = Vec::new();
        for session in [2, 0, 1] {
            let left = shape.tokens - layer.sessions[session].position;
            let count = numbers.below(12).min(left);
            if count > 0 || numbers.below(4) == 0 {
                rows.push((session, count));
            }
        }
        for ((session, _), out) in rows.iter().zip(layer.step(&mut bench, &rows)) {
            outputs[*session].extend(out);
        }
    }
    outputs
}

#[test]
fn neighbours_in_a_step_change_nothing() {
    for shape in [SHAPES[0], SHAPES[3]] {
        let seeds = [5, 6, 7];
        let config = CpuConfig { threads: 2, isa: None, float_products: false };
        let outputs = together(Bench::new(config), shape, seeds);
        for (seed, out) in seeds.iter().zip(&outputs) {
            assert!(*out == alone(shape, scalar(), *seed, &[shape.tokens]).0, "session {seed}");
        }
    }
}

/// Largest difference of attention's output between the GPU's kernels and the CPU, against the
/// largest value: the denominator has other lanes.
const GPU_TOLERANCE: f32 = 1e-6;
/// The same where keys of bf16 go to matrix units, with queries and weights rounded to bf16.
const GPU_ROUNDED: f32 = 5e-3;

/// The GPU's kernels choose the same rows, append the same bytes, and attend alike; any cut into
/// steps gives equal bits.
#[test]
fn the_gpu_agrees() {
    for (index, shape) in SHAPES.into_iter().enumerate() {
        let wanted = alone(shape, scalar(), 5, &[shape.tokens]);
        let whole = alone_in(Bench::gpu(), shape, 5, &[shape.tokens]);
        let rounded = shape.rows == Element::Bf16 && shape.width.is_multiple_of(64);
        let tolerance = if rounded { GPU_ROUNDED } else { GPU_TOLERANCE };
        if let Err(difference) = near(&whole.0, &wanted.0, tolerance) {
            panic!("{shape:?} on a GPU: {difference}");
        }
        assert!(whole.1 == wanted.1, "other rows on a GPU with {shape:?}");
        let mut numbers = Numbers(index as u64);
        for steps in [vec![1; shape.tokens], cut(&mut numbers, shape.tokens, 9)] {
            let same = alone_in(Bench::gpu(), shape, 5, &steps) == whole;
            assert!(same, "other bits on a GPU with {shape:?} and steps {steps:?}");
        }
    }
}

#[test]
fn neighbours_change_nothing_on_a_gpu() {
    for shape in [SHAPES[0], SHAPES[3]] {
        let seeds = [5, 6, 7];
        let outputs = together(Bench::gpu(), shape, seeds);
        for (seed, out) in seeds.iter().zip(&outputs) {
            let alone = alone_in(Bench::gpu(), shape, *seed, &[shape.tokens]).0;
            assert!(*out == alone, "session {seed}");
        }
    }
}

/// Up to `ROLLBACK_ROWS` positions are dropped by going on at a smaller one.
#[test]
fn dropped_positions_leave_no_trace() {
    for shape in SHAPES {
        let wanted = alone(shape, scalar(), 5, &[shape.tokens]);
        let mut bench = Bench::new(CpuConfig::default());
        let mut layer = Layer::new(&mut bench, shape, &[5, 6]);
        let mut numbers = Numbers(3);
        let mut out = Vec::new();
        while layer.sessions[0].position < shape.tokens {
            let position = layer.sessions[0].position;
            let left = shape.tokens - position;
            // Rows of other numbers are run and dropped.
            let wrong = (1 + numbers.below(ROLLBACK_ROWS)).min(left);
            let own = std::mem::replace(&mut layer.sessions[0].inputs, Inputs::new(&shape, 99));
            layer.step(&mut bench, &[(0, wrong)]);
            layer.sessions[0].inputs = own;
            layer.sessions[0].position = position;
            let right = (1 + numbers.below(20)).min(left);
            out.extend(layer.step(&mut bench, &[(0, right)]).remove(0));
        }
        assert!(out == wanted.0, "other bits after dropped rows with {shape:?}");
        assert!(layer.appended(&mut bench)[..2] == wanted.1[..], "other rows with {shape:?}");
    }
}

/// Rows with margins are chosen as plain f64 sums choose them.
#[test]
fn index_choice_against_plain_sums() {
    let (heads, width, keys, top_k) = (6, 128, 90, 20);
    for element in [Element::F32, Element::Fp4Row] {
        let mut numbers = Numbers(element.bytes() as u64);
        let q = numbers.floats(heads * width, 1.0);
        let weights = numbers.floats(heads, 1.0);
        let mut rows = numbers.floats(keys * width, 1.0);
        let mut bench = Bench::new(CpuConfig::default());
        let buffer = match element {
            Element::Fp4Row => {
                let mut bytes = vec![0u8; keys * fp4::INDEXER_BYTES];
                fp4::encode_rows(&rows, &mut bytes);
                fp4::round_trip(&mut rows, fp4::BLOCK);
                let buffer = bench.empty(element, keys);
                bench.cpu.write(buffer, 0, &bytes).expect("fits");
                buffer
            }
            _ => bench.floats(&rows),
        };
        bench.cpu.begin(&Step::single(&[0], keys - 1)).expect("a step");
        let select = IndexSelect {
            q: bench.floats(&q),
            weights: bench.floats(&weights),
            heads,
            width,
            rope: bench.cpu.rope(&[]).expect("an empty table"),
            ratio: 1,
            top_k,
            rows: &[buffer],
            out: bench.empty(Element::U32, top_k),
        };
        bench.cpu.index_select(&select).expect("fits");
        let chosen = bench.read_ids(select.out);
        let mut turned = q.clone();
        turned.chunks_exact_mut(width).for_each(ironstar_quant::hadamard);
        if element == Element::Fp4Row {
            fp4::round_trip(&mut turned, fp4::BLOCK);
        }
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let score = |key: &[f32]| -> f64 {
            let heads = turned.chunks_exact(width).zip(&weights);
            heads.map(|(q, weight)| f64::from(*weight) * dot(q, key).max(0.0)).sum()
        };
        let scores: Vec<f64> = rows.chunks_exact(width).map(score).collect();
        let mut order: Vec<u32> = (0..u32::try_from(keys).expect("small")).collect();
        order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
        let margin = scores[order[top_k - 1] as usize] - scores[order[top_k] as usize];
        assert!(margin > 1e-4, "the numbers here are to leave no doubt");
        let mut wanted = order[..top_k].to_vec();
        wanted.sort_unstable();
        assert_eq!(chosen, wanted, "{element:?}");
    }
}

/// Equal scores go to the lower row, scores that are no numbers last.
#[test]
fn index_choice_of_ties_and_faults() {
    let mut bench = Bench::scalar();
    bench.cpu.begin(&Step::single(&[0], 5)).expect("a step");
    let key = [1.0, 1.0];
    let nan = [f32::NAN, 1.0];
    let rows = bench.floats(&[nan, key, key, [-1.0, -1.0], key, key].concat());
    let select = IndexSelect {
        q: bench.floats(&[1.0, 0.0]),
        weights: bench.floats(&[1.0]),
        heads: 1,
        width: 2,
        rope: bench.cpu.rope(&[]).expect("an empty table"),
        ratio: 1,
        top_k: 3,
        rows: &[rows],
        out: bench.empty(Element::U32, 3),
    };
    bench.cpu.index_select(&select).expect("fits");
    assert_eq!(bench.read_ids(select.out), [1, 2, 4]);
    bench.cpu.begin(&Step::single(&[0], 4)).expect("a step");
    let q = bench.floats(&[1.0, 0.0]);
    let out = bench.empty(Element::U32, 4);
    bench.cpu.index_select(&IndexSelect { q, top_k: 4, out, ..select }).expect("fits");
    assert_eq!(bench.read_ids(out), [1, 2, 3, 4]);
}

/// The GPU's choice of one row is the processor's, with stretches of scores in registers and
/// without, and with as many equal scores as rows that are repeated.
#[test]
fn index_choice_of_long_contexts() {
    let (width, distinct, top_k) = (fp4::INDEXER_DIMS, 37, 512);
    let mut numbers = Numbers(8);
    let mut own = vec![0u8; distinct * fp4::INDEXER_BYTES];
    fp4::encode_rows(&numbers.floats(distinct * width, 1.0), &mut own);
    let (heads, ratio) = (5, 1);
    let (q, weights) = (numbers.floats(heads * width, 1.0), numbers.floats(heads, 1.0));
    let frequencies: Vec<f32> = (0..32).map(|i| 0.8f32.powi(i)).collect();
    let most = 16_500;
    let rows: Vec<u8> = own.iter().copied().cycle().take(most * fp4::INDEXER_BYTES).collect();
    let choices = |mut bench: Bench| -> Vec<Vec<u32>> {
        let buffer = bench.empty(Element::Fp4Row, most);
        bench.cpu.write(buffer, 0, &rows).expect("fits");
        let rope = bench.cpu.rope(&frequencies).expect("a table");
        let (weights, out) = (bench.floats(&weights), bench.empty(Element::U32, top_k));
        let mut choose = |visible: usize| {
            bench.cpu.begin(&Step::single(&[0], visible - 1)).expect("a step");
            let q = bench.floats(&q);
            let rows = &[buffer][..];
            let select = IndexSelect { q, weights, heads, width, rope, ratio, top_k, rows, out };
            bench.cpu.index_select(&select).expect("fits");
            bench.read_ids(out)
        };
        [513, 700, 2_500, most].map(&mut choose).to_vec()
    };
    let wanted = choices(Bench::scalar());
    assert!(wanted.iter().all(|ids| ids.is_sorted() && ids.len() == top_k));
    assert_eq!(choices(Bench::gpu()), wanted);
}
