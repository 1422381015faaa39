//! Changes to logits before a token is drawn: biases, and penalties for what was said already.

use crate::Error;
use std::collections::HashMap;

/// Biases and penalties. The default changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjust {
    /// Added to a token's logit; -inf forbids it. At most one entry a token.
    pub bias: Vec<(u32, f32)>,
    /// Divides positive logits and multiplies negative ones of tokens in the prompt or the answer;
    /// 1 is off.
    pub repetition: f32,
    /// Subtracted from the logits of tokens in the answer.
    pub presence: f32,
    /// Subtracted once for each time that a token is in the answer.
    pub frequency: f32,
}

impl Default for Adjust {
    fn default() -> Self {
        Adjust { bias: Vec::new(), repetition: 1.0, presence: 0.0, frequency: 0.0 }
    }
}

/// How often each token has occurred.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// In the prompt and in the answer.
    tokens: HashMap<u32, [u32; 2]>,
}

impl Counts {
    /// Counts a prompt.
    #[must_use]
    pub fn of_prompt(tokens: &[u32]) -> Self {
        let mut counts = Counts::default();
        for &token in tokens {
            counts.tokens.entry(token).or_default()[0] += 1;
        }
        counts
    }

    /// Counts a token of the answer.
    pub fn add(&mut self, token: u32) {
        self.tokens.entry(token).or_default()[1] += 1;
    }
}

impl Adjust {
    /// Whether nothing is changed.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.bias.is_empty() && !self.has_penalties()
    }

    /// Whether counts are needed.
    #[must_use]
    pub fn has_penalties(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }

    /// Refuses numbers out of their ranges.
    pub fn check(&self, vocabulary: usize) -> Result<(), Error> {
        let refuse = |name, found: String, wanted| Err(Error::Setting { name, found, wanted });
        if !(self.repetition > 0.0 && self.repetition.is_finite()) {
            return refuse("repetition_penalty", self.repetition.to_string(), "a number above 0");
        }
        for (name, value) in
            [("presence_penalty", self.presence), ("frequency_penalty", self.frequency)]
        {
            if !value.is_finite() {
                return refuse(name, value.to_string(), "a finite number");
            }
        }
        for &(token, bias) in &self.bias {
            if usize::try_from(token).is_ok_and(|t| t >= vocabulary) {
                return refuse(
                    "logit_bias",
                    format!("for token {token}"),
                    "a token of the vocabulary",
                );
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return refuse("logit_bias", bias.to_string(), "a number or -inf");
            }
        }
        Ok(())
    }

    /// Changes a row of logits: repetition, then presence and frequency, then bias.
    pub fn apply(&self, logits: &mut [f32], counts: &Counts) {
        if self.has_penalties() {
            for (&token, &[prompt, answer]) in &counts.tokens {
                let Some(logit) = logits.get_mut(token as usize) else { continue };
                if prompt + answer > 0 {
                    let up = *logit > 0.0;
                    *logit = if up { *logit / self.repetition } else { *logit * self.repetition };
                }
                if answer > 0 {
                    #[expect(clippy::cast_precision_loss, reason = "beyond 2^24 it hardly matters")]
                    let times = answer as f32;
                    *logit -= self.presence + self.frequency * times;
                }
            }
        }
        for &(token, bias) in &self.bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
    }
}
