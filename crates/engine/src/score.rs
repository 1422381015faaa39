//! Logits of every position of given tokens, a few rows at a time.

use crate::{CancelFlag, Control, Engine, Error, Session};
use ironstar_model::LogitsFor;

/// Most memory of the logits of one step.
const LOGIT_BYTES: usize = 32 << 20;

/// What the model says after one of the tokens.
#[derive(Clone, Copy, Debug)]
pub struct Scored<'a> {
    /// Position of the token.
    pub position: usize,
    /// The token that was given to follow it, if there is one.
    pub next: Option<u32>,
    /// Logits of what follows it.
    pub logits: &'a [f32],
    /// The next-token block's logits of the same, as it would have guessed one token earlier. Not
    /// at position 0, and only where asked for.
    pub draft: Option<&'a [f32]>,
}

/// What to score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// First position to be given.
    pub from: usize,
    /// Whether the next-token block's logits are wanted.
    pub drafts: bool,
}

impl Session {
    /// Evaluates tokens and gives the logits after each from a position on; the session then holds
    /// the tokens. The flag is looked at before each step. Memory does not grow with the number
    /// of tokens.
    pub fn score(
        &mut self,
        engine: &mut Engine,
        tokens: &[u32],
        what: Score,
        on_row: &mut dyn FnMut(Scored<'_>) -> Control,
        cancel: &CancelFlag,
    ) -> Result<(), Error> {
        self.check_tokens(engine, tokens)?;
        if what.drafts && !engine.model.has_mtp() {
            return Err(Error::NoDrafter);
        }
        let from = what.from.min(tokens.len());
        self.reach(engine, tokens, from)?;
        self.timeline = tokens[..from].to_vec();
        self.catch_up(engine, &mut |_| {}, cancel)?;
        self.timeline = tokens.to_vec();
        let row_bytes =
            engine.model.shape().vocabulary * size_of::<f32>() * (1 + usize::from(what.drafts));
        let rows_max = (LOGIT_BYTES / row_bytes).clamp(1, engine.options.step_rows);
        let drafts = if what.drafts { LogitsFor::All } else { LogitsFor::None };
        while self.position() < tokens.len() {
            let position = self.position();
            if cancel.is_raised() {
                return Err(Error::Cancelled { position, wanted: tokens.len() });
            }
            let rows = (tokens.len() - position).min(rows_max);
            let step = &tokens[position..position + rows];
            let output = self.step(engine, step, LogitsFor::All, drafts)?;
            self.keep(engine, rows)?;
            self.logits = output.logits.row(rows - 1).to_vec();
            self.logits_at = position + rows;
            for row in 0..rows {
                let place = output.drafts.rows().iter().position(|r| *r == row);
                let scored = Scored {
                    position: position + row,
                    next: tokens.get(position + row + 1).copied(),
                    logits: output.logits.row(row),
                    draft: place.map(|index| output.drafts.row(index)),
                };
                if on_row(scored) == Control::Stop {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
