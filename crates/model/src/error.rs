//! What can go wrong, by who is to blame.

use std::fmt::Display;

/// Why a model could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A number of the model is missing, impossible, or not what this engine can run.
    #[error(
        "`{key}` is {found}, but this engine wants {wanted}; the file is damaged or made for \
         another engine"
    )]
    Metadata {
        /// Metadata key, or key of a published config.
        key: String,
        /// What it holds.
        found: String,
        /// What it may hold.
        wanted: String,
    },
    /// A tensor that the model needs is not in the file.
    #[error(
        "tensor `{name}` with dims {dims:?} is missing; the file is incomplete or made for \
         another engine"
    )]
    Missing {
        /// Name of the tensor.
        name: String,
        /// Its dims, innermost first.
        dims: Vec<usize>,
    },
    /// A tensor has the wrong type, dims or values.
    #[error("tensor `{name}` has {found}, but {wanted} is needed")]
    Tensor {
        /// Name of the tensor.
        name: String,
        /// What it has.
        found: String,
        /// What it needs.
        wanted: String,
    },
    /// The file could not be read.
    #[error(transparent)]
    Gguf(#[from] ironstar_gguf::Error),
    /// The device could not do something.
    #[error(transparent)]
    Device(#[from] ironstar_device::Error),
    /// A token that the vocabulary does not have.
    #[error("token {token} is not in the vocabulary of {vocabulary} tokens")]
    Token {
        /// The token.
        token: u32,
        /// How many there are.
        vocabulary: usize,
    },
    /// More tokens than there is room for.
    #[error("position {wanted} is beyond the context of {context} tokens; use a larger context")]
    Context {
        /// Position that was wanted.
        wanted: usize,
        /// Room of the session.
        context: usize,
    },
    /// A position that the rings no longer hold.
    #[error(
        "cannot go to position {wanted}: only {lowest} to {highest} (or 0) can be reached without \
         evaluating again; restore an earlier state or start over"
    )]
    Rewind {
        /// Position that was wanted.
        wanted: usize,
        /// Lowest position in reach.
        lowest: usize,
        /// Highest position in reach.
        highest: usize,
    },
    /// Saved bytes that do not fit.
    #[error("the saved state has {found}, wanted is {wanted}; evaluate the tokens again")]
    Saved {
        /// What the bytes say.
        found: String,
        /// What they should say.
        wanted: String,
    },
    /// A step that does not fit its states: a bug in the caller.
    #[error("step: {found}, but {wanted}")]
    Step {
        /// What was passed.
        found: String,
        /// What is needed.
        wanted: String,
    },
    /// A number of ranks that cannot share the model, or something that only one rank can do.
    #[error("{ranks} ranks cannot share this: {found}, but {wanted}")]
    Ranks {
        /// How many ranks there are.
        ranks: usize,
        /// What stands in the way.
        found: String,
        /// What would fit.
        wanted: String,
    },
    /// Directions or scales that do not fit.
    #[error("steering: {found}, but {wanted}")]
    Steering {
        /// What was passed.
        found: String,
        /// What would fit.
        wanted: String,
    },
    /// A draft was asked for where none can be.
    #[error("no draft: {0}")]
    Draft(&'static str),
}

/// Who can do something about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// What was passed in: the model file, the tokens, the saved bytes.
    Input,
    /// The machine: files, memory.
    Environment,
    /// This program.
    Internal,
}

impl Error {
    pub(crate) fn metadata(key: &str, found: impl Display, wanted: impl Display) -> Self {
        let (key, found, wanted) = (key.to_owned(), found.to_string(), wanted.to_string());
        Error::Metadata { key, found, wanted }
    }

    /// Who can do something about it.
    #[must_use]
    pub fn blame(&self) -> Blame {
        use ironstar_device::Error as Device;
        match self {
            Error::Gguf(e) => match e.blame() {
                ironstar_gguf::Blame::Input => Blame::Input,
                ironstar_gguf::Blame::Environment => Blame::Environment,
            },
            Error::Device(
                Device::Memory { .. }
                | Device::Unsupported { .. }
                | Device::Device { .. }
                | Device::Exchange(_),
            ) => Blame::Environment,
            Error::Device(_) | Error::Step { .. } => Blame::Internal,
            _ => Blame::Input,
        }
    }
}
