//! Errors as every protocol writes them.

use serde_json::{Map, Value, json};

use crate::{Frame, Protocol};

/// Whose fault it is, as far as a client must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong; sending it again is no use. 400.
    Invalid,
    /// The body is larger than the server takes. 413.
    TooLarge,
    /// No key, or a wrong one. 401.
    Unauthorized,
    /// The key does not allow this. 403.
    Forbidden,
    /// No such model, answer or path. 404.
    NotFound,
    /// The path knows another method. 405.
    Method,
    /// The client was too slow. 408.
    Timeout,
    /// A limit is reached; later it may work. 429.
    Busy,
    /// The server failed. 500.
    Internal,
    /// The server is stopping. 503.
    Stopping,
}

/// A refusal or failure, free of any protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Whose fault it is.
    pub kind: ErrorKind,
    /// Stable name for programs.
    pub code: &'static str,
    /// What was found, what was wanted, and what to do.
    pub message: String,
    /// The field, as `messages[3].content`.
    pub param: Option<String>,
    /// Numbers that a client may act on, as `n_prompt_tokens`.
    pub numbers: Vec<(&'static str, u64)>,
}

impl ApiError {
    /// A field that is not what it should be.
    #[must_use]
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Invalid,
            code: "invalid_value",
            message: message.into(),
            param: Some(param.into()),
            numbers: Vec::new(),
        }
    }

    /// A field that asks for what this server does not do.
    #[must_use]
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: "unsupported", ..Self::invalid(param, message) }
    }

    /// Any other refusal or failure.
    #[must_use]
    pub fn new(kind: ErrorKind, code: &'static str, message: impl Into<String>) -> Self {
        Self { kind, code, message: message.into(), param: None, numbers: Vec::new() }
    }

    /// The prompt, or the prompt with the answer asked for, is longer than the context.
    #[must_use]
    pub fn context_length(prompt_tokens: usize, context_tokens: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {context_tokens} tokens. However, your \
             request has {prompt_tokens} tokens: the prompt is too long. Shorten the messages."
        );
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        Self {
            numbers: vec![
                ("n_prompt_tokens", count(prompt_tokens)),
                ("n_ctx", count(context_tokens)),
            ],
            ..Self::new(ErrorKind::Invalid, "context_length_exceeded", message)
        }
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self.kind {
            ErrorKind::Invalid => 400,
            ErrorKind::Unauthorized => 401,
            ErrorKind::Forbidden => 403,
            ErrorKind::NotFound => 404,
            ErrorKind::Method => 405,
            ErrorKind::Timeout => 408,
            ErrorKind::TooLarge => 413,
            ErrorKind::Busy => 429,
            ErrorKind::Internal => 500,
            ErrorKind::Stopping => 503,
        }
    }

    /// The body of an answer that is an error.
    #[must_use]
    pub fn body(&self, protocol: Protocol) -> Value {
        match protocol {
            Protocol::Messages => json!({"type": "error", "error": self.object(protocol)}),
            _ => json!({"error": self.object(protocol)}),
        }
    }

    /// The object within [`ApiError::body`].
    pub(crate) fn object(&self, protocol: Protocol) -> Value {
        let mut object = Map::new();
        object.insert("type".into(), self.type_name(protocol).into());
        object.insert("message".into(), self.worded(protocol).into());
        object.insert("code".into(), self.code.into());
        object.insert("param".into(), self.param.clone().into());
        for &(name, number) in &self.numbers {
            object.insert(name.into(), number.into());
        }
        Value::Object(object)
    }

    /// The error as an event of a stream that has begun; the encoders send it and what must
    /// follow it.
    #[must_use]
    pub fn frame(&self, protocol: Protocol) -> Frame {
        let event = matches!(protocol, Protocol::Messages | Protocol::Responses);
        Frame { event: event.then_some("error"), data: self.body(protocol).to_string() }
    }

    fn type_name(&self, protocol: Protocol) -> &'static str {
        let messages = protocol == Protocol::Messages;
        match self.kind {
            ErrorKind::Unauthorized => "authentication_error",
            ErrorKind::Forbidden => "permission_error",
            ErrorKind::NotFound if messages => "not_found_error",
            ErrorKind::TooLarge if messages => "request_too_large",
            ErrorKind::Busy => "rate_limit_error",
            ErrorKind::Internal if messages => "api_error",
            ErrorKind::Stopping if messages => "overloaded_error",
            ErrorKind::Internal | ErrorKind::Stopping => "server_error",
            ErrorKind::Invalid
            | ErrorKind::TooLarge
            | ErrorKind::NotFound
            | ErrorKind::Method
            | ErrorKind::Timeout => "invalid_request_error",
        }
    }

    /// The message in the words that the clients of a protocol look for.
    fn worded(&self, protocol: Protocol) -> String {
        let number = |name| self.numbers.iter().find(|(key, _)| *key == name).map(|&(_, n)| n);
        match (protocol, self.code, number("n_prompt_tokens"), number("n_ctx")) {
            (Protocol::Messages, "context_length_exceeded", Some(prompt), Some(context)) => {
                format!("prompt is too long: {prompt} tokens > {context} maximum")
            }
            _ => self.message.clone(),
        }
    }
}
