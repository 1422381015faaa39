//! The tests of this crate as one binary, which links once and keeps every core busy.

mod cluster;
mod common;
mod diff;
mod dspark;
mod pack;
mod pipeline;
#[path = "../../../cluster/tests/fake/provider.rs"]
mod provider;
mod quantize;
mod ranks;
mod run;
mod steer;
mod synth;
