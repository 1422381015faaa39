//! Writing a GGUF file as a stream: the header first, then each tensor's data as it is made.

use crate::header::{ALIGNMENT_DEFAULT, MAGIC, VERSION};
use crate::{Array, Error, TensorKind, Value};
use std::io::{Seek, SeekFrom, Write};

struct Planned {
    name: String,
    kind: TensorKind,
    dims: Vec<u64>,
    bytes: u64,
    offset: u64,
}

/// Writes a file: all metadata, then all tensors' descriptions, then all data, each in its order.
pub struct Writer<W> {
    out: W,
    entries: Vec<(String, Value)>,
    tensors: Vec<Planned>,
    alignment: u64,
    /// Tensors whose data is complete, and bytes written of the next.
    done: usize,
    partial: u64,
    data_start: Option<u64>,
}

impl<W: Write + Seek> Writer<W> {
    /// A writer to an empty file.
    pub fn new(out: W) -> Self {
        Writer {
            out,
            entries: Vec::new(),
            tensors: Vec::new(),
            alignment: ALIGNMENT_DEFAULT,
            done: 0,
            partial: 0,
            data_start: None,
        }
    }

    /// Adds a key. `general.alignment` sets the alignment of the data.
    pub fn metadata(&mut self, key: &str, value: Value) -> Result<(), Error> {
        if self.entries.iter().any(|(known, _)| known == key) {
            return Err(wrong(key, "the key was given twice", "keys must differ"));
        }
        if key == "general.alignment" {
            match value {
                Value::U32(n) if n.is_power_of_two() => self.alignment = n.into(),
                _ => {
                    return Err(wrong(
                        key,
                        "no power of two",
                        "a u32 that is a power of two is wanted",
                    ));
                }
            }
        }
        self.entries.push((key.to_owned(), value));
        Ok(())
    }

    /// Announces a tensor; its data must follow in the same order.
    pub fn tensor(&mut self, name: &str, kind: TensorKind, dims: &[u64]) -> Result<(), Error> {
        if self.data_start.is_some() {
            return Err(wrong(name, "data was already written", "announce all tensors first"));
        }
        let bytes = kind.bytes(dims).filter(|_| dims.len() <= 4).ok_or_else(|| {
            let found = format!("dims {dims:?} of type {}", kind.name());
            wrong(name, &found, "1 to 4 dims and rows of whole blocks are wanted")
        })?;
        if self.tensors.iter().any(|tensor| tensor.name == name) {
            return Err(wrong(name, "the tensor was announced twice", "names must differ"));
        }
        let end = self.tensors.last().map_or(0, |last| last.offset + last.bytes);
        let offset = end.next_multiple_of(self.alignment);
        self.tensors.push(Planned {
            name: name.to_owned(),
            kind,
            dims: dims.to_vec(),
            bytes,
            offset,
        });
        Ok(())
    }

    /// Writes the next bytes of a tensor, which must be the first that is not complete.
    pub fn data(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.start_data()?;
        let Some(next) = self.tensors.get(self.done).filter(|next| next.name == name) else {
            return Err(wrong(
                name,
                "it is not this tensor's turn",
                "write data in the announced order",
            ));
        };
        let left = next.bytes - self.partial;
        if bytes.len() as u64 > left {
            let found = format!("{} bytes were given", bytes.len());
            return Err(wrong(name, &found, &format!("only {left} are left of the tensor")));
        }
        self.out.write_all(bytes).map_err(io)?;
        self.partial += bytes.len() as u64;
        if self.partial == next.bytes {
            self.done += 1;
            self.partial = 0;
            self.pad()?;
        }
        Ok(())
    }

    /// Writes the header if that was not done yet, and gives where tensor data starts in the file.
    pub fn start_data(&mut self) -> Result<u64, Error> {
        if let Some(start) = self.data_start {
            return Ok(start);
        }
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            put_text(&mut header, key.as_bytes());
            header.extend(value_id(value).to_le_bytes());
            put_value(&mut header, value);
        }
        for tensor in &self.tensors {
            put_text(&mut header, tensor.name.as_bytes());
            #[expect(clippy::cast_possible_truncation, reason = "checked to be at most 4")]
            header.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| header.extend(dim.to_le_bytes()));
            header.extend(tensor.kind.gguf_id().to_le_bytes());
            header.extend(tensor.offset.to_le_bytes());
        }
        let start = (header.len() as u64).next_multiple_of(self.alignment);
        header.resize(usize::try_from(start).unwrap_or(usize::MAX), 0);
        self.out.write_all(&header).map_err(io)?;
        self.data_start = Some(start);
        Ok(start)
    }

    /// Goes on with a file whose first `count` tensors are already complete.
    pub fn skip(&mut self, count: usize) -> Result<(), Error> {
        let start = self.start_data()?;
        let end = match self.tensors.get(count) {
            Some(next) => next.offset,
            None => self.tensors.last().map_or(0, |last| last.offset + last.bytes),
        };
        self.done = count.min(self.tensors.len());
        self.partial = 0;
        self.out.seek(SeekFrom::Start(start + end)).map_err(io)?;
        Ok(())
    }

    /// Ends the file; every announced tensor must be complete.
    pub fn finish(mut self) -> Result<W, Error> {
        self.start_data()?;
        if let Some(missing) = self.tensors.get(self.done) {
            let found = format!("{} of {} bytes were written", self.partial, missing.bytes);
            return Err(wrong(&missing.name, &found, "all data is wanted before the end"));
        }
        self.out.flush().map_err(io)?;
        Ok(self.out)
    }

    /// Zeros up to the next tensor's offset.
    fn pad(&mut self) -> Result<(), Error> {
        let (before, next) = (&self.tensors[self.done - 1], self.tensors.get(self.done));
        let Some(next) = next else { return Ok(()) };
        let gap = next.offset - (before.offset + before.bytes);
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0), gap), &mut self.out)
            .map_err(io)?;
        Ok(())
    }
}

fn wrong(field: &str, found: &str, wanted: &str) -> Error {
    Error::Format {
        file: "the file being written".into(),
        field: field.to_owned(),
        found: found.to_owned(),
        wanted: wanted.to_owned(),
    }
}

fn io(source: std::io::Error) -> Error {
    Error::Io { doing: "writing", file: "the model".into(), source }
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

fn value_id(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => put_text(out, v.as_bytes()),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    let id: u32 = match array {
        Array::U8(_) => 0,
        Array::I8(_) => 1,
        Array::U16(_) => 2,
        Array::I16(_) => 3,
        Array::U32(_) => 4,
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::Bool(_) => 7,
        Array::String(_) => 8,
        Array::Array(_) => 9,
        Array::U64(_) => 10,
        Array::I64(_) => 11,
        Array::F64(_) => 12,
    };
    out.extend(id.to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::U16(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I16(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::U32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::Bool(v) => v.iter().for_each(|v| out.push(u8::from(*v))),
        Array::String(v) => v.iter().for_each(|v| put_text(out, v)),
        Array::Array(v) => v.iter().for_each(|v| put_array(out, v)),
        Array::U64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
    }
}
