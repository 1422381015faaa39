//! Where guesses of coming tokens come from; when they pay is in `speculation`.

use crate::speculation::{Cycle, Drafter};
use crate::{Engine, Error, Session};
use ironstar_model::Model;
use std::time::Duration;

/// How an answer is speeded up by guessing tokens and verifying them in one step. The answer does
/// not depend on it, not in a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// One token a step.
    Off,
    /// The drafter where there is one, and repeats of the session's own text, as long as they pay
    /// by the clock.
    #[default]
    Auto,
    /// The next-token block, always.
    Mtp,
    /// DSpark, always.
    Dspark,
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
    /// Those of them without guesses.
    pub plain_steps: usize,
    /// Time of the drafter's own passes.
    pub drafting: Duration,
    /// First, second, ... guesses of a step, and how many of them were right.
    pub depths: [(u32, u32); DRAFTS_MAX],
}

impl SpeculationReport {
    /// Adds a step to all but [`Self::drafted`], [`Self::accepted`] and [`Self::steps`].
    pub(crate) fn count(&mut self, cycle: &Cycle) {
        self.plain_steps += usize::from(cycle.guesses == 0);
        self.drafting += cycle.times[0];
        for (depth, (guessed, right)) in self.depths.iter_mut().enumerate().take(cycle.guesses) {
            *guessed += 1;
            *right += u32::from(depth < cycle.right);
        }
    }
}

/// Most guesses a step: the rings can take back this many, and one more row is the token itself.
pub(crate) const DRAFTS_MAX: usize = 8;
/// Tokens that must repeat before the text is expected to go on as it did.
const LOOKUP_TOKENS: usize = 3;
/// How far back repeats are looked for: some 30 microseconds at most.
const LOOKUP_REACH: usize = 32_768;
/// Chance of surviving below which a guess of a drafter, and those behind it, are dropped.
const CONFIDENCE_MIN: f32 = 0.6;

/// What the model has for guessing.
pub(crate) fn drafter(model: &Model) -> Option<Drafter> {
    let drafter = if model.spark().is_some() { Drafter::Block } else { Drafter::Chain };
    model.has_drafter().then_some(drafter)
}

/// Guesses of the model's drafter for the tokens after the timeline's last, which waits to be
/// evaluated.
pub(crate) fn guess(
    session: &Session,
    engine: &mut Engine,
    how: Speculation,
    most: usize,
) -> Result<Vec<u32>, Error> {
    let Some(&last) = session.timeline.last().filter(|_| most > 0) else { return Ok(Vec::new()) };
    match how {
        Speculation::Off => return Ok(Vec::new()),
        Speculation::Lookup => return Ok(look_up(&session.timeline, most).to_vec()),
        Speculation::Auto | Speculation::Mtp | Speculation::Dspark => {}
    }
    let backend = engine.backend.as_mut();
    let drafted = engine.model.draft_tokens(backend, session.state(), last, most)?;
    let sure = drafted.confidence.iter().take_while(|logit| survives(**logit)).count();
    let mut tokens = drafted.tokens;
    // Whoever names a drafter wants its guesses.
    if how == Speculation::Auto || engine.model.spark().is_some() {
        tokens.truncate(sure);
    }
    Ok(tokens)
}

/// Whether the chance that a logit stands for is high enough; not if it is no number.
fn survives(logit: f32) -> bool {
    1.0 / (1.0 + (-logit).exp()) >= CONFIDENCE_MIN
}

/// What followed the last place where the text's last tokens stood before.
pub(crate) fn look_up(text: &[u32], most: usize) -> &[u32] {
    let text = &text[text.len().saturating_sub(LOOKUP_REACH)..];
    let Some(start) = text.len().checked_sub(LOOKUP_TOKENS) else { return &[] };
    let (before, ending) = (&text[..text.len() - 1], &text[start..]);
    let place = before.windows(LOOKUP_TOKENS).rposition(|window| window == ending);
    place.map_or(&[], |at| {
        let next = at + LOOKUP_TOKENS;
        &text[next..text.len().min(next + most)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_looked_up() {
        assert_eq!(look_up(&[1, 2, 3, 4, 5, 1, 2, 3], 8), [4, 5, 1, 2, 3]);
        assert_eq!(look_up(&[1, 2, 3, 4, 5, 1, 2, 3], 2), [4, 5]);
        assert_eq!(look_up(&[1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], 1), [8], "the last place wins");
        assert_eq!(look_up(&[7, 7, 7, 7], 4), [7]);
        assert!(look_up(&[1, 2, 3], 4).is_empty());
        assert!(look_up(&[], 4).is_empty());
        let far = [&[1, 2, 3, 4][..], &vec![9; LOOKUP_REACH], &[1, 2, 3]].concat();
        assert!(look_up(&far, 4).is_empty(), "too far back");
        assert_eq!(look_up(&far[LOOKUP_TOKENS..][..LOOKUP_REACH], 2), [9]);
    }

    #[test]
    fn a_guess_that_hardly_survives_is_dropped() {
        assert!(survives(0.5) && survives(f32::INFINITY));
        assert!(!survives(0.3) && !survives(-9.0) && !survives(f32::NAN));
    }
}
