//! How many rows of prompts go into a step, from the times of the steps before.
//!
//! While answers run, a step may take up to twice what it takes without prompts. So the time of a
//! step is cut in two: what it takes with so many answers alone (*normal*, measured in steps
//! without prompts, which come from time to time), and what the prompts' rows add. The rows of the
//! next slice are those of the last one times (time allowed / time it added), at most doubled or
//! halved: this finds the right length whatever the curve between rows and time, and follows it
//! when contexts grow. The time allowed is less where steps have lately taken longer than was
//! expected of them (*surprise*), so that on a machine that others use too a step may take longer
//! than foreseen and still no answer waits for twice its normal time.

use std::time::Duration;

/// What a step with rows of prompts may take, in normal steps, if all goes as expected.
const LIMIT: f64 = 1.7;
/// Least part of a normal step that prompts may add, however uneven times are.
const SHARE_MIN: f64 = 0.35;
/// What is left of a surprise after each step with rows of prompts.
const FADING: f64 = 0.97;
/// Below so much surprise times are even.
const EVEN: f64 = 1.1;
/// How far a slice may go beyond the time allowed, for want of a shorter one.
const COARSE: f64 = 1.15;
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
    /// Rows that would take `budget`, not far from here; one more than here if `grows` and there is
    /// time left, whether or not it seems enough for that one.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a few thousand rows"
    )]
    fn rows_for(self, budget: f64, grows: bool) -> usize {
        let ratio = (budget / self.seconds.max(1e-9)).clamp(0.5, 2.0);
        let rows = self.rows as f64 * ratio;
        // Growth is by at least one where that is not far from the budget, so that short slices do
        // not stay short for the fixed part of their time.
        let is_near = rows.ceil() <= rows * COARSE || grows;
        let rows = if ratio > 1.0 && is_near { rows.ceil() } else { rows.floor() };
        (rows as usize).max(1)
    }

    /// What so many rows should take.
    #[expect(clippy::cast_precision_loss, reason = "a few thousand rows")]
    fn expected(self, rows: usize) -> f64 {
        self.seconds * rows as f64 / self.rows as f64
    }
}

#[derive(Debug)]
pub(super) struct Pacer {
    /// Seconds of a step of so many answers and nothing else.
    normal: Vec<Mean>,
    /// What a slice beside answers adds, as long as the last one.
    mixed: Option<Point>,
    /// How many times longer than expected steps with such slices took at worst, lately.
    surprise: f64,
    /// The last slice without answers.
    alone: Option<Point>,
    mixed_run: u32,
    step_max: f64,
}

impl Pacer {
    pub fn new(step_max: Duration) -> Self {
        let step_max = step_max.as_secs_f64();
        Pacer {
            normal: Vec::new(),
            mixed: None,
            surprise: 1.0,
            alone: None,
            mixed_run: 0,
            step_max,
        }
    }

    /// Most rows of prompts in the next step; 0 if a step without them must be measured first.
    pub fn slice(&self, answers: usize) -> usize {
        if answers == 0 {
            return self.alone.map_or(FIRST_ROWS, |point| point.rows_for(self.step_max, true));
        }
        let Some(normal) = self.normal(answers).filter(|_| self.mixed_run < MIXED_MAX) else {
            return 0;
        };
        let budget = normal * (LIMIT / self.surprise - 1.0).max(SHARE_MIN);
        match (self.mixed, self.alone) {
            (Some(point), _) => point.rows_for(budget, self.mixed_run == 0),
            (None, Some(alone)) => {
                let most = alone.rows_for(budget, false);
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
            let Some(point) = self.mixed else {
                self.mixed = Some(Point { rows, seconds: added });
                return;
            };
            let expected = point.expected(rows);
            let surprise = (normal + added) / (normal + expected);
            self.surprise = surprise.max(1.0 + (self.surprise - 1.0) * FADING);
            // The short end of a prompt says little about long slices, unless it took too long.
            if rows * 2 < point.rows && added <= normal * (LIMIT - 1.0) {
                return;
            }
            // A longer slice says what it costs, where times are even; otherwise a short time may
            // be luck and a long one may not.
            let is_news = added > expected || (rows > point.rows && self.surprise < EVEN);
            let part = if is_news { 1.0 } else { 0.25 };
            let seconds = expected + (added - expected) * part;
            self.mixed = Some(Point { rows, seconds });
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
            let rows = pacer.slice(1);
            let time = uneven(10_000 + 100 * rows as u64);
            pacer.observe(1, rows, Duration::from_micros(time));
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
    fn a_slice_as_long_as_a_step_grows_for_its_fixed_part() {
        let steps = run(400, |rows| if rows > 1 { 15_000 + 20 * rows as u64 } else { 10_000 });
        assert!(steps.iter().all(|s| s.1 <= 20_000), "{steps:?}");
        let late = steps[300..].iter().map(|s| s.0).max().unwrap();
        assert!(late > 60, "{late} rows where 99 would do");
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
