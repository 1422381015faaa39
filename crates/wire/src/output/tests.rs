//! Answers in pieces. Faults of other programs are named as in the public reports.

use proptest::prelude::*;

use super::*;
use crate::{Choice, OfferedTool, ToolKind};

fn tool(name: &str, parameters: &str) -> OfferedTool {
    OfferedTool {
        name: name.to_owned(),
        namespace: None,
        description: String::new(),
        namespace_description: String::new(),
        strict: false,
        kind: ToolKind::Function,
        parameters: parameters.to_owned(),
    }
}

fn options(reasoning: bool) -> ParserOptions {
    let tools = vec![tool("f", ""), tool("g", "")];
    ParserOptions {
        reasoning,
        tools: ToolSet { tools, ..ToolSet::default() },
        call_ids: "x".to_owned(),
        call_prefix: "call_",
        ..ParserOptions::default()
    }
}

/// An answer with its pieces joined.
#[derive(Debug, Default, PartialEq)]
struct Joined {
    reasoning: String,
    text: String,
    /// Name, arguments, how it ended.
    calls: Vec<(String, String, &'static str)>,
    tokens: Vec<(bool, Vec<u8>)>,
    stopped: Option<String>,
    exact: Option<String>,
}

impl Joined {
    fn add(&mut self, output: Output) {
        match output {
            Output::Reasoning(text) => self.reasoning.push_str(&text),
            Output::Text(text) => self.text.push_str(&text),
            Output::CallStart { index, id, name } => {
                assert_eq!((index, id), (self.calls.len(), format!("call_x_{index}")));
                self.calls.push((name, String::new(), "open"));
            }
            Output::CallArguments { index, json_fragment } => {
                assert_eq!((index + 1, self.calls[index].2), (self.calls.len(), "open"));
                assert!(!json_fragment.is_empty());
                self.calls[index].1.push_str(&json_fragment);
            }
            Output::CallEnd { index } => self.calls[index].2 = "ended",
            Output::CallCut { index } => self.calls[index].2 = "cut",
            Output::Logprobs { reasoning, token } => self.tokens.push((reasoning, token.bytes)),
        }
    }
}

fn parse_pieces<'a>(
    options: &ParserOptions,
    pieces: impl IntoIterator<Item = &'a str>,
    cut: bool,
) -> Joined {
    let mut parser = OutputParser::new(options.clone());
    let mut joined = Joined::default();
    for piece in pieces {
        parser.push(piece, None).into_iter().for_each(|output| joined.add(output));
    }
    parser.end(cut).into_iter().for_each(|output| joined.add(output));
    joined.stopped = parser.stopped().map(str::to_owned);
    joined.exact =
        parser.sampled_calls().map(|calls| calls.written.iter().map(Segment::as_str).collect());
    joined
}

use ironstar_text::Segment;

/// Checks every single cut of the text, and one byte... one character at a time.
fn parse(options: &ParserOptions, text: &str, cut: bool) -> Joined {
    let whole = parse_pieces(options, [text], cut);
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    for at in ends.clone() {
        let (left, right) = text.split_at(at);
        assert_eq!(parse_pieces(options, [left, right], cut), whole, "cut at {at} of {text:?}");
    }
    let starts = text.char_indices().map(|(at, _)| at);
    let letters = starts.zip(ends).map(|(start, end)| &text[start..end]);
    assert_eq!(parse_pieces(options, letters, cut), whole, "letters of {text:?}");
    whole
}

fn block(calls: &str) -> String {
    format!("\n\n<｜DSML｜tool_calls>\n{calls}</｜DSML｜tool_calls>")
}

fn call(name: &str, parameters: &str) -> String {
    format!("<｜DSML｜invoke name=\"{name}\">\n{parameters}</｜DSML｜invoke>\n")
}

fn parameter(name: &str, string: &str, value: &str) -> String {
    format!("<｜DSML｜parameter name=\"{name}\" string=\"{string}\">{value}</｜DSML｜parameter>\n")
}

fn ended(name: &str, arguments: &str) -> (String, String, &'static str) {
    (name.to_owned(), arguments.to_owned(), "ended")
}

#[test]
fn thinking_then_text_then_parallel_calls() {
    let calls = block(&format!(
        "{}{}",
        call(
            "f",
            &format!(
                "{}{}",
                parameter("a", "true", "x \"q\" </b> é\n"),
                parameter("n", "false", "12345678901234567890")
            )
        ),
        call("g", "")
    ));
    let joined = parse(&options(true), &format!("why</think>ok{calls}"), false);
    assert_eq!((&*joined.reasoning, &*joined.text), ("why", "ok"));
    let arguments = r#"{"a": "x \"q\" </b> é\n", "n": 12345678901234567890}"#;
    assert_eq!(joined.calls, [ended("f", arguments), ended("g", "{}")]);
    assert_eq!(joined.exact, Some(calls.clone()));
    let mut parser = OutputParser::new(options(false));
    parser.push(&calls, None);
    let written = parser.sampled_calls().expect("a whole block").written;
    let markers = written.iter().filter(|s| **s == Segment::Special("｜DSML｜".into()));
    assert_eq!(markers.count(), calls.matches("｜DSML｜").count());
}

/// H11.
#[test]
fn a_call_in_unclosed_thinking_is_a_call() {
    let joined = parse(&options(true), &format!("why{}", block(&call("f", ""))), false);
    assert_eq!((&*joined.reasoning, &*joined.text), ("why", ""));
    assert_eq!(joined.calls, [ended("f", "{}")]);
}

/// H12.
#[test]
fn stray_bytes_between_tags_are_skipped() {
    let strays =
        ["x", "<", "</", ">", "\"", "\u{feff}", "<｜", "｜DSML｜>", "<b>", "&lt;", "```", "}"];
    let two = format!("{}{}", call("f", &parameter("a", "true", "1")), call("g", ""));
    let calls = [ended("f", r#"{"a": "1"}"#), ended("g", "{}")];
    for stray in strays {
        for (at, _) in two.match_indices('\n') {
            let text = block(&format!("{}{stray}{}", &two[..at], &two[at..]));
            assert_eq!(parse(&options(false), &text, false).calls, calls, "{text}");
        }
    }
}

/// H12: garbage where tags belong ends the answer, a value may be of any length.
#[test]
fn an_endless_block_is_given_up() {
    let mut parser = OutputParser::new(options(false));
    parser.push(&block(&call("f", ""))[..block(&call("f", "")).len() - 30], None);
    let pushes = (0..10_000).take_while(|_| {
        parser.push("la ", None);
        !parser.finished()
    });
    assert!(pushes.count() < 1024);
    assert_eq!(parser.calls(), 1);
}

#[test]
fn a_block_without_a_readable_call_is_text() {
    for garbage in ["", "nothing\n", "<｜DSML｜invoke>\n</｜DSML｜invoke>\n", "{\"name\": \"f\"}\n"]
    {
        let text = format!("a{} b", block(garbage));
        let joined = parse(&options(false), &text, false);
        assert_eq!((joined.text, joined.calls.len()), (text, 0));
        let text = format!("a{}</think>b", block(garbage));
        let joined = parse(&options(true), &text, false);
        assert_eq!((joined.reasoning, joined.text), (format!("a{}", block(garbage)), "b".into()));
    }
}

#[test]
fn an_unreadable_call_beside_a_readable_one_is_text() {
    let bad = "<｜DSML｜invoke nome=\"f\">\n</｜DSML｜invoke>";
    let joined = parse(&options(false), &block(&format!("{bad}{}", call("g", ""))), false);
    assert_eq!(joined.calls, [ended("g", "{}")]);
    assert_eq!(joined.text, bad);
}

#[test]
fn nearly_right_markup_is_understood() {
    let right = block(&call("f", &parameter("a", "true", "v")));
    let variants = [
        right.replace('"', "'"),
        right.replacen("\"f\"", "“f”", 1),
        right.replace("<｜DSML｜", "<DSML｜").replace("</｜DSML｜", "</DSML｜"),
        right.replace("tool_calls", "function_calls"),
        right.replace("｜DSML｜", "｜DSML｜ ").replace("tool_calls", "calls"),
        right.replace("\"f\"", "f"),
        right.replacen("</｜DSML｜parameter>", "", 1),
        right.replacen("</｜DSML｜parameter>\n</｜DSML｜invoke>\n", "", 1),
        right.replacen("</｜DSML｜invoke>\n", "", 1),
        right.replacen("</｜DSML｜tool_calls>", "", 1),
        right.replacen("<｜DSML｜tool_calls>", "", 1),
        right.replace(" string=\"true\"", ""),
        right.replace("\">", "\"  >"),
    ];
    for text in variants {
        let joined = parse(&options(false), &text, false);
        let [(name, arguments, "ended")] = &joined.calls[..] else { panic!("{text}: {joined:?}") };
        let value: serde_json::Value = serde_json::from_str(arguments).expect("valid JSON");
        let value = value["a"].as_str().expect("a string").trim_end().to_owned();
        assert_eq!((&**name, &*value), ("f", "v"), "{text}");
        assert_eq!(joined.text.trim(), "", "{text}");
    }
}

#[test]
fn quotes_in_names_are_part_of_them() {
    let text = block(&call("f", &parameter("say \"hi", "true", "a \"b\" 'c' <d> \\ \t")));
    let joined = parse(&options(false), &text, false);
    assert_eq!(joined.calls, [ended("f", r#"{"say \"hi": "a \"b\" 'c' <d> \\ \t"}"#)]);
}

/// H15.
#[test]
fn a_parameter_called_arguments_is_a_parameter() {
    let string = parameter("arguments", "true", "{\"a\": 1}");
    let object = parameter("arguments", "false", "{\"a\": 1}");
    let joined = parse(&options(false), &block(&(call("f", &string) + &call("f", &object))), false);
    let wanted =
        [ended("f", r#"{"arguments": "{\"a\": 1}"}"#), ended("f", r#"{"arguments": {"a": 1}}"#)];
    assert_eq!(joined.calls, wanted);
}

/// H15.
#[test]
fn a_held_bracket_is_given_at_the_end() {
    for text in ["2 <", "a\n\n<", "x\n", "<｜DSML", "<｜DSML｜tool_calls", "1 </", "\n\n\n"] {
        assert_eq!(parse(&options(false), text, false).text, text);
        assert_eq!(parse(&options(false), text, true).text, text);
        assert_eq!(parse(&options(true), text, true).reasoning, text);
    }
}

/// H16, and H13 for values that are no JSON.
#[test]
fn numbers_keep_their_digits() {
    let numbers = [
        "12345678901234567890",
        "-0",
        "1e400",
        "0.1000000000000000055",
        "9007199254740993",
        "[1.0, {\"b\": 1E2}]",
        "null",
    ];
    for number in numbers {
        let joined =
            parse(&options(false), &block(&call("f", &parameter("n", "false", number))), false);
        assert_eq!(joined.calls, [ended("f", &format!("{{\"n\": {number}}}"))]);
    }
    for (text, json) in [
        ("001", "\"001\""),
        ("NaN", "\"NaN\""),
        ("0x10", "\"0x10\""),
        ("", "\"\""),
        ("[1,", "\"[1,\""),
        ("a\"b", r#""a\"b""#),
    ] {
        let joined =
            parse(&options(false), &block(&call("f", &parameter("n", "false", text))), false);
        assert_eq!(joined.calls, [ended("f", &format!("{{\"n\": {json}}}"))]);
    }
}

/// H13, where a tag says no type.
#[test]
fn the_schema_says_what_the_tag_does_not() {
    let schema = r#"{"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}"#;
    let mut options = options(false);
    options.tools.tools[0].parameters = schema.to_owned();
    let untyped = |name, value| parameter(name, "true", value).replace(" string=\"true\"", "");
    let parameters =
        untyped("s", "001") + &untyped("n", "10") + &untyped("?", "[]") + &untyped("!", " x ");
    let joined = parse(&options, &block(&call("f", &parameters)), false);
    assert_eq!(joined.calls, [ended("f", r#"{"s": "001", "n": 10, "?": [], "!": " x "}"#)]);
    // A string stays one whatever it looks like; other types and none take whole JSON as it is
    // written, and what is no JSON is a string.
    for (value, is_json) in [
        ("001", false),
        ("true", true),
        ("1e3", true),
        ("NaN", false),
        ("0x10", false),
        ("null", true),
        ("[]", true),
        ("{\"a\": [1, 2.50]}", true),
        ("12345678901234567890", true),
        ("1 2", false),
    ] {
        let quoted = serde_json::Value::from(value).to_string();
        let bare = if is_json { value.to_owned() } else { quoted.clone() };
        for (name, wanted) in [("s", &quoted), ("n", &bare), ("?", &bare)] {
            let joined = parse(&options, &block(&call("f", &untyped(name, value))), false);
            let wanted = format!("{{\"{name}\": {wanted}}}");
            assert_eq!(joined.calls, [ended("f", &wanted)], "{name}: {value}");
        }
    }
}

/// H14.
#[test]
fn a_long_string_is_given_as_it_comes() {
    let mut parser = OutputParser::new(options(false));
    let start = block(&call("write", &parameter("content", "true", "@")));
    let (before, after) = start.split_once('@').expect("a mark");
    parser.push(before, None);
    let (mut given, mut pushed) = (0, 0);
    for at in 0..200 {
        let piece = format!("{at:03} {}\n", "word </wor ".repeat(4));
        pushed += piece.len() + 1; // The newline is two letters in JSON.
        for output in parser.push(&piece, None) {
            let Output::CallArguments { json_fragment, .. } = output else { panic!("{output:?}") };
            given += json_fragment.len();
        }
        assert_eq!(given, pushed, "after piece {at}");
    }
    parser.push(after, None);
    assert!(parser.finished());
}

/// H17.
#[test]
fn every_call_has_its_number() {
    let three = call("f", &parameter("a", "false", "1")) + &call("g", "") + &call("f", "");
    let joined = parse(&options(false), &block(&three), false);
    assert_eq!(joined.calls, [ended("f", r#"{"a": 1}"#), ended("g", "{}"), ended("f", "{}")]);
}

/// H22.
#[test]
fn stop_strings_are_found_across_pieces() {
    let stopping = |stop: &[&str]| ParserOptions {
        stop: stop.iter().map(|s| (*s).to_owned()).collect(),
        ..options(true)
    };
    let check = |stop: &[&str], text: &str, wanted: &str, by: Option<&str>| {
        let joined = parse(&stopping(stop), text, false);
        assert_eq!(
            (&*joined.text, joined.stopped.as_deref()),
            (wanted, by),
            "{stop:?} in {text:?}"
        );
    };
    check(&["bcd"], "</think>abcdef", "a", Some("bcd"));
    check(&["é"], "</think>caféx", "caf", Some("é"));
    check(&["ab"], "</think>abcd", "", Some("ab"));
    check(&["zz"], "zz</think>a", "a", None);
    check(&["aab"], "</think>aaab", "a", Some("aab"));
    check(&["abcd", "bc"], "</think>abcd", "a", Some("bc"));
    check(&["\n\n"], "</think>a\n\nb", "a", Some("\n\n"));
    check(&["ab"], "</think>xa", "xa", None);
    check(&["", "q"], "</think>xa", "xa", None);
    let joined = parse(
        &stopping(&["v", "invoke"]),
        &format!("</think>a{}", block(&call("f", &parameter("a", "true", "v")))),
        false,
    );
    assert_eq!((&*joined.text, joined.calls.len(), joined.stopped), ("a", 1, None));
}

#[test]
fn what_was_cut_off_is_no_whole_call() {
    let text = block(&call(
        "f",
        &(parameter("a", "true", "rm -rf /tmp/x") + &parameter("n", "false", "12")),
    ));
    let first = text.find("invoke name=\"f\">").expect("a call") + "invoke name=\"f\">".len();
    let last = text.rfind("</｜DSML｜invoke>").expect("an end") + "</｜DSML｜invoke>".len();
    for at in (first..last).filter(|&at| text.is_char_boundary(at)) {
        let joined = parse(&options(false), &text[..at], true);
        let [(name, arguments, "cut")] = &joined.calls[..] else { panic!("{at}: {joined:?}") };
        assert_eq!(name, "f");
        assert!(serde_json::from_str::<serde_json::Value>(arguments).is_err(), "{arguments}");
        assert_eq!((joined.exact, &*joined.text), (None, ""));
    }
    for at in (last..text.len()).filter(|&at| text.is_char_boundary(at)) {
        assert_eq!(parse(&options(false), &text[..at], true).calls[0].2, "ended");
    }
}

/// The model ended its turn itself: what it left open is closed.
#[test]
fn what_the_model_left_open_is_closed() {
    let text = block(&call("f", &(parameter("a", "true", "v") + &parameter("n", "false", "12"))));
    let first = text.find("string=\"true\">").expect("a value") + "string=\"true\">".len();
    for at in (first..text.len()).filter(|&at| text.is_char_boundary(at)) {
        let joined = parse(&options(false), &text[..at], false);
        let [(_, arguments, "ended")] = &joined.calls[..] else { panic!("{at}: {joined:?}") };
        serde_json::from_str::<serde_json::Value>(arguments).expect("valid JSON");
    }
}

#[test]
fn without_tools_markup_is_text() {
    let text = format!("a{}", block(&call("f", "")));
    let none = ToolSet { choice: Choice::None, ..options(false).tools };
    for tools in [ToolSet::default(), none] {
        let joined = parse(&ParserOptions { tools, ..options(false) }, &text, false);
        assert_eq!((&joined.text, joined.calls.len()), (&text, 0));
    }
}

#[test]
fn a_block_that_the_prompt_opened() {
    let options = ParserOptions { in_calls: true, ..options(false) };
    let whole = block(&call("f", ""));
    let rest = whole.strip_prefix("\n\n<｜DSML｜tool_calls>\n").expect("the opening");
    let joined = parse(&options, rest, false);
    assert_eq!((joined.calls, joined.exact), (vec![ended("f", "{}")], Some(whole.clone())));
    assert_eq!(parse(&options, "no call", false).text, "no call");
}

#[test]
fn think_tokens_count_and_their_letters_do_not() {
    let mut parser = OutputParser::new(ParserOptions { think_tokens: true, ..options(true) });
    let mut joined = Joined::default();
    let outputs = [
        parser.push("a </think> b", None),
        parser.push_think(false, None),
        parser.push("c </think> d", None),
        parser.push_think(true, None),
        parser.push("e", None),
        parser.end(false),
    ];
    outputs.into_iter().flatten().for_each(|output| joined.add(output));
    assert_eq!((&*joined.reasoning, &*joined.text), ("a </think> be", "c </think> d"));
}

#[test]
fn the_first_end_of_thinking_counts() {
    let joined = parse(&options(true), "a</think>b</think>c", false);
    assert_eq!((&*joined.reasoning, &*joined.text), ("a", "b</think>c"));
}

/// Every token is told of once, with the channel its text went to; those of markup are not.
#[test]
fn probabilities_go_with_the_text() {
    let mut parser = OutputParser::new(ParserOptions { stop: vec!["END".into()], ..options(true) });
    let tokens: [(&[u8], &str); 9] = [
        (b"why", "why"),
        (b"</think>", "</think>"),
        (b"a\n\n", "a\n\n"),
        (b"\xf0\x9f", ""),
        (b"\x91\x8b", "👋"),
        (b"b<", "b<"),
        (b"c", "c"),
        (b"dE", "dE"),
        (b"NDx", "NDx"),
    ];
    let mut joined = Joined::default();
    for (bytes, text) in tokens {
        let token = TokenLogprobs { bytes: bytes.to_vec(), ..TokenLogprobs::default() };
        parser.push(text, Some(token)).into_iter().for_each(|output| joined.add(output));
    }
    parser.end(false).into_iter().for_each(|output| joined.add(output));
    assert_eq!((&*joined.text, parser.stopped()), ("a\n\n👋b<cd", Some("END")));
    let told: Vec<(bool, &[u8])> = joined.tokens.iter().map(|(r, b)| (*r, &**b)).collect();
    let wanted: Vec<(bool, &[u8])> =
        [0, 2, 3, 4, 5, 6, 7].map(|at| (at == 0, tokens[at].0)).to_vec();
    assert_eq!(told, wanted);
}

/// H02: an incomplete character at the end gives no text, but the tokens count.
#[test]
fn an_incomplete_character_is_no_text() {
    let mut parser = OutputParser::new(options(false));
    let mut joined = Joined::default();
    for bytes in [b"\xf0\x9f".to_vec(), b"\x91".to_vec()] {
        let token = TokenLogprobs { bytes, ..TokenLogprobs::default() };
        parser.push("", Some(token)).into_iter().for_each(|output| joined.add(output));
    }
    parser.end(true).into_iter().for_each(|output| joined.add(output));
    assert_eq!((joined.text.len(), joined.tokens.len()), (0, 2));
}

/// H26: parsers share nothing.
#[test]
fn streams_do_not_disturb_each_other() {
    let texts: Vec<String> = (0..16)
        .map(|at| {
            format!(
                "{}</think>{}{}",
                "t".repeat(at),
                "c".repeat(16 - at),
                block(&call("f", &parameter("a", "true", &at.to_string())))
            )
        })
        .collect();
    let alone: Vec<Joined> =
        texts.iter().map(|text| parse_pieces(&options(true), [&**text], false)).collect();
    let mut parsers: Vec<_> =
        texts.iter().map(|_| (OutputParser::new(options(true)), Joined::default())).collect();
    for step in 0..200 {
        for ((parser, joined), text) in parsers.iter_mut().zip(&texts) {
            let letter = text.chars().nth(step).map(String::from).unwrap_or_default();
            parser.push(&letter, None).into_iter().for_each(|output| joined.add(output));
        }
    }
    for ((mut parser, mut joined), alone) in parsers.into_iter().zip(alone) {
        parser.end(false).into_iter().for_each(|output| joined.add(output));
        assert_eq!(
            (joined.reasoning, joined.text, joined.calls),
            (alone.reasoning, alone.text, alone.calls)
        );
    }
}

const PIECES: &[&str] = &[
    "<",
    "/",
    "｜DSML｜",
    "DSML｜",
    "｜",
    "tool_calls",
    " calls",
    "invoke",
    "parameter",
    " name=\"",
    "f",
    "\"",
    "\">",
    ">",
    "\n",
    "\n\n",
    " string=\"true\"",
    " string=\"false\"",
    "</think>",
    "<think>",
    "1",
    "{",
    "}",
    "é",
    "STOP",
    "ST",
    "OP",
    " ",
    "“",
    "”",
    "</｜DSML｜parameter>\n",
    "</｜DSML｜invoke>\n",
    "</｜DSML｜tool_calls>",
    "<｜DSML｜tool_calls>\n",
    "<｜DSML｜invoke name=\"f\">\n",
    "<｜DSML｜parameter name=\"a\" string=\"true\">",
    "<｜DSML｜parameter name=\"a\" string=\"false\">",
    "text",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    /// Anything a model may write, cut anywhere: the same answer, nothing made up, nothing lost.
    #[test]
    fn cuts_decide_nothing(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60),
        cuts in prop::collection::vec(0.0..1.0, 0..12),
        reasoning: bool, in_calls: bool, stops: bool, cut: bool,
    ) {
        let text = pieces.concat();
        let options = ParserOptions {
            in_calls, stop: if stops { vec!["STOP".into(), "TO".into()] } else { vec![] },
            ..options(reasoning)
        };
        let whole = parse_pieces(&options, [&*text], cut);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        prop_assert_eq!(&parse_pieces(&options, letters.iter().map(|l| &**l), cut), &whole);
        let mut places: Vec<usize> = cuts.iter().map(|cut: &f64| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place")]
            let at = (cut * text.len() as f64) as usize;
            (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
        }).collect();
        places.sort_unstable();
        let mut parts = Vec::new();
        let mut from = 0;
        for at in places { parts.push(&text[from..at]); from = at; }
        parts.push(&text[from..]);
        prop_assert_eq!(&parse_pieces(&options, parts, cut), &whole);
        for (_, arguments, how) in &whole.calls {
            let json = serde_json::from_str::<serde_json::Value>(arguments);
            prop_assert_eq!(json.is_ok(), *how == "ended", "{}", arguments);
        }
        if whole.calls.is_empty() && !stops {
            let seen = whole.reasoning + &whole.text;
            let without = |at: usize| text[..at].to_owned() + &text[at + "</think>".len()..];
            let mut ends = text.match_indices("</think>").map(|(at, _)| without(at));
            prop_assert!(seen == text || ends.any(|rest| rest == seen), "{:?}", seen);
        }
    }
}
