//! Measures answers in common steps: tokens a second of 1, 2, 4 and 8 sessions together, and the
//! ratios to one. Fails when 8 sessions together are not 1.3 times as fast as one on a given model,
//! or 2 times on the random one.
//!
//! `cargo run --release -p ironstar-engine --example batch_rate [MODEL.gguf]`
#![expect(clippy::print_stdout, reason = "a measuring tool")]

use ironstar_engine::sampler::Settings;
use ironstar_engine::scheduler::{Limits, Request, RequestId, Scheduler, SystemClock};
use ironstar_engine::{
    Control, DrafterChoice, Engine, EngineOptions, Error, Generate, Speculation,
};
use ironstar_model::deepseek_v4::Kind;
use ironstar_model::testing::{Tiny, encode};
use ironstar_quant::Format;
use std::path::Path;
use std::time::Instant;

const PROMPT: u32 = 64;
const ANSWER: u32 = 48;
const RUNS: usize = 3;

fn main() -> Result<(), Error> {
    let path = std::env::args().nth(1);
    let mut scheduler =
        Scheduler::new(open(path.as_deref())?, Box::new(SystemClock::default()), Limits::default());
    let shape = scheduler.source().model().shape().clone();
    let threads = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "{threads} threads, {} layers, width {}, {} of {} experts; best of {RUNS} runs",
        shape.layers, shape.width, shape.experts_used, shape.experts
    );
    let vocabulary = u32::try_from(shape.vocabulary).expect("ids are 32 bits");
    let (mut one, mut ratio) = (0.0, 0.0);
    for sessions in [1, 2, 4, 8] {
        let rates = (0..RUNS).map(|_| measure(&mut scheduler, sessions, vocabulary));
        let best = rates.fold(0.0, f64::max);
        if sessions == 1 {
            one = best;
        }
        ratio = best / one;
        println!("{sessions} sessions: {best:.0} tokens/s together, {ratio:.2} of one");
    }
    let wanted = if path.is_some() { 1.3 } else { 2.0 };
    assert!(ratio >= wanted, "{ratio:.2} is less than {wanted}");
    Ok(())
}

fn open(path: Option<&str>) -> Result<Engine, Error> {
    let drafter = DrafterChoice::None;
    let options = EngineOptions { drafter, store_ram_bytes: 0, ..EngineOptions::default() };
    if let Some(path) = path {
        return Engine::open(Path::new(path), options, &mut |_| {});
    }
    let mut tiny = Tiny::flash();
    let shape = &mut tiny.shape;
    (shape.width, shape.expert_width, shape.experts, shape.experts_used) = (1024, 512, 16, 4);
    (shape.q_rank, shape.output_rank, shape.vocabulary) = (512, 256, 8192);
    let format = |kind| match kind {
        Kind::Routed => Format::Mxfp4,
        Kind::Dense => Format::Q8_0,
        _ => Format::F32,
    };
    let model = tiny.gguf_as(&|spec, values| encode(format(spec.kind), values));
    Engine::from_gguf(&model, None, options, &mut |_| {})
}

/// Tokens a second of so many answers, from the moment that all prompts are read.
fn measure(scheduler: &mut Scheduler<Engine>, sessions: u32, vocabulary: u32) -> f64 {
    let before = scheduler.status();
    for id in 0..sessions {
        let token = |i: u32| (i * 7919 + id * 104_729 + 11) % vocabulary;
        let what = Generate {
            settings: Settings::greedy(),
            tokens_max: Some(ANSWER as usize),
            speculation: Speculation::Off,
            ..Generate::default()
        };
        let prompt = (0..PROMPT).map(token).collect();
        let request = Request { prompt, what, ..Request::default() };
        scheduler.submit(RequestId(id.into()), request, Box::new(|_| Control::Continue));
    }
    let prompts = u64::from(sessions * PROMPT);
    while scheduler.status().prompt_rows - before.prompt_rows < prompts {
        scheduler.turn();
    }
    let (start, from) = (Instant::now(), scheduler.status().answer_rows);
    while scheduler.turn() {}
    let tokens = scheduler.status().answer_rows - from;
    f64::from(u32::try_from(tokens).expect("a small number")) / start.elapsed().as_secs_f64()
}
