//! The cost model: how many guesses give the most tokens a second.
//!
//! It sees durations and counts, no clock. Times are kept in seconds and compared in *plain steps*,
//! the time of a step without guesses. With a(k) the share of k-th guesses that are right where
//! those before were, n guesses give `1 + a(1) + a(1) a(2) + ...` tokens for `draft(n) +
//! step(n + 1)`; the n with the best quotient is taken if it beats one token a plain step.
//!
//! A drafter gives only guesses that it is sure of. So of n that are asked for the k-th is there,
//! and costs, with a chance of its own; a guess that is not there counts as a wrong one.
//!
//! What a trial may lose is bounded by a *credit*, in plain steps: it grows by [`ALLOWANCE`] of the
//! time that passes and by what guessing gains, shrinks by what guessing loses, and never exceeds
//! [`CREDIT_MAX`]. A guess is tried only if its loss, were all of it wrong, is within the credit.
//! So whatever the text does, N tokens take no longer than N (1 + ALLOWANCE) + CREDIT_MAX plain
//! steps and the error of a first measurement. A guesser that does not pay rests, and is tried
//! afresh when the credit is whole and a pause, each longer than the last, is over. A session's
//! credit goes on to the next one, so that many short answers lose no more than a long one.

use super::Drafter;
use crate::draft::DRAFTS_MAX;
use std::time::Duration;

/// Part of the time that trials may cost.
const ALLOWANCE: f64 = 0.015;
/// Most plain steps that trials may cost at once; also what the first session begins with.
const CREDIT_MAX: f64 = 3.0;
/// Plain steps before the first guess: they are what everything is compared with.
const PLAIN_MIN: u32 = 2;
/// Steps with guesses before a plain one keeps the comparison honest.
const GUESSING_MAX: u32 = 64;
/// Steps that a guesser rests, at first and at most.
const PAUSE: (u32, u32) = (64, 1024);
/// Steps with guesses before a guesser may be judged: the first times that a clock gives are often
/// wrong.
const TRIES_MIN: u32 = 4;
/// Steps with guesses after which a guesser has proved itself.
const PROVED: u32 = 32;
/// What is expected of a first guess before any was seen, worth so many tries.
const PRIOR: (f64, f64) = (0.75, 2.0);
/// Tries of another session that count at the beginning of one.
const INHERITED: f64 = 4.0;
/// How much of what was seen is remembered from one try to the next.
const MEMORY: f64 = 0.95;
/// Samples that a mean of times remembers.
const TIMES: u32 = 8;
/// Plain steps a further row, and a guess of a drafter, are thought to cost before either is
/// measured.
const ROW: f64 = 0.15;
const GUESS: f64 = 0.1;

/// Who guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guesser {
    /// Repeats of the text, which cost nothing.
    Lookup,
    /// The model's drafter.
    Drafter,
}

/// What there is to choose from for a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// Guesses that the text has.
    pub found: usize,
    /// How the drafter works, where it may be asked.
    pub drafter: Option<Drafter>,
    /// Most guesses.
    pub most: usize,
    /// Whether one must guess where one can.
    pub is_forced: bool,
}

/// A step and what came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cycle {
    /// `None`: a plain step that nobody guessed for.
    pub guesser: Option<Guesser>,
    /// Guesses that were asked for.
    pub asked: usize,
    /// Guesses that were verified.
    pub guesses: usize,
    /// How many of them were right.
    pub right: usize,
    /// Whether the answer ended there, so that the next guess says nothing.
    pub is_cut: bool,
    /// Time of the drafter, and of the step.
    pub times: [Duration; 2],
}

/// A mean of recent times in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    seconds: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, seconds: f64) {
        // A machine that was busy elsewhere says nothing of the work.
        let seconds = if self.count < 4 { seconds } else { seconds.min(4.0 * self.seconds) };
        self.count = (self.count + 1).min(TIMES);
        self.seconds += (seconds - self.seconds) / f64::from(self.count);
    }

    fn get(self) -> Option<f64> {
        (self.count > 0).then_some(self.seconds)
    }
}

/// What came of guesses at a depth where those before were right, the recent counting more.
#[derive(Clone, Copy, Debug, Default)]
struct Depth {
    right: f64,
    /// How many were there and verified.
    there: f64,
    asked: f64,
}

impl Depth {
    /// Share that is there, where it was asked for.
    fn there(self) -> f64 {
        (self.there + PRIOR.1) / (self.asked + PRIOR.1)
    }
}

/// Guesses at each depth, and whether it rests.
#[derive(Clone, Copy, Debug)]
struct Record {
    seen: [Depth; DRAFTS_MAX],
    /// Steps since it woke with guesses, or since it went to rest.
    steps: u32,
    is_resting: bool,
    pause: u32,
}

impl Default for Record {
    fn default() -> Self {
        Record { seen: [Depth::default(); DRAFTS_MAX], steps: 0, is_resting: false, pause: PAUSE.0 }
    }
}

impl Record {
    /// Share of the guesses at each depth that are right where those before were: of all that are
    /// asked for, or of those that are there.
    fn shares(&self, tries: impl Fn(&Depth) -> f64) -> [f64; DRAFTS_MAX] {
        let mut expected = PRIOR.0;
        self.seen.map(|depth| {
            expected = (depth.right + expected * PRIOR.1) / (tries(&depth) + PRIOR.1);
            expected
        })
    }

    /// What a new session expects after this one.
    fn heir(&self) -> Record {
        let mut heir = Record::default();
        for (own, depth) in heir.seen.iter_mut().zip(&self.seen) {
            let part = INHERITED / depth.asked.max(INHERITED);
            *own = Depth {
                right: depth.right * part,
                there: depth.there * part,
                asked: depth.asked * part,
            };
        }
        heir
    }

    /// So many guesses were right, and so many asked for of which this is known; so many were
    /// there.
    fn observe(&mut self, right: usize, tries: usize, there: usize) {
        for (index, depth) in self.seen.iter_mut().enumerate().take(tries) {
            let [is_right, is_there] =
                [index < right, index < there].map(|is| f64::from(u8::from(is)));
            *depth = Depth {
                right: depth.right * MEMORY + is_right,
                there: depth.there * MEMORY + is_there,
                asked: depth.asked * MEMORY + 1.0,
            };
        }
        self.steps = self.steps.saturating_add(1);
        if self.steps >= PROVED {
            self.pause = PAUSE.0;
        }
    }

    fn rest(&mut self) {
        if !self.is_resting {
            (self.is_resting, self.steps) = (true, 0);
        }
    }

    fn wake(&mut self) {
        let pause = (self.pause * 2).min(PAUSE.1);
        *self = Record { pause, ..Record::default() };
    }
}

/// Decides for one session; see the page.
#[derive(Clone, Debug)]
pub(crate) struct CostModel {
    /// Time of a step by its rows, less one.
    steps: [Mean; DRAFTS_MAX + 1],
    /// Time of the drafter's pass.
    pass: Mean,
    lookup: Record,
    drafter: Record,
    /// In plain steps.
    credit: f64,
    /// Steps with guesses since the last plain one.
    guessing: u32,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            steps: [Mean::default(); DRAFTS_MAX + 1],
            pass: Mean::default(),
            lookup: Record::default(),
            drafter: Record::default(),
            credit: CREDIT_MAX,
            guessing: 0,
        }
    }
}

impl CostModel {
    /// For a new session on the same machine and model: it knows the times, expects of guesses what
    /// was seen of them, and has what is left of the credit. What one had to guess and lost is no
    /// debt.
    pub fn heir(&self) -> CostModel {
        CostModel {
            steps: self.steps,
            pass: self.pass,
            lookup: self.lookup.heir(),
            drafter: self.drafter.heir(),
            credit: self.credit.max(0.0),
            guessing: 0,
        }
    }

    /// Who should guess for the next step, and how many tokens; `None` for a plain step.
    pub fn plan(&mut self, offer: &Offer) -> Option<(Guesser, usize)> {
        let found = offer.found.min(offer.most);
        let asked = if offer.drafter.is_some() { offer.most.min(DRAFTS_MAX) } else { 0 };
        let offers = [(Guesser::Lookup, found), (Guesser::Drafter, asked)];
        let is_known = self.steps[0].count >= PLAIN_MIN && self.guessing < GUESSING_MAX;
        if !offer.is_forced && !is_known {
            return None;
        }
        let mut best: Option<(Guesser, usize, f64)> = None;
        for (guesser, most) in offers.into_iter().filter(|(_, most)| *most > 0) {
            let limit = if offer.is_forced { f64::INFINITY } else { self.limit(guesser) };
            let Some((count, rate)) = self.best(guesser, offer.drafter, most, limit) else {
                continue;
            };
            let record = self.record(guesser);
            if !offer.is_forced && rate <= 1.0 && record.steps >= TRIES_MIN {
                record.rest();
                continue;
            }
            if best.is_none_or(|(_, _, other)| rate > other) {
                best = Some((guesser, count, rate));
            }
        }
        best.map(|(guesser, count, _)| (guesser, count))
    }

    /// How many of the drafter's guesses are worth verifying now that they are there.
    pub fn worth(&self, offer: &Offer, there: usize) -> usize {
        let limit = if offer.is_forced { f64::INFINITY } else { self.credit };
        let shares = self.drafter.shares(|depth| depth.there);
        let best = self.longest(there, limit, shares, |count| {
            let all = self.step_cost(count + 1) + self.pass_cost(offer.drafter, count);
            (all, all)
        });
        let is_on_trial = offer.is_forced || self.drafter.steps < TRIES_MIN;
        let best = best.filter(|(_, rate)| is_on_trial || *rate > self.plain_rate(offer));
        best.map_or(0, |(count, _)| count)
    }

    /// The drafter took so long for that many guesses.
    pub fn drafted(&mut self, offer: &Offer, asked: usize, time: Duration) {
        self.pass.add(time.as_secs_f64() / passes(offer.drafter, asked));
    }

    /// A step was made.
    pub fn observe(&mut self, cycle: &Cycle) {
        let [drafting, step] = cycle.times.map(|time| time.as_secs_f64());
        if let Some(mean) = self.steps.get_mut(cycle.guesses) {
            mean.add(step);
        }
        for (record, own) in
            [(&mut self.lookup, Guesser::Lookup), (&mut self.drafter, Guesser::Drafter)]
        {
            if record.is_resting {
                record.steps = record.steps.saturating_add(1);
            } else if cycle.guesser == Some(own) {
                // The first wrong guess is a try, those behind it are not; so is none at all.
                let next = usize::from(!cycle.is_cut);
                let tries = (cycle.right + next).min(cycle.asked.max(1));
                record.observe(cycle.right, tries, cycle.guesses);
            }
        }
        self.guessing = if cycle.guesses == 0 { 0 } else { self.guessing + 1 };
        let Some(plain) = self.steps[0].get().filter(|plain| *plain > 0.0) else { return };
        let passed = (drafting + step) / plain;
        if cycle.guesser.is_some() {
            #[expect(clippy::cast_precision_loss, reason = "a handful of tokens")]
            let tokens = (cycle.right + usize::from(!cycle.is_cut)) as f64;
            self.credit += tokens - passed;
        }
        self.credit = (self.credit + ALLOWANCE * passed).min(CREDIT_MAX);
    }

    fn record(&mut self, guesser: Guesser) -> &mut Record {
        match guesser {
            Guesser::Lookup => &mut self.lookup,
            Guesser::Drafter => &mut self.drafter,
        }
    }

    /// What a guesser may lose now: nothing while it rests.
    fn limit(&mut self, guesser: Guesser) -> f64 {
        let credit = self.credit;
        let record = self.record(guesser);
        if record.is_resting {
            if record.steps < record.pause || credit < CREDIT_MAX {
                return 0.0;
            }
            record.wake();
        }
        credit
    }

    /// Tokens a plain step's time when nothing is verified but the draft is paid for.
    fn plain_rate(&self, offer: &Offer) -> f64 {
        1.0 / (1.0 + self.pass_cost(offer.drafter, offer.most))
    }

    /// The length to ask for with the most tokens a plain step's time, of those that lose no more
    /// than `limit` plain steps; none if no length does.
    fn best(
        &self,
        guesser: Guesser,
        drafter: Option<Drafter>,
        most: usize,
        limit: f64,
    ) -> Option<(usize, f64)> {
        let record = match guesser {
            Guesser::Lookup => {
                let shares = self.lookup.shares(|depth| depth.asked);
                return self.longest(most, limit, shares, |count| {
                    let cost = self.step_cost(count + 1);
                    (cost, cost)
                });
            }
            Guesser::Drafter => &self.drafter,
        };
        let (mut rows, mut passes, mut there) = (0.0, 0.0, 1.0);
        self.longest(most, limit, record.shares(|depth| depth.asked), |count| {
            // A pass is made while the drafter is sure, and a row verified, be it right or not.
            passes = if drafter == Some(Drafter::Chain) { passes + there } else { 1.0 };
            there *= record.seen[count - 1].there();
            rows += there * (self.step_cost(count + 1) - self.step_cost(count));
            let cost = 1.0 + rows + passes * self.pass_cost(drafter, 1);
            (cost, self.step_cost(count + 1) + self.pass_cost(drafter, count))
        })
    }

    /// The length with the best quotient of tokens and cost. `costs` gives what so many guesses
    /// cost on average and at most, in plain steps.
    fn longest(
        &self,
        most: usize,
        limit: f64,
        shares: [f64; DRAFTS_MAX],
        mut costs: impl FnMut(usize) -> (f64, f64),
    ) -> Option<(usize, f64)> {
        let (mut tokens, mut chance, mut best) = (1.0, 1.0, None);
        for count in 1..=most.min(DRAFTS_MAX) {
            let (cost, worst) = costs(count);
            chance *= shares[count - 1];
            tokens += chance;
            let rate = tokens / cost;
            let is_better = best.is_none_or(|(_, other)| rate > other);
            if is_better && (worst - 1.0 <= limit || limit.is_infinite()) {
                best = Some((count, rate));
            }
        }
        best
    }

    /// Plain steps of the drafter's time.
    fn pass_cost(&self, drafter: Option<Drafter>, count: usize) -> f64 {
        let pass = match (self.pass.get(), self.steps[0].get()) {
            (Some(pass), Some(plain)) if plain > 0.0 => pass / plain,
            _ => GUESS,
        };
        pass * passes(drafter, count)
    }

    /// Plain steps of a step of so many rows: as measured, between two measured ones on their line,
    /// beyond the last on the line through it and the first.
    fn step_cost(&self, rows: usize) -> f64 {
        let Some(plain) = self.steps[0].get().filter(|plain| *plain > 0.0) else {
            return line((1, 1.0), (2, 1.0 + ROW), rows);
        };
        let at = |rows: usize| self.steps[rows - 1].get().map(|time| (rows, time / plain));
        let (mut below, mut above) = ((1, 1.0), None);
        for known in (2..=DRAFTS_MAX + 1).filter_map(at) {
            if known.0 <= rows {
                below = known;
            } else if above.is_none() {
                above = Some(known);
            }
        }
        match (below, above) {
            (below, _) if below.0 == rows => below.1,
            (below, Some(above)) => line(below, above, rows),
            ((1, _), None) => line((1, 1.0), (2, 1.0 + ROW), rows),
            (below, None) => line((1, 1.0), below, rows),
        }
    }
}

/// Passes of the drafter for so many guesses.
fn passes(drafter: Option<Drafter>, count: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a handful of guesses")]
    let count = count as f64;
    if drafter == Some(Drafter::Chain) { count } else { 1.0 }
}

/// The line through two points.
fn line(a: (usize, f64), b: (usize, f64), at: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a handful of rows")]
    let part = (at as f64 - a.0 as f64) / (b.0 as f64 - a.0 as f64);
    a.1 + (b.1 - a.1) * part
}
