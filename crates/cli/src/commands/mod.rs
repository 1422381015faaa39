//! One file a command, and the few things that several of them need.

pub mod doctor;
pub mod eval;
pub mod inspect;
pub mod perplexity;
pub mod quantize;
pub mod run;
pub mod serve;
pub mod steer;
pub mod synth;
pub mod tokens;

use crate::failure::Failure;
use std::io::Read;
use std::path::Path;

/// Text from the command line, a file ('-' is standard input), or standard input.
pub fn input_text(words: Option<&str>, file: Option<&Path>) -> Result<String, Failure> {
    match (words, file) {
        (Some(words), _) => Ok(words.to_owned()),
        (None, Some(path)) if path != Path::new("-") => read_text(path),
        (None, _) => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).map_err(|error| {
                Failure::environment(format!("reading standard input: {error}"))
            })?;
            String::from_utf8(bytes).map_err(|error| not_text("standard input", &error))
        }
    }
}

/// A file that must be UTF-8.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes = std::fs::read(path).map_err(|error| Failure::file("reading", path, &error))?;
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
