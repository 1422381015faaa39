//! Round trips of the model, bit for bit against the oracle's vectors, and int8 activation blocks.

use ironstar_quant::fp4::{self, INDEXER_BYTES, decode_row, encode_rows, indexer_dot};
use ironstar_quant::{fp8, hadamard, quantize_int8};
use proptest::prelude::*;

use crate::helpers::{Fixture, Stream, cases};

fn assert_bits(name: &str, found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len(), "{name}");
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert_eq!(found.to_bits(), wanted.to_bits(), "{name} {i}: {found:e}, wanted {wanted:e}");
    }
}

/// Runs `operation` on fixture tensor `input` and compares with tensor `output`.
fn check(input: &str, output: &str, operation: impl Fn(&mut [f32])) {
    let fixture = Fixture::open("oracle/op_vectors.safetensors");
    let (mut x, wanted) = (fixture.floats(input), fixture.floats(output));
    assert_ne!(x, wanted, "{output}: a vacuous case");
    operation(&mut x);
    assert_bits(output, &x, &wanted);
}

#[test]
fn fp8_round_trip_equals_the_oracle() {
    check("fp8_in", "fp8_out_block64_ue8m0", |x| fp8::round_trip(x, 64));
}

#[test]
fn fp4_round_trip_equals_the_oracle() {
    check("fp4_in", "fp4_out_block32", |x| fp4::round_trip(x, 32));
}

#[test]
fn hadamard_equals_the_oracle() {
    let rows = |x: &mut [f32]| x.chunks_exact_mut(128).for_each(hadamard);
    check("hadamard_in", "hadamard_out", rows);
    check("hadamard_in", "hadamard_fp4_out", |x| {
        rows(x);
        fp4::round_trip(x, 32);
    });
}

#[test]
fn hadamard_is_the_sylvester_matrix() {
    // Row r, column c of the matrix is (-1)^popcount(r & c) / sqrt(n).
    for (n, column) in [(1, 0), (2, 1), (8, 5), (256, 171)] {
        let mut x = vec![0f32; n];
        x[column] = 1.0;
        hadamard(&mut x);
        for (row, v) in x.iter().enumerate() {
            let negative = (row & column).count_ones() % 2 == 1;
            assert_eq!(v.is_sign_negative(), negative, "n {n} row {row}");
            assert!((f64::from(v.abs()) * (n as f64).sqrt() - 1.0).abs() < 1e-7);
        }
    }
}

#[test]
fn scales_are_powers_of_two_with_the_floors_of_the_spec() {
    // 448 needs scale 1, the next value needs 2; 6 and 4 * 2^-126 likewise for FP4.
    let mut x = [448f32, 0.015_625];
    fp8::round_trip(&mut x, 2);
    assert_eq!(x, [448.0, 0.015_625]);
    let mut x = [449f32, 1.0 / 512.0];
    fp8::round_trip(&mut x, 2);
    assert_eq!(x, [448.0, 0.0], "scale 2: the smallest code is 2^-8, and 2^-9 ties to zero");
    // Floor 1e-4: scale 2^-22, so the smallest step is 2^-31.
    let mut x = [2f32.powi(-31), 2f32.powi(-33)];
    fp8::round_trip(&mut x, 2);
    assert_eq!(x, [2f32.powi(-31), 0.0]);
    let mut x = [0f32; 32];
    fp4::round_trip(&mut x, 32);
    assert_eq!(x, [0.0; 32]);
}

#[test]
fn a_fault_in_a_block_stays_visible() {
    for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for operation in [fp8::round_trip, fp4::round_trip] {
            let mut x = [1f32; 64];
            x[40] = fault;
            operation(&mut x, 32);
            assert!(x[..32].iter().all(|v| *v == 1.0) && x[32..].iter().all(|v| v.is_nan()));
        }
        let (mut codes, mut scales) = ([1i8; 64], [1f32; 2]);
        let mut x = [1f32; 64];
        x[40] = fault;
        quantize_int8(&x, 32, &mut codes, &mut scales);
        assert!(scales[1].is_nan() && codes[32..] == [0; 32]);
        assert!(scales[0] == 1.0 / 127.0 && codes[..32] == [127; 32]);
        let mut x = [1f32; 128];
        x[70] = fault;
        let mut row = [0u8; INDEXER_BYTES];
        encode_rows(&x, &mut row);
        assert_eq!(row[66], 255);
        assert!(indexer_dot(&row, &row).is_nan());
    }
}

/// The value that codes and scales of `indexer_dot` stand for, exactly enough in f64.
fn exact_indexer_dot(a: &[u8; INDEXER_BYTES], b: &[u8; INDEXER_BYTES]) -> f64 {
    let (mut x, mut y) = ([0f32; 128], [0f32; 128]);
    decode_row(a, &mut x);
    decode_row(b, &mut y);
    x.iter().zip(y).map(|(&x, y)| f64::from(x) * f64::from(y)).sum()
}

#[test]
fn indexer_rows_hold_the_round_trip_and_multiply_exactly() {
    let mut stream = Stream::new("indexer");
    let mut rows = Vec::new();
    for deviation in [1.0, 0.01, 30.0, 0.3] {
        let mut x = stream.normals(128, deviation);
        let mut row = [0; INDEXER_BYTES];
        encode_rows(&x, &mut row);
        fp4::round_trip(&mut x, 32);
        let mut decoded = [0f32; 128];
        decode_row(&row, &mut decoded);
        assert_bits("indexer row", &decoded, &x);
        rows.push(row);
    }
    for a in &rows {
        for b in &rows {
            // Four products of at most 24 bits each, added with one rounding a block.
            let (found, exact) = (f64::from(indexer_dot(a, b)), exact_indexer_dot(a, b));
            let bound: f64 = 4.0 * 2f64.powi(-24) * 36.0 * 128.0 * scale_max(a) * scale_max(b);
            assert!((found - exact).abs() <= bound, "{found} {exact}");
        }
        // With one scale throughout every step is exact, so the whole is.
        let mut even = *a;
        even[64..].fill(120);
        assert_eq!(f64::from(indexer_dot(&even, &even)), exact_indexer_dot(&even, &even));
    }
}

fn scale_max(row: &[u8; INDEXER_BYTES]) -> f64 {
    row[64..].iter().map(|&e| f64::from(fp8::e8m0_to_f32(e))).fold(0.0, f64::max)
}

#[test]
fn indexer_scales_at_the_ends_of_the_range() {
    let row = |e: u8| {
        let mut row = [0u8; INDEXER_BYTES];
        row[0] = 2; // one in dim 0
        row[64..].fill(e);
        row
    };
    // 2^(ea + eb - 256) times doubled codes 2 * 2.
    assert_eq!(indexer_dot(&row(127), &row(127)), 1.0);
    assert_eq!(indexer_dot(&row(65), &row(65)), 2f32.powi(-124), "the smallest factor, 2^-126");
    assert_eq!(indexer_dot(&row(64), &row(65)), 0.0, "below it: zero");
    assert_eq!(indexer_dot(&row(0), &row(0)), 0.0);
    assert_eq!(indexer_dot(&row(191), &row(190)), 2f32.powi(127));
    assert!(indexer_dot(&row(254), &row(254)).is_nan(), "infinity times the empty blocks' zero");
    assert!(indexer_dot(&row(255), &row(1)).is_nan());
}

#[test]
fn published_matrices_decode_by_their_grids() {
    let codes: Vec<u8> = (0..15).collect();
    let scales = [1.0, 2.0, 4.0, 8.0];
    let grid = fp8::Grid { rows: 3, columns: 5, block_rows: 2, block_columns: 4 };
    let mut out = [0f32; 15];
    fp8::decode(grid, &codes, &scales, &mut out).expect("the shapes fit");
    for (i, v) in out.iter().enumerate() {
        let scale = scales[i / 5 / 2 * 2 + i % 5 / 4];
        assert_eq!(*v, fp8::e4m3_to_f32(codes[i]) * scale, "{i}");
    }
    // Two rows of 34 columns: the second scale of a row covers columns 32 and 33.
    let codes: Vec<u8> = (0..34).map(|i| i * 7).collect();
    let mut out = [0f32; 68];
    fp4::decode(2, 34, &codes, &[127, 128, 129, 130], &mut out).expect("the shapes fit");
    for (i, v) in out.iter().enumerate() {
        let (row, column) = (i / 34, i % 34);
        let nibble = (codes[row * 17 + column / 2] >> (4 * (column % 2))) & 15;
        let scale = 2f32.powi(i32::try_from(2 * row + column / 32).expect("small"));
        assert_eq!(*v, fp4::e2m1_to_f32(nibble) * scale, "{i}");
    }
}

#[test]
fn int8_ties_go_to_the_even_code() {
    // The largest magnitude is 127, so codes are the values rounded.
    let mut x = [0f32; 32];
    x[..8].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]);
    let (mut codes, mut scales) = ([9; 32], [9.0]);
    quantize_int8(&x, 32, &mut codes, &mut scales);
    assert_eq!((codes[..8].to_vec(), scales), (vec![127, 0, 2, 2, 0, -2, -2, 126], [1.0]));
    // Zeros, and values whose inverse scale is infinite, are zeros with scale 0.
    for tiny in [0.0, f32::MIN_POSITIVE, f32::from_bits(1)] {
        quantize_int8(&[tiny; 32], 32, &mut codes, &mut scales);
        assert_eq!((codes, scales), ([0; 32], [0.0]));
    }
}

/// Values of any size and sign up to 2^127: above, rounding up may reach infinity.
fn any_finite() -> impl Strategy<Value = f32> {
    let any = prop::num::f32::NORMAL | prop::num::f32::SUBNORMAL | prop::num::f32::ZERO;
    any.prop_map(|v| v.clamp(-2f32.powi(127), 2f32.powi(127)))
}

/// Values of ordinary size.
fn ordinary() -> impl Strategy<Value = f32> {
    (-12i32..12, -1f32..1.0).prop_map(|(exponent, v)| v * 2f32.powi(exponent))
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn fp8_round_trip_is_idempotent_and_near(x in prop::collection::vec(ordinary(), 64)) {
        let mut once = x.clone();
        fp8::round_trip(&mut once, 64);
        let mut twice = once.clone();
        fp8::round_trip(&mut twice, 64);
        assert_bits("again", &twice, &once);
        let max = x.iter().fold(1e-4f32, |max, v| max.max(v.abs()));
        for (x, y) in x.iter().zip(&once) {
            // Half an ulp of a 3-bit mantissa, or half the smallest step (scale at most max/224).
            prop_assert!((x - y).abs() <= (x.abs() / 16.0).max(max / 224.0 / 1024.0));
        }
    }

    #[test]
    fn fp4_round_trip_is_idempotent_and_near(x in prop::collection::vec(ordinary(), 32)) {
        let mut once = x.clone();
        fp4::round_trip(&mut once, 32);
        let mut twice = once.clone();
        fp4::round_trip(&mut twice, 32);
        // By value: a minus zero left by the first becomes plain zero, as the oracle has it.
        prop_assert_eq!(&twice, &once);
        let max = x.iter().fold(0f32, |max, v| max.max(v.abs()));
        for (x, y) in x.iter().zip(&once) {
            // The widest gap, 4 to 6, at a scale of at most max / 3.
            prop_assert!((x - y).abs() <= max / 3.0);
        }
    }

    #[test]
    fn int8_blocks_are_near_and_symmetric(x in prop::collection::vec(ordinary(), 96)) {
        let (mut codes, mut scales) = (vec![0; 96], vec![0.0; 3]);
        quantize_int8(&x, 32, &mut codes, &mut scales);
        for (i, (&x, &code)) in x.iter().zip(&codes).enumerate() {
            let (x, scale) = (f64::from(x), f64::from(scales[i / 32]));
            prop_assert!((f64::from(code) * scale - x).abs() <= scale * 0.500_01);
            prop_assert!(code >= -127);
        }
        let negative: Vec<f32> = x.iter().map(|v| -v).collect();
        let mut negated = vec![0; 96];
        quantize_int8(&negative, 32, &mut negated, &mut scales);
        prop_assert!(codes.iter().zip(negated).all(|(a, b)| *a == -b));
    }

    #[test]
    fn no_finite_input_gives_a_fault(x in prop::collection::vec(any_finite(), 128)) {
        let (mut codes, mut scales) = (vec![0; 128], vec![0.0; 4]);
        quantize_int8(&x, 32, &mut codes, &mut scales);
        prop_assert!(scales.iter().all(|s| s.is_finite() && *s >= 0.0));
        let mut y = x.clone();
        fp8::round_trip(&mut y, 64);
        prop_assert!(y.iter().all(|v| v.is_finite()));
        let mut y = x.clone();
        fp4::round_trip(&mut y, 32);
        prop_assert!(y.iter().all(|v| v.is_finite()));
    }
}
