//! What tokens say, as bytes that tell text from control tokens: so a client that sends back the
//! text of an answer, and not its tokens, finds the state that the answer left.
//!
//! A model's own tokens are not always those that a tokenizer makes of their text, and a state is
//! one of tokens. [`Engine::known_tokens`] finds the stored tokens whose text is a beginning of a
//! prompt's, and makes tokens of the rest only.

use crate::Engine;
use crate::store::Text;
use ironstar_text::Tokenizer;

/// Tokens that must be gained over the state that is found by tokens.
const GAIN_MIN: usize = 32;
/// Begins what is no byte of a text. It occurs in no UTF-8; where it is a byte, [`BYTE`] follows.
const ESCAPE: u8 = 0xff;
const BYTE: u8 = 0;
const CONTROL: u8 = 1;

/// Bytes of text as they are, control tokens as numbers. A beginning of the tokens is a beginning
/// of the bytes, and no text is a control token.
struct Spelled {
    bytes: Vec<u8>,
    /// Where each token ends.
    ends: Vec<usize>,
}

impl Spelled {
    fn new(tokenizer: &Tokenizer, tokens: &[u32]) -> Spelled {
        let mut bytes = Vec::with_capacity(tokens.len() * 5);
        let mut ends = Vec::with_capacity(tokens.len());
        for &token in tokens {
            let text = tokenizer.token_bytes(token);
            if is_opaque(tokenizer, token) {
                bytes.extend_from_slice(&[ESCAPE, CONTROL]);
                bytes.extend_from_slice(&token.to_le_bytes());
            } else if text.contains(&ESCAPE) {
                for &byte in text {
                    bytes.push(byte);
                    bytes.extend((byte == ESCAPE).then_some(BYTE));
                }
            } else {
                bytes.extend_from_slice(text);
            }
            ends.push(bytes.len());
        }
        Spelled { bytes, ends }
    }

    /// Bytes of the first tokens.
    fn end_of(&self, tokens: usize) -> usize {
        tokens.checked_sub(1).map_or(0, |last| self.ends[last])
    }
}

/// Whether a token stands for itself and not for a text.
fn is_opaque(tokenizer: &Tokenizer, token: u32) -> bool {
    tokenizer.is_control(token) || tokenizer.token_bytes(token).is_empty()
}

/// Text between two control tokens, as it was before it was spelled.
fn plain(spelled: &[u8]) -> Vec<u8> {
    let is_mark = |at: usize| at > 0 && spelled[at] == BYTE && spelled[at - 1] == ESCAPE;
    (0..spelled.len()).filter(|&at| !is_mark(at)).map(|at| spelled[at]).collect()
}

/// Tokens of what a text says after its first `done` bytes, of the text that `tokens` spell: theirs
/// where one begins there, else new ones up to the next control token.
fn rest(tokenizer: &Tokenizer, tokens: &[u32], text: &Spelled, done: usize) -> Vec<u32> {
    let next = text.ends.partition_point(|end| *end <= done);
    if text.end_of(next) == done {
        return tokens[next..].to_vec();
    }
    let control = tokens[next..].iter().position(|token| is_opaque(tokenizer, *token));
    let control = control.map_or(tokens.len(), |at| next + at);
    let mut all = tokenizer.encode_bytes(&plain(&text.bytes[done..text.end_of(control)]));
    all.extend_from_slice(&tokens[control..]);
    all
}

impl Engine {
    /// Other tokens that say the same, where a stored state is found by them that goes further than
    /// any on the way of these. Which there are depends on what was read before; so the caller
    /// decides whether a prompt is its text or its tokens.
    pub fn known_tokens(&mut self, tokens: &[u32]) -> Option<Vec<u32>> {
        let tokenizer = self.tokenizer()?.clone();
        let store = self.current_store();
        let least = store.nearest(tokens) + GAIN_MIN;
        if least > tokens.len() {
            return None;
        }
        let text = Spelled::new(&tokenizer, tokens);
        let known = store.tokens_of_text(&text.bytes, text.end_of(least))?;
        let said = Spelled::new(&tokenizer, &known).bytes;
        if !text.bytes.starts_with(&said) {
            return None;
        }
        let all = [known, rest(&tokenizer, tokens, &text, said.len())].concat();
        (all != tokens).then_some(all)
    }

    /// What the store is told of the text of these tokens.
    pub(crate) fn text_of(&self, tokens: &[u32]) -> Option<Text> {
        let tokenizer = self.tokenizer()?;
        Some(Text::new(self.store().key(), &Spelled::new(tokenizer, tokens).bytes))
    }
}

#[cfg(test)]
mod tests;
