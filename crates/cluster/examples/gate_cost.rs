//! What a gate of 16 KiB costs between two processes on this machine, by transport; how fast its
//! payload is summed; and what a record of a pipeline takes from one process to the other.
//!
//! `cargo run --release -p ironstar-cluster --example gate_cost`; run it on an idle machine. The
//! program starts itself a second time as rank 1. RDMA is the fake provider of the tests: its cost
//! is that of the code around a card, not of one.

#![allow(clippy::print_stdout, reason = "an example")]

use ironstar_cluster::{
    Cluster, Error, Key, Member, Pace, Settings, Timing, Transport, VerbsSettings, copy_payload,
    measure_hop, payload_sum,
};
use ironstar_device::{Exchange, GateKind};
use std::process::Command;
use std::time::{Duration, Instant};

#[path = "../tests/fake/provider.rs"]
mod provider;

const BYTES: usize = 16 * 1024;
const WARM: usize = 2_000;
const GATES: usize = 20_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    if let (Some(address), Some(pace), Some(key)) = (words.next(), words.next(), words.next()) {
        let member = Member::new(address.parse()?, None, None, settings(&pace, &key)?)?;
        return gates(Cluster::join(member)?);
    }
    sums();
    let key = Key::random()?.to_hex();
    println!("16 KiB each way, two processes: p50, p90, p99 us of a gate");
    for (transport, pace, key) in [
        (Transport::Shm, "spin", "none"),
        (Transport::Shm, "block", "none"),
        (Transport::Verbs, "spin", "none"),
        (Transport::Verbs, "block", "none"),
        (Transport::Tcp, "spin", "none"),
        (Transport::Tcp, "block", "none"),
        (Transport::Tcp, "spin", key.as_str()),
    ] {
        let settings = settings(pace, key)?;
        let hub = Cluster::bind("127.0.0.1:0".parse()?, 2, transport, settings)?;
        let address = hub.address().to_string();
        let mut other =
            Command::new(std::env::current_exe()?).args([&address, pace, key]).spawn()?;
        let seal = if key == "none" { "plain" } else { "sealed" };
        print!("{:5} {pace:5} {seal:6} ", transport.name());
        gates(Cluster::lead(hub)?)?;
        other.wait()?;
    }
    Ok(())
}

fn settings(pace: &str, key: &str) -> Result<Settings, Error> {
    let pace = if pace == "spin" { Pace::SPINNING } else { Pace::BLOCKING };
    let key = if key == "none" { None } else { Some(Key::from_hex(key)?) };
    let timing = Timing { gate: Duration::from_secs(10), pace };
    let library = Some(provider::provider(""));
    let verbs = VerbsSettings { library, ..VerbsSettings::default() };
    Ok(Settings { key, timing, verbs, streams: true, ..Settings::default() })
}

/// The rate of the checksum in a cache, alone and with the copy; the best of several.
fn sums() {
    let (payload, mut copy) = (vec![0x5A; BYTES], vec![0; BYTES]);
    let rate = |work: &mut dyn FnMut() -> u64| {
        let best = (0..50).map(|_| {
            let start = Instant::now();
            for _ in 0..200 {
                std::hint::black_box(work());
            }
            start.elapsed()
        });
        let best = best.min().unwrap_or_default().as_secs_f64();
        200.0 * BYTES as f64 / best / 1e9
    };
    let alone = rate(&mut || payload_sum(std::hint::black_box(&payload)));
    let copied = rate(&mut || copy_payload(std::hint::black_box(&payload), &mut copy));
    println!("checksum of 16 KiB in a cache: {alone:.1} GB/s; with a copy: {copied:.1} GB/s");
}

fn gates(mut group: Cluster) -> Result<(), Box<dyn std::error::Error>> {
    let (mine, mut all) = (vec![1; BYTES], vec![0; 2 * BYTES]);
    let mut times = Vec::with_capacity(GATES);
    for gate in 0..WARM + GATES {
        let start = Instant::now();
        group.gather(GateKind::Ffn, &mine, &mut all)?;
        if gate >= WARM {
            times.push(start.elapsed());
        }
    }
    if group.rank() == 0 {
        times.sort_unstable();
        let at = |share: usize| times[GATES * share / 100].as_secs_f64() * 1e6;
        println!("{:7.2} {:7.2} {:7.2}", at(50), at(90), at(99));
        println!("{}", group.profile().table());
    }
    let (rank, patience) = (group.rank(), Duration::from_secs(10));
    let stream = group.take_stream(1 - rank).ok_or("streams were asked for")?;
    let hop = measure_hop(&stream, rank == 0, (BYTES, 2_000), patience)?;
    if let (0, Some(hop)) = (rank, hop) {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        println!("a record of 16 KiB, one way: {:.2} p50, {:.2} p99\n", us(hop.p50), us(hop.p99));
    }
    Ok(())
}
