//! Black-box tests of the crate, one module a topic; see each module's first lines.

mod checkpoint;
mod files;
mod golden;
mod helpers;
mod hostile;
mod imatrix;
mod metadata;
mod packed;
mod published;
mod round_trip;
mod split;
mod writer;
