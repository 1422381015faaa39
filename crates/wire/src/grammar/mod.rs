//! Grammars of answers, as text in the Lark dialect of llguidance.
//!
//! Text only: who holds a matcher compiles it. Call syntax is decoded so that it cannot be
//! malformed; values of strings are free. Where a schema is strict or a format asked for, values
//! follow the schema.

mod schema;

#[cfg(test)]
mod tests;

pub(crate) use schema::check_schema;
use schema::{Property, PropertyValue, json_rule, properties};

use ironstar_text::chat::Release;

use crate::{Choice, Format, OfferedTool, ToolSet};

/// What bounds an answer.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// Prompt format, which names the tags.
    pub release: Release,
    /// Id of the token `｜DSML｜`.
    pub dsml_token: Option<u32>,
    /// Whether the prompt opened a block of calls.
    pub in_calls: bool,
    /// Tools and choice.
    pub tools: &'a ToolSet,
    /// Form of the text.
    pub format: &'a Format,
}

/// The grammar of an answer after its reasoning; `None` where anything goes.
///
/// A free choice of tools without a format is bound too, from the call's marker on, if a
/// `｜DSML｜` token is known: what is before it may be any text.
#[must_use]
pub fn of_answer(bounds: &Bounds<'_>) -> Option<String> {
    let calls = bounds.dsml_token.filter(|_| bounds.tools.callable());
    let must = matches!(bounds.tools.choice, Choice::Required | Choice::Named(_));
    let mut rules = Rules::default();
    let text = match bounds.format {
        Format::Text => None,
        Format::JsonObject => Some(rules.json(r#"{"type": "object"}"#, false)),
        Format::JsonSchema { schema, strict, .. } => Some(rules.json(schema, *strict)),
    };
    let start = match (calls, must, text) {
        (None, _, None) => return None,
        (None, _, Some(text)) => text,
        (Some(token), true, _) => rules.block(bounds, token),
        (Some(token), false, Some(text)) => {
            let block = rules.block(bounds, token);
            format!("{text} | {block}")
        }
        (Some(token), false, None) => {
            let block = rules.block(bounds, token);
            rules.add("TEXT", "/(?s:.*)/");
            // Where the text ends before the marker it ends with the bracket of the tag.
            format!("TEXT | before_{block}")
        }
    };
    Some(format!("start: {start}\n{}", rules.text))
}

#[derive(Default)]
struct Rules {
    text: String,
    json: usize,
    has_any: bool,
    has_free_text: bool,
}

impl Rules {
    fn add(&mut self, name: &str, body: &str) {
        self.text.push_str(&format!("{name}: {body}\n"));
    }

    /// A rule for JSON by a schema; returns its name.
    fn json(&mut self, schema: &str, strict: bool) -> String {
        let name = format!("json_{}", self.json);
        self.json += 1;
        self.add(&name, &json_rule(schema, strict));
        name
    }

    /// The block of calls; returns the name of its rule.
    fn block(&mut self, bounds: &Bounds<'_>, token: u32) -> String {
        let tags = Tags::new(bounds.release, token);
        let callable: Vec<&OfferedTool> = match &bounds.tools.choice {
            Choice::Named(name) => bounds.tools.find(name).into_iter().collect(),
            _ => bounds.tools.tools.iter().collect(),
        };
        let names: Vec<String> =
            callable.iter().enumerate().map(|(at, tool)| self.call(at, tool, &tags)).collect();
        self.add("one_call", &names.join(" | "));
        let more = if bounds.tools.parallel { "one_call*" } else { "" };
        self.add("calls", &format!("one_call {more} \"</\" {}", tags.end(tags.calls, "")));
        let Tags { marker, calls, .. } = &tags;
        if bounds.in_calls {
            return "calls".to_owned();
        }
        let open = format!("{marker} {} calls", quoted(&format!("{calls}>\n")));
        self.add("block", &format!("\"\\n\\n<\" {open}"));
        self.add("before_block", &format!("TEXT_AND_BRACKET {open}"));
        self.add("TEXT_AND_BRACKET", "/(?s:.*)</");
        "block".to_owned()
    }

    /// A call of one tool; returns the name of its rule.
    fn call(&mut self, at: usize, tool: &OfferedTool, tags: &Tags) -> String {
        let strict = tool.strict.then(|| properties(&tool.parameters)).flatten();
        let parameters = match strict {
            None => {
                self.any_parameter(tags);
                "any_parameter*".to_owned()
            }
            Some(all) => {
                let each = all.iter().enumerate().map(|(number, property)| {
                    let name = format!("parameter_{at}_{number}");
                    self.parameter(&name, property, tags);
                    if property.required { name } else { format!("{name}?") }
                });
                each.collect::<Vec<_>>().join(" ")
            }
        };
        let name = format!("call_{at}");
        let spelt = match &tool.namespace {
            Some((space, local)) if tags.release == Release::V41 => format!("{space}::{local}"),
            _ => tool.name.clone(),
        };
        let open = quoted(&format!("{} name=\"{spelt}\">\n", tags.invoke));
        // A release that joins no lines leaves an empty one.
        let empty =
            if parameters.ends_with(['*', '?']) || parameters.is_empty() { "\"\\n\"?" } else { "" };
        let close = tags.end(tags.invoke, "\n");
        let body = format!("\"<\" {} {open} {parameters} {empty} \"</\" {close}", tags.marker);
        self.add(&name, &body);
        name
    }

    /// A parameter of any name, with text or any JSON.
    fn any_parameter(&mut self, tags: &Tags) {
        if self.has_any {
            return;
        }
        self.has_any = true;
        self.free_text();
        self.add("ANY_NAME", "/[^\"<>\\n]+/");
        let json = self.json("{}", false);
        let (open, close) = (format!("{} name=\"", tags.parameter), tags.end(tags.parameter, "\n"));
        let text = format!("\"\\\" string=\\\"true\\\">\" FREE_TEXT {close}");
        let value = format!("\"\\\" string=\\\"false\\\">\" {json} \"</\" {close}");
        let body = format!("\"<\" {} {} ANY_NAME ({text} | {value})", tags.marker, quoted(&open));
        self.add("any_parameter", &body);
    }

    fn parameter(&mut self, rule: &str, property: &Property, tags: &Tags) {
        let is_string = !matches!(property.value, PropertyValue::Json(_));
        let open = format!("{} name=\"{}\" string=\"{is_string}\">", tags.parameter, property.name);
        let value = match &property.value {
            PropertyValue::Text => {
                self.free_text();
                "FREE_TEXT".to_owned()
            }
            PropertyValue::OneOf(texts) => {
                let each: Vec<String> =
                    texts.iter().map(|text| quoted(&format!("{text}</"))).collect();
                format!("({})", each.join(" | "))
            }
            PropertyValue::Json(schema) => format!("{} \"</\"", self.json(schema, true)),
        };
        let close = tags.end(tags.parameter, "\n");
        self.add(rule, &format!("\"<\" {} {} {value} {close}", tags.marker, quoted(&open)));
    }

    /// Text up to the bracket of a closing tag: only the marker after it can end it.
    fn free_text(&mut self) {
        if !self.has_free_text {
            self.has_free_text = true;
            self.add("FREE_TEXT", "/(?s:.*)<\\//");
        }
    }
}

/// How tags are spelt. Their brackets belong to what stands before the marker.
struct Tags {
    release: Release,
    marker: String,
    calls: &'static str,
    invoke: &'static str,
    parameter: &'static str,
}

impl Tags {
    fn new(release: Release, token: u32) -> Self {
        let (calls, invoke, parameter) = match release {
            Release::April | Release::V0731 => ("tool_calls", "invoke", "parameter"),
            Release::V41 => (" calls", " invoke", " parameter"),
        };
        Self { release, marker: format!("<[{token}]>"), calls, invoke, parameter }
    }

    /// The rest of a closing tag, after its bracket and slash.
    fn end(&self, name: &str, after: &str) -> String {
        format!("{} {}", self.marker, quoted(&format!("{name}>{after}")))
    }
}

/// A Lark string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
