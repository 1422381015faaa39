//! Property: whatever is written reads back equal, however its data was cut into calls.

use ironstar_gguf::{Array, Gguf, TensorKind, Value, Writer};
use ironstar_quant::FORMATS;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::io::Cursor;

fn array() -> impl Strategy<Value = Array> {
    let leaf = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(any::<f32>(), 0..9).prop_map(Array::F32),
        vec(any::<f64>(), 0..9).prop_map(Array::F64),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(vec(any::<u8>(), 0..9), 0..9).prop_map(Array::String),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| vec(inner, 0..4).prop_map(Array::Array))
}

pub fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        ".{0,20}".prop_map(Value::String),
        array().prop_map(Value::Array),
    ]
}

#[derive(Clone, Debug)]
pub struct Planned {
    pub kind: TensorKind,
    pub dims: Vec<u64>,
    pub data: Vec<u8>,
}

pub fn tensor() -> impl Strategy<Value = Planned> {
    let plain = [TensorKind::I8, TensorKind::I16, TensorKind::I32, TensorKind::I64];
    let blocks = FORMATS.iter().map(|info| TensorKind::Block(info.format));
    let kinds: Vec<TensorKind> = blocks.chain(plain).chain([TensorKind::F64]).collect();
    let shape = (proptest::sample::select(kinds), 1..4_u64, vec(1..4_u64, 0..4), any::<u8>());
    shape.prop_map(|(kind, blocks, outer, seed)| {
        let unit = match kind {
            TensorKind::Block(format) => format.info().block_elements as u64,
            _ => 1,
        };
        let dims: Vec<u64> = std::iter::once(blocks * unit).chain(outer).collect();
        let bytes = kind.bytes(&dims).expect("a possible tensor");
        let data = (0..bytes).map(|i| seed.wrapping_add((i * 31).to_le_bytes()[0])).collect();
        Planned { kind, dims, data }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_written_reads_back(
        entries in btree_map("[a-z._]{1,12}", value(), 0..12),
        alignment in prop_oneof![Just(None), (0..9_u32).prop_map(|shift| Some(1 << shift))],
        tensors in btree_map(".{1,16}", tensor(), 0..6),
        cuts in vec(1..200_usize, 1..8),
    ) {
        let mut writer = Writer::new(Cursor::new(Vec::new()));
        let mut wanted: Vec<(String, Value)> = entries.into_iter().collect();
        wanted.extend(alignment.map(|n| ("general.alignment".to_owned(), Value::U32(n))));
        for (key, value) in &wanted {
            writer.metadata(key, value.clone())?;
        }
        for (name, tensor) in &tensors {
            writer.tensor(name, tensor.kind, &tensor.dims)?;
        }
        for (name, tensor) in &tensors {
            let mut rest = &tensor.data[..];
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at(rest.len().min(*cut));
                writer.data(name, now)?;
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
        }
        let model = Gguf::from_bytes(writer.finish()?.into_inner())?;

        // As text, since NaN is not equal to itself.
        let found = format!("{:?}", model.metadata().entries());
        prop_assert_eq!(found, format!("{:?}", wanted));
        prop_assert_eq!(model.tensors().len(), tensors.len());
        for (found, (name, wanted)) in model.tensors().iter().zip(&tensors) {
            prop_assert_eq!((&found.name, found.kind), (name, wanted.kind));
            prop_assert_eq!(&found.dims, &wanted.dims);
            let bytes = model.bytes(found)?;
            prop_assert_eq!(&*bytes, &wanted.data[..]);
        }
    }

    #[test]
    fn any_bytes_after_a_good_start_are_survived(
        bytes in vec(any::<u8>(), 0..300),
        tensors in 0..4_u64,
        entries in 0..4_u64,
    ) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(tensors.to_le_bytes());
        file.extend(entries.to_le_bytes());
        file.extend(bytes);
        if let Ok(model) = Gguf::from_bytes(file) {
            crate::helpers::exercise(&model);
        }
    }
}
