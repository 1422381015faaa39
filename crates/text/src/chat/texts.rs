//! Markers and fixed texts of the published prompt formats.

use super::Task;

pub(super) const BOS: &str = "<｜begin▁of▁sentence｜>";
pub(super) const EOS: &str = "<｜end▁of▁sentence｜>";
pub(super) const SYSTEM: &str = "<｜System｜>";
pub(super) const USER: &str = "<｜User｜>";
pub(super) const ASSISTANT: &str = "<｜Assistant｜>";
pub(super) const LATEST_REMINDER: &str = "<｜latest_reminder｜>";
pub(super) const THINK: &str = "<think>";
pub(super) const THINK_END: &str = "</think>";

/// Markers that fixed texts contain.
pub(super) const TEXT_MARKERS: [&str; 3] = [THINK, THINK_END, "｜DSML｜"];

pub(super) fn task_marker(task: Task) -> &'static str {
    match task {
        Task::Action => "<｜action｜>",
        Task::Query => "<｜query｜>",
        Task::Authority => "<｜authority｜>",
        Task::Domain => "<｜domain｜>",
        Task::Title => "<｜title｜>",
        Task::ReadUrl => "<｜read_url｜>",
    }
}

/// Effort text of V4: the highest in April, the second highest from 0731 on.
pub(super) const EFFORT_ABSOLUTE: &str = concat!(
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n",
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to ",
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, ",
    "edge cases, and adversarial scenarios.\n",
    "Explicitly write out your entire deliberation process, documenting every intermediate step, ",
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left ",
    "unchecked.\n\n",
);

/// Effort text of V4 from 0731 on: the highest.
pub(super) const EFFORT_BEYOND: &str = concat!(
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n",
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: ",
    "exhaustively decompose the problem into its most fundamental components, trace every causal ",
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n",
    "Do not stop reasoning until you have independently verified the solution from multiple ",
    "angles and are certain that no assumption remains unchecked and no error remains ",
    "undiscovered.\n\n",
);

/// What stands before and after the number in V4.1's effort line.
pub(super) const EFFORT_NUMBER: [&str; 2] = [
    "Reasoning Effort: ",
    " (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
];

/// The tools section before the list of schemas. Names of tags stand between `@` signs.
pub(super) const TOOLS_BEFORE: &str = r#"

## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜@calls@>" block like the following:

<｜DSML｜@calls@>
<｜DSML｜@invoke@ name="$TOOL_NAME">
<｜DSML｜@parameter@ name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜@parameter@>
...
</｜DSML｜@invoke@>
<｜DSML｜@invoke@ name="$TOOL_NAME2">
...
</｜DSML｜@invoke@>
</｜DSML｜@calls@>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"#;

/// The tools section after the list of schemas.
pub(super) const TOOLS_AFTER: &str = concat!(
    "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool ",
    "calls.\n",
);

/// Before a schema of the answer.
pub(super) const FORMAT_SCHEMA: &str = concat!(
    "\n\n## Response Format:\n\n",
    "You MUST strictly adhere to the following schema to reply:\n",
);

/// V4's wish for a JSON object without a schema.
pub(super) const FORMAT_OBJECT: &str = concat!(
    "\n\nYou are a helpful assistant designed to output JSON.\n## Response Format:\n\n",
    "Reply with JSON object ONLY.",
);

/// What takes the place of a schema where the release has no such wish.
pub(super) const FORMAT_OBJECT_SCHEMA: &str = r#"{"type": "json_object"}"#;
