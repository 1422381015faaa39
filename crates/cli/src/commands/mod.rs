//! One file a command, and the few things that several of them need.

pub mod bench;
pub mod diff;
pub mod doctor;
pub mod eval;
pub mod inspect;
pub mod pack;
pub mod perplexity;
pub mod quantize;
pub mod replay;
pub mod run;
pub mod serve;
pub mod sim;
pub mod steer;
pub mod synth;
pub mod tokens;
pub mod worker;

use crate::failure::Failure;
use std::io::Read;
use std::path::Path;

/// Text from the command line, a file ('-' is standard input), or standard input.
pub fn input_text(words: Option<&str>, file: Option<&Path>) -> Result<String, Failure> {
    match (words, file) {
        (Some(words), _) => Ok(words.to_owned()),
        (None, Some(path)) if path != Path::new("-") => read_text(path),
        (None, _) => {
            let bytes = read_bounded(&mut std::io::stdin(), "standard input", |error| {
                Failure::environment(format!("reading standard input: {error}"))
            })?;
            String::from_utf8(bytes).map_err(|error| not_text("standard input", &error))
        }
    }
}

/// Largest text that is read: more than any context holds, little enough for any machine.
const TEXT_BYTES_MAX: u64 = 64 << 20;

fn read_bounded(
    from: &mut dyn Read,
    name: &str,
    failed: impl Fn(std::io::Error) -> Failure,
) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    from.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(Failure::caller(format!(
            "{name} has more than {} MiB, the most that is read as a text; give a part of it",
            TEXT_BYTES_MAX >> 20
        )));
    }
    Ok(bytes)
}

/// A file that must be UTF-8.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let failed = |error| Failure::file("reading", path, &error);
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let bytes = read_bounded(&mut file, &path.display().to_string(), failed)?;
    String::from_utf8(bytes).map_err(|error| not_text(&path.display().to_string(), &error))
}

fn not_text(name: &str, error: &std::string::FromUtf8Error) -> Failure {
    let at = error.utf8_error().valid_up_to();
    Failure::caller(format!("{name} is not UTF-8 text: the byte at offset {at} fits no character"))
}

/// Ids separated by white space, commas or brackets.
pub fn parse_ids(text: &str, vocabulary: u32) -> Result<Vec<u32>, String> {
    let separator = |c: char| c.is_whitespace() || c == ',' || c == '[' || c == ']';
    text.split(separator)
        .filter(|word| !word.is_empty())
        .map(|word| match word.parse::<u32>() {
            Ok(id) if id < vocabulary => Ok(id),
            Ok(id) => Err(format!("token {id} is outside the vocabulary of {vocabulary}")),
            Err(_) => Err(format!("'{word}' is not a token id")),
        })
        .collect()
}

/// Bytes as gibibytes.
#[must_use]
pub fn gib(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
    let gibibytes = bytes as f64 / f64::from(1 << 30);
    format!("{gibibytes:.2} GiB")
}
