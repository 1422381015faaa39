//! Conversations that go on: what was read is not read again, and cached tokens say so.

use super::client::{Running, options, start, start_with};
use ironstar_server::Options;
use serde_json::{Value, json};
use std::path::PathBuf;

const PLAY: &str = include_str!("plays/reuse.json");

fn ask(server: &Running, body: &Value) -> (Value, u64, u64) {
    let reply = server.post("/v1/chat/completions", &body.to_string());
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = reply.json();
    let prompt = reply["usage"]["prompt_tokens"].as_u64().unwrap();
    let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (reply["choices"][0]["message"].clone(), prompt, cached)
}

/// Bug reports H07: three ways to send back reasoning that was empty.
#[test]
fn empty_reasoning_comes_back_in_three_ways_and_nothing_is_read_again() {
    for reasoning in [json!(" "), json!(""), Value::Null] {
        let server = start(PLAY);
        let first = json!({"messages": [{"role": "user", "content": "hello"}]});
        let (message, prompt, cached) = ask(&server, &first);
        assert_eq!((&message["content"], cached), (&"ok".into(), 0));
        let mut answer = json!({"role": "assistant", "content": "ok"});
        if !reasoning.is_null() {
            answer["reasoning_content"] = reasoning.clone();
        }
        let next = json!({"messages": [
            {"role": "user", "content": "hello"}, answer, {"role": "user", "content": "again"}]});
        let (_, _, cached) = ask(&server, &next);
        // Without tools the marker that opened the reasoning is closed in a history; that is the
        // prompt format's rule, so the turn's own prompt is what can be reused.
        assert!(cached + 2 >= prompt, "{reasoning}: {cached} of {prompt}");
    }
}

/// Bug reports H08: clients that keep the reasoning of calls, and clients that drop it.
#[test]
fn a_tool_conversation_goes_on_where_it_was() {
    for keeps in [true, false] {
        let server = start(PLAY);
        let tools = json!([{"type": "function", "function": {"name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]);
        let question = json!({"role": "user", "content": "weather"});
        let thinking = json!({"type": "enabled"});
        let first = json!({"messages": [question], "tools": tools, "thinking": thinking});
        let (message, prompt, _) = ask(&server, &first);
        let calls = message["tool_calls"].clone();
        assert_eq!(calls.as_array().map(Vec::len), Some(1), "{message}");
        let mut answer = json!({"role": "assistant", "content": null, "tool_calls": calls});
        if keeps {
            answer["reasoning_content"] = message["reasoning_content"].clone();
        }
        let result = json!({"role": "tool", "tool_call_id": calls[0]["id"], "content": "rain"});
        let next = json!({"messages": [question, answer, result], "tools": tools,
                          "thinking": thinking});
        let (message, total, cached) = ask(&server, &next);
        assert_eq!(message["content"], "It rains in Paris.", "{message}");
        assert!(cached > prompt, "keeps {keeps}: {cached} of {total}, the first turn had {prompt}");
    }
}

/// Bug reports H31: regenerate, and edit the last message.
#[test]
fn the_same_prompt_again_is_there_already() {
    let server = start(PLAY);
    let long = "word ".repeat(100);
    let body = json!({"messages": [{"role": "user", "content": long}]});
    let (message, prompt, _) = ask(&server, &body);
    let (again, _, cached) = ask(&server, &body);
    assert_eq!(message, again);
    assert!(cached + 1 >= prompt, "{cached} of {prompt}");
    let edited = json!({"messages": [{"role": "user", "content": format!("{long}!")}]});
    let (_, _, cached) = ask(&server, &edited);
    assert!(cached >= 500, "{cached}");
}

#[test]
fn responses_go_on_from_stored_ones() {
    let server = start(PLAY);
    let post = |body: &Value| server.post("/v1/responses", &body.to_string());
    let first = post(
        &json!({"input": "hello", "instructions": "Be brief.", "reasoning": {"effort": "none"}}),
    );
    assert_eq!(first.status, 200, "{}", first.body);
    let id = first.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(server.get(&format!("/v1/responses/{id}")).json()["id"], id.as_str());
    let next = post(&json!({"input": "again", "instructions": "Be brief.",
        "previous_response_id": id, "reasoning": {"effort": "none"}}));
    assert_eq!(next.status, 200, "{}", next.body);
    let usage = next.json()["usage"].clone();
    let before = first.json()["usage"]["input_tokens"].as_u64().unwrap();
    let cached = usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= before, "{cached} of {before}: {usage}");
    let unknown = post(&json!({"input": "x", "previous_response_id": "resp_none"}));
    assert_eq!(unknown.status, 404, "{}", unknown.body);
    assert_eq!(unknown.json()["error"]["code"], "previous_response_not_found");
    let unstored = post(&json!({"input": "x", "store": false}));
    let id = unstored.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(server.get(&format!("/v1/responses/{id}")).status, 404);
    let deleted = server.ask(
        "DELETE",
        &format!("/v1/responses/{}", next.json()["id"].as_str().unwrap()),
        &[],
        "",
    );
    assert_eq!(deleted.json()["deleted"], true);
    // What was streamed is stored too.
    let streamed = post(&json!({"input": "hello", "stream": true})).data();
    let id = streamed[0]["response"]["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v1/responses/{id}")).json()["status"], "completed");
}

/// Answers in a folder outlive the server; what else lies there harms nobody.
#[test]
fn responses_go_on_from_those_of_an_earlier_server() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("stored-answers");
    let _none_yet = std::fs::remove_dir_all(&folder);
    let play = r#"{"thinking": false, "replies": [
        {"when": ["my name is Ada", "I remember."], "last": ["again"], "text": ["You are Ada."]},
        {"last": ["Ada"], "text": ["I remember."]}], "other": ["Who are you?"]}"#;
    let start = || start_with(play, Options { store_dir: Some(folder.clone()), ..options() });
    let post = |server: &Running, body: Value| {
        let reply = server.post("/v1/responses", &body.to_string());
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply
    };
    let server = start();
    let first = post(&server, json!({"input": "my name is Ada"})).json();
    let id = first["id"].as_str().unwrap().to_owned();
    let streamed = post(&server, json!({"input": "Ada", "stream": true})).data();
    let other = streamed[0]["response"]["id"].as_str().unwrap().to_owned();
    let unstored = post(&server, json!({"input": "x", "store": false})).json();
    drop(server);
    let server = start();
    let get = |id: &str| server.get(&format!("/v1/responses/{id}"));
    assert_eq!(get(&id).json(), first);
    assert_eq!(get(&other).json()["status"], "completed");
    assert_eq!(get(unstored["id"].as_str().unwrap()).status, 404);
    let next = post(&server, json!({"input": "again", "previous_response_id": id})).json();
    assert_eq!(next["output"][0]["content"][0]["text"], "You are Ada.", "{next}");
    let path = |id: &str| folder.join(format!("{id}.answer"));
    let deleted = server.ask("DELETE", &format!("/v1/responses/{id}"), &[], "");
    assert_eq!(deleted.json()["deleted"], true);
    assert!(!path(&id).exists() && path(&other).exists());
    // Half a file, a folder, a link to something else.
    let whole = std::fs::read(path(&other)).unwrap();
    std::fs::write(path(&other), &whole[..whole.len() / 2]).unwrap();
    std::fs::create_dir(path("resp_folder")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("/dev/zero", path("resp_device")).unwrap();
    for id in [&*other, "resp_folder", "resp_device", "..%2f..%2fetc%2fpasswd", "resp_none"] {
        assert_eq!(get(id).status, 404, "{id}");
        let body = json!({"input": "again", "previous_response_id": id}).to_string();
        let refused = server.post("/v1/responses", &body);
        assert_eq!(refused.json()["error"]["code"], "previous_response_not_found", "{id}");
    }
}
