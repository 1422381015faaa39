//! Many at once: their pace, and what they leave behind.

use super::client::{PATIENCE, Running, chat, options, pause, start_held, start_with};
use ironstar_server::Options;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// Streams of the tests of pace.
const STREAMS: usize = 64;
const NO_THINKING: &str = r#", "stream": true, "thinking": {"type": "disabled"}"#;

/// Events that have come on these connections.
struct Events {
    streams: Vec<(TcpStream, String)>,
}

impl Events {
    fn begin(server: &Running) -> Events {
        let body = chat("hi", NO_THINKING);
        let open = |_| {
            let stream = server.send("/v1/chat/completions", &body);
            stream.set_nonblocking(true).unwrap();
            (stream, String::new())
        };
        Events { streams: (0..STREAMS).map(open).collect() }
    }

    /// How many have come by now.
    fn count(&mut self) -> usize {
        let mut part = [0; 4096];
        let mut all = 0;
        for (stream, text) in &mut self.streams {
            loop {
                match stream.read(&mut part) {
                    Ok(0) => panic!("a stream has ended: {text}"),
                    Ok(count) => text.push_str(str::from_utf8(&part[..count]).unwrap()),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
            all += text.matches(r#""content":"x""#).count();
        }
        all
    }

    /// Waits until exactly so many have come.
    fn wait_for(&mut self, wanted: u64) {
        let start = Instant::now();
        loop {
            let found = self.count() as u64;
            assert!(found <= wanted, "{found} events of {wanted} tokens");
            if found == wanted {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{found} events have come of {wanted}");
            pause(1);
        }
    }
}

/// Every token of a step is with its client before the next step ends: nothing is kept back to be
/// sent together, and no stream waits for another.
#[test]
fn no_event_of_many_streams_waits_for_the_next() {
    let play = r#"{"step_ms": 1, "replies": [{"text": ["x"], "times": 100000}]}"#;
    let server = start_held(play, options());
    let mut events = Events::begin(&server);
    let step = || {
        server.held.allow(1);
        server.held.until_it_waits();
        server.metric("ironstar_engine_answer_rows_total")
    };
    // Until all prompts are read: then each step has a row of each answer.
    let (mut before, mut rows) = (0, step());
    while rows - before < STREAMS as u64 {
        (before, rows) = (rows, step());
    }
    for _ in 0..20 {
        // Each prompt's last row gives a token, and so does each row of an answer.
        events.wait_for(step() + STREAMS as u64);
    }
}

/// By the clock, so not for a machine that has other work.
#[test]
#[ignore = "a measurement: the best of three must be of a quiet machine"]
fn many_streams_keep_their_pace() {
    let delays: Vec<Duration> = (0..3).map(|_| pace_delay()).collect();
    let best = delays.iter().min().unwrap();
    assert!(*best < Duration::from_millis(50), "99 of 100 events are later than {delays:?}");
}

/// What 1 of 100 events comes later than, beyond the time of its step: 2,000 a second in all.
fn pace_delay() -> Duration {
    let play = r#"{"step_ms": 32, "replies": [{"text": ["x"], "times": 60}]}"#;
    let server = start_with(play, Options { threads: 2, ..options() });
    let body = chat("hi", NO_THINKING);
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

/// In a process of its own, since other tests have memory and descriptors too.
#[test]
fn ten_thousand_cancelled_requests_leave_nothing() {
    let program = std::env::current_exe().unwrap();
    let words = ["--exact", "suite::load::in_a_process_of_its_own", "--ignored"];
    let ran = Command::new(program).args(words).output().unwrap();
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && told.contains(" 1 passed;"), "{told}");
}

#[test]
#[ignore = "the other half of ten_thousand_cancelled_requests_leave_nothing"]
fn in_a_process_of_its_own() {
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
    // The last connections may be open for a moment longer than their requests.
    let start = Instant::now();
    while descriptors() > files + 16 {
        assert!(start.elapsed() < PATIENCE, "{} descriptors, {files} before", descriptors());
        pause(5);
    }
    let more = resident_kib().saturating_sub(memory);
    assert!(more < 64 << 10, "{more} KiB more");
    assert_eq!(server.metric("ironstar_session_bytes"), 0);
    let (left, wanted) = (server.metric("ironstar_cancelled_total"), REQUESTS as u64 / 2);
    assert!(left >= wanted, "{left} streams were left, not {wanted}");
}
