//! Messages.

use super::answer::{Answer, Part};
use super::text::{array, object, string};
use super::{Finish, Frame, Usage, answer_id};
use crate::Output;

/// The block that is open, and its number.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    index: usize,
    open: Option<Block>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

pub(super) fn ping() -> Frame {
    event("ping", &[])
}

fn event(name: &'static str, members: &[(&str, String)]) -> Frame {
    let mut all = vec![("type", string(name))];
    all.extend(members.iter().cloned());
    Frame { event: Some(name), data: object(&all) }
}

impl Stream {
    pub(super) fn start(&mut self, answer: &Answer, prompt: &Usage) -> Vec<Frame> {
        let prompt = Usage { completion: 0, reasoning: 0, ..*prompt };
        let message = message(answer, "[]", "null", "null", &prompt);
        vec![event("message_start", &[("message", message)]), ping()]
    }

    pub(super) fn output(&mut self, answer: &Answer, output: &Output) -> Vec<Frame> {
        match output {
            Output::Reasoning(text) => {
                let delta = [("type", string("thinking_delta")), ("thinking", string(text))];
                self.delta(answer, Block::Thinking, &delta)
            }
            Output::Text(text) => {
                let delta = [("type", string("text_delta")), ("text", string(text))];
                self.delta(answer, Block::Text, &delta)
            }
            Output::CallStart { id, name, .. } => {
                let mut frames = self.leave_block(answer);
                let block = tool_use(id, name, "{}");
                frames.push(self.enter(Block::ToolUse, block));
                frames
            }
            Output::CallArguments { json_fragment, .. } => {
                let delta =
                    [("type", string("input_json_delta")), ("partial_json", string(json_fragment))];
                match self.open {
                    Some(Block::ToolUse) => vec![self.delta_frame(&delta)],
                    _ => Vec::new(),
                }
            }
            Output::CallEnd { .. } | Output::CallCut { .. } => self.leave_block(answer),
            // The protocol has no place for them.
            Output::Logprobs { .. } => Vec::new(),
        }
    }

    fn delta(&mut self, answer: &Answer, block: Block, delta: &[(&str, String)]) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.open != Some(block) {
            frames = self.leave_block(answer);
            let empty = match block {
                Block::Thinking => thinking("", ""),
                _ => text(""),
            };
            frames.push(self.enter(block, empty));
        }
        frames.push(self.delta_frame(delta));
        frames
    }

    fn delta_frame(&self, delta: &[(&str, String)]) -> Frame {
        let index = self.index.to_string();
        event("content_block_delta", &[("index", index), ("delta", object(delta))])
    }

    fn enter(&mut self, block: Block, content: String) -> Frame {
        self.open = Some(block);
        let index = self.index.to_string();
        event("content_block_start", &[("index", index), ("content_block", content)])
    }

    /// Ends the block that is open.
    pub(super) fn leave_block(&mut self, answer: &Answer) -> Vec<Frame> {
        let mut frames = Vec::new();
        match self.open.take() {
            None => return frames,
            Some(Block::Thinking) => frames.push(self.delta_frame(&[
                ("type", string("signature_delta")),
                ("signature", string(&answer.identity.id)),
            ])),
            Some(_) => {}
        }
        frames.push(event("content_block_stop", &[("index", self.index.to_string())]));
        self.index += 1;
        frames
    }

    pub(super) fn close(&mut self, answer: &Answer) -> Vec<Frame> {
        let mut frames = self.leave_block(answer);
        let (reason, sequence) = stop_reason(answer);
        let delta = object(&[("stop_reason", reason), ("stop_sequence", sequence)]);
        let usage = usage(&answer.usage());
        frames.push(event("message_delta", &[("delta", delta), ("usage", usage)]));
        frames.push(event("message_stop", &[]));
        frames
    }
}

fn thinking(text: &str, signature: &str) -> String {
    object(&[
        ("type", string("thinking")),
        ("thinking", string(text)),
        ("signature", string(signature)),
    ])
}

fn text(text: &str) -> String {
    object(&[("type", string("text")), ("text", string(text))])
}

fn tool_use(id: &str, name: &str, input: &str) -> String {
    object(&[
        ("type", string("tool_use")),
        ("id", string(id)),
        ("name", string(name)),
        ("input", input.to_owned()),
    ])
}

/// The reason and the stop string, as JSON.
fn stop_reason(answer: &Answer) -> (String, String) {
    let finish = answer.choices.first().and_then(super::answer::Choice::ended);
    let null = "null".to_owned();
    match finish {
        None => (null.clone(), null),
        Some(Finish::Stop) => (string("end_turn"), null),
        Some(Finish::StopString(stop)) => (string("stop_sequence"), string(&stop)),
        Some(Finish::Length) => (string("max_tokens"), null),
        Some(Finish::ToolCalls) => (string("tool_use"), null),
    }
}

/// Tokens; those of the prompt are counted without the cached ones.
fn usage(usage: &Usage) -> String {
    let cached = usage.cached.min(usage.prompt);
    object(&[
        ("input_tokens", (usage.prompt - cached).to_string()),
        ("cache_creation_input_tokens", "0".to_owned()),
        ("cache_read_input_tokens", cached.to_string()),
        ("output_tokens", usage.completion.to_string()),
    ])
}

fn message(answer: &Answer, content: &str, reason: &str, stop: &str, tokens: &Usage) -> String {
    object(&[
        ("id", string(&answer_id(answer))),
        ("type", string("message")),
        ("role", string("assistant")),
        ("model", string(&answer.identity.model)),
        ("content", content.to_owned()),
        ("stop_reason", reason.to_owned()),
        ("stop_sequence", stop.to_owned()),
        ("usage", usage(tokens)),
    ])
}

pub(super) fn body(answer: &Answer) -> String {
    let block = |part: &Part| match part {
        Part::Reasoning(thoughts) => thinking(thoughts, &answer.identity.id),
        Part::Text(said) => text(said),
        Part::Call { call, ended: true } => tool_use(&call.id, &call.name, &call.arguments),
        // What was cut off is no JSON; the reason of the end tells of it.
        Part::Call { call, ended: false } => tool_use(&call.id, &call.name, "{}"),
    };
    let parts = answer.choices.first().map(|choice| &choice.parts[..]).unwrap_or_default();
    let content = array(&parts.iter().map(block).collect::<Vec<_>>());
    let (reason, stop) = stop_reason(answer);
    message(answer, &content, &reason, &stop, &answer.usage())
}
