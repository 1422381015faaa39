//! The GPU backend: one for every device API behind [`driver::Driver`], one kernel text
//! (`crates/device/kernels`).

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod driver;
