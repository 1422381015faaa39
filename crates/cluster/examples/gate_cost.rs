//! What a gate of 16 KiB costs between two processes on this machine, by transport.
//!
//! `cargo run --release -p ironstar-cluster --example gate_cost`; run it on an idle machine. The
//! program starts itself a second time as rank 1. RDMA is the fake provider of the tests: its cost
//! is that of the code around a card, not of one.

#![allow(clippy::print_stdout, reason = "an example")]

use ironstar_cluster::{
    Cluster, Error, Key, Member, Pace, Settings, Timing, Transport, VerbsSettings,
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
    Ok(Settings { key, timing, verbs, ..Settings::default() })
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
    Ok(())
}
