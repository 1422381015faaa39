//! Tools: what is offered, and whether the model may call.

use std::collections::HashSet;

use ironstar_text::chat::Tool;

use crate::json::{Fields, Kind, Node};
use crate::{ApiError, Choice, Limits, OfferedTool, ToolKind, ToolSet};

/// Characters of a tool's name.
const NAME_CHARS_MAX: usize = 256;

/// Schema of a tool that takes free text.
const FREE_TEXT: &str = concat!(
    r#"{"type": "object", "properties": {"input": {"type": "string"}}, "#,
    r#""required": ["input"], "additionalProperties": false}"#
);

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
    pub(super) namespace: Option<Namespace<'a>>,
    pub(super) description: Option<Node<'a>>,
    pub(super) parameters: Option<Node<'a>>,
    pub(super) strict: bool,
    pub(super) kind: ToolKind,
}

/// Where a tool was found.
#[derive(Clone)]
pub(super) struct Namespace<'a> {
    pub(super) name: String,
    pub(super) description: Option<Node<'a>>,
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
        let space = tool.namespace.as_ref();
        let name = space.map_or_else(|| local.clone(), |space| flattened(&space.name, &local));
        if !self.names.insert(name.clone()) {
            return Err(tool.name.wrong("a name that no other tool has"));
        }
        let parameters = match tool.kind {
            ToolKind::Custom => FREE_TEXT,
            ToolKind::Function => tool.parameters.as_ref().map_or("", Node::raw),
        };
        let raw = |node: Option<&Node<'_>>| node.map_or_else(String::new, |n| n.raw().to_owned());
        let offered = OfferedTool {
            name,
            namespace: space.map(|space| (space.name.clone(), local)),
            description: raw(tool.description.as_ref()),
            namespace_description: raw(space.and_then(|space| space.description.as_ref())),
            strict: tool.strict,
            kind: tool.kind,
            parameters: parameters.to_owned(),
        };
        let shown = shown(&offered.name, &offered.description, &offered.parameters);
        let wrong = |error| tool.name.wrong(&format!("a tool ({error})"));
        self.shown.push(Tool::from_json(&shown).map_err(wrong)?);
        self.set.tools.push(offered);
        Ok(())
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

/// A tool as a prompt shows it: the same text for the same tool, in every protocol. The
/// description and the schema are JSON, or empty.
pub(crate) fn shown(name: &str, description: &str, schema: &str) -> String {
    let mut json = format!("{{\"name\": {}", serde_json::Value::from(name));
    for (key, value) in [("description", description), ("parameters", schema)] {
        if !value.is_empty() {
            json.push_str(&format!(", \"{key}\": {value}"));
        }
    }
    json.push('}');
    json
}

/// The one name of a tool in a namespace.
pub(super) fn flattened(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}
