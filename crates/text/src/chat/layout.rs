//! The order of things in a prompt.

use std::collections::HashMap;

use super::dsml::{write_calls, write_calls_open, write_tools};
use super::prompt::Prompt;
use super::texts::{
    ASSISTANT, BOS, EFFORT_ABSOLUTE, EFFORT_BEYOND, EFFORT_NUMBER, EOS, FORMAT_OBJECT,
    FORMAT_OBJECT_SCHEMA, FORMAT_SCHEMA, LATEST_REMINDER, SYSTEM, THINK, THINK_END, USER,
    task_marker,
};
use super::{
    Assistant, Conversation, Effort, End, Message, Release, RenderOptions, ResponseFormat, Task,
    Thinking, Tool, ToolCall, ToolChoice, ToolResult,
};
use crate::{Error, Segment};

/// Renders a conversation to a prompt.
///
/// Control tokens stand only where this function put them; all text of the conversation is
/// [`Segment::Text`]. The prompt ends where the model is to go on.
pub fn render(conversation: &Conversation, options: &RenderOptions) -> Result<Vec<Segment>, Error> {
    render_replaying(conversation, options, &|_| None)
}

/// Renders a conversation whose calls may be known as the model wrote them.
///
/// `written` is asked for every turn with calls. What it gives stands in place of the block that
/// [`render`] would write, the blank line before it included; it must come from a model's answer.
pub fn render_replaying(
    conversation: &Conversation,
    options: &RenderOptions,
    written: &dyn Fn(&[ToolCall]) -> Option<Vec<Segment>>,
) -> Result<Vec<Segment>, Error> {
    check(conversation, options)?;
    let tools: &[Tool] = match conversation.tool_choice {
        ToolChoice::None => &[],
        ToolChoice::Auto | ToolChoice::Required => &conversation.tools,
    };
    // Instructions without text count as absent.
    let messages: Vec<&Message> =
        conversation.messages.iter().filter(|message| system_text(message) != Some("")).collect();
    let turns = turns(&messages, options.release);
    let mut writer = Writer { prompt: Prompt::default(), options, tools, written };
    writer.prompt.special(BOS);
    writer.head(&messages, &conversation.response_format);
    for (at, turn) in turns.iter().enumerate() {
        let continued = options.end == End::ContinueLast && at + 1 == turns.len();
        writer.turn(turn, continued);
    }
    writer.end(conversation.tool_choice);
    Ok(writer.prompt.finish())
}

fn check(conversation: &Conversation, options: &RenderOptions) -> Result<(), Error> {
    let refused = |at: &str, found: &str, wanted: &str| Error::Conversation {
        at: at.to_owned(),
        found: found.to_owned(),
        wanted: wanted.to_owned(),
    };
    match conversation.messages.last() {
        None => Err(refused("messages", "there are none", "wanted at least one message")),
        Some(Message::Assistant(_)) => Ok(()),
        Some(_) if options.end != End::ContinueLast => Ok(()),
        Some(_) => Err(refused(
            &format!("messages[{}]", conversation.messages.len() - 1),
            "the last message is to be continued but is not the assistant's",
            "end with an assistant message, or ask for a new answer",
        )),
    }
}

/// What a release makes one turn of.
enum Turn<'a> {
    System(&'a str),
    /// User messages and results of tools that share one marker.
    User(Vec<Block<'a>>),
    Assistant(&'a Assistant),
    LatestReminder(&'a str),
}

#[derive(Clone, Copy)]
enum Block<'a> {
    Text(&'a str),
    Result(&'a ToolResult),
}

/// Whether a release keeps system messages where they are, instead of before the first turn.
fn system_in_place(release: Release) -> bool {
    release == Release::V41
}

/// The text of a message of instructions.
fn system_text(message: &Message) -> Option<&str> {
    match message {
        Message::System(text) | Message::Developer(text) => Some(text),
        _ => None,
    }
}

/// Groups messages into turns. The instructions that open the prompt are not among them.
fn turns<'a>(messages: &[&'a Message], release: Release) -> Vec<Turn<'a>> {
    let opening = messages.first().and_then(|first| system_text(first));
    let mut messages = messages[usize::from(opening.is_some())..].to_vec();
    messages.retain(|message| system_in_place(release) || system_text(message).is_none());
    if release == Release::V0731 {
        sort_after_calls(&mut messages);
    }
    let mut turns = Vec::new();
    for message in messages {
        match message {
            Message::System(text) | Message::Developer(text) => turns.push(Turn::System(text)),
            Message::User(text) => add_block(&mut turns, Block::Text(text), release),
            Message::Tool(result) => add_block(&mut turns, Block::Result(result), release),
            Message::Assistant(assistant) => turns.push(Turn::Assistant(assistant)),
            Message::LatestReminder(text) => turns.push(Turn::LatestReminder(text)),
        }
    }
    if release != Release::V0731 {
        sort_in_turns(&mut turns);
    }
    turns
}

/// The order of results from 0731 on, in V4: of the messages after a turn with n calls, the first
/// n are sorted by the call that they answer, those that answer none last.
fn sort_after_calls(messages: &mut [&Message]) {
    let mut rest = messages;
    while let Some((first, after)) = rest.split_first_mut() {
        rest = after;
        let Message::Assistant(assistant) = first else { continue };
        let calls = places(&assistant.calls);
        let next = rest.iter().position(|message| matches!(message, Message::Assistant(_)));
        let count = next.unwrap_or(rest.len()).min(assistant.calls.len());
        rest[..count].sort_by_key(|message| match message {
            Message::Tool(result) => calls.get(&*result.call_id).copied().unwrap_or(usize::MAX),
            _ => usize::MAX,
        });
    }
}

/// The order of results in the other releases: all results of a turn, those that answer no call
/// first; texts stay where they are.
fn sort_in_turns(turns: &mut [Turn<'_>]) {
    let mut calls = HashMap::new();
    for turn in turns {
        match turn {
            Turn::Assistant(assistant) if !assistant.calls.is_empty() => {
                calls = places(&assistant.calls);
            }
            Turn::User(blocks) => {
                let result_of = |block: &Block<'_>| match block {
                    Block::Result(result) => calls.get(&*result.call_id).copied().or(Some(0)),
                    Block::Text(_) => None,
                };
                let places = blocks.iter_mut().filter(|block| result_of(block).is_some());
                let mut sorted: Vec<Block<'_>> = places.map(|block| *block).collect();
                sorted.sort_by_key(result_of);
                let places = blocks.iter_mut().filter(|block| result_of(block).is_some());
                for (place, block) in places.zip(sorted) {
                    *place = block;
                }
            }
            _ => {}
        }
    }
}

/// Which of the calls has an id; the first, if they share it.
fn places(calls: &[ToolCall]) -> HashMap<&str, usize> {
    calls.iter().enumerate().rev().map(|(place, call)| (&*call.id, place)).collect()
}

/// Adds a user message or a result to the user's turn, or begins one.
fn add_block<'a>(turns: &mut Vec<Turn<'a>>, block: Block<'a>, release: Release) {
    let Some(Turn::User(blocks)) = turns.last_mut() else {
        turns.push(Turn::User(vec![block]));
        return;
    };
    match (blocks.last_mut(), block) {
        // From 0731 on, V4 begins a turn for results that follow a text, and leaves empty texts
        // out where texts meet.
        (Some(Block::Text(_)), Block::Result(_)) if release == Release::V0731 => {
            turns.push(Turn::User(vec![block]));
        }
        (Some(Block::Text(last)), Block::Text(text)) if release == Release::V0731 => {
            if last.is_empty() {
                *last = text;
            } else if !text.is_empty() {
                blocks.push(block);
            }
        }
        _ => blocks.push(block),
    }
}

struct Writer<'a> {
    prompt: Prompt,
    options: &'a RenderOptions,
    tools: &'a [Tool],
    written: &'a dyn Fn(&[ToolCall]) -> Option<Vec<Segment>>,
}

impl Writer<'_> {
    fn thinks(&self) -> bool {
        self.options.thinking != Thinking::Off
    }

    /// Everything before the first turn: effort, instructions, tools, form of the answer.
    fn head(&mut self, messages: &[&Message], response_format: &ResponseFormat) {
        let effort = self.effort();
        if system_in_place(self.options.release) {
            let opening = messages.first().and_then(|first| system_text(first));
            let wanted = opening.is_some()
                || !effort.is_empty()
                || !self.tools.is_empty()
                || *response_format != ResponseFormat::Text;
            if wanted {
                self.prompt.special(SYSTEM);
            }
            self.prompt.text(&effort);
            self.prompt.text(opening.unwrap_or_default());
        } else {
            let texts: Vec<&str> =
                messages.iter().filter_map(|message| system_text(message)).collect();
            self.prompt.text(&effort);
            self.prompt.text(&texts.join("\n\n"));
        }
        if !self.tools.is_empty() {
            write_tools(&mut self.prompt, self.tools, self.options.release);
        }
        self.response_format(response_format);
    }

    fn effort(&self) -> String {
        let Thinking::On(effort) = self.options.thinking else { return String::new() };
        match (self.options.release, effort) {
            (Release::April, Effort::Max) | (Release::V0731, Effort::High) => {
                EFFORT_ABSOLUTE.to_owned()
            }
            (Release::V0731, Effort::Max) => EFFORT_BEYOND.to_owned(),
            (Release::April | Release::V0731, _) => String::new(),
            (Release::V41, effort) => {
                let number = match effort {
                    Effort::Low => "50",
                    Effort::High => "75",
                    Effort::Max => "100",
                };
                EFFORT_NUMBER.join(number)
            }
        }
    }

    fn response_format(&mut self, format: &ResponseFormat) {
        match format {
            ResponseFormat::Text => {}
            ResponseFormat::JsonObject if self.options.release == Release::V0731 => {
                self.prompt.fixed(FORMAT_OBJECT);
            }
            ResponseFormat::JsonObject => {
                self.prompt.fixed(FORMAT_SCHEMA);
                self.prompt.fixed(FORMAT_OBJECT_SCHEMA);
            }
            ResponseFormat::JsonSchema(schema) => {
                self.prompt.fixed(FORMAT_SCHEMA);
                self.prompt.text(schema.as_str());
            }
        }
    }

    fn turn(&mut self, turn: &Turn<'_>, continued: bool) {
        match turn {
            Turn::System(text) => {
                self.prompt.special(SYSTEM);
                self.prompt.text(text);
            }
            Turn::LatestReminder(text) => {
                self.prompt.special(LATEST_REMINDER);
                self.prompt.text(text);
            }
            Turn::User(blocks) => self.user(blocks),
            Turn::Assistant(assistant) if continued => self.assistant_continued(assistant),
            Turn::Assistant(assistant) => self.assistant(assistant),
        }
    }

    fn user(&mut self, blocks: &[Block<'_>]) {
        self.prompt.special(USER);
        for (at, block) in blocks.iter().enumerate() {
            if at > 0 {
                self.prompt.text("\n\n");
            }
            match block {
                Block::Text(text) => self.prompt.text(text),
                Block::Result(result) => {
                    self.prompt.text("<tool_result>");
                    self.prompt.text(&result.text);
                    self.prompt.text("</tool_result>");
                }
            }
        }
    }

    /// A turn that is over. Its reasoning stays only in conversations with tools.
    fn assistant(&mut self, assistant: &Assistant) {
        self.prompt.special(ASSISTANT);
        if self.thinks() && !self.tools.is_empty() {
            self.prompt.special(THINK);
            self.prompt.text(known_reasoning(assistant));
        }
        self.prompt.special(THINK_END);
        self.answer(assistant);
        self.prompt.special(EOS);
    }

    /// A turn that the model goes on with: in its reasoning if there is nothing after it.
    fn assistant_continued(&mut self, assistant: &Assistant) {
        self.prompt.special(ASSISTANT);
        let answered = !assistant.content.is_empty() || !assistant.calls.is_empty();
        if self.thinks() {
            self.prompt.special(THINK);
            self.prompt.text(known_reasoning(assistant));
        }
        if answered || !self.thinks() {
            self.prompt.special(THINK_END);
        }
        self.answer(assistant);
    }

    fn answer(&mut self, assistant: &Assistant) {
        self.prompt.text(&assistant.content);
        if assistant.calls.is_empty() {
            return;
        }
        match (self.written)(&assistant.calls) {
            Some(segments) => segments.into_iter().for_each(|piece| self.prompt.segment(piece)),
            None => write_calls(&mut self.prompt, &assistant.calls, self.options.release),
        }
    }

    /// What makes the model write what is wanted.
    fn end(&mut self, tool_choice: ToolChoice) {
        match self.options.end {
            End::ContinueLast => {}
            End::Task(task) => {
                if task == Task::Action {
                    self.opening();
                }
                self.prompt.special(task_marker(task));
            }
            End::Answer => {
                self.opening();
                if tool_choice == ToolChoice::Required && !self.tools.is_empty() {
                    write_calls_open(&mut self.prompt, self.options.release);
                }
            }
        }
    }

    fn opening(&mut self) {
        self.prompt.special(ASSISTANT);
        self.prompt.special(if self.thinks() { THINK } else { THINK_END });
    }
}

/// The reasoning of a turn. Clients that do not keep it send nothing, an empty string or a space
/// for the same turn; all of them mean that there is none.
fn known_reasoning(assistant: &Assistant) -> &str {
    let reasoning = assistant.reasoning.as_deref().unwrap_or_default();
    if reasoning.trim().is_empty() { "" } else { reasoning }
}
