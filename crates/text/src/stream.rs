//! Token ids to text, a token at a time, never breaking a character.

use super::Tokenizer;

/// Collects bytes and hands out whole characters.
///
/// However the bytes are cut, the concatenation of what comes out is the same: the well-formed
/// characters of the whole, in order. Bytes that can belong to no character are left out of the
/// text; no replacement character is ever made up.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// At most three bytes: the start of a character.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Takes more bytes and returns the characters that are now complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut kept = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            kept = chunk.invalid().len();
        }
        let tail = self.pending.len() - kept;
        if kept > 0 && !is_character_start(&self.pending[tail..]) {
            kept = 0;
        }
        self.pending.drain(..self.pending.len() - kept);
        text
    }

    /// The bytes of a character that never became complete, and an empty stream.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending)
    }
}

/// Whether more bytes could still make a character of these.
fn is_character_start(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Text of one stream of token ids; made by [`Tokenizer::stream`].
#[derive(Clone)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    bytes: Utf8Stream,
}

impl<'a> StreamDecoder<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, bytes: Utf8Stream::default() }
    }

    /// Takes the next token and returns the characters that are now complete, often none.
    pub fn push(&mut self, id: u32) -> String {
        self.bytes.push(self.tokenizer.token_bytes(id))
    }

    /// Forgets an incomplete character.
    pub(crate) fn restart(&mut self) {
        self.bytes = Utf8Stream::default();
    }

    /// The bytes of an incomplete last character, which the text leaves out.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.finish()
    }
}
