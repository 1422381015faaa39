//! The tests of this crate as one binary, which links once and keeps every core busy.

mod conversations;
mod recipe;
