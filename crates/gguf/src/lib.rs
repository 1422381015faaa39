//! Containers of weights: GGUF files, read with distrust and written as a stream, and the published
//! safetensors layout.
//!
//! Knows block formats by name and size only; no model, no engine, no socket, no clock. Nothing that a file
//! says is believed before it is checked against the bytes that are there.
//!
//! Start reading at [`Gguf`], then `header.rs`.

mod bytes;
mod error;
mod file;
mod header;
pub mod safetensors;
mod value;
mod writer;

pub use bytes::Bytes;
pub use error::{Blame, Error};
pub use file::{Gguf, PARTS_MAX, TensorInfo, TensorKind};
pub use header::{ALIGNMENT_DEFAULT, ARRAY_DEPTH_MAX, DIMS_MAX, MAGIC, VERSION};
pub use value::{Array, Metadata, Value};
pub use writer::Writer;
