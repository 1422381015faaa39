//! The table of targets. Adding one: a module with seeds and a `run`, and a row in [`TARGETS`].

mod chat;
mod cluster;
mod gguf;
mod model;
mod quant;
mod self_test;
mod store;
mod text;
mod wire;

/// A parser of outside bytes, as the driver sees it.
pub struct Target {
    /// Name on the command line and of the folder under `fuzz/regressions/`.
    pub name: &'static str,
    /// Inputs that are right, to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words of the format, to be inserted.
    pub dictionary: &'static [&'static [u8]],
    /// Inputs are cut to this many bytes.
    pub len_max: usize,
    /// Memory that any input may take.
    pub base_bytes: usize,
    /// Memory that an input may take for each of its bytes.
    pub bytes_per_byte: usize,
    /// Must return for any input, with a signature of the outcome; checks the
    /// target's properties by panicking.
    pub run: fn(&[u8]) -> u64,
}

/// Every target, run by CI for a few seconds each.
pub static TARGETS: &[Target] = &[
    quant::BLOCKS,
    quant::INT8,
    text::TOKENIZER,
    text::ENCODE,
    text::STREAM,
    chat::RENDER,
    gguf::FILE,
    gguf::SAFETENSORS,
    gguf::IMATRIX,
    model::LOAD,
    model::RESTORE,
    wire::REQUEST,
    wire::ANSWER,
    store::FILE,
    store::ENTRY,
    cluster::LINK,
    cluster::GATE,
    cluster::WORD,
];

/// Targets with known faults, which test the driver itself. CI does not fuzz them.
pub static SELF_TESTS: &[Target] = self_test::ALL;

/// A target by its name, the faulty ones included.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().chain(SELF_TESTS).find(|target| target.name == name)
}

/// Letters of a message that count; what follows tends to repeat the input.
const LETTERS: usize = 40;

/// A number for what happened: equal for messages that differ only in quoted text and digits.
pub(crate) fn signature(outcome: &str) -> u64 {
    let (mut hash, mut letters) = (0xcbf2_9ce4_8422_2325_u64, 0);
    let (mut quoted, mut escaped) = (false, false);
    for byte in outcome.bytes() {
        if escaped {
            escaped = false;
        } else if matches!(byte, b'`' | b'"' | b'\'') {
            quoted = !quoted;
        } else if byte == b'\\' {
            escaped = true;
        } else if !quoted && byte.is_ascii_alphabetic() && letters < LETTERS {
            letters += 1;
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}
