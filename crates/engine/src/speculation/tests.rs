//! The cost model on a clock that we hold, with times and acceptance that are given.

use super::*;
use crate::draft::SpeculationReport;
use crate::{CancelFlag, Control, Engine, EngineOptions, Generate};

/// Times in plain steps of an H200 that reads at 4.3 TB/s (spec/perf.md 2: bytes of 1, 2, 4, 6, 8
/// and 16 rows at 2 bits, on lines between), and of its drafters: a chain reads a layer of 43 and
/// the head for each guess, a block three layers for five rows and the head.
const H200_ROWS: [f64; 9] = [1.0, 1.19, 1.365, 1.54, 1.715, 1.89, 2.05, 2.21, 2.36];
const CHAIN: f64 = 0.08;
const BLOCK: f64 = 0.17;
const PLAIN_S: f64 = 0.0022;

/// A machine: rows of a step, and the drafter's pass, in plain steps.
#[derive(Clone, Copy)]
struct Machine {
    rows: [f64; 9],
    pass: f64,
    drafter: Drafter,
    /// What a real clock adds.
    noise: f64,
}

const CHAINED: Machine =
    Machine { rows: H200_ROWS, pass: CHAIN, drafter: Drafter::Chain, noise: 0.0 };
const BLOCKS: Machine =
    Machine { rows: H200_ROWS, pass: BLOCK, drafter: Drafter::Block, noise: 0.0 };

/// Numbers from 0 to 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        f64::from(u32::try_from(self.0 >> 33).expect("31 bits")) / f64::from(1u32 << 31)
    }
}

/// How likely a guess is right, by the token that its step begins with and its depth; less than 0
/// where the drafter is not sure and gives none.
type Chance<'c> = &'c dyn Fn(usize, usize) -> f64;

struct Run {
    /// Plain steps that passed after each token.
    passed: Vec<f64>,
    report: SpeculationReport,
    costs: CostModel,
}

impl Run {
    fn rate(&self) -> f64 {
        let tokens = u32::try_from(self.passed.len()).expect("few");
        f64::from(tokens) / self.passed.last().expect("some")
    }

    /// Most plain steps that it was behind plain decoding at any token.
    fn behind(&self) -> f64 {
        let late = self.passed.iter().zip(1u32..).map(|(passed, token)| passed - f64::from(token));
        late.fold(0.0, f64::max)
    }
}

/// A session of its own: see [`run_after`].
fn run(machine: Machine, tokens: usize, chance: Chance<'_>) -> Run {
    run_after(CostModel::default(), machine, tokens, chance)
}

/// Tokens until there are enough, when the guess at a depth of the step that begins with a token
/// is right with a chance.
fn run_after(costs: CostModel, machine: Machine, tokens: usize, chance: Chance<'_>) -> Run {
    let mut run = Run { passed: Vec::new(), report: SpeculationReport::default(), costs };
    let (mut random, mut now) = (Random(7), 0.0);
    let seconds = |plain: f64| Duration::from_secs_f64(plain * PLAIN_S);
    while run.passed.len() < tokens {
        let offer = Offer { found: 0, drafter: Some(machine.drafter), most: 5, is_forced: false };
        let (mut guesser, mut asked, mut guesses, mut drafting) = (None, 0, 0, 0.0);
        if let Some((who, count)) = run.costs.plan(&offer) {
            let token = run.passed.len();
            let there = (0..count).take_while(|depth| chance(token, *depth) >= 0.0).count();
            let made = count.min(there + 1);
            let passes = if machine.drafter == Drafter::Chain { made } else { 1 };
            drafting = machine.pass * f64::from(u32::try_from(passes).expect("few"));
            run.costs.drafted(&offer, made, seconds(drafting));
            (guesser, asked, guesses) = (Some(who), count, run.costs.worth(&offer, there));
        }
        let right = (0..guesses)
            .take_while(|depth| random.next() < chance(run.passed.len(), *depth))
            .count();
        let step = machine.rows[guesses] * (1.0 + machine.noise * (random.next() - 0.5));
        let times = [seconds(drafting), seconds(step)];
        let cycle = Cycle { guesser, asked, guesses, right, is_cut: false, times };
        run.costs.observe(&cycle);
        run.report.count(&cycle);
        now += drafting + step;
        run.passed.extend(std::iter::repeat_n(now, right + 1));
    }
    run
}

/// How many of five chained guesses are right at each token of nano's greedy answers to some of
/// the prompts that the bundled cases hold, one answer behind the other.
fn nano_trace(kind: &str, prompts: usize) -> Vec<usize> {
    let file =
        |path: &str| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let options = EngineOptions { threads: 1, ..EngineOptions::default() };
    let mut engine = Engine::open(&file("models/nano.gguf"), options, &mut |_| {}).expect("nano");
    let cases = std::fs::read_to_string(file("tests/golden/nano/eval.jsonl")).expect("a fixture");
    let cases = cases.lines().map(|line| serde_json::from_str(line).expect("a case"));
    let prompts: Vec<String> = cases
        .filter(|case: &serde_json::Value| case["kind"] == kind)
        .map(|case| case["prompt"].as_str().expect("a rendered prompt").to_owned())
        .step_by(4)
        .take(prompts)
        .collect();
    let (go, mut trace) = (CancelFlag::default(), Vec::new());
    for prompt in prompts {
        let tokenizer = engine.tokenizer().expect("nano has one");
        let (prompt, stop) = (tokenizer.encode_rendered(&prompt), tokenizer.eos());
        let mut session = engine.session(prompt.len() + 70).expect("room");
        session.sync(&mut engine, &prompt, &mut |_| {}, &go).expect("a prompt");
        let what = Generate {
            settings: crate::sampler::Settings::greedy(),
            tokens_max: Some(64),
            stop: stop.into_iter().collect(),
            speculation: Speculation::Off,
            ..Generate::default()
        };
        session.generate(&mut engine, &what, &mut |_| Control::Continue, &go).expect("an answer");
        let all = session.tokens().to_vec();
        session.sync(&mut engine, &prompt, &mut |_| {}, &go).expect("back");
        for at in prompt.len()..all.len() - 1 {
            let (model, backend) = (&mut engine.model, engine.backend.as_mut());
            let drafted =
                model.draft_tokens(backend, session.state(), all[at], 5).expect("nano has MTP");
            let next = all[at + 1..].iter();
            trace.push(drafted.tokens.iter().zip(next).take_while(|(a, b)| a == b).count());
            session.push(&mut engine, all[at]).expect("room");
        }
    }
    trace
}

/// Nano's own guesses, in the times of an H200.
#[test]
fn on_an_h200_tool_calls_and_stories_gain() {
    for kind in ["tool", "story_qa-thinking"] {
        let trace = nano_trace(kind, 4);
        let right =
            |token: usize, depth: usize| f64::from(u8::from(depth < trace[token % trace.len()]));
        assert!(trace.len() > 40, "{kind}: {} tokens", trace.len());
        for tokens in [trace.len(), 1000] {
            let run = run(CHAINED, tokens, &right);
            let rate = run.rate();
            let what = format!("{kind}: {rate} for {tokens}, {:?}, {trace:?}", run.report);
            assert!(rate >= 1.2, "{what}");
        }
    }
    for tokens in [100, 1000] {
        let run = run(BLOCKS, tokens, &|_, depth| [0.9, 0.8, 0.7, 0.6, 0.5][depth]);
        assert!(run.rate() >= 1.2, "{} for {tokens}", run.rate());
    }
}

/// Whatever the text does, the loss is bounded, and 3 % of a long answer at most.
#[test]
fn adversarial_text_costs_three_percent_at_most() {
    let never = |_: usize, _: usize| 0.0;
    let lures = |token: usize, _: usize| f64::from(u8::from(token % 400 < 40));
    let short_lures = |token: usize, _: usize| f64::from(u8::from(token % 23 < 4));
    let fades = |token: usize, _: usize| if token < 60 { 1.0 } else { 0.0 };
    let first_only = |_: usize, depth: usize| f64::from(u8::from(depth == 0)) * 0.2;
    let texts: [(&str, Chance<'_>); 5] = [
        ("never", &never),
        ("lures", &lures),
        ("short lures", &short_lures),
        ("fades", &fades),
        ("first only", &first_only),
    ];
    let slow_rows = H200_ROWS.map(|rows| 1.0 + (rows - 1.0) * 5.0);
    let slow = Machine { rows: slow_rows, ..CHAINED };
    let slow_pass = Machine { pass: 2.0, ..BLOCKS };
    for (name, machine) in
        [("chain", CHAINED), ("block", BLOCKS), ("slow rows", slow), ("slow pass", slow_pass)]
    {
        for (text, chance) in texts {
            for tokens in [300, 1000, 5000] {
                let run = run(machine, tokens, chance);
                let rate = run.rate();
                assert!(rate >= 1.0 / 1.03, "{text} on {name}: {rate} for {tokens} tokens");
                let behind = run.behind();
                let limit = 5.0 + 0.015 * f64::from(u32::try_from(tokens).expect("few"));
                assert!(behind <= limit, "{text} on {name}: {behind} behind");
            }
        }
    }
}

/// Short answers one after the other lose no more than a long one, and what comes after them may
/// gain again.
#[test]
fn many_short_answers_cost_three_percent_at_most() {
    let slow_rows = H200_ROWS.map(|rows| 1.0 + (rows - 1.0) * 3.0);
    for machine in [CHAINED, BLOCKS, Machine { rows: slow_rows, ..CHAINED }] {
        for length in [16, 64, 200] {
            let (mut costs, mut passed, mut tokens) = (CostModel::default(), 0.0, 0u32);
            while tokens < 1600 {
                let answer = run_after(costs.heir(), machine, length, &|_, _| 0.0);
                passed += answer.passed.last().expect("some tokens");
                tokens += u32::try_from(answer.passed.len()).expect("few");
                costs = answer.costs;
            }
            let rate = f64::from(tokens) / passed;
            assert!(rate >= 1.0 / 1.03, "{rate} in answers of {length}");
            // What it costs to find out is a few tokens.
            let after = run_after(costs.heir(), machine, 200, &|_, _| 0.95).rate();
            let alone = run(machine, 200, &|_, _| 0.95).rate();
            assert!(after > alone * 0.8, "{after} of {alone} after answers of {length}");
        }
    }
}

/// What does not pay is off nearly always, and is tried again.
#[test]
fn it_switches_itself_off_and_tries_again() {
    let none = run(CHAINED, 3000, &|_, _| 0.0);
    let report = none.report;
    let steps = 3000;
    assert!(report.plain_steps * 100 >= steps * 95, "{} plain steps", report.plain_steps);
    let tried = report.depths[0].0;
    assert!((4..200).contains(&tried), "{tried} tries");
    // Text that becomes easy is found out.
    let later = run(CHAINED, 3000, &|token, _| if token < 600 { 0.0 } else { 0.95 });
    assert!(later.rate() > 1.5, "{}", later.rate());
}

/// The best length is found: long where nearly all is right, short where only the first is.
#[test]
fn the_length_follows_the_text() {
    let mean = |run: &Run| {
        let guesses: u32 = run.report.depths.iter().map(|depth| depth.0).sum();
        f64::from(guesses) / f64::from(run.report.depths[0].0)
    };
    let long = mean(&run(BLOCKS, 2000, &|_, _| 0.98));
    let short = mean(&run(BLOCKS, 2000, &|_, depth| if depth == 0 { 0.98 } else { 0.02 }));
    assert!(long > 4.5 && short < 1.5, "{long} {short}");
}

/// A drafter that says when it is not sure: what it does not give is not paid for, and what it
/// gives is worth more.
#[test]
fn a_drafter_that_is_not_sure_costs_little() {
    // Of three guesses at any depth one is right, and it is the one that is there.
    let hidden =
        |token: usize, depth: usize| if (token + depth).is_multiple_of(3) { 1.0_f64 } else { -1.0 };
    let shown = |token: usize, depth: usize| hidden(token, depth).max(0.0);
    let slow_rows = H200_ROWS.map(|rows| 1.0 + (rows - 1.0) * 3.0);
    let machine = Machine { rows: slow_rows, ..CHAINED };
    let [sure, unsure] = [&hidden as Chance<'_>, &shown].map(|chance| run(machine, 2000, chance));
    assert!(sure.rate() > unsure.rate() + 0.02, "{} {}", sure.rate(), unsure.rate());
    assert!(sure.rate() > 1.02, "{}", sure.rate());
    let none = run(machine, 2000, &|_, _| -1.0);
    assert!(none.rate() > 0.97, "{}", none.rate());
}

/// A session after another one knows at once what the machine does and what the drafter is worth.
#[test]
fn a_new_session_begins_with_what_was_seen() {
    let first = run(CHAINED, 200, &|_, depth| if depth == 0 { 1.0 } else { 0.0 });
    let mut heir = first.costs.heir();
    let offer = Offer { found: 0, drafter: Some(Drafter::Chain), most: 5, is_forced: false };
    assert_eq!(heir.plan(&offer), Some((Guesser::Drafter, 1)));
    assert_eq!(CostModel::default().plan(&offer), None, "which otherwise takes plain steps first");
    // It changes its mind as fast as any other.
    let mut lost = 0;
    for _ in 0..200 {
        let Some((who, asked)) = heir.plan(&offer) else {
            let times = [Duration::ZERO, Duration::from_secs_f64(PLAIN_S)];
            let (guesser, asked, guesses, right) = (None, 0, 0, 0);
            heir.observe(&Cycle { guesser, asked, guesses, right, is_cut: false, times });
            continue;
        };
        lost += 1;
        let times = [CHAIN, H200_ROWS[asked]].map(|t| Duration::from_secs_f64(t * PLAIN_S));
        let (guesser, guesses, right) = (Some(who), asked, 0);
        heir.observe(&Cycle { guesser, asked, guesses, right, is_cut: false, times });
    }
    assert!((4..25).contains(&lost), "{lost} wrong guesses of 200 steps");
}

#[test]
fn a_noisy_clock_changes_little() {
    for (share, least) in [(0.9, 1.4), (0.0, 0.96)] {
        let rate = run(Machine { noise: 0.3, ..CHAINED }, 2000, &|_, _| share).rate();
        assert!(rate > least, "{rate}");
    }
}

#[test]
fn what_must_guess_guesses_at_once() {
    let mut costs = CostModel::default();
    let offer = Offer { found: 0, drafter: Some(Drafter::Block), most: 5, is_forced: true };
    for _ in 0..100 {
        let (guesser, guesses) = costs.plan(&offer).expect("forced");
        assert_eq!(guesser, Guesser::Drafter);
        assert!(costs.worth(&offer, guesses) > 0);
        let times = [Duration::from_millis(1), Duration::from_millis(9)];
        let guesser = Some(guesser);
        let asked = guesses;
        costs.observe(&Cycle { guesser, asked, guesses, right: 0, is_cut: false, times });
    }
    assert_eq!(costs.plan(&Offer { drafter: None, ..offer }), None);
    assert_eq!(costs.plan(&Offer { most: 0, ..offer }), None);
}

/// Clocks that stand still or jump do no harm.
#[test]
fn odd_times_do_no_harm() {
    let mut costs = CostModel::default();
    let offer = Offer { found: 8, drafter: Some(Drafter::Chain), most: 8, is_forced: false };
    let mut random = Random(3);
    for turn in 0..2000 {
        let times = match turn % 5 {
            0 => [Duration::ZERO; 2],
            1 => [Duration::MAX / 4; 2],
            _ => [Duration::from_micros(100), Duration::from_millis(2)],
        };
        let plan = costs.plan(&offer);
        let guesses = plan.map_or(0, |(_, guesses)| guesses);
        assert!(guesses <= 8);
        costs.drafted(&offer, guesses.max(1), times[0]);
        let right = (0..guesses).take_while(|_| random.next() < 0.7).count();
        let guesser = plan.map(|(guesser, _)| guesser);
        let asked = guesses;
        costs.observe(&Cycle { guesser, asked, guesses, right, is_cut: turn % 3 == 0, times });
    }
}

/// Repeats of the text are free, so they win where both would guess alike.
#[test]
fn repeats_are_taken_where_there_are_any() {
    let mut costs = CostModel::default();
    let plain = Cycle {
        guesser: None,
        asked: 0,
        guesses: 0,
        right: 0,
        is_cut: false,
        times: [Duration::ZERO, Duration::from_millis(2)],
    };
    costs.observe(&plain);
    costs.observe(&plain);
    let text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3];
    let wish = Wish { how: Speculation::Auto, drafter: Some(Drafter::Chain), text: &text, most: 9 };
    let mut never = |_: usize| -> Result<Vec<u32>, Error> { panic!("the text knows") };
    let proposal = propose(&mut costs, &wish, &|| Duration::ZERO, &mut never).expect("no failure");
    assert_eq!(proposal.guesser, Some(Guesser::Lookup));
    assert_eq!(proposal.tokens[..2], [4, 5]);
    let mut draft = |count: usize| Ok(vec![9; count]);
    let wish = Wish { text: &text[..7], ..wish };
    let proposal = propose(&mut costs, &wish, &|| Duration::ZERO, &mut draft).expect("no failure");
    assert_eq!(proposal.guesser, Some(Guesser::Drafter));
    let wish = Wish { how: Speculation::Off, ..wish };
    let proposal = propose(&mut costs, &wish, &|| Duration::ZERO, &mut draft).expect("no failure");
    assert_eq!(proposal, Proposal::default());
}
