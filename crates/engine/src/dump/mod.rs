//! What a pass computes, kept in files and compared: where do two backends, two cuts of a prompt or
//! two builds part?
//!
//! A [`Dump`] is a folder with a file for each tensor of each layer, `layer.N.NAME.npy` (names are
//! those of [`What`]), beside `logits.npy` and `tokens.npy`. Each is an array of records, a
//! position and its values, which NumPy loads as it is. A position that was evaluated twice has two
//! records; the later one counts. A compressed row stands at the position that closes it.
//!
//! [`compare()`] takes two of them in the order of the pass and says where they part first. What
//! follows a position with another token is not compared.

mod compare;
mod npy;
mod writer;

pub use compare::{Comparison, Difference, Place, compare};
pub use writer::Dump;

use ironstar_model::What;
use std::path::{Path, PathBuf};

/// What can go wrong with a dump.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The file system would not.
    #[error("{doing} {}: {source}", path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// A file that no dump has.
    #[error(
        "{}: {found}, but {wanted} is wanted; dump again with `ironstar run --dump`",
        path.display()
    )]
    Format {
        /// Which file.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What a dump has.
        wanted: String,
    },
    /// Two dumps that share nothing.
    #[error("{found}; dump the same prompt of the same model twice")]
    Apart {
        /// Why.
        found: String,
    },
}

impl DumpError {
    fn file(doing: &'static str, path: &Path, source: std::io::Error) -> Self {
        DumpError::File { doing, path: path.to_owned(), source }
    }

    /// Whether what was asked is at fault, and not the machine.
    #[must_use]
    pub fn is_input(&self) -> bool {
        !matches!(self, DumpError::File { .. })
    }
}

/// A tensor of a dump, in the order of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Tokens,
    Layer(usize, What),
    Logits,
}

impl Key {
    fn name(self) -> String {
        match self {
            Key::Tokens => "tokens".into(),
            Key::Layer(layer, what) => format!("layer.{layer}.{}", what.name()),
            Key::Logits => "logits".into(),
        }
    }

    /// The tensor of this name, if it is one.
    fn named(name: &str) -> Option<Key> {
        match name {
            "tokens" => Some(Key::Tokens),
            "logits" => Some(Key::Logits),
            _ => {
                let (layer, what) = name.strip_prefix("layer.")?.split_once('.')?;
                let what = What::ALL.into_iter().find(|known| known.name() == what)?;
                let key = Key::Layer(layer.parse().ok()?, what);
                (key.name() == name).then_some(key)
            }
        }
    }
}

#[cfg(test)]
mod tests;
