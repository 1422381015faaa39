//! Formats, without an example.
mod good;
mod bare;

/// The table.
pub static FORMATS: &[u32] = &[good::INFO, bare::INFO];
