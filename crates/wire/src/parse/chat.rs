//! Chat Completions.

use std::collections::HashSet;

use ironstar_text::chat::{Assistant, Message};

use super::sampling::{max_tokens, sampling, stop};
use super::thinking::Asked;
use super::tools::{Declared, Tools};
use super::turns::{Turns, call};
use super::{content, converse, empty, format, note, note_left, refuse};
use crate::json::{Fields, Kind, Node, shortened};
use crate::{ApiError, Call, Choice, Limits, Protocol, ToolKind};

/// Forms of answers that a request may list.
const ALLOWED_MAX: usize = 16;

pub(super) fn parse(mut fields: Fields<'_>, limits: &Limits) -> Result<Call, ApiError> {
    let mut call = empty(Protocol::Chat);
    call.model = fields.string("model")?.unwrap_or_default();
    stream(&mut fields, &mut call)?;
    let mut asked = Asked::default();
    asked.fields(&mut fields)?;
    openrouter_reasoning(&mut fields, &mut asked)?;
    call.thinking = asked.resolve(&call.model)?;
    call.sampling = sampling(&mut fields)?;
    call.max_tokens = max_tokens(&mut fields, &["max_completion_tokens", "max_tokens"], 1)?;
    call.stop = stop(fields.take("stop"), limits)?;
    call.n = fields.take("n").map_or(Ok(1), |node| node.count(1, limits.n))?;
    call.logprobs = logprobs(&mut fields, limits)?;
    if let Some(node) = fields.take("response_format") {
        call.format = format::format(&node, Some("json_schema"))?;
    }
    let mut tools = tools(&mut fields, &mut call.notes, limits)?;
    choice(&mut fields, &mut tools)?;
    refuse(&mut fields, "functions", "use `tools`")?;
    refuse(&mut fields, "function_call", "use `tool_choice`")?;
    refuse(&mut fields, "audio", "answers are text")?;
    refuse(&mut fields, "web_search_options", "this server searches nothing")?;
    if let Some(node) = fields.take("modalities") {
        node.array(ALLOWED_MAX)?.iter().try_for_each(|item| item.one_of(&[("text", ())]))?;
    }
    let mut turns = Turns::default();
    let list = fields.need("messages")?;
    call.continue_last = messages(&list, &mut turns, limits)?;
    converse(&mut call, turns, tools);
    if fields.bool("store")? == Some(true) {
        note(&mut call.notes, "field `store` has no effect here: chat completions are not kept");
    }
    note_left(&fields, &mut call.notes);
    Ok(call)
}

pub(super) fn stream(fields: &mut Fields<'_>, call: &mut Call) -> Result<(), ApiError> {
    call.stream = fields.bool("stream")?.unwrap_or(false);
    if let Some(node) = fields.take("stream_options") {
        call.include_usage = node.object()?.bool("include_usage")?.unwrap_or(false);
    }
    Ok(())
}

/// `reasoning: {effort, enabled, exclude}`, as a router sends it.
fn openrouter_reasoning(fields: &mut Fields<'_>, asked: &mut Asked) -> Result<(), ApiError> {
    let Some(node) = fields.take("reasoning") else { return Ok(()) };
    let mut inner = node.object()?;
    if let Some(effort) = inner.take("effort") {
        asked.effort(&effort)?;
    }
    if let Some(on) = inner.bool("enabled")? {
        asked.switch(on);
    }
    refuse(&mut inner, "exclude", "reasoning is sent apart, as `reasoning_content`; drop it there")
}

/// `logprobs` switches on, `top_logprobs` says how many.
fn logprobs(fields: &mut Fields<'_>, limits: &Limits) -> Result<Option<usize>, ApiError> {
    let on = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.take("top_logprobs");
    let count = top.as_ref().map(|node| node.count(0, limits.top_logprobs)).transpose()?;
    match (on, top, count) {
        (false, Some(node), Some(1..)) => {
            Err(node.wrong("it beside `logprobs`: true, or not at all"))
        }
        (false, ..) => Ok(None),
        (true, _, count) => Ok(Some(count.unwrap_or(0))),
    }
}

fn tools(
    fields: &mut Fields<'_>,
    notes: &mut Vec<String>,
    limits: &Limits,
) -> Result<Tools, ApiError> {
    let mut tools = Tools::default();
    let list = fields.take("tools").map(|node| node.array(limits.tools)).transpose()?;
    for node in list.into_iter().flatten() {
        let mut outer = node.object()?;
        let kind = outer.string("type")?.unwrap_or_else(|| "function".to_owned());
        match kind.as_str() {
            "function" => {
                // Some clients leave the wrapper out.
                let tool = match outer.take("function") {
                    Some(inner) => Declared::function(&mut inner.object()?, "parameters")?,
                    None => Declared::function(&mut outer, "parameters")?,
                };
                tools.add(&tool, limits)?;
            }
            "custom" => {
                let mut inner = outer.need("custom")?.object()?;
                let function = Declared::function(&mut inner, "-")?;
                if let Some(node) = inner.take("format") {
                    node.object()?.need("type")?.one_of(&[("text", ())])?;
                }
                tools.add(&Declared { kind: ToolKind::Custom, ..function }, limits)?;
            }
            other => {
                let other = shortened(other);
                note(notes, format!("`{}` is of the unknown type `{other}`", node.path()));
            }
        }
    }
    tools.set.parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    Ok(tools)
}

/// A word, a tool, or tools among which the model may choose.
pub(super) fn choice(fields: &mut Fields<'_>, tools: &mut Tools) -> Result<(), ApiError> {
    let Some(node) = fields.take("tool_choice") else { return Ok(()) };
    if node.kind() == Kind::String {
        let word = node.one_of(&[("auto", 0), ("none", 1), ("required", 2), ("any", 2)])?;
        tools.set.choice = [Choice::Auto, Choice::None, Choice::Required][word].clone();
        return tools.check_choice(node.path());
    }
    let mut object = node.object()?;
    let kinds = [("function", 0), ("custom", 0), ("tool", 0), ("allowed_tools", 1)];
    if object.need("type")?.one_of(&kinds)? == 0 {
        tools.set.choice = Choice::Named(tools.named(&choice_name(&mut object)?)?);
        return Ok(());
    }
    let mut inner = match object.take("allowed_tools") {
        Some(inner) => inner.object()?,
        None => object,
    };
    let mode = inner.take("mode").map_or(Ok(0), |m| m.one_of(&[("auto", 0), ("required", 1)]))?;
    let mut names = HashSet::new();
    for tool in inner.need("tools")?.array(tools.set.tools.len())? {
        names.insert(tools.named(&choice_name(&mut tool.object()?)?)?);
    }
    tools.allow(&names);
    tools.set.choice = [Choice::Auto, Choice::Required][mode].clone();
    tools.check_choice(node.path())
}

/// The name of a chosen tool, wherever it stands.
fn choice_name<'a>(object: &mut Fields<'a>) -> Result<Node<'a>, ApiError> {
    for wrapper in ["function", "custom"] {
        if let Some(inner) = object.take(wrapper) {
            return inner.object()?.need("name");
        }
    }
    object.need("name")
}

#[derive(Clone, Copy)]
enum Role {
    System,
    User,
    Assistant,
    Tool,
    Reminder,
}

const ROLES: [(&str, Role); 6] = [
    ("system", Role::System),
    ("developer", Role::System),
    ("user", Role::User),
    ("assistant", Role::Assistant),
    ("tool", Role::Tool),
    ("latest_reminder", Role::Reminder),
];

/// Reads all messages; says whether the last is to be continued.
fn messages(list: &Node<'_>, turns: &mut Turns, limits: &Limits) -> Result<bool, ApiError> {
    let items = list.array(limits.messages)?;
    if items.is_empty() {
        return Err(list.wrong("at least one message (there are none)"));
    }
    let mut continued = false;
    for (at, item) in items.iter().enumerate() {
        let mut fields = item.object()?;
        match fields.need("role")?.one_of(&ROLES)? {
            Role::System => {
                turns.push(Message::System(content::needed_text(&mut fields, "content")?))
            }
            Role::User => turns.push(Message::User(content::needed_text(&mut fields, "content")?)),
            Role::Reminder => {
                turns.push(Message::LatestReminder(content::needed_text(&mut fields, "content")?));
            }
            Role::Tool => {
                let id = fields.need("tool_call_id")?;
                turns.result(&id, content::text(fields.take("content"))?.unwrap_or_default())?;
            }
            Role::Assistant => {
                let prefix = fields.take("prefix").filter(|node| node.raw() != "false");
                if let Some(node) = prefix {
                    node.bool()?;
                    if at + 1 < items.len() {
                        return Err(node.wrong("it in the last message only"));
                    }
                    continued = true;
                }
                let turn = assistant(&mut fields)?;
                turns.assistant(turn, false);
            }
        }
    }
    Ok(continued)
}

/// Null, empty and absent content are the same beside calls, and a turn of nothing is one too.
fn assistant(fields: &mut Fields<'_>) -> Result<Assistant, ApiError> {
    refuse(fields, "function_call", "use `tool_calls`")?;
    refuse(fields, "audio", "only text is read")?;
    let content = content::text(fields.take("content"))?;
    let refusal = fields.string("refusal")?;
    let mut reasoning = None;
    for name in ["reasoning_content", "reasoning"] {
        let node = fields.take(name).filter(|_| reasoning.is_none());
        reasoning = reasoning.or(content::text(node)?);
    }
    let mut calls = Vec::new();
    let list = fields.take("tool_calls").map(|node| node.array(content::PARTS_MAX)).transpose()?;
    for node in list.into_iter().flatten() {
        calls.push(tool_call(&node)?);
    }
    let content = content.or(refusal).unwrap_or_default();
    Ok(Assistant { reasoning, content, calls })
}

fn tool_call(node: &Node<'_>) -> Result<ironstar_text::chat::ToolCall, ApiError> {
    let mut fields = node.object()?;
    let id = fields.need("id")?.string()?;
    if let Some(custom) = fields.take("custom") {
        let mut custom = custom.object()?;
        let name = custom.need("name")?.string()?;
        let input = serde_json::json!({"input": custom.need("input")?.string()?});
        return Ok(ironstar_text::chat::ToolCall { id, name, arguments: input.to_string() });
    }
    let mut function = fields.need("function")?.object()?;
    let name = function.need("name")?.string()?;
    call(id, name, function.take("arguments").as_ref())
}
