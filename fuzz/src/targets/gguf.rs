//! Containers of weights: GGUF and safetensors.

use super::{Target, signature};
use ironstar_gguf::safetensors::Checkpoint;
use ironstar_gguf::{Array, Gguf, Imatrix, TensorKind, Value, Writer, pack, unpack};
use ironstar_quant::FORMATS;
use std::io::Cursor;

/// Any bytes as a GGUF file; what is read can be written again and reads back equal.
pub const FILE: Target = Target {
    name: "gguf",
    seeds: files,
    dictionary: &[
        b"GGUF",
        b"\x03\0\0\0",
        b"general.alignment",
        b"split.count",
        b"ironstar.planes",
        b"SI",
        b"\x09\0\0\0",
        b"\x08\0\0\0",
        b"\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\0\0\0\0\0\0\0\x80",
    ],
    len_max: 4096,
    base_bytes: 1 << 20,
    bytes_per_byte: 256,
    run: file,
};

/// Any bytes as importances of either layout; what is given of a tensor is whole and in range.
pub const IMATRIX: Target = Target {
    name: "imatrix",
    seeds: imatrices,
    dictionary: &[
        b"GGUF",
        b"imatrix",
        b".in_sum2",
        b".counts",
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\x7f",
        b"\0\0\xc0\x7f",
    ],
    len_max: 4096,
    base_bytes: 1 << 20,
    bytes_per_byte: 256,
    run: imatrix,
};

fn imatrices() -> Vec<Vec<u8>> {
    let float = |name: &str, dims: &[u64]| {
        (name.to_string(), TensorKind::Block(ironstar_quant::Format::F32), dims.to_vec())
    };
    let newer = written(
        &[
            ("general.type", Value::String("imatrix".into())),
            ("imatrix.chunk_count", Value::U32(3)),
        ],
        &[float("a.in_sum2", &[4, 2]), float("a.counts", &[1, 2])],
    );
    let mut older = 1i32.to_le_bytes().to_vec();
    older.extend(b"\x01\0\0\0a\x03\0\0\0\x08\0\0\0");
    older.extend((0..8u8).flat_map(|i| f32::from(i).to_le_bytes()));
    let short = older.clone();
    older.extend(b"\x03\0\0\0\x04\0\0\0text");
    vec![newer, older, short]
}

fn imatrix(bytes: &[u8]) -> u64 {
    let imatrix = match Imatrix::from_bytes(bytes.to_vec()) {
        Ok(imatrix) => imatrix,
        Err(error) => return signature(&error.to_string()),
    };
    let mut seen = imatrix.names().len() as u64 + imatrix.datasets().len() as u64;
    for name in imatrix.names() {
        for (columns, matrices) in [(4, 2), (8, 1), (1, 1), (2, 8)] {
            for index in 0..matrices {
                match imatrix.of(name, index, columns, matrices) {
                    Ok(Some(means)) => {
                        assert_eq!(means.len(), columns, "a mean for each column");
                        assert!(means.iter().all(|m| m.is_finite() && *m >= 0.0), "{means:?}");
                        seen = seen.wrapping_mul(3) + 2;
                    }
                    Ok(None) => seen = seen.wrapping_mul(3) + 1,
                    Err(error) => seen ^= signature(&error.to_string()),
                }
            }
        }
    }
    seen
}

fn files() -> Vec<Vec<u8>> {
    let nested = Array::Array(vec![Array::U8(vec![1, 2]), Array::U8(vec![])]);
    let values = [
        ("general.architecture", Value::String("deepseek4".into())),
        ("general.alignment", Value::U32(64)),
        ("a.bool", Value::Bool(true)),
        ("a.u8", Value::U8(1)),
        ("a.i16", Value::I16(-1)),
        ("a.u64", Value::U64(1 << 40)),
        ("a.f64", Value::F64(0.5)),
        ("a.strings", Value::Array(Array::String(vec![b"x".to_vec(), vec![0xff], vec![]]))),
        ("a.floats", Value::Array(Array::F32(vec![1.0, f32::NAN]))),
        ("a.nested", Value::Array(nested)),
    ];
    let every_kind: Vec<(String, TensorKind, Vec<u64>)> = FORMATS
        .iter()
        .map(|f| {
            (f.name.to_string(), TensorKind::Block(f.format), vec![f.block_elements as u64 * 2])
        })
        .chain([("ids".to_string(), TensorKind::I32, vec![3, 2, 1, 2])])
        .collect();
    let all = written(&values, &every_kind);
    let [none, one] = [written(&values[..1], &[]), written(&[], &every_kind[..1])];
    let in_planes = every_kind.chunks(3).map(|some| in_planes(&written(&values[..1], some)));
    [all, none, one].into_iter().chain(in_planes).collect()
}

fn in_planes(file: &[u8]) -> Vec<u8> {
    let model = Gguf::from_bytes(file.to_vec()).expect("our own file");
    let packed = pack(&model, Cursor::new(Vec::new()), &mut |_| {});
    packed.expect("known kinds").into_inner()
}

fn written(values: &[(&str, Value)], tensors: &[(String, TensorKind, Vec<u64>)]) -> Vec<u8> {
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    for (key, value) in values {
        writer.metadata(key, value.clone()).expect("keys differ");
    }
    for (name, kind, dims) in tensors {
        writer.tensor(name, *kind, dims).expect("whole blocks of a known kind");
    }
    for (name, kind, dims) in tensors {
        let bytes = kind.bytes(dims).and_then(|n| usize::try_from(n).ok()).expect("a small tensor");
        writer.data(name, &vec![7; bytes]).expect("the data that was announced");
    }
    writer.finish().expect("everything was written").into_inner()
}

fn file(bytes: &[u8]) -> u64 {
    let gguf = match Gguf::from_bytes(bytes.to_vec()) {
        Ok(gguf) => gguf,
        Err(error) => return signature(&error.to_string()),
    };
    let mut seen = gguf.tensors().len() as u64;
    for (key, _) in gguf.metadata().entries() {
        let all = gguf.metadata();
        let asked = [
            all.u32(key).is_ok(),
            all.f32(key).is_ok(),
            all.str(key).is_ok(),
            all.array_u32(key).is_ok(),
            all.array_f32(key).is_ok(),
        ];
        seen = asked.iter().fold(seen, |seen, &ok| seen.wrapping_mul(3) + u64::from(ok));
    }
    for tensor in gguf.tensors() {
        if let Ok(data) = gguf.bytes(tensor) {
            assert!(data.len() <= bytes.len(), "{} is longer than its file", tensor.name);
            assert_eq!(Some(data.len() as u64), tensor.byte_count(), "{}", tensor.name);
        }
    }
    again(&gguf);
    packed(&gguf, bytes);
    seen
}

/// Packs what was read, where that is possible: the data is the same, and comes back.
fn packed(gguf: &Gguf, bytes: &[u8]) {
    let alignment = gguf.metadata().opt_u64("general.alignment").ok().flatten();
    if gguf.is_packed() || alignment > Some(4096) {
        return;
    }
    let out = || Cursor::new(Vec::new());
    let Ok(packed) = pack(gguf, out(), &mut |_| {}) else { return };
    let packed = Gguf::from_bytes(packed.into_inner()).expect("our own file");
    let all = gguf.tensors().iter().zip(packed.tensors());
    for (before, after) in all.filter(|(before, _)| gguf.bytes(before).is_ok()) {
        let [a, b] = [gguf.bytes(before), packed.bytes(after)].map(|b| b.expect("it is there"));
        assert_eq!(*a, *b, "{} changed", before.name);
    }
    let back = unpack(&packed, out(), &mut |_| {}).expect("it was packed").into_inner();
    assert!(!gguf.is_plain() || back == bytes, "another file came back");
}

/// Writes what was read, where the writer is as lenient as the reader, and compares what is read
/// from that.
fn again(gguf: &Gguf) {
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    let known = |t: &&ironstar_gguf::TensorInfo| gguf.bytes(t).is_ok();
    for (key, value) in gguf.metadata().entries() {
        if writer.metadata(key, value.clone()).is_err() {
            return;
        }
    }
    for tensor in gguf.tensors().iter().filter(known) {
        writer.tensor(&tensor.name, tensor.kind, &tensor.dims).expect("the reader checked it");
    }
    for tensor in gguf.tensors().iter().filter(known) {
        writer
            .data(&tensor.name, &gguf.bytes(tensor).expect("the filter saw its bytes"))
            .expect("its own bytes");
    }
    let bytes = writer.finish().expect("everything was written").into_inner();
    let second = Gguf::from_bytes(bytes).expect("our own file");
    let text = |gguf: &Gguf| format!("{:?}", gguf.metadata());
    assert_eq!(text(gguf), text(&second), "metadata changed");
    for (before, after) in gguf.tensors().iter().filter(known).zip(second.tensors()) {
        assert_eq!(before.name, after.name);
        let bytes = |gguf: &Gguf, t| gguf.bytes(t).expect("the filter saw its bytes").to_vec();
        assert_eq!(bytes(gguf, before), bytes(&second, after), "{} changed", before.name);
    }
}

/// Any bytes as a safetensors file of the published layout.
pub const SAFETENSORS: Target = Target {
    name: "safetensors",
    seeds: || vec![checkpoint(), b"\x02\0\0\0\0\0\0\0{}".to_vec()],
    dictionary: &[
        b"\"data_offsets\":[",
        b"\"shape\":[0,",
        b"9223372036854775808",
        b"18446744073709551615",
        b".scale\":{",
        b"_scale_inv\":{",
        b"\"F8_E4M3\"",
        b"\"F8_E8M0\"",
        b"\"I8\"",
        b"\"BF16\"",
        b"\"I64\"",
        b"[],",
    ],
    len_max: 4096,
    base_bytes: 1 << 20,
    bytes_per_byte: 512,
    run: safetensors,
};

/// One tensor of each kind, matrices with their scales.
fn checkpoint() -> Vec<u8> {
    let tensors = [
        ("a.weight", "F8_E4M3", "8,16", 128),
        ("a.scale", "F32", "1,2", 8),
        ("b.weight", "I8", "2,32", 64),
        ("b.scale", "F8_E8M0", "2,2", 4),
        ("c.weight", "BF16", "3", 6),
        ("d.weight", "F8_E4M3", "4,4", 16),
        ("d.weight_scale_inv", "F8_E8M0", "1,1", 1),
        ("model.tid2eid", "I64", "2,1", 16),
    ];
    let (mut header, mut end) = (String::from("{\"__metadata__\":{\"format\":\"pt\"}"), 0);
    for (name, dtype, shape, bytes) in tensors {
        let offsets = format!("{end},{}", end + bytes);
        let entry =
            format!("\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{offsets}]");
        header += &format!(",\"{name}\":{{{entry}}}");
        end += bytes;
    }
    header += "}";
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(vec![0x38; end]);
    file
}

fn safetensors(bytes: &[u8]) -> u64 {
    let checkpoint = match Checkpoint::from_bytes("an input", bytes.to_vec()) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return signature(&error.to_string()),
    };
    let mut seen = 0_u64;
    for name in checkpoint.names() {
        let outcome = |error: Option<ironstar_gguf::Error>| match error {
            Some(error) => signature(&error.to_string()),
            None => 1,
        };
        let data = checkpoint.bytes(name).expect("the reader checked the ranges");
        let floats = checkpoint.to_f32(name);
        let shape = checkpoint.value_shape(name).expect("a name of this file");
        if let Ok(floats) = &floats {
            let count = shape.iter().try_fold(1_u64, |count, &dim| count.checked_mul(dim));
            assert!(shape.contains(&0) || count == Some(floats.len() as u64), "{name}: {shape:?}");
        }
        let integers = outcome(checkpoint.to_i64(name).err());
        let parts = [outcome(floats.err()), integers, data.len() as u64];
        seen = parts.iter().fold(seen, |seen, part| seen.rotate_left(5) ^ part);
    }
    seen
}
