//! Every format on every instruction set against `ironstar_quant::dot_shards`, bit for bit.

use super::*;
use ironstar_quant::{
    FORMATS, Int8Blocks, Row, dot_shards, f32_to_bf16, f32_to_f16, quantize_int8, tree8,
};
use proptest::prelude::*;
use std::sync::Arc;

const FORMATS_ALL: [Format; 12] = [
    Format::F32,
    Format::F16,
    Format::Bf16,
    Format::Q4_0,
    Format::Q8_0,
    Format::Q2K,
    Format::Q3K,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
    Format::Iq2Xxs,
    Format::Mxfp4,
];
const COLUMNS: [usize; 9] = [32, 40, 64, 96, 256, 512, 768, 1024, 4096];

/// A small generator with a fixed sequence.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ (self.0 >> 29);
        x.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (x >> 31)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[5]
    }

    /// About -4..4, many small.
    #[expect(clippy::cast_precision_loss, reason = "random")]
    fn value(&mut self) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u32 << 24) as f32 - 0.5;
        unit * unit * unit * 32.0
    }
}

/// Where the f16 scales of a block are.
fn halves(format: Format) -> &'static [usize] {
    match format {
        Format::F32 | Format::F16 | Format::Bf16 | Format::Mxfp4 => &[],
        Format::Q4_0 | Format::Q8_0 | Format::Iq2Xxs => &[0],
        Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
    }
}

/// Random rows: any bytes (`wild`), or with scales of ordinary size.
fn random_rows(format: Format, rows: usize, columns: usize, wild: bool, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes: Vec<u8> = (0..rows * format.row_bytes(columns).expect("whole blocks"))
        .map(|_| random.byte())
        .collect();
    if wild {
        return bytes;
    }
    for block in bytes.chunks_exact_mut(format.info().block_bytes) {
        let value = random.value();
        match format {
            Format::F32 => block.copy_from_slice(&value.to_le_bytes()),
            Format::F16 => block.copy_from_slice(&f32_to_f16(value).to_le_bytes()),
            Format::Bf16 => block.copy_from_slice(&f32_to_bf16(value).to_le_bytes()),
            Format::Mxfp4 => block[0] = 120 + block[0] % 8,
            _ => {
                for &at in halves(format) {
                    let scale = f32_to_f16(random.value() * 0.01);
                    block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
        }
    }
    bytes
}

fn random_inputs(rows: usize, columns: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed ^ 0xabcd);
    (0..rows * columns).map(|_| random.value()).collect()
}

fn config(isa: Isa, float_products: bool) -> CpuConfig {
    CpuConfig { threads: 0, isa: Some(isa), float_products }
}

fn source(
    format: Format,
    rows: usize,
    columns: usize,
    stack: usize,
    bytes: &[u8],
) -> MatrixSource<'static> {
    let bytes = Arc::new(bytes.to_vec());
    MatrixSource { name: "test", format, rows, columns, stack, bytes, planes: None }
}

/// [input][row] shards by the definition.
fn expect_shards(
    format: Format,
    bytes: &[u8],
    columns: usize,
    x: &[f32],
    float_products: bool,
) -> Vec<Vec<[f32; 8]>> {
    let info = format.info();
    let row_bytes = format.row_bytes(columns).expect("whole blocks");
    let as_floats = |row: &[u8]| {
        let mut values = vec![0f32; columns];
        (info.decode)(row, &mut values);
        values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()
    };
    x.chunks_exact(columns)
        .map(|x| {
            let rows = bytes.chunks_exact(row_bytes);
            let block = if float_products { None } else { info.activation.block() };
            match block {
                None => rows
                    .map(|row| match info.activation {
                        Activation::F32 => dot_shards(format, row, Row::F32(x)),
                        _ => dot_shards(Format::F32, &as_floats(row), Row::F32(x)),
                    })
                    .collect(),
                Some(block) => {
                    let (mut codes, mut scales) = (vec![0; columns], vec![0.0; columns / block]);
                    quantize_int8(x, block, &mut codes, &mut scales);
                    let x = Int8Blocks { codes: &codes, scales: &scales };
                    rows.map(|row| dot_shards(format, row, Row::Int8(x))).collect()
                }
            }
        })
        .collect()
}

fn planes_of(shards: &[f32; 8], planes: usize) -> Vec<f32> {
    let [a, b, c, d, e, f, g, h] = *shards;
    match planes {
        1 => vec![tree8(shards)],
        2 => vec![tree4(&[a, b, c, d]), tree4(&[e, f, g, h])],
        _ => shards.to_vec(),
    }
}

/// NaNs are equal: which one comes out of two is not part of the contract.
fn assert_same(found: &[f32], wanted: &[f32], what: &dyn std::fmt::Debug) {
    assert_eq!(found.len(), wanted.len());
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let same = found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan();
        assert!(same, "{what:?}, value {at}: {found:e} is not {wanted:e}");
    }
}

fn inputs(pool: &Pool, activation: Activation, x: &[f32], columns: usize) -> Inputs {
    let mut inputs = Inputs::default();
    inputs.prepare(pool, activation, x, x.len() / columns, columns);
    inputs
}

/// The same rows as a matrix of that activation wants them.
fn view<'a>(inputs: &'a Inputs, activation: Activation, x: &'a [f32], columns: usize) -> View<'a> {
    match activation {
        Activation::F32 => View::of_floats(x, x.len() / columns, columns),
        _ => inputs.view(),
    }
}

fn output(planes: usize, out: &mut [f32]) -> Output<'_> {
    match planes {
        1 => Output::Tree(out),
        2 => Output::Halves(out),
        _ => Output::Shards(out),
    }
}

/// All row counts and input counts of one format and width.
fn check_width(format: Format, columns: usize, float_products: bool, wild: bool) {
    const ROWS: usize = 96;
    const INPUTS: usize = 33;
    let pool = Pool::new(2);
    let bytes = random_rows(format, ROWS, columns, wild, columns as u64);
    let x = random_inputs(INPUTS, columns, 7);
    let wanted = expect_shards(format, &bytes, columns, &x, float_products);
    let row_bytes = format.row_bytes(columns).expect("whole blocks");
    for isa in Isa::available() {
        for rows in [1, 16, 17, 96] {
            let source = source(format, rows, columns, 1, &bytes[..rows * row_bytes]);
            let weights =
                Weights::new(&source, &config(isa, float_products), &pool, &mut Packed::default())
                    .expect("fits");
            for n in [1, 2, 3, 5, 8, 16, 33] {
                if isa == Isa::Scalar && n > 3 {
                    continue; // the definition against itself
                }
                let x = &x[..n * columns];
                let made = inputs(&pool, weights.activation(), x, columns);
                let x = view(&made, weights.activation(), x, columns);
                let mut out = vec![f32::NAN; n * rows];
                let out_tree = Output::Tree(&mut out);
                let (stack, groups, picks) = (0, 1, None);
                let job = Job { weights: &weights, stack, groups, x, picks, out: out_tree };
                products(&pool, [job]);
                let wanted: Vec<f32> = wanted[..n]
                    .iter()
                    .flat_map(|rows_of| rows_of[..rows].iter().map(tree8))
                    .collect();
                assert_same(&out, &wanted, &(format, isa, rows, columns, n, float_products));
            }
        }
    }
}

fn widths(format: Format) -> impl Iterator<Item = usize> {
    let block = format.info().block_elements;
    COLUMNS.into_iter().filter(move |columns| columns.is_multiple_of(block))
}

#[test]
fn every_format_equals_the_definition() {
    for format in FORMATS_ALL {
        widths(format).for_each(|columns| check_width(format, columns, false, false));
    }
}

#[test]
fn more_inputs_than_a_part_takes() {
    let (rows, columns, n) = (100, 512, 130);
    let pool = Pool::new(3);
    for format in FORMATS_ALL {
        let bytes = random_rows(format, rows, columns, false, 5);
        let x = random_inputs(n, columns, 6);
        let wanted = expect_shards(format, &bytes, columns, &x, false);
        let wanted: Vec<f32> = wanted.iter().flatten().map(tree8).collect();
        for isa in Isa::available() {
            let source = source(format, rows, columns, 1, &bytes);
            let weights = Weights::new(&source, &config(isa, false), &pool, &mut Packed::default())
                .expect("fits");
            let made = inputs(&pool, weights.activation(), &x, columns);
            let x = view(&made, weights.activation(), &x, columns);
            let mut out = vec![f32::NAN; n * rows];
            let out_tree = Output::Tree(&mut out);
            let (stack, groups, picks) = (0, 1, None);
            let job = Job { weights: &weights, stack, groups, x, picks, out: out_tree };
            products(&pool, [job]);
            assert_same(&out, &wanted, &(format, isa));
        }
    }
}

/// How far apart two threads end that take the parts of a batch in order, one of them slower than
/// the other; as a part of the time that it takes.
#[expect(clippy::cast_precision_loss, reason = "any precision does")]
fn apart(batch: &Batch<'_>, slower: f64) -> f64 {
    let mut clocks = [0f64; 2];
    for piece in &batch.pieces {
        let task = &batch.tasks[piece.task];
        let work = task.work / task.tiles() / task.input_parts * piece.tiles.len();
        for _ in 0..task.input_parts {
            let next = usize::from(clocks[1] < clocks[0]);
            clocks[next] += work as f64 * [1.0, slower][next];
        }
    }
    (clocks[0] - clocks[1]).abs() / clocks[0].max(clocks[1])
}

#[test]
fn parts_are_everything_once_and_threads_end_together() {
    // Rows and inputs of the products of a batch, and how far apart two threads may end.
    let batches = [
        (&[(4096, 1)][..], 0.02),
        (&[(2048, 1), (2048, 1), (4096, 1), (512, 1), (64, 1)], 0.02),
        (&[(2048, 7), (100, 0), (4096, 60)], 0.08),
        (&[(48, 3), (2048, 200), (16, 97)], 0.35),
        (&[(5, 1)], 1.0),
        (&[(1000, 0)], 0.0),
    ];
    let (pool, columns) = (Pool::new(1), 32);
    let bytes = vec![0; 4096 * columns * 4];
    for (shapes, bound) in batches {
        let weights = shapes.iter().map(|&(rows, _)| {
            let source = source(Format::F32, rows, columns, 1, &bytes[..rows * columns * 4]);
            Weights::new(&source, &CpuConfig::default(), &pool, &mut Packed::default())
        });
        let weights: Vec<_> = weights.map(|weights| weights.expect("fits")).collect();
        let x = vec![0f32; 200 * columns];
        let mut outs: Vec<_> = shapes.iter().map(|(rows, n)| vec![0f32; rows * n]).collect();
        let jobs = weights.iter().zip(shapes).zip(&mut outs).map(|((weights, shape), out)| {
            let x = View::of_floats(&x[..shape.1 * columns], shape.1, columns);
            let out = Output::Tree(out);
            Job { weights, stack: 0, groups: 1, x, picks: None, out }
        });
        let mut batch = Batch::new(&pool, jobs);
        // As if matrices had many columns.
        batch.tasks.iter_mut().for_each(|task| task.work *= 256);
        batch.work *= 256;
        for threads in [2, 1, 3, 16] {
            (batch.parts, batch.pieces) = (0, Vec::new());
            batch.cut(threads);
            let mut parts = 0;
            let mut done = vec![0; batch.tasks.len()];
            for piece in &batch.pieces {
                assert_eq!((piece.first_part, piece.tiles.start), (parts, done[piece.task]));
                assert!(!piece.tiles.is_empty());
                done[piece.task] = piece.tiles.end;
                parts += batch.tasks[piece.task].input_parts;
            }
            assert_eq!(parts, batch.parts());
            for (task, done) in batch.tasks.iter().zip(done) {
                assert_eq!(done, if task.inputs == 0 { 0 } else { task.tiles() });
            }
            for slower in [1.0, 1.1, 1.25, 1.5].into_iter().filter(|_| threads == 2) {
                let apart = apart(&batch, slower);
                assert!(batch.parts == 0 || apart <= bound, "{shapes:?} at {slower}: {apart}");
            }
        }
    }
}

/// One part that does everything, as large matrices have them: only such a part makes panels.
fn in_one_part(pool: &Pool, job: Job<'_>) {
    let task = Task::new(job);
    for part in 0..task.input_parts {
        task.run(0..task.tiles(), part, pool);
    }
}

/// Rows that make panels worth it: some pairs of tiles, and part of another one; then that is one
/// of a pair. Times so many inputs.
fn check_panels(format: Format, columns: usize, counts: &[usize]) {
    for tiles in [GATHER_TILES, GATHER_TILES + 1] {
        check_rows(format, (tiles * TILE_ROWS + 5, columns), counts);
    }
}

fn check_rows(format: Format, (all, columns): (usize, usize), counts: &[usize]) {
    let pool = Pool::new(1);
    let bytes = random_rows(format, all, columns, false, columns as u64);
    let most = counts.iter().max().expect("some");
    let x = random_inputs(*most, columns, 8);
    let wanted = expect_shards(format, &bytes, columns, &x, false);
    for isa in Isa::available().filter(|isa| *isa != Isa::Scalar) {
        let source = source(format, all, columns, 1, &bytes);
        let weights = Weights::new(&source, &config(isa, false), &pool, &mut Packed::default())
            .expect("fits");
        for &n in counts {
            let x = &x[..n * columns];
            let made = inputs(&pool, weights.activation(), x, columns);
            let x = view(&made, weights.activation(), x, columns);
            for planes in [1, 2, 8] {
                let mut out = vec![f32::NAN; n * planes * all];
                let (stack, groups, picks) = (0, 1, None);
                let to = output(planes, &mut out);
                in_one_part(&pool, Job { weights: &weights, stack, groups, x, picks, out: to });
                let mut values = vec![f32::NAN; out.len()];
                for (input, rows) in wanted[..n].iter().enumerate() {
                    for (row, shards) in rows.iter().enumerate() {
                        for (plane, value) in planes_of(shards, planes).into_iter().enumerate() {
                            values[(input * planes + plane) * all + row] = value;
                        }
                    }
                }
                assert_same(&out, &values, &(format, isa, columns, n, planes));
            }
        }
    }
}

/// Groups of 2, 4 and 6 tiles are pairs; others have none, as has a tile before the first pair.
#[test]
fn panels_of_groups_equal_the_definition() {
    for (groups, group_rows) in [(4, 32), (3, 64), (2, 96), (3, 48), (5, 20)] {
        for format in [Format::Q8_0, Format::F16] {
            check_groups(format, groups, group_rows);
        }
    }
}

fn check_groups(format: Format, groups: usize, group_rows: usize) {
    let (columns, n) = (512, 13);
    let pool = Pool::new(1);
    let rows = groups * group_rows;
    let bytes = random_rows(format, rows, columns, false, 6);
    let x = random_inputs(n * groups, columns, 8);
    let wanted = expect_shards(format, &bytes, columns, &x, false);
    let of_group = |at: usize| at % groups * group_rows..(at % groups + 1) * group_rows;
    let wanted: Vec<f32> = (wanted.iter().enumerate())
        .flat_map(|(at, rows)| rows[of_group(at)].iter().map(tree8))
        .collect();
    for isa in Isa::available().filter(|isa| *isa != Isa::Scalar) {
        let source = source(format, rows, columns, 1, &bytes);
        let weights = Weights::new(&source, &config(isa, false), &pool, &mut Packed::default())
            .expect("fits");
        let made = inputs(&pool, weights.activation(), &x, columns);
        for first in [0, 1] {
            let x = view(&made, weights.activation(), &x, columns);
            let mut out = vec![f32::NAN; wanted.len()];
            let (stack, picks, to) = (0, None, output(1, &mut out));
            let task = Task::new(Job { weights: &weights, stack, groups, x, picks, out: to });
            task.run(0..first, 0, &pool);
            task.run(first..task.tiles(), 0, &pool);
            assert_same(&out, &wanted, &(format, isa, groups, group_rows, first));
        }
    }
}

#[test]
fn panels_equal_the_definition() {
    for format in FORMATS_ALL {
        // Panels of every width, alone and behind a whole one.
        check_panels(format, 512, &[2, 11, 12, 13, 14, 15, 16, 18, 20, 22, 25]);
    }
    // Some shards at a time.
    for format in [Format::F16, Format::Q8_0, Format::Q2K, Format::Q4K, Format::Iq2Xxs] {
        check_panels(format, 4096, &[12, 14]);
    }
    // Unpacked weights that have no room.
    for format in [Format::Q8_0, Format::Q2K] {
        check_panels(format, 12288, &[13]);
    }
}

#[test]
fn odd_widths_of_float_formats() {
    for format in [Format::F32, Format::F16, Format::Bf16] {
        for columns in [1, 7, 8, 9, 31, 33, 100, 257, 300] {
            check_width(format, columns, false, false);
        }
    }
}

#[test]
fn any_bytes_are_multiplied_as_the_definition_says() {
    for format in FORMATS_ALL {
        let widths = widths(format).filter(|columns| *columns <= 512);
        widths.for_each(|columns| check_width(format, columns, false, true));
    }
}

#[test]
fn float_products_equal_the_definition() {
    for format in FORMATS_ALL {
        let widths = widths(format).filter(|columns| *columns <= 768);
        widths.for_each(|columns| check_width(format, columns, true, false));
    }
}

#[test]
fn extremes_of_integers_do_not_overflow() {
    // All bits set and clear, with the largest codes of either sign on the other side.
    let pool = Pool::new(1);
    for format in
        FORMATS_ALL.into_iter().filter(|format| format.info().activation != Activation::F32)
    {
        // The last point of IQ2_XXS is one with the largest sum.
        for fill in [0x00, 0x7f, 0x80, 0xff] {
            let mut bytes = vec![fill; format.row_bytes(512).expect("whole blocks")];
            for block in bytes.chunks_exact_mut(format.info().block_bytes) {
                for &at in halves(format) {
                    block[at..at + 2].copy_from_slice(&f32_to_f16(1.0).to_le_bytes());
                }
                if format == Format::Mxfp4 {
                    block[0] = 127;
                }
            }
            // Many rows of them, for panels.
            let rows = TILE_ROWS * GATHER_TILES;
            let many = bytes.repeat(rows);
            for sign in [1.0, -1.0] {
                let x = vec![sign; 512];
                let wanted = expect_shards(format, &bytes, 512, &x, false);
                for isa in Isa::available() {
                    let source = source(format, 1, 512, 1, &bytes);
                    let weights =
                        Weights::new(&source, &config(isa, false), &pool, &mut Packed::default())
                            .expect("fits");
                    let made = inputs(&pool, weights.activation(), &x, 512);
                    let x = view(&made, weights.activation(), &x, 512);
                    let mut out = [0.0];
                    let out_tree = Output::Tree(&mut out);
                    let (stack, groups, picks) = (0, 1, None);
                    let job = Job { weights: &weights, stack, groups, x, picks, out: out_tree };
                    products(&pool, [job]);
                    let wanted = tree8(&wanted[0][0]);
                    assert_same(&out, &[wanted], &(format, isa, fill, sign));
                    extremes_in_panels(&pool, (format, isa), &many, sign, wanted);
                }
            }
        }
    }
}

/// Two panels of equal inputs times equal rows of 512 columns.
fn extremes_in_panels(
    pool: &Pool,
    (format, isa): (Format, Isa),
    bytes: &[u8],
    value: f32,
    wanted: f32,
) {
    const INPUTS: usize = PANEL_ROWS + 1;
    let rows = TILE_ROWS * GATHER_TILES;
    let source = source(format, rows, 512, 1, bytes);
    let weights =
        Weights::new(&source, &config(isa, false), pool, &mut Packed::default()).expect("fits");
    let x = vec![value; INPUTS * 512];
    let made = inputs(pool, weights.activation(), &x, 512);
    let x = view(&made, weights.activation(), &x, 512);
    let mut out = vec![f32::NAN; INPUTS * rows];
    let to = Output::Tree(&mut out);
    let (stack, groups, picks) = (0, 1, None);
    in_one_part(pool, Job { weights: &weights, stack, groups, x, picks, out: to });
    assert_same(&out, &vec![wanted; INPUTS * rows], &(format, isa, value));
}

#[test]
fn rows_are_read_back_as_they_were() {
    let pool = Pool::new(2);
    for format in FORMATS_ALL {
        let (stack, rows, columns) = (3, 21, 512);
        let bytes = random_rows(format, stack * rows, columns, true, 3);
        let row_bytes = format.row_bytes(columns).expect("whole blocks");
        for isa in Isa::available() {
            for float_products in [false, true] {
                let source = source(format, rows, columns, stack, &bytes);
                let config = config(isa, float_products);
                let weights =
                    Weights::new(&source, &config, &pool, &mut Packed::default()).expect("fits");
                assert_eq!(weights.bytes_per_matrix(), (rows * row_bytes) as u64);
                for row in 0..stack * rows {
                    let (mut found, mut wanted) = (vec![0.0; columns], vec![0.0; columns]);
                    weights.decode_row(row / rows, row % rows, &mut found);
                    (format.info().decode)(&bytes[row * row_bytes..][..row_bytes], &mut wanted);
                    assert_same(&found, &wanted, &(format, isa, row));
                }
            }
        }
    }
}

#[test]
fn fields_of_a_block_are_all_its_bytes() {
    for info in FORMATS {
        let mut covered = vec![0; info.block_bytes];
        for field in super::super::packed::layout::fields(info.format) {
            covered[field.offset..][..field.unit * field.count].iter_mut().for_each(|n| *n += 1);
        }
        assert!(covered.iter().all(|n| *n == 1), "{}", info.name);
    }
}

/// Tiles of a matrix, where its instruction set has them.
fn tiles_of(weights: &Weights) -> Option<*const u8> {
    match &weights.layout {
        Layout::Tiles { lines, .. } => Some(lines.as_ptr()),
        _ => None,
    }
}

#[test]
fn matrices_of_one_handle_are_packed_once() {
    let pool = Pool::new(1);
    let bytes = random_rows(Format::Q8_0, 48, 64, true, 5);
    for isa in Isa::available() {
        let mut packed = Packed::default();
        let mut made = |rows, columns, bytes: &SharedBytes| {
            let bytes = bytes.clone();
            let source = MatrixSource {
                name: "m",
                format: Format::Q8_0,
                rows,
                columns,
                stack: 1,
                bytes,
                planes: None,
            };
            Weights::new(&source, &config(isa, false), &pool, &mut packed).expect("fits")
        };
        let handle: SharedBytes = Arc::new(bytes.clone());
        let (first, second) = (made(48, 64, &handle), made(48, 64, &handle));
        assert_eq!(tiles_of(&first), tiles_of(&second), "{}", isa.name());
        let (shape, copy) = (made(96, 32, &handle), made(48, 64, &(Arc::new(bytes.clone()) as _)));
        let other = if isa == Isa::Scalar { None } else { tiles_of(&first) };
        assert!(other.is_none() || tiles_of(&shape) != other, "another shape");
        assert!(other.is_none() || tiles_of(&copy) != other, "another handle");
        // A handle that is gone is never met again, whatever comes to lie at its address.
        drop(handle);
        for fill in 0..8 {
            let handle: SharedBytes = Arc::new(vec![fill; bytes.len()]);
            let (later, mut row) = (made(48, 64, &handle), [0.0; 64]);
            let mut wanted = [0.0; 64];
            later.decode_row(0, 7, &mut row);
            (Format::Q8_0.info().decode)(&vec![fill; bytes.len() / 48], &mut wanted);
            assert_eq!(row, wanted);
        }
    }
}

#[test]
fn memory_of_tiles_is_aligned_and_zero() {
    for len in [0, 1, 64, 4096, 1 << 20, (2 << 20) - 64, 2 << 20, (5 << 20) + 64] {
        let lines = Lines::zeroed(len).expect("a few megabytes");
        assert_eq!(lines.len(), len);
        assert!(lines.as_ptr().addr().is_multiple_of(64));
        assert!(lines.iter().all(|byte| *byte == 0));
    }
    assert!(Lines::zeroed(usize::MAX - 8).is_none());
}

#[test]
fn a_source_of_another_size_is_refused() {
    let pool = Pool::new(1);
    for (rows, columns) in [(3, 64), (2, 96), (2, 65), (usize::MAX, 64)] {
        let source = MatrixSource {
            name: "blk.0.ffn",
            format: Format::Q8_0,
            rows,
            columns,
            stack: 1,
            bytes: Arc::new(vec![0u8; 2 * 68]),
            planes: None,
        };
        let error = Weights::new(&source, &CpuConfig::default(), &pool, &mut Packed::default())
            .err()
            .expect("refused");
        assert!(error.to_string().contains("blk.0.ffn has 136 bytes"), "{error}");
    }
}

#[test]
fn inputs_are_those_of_the_definition() {
    let mut x = random_inputs(5, 512, 1);
    x[3] = f32::NAN;
    x[600] = f32::INFINITY;
    x[1024..1280].fill(0.0);
    x[1280..1536].fill(1e-40);
    x[1600] = f32::MAX;
    x[1900] = -f32::MAX;
    for (i, x) in x[2048..2304].iter_mut().enumerate() {
        // Ties: multiples of a half once scaled.
        *x = f32::from(i8::try_from(i % 127).expect("small")) + 0.5;
    }
    x[2050] = 127.0;
    for (activation, block) in [(Activation::Int8x32, 32), (Activation::Int8x256, 256)] {
        let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; x.len() / block]);
        quantize_int8(&x, block, &mut codes, &mut scales);
        for isa in Isa::available() {
            let mut inputs = Inputs::default();
            inputs.prepare_on(isa, &Pool::new(2), activation, &x, 5, 512);
            for row in 0..5 {
                let found = inputs.view().codes(row);
                assert_eq!(found.0, &codes[row * 512..][..512], "{isa:?}");
                let scales = &scales[row * (512 / block)..][..512 / block];
                assert_same(&found.1, scales, &(isa, block));
            }
        }
    }
}

#[test]
fn inputs_do_not_depend_on_threads_or_what_was_there() {
    let x = random_inputs(64, 1024, 9);
    for activation in [Activation::Int8x32, Activation::Int8x256] {
        let alone = inputs(&Pool::new(1), activation, &x, 1024);
        let mut many = inputs(&Pool::new(3), activation, &random_inputs(80, 2048, 2), 2048);
        many.prepare(&Pool::new(3), activation, &x, 64, 1024);
        for row in 0..64 {
            assert_eq!(alone.view().codes(row), many.view().codes(row));
        }
    }
}

/// What a random batch is made of.
#[derive(Debug, Clone)]
struct Case {
    format: Format,
    groups: usize,
    group_rows: usize,
    blocks: usize,
    stack: usize,
    inputs: usize,
    picks: Option<Vec<u32>>,
    planes: usize,
    float_products: bool,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let shape = (0..FORMATS_ALL.len(), 1usize..4, 1usize..40, 1usize..10, 1usize..3, 1usize..7);
    let picks = proptest::option::of(proptest::collection::vec(0u32..6, 0..5));
    (shape, picks, prop_oneof![Just(1), Just(2), Just(8)], any::<bool>(), any::<u64>()).prop_map(
        |(
            (format, groups, group_rows, blocks, stack, inputs),
            picks,
            planes,
            float_products,
            seed,
        )| {
            let format = FORMATS_ALL[format];
            let inputs = inputs * groups;
            let last = u32::try_from(inputs).expect("small");
            let picks = picks.map(|picks| {
                // As many as the groups ask for, of rows that exist.
                let all = picks.iter().map(|pick| pick % last);
                all.flat_map(|pick| vec![pick; groups]).collect::<Vec<_>>()
            });
            Case {
                format,
                groups,
                group_rows,
                blocks,
                stack,
                inputs,
                picks,
                planes,
                float_products,
                seed,
            }
        },
    )
}

/// One case on one instruction set and pool: stack after stack, in one batch.
fn run_case(
    case: &Case,
    isa: Isa,
    pool: &Pool,
    bytes: &[u8],
    x: &[f32],
    columns: usize,
) -> Vec<f32> {
    let rows = case.groups * case.group_rows;
    let source = source(case.format, rows, columns, case.stack, bytes);
    let weights =
        Weights::new(&source, &config(isa, case.float_products), pool, &mut Packed::default())
            .expect("fits");
    let made = inputs(pool, weights.activation(), x, columns);
    let x = view(&made, weights.activation(), x, columns);
    let count = case.picks.as_ref().map_or(case.inputs, Vec::len);
    let size = count * case.planes * case.group_rows;
    let mut out = vec![f32::NAN; case.stack * size];
    let mut rest = &mut out[..];
    let jobs: Vec<_> = (0..case.stack)
        .map(|stack| {
            let out = rest.split_off_mut(..size).expect("the size is that of all");
            let (weights, groups, picks) = (&weights, case.groups, case.picks.as_deref());
            Job { weights, stack, groups, x, picks, out: output(case.planes, out) }
        })
        .collect();
    products(pool, jobs);
    out
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Groups, picks, stacks, planes: the definition, on any number of threads.
    #[test]
    fn batches_equal_the_definition(case in cases()) {
        let columns = case.blocks * case.format.info().shard_unit();
        let rows = case.groups * case.group_rows;
        let bytes = random_rows(case.format, case.stack * rows, columns, false, case.seed);
        let x = random_inputs(case.inputs, columns, case.seed);
        let shards = expect_shards(case.format, &bytes, columns, &x, case.float_products);
        let picks = case.picks.clone();
        let picks = picks.unwrap_or_else(|| (0..).take(case.inputs).collect());
        let mut wanted = Vec::new();
        for stack in 0..case.stack {
            for (at, &pick) in picks.iter().enumerate() {
                let first = stack * rows + at % case.groups * case.group_rows;
                let rows: Vec<_> = shards[pick as usize][first..][..case.group_rows]
                    .iter()
                    .map(|shards| planes_of(shards, case.planes))
                    .collect();
                for plane in 0..case.planes {
                    wanted.extend(rows.iter().map(|planes| planes[plane]));
                }
            }
        }
        for isa in Isa::available() {
            for threads in [1, 3] {
                let found = run_case(&case, isa, &Pool::new(threads), &bytes, &x, columns);
                assert_same(&found, &wanted, &(isa, threads));
            }
        }
    }
}
