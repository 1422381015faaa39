//! Completions.

use super::sampling::{max_tokens, sampling, stop};
use super::{chat, empty, format, note_left, refuse};
use crate::json::{Fields, Kind, Node};
use crate::{ApiError, Call, Limits, PlainPrompt, Prompt, Protocol};

/// Tokens of an answer where the request does not say; the protocol documents it.
const MAX_TOKENS: usize = 16;

pub(super) fn parse(mut fields: Fields<'_>, limits: &Limits) -> Result<Call, ApiError> {
    let mut call = empty(Protocol::Completions);
    call.model = fields.string("model")?.unwrap_or_default();
    chat::stream(&mut fields, &mut call)?;
    call.sampling = sampling(&mut fields)?;
    // None at all are asked for by who wants the probabilities of a prompt.
    call.max_tokens = max_tokens(&mut fields, &["max_tokens"], 0)?.or(Some(MAX_TOKENS));
    call.stop = stop(fields.take("stop"), limits)?;
    call.n = fields.take("n").map_or(Ok(1), |node| node.count(1, limits.n))?;
    call.echo = fields.bool("echo")?.unwrap_or(false);
    if let Some(node) = fields.take("logprobs") {
        call.logprobs = match node.kind() {
            Kind::Bool => node.bool()?.then_some(0),
            _ => Some(node.count(0, limits.top_logprobs)?),
        };
    }
    if let Some(node) = fields.take("best_of") {
        let n = i64::try_from(call.n).unwrap_or(i64::MAX);
        node.whole(n, n)?;
    }
    if let Some(node) = fields.take("response_format") {
        call.format = format::format(&node, Some("json_schema"))?;
    }
    refuse(&mut fields, "suffix", "the model writes forward only; leave it out")?;
    call.prompt = Prompt::Plain(prompts(&fields.need("prompt")?, limits)?);
    note_left(&fields, &mut call.notes);
    Ok(call)
}

/// A text, ids, or an array of either.
fn prompts(node: &Node<'_>, limits: &Limits) -> Result<Vec<PlainPrompt>, ApiError> {
    let wanted = "a string, an array of strings, an array of token ids, or an array of those";
    match node.kind() {
        Kind::String => return Ok(vec![PlainPrompt::Text(node.string()?)]),
        Kind::Array => {}
        _ => return Err(node.wrong(wanted)),
    }
    // A list of ids is read as such: it may be as long as the context.
    let first = node.raw()[1..].trim_start().chars().next();
    if first.is_some_and(|c| c == '-' || c.is_ascii_digit()) {
        return Ok(vec![ids(node)?]);
    }
    let items = node.array(limits.prompts)?;
    match items.first().map(Node::kind) {
        None => Err(node.wrong("at least one prompt (there are none)")),
        Some(Kind::String | Kind::Array) => items
            .iter()
            .map(|item| match item.kind() {
                Kind::String => item.string().map(PlainPrompt::Text),
                _ => ids(item),
            })
            .collect(),
        Some(_) => Err(node.wrong(wanted)),
    }
}

fn ids(node: &Node<'_>) -> Result<PlainPrompt, ApiError> {
    if node.raw().trim_matches(['[', ']', ' ', '\n', '\t', '\r']).is_empty() {
        return Err(node.wrong("at least one token id (there are none)"));
    }
    let ids: Vec<u32> =
        serde_json::from_str(node.raw()).map_err(|_| node.wrong("an array of token ids"))?;
    Ok(PlainPrompt::Tokens(ids))
}
