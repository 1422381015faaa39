//! The tests of this crate as one binary, which links once and keeps every core busy.

mod allocations;
mod common;
mod dspark;
mod dspark_golden;
mod formats;
mod gpu_host;
mod gpu_ranks;
mod hostile;
mod nano;
mod one_answer;
mod oracle;
mod parts;
mod pipeline;
mod published;
mod ranks;
mod shapes;
mod steering;
