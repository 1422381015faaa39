//! `ironstar doctor --cluster --backend cuda`: what cards that share the model would take, measured
//! on one of them.
//!
//! The card loads the whole model, then in turn the part of a rank of 2, 4 and 8 with gates left
//! out. Gates are those of two cards in each other's memory where there are two. Else they are
//! those of a card with a processor on a thread, in memory that both have: what two cards of one
//! machine pay that do not reach each other's memory, and more than those that do.

use super::cluster::{Measured, Subject, once};
use super::verdict::{Found, Speed};
use crate::failure::Failure;
use crate::flags::ClusterTest;
use crate::loading;
use ironstar_cluster::{Alone, LinkTime};
use ironstar_device::{
    Backend, Buffer, CudaConfig, Element, Error as DeviceError, Exchange, GateKind, GatePeer,
    GateRoute, Gpu, GpuConfig, Local, LocalGroup, Peers, Step, cuda_devices,
};
use ironstar_engine::{Engine, EngineOptions, ProcessCard};
use std::time::{Duration, Instant};

/// Rows of a prompt's step, and tries of which the best counts: the first ones compile and capture.
const ROWS: usize = 2048;
const TRIES: usize = 4;
/// Bytes of gates, how many make a step, and how many steps are timed behind those that warm up.
const SIZES: [(usize, usize); 7] =
    [(64, 80), (1024, 80), (4096, 80), (16_384, 80), (65_536, 40), (1 << 20, 8), (16 << 20, 2)];
const STEPS: usize = 21;
const WARM: usize = 4;
const LIMIT: Duration = Duration::from_secs(10);

/// Measures all of it.
pub(super) fn measure(flags: &ClusterTest, subject: &Subject) -> Result<Found, Failure> {
    if subject.absent.is_some() || flags.listen.is_some() || flags.join.is_some() {
        let text = "--backend cuda measures a model that is here on a card that is here: leave out \
                    --shape, --listen and --join";
        return Err(Failure::caller(text));
    }
    let ranks = flags.ranks.max(2);
    let between = match cuda_devices() {
        Ok(cards) if cards.len() > 1 => gates_of_cards().map_err(device)?,
        _ => None,
    };
    let (transport, gates) = between.map_or_else(gates, Ok)?;
    let whole = speed(subject, 1)?;
    let mut parts = Vec::new();
    for ranks in [2, 4, 8].into_iter().filter(|ranks| subject.allows(*ranks).is_ok()) {
        parts.push((ranks, speed(subject, ranks)?));
    }
    if parts.is_empty() {
        let text = format!("{}: it cannot be shared among 2, 4 or 8 ranks", subject.name());
        return Err(Failure::caller(text));
    }
    let measured = Measured { gates, order: Duration::ZERO, hops: Vec::new(), parts };
    let costs = subject.costs((ranks, ROWS), &measured, whole)?;
    let threads = loading::cores();
    Ok(Found {
        model: subject.name(),
        transport,
        ranks,
        here: true,
        threads: (threads, threads),
        whole,
        gates: measured.gates,
        order: measured.order,
        hops: Vec::new(),
        costs,
    })
}

/// A prompt and an answer of a rank of so many, with gates left out.
fn speed(subject: &Subject, ranks: usize) -> Result<Speed, Failure> {
    let options = EngineOptions {
        kernel_cache: loading::kernel_cache(),
        step_rows: ROWS,
        store_ram_bytes: 0,
        ..EngineOptions::default()
    };
    let gguf = &subject.opened.gguf;
    let backend: Box<dyn Backend> = match ranks {
        1 => Box::new(open_card(0).map_err(device)?),
        _ => {
            let card = ProcessCard { device: None, most: None };
            let alone: Box<dyn Exchange> = Box::new(Alone::new(0, ranks));
            card.open(gguf, alone, &options).map_err(loading::from_engine)?.0
        }
    };
    let engine = Engine::on_backend(backend, gguf, None, options, &mut |_| {});
    let mut engine = engine.map_err(loading::from_engine)?;
    engine.meet(LIMIT).map_err(loading::from_engine)?;
    let mut best = Speed { decode: f64::MAX, prefill: f64::MAX };
    for _ in 0..TRIES {
        let speed = once(&mut engine, ROWS)?;
        best.decode = best.decode.min(speed.decode);
        best.prefill = best.prefill.min(speed.prefill);
    }
    Ok(best)
}

fn open_card(number: u32) -> Result<Gpu, DeviceError> {
    let cache = loading::kernel_cache();
    let config = CudaConfig { device: number, cache, ..CudaConfig::default() };
    Gpu::cuda(&config, GpuConfig::default())
}

fn device(error: DeviceError) -> Failure {
    loading::from_engine(error.into())
}

/// The times of gates between the first two cards; nothing where these do not reach each other's
/// memory.
fn gates_of_cards() -> Result<Option<(&'static str, Vec<LinkTime>)>, DeviceError> {
    let Ok(peers) = Peers::cuda(&[0, 1]) else { return Ok(None) };
    // Both are there before they meet: compiling takes longer than they wait for each other.
    let cards = [open_card(0)?, open_card(1)?];
    let ends = cards.into_iter().zip(LocalGroup::whole(2, LIMIT));
    let side = |(gpu, local): (Gpu, Local)| {
        let (mut gpu, refused) = gpu.with_exchange(Box::new(local)).with_peers(&peers, LIMIT)?;
        if refused.is_some() {
            return Ok(None);
        }
        gpu.join_epoch()?;
        pass(&mut gpu).map(Some)
    };
    let times: Result<Vec<_>, DeviceError> = std::thread::scope(|scope| {
        let threads: Vec<_> = ends.map(|end| scope.spawn(|| side(end))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|side| side.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let times = times?.into_iter().next().flatten();
    Ok(times.map(|times| ("the cards' memory, inside the graph", times)))
}

/// How gates went, and the times of all sizes, between the card and a thread. The card is there
/// before the group is: whoever waits in a group does so no longer than a gate, and compiling the
/// kernels at the first start takes longer.
fn gates() -> Result<(&'static str, Vec<LinkTime>), Failure> {
    let gpu = open_card(0).map_err(device)?;
    let mut group = LocalGroup::whole(2, LIMIT);
    let (Some(other), Some(own)) = (group.pop(), group.pop()) else {
        return Err(Failure::ours("a group of two has two ends"));
    };
    let peer = std::thread::Builder::new().name("gates".into()).spawn(move || answer(other));
    let peer = peer.map_err(|error| Failure::environment(format!("starting a thread: {error}")))?;
    let mut gpu = gpu.with_exchange(Box::new(own)).with_gates(GateRoute::Shared, LIMIT);
    let times = gpu.join_epoch().and_then(|()| pass(&mut gpu));
    // What kept it from its end is the reason of this end too.
    let ended = peer.join().map_err(|_| Failure::ours("the thread of gates panicked"))?;
    let times = times.map_err(device)?;
    let how = match ended.map_err(device)? {
        GateRoute::Peer => "the cards' memory, inside the graph",
        GateRoute::Shared => "memory of this machine, inside the graph",
        GateRoute::Carried => "a thread that carries, inside the graph",
        GateRoute::Host => "the host",
    };
    Ok((how, times))
}

/// The processor's side; gives how gates went.
fn answer(local: Local) -> Result<GateRoute, DeviceError> {
    let mut peer = GatePeer::join(Box::new(local), GateRoute::Shared, LIMIT)?;
    for (bytes, gates) in SIZES {
        let mut values = vec![0.0; bytes / 4];
        for _ in 0..(WARM + STEPS) * gates {
            peer.sum(GateKind::Ffn, &mut values)?;
        }
    }
    Ok(peer.route())
}

/// The card's side: the time of a gate of each size, over steps of many of them.
fn pass(gpu: &mut Gpu) -> Result<Vec<LinkTime>, DeviceError> {
    let mut all = Vec::new();
    for (bytes, gates) in SIZES {
        let arena = gpu.arena();
        let buffer = gpu.alloc(arena, Element::F32, bytes / 4)?;
        let mut times = Vec::new();
        for step in 0..WARM + STEPS {
            let time = step_of(gpu, buffer, gates)?;
            if step >= WARM {
                times.push(time);
            }
        }
        gpu.release(arena);
        times.sort_unstable();
        let (p50, p99, best) = (times[STEPS / 2], times[STEPS - 1], times[0]);
        all.push(LinkTime { bytes, p50, p99, best });
    }
    Ok(all)
}

/// The time of a gate in a step of so many.
fn step_of(gpu: &mut Gpu, buffer: Buffer, gates: usize) -> Result<Duration, DeviceError> {
    gpu.begin(&Step::single(&[0], 0))?;
    gpu.finish()?;
    let begun = Instant::now();
    for _ in 0..gates {
        let inside = gpu.sum_ranks(GateKind::Ffn, buffer, buffer.len)?;
        if !inside {
            let found = gpu.gates_note().unwrap_or_default();
            let wanted = "gates inside a graph are what is measured".to_owned();
            return Err(DeviceError::Unsupported { found, wanted });
        }
    }
    gpu.finish()?;
    Ok(begun.elapsed() / u32::try_from(gates).unwrap_or(u32::MAX))
}
