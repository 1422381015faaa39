//! Many at once: their pace, and what they leave behind.

use super::client::{chat, options, pause, start_with};
use ironstar_server::Options;
use std::io::Read;
use std::time::{Duration, Instant};

/// Streams of the pace test, each with an event every 32 ms: 2,000 a second in all.
const STREAMS: usize = 64;

#[test]
fn many_streams_keep_their_pace() {
    // The best of three, since the machine may have other work.
    let delays: Vec<Duration> = (0..3).map(|_| pace_delay()).collect();
    let best = delays.iter().min().unwrap();
    assert!(*best < Duration::from_millis(50), "99 of 100 events are later than {delays:?}");
}

/// What 1 of 100 events comes later than, beyond the time of its step.
fn pace_delay() -> Duration {
    let play = r#"{"step_ms": 32, "replies": [{"text": ["x"], "times": 60}]}"#;
    let server = start_with(play, Options { threads: 2, ..options() });
    let body = chat("hi", r#", "stream": true, "thinking": {"type": "disabled"}"#);
    let mut gaps: Vec<Duration> = std::thread::scope(|scope| {
        let run = || {
            let mut stream = server.send("/v1/chat/completions", &body);
            let (mut part, mut times) = ([0; 4096], Vec::new());
            while let Ok(count) = stream.read(&mut part) {
                if count == 0 {
                    break;
                }
                times.push(Instant::now());
            }
            // The prompts are read between the first events.
            times.windows(2).skip(3).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..STREAMS).map(|_| scope.spawn(run)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(gaps.len() > STREAMS * 50, "{} events", gaps.len());
    gaps.sort_unstable();
    gaps[gaps.len() * 99 / 100].saturating_sub(Duration::from_millis(32))
}

/// Memory of this process that is really there, in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[test]
fn ten_thousand_cancelled_requests_leave_nothing() {
    const REQUESTS: usize = 10_000;
    let play = r#"{"step_ms": 1, "replies": [{"text": ["abc"], "times": 10000}]}"#;
    let server = start_with(play, options());
    let storm = |count: usize| {
        std::thread::scope(|scope| {
            for worker in 0..8 {
                let server = &server;
                scope.spawn(move || {
                    for round in 0..count / 8 {
                        let streamed = (worker + round) % 2 == 0;
                        let more = if streamed { r#", "stream": true"# } else { "" };
                        let mut stream = server.send("/v1/chat/completions", &chat("hi", more));
                        if streamed {
                            // The head is there: the request is on its way to the engine.
                            let _some = stream.read(&mut [0; 64]);
                        } else {
                            pause(round as u64 % 2);
                        }
                    }
                });
            }
        });
        server.wait_for("ironstar_requests_open", 0);
        server.wait_for("ironstar_requests_running", 0);
        server.wait_for("ironstar_requests_queued", 0);
    };
    storm(REQUESTS / 4);
    let (memory, files) = (resident_kib(), descriptors());
    storm(REQUESTS);
    let (more, left) = (resident_kib().saturating_sub(memory), descriptors());
    assert!(left <= files + 16, "{left} descriptors, {files} before");
    assert!(more < 64 << 10, "{more} KiB more");
    assert_eq!(server.metric("ironstar_session_bytes"), 0);
    let (left, wanted) = (server.metric("ironstar_cancelled_total"), REQUESTS as u64 / 2);
    assert!(left >= wanted, "{left} streams were left, not {wanted}");
}
