//! Containers of weights: GGUF files, read with distrust and written as a stream, and the
//! published safetensors layout.
//!
//! Knows block formats by name and size only; no model, no engine, no socket, no clock. Nothing
//! that a file says is believed before it is checked against the bytes that are there: whatever
//! the bytes, reading gives a model or an [`Error`], in time and memory proportional to the file.
//!
//! Start reading at [`Gguf`], then `header.rs`; for checkpoints at [`safetensors::Checkpoint`].
//!
//! ```
//! # use ironstar_gguf::{Gguf, TensorKind, Value, Writer};
//! let mut writer = Writer::new(std::io::Cursor::new(Vec::new()));
//! writer.metadata("general.architecture", Value::String("example".into()))?;
//! writer.tensor("ids", TensorKind::I32, &[2])?;
//! writer.data("ids", &[1, 0, 0, 0, 2, 0, 0, 0])?;
//! let model = Gguf::from_bytes(writer.finish()?.into_inner())?;
//! assert_eq!(model.metadata().str("general.architecture")?, "example");
//! assert_eq!(model.tensor("ids").map(|t| t.element_count()), Some(2));
//! # Ok::<(), ironstar_gguf::Error>(())
//! ```

mod bytes;
mod error;
mod file;
mod header;
mod imatrix;
mod metadata;
mod packed;
pub mod safetensors;
mod split;
mod tensor;
mod value;
mod writer;

pub use bytes::Bytes;
pub use error::{Blame, Error};
pub use file::Gguf;
pub use header::{
    ALIGNMENT_DEFAULT, ALIGNMENT_KEY, ALIGNMENT_MAX, ARRAY_DEPTH_MAX, DIMS_MAX, ENTRIES_MAX,
    HEADER_BYTES_MAX, MAGIC, TENSORS_MAX, VERSION,
};
pub use imatrix::Imatrix;
pub use metadata::Metadata;
pub use packed::{PLANES_ALIGNMENT_KEY, PLANES_KEY, PLANES_TYPE_BASE, pack, unpack};
pub use split::PARTS_MAX;
pub use tensor::{DataPlace, TensorInfo, TensorKind};
pub use value::{Array, Value};
pub use writer::Writer;
