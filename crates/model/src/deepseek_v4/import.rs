//! Published checkpoints: names, storage types and metadata of each tensor as a GGUF file wants it
//! (spec 7.1 and 7.2). `ironstar quantize` walks the tensor table with these functions.

use super::shape::Shape;
use super::weights::{Field, Kind, TensorSpec};
use crate::Error;
use ironstar_gguf::safetensors::{Checkpoint, Dtype};
use ironstar_gguf::{TensorKind, Value};
use ironstar_quant::{Format, mxfp4};

/// Architecture of a file that holds a draft block alone.
pub const DRAFTER_ARCHITECTURE: &str = "deepseek4_mtp_support";

/// Metadata of the draft block's file.
#[must_use]
pub fn drafter_metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut all = shape.to_metadata();
    all[0].1 = Value::String(DRAFTER_ARCHITECTURE.into());
    all
}

/// The storage that other engines expect where nothing else is asked for.
#[must_use]
pub fn default_kind(spec: &TensorSpec) -> TensorKind {
    use Field as F;
    let format = match (spec.kind, spec.field) {
        (Kind::Table, _) => return TensorKind::I32,
        (Kind::Routed, _) => Format::Mxfp4,
        (_, F::CompressorPositions | F::IndexCompressorPositions) => Format::F16,
        (_, F::Embedding | F::IndexQuery) | (Kind::Float, _) => Format::F16,
        (_, F::SparkMarkovEmbedding | F::SparkMarkovOutput) => Format::Bf16,
        (Kind::Vector, _) => Format::F32,
        (Kind::Dense, _) => Format::Q8_0,
    };
    TensorKind::Block(format)
}

/// Bytes of one matrix of a tensor (`part` counts the experts of a stack), converted from a
/// published checkpoint. FP4 experts become MXFP4 without loss; everything else goes through f32.
/// `importance` has one number a column.
pub fn part_bytes(
    checkpoint: &Checkpoint,
    spec: &TensorSpec,
    part: usize,
    kind: TensorKind,
    importance: Option<&[f32]>,
) -> Result<Vec<u8>, Error> {
    let names = spec.published_names();
    let name = names.get(part).ok_or_else(|| Error::Step {
        found: format!("part {part} of {}", spec.name),
        wanted: format!("it has {} parts", names.len()),
    })?;
    if checkpoint.tensor(name).is_none() {
        return Err(Error::Missing { name: name.clone(), dims: spec.dims.clone() });
    }
    check_dims(checkpoint, spec, name)?;
    let format = match kind {
        TensorKind::I32 => return ids(checkpoint, name),
        TensorKind::Block(format) => format,
        other => return Err(unwritable(name, other)),
    };
    if format == Format::Mxfp4
        && let Some(bytes) = lossless(checkpoint, name)?
    {
        return Ok(bytes);
    }
    let values = checkpoint.to_f32(name)?;
    let info = format.info();
    let (Some(encode), Some(row)) = (info.encode, format.row_bytes(spec.dims[0])) else {
        return Err(unwritable(name, kind));
    };
    let mut bytes = vec![0; values.len() / spec.dims[0] * row];
    for (values, row) in values.chunks(spec.dims[0]).zip(bytes.chunks_mut(row)) {
        encode(values, importance, row);
    }
    Ok(bytes)
}

fn unwritable(name: &str, kind: TensorKind) -> Error {
    Error::Tensor {
        name: name.to_owned(),
        found: format!("{} asked for", kind.name()),
        wanted: "a type that has an encoder and whose blocks fill its rows".into(),
    }
}

/// Compares the dims of one published matrix with the table's.
fn check_dims(checkpoint: &Checkpoint, spec: &TensorSpec, name: &str) -> Result<(), Error> {
    let found = checkpoint.value_shape(name)?;
    let dims = &spec.dims[..spec.dims.len().min(2)];
    let wanted: Vec<u64> = dims.iter().rev().map(|&d| d as u64).collect();
    if found == wanted {
        return Ok(());
    }
    let (name, found) = (name.to_owned(), format!("shape {found:?}"));
    Err(Error::Tensor { name, found, wanted: format!("shape {wanted:?}") })
}

/// Expert ids, narrowed to 32 bits.
fn ids(checkpoint: &Checkpoint, name: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    for value in checkpoint.to_i64(name)? {
        let id = i32::try_from(value).map_err(|_| Error::Tensor {
            name: name.to_owned(),
            found: format!("expert {value}"),
            wanted: "ids below 2^31".into(),
        })?;
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    Ok(bytes)
}

/// FP4 with a scale for 32 columns is MXFP4 with its nibbles in another order. `None` for other
/// storage.
fn lossless(checkpoint: &Checkpoint, name: &str) -> Result<Option<Vec<u8>>, Error> {
    let meta = checkpoint.tensor(name);
    if !meta.is_some_and(|meta| matches!(meta.dtype, Dtype::I8 | Dtype::U8)) {
        return Ok(None);
    }
    let (codes, scales, _, _) = checkpoint.fp4_parts(name)?;
    let mut bytes = vec![0; scales.len() * Format::Mxfp4.info().block_bytes];
    match mxfp4::repack_published(&codes, &scales, &mut bytes) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) => Err(Error::Tensor {
            name: name.to_owned(),
            found: error.to_string(),
            wanted: "scales that are numbers".into(),
        }),
    }
}
