//! Files by another writer: we read what it wrote, and write the same bytes.

use crate::helpers::{announced, exercise, golden, golden_path, small_entries, small_tensors};
use ironstar_gguf::{Gguf, Value};

#[test]
fn a_file_by_another_writer_is_read() {
    let model = Gguf::from_bytes(golden("small.gguf")).expect("the fixture");
    let entries: Vec<(&str, Value)> =
        model.metadata().entries().iter().map(|(key, value)| (&key[..], value.clone())).collect();
    assert_eq!(entries, small_entries());
    let wanted = small_tensors();
    assert_eq!(model.tensors().len(), wanted.len());
    for (found, wanted) in model.tensors().iter().zip(&wanted) {
        assert_eq!((&found.name[..], found.kind), (wanted.name, wanted.kind));
        assert_eq!((&found.dims, found.part), (&wanted.dims, 0));
        assert_eq!(found.element_count(), wanted.dims.iter().product::<u64>());
        assert_eq!(*model.bytes(found).expect("its data"), wanted.data[..], "{}", wanted.name);
    }
    exercise(&model);
}

#[test]
fn the_same_content_is_written_as_the_same_bytes() {
    let wanted = golden("small.gguf");
    for chunk in [1, 2, 3, 7, 33, 1000] {
        let tensors = small_tensors();
        let mut writer = announced(&small_entries(), &tensors);
        for tensor in &tensors {
            for bytes in tensor.data.chunks(chunk) {
                writer.data(tensor.name, bytes).expect("announced data");
            }
        }
        let found = writer.finish().expect("all was written").into_inner();
        assert!(found == wanted, "data in pieces of {chunk} bytes");
    }
}

#[test]
fn memory_a_static_and_a_map_give_the_same() {
    let mapped = Gguf::open(&golden_path("small.gguf")).expect("the fixture");
    let vec = Gguf::from_bytes(golden("small.gguf")).expect("the fixture");
    let held = Gguf::from_static(golden("small.gguf").leak()).expect("the fixture");
    for model in [&mapped, &held] {
        assert_eq!(model.tensors(), vec.tensors());
        assert_eq!(model.metadata().entries(), vec.metadata().entries());
        for tensor in vec.tensors() {
            assert_eq!(*model.bytes(tensor).expect("data"), *vec.bytes(tensor).expect("data"));
        }
    }
}

#[test]
fn bytes_outlive_the_model_and_cross_threads() {
    let model = Gguf::open(&golden_path("small.gguf")).expect("the fixture");
    let bytes = model.bytes(model.tensor("ids").expect("a tensor")).expect("its data");
    let (first, second) = (bytes.clone(), bytes);
    drop(model);
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    let other = std::thread::spawn(move || sum(&first)).join().expect("no panic");
    assert_eq!(sum(&second), other);
}
