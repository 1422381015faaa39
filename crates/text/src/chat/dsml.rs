//! Tools and their calls in the markup that the models write.

use super::prompt::Prompt;
use super::texts::{TOOLS_AFTER, TOOLS_BEFORE};
use super::{Release, Tool, ToolCall};
use crate::json_text::JsonText;

/// Names of the three tags, which differ between releases.
struct Tags {
    calls: &'static str,
    invoke: &'static str,
    parameter: &'static str,
}

fn tags(release: Release) -> Tags {
    match release {
        Release::April | Release::V0731 => {
            Tags { calls: "tool_calls", invoke: "invoke", parameter: "parameter" }
        }
        Release::V41 => Tags { calls: " calls", invoke: " invoke", parameter: " parameter" },
    }
}

/// The section that explains the markup and lists the tools.
pub(super) fn write_tools(prompt: &mut Prompt, tools: &[Tool], release: Release) {
    let tags = tags(release);
    // Every second piece of the fixed text is the name of a tag.
    for (at, piece) in TOOLS_BEFORE.split('@').enumerate() {
        match piece {
            "calls" if at % 2 == 1 => prompt.fixed(tags.calls),
            "invoke" if at % 2 == 1 => prompt.fixed(tags.invoke),
            "parameter" if at % 2 == 1 => prompt.fixed(tags.parameter),
            text => prompt.fixed(text),
        }
    }
    for tool in tools {
        write_schema(prompt, tool, release);
        prompt.text("\n");
    }
    prompt.fixed(TOOLS_AFTER);
}

/// One line: what the April code was given, and the three fields that later code keeps of it.
fn write_schema(prompt: &mut Prompt, tool: &Tool, release: Release) {
    if release == Release::April {
        prompt.text(tool.function.as_str());
        return;
    }
    let text = |json: &Option<JsonText>, absent| match json {
        Some(json) if json.as_str() != "null" => json.as_str().to_owned(),
        _ => absent,
    };
    let description = text(&tool.description, "\"\"".to_owned());
    let parameters = text(&tool.parameters, "null".to_owned());
    let name = JsonText::from(&serde_json::Value::from(tool.name.as_str()));
    prompt.text(&format!(
        "{{\"name\": {}, \"description\": {description}, \"parameters\": {parameters}}}",
        name.as_str()
    ));
}

/// The block of calls that ends a turn of the model.
pub(super) fn write_calls(prompt: &mut Prompt, calls: &[ToolCall], release: Release) {
    let tags = tags(release);
    write_calls_open(prompt, release);
    for call in calls {
        open(prompt, tags.invoke);
        prompt.text(" name=\"");
        prompt.text(&call.name);
        prompt.text("\">\n");
        let arguments = arguments(&call.arguments);
        for (name, value) in &arguments {
            write_argument(prompt, tags.parameter, name, value);
            prompt.text("\n");
        }
        // The other releases join what may be an empty list of lines.
        if arguments.is_empty() && release != Release::V0731 {
            prompt.text("\n");
        }
        close(prompt, tags.invoke);
        prompt.text("\n");
    }
    close(prompt, tags.calls);
}

/// How a block of calls begins: what the model must have written to be calling a tool.
pub(super) fn write_calls_open(prompt: &mut Prompt, release: Release) {
    prompt.text("\n\n");
    open(prompt, tags(release).calls);
    prompt.text(">\n");
}

fn write_argument(prompt: &mut Prompt, tag: &'static str, name: &str, value: &Argument) {
    open(prompt, tag);
    prompt.text(" name=\"");
    prompt.text(name);
    let (is_string, text) = match value {
        Argument::String(text) => ("true", text.as_str()),
        Argument::Json(json) => ("false", json.as_str()),
    };
    prompt.text(&format!("\" string=\"{is_string}\">"));
    prompt.text(text);
    close(prompt, tag);
}

/// Value of an argument: strings are written raw, everything else as JSON.
enum Argument {
    String(String),
    Json(JsonText),
}

fn arguments(json: &str) -> Vec<(String, Argument)> {
    let entries = JsonText::parse(json).ok().and_then(|json| json.entries());
    match entries {
        None => vec![("arguments".to_owned(), Argument::String(json.to_owned()))],
        Some(entries) => entries
            .into_iter()
            .map(|(name, value)| match value.as_string() {
                Some(text) => (name, Argument::String(text)),
                None => (name, Argument::Json(value)),
            })
            .collect(),
    }
}

fn open(prompt: &mut Prompt, tag: &'static str) {
    prompt.fixed("<｜DSML｜");
    prompt.fixed(tag);
}

fn close(prompt: &mut Prompt, tag: &'static str) {
    prompt.fixed("</｜DSML｜");
    prompt.fixed(tag);
    prompt.fixed(">");
}
