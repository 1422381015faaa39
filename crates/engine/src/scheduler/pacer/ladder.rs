//! What slices of prompts add to a step of answers, by their length.
//!
//! Rows cost neither nothing nor the same: some tile of a kernel is full at 8 or 16, an expert is
//! read for the first row that chooses it. So each length is a rung with a time of its own, and the
//! next slice is the longest whose time is within what is allowed. A length that was not tried yet
//! is thought to cost as much a row as the next shorter one that was, or that and for each row more
//! twice what rows of long slices cost where no answers run: so a slice whose first row costs much
//! grows, and none is tried only to see how long it takes.

/// Lengths that are rungs each; further on there are eight to an octave.
const SINGLE: usize = 16;
/// Rungs: up to 4,096 rows.
const RUNGS: usize = SINGLE + 8 * 8;
/// Part of a difference that is believed at once. A machine that was elsewhere says little of the
/// work, and time that was short by luck even less.
const UP: f64 = 0.25;
const DOWN: f64 = 0.2;
/// Part of it that all other rungs share: contexts grow, and machines slow down.
const SHARED: f64 = 0.05;
/// How much more a row may cost than in a long slice without answers.
const DEARER: f64 = 2.0;
/// How fast what a row cost there is forgotten.
const FORGOTTEN: f64 = 1.01;
/// Samples of a rung that are believed as a mean.
const FIRST: u32 = 3;

#[derive(Clone, Copy, Debug, Default)]
struct Rung {
    seconds: f64,
    count: u32,
}

#[derive(Debug)]
pub(super) struct Ladder {
    rungs: [Rung; RUNGS],
    /// The rung of the last slice.
    last: usize,
    /// Least seconds of a row in slices without answers, lately.
    alone: Option<f64>,
}

impl Default for Ladder {
    fn default() -> Self {
        Ladder { rungs: [Rung::default(); RUNGS], last: 0, alone: None }
    }
}

/// The longest slice of a rung.
fn top(rung: usize) -> usize {
    match rung.checked_sub(SINGLE) {
        None => rung + 1,
        Some(beyond) => (SINGLE + 2 * (beyond % 8 + 1)) << (beyond / 8),
    }
}

/// The rung of so many rows.
fn rung_of(rows: usize) -> usize {
    (0..RUNGS).find(|rung| top(*rung) >= rows).unwrap_or(RUNGS - 1)
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand rows")]
fn rows_of(rung: usize) -> f64 {
    top(rung) as f64
}

impl Ladder {
    /// Seconds that a slice as long as a rung should add; `None` if there was none at all.
    fn expected(&self, rung: usize) -> Option<f64> {
        let known = |at: &usize| self.rungs[*at].count > 0;
        let below = (0..=rung).rev().find(known);
        let above = (rung..RUNGS).find(known);
        let (rows, seconds) = (rows_of(rung), |at: usize| self.rungs[at].seconds);
        match (below, above) {
            (None, None) => None,
            (None, Some(above)) => Some(seconds(above)),
            (Some(below), None) => {
                let as_much = seconds(below) * rows / rows_of(below);
                let more = |row: f64| seconds(below) + (rows - rows_of(below)) * row * DEARER;
                Some(self.alone.map(more).map_or(as_much, |more| more.min(as_much)))
            }
            (Some(below), Some(above)) if below == above => Some(seconds(below)),
            (Some(below), Some(above)) => {
                let part = (rows - rows_of(below)) / (rows_of(above) - rows_of(below));
                Some(seconds(below) + (seconds(above) - seconds(below)).max(0.0) * part)
            }
        }
    }

    /// The most rows that add no more than this, one at least and no more than twice those of the
    /// last slice; half of those at most where they may cost more than before.
    pub fn rows_within(&self, seconds: f64, may_cost_more: bool) -> usize {
        let last = top(self.last);
        let most = if may_cost_more { last.div_ceil(2) } else { 2 * last };
        let fits = |rung: &usize| self.expected(*rung).is_some_and(|time| time <= seconds);
        let longest = (0..=rung_of(most)).rev().filter(|rung| top(*rung) <= most).find(fits);
        longest.map_or(1, top)
    }

    /// A slice without answers took so long.
    #[expect(clippy::cast_precision_loss, reason = "a few thousand rows")]
    pub fn observe_alone(&mut self, rows: usize, seconds: f64) {
        let row = seconds / rows.max(1) as f64;
        self.alone = Some(self.alone.map_or(row, |least| row.min(least * FORGOTTEN)));
    }

    /// A slice beside answers added so much; gives what was expected.
    pub fn observe(&mut self, rows: usize, seconds: f64) -> f64 {
        let at = rung_of(rows);
        let expected = self.expected(at).unwrap_or(seconds);
        self.last = at;
        let rung = &mut self.rungs[at];
        if rung.count == 0 {
            *rung = Rung { seconds: (seconds + expected) / 2.0, count: 1 };
            return expected;
        }
        rung.count = rung.count.saturating_add(1);
        let difference = seconds - rung.seconds;
        let part = if difference > 0.0 { UP } else { DOWN };
        rung.seconds += difference * part.max(1.0 / f64::from(rung.count.min(FIRST + 1)));
        let drift = 1.0 + (seconds / expected.max(1e-9) - 1.0).clamp(-0.5, 0.5) * SHARED;
        for (_, other) in self.rungs.iter_mut().enumerate().filter(|(other, _)| *other != at) {
            other.seconds *= drift;
        }
        expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs_cover_all_lengths_in_order() {
        assert!((1..RUNGS).all(|rung| top(rung) > top(rung - 1)));
        assert_eq!((top(0), top(15), top(16), top(23), top(24)), (1, 16, 18, 32, 36));
        for rows in 1..=4096 {
            let rung = rung_of(rows);
            assert!(top(rung) >= rows && (rung == 0 || top(rung - 1) < rows), "{rows}");
        }
        assert_eq!(rung_of(100_000), RUNGS - 1);
    }

    #[test]
    fn a_slice_grows_where_its_first_row_costs_most() {
        let time = |rows: usize| 5.0 + 0.02 * rows as f64;
        for is_known in [true, false] {
            let mut ladder = Ladder::default();
            if is_known {
                ladder.observe_alone(256, 15.0 + 256.0 * 0.02);
            }
            ladder.observe(1, time(1));
            for _ in 0..20 {
                let rows = ladder.rows_within(6.0, false);
                ladder.observe(rows, time(rows));
            }
            let rows = ladder.rows_within(6.0, false);
            assert!(if is_known { (30..=50).contains(&rows) } else { rows == 1 }, "{rows}");
        }
    }

    #[test]
    fn stairs_are_found_and_remembered() {
        // Eight rows cost what one does.
        let time = |rows: usize| rows.div_ceil(8) as f64;
        let mut ladder = Ladder::default();
        ladder.observe(1, time(1));
        for _ in 0..300 {
            let rows = ladder.rows_within(2.5, false);
            ladder.observe(rows, time(rows));
        }
        let rows = ladder.rows_within(2.5, false);
        assert!((9..=16).contains(&rows), "{rows}");
    }
}
