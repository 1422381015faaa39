//! Messages, as Anthropic's clients speak.

use ironstar_text::chat::{Assistant, Message};

use super::sampling::{max_tokens, sampling, stop};
use super::thinking::Asked;
use super::tools::{Declared, Tools};
use super::turns::{Turns, call};
use super::{content, converse, empty, format, note, note_left};
use crate::json::{Fields, Kind, Node, shortened};
use crate::{ApiError, Call, Choice, Limits, Protocol};

pub(super) fn parse(mut fields: Fields<'_>, limits: &Limits) -> Result<Call, ApiError> {
    let mut call = empty(Protocol::Messages);
    call.model = fields.string("model")?.unwrap_or_default();
    call.stream = fields.bool("stream")?.unwrap_or(false);
    let mut asked = Asked::default();
    let thinking = fields.peek("thinking").filter(|node| node.kind() == Kind::Object);
    if thinking.is_some_and(|node| node.object().is_ok_and(|o| o.peek("budget_tokens").is_some())) {
        note(&mut call.notes, "`thinking.budget_tokens` has no effect here: use an effort");
    }
    asked.fields(&mut fields)?;
    if let Some(node) = fields.take("output_config") {
        let mut inner = node.object()?;
        if let Some(effort) = inner.take("effort") {
            asked.effort(&effort)?;
        }
        if let Some(node) = inner.take("format") {
            call.format = format::format(&node, None)?;
        }
    }
    if let Some(node) = fields.take("output_format") {
        call.format = format::format(&node, None)?;
    }
    call.thinking = asked.resolve(&call.model)?;
    call.sampling = sampling(&mut fields)?;
    call.max_tokens = max_tokens(&mut fields, &["max_tokens"], 1)?;
    call.stop = stop(fields.take("stop_sequences"), limits)?;
    let mut tools = tools(&mut fields, &mut call.notes, limits)?;
    choice(&mut fields, &mut tools)?;
    let mut turns = Turns::default();
    if let Some(text) = content::text(fields.take("system"))? {
        turns.push(Message::System(text));
    }
    let list = fields.need("messages")?;
    messages(&list, &mut turns, &mut call.notes, limits)?;
    call.continue_last =
        matches!(turns.messages.last(), Some(Message::Assistant(last)) if last.calls.is_empty());
    converse(&mut call, turns, tools);
    note_left(&fields, &mut call.notes);
    Ok(call)
}

/// Tools of the client. Those that a server would have to run are noted and left out.
fn tools(
    fields: &mut Fields<'_>,
    notes: &mut Vec<String>,
    limits: &Limits,
) -> Result<Tools, ApiError> {
    let mut tools = Tools::default();
    let list = fields.take("tools").map(|node| node.array(limits.tools)).transpose()?;
    for node in list.into_iter().flatten() {
        let mut inner = node.object()?;
        let kind = inner.string("type")?.unwrap_or_else(|| "custom".to_owned());
        if kind == "custom" || kind == "function" {
            tools.add(&Declared::function(&mut inner, "input_schema")?, limits)?;
        } else {
            note(notes, left_out(&node, &kind));
        }
    }
    Ok(tools)
}

fn choice(fields: &mut Fields<'_>, tools: &mut Tools) -> Result<(), ApiError> {
    let Some(node) = fields.take("tool_choice") else { return Ok(()) };
    let mut inner = node.object()?;
    let kind = inner.need("type")?.one_of(&[("auto", 0), ("none", 1), ("any", 2), ("tool", 3)])?;
    tools.set.choice = match kind {
        0 => Choice::Auto,
        1 => Choice::None,
        2 => Choice::Required,
        _ => Choice::Named(tools.named(&inner.need("name")?)?),
    };
    tools.set.parallel = !inner.bool("disable_parallel_tool_use")?.unwrap_or(false);
    tools.check_choice(node.path())
}

#[derive(Clone, Copy)]
enum Role {
    System,
    User,
    Assistant,
}

const ROLES: [(&str, Role); 4] = [
    ("user", Role::User),
    ("assistant", Role::Assistant),
    ("system", Role::System),
    ("developer", Role::System),
];

fn messages(
    list: &Node<'_>,
    turns: &mut Turns,
    notes: &mut Vec<String>,
    limits: &Limits,
) -> Result<(), ApiError> {
    let items = list.array(limits.messages)?;
    if items.is_empty() {
        return Err(list.wrong("at least one message (there are none)"));
    }
    for item in items {
        let mut fields = item.object()?;
        let role = fields.need("role")?.one_of(&ROLES)?;
        let content = fields.need("content")?;
        match role {
            Role::System => {
                let text = content::text(Some(content))?.unwrap_or_default();
                turns.push(Message::System(text));
            }
            Role::User if content.kind() == Kind::String => {
                turns.push(Message::User(content.string()?));
            }
            Role::User => user(&content, turns, notes)?,
            Role::Assistant => {
                let turn = assistant(&content, notes)?;
                turns.assistant(turn, false);
            }
        }
    }
    Ok(())
}

/// Results of tools and text, in order; a prompt joins neighbouring texts.
fn user(content: &Node<'_>, turns: &mut Turns, notes: &mut Vec<String>) -> Result<(), ApiError> {
    let blocks = content.array(content::PARTS_MAX)?;
    if blocks.is_empty() {
        return Err(content.wrong("at least one block (there are none)"));
    }
    for block in blocks {
        let mut fields = block.object()?;
        let kind = fields.need("type")?;
        match kind.string()?.as_str() {
            "text" => turns.push(Message::User(fields.need("text")?.string()?)),
            "tool_result" => {
                let id = fields.need("tool_use_id")?;
                turns.result(&id, result_text(&mut fields, notes)?)?;
            }
            "document" => turns.push(Message::User(document(&mut fields)?)),
            name if from_server(name) => note(notes, left_out(&block, name)),
            name => return Err(content::unreadable(&kind, name)),
        }
    }
    Ok(())
}

/// The text of a result: a string, or blocks of text and of references to tools.
fn result_text(fields: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<String, ApiError> {
    let Some(content) = fields.take("content") else { return Ok(String::new()) };
    if content.kind() == Kind::String {
        return content.string();
    }
    let mut texts = Vec::new();
    for block in content.array(content::PARTS_MAX)? {
        let mut fields = block.object()?;
        let kind = fields.need("type")?;
        match kind.string()?.as_str() {
            "text" => texts.push(fields.need("text")?.string()?),
            "document" => texts.push(document(&mut fields)?),
            name @ ("tool_reference" | "search_result") => note(notes, left_out(&block, name)),
            name => return Err(content::unreadable(&kind, name)),
        }
    }
    Ok(texts.join(content::BETWEEN_PARTS))
}

/// A document that is text.
fn document(fields: &mut Fields<'_>) -> Result<String, ApiError> {
    let mut source = fields.need("source")?.object()?;
    let kind = source.need("type")?;
    let text = match kind.string()?.as_str() {
        "text" => source.need("data")?.string()?,
        "content" => content::needed_text(&mut source, "content")?,
        _ => return Err(content::unreadable(&kind, "document")),
    };
    Ok(match fields.string("title")? {
        Some(title) => format!("{title}{}{text}", content::BETWEEN_PARTS),
        None => text,
    })
}

fn assistant(content: &Node<'_>, notes: &mut Vec<String>) -> Result<Assistant, ApiError> {
    if content.kind() == Kind::String {
        return Ok(Assistant { content: content.string()?, ..Assistant::default() });
    }
    let mut turn = Assistant::default();
    let (mut texts, mut thoughts) = (Vec::new(), Vec::new());
    for block in content.array(content::PARTS_MAX)? {
        let mut fields = block.object()?;
        let kind = fields.need("type")?;
        match kind.string()?.as_str() {
            "text" => texts.push(fields.need("text")?.string()?),
            "thinking" => thoughts.push(fields.need("thinking")?.string()?),
            "tool_use" => {
                let id = fields.need("id")?.string()?;
                let name = fields.need("name")?.string()?;
                turn.calls.push(call(id, name, fields.take("input").as_ref())?);
            }
            name if name == "redacted_thinking" || from_server(name) => {
                note(notes, left_out(&block, name));
            }
            name => return Err(content::unreadable(&kind, name)),
        }
    }
    turn.content = texts.join(content::BETWEEN_PARTS);
    if !thoughts.is_empty() {
        turn.reasoning = Some(thoughts.join(content::BETWEEN_PARTS));
    }
    Ok(turn)
}

/// Blocks of tools that Anthropic's own servers run.
fn from_server(name: &str) -> bool {
    matches!(
        name,
        "server_tool_use" | "container_upload" | "mcp_tool_use" | "mcp_tool_result" | "compaction"
    ) || (name.ends_with("_tool_result") && name != "tool_result")
}

fn left_out(block: &Node<'_>, name: &str) -> String {
    let name = shortened(name);
    format!("`{}` is of the type `{name}`, which is left out", block.path())
}
