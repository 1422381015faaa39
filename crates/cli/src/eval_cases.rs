//! Cases of `ironstar eval` and how each is scored (docs/testing.md). Pure: no model, no files.
//!
//! - spans: `{"kind", "ids", "spans": [[a, b], ..]}`: a span is right when the likeliest token
//!   after each of positions a-1 .. b-2 is the next one.
//! - answer: `{"kind", "prompt", "answer"}`: the greedy answer after the last `</think>`, stripped,
//!   is equal.
//! - call: `{"kind", "prompt", "call": [name, arguments]}`: the first tool call of the greedy
//!   answer is equal.

use serde::Deserialize;
use serde_json::{Map, Value};

/// One case.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Case {
    /// Name of the group it is counted in.
    pub kind: String,
    /// What is asked.
    #[serde(flatten)]
    pub task: Task,
}

/// What a case asks.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub enum Task {
    /// Spans of a sequence that must be predicted.
    Spans {
        /// Tokens from position 0.
        ids: Vec<u32>,
        /// Half-open ranges of positions.
        spans: Vec<(usize, usize)>,
    },
    /// A prompt and the tool call that must be made.
    Call {
        /// Rendered prompt.
        prompt: String,
        /// Name and arguments.
        call: (String, Map<String, Value>),
    },
    /// A prompt and the answer that must be given.
    Answer {
        /// Rendered prompt.
        prompt: String,
        /// Text without the reasoning.
        answer: String,
    },
}

/// Reads a file of cases, one JSON object a line; the error names the line.
pub fn parse_cases(text: &str) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let case: Case = serde_json::from_str(line)
            .map_err(|error| format!("line {}: not a case: {error}", index + 1))?;
        if let Task::Spans { ids, spans } = &case.task
            && let Some((a, b)) = spans.iter().find(|(a, b)| *a == 0 || a >= b || *b > ids.len())
        {
            return Err(format!(
                "line {}: span [{a}, {b}] is not inside positions 1..{}",
                index + 1,
                ids.len()
            ));
        }
        cases.push(case);
    }
    Ok(cases)
}

/// How many tokens an answer of this kind may have.
#[must_use]
pub fn answer_tokens_max(kind: &str) -> usize {
    match kind.split('-').next() {
        _ if kind.ends_with("-thinking") => 170,
        Some("tool") => 190,
        Some("json" | "code") => 170,
        _ => 100,
    }
}

/// Spans that are right; `best[i]` is the likeliest token after position i.
#[must_use]
pub fn right_spans(ids: &[u32], spans: &[(usize, usize)], best: &[u32]) -> usize {
    spans.iter().filter(|(a, b)| best.get(a - 1..b - 1) == ids.get(*a..*b)).count()
}

/// Whether an output is the answer.
#[must_use]
pub fn is_answer(output: &str, answer: &str) -> bool {
    output.rsplit("</think>").next().unwrap_or(output).trim() == answer
}

/// The first tool call in an output, if it is well formed.
#[must_use]
pub fn first_call(output: &str) -> Option<(String, Map<String, Value>)> {
    let (_, rest) = output.split_once("<｜DSML｜invoke name=\"")?;
    let (name, rest) = rest.split_once("\">\n")?;
    let (mut body, _) = rest.split_once("</｜DSML｜invoke>")?;
    let mut arguments = Map::new();
    while let Some((_, rest)) = body.split_once("<｜DSML｜parameter name=\"") {
        let (key, rest) = rest.split_once("\" string=\"")?;
        let (is_string, rest) = rest.split_once("\">")?;
        let (value, rest) = rest.split_once("</｜DSML｜parameter>")?;
        let value = match is_string {
            "true" => Value::from(value),
            "false" => serde_json::from_str(value).ok()?,
            _ => return None,
        };
        arguments.insert(key.to_owned(), value);
        body = rest;
    }
    (!name.contains('"')).then(|| (name.to_owned(), arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_from_the_output() {
        let output = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n\
            <｜DSML｜parameter name=\"a\" string=\"true\">x \"y\"</｜DSML｜parameter>\n\
            <｜DSML｜parameter name=\"b\" string=\"false\">[1, 2]</｜DSML｜parameter>\n\
            </｜DSML｜invoke>\n</｜DSML｜tool_calls>";
        let (name, arguments) = first_call(output).expect("the call above is well formed");
        assert_eq!(name, "f");
        assert_eq!(Value::Object(arguments), serde_json::json!({"a": "x \"y\"", "b": [1, 2]}));
        assert_eq!(first_call("no call"), None);
        assert_eq!(first_call(&output.replace("[1, 2]", "[1, ")), None);
    }

    #[test]
    fn cases_are_checked() {
        let cases = parse_cases(
            "{\"kind\": \"n\", \"ids\": [1, 2, 3], \"spans\": [[1, 3]]}\n\n\
             {\"kind\": \"f\", \"prompt\": \"p\", \"answer\": \"a\"}\n\
             {\"kind\": \"t\", \"prompt\": \"p\", \"call\": [\"f\", {\"x\": 1}]}",
        );
        let cases = cases.expect("three cases");
        assert_eq!(cases.len(), 3);
        assert!(matches!(cases[2].task, Task::Call { .. }));
        let bad = parse_cases("{\"kind\": \"n\", \"ids\": [1], \"spans\": [[1, 3]]}");
        assert!(bad.expect_err("the span is too long").starts_with("line 1"));
    }

    #[test]
    fn spans_need_every_token() {
        let ids = [5, 6, 7, 8];
        assert_eq!(right_spans(&ids, &[(1, 3), (3, 4)], &[6, 7, 9, 0]), 1);
        assert_eq!(right_spans(&ids, &[(1, 3), (3, 4)], &[6, 7, 8, 0]), 2);
    }

    #[test]
    fn reasoning_is_not_the_answer() {
        assert!(is_answer("2 and 2\n</think> 4 ", "4"));
        assert!(!is_answer("4 or 5", "4"));
    }
}
