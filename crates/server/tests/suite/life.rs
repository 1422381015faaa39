//! Lives of requests and of the server: silence, leaving clients, slow readers, the end.

use super::client::{
    NEVER, Reply, chat, options, pause, read_until, read_until_times, start, start_held, start_with,
};
use ironstar_server::Options;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const STREAM: &str = r#", "stream": true"#;

/// Bug reports H18: signs of life do not depend on the engine's thread, and the head comes first.
/// The engine is in its step until all of them are there.
#[test]
fn a_step_that_takes_long_is_no_silence() {
    let play =
        r#"{"thinking": false, "replies": [{"text": ["d"], "delay": {"after": 0, "ms": 1}}]}"#;
    let keepalive = Duration::from_millis(50);
    let server = start_held(play, Options { keepalive, ..options() });
    for (path, body, sign) in [
        ("/v1/chat/completions", chat("hi", STREAM), ": keep-alive"),
        ("/v1/messages", chat("hi", r#", "stream": true, "max_tokens": 50"#), "event: ping"),
        (
            "/v1/responses",
            r#"{"input": "hi", "stream": true}"#.to_owned(),
            "event: response.in_progress",
        ),
    ] {
        server.held.close();
        let begun = Instant::now();
        let mut stream = server.send(path, &body);
        server.held.until_it_waits();
        let head = read_until(&mut stream, "\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let seen = head.matches(sign).count();
        read_until_times(&mut stream, sign, 5 - seen);
        // The first may be part of the beginning.
        assert!(begun.elapsed() >= keepalive * 4, "{path}: more often than asked for");
        server.held.open();
        read_until(&mut stream, ":\"d\"");
    }
}

/// Bug reports H19: work stops within a step, the next client is served at once, and what was read
/// is reused when the prompt comes again.
#[test]
fn a_client_that_leaves_stops_the_work() {
    let play =
        r#"{"step_rows": 8, "step_ms": 1, "sessions": 1, "thinking": false, "other": ["ok"]}"#;
    let server = start_held(play, options());
    let long = chat(&"many words ".repeat(100), "");
    let stream = server.send("/v1/chat/completions", &long);
    server.held.allow(3);
    server.held.until_it_waits();
    let rows = || server.metric("ironstar_engine_prompt_rows_total");
    let before = rows();
    assert!((12..=24).contains(&before), "{before} rows in three steps");
    // It leaves while the engine is in a step of 8 rows.
    drop(stream);
    server.wait_for("ironstar_requests_open", 0);
    server.held.open();
    let reply = server.post("/v1/chat/completions", &chat("short", ""));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let short = reply.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let more = rows() - before;
    assert!(more <= 8 + short, "{more} rows more, {short} of the next prompt: the work went on");
    let again = server.post("/v1/chat/completions", &long).json();
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= before, "{again}");
}

/// The answers would take minutes if they went on.
#[test]
fn a_stream_whose_client_leaves_while_it_waits_is_given_up() {
    let play = r#"{"step_ms": 5, "replies": [
        {"text": ["x"], "times": 100000, "last": ["stream"]},
        {"text": ["a"], "delay": {"after": 0, "ms": 30}, "times": 100000}]}"#;
    let server = start(play);
    for text in ["stream", "wait"] {
        for _ in 0..10 {
            drop(server.send("/v1/chat/completions", &chat(text, STREAM)));
        }
    }
    server.wait_for("ironstar_requests_open", 0);
    server.wait_for("ironstar_requests_running", 0);
    server.wait_for("ironstar_session_bytes", 0);
}

/// Nobody reads: the answer is given up when its events no longer fit, and memory does not grow.
#[test]
fn a_reader_that_never_reads_is_given_up() {
    let play = r#"{"replies": [{"text": ["0123456789"], "times": 200000}]}"#;
    let write_timeout = Duration::from_secs(1);
    let server = start_with(play, Options { write_timeout, ..options() });
    let stream = server.send("/v1/chat/completions", &chat("hi", STREAM));
    server.wait_until("ironstar_answer_tokens_total", |tokens| tokens > 0);
    server.wait_for("ironstar_requests_open", 0);
    server.wait_for("ironstar_requests_running", 0);
    assert!(server.metric("ironstar_answer_tokens_total") < 500_000);
    drop(stream);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_reader_that_comes_late_is_told_that_it_was_too_slow() {
    let play = r#"{"replies": [{"text": ["0123456789"], "times": 100000}]}"#;
    let server = start(play);
    let mut stream = server.send("/v1/chat/completions", &chat("hi", STREAM));
    // Not that it runs: that may be over before anybody looks.
    server.wait_until("ironstar_engine_prompt_rows_total", |rows| rows > 0);
    server.wait_for("ironstar_requests_running", 0);
    let reply = Reply::read(&mut stream);
    assert!(reply.body.contains("slow_reader"), "{}", &reply.body[reply.body.len() - 500..]);
    assert!(reply.body.trim_end().ends_with("data: [DONE]"), "its end is well formed");
    assert_eq!(server.metric("ironstar_slow_readers_total"), 1);
}

/// The answer would take half an hour, so whatever is read of it was sent while it was made.
#[test]
fn the_first_word_leaves_before_the_last_is_made() {
    let play = r#"{"step_ms": 20, "replies": [{"text": ["word"], "times": 25000}]}"#;
    let server = start(play);
    let mut stream = server.send(
        "/v1/chat/completions",
        &chat("hi", r#", "stream": true, "thinking": {"type": "disabled"}"#),
    );
    read_until(&mut stream, "\"w\"");
    server.wait_for("ironstar_requests_running", 1);
}

#[test]
fn a_stop_lets_answers_end_and_refuses_new_ones() {
    let play = r#"{"replies": [{"text": ["a", "b", "c", "d", "e"], "piece_ms": 1}]}"#;
    let server = start_held(play, options());
    let mut stream = server.send("/v1/chat/completions", &chat("hi", STREAM));
    server.held.allow(2);
    server.held.until_it_waits();
    server.shutdown.stop();
    server.held.open();
    let reply = Reply::read(&mut stream);
    assert!(reply.body.contains("\"finish_reason\":\"stop\""), "{}", reply.body);
    assert!(reply.body.trim_end().ends_with("data: [DONE]"));
    let address = server.address;
    server.join().unwrap();
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}

/// Neither the answer nor the first stop's grace would end before the test gives up.
#[test]
fn a_second_stop_ends_answers_with_their_closing_event() {
    let play = r#"{"step_ms": 20, "replies": [
        {"text": ["abc"], "times": 100000, "delay": {"after": 2, "ms": 400}}]}"#;
    for (path, more, close) in [
        ("/v1/chat/completions", STREAM, "data: [DONE]"),
        ("/v1/messages", r#", "stream": true, "max_tokens": 90000"#, "event: error"),
        ("/v1/responses", STREAM, "response.failed"),
    ] {
        let server = start_with(play, Options { grace: NEVER, ..options() });
        let body = if path == "/v1/responses" {
            format!(r#"{{"input": "hi"{more}}}"#)
        } else {
            chat("hi", more)
        };
        let mut stream = server.send(path, &body);
        server.wait_for("ironstar_requests_running", 1);
        server.shutdown.stop();
        server.shutdown.stop();
        let reply = Reply::read(&mut stream);
        assert!(reply.body.contains(close), "{path}: {}", reply.body);
        assert!(reply.body.contains("stopping"), "{path}: {}", reply.body);
        server.join().unwrap();
    }
}

/// The answer would take hours.
#[test]
fn a_stop_waits_no_longer_than_its_grace() {
    let play = r#"{"replies": [{"text": ["abc"], "times": 100000}], "step_ms": 50}"#;
    let grace = Duration::from_millis(300);
    let server = start_with(play, Options { grace, ..options() });
    let mut stream = server.send("/v1/chat/completions", &chat("hi", ""));
    server.wait_for("ironstar_requests_running", 1);
    let stopped = Instant::now();
    server.shutdown.stop();
    let reply = Reply::read(&mut stream);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &"stopping".into()));
    server.join().unwrap();
    assert!(stopped.elapsed() >= grace);
}

#[test]
fn connections_are_used_again_and_survive_a_pause() {
    let server = start(r#"{"other": ["Hello."]}"#);
    let mut stream = server.connect();
    for _ in 0..3 {
        stream.write_all(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        read_until(&mut stream, "ironstar");
        pause(20);
    }
    stream
        .write_all(b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("ironstar"));
}

/// Proxies and clients give up on a connection on which nothing comes. The engine is in its step
/// until that has been seen.
#[test]
fn whole_answers_that_take_long_show_signs_of_life() {
    let play = r#"{"thinking": false, "replies": [
        {"last": ["slow"], "text": ["Hello", " there."], "piece_ms": 1},
        {"last": ["fails"], "text": ["Hello"], "delay": {"after": 1, "ms": 1},
         "fault": {"after": 3, "kind": "error"}}], "other": ["Hello."]}"#;
    let patient = start_with(play, options());
    let quick = patient.post("/v1/chat/completions", &chat("hi", ""));
    assert!(quick.body.starts_with('{') && quick.header("content-length").is_some());
    let (keepalive, whole_patience) = (Duration::from_millis(50), Duration::from_millis(100));
    let server = start_held(play, Options { keepalive, whole_patience, ..options() });
    for path in ["/v1/chat/completions", "/v1/messages"] {
        server.held.close();
        let begun = Instant::now();
        let mut stream = server.send(path, &chat("slow", r#", "max_tokens": 90"#));
        let mut bytes = read_until(&mut stream, "1\r\n \r\n1\r\n \r\n").into_bytes();
        assert!(begun.elapsed() >= whole_patience + keepalive, "sooner than asked for");
        server.held.open();
        stream.read_to_end(&mut bytes).unwrap();
        let slow = Reply::parse(&bytes);
        assert_eq!((slow.status, slow.header("content-type")), (200, Some("application/json")));
        assert!(slow.body.starts_with("  "), "{:?}", slow.body);
        assert!(slow.json().to_string().contains("Hello there."), "{}", slow.body);
    }
    // What fails after the head breaks the connection: the status has said that all is well.
    server.held.close();
    let mut stream = server.send("/v1/chat/completions", &chat("fails", ""));
    let mut text = read_until(&mut stream, "\r\n\r\n");
    server.held.open();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("engine_failed"), "{text}");
    assert!(!text.ends_with("\r\n0\r\n\r\n"), "nobody takes it for a whole body: {text}");
    // Who leaves after the head ends the work too.
    server.held.close();
    let mut stream = server.send("/v1/chat/completions", &chat("slow", ""));
    read_until(&mut stream, "200 OK");
    drop(stream);
    server.wait_for("ironstar_requests_open", 0);
    server.held.open();
    server.wait_for("ironstar_requests_running", 0);
}
