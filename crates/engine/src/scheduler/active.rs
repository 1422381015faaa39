//! A request that has a session.
//!
//! Its timeline is the prompt and the tokens drawn so far; the session has evaluated the first
//! `position` of them. Is more than one token behind that, it is read in slices; is it one, that is
//! the row of the next token.

use super::request::{Event, Failure, Request, RequestId, Sink, Stats};
use super::source::{Made, Source};
use crate::sampler::{Counts, Sampled, Sampler, Settings};
use crate::speculation::{CostModel, Proposal};
use crate::{Control, Finish, Speculation, Token};
use ironstar_device::Draw;
use std::time::Duration;

pub(super) struct Active<S> {
    pub id: RequestId,
    pub request: Request,
    pub sink: Sink,
    pub session: S,
    /// Whether what is stored for it is not all there yet.
    pub arrives: bool,
    pub timeline: Vec<u32>,
    pub context: usize,
    pub bytes: u64,
    pub how: Speculation,
    pub costs: CostModel,
    /// Who guessed for the step that is made.
    pub proposal: Proposal,
    pub counts: Counts,
    pub stats: Stats,
    /// When it was received, admitted, and when its last token came (first: the prompt's end).
    pub received: Duration,
    pub admitted: Duration,
    pub last_token: Option<Duration>,
    /// Turn that last read a slice of it.
    pub last_slice: u64,
    /// Tokens of the prompt whose log probabilities were told.
    pub scored: usize,
}

/// Rows of one request in a step.
pub(super) struct Item {
    /// Place among the active ones.
    pub index: usize,
    pub tokens: Vec<u32>,
    /// How many of them, at the end, are guesses.
    pub guesses: usize,
    /// Whether logits are wanted: not for slices before a prompt's end.
    pub draws: bool,
    /// Whether this reads a prompt.
    pub reads: bool,
    /// Whether the prompt's own tokens get log probabilities.
    pub scores: bool,
}

impl Item {
    /// Rows of logits that come back for it.
    pub fn logit_rows(&self) -> usize {
        match (self.scores, self.draws) {
            (true, _) => self.tokens.len(),
            (false, true) => self.guesses + 1,
            (false, false) => 0,
        }
    }
}

/// What a step gave for the rows of an item that want logits.
#[derive(Clone, Copy)]
pub(super) enum Given<'a> {
    Logits(&'a [f32]),
    /// A token a row, drawn as the sampler would.
    Tokens(&'a [u32]),
}

impl<'a> Given<'a> {
    /// Some rows of a step.
    pub fn of(made: &'a Made, first: usize, rows: usize, vocabulary: usize) -> Self {
        match made {
            Made::Logits(all) => {
                Given::Logits(&all[first * vocabulary..(first + rows) * vocabulary])
            }
            Made::Tokens(all) => Given::Tokens(&all[first..first + rows]),
        }
    }

    /// Logits of one of so many rows, if there are any.
    fn row(self, index: usize, rows: usize) -> Option<&'a [f32]> {
        let Given::Logits(all) = self else { return None };
        let width = all.len() / rows;
        Some(&all[index * width..(index + 1) * width])
    }
}

impl<S> Active<S> {
    /// Reads its prompt, or reads again what a failed step lost.
    pub fn is_reading(&self, position: usize) -> bool {
        self.stats.tokens == 0 || self.timeline.len() - position > 1
    }

    /// Tells how far its prompt is.
    pub fn progress(&mut self, position: usize) -> Control {
        let total = self.request.prompt.len();
        if self.stats.tokens > 0 {
            return Control::Continue;
        }
        (self.sink)(Event::Progress { done: position.min(total), total })
    }

    /// Keeps what an item evaluated, and draws what its logits allow.
    pub fn settle<T: Source<Session = S>>(
        &mut self,
        (source, sampler): (&mut T, &mut Sampler),
        item: &Item,
        mut given: Given<'_>,
        now: Duration,
    ) -> Result<Option<Finish>, Failure> {
        if let (true, Given::Logits(logits)) = (item.scores, given) {
            let (position, rows) = (source.position(&self.session), item.tokens.len());
            let width = logits.len() / rows;
            if self.score(sampler, (position, rows), logits)? == Control::Stop {
                return Ok(Some(Finish::Stopped));
            }
            given = Given::Logits(&logits[logits.len() - width..]);
        }
        if !item.draws {
            source.keep(&mut self.session, &item.tokens, None)?;
            return Ok(self.told(source));
        }
        let sure = item.tokens.len() - item.guesses;
        if item.reads {
            source.keep(&mut self.session, &item.tokens, given.row(0, 1))?;
            source.mark(&mut self.session)?;
            if let Some(finish) = self.told(source) {
                return Ok(Some(finish));
            }
            return self.draw(sampler, given, &[], now).1;
        }
        let (right, drawn) = self.draw(sampler, given, &item.tokens[sure..], now);
        let last = given.row(right, item.guesses + 1);
        source.keep(&mut self.session, &item.tokens[..sure + right], last)?;
        drawn
    }

    fn told<T: Source<Session = S>>(&mut self, source: &T) -> Option<Finish> {
        let position = source.position(&self.session);
        (self.progress(position) == Control::Stop).then_some(Finish::Stopped)
    }

    /// How a device draws its token at so many positions behind its last, if no more is wanted.
    pub fn on_device(&self, tokens: usize, guess: usize) -> Option<Draw> {
        let what = &self.request.what;
        let plain = what.adjust.is_off() && self.request.constraint.is_none();
        let position = self.timeline.len() + guess;
        what.settings.on_device(tokens, what.seed, position).filter(|_| plain)
    }

    /// Draws tokens from rows of logits as long as guesses are right: how many were, and why it
    /// ended if it did.
    pub fn draw(
        &mut self,
        sampler: &mut Sampler,
        given: Given<'_>,
        guesses: &[u32],
        now: Duration,
    ) -> (usize, Result<Option<Finish>, Failure>) {
        let mut right = 0;
        if let Some(finish) = self.limit() {
            return (right, Ok(Some(finish)));
        }
        loop {
            let sampled = match (given, given.row(right, guesses.len() + 1)) {
                (Given::Tokens(tokens), _) => {
                    Ok(Sampled { token: tokens[right], logprob: None, top: Vec::new() })
                }
                (_, row) => self.sample(sampler, row.unwrap_or_default()),
            };
            let drawn = sampled.and_then(|sampled| {
                self.accept(sampled.token)?;
                Ok(self.give(sampled, now))
            });
            let (id, control) = match drawn {
                Ok(drawn) => drawn,
                Err(failure) => return (right, Err(failure)),
            };
            let hit = guesses.get(right) == Some(&id);
            right += usize::from(hit);
            self.stats.speculation.accepted += usize::from(hit);
            let finish = if self.request.what.stop.contains(&id) {
                Some(Finish::StopToken(id))
            } else if control == Control::Stop {
                Some(Finish::Stopped)
            } else {
                self.limit()
            };
            if finish.is_some() || !hit {
                return (right, Ok(finish));
            }
        }
    }

    /// Tells log probabilities of the prompt's tokens after `position`, from the rows of those
    /// from `position` on.
    fn score(
        &mut self,
        sampler: &mut Sampler,
        (position, rows): (usize, usize),
        logits: &[f32],
    ) -> Result<Control, Failure> {
        let Some(alternatives) = self.request.prompt_logprobs else {
            return Ok(Control::Continue);
        };
        let settings = Settings { logprobs: Some(alternatives), ..Settings::greedy() };
        let prompt = &self.request.prompt;
        let mut told = Vec::new();
        if self.scored == 0 {
            told.push(Token { id: prompt[0], position: 0, logprob: None, top: Vec::new() });
        }
        let width = logits.len() / rows;
        let first = position + 1;
        for (row, (at, &id)) in
            logits.chunks_exact(width).zip(prompt.iter().enumerate().skip(first))
        {
            if at < self.scored {
                // A slice that was read again after a failure.
                continue;
            }
            let top = sampler.sample(row, &settings, 0, at)?.top;
            let logprob = row.get(id as usize).copied();
            let logprob = logprob.map(|logit| sampler.logprobs(row, at).map(|n| n.of(logit)));
            let logprob = logprob.transpose()?;
            told.push(Token { id, position: at, logprob, top });
        }
        self.scored += told.len();
        Ok((self.sink)(Event::Prompt(told)))
    }

    /// The first of these guesses, as far as they may follow.
    pub fn allowed(&mut self, mut guesses: Vec<u32>) -> Vec<u32> {
        if let Some(constraint) = &mut self.request.constraint {
            guesses.truncate(constraint.allowed(&guesses));
        }
        guesses
    }

    fn sample(&mut self, sampler: &mut Sampler, row: &[f32]) -> Result<Sampled, Failure> {
        let (what, position) = (&self.request.what, self.timeline.len());
        if what.adjust.is_off() && self.request.constraint.is_none() {
            return Ok(sampler.sample(row, &what.settings, what.seed, position)?);
        }
        let mut row = row.to_vec();
        what.adjust.apply(&mut row, &self.counts);
        if let Some(constraint) = &mut self.request.constraint {
            constraint.mask(&mut row).map_err(Failure::Constraint)?;
        }
        Ok(sampler.sample(&row, &what.settings, what.seed, position)?)
    }

    fn accept(&mut self, token: u32) -> Result<(), Failure> {
        match &mut self.request.constraint {
            Some(constraint) if !self.request.what.stop.contains(&token) => {
                constraint.accept(token).map_err(Failure::Constraint)
            }
            _ => Ok(()),
        }
    }

    fn give(&mut self, sampled: Sampled, now: Duration) -> (u32, Control) {
        let Sampled { token: id, logprob, top } = sampled;
        let token = Token { id, position: self.timeline.len(), logprob, top };
        self.timeline.push(id);
        self.counts.add(id);
        self.stats.tokens += 1;
        match self.last_token {
            None => self.stats.reading = now.saturating_sub(self.admitted),
            Some(last) => self.stats.gap_max = self.stats.gap_max.max(now.saturating_sub(last)),
        }
        self.last_token = Some(now);
        (id, (self.sink)(Event::Token(token)))
    }

    /// Why no further token may be given.
    fn limit(&self) -> Option<Finish> {
        if self.request.what.tokens_max.is_some_and(|most| self.stats.tokens >= most) {
            Some(Finish::TokensMax)
        } else if self.timeline.len() >= self.context {
            Some(Finish::Context)
        } else {
            None
        }
    }

    /// Guesses that may follow its next token.
    pub fn guesses_max(&self) -> usize {
        let room = self.context - self.timeline.len();
        let left = self.request.what.tokens_max.map_or(usize::MAX, |most| most - self.stats.tokens);
        room.min(left).saturating_sub(1)
    }
}
