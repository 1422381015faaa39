//! Tokens drawn on a device are the sampler's, bit for bit: rows of many shapes under many
//! settings, and whole answers, alone and in common steps, on the GPU's kernels run by the host
//! driver.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use ironstar_device::{Backend, DrawRows, Element, Gpu, GpuConfig, Step};
use ironstar_engine::sampler::{Sampler, Settings};
use ironstar_engine::scheduler::{Event, FakeClock, Limits, Request, RequestId, Scheduler};
use ironstar_engine::{
    CancelFlag, Control, Engine, EngineOptions, Generate, Session, Speculation, Token,
};
use ironstar_model::testing::Tiny;
use std::sync::{Arc, Mutex};

/// Numbers from a seed, uniform in [0, 1).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let bits = u16::try_from(self.0 >> 48).unwrap();
        f32::from(bits) / 65_536.0
    }

    fn bell(&mut self, spread: f32) -> f32 {
        ((0..6).map(|_| self.next()).sum::<f32>() - 3.0) * spread
    }
}

/// Rows of every kind that comes up, and of some that should not.
fn row(kind: usize, tokens: usize, numbers: &mut Numbers) -> Vec<f32> {
    let mut logits: Vec<f32> = (0..tokens)
        .map(|_| match kind % 8 {
            0 => numbers.bell(4.0),
            1 => numbers.bell(0.01),
            // Many equal ones, of both signs.
            2 => (numbers.next() * 5.0).floor() - 2.0,
            3 => 7.25,
            4 => numbers.bell(12.0) - 300.0,
            5 => -0.0,
            6 => numbers.next() * 1e30,
            _ => numbers.bell(3.0).powi(3),
        })
        .collect();
    if kind % 8 == 5 {
        logits.iter_mut().step_by(3).for_each(|logit| *logit = 0.0);
    }
    if kind % 3 == 1 {
        logits.iter_mut().step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
    }
    let last = tokens - 1;
    if kind % 5 == 2 {
        logits[last] = 25.0;
    }
    if logits.iter().all(|logit| *logit == f32::NEG_INFINITY) {
        logits[last] = -1.0;
    }
    logits
}

const TEMPERATURES: [f64; 7] = [1.0, 0.0, 0.7, 1e-3, 40.0, 1e300, 1e-320];
const FILTERS: [(usize, f64, f64); 9] = [
    (0, 1.0, 0.05),
    (0, 1.0, 0.0),
    (40, 1.0, 0.0),
    (0, 0.95, 0.0),
    (0, 0.0, 0.0),
    (1, 0.9, 0.3),
    (300, 0.5, 1e-9),
    (3000, 0.999_999, 0.0),
    (7, 1.0, 1.0),
];

fn settings(index: usize) -> Settings {
    let (top_k, top_p, min_p) = FILTERS[index % FILTERS.len()];
    let temperature = TEMPERATURES[index / FILTERS.len() % TEMPERATURES.len()];
    Settings { temperature, top_k, top_p, min_p, logprobs: None }
}

fn drawn(gpu: &mut Gpu, rows: &[Vec<f32>], how: &[(Settings, u64, usize)]) -> Vec<Option<u32>> {
    let (arena, tokens) = (gpu.arena(), rows[0].len());
    let logits = gpu.alloc(arena, Element::F32, rows.len() * tokens).unwrap();
    gpu.write_f32(logits, 0, &rows.concat()).unwrap();
    gpu.begin(&Step::single(&[0], 0)).unwrap();
    let draws: Vec<_> = how
        .iter()
        .map(|(settings, seed, at)| settings.on_device(tokens, *seed, *at).unwrap())
        .collect();
    let ids = gpu.draw(&DrawRows { logits, tokens, rows: &draws }).unwrap();
    gpu.release(arena);
    ids
}

#[test]
fn rows_under_all_settings() {
    let mut gpu = Gpu::host(GpuConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let (mut sampler, mut numbers) = (Sampler::default(), Numbers(11));
    let mut index = 0;
    for tokens in [1, 5, 257, 2048, 2049, 9001] {
        for _ in 0..2 {
            let rows: Vec<_> = (0..8).map(|kind| row(kind, tokens, &mut numbers)).collect();
            let how: Vec<_> = (index..index + 8)
                .map(|index| (settings(index), index as u64 * 77, 3 * index))
                .collect();
            let ids = drawn(&mut gpu, &rows, &how);
            for ((row, (settings, seed, at)), id) in rows.iter().zip(&how).zip(ids) {
                let wanted = sampler.sample(row, settings, *seed, *at).unwrap().token;
                assert_eq!(id, Some(wanted), "{tokens} tokens, {settings:?}");
            }
            index += 8;
        }
    }
    assert!(index > FILTERS.len() * TEMPERATURES.len(), "every setting was used");
}

/// A row as long as a model's, and two hundred draws that are not all the same token.
#[test]
fn a_long_row() {
    let mut gpu = Gpu::host(GpuConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let (mut sampler, mut numbers) = (Sampler::default(), Numbers(5));
    let long = row(0, 129_280, &mut numbers);
    for index in [3, 6] {
        let how = [(settings(index), 9, 100), (settings(index), 9, 101)];
        let ids = drawn(&mut gpu, &[long.clone(), long.clone()], &how);
        for ((settings, seed, at), id) in how.iter().zip(ids) {
            let wanted = sampler.sample(&long, settings, *seed, *at).unwrap().token;
            assert_eq!(id, Some(wanted), "{settings:?}");
        }
    }
    let short = row(0, 40, &mut numbers);
    let rows = vec![short.clone(); 32];
    let mut seen = std::collections::HashSet::new();
    for first in (0..192).step_by(32) {
        let how: Vec<_> = (first..first + 32).map(|at| (settings(1), 2, at)).collect();
        for (at, id) in (first..).zip(drawn(&mut gpu, &rows, &how)) {
            let wanted = sampler.sample(&short, &settings(1), 2, at).unwrap().token;
            assert_eq!(id, Some(wanted), "position {at}");
            seen.insert(wanted);
        }
    }
    assert!(seen.len() > 4, "{} tokens", seen.len());
}

/// What the sampler refuses is left to it, and no neighbour suffers.
#[test]
fn rows_that_only_the_host_understands() {
    let mut gpu = Gpu::host(GpuConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let good = row(0, 3000, &mut Numbers(1));
    for settings in [settings(0), Settings::greedy()] {
        let mut rows = vec![good.clone(); 6];
        (rows[0][2999], rows[1][0], rows[3][2047]) = (f32::NAN, f32::INFINITY, -f32::NAN);
        rows[4].fill(f32::NEG_INFINITY);
        let ids = drawn(&mut gpu, &rows, &[(settings, 3, 8); 6]);
        let wanted = Sampler::default().sample(&good, &settings, 3, 8).unwrap().token;
        assert_eq!(ids, [None, None, Some(wanted), None, None, Some(wanted)]);
        assert!(
            [0, 1, 3, 4]
                .iter()
                .all(|&at| { Sampler::default().sample(&rows[at], &settings, 3, 8).is_err() })
        );
    }
}

fn engine() -> Engine {
    let gpu = Gpu::host(GpuConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let options = EngineOptions { step_rows: 16, store_ram_bytes: 0, ..EngineOptions::default() };
    let tiny = Tiny::small(3);
    let (model, drafter) = (tiny.gguf(), tiny.drafter());
    Engine::on_backend(Box::new(gpu), &model, Some(&drafter), options, &mut |_| {}).unwrap()
}

fn what(logprobs: Option<usize>, speculation: Speculation) -> Generate {
    let settings = Settings { temperature: 0.8, logprobs, ..Settings::default() };
    Generate { settings, seed: 5, tokens_max: Some(5), speculation, ..Generate::default() }
}

fn answer(engine: &mut Engine, session: &mut Session, what: &Generate) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut take = |token: &Token| {
        assert_eq!(token.logprob.is_some(), what.settings.logprobs.is_some());
        tokens.push(token.id);
        Control::Continue
    };
    session.generate(engine, what, &mut take, &CancelFlag::default()).unwrap();
    tokens
}

/// Answers that never see a logit are those of the sampler; so are those with guesses, and what the
/// session knows afterwards.
#[test]
fn answers_drawn_on_the_device() {
    let mut engine = engine();
    let prompt = [1, 2, 3, 1, 2, 3, 1, 2];
    let mut told = Vec::new();
    for (logprobs, speculation) in [
        (Some(0), Speculation::Off),
        (None, Speculation::Off),
        (None, Speculation::Lookup),
        (Some(0), Speculation::Lookup),
        (None, Speculation::Mtp),
    ] {
        let mut session = engine.session(64).unwrap();
        session.sync(&mut engine, &prompt, &mut |_| {}, &CancelFlag::default()).unwrap();
        let what = what(logprobs, speculation);
        let mut tokens = answer(&mut engine, &mut session, &what);
        tokens.extend(answer(&mut engine, &mut session, &what));
        let snapshot = session.snapshot(&mut engine).unwrap();
        let after = session.push(&mut engine, 4).unwrap().to_vec();
        told.push((tokens, after, snapshot.tokens().to_vec()));
    }
    assert_eq!(told[0].0.len(), 10);
    for other in &told[1..] {
        assert!(*other == told[0]);
    }
}

/// The scheduler's common steps draw the same tokens, those with one who wants logits as well.
#[test]
fn common_steps_drawn_on_the_device() {
    let mut scheduler = Scheduler::new(engine(), Box::new(FakeClock::default()), Limits::default());
    let prompts = [vec![1, 2, 3], vec![9, 8, 7, 6], vec![5]];
    let mut together = |logprobs: [Option<usize>; 3]| {
        let told = Arc::new(Mutex::new(vec![Vec::new(); 3]));
        for (id, (prompt, logprobs)) in prompts.iter().zip(logprobs).enumerate() {
            let told = told.clone();
            let what = what(logprobs, Speculation::Off);
            let request = Request { prompt: prompt.clone(), what, ..Request::default() };
            let sink = Box::new(move |event| {
                match event {
                    Event::Token(token) => told.lock().unwrap()[id].push(token.id),
                    Event::Failed { failure, .. } => panic!("{failure}"),
                    _ => {}
                }
                Control::Continue
            });
            scheduler.submit(RequestId(id as u64), request, sink);
        }
        while scheduler.turn() {}
        told.lock().unwrap().clone()
    };
    let wanted = together([Some(0); 3]);
    assert!(wanted.iter().all(|tokens| tokens.len() == 5));
    assert_eq!(together([None; 3]), wanted);
    assert_eq!(together([None, Some(0), None]), wanted);
}
