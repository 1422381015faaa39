//! A source without weights: prepared answers, times and faults.
//!
//! It stands in for sessions and not for a device, since what a server's tests prepare is tokens:
//! a backend would have to be told numbers of which a model makes them.

use super::clock::Clock;
use super::source::{Facts, Rows, Source, Work};
use crate::{Error, Speculation};
use std::collections::VecDeque;
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
    /// Time that the step with the token at a position takes besides.
    pub delays: Vec<(usize, Duration)>,
}

/// Finds the reply to a prompt.
pub type Choose = Box<dyn FnMut(&[u32]) -> Option<Reply> + Send>;

/// Makes another time of a step's.
pub type Uneven = Box<dyn FnMut(Duration) -> Duration + Send>;

/// Timelines that a script remembers.
const KEPT_MAX: usize = 64;

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
    /// Looks for a reply where no prompt of `replies` is the one.
    pub choose: Option<Choose>,
    /// Answer to any other prompt.
    pub other: Vec<u32>,
    /// Token after every answer.
    pub end: u32,
    /// Time of a step of no rows.
    pub step_time: Duration,
    /// Time of each row.
    pub row_time: Duration,
    /// Time of a session's beginning, and of the mark at a prompt's end.
    pub edge_time: Duration,
    /// What becomes of a step's time, as on a machine that others use too.
    pub uneven: Option<Uneven>,
    /// Memory of a token's state.
    pub token_bytes: u64,
    /// Whether a session starts where an earlier one has been, as a model with checkpoints does.
    pub reuse: bool,
    /// Waits for these times.
    pub clock: Box<dyn Clock>,
    kept: VecDeque<Vec<u32>>,
}

impl Script {
    /// A script that answers everything with `other`, at once.
    #[must_use]
    pub fn new(clock: Box<dyn Clock>, other: Vec<u32>, end: u32) -> Script {
        let vocabulary = other.iter().copied().chain([end]).max().map_or(1, |t| t as usize + 1);
        Script {
            facts: Facts { vocabulary, context: 1 << 20, step_rows: 512, drafter: false },
            replies: Vec::new(),
            choose: None,
            other,
            end,
            step_time: Duration::ZERO,
            row_time: Duration::ZERO,
            edge_time: Duration::ZERO,
            uneven: None,
            token_bytes: 1,
            reuse: false,
            clock,
            kept: VecDeque::new(),
        }
    }

    /// Tokens at the start that a timeline seen before has too; one is always left to evaluate.
    fn known(&self, tokens: &[u32]) -> usize {
        let common = |kept: &Vec<u32>| kept.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let most = self.kept.iter().map(common).max().unwrap_or(0);
        if self.reuse { most.min(tokens.len().saturating_sub(1)) } else { 0 }
    }

    fn remember(&mut self, timeline: &[u32]) {
        if self.reuse {
            self.kept.truncate(KEPT_MAX - 1);
            self.kept.push_front(timeline.to_vec());
        }
    }

    fn row(&self, session: &Part, position: usize) -> Vec<f32> {
        if session.fault == Some((position, Fault::Nan)) {
            return vec![f32::NAN; self.facts.vocabulary];
        }
        let next = position + 1;
        let in_prompt = session.prompt.get(next).copied();
        let at = next.checked_sub(session.prompt.len());
        let answer = || at.and_then(|at| session.answer.get(at)).copied();
        let token = in_prompt.or_else(answer).unwrap_or(self.end);
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
    prompt: Vec<u32>,
    answer: Vec<u32>,
    fault: Option<(usize, Fault)>,
    delays: Vec<(usize, Duration)>,
    timeline: Vec<u32>,
}

impl Source for Script {
    type Session = Part;

    fn facts(&self) -> Facts {
        self.facts
    }

    fn session_bytes(&self, context: usize) -> u64 {
        self.token_bytes.saturating_mul(u64::try_from(context).unwrap_or(u64::MAX))
    }

    fn open(&mut self, _context: usize, tokens: &[u32], fresh: bool) -> Result<Part, Error> {
        self.clock.wait(self.edge_time);
        let mut reply = self.replies.iter().find(|reply| reply.prompt == tokens).cloned();
        if reply.is_none() {
            reply = self.choose.as_mut().and_then(|choose| choose(tokens));
        }
        let reply =
            reply.unwrap_or_else(|| Reply { answer: self.other.clone(), ..Reply::default() });
        let Reply { answer, fault, delays, .. } = reply;
        let known = if fresh { 0 } else { self.known(tokens) };
        let timeline = tokens[..known].to_vec();
        Ok(Part { prompt: tokens.to_vec(), answer, fault, delays, timeline })
    }

    fn position(&self, session: &Part) -> usize {
        session.timeline.len()
    }

    fn logits<'s>(&self, _session: &'s Part) -> Option<&'s [f32]> {
        None
    }

    fn guess(&mut self, _: &mut Part, _: u32, _: Speculation, _: usize) -> Result<Vec<u32>, Error> {
        Ok(Vec::new())
    }

    fn step(&mut self, work: &mut [Work<'_, Part>]) -> Result<Vec<f32>, Error> {
        let rows: usize = work.iter().map(|item| item.tokens.len()).sum();
        let total = u32::try_from(rows).unwrap_or(u32::MAX);
        let mut time = self.step_time + self.row_time * total;
        for item in work.iter() {
            let start = item.session.timeline.len();
            let hit = |d: &&(usize, Duration)| (start..start + item.tokens.len()).contains(&d.0);
            time += item.session.delays.iter().filter(hit).map(|d| d.1).sum::<Duration>();
        }
        let time = self.uneven.as_mut().map_or(time, |uneven| uneven(time));
        self.clock.wait(time);
        let mut logits = Vec::new();
        for item in work.iter() {
            let start = item.session.timeline.len();
            let positions = start..start + item.tokens.len();
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
        session.timeline.extend_from_slice(tokens);
        Ok(())
    }

    fn mark(&mut self, session: &mut Part) -> Result<(), Error> {
        self.clock.wait(self.edge_time);
        self.remember(&session.timeline);
        Ok(())
    }

    fn close(&mut self, session: Part) {
        self.remember(&session.timeline);
    }
}
