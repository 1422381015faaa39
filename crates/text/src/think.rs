//! The two channels of an answer: what the model thinks and what it says.

use super::{StreamDecoder, Tokenizer};

/// Which part of an answer a text belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// What the model thinks.
    Reasoning,
    /// What it says.
    Content,
}

/// Splits a stream of sampled tokens at the `</think>` token. The token decides, not its text: an
/// answer may well write `</think>` in letters.
#[derive(Clone)]
pub struct ThinkSplitter<'a> {
    decoder: StreamDecoder<'a>,
    think: Option<u32>,
    think_end: Option<u32>,
    channel: Channel,
}

impl<'a> ThinkSplitter<'a> {
    /// Starts a stream that follows a prompt: in the reasoning if the prompt ended with `<think>`.
    #[must_use]
    pub fn new(tokenizer: &'a Tokenizer, thinking: bool) -> Self {
        Self {
            decoder: tokenizer.stream(),
            think: tokenizer.special("<think>"),
            think_end: tokenizer.special("</think>"),
            channel: if thinking { Channel::Reasoning } else { Channel::Content },
        }
    }

    /// Takes the next token; returns the characters that are now complete and where they belong.
    /// The markers themselves give no text.
    pub fn push(&mut self, id: u32) -> (Channel, String) {
        let marker = match id {
            _ if Some(id) == self.think_end => Some(Channel::Content),
            _ if Some(id) == self.think => Some(Channel::Reasoning),
            _ => None,
        };
        if let Some(channel) = marker {
            // An incomplete character ends here; no character spans two channels.
            self.decoder.restart();
            self.channel = channel;
            return (channel, String::new());
        }
        (self.channel, self.decoder.push(id))
    }

    /// The channel that the next token belongs to.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// The bytes of an incomplete last character, which the text leaves out.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.decoder.finish()
    }
}
