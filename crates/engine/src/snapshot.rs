//! A session's whole state in the hands of the caller. What the engine itself keeps is in
//! [`crate::store`].

use std::sync::Arc;

/// A session's state at one position; clones share it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Tokens of the session, the evaluated ones first.
    pub(crate) tokens: Arc<[u32]>,
    /// How many of them were evaluated.
    pub(crate) position: usize,
    /// Bytes of [`ironstar_model::State::save`].
    pub(crate) state: Arc<[u8]>,
    /// What it belongs to, steering included ([`ironstar_model::Model::state_identity`]); nothing
    /// where steering changed on the way.
    pub(crate) identity: Option<Arc<[u8]>>,
    /// Logits of the last evaluated token.
    pub(crate) logits: Option<Arc<[f32]>>,
}

impl Snapshot {
    /// Tokens of the session.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many of its tokens were evaluated.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// The saved state ([`ironstar_model::State::save`]).
    #[must_use]
    pub fn state(&self) -> &[u8] {
        &self.state
    }

    /// Memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let logits = self.logits.as_ref().map_or(0, |l| size_of_val::<[f32]>(l));
        size_of_val::<[u32]>(&self.tokens) + self.state.len() + logits
    }
}
