//! Measures what running answers feel while long prompts are read: the gaps between their tokens
//! meanwhile and, as many, before; and how long a prompt takes beside them and alone. Each round
//! has new answers and new prompts. Gaps are in normal ones of their round, the median before.
//!
//! All of it once by what the one thread has run, which other programs on the machine lengthen
//! little, and once by the machine's clock. Every gap over 2 is told with what its turn did. Fails
//! when one is, by the thread's time.
//!
//! `cargo run --release -p ironstar-engine --example pace [WORD...]`, the words being a file of a
//! model or `wide` (a random one), `answers=3`, `rounds=4`, `prompts=1` at a time, `tokens=2000` of
//! each, `guess`, `turns` to print all of them, and `cpu` or `wall` for one clock only; Unix only.
#![expect(clippy::print_stdout, reason = "a measuring tool")]

mod clock;

use clock::processor_time;
use ironstar_engine::scheduler::{
    Clock, Event, Limits, Request, RequestId, Scheduler, Sink, SystemClock,
};
use ironstar_engine::{
    CancelFlag, Control, DrafterChoice, Engine, EngineOptions, Error, Generate, Speculation,
};
use ironstar_model::deepseek_v4::Kind;
use ironstar_model::testing::{Tiny, encode};
use ironstar_quant::Format;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Tokens of each answer that warm up.
const WARM: usize = 50;
/// Gaps before the first prompt; later as many as the prompt before had.
const BEFORE: usize = 250;
/// A gap may be so many normal ones.
const MOST: f64 = 2.0;

/// Time that this thread has run.
struct Processor;

impl Clock for Processor {
    fn now(&self) -> Duration {
        processor_time()
    }

    fn wait(&self, _time: Duration) {}
}

/// What is measured.
struct Plan {
    model: Option<PathBuf>,
    answers: u32,
    rounds: u32,
    prompts: u32,
    tokens: u32,
    guess: bool,
    turns: bool,
    clocks: Vec<&'static str>,
}

impl Plan {
    fn read() -> Plan {
        let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nano.gguf");
        let (guess, turns, clocks) = (false, false, vec!["cpu", "wall"]);
        let mut plan = Plan {
            model: Some(nano),
            answers: 3,
            rounds: 4,
            prompts: 1,
            tokens: 2000,
            guess,
            turns,
            clocks,
        };
        for word in std::env::args().skip(1) {
            let number = |text: &str| text.parse().expect("NAME=NUMBER");
            match word.split_once('=') {
                Some(("answers", n)) => plan.answers = number(n),
                Some(("rounds", n)) => plan.rounds = number(n),
                Some(("prompts", n)) => plan.prompts = number(n),
                Some(("tokens", n)) => plan.tokens = number(n),
                _ => match word.as_str() {
                    "guess" => plan.guess = true,
                    "turns" => plan.turns = true,
                    "cpu" => plan.clocks = vec!["cpu"],
                    "wall" => plan.clocks = vec!["wall"],
                    "wide" => plan.model = None,
                    _ => plan.model = Some(word.into()),
                },
            }
        }
        plan
    }

    fn open(&self) -> Result<Engine, Error> {
        let drafter = if self.guess { DrafterChoice::Beside } else { DrafterChoice::None };
        let options = EngineOptions { drafter, threads: 1, ..EngineOptions::default() };
        if let Some(path) = &self.model {
            return Engine::open(path, options, &mut |_| {});
        }
        let mut tiny = Tiny::flash();
        let shape = &mut tiny.shape;
        (shape.width, shape.expert_width, shape.experts, shape.experts_used) = (1024, 512, 16, 4);
        (shape.q_rank, shape.output_rank, shape.vocabulary) = (512, 256, 8192);
        shape.context = 4096;
        let format = |kind| match kind {
            Kind::Routed => Format::Mxfp4,
            Kind::Dense => Format::Q8_0,
            _ => Format::F32,
        };
        let model = tiny.gguf_as(&|spec, values| encode(format(spec.kind), values));
        Engine::from_gguf(&model, None, options, &mut |_| {})
    }
}

/// What a turn of the scheduler did; times are of both clocks.
#[derive(Clone, Copy, Default)]
struct Turn {
    took: [Duration; 2],
    faults: u64,
    prompt_rows: u64,
    /// Rows of prompts before it in this round.
    read: u64,
    answer_rows: u64,
}

/// When an answer's tokens came: the turn, and the time by each clock. Several tokens of a turn
/// are one.
type Times = Arc<Mutex<Vec<(usize, [Duration; 2])>>>;

/// A gap, in normal ones, and the turn that ended it.
type Gap = (f64, Turn);

struct Bench {
    scheduler: Scheduler<Engine>,
    start: Instant,
    turns: Vec<Turn>,
    turn: Arc<AtomicUsize>,
    next: u64,
    vocabulary: u32,
    context: usize,
    guess: bool,
}

impl Bench {
    fn new(engine: Engine, clock: &str, guess: bool) -> Bench {
        let shape = engine.model().shape();
        let vocabulary = u32::try_from(shape.vocabulary).expect("ids are 32 bits");
        let context = shape.context;
        let clock: Box<dyn Clock> =
            if clock == "cpu" { Box::new(Processor) } else { Box::new(SystemClock::default()) };
        let limits = Limits { sessions: 32, ..Limits::default() };
        let scheduler = Scheduler::new(engine, clock, limits);
        let (start, turn) = (Instant::now(), Arc::default());
        Bench { scheduler, start, turns: Vec::new(), turn, next: 0, vocabulary, context, guess }
    }

    fn ask(&mut self, tokens: u32, most: usize) -> (Times, CancelFlag) {
        self.next += 1;
        let salt = u32::try_from(self.next).expect("few requests");
        let token = |i: u32| (i * 7919 + salt * 104_729 + 11) % self.vocabulary;
        let speculation = if self.guess { Speculation::Auto } else { Speculation::Off };
        let what = Generate { tokens_max: Some(most), speculation, ..Generate::default() };
        let prompt = (0..tokens).map(token).collect();
        let request = Request { prompt, what, ..Request::default() };
        let (times, cancel) = (Times::default(), request.cancel.clone());
        let (heard, turn, start) = (times.clone(), self.turn.clone(), self.start);
        let sink: Sink = Box::new(move |event: Event| {
            if let Event::Token(_) = event {
                let (now, turn) = (times_now(start), turn.load(Ordering::Relaxed));
                let mut heard = heard.lock().expect("no panic holds it");
                if heard.last().is_none_or(|last| last.0 != turn) {
                    heard.push((turn, now));
                }
            }
            Control::Continue
        });
        self.scheduler.submit(RequestId(self.next), request, sink);
        (times, cancel)
    }

    fn turn(&mut self, read: &mut u64) {
        let (faults, before, start) = (faults(), self.scheduler.status(), times_now(self.start));
        self.turn.store(self.turns.len(), Ordering::Relaxed);
        self.scheduler.turn();
        let (end, after) = (times_now(self.start), self.scheduler.status());
        let prompt_rows = after.prompt_rows - before.prompt_rows;
        let faults = self::faults() - faults;
        let took = [end[0] - start[0], end[1] - start[1]];
        let answer_rows = after.answer_rows - before.answer_rows;
        self.turns.push(Turn { took, faults, prompt_rows, read: *read, answer_rows });
        *read += prompt_rows;
    }

    /// Reads prompts to their ends while whatever runs goes on, and gives the first turn.
    fn read(&mut self, prompts: u32, tokens: u32) -> usize {
        let (first, mut read) = (self.turns.len(), 0);
        let asked: Vec<_> = (0..prompts).map(|_| self.ask(tokens, 1).0).collect();
        while asked.iter().any(|times| count(times) == 0) {
            self.turn(&mut read);
        }
        first
    }

    /// Time of the turns from one on.
    fn since(&self, first: usize, by: usize) -> Duration {
        self.turns[first..].iter().map(|turn| turn.took[by]).sum()
    }
}

/// Gaps of one round in seconds, each with the number of the turn that ended it.
struct Round {
    before: Vec<(f64, usize)>,
    meanwhile: Vec<(f64, usize)>,
    usual: f64,
    beside: Duration,
    /// Its first turn that counts.
    from: usize,
}

impl Bench {
    /// New answers, so many gaps of them, and the prompts.
    fn round(&mut self, plan: &Plan, gaps: usize, by: usize) -> Round {
        let most = self.context - 20;
        let answers: Vec<_> = (0..plan.answers).map(|_| self.ask(16, most)).collect();
        while answers.iter().any(|(times, _)| count(times) < WARM) {
            self.turn(&mut 0);
        }
        let from = self.turns.len();
        (0..gaps).for_each(|_| self.turn(&mut 0));
        let first = self.read(plan.prompts, plan.tokens);
        let beside = self.since(first, by);
        let (mut before, mut meanwhile) = (Vec::new(), Vec::new());
        for (times, cancel) in &answers {
            cancel.raise();
            for pair in times.lock().expect("no panic holds it").windows(2) {
                let gap = ((pair[1].1[by] - pair[0].1[by]).as_secs_f64(), pair[1].0);
                match gap.1 {
                    turn if turn >= first => meanwhile.push(gap),
                    turn if turn >= from => before.push(gap),
                    _ => {}
                }
            }
        }
        self.turn(&mut 0);
        let usual = median(&mut before.iter().map(|gap| gap.0).collect::<Vec<_>>());
        Round { before, meanwhile, usual, beside, from }
    }
}

fn count(times: &Times) -> usize {
    times.lock().expect("no panic holds it").len()
}

fn times_now(start: Instant) -> [Duration; 2] {
    [processor_time(), start.elapsed()]
}

/// Pages that this thread touched for the first time; 0 where that is not told.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(7).find_map(|field| field.parse().ok()).unwrap_or_default()
}

fn main() -> Result<(), Error> {
    let plan = Plan::read();
    let mut longest = 0f64;
    for clock in &plan.clocks {
        let worst = measure(&plan, clock)?;
        if *clock == "cpu" {
            longest = worst;
        }
    }
    assert!(longest <= MOST, "a gap of {longest:.2} normal ones is too long");
    Ok(())
}

/// Makes all rounds by one clock, and prints what came of them; gives the longest gap beside
/// prompts.
fn measure(plan: &Plan, clock: &str) -> Result<f64, Error> {
    let by = usize::from(clock == "wall");
    let mut bench = Bench::new(plan.open()?, clock, plan.guess);
    let (mut before, mut meanwhile) = (Vec::<Gap>::new(), Vec::<Gap>::new());
    let (mut beside, mut normals, mut gaps) = (Vec::new(), Vec::new(), BEFORE);
    for _ in 0..plan.rounds {
        let round = bench.round(plan, gaps, by);
        gaps = round.meanwhile.len() / usize::try_from(plan.answers).expect("few answers");
        beside.push(round.beside);
        normals.push(round.usual);
        let tell = |(gap, turn): &(f64, usize)| (gap / round.usual, bench.turns[*turn]);
        before.extend(round.before.iter().map(tell));
        meanwhile.extend(round.meanwhile.iter().map(tell));
        if plan.turns {
            let turns = &bench.turns[round.from..];
            turns.iter().for_each(|turn| println!("{}", line(turn, by, round.usual)));
        }
    }
    let mut alone: Vec<Duration> = Vec::new();
    for _ in 0..3 {
        let first = bench.read(1, plan.tokens);
        alone.push(bench.since(first, by));
    }
    let usual = median(&mut normals);
    println!(
        "{clock}: {} answers, {} rounds of {} prompts of {} tokens, normal gaps of {:.2} ms",
        plan.answers,
        plan.rounds,
        plan.prompts,
        plan.tokens,
        usual * 1e3
    );
    report("before", &mut before, by);
    let longest = report("meanwhile", &mut meanwhile, by);
    let [beside, alone] = [beside, alone].map(|mut all| {
        all.sort();
        all[all.len() / 2]
    });
    println!("the prompts took {beside:.2?} beside them, one {alone:.2?} alone");
    Ok(longest)
}

fn median(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn line(turn: &Turn, by: usize, usual: f64) -> String {
    let [ran, passed] = turn.took.map(|took| took.as_secs_f64() / usual);
    let Turn { faults, prompt_rows, read, answer_rows, .. } = *turn;
    let clock = if by == 0 { "ran" } else { "by the clock, ran" };
    let took =
        if by == 0 { format!("{clock} {ran:.2}") } else { format!("{passed:.2} {clock} {ran:.2}") };
    format!("turn {took}; {answer_rows} and {prompt_rows} rows from {read}, {faults} pages")
}

/// Prints how long gaps were, and what the turns of those over the limit did; gives the longest.
fn report(name: &str, all: &mut [Gap], by: usize) -> f64 {
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let of = |percent: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a place in a list"
        )]
        let at = ((all.len() - 1) as f64 * percent / 100.0) as usize;
        all[at].0
    };
    println!(
        "{name}: {} gaps, half up to {:.2}, 95 % {:.2}, 99 % {:.2}, 99.9 % {:.2}, longest {:.2}",
        all.len(),
        of(50.0),
        of(95.0),
        of(99.0),
        of(99.9),
        of(100.0)
    );
    for (gap, turn) in all.iter().filter(|(gap, _)| *gap > MOST) {
        println!("  {gap:.2}: {}", line(turn, by, 1e-3));
    }
    of(100.0)
}
