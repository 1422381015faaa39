//! Fuzzing on stable Rust: a table of targets, and a driver that feeds them mutated inputs.
//!
//! A target is a function from any bytes to a signature of what happened; it must not panic, take
//! long, or take more memory than its input justifies. The driver must not know what a target
//! parses. The same table serves libFuzzer (`fuzz/libfuzzer/`).
//!
//! Start reading at [`TARGETS`], then `session.rs` for the loop.
//!
//! ```
//! use ironstar_fuzz::{Session, TARGETS};
//! let target = &TARGETS[0];
//! let mut session = Session::new(target, 1);
//! for _ in 0..10 {
//!     let input = session.next_input();
//!     session.keep(input.clone(), (target.run)(&input));
//! }
//! ```

mod memory;
mod minimise;
mod mutate;
mod session;
mod targets;

pub use memory::Counting;
pub use minimise::minimise;
pub use mutate::Random;
pub use session::Session;
pub use targets::{SELF_TESTS, TARGETS, Target, find};
