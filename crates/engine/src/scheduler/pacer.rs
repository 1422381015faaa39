//! How many rows of prompts go into a step, from the times of the steps before.
//!
//! While answers run, a step may take up to twice what it takes without prompts. So the time of a
//! step is cut in two: what it takes with so many answers alone (*normal*, measured in steps
//! without prompts, which come from time to time), and what the prompts' rows add. The rows of the
//! next slice are those of the last one times (time allowed / time it added), at most doubled or
//! halved: this finds the right length whatever the curve between rows and time, and follows it
//! when contexts grow.

use std::time::Duration;

/// Part of a normal step that prompts may add; the rest of the second is left for noise.
const SHARE: f64 = 0.75;
/// Steps with rows of prompts between two without, where answers run.
const MIXED_MAX: u32 = 31;
/// First slice where no answer runs.
const FIRST_ROWS: usize = 32;
/// Steps that a mean remembers.
const MEMORY: u32 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    seconds: f64,
    count: u32,
}

/// Rows of a slice and the seconds that they took.
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
        let rows = self.rows as f64 * ratio;
        // Growth is by at least one, so that short slices do not stay short for the fixed part of
        // their time.
        let rows = if ratio > 1.0 { rows.ceil() } else { rows.floor() };
        (rows as usize).max(1)
    }
}

#[derive(Debug)]
pub(super) struct Pacer {
    /// Seconds of a step of so many answers and nothing else.
    normal: Vec<Mean>,
    /// What the last slice beside answers added.
    mixed: Option<Point>,
    /// The last slice without answers.
    alone: Option<Point>,
    mixed_run: u32,
    step_max: f64,
}

impl Pacer {
    pub fn new(step_max: Duration) -> Self {
        let step_max = step_max.as_secs_f64();
        Pacer { normal: Vec::new(), mixed: None, alone: None, mixed_run: 0, step_max }
    }

    /// Most rows of prompts in the next step; 0 if a step without them must be measured first.
    pub fn slice(&self, answers: usize) -> usize {
        if answers == 0 {
            return self.alone.map_or(FIRST_ROWS, |point| point.rows_for(self.step_max));
        }
        let Some(normal) = self.normal(answers).filter(|_| self.mixed_run < MIXED_MAX) else {
            return 0;
        };
        let budget = normal * SHARE;
        match (self.mixed, self.alone) {
            (Some(point), _) => point.rows_for(budget),
            (None, Some(alone)) => {
                let most = alone.rows_for(budget);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    clippy::cast_precision_loss,
                    reason = "below the rows of a step"
                )]
                let fair = (alone.rows as f64 * budget / alone.seconds.max(1e-9)) as usize;
                fair.min(most).max(1)
            }
            (None, None) => 1,
        }
    }

    fn normal(&self, answers: usize) -> Option<f64> {
        self.normal.get(answers).filter(|mean| mean.count > 0).map(|mean| mean.seconds)
    }

    /// A step of so many answers and rows of prompts took so long.
    pub fn observe(&mut self, answers: usize, rows: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        if answers == 0 {
            self.alone = Some(Point { rows, seconds });
        } else if rows == 0 {
            self.mixed_run = 0;
            if self.normal.len() <= answers {
                self.normal.resize(answers + 1, Mean::default());
            }
            let mean = &mut self.normal[answers];
            mean.count = (mean.count + 1).min(MEMORY);
            mean.seconds += (seconds - mean.seconds) / f64::from(mean.count);
        } else {
            self.mixed_run += 1;
            let normal = self.normal(answers).unwrap_or(seconds);
            let added = (seconds - normal).max(normal * 0.01);
            // The short end of a prompt says little about long slices, unless it took too long.
            let short = self.mixed.is_some_and(|point| rows * 2 < point.rows);
            if !short || added > normal * SHARE {
                self.mixed = Some(Point { rows, seconds: added });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices and step times in microseconds when a step takes `time(rows)`.
    fn run(steps: usize, time: impl Fn(usize) -> u64) -> Vec<(usize, u64)> {
        let mut pacer = Pacer::new(Duration::from_secs(1));
        (0..steps)
            .map(|_| {
                let rows = pacer.slice(1);
                pacer.observe(1, rows, Duration::from_micros(time(rows + 1)));
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
            let wanted = usize::try_from(normal * 6 / 10 / row).unwrap();
            let late = &steps[100..131];
            let mean = late.iter().map(|s| s.0).sum::<usize>() / late.len();
            assert!(mean >= wanted, "{fixed} {row}: {mean} rows of {wanted}");
        }
    }

    #[test]
    fn a_step_of_prompts_alone_is_bounded_too() {
        let mut pacer = Pacer::new(Duration::from_secs(1));
        for _ in 0..50 {
            let rows = pacer.slice(0);
            let time = Duration::from_millis(100 + 10 * rows as u64);
            assert!(time <= Duration::from_millis(1100), "{rows}");
            pacer.observe(0, rows, time);
        }
        assert!((80..=91).contains(&pacer.slice(0)), "{}", pacer.slice(0));
    }
}
