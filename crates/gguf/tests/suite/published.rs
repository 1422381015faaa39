//! The published storage types against values that `ml_dtypes` and numpy made, bit for bit.

use crate::helpers::{golden, golden_path};
use ironstar_gguf::safetensors::{Checkpoint, Dtype};
use ironstar_quant::Format;
use ironstar_quant::fp4::e2m1_to_f32;
use ironstar_quant::fp8::e8m0_to_f32;

const EXPERT: &str = "layers.0.ffn.experts.0.w1.weight";

fn opened() -> Checkpoint {
    Checkpoint::from_bytes("published.safetensors", golden("published.safetensors"))
        .expect("the fixture")
}

/// Bits, with all NaNs alike.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { f32::NAN } else { *v }.to_bits()).collect()
}

#[test]
fn every_storage_type_gives_the_values_of_the_oracle() {
    let checkpoint = opened();
    let wanted: Vec<&str> = checkpoint.names().filter(|name| name.ends_with("@values")).collect();
    assert_eq!(wanted.len(), 13);
    for values in wanted {
        let name = values.trim_end_matches("@values");
        let found = checkpoint.to_f32(name).expect(name);
        assert_eq!(bits(&found), bits(&checkpoint.to_f32(values).expect("floats")), "{name}");
        let shape = checkpoint.value_shape(name).expect(name);
        assert_eq!(shape, checkpoint.tensor(values).expect("floats").shape, "{name}");
    }
}

#[test]
fn all_dtypes_of_the_layout_are_in_the_fixture() {
    let checkpoint = opened();
    let found: Vec<Dtype> =
        checkpoint.names().filter_map(|name| Some(checkpoint.tensor(name)?.dtype)).collect();
    let all = [
        Dtype::F64,
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F8E4M3,
        Dtype::F8E8M0,
        Dtype::I64,
        Dtype::I32,
        Dtype::I16,
        Dtype::I8,
        Dtype::U8,
    ];
    assert!(all.iter().all(|dtype| found.contains(dtype)), "{found:?}");
}

#[test]
fn whole_numbers_stay_whole() {
    let checkpoint = opened();
    let wide = checkpoint.to_i64("i64").expect("I64");
    assert_eq!(wide, [0, -7, (1 << 24) + 1, (1 << 53) + 1, i64::MIN]);
    assert_eq!(checkpoint.to_i64("i32").expect("I32"), [i64::from(i32::MAX), -5]);
    assert!(checkpoint.to_i64("f16").is_err());
}

#[test]
fn parts_of_fp4_make_the_same_values() {
    let checkpoint = opened();
    let (codes, scales, rows, columns) = checkpoint.fp4_parts(EXPERT).expect("an expert");
    assert_eq!((rows, columns), (64, 128));
    let value = |row: usize, column: usize| {
        let byte = codes[row * columns / 2 + column / 2];
        let code = (byte >> (4 * (column % 2))) & 15;
        e2m1_to_f32(code) * e8m0_to_f32(scales[row * columns / 32 + column / 32])
    };
    let values: Vec<f32> = (0..rows)
        .flat_map(|row| (0..columns).map(move |column| (row, column)))
        .map(|(row, column)| value(row, column))
        .collect();
    assert_eq!(bits(&values), bits(&checkpoint.to_f32(EXPERT).expect("an expert")));
}

#[test]
fn repacking_as_mxfp4_loses_nothing() {
    let checkpoint = opened();
    let (codes, scales, rows, columns) = checkpoint.fp4_parts(EXPERT).expect("an expert");
    let mut blocks = Vec::new();
    for (codes, scale) in codes.chunks_exact(16).zip(scales.iter()) {
        let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
        blocks.push(*scale);
        blocks.extend((0..16).map(|i| code(i) | code(i + 16) << 4));
    }
    let mut values = vec![0.0; rows * columns];
    (Format::Mxfp4.info().decode)(&blocks, &mut values);
    let wanted = checkpoint.to_f32(EXPERT).expect("an expert");
    // GGUF's MXFP4 has no NaN (scale 255 is 2^128) and no minus zero, which equals zero.
    let same = |(i, (found, wanted)): (usize, (&f32, &f32))| {
        if scales[i / 32] == 255 { wanted.is_nan() } else { found == wanted }
    };
    assert!(values.iter().zip(&wanted).enumerate().all(same));
}

#[test]
fn a_file_is_mapped_as_well() {
    let mapped = Checkpoint::open(&golden_path("published.safetensors")).expect("the fixture");
    let held = opened();
    assert!(mapped.names().eq(held.names()));
    for name in held.names() {
        assert_eq!(*mapped.bytes(name).expect("data"), *held.bytes(name).expect("data"));
    }
}
