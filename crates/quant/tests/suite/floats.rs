//! Small float formats against arithmetic written apart: every code, and every border between two.

use ironstar_quant::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, fp4, fp8};

/// Value of a float with `exponent_bits` and `mantissa_bits`, by the textbook formula.
fn textbook(code: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let bias = (1i32 << (exponent_bits - 1)) - 1;
    let exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let fraction = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1u32 << mantissa_bits);
    let exponent = i32::try_from(exponent).expect("eight bits at most");
    let magnitude = if exponent == 0 {
        fraction * 2f64.powi(1 - bias)
    } else {
        (1.0 + fraction) * 2f64.powi(exponent - bias)
    };
    if code >> (exponent_bits + mantissa_bits) == 1 { -magnitude } else { magnitude }
}

/// Checks rounding at the border between two neighbouring codes, `low` even or odd, both signs.
fn check_border(low: u32, values: (f32, f32), sign: u32, encode: impl Fn(f32) -> u32) {
    let middle = f32::midpoint(values.0, values.1);
    assert_eq!(f64::from(middle) * 2.0, f64::from(values.0) + f64::from(values.1), "exact in f32");
    let even = if low.is_multiple_of(2) { low } else { low + 1 };
    for (value, code) in [
        (values.0, low),
        (middle.next_down(), low),
        (middle, even),
        (middle.next_up(), low + 1),
        (values.1, low + 1),
    ] {
        assert_eq!(encode(value), code, "{value:e}");
        assert_eq!(encode(-value), code | sign, "{:e}", -value);
    }
}

#[test]
fn every_f16_has_its_textbook_value() {
    for code in 0..=u16::MAX {
        let value = f16_to_f32(code);
        match code & 0x7fff {
            0x7c00 => assert!(value.is_infinite()),
            0x7c01.. => assert!(value.is_nan()),
            _ => {
                assert_eq!(f64::from(value), textbook(u32::from(code), 5, 10), "{code:#06x}");
                assert_eq!(f32_to_f16(value), code, "{code:#06x}");
            }
        }
        assert_eq!(value.is_sign_negative(), code >> 15 == 1);
    }
}

#[test]
fn f16_rounds_to_nearest_even_at_every_border() {
    for code in 0..0x7bffu16 {
        let values = (f16_to_f32(code), f16_to_f32(code + 1));
        check_border(code.into(), values, 0x8000, |v| f32_to_f16(v).into());
    }
    assert_eq!(f32_to_f16(65520f32.next_down()), 0x7bff);
    for (value, code) in [(65520.0, 0x7c00), (f32::MAX, 0x7c00), (f32::INFINITY, 0x7c00)] {
        assert_eq!(f32_to_f16(value), code, "{value:e}");
        assert_eq!(f32_to_f16(-value), code | 0x8000, "{value:e}");
    }
    assert!(f16_to_f32(f32_to_f16(f32::NAN)).is_nan());
    // A NaN whose payload lies below f16's mantissa must not become an infinity.
    assert!(f16_to_f32(f32_to_f16(f32::from_bits(0x7f80_0001))).is_nan());
}

#[test]
fn bf16_rounds_to_nearest_even_at_every_border() {
    for code in 0..0x7f7fu16 {
        let values = (bf16_to_f32(code), bf16_to_f32(code + 1));
        let halfway = f32::from_bits(values.0.to_bits() + 0x8000);
        let even = code + code % 2;
        assert_eq!(f64::from(values.0), textbook(u32::from(code), 8, 7));
        for (value, wanted) in [
            (values.0, code),
            (halfway.next_down(), code),
            (halfway, even),
            (halfway.next_up(), code + 1),
        ] {
            assert_eq!(f32_to_bf16(value), wanted, "{value:e}");
            assert_eq!(f32_to_bf16(-value), wanted | 0x8000, "{value:e}");
        }
    }
    assert_eq!(f32_to_bf16(f32::MAX), 0x7f80);
    assert_eq!(f32_to_bf16(f32::INFINITY), 0x7f80);
    assert!(bf16_to_f32(f32_to_bf16(f32::from_bits(0x7f80_0001))).is_nan());
    assert!(bf16_to_f32(f32_to_bf16(f32::from_bits(0xffff_ffff))).is_nan());
}

#[test]
fn every_e4m3_has_its_textbook_value_and_borders() {
    for code in 0..=255u8 {
        let value = fp8::e4m3_to_f32(code);
        if code & 0x7f == 0x7f {
            assert!(value.is_nan());
            continue;
        }
        assert_eq!(f64::from(value), textbook(code.into(), 4, 3), "{code:#04x}");
        assert_eq!(value.is_sign_negative(), code >> 7 == 1);
        assert_eq!(fp8::f32_to_e4m3(value), code);
    }
    for code in 0..0x7eu8 {
        let values = (fp8::e4m3_to_f32(code), fp8::e4m3_to_f32(code + 1));
        check_border(code.into(), values, 0x80, |v| fp8::f32_to_e4m3(v).into());
    }
    for value in [448.0, 464.0, 480.0, 1e30, f32::INFINITY] {
        assert_eq!(fp8::f32_to_e4m3(value), 0x7e);
        assert_eq!(fp8::f32_to_e4m3(-value), 0xfe);
    }
    assert_eq!(fp8::f32_to_e4m3(f32::NAN) & 0x7f, 0x7f);
}

#[test]
fn e8m0_is_a_power_of_two() {
    for code in 0..255u8 {
        let value = fp8::e8m0_to_f32(code);
        assert_eq!(f64::from(value), 2f64.powi(i32::from(code) - 127));
        assert_eq!(fp8::f32_to_e8m0(value), code);
        assert_eq!(fp8::f32_to_e8m0(value.next_up()), (code + 1).min(254));
    }
    assert!(fp8::e8m0_to_f32(255).is_nan());
    assert_eq!(fp8::f32_to_e8m0(f32::from_bits(1)), 0);
    for value in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        assert_eq!(fp8::f32_to_e8m0(value), 255, "{value}");
    }
}

#[test]
fn every_e2m1_has_its_textbook_value_and_borders() {
    for code in 0..16u8 {
        let value = fp4::e2m1_to_f32(code);
        assert_eq!(f64::from(value), textbook(code.into(), 2, 1), "{code}");
        assert_eq!(f32::from(fp4::DOUBLED[usize::from(code)]), value * 2.0);
        // Minus zero comes only from rounding: encoding it gives plain zero.
        assert_eq!(fp4::f32_to_e2m1(value), if code == 8 { 0 } else { code });
    }
    for code in 1..7u8 {
        let values = (fp4::e2m1_to_f32(code), fp4::e2m1_to_f32(code + 1));
        check_border(code.into(), values, 8, |v| fp4::f32_to_e2m1(v).into());
    }
    assert_eq!(fp4::f32_to_e2m1(0.25), 0);
    assert_eq!(fp4::f32_to_e2m1(0.25f32.next_up()), 1);
    assert_eq!(fp4::f32_to_e2m1(-0.25), 8);
    assert_eq!(fp4::f32_to_e2m1(f32::INFINITY), 7);
    assert_eq!(fp4::f32_to_e2m1(-100.0), 15);
}
