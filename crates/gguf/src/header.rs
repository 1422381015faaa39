//! The header of one GGUF file, read with distrust: every count is checked against the bytes that are left
//! before anything is allocated for it.

use crate::{Array, Error, Metadata, Value};
use std::collections::HashSet;

/// Bytes at the start of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// The one version that is read and written.
pub const VERSION: u32 = 3;
/// Alignment of tensor data where the file names none.
pub const ALIGNMENT_DEFAULT: u64 = 32;
/// Most dims of a tensor.
pub const DIMS_MAX: u32 = 4;
/// Deepest nesting of arrays.
pub const ARRAY_DEPTH_MAX: usize = 4;
/// Least bytes of a metadata entry: key length, type, one byte of value.
const ENTRY_BYTES_MIN: u64 = 8 + 4 + 1;
/// Least bytes of a tensor's description: name length, dim count, type, offset.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 4 + 8;

/// A tensor's description as the file has it.
pub(crate) struct RawTensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub kind: u32,
    pub offset: u64,
}

/// What a header says.
pub(crate) struct Header {
    pub metadata: Metadata,
    pub tensors: Vec<RawTensor>,
    /// Where tensor data begins in the file.
    pub data_start: u64,
    pub alignment: u64,
}

/// Reads a header.
pub(crate) fn read(file: &str, bytes: &[u8]) -> Result<Header, Error> {
    let mut cursor = Cursor { file, bytes, at: 0 };
    cursor.magic()?;
    let tensor_count = cursor.count("tensor count", TENSOR_BYTES_MIN)?;
    let entry_count = cursor.count("metadata count", ENTRY_BYTES_MIN)?;
    let mut entries: Vec<(String, Value)> = Vec::with_capacity(entry_count);
    let mut keys = HashSet::with_capacity(entry_count);
    for index in 0..entry_count {
        let key = cursor.text(&format!("key {index} of the metadata"))?;
        if !keys.insert(key.clone()) {
            return Err(cursor.wrong(&key, "the key occurs twice", "keys must differ"));
        }
        let kind = cursor.u32(&key)?;
        let value = cursor.value(&key, kind)?;
        entries.push((key, value));
    }
    let metadata = Metadata { entries };
    let alignment = match metadata.opt_u64("general.alignment")? {
        None => ALIGNMENT_DEFAULT,
        Some(n) if n.is_power_of_two() && n <= 1 << 20 => n,
        Some(n) => {
            let wanted = "a power of two up to 1048576 is wanted";
            return Err(cursor.wrong("general.alignment", &n.to_string(), wanted));
        }
    };
    let mut tensors = Vec::with_capacity(tensor_count);
    let mut names = HashSet::with_capacity(tensor_count);
    for index in 0..tensor_count {
        let tensor = cursor.tensor(index)?;
        if !names.insert(tensor.name.clone()) {
            return Err(cursor.wrong(&tensor.name, "the tensor occurs twice", "names must differ"));
        }
        tensors.push(tensor);
    }
    let data_start = (cursor.at as u64).next_multiple_of(alignment);
    Ok(Header { metadata, tensors, data_start, alignment })
}

struct Cursor<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn wrong(&self, field: &str, found: &str, wanted: &str) -> Error {
        Error::Format {
            file: self.file.to_owned(),
            field: field.to_owned(),
            found: found.to_owned(),
            wanted: wanted.to_owned(),
        }
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn take(&mut self, field: &str, count: u64) -> Result<&[u8], Error> {
        let left = self.left();
        let Some(count) = usize::try_from(count).ok().filter(|_| count <= left) else {
            let found = format!("{count} bytes are announced and {left} are left");
            return Err(self.wrong(
                field,
                &found,
                "the file must hold them; it was cut short or is damaged",
            ));
        };
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
            return Err(self.wrong(
                "magic",
                &format!("{magic:02x?}"),
                "a GGUF file begins with 'GGUF'",
            ));
        }
        match self.u32("version")? {
            VERSION => Ok(()),
            swapped if swapped.swap_bytes() == VERSION => {
                Err(self.wrong("version", "a big-endian file", "only little-endian files are read"))
            }
            other => {
                let found = format!("version {other}");
                Err(self.wrong("version", &found, "version 3 is wanted; convert the file anew"))
            }
        }
    }

    /// A count of things that take at least `least` bytes each.
    fn count(&mut self, field: &str, least: u64) -> Result<usize, Error> {
        let count = self.u64(field)?;
        let most = self.left() / least;
        match usize::try_from(count) {
            Ok(fits) if count <= most => Ok(fits),
            _ => {
                let found = format!("{count}, for which {} bytes are left", self.left());
                Err(self.wrong(
                    field,
                    &found,
                    "the file must hold them; it was cut short or is damaged",
                ))
            }
        }
    }

    fn raw_text(&mut self, field: &str) -> Result<Vec<u8>, Error> {
        let len = self.u64(field)?;
        self.take(field, len).map(<[u8]>::to_vec)
    }

    fn text(&mut self, field: &str) -> Result<String, Error> {
        let raw = self.raw_text(field)?;
        String::from_utf8(raw)
            .map_err(|_| self.wrong(field, "bytes that are no UTF-8", "text is wanted"))
    }

    fn flag(&mut self, field: &str) -> Result<bool, Error> {
        match self.array::<1>(field)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => {
                Err(self.wrong(field, &format!("the byte {other}"), "true is 1 and false is 0"))
            }
        }
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<Value, Error> {
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.array(key)?)),
            1 => Value::I8(i8::from_le_bytes(self.array(key)?)),
            2 => Value::U16(u16::from_le_bytes(self.array(key)?)),
            3 => Value::I16(i16::from_le_bytes(self.array(key)?)),
            4 => Value::U32(self.u32(key)?),
            5 => Value::I32(i32::from_le_bytes(self.array(key)?)),
            6 => Value::F32(f32::from_le_bytes(self.array(key)?)),
            7 => Value::Bool(self.flag(key)?),
            8 => Value::String(self.text(key)?),
            9 => Value::Array(self.elements(key, 1)?),
            10 => Value::U64(self.u64(key)?),
            11 => Value::I64(i64::from_le_bytes(self.array(key)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(key)?)),
            other => return Err(self.wrong(key, &format!("type {other}"), "types are 0 to 12")),
        })
    }

    fn elements(&mut self, key: &str, depth: usize) -> Result<Array, Error> {
        let kind = self.u32(key)?;
        let numbers = |kind| match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            9 => 12,
            _ => 8,
        };
        let count = self.count(key, numbers(kind))?;
        Ok(match kind {
            0 => Array::U8(self.fixed(key, count, u8::from_le_bytes)?),
            1 => Array::I8(self.fixed(key, count, i8::from_le_bytes)?),
            2 => Array::U16(self.fixed(key, count, u16::from_le_bytes)?),
            3 => Array::I16(self.fixed(key, count, i16::from_le_bytes)?),
            4 => Array::U32(self.fixed(key, count, u32::from_le_bytes)?),
            5 => Array::I32(self.fixed(key, count, i32::from_le_bytes)?),
            6 => Array::F32(self.fixed(key, count, f32::from_le_bytes)?),
            7 => Array::Bool((0..count).map(|_| self.flag(key)).collect::<Result<_, _>>()?),
            8 => Array::String((0..count).map(|_| self.raw_text(key)).collect::<Result<_, _>>()?),
            9 if depth < ARRAY_DEPTH_MAX => Array::Array(
                (0..count).map(|_| self.elements(key, depth + 1)).collect::<Result<_, _>>()?,
            ),
            9 => {
                let found = format!("arrays nested more than {ARRAY_DEPTH_MAX} deep");
                return Err(self.wrong(key, &found, "no model needs that"));
            }
            10 => Array::U64(self.fixed(key, count, u64::from_le_bytes)?),
            11 => Array::I64(self.fixed(key, count, i64::from_le_bytes)?),
            12 => Array::F64(self.fixed(key, count, f64::from_le_bytes)?),
            other => {
                return Err(self.wrong(
                    key,
                    &format!("elements of type {other}"),
                    "types are 0 to 12",
                ));
            }
        })
    }

    fn fixed<T, const N: usize>(
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
        if count == 0 || count > DIMS_MAX {
            let found = format!("{count} dims");
            return Err(self.wrong(&name, &found, "a tensor has 1 to 4"));
        }
        let dims = (0..count).map(|_| self.u64(&name)).collect::<Result<Vec<u64>, Error>>()?;
        let kind = self.u32(&name)?;
        let offset = self.u64(&name)?;
        Ok(RawTensor { name, dims, kind, offset })
    }
}
