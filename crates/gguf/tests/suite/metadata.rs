//! Typed getters: what each accepts, and what it says of what it does not.

use crate::helpers::{golden_path, text, written};
use ironstar_gguf::{Array, Error, Gguf, Metadata, Value};
use std::fmt::Debug;

fn opened(value: Value) -> Gguf {
    Gguf::from_bytes(written(&[("a.key", value)], &[])).expect("our own file")
}

/// Checks a getter on values and what it gives for each; `None` means that it complains.
#[track_caller]
fn check<T: PartialEq + Debug>(
    get: impl Fn(&Metadata) -> Result<T, Error>,
    cases: Vec<(Value, Option<T>)>,
) {
    for (value, wanted) in cases {
        let shown = format!("{value:?}");
        let model = opened(value);
        match (get(model.metadata()), wanted) {
            (Ok(found), wanted) => assert_eq!(Some(found), wanted, "{shown}"),
            (Err(error), None) => {
                let text = error.to_string();
                let start = "the model in memory: metadata key 'a.key': it is ";
                assert!(text.starts_with(start) && text.contains("is wanted"), "{text}");
            }
            (Err(error), Some(_)) => panic!("{shown}: {error}"),
        }
    }
}

#[test]
fn whole_numbers_of_any_width() {
    check(
        |m| m.u32("a.key"),
        vec![
            (Value::U8(7), Some(7)),
            (Value::I8(7), Some(7)),
            (Value::U16(7), Some(7)),
            (Value::I16(7), Some(7)),
            (Value::U32(u32::MAX), Some(u32::MAX)),
            (Value::I32(7), Some(7)),
            (Value::U64(7), Some(7)),
            (Value::I64(7), Some(7)),
            (Value::U64(1 << 32), None),
            (Value::I8(-1), None),
            (Value::F32(7.0), None),
            (Value::Bool(true), None),
            (text("7"), None),
        ],
    );
    check(|m| m.u64("a.key"), vec![(Value::U64(u64::MAX), Some(u64::MAX)), (Value::I64(-1), None)]);
}

#[test]
fn real_numbers_without_surprise() {
    check(
        |m| m.f32("a.key"),
        vec![
            (Value::F32(0.1), Some(0.1)),
            (Value::F64(0.1), Some(0.1)),
            (Value::F64(1e300), None),
            (Value::F64(f64::INFINITY), Some(f32::INFINITY)),
            (Value::U32(160_000), Some(160_000.0)),
            (Value::I64(-(1 << 24)), Some(-16_777_216.0)),
            (Value::U32((1 << 24) + 1), None),
            (text("1"), None),
        ],
    );
}

#[test]
fn truth_and_text() {
    check(|m| m.bool("a.key"), vec![(Value::Bool(true), Some(true)), (Value::U8(1), None)]);
    let string = |m: &Metadata| m.str("a.key").map(str::to_owned);
    check(string, vec![(text("x"), Some("x".into())), (Value::U8(1), None)]);
}

#[test]
fn arrays_of_whole_numbers() {
    let mixed = |v: Array| Value::Array(v);
    check(
        |m| m.array_u32("a.key"),
        vec![
            (mixed(Array::U8(vec![1, 2])), Some(vec![1, 2])),
            (mixed(Array::I32(vec![0, 4, 128])), Some(vec![0, 4, 128])),
            (mixed(Array::U64(vec![])), Some(vec![])),
            (mixed(Array::I32(vec![0, -4])), None),
            (mixed(Array::F32(vec![0.0])), None),
            (Value::U32(1), None),
        ],
    );
    check(
        |m| m.array_i32("a.key"),
        vec![
            (mixed(Array::I16(vec![-1, 2])), Some(vec![-1, 2])),
            (mixed(Array::U32(vec![u32::MAX])), None),
        ],
    );
    check(
        |m| m.array_i64("a.key"),
        vec![
            (mixed(Array::I8(vec![-1])), Some(vec![-1])),
            (mixed(Array::U64(vec![u64::MAX])), None),
            (mixed(Array::Bool(vec![true])), None),
        ],
    );
}

#[test]
fn arrays_of_floats_and_texts() {
    check(
        |m| m.array_f32("a.key"),
        vec![
            (Value::Array(Array::F32(vec![1.5])), Some(vec![1.5])),
            (Value::Array(Array::F64(vec![0.1])), Some(vec![0.1])),
            (Value::Array(Array::F64(vec![0.1, 1e300])), None),
            (Value::Array(Array::U8(vec![1])), None),
        ],
    );
    let texts = Value::Array(Array::String(vec![b"a".to_vec(), b"\xff".to_vec()]));
    let utf8 = Value::Array(Array::String(vec![b"a".to_vec(), "ß".into()]));
    let owned = |m: &Metadata| {
        m.array_str("a.key").map(|all| all.into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    check(owned, vec![(utf8, Some(vec!["a".into(), "ß".into()])), (texts.clone(), None)]);
    let model = opened(texts);
    let bytes = model.metadata().array_bytes("a.key").expect("tokens may be any bytes");
    assert_eq!(bytes, [b"a".to_vec(), b"\xff".to_vec()]);
}

#[test]
fn a_message_names_file_key_found_and_wanted() {
    let model = Gguf::open(&golden_path("small.gguf")).expect("the fixture");
    let metadata = model.metadata();
    let cases = [
        (metadata.u32("a.i8").err(), "'a.i8': it is the i8 -100, but a whole number from 0"),
        (metadata.u32("a.string").err(), "it is the text 'grüß dich', but a whole number"),
        (metadata.bool("b.u16").err(), "it is an array of 2 u16, but true or false"),
        (metadata.str("a.f64").err(), "it is the f64 0.1, but a text"),
        (metadata.f32("no.key").err(), "'no.key': it is missing, but a number"),
        (metadata.array_f32("a.bool").err(), "it is the bool true, but an array of numbers"),
    ];
    for (error, words) in cases {
        let text = error.expect("the getter complains").to_string();
        assert!(text.contains("small.gguf: metadata key '") && text.contains(words), "{text}");
    }
    assert_eq!(metadata.opt_u32("no.key").expect("it may be missing"), None);
    assert!(metadata.opt_u32("a.f32").is_err(), "a wrong type is not as good as missing");
}
