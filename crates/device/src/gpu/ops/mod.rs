//! What each operation records, one file a family. Meanings are in `cpu/reference`; kernels with
//! the operations' names in `crates/device/kernels`.

mod ahead;
pub(super) mod attention;
mod big;
mod chosen;
pub(super) mod cluster;
pub(super) mod compressor;
mod decode;
pub(super) mod draw;
pub(super) mod experts;
mod few;
pub(super) mod halves;
pub(super) mod heads;
pub(super) mod indexer;
pub(super) mod part;
pub(super) mod products;
mod shared;
pub(super) mod streams;

/// Threads of a group where a kernel does not care.
const GROUP: u32 = 128;
/// Threads of a group that sums over a row; the number is part of the result's bits.
const ROW_GROUP: u32 = 256;
/// Threads of a group that sums over all streams of a row; part of the result's bits.
const STREAMS_GROUP: u32 = 512;
/// Simdgroups of a [`GROUP`].
const SIMDGROUPS: u32 = GROUP / 32;
