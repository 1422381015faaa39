//! An engine that fails: the client is told in its protocol, the stream is closed, others go on.

use super::client::{chat, start};

const PLAY: &str = r#"{"replies": [
    {"last": ["device"], "text": ["abcdef"], "fault": {"after": 3, "kind": "error"}},
    {"last": ["panic"], "text": ["abcdef"], "fault": {"after": 3, "kind": "panic"}},
    {"last": ["numbers"], "text": ["abcdef"], "fault": {"after": 3, "kind": "nan"}},
    {"last": ["prompt"], "text": ["abcdef"], "fault": {"after": -1, "kind": "error"}}
], "other": ["fine"]}"#;

#[test]
fn whole_answers_become_errors_with_a_status() {
    let server = start(PLAY);
    for fault in ["device", "panic", "numbers", "prompt"] {
        for path in ["/v1/chat/completions", "/v1/messages"] {
            let reply = server.post(path, &chat(fault, r#", "max_tokens": 50"#));
            assert_eq!(reply.status, 500, "{fault}: {}", reply.body);
            let error = &reply.json()["error"];
            let kind = if path.ends_with("messages") { "api_error" } else { "server_error" };
            assert_eq!((&error["type"], &error["code"]), (&kind.into(), &"engine_failed".into()));
        }
    }
    assert_eq!(server.post("/v1/chat/completions", &chat("hello", "")).status, 200);
    assert_eq!(server.metric("ironstar_failed_total"), 8);
    server.wait_for("ironstar_requests_open", 0);
}

/// A stream never ends without its closing event: one of the clients repeats its request for ever
/// where that is missing.
#[test]
fn streams_are_closed_by_the_error() {
    let server = start(PLAY);
    for fault in ["device", "panic", "numbers", "prompt"] {
        let reply = server.post("/v1/chat/completions", &chat(fault, r#", "stream": true"#));
        assert_eq!(reply.status, 200);
        assert!(reply.body.contains("engine_failed"), "{}", reply.body);
        assert!(reply.body.trim_end().ends_with("data: [DONE]"), "{}", reply.body);
        let body = chat(fault, r#", "stream": true, "max_tokens": 50"#);
        let events = server.post("/v1/messages", &body).events();
        assert_eq!(events.last().unwrap().0.as_deref(), Some("error"), "{events:?}");
        let body = format!(r#"{{"input": "{fault}", "stream": true}}"#);
        let events = server.post("/v1/responses", &body).events();
        assert_eq!(events.last().unwrap().0.as_deref(), Some("response.failed"), "{events:?}");
    }
}
