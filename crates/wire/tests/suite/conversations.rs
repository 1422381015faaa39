//! Whole ways: a request, its prompt, an answer, and the request that sends the answer back.

use ironstar_text::Segment;
use ironstar_text::chat::{Effort, Release, Thinking};
use ironstar_wire::{
    ApiError, Call, CallMemory, Collector, Finish, Identity, Limits, OutputParser, Prepared,
    Profile, Protocol, SampledCalls, Usage, parse, prepare,
};
use serde_json::{Value, json};

const ON: Thinking = Thinking::On(Effort::High);
const RELEASES: [Release; 3] = [Release::April, Release::V0731, Release::V41];

fn call(protocol: Protocol, body: &Value) -> Call {
    parse(protocol, body.to_string().as_bytes(), &Limits::default()).expect("a request")
}

fn profile(release: Release, thinking: Thinking) -> Profile {
    Profile { release, thinking, dsml_token: Some(7), think_tokens: false }
}

fn prompt(prepared: &Prepared) -> String {
    prepared.segments.iter().map(Segment::as_str).collect()
}

fn tools(release: Release) -> [&'static str; 3] {
    match release {
        Release::V41 => [" calls", " invoke", " parameter"],
        _ => ["tool_calls", "invoke", "parameter"],
    }
}

/// Text of a model that calls `f` in a way of its own, which no renderer would write.
fn sampled(release: Release) -> String {
    let [calls, invoke, parameter] = tools(release);
    format!(
        "\n\n\n<｜DSML｜{calls}>\n\n<｜DSML｜{invoke} name=\"f\">\
         <｜DSML｜{parameter} name=\"n\" string=\"false\"> 12345678901234567890 \
         </｜DSML｜{parameter}>\n\
         <｜DSML｜{parameter} name=\"s\" string=\"true\">literal ｜DSML｜ é</｜DSML｜{parameter}>\
         </｜DSML｜{invoke}>\n</｜DSML｜{calls}>"
    )
}

fn chat(messages: &Value) -> Value {
    json!({"messages": messages, "tools": [{"type": "function", "function": {"name": "f"}}]})
}

/// Answers a request with a text; gives the message as a client would send it back.
fn answer(call: &Call, prepared: &Prepared, text: &str) -> (Value, Option<SampledCalls>) {
    let mut parser = OutputParser::new(prepared.parser.clone());
    let mut outputs = parser.push(text, None);
    outputs.extend(parser.end(false));
    let mut collector = Collector::new(call, Identity::default());
    outputs.iter().for_each(|output| collector.output(0, output));
    collector.finish(0, Finish::Stop, &Usage::default());
    let body: Value = serde_json::from_str(&collector.body()).expect("JSON");
    (body["choices"][0]["message"].clone(), parser.sampled_calls())
}

/// The next prompt begins with the last one and the text that was sampled, bit for bit: whatever a
/// client did to numbers and the order of keys, and whether or not it kept the reasoning (H08).
#[test]
fn sampled_calls_come_back_as_they_were_written() {
    for release in RELEASES {
        let user = json!({"role": "user", "content": "u"});
        let first = call(Protocol::Chat, &chat(&json!([user])));
        let mut memory = CallMemory::default();
        let prepared = prepare(&first, &profile(release, ON), &memory, "r1").expect("a prompt");
        let written = format!("why</think>ok{}", sampled(release));
        let (message, calls) = answer(&first, &prepared, &written);
        memory.remember(calls.expect("a whole block"));
        let id = message["tool_calls"][0]["id"].clone();
        let result = json!({"role": "tool", "tool_call_id": id, "content": "r"});
        let wanted = prompt(&prepared) + &written;
        let changed = |change: &dyn Fn(&mut Value)| {
            let mut message = message.clone();
            change(&mut message);
            let second = call(Protocol::Chat, &chat(&json!([user, message, result])));
            let prepared =
                prepare(&second, &profile(release, ON), &memory, "r2").expect("a prompt");
            let markers = prepared
                .segments
                .iter()
                .filter(|s| matches!(s, Segment::Special(m) if m == "｜DSML｜"));
            (prompt(&prepared), markers.count())
        };
        let arguments = |json: &'static str| {
            move |message: &mut Value| {
                message["tool_calls"][0]["function"]["arguments"] = json.into();
            }
        };
        let (exact, markers) = changed(&|_| {});
        assert!(exact.starts_with(&wanted), "{release:?}: {exact}");
        // The marker within the string is text.
        let shown = prompt(&prepared).matches("｜DSML｜").count();
        assert_eq!(markers, shown + written.matches("｜DSML｜").count() - 1);
        assert_eq!(changed(&|m| m["reasoning_content"] = Value::Null).0, exact);
        assert_eq!(changed(&|m| m["reasoning_content"] = " ".into()).0, exact);
        let rounded = r#"{"s":"literal ｜DSML｜ é","n":12345678901234567000}"#;
        assert_eq!(changed(&arguments(rounded)).0, exact);
        // What somebody changed is what the model reads.
        let edited = changed(&arguments(r#"{"n": 1, "s": "x"}"#)).0;
        assert!(!edited.starts_with(&wanted) && edited.contains(">x<"), "{edited}");
        let foreign = changed(&|m| m["tool_calls"][0]["function"]["name"] = "g".into()).0;
        assert!(!foreign.starts_with(&wanted));
    }
}

#[test]
fn the_memory_of_calls_is_bounded() {
    let block = |id: usize| SampledCalls {
        calls: vec![ironstar_text::chat::ToolCall {
            id: id.to_string(),
            name: "f".into(),
            arguments: "{}".into(),
        }],
        written: vec![Segment::Text("x".repeat(1000))],
        reasoning: String::new(),
    };
    let mut memory = CallMemory::new(20_000);
    for id in 0..1000 {
        memory.remember(block(id));
        assert!(memory.bytes() <= 20_000);
    }
    assert!(memory.written(&block(999).calls).is_some());
    assert!(memory.written(&block(0).calls).is_none());
    assert!(memory.written(&[]).is_none());
    memory.remember(SampledCalls { reasoning: "x".repeat(30_000), ..block(5000) });
    assert!(
        memory.written(&block(999).calls).is_some() && memory.written(&block(5000).calls).is_none()
    );
    // An id that comes again means the newer block, also when the older one is forgotten.
    for _ in 0..100 {
        memory.remember(block(7));
    }
    assert!(memory.written(&block(7).calls).is_some());
}

/// H07: reasoning of white space is none, and the prefix stays.
#[test]
fn padded_reasoning_changes_nothing() {
    for reasoning in [json!(" "), json!(""), Value::Null] {
        let turn = json!({"role": "assistant", "content": "ok", "reasoning_content": reasoning});
        let user = json!({"role": "user", "content": "u"});
        let next = call(Protocol::Chat, &chat(&json!([user, turn, user])));
        let prepared = prepare(&next, &profile(Release::V0731, ON), &CallMemory::default(), "x");
        let text = prompt(&prepared.expect("a prompt"));
        assert!(text.contains("<｜Assistant｜><think></think>ok<｜end▁of▁sentence｜>"), "{text}");
    }
}

fn demanded(thinking: &str, choice: &Value) -> Call {
    let mut body = chat(&json!([{"role": "user", "content": "u"}]));
    body["tool_choice"] = choice.clone();
    body["thinking"] = json!({"type": thinking});
    call(Protocol::Chat, &body)
}

/// Wider than the vendor's package, which refuses a demanded call beside thinking.
#[test]
fn a_demanded_call_is_opened_by_the_prompt_or_asked_for_after_the_reasoning() {
    let named = json!({"type": "function", "function": {"name": "f"}});
    for release in RELEASES {
        let profile = profile(release, Thinking::Off);
        for choice in [json!("required"), named.clone()] {
            let now =
                prepare(&demanded("disabled", &choice), &profile, &CallMemory::default(), "x");
            let now = now.expect("a prompt");
            let open = format!("</think>\n\n<｜DSML｜{}>\n", tools(release)[0]);
            assert!(prompt(&now).ends_with(&open) && now.parser.in_calls && !now.parser.reasoning);
            let later =
                prepare(&demanded("enabled", &choice), &profile, &CallMemory::default(), "x");
            let later = later.expect("a prompt");
            assert!(prompt(&later).ends_with("<｜Assistant｜><think>"));
            assert!(!later.parser.in_calls && later.parser.reasoning);
            assert!(
                now.grammar.is_some() && later.grammar.is_some() && now.grammar != later.grammar
            );
        }
        let none =
            prepare(&demanded("disabled", &json!("none")), &profile, &CallMemory::default(), "x");
        let none = none.expect("a prompt");
        assert!(none.grammar.is_none() && !prompt(&none).contains("## Tools"));
    }
    let without = Profile { dsml_token: None, ..profile(Release::April, Thinking::Off) };
    let error: ApiError =
        prepare(&demanded("disabled", &json!("required")), &without, &CallMemory::default(), "x")
            .expect_err("no token for calls");
    assert_eq!((error.status(), error.param.as_deref()), (400, Some("tool_choice")));
}

/// H05.
#[test]
fn the_prompt_ends_with_an_opening_whatever_comes_last() {
    for protocol in [Protocol::Chat, Protocol::Messages] {
        let list = json!([{"role": "user", "content": "u"}, {"role": "system", "content": "note"}]);
        for release in RELEASES {
            let call = call(protocol, &json!({"messages": list}));
            let prepared = prepare(&call, &profile(release, ON), &CallMemory::default(), "x");
            let text = prompt(&prepared.expect("a prompt"));
            assert!(text.ends_with("<｜Assistant｜><think>") && text.contains("note"), "{text}");
        }
    }
}

/// A system message among the messages of this protocol leaves what is before it as it was.
#[test]
fn late_instructions_of_messages_keep_the_prefix() {
    let messages = |more: &[Value]| {
        let mut list = vec![
            json!({"role": "user", "content": "u"}),
            json!({"role": "assistant", "content": "a"}),
        ];
        list.extend(more.iter().cloned());
        list.push(json!({"role": "user", "content": "v"}));
        let call = call(Protocol::Messages, &json!({"system": "s", "messages": list}));
        prompt(
            &prepare(&call, &profile(Release::V0731, ON), &CallMemory::default(), "x")
                .expect("a prompt"),
        )
    };
    let (without, with) =
        (messages(&[]), messages(&[json!({"role": "system", "content": "late"})]));
    let common = without.find("<｜User｜>v").expect("the last turn");
    assert_eq!(with[..common], without[..common]);
    assert!(
        with[common..].starts_with("<｜User｜><system-reminder>\nlate\n</system-reminder>\n\nv")
    );
}

#[test]
fn a_turn_of_the_model_is_gone_on_with() {
    let list = json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": "Well,"}]);
    let continued = call(Protocol::Messages, &json!({"messages": list}));
    for thinking in [ON, Thinking::Off] {
        let prepared =
            prepare(&continued, &profile(Release::V0731, thinking), &CallMemory::default(), "x");
        let prepared = prepared.expect("a prompt");
        assert!(prompt(&prepared).ends_with("</think>Well,") && !prepared.parser.reasoning);
    }
}
