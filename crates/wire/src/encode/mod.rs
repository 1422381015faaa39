//! Events to the bytes of an answer, streamed or whole.

use crate::{ApiError, Call, Output, Protocol};

/// Who an answer is. All of it is handed in, since this crate has neither clock nor chance.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// The bytes on the wire, the empty line included.
    #[must_use]
    pub fn to_sse(&self) -> String {
        match (self.event, self.data.as_str()) {
            (None, "") => ": keep-alive\n\n".to_owned(),
            (None, data) => format!("data: {data}\n\n"),
            (Some(event), data) => format!("event: {event}\ndata: {data}\n\n"),
        }
    }
}

/// Writes one answer as a stream.
///
/// `start` comes first and `finish` (once for each choice) or `fail` last; after the last choice
/// ended, or after `fail`, the stream has its closing event and nothing is written any more.
#[derive(Debug)]
pub struct Encoder {
    protocol: Protocol,
}

impl Encoder {
    /// An answer to `call`. A stream of a Completions request with several prompts, or of `n`
    /// answers, has choices `prompt * n + answer`.
    #[must_use]
    pub fn new(call: &Call, _identity: Identity) -> Self {
        Self { protocol: call.protocol }
    }

    /// Everything that precedes the first token. `usage` has what is known of the prompt.
    pub fn start(&mut self, _usage: &Usage) -> Vec<Frame> {
        Vec::new()
    }

    /// What one piece of a choice's output adds.
    pub fn output(&mut self, _choice: usize, _output: &Output) -> Vec<Frame> {
        Vec::new()
    }

    /// What tells the client that the server lives, to be sent every 5 to 10 s of silence.
    #[must_use]
    pub fn keepalive(&self) -> Frame {
        Frame { event: None, data: String::new() }
    }

    /// Ends a choice; with the last one, the stream. `usage` is that of the choice.
    pub fn finish(&mut self, _choice: usize, _finish: Finish, _usage: &Usage) -> Vec<Frame> {
        Vec::new()
    }

    /// Ends the stream with an error, whatever state it is in.
    pub fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![error.frame(self.protocol)]
    }

    /// Whether the closing event is written.
    #[must_use]
    pub fn closed(&self) -> bool {
        false
    }
}

/// Collects one answer as a whole: the same calls as [`Encoder`], then [`Collector::body`].
#[derive(Debug)]
pub struct Collector {
    encoder: Encoder,
}

impl Collector {
    /// An answer to `call`.
    #[must_use]
    pub fn new(call: &Call, identity: Identity) -> Self {
        Self { encoder: Encoder::new(call, identity) }
    }

    /// Takes one piece of a choice's output.
    pub fn output(&mut self, choice: usize, output: &Output) {
        self.encoder.output(choice, output);
    }

    /// Ends a choice.
    pub fn finish(&mut self, choice: usize, finish: Finish, usage: &Usage) {
        self.encoder.finish(choice, finish, usage);
    }

    /// The body of the answer, as JSON text: arguments keep their numbers' spelling, which no
    /// parsed value would.
    #[must_use]
    pub fn body(&self) -> String {
        String::new()
    }
}
