//! The first thing to run on a machine with a card: the GPU backend against the CPU on a model, one
//! answer however a prompt is cut, and how fast it reads and answers, kernel by kernel.
//!
//! `gpu_check MODEL.gguf [--against-cpu] [--prompt N] [--answer N] [--times] [--chunk N]
//! [--timeline] [--serial] [--quick] [--ranks N [--devices A,B] [--host-gates | --nccl]] [--part N]
//! [--disable SHORTCUT]... [--sessions N] [--depths A,B,...] [--oracle FOLDER]
//! [--drafter FILE] [--compare NAME,NAME|all [--rounds N]]
//! [--compare-depths NAMES] [--compare-prompt NAMES] [--compare-sessions NAMES] [--host] [--dry]`
//!
//! `--sessions` answers in so many sessions by common steps, `--depths` behind so many tokens of
//! random state, `--oracle` compares the exact mode with `tests/golden/oracle`, `--drafter` answers
//! with and without guesses. `--compare` says what each of these shortcuts is worth for a token,
//! and its sisters for one behind a long state, the prompt and common steps. `--quick` leaves out
//! the cuts of the prompt. With `--ranks` the model is shared by cards; the hash of the logits
//! along the answer is that of one card. `--part N` is rank 0 of N on one card without the others:
//! its speed is that of a rank whose gates cost nothing, its tokens are wrong. `--host` is for
//! trying all this without a card, `--dry` only looks whether the words are understood.
#![expect(clippy::print_stdout, reason = "a measuring tool")]

use ironstar_cluster::Alone;
use ironstar_device::{
    Backend, CudaConfig, Gpu, GpuConfig, KernelTimes, Peers, Timeline, cuda_devices,
    timeline_tables,
};
use ironstar_engine::{
    BackendChoice, CancelFlag, Cards, DrafterChoice, Engine, EngineOptions, OpenFiles, Session,
    SumsBy,
};
use ironstar_gguf::Gguf;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod card;

use card::compare;
use card::words::{Words, words};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let words = words()?;
    if words.dry {
        println!("these words are understood");
        return Ok(());
    }
    let times = words.times.then(KernelTimes::default);
    let timeline = words.timeline.then(Timeline::default);
    let cache = std::env::home_dir().map(|home| home.join(".cache/ironstar/kernels"));
    let options = EngineOptions {
        backend: BackendChoice::Cpu,
        drafter: DrafterChoice::None,
        step_rows: words.chunk,
        // Checkpoints would cut the prompt into smaller steps.
        checkpoint_spacing: words.chunk.max(2048),
        kernel_cache: cache.clone(),
        ..EngineOptions::default()
    };
    let gguf = Gguf::open(&words.model)?;
    let begun = Instant::now();
    let free = free_bytes();
    let backend = match words.ranks {
        1 => alone(&words, cache, times.clone(), timeline.clone())?,
        _ => cards(&words, &gguf, &options, times.clone(), timeline.clone())?,
    };
    let ready = begun.elapsed().as_secs_f64();
    println!("{}: kernels ready in {ready:.2} s", backend.kind());
    let begun = Instant::now();
    let drafter = words.drafter.as_deref().map(Gguf::open).transpose()?;
    let (drafter, own) = (drafter.as_ref(), options.clone());
    let mut engine = Engine::on_backend(backend, &gguf, drafter, own, &mut |_| {})?;
    engine.meet(Duration::from_secs(300))?;
    println!("model loaded in {:.2} s", begun.elapsed().as_secs_f64());
    for (card, (before, after)) in free.iter().zip(free_bytes()).enumerate() {
        println!("card {card} holds {} MiB", before.saturating_sub(after) >> 20);
    }
    let prompt = prompt(&engine, words.prompt);
    if !words.quick {
        one_answer(&mut engine, &prompt)?;
    }
    if words.against_cpu {
        let mut cpu = Engine::open(Path::new(&words.model), options.clone(), &mut |_| {})?;
        against_cpu(&mut cpu, &mut engine, &prompt, words.answer)?;
    }
    rates(&mut engine, &prompt, &words, times.as_ref())?;
    show_timeline(timeline.as_ref(), words.answer);
    if words.sessions > 0 {
        card::sessions(&mut engine, &prompt, words.sessions, words.answer)?;
        show(times.as_ref(), "sessions");
    }
    if let Some(what) = &words.compare {
        compare::all(&mut engine, &prompt, what)?;
    }
    if words.drafter.is_some() {
        card::guessed(&mut engine, &prompt, words.answer)?;
    }
    for depth in words.depths {
        card::behind(&mut engine, depth, words.answer)?;
        show_timeline(timeline.as_ref(), words.answer);
    }
    if let Some(folder) = &words.oracle {
        let exact = GpuConfig { float_products: true, ..GpuConfig::default() };
        let cuda = CudaConfig { cache: options.kernel_cache.clone(), ..CudaConfig::default() };
        card::oracle(folder, &mut || Ok(Gpu::cuda(&cuda, exact)?))?;
    }
    Ok(())
}

/// When the launches of the last half of the answer's replays start.
fn show_timeline(timeline: Option<&Timeline>, answer: usize) {
    let Some(timeline) = timeline else { return };
    let replays = timeline.take();
    let from = replays.len().saturating_sub(answer / 2);
    let starts = |name: &str| {
        ["post_shards", "shards", "hc_post_pre", "hc_post_route"]
            .iter()
            .any(|s| name.starts_with(s))
    };
    println!("{}", timeline_tables(&replays[from..], starts));
}

/// Times of the kernels since they were last shown.
fn show(times: Option<&KernelTimes>, what: &str) {
    for (name, time) in times.into_iter().flat_map(KernelTimes::take) {
        let (count, ms) = (time.launches, time.milliseconds);
        println!("  {what} {name:<24} {count:>7} launches {ms:>10.3} ms");
    }
}

fn free_bytes() -> Vec<u64> {
    cuda_devices().unwrap_or_default().iter().map(|device| device.memory_free).collect()
}

fn alone(
    words: &Words,
    cache: Option<PathBuf>,
    times: Option<KernelTimes>,
    timeline: Option<Timeline>,
) -> Outcome<Box<dyn Backend>> {
    let config = GpuConfig { disabled: words.disabled, ..GpuConfig::default() };
    if words.host {
        return Ok(Box::new(Gpu::host(config)?));
    }
    let device = words.devices.first().copied().unwrap_or(0);
    let serial = words.serial;
    let cuda = CudaConfig { device, cache, times, serial, timeline, ..CudaConfig::default() };
    let gpu = Gpu::cuda(&cuda, config)?;
    Ok(Box::new(match words.part {
        0 => gpu,
        // What a rank computes, as if nobody had to be waited for.
        ranks => gpu.with_exchange(Box::new(Alone::new(0, ranks))).with_gates_left_out(),
    }))
}

fn cards(
    words: &Words,
    gguf: &Gguf,
    options: &EngineOptions,
    times: Option<KernelTimes>,
    timeline: Option<Timeline>,
) -> Outcome<Box<dyn Backend>> {
    let by = match (words.host_gates, words.nccl) {
        (true, _) => SumsBy::Host,
        (false, true) => SumsBy::Nccl,
        (false, false) => SumsBy::Peer,
    };
    let cards = match words.host {
        true => {
            let make = Arc::new(|_| Gpu::host(GpuConfig::default()));
            Cards::made_by(words.ranks, make, Some(Peers::host(words.ranks)))
        }
        false => Cards::cuda_timed(&words.devices, options, by, times, timeline)?,
    };
    let drafter = words.drafter.as_deref().map(Gguf::open).transpose()?;
    for line in cards.plan_lines(gguf, drafter.as_ref())? {
        println!("{line}");
    }
    let (path, drafter) = (words.model.clone(), words.drafter.clone());
    let open: Arc<OpenFiles> = Arc::new(move || {
        let drafter = drafter.as_deref().map(Gguf::open).transpose()?;
        Ok((Gguf::open(&path)?, drafter))
    });
    Ok(cards.lead(&open, options, &mut |note| println!("note: {note}"))?)
}

/// Text where there is a tokenizer that knows it, else varied tokens.
fn prompt(engine: &Engine, count: usize) -> Vec<u32> {
    let vocabulary = u32::try_from(engine.model().shape().vocabulary).expect("ids are 32 bits");
    let text = "Once upon a time there was a little fox who lived in a wood. ".repeat(200);
    let known = engine.tokenizer().map(|t| t.encode(&text)).unwrap_or_default();
    let worded = engine.model().shape().width <= 512;
    let mut any = (0u32..).map(|i| i.wrapping_mul(2_654_435_761) >> 8);
    let mut tokens = if worded { known } else { Vec::new() };
    while tokens.len() < count {
        tokens.push(any.next().expect("it never ends") % vocabulary);
    }
    tokens.truncate(count);
    tokens
}

fn sync(engine: &mut Engine, session: &mut Session, tokens: &[u32]) -> Outcome<Vec<f32>> {
    session.sync(engine, tokens, &mut |_| {}, &CancelFlag::default())?;
    Ok(session.logits().ok_or("no logits")?.to_vec())
}

/// The logits after the prompt, however it is cut into steps.
fn one_answer(engine: &mut Engine, prompt: &[u32]) -> Outcome<()> {
    let prompt = &prompt[..prompt.len().min(200)];
    let mut all = Vec::new();
    let rows = engine.options().step_rows;
    for chunk in [rows, 7, 1] {
        engine.set_prompt_rows(chunk);
        // Nothing may come from the session before.
        engine.forget_checkpoints();
        let mut session = engine.session(prompt.len() + 1)?;
        let logits = sync(engine, &mut session, prompt)?;
        all.push(logits.iter().map(|l| l.to_bits()).collect::<Vec<_>>());
    }
    engine.set_prompt_rows(rows);
    for (chunk, bits) in [7, 1].iter().zip(&all[1..]) {
        let differing = bits.iter().zip(&all[0]).filter(|(a, b)| a != b).count();
        println!("one answer: chunks of {chunk}: {differing} of {} logits differ", bits.len());
    }
    Ok(())
}

/// The CPU's greedy answer, and how the card's logits differ along it.
fn against_cpu(cpu: &mut Engine, gpu: &mut Engine, prompt: &[u32], answer: usize) -> Outcome<()> {
    let room = prompt.len() + answer + 1;
    let (mut a, mut b) = (cpu.session(room)?, gpu.session(room)?);
    let (mut wanted, mut found) = (sync(cpu, &mut a, prompt)?, sync(gpu, &mut b, prompt)?);
    let (mut divergence, mut worst, mut largest, mut other) = (0.0, 0.0f64, 0.0f32, 0);
    for _ in 0..answer {
        let kl = kl(&wanted, &found);
        (divergence, worst) = (divergence + kl, worst.max(kl));
        let apart = wanted.iter().zip(&found).map(|(a, b)| (a - b).abs());
        largest = apart.fold(largest, f32::max);
        let next = best(&wanted);
        other += usize::from(best(&found) != next);
        wanted = a.push(cpu, next)?.to_vec();
        found = b.push(gpu, next)?.to_vec();
    }
    #[expect(clippy::cast_precision_loss, reason = "a few hundred positions")]
    let mean = divergence / answer as f64;
    println!(
        "against the CPU over {answer} positions: mean KL {mean:.2e}, worst {worst:.2e}, largest \
         difference of a logit {largest:.2e}, other likeliest token at {other}"
    );
    Ok(())
}

fn best(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.and_then(|(id, _)| u32::try_from(id).ok()).unwrap_or(0)
}

fn kl(p: &[f32], q: &[f32]) -> f64 {
    let logs = |logits: &[f32]| -> Vec<f64> {
        let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|l| (f64::from(*l) - most).exp()).sum();
        logits.iter().map(|l| f64::from(*l) - most - sum.ln()).collect()
    };
    let (p, q) = (logs(p), logs(q));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// The hash of nothing.
const HASH: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a of the bits, behind what was hashed before.
fn hashed(hash: u64, logits: &[f32]) -> u64 {
    let bytes = logits.iter().flat_map(|logit| logit.to_le_bytes());
    bytes.fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Reading the prompt and answering greedily, with the times of the kernels if wanted.
fn rates(
    engine: &mut Engine,
    prompt: &[u32],
    words: &Words,
    times: Option<&KernelTimes>,
) -> Outcome<()> {
    let mut session = engine.session(prompt.len() + 2 * words.answer + 2 * card::WARM)?;
    let take = |what: &str| show(times, what);
    take("before");
    engine.forget_checkpoints();
    let begun = Instant::now();
    let mut logits = sync(engine, &mut session, prompt)?;
    let reading = begun.elapsed().as_secs_f64();
    take("reading");
    card::first_token(engine, prompt)?;
    take("first");
    let mut hash = hashed(HASH, &logits);
    // The first tokens capture what the others replay.
    for _ in 0..card::WARM {
        logits = session.push(engine, best(&logits))?.to_vec();
        hash = hashed(hash, &logits);
    }
    take("warming");
    let finite = logits.iter().all(|l| l.is_finite());
    let begun = Instant::now();
    for _ in 0..words.answer {
        logits = session.push(engine, best(&logits))?.to_vec();
    }
    let answering = begun.elapsed().as_secs_f64();
    take("answering");
    hash = hashed(hash, &logits);
    println!("hash of logits: {hash:016x}");
    let mut gates = engine.gate_times()?;
    if !gates.is_empty() {
        gates.sort_by(f64::total_cmp);
        let at = |percent: usize| gates[(gates.len() - 1) * percent / 100];
        println!(
            "{} gates in the graph: p50 {:.2} us, p90 {:.2}, p99 {:.2}, most {:.2}",
            gates.len(),
            at(50),
            at(90),
            at(99),
            at(100)
        );
    }
    let count = |n: usize| f64::from(u32::try_from(n).expect("a small number"));
    println!(
        "reading {} tokens: {:.1} tokens/s; answering {}: {:.2} tokens/s ({:.3} ms each); logits \
         finite: {finite}",
        prompt.len(),
        count(prompt.len()) / reading,
        words.answer,
        count(words.answer) / answering,
        answering / count(words.answer) * 1e3,
    );
    card::drawn(engine, &mut session, words.answer)
}
