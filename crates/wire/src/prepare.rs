//! A call to a prompt for one model, with how to read and how to bound what follows it.

use ironstar_text::Segment;
use ironstar_text::chat::{
    Conversation, End, Message, Release, RenderOptions, Thinking, Tool, ToolChoice,
    render_replaying,
};

use crate::grammar::{self, Bounds};
use crate::{
    ApiError, Call, CallMemory, Choice, Format, ParserOptions, Prompt, Protocol, ToolSet, parse,
};

/// What a server knows of its model and its defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Prompt format.
    pub release: Release,
    /// Whether the model reasons where the request does not say.
    pub thinking: Thinking,
    /// Id of the token `｜DSML｜`; without one no call can be enforced.
    pub dsml_token: Option<u32>,
    /// Whether the server tells the parser of `<think>` tokens
    /// ([`ParserOptions::think_tokens`]).
    pub think_tokens: bool,
}

/// A prompt and what follows from it.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The prompt, for `Tokenizer::encode_segments`.
    pub segments: Vec<Segment>,
    /// Whether the model reasons in this answer.
    pub thinking: Thinking,
    /// How to parse the answer.
    pub parser: ParserOptions,
    /// Grammar of the answer in llguidance's Lark dialect, if it is bound by one. It describes what
    /// follows the reasoning: where the prompt ended within it, a matcher takes tokens from the one
    /// after `</think>` on.
    pub grammar: Option<String>,
}

/// Renders a conversation. `call_ids` is [`ParserOptions::call_ids`].
///
/// A call that must be made is not forced upon a model that reasons first: then the prompt is as
/// for a free choice, and the grammar asks for the call after the reasoning.
pub fn prepare(
    call: &Call,
    profile: &Profile,
    memory: &CallMemory,
    call_ids: &str,
) -> Result<Prepared, ApiError> {
    let Prompt::Conversation(conversation) = &call.prompt else {
        return Err(ApiError::invalid("prompt", "a plain prompt is not rendered"));
    };
    let thinking = call.thinking.unwrap_or(profile.thinking);
    let thinks = thinking != Thinking::Off;
    let must_call = matches!(call.tools.choice, Choice::Required | Choice::Named(_));
    if must_call && profile.dsml_token.is_none() {
        let message = "the model that is loaded has no token for calls, so none can be demanded; \
                       use \"auto\"";
        return Err(ApiError::unsupported("tool_choice", message));
    }
    if call.continue_last && call.format != Format::Text {
        let message = "a format binds a whole answer, not the rest of one: drop the format, or let \
                       the last message be the user's";
        return Err(ApiError::unsupported("messages", message));
    }
    let in_calls = must_call && !thinks && !call.continue_last;
    let mut conversation = Conversation { ..conversation.clone() };
    conversation.tool_choice = match call.tools.choice {
        Choice::None => ToolChoice::None,
        _ if in_calls => ToolChoice::Required,
        _ => ToolChoice::Auto,
    };
    memory.restore(&mut conversation);
    if profile.release == Release::V41 {
        spell_namespaces(&mut conversation, &call.tools)?;
    }
    if call.protocol == Protocol::Messages && profile.release != Release::V41 {
        remind(&mut conversation.messages);
    }
    let end = if call.continue_last { End::ContinueLast } else { End::Answer };
    let options = RenderOptions { release: profile.release, thinking, end };
    let written =
        |calls: &[ironstar_text::chat::ToolCall]| memory.written(calls).map(<[Segment]>::to_vec);
    let segments = render_replaying(&conversation, &options, &written)
        .map_err(|error| ApiError::invalid("messages", error.to_string()))?;
    let bounds = Bounds {
        release: profile.release,
        dsml_token: profile.dsml_token,
        in_calls,
        tools: &call.tools,
        format: &call.format,
    };
    let parser = ParserOptions {
        release: profile.release,
        reasoning: thinks && !(call.continue_last && answered(&conversation)),
        think_tokens: profile.think_tokens,
        in_calls,
        tools: call.tools.clone(),
        stop: call.stop.clone(),
        call_ids: call_ids.to_owned(),
        call_prefix: if call.protocol == Protocol::Messages { "toolu_" } else { "call_" },
    };
    Ok(Prepared { segments, thinking, parser, grammar: grammar::of_answer(&bounds) })
}

/// Tools of namespaces in the way of V4.1: two colons in their names, and what the namespace is for
/// before what the tool does. The parser takes the names back.
fn spell_namespaces(conversation: &mut Conversation, tools: &ToolSet) -> Result<(), ApiError> {
    let spelt = |name: &str| {
        let tool = tools.find(name)?;
        let (space, local) = tool.namespace.as_ref()?;
        Some((format!("{space}::{local}"), tool))
    };
    for shown in &mut conversation.tools {
        let Some((name, tool)) = spelt(shown.name()) else { continue };
        let text = |json: &str| serde_json::from_str::<String>(json).unwrap_or_default();
        let mut description = text(&tool.namespace_description);
        if !description.is_empty() {
            description.push('\n');
        }
        description.push_str(&text(&tool.description));
        let description = serde_json::Value::from(description).to_string();
        let json = parse::tools::shown(&name, &description, &tool.parameters);
        *shown = Tool::from_json(&json)
            .map_err(|error| ApiError::invalid("tools", error.to_string()))?;
    }
    for message in &mut conversation.messages {
        let Message::Assistant(turn) = message else { continue };
        for call in &mut turn.calls {
            if let Some((name, _)) = spelt(&call.name) {
                call.name = name;
            }
        }
    }
    Ok(())
}

/// Instructions among the messages of this protocol come and go with the turns. A release that has
/// no place for them but the head gets them where they are, in the words that DeepSeek's own
/// service has for them: at the head they would change the prompt from its beginning.
fn remind(messages: &mut [Message]) {
    let begun = messages.iter().position(|message| !matches!(message, Message::System(_)));
    for message in messages.iter_mut().skip(begun.unwrap_or(usize::MAX)) {
        if let Message::System(text) = message {
            *message = Message::User(format!("<system-reminder>\n{text}\n</system-reminder>"));
        }
    }
}

/// Whether the last message, which is to be continued, is past its reasoning.
fn answered(conversation: &Conversation) -> bool {
    match conversation.messages.last() {
        Some(Message::Assistant(last)) => !last.content.is_empty() || !last.calls.is_empty(),
        _ => false,
    }
}
