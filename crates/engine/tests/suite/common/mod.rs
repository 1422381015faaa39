//! What the tests of sessions share: tiny engines, and answers from an engine that never did
//! anything else.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use ironstar_engine::{
    CancelFlag, Control, DrafterChoice, Engine, EngineOptions, Generate, Generated, Session,
    SyncReport, Token,
};
use ironstar_model::testing::Tiny;

/// The tiny model, with few tokens so that random drafts are often right.
pub fn tiny(vocabulary: usize) -> Tiny {
    let mut tiny = Tiny::small(7);
    tiny.shape.vocabulary = vocabulary;
    tiny
}

pub fn options() -> EngineOptions {
    EngineOptions { threads: 1, ..EngineOptions::default() }
}

pub fn engine_of(tiny: &Tiny, options: EngineOptions) -> Engine {
    let drafter = (options.drafter != DrafterChoice::None).then(|| tiny.drafter());
    Engine::from_gguf(&tiny.gguf(), drafter.as_ref(), options, &mut |_| {}).unwrap()
}

/// The model of 96 tokens with its drafter.
pub fn engine() -> Engine {
    engine_of(&tiny(96), options())
}

pub fn sync(session: &mut Session, engine: &mut Engine, tokens: &[u32]) -> SyncReport {
    session.sync(engine, tokens, &mut |_| {}, &CancelFlag::default()).unwrap()
}

/// Tokens of an answer, and how it went.
pub fn generate(
    session: &mut Session,
    engine: &mut Engine,
    what: &Generate,
) -> (Vec<Token>, Generated) {
    let mut tokens = Vec::new();
    let mut on_token = |token: &Token| {
        tokens.push(token.clone());
        Control::Continue
    };
    let report = session.generate(engine, what, &mut on_token, &CancelFlag::default()).unwrap();
    (tokens, report)
}

pub fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|l| l.to_bits()).collect()
}

/// Bits of a session's logits.
#[track_caller]
pub fn logits(session: &Session) -> Vec<u32> {
    bits(session.logits().expect("the last token is evaluated"))
}

/// Steps of the backend so far.
pub fn steps(engine: &Engine) -> u64 {
    engine.counters().steps
}

/// Numbers below a bound from a seed: the oracle's generator.
pub struct Dice(ironstar_model::testing::Uniforms);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(ironstar_model::testing::Uniforms::new(seed, "dice"))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "small numbers"
    )]
    pub fn below(&mut self, bound: usize) -> usize {
        (self.0.next() * bound as f64) as usize
    }

    pub fn tokens(&mut self, count: usize, vocabulary: usize) -> Vec<u32> {
        (0..count).map(|_| u32::try_from(self.below(vocabulary)).unwrap()).collect()
    }
}
