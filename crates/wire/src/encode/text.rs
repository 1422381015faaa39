//! JSON as text: no value is parsed again, so what a client or a model wrote keeps its spelling.

use std::fmt::Write as _;

use crate::{TokenLogprobs, TopLogprob};

/// A JSON string.
pub(super) fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A JSON object of members that are JSON already.
pub(super) fn object(members: &[(&str, String)]) -> String {
    let mut out = String::from("{");
    for (at, (name, value)) in members.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        // Names are ours and need no escapes; writing to a string cannot fail.
        let _ = write!(out, "{comma}\"{name}\":{value}");
    }
    out.push('}');
    out
}

/// A JSON array of items that are JSON already.
pub(super) fn array<T: AsRef<str>>(items: &[T]) -> String {
    let items: Vec<&str> = items.iter().map(AsRef::as_ref).collect();
    format!("[{}]", items.join(","))
}

/// A log probability: `null` where there is none, and a finite number for what never happens.
pub(super) fn logprob(value: f64) -> String {
    const NEVER: f64 = -9999.0;
    if value.is_nan() { "null".to_owned() } else { number(value.max(NEVER)) }
}

fn number(value: f64) -> String {
    serde_json::Number::from_f64(value).map_or_else(|| "null".to_owned(), |n| n.to_string())
}

/// The text of a token; one that is no whole text is written by its bytes, as others do.
pub(super) fn token_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |mut text, byte| {
            let _ = write!(text, "\\x{byte:02x}");
            text
        }),
    }
}

/// Tokens with their probabilities, as Chat Completions and Responses write them.
pub(super) fn logprobs(tokens: &[TokenLogprobs]) -> String {
    let entry = |bytes: &[u8], value: f64| {
        let listed: Vec<String> = bytes.iter().map(u8::to_string).collect();
        vec![
            ("token", string(&token_text(bytes))),
            ("logprob", logprob(value)),
            ("bytes", array(&listed)),
        ]
    };
    let top = |top: &TopLogprob| object(&entry(&top.bytes, top.logprob));
    let token = |token: &TokenLogprobs| {
        let mut members = entry(&token.bytes, token.logprob);
        members.push(("top_logprobs", array(&token.top.iter().map(top).collect::<Vec<_>>())));
        object(&members)
    };
    array(&tokens.iter().map(token).collect::<Vec<_>>())
}
