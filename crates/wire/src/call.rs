//! What a request asks for, free of any protocol.

use ironstar_text::chat::{Conversation, Thinking};

/// The dialects that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/responses`.
    Responses,
    /// `POST /v1/messages`.
    Messages,
}

/// A checked request.
#[derive(Clone, Debug)]
pub struct Call {
    /// The dialect it came in, in which the answer goes out.
    pub protocol: Protocol,
    /// Name of the model as the client wrote it; empty where it named none.
    pub model: String,
    /// Whether the answer goes out as it is made.
    pub stream: bool,
    /// Whether a stream of chunks ends with one for the usage.
    pub include_usage: bool,
    /// What the model reads.
    pub prompt: Prompt,
    /// Whether it reasons first; `None` leaves it to the server.
    pub thinking: Option<Thinking>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Most tokens of the answer; `None` leaves it to the server.
    pub max_tokens: Option<usize>,
    /// Answers to each prompt.
    pub n: usize,
    /// Texts that end the answer where it is visible.
    pub stop: Vec<String>,
    /// Log probabilities of the tokens, each with so many of the likeliest ones.
    pub logprobs: Option<usize>,
    /// Whether the answer begins with the prompt (Completions).
    pub echo: bool,
    /// Form of the answer.
    pub format: Format,
    /// Tools that were offered.
    pub tools: ToolSet,
    /// Id of the answer that this request goes on from (Responses).
    pub previous: Option<String>,
    /// Whether the answer should be kept for later requests (Responses).
    pub store: bool,
    /// Whether the model goes on with the last message, which is its own.
    pub continue_last: bool,
    /// Fields of the request that the answer repeats, as JSON text (Responses).
    pub repeated: Vec<(&'static str, String)>,
    /// Whether Responses was asked for reasoning in a form that it can send back.
    pub encrypted_reasoning: bool,
    /// Fields that were ignored, one line for the log each.
    pub notes: Vec<String>,
}

impl Call {
    /// Answers that the request asks for: `n` to each prompt.
    #[must_use]
    pub fn choices(&self) -> usize {
        let prompts = match &self.prompt {
            Prompt::Conversation(_) => 1,
            Prompt::Plain(prompts) => prompts.len(),
        };
        prompts.saturating_mul(self.n)
    }
}

/// What the model reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Messages and tools; not [`Protocol::Completions`].
    Conversation(Conversation),
    /// Plain prompts, each answered for itself; [`Protocol::Completions`] only.
    Plain(Vec<PlainPrompt>),
}

/// A prompt without roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlainPrompt {
    /// Text, in which no control token is looked for.
    Text(String),
    /// Token ids; nobody has checked that they are in the vocabulary.
    Tokens(Vec<u32>),
}

/// How tokens are drawn; `None` leaves a setting to the server. Ranges are checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// 0 to 2; 0 takes the likeliest token.
    pub temperature: Option<f64>,
    /// 0 to 1.
    pub top_p: Option<f64>,
    /// 0 keeps all.
    pub top_k: Option<usize>,
    /// 0 to 1.
    pub min_p: Option<f64>,
    /// Seed of the draws.
    pub seed: Option<u64>,
    /// -2 to 2.
    pub presence_penalty: Option<f64>,
    /// -2 to 2.
    pub frequency_penalty: Option<f64>,
    /// Above 0, at most 10.
    pub repetition_penalty: Option<f64>,
    /// Token ids with what is added to their logits, -100 to 100; at most one entry a token.
    pub logit_bias: Option<Vec<(u32, f64)>>,
}

/// Form of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Any text.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON by a schema.
    JsonSchema {
        /// What the client calls it.
        name: String,
        /// The schema, as JSON text.
        schema: String,
        /// Whether what the schema says must hold; a schema that cannot be enforced is refused.
        strict: bool,
    },
}

/// Tools of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSet {
    /// Every tool that the model may call.
    pub tools: Vec<OfferedTool>,
    /// Whether it may, must or must not.
    pub choice: Choice,
    /// Whether one answer may have several calls.
    pub parallel: bool,
}

/// A tool, as the output side must know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedTool {
    /// Name that the model sees, one for the whole request.
    pub name: String,
    /// Namespace and name within it, where the client offered the tool so.
    pub namespace: Option<(String, String)>,
    /// What it does, as a JSON string; empty where nobody said.
    pub description: String,
    /// What its namespace is for, as a JSON string; empty where nobody said.
    pub namespace_description: String,
    /// Whether arguments must follow the schema.
    pub strict: bool,
    /// What the client calls it back with.
    pub kind: ToolKind,
    /// Schema of its arguments, as JSON text; empty where there is none.
    pub parameters: String,
}

/// How a tool takes its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolKind {
    /// A JSON object of arguments.
    Function,
    /// Free text; the model sees one string parameter called `input`.
    Custom,
}

/// Whether the model may call tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// It decides.
    #[default]
    Auto,
    /// It may not.
    None,
    /// It must.
    Required,
    /// It must call this one, by the name that the model sees.
    Named(String),
}

impl Default for ToolSet {
    fn default() -> Self {
        Self { tools: Vec::new(), choice: Choice::Auto, parallel: true }
    }
}

impl ToolSet {
    /// Whether text of the model is looked through for calls.
    #[must_use]
    pub fn callable(&self) -> bool {
        !self.tools.is_empty() && self.choice != Choice::None
    }

    /// The tool that the model knows by a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&OfferedTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}

/// Bounds on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the body.
    pub body_bytes: usize,
    /// Brackets that may be open at once in the body.
    pub depth: usize,
    /// Messages or input items.
    pub messages: usize,
    /// Tools, those in namespaces included.
    pub tools: usize,
    /// Stop strings.
    pub stop: usize,
    /// Answers to one prompt.
    pub n: usize,
    /// Prompts of one Completions request.
    pub prompts: usize,
    /// Likeliest tokens beside each token.
    pub top_logprobs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 64 << 20,
            depth: 256,
            messages: 10_000,
            tools: 1024,
            stop: 16,
            n: 16,
            prompts: 256,
            top_logprobs: 20,
        }
    }
}
