//! Dot products: exact against formulas written apart, near to plain f64, and whole under any cut.

use ironstar_quant::{
    Dot, FORMATS, Format, Int8Blocks, Row, SHARDS, dot, dot_shards, shard_blocks, tree4, tree8,
};
use proptest::prelude::*;

use crate::helpers::{Activations, FLOAT_FORMATS, INTEGER_FORMATS, Stream, cases, decode, encode};

/// Where a block keeps its scale and minimum scale (f16, or e8m0 for MXFP4).
struct Scales {
    d: usize,
    dmin: Option<usize>,
    /// Bytes of d that make decode give exactly the integers of the block.
    unit: &'static [u8],
    /// What the dot multiplies d by to undo `unit`.
    factor: f32,
}

/// 1.0 and 8.0 as f16.
const ONE: &[u8] = &[0x00, 0x3c];
const EIGHT: &[u8] = &[0x00, 0x48];

fn scales(format: Format) -> Scales {
    let f16 = |d, dmin| Scales { d, dmin, unit: ONE, factor: 1.0 };
    match format {
        Format::Q4_0 | Format::Q8_0 => f16(0, None),
        Format::Q2K => f16(80, Some(82)),
        Format::Q3K => f16(108, None),
        Format::Q4K | Format::Q5K => f16(0, Some(2)),
        Format::Q6K => f16(208, None),
        Format::Iq2Xxs => Scales { d: 0, dmin: None, unit: EIGHT, factor: 0.125 },
        // 2^(128 - 128) = 1 is the half scale of doubled codes.
        Format::Mxfp4 => Scales { d: 0, dmin: None, unit: &[128], factor: 1.0 },
        Format::F32 | Format::F16 | Format::Bf16 => panic!("no scales in a float format"),
    }
}

/// The integers of a block, found by decoding it with unit scales: `(scale * code, minimum)`.
fn integers(format: Format, block: &[u8]) -> (Vec<f32>, Vec<f32>) {
    let Scales { d, dmin, unit, .. } = scales(format);
    let elements = format.info().block_elements;
    let decode_with = |d_bytes: &[u8], dmin_bytes: &[u8]| {
        let mut block = block.to_vec();
        block[d..][..d_bytes.len()].copy_from_slice(d_bytes);
        if let Some(dmin) = dmin {
            block[dmin..][..2].copy_from_slice(dmin_bytes);
        }
        decode(format, &block, elements)
    };
    let products = decode_with(unit, &[0, 0]);
    let minimums = match dmin {
        Some(_) => decode_with(&[0, 0], ONE).iter().map(|v| -v).collect(),
        None => vec![0.0; elements],
    };
    (products, minimums)
}

/// Exact sum of integers held in floats times codes.
fn exact_sum(values: &[f32], codes: &[i8]) -> i64 {
    let sum: f64 = values.iter().zip(codes).map(|(v, c)| f64::from(*v) * f64::from(*c)).sum();
    assert!(sum.abs() < 2f64.powi(50) && sum.fract() == 0.0, "an exact integer");
    #[expect(clippy::cast_possible_truncation, reason = "an integer below 2^50")]
    let sum = sum as i64;
    sum
}

/// The dot of one shard by the formulas in the words, integers in i64.
fn formula(format: Format, weights: &[u8], x: Int8Blocks<'_>) -> f32 {
    let info = format.info();
    let Scales { d, dmin, factor, .. } = scales(format);
    let f16_at = |block: &[u8], at: usize| {
        ironstar_quant::f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
    };
    let mut acc = 0f32;
    let blocks = weights.chunks(info.block_bytes).zip(x.codes.chunks(info.block_elements));
    for ((block, codes), d_x) in blocks.zip(x.scales) {
        let (products, minimums) = integers(format, block);
        let (i, j) = (exact_sum(&products, codes) as f32, exact_sum(&minimums, codes) as f32);
        let d = match format {
            Format::Mxfp4 => ironstar_quant::mxfp4::half_scale(block[d]),
            _ => f16_at(block, d) * factor,
        };
        acc = match dmin {
            Some(dmin) => d_x.mul_add(d.mul_add(i, -(f16_at(block, dmin) * j)), acc),
            None => (d * d_x).mul_add(i, acc),
        };
    }
    acc
}

/// The whole bytes of a row, scales of ordinary size so that sums stay finite.
fn random_row(stream: &mut Stream, format: Format, blocks: usize) -> Vec<u8> {
    let info = format.info();
    let mut row = stream.bytes(blocks * info.block_bytes);
    if let Dot::Float(_) = info.dot {
        return encode(format, &stream.normals(blocks * info.block_elements, 0.5), None);
    }
    let Scales { d, dmin, .. } = scales(format);
    for block in row.chunks_mut(info.block_bytes) {
        if format == Format::Mxfp4 {
            block[d] = 115 + block[d] % 16;
            continue;
        }
        for at in std::iter::once(d).chain(dmin) {
            // Sign as it falls, exponent between 2^-8 and 2^-1.
            block[at + 1] = (block[at + 1] & 0x83) | (7 + (block[at + 1] >> 2) % 8) << 2;
        }
    }
    row
}

#[test]
fn integer_dots_equal_their_formulas() {
    let mut stream = Stream::new("integer dots");
    for format in INTEGER_FORMATS {
        // Many rows: a formula with one rounding more differs in about one row of twenty.
        for blocks in [1, 2, 7, 8, 9, 24].repeat(20) {
            let weights = random_row(&mut stream, format, blocks);
            let columns = blocks * format.info().block_elements;
            let x = Activations::new(format, stream.normals(columns, 1.0));
            let Row::Int8(codes) = x.row() else { panic!("{format:?} takes int8 activations") };
            let Dot::Int(dot) = format.info().dot else {
                panic!("{format:?} is an integer format")
            };
            let (found, wanted) = (dot(&weights, codes), formula(format, &weights, codes));
            assert_eq!(found.to_bits(), wanted.to_bits(), "{format:?}, {blocks} blocks");
            assert!(wanted != 0.0 && wanted.is_finite(), "{format:?}: a vacuous case");
        }
    }
}

#[test]
fn integers_do_not_overflow_at_the_extremes() {
    // Every byte 0xff or 0x80 and codes of -128: the largest sums there are.
    for format in INTEGER_FORMATS {
        let info = format.info();
        for byte in [0xff, 0x80, 0x7f, 0x00] {
            let mut block = vec![byte; info.block_bytes];
            let Scales { d, dmin, unit, .. } = scales(format);
            block[d..][..unit.len()].copy_from_slice(unit);
            if let Some(dmin) = dmin {
                block[dmin..][..2].copy_from_slice(ONE);
            }
            let codes = vec![-128; info.block_elements];
            let x = Int8Blocks { codes: &codes, scales: &[1.0] };
            let Dot::Int(dot) = info.dot else { panic!("{format:?} is an integer format") };
            assert_eq!(dot(&block, x), formula(format, &block, x), "{format:?} {byte:#x}");
        }
    }
}

#[test]
fn a_dot_worked_by_hand() {
    // d = 0.5, codes 1, 2, .., 32; activations all 1.0: code 127, scale 1/127.
    let codes: [u8; 32] = std::array::from_fn(|i| u8::try_from(i + 1).expect("small"));
    let weights = [&[0x00, 0x38], &codes[..]].concat();
    let x = Activations::new(Format::Q8_0, vec![1.0; 32]);
    assert!(x.codes().iter().all(|code| *code == 127) && x.scales() == [1.0 / 127.0]);
    let wanted = 0.5f32 * (1.0f32 / 127.0) * (528.0 * 127.0);
    assert_eq!(dot(Format::Q8_0, &weights, x.row()), wanted);
    // MXFP4: scale 2, codes 6 and -6 against 1.0 and -1.0: 16 * (12 + 12).
    let weights = [&[128], &[0xf7; 16][..]].concat();
    let values = (0..32).map(|i| if i < 16 { 1.0 } else { -1.0 }).collect();
    let x = Activations::new(Format::Mxfp4, values);
    assert!((dot(Format::Mxfp4, &weights, x.row()) - 384.0).abs() < 1e-4);
}

#[test]
fn float_dots_equal_their_formula() {
    let mut stream = Stream::new("float dots");
    for format in FLOAT_FORMATS {
        for columns in [1, 7, 8, 31, 32, 33, 255, 256, 257, 1000, 4096] {
            let weights = encode(format, &stream.normals(columns, 0.5), None);
            let values = decode(format, &weights, columns);
            let x = stream.normals(columns, 1.0);
            let units = columns.div_ceil(32);
            let shards: [f32; 8] = std::array::from_fn(|i| {
                let (start, end) = (i * units / 8 * 32, ((i + 1) * units / 8 * 32).min(columns));
                let lanes: [f32; 8] = std::array::from_fn(|lane| {
                    let mut acc = 0f32;
                    for k in (start + lane..end).step_by(8) {
                        acc = values[k].mul_add(x[k], acc);
                    }
                    acc
                });
                tree8(&lanes)
            });
            let found = dot_shards(format, &weights, Row::F32(&x));
            assert_eq!(found.map(f32::to_bits), shards.map(f32::to_bits), "{format:?} {columns}");
        }
    }
}

#[test]
fn dots_are_near_the_product_in_f64() {
    let mut stream = Stream::new("near");
    for info in FORMATS {
        let format = info.format;
        let columns = 2048;
        let weights = encode(format, &stream.normals(columns, 0.05), None);
        let x = Activations::new(format, stream.normals(columns, 1.0));
        let w = decode(format, &weights, columns);
        let products = w.iter().zip(x.decoded()).map(|(w, x)| f64::from(*w) * x);
        let (exact, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
        let found = f64::from(dot(format, &weights, x.row()));
        // A handful of f32 roundings a block, of sums not above the sum of magnitudes.
        assert!((found - exact).abs() <= 1e-6 * size, "{}: {found} {exact}", info.name);
    }
}

#[test]
fn shards_cover_the_blocks_in_order() {
    for blocks in (0..200).chain([usize::MAX / 2, usize::MAX]) {
        let mut next = 0;
        for shard in 0..SHARDS {
            let range = shard_blocks(blocks, shard);
            let border = |i: usize| {
                let wide = i as u128 * blocks as u128 / 8;
                usize::try_from(wide).expect("not above the number of blocks")
            };
            assert_eq!(range, border(shard)..border(shard + 1), "{blocks} blocks");
            assert_eq!(range.start, next);
            next = range.end;
        }
        assert_eq!(next, blocks);
    }
}

#[test]
fn trees_are_balanced() {
    // Values whose sum depends on the order: only the balanced tree gives this.
    let big = 2f32.powi(24);
    assert_eq!(tree4(&[big, 1.0, 1.0, -big]), 1.0);
    assert_eq!(tree8(&[big, 1.0, 1.0, -big, 1.0, 1.0, 1.0, 1.0]), 5.0);
    assert_eq!(tree8(&[1.0, 1.0, 1.0, 1.0, big, 1.0, 1.0, -big]), 5.0);
}

#[test]
fn empty_shards_are_plus_zero() {
    for format in INTEGER_FORMATS {
        let info = format.info();
        let x = Activations::new(format, vec![-1.0; info.block_elements]);
        let weights = encode(format, &vec![1.0; info.block_elements], None);
        let parts = dot_shards(format, &weights, x.row());
        // One block is in the last shard: floor(7/8) .. floor(8/8).
        assert!(parts[..7].iter().all(|part| part.to_bits() == 0), "{format:?}");
        assert!(parts[7] < 0.0, "{format:?}");
    }
    assert_eq!(dot(Format::F32, &[], Row::F32(&[])).to_bits(), 0);
}

proptest! {
    #![proptest_config(cases(64))]

    /// Ranks, lanes and tiles that own runs of shards get the bits of the whole row.
    #[test]
    fn any_cut_on_shard_borders_gives_the_same_bits(
        blocks in 1usize..40,
        cuts in prop::collection::btree_set(1usize..8, 0..7),
        seed in any::<u64>(),
    ) {
        let mut stream = Stream::new(&seed.to_string());
        for info in FORMATS {
            let units = info.shard_unit() / info.block_elements;
            let weights = random_row(&mut stream, info.format, blocks * units);
            let values = stream.normals(blocks * info.shard_unit(), 1.0);
            let x = Activations::new(info.format, values.clone());
            let whole = dot_shards(info.format, &weights, x.row());
            let borders: Vec<usize> = [0].into_iter().chain(cuts.clone()).chain([8]).collect();
            for run in borders.windows(2) {
                for (shard, whole) in whole.iter().enumerate().take(run[1]).skip(run[0]) {
                    // The owner has only its own run of blocks, quantises its own activations.
                    let last = shard_blocks(blocks, run[1] - 1);
                    let own = shard_blocks(blocks, run[0]).start..last.end;
                    let part = shard_blocks(blocks, shard);
                    let part = part.start - own.start..part.end - own.start;
                    let elements = own.start * info.shard_unit()..own.end * info.shard_unit();
                    let bytes = info.block_bytes * units;
                    let weights = &weights[own.start * bytes..own.end * bytes];
                    let weights = &weights[part.start * bytes..part.end * bytes];
                    let x = Activations::new(info.format, values[elements].to_vec());
                    let columns = part.start * info.shard_unit()..part.end * info.shard_unit();
                    let found = match (info.dot, x.row()) {
                        (Dot::Float(dot), Row::F32(x)) => dot(weights, &x[columns]),
                        (Dot::Int(dot), Row::Int8(x)) => dot(
                            weights,
                            Int8Blocks { codes: &x.codes[columns], scales: &x.scales[part] },
                        ),
                        _ => panic!("{}: dot and activation disagree", info.name),
                    };
                    prop_assert_eq!(found.to_bits(), whole.to_bits(), "{}", info.name);
                }
            }
            prop_assert_eq!(tree8(&whole).to_bits(), dot(info.format, &weights, x.row()).to_bits());
        }
    }
}
