//! Saved states of sessions, in memory, found by the tokens that they stand for.
//!
//! A checkpoint belongs to its tokens and not to a session, so a branch, another session with the
//! same prompt and a rewind all find it. Memory has a limit; what was used longest ago goes first.
//! Each holds its whole state; a store that keeps shared rows once takes this place without
//! changing who calls it.

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

    /// Whether a session that wants these tokens can start here: it still has a token to evaluate,
    /// or the logits are there.
    fn serves(&self, tokens: &[u32]) -> bool {
        let enough = self.position < tokens.len()
            || (self.position == tokens.len() && self.logits.is_some());
        enough && self.tokens[..] == tokens[..self.position]
    }
}

/// All checkpoints of an engine.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    /// Least recently used first.
    entries: Vec<Snapshot>,
    bytes: usize,
    limit: usize,
}

impl Checkpoints {
    pub fn new(limit: usize) -> Self {
        Checkpoints { entries: Vec::new(), bytes: 0, limit }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether any can be kept.
    pub fn is_off(&self) -> bool {
        self.limit == 0
    }

    /// The furthest place to start from for these tokens, but not beyond `most` of them.
    pub fn best(&mut self, tokens: &[u32], most: usize) -> Option<Snapshot> {
        let fits = |s: &Snapshot| s.position <= most && s.serves(tokens);
        let (at, _) = (self.entries.iter().enumerate())
            .filter(|(_, s)| fits(s))
            .max_by_key(|(_, s)| s.position)?;
        let found = self.entries.remove(at);
        self.entries.push(found.clone());
        Some(found)
    }

    /// Position of the furthest checkpoint on the way to these tokens; 0 if there is none.
    pub fn nearest(&self, tokens: &[u32]) -> usize {
        let on_way =
            |s: &&Snapshot| s.position <= tokens.len() && s.tokens[..] == tokens[..s.position];
        self.entries.iter().filter(on_way).map(|s| s.position).max().unwrap_or(0)
    }

    /// Keeps one, in place of an equal one, and lets others go to stay within the limit.
    pub fn insert(&mut self, snapshot: Snapshot) {
        debug_assert_eq!(snapshot.tokens.len(), snapshot.position);
        if let Some(at) = self.entries.iter().position(|s| s.tokens == snapshot.tokens) {
            self.bytes -= self.entries.remove(at).bytes();
        }
        let needed = snapshot.bytes();
        if needed > self.limit {
            return;
        }
        while self.bytes + needed > self.limit {
            self.bytes -= self.entries.remove(0).bytes();
        }
        self.bytes += needed;
        self.entries.push(snapshot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(tokens: &[u32], bytes: usize, logits: bool) -> Snapshot {
        Snapshot {
            tokens: tokens.into(),
            position: tokens.len(),
            state: vec![0; bytes - size_of_val(tokens) - usize::from(logits) * 4].into(),
            logits: logits.then(|| [0.0].into()),
        }
    }

    #[test]
    fn the_furthest_that_serves_is_found() {
        let mut all = Checkpoints::new(1000);
        for (tokens, logits) in [(&[1, 2][..], false), (&[1, 2, 3, 4], false), (&[1, 9, 3], true)] {
            all.insert(snapshot(tokens, 100, logits));
        }
        let mut best = |tokens: &[u32], most| all.best(tokens, most).map(|s| s.position);
        assert_eq!(best(&[1, 2, 3, 4, 5], 5), Some(4));
        assert_eq!(best(&[1, 2, 3, 4, 5], 3), Some(2));
        assert_eq!(best(&[1, 2, 3, 4], 4), Some(2), "without logits one token must be left");
        assert_eq!(best(&[1, 9, 3], 3), Some(3), "with logits none need be");
        assert_eq!(best(&[1], 1), None);
        assert_eq!(best(&[], 0), None);
        assert_eq!(all.nearest(&[1, 2, 3, 4]), 4);
        assert_eq!(all.nearest(&[1, 3]), 0);
    }

    #[test]
    fn memory_stays_within_the_limit() {
        let mut all = Checkpoints::new(300);
        for i in 0..3 {
            all.insert(snapshot(&[i], 100, false));
        }
        assert!(all.best(&[0, 7], 2).is_some());
        all.insert(snapshot(&[3], 100, false));
        assert_eq!(all.bytes(), 300);
        assert!(all.best(&[1, 7], 2).is_none(), "used longest ago");
        assert!(all.best(&[0, 7], 2).is_some(), "used since");
        all.insert(snapshot(&[4], 301, false));
        assert_eq!((all.bytes(), all.entries.len()), (300, 3), "one too large changes nothing");
        all.insert(snapshot(&[0], 50, false));
        assert_eq!((all.bytes(), all.entries.len()), (250, 3), "an equal one is replaced");
    }
}
