//! How many rows of prompts go into a step, from the times of the steps before.
//!
//! No answer may wait longer than twice its normal time for its next token. That wait is a *cycle*:
//! what comes between the tokens of one step and the rows of the next (states kept and stored,
//! requests that begin and end), and the step. A normal one is measured in cycles without prompts,
//! which come from time to time. A step with a slice takes what a normal step takes and what the
//! prompts' rows *add*; the slice is the longest that adds no more than is allowed (`ladder.rs`).
//! Whatever the time before a step has taken beyond the normal is not there for its slice.
//!
//! The time allowed leaves room for steps that take longer than was expected of them: as much as
//! they lately did, with prompts or without (*surprise*). So on a machine that others use too a
//! step may take longer than foreseen, and still no answer waits for twice its normal time. What no
//! length of a slice can prevent is a machine that slows down by as much as that between one step
//! and the next, and a single row that takes as long as a step.

mod ladder;

use ladder::Ladder;
use std::time::Duration;

/// What a cycle may take at worst, in normal ones, a little left aside.
const WORST: f64 = 1.93;
/// What it may take if all goes as expected, however even times are.
const LIMIT: f64 = 1.6;
/// Least part of a normal cycle that prompts may add, however uneven times are.
const SHARE_MIN: f64 = 0.25;
/// What is left of a surprise after each step of answers.
const FADING: f64 = 0.999;
/// The surprise before any was seen, and the largest that room is left for.
const SURPRISE: f64 = 1.3;
const SURPRISE_MAX: f64 = 1.55;
/// Below so much surprise a time is as expected.
const EVEN: f64 = 1.1;
/// Steps without prompts before their time is known.
const KNOWN: u32 = 2;
/// Steps with rows of prompts between two without, where answers run.
const MIXED_MAX: u32 = 31;
/// Until so many rows of a prompt are read they touch memory for the first time (the windows of
/// all layers, above all), and may cost so many times what others do.
const FRESH_ROWS: usize = 128;
const FRESH_COST: f64 = 1.5;
/// First slice where no answer runs.
const FIRST_ROWS: usize = 32;
/// Steps that a mean remembers.
const MEMORY: u32 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    seconds: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, seconds: f64) {
        self.count = (self.count + 1).min(MEMORY);
        self.seconds += (seconds - self.seconds) / f64::from(self.count);
    }
}

/// A cycle of so many answers without prompts.
#[derive(Clone, Copy, Debug, Default)]
struct Normal {
    /// Between the tokens before and the step.
    between: Mean,
    step: Mean,
}

impl Normal {
    fn cycle(&self) -> f64 {
        self.between.seconds + self.step.seconds
    }
}

/// Rows of a slice without answers, and the seconds that they took.
#[derive(Clone, Copy, Debug)]
struct Point {
    rows: usize,
    seconds: f64,
}

impl Point {
    /// Rows that would take `budget`, not far from here.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a few thousand rows"
    )]
    fn rows_for(self, budget: f64) -> usize {
        let ratio = (budget / self.seconds.max(1e-9)).clamp(0.5, 2.0);
        ((self.rows as f64 * ratio) as usize).max(1)
    }
}

#[derive(Debug)]
pub(super) struct Pacer {
    /// By the number of answers.
    normal: Vec<Normal>,
    /// What slices beside answers add.
    ladder: Ladder,
    /// Answers beside the last one; 0 if there was none.
    beside: usize,
    /// How many times longer than expected steps of answers took at worst, lately.
    surprise: f64,
    /// The last slice without answers.
    alone: Option<Point>,
    mixed_run: u32,
    /// Whether the last step took too long, against what was expected of its rows of prompts.
    was_long: bool,
    /// Whether the last step had no such rows for want of time.
    was_put_off: bool,
    step_max: f64,
}

impl Pacer {
    pub fn new(step_max: Duration) -> Self {
        let step_max = step_max.as_secs_f64();
        Pacer {
            normal: Vec::new(),
            ladder: Ladder::default(),
            beside: 0,
            surprise: SURPRISE,
            alone: None,
            mixed_run: 0,
            was_long: false,
            was_put_off: false,
            step_max,
        }
    }

    /// Most rows of prompts in the next step, which begins so long after the tokens of the last
    /// one, if that gave any; 0 if a step without them must be measured first, or if there is no
    /// time for them now. Of each prompt so many rows were `read` at least.
    pub fn slice(&mut self, answers: usize, between: Option<Duration>, read: usize) -> usize {
        if answers == 0 {
            return self.alone.map_or(FIRST_ROWS, |point| point.rows_for(self.step_max));
        }
        let Some(normal) = self.normal(answers).filter(|_| self.mixed_run < MIXED_MAX) else {
            return 0;
        };
        let share = ((WORST / self.surprise).min(LIMIT) - 1.0).max(SHARE_MIN);
        let (cycle, least) = (normal.cycle(), normal.cycle() * SHARE_MIN);
        let late = between.unwrap_or_default().as_secs_f64() - normal.between.seconds;
        let budget = cycle * share - late.max(0.0);
        // Only once: whatever is in the way every time, prompts are read.
        self.was_put_off = (budget < least || self.was_long) && !self.was_put_off;
        if self.was_put_off {
            return 0;
        }
        let cost = if read < FRESH_ROWS { FRESH_COST } else { 1.0 };
        // Fewer answers leave less time, and share less of the work with the rows of prompts.
        self.ladder.rows_within(budget.max(least) / cost, read == 0 || answers < self.beside)
    }

    /// Whether the answers' next step should begin: so much time has gone by since their tokens.
    pub fn is_due(&self, answers: usize, since: Duration) -> bool {
        let due = |normal: &Normal| normal.between.seconds + normal.cycle() * SHARE_MIN;
        self.normal(answers).is_some_and(|normal| since.as_secs_f64() > due(normal))
    }

    fn normal(&self, answers: usize) -> Option<&Normal> {
        self.normal.get(answers).filter(|normal| normal.step.count >= KNOWN)
    }

    /// A step of so many answers and rows of prompts took so long, and began so long after the
    /// tokens before.
    pub fn observe(
        &mut self,
        answers: usize,
        rows: usize,
        step: Duration,
        between: Option<Duration>,
    ) {
        let seconds = step.as_secs_f64();
        if answers == 0 {
            self.alone = Some(Point { rows, seconds });
            self.ladder.observe_alone(rows, seconds);
        } else if rows == 0 {
            (self.mixed_run, self.was_long) = (0, false);
            if let Some(normal) = self.normal(answers) {
                self.surprised(seconds / normal.step.seconds.max(1e-9));
            }
            if self.normal.len() <= answers {
                self.normal.resize(answers + 1, Normal::default());
            }
            let normal = &mut self.normal[answers];
            // The first of its kind is longer than others: it touches memory for the first time.
            let (count, mean) = (normal.step.count, normal.step.seconds);
            // Later a machine that was busy elsewhere says little of the work.
            normal.step.add(if count < KNOWN { seconds } else { seconds.min(1.25 * mean) });
            if count == 1 {
                normal.step.seconds = mean.min(seconds);
            }
            // The first step after a time without answers begins after no tokens.
            if let Some(between) = between {
                // Nor is a session that began then, or a checkpoint, what is normal.
                let most = 1.25 * normal.between.seconds + 0.02 * normal.step.seconds;
                normal.between.add(between.as_secs_f64().min(most));
            }
        } else {
            self.mixed_run += 1;
            self.observe_mixed(answers, rows, seconds);
        }
    }

    fn observe_mixed(&mut self, answers: usize, rows: usize, seconds: f64) {
        let normal = self.normal(answers).map_or(seconds, |normal| normal.step.seconds);
        let added = (seconds - normal).max(normal * 0.01);
        let is_first = self.beside == 0;
        let expected = self.ladder.observe(rows, added);
        self.beside = answers;
        let surprise = (normal + added) / (normal + expected);
        // Then what is normal is measured again, and the answers get a step of their own.
        self.was_long = seconds > normal * WORST && surprise > EVEN;
        if !is_first {
            self.surprised(surprise);
        }
    }

    fn surprised(&mut self, by: f64) {
        self.surprise = by.min(SURPRISE_MAX).max(1.0 + (self.surprise - 1.0) * FADING);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(pacer: &mut Pacer, answers: usize) -> usize {
        pacer.slice(answers, Some(Duration::ZERO), FRESH_ROWS)
    }

    fn observe(pacer: &mut Pacer, answers: usize, rows: usize, micros: u64) {
        pacer.observe(answers, rows, Duration::from_micros(micros), Some(Duration::ZERO));
    }

    /// Slices and step times in microseconds when a step takes `time(rows)`.
    fn run(steps: usize, time: impl Fn(usize) -> u64) -> Vec<(usize, u64)> {
        let mut pacer = Pacer::new(Duration::from_secs(1));
        (0..steps)
            .map(|_| {
                let rows = slice(&mut pacer, 1);
                observe(&mut pacer, 1, rows, time(rows + 1));
                (rows, time(rows + 1))
            })
            .collect()
    }

    #[test]
    fn no_step_takes_twice_the_normal_and_slices_use_what_is_allowed() {
        for (fixed, row) in [(10_000, 10), (10_000, 400), (1_000, 1_000), (0, 5_000)] {
            let steps = run(200, |rows| fixed + row * rows as u64);
            let normal = fixed + row;
            assert!(steps.iter().all(|s| s.1 <= 2 * normal), "{fixed} {row}: {steps:?}");
            let wanted = usize::try_from(normal * 5 / 10 / row).unwrap().max(1);
            let late = &steps[100..131];
            let read = late.iter().map(|s| s.0).sum::<usize>();
            assert!(read >= 30 * wanted, "{fixed} {row}: {read} rows of {wanted} a step");
        }
    }

    #[test]
    fn what_comes_between_two_steps_is_time_that_a_slice_does_not_get() {
        let mut pacer = Pacer::new(Duration::from_secs(1));
        let (step, usual) = (Duration::from_millis(10), Duration::from_micros(500));
        // Short answers begin after no tokens, and say nothing of what comes between two steps.
        pacer.observe(1, 0, step, None);
        pacer.observe(1, 0, step, None);
        for _ in 0..20 {
            pacer.observe(1, 0, step, Some(usual));
        }
        for _ in 0..20 {
            let rows = pacer.slice(1, Some(usual), FRESH_ROWS);
            let time = step + Duration::from_micros(100) * u32::try_from(rows).unwrap();
            pacer.observe(1, rows, time, Some(usual));
        }
        let rows = pacer.slice(1, Some(usual), FRESH_ROWS);
        assert!((45..=63).contains(&rows), "{rows} where 63 would do");
        let less = pacer.slice(1, Some(usual + Duration::from_millis(2)), FRESH_ROWS);
        assert!(less > 0 && less <= rows - 15, "{less} of {rows}");
        // No time at all: put off, but only once.
        let late = Some(usual + Duration::from_millis(9));
        assert_eq!(pacer.slice(1, late, FRESH_ROWS), 0);
        assert!(pacer.slice(1, late, FRESH_ROWS) > 0);
        assert_eq!(pacer.slice(1, late, FRESH_ROWS), 0);
    }

    #[test]
    fn the_first_rows_of_a_prompt_are_thought_to_cost_more() {
        let mut pacer = Pacer::new(Duration::from_secs(1));
        for _ in 0..100 {
            let rows = slice(&mut pacer, 1);
            observe(&mut pacer, 1, rows, 10_000 + 100 * rows as u64);
        }
        let mut rows_after = |read| pacer.slice(1, Some(Duration::ZERO), read);
        let (none, few, many) = (rows_after(0), rows_after(FRESH_ROWS - 1), rows_after(FRESH_ROWS));
        assert!(none <= few && 0 < none, "{none} {few} {many}");
        assert!(few * 10 <= many * 7 && few * 10 >= many * 6, "{none} {few} {many}");
    }

    #[test]
    fn times_that_vary_leave_more_room() {
        // Up to half as long again, as on a machine that others use.
        let mut state = 1u64;
        let mut uneven = |time: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            time + time * (state >> 54) / 2048
        };
        let mut pacer = Pacer::new(Duration::from_secs(1));
        let (mut rows_read, mut late, mut worst) = (0, 0, 0);
        for _ in 0..2000 {
            let rows = slice(&mut pacer, 1);
            let time = uneven(10_000 + 100 * rows as u64);
            observe(&mut pacer, 1, rows, time);
            rows_read += rows;
            // A normal step takes 12.5 ms in the mean.
            late += usize::from(time > 25_000);
            worst = worst.max(time);
        }
        // Without more room there are 400 that take longer than twice the normal.
        assert!(late <= 10 && worst < 30_000, "{late} steps, {worst} us");
        assert!(rows_read > 2000 * 25, "{rows_read}");
    }

    #[test]
    fn a_step_of_prompts_alone_is_bounded_too() {
        let mut pacer = Pacer::new(Duration::from_secs(1));
        for _ in 0..50 {
            let rows = slice(&mut pacer, 0);
            let time = Duration::from_millis(100 + 10 * rows as u64);
            assert!(time <= Duration::from_millis(1100), "{rows}");
            pacer.observe(0, rows, time, None);
        }
        assert!((80..=91).contains(&slice(&mut pacer, 0)), "{}", slice(&mut pacer, 0));
    }
}
