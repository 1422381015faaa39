//! Requests that are too large, too deep, too slow or no requests at all. The server lives, and
//! others are served.

use super::client::{Reply, chat, head, options, pause, start, start_held, start_with};
use ironstar_server::Options;
use std::io::{Read, Write};
use std::time::Duration;

const PLAY: &str = r#"{"other": ["Hello."]}"#;

#[test]
fn a_body_that_is_too_large_is_413_before_it_is_read() {
    let mut options = options();
    options.limits.body_bytes = 10_000;
    let server = start_with(PLAY, options);
    let said = server.ask("POST", "/v1/chat/completions", &[], &"x".repeat(10_001));
    assert_eq!((said.status, &said.json()["error"]["code"]), (413, &"body_too_large".into()));
    // A length that is only claimed costs nothing.
    let mut stream = server.connect();
    let claimed = head("POST", "/v1/messages", &[], 1 << 40);
    stream.write_all(claimed.as_bytes()).unwrap();
    let refused = Reply::read(&mut stream);
    assert_eq!(
        (refused.status, &refused.json()["error"]["type"]),
        (413, &"request_too_large".into())
    );
    // Without a length it is counted while it comes.
    let mut stream = server.connect();
    let chunked = "POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                   transfer-encoding: chunked\r\n\r\n";
    stream.write_all(chunked.as_bytes()).unwrap();
    for _ in 0..11 {
        // The server may have refused already.
        let _refused = stream.write_all(format!("3e8\r\n{}\r\n", "x".repeat(1000)).as_bytes());
    }
    assert_eq!(Reply::read(&mut stream).status, 413);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_head_that_is_too_large_is_431() {
    let server = start(PLAY);
    let mut stream = server.connect();
    let long =
        format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(1 << 20));
    let _refused = stream.write_all(long.as_bytes());
    assert_eq!(Reply::read(&mut stream).status, 431);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_slow_body_is_408_and_a_slow_head_is_let_go() {
    // One short time for each server: what the test sends at once may come late too.
    let short = Duration::from_millis(100);
    let server = start_with(PLAY, Options { body_pause: short, ..options() });
    let mut stream = server.connect();
    let slow = head("POST", "/v1/chat/completions", &[], 100) + "{";
    stream.write_all(slow.as_bytes()).unwrap();
    let refused = Reply::read(&mut stream);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (408, &"body_timeout".into()));
    let server = start_with(PLAY, Options { head_timeout: short, ..options() });
    let mut stream = server.connect();
    let _let_go = stream.write_all(b"GET /hea");
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{rest:?}"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    // A byte now and then is not enough either.
    let whole = Duration::from_millis(300);
    let server = start_with(PLAY, Options { body_timeout: whole, ..options() });
    let mut stream = server.connect();
    stream.write_all(head("POST", "/v1/messages", &[], 100).as_bytes()).unwrap();
    for _ in 0..10 {
        let _refused = stream.write_all(b"x");
        pause(50);
    }
    assert_eq!(Reply::read(&mut stream).status, 408);
}

#[test]
fn nesting_without_end_is_400() {
    let server = start(PLAY);
    for path in ["chat/completions", "completions", "responses", "messages"] {
        for depth in [1_000, 100_000] {
            let body = format!(r#"{{"unknown": {}1"#, "[".repeat(depth));
            let refused = server.post(&format!("/v1/{path}"), &body);
            assert_eq!(refused.status, 400, "{path}: {}", refused.body);
        }
        let refused = server.post(&format!("/v1/{path}"), "\u{0}");
        assert_eq!(refused.status, 400, "{path}: {}", refused.body);
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_prompt_beyond_the_context_is_400_in_each_protocols_words() {
    let server = start(r#"{"context": 50, "other": ["Hello."]}"#);
    let long = "word ".repeat(20);
    for stream in ["", r#", "stream": true"#] {
        let refused = server.post("/v1/chat/completions", &chat(&long, stream));
        assert_eq!(refused.status, 400, "{}", refused.body);
        let error = &refused.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        assert!(error["message"].as_str().unwrap().contains("maximum context length is 50"));
        assert!(error["n_prompt_tokens"].as_u64().unwrap() > 50);
        assert_eq!(error["n_ctx"], 50);
        let body = chat(&long, &format!(r#", "max_tokens": 10{stream}"#));
        let refused = server.post("/v1/messages", &body).json();
        assert_eq!(refused["error"]["type"], "invalid_request_error");
        assert!(refused["error"]["message"].as_str().unwrap().contains("prompt is too long"));
        let body = format!(r#"{{"input": "{long}"{stream}}}"#);
        let refused = server.post("/v1/responses", &body);
        assert_eq!(
            (refused.status, &refused.json()["error"]["code"]),
            (400, &"context_length_exceeded".into())
        );
    }
}

#[test]
fn many_waiting_requests_are_429_and_no_503() {
    let play = r#"{"sessions": 1, "replies": [{"text": ["slow"], "piece_ms": 1}]}"#;
    let server = start_held(play, Options { requests_max: 3, ..options() });
    let body = chat("hi", r#", "stream": true"#);
    let streams: Vec<_> = (0..3).map(|_| server.send("/v1/chat/completions", &body)).collect();
    server.wait_for("ironstar_requests_open", 3);
    let refused = server.post("/v1/chat/completions", &body);
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert!(refused.header("retry-after").is_some());
    // A router hears of it before it sends somebody here.
    let ready = server.get("/ready");
    assert_eq!((ready.status, &ready.json()["error"]["code"]), (503, &"not_ready".into()));
    assert_eq!(server.get("/health").status, 200, "it is alive all the same");
    drop(streams);
    server.wait_for("ironstar_requests_open", 0);
    assert_eq!(server.get("/ready").status, 200);
}

/// Before a stream has its head, which would say that all is well.
#[test]
fn a_session_without_room_in_memory_is_400_before_anything_is_sent() {
    let server = start(r#"{"memory": 500, "other": ["Hello."]}"#);
    for stream in ["", r#", "stream": true"#] {
        let refused = server.post("/v1/chat/completions", &chat("hi", stream));
        assert_eq!(refused.status, 400, "{}", refused.body);
        let error = &refused.json()["error"];
        assert_eq!(error["code"], "session_too_large");
        assert!(error["message"].as_str().unwrap().contains("one of 500 tokens"), "{error}");
        let body = format!(
            r#"{{"max_tokens": 1000, "messages": [{{"role": "user", "content": "hi"}}]{stream}}}"#
        );
        let refused = server.post("/v1/messages", &body).json();
        assert_eq!(refused["error"]["type"], "invalid_request_error", "{refused}");
        let fits = server
            .post("/v1/chat/completions", &chat("hi", &format!(r#", "max_tokens": 10{stream}"#)));
        assert_eq!(fits.status, 200, "{}", fits.body);
    }
}
