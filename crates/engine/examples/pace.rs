//! Measures what running answers feel while a long prompt is read: the gaps between their tokens
//! before and meanwhile, and how long the prompt takes beside them and alone. Time is what the one
//! thread has run, so that other programs on the machine lengthen little. Fails when a gap is
//! longer than twice the normal one.
//!
//! `cargo run --release -p ironstar-engine --example pace [MODEL.gguf [STREAMS]]`; Unix only.
#![expect(clippy::print_stdout, reason = "a measuring tool")]

mod clock;

use clock::processor_time;
use ironstar_engine::scheduler::{Clock, Event, Limits, Request, RequestId, Scheduler};
use ironstar_engine::{Control, DrafterChoice, Engine, EngineOptions, Error, Generate};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Tokens of each answer before the prompt comes; the first of them warm up.
const BEFORE: usize = 150;
const WARM: usize = 50;
const PROMPT: u32 = 2000;

/// When each token came.
type Times = Arc<Mutex<Vec<Duration>>>;

/// Time that this thread has run.
struct Processor;

impl Clock for Processor {
    fn now(&self) -> Duration {
        processor_time()
    }

    fn wait(&self, _time: Duration) {}
}

fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nano.gguf");
    let path = words.next().map_or(nano, PathBuf::from);
    let streams = words.next().map_or(3, |n| n.parse().expect("a number of streams"));
    let options = EngineOptions {
        drafter: DrafterChoice::None,
        store_ram_bytes: 0,
        threads: 1,
        ..EngineOptions::default()
    };
    let engine = Engine::open(&path, options, &mut |_| {})?;
    let vocabulary = u32::try_from(engine.model().shape().vocabulary).expect("ids are 32 bits");
    let context = engine.model().shape().context;
    let prompt_of = |salt: u32, count: u32| -> Vec<u32> {
        (0..count).map(|i| (i * 7919 + salt * 104_729 + 11) % vocabulary).collect()
    };
    let mut scheduler = Scheduler::new(engine, Box::new(Processor), Limits::default());
    let (alone, _) = read(&mut scheduler, prompt_of(99, PROMPT));
    let answers: Vec<Times> = (0..streams).map(|_| Times::default()).collect();
    for (id, times) in (0u32..).zip(&answers) {
        let times = times.clone();
        let sink = move |event: Event| {
            if let Event::Token(_) = event {
                times.lock().expect("no panic holds it").push(Processor.now());
            }
            Control::Continue
        };
        let what = Generate { tokens_max: Some(context - 20), ..Generate::default() };
        let request = Request { prompt: prompt_of(id, 16), what, ..Request::default() };
        scheduler.submit(RequestId(id.into()), request, Box::new(sink));
    }
    let count = |times: &Times| times.lock().expect("no panic holds it").len();
    while answers.iter().any(|times| count(times) < BEFORE) {
        scheduler.turn();
    }
    let begin = Processor.now();
    let (beside, end) = read(&mut scheduler, prompt_of(100, PROMPT));
    let gaps = |from: usize, after: Option<Duration>, until: Duration| -> Vec<Duration> {
        let mut all = Vec::new();
        for times in &answers {
            let times = times.lock().expect("no panic holds it");
            let pairs = times.windows(2).skip(from);
            let inside = pairs.filter(|p| p[1] <= until && after.is_none_or(|after| p[1] > after));
            all.extend(inside.map(|pair| pair[1] - pair[0]));
        }
        all.sort();
        all
    };
    let (normal, meanwhile) = (gaps(WARM, None, begin), gaps(0, Some(begin), end));
    let part = |all: &[Duration], percent: usize| all[(all.len() - 1) * percent / 100];
    let usual = part(&normal, 50);
    println!("{streams} answers, a prompt of {PROMPT} tokens; gaps in normal ones of {usual:.2?}");
    for (name, all) in [("before", &normal), ("meanwhile", &meanwhile)] {
        let of = |percent| part(all, percent).as_secs_f64() / usual.as_secs_f64();
        println!(
            "{name}: {} gaps, half up to {:.2}, 95 % up to {:.2}, 99 % up to {:.2}, longest {:.2}",
            all.len(),
            of(50),
            of(95),
            of(99),
            of(100)
        );
    }
    println!("the prompt took {beside:.2?} beside them, {alone:.2?} alone");
    assert!(part(&meanwhile, 100) <= 2 * usual, "a gap is too long");
    Ok(())
}

/// Reads a prompt while whatever runs goes on; how long that took, and when its first token came.
fn read(scheduler: &mut Scheduler<Engine>, prompt: Vec<u32>) -> (Duration, Duration) {
    let (start, done) = (Processor.now(), Times::default());
    let heard = done.clone();
    let sink = move |event: Event| {
        if let Event::Token(_) = event {
            heard.lock().expect("no panic holds it").push(Processor.now());
        }
        Control::Continue
    };
    let what = Generate { tokens_max: Some(1), ..Generate::default() };
    let request = Request { prompt, what, ..Request::default() };
    scheduler.submit(RequestId(1000), request, Box::new(sink));
    while done.lock().expect("no panic holds it").is_empty() {
        scheduler.turn();
    }
    let end = done.lock().expect("no panic holds it")[0];
    (end - start, end)
}
