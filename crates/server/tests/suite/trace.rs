//! Traces: everything that is needed to see what happened, and no key.

use super::client::{chat, options, start_with};
use ironstar_server::Options;
use serde_json::Value;
use std::path::PathBuf;

#[test]
fn a_request_leaves_a_file_without_keys() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("traces");
    let _none_yet = std::fs::remove_dir_all(&folder);
    let keys = vec!["a-very-secret-key".to_owned()];
    let trace = Some(folder.clone());
    let play = r#"{"thinking": false, "other": ["Hello."]}"#;
    let server = start_with(play, Options { keys, trace, seed: Some(7), ..options() });
    let body = chat("what is a-very-secret-key?", r#", "logprobs": true"#);
    let headers = [("authorization", "Bearer a-very-secret-key")];
    let reply = server.ask("POST", "/v1/chat/completions", &headers, &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let id = reply.header("x-request-id").unwrap();
    drop(server);
    let text = std::fs::read_to_string(folder.join(format!("{id}.json"))).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&file["seed"], &file["protocol"]), (&7.into(), &"Chat".into()));
    let prompt = &file["prompts"][0];
    assert!(prompt["text"].as_str().unwrap().contains("<｜User｜>what is"), "{prompt}");
    assert_eq!(file["answers"][0]["text"], "Hello.<｜end▁of▁sentence｜>");
    assert_eq!(file["answers"][0]["tokens"].as_array().unwrap().len(), 7);
    let events = file["events"].as_array().unwrap();
    assert_eq!(events.iter().filter(|event| event["token"].is_u64()).count(), 7);
    assert!(events.last().unwrap()["finish"].as_str().unwrap().contains("StopToken"));
    assert!(!file["body"].to_string().contains("a-very-secret-key"));
}
