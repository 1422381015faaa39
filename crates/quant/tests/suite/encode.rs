//! Encoders: errors against the reference encoder's, importance, exactness where a format allows.

use ironstar_quant::{FORMATS, Format};
use proptest::prelude::*;

use crate::helpers::{Stream, cases, decode, encode, reference_matrix};

/// Relative RMSE on the reference matrix without importances: llama.cpp's encoders and ours.
const RMSE: [(Format, f64, f64); 9] = [
    (Format::Q8_0, 0.00503, 0.00503),
    (Format::Q6K, 0.01690, 0.01577),
    (Format::Q5K, 0.03469, 0.03292),
    (Format::Q4K, 0.06811, 0.06659),
    (Format::Q4_0, 0.08138, 0.07634),
    (Format::Mxfp4, 0.11328, 0.11043),
    (Format::Q3K, 0.14496, 0.13812),
    (Format::Q2K, 0.28723, 0.25328),
    (Format::Iq2Xxs, 0.33863, 0.32363),
];
/// How far above the reference an encoder may be.
const ALLOWANCE: f64 = 1.01;
/// How far above its own mark, which has five digits, an encoder may be.
const DRIFT: f64 = 1.002;

/// Root of the weighted mean square error over that of the values.
fn relative_rmse(values: &[f32], decoded: &[f32], weights: Option<&[f32]>) -> f64 {
    let weight = |i: usize| weights.map_or(1.0, |w| f64::from(w[i]));
    let (mut error, mut power) = (0.0, 0.0);
    for (i, (&v, &d)) in values.iter().zip(decoded).enumerate() {
        error += weight(i) * (f64::from(v) - f64::from(d)).powi(2);
        power += weight(i) * f64::from(v).powi(2);
    }
    (error / power).sqrt()
}

#[test]
fn errors_stay_at_the_reference() {
    let values = reference_matrix();
    for (format, reference, ours) in RMSE {
        let name = format.info().name;
        let decoded = decode(format, &encode(format, &values, None), values.len());
        let rmse = relative_rmse(&values, &decoded, None);
        let bound = (reference * ALLOWANCE).min(ours * DRIFT);
        assert!(rmse <= bound, "{name}: {rmse:.5}, reference {reference:.5}, ours {ours:.5}");
    }
}

#[test]
fn importance_lowers_the_error_that_it_weighs() {
    let mut stream = Stream::new("importance");
    let values = stream.normals(4096, 0.05);
    // A few columns matter a hundred times more than the others.
    let weights: Vec<f32> =
        (0..4096).map(|_| if stream.unit() < 0.1 { 100.0 } else { 1.0 }).collect();
    for (format, ..) in RMSE {
        let name = format.info().name;
        let error = |importance| {
            let decoded = decode(format, &encode(format, &values, importance), values.len());
            relative_rmse(&values, &decoded, Some(&weights))
        };
        let (with, without) = (error(Some(&weights)), error(None));
        if format == Format::Q8_0 {
            assert_eq!(with, without, "Q8_0 takes no notice of importances");
        } else {
            let gain = if format == Format::Mxfp4 { 0.97 } else { 0.95 };
            assert!(with < without * gain, "{name}: {with:.5} with, {without:.5} without");
        }
        // A common factor changes nothing: importances are relative.
        let scaled: Vec<f32> = weights.iter().map(|w| w * 2f32.powi(-70)).collect();
        let (plain, scaled) = (Some(&weights[..]), Some(&scaled[..]));
        assert!(encode(format, &values, plain) == encode(format, &values, scaled), "{name}");
    }
}

#[test]
fn rows_are_encoded_apart() {
    let values = Stream::new("rows").normals(2048, 0.05);
    for info in FORMATS {
        let whole = encode(info.format, &values, None);
        let (one, two) = values.split_at(768);
        let parts = [encode(info.format, one, None), encode(info.format, two, None)].concat();
        assert!(whole == parts, "{}", info.name);
    }
}

#[test]
fn float_formats_keep_what_they_can_hold() {
    let fixture = crate::helpers::Fixture::open("quant/blocks.safetensors");
    for format in [Format::F32, Format::F16, Format::Bf16] {
        let name = format.info().name;
        let bytes = fixture.bytes(&format!("{name}.bytes"));
        let values = decode(format, bytes, bytes.len() / format.info().block_bytes);
        let again = decode(format, &encode(format, &values, None), values.len());
        for (a, b) in values.iter().zip(&again) {
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{name}: {a} {b}");
        }
    }
}

/// Ordinary values with outliers and zeros.
fn values(count: usize) -> impl Strategy<Value = Vec<f32>> {
    let value = (-9i32..9, -1f32..1.0).prop_map(|(exponent, v)| v * 2f32.powi(exponent));
    prop::collection::vec(prop_oneof![4 => -1f32..1.0, 1 => value, 1 => Just(0.0)], count)
}

/// Root mean square error of a block, in parts of its largest magnitude, that no values exceed.
fn worst_error(format: Format) -> f64 {
    match format {
        Format::F32 => 0.0,
        Format::F16 => 0.000_5,
        Format::Bf16 => 0.004,
        Format::Q8_0 => 0.004_5,
        Format::Q6K => 0.02,
        Format::Q5K => 0.034,
        Format::Q4K => 0.07,
        Format::Q4_0 => 0.07,
        Format::Q3K => 0.14,
        Format::Mxfp4 => 0.17,
        Format::Q2K => 0.35,
        Format::Iq2Xxs => 0.45,
    }
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn the_error_of_a_block_is_bounded(values in values(256)) {
        let max = values.iter().fold(0f64, |max, v| max.max(f64::from(v.abs())));
        for info in FORMATS {
            let decoded = decode(info.format, &encode(info.format, &values, None), 256);
            let miss = values.iter().zip(&decoded).map(|(v, d)| f64::from(v - d).powi(2));
            let rms = (miss.sum::<f64>() / 256.0).sqrt();
            let bound = worst_error(info.format) * max;
            prop_assert!(rms <= bound, "{}: {rms} over {bound}", info.name);
        }
    }

    #[test]
    fn mxfp4_keeps_codes_times_a_power_of_two(
        codes in prop::collection::vec(0u8..16, 32),
        exponent in -127i32..=125,
        weights in prop::collection::vec(0.01f32..10.0, 32),
    ) {
        let scale = 2f64.powi(exponent);
        let value = |code: &u8| f64::from(ironstar_quant::fp4::e2m1_to_f32(*code)) * scale;
        #[expect(clippy::cast_possible_truncation, reason = "exact: powers of two in f32's range")]
        let values: Vec<f32> = codes.iter().map(|code| value(code) as f32).collect();
        for importance in [None, Some(&weights[..])] {
            let decoded = decode(Format::Mxfp4, &encode(Format::Mxfp4, &values, importance), 32);
            prop_assert_eq!(&decoded, &values);
        }
    }

    #[test]
    fn published_rows_repack_without_rounding(
        codes in prop::collection::vec(any::<u8>(), 48),
        scales in prop::collection::vec(0u8..255, 3),
    ) {
        let mut blocks = vec![0; 51];
        ironstar_quant::mxfp4::repack_published(&codes, &scales, &mut blocks).expect("no NaN");
        let mut published = vec![0f32; 96];
        ironstar_quant::fp4::decode(1, 96, &codes, &scales, &mut published).expect("shapes fit");
        prop_assert_eq!(decode(Format::Mxfp4, &blocks, 96), published);
    }
}
