//! Requests of every protocol, and answers in pieces.

use super::{Target, signature};
use ironstar_text::chat::{Release, Thinking};
use ironstar_wire::{
    CallMemory, Choice, Encoder, Finish, Identity, Limits, OfferedTool, Output, OutputParser,
    ParserOptions, Profile, Prompt, Protocol, ToolKind, ToolSet, Usage, parse, prepare,
};

const PROTOCOLS: [Protocol; 4] =
    [Protocol::Chat, Protocol::Messages, Protocol::Responses, Protocol::Completions];
const RELEASES: [Release; 3] = [Release::April, Release::V0731, Release::V41];

/// A byte for protocol and release, then a body.
pub const REQUEST: Target = Target {
    name: "wire-request",
    seeds: requests,
    dictionary: &[
        b"\"messages\":",
        b"\"role\":\"developer\"",
        b"\"content\":null",
        b"\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]",
        b"\"tool_choice\":\"required\"",
        b"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}",
        b"\"prefix\":true",
        b"\"logit_bias\":{\"1\":1}",
        b"\"stop\":[\"a\"]",
        b"\\ud800",
        b"\\udc00",
        b"1e400",
        b"[[[[[[[[[[[[[[[[",
        b"null",
        b"\"type\":\"namespace\"",
    ],
    len_max: 8192,
    base_bytes: 4 << 20,
    bytes_per_byte: 4000,
    run: run_request,
};

/// Three bytes of options and cuts, then the text of an answer.
pub const ANSWER: Target = Target {
    name: "wire-answer",
    seeds: answers,
    dictionary: &[
        "<\u{ff5c}DSML\u{ff5c}tool_calls>".as_bytes(),
        "<\u{ff5c}DSML\u{ff5c}invoke name=\"f\">\n".as_bytes(),
        "<\u{ff5c}DSML\u{ff5c}parameter name=\"a\" string=\"true\">".as_bytes(),
        "<\u{ff5c}DSML\u{ff5c}parameter name=\"a\" string=\"false\">".as_bytes(),
        "</\u{ff5c}DSML\u{ff5c}parameter>".as_bytes(),
        "</\u{ff5c}DSML\u{ff5c}invoke>".as_bytes(),
        "</\u{ff5c}DSML\u{ff5c}tool_calls>".as_bytes(),
        "\u{ff5c}DSML\u{ff5c}".as_bytes(),
        "DSML\u{ff5c}".as_bytes(),
        b"</think>",
        b"STOP",
        b"\n\n",
        b"</",
    ],
    len_max: 4096,
    base_bytes: 4 << 20,
    bytes_per_byte: 4000,
    run: run_answer,
};

fn requests() -> Vec<Vec<u8>> {
    let bodies: [(u8, &str); 5] = [
        (
            0,
            r#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user",
            "content":[{"type":"text","text":"u"}]},{"role":"assistant",
            "content":null,"reasoning_content":"r","tool_calls":[{"id":"1","type":"function",
            "function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"1",
            "content":"x"}],"tools":[{"type":"function","function":{"name":"f",
            "strict":true,"parameters":{"type":"object",
            "properties":{"a":{"type":"integer"}}}}}],"tool_choice":"auto",
            "stop":["a"],"n":2,"stream":true}"#,
        ),
        (
            1,
            r#"{"max_tokens":9,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user",
            "content":"u"},{"role":"assistant","content":[{"type":"thinking","thinking":"t",
            "signature":"s"},{"type":"tool_use","id":"1","name":"f","input":{"a":1.0}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"1",
            "content":"r"}]}],"tools":[{"name":"f",
            "input_schema":{"type":"object"}}],"tool_choice":{"type":"any"},
            "thinking":{"type":"adaptive"}}"#,
        ),
        (
            14,
            r#"{"instructions":"i","input":[{"role":"user","content":"u"},{"type":"reasoning",
            "summary":[{"type":"summary_text","text":"r"}]},{"type":"function_call","call_id":"1",
            "namespace":"n","name":"f","arguments":"{}"},{"type":"function_call_output",
            "call_id":"1","output":"x"}],"tools":[{"type":"namespace","name":"n","description":"d",
            "tools":[{"type":"function","name":"f"}]}],"text":{"format":{"type":"json_schema",
            "name":"s","schema":{"type":"object"}}},"reasoning":{"effort":"low"}}"#,
        ),
        (3, r#"{"prompt":[[1,2],[3]],"echo":true,"logprobs":1,"max_tokens":0}"#),
        (0, r#"{"messages":[{"role":"user","content":"\ud83d\ude00"}],"logit_bias":{"5":-100}}"#),
    ];
    bodies.map(|(first, body)| [&[first], body.as_bytes()].concat()).to_vec()
}

fn run_request(bytes: &[u8]) -> u64 {
    let Some((&first, body)) = bytes.split_first() else { return 0 };
    let protocol = PROTOCOLS[usize::from(first % 4)];
    let release = RELEASES[usize::from(first / 4 % 3)];
    let call = match parse(protocol, body, &Limits::default()) {
        Ok(call) => call,
        Err(error) => {
            assert!((400..=413).contains(&error.status()) && !error.message.is_empty());
            // What was found repeats the input; what was wanted does not.
            let wanted = error.message.rsplit_once("wanted").map_or(error.code, |(_, text)| text);
            return signature(wanted);
        }
    };
    let identity = Identity { id: "x".into(), ..Identity::default() };
    let mut encoder = Encoder::new(&call, identity);
    encoder.start(&Usage::default());
    for choice in 0..call.choices() {
        encoder.finish(choice, Finish::Stop, &Usage::default());
    }
    assert!(encoder.closed(), "an answer that does not end");
    if let Prompt::Plain(prompts) = &call.prompt {
        return 1 + u64::from(prompts.len() > 1);
    }
    let thinking = Thinking::On(ironstar_text::chat::Effort::High);
    let profile = Profile { release, thinking, dsml_token: Some(1), think_tokens: false };
    match prepare(&call, &profile, &CallMemory::default(), "x") {
        Ok(prepared) => {
            assert!(!prepared.segments.is_empty());
            let markers = prepared.segments.len().min(20) as u64;
            markers << 8 | u64::from(prepared.grammar.is_some()) << 4 | u64::from(first % 12)
        }
        Err(error) => signature(&error.message),
    }
}

fn answers() -> Vec<Vec<u8>> {
    let block = "why</think>ok\n\n<\u{ff5c}DSML\u{ff5c}tool_calls>\n\
                 <\u{ff5c}DSML\u{ff5c}invoke name=\"f\">\n\
                 <\u{ff5c}DSML\u{ff5c}parameter name=\"a\" string=\"true\">x \"y\" </b>\
                 </\u{ff5c}DSML\u{ff5c}parameter>\n\
                 <\u{ff5c}DSML\u{ff5c}parameter name=\"n\" string=\"false\">12345678901234567890\
                 </\u{ff5c}DSML\u{ff5c}parameter>\n</\u{ff5c}DSML\u{ff5c}invoke>\n\
                 <\u{ff5c}DSML\u{ff5c}invoke name=\"g\">\n</\u{ff5c}DSML\u{ff5c}invoke>\n\
                 </\u{ff5c}DSML\u{ff5c}tool_calls>";
    let seed = |options: [u8; 3], text: &str| [&options[..], text.as_bytes()].concat();
    vec![
        seed([1, 3, 7], block),
        seed([0, 1, 1], "2 < 3 STOP more"),
        seed([3, 5, 2], "<think>a</think>b\n\n<"),
        seed([4, 9, 11], &block[block.find("<\u{ff5c}DSML\u{ff5c}invoke").unwrap_or(0)..]),
    ]
}

/// An answer with its pieces joined.
#[derive(Debug, Default, PartialEq)]
struct Joined {
    reasoning: String,
    text: String,
    /// Name, arguments, and whether they are complete.
    calls: Vec<(String, String, bool)>,
    stopped: Option<String>,
    written: Option<usize>,
}

fn joined(options: &ParserOptions, pieces: &[&str], cut: bool) -> Joined {
    let mut parser = OutputParser::new(options.clone());
    let mut joined = Joined::default();
    let mut outputs: Vec<Output> =
        pieces.iter().flat_map(|piece| parser.push(piece, None)).collect();
    outputs.extend(parser.end(cut));
    for output in outputs {
        match output {
            Output::Reasoning(text) => joined.reasoning.push_str(&text),
            Output::Text(text) => joined.text.push_str(&text),
            Output::CallStart { index, name, .. } => {
                assert_eq!(index, joined.calls.len());
                joined.calls.push((name, String::new(), false));
            }
            Output::CallArguments { index, json_fragment } => {
                joined.calls[index].1.push_str(&json_fragment);
            }
            Output::CallEnd { index } => joined.calls[index].2 = true,
            Output::CallCut { .. } | Output::Logprobs { .. } => {}
        }
    }
    joined.stopped = parser.stopped().map(str::to_owned);
    joined.written = parser
        .sampled_calls()
        .map(|calls| calls.written.iter().map(|segment| segment.as_str().len()).sum());
    joined
}

fn run_answer(bytes: &[u8]) -> u64 {
    let Some((&[options, first, second], text)) = bytes.split_first_chunk::<3>() else { return 0 };
    let text = String::from_utf8_lossy(text);
    let tool = |name: &str| OfferedTool {
        name: name.to_owned(),
        namespace: None,
        description: String::new(),
        namespace_description: String::new(),
        strict: false,
        kind: ToolKind::Function,
        parameters: String::new(),
    };
    let tools = vec![tool("f"), tool("g")];
    let given = ParserOptions {
        release: RELEASES[usize::from(options / 32 % 3)],
        reasoning: options & 1 != 0,
        think_tokens: options & 2 != 0,
        in_calls: options & 4 != 0,
        tools: ToolSet { tools, choice: Choice::Auto, parallel: true },
        stop: if options & 8 != 0 { vec!["STOP".into(), "TO".into()] } else { Vec::new() },
        call_ids: "x".into(),
        call_prefix: "call_",
    };
    let cut = options & 16 != 0;
    let whole = joined(&given, &[&text], cut);
    let mut places = [first, second].map(|place| {
        let at = usize::from(place) * text.len() / 255;
        (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
    });
    places.sort_unstable();
    let [a, b] = places;
    assert_eq!(joined(&given, &[&text[..a], &text[a..b], &text[b..]], cut), whole, "cuts decide");
    let letters: Vec<&str> =
        text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect();
    assert_eq!(joined(&given, &letters, cut), whole, "letters decide");
    let said = whole.calls.len().min(15) as u64;
    let kinds = u64::from(!whole.reasoning.is_empty())
        | u64::from(!whole.text.is_empty()) << 1
        | u64::from(whole.stopped.is_some()) << 2
        | u64::from(whole.written.is_some()) << 3
        | u64::from(whole.calls.iter().any(|call| !call.2)) << 4;
    1 + (said << 8 | kinds)
}
