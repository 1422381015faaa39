//! Events to the bytes of an answer, streamed or whole.
//!
//! `answer.rs` keeps what was said; each protocol has a file that writes it, both ways.

mod answer;
mod chat;
mod completions;
mod messages;
mod responses;
mod text;

#[cfg(test)]
mod tests;

use ironstar_text::chat::Assistant;

use crate::{ApiError, Call, Output, Protocol};
use answer::Answer;

/// Who an answer is. All of it is handed in, since this crate has neither clock nor chance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Random part of the id, letters and digits; the protocol's prefix is put before it.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model that answers.
    pub model: String,
}

/// Tokens of an answer, counted by the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt, cached ones included.
    pub prompt: usize,
    /// Of the prompt, taken from an earlier state.
    pub cached: usize,
    /// Sampled, reasoning included; of one answer where there are several.
    pub completion: usize,
    /// Sampled while reasoning.
    pub reasoning: usize,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model was done. An answer that ended with calls is [`Finish::ToolCalls`] all the same:
    /// the encoders see to it.
    Stop,
    /// This stop string came.
    StopString(String),
    /// As many tokens as were allowed, or as fit.
    Length,
    /// The model was done, having called tools.
    ToolCalls,
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Name of the event, where the protocol has names.
    pub event: Option<&'static str>,
    /// One line: JSON, or `[DONE]`. Empty for a comment, which keeps the connection alive.
    pub data: String,
}

impl Frame {
    /// The bytes on the wire, the empty line included. Line ends in the JSON, which can only be
    /// white space that a client sent, become spaces: each would end the event's data.
    #[must_use]
    pub fn to_sse(&self) -> String {
        if self.data.contains(['\n', '\r']) {
            let data = self.data.replace(['\n', '\r'], " ");
            return Frame { event: self.event, data }.to_sse();
        }
        match (self.event, self.data.as_str()) {
            (None, "") => ": keep-alive\n\n".to_owned(),
            (None, data) => format!("data: {data}\n\n"),
            (Some(event), data) => format!("event: {event}\ndata: {data}\n\n"),
        }
    }

    fn data(data: String) -> Self {
        Self { event: None, data }
    }

    fn comment() -> Self {
        Self::data(String::new())
    }
}

/// Writes one answer as a stream.
///
/// `start` comes first and `finish` (once for each choice) or `fail` last. After the last choice
/// ended, or after `fail`, the closing event is written and nothing more ever is.
///
/// ```
/// use ironstar_wire::{Encoder, Finish, Identity, Limits, Output, Protocol, Usage, parse};
/// let body = br#"{"messages": [{"role": "user", "content": "Hi"}], "stream": true}"#;
/// let call = parse(Protocol::Chat, body, &Limits::default())?;
/// let mut encoder = Encoder::new(&call, Identity::default());
/// let mut stream = encoder.start(&Usage::default());
/// stream.extend(encoder.output(0, &Output::Text("Hello".into())));
/// stream.extend(encoder.finish(0, Finish::Stop, &Usage::default()));
/// assert_eq!(stream.last().map(|frame| &*frame.data), Some("[DONE]"));
/// # Ok::<(), ironstar_wire::ApiError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Encoder {
    answer: Answer,
    writer: Writer,
    started: bool,
    closed: bool,
}

/// What a protocol must remember of its stream.
#[derive(Clone, Debug)]
enum Writer {
    Chat(chat::Stream),
    Completions(completions::Stream),
    Responses(responses::Stream),
    Messages(messages::Stream),
}

impl Encoder {
    /// An answer to `call`. A stream of a Completions request with several prompts, or of `n`
    /// answers, has choices `prompt * n + answer`.
    #[must_use]
    pub fn new(call: &Call, identity: Identity) -> Self {
        let answer = Answer::new(call, identity);
        let writer = match call.protocol {
            Protocol::Chat => Writer::Chat(chat::Stream::new(&answer)),
            Protocol::Completions => Writer::Completions(completions::Stream::new(&answer)),
            Protocol::Responses => Writer::Responses(responses::Stream::default()),
            Protocol::Messages => Writer::Messages(messages::Stream::default()),
        };
        Self { answer, writer, started: false, closed: false }
    }

    /// The id that the client sees.
    #[must_use]
    pub fn id(&self) -> String {
        answer_id(&self.answer)
    }

    /// Everything that precedes the first token. `usage` has what is known of the prompt.
    pub fn start(&mut self, usage: &Usage) -> Vec<Frame> {
        if self.started {
            return Vec::new();
        }
        self.started = true;
        match &mut self.writer {
            Writer::Chat(stream) => stream.start(&self.answer),
            Writer::Completions(_) => Vec::new(),
            Writer::Responses(stream) => stream.start(&self.answer),
            Writer::Messages(stream) => stream.start(&self.answer, usage),
        }
    }

    /// What one piece of a choice's output adds.
    pub fn output(&mut self, choice: usize, output: &Output) -> Vec<Frame> {
        self.outputs(choice, std::slice::from_ref(output))
    }

    /// What pieces of a choice's output add; the probabilities of a text go with it if they stand
    /// behind it.
    pub fn outputs(&mut self, choice: usize, outputs: &[Output]) -> Vec<Frame> {
        let open = self.answer.choices.get(choice).is_some_and(|choice| choice.finish.is_none());
        if self.closed || !open {
            return Vec::new();
        }
        let mut frames = self.start(&Usage::default());
        let mut rest = outputs;
        while let Some((first, after)) = rest.split_first() {
            let mut tokens = Vec::new();
            let mut behind = after;
            if matches!(first, Output::Text(_) | Output::Reasoning(_)) {
                while let Some((Output::Logprobs { token, .. }, after)) = behind.split_first() {
                    tokens.push(token.clone());
                    behind = after;
                }
            }
            for output in &rest[..rest.len() - behind.len()] {
                self.answer.add(choice, output);
            }
            rest = behind;
            frames.extend(match &mut self.writer {
                Writer::Chat(stream) => stream.output(&self.answer, choice, first, &tokens),
                Writer::Completions(stream) => stream.output(choice, first, &tokens),
                Writer::Responses(stream) => stream.output(&self.answer, first, &tokens),
                Writer::Messages(stream) => stream.output(&self.answer, first),
            });
        }
        frames
    }

    /// What tells the client that the server lives, to be sent after 5 to 10 s of silence.
    pub fn keepalive(&mut self) -> Frame {
        match &mut self.writer {
            _ if self.closed || !self.started => Frame::comment(),
            Writer::Chat(_) | Writer::Completions(_) => Frame::comment(),
            Writer::Responses(stream) => stream.in_progress(&self.answer),
            Writer::Messages(_) => messages::ping(),
        }
    }

    /// Ends a choice; with the last one, the stream. `usage` is that of the choice.
    pub fn finish(&mut self, choice: usize, finish: Finish, usage: &Usage) -> Vec<Frame> {
        let open = self.answer.choices.get(choice).is_some_and(|choice| choice.finish.is_none());
        if self.closed || !open {
            return Vec::new();
        }
        let mut frames = self.start(usage);
        self.answer.choices[choice].finish = Some(finish);
        self.answer.choices[choice].usage = *usage;
        frames.extend(match &mut self.writer {
            Writer::Chat(stream) => stream.finish(&self.answer, choice),
            Writer::Completions(stream) => stream.finish(&self.answer, choice),
            Writer::Responses(_) | Writer::Messages(_) => Vec::new(),
        });
        if self.answer.choices.iter().all(|choice| choice.finish.is_some()) {
            self.closed = true;
            frames.extend(match &mut self.writer {
                Writer::Chat(stream) => stream.close(&self.answer),
                Writer::Completions(stream) => stream.close(&self.answer),
                Writer::Responses(stream) => stream.close(&self.answer, None),
                Writer::Messages(stream) => stream.close(&self.answer),
            });
        }
        frames
    }

    /// Ends the stream with an error, whatever state it is in.
    ///
    /// Chat Completions have no event for this: the error is followed by the closing chunks, with
    /// `length` for every answer that was not done, so that nobody takes it for a whole one.
    pub fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        if self.closed {
            return Vec::new();
        }
        let mut frames = self.start(&Usage::default());
        self.closed = true;
        match &mut self.writer {
            Writer::Responses(stream) => frames.extend(stream.close(&self.answer, Some(error))),
            Writer::Messages(stream) => {
                frames.extend(stream.leave_block(&self.answer));
                frames.push(error.frame(Protocol::Messages));
            }
            Writer::Chat(_) | Writer::Completions(_) => {
                frames.push(error.frame(self.answer.protocol));
                self.closed = false;
                for choice in 0..self.answer.choices.len() {
                    let usage = self.answer.choices[choice].usage;
                    frames.extend(self.finish(choice, Finish::Length, &usage));
                }
            }
        }
        frames
    }

    /// Whether the closing event is written.
    #[must_use]
    pub fn closed(&self) -> bool {
        self.closed
    }

    /// A choice as the turn of a conversation, for who keeps it.
    #[must_use]
    pub fn assistant(&self, choice: usize) -> Option<Assistant> {
        self.answer.choices.get(choice).map(answer::Choice::assistant)
    }
}

/// Collects one answer as a whole: the same calls as [`Encoder`], then [`Collector::body`].
#[derive(Clone, Debug)]
pub struct Collector {
    answer: Answer,
}

impl Collector {
    /// An answer to `call`.
    #[must_use]
    pub fn new(call: &Call, identity: Identity) -> Self {
        Self { answer: Answer::new(call, identity) }
    }

    /// The id that the client sees.
    #[must_use]
    pub fn id(&self) -> String {
        answer_id(&self.answer)
    }

    /// Takes one piece of a choice's output.
    pub fn output(&mut self, choice: usize, output: &Output) {
        self.answer.add(choice, output);
    }

    /// Ends a choice.
    pub fn finish(&mut self, choice: usize, finish: Finish, usage: &Usage) {
        if let Some(choice) = self.answer.choices.get_mut(choice) {
            choice.finish = Some(finish);
            choice.usage = *usage;
        }
    }

    /// The body of the answer, as JSON text: arguments keep their numbers' spelling, which no
    /// parsed value would.
    #[must_use]
    pub fn body(&self) -> String {
        match self.answer.protocol {
            Protocol::Chat => chat::body(&self.answer),
            Protocol::Completions => completions::body(&self.answer),
            Protocol::Responses => responses::body(&self.answer),
            Protocol::Messages => messages::body(&self.answer),
        }
    }

    /// A choice as the turn of a conversation, for who keeps it.
    #[must_use]
    pub fn assistant(&self, choice: usize) -> Option<Assistant> {
        self.answer.choices.get(choice).map(answer::Choice::assistant)
    }
}

fn answer_id(answer: &Answer) -> String {
    let prefix = match answer.protocol {
        Protocol::Chat => "chatcmpl-",
        Protocol::Completions => "cmpl-",
        Protocol::Responses => "resp_",
        Protocol::Messages => "msg_",
    };
    format!("{prefix}{}", answer.identity.id)
}
