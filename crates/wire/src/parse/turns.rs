//! Messages of a conversation while they are collected.

use std::collections::HashSet;

use ironstar_text::chat::{Assistant, Message, ToolCall, ToolResult};

use super::content::BETWEEN_PARTS;
use crate::ApiError;
use crate::json::Node;

/// Messages so far, with the ids of calls that results may answer.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pub(super) messages: Vec<Message>,
    calls: HashSet<String>,
    /// Whether results may answer calls of an earlier request.
    pub(super) continued: bool,
}

impl Turns {
    pub(super) fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// A turn of the model, or more of the last one.
    pub(super) fn assistant(&mut self, turn: Assistant, joins: bool) {
        self.calls.extend(turn.calls.iter().map(|call| call.id.clone()));
        match self.messages.last_mut() {
            Some(Message::Assistant(last)) if joins => {
                if !last.content.is_empty() && !turn.content.is_empty() {
                    last.content.push_str(BETWEEN_PARTS);
                }
                last.content.push_str(&turn.content);
                last.calls.extend(turn.calls);
                if let Some(more) = turn.reasoning {
                    let reasoning = last.reasoning.get_or_insert_default();
                    if !reasoning.is_empty() && !more.is_empty() {
                        reasoning.push_str(BETWEEN_PARTS);
                    }
                    reasoning.push_str(&more);
                }
            }
            _ => self.messages.push(Message::Assistant(turn)),
        }
    }

    /// A result; its id must be that of a call before it.
    pub(super) fn result(&mut self, id: &Node<'_>, text: String) -> Result<(), ApiError> {
        let call_id = id.string()?;
        if !self.continued && !self.calls.contains(&call_id) {
            return Err(id.wrong("the id of a call in an earlier message"));
        }
        self.messages.push(Message::Tool(ToolResult { call_id, text }));
        Ok(())
    }
}

/// A call of history. Its arguments are JSON in a string, or the JSON itself.
pub(super) fn call(
    id: String,
    name: String,
    arguments: Option<&Node<'_>>,
) -> Result<ToolCall, ApiError> {
    let arguments = match arguments {
        None => "{}".to_owned(),
        Some(node) if node.kind() == crate::json::Kind::String => node.string()?,
        Some(node) => node.raw().to_owned(),
    };
    Ok(ToolCall { id, name, arguments })
}
