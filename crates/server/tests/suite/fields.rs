//! Every field that `openapi.json` documents: it changes what is asked of the model or how the
//! answer is told, or it is refused, or a line of the log says that it has no effect. None is
//! silently ignored.

use ironstar_wire::{Call, Limits, Protocol, parse};
use serde_json::{Map, Value, json};

const FILE: &str = include_str!("../../openapi.json");

/// A request that asks for nothing besides, with what some fields stand on.
fn base(protocol: Protocol) -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let message = json!([{"role": "user", "content": "u"}]);
    match protocol {
        Protocol::Chat => json!({"messages": message, "logprobs": true,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}),
        Protocol::Completions => json!({"prompt": "u"}),
        Protocol::Responses => json!({"input": "u",
            "tools": [{"type": "function", "name": "f", "parameters": schema}]}),
        Protocol::Messages => json!({"messages": message,
            "tools": [{"name": "f", "input_schema": schema}]}),
    }
}

/// A value that asks for something.
fn asking(protocol: Protocol, field: &str) -> Value {
    let schema = json!({"type": "object"});
    match field {
        "model" => json!("deepseek-chat"),
        "messages" => json!([{"role": "user", "content": "other"}]),
        "prompt" | "input" | "instructions" | "system" => json!("other"),
        "stream" | "think" | "enable_thinking" | "echo" | "store" | "background" => {
            json!(!(protocol == Protocol::Responses && field == "store"))
        }
        "temperature" | "top_p" | "min_p" | "presence_penalty" | "frequency_penalty"
        | "repetition_penalty" => json!(0.5),
        "top_k"
        | "seed"
        | "max_tokens"
        | "max_completion_tokens"
        | "max_output_tokens"
        | "n"
        | "top_logprobs"
        | "max_tool_calls" => json!(3),
        "best_of" => json!(2),
        "logprobs" if protocol == Protocol::Chat => json!(false),
        "logprobs" => json!(2),
        "logit_bias" => json!({"7": 5}),
        "stop" | "stop_sequences" => json!(["x"]),
        "suffix" => json!("x"),
        "stream_options" => json!({"include_usage": true}),
        "thinking" => json!({"type": "disabled"}),
        "reasoning_effort" => json!("low"),
        "reasoning" => json!({"effort": "low"}),
        "chat_template_kwargs" => json!({"thinking": false}),
        "output_config" => json!({"effort": "low"}),
        "output_format" => json!({"type": "json_schema", "schema": schema}),
        "response_format" => json!({"type": "json_object"}),
        "text" => json!({"format": {"type": "json_object"}}),
        "tools" => json!([]),
        "tool_choice" if protocol == Protocol::Messages => json!({"type": "any"}),
        "tool_choice" => json!("required"),
        "parallel_tool_calls" => json!(false),
        "modalities" => json!(["audio"]),
        "previous_response_id" => json!("resp_1"),
        "include" => json!(["reasoning.encrypted_content"]),
        "truncation" => json!("auto"),
        "metadata" => json!({"a": "b"}),
        "user" => json!("me"),
        other => panic!("{other} is documented: give it a value here"),
    }
}

fn call(protocol: Protocol, body: &Value) -> Result<Call, String> {
    let limits = Limits::default();
    parse(protocol, body.to_string().as_bytes(), &limits).map_err(|error| error.message)
}

/// What a call asks for; every field of it, so that a new one cannot be forgotten here.
fn meaning(call: &Call) -> String {
    format!("{:?}", Call { notes: Vec::new(), ..call.clone() })
}

#[test]
fn no_documented_field_is_silently_ignored() {
    let file: Value = serde_json::from_str(FILE).unwrap();
    let fields = |name: &str| -> Map<String, Value> {
        file["components"]["schemas"][name]["properties"].as_object().unwrap().clone()
    };
    let mut seen = 0;
    for (protocol, name) in [
        (Protocol::Chat, "ChatRequest"),
        (Protocol::Completions, "CompletionsRequest"),
        (Protocol::Responses, "ResponsesRequest"),
        (Protocol::Messages, "MessagesRequest"),
    ] {
        let plain = call(protocol, &base(protocol)).unwrap();
        assert!(plain.notes.is_empty(), "{:?}", plain.notes);
        for field in fields(name).keys() {
            let mut body = base(protocol);
            body[field] = asking(protocol, field);
            seen += 1;
            match call(protocol, &body) {
                Err(message) => assert!(message.contains(field.as_str()), "{field}: {message}"),
                Ok(asked) if meaning(&asked) == meaning(&plain) => {
                    let told = asked.notes.iter().any(|note| note.contains(field.as_str()));
                    // A prompt that is another one need not be told; all else must be.
                    assert!(told, "{name}: `{field}` = {} does nothing", body[field]);
                }
                Ok(_) => {}
            }
            // A value of no kind that it knows is refused, or told to have no effect.
            body[field] = json!([[[{"nobody": "knows"}]]]);
            match call(protocol, &body) {
                Err(message) => assert!(!message.is_empty()),
                Ok(asked) => {
                    let told = asked.notes.iter().any(|note| note.contains(field.as_str()));
                    assert!(told, "{name}: `{field}` takes anything and says nothing");
                }
            }
        }
    }
    assert!(seen > 100, "only {seen} fields");
}
