//! Text of the model to channels and calls, however the text is cut.
//!
//! `parser.rs` has the states; `tags.rs` knows the markup, `arguments.rs` makes JSON of it,
//! `stops.rs` finds stop strings and `probabilities.rs` keeps tokens beside the text.

mod arguments;
mod parser;
mod probabilities;
mod stops;
mod tags;

#[cfg(test)]
mod tests;

pub use parser::OutputParser;

use ironstar_text::chat::Release;

use crate::ToolSet;

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
    /// The answer was cut off within the call: its arguments are not complete JSON, so that no
    /// client takes half a command for a whole one.
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
    /// Whether the caller tells of `<think>` and `</think>` tokens by
    /// [`OutputParser::push_think`], so that the same letters in a text mean nothing.
    pub think_tokens: bool,
    /// Whether the prompt ended within a block of calls that it opened.
    pub in_calls: bool,
    /// Tools that were offered: without any that may be called, no calls are looked for.
    pub tools: ToolSet,
    /// Texts that end the answer. They are looked for in what the model says, neither in its
    /// reasoning nor in calls.
    pub stop: Vec<String>,
    /// Random part of the ids of calls, letters and digits; no two answers may share it.
    pub call_ids: String,
    /// What the protocol's ids of calls begin with, as `call_`.
    pub call_prefix: &'static str,
}
