//! What is served beside answers, and to whom.

use super::client::{options, start, start_with};
use ironstar_server::{Error, Options, Server};

const PLAY: &str = r#"{"other": ["Hello."]}"#;

#[test]
fn what_needs_no_engine_answers() {
    let server = start(PLAY);
    let health = server.get("/health");
    assert_eq!((health.status, &health.json()["status"]), (200, &"ok".into()));
    let ready = server.get("/ready");
    assert_eq!((ready.status, &ready.json()["status"]), (200, &"ready".into()));
    assert_eq!(server.get("/version").json()["name"], "ironstar");
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "scripted");
    assert_eq!(models["data"][0]["context_length"], 1 << 20);
    assert_eq!(server.get("/v1/models/scripted").json()["object"], "model");
    let unknown = server.get("/v1/models/gpt-9");
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &"model_not_found".into())
    );
    assert!(server.get("/").body.contains("/v1/chat/completions"));
    let head = server.ask("HEAD", "/", &[], "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert!(server.get("/metrics").body.contains("ironstar_requests_open 0"));
}

#[test]
fn texts_become_tokens_and_come_back() {
    let server = start(PLAY);
    let there = server.post("/tokenize", r#"{"text": "a</think>é"}"#).json();
    assert_eq!(there["count"], 11, "plain text has no control tokens");
    let there = server.post("/tokenize", r#"{"content": "a</think>é", "special": true}"#).json();
    assert_eq!(there["count"], 4);
    let body = format!(r#"{{"tokens": {}}}"#, there["tokens"]);
    assert_eq!(server.post("/detokenize", &body).json()["text"], "a</think>é");
    for wrong in [r#"{"tokens": [999999]}"#, r#"{"tokens": "a"}"#, "[", ""] {
        let refused = server.post("/detokenize", wrong);
        assert_eq!(refused.status, 400, "{wrong}: {}", refused.body);
    }
}

#[test]
fn unknown_paths_and_methods_are_told_in_the_envelope_of_the_protocol() {
    let server = start(PLAY);
    let chat = server.get("/v1/chat/completions");
    assert_eq!((chat.status, chat.header("allow")), (405, Some("POST")));
    assert_eq!(chat.json()["error"]["type"], "invalid_request_error");
    let messages = server.post("/v1/messages/none", "{}");
    assert_eq!((messages.status, &messages.json()["type"]), (404, &"error".into()));
    assert_eq!(messages.json()["error"]["type"], "not_found_error");
    let embeddings = server.post("/v1/embeddings", "{}");
    assert_eq!(embeddings.status, 400);
    assert!(embeddings.body.contains("none that makes embeddings"), "{}", embeddings.body);
}

#[test]
fn every_response_has_a_request_id_of_its_own() {
    let server = start(PLAY);
    let id = || server.get("/health").header("x-request-id").map(str::to_owned);
    let (one, other) = (id(), id());
    assert!(one.is_some() && one != other);
    assert!(server.get("/nothing").header("x-request-id").is_some());
}

#[test]
fn a_key_is_wanted_where_one_is_set() {
    let keys = vec!["one-good-key".to_owned(), "another-good-key".to_owned()];
    let server = start_with(PLAY, Options { keys, ..options() });
    let get = |headers: &[(&str, &str)]| server.ask("GET", "/v1/models", headers, "").status;
    assert_eq!(get(&[]), 401);
    assert_eq!(get(&[("authorization", "Bearer one-good-kez")]), 401);
    assert_eq!(get(&[("authorization", "Bearer one-good-key")]), 200);
    assert_eq!(get(&[("x-api-key", "another-good-key")]), 200);
    let refused = server.post("/v1/messages", "{}");
    assert_eq!(
        (refused.status, &refused.json()["error"]["type"]),
        (401, &"authentication_error".into())
    );
    for free in ["/", "/health", "/ready"] {
        assert_eq!(server.get(free).status, 200, "{free}");
    }
    assert_eq!(server.get("/metrics").status, 401);
}

#[test]
fn pages_of_other_sites_are_refused_and_allowed_ones_may_read() {
    let server = start(PLAY);
    let evil = [("origin", "https://evil.example")];
    let refused = server.ask("POST", "/v1/chat/completions", &evil, "{}");
    assert_eq!(refused.status, 403);
    assert!(refused.header("access-control-allow-origin").is_none(), "CORS is off");
    let own = [("origin", "http://localhost")];
    assert_eq!(server.ask("GET", "/health", &own, "").status, 200);
    let cors = Some("https://app.example".to_owned());
    let server = start_with(PLAY, Options { cors, ..options() });
    let app = [("origin", "https://app.example")];
    let preflight = server.ask("OPTIONS", "/v1/chat/completions", &app, "");
    assert_eq!(preflight.status, 204);
    let origin = preflight.header("access-control-allow-origin");
    assert_eq!(origin, Some("https://app.example"));
    assert_eq!(server.ask("GET", "/health", &evil, "").status, 403);
}

#[test]
fn a_name_that_points_here_is_no_way_in() {
    let server = start(PLAY);
    let mut stream = server.connect();
    let head = "GET /health HTTP/1.1\r\nhost: rebound.example:80\r\nconnection: close\r\n\r\n";
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    assert_eq!(super::client::Reply::read(&mut stream).status, 403);
}

#[test]
fn what_must_not_be_served_is_refused_at_the_start() {
    let public = Options { address: ([0, 0, 0, 0], 0).into(), ..options() };
    let refused = Server::bind(public.clone()).err();
    assert!(matches!(refused, Some(Error::Public(_))), "{refused:?}");
    assert!(Server::bind(Options { no_key: true, ..public.clone() }).is_ok());
    let keys = vec!["a-good-long-key".to_owned()];
    assert!(Server::bind(Options { keys, ..public }).is_ok());
    for wrong in ["short", "with a space in it", "schlüssel-lang"] {
        let keys = vec!["a-good-long-key".to_owned(), wrong.to_owned()];
        let refused = Server::bind(Options { keys, ..options() }).err();
        assert!(matches!(refused, Some(Error::Key { number: 2, .. })), "{refused:?}");
    }
    let server = start(PLAY);
    let refused = Server::bind(Options { address: server.address, ..options() }).err();
    assert!(matches!(refused, Some(Error::InUse(_))), "{refused:?}");
}

#[test]
fn no_page_may_show_this_one_in_a_frame_or_guess_at_types() {
    let server = start(PLAY);
    for path in ["/", "/health", "/v1/models", "/nothing"] {
        let reply = server.get(path);
        assert_eq!(reply.header("x-frame-options"), Some("DENY"), "{path}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"), "{path}");
    }
    let page = server.get("/");
    assert_eq!(page.header("content-security-policy"), Some("frame-ancestors 'none'"));
    assert_eq!(page.header("cache-control"), Some("no-cache"), "an update shows at once");
}

/// The page offers images where the list of models says that one sees them; none does yet.
#[test]
fn models_say_what_they_read() {
    let models = start(PLAY).get("/v1/models").json();
    assert_eq!(models["data"][0]["input_modalities"], serde_json::json!(["text"]));
}
