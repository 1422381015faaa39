//! Arguments of a call as JSON, written as they come.

use ironstar_text::JsonText;
use serde_json::value::RawValue;

use crate::OfferedTool;

/// JSON of one call, and how far it is.
#[derive(Clone, Debug)]
pub(super) struct Arguments {
    /// Types of parameters by name, where the schema says one.
    types: Vec<(String, ValueType)>,
    count: usize,
    /// A value whose kind is known only at its end.
    waiting: Option<Waiting>,
}

#[derive(Clone, Debug)]
struct Waiting {
    text: String,
    is_json: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueType {
    String,
    Other,
}

impl Arguments {
    pub(super) fn new(tool: Option<&OfferedTool>) -> Self {
        let types = tool.map(|tool| types(&tool.parameters)).unwrap_or_default();
        Self { types, count: 0, waiting: None }
    }

    /// Begins a parameter; `string` is what its tag says. Returns JSON to be sent.
    pub(super) fn begin(&mut self, name: &str, string: Option<bool>) -> String {
        let declared = self.types.iter().find(|(known, _)| known == name).map(|&(_, kind)| kind);
        let is_string = string.or((declared == Some(ValueType::String)).then_some(true));
        let open = if self.count == 0 { "{" } else { ", " };
        self.count += 1;
        let quote = if is_string == Some(true) { "\"" } else { "" };
        self.waiting = match is_string {
            Some(true) => None,
            other => Some(Waiting { text: String::new(), is_json: other.map(|string| !string) }),
        };
        format!("{open}{}: {quote}", quoted(name))
    }

    /// More of the value.
    pub(super) fn add(&mut self, text: &str) -> String {
        if let Some(waiting) = &mut self.waiting {
            waiting.text.push_str(text);
            return String::new();
        }
        let quoted = quoted(text);
        quoted[1..quoted.len() - 1].to_owned()
    }

    /// Ends the value.
    pub(super) fn end_value(&mut self) -> String {
        match self.waiting.take() {
            None => "\"".to_owned(),
            Some(waiting) => value(&waiting),
        }
    }

    /// Ends the object.
    pub(super) fn end(&self) -> &'static str {
        if self.count == 0 { "{}" } else { "}" }
    }
}

/// A value that was not marked as a string: JSON as it was written, number for number; what is no
/// JSON is a string.
fn value(waiting: &Waiting) -> String {
    let trimmed = waiting.text.trim();
    match serde_json::from_str::<&RawValue>(trimmed) {
        Ok(raw) => raw.get().to_owned(),
        Err(_) if waiting.is_json == Some(true) => quoted(trimmed),
        Err(_) => quoted(&waiting.text),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// What a schema says of its properties, as far as it names one type.
fn types(schema: &str) -> Vec<(String, ValueType)> {
    let entries = |json: JsonText| json.entries();
    let find = |all: Vec<(String, JsonText)>, wanted: &str| {
        all.into_iter().find(|(key, _)| key == wanted).map(|(_, value)| value)
    };
    let properties = JsonText::parse(schema)
        .ok()
        .and_then(entries)
        .and_then(|all| find(all, "properties"))
        .and_then(entries);
    let kind = |property: JsonText| {
        let name = find(property.entries()?, "type")?.as_string()?;
        Some(if name == "string" { ValueType::String } else { ValueType::Other })
    };
    properties
        .into_iter()
        .flatten()
        .filter_map(|(name, property)| Some((name, kind(property)?)))
        .collect()
}
