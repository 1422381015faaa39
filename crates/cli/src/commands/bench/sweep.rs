//! Reading and answering at every frontier, with the time of each.

use super::plan::Plan;
use crate::bandwidth::{Moment, Seconds};
use crate::failure::Failure;
use crate::flags::Fill;
use crate::loading;
use crate::progress::Progress;
use ironstar_device::Counters;
use ironstar_engine::scheduler::{Rows, Source, Work};
use ironstar_engine::{CancelFlag, Engine, Session, Snapshot};

/// Work of some tokens.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Tokens of all sessions together.
    pub tokens: usize,
    /// Time they took together.
    pub time: Seconds,
    /// Bytes of weights and state that were read for them.
    pub bytes: u64,
}

/// A frontier.
#[derive(Clone, Debug)]
pub struct Row {
    /// Tokens before the answer.
    pub context: usize,
    /// Reading of what is new since the frontier before.
    pub prefill: Measured,
    /// The whole answer; `None` where none was wanted.
    pub decode: Option<Measured>,
    /// The first step of it.
    pub first_seconds: f64,
    /// All steps after the first.
    pub steady: Option<Measured>,
    /// Bytes of one session's state at the frontier.
    pub state_bytes: u64,
}

impl Measured {
    /// Tokens a second.
    pub fn rate(&self) -> f64 {
        count(self.tokens) / self.time.wall
    }

    fn improve(&mut self, other: &Measured) {
        self.time.wall = self.time.wall.min(other.time.wall);
        let both = self.time.processor.zip(other.time.processor);
        self.time.processor = both.map(|(a, b)| a.min(b));
    }
}

impl Row {
    /// The better of each time.
    pub fn improve(&mut self, other: &Row) {
        self.prefill.improve(&other.prefill);
        for (mine, other) in [(&mut self.decode, &other.decode), (&mut self.steady, &other.steady)]
        {
            if let (Some(mine), Some(other)) = (mine, other) {
                mine.improve(other);
            }
        }
        self.first_seconds = self.first_seconds.min(other.first_seconds);
    }
}

/// A count as a number to divide by.
#[expect(clippy::cast_precision_loss, reason = "counts of tokens, for people")]
pub fn count(n: usize) -> f64 {
    n as f64
}

/// Measures all frontiers once, in new sessions.
pub fn sweep(
    engine: &mut Engine,
    plan: &Plan,
    repeat: usize,
    cancel: &CancelFlag,
) -> Result<Vec<Row>, Failure> {
    let mut sessions = (0..plan.sessions)
        .map(|_| engine.session(plan.context).map_err(loading::from_engine))
        .collect::<Result<Vec<Session>, Failure>>()?;
    let mut rows = Vec::new();
    for (index, &frontier) in plan.frontiers.iter().enumerate() {
        let from = match (plan.fill, index) {
            (Fill::Random, _) => frontier.saturating_sub(plan.tail),
            (Fill::Read, 0) => 0,
            (Fill::Read, _) => plan.frontiers[index - 1],
        };
        if plan.fill == Fill::Random {
            for (number, session) in sessions.iter_mut().enumerate() {
                let tokens = plan.tokens(number, from);
                let seed = plan.seed.wrapping_add(number as u64);
                session.fill_random(engine, &tokens, seed).map_err(loading::from_engine)?;
            }
        }
        let what = format!("sweep {}, {frontier} tokens", repeat + 1);
        let total = (frontier - from + plan.answer) * plan.sessions;
        let progress = Progress::new(&what, total as u64, "tokens");
        let prefill = read(engine, &mut sessions, plan, from..frontier, &progress, cancel)?;
        let state_bytes = sessions.first().map_or(0, Session::state_bytes);
        let goes_on = plan.fill == Fill::Read && index + 1 < plan.frontiers.len();
        let before = snapshots(engine, &sessions, goes_on && plan.answer > 0)?;
        let steps = answer(engine, &mut sessions, plan, frontier, &progress, cancel)?;
        for (session, snapshot) in sessions.iter_mut().zip(&before) {
            session.restore(engine, snapshot).map_err(loading::from_engine)?;
        }
        rows.push(Row {
            context: frontier,
            prefill,
            decode: sum(&steps),
            first_seconds: steps.first().map_or(0.0, |step| step.time.wall),
            steady: sum(steps.get(1..).unwrap_or_default()),
            state_bytes,
        });
    }
    Ok(rows)
}

fn snapshots(
    engine: &mut Engine,
    sessions: &[Session],
    wanted: bool,
) -> Result<Vec<Snapshot>, Failure> {
    let sessions = sessions.iter().filter(|_| wanted);
    sessions.map(|session| session.snapshot(engine).map_err(loading::from_engine)).collect()
}

/// Reads every session's tokens of these positions, one session after the other.
fn read(
    engine: &mut Engine,
    sessions: &mut [Session],
    plan: &Plan,
    positions: std::ops::Range<usize>,
    progress: &Progress,
    cancel: &CancelFlag,
) -> Result<Measured, Failure> {
    let (begun, before) = (Moment::now(), engine.counters());
    let mut state_bytes = 0;
    for (number, session) in sessions.iter_mut().enumerate() {
        let tokens = plan.tokens(number, positions.end);
        let mut on_progress = |p: ironstar_engine::SyncProgress| {
            let done = number * positions.len() + p.done.saturating_sub(positions.start);
            progress.at(done as u64);
        };
        session.sync(engine, &tokens, &mut on_progress, cancel).map_err(loading::from_engine)?;
        // A chunk's rows share what they read of the state, so each step counts it once.
        let steps = positions.len().div_ceil(engine.options().step_rows) as u64;
        state_bytes += steps * session.read_bytes();
    }
    let bytes = weight_bytes(&engine.counters(), &before) + state_bytes;
    Ok(Measured { tokens: positions.len() * sessions.len(), time: begun.elapsed(), bytes })
}

/// Makes an answer in every session, one token each a step, and gives the steps.
fn answer(
    engine: &mut Engine,
    sessions: &mut [Session],
    plan: &Plan,
    frontier: usize,
    progress: &Progress,
    cancel: &CancelFlag,
) -> Result<Vec<Measured>, Failure> {
    let mut steps = Vec::new();
    let done = progress_at(plan, frontier);
    let mut next: Vec<[u32; 1]> = Vec::new();
    for (number, session) in sessions.iter().enumerate() {
        let logits = session.logits().unwrap_or_default();
        next.push([choose(plan, number, frontier, logits)]);
    }
    for index in 0..plan.answer {
        if cancel.is_raised() {
            return Err(Failure::interrupted());
        }
        let (begun, before) = (Moment::now(), engine.counters());
        let state_bytes: u64 = sessions.iter().map(Session::read_bytes).sum();
        let mut work: Vec<_> = sessions
            .iter_mut()
            .zip(&next)
            .map(|(session, tokens)| Work { session, tokens, logits: Rows::Last })
            .collect();
        let logits = engine.step(&mut work).map_err(loading::from_engine)?;
        let rows = logits.chunks_exact(logits.len() / sessions.len().max(1));
        for (number, (session, row)) in sessions.iter_mut().zip(rows).enumerate() {
            engine.keep(session, &next[number], None).map_err(loading::from_engine)?;
            next[number] = [choose(plan, number, frontier + index + 1, row)];
        }
        let bytes = weight_bytes(&engine.counters(), &before) + state_bytes;
        steps.push(Measured { tokens: sessions.len(), time: begun.elapsed(), bytes });
        progress.at((done + (index + 1) * sessions.len()) as u64);
    }
    Ok(steps)
}

/// Tokens that were read before the answer, of the bar's.
fn progress_at(plan: &Plan, frontier: usize) -> usize {
    let before = plan.frontiers.iter().take_while(|f| **f < frontier).last().copied();
    let from = match plan.fill {
        Fill::Random => frontier.saturating_sub(plan.tail),
        Fill::Read => before.unwrap_or(0),
    };
    (frontier - from) * plan.sessions
}

/// The likeliest token that does not end the answer, or the prompt's.
fn choose(plan: &Plan, session: usize, position: usize, logits: &[f32]) -> u32 {
    if plan.teacher_forced {
        return plan.token(session, position);
    }
    let (mut best, mut most) = (0, f32::NEG_INFINITY);
    for (id, &logit) in (0u32..).zip(logits) {
        if logit > most && Some(id) != plan.end {
            (best, most) = (id, logit);
        }
    }
    best
}

fn weight_bytes(now: &Counters, before: &Counters) -> u64 {
    now.dense_bytes - before.dense_bytes + now.expert_bytes - before.expert_bytes
}

fn sum(steps: &[Measured]) -> Option<Measured> {
    let (first, rest) = steps.split_first()?;
    Some(rest.iter().fold(*first, |all, step| {
        let processor = all.time.processor.zip(step.time.processor).map(|(a, b)| a + b);
        Measured {
            tokens: all.tokens + step.tokens,
            time: Seconds { wall: all.time.wall + step.time.wall, processor },
            bytes: all.bytes + step.bytes,
        }
    }))
}
