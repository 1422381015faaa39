//! Measures a session: tokens a second when reading a prompt of 512 and when answering, their
//! ratio, and what guessing gives. Fails when reading is less than three times as fast as
//! answering.
//!
//! `cargo run --release -p ironstar-engine --example rates [MODEL.gguf [THREADS]]`; without a file,
//! a random model.
#![expect(clippy::print_stdout, reason = "a measuring tool")]

use ironstar_engine::sampler::Settings;
use ironstar_engine::{
    CancelFlag, Control, Engine, EngineOptions, Error, Generate, Session, Speculation,
};
use ironstar_model::deepseek_v4::Kind;
use ironstar_model::testing::{Tiny, encode};
use ironstar_quant::Format;
use std::path::Path;
use std::time::Instant;

const PROMPT: usize = 512;
const ANSWER: usize = 64;
const RUNS: usize = 5;

fn main() -> Result<(), Error> {
    let mut engine = open()?;
    let vocabulary = engine.model().shape().vocabulary;
    let prompt = prompt(&engine, vocabulary);
    let mut session = engine.session(PROMPT + 2 * ANSWER)?;
    let (reading, answering) =
        median(|| measure(&mut engine, &mut session, &prompt, Speculation::Off))?;
    let width = engine.model().shape().width;
    println!("width {width}, vocabulary {vocabulary}, median of {RUNS} runs");
    println!("reading {PROMPT} tokens: {reading:.0} tokens/s");
    println!("answering {ANSWER} tokens: {answering:.0} tokens/s");
    println!("ratio: {:.1}", reading / answering);
    for how in [Speculation::Mtp, Speculation::Lookup, Speculation::Auto] {
        if how == Speculation::Mtp && !engine.model().has_mtp() {
            continue;
        }
        let (_, rate) = median(|| measure(&mut engine, &mut session, &prompt, how))?;
        println!("answering with {how:?}: {rate:.0} tokens/s, {:.2} of plain", rate / answering);
    }
    assert!(reading >= 3.0 * answering, "reading is not three times as fast as answering");
    Ok(())
}

fn open() -> Result<Engine, Error> {
    if let Some(path) = std::env::args().nth(1) {
        let threads = std::env::args().nth(2).and_then(|t| t.parse().ok()).unwrap_or(0);
        let options = EngineOptions { threads, ..EngineOptions::default() };
        return Engine::open(Path::new(&path), options, &mut |_| {});
    }
    let tiny = Tiny::flash();
    let format = |kind| match kind {
        Kind::Routed => Format::Mxfp4,
        Kind::Dense => Format::Q8_0,
        _ => Format::F32,
    };
    let coded = |spec: &ironstar_model::deepseek_v4::TensorSpec, values: &[f32]| {
        encode(format(spec.kind), values)
    };
    let (model, drafter) = (tiny.gguf_as(&coded), tiny.drafter_as(&coded));
    Engine::from_gguf(&model, Some(&drafter), EngineOptions::default(), &mut |_| {})
}

/// Text where there is a tokenizer, so that guesses can be right; else any tokens.
fn prompt(engine: &Engine, vocabulary: usize) -> Vec<u32> {
    let text = "Once upon a time there was a little fox who lived in a wood. ".repeat(100);
    let mut tokens = engine.tokenizer().map_or_else(Vec::new, |t| t.encode(&text));
    let mut any = (0u32..).map(|i| i.wrapping_mul(2_654_435_761) >> 8);
    while tokens.len() < PROMPT {
        let token = any.next().expect("it never ends");
        tokens.push(token % u32::try_from(vocabulary).expect("ids are 32 bits"));
    }
    tokens.truncate(PROMPT);
    tokens
}

/// Tokens a second, reading and answering.
fn measure(
    engine: &mut Engine,
    session: &mut Session,
    prompt: &[u32],
    speculation: Speculation,
) -> Result<(f64, f64), Error> {
    engine.forget_checkpoints();
    let go = CancelFlag::default();
    session.sync(engine, &[], &mut |_| {}, &go)?;
    let start = Instant::now();
    session.sync(engine, prompt, &mut |_| {}, &go)?;
    let read = start.elapsed().as_secs_f64();
    let settings = Settings::greedy();
    let what = Generate { settings, speculation, tokens_max: Some(ANSWER), ..Generate::default() };
    let start = Instant::now();
    session.generate(engine, &what, &mut |_| Control::Continue, &go)?;
    let answered = start.elapsed().as_secs_f64();
    let count = |n: usize| f64::from(u32::try_from(n).expect("a small number"));
    Ok((count(PROMPT) / read, count(ANSWER) / answered))
}

fn median(mut run: impl FnMut() -> Result<(f64, f64), Error>) -> Result<(f64, f64), Error> {
    let mut all = (0..RUNS).map(|_| run()).collect::<Result<Vec<_>, _>>()?;
    let mut middle = |key: fn(&(f64, f64)) -> f64| {
        all.sort_by(|a, b| key(a).total_cmp(&key(b)));
        key(&all[RUNS / 2])
    };
    Ok((middle(|r| r.0), middle(|r| r.1)))
}
