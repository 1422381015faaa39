//! Requests: bytes to a [`Call`].
//!
//! `chat.rs`, `completions.rs`, `messages.rs` and `responses/` read a protocol each; the rest is
//! shared, so that a field means the same wherever it stands. A field that is unknown, or known and
//! without effect here, becomes a line for the log. A value that is unknown is refused.

mod chat;
mod completions;
mod content;
mod format;
mod messages;
mod responses;
mod sampling;
mod thinking;
pub(crate) mod tools;
mod turns;

#[cfg(test)]
mod tests;

use ironstar_text::chat::Conversation;

use self::tools::Tools;
use self::turns::Turns;
use crate::json::{self, Fields};
use crate::{ApiError, Call, Format, Limits, Prompt, Protocol, Sampling, ToolSet};

/// Reads a request. The body is hostile: every error names the field, what was found there and what
/// was wanted.
///
/// ```
/// use ironstar_wire::{Limits, Prompt, Protocol, parse};
/// let body = br#"{"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}"#;
/// let call = parse(Protocol::Messages, body, &Limits::default())?;
/// assert!(matches!(call.prompt, Prompt::Conversation(c) if c.messages.len() == 1));
/// # Ok::<(), ironstar_wire::ApiError>(())
/// ```
pub fn parse(protocol: Protocol, body: &[u8], limits: &Limits) -> Result<Call, ApiError> {
    let body = json::body(body, limits)?;
    let fields = body.object()?;
    match protocol {
        Protocol::Chat => chat::parse(fields, limits),
        Protocol::Completions => completions::parse(fields, limits),
        Protocol::Responses => responses::parse(fields, limits),
        Protocol::Messages => messages::parse(fields, limits),
    }
}

/// Makes the conversation that was read the call's prompt.
fn converse(call: &mut Call, turns: Turns, tools: Tools) {
    call.prompt = Prompt::Conversation(Conversation {
        messages: turns.messages,
        tools: tools.shown,
        response_format: format::shown(&call.format),
        ..Conversation::default()
    });
    call.tools = tools.set;
}

/// A call that asks for nothing yet.
fn empty(protocol: Protocol) -> Call {
    Call {
        protocol,
        model: String::new(),
        stream: false,
        include_usage: false,
        prompt: Prompt::Plain(Vec::new()),
        thinking: None,
        sampling: Sampling::default(),
        max_tokens: None,
        n: 1,
        stop: Vec::new(),
        logprobs: None,
        echo: false,
        format: Format::Text,
        tools: ToolSet::default(),
        previous: None,
        store: false,
        continue_last: false,
        repeated: Vec::new(),
        encrypted_reasoning: false,
        notes: Vec::new(),
    }
}

/// Fields of all protocols that say who asks, how to bill and how to cache. This server has no use
/// for them.
const WITHOUT_USE: [&str; 17] = [
    "user",
    "metadata",
    "client_metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "cache_control",
    "context_management",
    "inference_geo",
    "speed",
    "container",
    "mcp_servers",
    "verbosity",
    "moderation",
    "betas",
];

/// Lines for the log that one request may give.
const NOTES_MAX: usize = 64;

fn note(notes: &mut Vec<String>, line: impl Into<String>) {
    if notes.len() < NOTES_MAX {
        notes.push(line.into());
    }
}

/// One line for each field that nobody read.
fn note_left(fields: &Fields<'_>, notes: &mut Vec<String>) {
    for name in fields.left().take(NOTES_MAX) {
        let name = json::shortened(name);
        let line = match WITHOUT_USE.contains(&name.as_str()) {
            true => format!("field `{name}` has no effect here"),
            false => format!("field `{name}` is unknown and ignored"),
        };
        note(notes, line);
    }
}

/// Refuses a field that asks for what is not done, unless it asks for nothing.
fn refuse(fields: &mut Fields<'_>, name: &str, why: &str) -> Result<(), ApiError> {
    let nothing = ["false", "[]", "{}", "\"\"", "\"none\""];
    match fields.take(name) {
        Some(node) if !nothing.contains(&node.raw()) => {
            let path = node.path();
            Err(ApiError::unsupported(path, format!("`{path}` is not supported: {why}")))
        }
        _ => Ok(()),
    }
}
