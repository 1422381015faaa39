//! A deterministic row of inputs for one target, fed back with what each input did.

use crate::mutate::{Random, mutate};
use crate::targets::Target;
use std::collections::HashSet;

/// Inputs that are kept for further mutation.
const CORPUS_MAX: usize = 1024;

/// The state of fuzzing one target: which input comes next depends on the seed and on the
/// signatures seen so far, on nothing else.
pub struct Session {
    target: &'static Target,
    random: Random,
    corpus: Vec<Vec<u8>>,
    /// How many of the corpus are seeds; they stay.
    seeds: usize,
    seeds_left: usize,
    signatures: HashSet<u64>,
}

impl Session {
    /// Begins with the target's own seeds.
    #[must_use]
    pub fn new(target: &'static Target, seed: u64) -> Self {
        let mut corpus = (target.seeds)();
        corpus.push(Vec::new());
        let seeds = corpus.len();
        let random = Random::new(seed ^ 0x1b5a_11ed);
        Session { target, random, corpus, seeds, seeds_left: seeds, signatures: HashSet::new() }
    }

    /// The next input: first every seed as it is, then mutations of what the corpus holds.
    pub fn next_input(&mut self) -> Vec<u8> {
        if self.seeds_left > 0 {
            self.seeds_left -= 1;
            return self.corpus[self.seeds_left].clone();
        }
        let from = if self.random.below(4) == 0 { self.seeds } else { self.corpus.len() };
        let mut input = self.corpus[self.random.below(from)].clone();
        let other = &self.corpus[self.random.below(self.corpus.len())];
        mutate(&mut self.random, &mut input, other, self.target.dictionary, self.target.len_max);
        input
    }

    /// Takes what `input` did; an outcome not seen before puts the input into the corpus.
    pub fn keep(&mut self, input: Vec<u8>, signature: u64) {
        if !self.signatures.insert(signature) {
            return;
        }
        if self.corpus.len() < CORPUS_MAX {
            self.corpus.push(input);
        } else {
            let at = self.seeds + self.random.below(self.corpus.len() - self.seeds);
            self.corpus[at] = input;
        }
    }

    /// Number of different outcomes so far.
    #[must_use]
    pub fn outcomes(&self) -> usize {
        self.signatures.len()
    }
}
