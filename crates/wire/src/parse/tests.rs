//! Rules of requests, each named for what it says. H numbers are those of the public reports.

use ironstar_text::chat::{Assistant, Conversation, Effort, Message, Thinking};

use super::parse;
use crate::*;

fn parsed(protocol: Protocol, body: &str) -> Result<Call, ApiError> {
    parse(protocol, body.as_bytes(), &Limits::default())
}

#[track_caller]
fn call(protocol: Protocol, body: &str) -> Call {
    parsed(protocol, body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// The refusal of a body, which must name the field.
#[track_caller]
fn refused(protocol: Protocol, body: &str, param: &str) -> ApiError {
    let error = match parsed(protocol, body) {
        Err(error) => error,
        Ok(call) => panic!("taken: {body}: {call:?}"),
    };
    assert_eq!((error.status(), error.param.as_deref()), (400, Some(param)), "{error}");
    assert!(!error.message.is_empty());
    error
}

fn conversation(call: &Call) -> &Conversation {
    match &call.prompt {
        Prompt::Conversation(conversation) => conversation,
        Prompt::Plain(_) => panic!("no conversation"),
    }
}

fn messages(call: &Call) -> &[Message] {
    &conversation(call).messages
}

fn user(text: &str) -> Message {
    Message::User(text.to_owned())
}

fn system(text: &str) -> Message {
    Message::System(text.to_owned())
}

/// A request of a protocol with more fields.
fn asking(protocol: Protocol, fields: &str) -> String {
    let comma = if fields.is_empty() { "" } else { ", " };
    match protocol {
        Protocol::Chat => {
            format!(r#"{{"messages": [{{"role": "user", "content": "u"}}]{comma}{fields}}}"#)
        }
        Protocol::Messages => format!(
            r#"{{"max_tokens": 9, "messages": [{{"role": "user",
            "content": "u"}}]{comma}{fields}}}"#
        ),
        Protocol::Responses => format!(r#"{{"input": "u"{comma}{fields}}}"#),
        Protocol::Completions => format!(r#"{{"prompt": "u"{comma}{fields}}}"#),
    }
}

const CHATS: [Protocol; 3] = [Protocol::Chat, Protocol::Messages, Protocol::Responses];
const ALL: [Protocol; 4] =
    [Protocol::Chat, Protocol::Messages, Protocol::Responses, Protocol::Completions];

/// Section 3, rule 1.
#[test]
fn unknown_fields_and_tool_types_are_noted_and_unknown_values_refused() {
    for protocol in ALL {
        let call = call(
            protocol,
            &asking(protocol, r#""frobnicate": {"a": [1]}, "user": "me", "gone": null"#),
        );
        assert_eq!(call.notes.len(), 2, "{:?}", call.notes);
        assert!(call.notes[0].contains("`frobnicate` is unknown"));
        assert!(call.notes[1].contains("`user` has no effect"));
        refused(protocol, &asking(protocol, r#""temperature": "hot""#), "temperature");
        refused(protocol, &asking(protocol, r#""stream": "yes""#), "stream");
    }
    let tools =
        r#""tools": [{"type": "web_search"}, {"type": "web_search_20250305", "name": "w"}]"#;
    for protocol in CHATS {
        let call = call(protocol, &asking(protocol, tools));
        assert_eq!((call.tools.tools.len(), call.notes.len()), (0, 2), "{:?}", call.notes);
    }
    let role =
        r#"{"messages": [{"role": "user", "content": "u"}, {"role": "robot", "content": "x"}]}"#;
    let error = refused(Protocol::Chat, role, "messages[1].role");
    assert!(error.message.contains("\"developer\"") && error.message.contains("\"robot\""));
}

/// Section 3, rule 2; H06.
#[test]
fn system_and_developer_stand_anywhere_and_are_the_same() {
    let list = r#"[{"role": "developer", "content": "d"}, {"role": "user", "content": "u"},
        {"role": "system", "content": [{"type": "text", "text": "s"}]}, {"role": "developer",
            "content": "e"}]"#;
    let wanted = [system("d"), user("u"), system("s"), system("e")];
    assert_eq!(messages(&call(Protocol::Chat, &format!(r#"{{"messages": {list}}}"#))), wanted);
    assert_eq!(messages(&call(Protocol::Messages, &format!(r#"{{"messages": {list}}}"#))), wanted);
    assert_eq!(messages(&call(Protocol::Responses, &format!(r#"{{"input": {list}}}"#))), wanted);
}

/// Section 3, rule 3; H10.
#[test]
fn strings_and_parts_are_the_same_for_every_role() {
    let two = r#"[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]"#;
    for (content, wanted) in
        [(r#""a""#, "a"), (r#"[{"type": "text", "text": "a"}]"#, "a"), (two, "a\n\nb"), ("[]", "")]
    {
        for role in ["user", "system", "assistant"] {
            let body = format!(r#"{{"messages": [{{"role": "{role}", "content": {content}}}]}}"#);
            let text = match &messages(&call(Protocol::Chat, &body))[0] {
                Message::User(text) | Message::System(text) => text.clone(),
                Message::Assistant(turn) => turn.content.clone(),
                other => panic!("{other:?}"),
            };
            assert_eq!(text, wanted, "{body}");
        }
    }
    let tool = format!(
        r#"{{"messages": [{{"role": "assistant", "tool_calls": [{{"id": "1", "type": "function",
            "function": {{"name": "f", "arguments": "{{}}"}}}}]}},
            {{"role": "tool", "tool_call_id": "1", "content": {two}}}]}}"#
    );
    let call = call(Protocol::Chat, &tool);
    assert!(matches!(&messages(&call)[1], Message::Tool(result) if result.text == "a\n\nb"));
    refused(
        Protocol::Chat,
        r#"{"messages": [{"role": "user", "content": null}]}"#,
        "messages[0].content",
    );
    refused(Protocol::Chat, r#"{"messages": [{"role": "user"}]}"#, "messages[0].content");
}

/// Section 3, rule 3.
#[test]
fn no_content_beside_calls_is_the_same_in_all_its_forms() {
    let turn = |content: &str| {
        let body = format!(
            r#"{{"messages": [{{"role": "assistant", {content} "reasoning_content": "why",
            "tool_calls":
                [{{"id": "1", "type": "function", "function": {{"name": "f",
            "arguments": {{"n": 1e400}}}}}}]}}]}}"#
        );
        messages(&call(Protocol::Chat, &body))[0].clone()
    };
    let wanted = turn("");
    let Message::Assistant(Assistant { reasoning, content, calls }) = &wanted else { panic!() };
    assert_eq!((reasoning.as_deref(), &**content), (Some("why"), ""));
    assert_eq!(calls[0].arguments, r#"{"n": 1e400}"#);
    for content in [r#""content": null,"#, r#""content": "","#, r#""content": [],"#] {
        assert_eq!(turn(content), wanted);
    }
}

/// Section 3, rule 5.
#[test]
fn all_names_of_the_token_limit_count() {
    let limit = |protocol, fields: &str| call(protocol, &asking(protocol, fields)).max_tokens;
    assert_eq!(limit(Protocol::Chat, r#""max_tokens": 5"#), Some(5));
    assert_eq!(limit(Protocol::Chat, r#""max_completion_tokens": 6, "max_tokens": 5"#), Some(6));
    assert_eq!(limit(Protocol::Responses, r#""max_output_tokens": 7"#), Some(7));
    assert_eq!(limit(Protocol::Messages, ""), Some(9));
    assert_eq!(limit(Protocol::Completions, ""), Some(16));
    assert_eq!(limit(Protocol::Completions, r#""max_tokens": 0"#), Some(0));
    for bad in ["0", "-1", "1.5", "\"9\"", "1e400"] {
        refused(
            Protocol::Chat,
            &asking(Protocol::Chat, &format!(r#""max_tokens": {bad}"#)),
            "max_tokens",
        );
    }
}

/// Section 3, rule 10.
#[test]
fn tools_of_namespaces_have_one_name() {
    let body = r#"{"input": [{"role": "user", "content": "u"},
        {"type": "function_call", "call_id": "1", "namespace": "fs", "name": "read",
            "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"}],
        "tools": [{"type": "namespace", "name": "fs", "tools": [{"type": "function",
            "name": "read"}, {"type": "odd"}]},
                  {"type": "function", "name": "read"}, {"type": "custom", "name": "patch"}],
        "tool_choice": {"type": "function", "name": "fs__read"}}"#;
    let call = call(Protocol::Responses, body);
    let names: Vec<&str> = call.tools.tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(names, ["fs__read", "read", "patch"]);
    assert_eq!(call.tools.tools[0].namespace, Some(("fs".into(), "read".into())));
    assert_eq!(call.tools.tools[2].kind, ToolKind::Custom);
    assert_eq!(call.tools.choice, Choice::Named("fs__read".into()));
    assert!(
        matches!(&messages(&call)[1], Message::Assistant(turn) if turn.calls[0].name == "fs__read")
    );
}

/// H09: every way to ask, and that all of them agree.
#[test]
fn one_table_of_thinking() {
    let (off, low) = (Some(Thinking::Off), Some(Thinking::On(Effort::Low)));
    let (high, max) = (Some(Thinking::On(Effort::High)), Some(Thinking::On(Effort::Max)));
    let table = [
        ("", None),
        (r#""thinking": {"type": "disabled"}"#, off),
        (r#""thinking": {"type": "enabled"}"#, high),
        (r#""thinking": {"type": "adaptive"}"#, high),
        (r#""thinking": false"#, off),
        (r#""think": false"#, off),
        (r#""think": true"#, high),
        (r#""think": "low""#, low),
        (r#""enable_thinking": false"#, off),
        (r#""reasoning_effort": "none""#, off),
        (r#""reasoning_effort": "minimal""#, off),
        (r#""reasoning_effort": "low""#, low),
        (r#""reasoning_effort": "medium""#, high),
        (r#""reasoning_effort": "high""#, high),
        (r#""reasoning_effort": "xhigh""#, high),
        (r#""reasoning_effort": "max""#, max),
        (r#""reasoning_effort": 0"#, off),
        (r#""reasoning_effort": "50""#, low),
        (r#""reasoning_effort": 100"#, max),
        (r#""chat_template_kwargs": {"enable_thinking": false}"#, off),
        (r#""chat_template_kwargs": {"thinking": false}"#, off),
        (r#""chat_template_kwargs": {"thinking": true, "reasoning_effort": "max"}"#, max),
        (r#""model": "deepseek-chat""#, off),
        (r#""model": "deepseek-reasoner""#, high),
        (r#""model": "deepseek-reasoner", "reasoning_effort": "none""#, off),
        (r#""thinking": {"type": "disabled"}, "reasoning_effort": "high""#, off),
        (r#""thinking": {"type": "enabled"}, "reasoning_effort": "medium""#, high),
        (r#""thinking": {"type": "enabled"}, "reasoning_effort": "low""#, low),
    ];
    for (fields, wanted) in table {
        for protocol in CHATS {
            assert_eq!(call(protocol, &asking(protocol, fields)).thinking, wanted, "{fields}");
        }
    }
}

#[test]
fn ways_to_ask_for_thinking_of_one_protocol() {
    let (off, low) = (Some(Thinking::Off), Some(Thinking::On(Effort::Low)));
    let (high, max) = (Some(Thinking::On(Effort::High)), Some(Thinking::On(Effort::Max)));
    let own = [
        (Protocol::Messages, r#""output_config": {"effort": "max"}"#, max),
        (Protocol::Messages, r#""thinking": {"type": "enabled", "budget_tokens": 2048}"#, high),
        (Protocol::Responses, r#""reasoning": {"effort": "none"}"#, off),
        (Protocol::Responses, r#""reasoning": {"effort": "low", "summary": "auto"}"#, low),
        (Protocol::Chat, r#""reasoning": {"enabled": false}"#, off),
        (Protocol::Chat, r#""reasoning": {"effort": "high"}"#, high),
    ];
    for (protocol, fields, wanted) in own {
        assert_eq!(call(protocol, &asking(protocol, fields)).thinking, wanted, "{fields}");
    }
    let error = refused(
        Protocol::Chat,
        &asking(Protocol::Chat, r#""reasoning_effort": "huge""#),
        "reasoning_effort",
    );
    for word in ["none", "minimal", "low", "medium", "high", "xhigh", "max"] {
        assert!(error.message.contains(&format!("\"{word}\"")), "{error}");
    }
    refused(
        Protocol::Chat,
        &asking(Protocol::Chat, r#""reasoning_effort": 101"#),
        "reasoning_effort",
    );
    refused(
        Protocol::Chat,
        &asking(Protocol::Chat, r#""thinking": {"type": "some"}"#),
        "thinking.type",
    );
    refused(
        Protocol::Chat,
        &asking(Protocol::Chat, r#""thinking": {"type": "enabled"}, "reasoning_effort": "none""#),
        "reasoning_effort",
    );
}

#[test]
fn every_setting_of_the_sampler_is_read_and_checked() {
    let fields = r#""temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "seed": -1,
        "presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1.1,
        "logit_bias": {"7": -100, "3": 0.5}"#;
    let wanted = Sampling {
        temperature: Some(0.0),
        top_p: Some(0.5),
        top_k: Some(0),
        min_p: Some(0.1),
        seed: Some(u64::MAX),
        presence_penalty: Some(-2.0),
        frequency_penalty: Some(2.0),
        repetition_penalty: Some(1.1),
        logit_bias: Some(vec![(3, 0.5), (7, -100.0)]),
    };
    for protocol in ALL {
        assert_eq!(call(protocol, &asking(protocol, fields)).sampling, wanted);
        for (bad, param) in [
            (r#""temperature": 2.1"#, "temperature"),
            (r#""temperature": -0.1"#, "temperature"),
            (r#""temperature": 1e400"#, "temperature"),
            (r#""top_p": 1.01"#, "top_p"),
            (r#""top_k": -2"#, "top_k"),
            (r#""min_p": true"#, "min_p"),
            (r#""seed": 1.5"#, "seed"),
            (r#""seed": 99999999999999999999"#, "seed"),
            (r#""presence_penalty": 3"#, "presence_penalty"),
            (r#""repetition_penalty": 0"#, "repetition_penalty"),
            (r#""logit_bias": {"x": 1}"#, "logit_bias.x"),
            (r#""logit_bias": {"1": 101}"#, "logit_bias.1"),
            (r#""logit_bias": [1]"#, "logit_bias"),
        ] {
            refused(protocol, &asking(protocol, bad), param);
        }
    }
    let call = call(Protocol::Chat, &asking(Protocol::Chat, r#""seed": 18446744073709551615"#));
    assert_eq!(call.sampling.seed, Some(u64::MAX));
}

#[test]
fn stop_is_a_string_or_a_list() {
    for (protocol, name) in [
        (Protocol::Chat, "stop"),
        (Protocol::Messages, "stop_sequences"),
        (Protocol::Completions, "stop"),
    ] {
        let stop = |value: &str| asking(protocol, &format!(r#""{name}": {value}"#));
        assert_eq!(call(protocol, &stop(r#""a""#)).stop, ["a"]);
        assert_eq!(call(protocol, &stop(r#"["a", "é\n"]"#)).stop, ["a", "é\n"]);
        assert!(call(protocol, &stop("null")).stop.is_empty());
        refused(protocol, &stop(r#"["a", ""]"#), &format!("{name}[1]"));
        refused(protocol, &stop("[1]"), &format!("{name}[0]"));
        refused(protocol, &stop(&format!("{:?}", vec!["s"; 17])), name);
        refused(protocol, &stop(&format!("\"{}\"", "s".repeat(2000))), name);
    }
}

#[test]
fn logprobs_as_each_protocol_asks() {
    let of = |protocol, fields: &str| call(protocol, &asking(protocol, fields)).logprobs;
    assert_eq!(of(Protocol::Chat, r#""logprobs": true, "top_logprobs": 3"#), Some(3));
    assert_eq!(of(Protocol::Chat, r#""logprobs": true"#), Some(0));
    assert_eq!(of(Protocol::Chat, r#""logprobs": false, "top_logprobs": 0"#), None);
    assert_eq!(of(Protocol::Completions, r#""logprobs": 5"#), Some(5));
    assert_eq!(of(Protocol::Responses, r#""top_logprobs": 2"#), Some(2));
    assert_eq!(of(Protocol::Responses, r#""include": ["message.output_text.logprobs"]"#), Some(0));
    refused(Protocol::Chat, &asking(Protocol::Chat, r#""top_logprobs": 3"#), "top_logprobs");
    refused(
        Protocol::Chat,
        &asking(Protocol::Chat, r#""logprobs": true, "top_logprobs": 21"#),
        "top_logprobs",
    );
}

#[test]
fn what_is_not_done_is_refused_and_not_ignored() {
    let chat = [
        (r#""functions": [{"name": "f"}]"#, "functions"),
        (r#""function_call": "auto""#, "function_call"),
        (r#""audio": {"voice": "x"}"#, "audio"),
        (r#""modalities": ["text", "audio"]"#, "modalities[1]"),
        (r#""web_search_options": {"a": 1}"#, "web_search_options"),
        (r#""n": 0"#, "n"),
        (r#""n": 1000"#, "n"),
    ];
    for (fields, param) in chat {
        refused(Protocol::Chat, &asking(Protocol::Chat, fields), param);
    }
    let responses = [
        (r#""background": true"#, "background"),
        (r#""conversation": "c""#, "conversation"),
        (r#""prompt": {"id": "p"}"#, "prompt"),
        (r#""truncation": "some""#, "truncation"),
        (r#""include": ["everything"]"#, "include[0]"),
    ];
    for (fields, param) in responses {
        refused(Protocol::Responses, &asking(Protocol::Responses, fields), param);
    }
    refused(Protocol::Completions, &asking(Protocol::Completions, r#""suffix": "x""#), "suffix");
    refused(Protocol::Completions, &asking(Protocol::Completions, r#""best_of": 2"#), "best_of");
    let neutral = r#""functions": [], "audio": null, "modalities": ["text"], "n": 1"#;
    call(Protocol::Chat, &asking(Protocol::Chat, neutral));
    call(
        Protocol::Responses,
        &asking(Protocol::Responses, r#""background": false, "truncation": "auto""#),
    );
    call(Protocol::Completions, &asking(Protocol::Completions, r#""suffix": "", "best_of": 1"#));
}

/// H25, without vision.
#[test]
fn images_are_refused_where_no_model_reads_them() {
    let chat = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "data:"}}]}]}"#;
    assert_eq!(refused(Protocol::Chat, chat, "messages[0].content[1].type").code, "unsupported");
    let messages =
        r#"{"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}"#;
    refused(Protocol::Messages, messages, "messages[0].content[0].type");
    let responses =
        r#"{"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}"#;
    refused(Protocol::Responses, responses, "input[0].content[0].type");
}

#[test]
fn completions_take_every_form_of_prompt() {
    let prompts = |prompt: &str| match call(
        Protocol::Completions,
        &format!(r#"{{"prompt": {prompt}, "n": 2, "echo": true}}"#),
    ) {
        Call { prompt: Prompt::Plain(prompts), echo: true, n: 2, .. } => prompts,
        other => panic!("{other:?}"),
    };
    let text = |text: &str| PlainPrompt::Text(text.to_owned());
    assert_eq!(prompts(r#""a""#), [text("a")]);
    assert_eq!(prompts(r#"["a", "b"]"#), [text("a"), text("b")]);
    assert_eq!(prompts("[1, 2]"), [PlainPrompt::Tokens(vec![1, 2])]);
    assert_eq!(
        prompts("[[1], [2, 3]]"),
        [PlainPrompt::Tokens(vec![1]), PlainPrompt::Tokens(vec![2, 3])]
    );
    for bad in ["[]", "[[]]", "[-1]", "[4294967296]", "[1, \"a\"]", "{}", "[true]"] {
        assert!(
            parsed(Protocol::Completions, &format!(r#"{{"prompt": {bad}}}"#)).is_err(),
            "{bad}"
        );
    }
    let many = format!(r#"{{"prompt": {:?}}}"#, vec!["p"; 300]);
    refused(Protocol::Completions, &many, "prompt");
    refused(Protocol::Completions, "{}", "prompt");
}

#[test]
fn tool_choice_in_all_its_forms() {
    let tools = r#""tools": [{"type": "function", "function": {"name": "f", "strict": true,
            "parameters": {"type": "object"}}},
                             {"type": "function", "function": {"name": "g"}}]"#;
    let choice = |value: &str| {
        let fields = format!(r#"{tools}, "tool_choice": {value}, "parallel_tool_calls": false"#);
        let call = call(Protocol::Chat, &asking(Protocol::Chat, &fields));
        assert!(!call.tools.parallel && call.tools.tools[0].strict);
        (call.tools.choice, call.tools.tools.len())
    };
    assert_eq!(choice(r#""auto""#), (Choice::Auto, 2));
    assert_eq!(choice(r#""none""#), (Choice::None, 2));
    assert_eq!(choice(r#""required""#), (Choice::Required, 2));
    assert_eq!(
        choice(r#"{"type": "function", "function": {"name": "g"}}"#),
        (Choice::Named("g".into()), 2)
    );
    let allowed = r#"{"type": "allowed_tools", "allowed_tools": {"mode": "required",
            "tools": [{"type": "function", "function": {"name": "f"}}]}}"#;
    assert_eq!(choice(allowed), (Choice::Required, 1));
    let messages = |value: &str| {
        let fields = format!(
            r#""tools": [{{"name": "f", "input_schema": {{"type": "object"}}}}],
            "tool_choice": {value}"#
        );
        call(Protocol::Messages, &asking(Protocol::Messages, &fields)).tools
    };
    assert_eq!(messages(r#"{"type": "any"}"#).choice, Choice::Required);
    assert_eq!(messages(r#"{"type": "tool", "name": "f"}"#).choice, Choice::Named("f".into()));
    assert!(!messages(r#"{"type": "auto", "disable_parallel_tool_use": true}"#).parallel);
    let bad = |value: &str| asking(Protocol::Chat, &format!(r#"{tools}, "tool_choice": {value}"#));
    refused(Protocol::Chat, &bad(r#""maybe""#), "tool_choice");
    refused(
        Protocol::Chat,
        &bad(r#"{"type": "function", "function": {"name": "h"}}"#),
        "tool_choice.function.name",
    );
    refused(Protocol::Chat, &asking(Protocol::Chat, r#""tool_choice": "required""#), "tool_choice");
}

#[test]
fn tools_that_cannot_be_offered_are_refused() {
    let tool = |tool: &str| {
        asking(
            Protocol::Chat,
            &format!(r#""tools": [{{"type": "function", "function": {{"name": "f"}}}}, {tool}]"#),
        )
    };
    let function = |inner: &str| tool(&format!(r#"{{"type": "function", "function": {inner}}}"#));
    refused(Protocol::Chat, &function("{}"), "tools[1].function.name");
    refused(Protocol::Chat, &function(r#"{"name": ""}"#), "tools[1].function.name");
    refused(Protocol::Chat, &function(r#"{"name": "a\">x"}"#), "tools[1].function.name");
    refused(Protocol::Chat, &function(r#"{"name": "f"}"#), "tools[1].function.name");
    refused(
        Protocol::Chat,
        &function(r#"{"name": "g", "parameters": "x"}"#),
        "tools[1].function.parameters",
    );
    refused(
        Protocol::Chat,
        &function(r#"{"name": "g", "description": 1}"#),
        "tools[1].function.description",
    );
    refused(
        Protocol::Chat,
        &function(r#"{"name": "g", "strict": "no"}"#),
        "tools[1].function.strict",
    );
}

/// Rule 9: the same tools give the same text, whatever stands around them.
#[test]
fn tools_are_shown_the_same_in_every_protocol() {
    let schema = r#"{"type":"object","properties":{"n":{"maximum":1e400,"default":1.0}}}"#;
    let shown = |protocol, fields: &str| {
        conversation(&call(protocol, &asking(protocol, fields))).tools.clone()
    };
    let chat = shown(
        Protocol::Chat,
        &format!(
            r#""tools": [{{"type": "function", "function": {{"name": "f", "description": "d",
            "parameters": {schema}}}}}]"#
        ),
    );
    let responses = shown(
        Protocol::Responses,
        &format!(
            r#""tools": [{{"parameters": {schema}, "type": "function", "description": "d",
            "name": "f", "strict": false}}]"#
        ),
    );
    let messages = shown(
        Protocol::Messages,
        &format!(
            r#""tools": [{{"input_schema": {schema}, "name": "f", "description": "d",
            "cache_control": {{"type": "ephemeral"}}}}]"#
        ),
    );
    assert_eq!((&chat, &chat), (&responses, &messages));
    assert!(format!("{chat:?}").contains("1e400"));
}

#[test]
fn results_answer_calls() {
    let orphan = r#"{"messages": [{"role": "user", "content": "u"}, {"role": "tool",
            "tool_call_id": "9", "content": "x"}]}"#;
    refused(Protocol::Chat, orphan, "messages[1].tool_call_id");
    let orphan = r#"{"messages": [{"role": "user", "content": [{"type": "tool_result",
            "tool_use_id": "9"}]}]}"#;
    refused(Protocol::Messages, orphan, "messages[0].content[0].tool_use_id");
    let orphan = r#"{"input": [{"type": "function_call_output", "call_id": "9", "output": "x"}]}"#;
    refused(Protocol::Responses, orphan, "input[0].call_id");
    let continued = orphan.replacen('{', r#"{"previous_response_id": "resp_1", "#, 1);
    let call = call(Protocol::Responses, &continued);
    assert_eq!((call.previous.as_deref(), call.store), (Some("resp_1"), true));
}

/// H16: history keeps its digits.
#[test]
fn numbers_of_history_keep_their_digits() {
    let input = r#"{"n": 12345678901234567890, "m": -0, "x": 1e400, "y": 0.1000000000000000055}"#;
    let body = format!(
        r#"{{"messages": [{{"role": "user", "content": "u"}}, {{"role": "assistant", "content": [
            {{"type": "thinking", "thinking": "T", "signature": "s"}},
            {{"type": "redacted_thinking", "data": "x"}},
            {{"type": "text", "text": "a"}}, {{"type": "tool_use", "id": "1", "name": "f",
            "input": {input}}}]}},
            {{"role": "user", "content": [{{"type": "text", "text": "b"}}, {{"type": "tool_result",
            "tool_use_id": "1", "is_error": true,
            "content": [{{"type": "text", "text": "r"}}]}}, {{"type": "text", "text": "c"}}]}}]}}"#
    );
    let call = call(Protocol::Messages, &body);
    let Message::Assistant(turn) = &messages(&call)[1] else { panic!() };
    assert_eq!((turn.reasoning.as_deref(), &*turn.content), (Some("T"), "a"));
    assert_eq!(turn.calls[0].arguments, input);
    assert_eq!(messages(&call).len(), 5);
    assert_eq!((&messages(&call)[2], &messages(&call)[4]), (&user("b"), &user("c")));
}

#[test]
fn items_of_one_turn_are_one_turn() {
    let body = r#"{"instructions": "i", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "S"}],
            "encrypted_content": "e"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}",
            "status": "completed"},
        {"type": "custom_tool_call", "call_id": "2", "name": "p", "input": "x\"y"},
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": "2"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text",
            "text": "1"}]},
        {"type": "reasoning", "summary": []}, {"role": "user", "content": "v"}]}"#;
    let call = call(Protocol::Responses, body);
    let [first, _, Message::Assistant(turn), Message::Tool(two), Message::Tool(one), last] =
        messages(&call)
    else {
        panic!("{:?}", messages(&call));
    };
    assert_eq!((first, last), (&system("i"), &user("v")));
    assert_eq!((turn.reasoning.as_deref(), &*turn.content), (Some("S"), "a"));
    assert_eq!(turn.calls[1].arguments, r#"{"input":"x\"y"}"#);
    assert_eq!((&*two.text, &*one.text), ("2", "1"));
    assert_eq!(call.notes.len(), 1);
    refused(Protocol::Responses, r#"{"input": [{"type": "nonsense"}]}"#, "input[0].type");
    refused(
        Protocol::Responses,
        r#"{"input": [{"type": "item_reference", "id": "x"}]}"#,
        "input[0]",
    );
    refused(
        Protocol::Responses,
        r#"{"input": [{"role": "user", "content": "u", "status": "in_progress"}]}"#,
        "input[0].status",
    );
    refused(Protocol::Responses, r#"{"input": []}"#, "input");
    refused(Protocol::Responses, r#"{}"#, "input");
}

#[test]
fn formats_are_read_in_all_dialects() {
    let schema = r#"{"type": "object"}"#;
    let wanted = Format::JsonSchema { name: "n".into(), schema: schema.into(), strict: true };
    let chat = format!(
        r#""response_format": {{"type": "json_schema", "json_schema": {{"name": "n",
            "schema": {schema}, "strict": true}}}}"#
    );
    assert_eq!(call(Protocol::Chat, &asking(Protocol::Chat, &chat)).format, wanted);
    let inner =
        format!(r#"{{"type": "json_schema", "name": "n", "schema": {schema}, "strict": true}}"#);
    let responses = format!(r#""text": {{"format": {inner}, "verbosity": "low"}}"#);
    assert_eq!(call(Protocol::Responses, &asking(Protocol::Responses, &responses)).format, wanted);
    let messages = format!(r#""output_config": {{"format": {inner}}}"#);
    assert_eq!(call(Protocol::Messages, &asking(Protocol::Messages, &messages)).format, wanted);
    let object = r#""response_format": {"type": "json_object"}"#;
    assert_eq!(call(Protocol::Chat, &asking(Protocol::Chat, object)).format, Format::JsonObject);
    refused(
        Protocol::Chat,
        &asking(Protocol::Chat, r#""response_format": {"type": "xml"}"#),
        "response_format.type",
    );
    refused(
        Protocol::Chat,
        &asking(Protocol::Chat, r#""response_format": {"type": "json_schema"}"#),
        "response_format.json_schema",
    );
    let strange = chat.replace(schema, r#"{"uniqueItems": true}"#);
    let error = refused(
        Protocol::Chat,
        &asking(Protocol::Chat, &strange),
        "response_format.json_schema.schema.uniqueItems",
    );
    assert!(error.message.contains("`uniqueItems`"));
}

/// H20.
#[test]
fn usage_is_sent_when_asked_for() {
    for (fields, wanted) in [
        ("", false),
        (r#""stream_options": {"include_usage": true}"#, true),
        (r#""stream_options": {"include_usage": false}"#, false),
        (r#""stream_options": null"#, false),
    ] {
        assert_eq!(call(Protocol::Chat, &asking(Protocol::Chat, fields)).include_usage, wanted);
    }
}

#[test]
fn the_last_turn_of_the_model_is_gone_on_with_where_the_protocol_says_so() {
    let list = |more: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "u"}}, {{"role": "assistant",
            "content": "a"{more}}}]}}"#
        )
    };
    assert!(!call(Protocol::Chat, &list("")).continue_last);
    assert!(call(Protocol::Chat, &list(r#", "prefix": true"#)).continue_last);
    assert!(call(Protocol::Messages, &list("")).continue_last);
    let early = r#"{"messages": [{"role": "assistant", "content": "a", "prefix": true},
            {"role": "user", "content": "u"}]}"#;
    refused(Protocol::Chat, early, "messages[0].prefix");
}

/// H36.
#[test]
fn depth_is_bounded_before_anything_recurses() {
    for depth in [100, 1000, 100_000] {
        let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let bodies = [
            asking(Protocol::Chat, &format!(r#""frobnicate": {nested}"#)),
            asking(
                Protocol::Chat,
                &format!(
                    r#""tools": [{{"type": "function", "function": {{"name": "f",
            "parameters": {{"a": {nested}}}}}}}]"#
                ),
            ),
            format!(
                r#"{{"messages": [{{"role": "assistant", "content": "", "tool_calls": [{{"id": "1",
            "function": {{"name": "f", "arguments": {nested}}}}}]}}]}}"#
            ),
        ];
        for body in bodies {
            let result = parsed(Protocol::Chat, &body);
            assert_eq!(
                result.as_ref().err().map(|error| error.code),
                (depth > 200).then_some("too_deep")
            );
        }
        // Within a string it is text, and the prompt is rendered all the same.
        let text = format!(
            r#"{{"messages": [{{"role": "assistant", "content": "", "tool_calls": [{{"id": "1",
            "function": {{"name": "f", "arguments": "{{\"a\": {nested}}}"}}}}]}}]}}"#
        );
        let call = call(Protocol::Chat, &text);
        prepare(&call, &Profile::default(), &CallMemory::default(), "x").expect("a prompt");
    }
}

#[test]
fn bodies_that_are_no_requests() {
    let codes = |body: &[u8], limits: &Limits| {
        ALL.map(|protocol| parse(protocol, body, limits).expect_err("no request").code)
    };
    let limits = Limits::default();
    for body in [&b""[..], b"\xff", b"{", b"{\"a\": 1,}", b"{\"a\": NaN}", b"nul", b"{} {}"] {
        assert_eq!(codes(body, &limits), ["invalid_json"; 4], "{body:?}");
    }
    for body in [&b"[]"[..], b"null", b"\"x\"", b"1"] {
        assert_eq!(codes(body, &limits), ["invalid_value"; 4], "{body:?}");
    }
    let small = Limits { body_bytes: 10, ..limits };
    let error = parse(Protocol::Chat, &[b' '; 11], &small).expect_err("too large");
    assert_eq!((error.status(), error.code), (413, "body_too_large"));
    let few = Limits { messages: 1, ..limits };
    let two =
        br#"{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}"#;
    assert_eq!(
        parse(Protocol::Chat, two, &few).expect_err("too many").param.as_deref(),
        Some("messages")
    );
}

#[test]
fn half_a_surrogate_pair_is_no_fault_of_the_server() {
    let call = call(
        Protocol::Chat,
        r#"{"messages": [{"role": "user", "content": "a\ud83dx\ude00\ud83d\ude00\\ud800é\n"}]}"#,
    );
    assert_eq!(messages(&call), [user("a\u{fffd}x\u{fffd}😀\\ud800é\n")]);
}

#[test]
fn of_a_repeated_field_the_last_counts() {
    let call = call(Protocol::Chat, &asking(Protocol::Chat, r#""n": 2, "n": 3"#));
    assert_eq!(call.n, 3);
}

/// Requests as the clients of section 3 send them.
#[test]
fn requests_of_real_clients_are_taken() {
    let codex = r#"{"model": "m", "instructions": "You are Codex", "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text",
            "text": "perm"}]},
        {"type": "message", "role": "developer", "content": [{"type": "input_text",
            "text": "env"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "tools": [{"type": "function", "name": "shell", "description": "d", "strict": false,
            "parameters": {"type": "object", "properties": {}}},
                  {"type": "namespace", "name": "agents", "description": "n",
            "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object"}}]},
                  {"type": "web_search", "external_web_access": false}],
        "tool_choice": "auto", "parallel_tool_calls": true, "reasoning": {"summary": "auto"},
            "store": false, "stream": true,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
            "client_metadata": {"x": "y"}}"#;
    let call = call(Protocol::Responses, codex);
    assert!(call.stream && !call.store && call.encrypted_reasoning && call.thinking.is_none());
    assert_eq!((call.tools.tools.len(), messages(&call).len()), (2, 4));
    assert!(call.repeated.iter().any(|(name, _)| *name == "tools"));
    let claude = r#"{"model": "m", "max_tokens": 32000, "stream": true,
            "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"}, "context_management": {"edits": []},
            "metadata": {"user_id": "u"},
        "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b",
            "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi",
            "cache_control": {"type": "ephemeral"}}]},
                     {"role": "system", "content": "more"}],
        "tools": [{"name": "Read", "description": "d", "input_schema": {"$schema": "x",
            "type": "object"}}]}"#;
    let call = self::call(Protocol::Messages, claude);
    assert_eq!(call.thinking, Some(Thinking::On(Effort::High)));
    assert_eq!(messages(&call), [system("a\n\nb"), user("hi"), system("more")]);
    let pi = r#"{"model": "m", "messages": [{"role": "developer", "content": "d"}, {"role": "user",
            "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [{"id": "1",
            "type": "function", "function": {"name": "read", "arguments": "{\"path\":\"x\"}"}}]},
        {"role": "tool", "content": "data", "tool_call_id": "1"}], "stream": true,
            "stream_options": {"include_usage": true}, "store": false,
        "max_completion_tokens": 100, "thinking": {"type": "enabled"}, "reasoning_effort": "medium",
        "tools": [{"type": "function", "function": {"name": "read", "description": "d",
            "parameters": {"type": "object"}, "strict": false}}]}"#;
    let call = self::call(Protocol::Chat, pi);
    assert_eq!((call.notes.len(), call.include_usage), (0, true));
}

/// A list that is longer than anything real is refused before it becomes many times as large.
#[test]
fn lists_and_objects_are_bounded() {
    let zeros = |count: usize| format!("[{}0]", "0,".repeat(count));
    let tools = format!(r#""tools": {}"#, zeros(2000));
    for protocol in CHATS {
        refused(protocol, &asking(protocol, &tools), "tools");
    }
    let many = zeros(20_000);
    refused(Protocol::Chat, &format!(r#"{{"messages": {many}}}"#), "messages");
    refused(Protocol::Messages, &format!(r#"{{"messages": {many}}}"#), "messages");
    refused(Protocol::Responses, &format!(r#"{{"input": {many}}}"#), "input");
    let parts = format!(r#"{{"messages": [{{"role": "user", "content": {many}}}]}}"#);
    refused(Protocol::Chat, &parts, "messages[0].content");
    refused(Protocol::Messages, &parts, "messages[0].content");
    let biases: Vec<String> = (0..20_000).map(|token| format!("\"{token}\": 0")).collect();
    let biases = format!(r#""logit_bias": {{{}}}"#, biases.join(", "));
    refused(Protocol::Chat, &asking(Protocol::Chat, &biases), "logit_bias");
    let fields: Vec<String> = (0..1000).map(|at| format!("\"field {at}\": {{}}")).collect();
    let call = call(Protocol::Chat, &asking(Protocol::Chat, &fields.join(", ")));
    assert_eq!(call.notes.len(), 64);
    let schema = format!(r#"{{"description": "{}"}}"#, "x".repeat(2 << 20));
    let format = format!(
        r#""response_format": {{"type": "json_schema", "json_schema": {{"schema": {schema}}}}}"#
    );
    let path = "response_format.json_schema.schema";
    refused(Protocol::Chat, &asking(Protocol::Chat, &format), path);
    // Ids are as many as they are.
    let ids = format!(r#"{{"prompt": {many}}}"#);
    let Prompt::Plain(prompts) = self::call(Protocol::Completions, &ids).prompt else { panic!() };
    assert!(matches!(&prompts[..], [PlainPrompt::Tokens(ids)] if ids.len() == 20_001));
}
