//! Cards of two processes, here host drivers, whose gates meet in memory that both have or are
//! carried over a link; and a process that is killed, or stands still, while the other's kernels
//! wait for it.

use crate::support::{PATIENCE, keyed};
use ironstar_cluster::{Cluster, Deadlines, Member, Settings, Transport};
use ironstar_device::{Backend, Element, Error, GateKind, GateRoute, Gpu, GpuConfig};
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a gate may wait, which is more than a loss may take to be seen.
const LIMIT: Duration = Duration::from_secs(240);
const SEEN: Duration = PATIENCE;
/// How long rank 1 may be silent where it is stopped: longer than a busy machine stops a thread.
const SILENCE: Duration = Duration::from_secs(12);
const FLOATS: usize = 700;

fn settings(silence: Duration) -> Settings {
    let mut settings = keyed('6');
    settings.deadlines = Deadlines { silence, form: LIMIT, ..settings.deadlines };
    settings.timing.gate = LIMIT;
    settings
}

/// A card without a group, whose kernels may have to be compiled first.
fn host() -> Gpu {
    Gpu::host(GpuConfig::default()).expect("a compiler")
}

fn card(gpu: Gpu, group: Cluster, most: GateRoute) -> Gpu {
    let mut gpu = gpu.with_exchange(Box::new(group)).with_gates(most, LIMIT);
    gpu.join_epoch().expect("both are there");
    gpu
}

fn part(rank: usize, gate: usize) -> Vec<f32> {
    (0..FLOATS).map(|at| ((at * 31 + rank * 7 + gate) % 1009) as f32 * 0.37 - 150.0).collect()
}

fn sum(gpu: &mut Gpu, mine: &[f32]) -> Result<Vec<u32>, Error> {
    let arena = gpu.arena();
    let buffer = gpu.alloc(arena, Element::F32, mine.len())?;
    gpu.write_f32(buffer, 0, mine)?;
    assert!(gpu.sum_ranks(GateKind::Ffn, buffer, mine.len())?, "gates inside the graph");
    let mut all = vec![0.0; mine.len()];
    gpu.read_f32(buffer, 0, &mut all)?;
    gpu.release(arena);
    Ok(all.into_iter().map(f32::to_bits).collect())
}

/// Rank 1: a line of input says where rank 0 is, and how many gates it passes before it waits for
/// the end of its input.
#[test]
#[ignore = "the other end of cards_of_processes_sum_and_a_lost_one_is_seen"]
fn child() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the parent says where");
    let (address, gates) = line.trim().split_once(' ').expect("an address and a number");
    let address = address.parse().expect("the parent writes addresses");
    let gpu = host();
    let group = Member::new(address, Some(1), Some(2), settings(LIMIT)).and_then(Cluster::join);
    let mut gpu = card(gpu, group.expect("the group forms"), GateRoute::Shared);
    for gate in 0..gates.parse().expect("a number") {
        sum(&mut gpu, &part(1, gate)).expect("rank 0 is there");
    }
    let _end = std::io::stdin().read_line(&mut line);
}

fn start(address: &str, gates: usize) -> Child {
    let program = std::env::current_exe().expect("a test is a program");
    let words = ["--exact", "cards::child", "--ignored", "--nocapture"];
    let mut command = Command::new(program);
    let command = command.args(words).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::null()).spawn().expect("a process");
    let input = child.stdin.as_mut().expect("it was asked for");
    writeln!(input, "{address} {gates}").expect("it reads");
    child
}

#[test]
fn cards_of_processes_sum_and_a_lost_one_is_seen() {
    for (most, transport, stop) in [
        (GateRoute::Shared, Transport::Shm, false),
        (GateRoute::Shared, Transport::Tcp, true),
        (GateRoute::Carried, Transport::Tcp, false),
    ] {
        let gpu = host();
        let silence = if stop { SILENCE } else { LIMIT };
        let here = "127.0.0.1:0".parse().expect("an address");
        let hub = Cluster::bind(here, 2, transport, settings(silence)).expect("a port");
        let mut other = start(&hub.address().to_string(), 4);
        let mut gpu = card(gpu, Cluster::lead(hub).expect("both are there"), most);
        let note = gpu.gates_note().expect("it was found out");
        assert_eq!(note.contains("memory of this machine"), most == GateRoute::Shared, "{note}");
        for gate in 0..4 {
            let parts = part(0, gate).into_iter().zip(part(1, gate));
            let wanted: Vec<u32> = parts.map(|(a, b)| (a + b).to_bits()).collect();
            let found = sum(&mut gpu, &part(0, gate)).expect("both are there");
            assert!(found == wanted, "gate {gate} by {most:?}");
        }
        // The other has ended its work, and will not come to the next gate.
        if stop {
            let command = format!("kill -STOP {}", other.id());
            let sent = Command::new("sh").args(["-c", &command]).status();
            assert!(sent.is_ok_and(|status| status.success()), "a signal to a child");
        } else {
            other.kill().expect("a child");
        }
        let begun = Instant::now();
        let error = sum(&mut gpu, &part(0, 9)).expect_err("rank 1 is lost").to_string();
        assert!(error.contains("rank 1"), "{error}");
        assert!(begun.elapsed() < SEEN, "{:?}: {error}", begun.elapsed());
        drop(gpu);
        let _ended = other.kill();
        other.wait().expect("it has ended");
    }
}
