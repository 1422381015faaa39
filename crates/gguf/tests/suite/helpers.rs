//! Fixtures, folders, hand-made headers, and the one way to check a refusal.

use ironstar_gguf::{Array, Blame, Error, Gguf, TensorKind, Value, Writer};
use ironstar_quant::Format;
use std::fmt::Debug;
use std::io::Cursor;
use std::path::{Path, PathBuf};

/// Where a fixture is; a missing one fails the test that reads it.
pub fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf").join(name)
}

/// A fixture's bytes.
pub fn golden(name: &str) -> Vec<u8> {
    let path = golden_path(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// An empty folder of a test's own.
pub fn folder(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gguf").join(test);
    match std::fs::remove_dir_all(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
        _ => std::fs::create_dir_all(&path).expect("a folder for the test"),
    }
    path
}

/// Checks that something was refused, by the expected blame, in words that name what matters.
#[track_caller]
pub fn refused<T>(result: Result<T, Error>, blame: Blame, words: &[&str]) {
    let Err(error) = result else { panic!("it was accepted, {words:?} expected") };
    let text = error.to_string();
    assert_eq!(error.blame(), blame, "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not in: {text}");
    }
}

/// [`refused`] of bytes in memory.
#[track_caller]
pub fn refused_bytes(bytes: Vec<u8>, words: &[&str]) {
    refused(Gguf::from_bytes(bytes), Blame::Input, words);
}

/// Bytes of a header, put together by hand.
#[derive(Clone)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    pub fn new(tensors: u64, entries: u64) -> Self {
        Raw(b"GGUF".to_vec()).u32(3).u64(tensors).u64(entries)
    }

    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn text(self, text: impl AsRef<[u8]>) -> Self {
        self.u64(text.as_ref().len() as u64).bytes(text.as_ref())
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let dim_count = u32::try_from(dims.len()).expect("a few dims");
        let start = self.text(name).u32(dim_count);
        dims.iter().fold(start, |raw, dim| raw.u64(*dim)).u32(kind).u64(offset)
    }

    /// Padding to 32 and `count` bytes of data.
    pub fn data(mut self, count: usize) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32) + count, 0x11);
        self.0
    }
}

pub fn text(text: &str) -> Value {
    Value::String(text.into())
}

/// The metadata of `small.gguf`, as its script gives it.
pub fn small_entries() -> Vec<(&'static str, Value)> {
    let tokens = [&b"a"[..], b"\xe2\x82", b"", b"\xc4\xa0x"];
    vec![
        ("general.architecture", text("example")),
        ("general.alignment", Value::U32(64)),
        ("a.u8", Value::U8(200)),
        ("a.i8", Value::I8(-100)),
        ("a.u16", Value::U16(60_000)),
        ("a.i16", Value::I16(-30_000)),
        ("a.u32", Value::U32(4_000_000_000)),
        ("a.i32", Value::I32(-2_000_000_000)),
        ("a.u64", Value::U64((1 << 63) + 1)),
        ("a.i64", Value::I64(-(1 << 62))),
        ("a.f32", Value::F32(1.5)),
        ("a.f64", Value::F64(0.1)),
        ("a.bool", Value::Bool(true)),
        ("a.string", text("grüß dich")),
        ("a.empty", text("")),
        ("b.u8", Value::Array(Array::U8(vec![1, 255]))),
        ("b.i8", Value::Array(Array::I8(vec![-1]))),
        ("b.u16", Value::Array(Array::U16(vec![1, 65_535]))),
        ("b.i16", Value::Array(Array::I16(vec![-2]))),
        ("b.u32", Value::Array(Array::U32(vec![0, 4, 128]))),
        ("b.i32", Value::Array(Array::I32(vec![-1, 1]))),
        ("b.u64", Value::Array(Array::U64(vec![1 << 40]))),
        ("b.i64", Value::Array(Array::I64(vec![-(1 << 40)]))),
        ("b.f32", Value::Array(Array::F32(vec![0.5, -0.25]))),
        ("b.f64", Value::Array(Array::F64(vec![1e300]))),
        ("b.bool", Value::Array(Array::Bool(vec![true, false, true]))),
        ("b.tokens", Value::Array(Array::String(tokens.map(<[u8]>::to_vec).to_vec()))),
        (
            "b.nested",
            Value::Array(Array::Array(vec![Array::I32(vec![1, 2, 3]), Array::I32(vec![4])])),
        ),
    ]
}

/// A tensor and its data.
pub struct Tensor {
    pub name: &'static str,
    pub kind: TensorKind,
    pub dims: Vec<u64>,
    pub data: Vec<u8>,
}

/// The tensors of `small.gguf`, as its script gives them.
pub fn small_tensors() -> Vec<Tensor> {
    fn all<const N: usize>(items: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
        items.into_iter().flatten().collect()
    }
    let quarters = [0.0_f32, 0.25, 0.5, 0.75, 1.0, 1.25];
    let halves = [0x3c00_u16, 0xc000, 0x3800];
    let blocks = (0..136_u32).map(|i| [(i * 7 % 256).to_le_bytes()[0]]);
    let tensor = |name, kind, dims: &[u64], data| Tensor { name, kind, dims: dims.to_vec(), data };
    vec![
        tensor(
            "floats",
            TensorKind::Block(Format::F32),
            &[3, 2],
            all(quarters.map(f32::to_le_bytes)),
        ),
        tensor("ids", TensorKind::I32, &[3, 2, 2], all((-4..8_i32).map(i32::to_le_bytes))),
        tensor("halves", TensorKind::Block(Format::F16), &[3], all(halves.map(u16::to_le_bytes))),
        tensor("blocks", TensorKind::Block(Format::Q8_0), &[64, 2], all(blocks)),
        tensor("doubles", TensorKind::F64, &[1, 1, 1, 2], all([1.0, -0.0].map(f64::to_le_bytes))),
    ]
}

/// A writer in memory that knows all keys and tensors.
pub fn announced<K: AsRef<str>>(
    entries: &[(K, Value)],
    tensors: &[Tensor],
) -> Writer<Cursor<Vec<u8>>> {
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    for (key, value) in entries {
        writer.metadata(key.as_ref(), value.clone()).expect("keys differ");
    }
    for tensor in tensors {
        writer.tensor(tensor.name, tensor.kind, &tensor.dims).expect("possible dims");
    }
    writer
}

/// A whole file in memory.
pub fn written<K: AsRef<str>>(entries: &[(K, Value)], tensors: &[Tensor]) -> Vec<u8> {
    let mut writer = announced(entries, tensors);
    for tensor in tensors {
        writer.data(tensor.name, &tensor.data).expect("announced data");
    }
    writer.finish().expect("all was written").into_inner()
}

/// Asks an opened model everything that it can be asked; nothing may panic.
pub fn exercise(model: &Gguf) {
    let metadata = model.metadata();
    for (key, value) in metadata.entries() {
        assert_eq!(metadata.get(key).map(Value::type_name), Some(value.type_name()));
        let asked = (metadata.u32(key), metadata.u64(key), metadata.f32(key), metadata.bool(key));
        let arrays = (metadata.array_u32(key), metadata.array_i64(key), metadata.array_f32(key));
        let texts = (metadata.str(key), metadata.array_str(key), metadata.array_bytes(key));
        said((asked, arrays, texts, metadata.array_i32(key)));
    }
    for tensor in model.tensors() {
        assert_eq!(model.tensor(&tensor.name), Some(tensor));
        match model.bytes(tensor) {
            Ok(bytes) => assert_eq!(Some(bytes.len() as u64), tensor.byte_count()),
            Err(_) => assert!(matches!(tensor.kind, TensorKind::Other(_)), "{tensor:?}"),
        }
    }
}

fn said(answers: impl Debug) {
    assert!(!format!("{answers:?}").is_empty());
}
