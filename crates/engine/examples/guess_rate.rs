//! Measures guessing in processor seconds: answers to the bundled model's tool calls and stories,
//! and adversarial text (any tokens, drawn hot), plain and with each way of guessing, in turn, the
//! median of all rounds. Prints what steps of 1 to 6 rows and a pass of the drafter cost, and how
//! many guesses were right. Fails when guessing by itself (`Auto`) loses on tool calls or stories,
//! or more than 3 % on adversarial text.
//!
//! `cargo run --release -p ironstar-engine --example guess_rate [ROUNDS [KIND]]`; Unix only.
#![expect(clippy::print_stdout, reason = "a measuring tool")]

mod clock;

use clock::processor_time;
use ironstar_engine::sampler::Settings;
use ironstar_engine::{
    CancelFlag, Control, Engine, EngineOptions, Error, Generate, Score, Session, Speculation,
    SpeculationReport,
};
use std::path::{Path, PathBuf};

const ANSWER: usize = 64;
const WAYS: [Speculation; 4] =
    [Speculation::Off, Speculation::Auto, Speculation::Mtp, Speculation::Lookup];

fn main() -> Result<(), Error> {
    let rounds = std::env::args().nth(1).map_or(9, |n| n.parse().expect("a number of rounds"));
    let options = EngineOptions { threads: 1, ..EngineOptions::default() };
    let mut engine = Engine::open(&file("models/nano.gguf"), options, &mut |_| {})?;
    costs(&mut engine)?;
    let only = std::env::args().nth(2);
    let mut lost = Vec::new();
    for (kind, least) in [("tool", 1.0), ("story_qa-thinking", 1.0), ("adversarial", 0.97)] {
        if only.as_ref().is_some_and(|only| only != kind) {
            continue;
        }
        let prompts = prompts(&engine, kind);
        let temperature = if kind == "adversarial" { 1.5 } else { 0.0 };
        let (seconds, reports) = measure(&mut engine, &prompts, temperature, rounds)?;
        let plain = median(&seconds[0]);
        println!("{kind}: {} prompts, plain {:.1} ms", prompts.len(), plain * 1e3);
        for (way, how) in WAYS.iter().enumerate().skip(1) {
            // Rounds are compared within themselves: the machine changes between them.
            let rates = seconds[0].iter().zip(&seconds[way]).map(|(plain, own)| plain / own);
            let rate = median(&rates.collect::<Vec<_>>());
            let SpeculationReport { drafted, accepted, steps, plain_steps, .. } = reports[way];
            println!(
                "  {how:?}: {rate:.3} of plain; {steps} steps, {plain_steps} plain, {accepted} of \
                 {drafted} right, by depth {:?}",
                reports[way].depths
            );
            if *how == Speculation::Auto && rate < least {
                lost.push(format!("{kind} {rate:.3}"));
            }
        }
    }
    assert!(lost.is_empty(), "guessing by itself loses: {lost:?}");
    Ok(())
}

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn prompts(engine: &Engine, kind: &str) -> Vec<Vec<u32>> {
    let tokenizer = engine.tokenizer().expect("nano has one");
    if kind == "adversarial" {
        let any =
            |seed: u32| (0..200u32).map(move |i| (i * 31 + seed).wrapping_mul(2_654_435_761) >> 22);
        return (0..8).map(|seed| any(seed * 977).collect()).collect();
    }
    let cases = std::fs::read_to_string(file("tests/golden/nano/eval.jsonl")).expect("a fixture");
    let cases = cases.lines().map(|line| serde_json::from_str(line).expect("a case"));
    let rendered = cases
        .filter(|case: &serde_json::Value| case["kind"] == kind)
        .map(|case| case["prompt"].as_str().expect("a rendered prompt").to_owned());
    rendered.step_by(2).take(12).map(|prompt| tokenizer.encode_rendered(&prompt)).collect()
}

/// Processor seconds of every way and round, for all answers together, and what guessing gained.
fn measure(
    engine: &mut Engine,
    prompts: &[Vec<u32>],
    temperature: f64,
    rounds: usize,
) -> Result<([Vec<f64>; 4], [SpeculationReport; 4]), Error> {
    let (mut seconds, mut reports) =
        (<[Vec<f64>; 4]>::default(), [SpeculationReport::default(); 4]);
    for round in 0..=rounds {
        for (way, speculation) in WAYS.into_iter().enumerate() {
            let (mut all, mut report) = (0.0, SpeculationReport::default());
            for prompt in prompts {
                let mut session = engine.session(prompt.len() + ANSWER)?;
                session.sync(engine, prompt, &mut |_| {}, &CancelFlag::default())?;
                let start = processor_time().as_secs_f64();
                add(&mut report, &answer(engine, &mut session, speculation, temperature)?);
                all += processor_time().as_secs_f64() - start;
            }
            // The first round only warms up.
            if round > 0 {
                seconds[way].push(all);
            }
            reports[way] = report;
        }
    }
    Ok((seconds, reports))
}

fn answer(
    engine: &mut Engine,
    session: &mut Session,
    speculation: Speculation,
    temperature: f64,
) -> Result<SpeculationReport, Error> {
    let settings = Settings { temperature, ..Settings::default() };
    let stop = engine.tokenizer().and_then(|t| t.eos()).into_iter().collect();
    let what = Generate {
        settings,
        seed: 7,
        tokens_max: Some(ANSWER),
        stop,
        speculation,
        ..Generate::default()
    };
    let go = CancelFlag::default();
    Ok(session.generate(engine, &what, &mut |_| Control::Continue, &go)?.speculation)
}

fn add(all: &mut SpeculationReport, one: &SpeculationReport) {
    all.drafted += one.drafted;
    all.accepted += one.accepted;
    all.steps += one.steps;
    all.plain_steps += one.plain_steps;
    for (sum, own) in all.depths.iter_mut().zip(&one.depths) {
        *sum = (sum.0 + own.0, sum.1 + own.1);
    }
}

/// What a step of several rows costs, in steps of one, at a position in the hundreds.
fn costs(engine: &mut Engine) -> Result<(), Error> {
    let tokens: Vec<u32> = (0..700).map(|i: u32| i * 7 % 1000).collect();
    let mut session = engine.session(tokens.len())?;
    let mut plain = 0.0;
    for rows in 1..=6 {
        engine.set_prompt_rows(rows);
        let steps = 100;
        session.sync(engine, &tokens[..64], &mut |_| {}, &CancelFlag::default())?;
        let start = processor_time().as_secs_f64();
        let what = Score { from: 64, drafts: false };
        let all = &tokens[..64 + rows * steps];
        session.score(engine, all, what, &mut |_| Control::Continue, &CancelFlag::default())?;
        let seconds = (processor_time().as_secs_f64() - start) / 100.0;
        plain = if rows == 1 { seconds } else { plain };
        println!("a step of {rows} rows: {:.1} us, {:.2} of one", seconds * 1e6, seconds / plain);
    }
    engine.set_prompt_rows(512);
    Ok(())
}

fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
