//! Completions.

use super::Frame;
use super::answer::Answer;
use super::chat::{finish_reason, head, usage};
use super::text::{array, logprob, object, string, token_text};
use crate::{Output, TokenLogprobs};

/// What every chunk begins with, and how far each choice is.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    head: String,
    include_usage: bool,
    logprobs: bool,
    /// Characters before the next token, by choice.
    offsets: Vec<usize>,
}

impl Stream {
    pub(super) fn new(answer: &Answer) -> Self {
        Self {
            head: head(answer, "text_completion"),
            include_usage: answer.include_usage,
            logprobs: answer.logprobs,
            offsets: vec![0; answer.choices.len()],
        }
    }

    pub(super) fn output(
        &mut self,
        choice: usize,
        output: &Output,
        tokens: &[TokenLogprobs],
    ) -> Vec<Frame> {
        let (text, tokens) = match output {
            // Without roles there is one channel and there are no tools.
            Output::Text(text) | Output::Reasoning(text) => (text.as_str(), tokens),
            Output::Logprobs { token, .. } => ("", std::slice::from_ref(token)),
            _ => return Vec::new(),
        };
        let told = if self.logprobs && !tokens.is_empty() {
            legacy_logprobs(tokens, &mut self.offsets[choice])
        } else {
            "null".to_owned()
        };
        vec![self.chunk(choice, text, &told, "null")]
    }

    pub(super) fn finish(&mut self, answer: &Answer, choice: usize) -> Vec<Frame> {
        let reason = string(finish_reason(&answer.choices[choice]));
        vec![self.chunk(choice, "", "null", &reason)]
    }

    pub(super) fn close(&mut self, answer: &Answer) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.include_usage {
            let usage = usage(&answer.usage());
            frames.push(Frame::data(format!("{},\"choices\":[],\"usage\":{usage}}}", self.head)));
        }
        frames.push(Frame::data("[DONE]".to_owned()));
        frames
    }

    fn chunk(&self, choice: usize, text: &str, told: &str, reason: &str) -> Frame {
        let usage = if self.include_usage { ",\"usage\":null" } else { "" };
        let choice = whole_choice(choice, text, told, reason);
        Frame::data(format!("{},\"choices\":[{choice}]{usage}}}", self.head))
    }
}

fn whole_choice(index: usize, text: &str, told: &str, reason: &str) -> String {
    object(&[
        ("index", index.to_string()),
        ("text", string(text)),
        ("logprobs", told.to_owned()),
        ("finish_reason", reason.to_owned()),
    ])
}

/// Probabilities as this protocol has them: columns, with the character that each token begins at.
fn legacy_logprobs(tokens: &[TokenLogprobs], offset: &mut usize) -> String {
    let (mut texts, mut values) = (Vec::new(), Vec::new());
    let (mut tops, mut offsets) = (Vec::new(), Vec::new());
    for token in tokens {
        texts.push(string(&token_text(&token.bytes)));
        values.push(logprob(token.logprob));
        offsets.push(offset.to_string());
        // Every byte but those that go on within a character.
        *offset += token.bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
        let top = |top: &crate::TopLogprob| {
            format!("{}:{}", string(&token_text(&top.bytes)), logprob(top.logprob))
        };
        tops.push(match token.logprob.is_nan() {
            true => "null".to_owned(),
            false => format!("{{{}}}", token.top.iter().map(top).collect::<Vec<_>>().join(",")),
        });
    }
    object(&[
        ("tokens", array(&texts)),
        ("token_logprobs", array(&values)),
        ("top_logprobs", array(&tops)),
        ("text_offset", array(&offsets)),
    ])
}

pub(super) fn body(answer: &Answer) -> String {
    let choice = |(index, choice): (usize, &super::answer::Choice)| {
        let told = if answer.logprobs {
            legacy_logprobs(&choice.tokens, &mut 0)
        } else {
            "null".to_owned()
        };
        let text = choice.reasoning() + &choice.text();
        whole_choice(index, &text, &told, &string(finish_reason(choice)))
    };
    let choices: Vec<String> = answer.choices.iter().enumerate().map(choice).collect();
    format!(
        "{},\"choices\":{},\"usage\":{}}}",
        head(answer, "text_completion"),
        array(&choices),
        usage(&answer.usage())
    )
}
