//! Everything of this crate that needs more than one module: links, gates, rendezvous.

mod cards;
mod faults;
mod groups;
mod links;
mod model;
mod processes;
mod rendezvous;
mod splits;
mod streams;
mod support;
mod verbs;

#[path = "../fake/provider.rs"]
mod provider;
