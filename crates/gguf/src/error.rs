//! What can be wrong with a container, and whose fault it is.

use std::io;

/// Most characters of a name or a text from a file that a message repeats.
const SHOWN_CHARS_MAX: usize = 100;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The file's content, or what was asked of it: trying again does not help.
    Input,
    /// The machine or the path: a missing file, permissions, a full disk.
    Environment,
}

/// Why a container could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{doing} {file}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// Which file.
        file: String,
        /// Why not.
        source: io::Error,
    },
    /// The path leads to something that is no model file at all.
    #[error("{file}: {found}, but {wanted}; check the path")]
    NotAFile {
        /// Which path.
        file: String,
        /// What is there.
        found: &'static str,
        /// What was wanted.
        wanted: &'static str,
    },
    /// The file ends before something that it announces.
    #[error(
        "{file}: {field}: {needed} bytes are announced, but only {left} are left; \
         the file was cut short or is damaged: fetch or convert it again"
    )]
    Truncated {
        /// Which file.
        file: String,
        /// Which part of it.
        field: String,
        /// Bytes that the part takes, at least.
        needed: u64,
        /// Bytes that are there.
        left: u64,
    },
    /// The bytes are not what the format asks for.
    #[error("{file}: {field}: {found}, but {wanted}")]
    Format {
        /// Which file.
        file: String,
        /// Which part of it.
        field: String,
        /// What was found.
        found: String,
        /// What was wanted, and what to do.
        wanted: String,
    },
    /// A metadata key is missing or of another type.
    #[error(
        "{file}: metadata key '{key}': {found}, but {wanted} is wanted; \
         the file was made for another program or is damaged"
    )]
    Key {
        /// Which file.
        file: String,
        /// Which key.
        key: String,
        /// What was found.
        found: String,
        /// What was wanted.
        wanted: &'static str,
    },
}

impl Error {
    /// Whose fault it is.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Error::Io { .. } | Error::NotAFile { .. } => Blame::Environment,
            Error::Truncated { .. } | Error::Format { .. } | Error::Key { .. } => Blame::Input,
        }
    }
}

/// [`Error::Format`], its field fit to be shown.
pub(crate) fn format(
    file: &str,
    field: &str,
    found: impl Into<String>,
    wanted: impl Into<String>,
) -> Error {
    Error::Format {
        file: file.to_owned(),
        field: shown(field),
        found: found.into(),
        wanted: wanted.into(),
    }
}

/// [`Error::Truncated`], its field fit to be shown.
pub(crate) fn truncated(file: &str, field: &str, needed: u64, left: u64) -> Error {
    Error::Truncated { file: file.to_owned(), field: shown(field), needed, left }
}

/// Text from a file, fit for a message: cut to a readable length, control characters escaped so
/// that a file cannot steer a terminal.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::new();
    for (index, c) in text.chars().enumerate() {
        match c {
            _ if index == SHOWN_CHARS_MAX => return out + "...",
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}
