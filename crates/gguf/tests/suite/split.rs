//! Models in several files.

use crate::helpers::{Tensor, exercise, folder, golden, golden_path, refused, text, written};
use ironstar_gguf::{Blame, Gguf, TensorKind, Value};
use std::path::{Path, PathBuf};

const COUNT: u64 = 3;

fn name(number: u64, count: u64) -> String {
    format!("split-{number:05}-of-{count:05}.gguf")
}

/// The fixture's three parts in a folder of the test's own.
fn copied(test: &str) -> PathBuf {
    let folder = folder(test);
    for number in 1..=COUNT {
        let name = name(number, COUNT);
        std::fs::write(folder.join(&name), golden(&name)).expect("a copy");
    }
    folder
}

fn first(folder: &Path) -> PathBuf {
    folder.join(name(1, COUNT))
}

fn split(number: u64, count: u64, tensors: u64) -> Vec<(&'static str, Value)> {
    vec![
        ("split.no", Value::U64(number)),
        ("split.count", Value::U64(count)),
        ("split.tensors.count", Value::U64(tensors)),
    ]
}

fn tensor(name: &'static str) -> Tensor {
    Tensor { name, kind: TensorKind::I8, dims: vec![1], data: vec![1] }
}

#[test]
fn parts_by_another_writer_are_read() {
    let model = Gguf::open(&golden_path(&name(1, COUNT))).expect("the fixture");
    assert_eq!(model.metadata().u32("a.u32").expect("a key of the first part"), 7);
    let parts: Vec<usize> = model.tensors().iter().map(|tensor| tensor.part).collect();
    assert_eq!(parts, [0, 0, 1, 1, 2]);
    for (index, value) in [0.0_f32, 1.0, 2.0, 3.0, 4.0].into_iter().enumerate() {
        let tensor = model.tensor(&format!("t{index}")).expect("one of five");
        assert_eq!(tensor.dims, [3 + index as u64]);
        let bytes = model.bytes(tensor).expect("its data");
        assert_eq!(*bytes, value.to_le_bytes().repeat(3 + index));
    }
    exercise(&model);
}

#[test]
fn a_missing_part() {
    let folder = copied("missing_part");
    std::fs::remove_file(folder.join(name(2, COUNT))).expect("the copy");
    let opened = Gguf::open(&first(&folder));
    refused(opened, Blame::Environment, &["opening", "split-00002-of-00003.gguf"]);
}

#[test]
fn another_part_than_the_first() {
    let folder = copied("second_part");
    let opened = Gguf::open(&folder.join(name(2, COUNT)));
    let words = ["split.no", "this is part 2 of 3", "ends in '-00001-of-00003.gguf'"];
    refused(opened, Blame::Input, &words);
}

#[test]
fn a_part_in_the_place_of_another() {
    let folder = copied("swapped");
    std::fs::copy(folder.join(name(3, COUNT)), folder.join(name(2, COUNT))).expect("a copy");
    let words = ["00002-of-00003.gguf: split.no", "this is part 3 of 3", "part 2 of 3"];
    refused(Gguf::open(&first(&folder)), Blame::Input, &words);
}

#[test]
fn a_part_of_another_model() {
    let folder = copied("mixed");
    let put = |entries: &[(&str, Value)], tensors: &[Tensor]| {
        std::fs::write(folder.join(name(2, COUNT)), written(entries, tensors)).expect("a file");
        Gguf::open(&first(&folder))
    };
    let [a, b] = [tensor("t2"), tensor("t3")];
    let fitting = [a, b];
    put(&split(1, COUNT, 5), &fitting).expect("this one would fit");

    let words = ["part 2 of 3 (6 tensors in all)", "part 2 of 3 (5 tensors in all)"];
    refused(put(&split(1, COUNT, 6), &fitting), Blame::Input, &words);
    refused(put(&split(1, 4, 5), &fitting), Blame::Input, &["part 2 of 4"]);
    refused(put(&[("k", text("x"))], &fitting), Blame::Input, &["a model in one file"]);
    let words = ["split.tensors.count", "the parts hold 4 tensors", "5 are announced"];
    refused(put(&split(1, COUNT, 5), &[tensor("t2")]), Blame::Input, &words);
    let twice = [tensor("t2"), tensor("t0")];
    refused(put(&split(1, COUNT, 5), &twice), Blame::Input, &["tensor 't0'", "twice"]);
    let mut other = split(1, COUNT, 5);
    other.push(("general.architecture", text("other")));
    let words = ["general.architecture: 'other'", "the first part has 'example'"];
    refused(put(&other, &fitting), Blame::Input, &words);
    other[3].1 = text("example");
    put(&other, &fitting).expect("a part may repeat its architecture");
}

#[test]
fn a_broken_part_is_named() {
    let folder = copied("broken");
    let path = folder.join(name(3, COUNT));
    let bytes = std::fs::read(&path).expect("the copy");
    std::fs::write(&path, &bytes[..40]).expect("a short copy");
    let words = ["split-00003-of-00003.gguf: ", "cut short"];
    refused(Gguf::open(&first(&folder)), Blame::Input, &words);
}

#[test]
fn a_first_part_by_another_name() {
    let folder = copied("renamed");
    let renamed = folder.join("model.gguf");
    std::fs::rename(first(&folder), &renamed).expect("the copy");
    let words = ["called 'model.gguf'", "'NAME-00001-of-00003.gguf' is wanted"];
    refused(Gguf::open(&renamed), Blame::Input, &words);
}

#[test]
fn counts_and_numbers_that_cannot_be() {
    let folder = folder("split_counts");
    let put = |number: u64, count: u64| {
        let path = folder.join(format!("split-00001-of-{count:05}.gguf"));
        std::fs::write(&path, written(&split(number, count, 1), &[tensor("t")])).expect("a file");
        Gguf::open(&path)
    };
    put(0, 0).expect("no split");
    put(0, 1).expect("one part is no split");
    refused(put(0, 1025), Blame::Input, &["split.count", "1025", "at most 1024"]);
    refused(put(0, u64::MAX), Blame::Input, &["split.count", "at most 1024"]);
    refused(put(u64::MAX, 2), Blame::Input, &["this is part 18446744073709551615 of 2"]);
    refused(put(0, 2), Blame::Environment, &["split-00002-of-00002.gguf"]);
    let path = folder.join("split-00001-of-00002.gguf");
    std::fs::write(&path, written(&[("split.count", Value::U8(2))], &[])).expect("a file");
    refused(Gguf::open(&path), Blame::Input, &["'split.no': it is missing"]);
    let odd = [("split.count", text("two"))];
    std::fs::write(&path, written(&odd, &[])).expect("a file");
    refused(Gguf::open(&path), Blame::Input, &["'split.count': it is the text 'two'"]);
}

#[test]
fn a_part_in_memory_is_no_model() {
    let words = ["split.count", "this is part 1 of 3", "by its path"];
    refused(Gguf::from_bytes(golden(&name(1, COUNT))), Blame::Input, &words);
}
