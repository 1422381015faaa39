//! The writer: order, misuse, resuming, and output that fails.

use crate::helpers::{Tensor, refused, small_entries, small_tensors, text, written};
use ironstar_gguf::{Array, Blame, ENTRIES_MAX, Gguf, TensorKind, Value, Writer};
use ironstar_quant::Format;
use std::io::{self, Cursor, Seek, SeekFrom, Write};

fn writer() -> Writer<Cursor<Vec<u8>>> {
    Writer::new(Cursor::new(Vec::new()))
}

#[test]
fn an_empty_model() {
    let bytes = writer().finish().expect("nothing is missing").into_inner();
    assert_eq!(bytes.len(), 32);
    let model = Gguf::from_bytes(bytes).expect("our own file");
    assert!(model.tensors().is_empty() && model.metadata().entries().is_empty());
}

#[test]
fn metadata_that_cannot_be() {
    let mut writer = writer();
    writer.metadata("k", Value::U8(1)).expect("the first");
    refused(writer.metadata("k", Value::U8(1)), Blame::Input, &["k: ", "twice"]);
    for value in [Value::U32(0), Value::U32(3), Value::U32(1 << 21), Value::U64(32), text("32")] {
        let words = ["general.alignment", "a power of two up to 1048576"];
        refused(writer.metadata("general.alignment", value), Blame::Input, &words);
    }
    let deep = (0..4).fold(Array::U8(vec![1]), |inner, _| Array::Array(vec![inner]));
    refused(writer.metadata("deep", Value::Array(deep)), Blame::Input, &["at most 4 deep"]);
    writer.tensor("t", TensorKind::I8, &[1]).expect("a tensor");
    let late = writer.metadata("late", Value::U8(1));
    refused(late, Blame::Input, &["late: ", "give all metadata first"]);
}

#[test]
fn more_keys_than_are_read() {
    let mut writer = writer();
    for index in 0..ENTRIES_MAX {
        writer.metadata(&format!("{index:x}"), Value::U8(0)).expect("within the limit");
    }
    refused(writer.metadata("one more", Value::U8(0)), Blame::Input, &["at most 65536"]);
}

#[test]
fn tensors_that_cannot_be() {
    let mut writer = writer();
    let f32 = TensorKind::Block(Format::F32);
    writer.tensor("t", f32, &[4]).expect("a tensor");
    refused(writer.tensor("t", f32, &[4]), Blame::Input, &["t: ", "announced twice"]);
    let cases: [(TensorKind, &[u64]); 6] = [
        (f32, &[]),
        (f32, &[0]),
        (f32, &[1; 5]),
        (f32, &[1 << 62]),
        (TensorKind::Block(Format::Q8_0), &[33]),
        (TensorKind::Other(99), &[1]),
    ];
    for (kind, dims) in cases {
        let wanted = ["x: ", &format!("{dims:?}"), "rows of whole blocks"];
        refused(writer.tensor("x", kind, dims), Blame::Input, &wanted);
    }
    writer.tensor("huge", TensorKind::I8, &[u64::MAX - 100]).expect("it may be announced");
    let over = writer.tensor("over", TensorKind::I8, &[100]);
    refused(over, Blame::Input, &["over: ", "2^64 bytes"]);
}

#[test]
fn data_out_of_order() {
    let mut writer = writer();
    writer.tensor("a", TensorKind::I8, &[4]).expect("a tensor");
    writer.tensor("b", TensorKind::I8, &[4]).expect("a tensor");
    refused(writer.data("b", &[1]), Blame::Input, &["b: ", "the next tensor is 'a'"]);
    writer.data("a", &[1, 2, 3]).expect("three of four");
    refused(writer.data("b", &[1]), Blame::Input, &["the next tensor is 'a'"]);
    refused(writer.data("a", &[4, 5]), Blame::Input, &["2 bytes", "only 1 are left"]);
    writer.data("a", &[4]).expect("the fourth");
    refused(writer.tensor("c", TensorKind::I8, &[4]), Blame::Input, &["announce all tensors"]);
    writer.data("b", &[1]).expect("one of four");
    refused(writer.finish(), Blame::Input, &["b: ", "1 of 4 bytes"]);
}

#[test]
fn data_after_the_last_tensor() {
    let mut writer = writer();
    refused(writer.data("a", &[1]), Blame::Input, &["a: ", "all tensors are complete"]);
    refused(writer.skip(1), Blame::Input, &["1 tensors are to be skipped", "0 are announced"]);
}

#[test]
fn a_stopped_file_is_continued() {
    let tensors = small_tensors();
    let whole = written(&small_entries(), &tensors);
    // Bytes of each tensor with its padding to 64.
    let sizes = [64, 64, 64, 192, 64];
    let data: usize = sizes.iter().sum();
    for count in 0..=tensors.len() {
        // What a stop may leave: all that is complete, then anything.
        let mut stopped = whole.clone();
        stopped[whole.len() - data + sizes[..count].iter().sum::<usize>()..].fill(0xee);
        let mut second = Writer::new(Cursor::new(stopped));
        for (key, value) in small_entries() {
            second.metadata(key, value).expect("keys differ");
        }
        for tensor in &tensors {
            second.tensor(tensor.name, tensor.kind, &tensor.dims).expect("possible dims");
        }
        second.skip(count).expect("as many as there are");
        for tensor in &tensors[count..] {
            second.data(tensor.name, &tensor.data).expect("announced data");
        }
        let found = second.finish().expect("all was written").into_inner();
        assert!(found == whole, "continued after {count} tensors");
    }
}

#[test]
fn every_tensor_is_aligned_and_padded_with_zeros() {
    let tensor = |name, bytes: usize| Tensor {
        name,
        kind: TensorKind::I8,
        dims: vec![bytes as u64],
        data: vec![0xaa; bytes],
    };
    let tensors = [tensor("a", 1), tensor("b", 64), tensor("c", 65), tensor("d", 63)];
    let bytes = written(&[("general.alignment", Value::U32(64))], &tensors);
    let data = &bytes[bytes.len() - 64 * 5..];
    let run = |count: usize| [vec![0xaa; count], vec![0; count.next_multiple_of(64) - count]];
    let wanted: Vec<u8> = [1, 64, 65, 63].into_iter().flat_map(run).flatten().collect();
    assert_eq!(data, wanted);
    assert!(bytes.len().is_multiple_of(64));
}

/// An output that takes some bytes and then is full.
struct Full {
    room: usize,
    at: u64,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = bytes.len().min(self.room);
        self.room -= taken;
        self.at += taken as u64;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Full {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Ok(self.at)
    }
}

#[test]
fn a_full_disk_is_the_environments_fault() {
    let tensors = small_tensors();
    let len = written(&small_entries(), &tensors).len();
    for room in [0, 1, 700, len - 385, len - 1, len] {
        let mut writer = Writer::new(Full { room, at: 0 });
        for (key, value) in small_entries() {
            writer.metadata(key, value).expect("keys differ");
        }
        for tensor in &tensors {
            writer.tensor(tensor.name, tensor.kind, &tensor.dims).expect("possible dims");
        }
        let result = tensors
            .iter()
            .try_for_each(|tensor| writer.data(tensor.name, &tensor.data))
            .and_then(|()| writer.finish().map(|_| ()));
        if room == len {
            result.expect("there is room for all");
        } else {
            refused(result, Blame::Environment, &["writing", "the model"]);
        }
    }
}

#[test]
fn an_output_that_was_not_empty() {
    let mut out = Cursor::new(vec![1, 2, 3]);
    out.set_position(3);
    refused(Writer::new(out).finish(), Blame::Input, &["ends at byte 35", "empty file"]);
}

#[test]
fn tensors_that_share_data() {
    let mut writer = writer();
    let f32 = TensorKind::Block(Format::F32);
    writer.tensor("a", f32, &[2, 3]).expect("a tensor");
    writer.tensor_sharing("b", f32, &[6], "a").expect("as many bytes");
    writer.tensor("c", f32, &[1]).expect("a tensor");
    writer.tensor_sharing("d", f32, &[1], "c").expect("as many bytes");
    let nowhere = writer.tensor_sharing("e", f32, &[1], "x");
    refused(nowhere, Blame::Input, &["e: ", "'x'", "announced before"]);
    let other = writer.tensor_sharing("e", f32, &[2], "c");
    refused(other, Blame::Input, &["8 bytes", "'c' has 4", "equal sizes"]);
    let bytes: Vec<u8> = (0..24).collect();
    writer.data("a", &bytes).expect("the first");
    refused(writer.data("b", &bytes), Blame::Input, &["the next tensor is 'c'"]);
    writer.data("c", &[9; 4]).expect("the last with data");
    let model = Gguf::from_bytes(writer.finish().expect("all data is there").into_inner())
        .expect("our own file");
    let read = |name: &str| {
        let tensor = model.tensor(name).expect("announced");
        model.bytes(tensor).expect("a known type").to_vec()
    };
    assert_eq!((read("a"), read("b")), (bytes.clone(), bytes));
    assert_eq!((read("c"), read("d")), (vec![9; 4], vec![9; 4]));
}
