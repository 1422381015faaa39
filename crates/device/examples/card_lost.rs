//! What becomes of a gate between two cards when one of them gives up while the other waits inside
//! its kernel: `card_lost [peer | nccl]` (both without a word), on cards 0 and 1 of this machine.
//!
//! Told is how long the waiting card took to hear of it, what it was told, and whether the sums of
//! the next epoch have their bits. A card that is not told ends by its limit, which is an error
//! here.
#![expect(clippy::print_stdout, reason = "a tool")]

use ironstar_device::{
    Backend, Buffer, CudaConfig, Element, Exchange, GateKind, Gpu, GpuConfig, Local, LocalGroup,
    Nccl, Peers, Step,
};
use std::error::Error;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const FLOATS: usize = 4096;
/// Steps before one gives up: enough for a graph to be remembered and replayed.
const STEPS: usize = 4;
/// How long the other waits before.
const WAIT: Duration = Duration::from_millis(500);
/// What a gate waits at most, and what is too long for being told.
const LIMIT: Duration = Duration::from_secs(10);

/// How sums go.
#[derive(Clone)]
enum By {
    Peer(Peers),
    Nccl(Nccl),
}

fn main() -> Outcome<()> {
    let word = std::env::args().nth(1);
    for name in ["peer", "nccl"] {
        if word.as_ref().is_some_and(|word| word != name) {
            continue;
        }
        let by = match name {
            "peer" => By::Peer(Peers::cuda(&[0, 1])?),
            _ => By::Nccl(Nccl::load(None, 2)?),
        };
        let group = LocalGroup::whole(2, LIMIT).into_iter();
        let ends: Vec<Outcome<String>> = std::thread::scope(|scope| {
            let threads: Vec<_> = group
                .zip([by.clone(), by])
                .map(|(local, by)| scope.spawn(move || rank(local, &by)))
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|end| end.unwrap_or_else(|_| Err("its thread panicked".into()))).collect()
        });
        for (rank, end) in ends.into_iter().enumerate() {
            println!("{name}, rank {rank}: {}", end?);
        }
    }
    Ok(())
}

/// One card's life; what it has seen.
fn rank(local: Local, by: &By) -> Outcome<String> {
    let rank = local.rank();
    let cache = std::env::home_dir().map(|home| home.join(".cache/ironstar/kernels"));
    let device = u32::try_from(rank)?;
    let config = CudaConfig { device, cache, ..CudaConfig::default() };
    let gpu = Gpu::cuda(&config, GpuConfig::default())?.with_exchange(Box::new(local));
    let (mut gpu, refused) = match by {
        By::Peer(peers) => gpu.with_peers(peers, LIMIT)?,
        By::Nccl(nccl) => gpu.with_nccl(nccl, LIMIT)?,
    };
    if let Some(reason) = refused {
        return Err(format!("sums go through the host: {reason}").into());
    }
    let arena = gpu.arena();
    let buffer = gpu.alloc(arena, Element::F32, FLOATS)?;
    for turn in 0..STEPS {
        step(&mut gpu, buffer, turn)?;
    }
    let told = match rank {
        1 => {
            let begun = Instant::now();
            while begun.elapsed() < WAIT {
                std::thread::yield_now();
            }
            exchange(&mut gpu)?.abort("lost on purpose");
            "gave up".to_owned()
        }
        _ => {
            let begun = Instant::now();
            let Err(error) = step(&mut gpu, buffer, STEPS) else {
                return Err("a gate without its other rank ended well".into());
            };
            let after = begun.elapsed().saturating_sub(WAIT);
            if after > LIMIT / 2 {
                return Err(format!("told only after {after:?}: {error}").into());
            }
            format!("told {:.1} ms after it, or less: {error}", after.as_secs_f64() * 1e3)
        }
    };
    let epoch = exchange(&mut gpu)?.reform()?;
    let begun = Instant::now();
    for turn in 0..STEPS {
        step(&mut gpu, buffer, turn)?;
    }
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    Ok(format!("{told}; {STEPS} sums of epoch {epoch} have their bits, after {ms:.1} ms"))
}

fn exchange(gpu: &mut Gpu) -> Outcome<&mut dyn Exchange> {
    gpu.exchange().ok_or_else(|| "a rank has an exchange".into())
}

/// A step of one sum, whose bits are looked at.
fn step(gpu: &mut Gpu, buffer: Buffer, turn: usize) -> Outcome<()> {
    let rank = exchange(gpu)?.rank();
    gpu.begin(&Step::single(&[0], 0))?;
    gpu.write_f32(buffer, 0, &part(rank, turn))?;
    gpu.finish()?;
    if !gpu.sum_ranks(GateKind::Ffn, buffer, FLOATS)? {
        return Err("the card has no gates".into());
    }
    let mut found = vec![0.0; FLOATS];
    gpu.read_f32(buffer, 0, &mut found)?;
    let wanted = part(0, turn).into_iter().zip(part(1, turn)).map(|(a, b)| a + b);
    match found.iter().zip(wanted).all(|(a, b)| a.to_bits() == b.to_bits()) {
        true => Ok(()),
        false => Err(format!("the sum of turn {turn} has other bits").into()),
    }
}

fn part(rank: usize, turn: usize) -> Vec<f32> {
    (0..FLOATS).map(|at| ((at * 31 + rank * 7 + turn) % 1009) as f32 * 0.37 - 150.0).collect()
}
