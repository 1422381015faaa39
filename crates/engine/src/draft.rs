//! Where guesses of coming tokens come from, and when guessing pays.

use crate::{Engine, Error, Session};
use std::time::Duration;

/// How an answer is speeded up by guessing tokens and verifying them in one step. The answer does
/// not depend on it, not in a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// One token a step.
    Off,
    /// The next-token block where there is one, as long as it pays by the clock.
    #[default]
    Auto,
    /// The next-token block, always.
    Mtp,
    /// Repeats of the session's own text, always.
    Lookup,
}

/// What guessing gained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculationReport {
    /// Tokens guessed.
    pub drafted: usize,
    /// Guesses that were the token.
    pub accepted: usize,
    /// Steps of the model after the prompt.
    pub steps: usize,
}

/// Most guesses a step: the rings can take back this many, and one more row is the token itself.
pub(crate) const DRAFTS_MAX: usize = 8;
/// Tokens that must repeat before the text is expected to go on as it did.
const LOOKUP_TOKENS: usize = 3;

/// Guesses of the tokens after the timeline's last, which waits to be evaluated.
pub(crate) fn guess(
    session: &Session,
    engine: &mut Engine,
    how: Speculation,
    most: usize,
) -> Result<Vec<u32>, Error> {
    if most == 0 {
        return Ok(Vec::new());
    }
    match how {
        Speculation::Off => Ok(Vec::new()),
        Speculation::Lookup => Ok(look_up(&session.timeline, most.min(DRAFTS_MAX)).to_vec()),
        Speculation::Auto | Speculation::Mtp => {
            let Some(&last) = session.timeline.last() else { return Ok(Vec::new()) };
            let backend = engine.backend.as_mut();
            let logits = engine.model.draft(backend, session.state(), last)?;
            Ok(likeliest(logits.row(0)).into_iter().collect())
        }
    }
}

/// What followed the last place where the text's last tokens stood before.
fn look_up(text: &[u32], most: usize) -> &[u32] {
    let Some(start) = text.len().checked_sub(LOOKUP_TOKENS) else { return &[] };
    let (before, ending) = (&text[..text.len() - 1], &text[start..]);
    let place = before.windows(LOOKUP_TOKENS).rposition(|window| window == ending);
    place.map_or(&[], |at| {
        let next = at + LOOKUP_TOKENS;
        &text[next..text.len().min(next + most)]
    })
}

/// The largest logit's token, the lowest of equals; none if a damaged drafter gives no number.
fn likeliest(logits: &[f32]) -> Option<u32> {
    let best = (0..logits.len())
        .filter(|&i| logits[i] > f32::NEG_INFINITY)
        .min_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)))?;
    u32::try_from(best).ok()
}

/// Decides from measured times and acceptance whether the next step should guess. It sees
/// durations, not a clock. Runs of guessing steps alternate with plain ones: while guessing pays,
/// runs grow and one plain step between them keeps the comparison honest; when it does not, runs
/// are short and the pauses grow.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    guessing: bool,
    /// Steps left of this kind.
    left: usize,
    /// Length of the next run of guessing steps.
    run: usize,
    /// Length of the next pause, if guessing does not pay.
    pause: usize,
    /// Seconds of a plain step, a mean of the recent.
    plain: f64,
    plain_count: u32,
    /// Seconds and tokens of this run.
    spent: f64,
    gained: u32,
}

const RUN_MIN: usize = 4;
const RUN_MAX: usize = 64;
const PAUSE_MIN: usize = 64;
const PAUSE_MAX: usize = 1024;
/// Steps that the mean of plain steps remembers.
const MEMORY: u32 = 16;

impl Default for Pace {
    fn default() -> Self {
        Pace {
            guessing: false,
            left: 2,
            run: RUN_MIN,
            pause: PAUSE_MIN,
            plain: 0.0,
            plain_count: 0,
            spent: 0.0,
            gained: 0,
        }
    }
}

impl Pace {
    /// Whether the next step should guess.
    pub fn should_guess(&self) -> bool {
        self.guessing
    }

    /// A step without guesses.
    pub fn plain_step(&mut self, time: Duration) {
        self.plain_count = (self.plain_count + 1).min(MEMORY);
        self.plain += (time.as_secs_f64() - self.plain) / f64::from(self.plain_count);
        self.left -= 1;
        if self.left == 0 {
            (self.guessing, self.left) = (true, self.run);
            (self.spent, self.gained) = (0.0, 0);
        }
    }

    /// A step with guesses that gave so many tokens, the sure one included.
    pub fn guessing_step(&mut self, time: Duration, tokens: usize) {
        self.spent += time.as_secs_f64();
        self.gained += u32::try_from(tokens).unwrap_or(u32::MAX);
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        self.guessing = false;
        if self.spent < self.plain * f64::from(self.gained) {
            (self.left, self.pause) = (1, PAUSE_MIN);
            self.run = (self.run * 2).min(RUN_MAX);
        } else {
            (self.left, self.run) = (self.pause, RUN_MIN);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulated seconds and tokens of so many steps, when a guess is right once in `every`.
    fn simulate(steps: usize, plain_ms: u64, guessing_ms: u64, every: usize) -> (f64, usize) {
        let (mut pace, mut seconds, mut tokens) = (Pace::default(), 0.0, 0);
        for step in 0..steps {
            let guess = pace.should_guess();
            let time = Duration::from_millis(if guess { guessing_ms } else { plain_ms });
            let gained = if guess && step % every == 0 { 2 } else { 1 };
            if guess {
                pace.guessing_step(time, gained);
            } else {
                pace.plain_step(time);
            }
            seconds += time.as_secs_f64();
            tokens += gained;
        }
        (seconds, tokens)
    }

    #[test]
    fn guessing_stays_on_where_it_pays() {
        let (seconds, tokens) = simulate(4000, 100, 115, 1);
        let rate = f64::from(u32::try_from(tokens).unwrap_or(0)) / seconds;
        assert!(rate > 16.5, "{rate} of 17.4 tokens a second, plain is 10");
    }

    #[test]
    fn guessing_that_does_not_pay_costs_little() {
        for (guessing_ms, every) in [(190, 5), (130, 1000), (250, 1)] {
            let (seconds, tokens) = simulate(6000, 100, guessing_ms, every);
            let rate = f64::from(u32::try_from(tokens).unwrap_or(0)) / seconds;
            assert!(rate > 9.85, "{rate} tokens a second, plain is 10");
        }
    }

    #[test]
    fn repeats_are_looked_up() {
        assert_eq!(look_up(&[1, 2, 3, 4, 5, 1, 2, 3], 8), [4, 5, 1, 2, 3]);
        assert_eq!(look_up(&[1, 2, 3, 4, 5, 1, 2, 3], 2), [4, 5]);
        assert_eq!(look_up(&[1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], 1), [8], "the last place wins");
        assert_eq!(look_up(&[7, 7, 7, 7], 4), [7]);
        assert!(look_up(&[1, 2, 3], 4).is_empty());
        assert!(look_up(&[], 4).is_empty());
    }

    #[test]
    fn a_damaged_drafter_gives_no_number() {
        assert_eq!(likeliest(&[f32::NAN, 1.0, 1.0, f32::NEG_INFINITY]), Some(1));
        assert_eq!(likeliest(&[f32::NAN, f32::NEG_INFINITY]), None);
        assert_eq!(likeliest(&[]), None);
    }
}
