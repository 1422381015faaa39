//! Which tokens a text came from.

use std::collections::VecDeque;

use super::{Output, TokenLogprobs};

/// Where bytes of the model's text went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Went {
    Reasoning,
    Text,
    /// Into markup, or away.
    Nowhere,
}

/// Tokens whose text was not given away yet, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Probabilities {
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Debug)]
struct Waiting {
    bytes: usize,
    /// Where the first of its bytes went that went anywhere.
    went: Went,
    token: Option<TokenLogprobs>,
}

impl Probabilities {
    pub(super) fn push(&mut self, bytes: usize, token: Option<TokenLogprobs>) {
        if token.is_some() || !self.waiting.is_empty() {
            self.waiting.push_back(Waiting { bytes, went: Went::Nowhere, token });
        }
    }

    /// Says where the next bytes went; tokens that are complete by that are given.
    pub(super) fn account(&mut self, bytes: usize, went: Went, out: &mut Vec<Output>) {
        let mut left = bytes;
        // A token without text (the start of a character) waits for what completes it.
        while left > 0 {
            let Some(first) = self.waiting.front_mut() else { return };
            let taken = first.bytes.min(left);
            first.bytes -= taken;
            left -= taken;
            if first.went == Went::Nowhere {
                first.went = went;
            }
            if first.bytes > 0 {
                return;
            }
            if let Some(done) = self.waiting.pop_front() {
                give(done, out);
            }
        }
    }

    /// The answer ends within the first token: it counts if some of its text was given.
    pub(super) fn cut(&mut self, out: &mut Vec<Output>) {
        if let Some(first) = self.waiting.pop_front() {
            give(first, out);
        }
        self.waiting.clear();
    }

    /// No more text comes: tokens without text went where the last bytes would have gone.
    pub(super) fn end(&mut self, went: Went, out: &mut Vec<Output>) {
        for mut waiting in self.waiting.drain(..) {
            if waiting.went == Went::Nowhere && waiting.bytes == 0 {
                waiting.went = went;
            }
            give(waiting, out);
        }
    }
}

fn give(waiting: Waiting, out: &mut Vec<Output>) {
    let reasoning = match waiting.went {
        Went::Nowhere => return,
        Went::Reasoning => true,
        Went::Text => false,
    };
    out.extend(waiting.token.map(|token| Output::Logprobs { reasoning, token }));
}
