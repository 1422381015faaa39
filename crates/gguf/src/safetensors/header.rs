//! The JSON of a checkpoint: a file's header, and the index of a sharded one. Both are read into
//! plain pairs, never into a tree, so memory follows the text; repeated names are kept as they
//! come, for the caller to refuse.

use crate::{Error, error};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// Longest header that is read; the largest published one has a few million bytes.
pub const HEADER_BYTES_MAX: u64 = 1 << 27;
/// Most dims of a tensor.
pub const DIMS_MAX: usize = 8;

/// The key of a header that is no tensor.
const NOT_A_TENSOR: &str = "__metadata__";

/// What a published tensor is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are safetensors' own")]
pub enum Dtype {
    F64,
    F32,
    F16,
    #[serde(rename = "BF16")]
    Bf16,
    #[serde(rename = "F8_E4M3")]
    F8E4M3,
    #[serde(rename = "F8_E8M0")]
    F8E8M0,
    I64,
    I32,
    I16,
    I8,
    U8,
    #[serde(rename = "BOOL")]
    Bool,
}

impl Dtype {
    /// Size of one element.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F64 | Dtype::I64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 => 2,
            Dtype::F8E4M3 | Dtype::F8E8M0 | Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
        }
    }
}

/// A tensor's description, unchecked.
#[derive(Deserialize)]
pub(super) struct Entry {
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    /// From the start of the data.
    pub data_offsets: (u64, u64),
}

impl Entry {
    /// Bytes that shape and type need. `None` if there are too many dims, or if they are so large
    /// that a product of some of them, twice, does not fit: then later arithmetic on them can.
    pub(super) fn bytes(&self) -> Option<u64> {
        let product = |dims: &[u64]| {
            dims.iter().try_fold(self.dtype.bytes(), |bytes, dim| bytes.checked_mul(*dim))
        };
        let nonzero: Vec<u64> = self.shape.iter().copied().filter(|dim| *dim != 0).collect();
        let largest = product(&nonzero).filter(|_| self.shape.len() <= DIMS_MAX)?;
        product(&self.shape).filter(|_| largest <= u64::MAX / 2)
    }
}

/// The descriptions of a file's tensors, and where its data begins.
pub(super) fn read(file: &str, bytes: &[u8]) -> Result<(Vec<(String, Entry)>, usize), Error> {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(error::truncated(file, "header length", 8, bytes.len() as u64));
    };
    let len = u64::from_le_bytes(*len);
    if len > HEADER_BYTES_MAX {
        let wanted = format!("a safetensors file with at most {HEADER_BYTES_MAX} is wanted");
        return Err(error::format(file, "header length", format!("{len} bytes"), wanted));
    }
    let header = usize::try_from(len).ok().and_then(|len| rest.get(..len));
    let Some(header) = header else {
        return Err(error::truncated(file, "header", len, rest.len() as u64));
    };
    let entries: Pairs<Entry> = serde_json::from_slice(header).map_err(|cause| {
        let wanted = "JSON with dtype, shape and data_offsets of each tensor is wanted";
        error::format(file, "header", error::shown(&cause.to_string()), wanted)
    })?;
    Ok((entries.0, 8 + header.len()))
}

/// Names of tensors, and of the files that an index says they are in.
pub(super) fn read_index(file: &str, text: &str) -> Result<Vec<(String, String)>, Error> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Pairs<String>,
    }
    let index: Index = serde_json::from_str(text).map_err(|cause| {
        let wanted = "JSON with a weight_map from tensors to files is wanted";
        error::format(file, "index", error::shown(&cause.to_string()), wanted)
    })?;
    Ok(index.weight_map.0)
}

/// The pairs of a JSON object in its order.
struct Pairs<V>(Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}

struct PairsVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for PairsVisitor<V> {
    type Value = Pairs<V>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object with a value for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<V>, A::Error> {
        let mut pairs = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == NOT_A_TENSOR {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value().map_err(|cause| {
                A::Error::custom(format!("tensor '{}': {cause}", error::shown(&name)))
            })?;
            pairs.push((name, value));
        }
        Ok(Pairs(pairs))
    }
}
