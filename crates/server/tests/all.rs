//! The server over real sockets, on scripted answers.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod suite;
