//! Awkward input: what it becomes, and that wrong sizes are errors or stated panics.

use std::panic::catch_unwind;

use ironstar_quant::{FORMATS, Format, Row, dot, fp4, fp8, mxfp4};
use proptest::prelude::*;

use crate::helpers::{INTEGER_FORMATS, cases, decode, encode};

#[test]
fn encoders_turn_nan_into_zero_and_clamp_the_rest() {
    for format in INTEGER_FORMATS {
        let name = format.info().name;
        for (value, size) in
            [(f32::NAN, 0.0), (f32::INFINITY, 65504.0), (-1e30, 65504.0), (1e-30, 0.0)]
        {
            let found = decode(format, &encode(format, &[value; 256], None), 256);
            let size = match format {
                Format::Mxfp4 if value.is_infinite() => 6.0 * 2f32.powi(125),
                Format::Mxfp4 if !value.is_nan() => value.abs(),
                _ => size,
            };
            for v in found {
                // 2-bit formats cannot hold a run of one value well; the size must be right.
                assert!((v.abs() - size).abs() <= size * 0.2, "{name}: {value:e} became {v:e}");
                assert!(v == 0.0 || v.is_sign_negative() == value.is_sign_negative(), "{name}");
            }
        }
    }
}

#[test]
fn odd_importances_are_harmless() {
    let values: Vec<f32> = (0..=255u8).map(|i| f32::from(i) / 128.0 - 1.0).collect();
    for format in INTEGER_FORMATS {
        let name = format.info().name;
        let error = |importance: Option<&[f32]>| {
            let decoded = decode(format, &encode(format, &values, importance), 256);
            values.iter().zip(decoded).map(|(v, d)| (v - d).abs()).fold(0f32, f32::max)
        };
        let plain = error(None);
        for odd in [0.0, f32::NAN, -1.0, f32::INFINITY, 1e-40, 2f32.powi(127)] {
            // All alike, whatever they are, is no preference.
            assert_eq!(error(Some(&[odd; 256])), plain, "{name}: importances {odd:e}");
        }
    }
}

#[test]
fn parts_that_do_not_fit_are_errors() {
    let grid = fp8::Grid { rows: 2, columns: 3, block_rows: 128, block_columns: 128 };
    let error = fp8::decode(grid, &[0; 6], &[1.0; 2], &mut [0.0; 6]).expect_err("one scale");
    let text = error.to_string();
    assert!(text.contains("scales of a 2 x 3 matrix: found 2, wanted 1"), "{text}");
    assert!(fp8::decode(grid, &[0; 5], &[1.0], &mut [0.0; 5]).is_err());
    assert!(fp8::decode(grid, &[0; 6], &[1.0], &mut [0.0; 5]).is_err());
    let empty = fp8::Grid { block_rows: 0, ..grid };
    assert!(fp8::decode(empty, &[0; 6], &[1.0], &mut [0.0; 6]).is_err());
    let huge = fp8::Grid { rows: usize::MAX, columns: usize::MAX, ..grid };
    assert!(fp8::decode(huge, &[0; 6], &[1.0], &mut [0.0; 6]).is_err());
    let none = fp8::Grid { rows: 0, columns: 0, ..grid };
    fp8::decode(none, &[], &[], &mut []).expect("nothing to do");
    assert!(fp4::decode(1, 32, &[0; 16], &[], &mut [0.0; 32]).is_err());
    assert!(fp4::decode(usize::MAX, 32, &[0; 16], &[0], &mut [0.0; 32]).is_err());
    let error = mxfp4::repack_published(&[0; 32], &[1, 255], &mut [0; 34]).expect_err("a NaN");
    assert_eq!(error.block, 1);
}

#[test]
fn lengths_that_disagree_panic_and_do_not_read_past_the_end() {
    for info in FORMATS {
        let bytes = vec![0; info.block_bytes + 1];
        let decode = || (info.decode)(&bytes, &mut vec![0.0; info.block_elements]);
        assert!(catch_unwind(decode).is_err(), "{}: a broken block", info.name);
        let decode = || (info.decode)(&bytes[1..], &mut vec![0.0; 2 * info.block_elements]);
        assert!(catch_unwind(decode).is_err(), "{}: a longer output", info.name);
    }
    let wrong_form = || dot(Format::Q8_0, &[0; 34], Row::F32(&[0.0; 32]));
    assert!(catch_unwind(wrong_form).is_err());
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn any_values_and_importances_encode_to_finite_numbers(
        values in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 256),
        importance in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 256),
    ) {
        for format in INTEGER_FORMATS {
            for importance in [None, Some(&importance[..])] {
                let decoded = decode(format, &encode(format, &values, importance), 256);
                prop_assert!(decoded.iter().all(|v| v.is_finite()), "{:?}", format);
            }
        }
    }
}
