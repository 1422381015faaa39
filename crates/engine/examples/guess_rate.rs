//! Measures guessing in processor seconds: answers to the bundled model's tool calls and stories,
//! and adversarial text (any tokens, drawn hot). Each answer is given plainly, twice with guesses,
//! and plainly again, so that a machine that slows down meanwhile favours neither; a round is all
//! of them, and told is the median of nine rounds at least, with the quarters of them beside it.
//! As a control the first plain answers stand against the second: that they differ is the machine.
//! Prints what steps of 1 to 6 rows cost, and how many guesses were right. Fails when guessing by
//! itself (`Auto`) loses on tool calls or stories, or more than 3 % on adversarial text.
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
const WAYS: [Speculation; 3] = [Speculation::Auto, Speculation::Mtp, Speculation::Lookup];
/// Fewest rounds: of less the median says little.
const ROUNDS: usize = 9;

fn main() -> Result<(), Error> {
    let rounds = std::env::args().nth(1).map(|n| n.parse().expect("a number of rounds"));
    let rounds: usize = rounds.unwrap_or(ROUNDS).max(ROUNDS);
    let options = EngineOptions { threads: 1, ..EngineOptions::default() };
    let mut engine = Engine::open(&file("models/nano.gguf"), options, &mut |_| {})?;
    costs(&mut engine)?;
    let only = std::env::args().nth(2);
    let mut lost = Vec::new();
    for (kind, least_rate) in [("tool", 1.0), ("story_qa-thinking", 1.0), ("adversarial", 0.97)] {
        if only.as_ref().is_some_and(|only| only != kind) {
            continue;
        }
        let prompts = prompts(&engine, kind);
        let temperature = if kind == "adversarial" { 1.5 } else { 0.0 };
        println!("{kind}: {} prompts, {rounds} rounds", prompts.len());
        for how in WAYS {
            let (rounds, report) = measure(&mut engine, &prompts, how, temperature, rounds)?;
            let told = |part: &dyn Fn(&Round) -> f64| {
                let mut all: Vec<f64> = rounds.iter().map(part).collect();
                all.sort_by(f64::total_cmp);
                [all[all.len() / 4], all[all.len() / 2], all[all.len() * 3 / 4]]
            };
            let gain = |round: &Round| (round.plain[0] + round.plain[1]) / round.guessed;
            let [low, rate, high] = told(&gain);
            let [least, same, most] = told(&|round| round.plain[0] / round.plain[1]);
            let [_, plain, _] = told(&|round| round.plain[0]);
            let SpeculationReport { drafted, accepted, steps, plain_steps, .. } = report;
            println!(
                "  {how:?}: {rate:.3} ({low:.3} to {high:.3}) of plain, which takes {:.1} ms and \
                 is {same:.3} ({least:.3} to {most:.3}) of itself; {steps} steps, {plain_steps} \
                 plain, {accepted} of {drafted} right, by depth {:?}",
                plain * 1e3,
                report.depths
            );
            if how == Speculation::Auto && rate < least_rate {
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

/// Processor seconds of a round: of the plain answers before and after, and of those with guesses
/// between them.
struct Round {
    plain: [f64; 2],
    guessed: f64,
}

/// All rounds of one way, and what guessing gained in the last.
fn measure(
    engine: &mut Engine,
    prompts: &[Vec<u32>],
    way: Speculation,
    temperature: f64,
    rounds: usize,
) -> Result<(Vec<Round>, SpeculationReport), Error> {
    let (mut all, mut last) = (Vec::new(), SpeculationReport::default());
    for number in 0..=rounds {
        let (mut round, mut report) =
            (Round { plain: [0.0; 2], guessed: 0.0 }, SpeculationReport::default());
        for prompt in prompts {
            let mut timed = |how: Speculation| {
                let mut session = engine.session(prompt.len() + ANSWER)?;
                session.sync(engine, prompt, &mut |_| {}, &CancelFlag::default())?;
                let start = processor_time().as_secs_f64();
                let told = answer(engine, &mut session, how, temperature)?;
                Ok::<_, Error>((processor_time().as_secs_f64() - start, told))
            };
            round.plain[0] += timed(Speculation::Off)?.0;
            for _ in 0..2 {
                let (seconds, told) = timed(way)?;
                round.guessed += seconds;
                add(&mut report, &told);
            }
            round.plain[1] += timed(Speculation::Off)?.0;
        }
        // The first round only warms up.
        if number > 0 {
            all.push(round);
        }
        last = report;
    }
    Ok((all, last))
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
