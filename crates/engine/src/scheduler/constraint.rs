//! What may follow in an answer, decided by somebody who knows what tokens mean.

use std::fmt;

/// Decides which tokens may follow; one value goes with one answer. A trait because grammars belong
/// to the server and tests have their own.
pub trait Constraint: Send {
    /// Sets the logits of tokens that may not follow to -inf, before one is drawn.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// A token was drawn; stop tokens are not told.
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// How many of these guesses may follow, from the first on; changes nothing.
    fn allowed(&mut self, guesses: &[u32]) -> usize;

    /// Another value in the same state.
    fn duplicate(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.duplicate()
    }
}

impl fmt::Debug for dyn Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a constraint")
    }
}
