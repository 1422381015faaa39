//! How many tokens are guessed before a step, and by whom.
//!
//! [`CostModel`] decides from measured times and acceptance; [`propose`] asks it, and whoever
//! guesses. Neither can change an answer: guesses are only ever verified.

mod cost;
#[cfg(test)]
mod tests;

pub(crate) use cost::{CostModel, Cycle, Guesser, Offer};

use crate::draft::{DRAFTS_MAX, look_up};
use crate::{Error, Speculation};
use std::time::Duration;

/// Who guesses for a step, and what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proposal {
    /// `None`: a plain step.
    pub guesser: Option<Guesser>,
    /// The guesses; a drafter may give none.
    pub tokens: Vec<u32>,
    /// How many were asked for; a drafter that is not sure gives fewer.
    pub asked: usize,
    /// How long the drafter took.
    pub drafting: Duration,
}

/// What a proposal is made for.
pub(crate) struct Wish<'a> {
    pub how: Speculation,
    /// What the model has for guessing.
    pub drafter: Option<Drafter>,
    /// The timeline, the token that waits to be evaluated included.
    pub text: &'a [u32],
    /// Most guesses.
    pub most: usize,
}

/// What a drafter's guesses cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafter {
    /// A pass a guess.
    Chain,
    /// One pass for all of them.
    Block,
}

/// Guesses for the next step. `draft` asks the drafter for at most so many.
pub(crate) fn propose(
    costs: &mut CostModel,
    wish: &Wish<'_>,
    now: &dyn Fn() -> Duration,
    draft: &mut dyn FnMut(usize) -> Result<Vec<u32>, Error>,
) -> Result<Proposal, Error> {
    let most = wish.most.min(DRAFTS_MAX);
    let looks = matches!(wish.how, Speculation::Auto | Speculation::Lookup) && most > 0;
    let found = if looks { look_up(wish.text, most) } else { &[] };
    let drafter = match wish.how {
        Speculation::Off | Speculation::Lookup => None,
        Speculation::Auto | Speculation::Mtp | Speculation::Dspark => wish.drafter,
    };
    let is_forced = wish.how != Speculation::Auto;
    let offer = Offer { found: found.len(), drafter, most, is_forced };
    match costs.plan(&offer) {
        None => Ok(Proposal::default()),
        Some((guesser @ Guesser::Lookup, count)) => {
            let (tokens, drafting) = (found[..count].to_vec(), Duration::ZERO);
            Ok(Proposal { guesser: Some(guesser), tokens, asked: count, drafting })
        }
        Some((guesser @ Guesser::Drafter, count)) => {
            let start = now();
            let mut tokens = draft(count)?;
            let drafting = now().saturating_sub(start);
            // A chain ends with the first guess that is not sure.
            costs.drafted(&offer, count.min(tokens.len() + 1), drafting);
            tokens.truncate(costs.worth(&offer, tokens.len()));
            Ok(Proposal { guesser: Some(guesser), tokens, asked: count, drafting })
        }
    }
}
