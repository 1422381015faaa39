//! Everything of this crate that needs more than one module: links, gates, rendezvous.

mod groups;
mod links;
mod support;
