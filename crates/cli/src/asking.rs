//! From flags and text to the tokens of a prompt.

use crate::failure::Failure;
use crate::flags::{Effort, Prompt};
use ironstar_text::Tokenizer;
use ironstar_text::chat::{self, Conversation, Message, Release, RenderOptions, Thinking};

/// The format of current V4 weights. Without an effort it is that of every V4 release.
const RELEASE: Release = Release::V0731;

/// Whether the model shall reason, and how hard.
#[must_use]
pub fn thinking(flags: &Prompt) -> Thinking {
    match flags.effort {
        Some(Effort::Low) => Thinking::On(chat::Effort::Low),
        Some(Effort::High) => Thinking::On(chat::Effort::High),
        Some(Effort::Max) => Thinking::On(chat::Effort::Max),
        // In this release the low effort adds no text: plain thinking.
        None if flags.think => Thinking::On(chat::Effort::Low),
        None => Thinking::Off,
    }
}

/// A conversation that begins with the system text of the flags.
#[must_use]
pub fn conversation(system: Option<&str>) -> Conversation {
    let messages = system.map(|text| Message::System(text.to_owned())).into_iter().collect();
    Conversation { messages, ..Conversation::default() }
}

/// Tokens of a conversation, up to where the model's answer begins.
pub fn render(
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    thinking: Thinking,
) -> Result<Vec<u32>, Failure> {
    let options = RenderOptions { release: RELEASE, thinking, ..RenderOptions::default() };
    chat::render(conversation, &options)
        .and_then(|segments| tokenizer.encode_segments(&segments))
        .map_err(|error| Failure::caller(error.to_string()))
}

/// Tokens of one question.
pub fn question(
    tokenizer: &Tokenizer,
    system: Option<&str>,
    text: &str,
    thinking: Thinking,
) -> Result<Vec<u32>, Failure> {
    let mut conversation = conversation(system);
    conversation.messages.push(Message::User(text.to_owned()));
    render(tokenizer, &conversation, thinking)
}
