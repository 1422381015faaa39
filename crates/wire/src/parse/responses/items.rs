//! Items of the input.

use ironstar_text::chat::{Assistant, Message, ToolCall};

use super::{left_out, output_text};
use crate::json::{Fields, Kind, Node};
use crate::parse::content;
use crate::parse::note;
use crate::parse::tools::flattened;
use crate::parse::turns::{Turns, call};
use crate::{ApiError, Limits};

#[derive(Clone, Copy)]
enum Role {
    System,
    User,
    Assistant,
}

const ROLES: [(&str, Role); 4] = [
    ("system", Role::System),
    ("developer", Role::System),
    ("user", Role::User),
    ("assistant", Role::Assistant),
];

/// Items of things that other servers do; they leave no trace in the prompt.
const LEFT_OUT: [&str; 14] = [
    "web_search_call",
    "file_search_call",
    "computer_call",
    "computer_call_output",
    "image_generation_call",
    "code_interpreter_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
    "compaction",
    "ghost_snapshot",
];

/// Reads a string, which is what the user said, or items.
pub(super) fn read(
    input: &Node<'_>,
    turns: &mut Turns,
    notes: &mut Vec<String>,
    limits: &Limits,
) -> Result<(), ApiError> {
    if input.kind() == Kind::String {
        turns.push(Message::User(input.string()?));
        return Ok(());
    }
    if input.kind() != Kind::Array {
        return Err(input.wrong("a string or an array of items"));
    }
    let items = input.array(limits.messages)?;
    if items.is_empty() && !turns.continued {
        return Err(input.wrong("at least one item (there are none)"));
    }
    items.iter().try_for_each(|node| item(node, turns, notes))
}

fn item(node: &Node<'_>, turns: &mut Turns, notes: &mut Vec<String>) -> Result<(), ApiError> {
    let mut fields = node.object()?;
    let kind = fields.take("type");
    let name = kind.as_ref().map_or(Ok("message".to_owned()), Node::string)?;
    if let Some(status) = fields.take("status") {
        status.one_of(&[("completed", ()), ("incomplete", ()), ("failed", ())])?;
    }
    match name.as_str() {
        "message" => message(&mut fields, turns)?,
        "reasoning" => {
            let reasoning = thoughts(&mut fields)?;
            if !reasoning.is_empty() {
                let turn = Assistant { reasoning: Some(reasoning), ..Assistant::default() };
                turns.assistant(turn, true);
            }
        }
        "function_call" => {
            let (id, name) = id_and_name(&mut fields)?;
            let call = call(id, name, fields.take("arguments").as_ref())?;
            called(call, turns);
        }
        "custom_tool_call" => {
            let (id, name) = id_and_name(&mut fields)?;
            let input = serde_json::json!({"input": fields.need("input")?.string()?});
            called(ToolCall { id, name, arguments: input.to_string() }, turns);
        }
        "local_shell_call" => {
            let id = fields.need("call_id")?.string()?;
            let call = call(id, "local_shell".to_owned(), Some(&fields.need("action")?))?;
            called(call, turns);
        }
        "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
            let id = match fields.take("call_id") {
                Some(id) => id,
                None => fields.need("id").map_err(|_| fields.missing("call_id"))?,
            };
            let text = output_text(&fields.need("output")?)?;
            turns.result(&id, text)?;
        }
        "item_reference" => {
            let path = node.path();
            let message = format!("`{path}` refers to an item; send the item itself");
            return Err(ApiError::unsupported(path, message));
        }
        other if LEFT_OUT.contains(&other) => {
            note(notes, left_out(node, other));
        }
        _ => {
            let wanted = "\"message\", \"reasoning\", \"function_call\", \"function_call_output\" \
                          or another type of item that this server knows";
            return Err(kind.as_ref().unwrap_or(node).wrong(wanted));
        }
    }
    Ok(())
}

fn message(fields: &mut Fields<'_>, turns: &mut Turns) -> Result<(), ApiError> {
    let role = fields.need("role")?.one_of(&ROLES)?;
    let text = content::needed_text(fields, "content")?;
    match role {
        Role::Assistant => {
            turns.assistant(Assistant { content: text, ..Assistant::default() }, true);
        }
        Role::System => turns.push(Message::System(text)),
        Role::User => turns.push(Message::User(text)),
    }
    Ok(())
}

fn called(call: ToolCall, turns: &mut Turns) {
    turns.assistant(Assistant { calls: vec![call], ..Assistant::default() }, true);
}

fn id_and_name(fields: &mut Fields<'_>) -> Result<(String, String), ApiError> {
    let id = fields.need("call_id")?.string()?;
    let name = fields.need("name")?.string()?;
    Ok(match fields.string("namespace")? {
        Some(space) if !space.is_empty() => (id, flattened(&space, &name)),
        _ => (id, name),
    })
}

/// The text of a reasoning item: its content, or its summary, which we make the same.
fn thoughts(fields: &mut Fields<'_>) -> Result<String, ApiError> {
    let content = content::text(fields.take("content"))?.filter(|text| !text.is_empty());
    let summary = content::text(fields.take("summary"))?;
    Ok(content.or(summary).unwrap_or_default())
}
