//! Prompts against DeepSeek's own renderers, text, places of control tokens and ids.

use ironstar_text::chat::{
    Assistant, Conversation, Effort, End, Message, Release, RenderOptions, ResponseFormat,
    Thinking, Tool, ToolCall, ToolChoice, ToolResult, render,
};
use ironstar_text::{Error, JsonText, Segment, Tokenizer};
use serde_json::Value;

const VECTORS: &str = "tests/golden/oracle/chat_vectors.json";
const SEGMENTS: &str = "tests/golden/text/chat_segments.json";

fn parse(path: &str) -> Value {
    serde_json::from_slice(&crate::support::read(path)).expect("a golden is JSON")
}

fn string<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn thinking(effort: &str) -> Thinking {
    match effort {
        "off" => Thinking::Off,
        "low" => Thinking::On(Effort::Low),
        "on" | "high" => Thinking::On(Effort::High),
        "max" => Thinking::On(Effort::Max),
        other => panic!("effort {other}"),
    }
}

/// A message of either golden: their keys differ only for the assistant and for tools.
fn message(value: &Value) -> Message {
    let content = value["content"].as_str().unwrap_or_default().to_owned();
    match string(value, "role") {
        "system" => Message::System(content),
        "user" => Message::User(content),
        "latest_reminder" => Message::LatestReminder(content),
        "tool" => {
            let id = value["call"].as_str().or(value["tool_call_id"].as_str());
            let call_id = id.unwrap_or_default().to_owned();
            Message::Tool(ToolResult { call_id, text: content })
        }
        "assistant" => {
            let reasoning = value["reasoning"].as_str().or(value["reasoning_content"].as_str());
            let calls = list(value, "calls").iter().chain(list(value, "tool_calls"));
            Message::Assistant(Assistant {
                reasoning: reasoning.map(str::to_owned),
                content,
                calls: calls.map(call).collect(),
            })
        }
        other => panic!("role {other}"),
    }
}

fn call(value: &Value) -> ToolCall {
    let function = if value["function"].is_object() { &value["function"] } else { value };
    ToolCall {
        id: string(value, "id").to_owned(),
        name: string(function, "name").to_owned(),
        arguments: string(function, "arguments").to_owned(),
    }
}

fn tools(values: &[Value]) -> Vec<Tool> {
    values.iter().map(|value| Tool::from_value(value).expect("a tool")).collect()
}

fn ids_of(value: &Value) -> Option<Vec<u32>> {
    let ids = value.as_array()?.iter();
    Some(ids.map(|id| u32::try_from(id.as_u64().expect("an id")).expect("32 bits")).collect())
}

#[test]
fn all_chat_vectors() {
    let file = parse(VECTORS);
    let tokenizer = crate::support::v4();
    let (mut prompts, mut with_ids) = (0, 0);
    for vector in list(&file, "vectors") {
        let offered = if vector["tools"] == true { list(&file, "tools") } else { &[] };
        let conversation = Conversation {
            messages: list(vector, "messages").iter().map(message).collect(),
            tools: tools(offered),
            ..Conversation::default()
        };
        let encoders = vector["encoders"].as_object().expect("encoders by name");
        for (encoder, wanted) in encoders {
            let release = match encoder.as_str() {
                "april" => Release::April,
                "recipe:dsv4" => Release::V0731,
                "recipe:dsv41" => Release::V41,
                other => panic!("encoder {other}"),
            };
            let thinking = thinking(string(vector, "mode"));
            let options = RenderOptions { release, thinking, ..RenderOptions::default() };
            let name = format!("{} {} {encoder}", vector["case"], vector["mode"]);
            let segments = render(&conversation, &options).expect("a prompt");
            assert_eq!(crate::support::written_out(&segments), string(wanted, "prompt"), "{name}");
            prompts += 1;
            with_ids += usize::from(check_ids(&tokenizer, &segments, wanted, &name));
        }
    }
    // 65 cases by three encoders, less the 13 that the April code cannot do.
    assert_eq!((prompts, with_ids), (182, 118));
}

/// Compares ids; false where the vector has none, or none that are right: V4's vocabulary lacks
/// `<｜System｜>`, and the April ids come from a scan that takes a user's markers for real.
fn check_ids(tokenizer: &Tokenizer, segments: &[Segment], wanted: &Value, name: &str) -> bool {
    let found = tokenizer.encode_segments(segments);
    let Some(wanted) = ids_of(&wanted["ids"]) else {
        assert!(matches!(found, Err(Error::MissingSpecial(marker)) if marker == "<｜System｜>"));
        return false;
    };
    let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
    let controls = |ids: &[u32]| ids.iter().filter(|&&id| tokenizer.is_control(id)).count();
    let specials = segments.iter().filter(|segment| matches!(segment, Segment::Special(_)));
    assert_eq!(controls(&found), specials.count(), "{name}");
    if name.starts_with("\"markers_in_text\"") && name.ends_with("april") {
        assert!(controls(&wanted) > controls(&found), "{name}: the naive scan forges turns");
        return false;
    }
    assert_eq!(found, wanted, "{name}");
    true
}

#[test]
fn segments_of_many_conversations() {
    let file = parse(SEGMENTS);
    let mut prompts = 0;
    for case in file.as_array().expect("a list of cases") {
        let conversation = Conversation {
            messages: list(case, "messages").iter().map(message).collect(),
            tools: tools(list(case, "tools")),
            tool_choice: match case["choice"].as_str() {
                None => ToolChoice::Auto,
                Some("none") => ToolChoice::None,
                Some("required") => ToolChoice::Required,
                Some(other) => panic!("choice {other}"),
            },
            response_format: match &case["format"] {
                Value::Null => ResponseFormat::Text,
                Value::String(_) => ResponseFormat::JsonObject,
                schema => ResponseFormat::JsonSchema(JsonText::from(schema)),
            },
        };
        let end = if case["end"] == "continue" { End::ContinueLast } else { End::Answer };
        for prompt in list(case, "prompts") {
            let release = match string(prompt, "release") {
                "0731" => Release::V0731,
                "4.1" => Release::V41,
                other => panic!("release {other}"),
            };
            let thinking = thinking(string(prompt, "effort"));
            let options = RenderOptions { release, thinking, end };
            let segments = render(&conversation, &options).expect("a prompt");
            let wanted: Vec<Segment> = list(prompt, "segments").iter().map(segment).collect();
            assert_eq!(segments, wanted, "{} {release:?} {thinking:?}", case["name"]);
            prompts += 1;
        }
    }
    assert_eq!(prompts, 160);
}

fn segment(value: &Value) -> Segment {
    match value["special"].as_str() {
        Some(marker) => Segment::Special(marker.to_owned().into()),
        None => Segment::Text(string(value, "text").to_owned()),
    }
}
