//! DeepSeek's own package as a judge: `tests/golden/wire/`, made by
//! `tests/golden/make/wire_recipe.py`.

use std::path::Path;

use ironstar_text::Segment;
use ironstar_text::chat::{Effort, Release, Thinking};
use ironstar_wire::{
    CallMemory, Collector, Encoder, Finish, Frame, Identity, Limits, OutputParser, ParserOptions,
    Profile, Protocol, Usage, parse, prepare,
};
use serde_json::Value;

fn cases(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/wire").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("a case")).collect()
}

const PROTOCOLS: [(&str, Protocol); 3] = [
    ("chat", Protocol::Chat),
    ("responses", Protocol::Responses),
    ("messages", Protocol::Messages),
];

fn protocol(name: &Value) -> Protocol {
    let found = PROTOCOLS.iter().find(|(known, _)| name == known);
    found.expect("a protocol").1
}

/// A request is given as the text between its own braces, since a parsed value would spell numbers
/// anew.
fn request(line: &str) -> &str {
    let from = line.find("\"request\": ").expect("a request") + "\"request\": ".len();
    let to = line.find(", \"prompt\": ").expect("a prompt");
    &line[from..to]
}

#[test]
fn prompts_are_those_of_the_package() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/wire/prompts.jsonl");
    let text = std::fs::read_to_string(path).expect("the goldens");
    let mut seen = 0;
    for (at, line) in text.lines().enumerate() {
        let case: Value = serde_json::from_str(line).expect("a case");
        let body = request(line);
        let call = parse(protocol(&case["protocol"]), body.as_bytes(), &Limits::default())
            .unwrap_or_else(|error| panic!("{at}: {error}: {body}"));
        let release = if case["release"] == "4.1" { Release::V41 } else { Release::V0731 };
        let thinking = Thinking::On(Effort::High);
        let profile = Profile { release, thinking, ..Profile::default() };
        let prepared = prepare(&call, &profile, &CallMemory::default(), "x").expect("a prompt");
        let prompt: String = prepared.segments.iter().map(Segment::as_str).collect();
        assert_eq!(prompt, case["prompt"].as_str().expect("text"), "{at}: {body}");
        let specials: Vec<&str> = prepared
            .segments
            .iter()
            .filter_map(|segment| match segment {
                Segment::Special(text) => Some(&**text),
                Segment::Text(_) => None,
            })
            .collect();
        let wanted = case["specials"].as_array().expect("a list");
        assert!(specials.iter().eq(wanted.iter()), "{at}: {specials:?}");
        assert_eq!(prepared.thinking != Thinking::Off, case["thinking"], "{at}: {body}");
        assert_eq!(call.stream, case["stream"], "{at}");
        assert_eq!(
            call.stop,
            serde_json::from_value::<Vec<String>>(case["stop"].clone()).expect("texts"),
            "{at}"
        );
        assert_eq!(
            call.max_tokens.map(Value::from).unwrap_or_default(),
            case["max_tokens"],
            "{at}"
        );
        assert_eq!(call.tools.callable(), case["calls"], "{at}: {body}");
        seen += 1;
    }
    assert!(seen >= 200, "{seen} cases");
}

fn call_for(protocol: Protocol, stop: &Value) -> ironstar_wire::Call {
    let function = serde_json::json!({"name": "f", "parameters": {"type": "object"}});
    let user = serde_json::json!([{"role": "user", "content": "u"}]);
    let body = match protocol {
        Protocol::Chat => serde_json::json!({"messages": user, "stop": stop,
            "tools": [{"type": "function", "function": function}]}),
        Protocol::Messages => serde_json::json!({"messages": user, "stop_sequences": stop,
            "max_tokens": 9, "tools": [{"name": "f", "input_schema": {"type": "object"}}]}),
        _ => serde_json::json!({"input": user, "stop": stop,
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]}),
    };
    parse(protocol, body.to_string().as_bytes(), &Limits::default()).expect("a request")
}

#[derive(Debug, Default, PartialEq)]
struct Said {
    reasoning: String,
    text: String,
    calls: Vec<[String; 2]>,
    end: String,
}

impl Said {
    fn wanted(case: &Value) -> Self {
        let text = |name: &str| case[name].as_str().expect("text").to_owned();
        let calls = serde_json::from_value(case["calls"].clone()).expect("pairs");
        Self { reasoning: text("reasoning"), text: text("text"), calls, end: text("end") }
    }

    /// What a client reads from a stream.
    fn streamed(protocol: Protocol, frames: &[Frame]) -> Self {
        let mut said = Self::default();
        for frame in frames.iter().filter(|frame| frame.data.starts_with('{')) {
            let data: Value = serde_json::from_str(&frame.data).expect("JSON");
            match protocol {
                Protocol::Chat => said.chat(&data),
                Protocol::Messages => said.messages(&data),
                _ => said.responses(&data),
            }
        }
        said
    }

    fn chat(&mut self, data: &Value) {
        let choice = &data["choices"][0];
        let delta = &choice["delta"];
        self.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        self.text += delta["content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = usize::try_from(call["index"].as_u64().expect("an index")).expect("small");
            if at == self.calls.len() {
                assert!(call["id"].is_string() && call["type"] == "function");
                self.calls.push(Default::default());
            }
            self.calls[at][0] += call["function"]["name"].as_str().unwrap_or_default();
            self.calls[at][1] += call["function"]["arguments"].as_str().unwrap_or_default();
        }
        self.end += choice["finish_reason"].as_str().unwrap_or_default();
    }

    fn messages(&mut self, data: &Value) {
        let delta = &data["delta"];
        match data["type"].as_str().expect("a type") {
            "content_block_start" if data["content_block"]["type"] == "tool_use" => {
                let name = data["content_block"]["name"].as_str().expect("a name");
                self.calls.push([name.to_owned(), String::new()]);
            }
            "content_block_delta" => {
                self.reasoning += delta["thinking"].as_str().unwrap_or_default();
                self.text += delta["text"].as_str().unwrap_or_default();
                if let Some(json) = delta["partial_json"].as_str() {
                    self.calls.last_mut().expect("a call")[1] += json;
                }
            }
            "message_delta" => self.end += delta["stop_reason"].as_str().expect("a reason"),
            _ => {}
        }
    }

    fn responses(&mut self, data: &Value) {
        match data["type"].as_str().expect("a type") {
            "response.reasoning_summary_text.delta" => {
                self.reasoning += data["delta"].as_str().expect("text");
            }
            "response.output_text.delta" => self.text += data["delta"].as_str().expect("text"),
            "response.output_item.added" if data["item"]["type"] == "function_call" => {
                let name = data["item"]["name"].as_str().expect("a name");
                self.calls.push([name.to_owned(), String::new()]);
            }
            "response.function_call_arguments.delta" => {
                self.calls.last_mut().expect("a call")[1] += data["delta"].as_str().expect("text");
            }
            "response.completed" | "response.incomplete" => {
                self.end += data["response"]["status"].as_str().expect("a status");
            }
            _ => {}
        }
    }

    /// What a client reads from a whole body.
    fn whole(protocol: Protocol, body: &str) -> Self {
        let data: Value = serde_json::from_str(body).expect("JSON");
        let mut said = Self::default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match protocol {
            Protocol::Chat => {
                let choice = &data["choices"][0];
                said.reasoning = text(&choice["message"]["reasoning_content"]);
                said.text = text(&choice["message"]["content"]);
                for call in choice["message"]["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    said.calls.push([text(&function["name"]), text(&function["arguments"])]);
                }
                said.end = text(&choice["finish_reason"]);
            }
            Protocol::Messages => {
                // Inputs are objects here: their text is cut out of the body.
                let mut rest = body;
                for block in data["content"].as_array().expect("blocks") {
                    said.reasoning += &text(&block["thinking"]);
                    said.text += &text(&block["text"]);
                    if block["type"] == "tool_use" {
                        let at = rest.find("\"input\":").expect("an input") + "\"input\":".len();
                        rest = &rest[at..];
                        let mut values = serde_json::Deserializer::from_str(rest)
                            .into_iter::<Box<serde_json::value::RawValue>>();
                        let raw = values.next().expect("a value").expect("JSON");
                        said.calls.push([text(&block["name"]), raw.get().to_owned()]);
                    }
                }
                said.end = text(&data["stop_reason"]);
            }
            _ => {
                for item in data["output"].as_array().expect("items") {
                    for part in item["summary"].as_array().into_iter().flatten() {
                        said.reasoning += &text(&part["text"]);
                    }
                    for part in item["content"].as_array().into_iter().flatten() {
                        said.text += &text(&part["text"]);
                    }
                    if item["type"] == "function_call" {
                        said.calls.push([text(&item["name"]), text(&item["arguments"])]);
                    }
                }
                said.end = text(&data["status"]);
            }
        }
        said
    }
}

fn pieces(text: &str, size: usize) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(size).map(|piece| piece.iter().collect()).collect()
}

#[test]
fn answers_say_what_the_packages_events_say() {
    let cases = cases("answers.jsonl");
    assert!(cases.len() >= 300);
    for (at, case) in cases.iter().enumerate() {
        let text = case["text"].as_str().expect("text");
        for (name, protocol) in PROTOCOLS {
            let wanted = Said::wanted(&case[name]);
            let call = call_for(protocol, &case["stop"]);
            for size in [1, 3, 16, usize::MAX] {
                let options = ParserOptions {
                    reasoning: case["thinking"] == true,
                    tools: call.tools.clone(),
                    stop: call.stop.clone(),
                    call_ids: "x".to_owned(),
                    call_prefix: "call_",
                    ..ParserOptions::default()
                };
                let mut parser = OutputParser::new(options);
                let mut encoder = Encoder::new(&call, Identity::default());
                let mut collector = Collector::new(&call, Identity::default());
                let mut frames = encoder.start(&Usage::default());
                let mut outputs: Vec<_> =
                    pieces(text, size).iter().flat_map(|piece| parser.push(piece, None)).collect();
                let cut = case["finish"] == "length" && !parser.finished();
                outputs.extend(parser.end(cut));
                for output in &outputs {
                    frames.extend(encoder.output(0, output));
                    collector.output(0, output);
                }
                let finish = match parser.stopped() {
                    Some(stop) => Finish::StopString(stop.to_owned()),
                    None if cut => Finish::Length,
                    None => Finish::Stop,
                };
                frames.extend(encoder.finish(0, finish.clone(), &Usage::default()));
                collector.finish(0, finish, &Usage::default());
                assert_eq!(
                    Said::streamed(protocol, &frames),
                    wanted,
                    "{at} {name} {size}: {text:?}"
                );
                let whole = Said::whole(protocol, &collector.body());
                assert_eq!(whole, wanted, "{at} {name}, whole: {text:?}");
            }
        }
    }
}
