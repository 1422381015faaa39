//! Everything of this crate that needs more than one module: links, gates, rendezvous.

mod faults;
mod groups;
mod links;
mod rendezvous;
mod splits;
mod streams;
mod support;
