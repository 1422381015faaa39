//! Operations at the sizes of a model, ready to run, with what they read and compute.

use ironstar_device::*;
use ironstar_quant::{Format, f32_to_f16};
use std::sync::Arc;

/// Numbers of a model that operations have.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub d: usize,
    pub heads: usize,
    pub width: usize,
    pub q_rank: usize,
    pub groups: usize,
    pub group_rank: usize,
    pub index_heads: usize,
    pub top_k: usize,
    pub window: usize,
    pub experts: usize,
    pub chosen: usize,
    pub inner: usize,
    pub vocabulary: usize,
    pub position: usize,
}

/// The bundled model, behind 4,000 tokens.
pub const NANO: Shape = Shape {
    d: 256,
    heads: 8,
    width: 128,
    q_rank: 128,
    groups: 4,
    group_rank: 128,
    index_heads: 4,
    top_k: 64,
    window: 64,
    experts: 16,
    chosen: 2,
    inner: 256,
    vocabulary: 8192,
    position: 4_000,
};

/// V4 Flash behind 20,000 tokens.
pub const FLASH: Shape = Shape {
    d: 4096,
    heads: 64,
    width: 512,
    q_rank: 1024,
    groups: 8,
    group_rank: 1024,
    index_heads: 64,
    top_k: 512,
    window: 128,
    experts: 256,
    chosen: 6,
    inner: 2048,
    vocabulary: 129_280,
    position: 20_000,
};

/// Which unit computes, for the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Integer products of this format.
    Int8(Format),
    /// Products of bf16.
    Bf16,
    /// Nothing that counts.
    None,
}

/// What a case runs.
pub type Run = Box<dyn FnMut(&mut dyn Backend) -> Result<(), Error>>;

/// An operation that is ready.
pub struct Case {
    /// Bytes of weights or of stored rows that it must read.
    pub bytes: usize,
    /// Multiplications and additions.
    pub operations: usize,
    /// What does them.
    pub unit: Unit,
    pub run: Run,
}

/// An operation at some rows: which one, and how it is made.
pub type Entry = (&'static str, fn(&mut Maker<'_>) -> Case);

/// All of them, in the order of a layer.
pub const TABLE: [Entry; 26] = [
    ("hc_pre", |m| m.hc_pre()),
    ("rms_norm", |m| m.rms_norm()),
    ("project q_a, kv", |m| m.project(&[m.shape.q_rank, m.shape.width], m.shape.d)),
    ("project q_b", |m| m.project(&[m.shape.heads * m.shape.width], m.shape.q_rank)),
    ("project router", |m| m.project_as(Format::F16, &[m.shape.experts], m.shape.d)),
    ("project compressors", |m| {
        let (width, index) = (2 * m.shape.width, 256);
        m.project_as(Format::F16, &[width, width, index, index], m.shape.d)
    }),
    ("project index_q", |m| m.project_as(Format::F16, &[64 * 128], m.shape.q_rank)),
    ("project output", |m| m.project(&[m.shape.vocabulary], m.shape.d)),
    ("query_heads", |m| m.query_heads()),
    ("kv_rows", |m| m.kv_rows()),
    ("compress ratio 4", |m| m.compress(m.shape.width, 4, RowKind::Kv { round_trip: true })),
    ("compress ratio 128", |m| m.compress(m.shape.width, 128, RowKind::Kv { round_trip: true })),
    ("compress indexer", |m| m.compress(128, 4, RowKind::Index)),
    ("index_select", |m| m.index_select()),
    ("attend window", |m| m.attend(0)),
    ("attend ratio 4", |m| m.attend(4)),
    ("attend ratio 128", |m| m.attend(128)),
    ("store_window", |m| m.store_window()),
    ("project_grouped", |m| m.project_grouped()),
    ("project output_b", |m| m.project(&[m.shape.d], m.shape.groups * m.shape.group_rank)),
    ("hc_post", |m| m.hc_post()),
    ("route", |m| m.route()),
    ("experts q2", |m| m.experts(Format::Iq2Xxs, Format::Q2K)),
    ("experts q4", |m| m.experts(Format::Q4K, Format::Q4K)),
    ("experts mxfp4", |m| m.experts(Format::Mxfp4, Format::Mxfp4)),
    ("gather_rows", |m| m.gather_rows()),
];

/// Makes cases on a backend whose step has `n` rows.
pub struct Maker<'a> {
    pub backend: &'a mut dyn Backend,
    pub arena: Arena,
    pub shape: &'static Shape,
    pub n: usize,
    /// Bytes of weights that take turns, so that no cache holds them all.
    pub rotate: usize,
}

/// Random numbers (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Random blocks: any codes, and scales that keep values small.
fn blocks(format: Format, bytes: usize) -> Vec<u8> {
    let size = format.info().block_bytes;
    let mut state = 7;
    let mut tile = vec![0u8; bytes.min(16 << 20) / size * size];
    for eight in tile.chunks_mut(8) {
        eight.copy_from_slice(&next(&mut state).to_le_bytes()[..eight.len()]);
    }
    let scale = f32_to_f16(1e-3).to_le_bytes();
    for block in tile.chunks_exact_mut(size) {
        match format {
            Format::Q2K => block[80..84].copy_from_slice(&[scale, scale].concat()),
            Format::Q4K => block[..4].copy_from_slice(&[scale, scale].concat()),
            Format::Mxfp4 => block[0] = 118,
            // A half between -1 and 1 each.
            Format::F16 => block[1] = block[1] & 0x80 | 0x2c,
            _ => block[..2].copy_from_slice(&scale),
        }
    }
    tile.iter().copied().cycle().take(bytes).collect()
}

impl Maker<'_> {
    fn buffer(&mut self, element: Element, len: usize) -> Buffer {
        self.backend.alloc(self.arena, element, len).expect("memory")
    }

    fn floats(&mut self, len: usize) -> Buffer {
        let buffer = self.buffer(Element::F32, len);
        let value =
            |i: usize| f32::from(u8::try_from(i * 37 % 251).expect("below 251")) / 125.0 - 1.0;
        let values: Vec<f32> = (0..len).map(value).collect();
        self.backend.write_f32(buffer, 0, &values).expect("fits");
        buffer
    }

    fn words(&mut self, values: impl Iterator<Item = usize>) -> Buffer {
        let words = values.map(|value| u32::try_from(value).expect("small"));
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        let buffer = self.buffer(Element::U32, bytes.len() / 4);
        self.backend.write(buffer, 0, &bytes).expect("fits");
        buffer
    }

    fn matrix(&mut self, format: Format, [stack, rows, columns]: [usize; 3]) -> (Matrix, usize) {
        let row = format.row_bytes(columns).expect("whole blocks");
        let bytes = Arc::new(blocks(format, row * rows * stack));
        let source =
            MatrixSource { name: "bench", format, rows, columns, stack, bytes, planes: None };
        (self.backend.matrix(source).expect("memory"), row * rows * stack)
    }

    fn case(
        bytes: usize,
        (operations, unit): (usize, Unit),
        run: impl FnMut(&mut dyn Backend) -> Result<(), Error> + 'static,
    ) -> Case {
        Case { bytes, operations, unit, run: Box::new(run) }
    }

    fn project(&mut self, rows: &[usize], columns: usize) -> Case {
        self.project_as(Format::Q8_0, rows, columns)
    }

    fn project_as(&mut self, format: Format, outputs: &[usize], columns: usize) -> Case {
        let (n, x) = (self.n, self.floats(self.n * columns));
        let bytes: usize =
            outputs.iter().map(|rows| rows * format.row_bytes(columns).expect("blocks")).sum();
        let copies = (self.rotate / bytes).clamp(1, 32);
        let all: Vec<Vec<(Matrix, Buffer)>> = (0..copies)
            .map(|_| {
                let one = |rows: &usize| {
                    let matrix = self.matrix(format, [1, *rows, columns]).0;
                    (matrix, self.buffer(Element::F32, n * rows))
                };
                outputs.iter().map(one).collect()
            })
            .collect();
        let operations = 2 * n * columns * outputs.iter().sum::<usize>();
        let mut turn = 0;
        Self::case(bytes, (operations, Unit::Int8(format)), move |backend| {
            turn = (turn + 1) % copies;
            backend.project(&Project { x, rows: n, outputs: &all[turn] })
        })
    }

    fn project_grouped(&mut self) -> Case {
        let Shape { heads, width, groups, group_rank, .. } = *self.shape;
        let columns = heads * width / groups;
        let sizes = [1, groups * group_rank, columns];
        let (x, out) = (self.floats(self.n * heads * width), self.floats(self.n * sizes[1]));
        let (first, bytes) = self.matrix(Format::Q8_0, sizes);
        let copies = (self.rotate / bytes).clamp(1, 8);
        let more: Vec<Matrix> = (1..copies).map(|_| self.matrix(Format::Q8_0, sizes).0).collect();
        let all = [vec![first], more].concat();
        let (mut turn, operations) = (0, 2 * self.n * sizes[1] * columns);
        Self::case(bytes, (operations, Unit::Int8(Format::Q8_0)), move |backend| {
            turn = (turn + 1) % copies;
            backend.project_grouped(&ProjectGrouped { x, matrix: all[turn], groups, out })
        })
    }

    fn hc_pre(&mut self) -> Case {
        let (n, d, streams) = (self.n, self.shape.d, 4);
        let (matrix, bytes) = self.matrix(Format::F16, [1, 24, 4 * d]);
        let weights = HcWeights { matrix, base: self.floats(24), scale: self.floats(3) };
        let pre = HcPre {
            x: self.floats(n * 4 * d),
            streams,
            weights,
            norm: self.floats(d),
            norm_eps: 1e-6,
            hc_eps: 1e-6,
            iterations: 20,
            out: self.floats(n * d),
            post: self.floats(n * 4),
            comb: self.floats(n * 16),
        };
        let moved = bytes + n * 5 * d * 4;
        Self::case(moved, (0, Unit::None), move |backend| backend.hc_pre(&pre))
    }

    fn hc_post(&mut self) -> Case {
        let (n, width, streams) = (self.n, self.shape.d, 4);
        let (z, x) = (self.floats(n * width), self.floats(n * 4 * width));
        let (post, comb) = (self.floats(n * 4), self.floats(n * 16));
        let post = HcPost { z, x, streams, width, post, comb };
        Self::case(n * 9 * width * 4, (0, Unit::None), move |backend| backend.hc_post(&post))
    }

    fn rms_norm(&mut self) -> Case {
        let (rows, d) = (self.n, self.shape.d);
        let (x, weight, out) = (self.floats(rows * d), self.floats(d), self.floats(rows * d));
        let norm = RmsNorm { x, rows, weight, eps: 1e-6, out };
        Self::case(rows * 2 * d * 4, (0, Unit::None), move |backend| backend.rms_norm(&norm))
    }

    fn rope(&mut self) -> Rope {
        self.backend.rope(&[0.3; 32]).expect("a table")
    }

    fn query_heads(&mut self) -> Case {
        let Shape { heads, width, .. } = *self.shape;
        let (q, rope) = (self.floats(self.n * heads * width), self.rope());
        let heads = QueryHeads { q, heads, width, eps: Some(1e-6), rope };
        let bytes = self.n * heads.heads * width * 8;
        Self::case(bytes, (0, Unit::None), move |backend| backend.query_heads(&heads))
    }

    fn kv_rows(&mut self) -> Case {
        let (n, width, rope) = (self.n, self.shape.width, self.rope());
        let (x, norm) = (self.floats(n * width), self.floats(width));
        let out = self.buffer(Element::Bf16, n * width);
        let rows = KvRows { x, norm, eps: 1e-6, rope, round_trip: true, out };
        Self::case(n * width * 6, (0, Unit::None), move |backend| backend.kv_rows(&rows))
    }

    fn capacity(&self) -> usize {
        self.shape.window + ROLLBACK_ROWS
    }

    fn attend(&mut self, ratio: usize) -> Case {
        let (n, rope) = (self.n, self.rope());
        let Shape { heads, width, window, top_k, position, .. } = *self.shape;
        let (q, kv) = (self.floats(n * heads * width), self.buffer(Element::Bf16, n * width));
        let (sinks, out) = (self.floats(heads), self.floats(n * heads * width));
        let capacity = self.capacity();
        let rings = [self.buffer(Element::Bf16, capacity * width)];
        let visible = (position + n).checked_div(ratio).unwrap_or(0);
        let rows = [self.buffer(Element::Bf16, visible.max(1) * width)];
        let choice = self.words((0..n * top_k).map(|i| i % top_k * 2));
        let keys = window + if ratio == 4 { top_k } else { visible };
        let operations = 4 * n * heads * keys * width;
        Self::case(keys * width * 2, (operations, Unit::Bf16), move |backend| {
            let choice = (ratio == 4).then_some((choice, top_k));
            let compressed = CompressedRows { rows: &rows, ratio, choice };
            let compressed = (ratio > 0).then_some(compressed);
            let (rings, mutual) = (&rings, false);
            let attend = Attend {
                q,
                kv,
                sinks,
                heads,
                rope,
                window,
                mutual,
                rings,
                capacity,
                compressed,
                out,
            };
            backend.attend(&attend)
        })
    }

    fn store_window(&mut self) -> Case {
        let (width, capacity) = (self.shape.width, self.capacity());
        let kv = self.buffer(Element::Bf16, self.n * width);
        let rings = [self.buffer(Element::Bf16, capacity * width)];
        Self::case(self.n * width * 4, (0, Unit::None), move |backend| {
            backend.store_window(&StoreWindow { kv, width, rings: &rings, capacity })
        })
    }

    fn index_select(&mut self) -> Case {
        let (n, rope) = (self.n, self.rope());
        let Shape { index_heads: heads, top_k, position, .. } = *self.shape;
        let visible = (position + n) / 4;
        let rows = [self.buffer(Element::Fp4Row, visible)];
        let (q, weights) = (self.floats(n * heads * 128), self.floats(n * heads));
        let out = self.buffer(Element::U32, n * top_k);
        let work = (2 * n * heads * 128 * visible, Unit::Int8(Format::Q8_0));
        Self::case(visible * 68, work, move |backend| {
            let (width, ratio, rows) = (128, 4, &rows[..]);
            let select = IndexSelect { q, weights, heads, width, rope, ratio, top_k, rows, out };
            backend.index_select(&select)
        })
    }

    fn compress(&mut self, width: usize, ratio: usize, kind: RowKind) -> Case {
        let (n, rope, end) = (self.n, self.rope(), self.shape.position + self.n);
        let parts = if ratio == 4 { 2 } else { 1 };
        let capacity = parts * ratio + ROLLBACK_ROWS;
        let rows = match kind {
            RowKind::Index => self.buffer(Element::Fp4Row, end / ratio),
            RowKind::Kv { .. } => self.buffer(Element::Bf16, end / ratio * width),
        };
        let mut floats = |rows: usize| self.floats(rows * parts * width);
        let states =
            [CompressState { values: floats(capacity), scores: floats(capacity), capacity, rows }];
        let (values, scores, positions) = (floats(n), floats(n), floats(ratio));
        let (norm, eps) = (self.floats(width), 1e-6);
        let bytes = n * parts * width * 16;
        Self::case(bytes, (0, Unit::None), move |backend| {
            let states = &states;
            let compress = Compress {
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
            backend.compress(&compress)
        })
    }

    fn route(&mut self) -> Case {
        let (n, Shape { experts, chosen, .. }) = (self.n, *self.shape);
        let (logits, bias) = (self.floats(n * experts), self.floats(experts));
        let ids = self.buffer(Element::U32, n * chosen);
        let weights = self.floats(n * chosen);
        let by = RouteBy::Score { bias };
        let route = Route { logits, experts, by, top_k: chosen, scale: 1.5, ids, weights };
        Self::case(n * experts * 4, (0, Unit::None), move |backend| backend.route(&route))
    }

    /// Routed experts of these formats and a shared one of Q8_0; all experts come in turn.
    fn experts(&mut self, gate: Format, down: Format) -> Case {
        let (n, Shape { d, experts, chosen, inner, .. }) = (self.n, *self.shape);
        let mut bytes = [0; 2];
        let mut ffn = |formats: [Format; 2], stack, bytes: &mut usize| {
            let mut one = |format, rows, columns| {
                let (matrix, all) = self.matrix(format, [stack, rows, columns]);
                *bytes += all;
                matrix
            };
            let (gate, up) = (one(formats[0], inner, d), one(formats[0], inner, d));
            Ffn { gate, up, down: one(formats[1], d, inner) }
        };
        let routed = ffn([gate, down], experts, &mut bytes[0]);
        let shared = ffn([Format::Q8_0; 2], 1, &mut bytes[1]);
        let turns = if self.rotate == 0 { 1 } else { experts / chosen };
        let slots = |turn: usize| {
            (0..n).flat_map(move |row| {
                // Neighbours in a row, other ones in the next: ascending, as a router gives them.
                let mut ids: Vec<usize> =
                    (0..chosen).map(|slot| (slot + (row + turn) * chosen) % experts).collect();
                ids.sort_unstable();
                ids
            })
        };
        let ids: Vec<Buffer> = (0..turns).map(|turn| self.words(slots(turn))).collect();
        let read = experts.min(n * chosen);
        let (x, weights, out) = (self.floats(n * d), self.floats(n * chosen), self.floats(n * d));
        let operations = 2 * 3 * n * (chosen + 1) * d * inner;
        let mut turn = 0;
        let bytes = bytes[0] / experts * read + bytes[1];
        Self::case(bytes, (operations, Unit::Int8(gate)), move |backend| {
            turn = (turn + 1) % turns;
            let (top_k, limit, ids) = (chosen, 10.0, ids[turn]);
            backend.experts(&Experts { x, routed, shared, ids, weights, top_k, limit, out })
        })
    }

    fn gather_rows(&mut self) -> Case {
        let (n, width) = (self.n, 4 * self.shape.d);
        let (x, out) = (self.floats(n * width), self.floats(n * width));
        let rows: Vec<usize> = (0..n).rev().collect();
        Self::case(n * width * 8, (0, Unit::None), move |backend| {
            backend.gather_rows(&GatherRows { x, width, rows: &rows, out, at: 0 })
        })
    }
}
