//! The one error of the crate.

/// Why a tokenizer could not be built or a prompt could not be rendered. All of these blame the
/// input; the text says what was found, what was wanted, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tokenizer file is not the JSON it should be.
    #[error(
        "tokenizer.json: {0}; wanted the file that is published beside the model's weights \
         (byte-level BPE); fetch it again"
    )]
    Json(#[from] serde_json::Error),

    /// The tokenizer asks for something that this crate does not do.
    #[error("tokenizer: {field} is {found}, but only {wanted} is supported")]
    Unsupported {
        /// Name of the field in the file.
        field: &'static str,
        /// Its value there, shortened.
        found: String,
        /// The values that would do.
        wanted: String,
    },

    /// The vocabulary contradicts itself.
    #[error("tokenizer vocabulary: {0}; the file is damaged or was converted wrongly")]
    Vocabulary(String),

    /// A prompt needs a control token that the model's vocabulary lacks.
    #[error(
        "the prompt needs the control token {0:?}, which this model's vocabulary does not have; \
         use the prompt format of the model's own release"
    )]
    MissingSpecial(String),

    /// A conversation that no prompt can be made of.
    #[error("{at}: {found}; {wanted}")]
    Conversation {
        /// Which message, as `messages[3].tool_calls[0]`.
        at: String,
        /// What is wrong with it.
        found: String,
        /// What would be right.
        wanted: String,
    },
}

/// A value from a file, cut to what fits a line.
pub(crate) fn shortened(value: impl std::fmt::Display) -> String {
    const CHARS_MAX: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(CHARS_MAX) {
        Some((at, _)) => format!("{} ...", &text[..at]),
        None => text,
    }
}
