//! The states of an answer.

use ironstar_text::Segment;
use ironstar_text::chat::ToolCall;

use super::arguments::Arguments;
use super::probabilities::{Probabilities, Went};
use super::stops::Stops;
use super::tags::{self, Found, MARKER, Tag, calls_open};
use super::{Output, ParserOptions, TokenLogprobs};
use crate::SampledCalls;

const THINK_END: &str = "</think>";
/// Newlines before a block of calls that belong to it, at most.
const NEWLINES_MAX: usize = 16;
/// Bytes between tags after which nothing good is expected any more.
const STRAY_BYTES_MAX: usize = 2048;

/// Parses one answer.
#[derive(Clone, Debug)]
pub struct OutputParser {
    options: ParserOptions,
    state: State,
    /// Text that is not understood yet; short, but in a block before its first call.
    held: String,
    stops: Stops,
    probabilities: Probabilities,
    /// The block of calls, byte for byte, from the newlines before it.
    block: String,
    /// Bytes of it that the prompt wrote.
    block_given: usize,
    /// Where in it control tokens stand.
    markers: Vec<usize>,
    /// Whether the block is in the reasoning.
    block_in_reasoning: bool,
    /// Text between the tags that may be a call nobody could read.
    stray: String,
    calls: Vec<ToolCall>,
    arguments: Arguments,
    reasoning: String,
    /// Whether the block was closed, so that it can be repeated.
    exact: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reasoning,
    Content,
    /// In a block, between calls.
    Block,
    /// In a call, between parameters.
    Call,
    /// In a value.
    Value,
    /// After a stop string or a block.
    Done,
}

impl OutputParser {
    /// At the beginning of an answer.
    #[must_use]
    pub fn new(options: ParserOptions) -> Self {
        let state = match (options.in_calls, options.reasoning) {
            (true, _) => State::Block,
            (false, true) => State::Reasoning,
            (false, false) => State::Content,
        };
        let stops = Stops::new(&options.stop);
        let mut parser = Self {
            options,
            state,
            held: String::new(),
            stops,
            probabilities: Probabilities::default(),
            block: String::new(),
            block_given: 0,
            markers: Vec::new(),
            block_in_reasoning: false,
            stray: String::new(),
            calls: Vec::new(),
            arguments: Arguments::new(None),
            reasoning: String::new(),
            exact: false,
        };
        if state == State::Block {
            parser.block.push_str(calls_open(parser.options.release));
            parser.markers.extend(parser.block.find(MARKER));
            parser.block_given = parser.block.len();
        }
        parser
    }

    /// Takes the next text. Markers of the model (`<think>`, `</think>`, `｜DSML｜`) are given as
    /// text; those that end an answer are not given. `token` is the token that the text belongs to,
    /// where probabilities are wanted: then every token is given, those without text too.
    pub fn push(&mut self, text: &str, token: Option<TokenLogprobs>) -> Vec<Output> {
        let mut out = Vec::new();
        if self.finished() {
            return out;
        }
        self.probabilities.push(text.len(), token);
        self.held.push_str(text);
        while self.step(&mut out) {}
        out
    }

    /// Takes a `<think>` token (`true`) or a `</think>` token (`false`), with
    /// [`ParserOptions::think_tokens`]. Within calls it means nothing.
    pub fn push_think(&mut self, begins: bool, token: Option<TokenLogprobs>) -> Vec<Output> {
        let mut out = Vec::new();
        if self.finished() {
            return out;
        }
        if matches!(self.state, State::Reasoning | State::Content) {
            self.flush(&mut out);
            if !self.finished() {
                self.state = if begins { State::Reasoning } else { State::Content };
            }
            // One byte that goes nowhere.
            self.probabilities.push(1, token);
            self.probabilities.account(1, Went::Nowhere, &mut out);
        }
        out
    }

    /// Ends the answer and gives what was held back. `cut` says that the model was not done: a call
    /// within which it was cut off stays incomplete, and nothing is added to it.
    pub fn end(&mut self, cut: bool) -> Vec<Output> {
        let mut out = Vec::new();
        match self.state {
            State::Reasoning | State::Content => self.flush(&mut out),
            State::Block => {
                self.keep_in_block(self.held.len(), None, &mut out);
                self.leave_block(&mut out);
            }
            State::Call | State::Value if cut => {
                out.push(Output::CallCut { index: self.calls.len() - 1 });
            }
            State::Call => self.end_call(&mut out),
            State::Value => {
                let rest = std::mem::take(&mut self.held);
                self.value(&rest, &mut out);
                self.end_value(&mut out);
                self.end_call(&mut out);
            }
            State::Done => {}
        }
        let went = if self.state == State::Reasoning { Went::Reasoning } else { Went::Text };
        if matches!(self.state, State::Reasoning | State::Content) {
            self.probabilities.end(went, &mut out);
        }
        self.state = State::Done;
        out
    }

    /// Whether the answer is over whatever comes: a stop string came, or a block of calls ended.
    /// Sampling should end.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.state == State::Done
    }

    /// The stop string that came.
    #[must_use]
    pub fn stopped(&self) -> Option<&str> {
        self.stops.found()
    }

    /// Whether the model is reasoning.
    #[must_use]
    pub fn reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Whether the model is within a block of calls, and there not within a value that is sampled
    /// freely.
    #[must_use]
    pub fn in_markup(&self) -> bool {
        matches!(self.state, State::Block | State::Call)
    }

    /// Calls so far, complete or not.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// The answer's calls with their exact text, for [`crate::CallMemory`]; after
    /// [`OutputParser::end`]. `None` if there are none or the last is incomplete.
    #[must_use]
    pub fn sampled_calls(&self) -> Option<SampledCalls> {
        if !self.exact {
            return None;
        }
        let mut written = Vec::new();
        let mut rest = 0;
        for &at in &self.markers {
            if at > rest {
                written.push(Segment::Text(self.block[rest..at].to_owned()));
            }
            written.push(Segment::Special(MARKER.into()));
            rest = at + MARKER.len();
        }
        if rest < self.block.len() {
            written.push(Segment::Text(self.block[rest..].to_owned()));
        }
        let reasoning = self.reasoning.clone();
        Some(SampledCalls { calls: self.calls.clone(), written, reasoning })
    }

    /// Understands some of the held text; `false` if there is nothing more to be done with it.
    fn step(&mut self, out: &mut Vec<Output>) -> bool {
        match self.state {
            State::Reasoning | State::Content => self.step_text(out),
            State::Block | State::Call => self.step_between(out),
            State::Value => self.step_value(out),
            State::Done => false,
        }
    }

    /// Gives text up to what may be a tag, and enters what the tag begins.
    fn step_text(&mut self, out: &mut Vec<Output>) -> bool {
        let mut from = 0;
        while let Some(at) = self.held[from..].find('<').map(|at| from + at) {
            let rest = &self.held[at..];
            if self.state == State::Reasoning && !self.options.think_tokens {
                if rest.starts_with(THINK_END) {
                    self.give(at, out);
                    self.drop_held(THINK_END.len(), out);
                    self.state = State::Content;
                    return true;
                }
                if THINK_END.starts_with(rest) {
                    self.give(at - self.newlines_held(at), out);
                    return false;
                }
            }
            let found = if self.options.tools.callable() { tags::find(rest) } else { Found::Text };
            match found {
                Found::Tag(Tag::Calls | Tag::Invoke { .. }, ..) => {
                    let keep = self.newlines_held(at);
                    self.give(at - keep, out);
                    self.flush_stops(out);
                    if self.state != State::Done {
                        self.enter_block(keep, out);
                    }
                    return true;
                }
                Found::Open => {
                    self.give(at - self.newlines_held(at), out);
                    return false;
                }
                Found::Text | Found::Tag(..) => from = at + 1,
            }
        }
        let len = self.held.len();
        self.give(len - self.newlines_held(len), out);
        false
    }

    /// Bytes of newlines before a place of the held text, which may belong to a block.
    fn newlines_held(&self, at: usize) -> usize {
        let newlines = self.held[..at].bytes().rev().take(NEWLINES_MAX);
        if self.options.tools.callable() {
            newlines.take_while(|&byte| byte == b'\n').count()
        } else {
            0
        }
    }

    /// Passes the newlines before a block and, if the block has one, the tag that opens it.
    fn enter_block(&mut self, newlines: usize, out: &mut Vec<Output>) {
        self.block_in_reasoning = self.state == State::Reasoning;
        self.state = State::Block;
        self.keep_in_block(newlines, None, out);
        if let Found::Tag(Tag::Calls, len, marker) = tags::find(&self.held) {
            self.keep_in_block(len, marker.map(|range| range.start), out);
        }
    }

    /// Between tags of a block.
    fn step_between(&mut self, out: &mut Vec<Output>) -> bool {
        let blank = self.held.len() - self.held.trim_start().len();
        if blank > 0 && !self.stray.is_empty() {
            return self.skip_stray(blank, out);
        }
        self.keep_in_block(blank, None, out);
        if self.held.is_empty() {
            return false;
        }
        if !self.held.starts_with('<') {
            let len = self.held.find('<').unwrap_or(self.held.len());
            return self.skip_stray(len, out);
        }
        match tags::find(&self.held) {
            Found::Open => false,
            Found::Text => self.skip_stray(1, out),
            Found::Tag(tag, len, marker) => self.tag(tag, len, marker.map(|m| m.start), out),
        }
    }

    fn tag(&mut self, tag: Tag, len: usize, marker: Option<usize>, out: &mut Vec<Output>) -> bool {
        let in_call = self.state == State::Call;
        match tag {
            // Where no call is open these belong to one that could not be read.
            Tag::Parameter { .. } | Tag::ParameterEnd | Tag::InvokeEnd if !in_call => {
                return self.skip_stray(len, out);
            }
            Tag::Invoke { name } => {
                if in_call {
                    self.end_call(out);
                }
                self.begin_call(name, out);
            }
            Tag::Parameter { name, string } => {
                let json = self.arguments.begin(&name, string);
                self.add_arguments(json, out);
                self.state = State::Value;
            }
            Tag::InvokeEnd => self.end_call(out),
            Tag::CallsEnd => {
                if in_call {
                    self.end_call(out);
                }
                self.keep_in_block(len, marker, out);
                self.exact = !self.calls.is_empty();
                self.leave_block(out);
                return true;
            }
            Tag::Calls | Tag::ParameterEnd => {}
        }
        self.keep_in_block(len, marker, out);
        true
    }

    /// Passes text that is no tag. What has to do with markup is kept, to be reported.
    fn skip_stray(&mut self, len: usize, out: &mut Vec<Output>) -> bool {
        // No more than fills the room, so that the cut of the text decides nothing.
        let room = STRAY_BYTES_MAX + 1 - self.stray.len().min(STRAY_BYTES_MAX);
        let len = (room..len).find(|&at| self.held.is_char_boundary(at)).unwrap_or(len);
        self.stray.push_str(&self.held[..len]);
        self.keep_in_block(len, None, out);
        if self.stray.len() > STRAY_BYTES_MAX {
            if self.state == State::Call {
                self.end_call(out);
            }
            self.leave_block(out);
        }
        true
    }

    fn begin_call(&mut self, name: String, out: &mut Vec<Output>) {
        // V4.1 spells namespaces with colons; the tools have one name in all releases.
        let flat = name.replacen("::", "__", 1);
        let known = |name: &str| self.options.tools.find(name).is_some();
        let name = if !known(&name) && known(&flat) { flat } else { name };
        let index = self.calls.len();
        let id = format!("{}{}_{index}", self.options.call_prefix, self.options.call_ids);
        self.arguments = Arguments::new(self.options.tools.find(&name));
        out.push(Output::CallStart { index, id: id.clone(), name: name.clone() });
        self.calls.push(ToolCall { id, name, arguments: String::new() });
        self.state = State::Call;
    }

    fn end_call(&mut self, out: &mut Vec<Output>) {
        let json = self.arguments.end().to_owned();
        self.add_arguments(json, out);
        out.push(Output::CallEnd { index: self.calls.len() - 1 });
        self.state = State::Block;
    }

    fn add_arguments(&mut self, json_fragment: String, out: &mut Vec<Output>) {
        let index = self.calls.len() - 1;
        if json_fragment.is_empty() {
            return;
        }
        self.calls[index].arguments.push_str(&json_fragment);
        match out.last_mut() {
            Some(Output::CallArguments { index: last, json_fragment: json }) if *last == index => {
                json.push_str(&json_fragment);
            }
            _ => out.push(Output::CallArguments { index, json_fragment }),
        }
    }

    /// In a value: gives what is before a closing tag, or before what may become one.
    fn step_value(&mut self, out: &mut Vec<Output>) -> bool {
        let mut from = 0;
        let ends = loop {
            let Some(at) = self.held[from..].find("</").map(|at| from + at) else {
                let len = self.held.len() - usize::from(self.held.ends_with('<'));
                break (len, None);
            };
            match tags::find(&self.held[at..]) {
                Found::Open => break (at, None),
                Found::Tag(tag, len, marker) => break (at, Some((tag, len, marker))),
                Found::Text => from = at + 2,
            }
        };
        let (len, tag) = ends;
        let text = self.held[..len].to_owned();
        self.value(&text, out);
        self.keep_in_block(len, None, out);
        let Some((tag, len, marker)) = tag else { return false };
        self.end_value(out);
        // Where another tag closes the value, its own was forgotten.
        if tag == Tag::ParameterEnd {
            self.keep_in_block(len, marker.map(|range| range.start), out);
        }
        true
    }

    fn value(&mut self, text: &str, out: &mut Vec<Output>) {
        if !text.is_empty() {
            let json = self.arguments.add(text);
            self.add_arguments(json, out);
        }
    }

    fn end_value(&mut self, out: &mut Vec<Output>) {
        let json = self.arguments.end_value();
        self.add_arguments(json, out);
        self.state = State::Call;
    }

    /// Ends a block. One without a call was no block: its text is given as such.
    fn leave_block(&mut self, out: &mut Vec<Output>) {
        if !self.calls.is_empty() {
            if tags::looks_like_markup(&self.stray) {
                push_text(out, Output::Text(self.stray.trim_end().to_owned()));
            }
            self.state = State::Done;
            return;
        }
        let text = self.block.split_off(self.block_given);
        self.block.clear();
        self.block_given = 0;
        self.markers.clear();
        self.stray.clear();
        if self.block_in_reasoning {
            self.state = State::Reasoning;
            self.reasoning.push_str(&text);
            push_text(out, Output::Reasoning(text));
        } else {
            self.state = State::Content;
            push_text(out, Output::Text(text));
        }
    }

    /// Moves held text to the block.
    fn keep_in_block(&mut self, len: usize, marker: Option<usize>, out: &mut Vec<Output>) {
        self.markers.extend(marker.map(|at| self.block.len() + at));
        self.block.push_str(&self.held[..len]);
        self.drop_held(len, out);
    }

    fn drop_held(&mut self, len: usize, out: &mut Vec<Output>) {
        self.held.drain(..len);
        self.probabilities.account(len, Went::Nowhere, out);
    }

    /// Gives everything held as text.
    fn flush(&mut self, out: &mut Vec<Output>) {
        self.give(self.held.len(), out);
        self.flush_stops(out);
    }

    fn flush_stops(&mut self, out: &mut Vec<Output>) {
        let text = self.stops.flush();
        self.give_content(text, out);
    }

    /// Gives the first bytes of the held text as text of the channel.
    fn give(&mut self, len: usize, out: &mut Vec<Output>) {
        if len == 0 {
            return;
        }
        let text: String = self.held.drain(..len).collect();
        if self.state == State::Reasoning {
            self.reasoning.push_str(&text);
            push_text(out, Output::Reasoning(text));
            self.probabilities.account(len, Went::Reasoning, out);
            return;
        }
        let certain = self.stops.push(&text);
        self.give_content(certain, out);
        if self.stops.found().is_some() {
            self.state = State::Done;
            self.held.clear();
            self.probabilities.cut(out);
        }
    }

    fn give_content(&mut self, text: String, out: &mut Vec<Output>) {
        let len = text.len();
        if len > 0 {
            push_text(out, Output::Text(text));
            self.probabilities.account(len, Went::Text, out);
        }
    }
}

/// Adds text to what is given, to the last piece if it is of the same channel.
fn push_text(out: &mut Vec<Output>, output: Output) {
    if matches!(&output, Output::Text(text) | Output::Reasoning(text) if text.is_empty()) {
        return;
    }
    match (out.last_mut(), output) {
        (Some(Output::Text(last)), Output::Text(text))
        | (Some(Output::Reasoning(last)), Output::Reasoning(text)) => last.push_str(&text),
        (_, output) => out.push(output),
    }
}
