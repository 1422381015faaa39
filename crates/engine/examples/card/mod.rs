//! What `gpu_check` does besides: common steps of many sessions, answers behind a long state,
//! tokens drawn on the card, the exact mode against the oracles.

use ironstar_device::{Backend, Gpu, Step};
use ironstar_engine::sampler::Settings;
use ironstar_engine::scheduler::{Made, Rows, Source, Work};
use ironstar_engine::{CancelFlag, Control, Engine, Generate, Session, Speculation};
use ironstar_gguf::safetensors::Checkpoint;
use ironstar_model::testing::Tiny;
use ironstar_model::{LogitsFor, Model, Options, RowStorage};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

pub mod compare;
pub mod words;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bound of a logit's distance from the oracle's.
const TOLERANCE: f32 = 1e-3;
/// Steps whose logits are compared with those of a session alone.
const COMPARED: usize = 3;
/// Steps that capture what the timed ones replay: a list is captured when it comes for the second
/// time, and one step of four, which closes a group of the compressors, has a list of its own.
pub const WARM: usize = 9;

fn greedy(tokens: usize) -> Generate {
    Generate {
        settings: Settings::greedy(),
        tokens_max: Some(tokens),
        speculation: Speculation::Off,
        ..Generate::default()
    }
}

fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).expect("a small number"))
}

fn answer(engine: &mut Engine, session: &mut Session, tokens: usize) -> Outcome<Vec<u32>> {
    let mut all = Vec::new();
    let mut take = |token: &ironstar_engine::Token| {
        all.push(token.id);
        Control::Continue
    };
    session.generate(engine, &greedy(tokens), &mut take, &CancelFlag::default())?;
    Ok(all)
}

/// Time from the evaluation of a prompt's last token, alone and by launches that nobody has
/// captured, to the first token of the answer.
pub fn first_token(engine: &mut Engine, prompt: &[u32]) -> Outcome<()> {
    let mut session = engine.session(prompt.len() + 8)?;
    let before = &prompt[..prompt.len() - 1];
    // A step's end that is stored would spare all before it.
    engine.forget_checkpoints();
    let begun = Instant::now();
    session.sync(engine, before, &mut |_| {}, &CancelFlag::default())?;
    let ms = milliseconds(begun);
    println!("the prompt once more: {:.1} tokens/s ({ms:.1} ms)", 1e3 * count(before.len()) / ms);
    let begun = Instant::now();
    session.sync(engine, prompt, &mut |_| {}, &CancelFlag::default())?;
    answer(engine, &mut session, 1)?;
    println!("from the prompt's last token to the first: {:.2} ms", milliseconds(begun));
    Ok(())
}

fn milliseconds(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// A greedy answer whose tokens the card draws, so that no logits come back.
pub fn drawn(engine: &mut Engine, session: &mut Session, tokens: usize) -> Outcome<()> {
    if Source::draw_rows(engine) == 0 || tokens < 2 * WARM {
        return Ok(());
    }
    answer(engine, session, WARM)?;
    let tokens = tokens - WARM;
    let begun = Instant::now();
    answer(engine, session, tokens)?;
    let each = milliseconds(begun) / count(tokens);
    println!("tokens drawn on the card: {:.2} tokens/s ({each:.3} ms each)", 1e3 / each);
    Ok(())
}

/// The same greedy answer without and with guesses of the drafter, forced and by the clock.
pub fn guessed(engine: &mut Engine, prompt: &[u32], tokens: usize) -> Outcome<()> {
    let named =
        if engine.model().spark().is_some() { Speculation::Dspark } else { Speculation::Mtp };
    let mut wanted = Vec::new();
    for how in [Speculation::Off, named, Speculation::Auto] {
        let mut session = engine.session(prompt.len() + 2 * tokens + 1)?;
        session.sync(engine, prompt, &mut |_| {}, &CancelFlag::default())?;
        let what = Generate { speculation: how, ..greedy(tokens) };
        let mut told = Vec::new();
        let mut take = |token: &ironstar_engine::Token| {
            told.push(token.id);
            Control::Continue
        };
        // The first half captures what the second replays.
        session.generate(engine, &what, &mut take, &CancelFlag::default())?;
        let begun = Instant::now();
        let made = session.generate(engine, &what, &mut take, &CancelFlag::default())?;
        let all = milliseconds(begun);
        let (rate, report) = (1e3 * count(made.tokens) / all, made.speculation);
        let (right, drafted) = (report.accepted, report.drafted);
        if wanted.is_empty() {
            wanted.clone_from(&told);
        }
        let same = wanted == told;
        println!(
            "guesses {how:?}: {rate:.1} tokens/s, {right} of {drafted} right, same text: {same}"
        );
        let drafting = report.drafting.as_secs_f64() * 1e3;
        let steps = count(report.steps.max(1));
        println!(
            "  {} steps, {} without guesses; a step drafts for {:.3} ms and takes {:.3} ms besides",
            report.steps,
            report.plain_steps,
            drafting / steps,
            (all - drafting) / steps,
        );
        if !same {
            return Err("guesses changed the text".into());
        }
    }
    Ok(())
}

/// Sessions behind random states of a prompt's length.
fn filled(
    engine: &mut Engine,
    prompt: &[u32],
    (numbers, room): (std::ops::Range<usize>, usize),
) -> Outcome<Vec<Session>> {
    numbers
        .map(|number| {
            let mut session = engine.session(prompt.len() + room)?;
            session.fill_random(engine, prompt, number as u64)?;
            Ok(session)
        })
        .collect()
}

/// A common step of one token each that gives their logits.
fn logits_of(
    engine: &mut Engine,
    sessions: &mut [Session],
    next: &[[u32; 1]],
) -> Outcome<Vec<Vec<f32>>> {
    let mut work = work_of(sessions, next);
    let logits = engine.step(&mut work)?;
    keep(engine, sessions, next)?;
    let width = logits.len() / next.len();
    Ok(logits.chunks_exact(width).map(<[f32]>::to_vec).collect())
}

fn work_of<'a>(sessions: &'a mut [Session], next: &'a [[u32; 1]]) -> Vec<Work<'a, Session>> {
    let both = sessions.iter_mut().zip(next);
    both.map(|(session, tokens)| Work { session, tokens, logits: Rows::All }).collect()
}

fn keep(engine: &mut Engine, sessions: &mut [Session], next: &[[u32; 1]]) -> Outcome<()> {
    for (session, tokens) in sessions.iter_mut().zip(next) {
        engine.keep(session, tokens, None)?;
    }
    Ok(())
}

/// Milliseconds of a common step of sessions that begin with these tokens, by the card's draws
/// where it makes them; and the last tokens.
fn together(
    engine: &mut Engine,
    sessions: &mut [Session],
    mut next: Vec<[u32; 1]>,
    tokens: usize,
) -> Outcome<(f64, Vec<[u32; 1]>)> {
    let number = sessions.len();
    let (mut begun, draws) = (Instant::now(), Source::draw_rows(engine) >= number);
    for step in 0..WARM + tokens {
        if step == WARM {
            begun = Instant::now();
        }
        if !draws {
            let rows = logits_of(engine, sessions, &next)?;
            next = rows.iter().map(|row| [super::best(row)]).collect();
            continue;
        }
        let vocabulary = engine.facts().vocabulary;
        let draw = Settings::greedy().on_device(vocabulary, 0, 0).ok_or("greedy draws")?;
        let made = engine.step_drawn(&mut work_of(sessions, &next), &vec![draw; number])?;
        keep(engine, sessions, &next)?;
        let Made::Tokens(drawn) = made else { return Err("logits that are no numbers".into()) };
        next = drawn.into_iter().map(|token| [token]).collect();
    }
    Ok((milliseconds(begun) / count(tokens), next))
}

/// Rate of so many sessions together, whose first steps have the logits of each alone.
pub fn sessions(engine: &mut Engine, prompt: &[u32], number: usize, tokens: usize) -> Outcome<()> {
    let room = COMPARED + WARM + tokens + 1;
    let mut together = filled(engine, prompt, (0..number, room))?;
    let token = |step: usize, session: usize| [prompt[(7 * step + 11 * session) % prompt.len()]];
    let mut rows = Vec::new();
    for step in 0..COMPARED {
        let next: Vec<_> = (0..number).map(|session| token(step, session)).collect();
        rows.push(logits_of(engine, &mut together, &next)?);
    }
    let mut differing = 0;
    for own in [0, number - 1] {
        let mut alone = filled(engine, prompt, (own..own + 1, room))?;
        for (step, rows) in rows.iter().enumerate() {
            let logits = logits_of(engine, &mut alone, &[token(step, own)])?;
            let pairs = logits[0].iter().zip(&rows[own]);
            differing += pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        }
    }
    println!("{number} sessions: {differing} logits differ from those of a session alone");
    let next = (0..number).map(|session| token(COMPARED, session)).collect();
    let (each, _) = self::together(engine, &mut together, next, tokens)?;
    let rate = 1e3 / each * count(number);
    println!("{number} sessions: {rate:.1} tokens/s together ({each:.3} ms a step)");
    Ok(())
}

/// Rate of an answer behind a state of random rows of so many tokens.
pub fn behind(engine: &mut Engine, depth: usize, tokens: usize) -> Outcome<()> {
    let vocabulary = u32::try_from(engine.model().shape().vocabulary).expect("ids are 32 bits");
    let prompt: Vec<u32> = (0u32..).map(|i| (i * 7919) % vocabulary).take(depth).collect();
    let room = depth + 2 * WARM + tokens;
    let plan = engine.model().plan(room);
    let planned: u64 = plan.iter().filter(|line| line.what != "scratch").map(|l| l.bytes).sum();
    let mut session = engine.session(room)?;
    let begun = Instant::now();
    session.fill_random(engine, &prompt, 1)?;
    let filling = milliseconds(begun);
    let (mut next, mut hash) = (1, super::HASH);
    for _ in 0..WARM {
        let logits = session.push(engine, next)?;
        (next, hash) = (super::best(logits), super::hashed(hash, logits));
    }
    let begun = Instant::now();
    answer(engine, &mut session, tokens)?;
    let each = milliseconds(begun) / count(tokens);
    println!(
        "behind {depth} tokens of random state ({} MiB planned, filled in {filling:.0} ms): {:.2} \
         tokens/s ({each:.3} ms each), hash of logits {hash:016x}",
        planned >> 20,
        1e3 / each,
    );
    Ok(())
}

/// The oracle shapes in exact mode: float weights, state and attention.
pub fn oracle(folder: &Path, open: &mut dyn FnMut() -> Outcome<Gpu>) -> Outcome<()> {
    for (tiny, name) in [(Tiny::flash(), "flash"), (Tiny::pro(), "pro")] {
        let golden = Checkpoint::open(&folder.join(format!("official_{name}_exact.safetensors")))?;
        let ids = golden.to_i64("ids")?.into_iter().map(u32::try_from);
        let ids = ids.collect::<Result<Vec<_>, _>>()?;
        let mut gpu = open()?;
        let options = Options { round_trips: false, rows: RowStorage::F32, ..Options::default() };
        let mut model = Model::load(&tiny.gguf(), None, &mut gpu, options, &mut |_| {})?;
        let mut state = model.new_state(&mut gpu, ids.len() + 1)?;
        let step = Step::single(&ids, state.position());
        let all = model.forward(&mut gpu, &step, &mut [&mut state], LogitsFor::All)?;
        gpu.finish()?;
        let wanted = golden.to_f32("logits_full")?;
        let rows = golden.to_i64("rows")?;
        let mut worst = 0f32;
        for (row, golden) in rows.iter().zip(wanted.chunks(tiny.shape.vocabulary)) {
            let pairs = all.row(usize::try_from(*row)?).iter().zip(golden);
            worst = pairs.map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
        }
        let best = golden.to_i64("argmax_full")?;
        let found = (0..all.len()).map(|row| i64::from(super::best(all.row(row))));
        let other = found.zip(&best).filter(|(found, wanted)| found != *wanted).count();
        let (n, golden) = (ids.len(), rows.len());
        println!(
            "oracle {name}, exact mode: {golden} rows of logits within {worst:.2e}, another \
             likeliest token at {other} of {n}"
        );
        if worst.is_nan() || worst > TOLERANCE || other > 0 {
            return Err(format!("more than {TOLERANCE:e} from the oracle").into());
        }
    }
    Ok(())
}
