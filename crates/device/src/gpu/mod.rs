//! The GPU backend: one for every device API behind [`driver::Driver`], one kernel text
//! (`crates/device/kernels`).

pub(crate) mod driver;
