//! A call to a prompt for one model, with how to read and how to bound what follows it.

use ironstar_text::Segment;
use ironstar_text::chat::{Release, Thinking};

use crate::{ApiError, Call, CallMemory, ParserOptions};

/// What a server knows of its model and its defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Prompt format.
    pub release: Release,
    /// Whether the model reasons where the request does not say.
    pub thinking: Thinking,
    /// Id of the token `｜DSML｜`; without one no call can be enforced.
    pub dsml_token: Option<u32>,
}

/// A prompt and what follows from it.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The prompt, for `Tokenizer::encode_segments`.
    pub segments: Vec<Segment>,
    /// Whether the model reasons in this answer.
    pub thinking: Thinking,
    /// How to parse the answer.
    pub parser: ParserOptions,
    /// Grammar of the answer in llguidance's Lark dialect, if it is bound by one. It describes what
    /// follows the reasoning: where the prompt ended within it, a matcher takes tokens from the one
    /// after `</think>` on.
    pub grammar: Option<String>,
}

/// Renders a conversation. `call_ids` is [`ParserOptions::call_ids`].
pub fn prepare(
    _call: &Call,
    _profile: &Profile,
    _memory: &CallMemory,
    _call_ids: &str,
) -> Result<Prepared, ApiError> {
    Err(ApiError::unsupported("messages", "rendering is not there yet"))
}
