//! API protocols as pure functions: bytes of a request to a [`Call`], text of the model to events,
//! events to the bytes of an answer.
//!
//! This crate knows no socket, clock, engine, thread or file; ids and times are handed in. Nothing
//! that a client sends may make it panic, recurse without bound, or hold more than a small multiple
//! of the body.
//!
//! Start reading at [`parse()`], then [`OutputParser`], then [`Encoder`]. `parse/` has a file for
//! each protocol, `encode/` too; what they share stands beside them.
//!
//! ```
//! use ironstar_wire::{Limits, Protocol, parse};
//! let body = br#"{"messages": [{"role": "user", "content": "Hi"}], "temperature": 3}"#;
//! let error = parse(Protocol::Chat, body, &Limits::default()).expect_err("3 is too hot");
//! assert_eq!((error.status(), error.param.as_deref()), (400, Some("temperature")));
//! ```

mod call;
mod encode;
mod error;
mod json;
mod memory;
mod output;
mod parse;
mod prepare;

pub mod grammar;

pub use call::{
    Call, Choice, Format, Limits, OfferedTool, PlainPrompt, Prompt, Protocol, Sampling, ToolKind,
    ToolSet,
};
pub use encode::{Collector, Encoder, Finish, Frame, Identity, Usage};
pub use error::{ApiError, ErrorKind};
pub use memory::{CallMemory, SampledCalls};
pub use output::{Output, OutputParser, ParserOptions, TokenLogprobs, TopLogprob};
pub use parse::parse;
pub use prepare::{Prepared, Profile, prepare};
