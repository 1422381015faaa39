//! The header of one GGUF file, read with distrust: every count is checked against the bytes that
//! are left before anything is allocated for it, and against limits that no real model comes near.

use crate::error::{self, shown};
use crate::value::id;
use crate::{Array, Error, Metadata, Value, packed};
use std::collections::HashSet;

/// Bytes at the start of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// The one version that is read and written.
pub const VERSION: u32 = 3;
/// Alignment of tensor data where the file names none.
pub const ALIGNMENT_DEFAULT: u64 = 32;
/// Largest alignment of tensor data.
pub const ALIGNMENT_MAX: u64 = 1 << 20;
/// Most dims of a tensor.
pub const DIMS_MAX: usize = 4;
/// Deepest nesting of arrays.
pub const ARRAY_DEPTH_MAX: usize = 4;
/// Most metadata entries of a file.
pub const ENTRIES_MAX: usize = 1 << 16;
/// Most tensors of a file.
pub const TENSORS_MAX: usize = 1 << 18;
/// Longest header; a vocabulary with its merges takes some ten million bytes.
pub const HEADER_BYTES_MAX: u64 = 1 << 27;
/// Key of the alignment of tensor data.
pub const ALIGNMENT_KEY: &str = "general.alignment";

/// Least bytes of a metadata entry: key length, type, one byte of value.
const ENTRY_BYTES_MIN: u64 = 8 + 4 + 1;
/// Least bytes of a tensor's description: name length, dim count, one dim, type, offset.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;

/// A tensor's description as the file has it, unchecked.
pub(crate) struct RawTensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub kind: u32,
    /// From the start of the data.
    pub offset: u64,
}

/// What a header says.
pub(crate) struct Header {
    pub metadata: Metadata,
    pub tensors: Vec<RawTensor>,
    /// Where tensor data begins in the file.
    pub data_start: u64,
    pub alignment: u64,
    /// Whether tensors may lie in planes.
    pub is_packed: bool,
}

/// Reads a header.
pub(crate) fn read(file: &str, bytes: &[u8]) -> Result<Header, Error> {
    let mut cursor = Cursor { file, bytes, at: 0 };
    cursor.magic()?;
    let tensor_count = cursor.limited("tensor count", TENSOR_BYTES_MIN, TENSORS_MAX)?;
    let entry_count = cursor.limited("metadata count", ENTRY_BYTES_MIN, ENTRIES_MAX)?;

    let mut entries = Vec::with_capacity(entry_count);
    for index in 0..entry_count {
        entries.push(cursor.entry(index)?);
    }
    if let Some(key) = repeated(entries.iter().map(|(key, _)| key.as_str())) {
        return Err(cursor.wrong(key, "the metadata key occurs twice", "keys must differ"));
    }
    let metadata = Metadata { file: file.to_owned(), entries };
    let alignment = metadata.opt_u64(ALIGNMENT_KEY)?.unwrap_or(ALIGNMENT_DEFAULT);
    if !alignment.is_power_of_two() || alignment > ALIGNMENT_MAX {
        let wanted = format!("a power of two up to {ALIGNMENT_MAX} is wanted");
        return Err(cursor.wrong(ALIGNMENT_KEY, alignment.to_string(), wanted));
    }
    let is_packed = packed::is_announced(&metadata, alignment)?;

    let mut tensors = Vec::with_capacity(tensor_count);
    for index in 0..tensor_count {
        tensors.push(cursor.tensor(index)?);
    }
    let data_start = (cursor.at as u64).next_multiple_of(alignment);
    Ok(Header { metadata, tensors, data_start, alignment, is_packed })
}

/// The first name that was there before.
fn repeated<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = HashSet::with_capacity(names.len());
    names.into_iter().find(|name| !seen.insert(*name))
}

/// Least bytes of an array's element; unknown types are refused elsewhere.
fn element_bytes_min(kind: u32) -> u64 {
    match kind {
        id::U16 | id::I16 => 2,
        id::U32 | id::I32 | id::F32 => 4,
        id::U64 | id::I64 | id::F64 | id::STRING => 8,
        id::ARRAY => 4 + 8,
        _ => 1,
    }
}

/// A position in a header. Invariant: `at` is not past the end of `bytes`.
struct Cursor<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn wrong(&self, field: &str, found: impl Into<String>, wanted: impl Into<String>) -> Error {
        error::format(self.file, field, found, wanted)
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// Checks that `count` things of `least` bytes or more can follow, and gives the count.
    fn fits(&self, field: &str, count: u64, least: u64) -> Result<usize, Error> {
        let needed = count.saturating_mul(least);
        if needed > self.left() {
            return Err(error::truncated(self.file, field, needed, self.left()));
        }
        if self.at as u64 + needed > HEADER_BYTES_MAX {
            let found = format!("{needed} bytes from byte {} on", self.at);
            let wanted = format!("a header has at most {HEADER_BYTES_MAX} bytes");
            return Err(self.wrong(field, found, wanted));
        }
        usize::try_from(count).map_err(|_| error::truncated(self.file, field, needed, self.left()))
    }

    fn take(&mut self, field: &str, count: u64) -> Result<&'a [u8], Error> {
        let count = self.fits(field, count, 1)?;
        self.at += count;
        Ok(&self.bytes[self.at - count..self.at])
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(field, N as u64)?);
        Ok(out)
    }

    fn u32(&mut self, field: &str) -> Result<u32, Error> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: &str) -> Result<u64, Error> {
        self.array(field).map(u64::from_le_bytes)
    }

    fn magic(&mut self) -> Result<(), Error> {
        let magic: [u8; 4] = self.array("magic")?;
        if magic != MAGIC {
            let found = format!("the file begins with '{}'", magic.escape_ascii());
            return Err(self.wrong("magic", found, "a GGUF file begins with 'GGUF'"));
        }
        let version = self.u32("version")?;
        if version == VERSION {
            return Ok(());
        }
        // A big-endian file has small numbers in the last bytes, whatever its version.
        if (1..=VERSION).contains(&version.swap_bytes()) {
            let found = format!("the file is big-endian (version {})", version.swap_bytes());
            let wanted = "only little-endian files are read; convert it for this kind of machine";
            return Err(self.wrong("version", found, wanted));
        }
        let wanted = format!("version {VERSION} is wanted; convert the model again");
        Err(self.wrong("version", format!("version {version}"), wanted))
    }

    /// A count of things that take at least `least` bytes each.
    fn count(&mut self, field: &str, least: u64) -> Result<usize, Error> {
        let count = self.u64(field)?;
        self.fits(field, count, least)
    }

    /// [`Cursor::count`] with a limit.
    fn limited(&mut self, field: &str, least: u64, most: usize) -> Result<usize, Error> {
        let count = self.count(field, least)?;
        if count > most {
            let wanted = format!("at most {most} are read");
            return Err(self.wrong(field, count.to_string(), wanted));
        }
        Ok(count)
    }

    fn raw_text(&mut self, field: &str) -> Result<&'a [u8], Error> {
        let len = self.u64(field)?;
        self.take(field, len)
    }

    fn text(&mut self, field: &str) -> Result<String, Error> {
        let raw = self.raw_text(field)?;
        let Ok(text) = std::str::from_utf8(raw) else {
            let found = format!("'{}'", shown(&String::from_utf8_lossy(raw)));
            return Err(self.wrong(field, found, "UTF-8 text is wanted"));
        };
        Ok(text.to_owned())
    }

    fn flag(&mut self, field: &str) -> Result<bool, Error> {
        match self.array(field)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => {
                Err(self.wrong(field, format!("the bool {other}"), "1 is true and 0 is false"))
            }
        }
    }

    fn entry(&mut self, index: usize) -> Result<(String, Value), Error> {
        let key = self.text(&format!("metadata key {index}"))?;
        let kind = self.u32(&key)?;
        let value = self.value(&key, kind)?;
        Ok((key, value))
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<Value, Error> {
        Ok(match kind {
            id::U8 => Value::U8(u8::from_le_bytes(self.array(key)?)),
            id::I8 => Value::I8(i8::from_le_bytes(self.array(key)?)),
            id::U16 => Value::U16(u16::from_le_bytes(self.array(key)?)),
            id::I16 => Value::I16(i16::from_le_bytes(self.array(key)?)),
            id::U32 => Value::U32(self.u32(key)?),
            id::I32 => Value::I32(i32::from_le_bytes(self.array(key)?)),
            id::F32 => Value::F32(f32::from_le_bytes(self.array(key)?)),
            id::BOOL => Value::Bool(self.flag(key)?),
            id::STRING => Value::String(self.text(key)?),
            id::ARRAY => Value::Array(self.elements(key, 1)?),
            id::U64 => Value::U64(self.u64(key)?),
            id::I64 => Value::I64(i64::from_le_bytes(self.array(key)?)),
            id::F64 => Value::F64(f64::from_le_bytes(self.array(key)?)),
            other => {
                return Err(self.wrong(key, format!("value type {other}"), "types are 0 to 12"));
            }
        })
    }

    fn elements(&mut self, key: &str, depth: usize) -> Result<Array, Error> {
        let kind = self.u32(key)?;
        let count = self.count(key, element_bytes_min(kind))?;
        Ok(match kind {
            id::U8 => Array::U8(self.numbers(key, count, u8::from_le_bytes)?),
            id::I8 => Array::I8(self.numbers(key, count, i8::from_le_bytes)?),
            id::U16 => Array::U16(self.numbers(key, count, u16::from_le_bytes)?),
            id::I16 => Array::I16(self.numbers(key, count, i16::from_le_bytes)?),
            id::U32 => Array::U32(self.numbers(key, count, u32::from_le_bytes)?),
            id::I32 => Array::I32(self.numbers(key, count, i32::from_le_bytes)?),
            id::F32 => Array::F32(self.numbers(key, count, f32::from_le_bytes)?),
            id::BOOL => Array::Bool(each(count, || self.flag(key))?),
            id::STRING => Array::String(each(count, || self.raw_text(key).map(<[u8]>::to_vec))?),
            id::ARRAY if depth < ARRAY_DEPTH_MAX => {
                Array::Array(each(count, || self.elements(key, depth + 1))?)
            }
            id::ARRAY => {
                let found = format!("arrays nested more than {ARRAY_DEPTH_MAX} deep");
                return Err(self.wrong(key, found, "no model needs that"));
            }
            id::U64 => Array::U64(self.numbers(key, count, u64::from_le_bytes)?),
            id::I64 => Array::I64(self.numbers(key, count, i64::from_le_bytes)?),
            id::F64 => Array::F64(self.numbers(key, count, f64::from_le_bytes)?),
            other => {
                return Err(self.wrong(key, format!("element type {other}"), "types are 0 to 12"));
            }
        })
    }

    fn numbers<T, const N: usize>(
        &mut self,
        key: &str,
        count: usize,
        read: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Error> {
        let bytes = self.take(key, (count * N) as u64)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk)).collect())
    }

    fn tensor(&mut self, index: usize) -> Result<RawTensor, Error> {
        let name = self.text(&format!("name of tensor {index}"))?;
        let count = self.u32(&name)?;
        if usize::try_from(count).ok().is_none_or(|count| count == 0 || count > DIMS_MAX) {
            let wanted = format!("a tensor has 1 to {DIMS_MAX}");
            return Err(self.wrong(&name, format!("{count} dims"), wanted));
        }
        let dims = each(count as usize, || self.u64(&name))?;
        let kind = self.u32(&name)?;
        let offset = self.u64(&name)?;
        Ok(RawTensor { name, dims, kind, offset })
    }
}

/// `count` things, each read by the same function. Grows as it goes, so that what is allocated
/// follows what was really there.
fn each<T>(count: usize, read: impl FnMut() -> Result<T, Error>) -> Result<Vec<T>, Error> {
    std::iter::repeat_with(read).take(count).collect()
}
