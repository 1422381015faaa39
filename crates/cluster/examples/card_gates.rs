//! What a gate of 16 KiB costs a card whose other rank is another process: inside the graph of a
//! step (by shared memory, and carried by a thread), and with the graph cut at every gate.
//!
//! `cargo run --release -p ironstar-cluster --example card_gates [folder of compiled kernels]`; the
//! folder is else that of `ironstar` itself. The program starts itself a second time, as a rank
//! that is a processor, so that one card will do. Last, two processes with a card each pass gates,
//! or, where there is one card, take turns on it, so that only their sums mean anything.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example")]

use ironstar_cluster::{Cluster, Member, Settings, Transport};
use ironstar_device::{
    Backend, Buffer, CudaConfig, Element, GateKind, GatePeer, GateRoute, Gpu, GpuConfig, Step,
    cuda_devices,
};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Gates of a step, and steps.
const GATES: usize = 80;
const STEPS: usize = 60;
const TURNS: usize = 3;
const FLOATS: usize = 4096;
const LIMIT: Duration = Duration::from_secs(10);

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [address, role, transport, folder] = &words[..] {
        let member = Member::new(address.parse()?, None, None, Settings::default())?;
        let group = Cluster::join(member)?;
        let _ = transport;
        return match role.as_str() {
            "card" => {
                let (own, steps) = other_card();
                card(group, GateRoute::Peer, steps, own, folder).map(|_| ())
            }
            _ => processor(group, role == "echo"),
        };
    }
    let own = std::env::home_dir().map(|home| home.join(".cache/ironstar/kernels"));
    let own = own.map(|path| path.display().to_string()).unwrap_or_default();
    let folder = words.first().cloned().unwrap_or(own);
    // Compiling takes longer than ranks wait for each other.
    drop(open(0, &folder)?);
    println!(
        "{FLOATS} floats a gate, {GATES} gates a step: us a gate by the clock of the host, and"
    );
    println!("p50, p90, p99 of what a gate took inside its kernel");
    let tcp = Transport::Tcp;
    for (name, most, role, transport) in [
        ("shared", GateRoute::Shared, "peer", Transport::Shm),
        ("shared, other answers", GateRoute::Shared, "echo", Transport::Shm),
        ("carried, shm", GateRoute::Carried, "peer", Transport::Shm),
        ("carried, tcp", GateRoute::Carried, "peer", tcp),
        ("host, shm", GateRoute::Host, "peer", Transport::Shm),
        ("host, tcp", GateRoute::Host, "peer", tcp),
        ("cards, shared", GateRoute::Shared, "card", Transport::Shm),
        ("processes with cards", GateRoute::Peer, "card", Transport::Shm),
    ] {
        let hub = Cluster::bind("127.0.0.1:0".parse()?, 2, transport, Settings::default())?;
        let mut other = start(&hub.address().to_string(), role, transport, &folder)?;
        let steps = if role == "card" { other_card().1 } else { STEPS };
        let group = Cluster::lead(hub).map_err(Failure::from);
        match group.and_then(|group| card(group, most, steps, 0, &folder)) {
            Ok(line) => println!("{name:24} {line}"),
            Err(error) => println!("{name:24} failed: {error}"),
        }
        let status = other.wait()?;
        if !status.success() {
            println!("{name:24} the other rank ended with {status}");
        }
    }
    Ok(())
}

fn start(address: &str, role: &str, transport: Transport, folder: &str) -> Result<Child, Failure> {
    let words = [address, role, transport.name(), folder];
    Ok(Command::new(std::env::current_exe()?).args(words).spawn()?)
}

/// A rank's part of a gate.
fn part(rank: usize, gate: usize) -> Vec<f32> {
    (0..FLOATS).map(|at| ((at * 31 + rank * 7 + gate) % 1009) as f32 * 0.37 - 150.0).collect()
}

/// The card of a second process, and the steps of both: card 0 again takes turns, which are long.
fn other_card() -> (u32, usize) {
    match cuda_devices() {
        Ok(devices) if devices.len() > 1 => (1, STEPS),
        _ => (0, TURNS),
    }
}

fn open(device: u32, folder: &str) -> Result<Gpu, Failure> {
    let cache = (!folder.is_empty()).then(|| folder.into());
    let config = CudaConfig { device, cache, ..CudaConfig::default() };
    Ok(Gpu::cuda(&config, GpuConfig::default())?)
}

/// Rank 0 or 1 with a card; gives what its gates took.
fn card(
    group: Cluster,
    most: GateRoute,
    steps: usize,
    device: u32,
    folder: &str,
) -> Result<String, Failure> {
    let gpu = open(device, folder)?;
    let mut gpu = gpu.with_exchange(Box::new(group)).with_gates(most, LIMIT);
    gpu.join_epoch()?;
    let note = gpu.gates_note().unwrap_or_default();
    let rank = gpu.exchange().ok_or("a group")?.rank();
    let arena = gpu.arena();
    let buffers: Vec<Buffer> =
        (0..GATES).map(|_| gpu.alloc(arena, Element::F32, FLOATS)).collect::<Result<_, _>>()?;
    let (mut best, mut all) = (Duration::MAX, Duration::ZERO);
    for _ in 0..steps {
        let step = Step::single(&[0], 0);
        gpu.begin(&step)?;
        for (gate, buffer) in buffers.iter().enumerate() {
            gpu.write_f32(*buffer, 0, &part(rank, gate))?;
        }
        gpu.finish()?;
        let begun = Instant::now();
        for buffer in &buffers {
            if !gpu.sum_ranks(GateKind::Ffn, *buffer, FLOATS)? {
                by_host(&mut gpu, *buffer)?;
            }
        }
        gpu.finish()?;
        best = best.min(begun.elapsed());
        all += begun.elapsed();
        for (gate, buffer) in buffers.iter().enumerate() {
            let mut found = vec![0.0; FLOATS];
            gpu.read_f32(*buffer, 0, &mut found)?;
            let wanted = part(0, gate).into_iter().zip(part(1, gate)).map(|(a, b)| a + b);
            if !found.iter().zip(wanted).all(|(a, b)| a.to_bits() == b.to_bits()) {
                return Err(format!("gate {gate} gave other bits").into());
            }
        }
    }
    let mut times = gpu.gate_times()?;
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or(f64::NAN);
    let us = |time: Duration| time.as_secs_f64() * 1e6 / GATES as f64;
    Ok(format!(
        "best {:7.2}, mean {:7.2}; inside {:6.2} {:6.2} {:6.2} ({note})",
        us(best),
        us(all) / steps as f64,
        at(50),
        at(90),
        at(99)
    ))
}

/// A gate at which the step stops.
fn by_host(gpu: &mut Gpu, buffer: Buffer) -> Result<(), Failure> {
    let mut mine = vec![0.0f32; FLOATS];
    gpu.read_f32(buffer, 0, &mut mine)?;
    let bytes: Vec<u8> = mine.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut all = vec![0; 2 * bytes.len()];
    gpu.exchange().ok_or("a group")?.gather(GateKind::Ffn, &bytes, &mut all)?;
    let (first, second) = all.split_at(bytes.len());
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
    };
    let sum: Vec<f32> = floats(first).iter().zip(floats(second)).map(|(a, b)| a + b).collect();
    Ok(gpu.write_f32(buffer, 0, &sum)?)
}

/// Rank 1 as a processor; one that answers gives its part when it has the other's.
fn processor(group: Cluster, answers: bool) -> Result<(), Failure> {
    let mut peer = GatePeer::join(Box::new(group), GateRoute::Shared, LIMIT)?;
    peer.set_answering(answers);
    let parts: Vec<Vec<f32>> = (0..GATES).map(|gate| part(1, gate)).collect();
    for _ in 0..STEPS {
        for mine in &parts {
            peer.sum(GateKind::Ffn, &mut mine.clone())?;
        }
    }
    Ok(())
}
