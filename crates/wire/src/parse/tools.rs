//! Tools: what is offered, and whether the model may call.

use std::collections::HashSet;

use ironstar_text::chat::Tool;

use crate::json::{Fields, Kind, Node};
use crate::{ApiError, Choice, Limits, OfferedTool, ToolKind, ToolSet};

/// Characters of a tool's name.
const NAME_CHARS_MAX: usize = 256;

/// Schema of a tool that takes free text.
const FREE_TEXT: &str = r#"{"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], "additionalProperties": false}"#;

/// Tools while they are read.
#[derive(Debug, Default)]
pub(super) struct Tools {
    pub(super) set: ToolSet,
    /// The same tools as the prompt shows them.
    pub(super) shown: Vec<Tool>,
    names: HashSet<String>,
}

/// One tool, from whatever protocol.
pub(super) struct Declared<'a> {
    pub(super) name: Node<'a>,
    pub(super) namespace: Option<&'a str>,
    pub(super) description: Option<Node<'a>>,
    pub(super) parameters: Option<Node<'a>>,
    pub(super) strict: bool,
    pub(super) kind: ToolKind,
}

impl<'a> Declared<'a> {
    /// Reads the members of a function; `schema` is what its parameters are called.
    pub(super) fn function(fields: &mut Fields<'a>, schema: &str) -> Result<Self, ApiError> {
        let parameters = fields.take(schema);
        if let Some(node) = parameters.as_ref().filter(|node| node.kind() != Kind::Object) {
            return Err(node.wrong("a JSON schema, which is an object"));
        }
        let description = fields.take("description");
        if let Some(node) = &description {
            node.string()?;
        }
        Ok(Self {
            name: fields.need("name")?,
            namespace: None,
            description,
            parameters,
            strict: fields.bool("strict")?.unwrap_or(false),
            kind: ToolKind::Function,
        })
    }
}

impl Tools {
    pub(super) fn add(&mut self, tool: &Declared<'_>, limits: &Limits) -> Result<(), ApiError> {
        if self.set.tools.len() >= limits.tools {
            return Err(tool.name.wrong(&format!("at most {} tools", limits.tools)));
        }
        let local = tool.name.string()?;
        let plain = |c: char| c.is_alphanumeric() || "_-.:/".contains(c);
        if local.is_empty() || !local.chars().take(NAME_CHARS_MAX + 1).all(plain) {
            return Err(tool.name.wrong("letters, digits, _ or -"));
        }
        if local.chars().count() > NAME_CHARS_MAX {
            return Err(tool.name.wrong(&format!("at most {NAME_CHARS_MAX} characters")));
        }
        let name = tool.namespace.map_or_else(|| local.clone(), |space| flattened(space, &local));
        if !self.names.insert(name.clone()) {
            return Err(tool.name.wrong("a name that no other tool has"));
        }
        let parameters = match tool.kind {
            ToolKind::Custom => FREE_TEXT,
            ToolKind::Function => tool.parameters.as_ref().map_or("", Node::raw),
        };
        self.shown.push(self.shown_tool(&name, tool, parameters)?);
        self.set.tools.push(OfferedTool {
            name,
            namespace: tool.namespace.map(|space| (space.to_owned(), local)),
            strict: tool.strict,
            kind: tool.kind,
            parameters: parameters.to_owned(),
        });
        Ok(())
    }

    /// The tool as the prompt shows it: the same text for the same tool, in every protocol.
    fn shown_tool(&self, name: &str, tool: &Declared<'_>, schema: &str) -> Result<Tool, ApiError> {
        let mut json = format!("{{\"name\": {}", serde_json::Value::from(name));
        if let Some(description) = &tool.description {
            json.push_str(", \"description\": ");
            json.push_str(description.raw());
        }
        if !schema.is_empty() {
            json.push_str(", \"parameters\": ");
            json.push_str(schema);
        }
        json.push('}');
        Tool::from_json(&json).map_err(|error| tool.name.wrong(&format!("a tool ({error})")))
    }

    /// Keeps the tools of these names only.
    pub(super) fn allow(&mut self, names: &HashSet<String>) {
        self.set.tools.retain(|tool| names.contains(&tool.name));
        self.shown.retain(|tool| names.contains(tool.name()));
    }

    /// The tool that a choice names: by its own name, or by that within its namespace.
    pub(super) fn named(&self, node: &Node<'_>) -> Result<String, ApiError> {
        let name = node.string()?;
        let by_local =
            |tool: &&OfferedTool| tool.namespace.as_ref().is_some_and(|(_, local)| *local == name);
        let tools = &self.set.tools;
        let found = self.set.find(&name).or_else(|| tools.iter().find(by_local));
        found
            .map(|tool| tool.name.clone())
            .ok_or_else(|| node.wrong("the name of a tool of `tools`"))
    }

    /// Checks that a choice can be followed.
    pub(super) fn check_choice(&self, path: &str) -> Result<(), ApiError> {
        match &self.set.choice {
            Choice::Required | Choice::Named(_) if self.set.tools.is_empty() => {
                let message = format!("`{path}` asks for a call, but `tools` offers no tool");
                Err(ApiError::invalid(path, message))
            }
            _ => Ok(()),
        }
    }
}

/// The one name of a tool in a namespace.
pub(super) fn flattened(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}
