//! What a sweep will do, checked before anything is measured.

use crate::asking;
use crate::commands::{parse_ids, read_text};
use crate::failure::Failure;
use crate::flags::{BenchSweep, Fill};
use crate::loading;
use ironstar_engine::Engine;
use ironstar_text::chat::Thinking;

/// Where the last frontier is if nobody says.
const CTX_MAX: usize = 32_768;
/// Where the first is.
const CTX_START: usize = 2048;
/// Tokens by which the prompt of each session is turned, so that sessions choose other experts.
const TURN: usize = 977;

/// A sweep.
#[derive(Debug)]
pub struct Plan {
    /// Tokens at which answers are measured, growing.
    pub frontiers: Vec<usize>,
    /// Room of a session.
    pub context: usize,
    /// Tokens of an answer.
    pub answer: usize,
    /// Whether the prompt says the answer.
    pub teacher_forced: bool,
    /// Sessions that answer in common steps.
    pub sessions: usize,
    /// How frontiers are reached.
    pub fill: Fill,
    /// Tokens before a frontier that are read after random rows.
    pub tail: usize,
    /// Seed of random rows.
    pub seed: u64,
    /// What the tokens are: "file", "chat", "ids" or "random ids".
    pub prompt: &'static str,
    ids: Vec<u32>,
    /// A token that ends answers, which the probe passes over.
    pub end: Option<u32>,
}

impl Plan {
    /// A sweep as the flags want it, of a model that was opened.
    pub fn new(flags: &BenchSweep, engine: &Engine) -> Result<Plan, Failure> {
        if !(flags.step_mul >= 1.0 && flags.step_mul.is_finite()) {
            let found = flags.step_mul;
            return Err(Failure::caller(format!("--step-mul {found}: 1 or more is needed")));
        }
        let shape = engine.model().shape();
        let room = shape.context.saturating_sub(flags.gen_tokens);
        let most = flags.ctx_max.unwrap_or_else(|| CTX_MAX.min(room)).max(1);
        let first = flags.ctx_start.unwrap_or_else(|| CTX_START.min(most));
        let needed = most.saturating_add(flags.gen_tokens);
        let context = flags.ctx_alloc.unwrap_or(needed);
        if needed > shape.context || context > shape.context {
            return Err(Failure::caller(format!(
                "{} tokens are wanted, and this model's context is {}; lower --ctx-max, \
                 --ctx-alloc or --gen-tokens",
                needed.max(context),
                shape.context
            )));
        }
        if first > most || needed > context {
            return Err(Failure::caller(format!(
                "--ctx-start {first}, --ctx-max {most} and --ctx-alloc {context}: the first must \
                 not be beyond the last, and the last and {} tokens of answer must fit",
                flags.gen_tokens
            )));
        }
        let (prompt, ids) = prompt(flags, engine, needed)?;
        Ok(Plan {
            frontiers: frontiers(first, most, flags.step_incr, flags.step_mul),
            context,
            answer: flags.gen_tokens,
            teacher_forced: flags.teacher_forced_decode,
            sessions: flags.sessions,
            fill: flags.fill,
            tail: flags.fill_tail,
            seed: flags.seed,
            prompt,
            ids,
            end: engine.tokenizer().and_then(|tokenizer| tokenizer.eos()),
        })
    }

    /// The token of a session at a position.
    pub fn token(&self, session: usize, position: usize) -> u32 {
        self.ids[(session * TURN + position) % self.ids.len()]
    }

    /// The first tokens of a session.
    pub fn tokens(&self, session: usize, count: usize) -> Vec<u32> {
        (0..count).map(|position| self.token(session, position)).collect()
    }
}

/// Growing, from the first to at most the last.
fn frontiers(first: usize, most: usize, step: usize, factor: f64) -> Vec<usize> {
    let mut all = vec![first];
    let mut at = first;
    while at < most {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a positive number of tokens; casts stop at the limits"
        )]
        let next = if factor > 1.0 { (at as f64 * factor) as usize } else { at + step };
        at = next.max(at + 1);
        if at <= most {
            all.push(at);
        }
    }
    all
}

/// The tokens that the flags name; at least `needed`.
fn prompt(
    flags: &BenchSweep,
    engine: &Engine,
    needed: usize,
) -> Result<(&'static str, Vec<u32>), Failure> {
    let vocabulary = u32::try_from(engine.model().shape().vocabulary).unwrap_or(u32::MAX);
    let tokenizer = || engine.tokenizer().ok_or_else(|| Failure::caller("the model has no text"));
    let (what, ids) = if let Some(path) = &flags.ids {
        let ids = parse_ids(&read_text(path)?, vocabulary);
        ("ids", ids.map_err(|wrong| loading::in_file(&named(path), Failure::caller(wrong)))?)
    } else if let Some(path) = &flags.prompt_file {
        ("file", tokenizer()?.encode(&read_text(path)?))
    } else if let Some(path) = &flags.chat_prompt_file {
        let (system, text) = (flags.system.as_deref(), read_text(path)?);
        ("chat", asking::question(tokenizer()?, system, &text, Thinking::Off)?)
    } else {
        ("random ids", random_ids(needed, vocabulary, flags.seed))
    };
    if ids.len() < needed {
        return Err(Failure::caller(format!(
            "the prompt has {} tokens, and --ctx-max with the answer needs {needed}; give a \
             longer prompt, or a lower --ctx-max",
            ids.len()
        )));
    }
    Ok((what, ids))
}

fn named(path: &std::path::Path) -> String {
    path.display().to_string()
}

/// Ids that are spread over the vocabulary (splitmix64).
fn random_ids(count: usize, vocabulary: u32, mut state: u64) -> Vec<u32> {
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let vocabulary = u64::from(vocabulary.max(1));
    (0..count).map(|_| u32::try_from(next() % vocabulary).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::{frontiers, random_ids};

    #[test]
    fn frontiers_grow_by_sum_or_by_factor() {
        assert_eq!(frontiers(2048, 8192, 2048, 1.0), [2048, 4096, 6144, 8192]);
        assert_eq!(frontiers(2048, 7000, 2048, 1.0), [2048, 4096, 6144]);
        assert_eq!(frontiers(1024, 9000, 7, 2.0), [1024, 2048, 4096, 8192]);
        // A factor that rounds down to nothing still moves.
        assert_eq!(frontiers(1, 4, 9, 1.1), [1, 2, 3, 4]);
        assert_eq!(frontiers(5, 5, 1, 1.0), [5]);
    }

    #[test]
    fn random_ids_depend_on_the_seed_and_stay_inside() {
        let (a, b) = (random_ids(1000, 50, 1), random_ids(1000, 50, 2));
        assert!(a != b && a.iter().chain(&b).all(|id| *id < 50));
        assert_eq!(a[..10], random_ids(10, 50, 1));
    }
}
