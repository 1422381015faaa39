//! The tests of this crate as one binary, which links once and keeps every core busy.

mod common;
mod faults;
mod gpu_attend;
mod gpu_chosen;
mod gpu_cluster;
mod gpu_decode;
mod gpu_halves;
mod gpu_part;
mod gpu_shortcuts;
mod gpu_tiles;
mod layer;
mod mutual;
mod op_vectors;
mod ops;
