//! A source without weights: prepared answers, times and faults.
//!
//! It stands in for sessions and not for a device, since what a server's tests prepare is tokens:
//! a backend would have to be told numbers of which a model makes them.

use super::clock::Clock;
use super::source::{Facts, Rows, Source, Work};
use crate::{Error, Speculation};
use std::time::Duration;

/// What a script answers to one prompt.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The whole prompt.
    pub prompt: Vec<u32>,
    /// Tokens of the answer; [`Script::end`] follows.
    pub answer: Vec<u32>,
    /// What goes wrong in the step that evaluates the token at this position.
    pub fault: Option<(usize, Fault)>,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device fails.
    Error,
    /// The engine panics.
    Panic,
    /// The logits are not numbers.
    Nan,
}

/// Prepared answers, with the times that a model would take.
pub struct Script {
    /// What it claims to be.
    pub facts: Facts,
    /// Answers by prompt.
    pub replies: Vec<Reply>,
    /// Answer to any other prompt.
    pub other: Vec<u32>,
    /// Token after every answer.
    pub end: u32,
    /// Time of a step of no rows.
    pub step_time: Duration,
    /// Time of each row.
    pub row_time: Duration,
    /// Memory of a token's state.
    pub token_bytes: u64,
    /// Waits for these times.
    pub clock: Box<dyn Clock>,
    /// Rows of each session in each step so far.
    pub log: Vec<Vec<usize>>,
}

impl Script {
    /// A script that answers everything with `other`, at once.
    #[must_use]
    pub fn new(clock: Box<dyn Clock>, other: Vec<u32>, end: u32) -> Script {
        let vocabulary = other.iter().copied().chain([end]).max().map_or(1, |t| t as usize + 1);
        Script {
            facts: Facts { vocabulary, context: 1 << 20, step_rows: 512, drafter: false },
            replies: Vec::new(),
            other,
            end,
            step_time: Duration::ZERO,
            row_time: Duration::ZERO,
            token_bytes: 1,
            clock,
            log: Vec::new(),
        }
    }

    fn row(&self, session: &Part, position: usize) -> Vec<f32> {
        if session.fault == Some((position, Fault::Nan)) {
            return vec![f32::NAN; self.facts.vocabulary];
        }
        let at = (position + 1).checked_sub(session.prompt);
        let token = at.and_then(|at| session.answer.get(at)).copied().unwrap_or(self.end);
        let mut row = vec![-1000.0; self.facts.vocabulary];
        if let Some(logit) = row.get_mut(token as usize) {
            *logit = 0.0;
        }
        row
    }
}

/// A session of a script.
#[derive(Clone, Debug)]
pub struct Part {
    prompt: usize,
    answer: Vec<u32>,
    fault: Option<(usize, Fault)>,
    position: usize,
}

impl Source for Script {
    type Session = Part;

    fn facts(&self) -> Facts {
        self.facts
    }

    fn session_bytes(&self, context: usize) -> u64 {
        self.token_bytes.saturating_mul(u64::try_from(context).unwrap_or(u64::MAX))
    }

    fn open(&mut self, _context: usize, tokens: &[u32]) -> Result<Part, Error> {
        let reply = self.replies.iter().find(|reply| reply.prompt == tokens);
        let answer = reply.map_or_else(|| self.other.clone(), |reply| reply.answer.clone());
        let fault = reply.and_then(|reply| reply.fault);
        Ok(Part { prompt: tokens.len(), answer, fault, position: 0 })
    }

    fn position(&self, session: &Part) -> usize {
        session.position
    }

    fn logits<'s>(&self, _session: &'s Part) -> Option<&'s [f32]> {
        None
    }

    fn guess(&mut self, _: &mut Part, _: u32, _: Speculation, _: usize) -> Result<Vec<u32>, Error> {
        Ok(Vec::new())
    }

    fn step(&mut self, work: &mut [Work<'_, Part>]) -> Result<Vec<f32>, Error> {
        let rows: Vec<usize> = work.iter().map(|item| item.tokens.len()).collect();
        let total = u32::try_from(rows.iter().sum::<usize>()).unwrap_or(u32::MAX);
        self.log.push(rows);
        self.clock.wait(self.step_time + self.row_time * total);
        let mut logits = Vec::new();
        for item in work.iter() {
            let positions = item.session.position..item.session.position + item.tokens.len();
            match item.session.fault {
                Some((at, Fault::Error)) if positions.contains(&at) => {
                    let what = "a scripted fault".to_owned();
                    let device = "script";
                    return Err(ironstar_device::Error::Memory { device, what, wanted: 1 }.into());
                }
                Some((at, Fault::Panic)) if positions.contains(&at) => {
                    panic!("a scripted panic at position {at}")
                }
                _ => {}
            }
            let first = match item.logits {
                Rows::None => positions.end,
                Rows::Last => positions.end - 1,
                Rows::All => positions.start,
            };
            (first..positions.end).for_each(|at| logits.extend(self.row(item.session, at)));
        }
        Ok(logits)
    }

    fn keep(
        &mut self,
        session: &mut Part,
        tokens: &[u32],
        _logits: Option<&[f32]>,
    ) -> Result<(), Error> {
        session.position += tokens.len();
        Ok(())
    }

    fn mark(&mut self, _session: &mut Part) -> Result<(), Error> {
        Ok(())
    }

    fn close(&mut self, _session: Part) {}
}
