//! What can go wrong, by who is to blame.

/// Why the engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model file, its tokens or its state.
    #[error(transparent)]
    Model(#[from] ironstar_model::Error),
    /// The container could not be read.
    #[error(transparent)]
    Gguf(#[from] ironstar_gguf::Error),
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] ironstar_device::Error),
    /// The vocabulary in the file is not one.
    #[error(transparent)]
    Text(#[from] ironstar_text::Error),
    /// A setting is out of its range.
    #[error("{name} is {found}, but {wanted} is needed")]
    Setting {
        /// Name as in flags and requests.
        name: &'static str,
        /// What was passed.
        found: String,
        /// What may be passed.
        wanted: &'static str,
    },
    /// A logit that is no number.
    #[error(
        "the logit of token {token} at position {position} is {value}: no token can be drawn; \
         either the file's weights are damaged (fetch or convert it again), or this program's \
         arithmetic is"
    )]
    Logit {
        /// Which token.
        token: u32,
        /// Position of the token that was to be drawn.
        position: usize,
        /// NaN or infinity.
        value: f32,
    },
    /// Every token is forbidden.
    #[error(
        "no token is allowed at position {position}: every logit is -inf; loosen the bias or \
         the grammar"
    )]
    NothingAllowed {
        /// Position of the token that was to be drawn.
        position: usize,
    },
    /// Too many tokens to draw from.
    #[error("a vocabulary of {found} tokens, but 1 to {most} can be drawn from")]
    Vocabulary {
        /// How many there are.
        found: usize,
        /// How many may be.
        most: usize,
    },
    /// The tokenizer has more tokens than the model.
    #[error(
        "the tokenizer has {tokenizer} tokens, but the model only {model}; the file is damaged"
    )]
    Tokenizer {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding.
        model: usize,
    },
    /// Something needs at least one token.
    #[error(
        "{0}: the session is empty, but at least one token is needed; sync it to a prompt first"
    )]
    Empty(&'static str),
    /// The caller's flag was raised.
    #[error("cancelled at position {position} of {wanted}; what was evaluated is kept")]
    Cancelled {
        /// Tokens evaluated so far.
        position: usize,
        /// Tokens that were wanted.
        wanted: usize,
    },
    /// A drafter was asked for that is not there.
    #[error(
        "no next-token block was loaded, so it cannot draft; name its file, or use another \
         way to speculate"
    )]
    NoDrafter,
}

/// Who can do something about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// What was passed in: the model file, the prompt, the settings.
    Input,
    /// The machine: files, memory.
    Environment,
    /// This program.
    Internal,
}

impl Error {
    /// Who can do something about it.
    #[must_use]
    pub fn blame(&self) -> Blame {
        use ironstar_device::Error as Device;
        match self {
            Error::Model(e) => match e.blame() {
                ironstar_model::Blame::Input => Blame::Input,
                ironstar_model::Blame::Environment => Blame::Environment,
                ironstar_model::Blame::Internal => Blame::Internal,
            },
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
            Error::Device(_) | Error::Logit { .. } => Blame::Internal,
            _ => Blame::Input,
        }
    }
}
