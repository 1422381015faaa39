//! What llguidance makes of the grammars: the judge is the package that will hold them.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use super::*;
use crate::ToolKind;

const DSML: u32 = 256;
const END: u32 = 257;

/// A token a byte, the marker, and the end.
fn environment() -> TokEnv {
    let mut words: Vec<Vec<u8>> = (0..=255_u8).map(|byte| vec![byte]).collect();
    let special = |text: &str| [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat();
    words.extend([special("｜DSML｜"), special("</s>")]);
    Arc::new(ApproximateTokEnv::new(TokTrie::from(&TokRxInfo::new(258, END), &words)))
}

fn matcher(grammar: &str) -> Result<Matcher, String> {
    let mut factory = ParserFactory::new_simple(&environment()).expect("a factory");
    factory.quiet();
    let parser = factory.create_parser(TopLevelGrammar::from_lark(grammar.to_owned()));
    let matcher = Matcher::new(Ok(parser.map_err(|error| format!("{error:#}\n{grammar}"))?));
    match matcher.get_error() {
        Some(error) => Err(format!("{error}\n{grammar}")),
        None => Ok(matcher),
    }
}

/// Tokens of a text that may end there; how many of them are allowed, and whether that is an end.
fn run(grammar: &str, text: &str) -> (usize, usize, bool) {
    let mut matcher = matcher(grammar).unwrap_or_else(|error| panic!("{error}"));
    let mut tokens: Vec<u32> = Vec::new();
    for (at, part) in text.split("｜DSML｜").enumerate() {
        if at > 0 {
            tokens.push(DSML);
        }
        tokens.extend(part.bytes().map(u32::from));
    }
    let taken = matcher.try_consume_tokens(&tokens).expect("no error");
    let may_end = matcher.is_accepting().expect("no error");
    (taken, tokens.len(), may_end)
}

#[track_caller]
fn takes(grammar: &str, text: &str) {
    let (taken, all, may_end) = run(grammar, text);
    assert!(taken == all && may_end, "{taken} of {all}, end {may_end}: {text:?}\n{grammar}");
}

#[track_caller]
fn refuses(grammar: &str, text: &str) {
    let (taken, all, may_end) = run(grammar, text);
    assert!(taken < all || !may_end, "took {text:?}\n{grammar}");
}

fn tool(name: &str, strict: bool, parameters: &str) -> OfferedTool {
    OfferedTool {
        name: name.to_owned(),
        namespace: None,
        description: String::new(),
        namespace_description: String::new(),
        strict,
        kind: ToolKind::Function,
        parameters: parameters.to_owned(),
    }
}

const PARAMETERS: &str = r##"{"type": "object", "properties": {
    "city": {"type": "string"}, "unit": {"enum": ["C", "F"]},
    "days": {"type": "integer", "minimum": 1, "maximum": 9}, "at": {"$ref": "#/$defs/place"}},
    "required": ["city", "days"], "additionalProperties": false,
    "$defs": {"place": {"type": "array", "items": {"type": "number"}, "minItems": 2,
        "maxItems": 2}}}"##;

fn tools(choice: Choice, strict: bool) -> ToolSet {
    let tools = vec![tool("weather", strict, PARAMETERS), tool("now", false, "")];
    ToolSet { tools, choice, parallel: true }
}

fn grammar(tools: &ToolSet, format: &Format, in_calls: bool) -> String {
    let release = Release::V0731;
    let bounds = Bounds { release, dsml_token: Some(DSML), in_calls, tools, format };
    of_answer(&bounds).expect("bound")
}

fn parameter(name: &str, string: bool, value: &str) -> String {
    format!("<｜DSML｜parameter name=\"{name}\" string=\"{string}\">{value}</｜DSML｜parameter>\n")
}

fn call(name: &str, parameters: &[String]) -> String {
    format!("<｜DSML｜invoke name=\"{name}\">\n{}</｜DSML｜invoke>\n", parameters.concat())
}

fn block(calls: &[String]) -> String {
    format!("<｜DSML｜tool_calls>\n{}</｜DSML｜tool_calls>", calls.concat())
}

#[test]
fn a_free_choice_is_text_or_well_formed_calls() {
    let grammar = grammar(&tools(Choice::Auto, false), &Format::Text, false);
    takes(&grammar, "");
    takes(&grammar, "Plain <b>text</b>, 2 < 3 and DSML.\n\n");
    let any = call(
        "weather",
        &[
            parameter("x", true, "a </b> \"q\"\n</ <"),
            parameter("y", false, "[1.5, {\"a\": null}]"),
        ],
    );
    takes(&grammar, &format!("I look.\n\n{}", block(&[any.clone(), call("now", &[])])));
    takes(&grammar, &block(&[call("now", &["\n".to_owned()])]));
    refuses(&grammar, &block(&[]));
    refuses(&grammar, &block(&[call("unknown", &[])]));
    refuses(&grammar, &format!("a {} b", block(std::slice::from_ref(&any))));
    refuses(&grammar, &block(&[any.replace("\"false\">[1.5", "\"false\">[1.5,,")]));
    refuses(&grammar, &block(&[any.replace("string=\"true\"", "")]));
    refuses(&grammar, &block(&[any])[..58]);
}

#[test]
fn a_demanded_call_is_made() {
    for in_calls in [false, true] {
        let opened = |text: String| match in_calls {
            true => text.replacen("<｜DSML｜tool_calls>\n", "", 1),
            false => format!("\n\n{text}"),
        };
        let required = grammar(&tools(Choice::Required, false), &Format::Text, in_calls);
        takes(&required, &opened(block(&[call("now", &[]), call("weather", &[])])));
        refuses(&required, "");
        refuses(&required, "text");
        let named = grammar(&tools(Choice::Named("now".into()), false), &Format::Text, in_calls);
        takes(&named, &opened(block(&[call("now", &[])])));
        refuses(&named, &opened(block(&[call("weather", &[])])));
        let one = ToolSet { parallel: false, ..tools(Choice::Required, false) };
        let one = grammar(&one, &Format::Text, in_calls);
        takes(&one, &opened(block(&[call("now", &[])])));
        refuses(&one, &opened(block(&[call("now", &[]), call("now", &[])])));
    }
}

#[test]
fn strict_arguments_follow_the_schema() {
    let grammar = grammar(&tools(Choice::Auto, true), &Format::Text, false);
    let of = |parameters: &[(&str, bool, &str)]| {
        let all: Vec<String> = parameters
            .iter()
            .map(|(name, string, value)| parameter(name, *string, value))
            .collect();
        block(&[call("weather", &all)])
    };
    let (city, days) = (("city", true, "Köln"), ("days", false, "3"));
    takes(&grammar, &of(&[city, days]));
    takes(&grammar, &of(&[city, ("unit", true, "F"), days, ("at", false, "[1, 2.5]")]));
    refuses(&grammar, &of(&[city]));
    refuses(&grammar, &of(&[city, ("days", false, "0")]));
    refuses(&grammar, &of(&[city, ("days", false, "\"3\"")]));
    refuses(&grammar, &of(&[city, ("days", true, "3")]));
    refuses(&grammar, &of(&[city, ("unit", true, "K"), days]));
    refuses(&grammar, &of(&[city, days, ("at", false, "[1]")]));
    refuses(&grammar, &of(&[city, days, ("more", true, "x")]));
}

#[test]
fn formats_bind_the_text() {
    let none = ToolSet::default();
    let object = grammar(&none, &Format::JsonObject, false);
    takes(&object, r#"{"a": [1, {"b": null}], "c": "}"}"#);
    refuses(&object, "[1]");
    refuses(&object, "{\"a\": 1} and more");
    refuses(&object, &format!("{{{}", " ".repeat(1000)));
    let schema = |schema: &str, strict| Format::JsonSchema {
        name: "n".to_owned(),
        schema: schema.to_owned(),
        strict,
    };
    let number = grammar(&none, &schema(r#"{"type": "integer"}"#, true), false);
    takes(&number, "12345678901234567890");
    refuses(&number, "1.5");
    let anything = grammar(&none, &schema("{}", true), false);
    takes(&anything, "[null]");
    refuses(&anything, "nothing");
    let lenient =
        grammar(&none, &schema(r#"{"type": "array", "uniqueItems": true}"#, false), false);
    takes(&lenient, "[1, 1]");
    let with_tools = grammar(&tools(Choice::Auto, false), &Format::JsonObject, false);
    takes(&with_tools, "{}");
    takes(&with_tools, &format!("\n\n{}", block(&[call("now", &[])])));
    refuses(&with_tools, "text");
}

/// H24, as far as a schema can be judged here; the rest is the matcher's to refuse.
#[test]
fn schemas_that_cannot_be_enforced_are_refused() {
    let refused = |schema: &str, strict| {
        check_schema(schema, "s", strict).err().map(|error| error.message).unwrap_or_default()
    };
    assert!(
        refused(r#"{"properties": {"a": {"uniqueItems": true}}}"#, true).contains("`uniqueItems`")
    );
    assert!(refused(r#"{"frobnicate": 1}"#, true).contains("`frobnicate`"));
    assert_eq!(refused(r#"{"frobnicate": 1, "uniqueItems": true}"#, false), "");
    assert!(refused(r#"{"items": {"type": "text"}}"#, false).contains("s.items.type"));
    assert!(refused(r#"{"x-guidance": {}}"#, false).contains("x-guidance"));
    assert!(refused(r#"{"required": "a"}"#, false).contains("s.required"));
    assert!(refused(r#"{"enum": []}"#, false).contains("s.enum"));
    assert_eq!(refused("{}", true), "");
    let recursive = r##"{"$ref": "#/$defs/t", "$defs": {"t": {"type": "object",
        "properties": {"next": {"$ref": "#/$defs/t"}}, "additionalProperties": false}}}"##;
    assert_eq!(refused(recursive, true), "");
    let format = Format::JsonSchema { name: "n".into(), schema: recursive.into(), strict: true };
    let grammar = grammar(&ToolSet::default(), &format, false);
    takes(&grammar, r#"{"next": {"next": {}}}"#);
    refuses(&grammar, r#"{"next": {"next": 1}}"#);
    let pattern = r#"{"type": "string", "pattern": "(("}"#;
    let format = Format::JsonSchema { name: "n".into(), schema: pattern.into(), strict: true };
    assert!(matcher(&self::grammar(&ToolSet::default(), &format, false)).is_err());
}

#[test]
fn without_bounds_there_is_no_grammar() {
    let none = Bounds {
        release: Release::April,
        dsml_token: Some(DSML),
        in_calls: false,
        tools: &ToolSet::default(),
        format: &Format::Text,
    };
    assert_eq!(of_answer(&none), None);
    let not_callable = tools(Choice::None, true);
    assert_eq!(of_answer(&Bounds { tools: &not_callable, ..none }), None);
}

/// What the prompt renderer writes for a call is what the grammar takes, in every release.
#[test]
fn rendered_calls_are_taken() {
    use ironstar_text::Segment;
    use ironstar_text::chat::{Assistant, Conversation, Message, RenderOptions, ToolCall, render};
    for release in [Release::April, Release::V0731, Release::V41] {
        let call = |name: &str, arguments: &str| ToolCall {
            id: "1".to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let calls = vec![
            call("now", "{}"),
            call("weather", r#"{"city": "a\"</b>", "days": 3, "at": [1, 2]}"#),
        ];
        let turn = Assistant { calls, ..Assistant::default() };
        let messages = vec![Message::User("u".into()), Message::Assistant(turn)];
        let conversation = Conversation { messages, ..Conversation::default() };
        let options = RenderOptions { release, ..RenderOptions::default() };
        let prompt: String = render(&conversation, &options)
            .expect("rendered")
            .iter()
            .map(Segment::as_str)
            .collect();
        let written = prompt.split("</think>").nth(1).expect("a turn");
        let written = &written[..written.find("<｜end▁of").expect("its end")];
        for strict in [false, true] {
            let tools = tools(Choice::Required, strict);
            let format = Format::Text;
            let bounds = Bounds {
                release,
                dsml_token: Some(DSML),
                in_calls: false,
                tools: &tools,
                format: &format,
            };
            takes(&of_answer(&bounds).expect("bound"), written);
        }
    }
}
