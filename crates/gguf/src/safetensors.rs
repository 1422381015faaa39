//! Published checkpoints: safetensors files, alone or sharded by an index, in the layout of spec 7.1.
//!
//! A header is JSON behind a length; offsets in it are claims until checked. Matrices may be stored as E4M3
//! with a grid of power-of-two scales, or as FP4 pairs with one E8M0 scale per 32 columns; both come with a
//! second tensor of scales (`X.weight` with `X.scale` or `X.weight_scale_inv`).

use crate::bytes::{Bytes, Store};
use crate::file::map;
use crate::{Error, error};
use ironstar_quant::{bf16_to_f32, f16_to_f32, fp4, fp8};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path};
use std::sync::Arc;

/// Longest header that is read: the largest published one is a few megabytes.
pub const HEADER_BYTES_MAX: u64 = 256 << 20;
/// Name of the index of a sharded checkpoint.
pub const INDEX: &str = "model.safetensors.index.json";

/// What a published tensor is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are safetensors' own")]
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    F8E4M3,
    F8E8M0,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

impl Dtype {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "F64" => Dtype::F64,
            "F32" => Dtype::F32,
            "F16" => Dtype::F16,
            "BF16" => Dtype::Bf16,
            "F8_E4M3" => Dtype::F8E4M3,
            "F8_E8M0" => Dtype::F8E8M0,
            "I64" => Dtype::I64,
            "I32" => Dtype::I32,
            "I16" => Dtype::I16,
            "I8" => Dtype::I8,
            "U8" => Dtype::U8,
            "BOOL" => Dtype::Bool,
            _ => return None,
        })
    }

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

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorMeta {
    /// What it is stored as.
    pub dtype: Dtype,
    /// Dims, outermost first as in the file.
    pub shape: Vec<u64>,
    shard: usize,
    range: Range<usize>,
}

struct Shard {
    name: String,
    store: Arc<Store>,
}

/// An opened checkpoint. Names are kept without a leading `model.`.
pub struct Checkpoint {
    shards: Vec<Shard>,
    tensors: BTreeMap<String, TensorMeta>,
}

impl Checkpoint {
    /// Opens a file, or a folder with an index or a single `model.safetensors`.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut checkpoint = Checkpoint { shards: Vec::new(), tensors: BTreeMap::new() };
        if !path.is_dir() {
            checkpoint.add(path.display().to_string(), map(path)?)?;
            return Ok(checkpoint);
        }
        let index = path.join(INDEX);
        if !index.exists() {
            let single = path.join("model.safetensors");
            checkpoint.add(single.display().to_string(), map(&single)?)?;
            return Ok(checkpoint);
        }
        let announced = read_index(&index)?;
        let mut files: Vec<&String> = announced.values().collect();
        files.sort();
        files.dedup();
        for file in files {
            let shard = path.join(file);
            checkpoint.add(shard.display().to_string(), map(&shard)?)?;
        }
        match announced.keys().find(|name| checkpoint.tensor(name).is_none()) {
            Some(missing) => Err(error::format(
                &index.display().to_string(),
                missing,
                "the tensor is announced but in no shard",
                "the shards belong to the index; fetch the checkpoint anew",
            )),
            None => Ok(checkpoint),
        }
    }

    /// Reads one file that lies in memory.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, Error> {
        let mut checkpoint = Checkpoint { shards: Vec::new(), tensors: BTreeMap::new() };
        checkpoint.add(name.to_owned(), Store::Vec(bytes))?;
        Ok(checkpoint)
    }

    /// Names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor by name, with or without a leading `model.`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorMeta> {
        self.tensors.get(name.strip_prefix("model.").unwrap_or(name))
    }

    /// The stored bytes of a tensor.
    pub fn bytes(&self, name: &str) -> Result<Bytes, Error> {
        let meta = self.need(name)?;
        let bytes = Bytes::new(&self.shards[meta.shard].store, meta.range.clone());
        bytes.ok_or_else(|| self.wrong(name, "its range is outside", "the file must hold it"))
    }

    /// The values of a tensor as floats: scales applied, packed pairs taken apart.
    pub fn to_f32(&self, name: &str) -> Result<Vec<f32>, Error> {
        let meta = self.need(name)?;
        let bytes = self.bytes(name)?;
        match (meta.dtype, self.scales_of(name)) {
            (Dtype::F8E4M3, Some(scales)) => self.fp8(name, &scales),
            (Dtype::I8 | Dtype::U8, Some(_)) => self.fp4(name),
            (Dtype::F8E4M3, None) => Ok(bytes.iter().map(|code| fp8::e4m3_to_f32(*code)).collect()),
            (Dtype::F8E8M0, _) => Ok(bytes.iter().map(|code| fp8::e8m0_to_f32(*code)).collect()),
            _ => plain(meta.dtype, &bytes).ok_or_else(|| {
                self.wrong(name, &format!("it holds {:?}", meta.dtype), "floats are wanted")
            }),
        }
    }

    /// The whole numbers of a tensor (I64 or I32).
    pub fn to_i64(&self, name: &str) -> Result<Vec<i64>, Error> {
        let bytes = self.bytes(name)?;
        match self.need(name)?.dtype {
            Dtype::I64 => {
                Ok(bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect())
            }
            Dtype::I32 => {
                Ok(bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect())
            }
            other => {
                Err(self.wrong(name, &format!("it holds {other:?}"), "whole numbers are wanted"))
            }
        }
    }

    /// Codes, E8M0 scales, rows and columns of a matrix of packed FP4 pairs, as stored: byte j of a row holds
    /// columns 2j (low half) and 2j + 1; scales are one per 32 columns of a row (spec 7.1).
    pub fn fp4_parts(&self, name: &str) -> Result<(Bytes, Bytes, usize, usize), Error> {
        let meta = self.need(name)?;
        let Some(scales) = self.scales_of(name).filter(|_| packable(meta.dtype)) else {
            let found = format!("it holds {:?} without scales", meta.dtype);
            return Err(self.wrong(
                name,
                &found,
                "FP4 pairs (I8) with a tensor of scales are wanted",
            ));
        };
        let (rows, pairs) = self.matrix(name)?;
        let grid = self.matrix(&scales)?;
        let scale_type = self.need(&scales)?.dtype;
        let columns = pairs.checked_mul(2).filter(|columns| {
            columns.is_multiple_of(fp4::BLOCK) && grid == (rows, columns / fp4::BLOCK)
        });
        match columns {
            Some(columns) if matches!(scale_type, Dtype::F8E8M0 | Dtype::U8) => {
                Ok((self.bytes(name)?, self.bytes(&scales)?, rows, columns))
            }
            _ => {
                let found =
                    format!("{grid:?} scales of {scale_type:?} for {rows} rows of {pairs} pairs");
                Err(self.wrong(&scales, &found, "one F8_E8M0 scale per 32 columns is wanted"))
            }
        }
    }

    /// Dims of the values, outermost first: FP4 pairs count twice.
    pub fn value_shape(&self, name: &str) -> Result<Vec<u64>, Error> {
        let meta = self.need(name)?;
        let mut shape = meta.shape.clone();
        let packed = matches!(meta.dtype, Dtype::I8 | Dtype::U8) && self.scales_of(name).is_some();
        if let Some(columns) = shape.last_mut().filter(|_| packed) {
            *columns *= 2;
        }
        Ok(shape)
    }

    fn need(&self, name: &str) -> Result<&TensorMeta, Error> {
        self.tensor(name).ok_or_else(|| {
            let file = self.shards.first().map_or("the checkpoint", |shard| shard.name.as_str());
            error::format(file, name, "the tensor is missing", "a whole checkpoint is wanted")
        })
    }

    /// Name of the tensor of scales that belongs to a matrix.
    fn scales_of(&self, name: &str) -> Option<String> {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let candidates = [format!("{stem}.scale"), format!("{name}_scale_inv")];
        candidates.into_iter().find(|scales| self.tensor(scales).is_some())
    }

    /// Rows and columns of a matrix.
    fn matrix(&self, name: &str) -> Result<(usize, usize), Error> {
        let shape = &self.need(name)?.shape;
        match shape.as_slice() {
            [rows, columns] => usize::try_from(*rows).ok().zip(usize::try_from(*columns).ok()),
            _ => None,
        }
        .ok_or_else(|| self.wrong(name, &format!("its dims are {shape:?}"), "a matrix is wanted"))
    }

    /// E4M3 with a grid of scales: the blocks' sides follow from both shapes, rounded up to a power of two.
    fn fp8(&self, name: &str, scales: &str) -> Result<Vec<f32>, Error> {
        let ((rows, columns), (grid_rows, grid_columns)) =
            (self.matrix(name)?, self.matrix(scales)?);
        let side = |size: usize, grid: usize| {
            (grid > 0)
                .then(|| size.div_ceil(grid).next_power_of_two())
                .filter(|s| size.div_ceil(*s) == grid)
        };
        let (Some(high), Some(wide)) = (side(rows, grid_rows), side(columns, grid_columns)) else {
            let found = format!(
                "a grid of {grid_rows} x {grid_columns} scales for {rows} x {columns} values"
            );
            return Err(self.wrong(scales, &found, "blocks of a power of two are wanted"));
        };
        let (codes, scales) = (self.bytes(name)?, self.to_f32(scales)?);
        let grid = fp8::Grid { rows, columns, block_rows: high, block_columns: wide };
        let mut values = vec![0.0; codes.len()];
        fp8::decode(grid, &codes, &scales, &mut values).map_err(|error| {
            self.wrong(name, &error.to_string(), "a published matrix is wanted")
        })?;
        Ok(values)
    }

    /// FP4 pairs, the even column in the low half, with one E8M0 scale per 32 columns.
    fn fp4(&self, name: &str) -> Result<Vec<f32>, Error> {
        let (codes, scales, rows, columns) = self.fp4_parts(name)?;
        let mut values = vec![0.0; codes.len() * 2];
        fp4::decode(rows, columns, &codes, &scales, &mut values).map_err(|error| {
            self.wrong(name, &error.to_string(), "one scale per 32 columns is wanted")
        })?;
        Ok(values)
    }

    fn wrong(&self, name: &str, found: &str, wanted: &str) -> Error {
        let shard = self.tensor(name).and_then(|meta| self.shards.get(meta.shard));
        error::format(shard.map_or("the checkpoint", |shard| &shard.name), name, found, wanted)
    }

    /// Takes in one file, each tensor checked to lie inside it.
    fn add(&mut self, file: String, store: Store) -> Result<(), Error> {
        let wrong =
            |field: &str, found: &str, wanted: &str| error::format(&file, field, found, wanted);
        let (header, data_start) = read_header(&file, &store)?;
        let mut spans = Vec::with_capacity(header.len());
        for (full_name, value) in header.iter().filter(|(name, _)| *name != "__metadata__") {
            let (dtype, shape, start, end) = read_entry(value).ok_or_else(|| {
                wrong(
                    full_name,
                    &shortened(value),
                    "a known dtype, a shape and data_offsets are wanted",
                )
            })?;
            let bytes = shape.iter().try_fold(dtype.bytes(), |bytes, dim| bytes.checked_mul(*dim));
            if bytes.is_none() || end.checked_sub(start) != bytes {
                let found = format!("offsets {start}..{end} for {shape:?} of {dtype:?}");
                return Err(wrong(
                    full_name,
                    &found,
                    "as many bytes as the shape needs are wanted",
                ));
            }
            let range = usize::try_from(start).ok().zip(usize::try_from(end).ok()).and_then(
                |(start, end)| {
                    let range = data_start.checked_add(start)?..data_start.checked_add(end)?;
                    (range.end <= store.len()).then_some(range)
                },
            );
            let Some(range) = range else {
                let found =
                    format!("offsets {start}..{end}, and the file has {} bytes", store.len());
                return Err(wrong(
                    full_name,
                    &found,
                    "the file must hold them; it was cut short or is damaged",
                ));
            };
            spans.push((range.start, range.end));
            let name = full_name.strip_prefix("model.").unwrap_or(full_name).to_owned();
            let meta = TensorMeta { dtype, shape, shard: self.shards.len(), range };
            if self.tensors.insert(name, meta).is_some() {
                return Err(wrong(full_name, "the tensor occurs twice", "names must differ"));
            }
        }
        spans.sort_unstable();
        if let Some(pair) = spans.windows(2).find(|pair| pair[1].0 < pair[0].1) {
            let found = format!("tensors overlap at byte {}", pair[1].0);
            return Err(wrong("data_offsets", &found, "tensors must lie apart"));
        }
        self.shards.push(Shard { name: file, store: Arc::new(store) });
        Ok(())
    }
}

/// The header and where data starts.
fn read_header(file: &str, bytes: &[u8]) -> Result<(Map<String, Value>, usize), Error> {
    let wrong = |field, found: String, wanted| error::format(file, field, &found, wanted);
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(wrong(
            "header",
            format!("{} bytes", bytes.len()),
            "a safetensors file has at least 8",
        ));
    };
    let len = u64::from_le_bytes(*len);
    let header = usize::try_from(len)
        .ok()
        .filter(|_| len <= HEADER_BYTES_MAX)
        .and_then(|len| rest.get(..len));
    let Some(header) = header else {
        let found = format!("a header of {len} bytes is announced and {} follow", rest.len());
        return Err(wrong("header", found, "a safetensors file, whole, is wanted"));
    };
    let map = serde_json::from_slice(header)
        .map_err(|error| wrong("header", error.to_string(), "a JSON object is wanted"))?;
    Ok((map, 8 + header.len()))
}

fn read_entry(value: &Value) -> Option<(Dtype, Vec<u64>, u64, u64)> {
    let dtype = Dtype::from_name(value.get("dtype")?.as_str()?)?;
    let shape =
        value.get("shape")?.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>()?;
    match value.get("data_offsets")?.as_array()?.as_slice() {
        [start, end] => Some((dtype, shape, start.as_u64()?, end.as_u64()?)),
        _ => None,
    }
}

/// Tensor names and their files; a file name that leaves the folder is refused.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    let file = path.display().to_string();
    let text = std::fs::read(path).map_err(|source| Error::Io {
        doing: "reading",
        file: file.clone(),
        source,
    })?;
    let index: Value = serde_json::from_slice(&text).map_err(|e| {
        error::format(&file, "the index", &e.to_string(), "a JSON object is wanted")
    })?;
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(error::format(
            &file,
            "weight_map",
            "it is missing",
            "names and their files are wanted",
        ));
    };
    let mut announced = BTreeMap::new();
    for (name, shard) in map {
        let inside = |name: &&str| {
            let mut parts = Path::new(name).components();
            matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none()
        };
        let Some(shard) = shard.as_str().filter(inside) else {
            let found = format!("its file is {shard}");
            return Err(error::format(
                &file,
                name,
                &found,
                "a file name in the same folder is wanted",
            ));
        };
        announced.insert(name.clone(), shard.to_owned());
    }
    Ok(announced)
}

/// A value for a message, cut to a readable length.
fn shortened(value: &Value) -> String {
    value.to_string().chars().take(120).collect()
}

fn packable(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::I8 | Dtype::U8)
}

/// Values that need no scales; whole numbers are rounded to the nearest float.
fn plain(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    #[expect(clippy::cast_possible_truncation, reason = "rounding a stored double once")]
    let narrow = |b: &[u8; 8]| f64::from_le_bytes(*b) as f32;
    Some(match dtype {
        Dtype::F64 => bytes.as_chunks::<8>().0.iter().map(narrow).collect(),
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => {
            bytes.as_chunks::<2>().0.iter().map(|b| f16_to_f32(u16::from_le_bytes(*b))).collect()
        }
        Dtype::Bf16 => {
            bytes.as_chunks::<2>().0.iter().map(|b| bf16_to_f32(u16::from_le_bytes(*b))).collect()
        }
        Dtype::I64 => each(bytes, |b| i64::from_le_bytes(b) as f32),
        Dtype::I32 => each(bytes, |b| i32::from_le_bytes(b) as f32),
        Dtype::I16 => each(bytes, |b| i16::from_le_bytes(b).into()),
        Dtype::I8 => each(bytes, |b| i8::from_le_bytes(b).into()),
        Dtype::U8 => each(bytes, |b| u8::from_le_bytes(b).into()),
        Dtype::Bool | Dtype::F8E4M3 | Dtype::F8E8M0 => return None,
    })
}

fn each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks::<N>().0.iter().map(|b| value(*b)).collect()
}
