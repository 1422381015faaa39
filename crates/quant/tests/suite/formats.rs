//! The table of formats.

use ironstar_quant::{Activation, Dot, FORMATS, Format};

/// Name, GGUF id, elements and bytes of a block, as GGUF fixes them.
const LAYOUTS: [(Format, &str, u32, usize, usize); 12] = [
    (Format::F32, "F32", 0, 1, 4),
    (Format::F16, "F16", 1, 1, 2),
    (Format::Bf16, "BF16", 30, 1, 2),
    (Format::Q4_0, "Q4_0", 2, 32, 18),
    (Format::Q8_0, "Q8_0", 8, 32, 34),
    (Format::Q2K, "Q2_K", 10, 256, 84),
    (Format::Q3K, "Q3_K", 11, 256, 110),
    (Format::Q4K, "Q4_K", 12, 256, 144),
    (Format::Q5K, "Q5_K", 13, 256, 176),
    (Format::Q6K, "Q6_K", 14, 256, 210),
    (Format::Iq2Xxs, "IQ2_XXS", 16, 256, 66),
    (Format::Mxfp4, "MXFP4", 39, 32, 17),
];

#[test]
fn the_table_has_the_layouts_of_gguf() {
    assert_eq!(FORMATS.len(), LAYOUTS.len());
    for (format, name, id, elements, bytes) in LAYOUTS {
        let info = format.info();
        assert_eq!((info.format, info.name, info.gguf_id), (format, name, id));
        assert_eq!((info.block_elements, info.block_bytes), (elements, bytes), "{name}");
        assert_eq!(Format::from_gguf_id(id), Some(format));
        assert_eq!(Format::from_name(&name.to_lowercase()), Some(format));
        let float = matches!(info.dot, Dot::Float(_));
        assert_eq!(float, info.activation == Activation::F32, "{name}");
        assert_eq!(info.activation.block(), (!float).then_some(elements), "{name}");
        assert!(info.encode.is_some(), "{name}");
    }
}

#[test]
fn unknown_ids_and_names_are_none() {
    for id in [3, 9, 15, 31, 40, u32::MAX] {
        assert_eq!(Format::from_gguf_id(id), None);
    }
    for name in ["", "Q4", "Q4_K_M", "q8_0 "] {
        assert_eq!(Format::from_name(name), None);
    }
}

#[test]
fn row_bytes_wants_whole_blocks_and_does_not_overflow() {
    assert_eq!(Format::Q2K.row_bytes(512), Some(168));
    assert_eq!(Format::Q2K.row_bytes(0), Some(0));
    assert_eq!(Format::Q2K.row_bytes(511), None);
    assert_eq!(Format::Q8_0.row_bytes(33), None);
    assert_eq!(Format::F16.row_bytes(33), Some(66));
    assert_eq!(Format::F32.row_bytes(usize::MAX), None);
    assert_eq!(Format::Q8_0.row_bytes(usize::MAX - 31), None);
}
