//! Text of the model to channels and calls, however the text is cut.

use ironstar_text::chat::Release;

use crate::{SampledCalls, ToolSet};

/// What a piece of text turned out to be. Joined, the pieces of an answer do not depend on how its
/// text was cut.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// What the model thinks.
    Reasoning(String),
    /// What it says.
    Text(String),
    /// A call begins.
    CallStart {
        /// Its number in the answer, from 0.
        index: usize,
        /// Its id, from [`ParserOptions::call_ids`].
        id: String,
        /// Name of the tool, as the model knows it.
        name: String,
    },
    /// More of the call's arguments.
    CallArguments {
        /// Number of the call.
        index: usize,
        /// The next part of a JSON object.
        json_fragment: String,
    },
    /// The call's arguments are complete.
    CallEnd {
        /// Number of the call.
        index: usize,
    },
    /// The answer was cut off within the call: its arguments are not complete JSON.
    CallCut {
        /// Number of the call.
        index: usize,
    },
    /// Probabilities of a token whose text was given before.
    Logprobs {
        /// Whether the token is part of the reasoning.
        reasoning: bool,
        /// The token.
        token: TokenLogprobs,
    },
}

/// A token with its probability.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Its bytes, which may be part of a character.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// The likeliest tokens in its place, in order.
    pub top: Vec<TopLogprob>,
}

/// A token that was likely.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopLogprob {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f64,
}

/// Where an answer begins and what is looked for in it.
#[derive(Clone, Debug, Default)]
pub struct ParserOptions {
    /// Prompt format of the model.
    pub release: Release,
    /// Whether the prompt ended within the model's reasoning.
    pub reasoning: bool,
    /// Whether the prompt ended within a block of calls that it opened.
    pub in_calls: bool,
    /// Whether calls are looked for, and their tools.
    pub tools: ToolSet,
    /// Texts that end the answer. They are looked for in what the model says, neither in its
    /// reasoning nor in calls.
    pub stop: Vec<String>,
    /// Random part of the ids of calls, letters and digits; no two answers may share it.
    pub call_ids: String,
    /// What the protocol's ids of calls begin with, as `call_`.
    pub call_prefix: &'static str,
}

/// Parses one answer.
#[derive(Clone, Debug)]
pub struct OutputParser {
    options: ParserOptions,
}

impl OutputParser {
    /// At the beginning of an answer.
    #[must_use]
    pub fn new(options: ParserOptions) -> Self {
        Self { options }
    }

    /// Takes the next text. Markers of the model (`<think>`, `</think>`, `｜DSML｜`) are given as
    /// text; those that end an answer are not given. `token` is the token that the text belongs to,
    /// where probabilities are wanted: then every token is given, those without text too.
    pub fn push(&mut self, text: &str, _token: Option<TokenLogprobs>) -> Vec<Output> {
        let _ = &self.options;
        vec![Output::Text(text.to_owned())]
    }

    /// Ends the answer and gives what was held back. `cut` says that the model was not done: a call
    /// within which it was cut off stays incomplete, and nothing is added to it.
    pub fn end(&mut self, _cut: bool) -> Vec<Output> {
        Vec::new()
    }

    /// The stop string that came. Nothing after it is given any more, so sampling should end.
    #[must_use]
    pub fn stopped(&self) -> Option<&str> {
        None
    }

    /// Whether the model is reasoning.
    #[must_use]
    pub fn reasoning(&self) -> bool {
        false
    }

    /// Calls so far, complete or not.
    #[must_use]
    pub fn calls(&self) -> usize {
        0
    }

    /// The answer's calls with their exact text, for [`crate::CallMemory`]; after
    /// [`OutputParser::end`]. `None` if there are none or the last is incomplete.
    #[must_use]
    pub fn sampled_calls(&self) -> Option<SampledCalls> {
        None
    }
}
