//! The tests of this crate as one binary, which links once and keeps every core busy.

mod cards;
mod common;
mod draw;
mod dump;
mod faults;
mod nano;
mod pipeline;
mod scheduler;
mod score;
mod session;
mod speculation;
mod steering;
mod store;
mod store_kill;
mod store_traffic;
