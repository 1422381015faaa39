//! Texts of messages: strings, or parts.

use crate::ApiError;
use crate::json::{Fields, Kind, Node};

/// What stands between two text parts.
pub(super) const BETWEEN_PARTS: &str = "\n\n";

/// Parts of one message.
pub(super) const PARTS_MAX: usize = 10_000;

/// The text of a string or of parts, if there is a value.
pub(super) fn text(node: Option<Node<'_>>) -> Result<Option<String>, ApiError> {
    let Some(node) = node else { return Ok(None) };
    match node.kind() {
        Kind::String => node.string().map(Some),
        Kind::Array => {
            let parts: Result<Vec<String>, ApiError> =
                node.array(PARTS_MAX)?.iter().map(part).collect();
            Ok(Some(parts?.join(BETWEEN_PARTS)))
        }
        _ => Err(node.wrong("a string or an array of parts")),
    }
}

/// The text of a content that must be there.
pub(super) fn needed_text(fields: &mut Fields<'_>, name: &str) -> Result<String, ApiError> {
    let node = fields.take_any(name).ok_or_else(|| fields.missing(name))?;
    match text(Some(node.clone()).filter(|node| !node.is_null()))? {
        Some(text) => Ok(text),
        None => Err(node.wrong("a string or an array of parts")),
    }
}

fn part(node: &Node<'_>) -> Result<String, ApiError> {
    if node.kind() == Kind::String {
        return node.string();
    }
    let mut fields = node.object()?;
    let kind = fields.need("type")?;
    let name = kind.string()?;
    match name.as_str() {
        "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text" => {
            fields.need("text")?.string()
        }
        "refusal" => fields.need("refusal")?.string(),
        _ => Err(unreadable(&kind, &name)),
    }
}

/// The error for a part that has no text.
pub(super) fn unreadable(kind: &Node<'_>, name: &str) -> ApiError {
    let path = kind.path();
    let message = match name {
        "image" | "image_url" | "input_image" => {
            format!(
                "`{path}` is \"{name}\", but the model that is loaded reads no images; send text"
            )
        }
        "input_audio" | "audio" | "file" | "input_file" | "document" | "video" | "video_url" => {
            format!("`{path}` is \"{name}\"; only text is read: send its text as a text part")
        }
        _ => return kind.wrong("a type of text, as \"text\""),
    };
    ApiError::unsupported(path, message)
}
