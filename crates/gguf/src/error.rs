//! What can be wrong with a container, and whose fault it is.

use std::io;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The file, or what was asked of it.
    Input,
    /// The machine: permissions, a full disk, a missing file.
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
        "metadata key '{key}': {found}, but {wanted} is wanted; the file is not for this program"
    )]
    Key {
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
            Error::Io { .. } => Blame::Environment,
            Error::Format { .. } | Error::Key { .. } => Blame::Input,
        }
    }
}

/// [`Error::Format`], briefly.
pub(crate) fn format(file: &str, field: &str, found: &str, wanted: &str) -> Error {
    Error::Format {
        file: file.to_owned(),
        field: field.to_owned(),
        found: found.to_owned(),
        wanted: wanted.to_owned(),
    }
}
