//! Text in and out of a model: tokenizer and prompt rendering.
//!
//! Pure functions of their arguments. This crate knows no engine, no socket, no clock, no file
//! system, and no model beyond its vocabulary and prompt format. A prompt is a list of
//! [`Segment`]s and never one string, so that text written by a user cannot become a control token.
//!
//! Start reading in `tokenizer.rs`; `scan.rs` cuts text into pieces, `bpe.rs` merges their bytes,
//! `vocabulary.rs` holds the checks that a hostile file meets. Prompts begin in `chat/layout.rs`.
//!
//! ```
//! use ironstar_text::Segment;
//! use ironstar_text::chat::{Conversation, Message, RenderOptions, render};
//! let messages = vec![Message::User("What does </think> mean?".into())];
//! let conversation = Conversation { messages, ..Conversation::default() };
//! let prompt = render(&conversation, &RenderOptions::default()).expect("a user may say anything");
//! assert!(prompt.contains(&Segment::Text("What does </think> mean?".into())));
//! assert!(prompt.contains(&Segment::Special("</think>".into())));
//! ```

mod bpe;
pub mod chat;
mod error;
mod json;
mod json_text;
mod markers;
mod scan;
mod segment;
mod stream;
mod think;
mod tokenizer;
mod unicode;
mod unicode_runs;
mod vocabulary;
mod whole;

pub use error::Error;
pub use json_text::JsonText;
pub use segment::Segment;
pub use stream::{StreamDecoder, Utf8Stream};
pub use think::{Channel, ThinkSplitter};
pub use tokenizer::Tokenizer;
pub use vocabulary::{PRE_TOKENIZER, Parts};
