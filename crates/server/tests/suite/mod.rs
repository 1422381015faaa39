//! One file a subject; `client.rs` is what they share.

mod client;
mod faults;
mod fields;
mod front;
mod held;
mod life;
mod limits;
mod load;
mod reuse;
mod streams;
mod trace;
