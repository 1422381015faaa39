//! Continuous batching: many requests on one engine, which one thread owns.
//!
//! Each step is one pass over rows of many sessions: the next row of every answer that runs (with
//! guesses after it, where nobody's prompt waits), and slices of the prompts that are being read,
//! as many rows as leave the answers their pace: from one token to the next goes no more than twice
//! what goes without them, by measured times (`pacer.rs`). Stored states come back in pieces, rows
//! for the next checkpoint are copied as their blocks end, and what takes time between two steps
//! is time that a slice does not get. Prompts take turns. What a session's tokens and their
//! probabilities are does not depend on any of it.
//!
//! **Admission** is in the order of arrival, when the planned memory of the session and of those
//! that are open stay within [`Limits::session_bytes`], and never evicts. A side request may pass
//! waiting ones, one at a time and each of them at most four times. What can never fit is refused.
//!
//! **Between steps** cancels, dropped tickets and deadlines are looked at: nothing goes on for more
//! than the step that runs. A step that fails is tried again for each of its requests alone; one
//! that panics loses all of its requests and nothing else.
//!
//! [`Scheduler`] is a machine without a thread, for tests with a [`FakeClock`] and a
//! [`scripted::Script`]; [`spawn`] puts it on one and gives a [`Client`].
//!
//! ```
//! use ironstar_engine::scheduler::*;
//! let script = scripted::Script::new(Box::new(SystemClock::default()), vec![5, 6], 9);
//! let scheduler = Scheduler::new(script, Box::new(SystemClock::default()), Limits::default());
//! let (client, thread) = spawn(scheduler)?;
//! let what = ironstar_engine::Generate { stop: vec![9], ..Default::default() };
//! let request = Request { prompt: vec![1, 2], what, ..Request::default() };
//! let (ticket, mut tokens) = (client.submit(request), Vec::new());
//! while let Some(event) = ticket.next_event() {
//!     if let Event::Token(token) = event {
//!         tokens.push(token.id);
//!     }
//! }
//! assert_eq!(tokens, [5, 6, 9]);
//! client.stop();
//! assert!(thread.join().is_ok());
//! # Ok::<(), std::io::Error>(())
//! ```

mod active;
mod clock;
mod constraint;
mod core;
mod pacer;
mod request;
pub mod scripted;
mod source;
mod thread;

pub use self::core::{Limits, Scheduler, Status};
pub use clock::{Clock, FakeClock, SystemClock};
pub use constraint::Constraint;
pub use request::{Event, Failure, Request, RequestId, Sink, Stats};
pub use source::{Facts, Made, Rows, Source, Work};
pub use thread::{Client, Ticket, spawn};

#[cfg(test)]
mod tests;
