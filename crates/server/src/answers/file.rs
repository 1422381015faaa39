//! One stored answer as a file: a line that says how long the rest is and what its checksum is,
//! then JSON. Nothing that is read is believed before both hold and the id is the wanted one.

use super::Answer;
use ironstar_text::chat::{Assistant, Message, ToolCall, ToolResult};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// What a file begins with; the number is the version of what follows.
const MAGIC: &str = "ironstar-answer 1";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    id: String,
    messages: Vec<Turn>,
    body: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "role")]
enum Turn {
    System { text: String },
    Developer { text: String },
    User { text: String },
    Reminder { text: String },
    Tool { call: String, text: String },
    Assistant { reasoning: Option<String>, text: String, calls: Vec<Call> },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

/// The bytes of a file.
pub(super) fn write(id: &str, answer: &Answer) -> Result<Vec<u8>, serde_json::Error> {
    let messages = answer.messages.iter().cloned().map(turn).collect();
    let file = File { id: id.to_owned(), messages, body: answer.body.clone() };
    let json = serde_json::to_vec(&file)?;
    let mut bytes = head(&json).into_bytes();
    bytes.extend_from_slice(&json);
    Ok(bytes)
}

/// The answer of a file, if it is whole and of this id.
pub(super) fn read(id: &str, bytes: &[u8]) -> Option<Answer> {
    let split = bytes.iter().take(MAGIC.len() + 64).position(|&byte| byte == b'\n')? + 1;
    let (line, json) = bytes.split_at(split);
    if head(json).as_bytes() != line {
        return None;
    }
    let File { id: named, messages, body } = serde_json::from_slice(json).ok()?;
    // The body goes out as it is, so it must be what it claims to be.
    serde_json::from_str::<IgnoredAny>(&body).ok()?;
    let messages = messages.into_iter().map(message).collect();
    (named == id).then_some(Answer { messages, body })
}

/// The first line of a file with this JSON.
fn head(json: &[u8]) -> String {
    format!("{MAGIC} {} {:08x}\n", json.len(), crc32fast::hash(json))
}

fn turn(message: Message) -> Turn {
    match message {
        Message::System(text) => Turn::System { text },
        Message::Developer(text) => Turn::Developer { text },
        Message::User(text) => Turn::User { text },
        Message::LatestReminder(text) => Turn::Reminder { text },
        Message::Tool(ToolResult { call_id, text }) => Turn::Tool { call: call_id, text },
        Message::Assistant(Assistant { reasoning, content, calls }) => {
            let call = |ToolCall { id, name, arguments }| Call { id, name, arguments };
            let calls = calls.into_iter().map(call).collect();
            Turn::Assistant { reasoning, text: content, calls }
        }
    }
}

fn message(turn: Turn) -> Message {
    match turn {
        Turn::System { text } => Message::System(text),
        Turn::Developer { text } => Message::Developer(text),
        Turn::User { text } => Message::User(text),
        Turn::Reminder { text } => Message::LatestReminder(text),
        Turn::Tool { call, text } => Message::Tool(ToolResult { call_id: call, text }),
        Turn::Assistant { reasoning, text, calls } => {
            let call = |Call { id, name, arguments }| ToolCall { id, name, arguments };
            let calls = calls.into_iter().map(call).collect();
            Message::Assistant(Assistant { reasoning, content: text, calls })
        }
    }
}
