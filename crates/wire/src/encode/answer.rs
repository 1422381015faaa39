//! An answer as far as it is known: what streams and whole bodies are made from.

use ironstar_text::chat::{Assistant, ToolCall};

use super::{Finish, Identity, Usage};
use crate::{Call, Output, Protocol, TokenLogprobs, ToolKind, ToolSet};

/// Everything that an answer says.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) protocol: Protocol,
    pub(super) identity: Identity,
    pub(super) include_usage: bool,
    pub(super) logprobs: bool,
    pub(super) tools: ToolSet,
    pub(super) repeated: Vec<(&'static str, String)>,
    pub(super) store: bool,
    pub(super) encrypted_reasoning: bool,
    pub(super) choices: Vec<Choice>,
}

/// One of the answers to a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    pub(super) parts: Vec<Part>,
    /// Tokens of the text.
    pub(super) tokens: Vec<TokenLogprobs>,
    /// Tokens of the reasoning.
    pub(super) thoughts: Vec<TokenLogprobs>,
    pub(super) finish: Option<Finish>,
    pub(super) usage: Usage,
}

/// A part of an answer, in order.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Reasoning(String),
    Text(String),
    Call { call: ToolCall, ended: bool },
}

impl Answer {
    pub(super) fn new(call: &Call, identity: Identity) -> Self {
        Self {
            protocol: call.protocol,
            identity,
            include_usage: call.include_usage,
            logprobs: call.logprobs.is_some(),
            tools: call.tools.clone(),
            repeated: call.repeated.clone(),
            store: call.store,
            encrypted_reasoning: call.encrypted_reasoning,
            choices: vec![Choice::default(); call.choices()],
        }
    }

    pub(super) fn add(&mut self, choice: usize, output: &Output) {
        let Some(choice) = self.choices.get_mut(choice) else { return };
        match output {
            Output::Reasoning(text) => match choice.parts.last_mut() {
                Some(Part::Reasoning(last)) => last.push_str(text),
                _ => choice.parts.push(Part::Reasoning(text.clone())),
            },
            Output::Text(text) => match choice.parts.last_mut() {
                Some(Part::Text(last)) => last.push_str(text),
                _ => choice.parts.push(Part::Text(text.clone())),
            },
            Output::CallStart { id, name, .. } => choice.parts.push(Part::Call {
                call: ToolCall { id: id.clone(), name: name.clone(), arguments: String::new() },
                ended: false,
            }),
            Output::CallArguments { json_fragment, .. } => {
                if let Some(Part::Call { call, .. }) = choice.parts.last_mut() {
                    call.arguments.push_str(json_fragment);
                }
            }
            Output::CallEnd { .. } => {
                if let Some(Part::Call { ended, .. }) = choice.parts.last_mut() {
                    *ended = true;
                }
            }
            Output::CallCut { .. } => {}
            Output::Logprobs { reasoning: false, token } => choice.tokens.push(token.clone()),
            Output::Logprobs { reasoning: true, token } => choice.thoughts.push(token.clone()),
        }
    }

    /// Whether a tool takes free text.
    pub(super) fn is_custom(&self, name: &str) -> bool {
        self.tools.find(name).is_some_and(|tool| tool.kind == ToolKind::Custom)
    }

    /// The tokens of all choices together.
    pub(super) fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        for usage in self.choices.iter().map(|choice| &choice.usage) {
            sum.prompt = sum.prompt.max(usage.prompt);
            sum.cached = sum.cached.max(usage.cached);
            sum.completion += usage.completion;
            sum.reasoning += usage.reasoning;
        }
        sum
    }
}

impl Choice {
    pub(super) fn text(&self) -> String {
        self.join(|part| if let Part::Text(text) = part { Some(text) } else { None })
    }

    pub(super) fn reasoning(&self) -> String {
        self.join(|part| if let Part::Reasoning(text) = part { Some(text) } else { None })
    }

    fn join(&self, pick: impl Fn(&Part) -> Option<&String>) -> String {
        self.parts.iter().filter_map(pick).map(String::as_str).collect()
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = (&ToolCall, bool)> {
        self.parts.iter().filter_map(|part| match part {
            Part::Call { call, ended } => Some((call, *ended)),
            _ => None,
        })
    }

    /// Why the answer ended, once it has: a whole call at the end is a reason of its own.
    pub(super) fn ended(&self) -> Option<Finish> {
        let called = self.calls().next().is_some() && self.calls().all(|(_, ended)| ended);
        match self.finish.clone()? {
            Finish::Stop if called => Some(Finish::ToolCalls),
            Finish::ToolCalls if !called => Some(Finish::Stop),
            finish => Some(finish),
        }
    }

    pub(super) fn assistant(&self) -> Assistant {
        let reasoning = Some(self.reasoning()).filter(|text| !text.is_empty());
        let calls = self.calls().map(|(call, _)| call.clone()).collect();
        Assistant { reasoning, content: self.text(), calls }
    }
}

/// The text that a free-text tool is given.
pub(super) fn custom_input(arguments: &str) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_str(arguments).ok();
    let input = parsed.as_ref().and_then(|value| value.get("input")?.as_str());
    input.unwrap_or(arguments).to_owned()
}
