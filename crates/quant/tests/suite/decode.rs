//! Decoding equals PyPI `gguf` on blocks of any bytes (fixture: `make/quant_blocks.py`).

use ironstar_quant::FORMATS;

use crate::helpers::{Fixture, decode};

#[test]
fn any_bytes_decode_as_the_reference_does() {
    let fixture = Fixture::open("quant/blocks.safetensors");
    for info in FORMATS {
        let bytes = fixture.bytes(&format!("{}.bytes", info.name));
        let wanted = fixture.floats(&format!("{}.values", info.name));
        let found = decode(info.format, bytes, wanted.len());
        for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            // Which NaN an operation gives is the machine's choice, so NaN equals NaN.
            let equal = found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan());
            assert!(equal, "{} value {i}: found {found:e}, wanted {wanted:e}", info.name);
        }
        assert!(wanted.iter().any(|v| v.is_finite() && *v != 0.0), "{}: a vacuous case", info.name);
    }
}
