//! Conversations to prompts, in the formats of the DeepSeek V4 releases.
//!
//! There is no template file for these models; code is the reference. [`render`] follows what
//! DeepSeek's own package renders, release by release, with these rules of our own:
//!
//! - a `developer` message counts as a system message;
//! - reasoning that is missing, empty or only white space is the same thing, since clients send
//!   back all three for one and the same turn;
//! - the prompt always ends with an opening for the model, whatever the last message was;
//! - instructions without text count as absent;
//! - numbers in schemas and arguments keep their spelling;
//! - no message moves past a turn of the model.

mod dsml;
mod layout;
mod prompt;
mod texts;

pub use layout::{render, render_replaying};

use super::Error;
use super::json_text::{JsonText, parse_at};

/// Which published prompt format a model was trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// V4 of April 2026: one effort text, for [`Effort::Max`].
    #[default]
    April,
    /// V4 Flash 0731 and PRO 0813: effort texts for [`Effort::High`] and [`Effort::Max`].
    V0731,
    /// V4.1: system messages have a marker, efforts are numbers.
    V41,
}

/// Whether the model reasons before it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thinking {
    /// It answers at once.
    #[default]
    Off,
    /// It reasons first.
    On(Effort),
}

/// How much the model is asked to reason; what it means depends on the [`Release`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// Little.
    Low,
    /// What DeepSeek's service does when nothing is asked for.
    #[default]
    High,
    /// As much as it can; wants a context of 384 K tokens or more.
    Max,
}

/// A conversation, as a request describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Tools that the model may call.
    pub tools: Vec<Tool>,
    /// Whether it may, must or must not.
    pub tool_choice: ToolChoice,
    /// Form that the answer should have.
    pub response_format: ResponseFormat,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Instructions. V4 puts them all before the first turn, V4.1 leaves them in place.
    System(String),
    /// Instructions under another name.
    Developer(String),
    /// What the user said.
    User(String),
    /// What the model said.
    Assistant(Assistant),
    /// What a tool returned.
    Tool(ToolResult),
    /// Instructions that are given again, close to the end.
    LatestReminder(String),
}

/// A turn of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assistant {
    /// Its reasoning, if known.
    pub reasoning: Option<String>,
    /// Its answer.
    pub content: String,
    /// The tools it called.
    pub calls: Vec<ToolCall>,
}

/// A call of a tool by the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of this call, by which its result refers to it.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// JSON object of arguments, as text; any other text becomes one argument called `arguments`.
    pub arguments: String,
}

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolResult {
    /// Id of the call.
    pub call_id: String,
    /// What the tool returned.
    pub text: String,
}

/// A tool that is offered to the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    name: String,
    /// The whole function object.
    function: JsonText,
    description: Option<JsonText>,
    parameters: Option<JsonText>,
}

/// Whether the model may call tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// It decides.
    #[default]
    Auto,
    /// It is not told of any tool.
    None,
    /// Its answer begins with a call.
    Required,
}

/// Form that the answer should have, as far as the prompt asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResponseFormat {
    /// Any text.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON by a schema.
    JsonSchema(JsonText),
}

/// How a prompt is to be rendered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenderOptions {
    /// Format of the model.
    pub release: Release,
    /// Whether it reasons.
    pub thinking: Thinking,
    /// What the model is to write next.
    pub end: End,
}

/// What the model is to write after the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// The next answer.
    #[default]
    Answer,
    /// The rest of the last message, which must be the model's.
    ContinueLast,
    /// The result of one of the side tasks that the models know.
    Task(Task),
}

/// Side tasks of the models, each asked for by a control token of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Whether to search or to answer.
    Action,
    /// A search query.
    Query,
    /// Whether the source must have authority.
    Authority,
    /// The domain of the question.
    Domain,
    /// A title for the conversation.
    Title,
    /// Whether a URL in the text should be read.
    ReadUrl,
}

impl Tool {
    /// Reads a tool from JSON: a function object with a `name`, or an object that has one under
    /// `function`, as chat requests do.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        Self::from_text(parse_at(json, "tool")?)
    }

    /// The same from a value. Numbers are spelt as the value spells them; [`Tool::from_json`]
    /// keeps the spelling of the request.
    pub fn from_value(value: &serde_json::Value) -> Result<Self, Error> {
        Self::from_text(value.into())
    }

    /// Name of the tool.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn from_text(json: JsonText) -> Result<Self, Error> {
        let refused = |found: String| Error::Conversation {
            at: "tool".to_owned(),
            found,
            wanted: "wanted an object with the name, description and parameters of a function"
                .to_owned(),
        };
        let mut function = json;
        let mut entries = function.entries();
        if let Some((_, inner)) =
            entries.iter().flatten().find(|(key, value)| key == "function" && value.is_object())
        {
            function = inner.clone();
            entries = function.entries();
        }
        let entries =
            entries.ok_or_else(|| refused(format!("{} is no object", function.as_str())))?;
        let find = |wanted: &str| {
            entries.iter().find(|(key, _)| key == wanted).map(|(_, value)| value.clone())
        };
        let name = find("name").and_then(|name| name.as_string());
        let name = name.ok_or_else(|| refused("it has no name".to_owned()))?;
        let description = find("description");
        let parameters = find("parameters");
        Ok(Self { name, function, description, parameters })
    }
}
