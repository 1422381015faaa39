use super::*;
use crate::{Arena, Backend, Buffer, GpuConfig, Rope, Span, Step};

const WIDTH: usize = 128;
const RATIO: usize = 4;
const TOP_K: usize = 6;

/// Numbers from a seed, 0 to 255.
struct Bytes(u64);

impl Iterator for Bytes {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Some(self.0.to_le_bytes()[6])
    }
}

impl Bytes {
    fn floats(&mut self, len: usize) -> Vec<f32> {
        self.by_ref().take(len).map(|byte| f32::from(byte) / 64.0 - 2.0).collect()
    }
}

fn floats(gpu: &mut Gpu, arena: Arena, values: &[f32]) -> Buffer {
    let buffer = gpu.alloc(arena, Element::F32, values.len()).expect("there is memory for a test");
    gpu.write_f32(buffer, 0, values).expect("the buffers fit the shapes");
    buffer
}

/// Compressed rows of FP4 with exponents from `least` on, so many of them.
fn keys(gpu: &mut Gpu, arena: Arena, bytes: &mut Bytes, [least, many]: [u8; 2]) -> Buffer {
    let rows = 40;
    let mut raw: Vec<u8> = bytes.by_ref().take(rows * fp4::INDEXER_BYTES).collect();
    for row in raw.chunks_exact_mut(fp4::INDEXER_BYTES) {
        row[64..].iter_mut().for_each(|exponent| *exponent = least + *exponent % many);
    }
    let buffer = gpu.alloc(arena, Element::Fp4Row, rows).expect("there is memory for a test");
    gpu.write(buffer, 0, &raw).expect("the buffers fit the shapes");
    buffer
}

/// Rows of two spans and their first positions, and heads.
struct Case {
    spans: [(std::ops::Range<usize>, usize); 2],
    heads: usize,
}

/// The scores of all rows that choose, bit by bit, and the choice; `kernel` made the scores.
fn scored(
    case: &Case,
    (disabled, kernel): (Shortcuts, &str),
    exponents: [u8; 2],
) -> (Vec<u32>, Vec<u8>) {
    let mut gpu = Gpu::host(GpuConfig { disabled, ..GpuConfig::default() })
        .expect("the machine has a compiler");
    let arena = gpu.arena();
    let spans = case.spans.clone().map(|(rows, position)| Span { rows, position });
    let (n, heads) = (spans[1].rows.end, case.heads);
    gpu.begin(&Step { tokens: vec![0; n], spans: spans.to_vec() })
        .expect("a step of few rows is taken");
    let frequencies: Vec<f32> = (0..16).map(|i| 0.7f32.powi(i)).collect();
    let rope: Rope = gpu.rope(&frequencies).expect("a table is few numbers");
    let mut bytes = Bytes(9);
    let rows = [(); 2].map(|()| keys(&mut gpu, arena, &mut bytes, exponents));
    let q = floats(&mut gpu, arena, &bytes.floats(n * heads * WIDTH));
    let weights = floats(&mut gpu, arena, &bytes.floats(n * heads));
    let out = gpu.alloc(arena, Element::U32, n * TOP_K).expect("there is memory for a test");
    let select = IndexSelect {
        q,
        weights,
        heads,
        width: WIDTH,
        rope,
        ratio: RATIO,
        top_k: TOP_K,
        rows: &rows,
        out,
    };
    gpu.index_select(&select).expect("the buffers fit the shapes");
    let mut choice = vec![0; 4 * n * TOP_K];
    gpu.read(out, 0, &mut choice).expect("the buffers fit the shapes");
    let (address, _) = gpu.scratch[&Scratch::Scores];
    let mut all = vec![0; 4 * n * 40];
    gpu.driver.download(address, &mut all).expect("the buffers fit the shapes");
    let visible = |row: usize| {
        let span =
            spans.iter().find(|span| span.rows.contains(&row)).expect("every row is of a span");
        (span.position + row - span.rows.start + 1) / RATIO
    };
    let words = all.as_chunks::<4>().0;
    let chooses = (0..n).filter(|row| visible(*row) > TOP_K);
    let seen = chooses.flat_map(|row| &words[row * 40..][..visible(row)]);
    let names = gpu.launches().kernels;
    assert!(names.iter().any(|(name, count)| *name == kernel && *count > 0), "{names:?}");
    (seen.map(|word| u32::from_le_bytes(*word)).collect(), choice)
}

/// Scores on matrix units are those of a thread a key, also where scales leave the range of floats:
/// of many rows whose spans share a tile, and of few rows with more heads than a group has at once.
#[test]
fn scores_on_matrix_units() {
    let many = Case { spans: [(0..13, 20), (13..18, 121)], heads: 10 };
    let few = Case { spans: [(0..1, 159), (1..3, 121)], heads: 71 };
    let plain = "index_scores_fp4";
    let cases = [
        (&many, "index_scores_four", Shortcuts::SCORES, Shortcuts::NONE),
        (&many, "index_scores_tiles", Shortcuts::SCORES, Shortcuts::FOUR),
        (&few, "index_scores_few", Shortcuts::INDEX, Shortcuts::NONE),
    ];
    for ((case, kernel, left, disabled), exponents) in cases
        .into_iter()
        .flat_map(|case| [[120, 5], [120, 9], [0, 255]].map(|exponents| (case, exponents)))
    {
        let (found, choice) = scored(case, (disabled, kernel), exponents);
        let (wanted, other) = scored(case, (left, plain), exponents);
        assert!(found.iter().any(|bits| *bits != found[0]), "a constant compares nothing");
        let nan = |bits: &u32| f32::from_bits(*bits).is_nan();
        let same = found.iter().zip(&wanted).all(|(a, b)| a == b || (nan(a) && nan(b)));
        assert!(same, "exponents of {exponents:?}: other bits");
        assert_eq!(choice, other);
    }
}

/// The choice of rows of which the first sees so many of a few kinds of keys, and whether this
/// kernel made it.
fn chosen(
    [visible, heads, top_k, kinds]: [usize; 4],
    n: usize,
    (disabled, kernel): (Shortcuts, &str),
    exponents: [u8; 2],
) -> (Vec<u8>, bool) {
    let mut gpu = Gpu::host(GpuConfig { disabled, ..GpuConfig::default() })
        .expect("the machine has a compiler");
    let arena = gpu.arena();
    let position = RATIO * visible + 1;
    gpu.begin(&Step { tokens: vec![0; n], spans: vec![Span { rows: 0..n, position }] })
        .expect("a step of few rows is taken");
    let frequencies: Vec<f32> = (0..16).map(|i| 0.7f32.powi(i)).collect();
    let rope: Rope = gpu.rope(&frequencies).expect("a table is few numbers");
    let mut bytes = Bytes(9);
    let mut own: Vec<u8> = bytes.by_ref().take(kinds * fp4::INDEXER_BYTES).collect();
    for row in own.chunks_exact_mut(fp4::INDEXER_BYTES) {
        row[64..].iter_mut().for_each(|e| *e = exponents[0] + *e % exponents[1]);
    }
    let own = own.as_chunks::<{ fp4::INDEXER_BYTES }>().0;
    let keys = visible + n / RATIO + 3;
    let which: Vec<u8> = bytes.by_ref().take(2 * keys).collect();
    let which = which.as_chunks::<2>().0.iter().map(|two| usize::from(u16::from_le_bytes(*two)));
    let raw: Vec<u8> = which.flat_map(|two| own[two % kinds]).collect();
    let rows = gpu.alloc(arena, Element::Fp4Row, keys).expect("there is memory for a test");
    gpu.write(rows, 0, &raw).expect("the buffers fit the shapes");
    let q = floats(&mut gpu, arena, &bytes.floats(n * heads * WIDTH));
    let weights = floats(&mut gpu, arena, &bytes.floats(n * heads));
    let out = gpu.alloc(arena, Element::U32, n * top_k).expect("there is memory for a test");
    let (width, ratio, rows) = (WIDTH, RATIO, &[rows]);
    let select = IndexSelect { q, weights, heads, width, rope, ratio, top_k, rows, out };
    gpu.index_select(&select).expect("the buffers fit the shapes");
    let mut choice = vec![0; 4 * n * top_k.min(visible)];
    gpu.read(out, 0, &mut choice).expect("the buffers fit the shapes");
    let names = gpu.launches().kernels;
    (choice, names.iter().any(|(name, count)| *name == kernel && *count > 0))
}

/// A cluster chooses what three launches do: with ties, scores that are no numbers, a group's last
/// eight keys and groups without any.
#[test]
fn a_cluster_chooses() {
    let plain = [120, 9];
    let cases = [
        ([525, 64, 512, 900], plain),
        ([525, 64, 512, 900], [0, 255]),
        ([513, 10, 512, 3], plain),
        ([130, 7, 33, 2], plain),
        ([40, 64, 6, 40], plain),
        ([640, 33, 512, 640], plain),
        ([2048, 64, 512, 200], plain),
    ];
    for (shape, exponents) in cases {
        let (found, cluster) = chosen(shape, 1, (Shortcuts::NONE, CLUSTER), exponents);
        assert!(cluster, "{shape:?}");
        let (wanted, cluster) = chosen(shape, 1, (Shortcuts::CLUSTER, CLUSTER), exponents);
        assert!(!cluster, "{shape:?}");
        assert_eq!(found, wanted, "{shape:?}, exponents of {exponents:?}");
    }
    let (_, cluster) = chosen([2049, 4, 512, 200], 1, (Shortcuts::NONE, CLUSTER), plain);
    assert!(!cluster, "too many for a cluster");
}

/// Many rows choose what a group by the digits of its keys does: with ties and scores that are no
/// numbers, also where a thread does not have all of its keys in registers.
#[test]
fn many_rows_choose() {
    let cases = [
        ([525, 2, 129, 900], [120, 9]),
        ([525, 2, 128, 3], [120, 9]),
        ([600, 2, 130, 600], [0, 255]),
        ([8210, 2, 512, 300], [120, 9]),
    ];
    for (shape, exponents) in cases {
        let n = SOME_ROWS + 1;
        let kernel = "index_choose_many";
        let (found, many) = chosen(shape, n, (Shortcuts::NONE, kernel), exponents);
        assert!(many, "{shape:?}");
        let (wanted, many) = chosen(shape, n, (Shortcuts::SCORES, kernel), exponents);
        assert!(!many, "{shape:?}");
        assert_eq!(found, wanted, "{shape:?}, exponents of {exponents:?}");
    }
}
