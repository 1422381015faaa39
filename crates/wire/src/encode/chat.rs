//! Chat Completions.

use super::answer::{Answer, Choice, custom_input};
use super::text::{array, logprobs, object, string};
use super::{Finish, Frame, Usage, answer_id};
use crate::{Output, TokenLogprobs};

/// What every chunk begins with.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    head: String,
}

impl Stream {
    pub(super) fn new(answer: &Answer) -> Self {
        Self { head: head(answer, "chat.completion.chunk") }
    }

    pub(super) fn start(&mut self, answer: &Answer) -> Vec<Frame> {
        let role = r#"{"role":"assistant","content":""}"#;
        (0..answer.choices.len())
            .map(|choice| self.chunk(answer, choice, role, &[], "null"))
            .collect()
    }

    pub(super) fn output(
        &mut self,
        answer: &Answer,
        choice: usize,
        output: &Output,
        tokens: &[TokenLogprobs],
    ) -> Vec<Frame> {
        let (delta, probabilities) = match output {
            Output::Reasoning(text) => (
                object(&[("reasoning_content", string(text))]),
                vec![("reasoning_content", tokens)],
            ),
            Output::Text(text) => (object(&[("content", string(text))]), vec![("content", tokens)]),
            Output::Logprobs { reasoning, token } => {
                let name = if *reasoning { "reasoning_content" } else { "content" };
                ("{}".to_owned(), vec![(name, std::slice::from_ref(token))])
            }
            Output::CallStart { index, id, name } if !answer.is_custom(name) => {
                let function = object(&[("name", string(name)), ("arguments", string(""))]);
                let call = [
                    ("index", index.to_string()),
                    ("id", string(id)),
                    ("type", string("function")),
                    ("function", function),
                ];
                (calls_delta(&call), vec![])
            }
            Output::CallArguments { index, json_fragment } => {
                if self.custom(answer, choice, *index).is_some() {
                    return Vec::new();
                }
                let function = object(&[("arguments", string(json_fragment))]);
                (calls_delta(&[("index", index.to_string()), ("function", function)]), vec![])
            }
            // Free text is known once the arguments around it are.
            Output::CallEnd { index } | Output::CallCut { index } => {
                let Some(members) = self.custom(answer, choice, *index) else { return Vec::new() };
                let mut call = vec![("index", index.to_string())];
                call.extend(members);
                (calls_delta(&call), vec![])
            }
            Output::CallStart { .. } => return Vec::new(),
        };
        vec![self.chunk(answer, choice, &delta, &probabilities, "null")]
    }

    /// The members of a call of a free-text tool.
    fn custom(
        &self,
        answer: &Answer,
        choice: usize,
        index: usize,
    ) -> Option<Vec<(&'static str, String)>> {
        let (call, _) = answer.choices[choice].calls().nth(index)?;
        answer.is_custom(&call.name).then(|| call_members(answer, call))
    }

    pub(super) fn finish(&mut self, answer: &Answer, choice: usize) -> Vec<Frame> {
        let reason = string(finish_reason(&answer.choices[choice]));
        vec![self.chunk(answer, choice, "{}", &[], &reason)]
    }

    pub(super) fn close(&mut self, answer: &Answer) -> Vec<Frame> {
        let mut frames = Vec::new();
        if answer.include_usage {
            let usage = usage(&answer.usage());
            frames.push(Frame::data(format!("{},\"choices\":[],\"usage\":{usage}}}", self.head)));
        }
        frames.push(Frame::data("[DONE]".to_owned()));
        frames
    }

    fn chunk(
        &self,
        answer: &Answer,
        choice: usize,
        delta: &str,
        tokens: &[(&str, &[TokenLogprobs])],
        finish_reason: &str,
    ) -> Frame {
        let told = answer.logprobs && tokens.iter().any(|(_, tokens)| !tokens.is_empty());
        let probabilities = if told { probabilities(tokens) } else { "null".to_owned() };
        let usage = if answer.include_usage { ",\"usage\":null" } else { "" };
        Frame::data(format!(
            "{},\"choices\":[{{\"index\":{choice},\"delta\":{delta},\"logprobs\":{probabilities},\
             \"finish_reason\":{finish_reason}}}]{usage}}}",
            self.head
        ))
    }
}

/// The members that all objects of an answer begin with; the brace stays open.
pub(super) fn head(answer: &Answer, kind: &str) -> String {
    let members = [
        ("id", string(&answer_id(answer))),
        ("object", string(kind)),
        ("created", answer.identity.created.to_string()),
        ("model", string(&answer.identity.model)),
        ("system_fingerprint", "null".to_owned()),
    ];
    let mut head = object(&members);
    head.pop();
    head
}

fn calls_delta(call: &[(&str, String)]) -> String {
    object(&[("tool_calls", array(&[object(call)]))])
}

fn probabilities(tokens: &[(&str, &[TokenLogprobs])]) -> String {
    let mut members: Vec<(&str, String)> =
        tokens.iter().map(|(name, tokens)| (*name, logprobs(tokens))).collect();
    if !members.iter().any(|(name, _)| *name == "content") {
        members.insert(0, ("content", "[]".to_owned()));
    }
    members.push(("refusal", "null".to_owned()));
    object(&members)
}

fn call_members(
    answer: &Answer,
    call: &ironstar_text::chat::ToolCall,
) -> Vec<(&'static str, String)> {
    let (kind, inner) = if answer.is_custom(&call.name) {
        let input = string(&custom_input(&call.arguments));
        ("custom", object(&[("name", string(&call.name)), ("input", input)]))
    } else {
        let arguments = string(&call.arguments);
        ("function", object(&[("name", string(&call.name)), ("arguments", arguments)]))
    };
    vec![("id", string(&call.id)), ("type", string(kind)), (kind, inner)]
}

pub(super) fn finish_reason(choice: &Choice) -> &'static str {
    match choice.ended() {
        Some(Finish::Length) => "length",
        Some(Finish::ToolCalls) => "tool_calls",
        Some(Finish::Stop | Finish::StopString(_)) | None => "stop",
    }
}

pub(super) fn usage(usage: &Usage) -> String {
    let cached = usage.cached.min(usage.prompt);
    object(&[
        ("prompt_tokens", usage.prompt.to_string()),
        ("completion_tokens", usage.completion.to_string()),
        ("total_tokens", (usage.prompt + usage.completion).to_string()),
        ("prompt_tokens_details", object(&[("cached_tokens", cached.to_string())])),
        ("completion_tokens_details", object(&[("reasoning_tokens", usage.reasoning.to_string())])),
        ("prompt_cache_hit_tokens", cached.to_string()),
        ("prompt_cache_miss_tokens", (usage.prompt - cached).to_string()),
    ])
}

pub(super) fn body(answer: &Answer) -> String {
    let choices: Vec<String> =
        (0..answer.choices.len()).map(|choice| whole_choice(answer, choice)).collect();
    format!(
        "{},\"choices\":{},\"usage\":{}}}",
        head(answer, "chat.completion"),
        array(&choices),
        usage(&answer.usage())
    )
}

fn whole_choice(answer: &Answer, index: usize) -> String {
    let choice = &answer.choices[index];
    let (text, reasoning) = (choice.text(), choice.reasoning());
    let calls: Vec<String> =
        choice.calls().map(|(call, _)| object(&call_members(answer, call))).collect();
    let content =
        if text.is_empty() && !calls.is_empty() { "null".to_owned() } else { string(&text) };
    let mut message =
        vec![("role", string("assistant")), ("content", content), ("refusal", "null".to_owned())];
    if !reasoning.is_empty() {
        message.push(("reasoning_content", string(&reasoning)));
    }
    if !calls.is_empty() {
        message.push(("tool_calls", array(&calls)));
    }
    let told = if answer.logprobs {
        let mut all = vec![("content", &*choice.tokens)];
        if !choice.thoughts.is_empty() {
            all.push(("reasoning_content", &*choice.thoughts));
        }
        probabilities(&all)
    } else {
        "null".to_owned()
    };
    object(&[
        ("index", index.to_string()),
        ("message", object(&message)),
        ("logprobs", told),
        ("finish_reason", string(finish_reason(choice))),
    ])
}
