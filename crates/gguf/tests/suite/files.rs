//! What a path may lead to, and files whose size is only claimed.

use crate::helpers::{Raw, folder, refused};
use ironstar_gguf::safetensors::Checkpoint;
use ironstar_gguf::{Blame, Gguf, HEADER_BYTES_MAX, TensorKind, Writer};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Sparse files take no room, whatever their length.
const SPARSE_BYTES: u64 = 1 << 36;

#[test]
fn paths_that_are_no_file() {
    let folder = folder("paths");
    let missing = folder.join("missing.gguf");
    refused(Gguf::open(&missing), Blame::Environment, &["opening", "missing.gguf"]);
    refused(Checkpoint::open(&missing), Blame::Environment, &["opening", "missing.gguf"]);
    refused(Gguf::open(&folder), Blame::Environment, &["paths: it is a folder", "a model file"]);
    let empty = folder.join("empty.gguf");
    File::create(&empty).expect("a file");
    refused(Gguf::open(&empty), Blame::Environment, &["empty.gguf: the file is empty"]);
    refused(Checkpoint::open(&empty), Blame::Environment, &["empty.gguf: the file is empty"]);
    let inside = empty.join("x");
    refused(Gguf::open(&inside), Blame::Environment, &["opening", "empty.gguf"]);
}

#[cfg(unix)]
#[test]
fn devices_and_pipes_are_not_waited_for() {
    let pipe = folder("pipes").join("pipe.gguf");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo is there").success());
    for path in [pipe.as_path(), Path::new("/dev/zero")] {
        refused(Gguf::open(path), Blame::Environment, &["a device or a pipe"]);
        refused(Checkpoint::open(path), Blame::Environment, &["a device or a pipe"]);
    }
}

#[test]
fn a_huge_sparse_file_does_not_justify_a_huge_header() {
    let folder = folder("sparse");
    let entry = |element: u32, count: u64| Raw::new(0, 1).text("k").u32(9).u32(element).u64(count);
    let cases = [
        ("tensors", Raw::new(1 << 30, 0), "tensor count"),
        ("entries", Raw::new(0, 1 << 30), "metadata count"),
        ("bytes", entry(0, 1 << 34), "k: "),
        ("numbers", entry(10, 1 << 32), "k: "),
        ("texts", entry(8, 1 << 32), "k: "),
        ("name", Raw::new(0, 1).u64(1 << 33), "metadata key 0"),
        ("text", Raw::new(0, 1).text("k").u32(8).u64(1 << 33), "k: "),
    ];
    for (name, header, field) in cases {
        let path = sparse(&folder, name, &header.0);
        let limit = format!("at most {HEADER_BYTES_MAX} bytes");
        refused(Gguf::open(&path), Blame::Input, &[field, &limit, name]);
        std::fs::remove_file(path).expect("it was made here");
    }
    let length = (1_u64 << 30).to_le_bytes();
    let path = sparse(&folder, "checkpoint", &length);
    refused(Checkpoint::open(&path), Blame::Input, &["header length", "1073741824", "at most"]);
}

fn sparse(folder: &Path, name: &str, start: &[u8]) -> PathBuf {
    let path = folder.join(name);
    let mut file = File::create(&path).expect("a file");
    file.write_all(start).expect("a few bytes");
    file.set_len(SPARSE_BYTES).expect("a file system with sparse files");
    path
}

/// Bytes of a mapped file that this process has in memory.
#[cfg(target_os = "linux")]
fn resident(path: &Path) -> u64 {
    let table = std::fs::read_to_string("/proc/self/smaps").expect("Linux has it");
    let name = path.to_str().expect("plain letters");
    let mut lines = table.lines().skip_while(|line| !line.ends_with(name));
    let line = lines.find(|line| line.starts_with("Rss:")).expect("the file is mapped");
    let kilobytes: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("kB");
    kilobytes << 10
}

#[cfg(target_os = "linux")]
#[test]
fn a_tensor_that_is_forgotten_takes_no_memory_and_has_the_same_bytes() {
    const LEN: usize = 4 << 20;
    let path = folder("forgotten").join("model");
    let mut writer = Writer::new(File::create(&path).expect("a file"));
    for name in ["a", "b"] {
        writer.tensor(name, TensorKind::I8, &[LEN as u64]).expect("a tensor");
    }
    let data = |step: u8| {
        let bytes = std::iter::successors(Some(0u8), move |byte| Some(byte.wrapping_add(step)));
        bytes.take(LEN).collect::<Vec<u8>>()
    };
    for (name, step) in [("a", 3), ("b", 5)] {
        writer.data(name, &data(step)).expect("its data");
    }
    drop(writer.finish().expect("whole"));
    let model = Gguf::open(&path).expect("it was just written");
    let [a, b] = ["a", "b"].map(|name| model.tensor(name).expect("it is there").clone());
    let bytes = |tensor| model.bytes(tensor).expect("its data");
    assert_eq!((&*bytes(&a), &*bytes(&b)), (&*data(3), &*data(5)));
    let before = resident(&path);
    assert!(before >= 2 * LEN as u64, "{before}: both were read");
    model.forget(&a);
    let after = resident(&path);
    assert!(before - after >= LEN as u64 - (128 << 10), "{before} to {after}");
    assert_eq!(&*bytes(&a), &*data(3), "it is read again");
    model.forget(&b);
    assert_eq!(&*bytes(&b), &*data(5));
    std::fs::remove_file(path).expect("it was made here");
}

#[test]
fn a_tensor_of_a_huge_sparse_file_is_not_read_to_be_opened() {
    let folder = folder("sparse_tensor");
    let columns = (SPARSE_BYTES - 4096) / 4;
    let path = sparse(&folder, "big", &Raw::new(1, 0).tensor("t", &[columns], 0, 0).0);
    let model = Gguf::open(&path).expect("the tensor is inside");
    let bytes = model.bytes(&model.tensors()[0]).expect("its data");
    assert_eq!((bytes.len() as u64, bytes[bytes.len() - 1]), (columns * 4, 0));
    std::fs::remove_file(path).expect("it was made here");
}
