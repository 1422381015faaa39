//! Pieces of a prompt.

use std::borrow::Cow;

/// A piece of a prompt: either a control token that the renderer put there, or plain text.
///
/// A prompt is a list of these and never one string: what a user typed stays [`Segment::Text`]
/// and can spell any marker without becoming one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A control token by its text, such as `<｜User｜>`.
    Special(Cow<'static, str>),
    /// Text to be encoded without looking for control tokens.
    Text(String),
}

impl Segment {
    /// The text of the segment, as a reader would see it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Special(text) => text,
            Self::Text(text) => text,
        }
    }
}
