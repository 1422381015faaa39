//! Streams as clients read them: every row of the table of damages, turned round, on ours.

use super::client::{Reply, chat, start};
use serde_json::Value;

/// An answer with reasoning, text, and two calls.
const PLAY: &str = include_str!("plays/streams.json");

const TOOLS: &str = r#", "tools": [{"type": "function", "function": {"name": "get_weather",
    "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}, "id": {"type": "integer"}}}}}]"#;
const TOOLS_MESSAGES: &str = r#", "max_tokens": 900, "tools": [{"name": "get_weather",
    "input_schema": {"type": "object",
        "properties": {"city": {"type": "string"}, "id": {"type": "integer"}}}}]"#;
const TOOLS_RESPONSES: &str = r#", "tools": [{"type": "function", "name": "get_weather",
    "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}, "id": {"type": "integer"}}}}]"#;
const THINK: &str = r#", "thinking": {"type": "enabled"}"#;
const NO_THINK: &str = r#", "thinking": {"type": "disabled"}"#;
const STREAM: &str = r#", "stream": true"#;

fn ok(reply: &Reply) -> &Reply {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply
}

/// A stream of chunks, joined to what the whole answer should be.
fn joined(chunks: &[Value]) -> (String, String, Vec<[String; 3]>, String) {
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
    let mut finish = String::new();
    for chunk in chunks {
        for choice in chunk["choices"].as_array().expect("choices is a list, always") {
            let delta = &choice["delta"];
            reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
            content += delta["content"].as_str().unwrap_or_default();
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let index =
                    usize::try_from(call["index"].as_u64().expect("an index, always")).unwrap();
                if index == calls.len() {
                    assert_eq!(call["type"], "function");
                    let name = call["function"]["name"].as_str().expect("the name comes first");
                    let id = call["id"].as_str().expect("the id comes first");
                    calls.push([id.to_owned(), name.to_owned(), String::new()]);
                }
                calls[index][2] += call["function"]["arguments"].as_str().unwrap_or_default();
            }
            if let Some(reason) = choice["finish_reason"].as_str() {
                assert!(finish.is_empty() && !reason.is_empty());
                finish = reason.to_owned();
            }
        }
    }
    (reasoning, content, calls, finish)
}

#[test]
fn a_chat_stream_is_what_the_strictest_client_wants() {
    let server = start(PLAY);
    let more = format!(r#"{THINK}{TOOLS}{STREAM}, "stream_options": {{"include_usage": true}}"#);
    let reply = server.post("/v1/chat/completions", &chat("tools", &more));
    assert_eq!(ok(&reply).header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert!(reply.header("content-encoding").is_none(), "streams are not compressed");
    let (events, chunks) = (reply.events(), reply.data());
    assert!(events.iter().all(|(name, _)| name.is_none()));
    assert_eq!(events.last().unwrap().1, "[DONE]");
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant", "the first has the role");
    for chunk in &chunks {
        assert_eq!((&chunk["id"], &chunk["created"]), (&chunks[0]["id"], &chunks[0]["created"]));
        assert_eq!(chunk["object"], "chat.completion.chunk");
    }
    let usage = chunks.last().unwrap();
    assert_eq!(usage["choices"], Value::Array(Vec::new()), "a list without entries, never null");
    assert!(usage["usage"]["completion_tokens"].as_u64().unwrap() > 100);
    let (reasoning, content, calls, finish) = joined(&chunks);
    assert_eq!((reasoning.as_str(), finish.as_str()), ("Let me look.", "tool_calls"));
    assert_eq!(content.trim_end(), "I call.");
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0][0], calls[1][0], "each call has an id of its own");
    let arguments: Vec<Value> = calls
        .iter()
        .map(|call| serde_json::from_str(&call[2]).expect("arguments are JSON"))
        .collect();
    assert_eq!(arguments[0]["city"], "Paris");
    assert!(calls[1][2].contains("12345678901234567890"), "digits pass untouched: {}", calls[1][2]);
    // The whole answer has the same content.
    let whole = server.post("/v1/chat/completions", &chat("tools", &format!("{THINK}{TOOLS}")));
    let message = ok(&whole).json()["choices"][0]["message"].clone();
    assert_eq!(message["reasoning_content"], reasoning.as_str());
    assert_eq!(message["content"].as_str().unwrap_or_default(), content);
    assert_eq!(message["tool_calls"][1]["function"]["arguments"], calls[1][2].as_str());
    assert_eq!(whole.json()["choices"][0]["finish_reason"], "tool_calls");
}

/// Bug reports H20.
#[test]
fn usage_comes_only_where_it_is_asked_for() {
    let server = start(PLAY);
    for (asked, wanted) in [("true", true), ("false", false)] {
        let more = format!(r#"{STREAM}, "stream_options": {{"include_usage": {asked}}}"#);
        let chunks = server.post("/v1/chat/completions", &chat("hi", &more)).data();
        assert_eq!(chunks.last().unwrap()["usage"].is_object(), wanted);
        assert!(chunks.iter().all(|chunk| chunk["choices"].is_array()));
        let earlier = &chunks[..chunks.len() - 1];
        assert!(earlier.iter().all(|chunk| chunk["usage"].is_null()));
    }
    let chunks = server.post("/v1/chat/completions", &chat("hi", STREAM)).data();
    assert!(chunks.iter().all(|chunk| chunk["usage"].is_null()));
}

/// Bug reports H21, and the rows of events that are missing.
#[test]
fn a_messages_stream_has_every_event_in_its_place() {
    let server = start(PLAY);
    let more = format!("{TOOLS_MESSAGES}{STREAM}, \"thinking\": {{\"type\": \"adaptive\"}}");
    let reply = server.post("/v1/messages?beta=true", &chat("tools", &more));
    let events = ok(&reply).events();
    assert!(!reply.body.contains("[DONE]"));
    let names: Vec<&str> =
        events.iter().map(|(name, _)| name.as_deref().expect("a name")).collect();
    assert_eq!(names[0], "message_start");
    assert_eq!(&names[names.len() - 2..], ["message_delta", "message_stop"]);
    let data = reply.data();
    assert!(data.iter().zip(&names).all(|(data, name)| data["type"] == *name));
    assert!(data[0]["message"]["usage"]["input_tokens"].is_u64());
    let mut open = None;
    let mut kinds = Vec::new();
    for event in &data {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert!(open.is_none());
                open = event["index"].as_u64();
                assert_eq!(open, Some(kinds.len() as u64), "blocks are counted");
                kinds.push(event["content_block"]["type"].as_str().unwrap().to_owned());
            }
            "content_block_delta" => assert_eq!(open, event["index"].as_u64()),
            "content_block_stop" => assert_eq!(open.take(), event["index"].as_u64()),
            _ => {}
        }
    }
    assert_eq!(kinds, ["thinking", "text", "tool_use", "tool_use"]);
    assert!(data.iter().any(|event| event["delta"]["type"] == "signature_delta"));
    let delta = &data[data.len() - 2];
    assert_eq!(delta["delta"]["stop_reason"], "tool_use");
    assert!(delta["usage"]["output_tokens"].as_u64().unwrap() > 100);
}

#[test]
fn a_responses_stream_has_every_event_in_its_place() {
    let server = start(PLAY);
    let body = format!(
        r#"{{"input": "tools", "reasoning": {{"effort": "high", "summary": "auto"}}
            {STREAM}{TOOLS_RESPONSES}}}"#
    );
    let reply = server.post("/v1/responses", &body);
    let (events, data) = (ok(&reply).events(), reply.data());
    let names: Vec<&str> =
        events.iter().map(|(name, _)| name.as_deref().expect("a name")).collect();
    assert_eq!(&names[..2], ["response.created", "response.in_progress"]);
    assert_eq!(names.last(), Some(&"response.completed"));
    for (number, (event, name)) in data.iter().zip(&names).enumerate() {
        assert_eq!(event["type"], *name);
        assert_eq!(event["sequence_number"], number);
    }
    let added = names.iter().filter(|name| **name == "response.output_item.added").count();
    let done: Vec<&Value> =
        data.iter().filter(|event| event["type"] == "response.output_item.done").collect();
    assert_eq!(added, done.len());
    let kinds: Vec<&str> =
        done.iter().map(|event| event["item"]["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
    assert_eq!(done[2]["item"]["name"], "get_weather", "one of the clients acts on this alone");
    let arguments = done[2]["item"]["arguments"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(arguments).unwrap()["city"], "Paris");
    let response = &data.last().unwrap()["response"];
    assert_eq!(response["output"].as_array().unwrap().len(), 4);
    assert!(response["usage"]["output_tokens"].as_u64().unwrap() > 100);
    assert!(response["usage"]["input_tokens_details"]["cached_tokens"].is_u64());
}

/// Bug reports H02: a limit may cut within a character.
#[test]
fn a_character_that_is_cut_is_left_out_and_counted() {
    let server = start(PLAY);
    for limit in 1..=4 {
        let more = format!(r#", "max_tokens": {limit}{NO_THINK}"#);
        let text = if limit == 4 { "👋" } else { "" };
        let whole = server.post("/v1/chat/completions", &chat("cut", &more)).json();
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), text);
        assert_eq!(choice["finish_reason"], "length");
        assert_eq!(whole["usage"]["completion_tokens"], limit);
        let streamed = server.post("/v1/chat/completions", &chat("cut", &(more.clone() + STREAM)));
        assert_eq!(joined(&streamed.data()).1, text);
        let messages = server.post("/v1/messages", &chat("cut", &more)).json();
        assert_eq!(messages["stop_reason"], "max_tokens");
        assert_eq!(messages["usage"]["output_tokens"], limit);
        let body = format!(
            r#"{{"input": "cut", "max_output_tokens": {limit}, "reasoning": {{"effort": "none"}}}}"#
        );
        let response = server.post("/v1/responses", &body).json();
        assert_eq!(response["status"], "incomplete", "{response}");
        assert_eq!(response["usage"]["output_tokens"], limit);
    }
}

/// Bug reports H22: a stop string over the border of tokens.
#[test]
fn a_stop_string_ends_the_answer_and_the_work() {
    let server = start(PLAY);
    let more = format!(r#"{NO_THINK}, "stop": ["bcd"]"#);
    let whole = server.post("/v1/chat/completions", &chat("stop", &more)).json();
    assert_eq!(whole["choices"][0]["message"]["content"], "a");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!(whole["usage"]["completion_tokens"], 4, "tokens up to the stop string count");
    let streamed = server.post("/v1/chat/completions", &chat("stop", &(more + STREAM)));
    assert_eq!(joined(&streamed.data()).1, "a");
    let more = format!(r#"{NO_THINK}, "max_tokens": 50, "stop_sequences": ["bcd"]"#);
    let message = server.post("/v1/messages", &chat("stop", &more)).json();
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&"stop_sequence".into(), &"bcd".into())
    );
    server.wait_for("ironstar_requests_running", 0);
}

#[test]
fn several_answers_share_their_prompt() {
    let server = start(PLAY);
    let body = chat("hi", &format!(r#"{NO_THINK}, "n": 3"#));
    let whole = server.post("/v1/chat/completions", &body).json();
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3, "{whole}");
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["message"]["content"], "Hello.");
    }
    let prompt = whole["usage"]["prompt_tokens"].as_u64().unwrap();
    let rows = server.metric("ironstar_engine_prompt_rows_total");
    assert!(rows < 2 * prompt, "{rows} rows for a prompt of {prompt}: read once");
    let streamed =
        server.post("/v1/chat/completions", &chat("hi", &format!(r#"{NO_THINK}{STREAM}, "n": 2"#)));
    let finished =
        streamed.data().iter().filter(|c| c["choices"][0]["finish_reason"] == "stop").count();
    assert_eq!(finished, 2, "{}", streamed.body);
}

#[test]
fn log_probabilities_have_bytes() {
    let server = start(PLAY);
    let more = format!(r#"{NO_THINK}, "logprobs": true, "top_logprobs": 2"#);
    let whole = server.post("/v1/chat/completions", &chat("hi", &more)).json();
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap())
        .map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap())
        .collect();
    assert_eq!(bytes, b"Hello.");
    assert!(tokens.iter().all(|token| token["logprob"].as_f64().unwrap() <= 0.0));
    assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));
}

/// What evaluation harnesses ask: the prompt back, with the probability of each of its tokens.
#[test]
fn completions_echo_the_prompt_with_its_log_probabilities() {
    let server = start(PLAY);
    let body = r#"{"prompt": "some text", "echo": true, "logprobs": 1, "max_tokens": 1}"#;
    let whole = server.post("/v1/completions", body);
    let choice = ok(&whole).json()["choices"][0].clone();
    assert_eq!(choice["text"], "some textH", "{choice}");
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 10);
    assert!(logprobs.iter().skip(1).all(Value::is_number), "{logprobs:?}");
    // A script expects the prompt that it was given: each token is the certain one.
    assert!(logprobs.iter().skip(1).all(|logprob| logprob.as_f64().unwrap() > -0.01));
    let offsets = choice["logprobs"]["text_offset"].as_array().unwrap();
    assert_eq!(offsets.last().unwrap(), 9);
    let body = r#"{"prompt": ["a", "bc"], "echo": true, "max_tokens": 2}"#;
    let choices = server.post("/v1/completions", body).json()["choices"].clone();
    assert_eq!((&choices[0]["text"], &choices[1]["text"]), (&"aHe".into(), &"bcHe".into()));
}

#[test]
fn tokens_are_counted_as_usage_counts_them() {
    let server = start(PLAY);
    let more = TOOLS_MESSAGES;
    let counted = server.post("/v1/messages/count_tokens", &chat("hi", more)).json();
    let used = server.post("/v1/messages", &chat("hi", more)).json();
    let usage = &used["usage"];
    let sum = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"]
        .iter()
        .map(|name| usage[*name].as_u64().unwrap_or(0))
        .sum::<u64>();
    assert_eq!(counted["input_tokens"], sum, "{counted} {used}");
}

/// Bug reports H26: nothing is shared between streams.
#[test]
fn streams_side_by_side_are_what_they_are_alone() {
    let server = start(PLAY);
    let bodies: Vec<String> = ["tools", "ponder", "stop", "hi"]
        .iter()
        .map(|text| chat(text, &format!("{THINK}{TOOLS}{STREAM}")))
        .collect();
    let ask = |body: &String| {
        let (reasoning, content, calls, finish) =
            joined(&server.post("/v1/chat/completions", body).data());
        let calls: Vec<String> = calls.into_iter().map(|[_, name, text]| name + &text).collect();
        (reasoning, content, calls, finish)
    };
    let alone: Vec<_> = bodies.iter().map(ask).collect();
    assert!(alone.iter().all(|answer| !answer.3.is_empty()), "{alone:?}");
    std::thread::scope(|scope| {
        for worker in 0..16 {
            let (ask, bodies, alone) = (&ask, &bodies, &alone);
            scope.spawn(move || {
                for round in 0..12 {
                    let which = (worker + round) % bodies.len();
                    assert_eq!(ask(&bodies[which]), alone[which]);
                }
            });
        }
    });
}

/// Bug reports H24: enforced or refused. The script would say something else.
#[test]
fn a_schema_binds_the_answer_or_is_refused() {
    let server = start(PLAY);
    let form = |schema: &str| {
        format!(
            r#"{NO_THINK}, "max_tokens": 40, "response_format": {{"type": "json_schema",
               "json_schema": {{"name": "x", "strict": true, "schema": {schema}}}}}"#
        )
    };
    let bound = form(r#"{"enum": ["yes", "no"]}"#);
    let reply = server.post("/v1/chat/completions", &chat("hi", &bound));
    assert_eq!(ok(&reply).json()["choices"][0]["message"]["content"], "\"no\"");
    let plain = bound.replace(NO_THINK, "");
    let reply = server.post("/v1/completions", &format!(r#"{{"prompt": "hi"{plain}}}"#));
    assert_eq!(ok(&reply).json()["choices"][0]["text"], "\"no\"", "plain prompts too");
    // After the reasoning only, where there is some.
    let thinking = bound.replace("disabled", "enabled");
    let message = server.post("/v1/chat/completions", &chat("ponder", &thinking)).json();
    let message = &message["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "I think so.");
    assert_eq!(message["content"], "\"no\"");
    for wrong in [
        r#"{"type": "string", "pattern": "("}"#,
        r##"{"$ref": "#/$defs/none"}"##,
        r#"{"type": "sting"}"#,
        r#"{"type": "object", "if": {"required": ["a"]}}"#,
    ] {
        let refused = server.post("/v1/chat/completions", &chat("hi", &form(wrong)));
        assert_eq!(refused.status, 400, "{wrong}: {}", refused.body);
    }
}

#[test]
fn a_call_that_is_demanded_is_made() {
    let server = start(PLAY);
    for choice in [r#""required""#, r#"{"type": "function", "function": {"name": "get_weather"}}"#]
    {
        let more = format!(r#"{NO_THINK}{TOOLS}, "max_tokens": 400, "tool_choice": {choice}"#);
        let reply = server.post("/v1/chat/completions", &chat("hi", &more));
        let message = ok(&reply).json()["choices"][0]["message"].clone();
        assert_eq!(message["tool_calls"][0]["function"]["name"], "get_weather", "{message}");
    }
}
