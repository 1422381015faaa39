//! Rules of answers. Those called "damage" turn a row of what breaks clients into what our streams
//! must have; H numbers are those of the public reports.

use std::collections::HashMap;

use serde_json::Value;

use crate::*;

fn call(protocol: Protocol, more: &str) -> Call {
    let tools = match protocol {
        Protocol::Chat => {
            r#""tools": [{"type": "function", "function": {"name": "f"}}, {"type": "custom",
            "custom": {"name": "patch"}}]"#
        }
        Protocol::Messages => r#""max_tokens": 9, "tools": [{"name": "f"}]"#,
        Protocol::Responses => {
            r#""tools": [{"type": "namespace", "name": "ns", "tools": [{"type": "function",
            "name": "f"}]}, {"type": "custom", "name": "patch"}]"#
        }
        Protocol::Completions => r#""echo": false"#,
    };
    let prompt = match protocol {
        Protocol::Chat | Protocol::Messages => r#""messages": [{"role": "user", "content": "u"}]"#,
        Protocol::Responses => r#""input": "u""#,
        Protocol::Completions => r#""prompt": "u""#,
    };
    let body = format!("{{{prompt}, {tools}, \"stream\": true{more}}}");
    parse(protocol, body.as_bytes(), &Limits::default()).expect("a request")
}

fn identity() -> Identity {
    Identity { id: "abc".to_owned(), created: 17, model: "m".to_owned() }
}

const USAGE: Usage = Usage { prompt: 10, cached: 4, completion: 7, reasoning: 2 };

/// Thinking, text, a call with arguments, a call without.
fn outputs(name: &str) -> Vec<Output> {
    let fragment =
        |index, json: &str| Output::CallArguments { index, json_fragment: json.to_owned() };
    let start =
        |index| Output::CallStart { index, id: format!("call_x_{index}"), name: name.to_owned() };
    vec![
        Output::Reasoning("wh".into()),
        Output::Reasoning("y".into()),
        Output::Text("He\"l".into()),
        Output::Text("lo\n👋".into()),
        start(0),
        fragment(0, "{\"n\": "),
        fragment(0, "12345678901234567890}"),
        Output::CallEnd { index: 0 },
        start(1),
        fragment(1, "{}"),
        Output::CallEnd { index: 1 },
    ]
}

fn name(protocol: Protocol) -> &'static str {
    if protocol == Protocol::Responses { "ns__f" } else { "f" }
}

fn stream(protocol: Protocol, more: &str, outputs: &[Output], finish: Finish) -> Vec<Frame> {
    let mut encoder = Encoder::new(&call(protocol, more), identity());
    let mut frames = encoder.start(&USAGE);
    for output in outputs {
        frames.extend(encoder.output(0, output));
    }
    assert!(!encoder.closed());
    frames.extend(encoder.finish(0, finish, &USAGE));
    assert!(encoder.closed());
    frames
}

fn whole(protocol: Protocol, outputs: &[Output], finish: Finish) -> Value {
    let mut collector = Collector::new(&call(protocol, ""), identity());
    outputs.iter().for_each(|output| collector.output(0, output));
    collector.finish(0, finish, &USAGE);
    serde_json::from_str(&collector.body()).expect("JSON")
}

fn json(frames: &[Frame]) -> Vec<Value> {
    let data = frames.iter().filter(|frame| frame.data.starts_with('{'));
    data.map(|frame| serde_json::from_str(&frame.data).expect("JSON")).collect()
}

const ALL: [Protocol; 4] =
    [Protocol::Chat, Protocol::Messages, Protocol::Responses, Protocol::Completions];

#[test]
fn frames_are_events_of_one_line() {
    for protocol in ALL {
        for frame in stream(protocol, "", &outputs(name(protocol)), Finish::Stop) {
            let sse = frame.to_sse();
            assert!(sse.ends_with("\n\n") && !frame.data.contains('\n'), "{sse}");
            let lines = sse.trim_end().lines().count();
            let named = matches!(protocol, Protocol::Messages | Protocol::Responses);
            // Damage: no `event:` lines.
            assert_eq!(lines, if named { 2 } else { 1 }, "{sse}");
            if let Some(event) = frame.event {
                let data: Value = serde_json::from_str(&frame.data).expect("JSON");
                assert_eq!(data["type"], event);
            }
        }
    }
}

/// What a request says is repeated, its line breaks are not: they would break the event.
#[test]
fn a_request_in_many_lines_is_repeated_in_one() {
    let more = ",\n\"instructions\": \"a\\nb\",\r\n\"metadata\": {\n\r\"k\":\n\"v\"\n}";
    let frames = stream(Protocol::Responses, more, &[], Finish::Stop);
    assert!(frames.iter().all(|frame| !frame.data.contains(['\n', '\r'])));
    let response = &json(&frames)[0]["response"];
    assert_eq!(
        (&response["instructions"], &response["metadata"]["k"]),
        (&"a\nb".into(), &"v".into())
    );
}

/// Damage: no `[DONE]`, no finish reason, an empty one, `choices: null`, fragments without an
/// index.
#[test]
fn chat_streams_have_what_clients_need() {
    let frames = stream(Protocol::Chat, "", &outputs("f"), Finish::Stop);
    assert_eq!(frames.last().expect("an end").data, "[DONE]");
    let chunks = json(&frames);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let mut calls: Vec<(Value, String)> = Vec::new();
    for (at, chunk) in chunks.iter().enumerate() {
        // One id and one `created` for all.
        assert_eq!((&chunk["id"], &chunk["created"]), (&"chatcmpl-abc".into(), &17.into()));
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["choices"].as_array().map(Vec::len), Some(1));
        let choice = &chunk["choices"][0];
        let last = at + 1 == chunks.len();
        let wanted = if last { Value::from("tool_calls") } else { Value::Null };
        assert_eq!((&choice["index"], &choice["finish_reason"]), (&0.into(), &wanted));
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(call["index"].as_u64().expect("an index")).expect("small");
            if index == calls.len() {
                // H17: id, type and name come first, and once.
                assert_eq!(call["type"], "function");
                assert_eq!(call["function"]["arguments"], "");
                calls.push((call["id"].clone(), String::new()));
                assert_eq!(call["function"]["name"], "f");
            } else {
                assert!(call.get("id").is_none() && call["function"].get("name").is_none());
            }
            calls[index].1 += call["function"]["arguments"].as_str().expect("text");
        }
    }
    let number = r#"{"n": 12345678901234567890}"#;
    assert_eq!(calls, [("call_x_0".into(), number.into()), ("call_x_1".into(), "{}".into())]);
}

/// H20.
#[test]
fn the_usage_chunk_is_sent_only_when_asked_for() {
    for protocol in [Protocol::Chat, Protocol::Completions] {
        let asked = r#", "stream_options": {"include_usage": true}"#;
        let frames = stream(protocol, asked, &[Output::Text("a".into())], Finish::Stop);
        let (last, before) = frames.split_last().expect("frames");
        assert_eq!(last.data, "[DONE]");
        let chunks = json(before);
        let (usage, chunks) = chunks.split_last().expect("chunks");
        assert_eq!(usage["choices"], Value::Array(vec![]));
        let counts = &usage["usage"];
        assert_eq!(
            (&counts["prompt_tokens"], &counts["completion_tokens"]),
            (&10.into(), &7.into())
        );
        assert_eq!(counts["total_tokens"], 17);
        assert_eq!(counts["prompt_tokens_details"]["cached_tokens"], 4);
        assert_eq!(counts["completion_tokens_details"]["reasoning_tokens"], 2);
        assert!(chunks.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)));
        for more in ["", r#", "stream_options": {"include_usage": false}"#] {
            let frames = stream(protocol, more, &[Output::Text("a".into())], Finish::Stop);
            assert!(json(&frames).iter().all(|chunk| chunk.get("usage").is_none()));
        }
    }
}

/// H21; damage: no message_start, no content_block_start, no usage, the last event missing.
#[test]
fn messages_streams_have_every_event_in_order() {
    let frames = stream(Protocol::Messages, "", &outputs("f"), Finish::Stop);
    let events = json(&frames);
    assert!(frames.iter().all(|frame| frame.data != "[DONE]"));
    let first = &events[0];
    assert_eq!(first["type"], "message_start");
    assert_eq!(first["message"]["usage"]["input_tokens"], 6);
    assert_eq!(first["message"]["usage"]["cache_read_input_tokens"], 4);
    assert_eq!(first["message"]["content"], Value::Array(vec![]));
    let mut open: Option<(u64, String)> = None;
    let mut kinds = Vec::new();
    for event in events.iter().filter(|event| event.get("index").is_some()) {
        let index = event["index"].as_u64().expect("an index");
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                assert_eq!((open.as_ref(), index), (None, kinds.len() as u64));
                let kind = event["content_block"]["type"].as_str().expect("a type").to_owned();
                kinds.push(kind.clone());
                open = Some((index, kind));
            }
            "content_block_delta" => assert_eq!(open.as_ref().map(|open| open.0), Some(index)),
            "content_block_stop" => assert_eq!(open.take().map(|open| open.0), Some(index)),
            other => panic!("{other}"),
        }
    }
    assert_eq!(
        (open, &kinds[..]),
        (None, &["thinking", "text", "tool_use", "tool_use"].map(String::from)[..])
    );
    assert!(events.iter().any(|event| event["delta"]["type"] == "signature_delta"));
    let [.., delta, stop] = &events[..] else { panic!() };
    assert_eq!(
        (&delta["type"], &delta["delta"]["stop_reason"]),
        (&"message_delta".into(), &"tool_use".into())
    );
    assert_eq!(
        (&delta["usage"]["output_tokens"], &stop["type"]),
        (&7.into(), &"message_stop".into())
    );
}

/// Damage: response.created, output_item.added, output_item.done, response.completed or sequence
/// numbers missing.
#[test]
fn responses_streams_have_every_event_in_order() {
    let mut outputs = outputs("ns__f");
    outputs.extend([
        Output::CallStart { index: 2, id: "call_x_2".into(), name: "patch".into() },
        Output::CallArguments { index: 2, json_fragment: r#"{"input": "a\"b"}"#.into() },
        Output::CallEnd { index: 2 },
    ]);
    let events =
        json(&stream(Protocol::Responses, r#", "instructions": "be 1.0""#, &outputs, Finish::Stop));
    let types: Vec<&str> =
        events.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    assert_eq!(types[..2], ["response.created", "response.in_progress"]);
    assert_eq!(*types.last().expect("an end"), "response.completed");
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
    }
    let mut done: Vec<&Value> = Vec::new();
    let mut open: Option<&Value> = None;
    let mut deltas: HashMap<String, String> = HashMap::new();
    for event in &events {
        match event["type"].as_str().expect("a type") {
            "response.output_item.added" => {
                assert!(open.is_none() && event["output_index"] == done.len());
                open = Some(&event["item"]["id"]);
            }
            "response.output_item.done" => {
                assert_eq!(open.take(), Some(&event["item"]["id"]));
                done.push(&event["item"]);
            }
            _ if event.get("item_id").is_some() => {
                assert_eq!(
                    (open, &event["output_index"]),
                    (Some(&event["item_id"]), &done.len().into())
                );
                if let Some(delta) = event["delta"].as_str() {
                    *deltas.entry(event["item_id"].to_string()).or_default() += delta;
                }
            }
            _ => {}
        }
    }
    let last = &events.last().expect("an end")["response"];
    assert_eq!(last["output"].as_array().expect("items").iter().collect::<Vec<_>>(), done);
    assert_eq!((&last["status"], &last["instructions"]), (&"completed".into(), &"be 1.0".into()));
    assert_eq!(last["usage"]["input_tokens_details"]["cached_tokens"], 4);
    assert_eq!(last["usage"]["output_tokens_details"]["reasoning_tokens"], 2);
    let kinds: Vec<&str> = done.iter().map(|item| item["type"].as_str().expect("a type")).collect();
    assert_eq!(
        kinds,
        ["reasoning", "message", "function_call", "function_call", "custom_tool_call"]
    );
    // The whole item is in the done event, whatever the deltas said.
    let texts = [
        done[0]["summary"][0]["text"].clone(),
        done[1]["content"][0]["text"].clone(),
        done[2]["arguments"].clone(),
        done[3]["arguments"].clone(),
        done[4]["input"].clone(),
    ];
    for (item, text) in done.iter().zip(&texts) {
        assert_eq!(Value::from(&*deltas[&item["id"].to_string()]), *text);
    }
    assert_eq!((&done[2]["name"], &done[2]["namespace"]), (&"f".into(), &"ns".into()));
    assert_eq!((&done[2]["call_id"], &texts[4]), (&"call_x_0".into(), &"a\"b".into()));
}

/// What is kept for a client that asks for reasoning that it can send back.
#[test]
fn reasoning_items_can_be_sent_back() {
    let include = r#", "store": false, "include": ["reasoning.encrypted_content"]"#;
    let events = json(&stream(Protocol::Responses, include, &outputs("ns__f"), Finish::Stop));
    let response = &events.last().expect("an end")["response"];
    assert!(response["output"][0]["encrypted_content"].is_string());
    assert_eq!(response["store"], false);
    let items = response["output"].to_string();
    let again = format!(
        r#"{{"input": [{{"role": "user", "content": "u"}}, {}]}}"#,
        &items[1..items.len() - 1]
    );
    let call =
        parse(Protocol::Responses, again.as_bytes(), &Limits::default()).expect("our own items");
    let Prompt::Conversation(conversation) = call.prompt else { panic!() };
    let ironstar_text::chat::Message::Assistant(turn) = &conversation.messages[1] else { panic!() };
    assert_eq!((turn.reasoning.as_deref(), &*turn.content), (Some("why"), "He\"llo\n👋"));
    assert_eq!(turn.calls[0].name, "ns__f");
}

#[test]
fn the_end_has_its_reason_in_every_protocol() {
    let text = [Output::Text("a".into())];
    let cut = [
        Output::CallStart { index: 0, id: "1".into(), name: "f".into() },
        Output::CallArguments { index: 0, json_fragment: "{\"a\": \"rm -rf /".into() },
        Output::CallCut { index: 0 },
    ];
    let ends = |outputs: &[Output], finish: &Finish| {
        let chat = whole(Protocol::Chat, outputs, finish.clone());
        let messages = whole(Protocol::Messages, outputs, finish.clone());
        let responses = whole(Protocol::Responses, outputs, finish.clone());
        let streamed = json(&stream(Protocol::Chat, "", outputs, finish.clone()));
        assert_eq!(
            streamed.last().expect("an end")["choices"][0]["finish_reason"],
            chat["choices"][0]["finish_reason"]
        );
        [&chat["choices"][0]["finish_reason"], &messages["stop_reason"], &responses["status"]]
            .map(|value| value.as_str().expect("a reason").to_owned())
    };
    assert_eq!(ends(&text, &Finish::Stop), ["stop", "end_turn", "completed"]);
    assert_eq!(ends(&text, &Finish::ToolCalls), ["stop", "end_turn", "completed"]);
    assert_eq!(ends(&text, &Finish::Length), ["length", "max_tokens", "incomplete"]);
    assert_eq!(
        ends(&text, &Finish::StopString("x".into())),
        ["stop", "stop_sequence", "completed"]
    );
    assert_eq!(ends(&outputs("f"), &Finish::Stop), ["tool_calls", "tool_use", "completed"]);
    assert_eq!(ends(&cut, &Finish::Length), ["length", "max_tokens", "incomplete"]);
    let messages = whole(Protocol::Messages, &text, Finish::StopString("x".into()));
    assert_eq!(messages["stop_sequence"], "x");
    // A call that was cut off is nowhere a whole one.
    assert_eq!(
        whole(Protocol::Messages, &cut, Finish::Length)["content"][0]["input"],
        serde_json::json!({})
    );
    let item = &whole(Protocol::Responses, &cut, Finish::Length)["output"][0];
    assert_eq!(
        (&item["status"], &item["arguments"]),
        (&"incomplete".into(), &"{\"a\": \"rm -rf /".into())
    );
}

#[test]
fn a_whole_body_says_what_the_stream_says() {
    let chat = whole(Protocol::Chat, &outputs("f"), Finish::Stop);
    let message = &chat["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&"He\"llo\n👋".into(), &"why".into())
    );
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], r#"{"n": 12345678901234567890}"#);
    let calls = &outputs("f")[4..];
    assert_eq!(
        whole(Protocol::Chat, calls, Finish::Stop)["choices"][0]["message"]["content"],
        Value::Null
    );
    assert_eq!(whole(Protocol::Chat, &[], Finish::Stop)["choices"][0]["message"]["content"], "");
    let mut collector = Collector::new(&call(Protocol::Messages, ""), identity());
    outputs("f").iter().for_each(|output| collector.output(0, output));
    collector.finish(0, Finish::Stop, &USAGE);
    // H16: the input is an object whose digits nobody rounded.
    assert!(
        collector.body().contains(r#""input":{"n": 12345678901234567890}"#),
        "{}",
        collector.body()
    );
    let turn = collector.assistant(0).expect("a choice");
    assert_eq!((turn.reasoning.as_deref(), turn.calls.len()), (Some("why"), 2));
}

#[test]
fn free_text_tools_of_chat_get_their_text() {
    let outputs = [
        Output::CallStart { index: 0, id: "c".into(), name: "patch".into() },
        Output::CallArguments { index: 0, json_fragment: "{\"input\": \"a\\n".into() },
        Output::CallArguments { index: 0, json_fragment: "b\"}".into() },
        Output::CallEnd { index: 0 },
    ];
    let custom = serde_json::json!({"name": "patch", "input": "a\nb"});
    let wanted = serde_json::json!({"id": "c", "type": "custom", "custom": custom});
    assert_eq!(
        whole(Protocol::Chat, &outputs, Finish::Stop)["choices"][0]["message"]["tool_calls"][0],
        wanted
    );
    let chunks = json(&stream(Protocol::Chat, "", &outputs, Finish::Stop));
    let calls: Vec<&Value> =
        chunks.iter().filter_map(|c| c["choices"][0]["delta"].get("tool_calls")).collect();
    assert_eq!(
        (calls.len(), &calls[0][0]["custom"], &calls[0][0]["index"]),
        (1, &wanted["custom"], &0.into())
    );
}

fn token(text: &str, logprob: f64) -> TokenLogprobs {
    let top = vec![TopLogprob { bytes: text.as_bytes().to_vec(), logprob }];
    TokenLogprobs { bytes: text.as_bytes().to_vec(), logprob, top }
}

#[test]
fn probabilities_have_bytes() {
    let tell =
        |text: &str, logprob| Output::Logprobs { reasoning: false, token: token(text, logprob) };
    let half = TokenLogprobs { bytes: vec![0xf0, 0x9f], logprob: f64::NEG_INFINITY, top: vec![] };
    let outputs = [
        Output::Text("é👋".into()),
        tell("é", -0.5),
        Output::Logprobs { reasoning: false, token: half },
        Output::Logprobs { reasoning: true, token: token("r", -1.0) },
    ];
    let call = call(Protocol::Chat, r#", "logprobs": true, "top_logprobs": 1"#);
    let mut collector = Collector::new(&call, identity());
    outputs.iter().for_each(|output| collector.output(0, output));
    let body: Value = serde_json::from_str(&collector.body()).expect("JSON");
    let content = &body["choices"][0]["logprobs"]["content"];
    assert_eq!(
        (&content[0]["token"], &content[0]["bytes"]),
        (&"é".into(), &serde_json::json!([195, 169]))
    );
    assert_eq!(
        (&content[0]["logprob"], &content[0]["top_logprobs"][0]["token"]),
        (&(-0.5).into(), &"é".into())
    );
    assert_eq!(
        (&content[1]["token"], &content[1]["logprob"]),
        (&"bytes:\\xf0\\x9f".into(), &(-9999.0).into())
    );
    assert_eq!(body["choices"][0]["logprobs"]["reasoning_content"][0]["token"], "r");
    let mut encoder = Encoder::new(&call, identity());
    encoder.start(&USAGE);
    let frames = json(&encoder.outputs(0, &outputs[..3]));
    assert_eq!((frames.len(), &frames[0]["choices"][0]["delta"]["content"]), (1, &"é👋".into()));
    assert_eq!(&frames[0]["choices"][0]["logprobs"]["content"], content);
}

/// What evaluations by likelihood read.
#[test]
fn completions_probabilities_are_columns_with_offsets() {
    let call = call(Protocol::Completions, r#", "logprobs": 1"#);
    let mut collector = Collector::new(&call, identity());
    let mut encoder = Encoder::new(&call, identity());
    let mut streamed: Vec<Value> = Vec::new();
    let first = TokenLogprobs { logprob: f64::NAN, top: vec![], ..token("é", 0.0) };
    for (text, token) in [("é", first), ("ab", token("ab", -1.0)), ("c", token("c", -2.0))] {
        let outputs = [Output::Text(text.into()), Output::Logprobs { reasoning: false, token }];
        outputs.iter().for_each(|output| collector.output(0, output));
        streamed.extend(json(&encoder.outputs(0, &outputs)));
    }
    let body: Value = serde_json::from_str(&collector.body()).expect("JSON");
    let choice = &body["choices"][0];
    assert_eq!(choice["text"], "éabc");
    let wanted = serde_json::json!({
        "tokens": ["é", "ab", "c"],
        "token_logprobs": [null, -1.0, -2.0],
        "top_logprobs": [null, {"ab": -1.0}, {"c": -2.0}], "text_offset": [0, 1, 3]});
    assert_eq!(choice["logprobs"], wanted);
    for (at, chunk) in streamed.iter().enumerate() {
        assert_eq!(chunk["choices"][0]["logprobs"]["text_offset"][0], wanted["text_offset"][at]);
    }
}

#[test]
fn several_choices_share_one_stream() {
    let call = call(Protocol::Chat, r#", "n": 3, "stream_options": {"include_usage": true}"#);
    let mut encoder = Encoder::new(&call, identity());
    let mut frames = encoder.start(&USAGE);
    for (choice, text) in [(0, "a"), (2, "c"), (1, "b"), (0, "A")] {
        frames.extend(encoder.output(choice, &Output::Text(text.into())));
    }
    for choice in [1, 0, 2] {
        assert!(!encoder.closed());
        frames.extend(encoder.finish(choice, Finish::Stop, &USAGE));
        // Nothing follows an end, and no end follows an end.
        assert!(encoder.output(choice, &Output::Text("late".into())).is_empty());
        assert!(encoder.finish(choice, Finish::Length, &USAGE).is_empty());
    }
    assert!(encoder.output(7, &Output::Text("nobody".into())).is_empty());
    let mut texts = [String::new(), String::new(), String::new()];
    for chunk in json(&frames) {
        for choice in chunk["choices"].as_array().expect("choices") {
            let index =
                usize::try_from(choice["index"].as_u64().expect("an index")).expect("small");
            texts[index] += choice["delta"]["content"].as_str().unwrap_or_default();
        }
    }
    assert_eq!(texts, ["aA", "b", "c"]);
    let usage = &json(&frames).pop().expect("chunks")["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&10.into(), &21.into()));
}

/// Damage: the closing event missing. A failure at any moment ends the stream properly.
#[test]
fn no_stream_ends_without_its_closing_event() {
    let error = ApiError::new(ErrorKind::Internal, "engine_failed", "the engine failed");
    for protocol in ALL {
        let all = outputs(name(protocol));
        for given in 0..=all.len() {
            for started in [false, true] {
                let mut encoder = Encoder::new(&call(protocol, ""), identity());
                let mut frames = Vec::new();
                if started {
                    frames.extend(encoder.start(&USAGE));
                }
                for output in &all[..given] {
                    frames.extend(encoder.output(0, output));
                }
                frames.extend(encoder.fail(&error));
                assert!(encoder.closed());
                assert!(encoder.fail(&error).is_empty());
                assert!(encoder.finish(0, Finish::Stop, &USAGE).is_empty());
                let events = json(&frames);
                let last = events.last().expect("an event");
                match protocol {
                    Protocol::Chat | Protocol::Completions => {
                        assert_eq!(frames.last().expect("an end").data, "[DONE]");
                        assert_eq!(last["choices"][0]["finish_reason"], "length");
                        let told = &events[events.len() - 2]["error"];
                        assert_eq!(
                            (&told["code"], &told["type"]),
                            (&"engine_failed".into(), &"server_error".into())
                        );
                    }
                    Protocol::Messages => {
                        assert_eq!(
                            (&last["type"], &last["error"]["type"]),
                            (&"error".into(), &"api_error".into())
                        );
                        let count =
                            |kind: &str| events.iter().filter(|e| e["type"] == kind).count();
                        assert_eq!(count("content_block_start"), count("content_block_stop"));
                    }
                    Protocol::Responses => {
                        assert_eq!(
                            (&last["type"], &last["response"]["status"]),
                            (&"response.failed".into(), &"failed".into())
                        );
                        assert_eq!(last["response"]["error"]["code"], "engine_failed");
                        assert_eq!(events[0]["type"], "response.created");
                    }
                }
            }
        }
    }
}

#[test]
fn signs_of_life_are_events_where_clients_count_events() {
    for protocol in ALL {
        let mut encoder = Encoder::new(&call(protocol, ""), identity());
        let before = encoder.keepalive().to_sse();
        assert_eq!(before, ": keep-alive\n\n");
        encoder.start(&USAGE);
        let frame = encoder.keepalive();
        match protocol {
            Protocol::Chat | Protocol::Completions => assert_eq!(frame.to_sse(), before),
            Protocol::Messages => assert_eq!(frame.event, Some("ping")),
            Protocol::Responses => assert_eq!(frame.event, Some("response.in_progress")),
        }
        encoder.finish(0, Finish::Stop, &USAGE);
        assert_eq!(encoder.keepalive().to_sse(), before);
    }
}

/// H23, and errors in each protocol's own envelope.
#[test]
fn errors_have_the_envelope_and_the_words_of_the_protocol() {
    let error = ApiError::context_length(8193, 8192);
    assert_eq!(error.status(), 400);
    for protocol in [Protocol::Chat, Protocol::Completions, Protocol::Responses] {
        let body = &error.body(protocol)["error"];
        assert_eq!(
            (&body["code"], &body["type"]),
            (&"context_length_exceeded".into(), &"invalid_request_error".into())
        );
        assert!(
            body["message"]
                .as_str()
                .expect("text")
                .contains("maximum context length is 8192 tokens")
        );
        assert_eq!((&body["n_prompt_tokens"], &body["n_ctx"]), (&8193.into(), &8192.into()));
        assert!(body.get("param").is_some());
    }
    let body = error.body(Protocol::Messages);
    assert_eq!(
        (&body["type"], &body["error"]["type"]),
        (&"error".into(), &"invalid_request_error".into())
    );
    assert_eq!(body["error"]["message"], "prompt is too long: 8193 tokens > 8192 maximum");
    assert_eq!(
        (&body["error"]["n_prompt_tokens"], &body["error"]["n_ctx"]),
        (&8193.into(), &8192.into())
    );
    let kinds = [
        (ErrorKind::Unauthorized, 401, "authentication_error"),
        (ErrorKind::NotFound, 404, "not_found_error"),
        (ErrorKind::TooLarge, 413, "request_too_large"),
        (ErrorKind::Busy, 429, "rate_limit_error"),
        (ErrorKind::Internal, 500, "api_error"),
        (ErrorKind::Stopping, 503, "overloaded_error"),
    ];
    for (kind, status, name) in kinds {
        let error = ApiError::new(kind, "code", "text");
        assert_eq!(
            (error.status(), &error.body(Protocol::Messages)["error"]["type"]),
            (status, &name.into())
        );
    }
}

#[test]
fn an_answer_of_nothing_is_an_answer() {
    for protocol in ALL {
        let frames = stream(protocol, "", &[], Finish::Stop);
        assert!(frames.len() >= 2, "{frames:?}");
        whole(protocol, &[], Finish::Stop);
    }
}
