//! Responses.

mod items;

use ironstar_text::JsonText;
use ironstar_text::chat::Message;

use super::chat::choice;
use super::sampling::{max_tokens, sampling, stop};
use super::thinking::Asked;
use super::tools::{Declared, Namespace, Tools};
use super::turns::Turns;
use super::{chat, content, converse, empty, format, note, note_left, refuse};
use crate::json::{Fields, Kind, Node, shortened};
use crate::{ApiError, Call, Limits, Protocol, ToolKind};

/// Entries of `include`.
const INCLUDE_MAX: usize = 64;

/// Fields that an answer repeats as they were sent.
const REPEATED: [&str; 18] = [
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "presence_penalty",
    "frequency_penalty",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "truncation",
    "user",
];

pub(super) fn parse(mut fields: Fields<'_>, limits: &Limits) -> Result<Call, ApiError> {
    let mut call = empty(Protocol::Responses);
    call.repeated = repeated(&fields);
    call.model = fields.string("model")?.unwrap_or_default();
    chat::stream(&mut fields, &mut call)?;
    call.store = fields.bool("store")?.unwrap_or(true);
    call.previous = fields.string("previous_response_id")?.filter(|id| !id.is_empty());
    reasoning(&mut fields, &mut call)?;
    call.sampling = sampling(&mut fields)?;
    let names = ["max_output_tokens", "max_completion_tokens", "max_tokens"];
    call.max_tokens = max_tokens(&mut fields, &names, 1)?;
    call.stop = stop(fields.take("stop"), limits)?;
    logprobs_and_include(&mut fields, &mut call, limits)?;
    if let Some(node) = fields.take("text") {
        let mut inner = node.object()?;
        if let Some(node) = inner.take("format") {
            call.format = format::format(&node, None)?;
        }
        if inner.take("verbosity").is_some() {
            note(&mut call.notes, "field `text.verbosity` has no effect here");
        }
    }
    let mut tools = tools(&mut fields, &mut call.notes, limits)?;
    choice(&mut fields, &mut tools)?;
    refuse(&mut fields, "background", "answers are made while the client waits")?;
    refuse(&mut fields, "conversation", "use `previous_response_id` or send the whole history")?;
    refuse(&mut fields, "prompt", "this server keeps no templates; send the text")?;
    without_effect(&mut fields, &mut call.notes)?;
    let mut turns = Turns::default();
    turns.continued = call.previous.is_some();
    if let Some(text) = content::text(fields.take("instructions"))? {
        turns.push(Message::System(text));
    }
    items::read(&fields.need("input")?, &mut turns, &mut call.notes, limits)?;
    converse(&mut call, turns, tools);
    note_left(&fields, &mut call.notes);
    Ok(call)
}

/// What the answer repeats, spelt so that it is one line whatever the request's spacing.
fn repeated(fields: &Fields<'_>) -> Vec<(&'static str, String)> {
    let value = |name: &'static str| {
        let json = JsonText::parse(fields.peek(name)?.raw()).ok()?;
        Some((name, json.as_str().to_owned()))
    };
    REPEATED.into_iter().filter_map(value).collect()
}

fn reasoning(fields: &mut Fields<'_>, call: &mut Call) -> Result<(), ApiError> {
    let mut asked = Asked::default();
    asked.fields(fields)?;
    if let Some(node) = fields.take("reasoning") {
        let mut inner = node.object()?;
        if let Some(effort) = inner.take("effort") {
            asked.effort(&effort)?;
        }
        // Whatever summary is asked for, it is the reasoning itself.
        let summaries = [("auto", ()), ("concise", ()), ("detailed", ()), ("none", ())];
        for name in ["summary", "generate_summary"] {
            inner.take(name).map_or(Ok(()), |node| node.one_of(&summaries))?;
        }
    }
    call.thinking = asked.resolve(&call.model)?;
    Ok(())
}

fn logprobs_and_include(
    fields: &mut Fields<'_>,
    call: &mut Call,
    limits: &Limits,
) -> Result<(), ApiError> {
    let top = fields.take("top_logprobs");
    let top = top.map(|node| node.count(0, limits.top_logprobs)).transpose()?;
    call.logprobs = top.filter(|&count| count > 0);
    let list = fields.take("include").map(|node| node.array(INCLUDE_MAX)).transpose()?;
    for item in list.into_iter().flatten() {
        match item.string()?.as_str() {
            "reasoning.encrypted_content" => call.encrypted_reasoning = true,
            "message.output_text.logprobs" => call.logprobs = top.or(Some(0)),
            "web_search_call.action.sources"
            | "web_search_call.results"
            | "file_search_call.results"
            | "code_interpreter_call.outputs"
            | "computer_call_output.output.image_url"
            | "message.input_image.image_url" => {
                note(&mut call.notes, format!("`{}` has no effect here", item.path()));
            }
            _ => {
                let wanted = "\"reasoning.encrypted_content\" or \"message.output_text.logprobs\"";
                return Err(item.wrong(wanted));
            }
        }
    }
    Ok(())
}

/// Documented fields that are read and do nothing.
fn without_effect(fields: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<(), ApiError> {
    if let Some(node) = fields.take("truncation")
        && node.one_of(&[("disabled", false), ("auto", true)])?
    {
        note(notes, "`truncation` has no effect here: an overflow is an error");
    }
    if let Some(node) = fields.take("max_tool_calls") {
        node.count(1, usize::MAX)?;
        note(notes, "`max_tool_calls` has no effect here: it bounds tools of the server");
    }
    if let Some(node) = fields.take("metadata") {
        node.object()?;
    }
    Ok(())
}

fn tools(
    fields: &mut Fields<'_>,
    notes: &mut Vec<String>,
    limits: &Limits,
) -> Result<Tools, ApiError> {
    let mut tools = Tools::default();
    let list = fields.take("tools").map(|node| node.array(limits.tools)).transpose()?;
    for node in list.into_iter().flatten() {
        let mut inner = node.object()?;
        let kind = inner.need("type")?.string()?;
        if kind != "namespace" {
            tool(&node, None, &mut tools, notes, limits)?;
            continue;
        }
        let name = inner.need("name")?;
        let space = name.string()?;
        if space.is_empty() {
            return Err(name.wrong("a name"));
        }
        let description = inner.take("description").map(|n| n.string().map(|_| n)).transpose()?;
        let space = Namespace { name: space, description };
        for node in inner.need("tools")?.array(limits.tools)? {
            tool(&node, Some(&space), &mut tools, notes, limits)?;
        }
    }
    tools.set.parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    Ok(tools)
}

fn tool(
    node: &Node<'_>,
    namespace: Option<&Namespace<'_>>,
    tools: &mut Tools,
    notes: &mut Vec<String>,
    limits: &Limits,
) -> Result<(), ApiError> {
    let mut inner = node.object()?;
    let kind = match inner.need("type")?.string()?.as_str() {
        "function" => ToolKind::Function,
        "custom" => ToolKind::Custom,
        other => {
            note(notes, left_out(node, other));
            return Ok(());
        }
    };
    let schema = if kind == ToolKind::Custom { "-" } else { "parameters" };
    let function = Declared::function(&mut inner, schema)?;
    if let Some(node) = inner.take("format").filter(|_| kind == ToolKind::Custom) {
        let mut format = node.object()?;
        if format.need("type")?.one_of(&[("text", false), ("grammar", true)])? {
            note(notes, format!("`{}` is not enforced: the input is free text", node.path()));
        }
    }
    tools.add(&Declared { kind, namespace: namespace.cloned(), ..function }, limits)
}

fn left_out(node: &Node<'_>, kind: &str) -> String {
    format!("`{}` is of the type `{}`, which is left out", node.path(), shortened(kind))
}

/// The text of what a tool returned: a string, or parts.
fn output_text(node: &Node<'_>) -> Result<String, ApiError> {
    match node.kind() {
        Kind::String | Kind::Array => Ok(content::text(Some(node.clone()))?.unwrap_or_default()),
        _ => Err(node.wrong("a string or an array of parts")),
    }
}
