//! Responses.

use super::answer::{Answer, Part, custom_input};
use super::text::{array, logprobs, object, string};
use super::{Finish, Frame, Usage, answer_id};
use crate::{ApiError, Output, TokenLogprobs};

/// Number of the next event, and the item that is open.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    sequence: u64,
    /// Number of the open item, or of the next.
    index: usize,
    open: bool,
    /// Tokens of the open message.
    tokens: Vec<TokenLogprobs>,
}

impl Stream {
    pub(super) fn start(&mut self, answer: &Answer) -> Vec<Frame> {
        let created = self.with_response("response.created", answer);
        vec![created, self.in_progress(answer)]
    }

    pub(super) fn in_progress(&mut self, answer: &Answer) -> Frame {
        self.with_response("response.in_progress", answer)
    }

    pub(super) fn output(
        &mut self,
        answer: &Answer,
        output: &Output,
        tokens: &[TokenLogprobs],
    ) -> Vec<Frame> {
        let mut frames = Vec::new();
        match output {
            Output::Reasoning(text) => {
                self.enter(answer, &mut frames);
                let delta = [("summary_index", "0".to_owned()), ("delta", string(text))];
                frames.push(self.of_item("response.reasoning_summary_text.delta", answer, &delta));
            }
            Output::Text(text) => {
                self.enter(answer, &mut frames);
                let told = if answer.logprobs { tokens } else { &[] };
                self.tokens.extend(told.iter().cloned());
                let delta = [
                    ("content_index", "0".to_owned()),
                    ("delta", string(text)),
                    ("logprobs", logprobs(told)),
                ];
                frames.push(self.of_item("response.output_text.delta", answer, &delta));
            }
            Output::CallStart { .. } => self.enter(answer, &mut frames),
            Output::CallArguments { json_fragment, .. } => {
                let custom = matches!(self.part(answer),
                    Some(Part::Call { call, .. }) if answer.is_custom(&call.name));
                if self.open && !custom {
                    let delta = [("delta", string(json_fragment))];
                    let name = "response.function_call_arguments.delta";
                    frames.push(self.of_item(name, answer, &delta));
                }
            }
            Output::CallEnd { .. } | Output::CallCut { .. } => self.leave(answer, &mut frames),
            Output::Logprobs { reasoning: false, token } if answer.logprobs => {
                self.tokens.push(token.clone());
            }
            Output::Logprobs { .. } => {}
        }
        frames
    }

    /// Ends the stream: as the answer ended, or with an error.
    pub(super) fn close(&mut self, answer: &Answer, error: Option<&ApiError>) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.leave(answer, &mut frames);
        let name = match status(answer, error) {
            "failed" => "response.failed",
            "incomplete" => "response.incomplete",
            _ => "response.completed",
        };
        let whole = response(answer, error);
        frames.push(self.event(name, &[("response", whole)]));
        frames
    }

    /// The part that belongs to the open item.
    fn part<'a>(&self, answer: &'a Answer) -> Option<&'a Part> {
        answer.choices.first()?.parts.get(self.index)
    }

    /// Opens an item for the last part of the answer, unless it is open.
    fn enter(&mut self, answer: &Answer, frames: &mut Vec<Frame>) {
        let last = answer.choices.first().map_or(0, |choice| choice.parts.len().saturating_sub(1));
        if self.open && self.index == last {
            return;
        }
        self.leave(answer, frames);
        self.index = last;
        self.open = true;
        let Some(part) = self.part(answer) else { return };
        let item = item(answer, self.index, part, Stage::Begun, &[]);
        let index = ("output_index", self.index.to_string());
        frames.push(self.event("response.output_item.added", &[index, ("item", item)]));
        match part {
            Part::Reasoning(_) => {
                let members = [("summary_index", "0".to_owned()), ("part", summary(""))];
                frames.push(self.of_item(
                    "response.reasoning_summary_part.added",
                    answer,
                    &members,
                ));
            }
            Part::Text(_) => {
                let members = [("content_index", "0".to_owned()), ("part", output_text("", &[]))];
                frames.push(self.of_item("response.content_part.added", answer, &members));
            }
            Part::Call { .. } => {}
        }
    }

    /// Ends the open item: the events that say all of it again.
    fn leave(&mut self, answer: &Answer, frames: &mut Vec<Frame>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let tokens = std::mem::take(&mut self.tokens);
        let Some(part) = self.part(answer) else { return };
        match part {
            Part::Reasoning(text) => {
                let at = ("summary_index", "0".to_owned());
                let done = [at.clone(), ("text", string(text))];
                frames.push(self.of_item("response.reasoning_summary_text.done", answer, &done));
                let done = [at, ("part", summary(text))];
                frames.push(self.of_item("response.reasoning_summary_part.done", answer, &done));
            }
            Part::Text(text) => {
                let at = ("content_index", "0".to_owned());
                let done = [at.clone(), ("text", string(text)), ("logprobs", logprobs(&tokens))];
                frames.push(self.of_item("response.output_text.done", answer, &done));
                let done = [at, ("part", output_text(text, &tokens))];
                frames.push(self.of_item("response.content_part.done", answer, &done));
            }
            Part::Call { call, .. } if answer.is_custom(&call.name) => {
                let input = string(&custom_input(&call.arguments));
                let delta = [("delta", input.clone())];
                frames.push(self.of_item("response.custom_tool_call_input.delta", answer, &delta));
                let done = [("input", input)];
                frames.push(self.of_item("response.custom_tool_call_input.done", answer, &done));
            }
            Part::Call { call, .. } => {
                let done = [("name", string(&call.name)), ("arguments", string(&call.arguments))];
                frames.push(self.of_item("response.function_call_arguments.done", answer, &done));
            }
        }
        let item = item(answer, self.index, part, Stage::Done, &tokens);
        let index = ("output_index", self.index.to_string());
        frames.push(self.event("response.output_item.done", &[index, ("item", item)]));
    }

    /// An event about the open item.
    fn of_item(&mut self, name: &'static str, answer: &Answer, more: &[(&str, String)]) -> Frame {
        let id = self.part(answer).map(|part| item_id(answer, self.index, part));
        let mut members = vec![
            ("item_id", string(&id.unwrap_or_default())),
            ("output_index", self.index.to_string()),
        ];
        members.extend(more.iter().cloned());
        self.event(name, &members)
    }

    fn with_response(&mut self, name: &'static str, answer: &Answer) -> Frame {
        self.event(name, &[("response", response_with(answer, &[], "in_progress", None))])
    }

    fn event(&mut self, name: &'static str, members: &[(&str, String)]) -> Frame {
        let mut all = vec![("type", string(name)), ("sequence_number", self.sequence.to_string())];
        all.extend(members.iter().cloned());
        self.sequence += 1;
        Frame { event: Some(name), data: object(&all) }
    }
}

/// How far an item is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begun,
    Done,
}

fn item_id(answer: &Answer, index: usize, part: &Part) -> String {
    let prefix = match part {
        Part::Reasoning(_) => "rs",
        Part::Text(_) => "msg",
        Part::Call { call, .. } if answer.is_custom(&call.name) => "ctc",
        Part::Call { .. } => "fc",
    };
    format!("{prefix}_{}_{index}", answer.identity.id)
}

fn summary(text: &str) -> String {
    object(&[("type", string("summary_text")), ("text", string(text))])
}

fn output_text(text: &str, tokens: &[TokenLogprobs]) -> String {
    object(&[
        ("type", string("output_text")),
        ("text", string(text)),
        ("annotations", "[]".to_owned()),
        ("logprobs", logprobs(tokens)),
    ])
}

fn item(
    answer: &Answer,
    index: usize,
    part: &Part,
    stage: Stage,
    tokens: &[TokenLogprobs],
) -> String {
    let cut = matches!(part, Part::Call { ended: false, .. });
    let status = match stage {
        Stage::Begun => "in_progress",
        Stage::Done if cut => "incomplete",
        Stage::Done => "completed",
    };
    let id = ("id", string(&item_id(answer, index, part)));
    let status = ("status", string(status));
    let said = |json: String| if stage == Stage::Begun { Vec::new() } else { vec![json] };
    match part {
        Part::Reasoning(text) => {
            let mut members =
                vec![id, ("type", string("reasoning")), ("summary", array(&said(summary(text))))];
            if answer.encrypted_reasoning {
                // A client that asks for this sends back only items that have it; the summary has
                // all of the reasoning.
                let token = format!("ironstar-{}-{index}", answer.identity.id);
                members.push(("encrypted_content", string(&token)));
            }
            object(&members)
        }
        Part::Text(text) => object(&[
            id,
            ("type", string("message")),
            status,
            ("role", string("assistant")),
            ("content", array(&said(output_text(text, tokens)))),
        ]),
        Part::Call { call, .. } => {
            let custom = answer.is_custom(&call.name);
            let kind = if custom { "custom_tool_call" } else { "function_call" };
            let tool = answer.tools.find(&call.name);
            let split = tool.and_then(|tool| tool.namespace.as_ref());
            let local = split.map_or(&call.name, |(_, local)| local);
            let mut members = vec![
                id,
                ("type", string(kind)),
                status,
                ("call_id", string(&call.id)),
                ("name", string(local)),
            ];
            members.extend(split.map(|(space, _)| ("namespace", string(space))));
            let begun = stage == Stage::Begun;
            let arguments = if begun { "" } else { &call.arguments };
            members.push(match custom {
                true if begun => ("input", string("")),
                true => ("input", string(&custom_input(arguments))),
                false => ("arguments", string(arguments)),
            });
            object(&members)
        }
    }
}

fn status(answer: &Answer, error: Option<&ApiError>) -> &'static str {
    match (error, answer.choices.first().and_then(|choice| choice.finish.as_ref())) {
        (Some(_), _) => "failed",
        (None, None) => "in_progress",
        (None, Some(Finish::Length)) => "incomplete",
        (None, Some(_)) => "completed",
    }
}

fn usage(usage: &Usage) -> String {
    let cached = usage.cached.min(usage.prompt).to_string();
    object(&[
        ("input_tokens", usage.prompt.to_string()),
        ("input_tokens_details", object(&[("cached_tokens", cached)])),
        ("output_tokens", usage.completion.to_string()),
        ("output_tokens_details", object(&[("reasoning_tokens", usage.reasoning.to_string())])),
        ("total_tokens", (usage.prompt + usage.completion).to_string()),
    ])
}

/// The response object at the end.
fn response(answer: &Answer, error: Option<&ApiError>) -> String {
    let parts = answer.choices.first().map(|choice| &choice.parts[..]).unwrap_or_default();
    response_with(answer, parts, status(answer, error), error)
}

/// The response object, with what the request said.
fn response_with(
    answer: &Answer,
    parts: &[Part],
    status: &str,
    error: Option<&ApiError>,
) -> String {
    let null = || "null".to_owned();
    let items: Vec<String> =
        parts.iter().enumerate().map(|(at, part)| whole_item(answer, at, part)).collect();
    let failure = error.map_or_else(null, |error| {
        object(&[("code", string(error.code)), ("message", string(&error.message))])
    });
    let incomplete = match status {
        "incomplete" => r#"{"reason":"max_output_tokens"}"#.to_owned(),
        _ => null(),
    };
    let counted = if status == "in_progress" { null() } else { usage(&answer.usage()) };
    let completed = match status {
        "completed" => answer.identity.created.to_string(),
        _ => null(),
    };
    let mut members = vec![
        ("id", string(&answer_id(answer))),
        ("object", string("response")),
        ("created_at", answer.identity.created.to_string()),
        ("completed_at", completed),
        ("status", string(status)),
        ("background", "false".to_owned()),
        ("error", failure),
        ("incomplete_details", incomplete),
        ("model", string(&answer.identity.model)),
        ("output", array(&items)),
        ("store", answer.store.to_string()),
        ("service_tier", string("default")),
        ("usage", counted),
    ];
    for (name, default) in DEFAULTS {
        let sent = answer.repeated.iter().find(|(known, _)| *known == name);
        members.push((name, sent.map_or_else(|| default.to_owned(), |(_, json)| json.clone())));
    }
    object(&members)
}

/// What the answer repeats of the request, and what it says where the request said nothing.
const DEFAULTS: [(&str, &str); 18] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("presence_penalty", "0.0"),
    ("frequency_penalty", "0.0"),
    ("previous_response_id", "null"),
    ("prompt_cache_key", "null"),
    ("reasoning", r#"{"effort":null,"summary":null}"#),
    ("safety_identifier", "null"),
    ("temperature", "1.0"),
    ("text", r#"{"format":{"type":"text"}}"#),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("top_p", "1.0"),
    ("truncation", "\"disabled\""),
    ("user", "null"),
];

fn whole_item(answer: &Answer, index: usize, part: &Part) -> String {
    let tokens = match (part, answer.choices.first()) {
        (Part::Text(_), Some(choice)) if answer.logprobs => &choice.tokens[..],
        _ => &[],
    };
    item(answer, index, part, Stage::Done, tokens)
}

pub(super) fn body(answer: &Answer) -> String {
    response(answer, None)
}
