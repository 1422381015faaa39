//! Answers: tokens drawn one after the other, with or without guesses.
//!
//! A step evaluates the last token and the guesses after it. The sampler draws the token of each
//! position from the rows in turn; a guess that is the drawn token lets the next row be used, the
//! first that is not ends the block. So the drawn tokens are those of plain decoding, whatever was
//! guessed.

use crate::draft;
use crate::sampler::{Adjust, Counts, Sampled, Settings};
use crate::speculation::{Cycle, Guesser, Proposal, Wish, propose};
use crate::{CancelFlag, Engine, Error, Session, Speculation, SpeculationReport};
use ironstar_device::Draw;
use ironstar_model::LogitsFor;
use std::time::{Duration, Instant};

/// What is to be generated.
#[derive(Clone, Debug, Default)]
pub struct Generate {
    /// How tokens are drawn.
    pub settings: Settings,
    /// Biases and penalties.
    pub adjust: Adjust,
    /// Seed of the draws.
    pub seed: u64,
    /// Most tokens; `None` stops at the end of the context only.
    pub tokens_max: Option<usize>,
    /// Tokens that end the answer; the one that does is given to the caller as the last.
    pub stop: Vec<u32>,
    /// Where guesses come from.
    pub speculation: Speculation,
}

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its position in the session.
    pub position: usize,
    /// Natural logarithm of its probability, where asked for.
    pub logprob: Option<f64>,
    /// The likeliest tokens with theirs, where asked for.
    pub top: Vec<(u32, f64)>,
}

/// What the receiver of a token wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Another one.
    Continue,
    /// No more.
    Stop,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token came.
    StopToken(u32),
    /// The receiver wanted no more.
    Stopped,
    /// As many tokens as were allowed.
    TokensMax,
    /// The session is full.
    Context,
    /// The flag was raised.
    Cancelled,
}

/// How an answer went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Tokens given.
    pub tokens: usize,
    /// Why it ended.
    pub finish: Finish,
    /// What guessing gained.
    pub speculation: SpeculationReport,
}

/// Rows of a step: its logits, and the guesses that each row but the first stands for.
struct Block {
    /// Empty where the device has drawn the tokens and nobody has looked yet; it has them until its
    /// next step.
    logits: Vec<f32>,
    /// Tokens that the device has drawn; `None` where the sampler must look at the logits.
    drawn: Vec<Option<u32>>,
    guesses: Vec<u32>,
    /// Row in use; the guesses before it were right.
    row: usize,
    /// The step that evaluated the rows, which are not kept yet.
    step: Option<Made>,
    /// Whether the answer ended with a right guess.
    is_cut: bool,
}

/// How the rows of a block came about.
struct Made {
    guesser: Option<Guesser>,
    /// Guesses that were asked for.
    asked: usize,
    /// Time of the drafter, and of the step.
    times: [Duration; 2],
}

impl Block {
    /// Reads the logits, if they are still on the device.
    fn fetch(&mut self, engine: &mut Engine) -> Result<(), Error> {
        if self.logits.is_empty() {
            self.logits = engine.drawn_logits(self.guesses.len() + 1)?;
        }
        Ok(())
    }

    /// Those of the row in use, once they are read.
    fn logits(&self) -> &[f32] {
        let width = self.logits.len() / (self.guesses.len() + 1);
        &self.logits[self.row * width..(self.row + 1) * width]
    }
}

impl Session {
    /// Draws tokens after the session's last one, and adds them to it. The flag is looked at before
    /// each step.
    ///
    /// The last token of an answer may wait to be evaluated; the next call does that. So one call
    /// for ten tokens gives what two for five do.
    pub fn generate(
        &mut self,
        engine: &mut Engine,
        what: &Generate,
        on_token: &mut dyn FnMut(&Token) -> Control,
        cancel: &CancelFlag,
    ) -> Result<Generated, Error> {
        what.settings.check()?;
        what.adjust.check(engine.model.shape().vocabulary)?;
        let (how, spark) = (what.speculation, engine.model.spark().is_some());
        let wrong = match how {
            Speculation::Mtp => !engine.model.has_mtp(),
            Speculation::Dspark => !spark,
            _ => false,
        };
        if wrong {
            return Err(Error::NoDrafter);
        }
        if self.timeline.is_empty() {
            return Err(Error::Empty("generate"));
        }
        let counts = if what.adjust.has_penalties() {
            Counts::of_prompt(&self.timeline)
        } else {
            Counts::default()
        };
        let report = SpeculationReport::default();
        let mut answer = Answer { what, how, counts, given: 0, report };
        let finish = match self.catch_up(engine, &mut |_| {}, cancel) {
            Err(Error::Cancelled { .. }) => Finish::Cancelled,
            Err(error) => return Err(error),
            Ok(_) => answer.run(self, engine, on_token, cancel)?,
        };
        engine.costs = self.costs.clone();
        self.checkpoint_if_far(engine)?;
        Ok(Generated { tokens: answer.given, finish, speculation: answer.report })
    }

    /// Keeps the rows of a block that were right, and the logits of the last of them: where they
    /// are still on the device, only if somebody may ask for them, since the answer ends or a
    /// checkpoint is due.
    fn settle(
        &mut self,
        engine: &mut Engine,
        block: &mut Block,
        (report, ends): (&mut SpeculationReport, bool),
    ) -> Result<(), Error> {
        let Some(made) = &block.step else { return Ok(()) };
        let cycle = Cycle {
            guesser: made.guesser,
            asked: made.asked,
            guesses: block.guesses.len(),
            right: block.row,
            is_cut: block.is_cut,
            times: made.times,
        };
        self.costs.observe(&cycle);
        report.count(&cycle);
        let (before, spacing) = (self.position(), engine.options.checkpoint_spacing);
        let is_due = before / spacing != (before + block.row + 1) / spacing;
        if ends || is_due {
            block.fetch(engine)?;
        }
        self.keep(engine, block.row + 1)?;
        self.logits.clear();
        self.logits_at = 0;
        if !block.logits.is_empty() {
            self.logits.extend_from_slice(block.logits());
            self.logits_at = self.position();
        }
        if is_due {
            self.checkpoint(engine)?;
        }
        Ok(())
    }
}

/// An answer while it is made.
struct Answer<'a> {
    what: &'a Generate,
    how: Speculation,
    counts: Counts,
    given: usize,
    report: SpeculationReport,
}

impl Answer<'_> {
    fn run(
        &mut self,
        session: &mut Session,
        engine: &mut Engine,
        on_token: &mut dyn FnMut(&Token) -> Control,
        cancel: &CancelFlag,
    ) -> Result<Finish, Error> {
        if let Some(finish) = self.limit(session) {
            return Ok(finish);
        }
        let logits = session.logits.clone();
        let (drawn, guesses) = (Vec::new(), Vec::new());
        let mut block = Block { logits, drawn, guesses, row: 0, step: None, is_cut: false };
        loop {
            let drawn = self.draw(engine, &mut block, session.timeline.len());
            let Sampled { token: id, logprob, top } = match drawn {
                Ok(sampled) => sampled,
                Err(error) => {
                    session.settle(engine, &mut block, (&mut self.report, true))?;
                    return Err(error);
                }
            };
            let token = Token { id, position: session.timeline.len(), logprob, top };
            session.timeline.push(id);
            self.counts.add(id);
            self.given += 1;
            let right = block.guesses.get(block.row) == Some(&id);
            block.row += usize::from(right);
            self.report.accepted += usize::from(right);
            let control = on_token(&token);
            let finish = if self.what.stop.contains(&id) {
                Some(Finish::StopToken(id))
            } else if control == Control::Stop {
                Some(Finish::Stopped)
            } else {
                self.limit(session)
            };
            if finish.is_none() && right {
                continue;
            }
            block.is_cut = right;
            let finish = finish.or_else(|| cancel.is_raised().then_some(Finish::Cancelled));
            session.settle(engine, &mut block, (&mut self.report, finish.is_some()))?;
            if let Some(finish) = finish {
                return Ok(finish);
            }
            block = self.step(session, engine)?;
        }
    }

    /// Why no further token may be given.
    fn limit(&self, session: &Session) -> Option<Finish> {
        if self.what.tokens_max.is_some_and(|most| self.given >= most) {
            Some(Finish::TokensMax)
        } else if session.timeline.len() >= session.context() {
            Some(Finish::Context)
        } else {
            None
        }
    }

    fn draw(
        &mut self,
        engine: &mut Engine,
        block: &mut Block,
        position: usize,
    ) -> Result<Sampled, Error> {
        if let Some(Some(token)) = block.drawn.get(block.row) {
            return Ok(Sampled { token: *token, logprob: None, top: Vec::new() });
        }
        block.fetch(engine)?;
        let (what, sampler) = (self.what, &mut engine.sampler);
        if what.adjust.is_off() {
            return sampler.sample(block.logits(), &what.settings, what.seed, position);
        }
        let mut logits = block.logits().to_vec();
        what.adjust.apply(&mut logits, &self.counts);
        sampler.sample(&logits, &what.settings, what.seed, position)
    }

    /// Evaluates the last token, and guesses after it.
    fn step(&mut self, session: &mut Session, engine: &mut Engine) -> Result<Block, Error> {
        let start = Instant::now();
        // The last token of all is not worth a guess: nothing follows it.
        let room = session.context() - session.timeline.len();
        let left = self.what.tokens_max.map_or(usize::MAX, |most| most - self.given);
        let most = room.min(left).saturating_sub(1).min(engine.model.options().step_rows_max - 1);
        let (how, drafter) = (self.how, draft::drafter(&engine.model));
        let mut costs = std::mem::take(&mut session.costs);
        let wish = Wish { how, drafter, text: &session.timeline, most };
        let mut draft = |count| draft::guess(session, engine, how, count);
        let proposal = propose(&mut costs, &wish, &|| start.elapsed(), &mut draft);
        session.costs = costs;
        let Proposal { guesser, tokens: guesses, asked, drafting } = proposal?;
        let last = session.timeline.last().expect("generate refuses an empty session");
        let tokens = [&[*last], &guesses[..]].concat();
        let was_restored = session.is_just_restored();
        let draws = self.draws(engine, session.timeline.len(), tokens.len());
        let evaluate = |session: &mut Session, engine: &mut Engine| match &draws {
            Some(draws) => Ok((Vec::new(), session.step_drawn(engine, &tokens, draws)?)),
            None => {
                let made = session.step(engine, &tokens, LogitsFor::All, LogitsFor::None)?;
                let values = made.logits.values().to_vec();
                engine.model.take_back(made.logits);
                Ok((values, Vec::new()))
            }
        };
        let mut output: Result<_, Error> = evaluate(session, engine);
        if output.is_err() && was_restored {
            session.read_again(engine)?;
            output = evaluate(session, engine);
        }
        let (logits, drawn) = output?;
        self.report.steps += 1;
        self.report.drafted += guesses.len();
        let times = [drafting, start.elapsed().saturating_sub(drafting)];
        let step = Some(Made { guesser, asked, times });
        Ok(Block { logits, drawn, guesses, row: 0, step, is_cut: false })
    }

    /// How the device draws the tokens of so many positions, if it can and no more is wanted.
    fn draws(&self, engine: &Engine, position: usize, rows: usize) -> Option<Vec<Draw>> {
        if !self.what.adjust.is_off() || rows > engine.draw_rows() {
            return None;
        }
        let (what, tokens) = (self.what, engine.model.shape().vocabulary);
        let all = position..position + rows;
        all.map(|position| what.settings.on_device(tokens, what.seed, position)).collect()
    }
}
