//! Drawing a token: a pure function of logits, settings, seed and position.
//!
//! **Order.** Temperature, then top-k, then top-p of what is left, then min-p. Tokens are ordered
//! by logit, equal ones by lower id; each filter keeps a shortest prefix of that order, and at
//! least one token:
//!
//! 1. *temperature* T: the weight of a token is `rne(2^44 e^((logit - max) / T))`, a whole number
//!    ([`ironstar_device::exp_weights`]). From here on all arithmetic is in integers, so no sum
//!    depends on an order. At 0 (and where 1/T is infinite) the first token of the order is taken
//!    and nothing is drawn.
//! 2. *top-k*: the first k tokens; 0 keeps all.
//! 3. *top-p*: the shortest prefix whose weights reach p times the weight of what top-k left, with
//!    p rounded to a multiple of 2^-53; 1 keeps all.
//! 4. *min-p*: tokens whose weight is at least `ceil(p 2^44)`, that is p times the first token's; 0
//!    keeps all.
//!
//! The token is the one whose interval holds a uniform whole number below the kept weight, tokens
//! laid out by ascending id; the number comes from the seed and the position (`random.rs`).
//!
//! A device draws the same token where no more is wanted ([`Settings::on_device`]).
//!
//! **Log probabilities** are those of the logits as passed, without temperature and filters:
//! `(logit - max) - ln(sum of weights at T = 1 / 2^44)` in f64.
//!
//! **Logits.** -inf forbids a token. NaN and +inf are errors, and so is a row in which all are
//! forbidden.

mod adjust;
mod random;
mod select;

use crate::Error;
pub use adjust::{Adjust, Counts};
use ironstar_device::{Draw, LOGIT_BLOCK, WEIGHT_BITS, WEIGHTS_MAX, block_maxima, exp_weights};

/// Most alternatives that [`Settings::logprobs`] can ask for.
pub const ALTERNATIVES_MAX: usize = 1024;

/// How a token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f64,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the likeliest tokens that together reach this probability, 0 to 1; 1 keeps all.
    pub top_p: f64,
    /// Drops tokens less likely than this part of the likeliest one, 0 to 1; 0 drops none.
    pub min_p: f64,
    /// Log probability of the token, and of so many of the likeliest.
    pub logprobs: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.05, logprobs: None }
    }
}

impl Settings {
    /// The likeliest token, always.
    #[must_use]
    pub fn greedy() -> Self {
        Settings { temperature: 0.0, ..Settings::default() }
    }

    /// Refuses numbers out of their ranges.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |name, found: String, wanted| Err(Error::Setting { name, found, wanted });
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return refuse("temperature", self.temperature.to_string(), "a number from 0 up");
        }
        for (name, value) in [("top_p", self.top_p), ("min_p", self.min_p)] {
            if !(0.0..=1.0).contains(&value) {
                return refuse(name, value.to_string(), "a number from 0 to 1");
            }
        }
        if self.logprobs.is_some_and(|count| count > ALTERNATIVES_MAX) {
            return refuse("logprobs", format!("{:?}", self.logprobs), "a number from 0 to 1024");
        }
        Ok(())
    }

    /// What a device is told that draws the token of a position from a row of so many logits;
    /// `None` where more than the token is wanted of them.
    #[must_use]
    pub fn on_device(&self, tokens: usize, seed: u64, position: usize) -> Option<Draw> {
        if self.logprobs.is_some() || tokens > WEIGHTS_MAX {
            return None;
        }
        let filters = select::Filters::new(self, tokens);
        Some(Draw {
            scale: Some(1.0 / self.temperature).filter(|scale| scale.is_finite()),
            count: filters.count.map_or(0, id_of),
            part: filters.part.unwrap_or(select::PART_ONE),
            weight: filters.weight,
            number: random::bits(seed, u64::try_from(position).unwrap_or(u64::MAX)),
        })
    }
}

/// A drawn token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Natural logarithm of its probability, where [`Settings::logprobs`] asks for it.
    pub logprob: Option<f64>,
    /// The likeliest tokens in order, with theirs.
    pub top: Vec<(u32, f64)>,
}

/// Draws tokens; holds nothing but memory to work in, so any two give the same tokens.
#[derive(Debug, Default)]
pub struct Sampler {
    weights: Vec<u64>,
    room: select::Room,
    /// Largest logit of each block of [`LOGIT_BLOCK`].
    block_max: Vec<f32>,
}

impl Sampler {
    /// Draws the token of a position. `logits` has one entry a token.
    pub fn sample(
        &mut self,
        logits: &[f32],
        settings: &Settings,
        seed: u64,
        position: usize,
    ) -> Result<Sampled, Error> {
        settings.check()?;
        let (first, max) = self.scan(logits, position)?;
        let scale = 1.0 / settings.temperature;
        let mut weighed = None;
        let token = if scale.is_finite() {
            let total = self.weigh(logits, max, scale);
            weighed = Some((scale, total));
            let number = random::bits(seed, u64::try_from(position).unwrap_or(u64::MAX));
            self.draw(logits, (max, total), settings, number)
        } else {
            first
        };
        let mut sampled = Sampled { token: id_of(token), logprob: None, top: Vec::new() };
        if let Some(count) = settings.logprobs {
            let total = match weighed {
                Some((1.0, total)) => total,
                _ => self.weigh(logits, max, 1.0),
            };
            let normal = LogNormal::new(max, total);
            sampled.logprob = Some(normal.of(logits[token]));
            let top = select::top(logits, &self.block_max, count);
            sampled.top = top.into_iter().map(|at| (id_of(at), normal.of(logits[at]))).collect();
        }
        Ok(sampled)
    }

    /// Log probability of each token, by the rule of the page.
    pub fn logprobs(&mut self, logits: &[f32], position: usize) -> Result<LogNormal, Error> {
        let (_, max) = self.scan(logits, position)?;
        let total = self.weigh(logits, max, 1.0);
        Ok(LogNormal::new(max, total))
    }

    /// The likeliest token, the lowest id of equals, and its logit.
    fn scan(&mut self, logits: &[f32], position: usize) -> Result<(usize, f32), Error> {
        if logits.is_empty() || logits.len() > WEIGHTS_MAX {
            return Err(Error::Vocabulary { found: logits.len(), most: WEIGHTS_MAX });
        }
        self.block_max.resize(logits.len().div_ceil(LOGIT_BLOCK), 0.0);
        if !block_maxima(logits, &mut self.block_max) {
            let wrong = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
            let at = logits.iter().position(wrong).expect("one was seen");
            return Err(Error::Logit { token: id_of(at), position, value: logits[at] });
        }
        let max = self.block_max.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if max == f32::NEG_INFINITY {
            return Err(Error::NothingAllowed { position });
        }
        let block = self.block_max.iter().position(|m| *m == max).expect("it is one of them");
        let start = block * LOGIT_BLOCK;
        let inside = logits[start..].iter().position(|l| *l == max).expect("its block has it");
        Ok((start + inside, max))
    }

    fn weigh(&mut self, logits: &[f32], max: f32, scale: f64) -> u64 {
        self.weights.resize(logits.len(), 0);
        exp_weights(logits, max, scale, &mut self.weights)
    }

    fn draw(
        &mut self,
        logits: &[f32],
        (max, total): (f32, u64),
        settings: &Settings,
        number: u64,
    ) -> usize {
        let filters = select::Filters::new(settings, logits.len());
        let (weights, block_max) = (&self.weights, &self.block_max);
        let temperature = settings.temperature;
        let row = select::Row { logits, weights, total, block_max, max, temperature };
        let kept = select::cut(&row, &filters, &mut self.room);
        select::walk(&row, kept.least, random::below(number, kept.weight), &self.room)
    }
}

/// Turns logits of one row into log probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogNormal {
    max: f64,
    log_sum: f64,
}

impl LogNormal {
    fn new(max: f32, total: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "rounded once, here")]
        let sum = total as f64 / (1u64 << WEIGHT_BITS) as f64;
        LogNormal { max: f64::from(max), log_sum: libm::log(sum) }
    }

    /// Log probability of a token with this logit.
    #[must_use]
    pub fn of(&self, logit: f32) -> f64 {
        (f64::from(logit) - self.max) - self.log_sum
    }
}

fn id_of(index: usize) -> u32 {
    u32::try_from(index).expect("a vocabulary is at most 2^19")
}

#[cfg(test)]
mod tests;
