//! Writing a GGUF file as a stream: all metadata, then all tensors' descriptions, then each
//! tensor's data as it is made. Nothing but the header is held in memory.

use crate::header::{
    ALIGNMENT_DEFAULT, ALIGNMENT_KEY, ALIGNMENT_MAX, ARRAY_DEPTH_MAX, ENTRIES_MAX,
    HEADER_BYTES_MAX, MAGIC, TENSORS_MAX, VERSION,
};
use crate::packed::PLANES_TYPE_BASE;
use crate::{Array, Error, TensorKind, Value, error};
use ironstar_quant::planes::Layout;
use std::collections::HashSet;
use std::io::{Seek, SeekFrom, Write};

struct Planned {
    name: String,
    kind: TensorKind,
    dims: Vec<u64>,
    /// Bytes in the file.
    bytes: u64,
    /// Where its blocks lie, if they are cut into planes.
    planes: Option<Layout>,
    /// From the start of the data.
    offset: u64,
    /// Its data is that of an earlier tensor.
    shared: bool,
}

/// Writes a file that [`crate::Gguf`] reads, never past the reader's limits.
///
/// Invariant, pair of the reader's: every offset is a multiple of the alignment, data of a tensor
/// follows the padded end of the one before, and the last one is padded too. After an error the
/// file is incomplete, and [`Writer::finish`] must not be expected to succeed.
pub struct Writer<W> {
    out: W,
    entries: Vec<(String, Value)>,
    keys: HashSet<String>,
    tensors: Vec<Planned>,
    names: HashSet<String>,
    alignment: u64,
    /// Where the next announced tensor's data goes, from the start of the data.
    end: u64,
    /// Where the data starts in the file, once the header is written.
    data_start: Option<u64>,
    /// Tensors whose data is complete.
    complete: usize,
    /// Bytes written of the tensor after those.
    partial: u64,
}

impl<W: Write + Seek> Writer<W> {
    /// A writer to an empty file.
    pub fn new(out: W) -> Self {
        Writer {
            out,
            entries: Vec::new(),
            keys: HashSet::new(),
            tensors: Vec::new(),
            names: HashSet::new(),
            alignment: ALIGNMENT_DEFAULT,
            end: 0,
            data_start: None,
            complete: 0,
            partial: 0,
        }
    }

    /// Adds a key; all keys come before the first tensor. `general.alignment` (a u32) sets the
    /// alignment of the data.
    pub fn metadata(&mut self, key: &str, value: Value) -> Result<(), Error> {
        if self.data_start.is_some() || !self.tensors.is_empty() {
            return Err(wrong(key, "a tensor was announced before", "give all metadata first"));
        }
        if self.entries.len() == ENTRIES_MAX {
            let wanted = format!("a file has at most {ENTRIES_MAX}");
            return Err(wrong(key, "it is one metadata key too many", &wanted));
        }
        if matches!(&value, Value::Array(array) if array.depth() > ARRAY_DEPTH_MAX) {
            let wanted = format!("arrays are nested at most {ARRAY_DEPTH_MAX} deep");
            return Err(wrong(key, "arrays in arrays", &wanted));
        }
        let alignment = match &value {
            _ if key != ALIGNMENT_KEY => self.alignment,
            Value::U32(n) if n.is_power_of_two() && u64::from(*n) <= ALIGNMENT_MAX => (*n).into(),
            _ => {
                let wanted = format!("a u32, a power of two up to {ALIGNMENT_MAX}, is wanted");
                return Err(wrong(key, "another value", &wanted));
            }
        };
        if !self.keys.insert(key.to_owned()) {
            return Err(wrong(key, "the metadata key was given twice", "keys must differ"));
        }
        self.alignment = alignment;
        self.entries.push((key.to_owned(), value));
        Ok(())
    }

    /// Announces a tensor (dims innermost first); its data must follow in the same order.
    pub fn tensor(&mut self, name: &str, kind: TensorKind, dims: &[u64]) -> Result<(), Error> {
        self.announce(name, (kind, None), dims, None)
    }

    /// Announces a tensor whose data is that of an earlier one: two names for the same bytes, as
    /// in synthetic files. [`Gguf`](crate::Gguf) reads that; not every other reader does.
    pub fn tensor_sharing(
        &mut self,
        name: &str,
        kind: TensorKind,
        dims: &[u64],
        with: &str,
    ) -> Result<(), Error> {
        self.announce(name, (kind, None), dims, Some(with))
    }

    /// Announces a tensor, possibly in planes, which a packed file alone may have, or with the data
    /// of an earlier one.
    pub(crate) fn announce(
        &mut self,
        name: &str,
        (kind, planes): (TensorKind, Option<Layout>),
        dims: &[u64],
        with: Option<&str>,
    ) -> Result<(), Error> {
        if self.data_start.is_some() {
            return Err(wrong(name, "data was already written", "announce all tensors first"));
        }
        let Some(bytes) = kind.bytes(dims) else {
            let found = format!("dims {dims:?} of type {}", kind.name());
            let wanted = "1 to 4 dims above zero and rows of whole blocks are wanted";
            return Err(wrong(name, &found, wanted));
        };
        let bytes = planes.map_or(bytes, |planes| planes.bytes);
        let padded = self.end.checked_add(bytes);
        let end = padded.and_then(|end| end.checked_next_multiple_of(self.alignment));
        let Some(end) = end.filter(|_| self.tensors.len() < TENSORS_MAX) else {
            let wanted = format!("at most {TENSORS_MAX} tensors and 2^64 bytes are wanted");
            return Err(wrong(name, "it is one tensor too many", &wanted));
        };
        let offset = match with {
            None => self.end,
            Some(with) => self.shared_offset(name, bytes, with)?,
        };
        if !self.names.insert(name.to_owned()) {
            return Err(wrong(name, "the tensor was announced twice", "names must differ"));
        }
        let (name, dims, shared) = (name.to_owned(), dims.to_vec(), with.is_some());
        self.tensors.push(Planned { name, kind, dims, bytes, planes, offset, shared });
        if !shared {
            self.end = end;
        }
        Ok(())
    }

    /// Where an earlier tensor of as many bytes lies.
    fn shared_offset(&self, name: &str, bytes: u64, with: &str) -> Result<u64, Error> {
        let Some(earlier) = self.tensors.iter().find(|tensor| tensor.name == with) else {
            let found = format!("it is to share the data of '{with}'");
            return Err(wrong(name, &found, "a tensor that was announced before is wanted"));
        };
        if earlier.bytes != bytes {
            let found = format!("{bytes} bytes, and '{with}' has {}", earlier.bytes);
            return Err(wrong(name, &found, "tensors that share data have equal sizes"));
        }
        Ok(earlier.offset)
    }

    /// Whether an announced tensor has the data of an earlier one.
    pub(crate) fn is_shared(&self, index: usize) -> bool {
        self.tensors.get(index).is_some_and(|tensor| tensor.shared)
    }

    /// Writes the header if that was not done yet, and gives where data starts in the file.
    pub fn start_data(&mut self) -> Result<u64, Error> {
        if let Some(start) = self.data_start {
            return Ok(start);
        }
        let header = self.header()?;
        self.out.write_all(&header).map_err(io)?;
        let start = header.len() as u64;
        self.data_start = Some(start);
        Ok(start)
    }

    /// Where the data of the announced tensor with this index starts in the file, and its length.
    pub fn span(&mut self, index: usize) -> Result<(u64, u64), Error> {
        let start = self.start_data()?;
        let Some(tensor) = self.tensors.get(index) else {
            let found = format!("tensor {index} is asked for");
            return Err(wrong("data", &found, &format!("{} are announced", self.tensors.len())));
        };
        Ok((start + tensor.offset, tensor.bytes))
    }

    /// Writes the next bytes of a tensor, which must be the first that is not complete. How its
    /// data is cut into calls makes no difference to the file.
    pub fn data(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.start_data()?;
        self.pass_shared();
        let Some(next) = self.tensors.get(self.complete).filter(|next| next.name == name) else {
            let found = match self.tensors.get(self.complete) {
                Some(next) => format!("the next tensor is '{}'", next.name),
                None => "all tensors are complete".into(),
            };
            return Err(wrong(name, &found, "write data in the order of announcement"));
        };
        let left = next.bytes - self.partial;
        let given = bytes.len() as u64;
        if given > left {
            let wanted = format!("only {left} are left of the tensor");
            return Err(wrong(name, &format!("{given} bytes were given"), &wanted));
        }
        self.out.write_all(bytes).map_err(io)?;
        self.partial += given;
        if given == left {
            let padding = self.offset(self.complete + 1) - (next.offset + next.bytes);
            let zeros = vec![0; usize::try_from(padding).expect("padding is below 2^20")];
            self.out.write_all(&zeros).map_err(io)?;
            self.complete += 1;
            self.partial = 0;
        }
        Ok(())
    }

    /// Goes on with a file whose first `count` tensors are already complete, header included:
    /// the header is written again, their data is passed over.
    pub fn skip(&mut self, count: usize) -> Result<(), Error> {
        if count > self.tensors.len() {
            let found = format!("{count} tensors are to be skipped");
            return Err(wrong("data", &found, &format!("{} are announced", self.tensors.len())));
        }
        let start = self.start_data()?;
        self.out.seek(SeekFrom::Start(start + self.offset(count))).map_err(io)?;
        self.complete = count;
        self.partial = 0;
        Ok(())
    }

    /// Ends the file; every announced tensor must be complete.
    pub fn finish(mut self) -> Result<W, Error> {
        let start = self.start_data()?;
        self.pass_shared();
        if let Some(missing) = self.tensors.get(self.complete) {
            let found = format!("{} of {} bytes were written", self.partial, missing.bytes);
            return Err(wrong(&missing.name, &found, "all data is wanted before the end"));
        }
        let (position, wanted) = (self.out.stream_position().map_err(io)?, start + self.end);
        if position != wanted {
            let found = format!("the file ends at byte {position}");
            let wanted = format!("{wanted} is its end; begin with an empty file");
            return Err(wrong("data", &found, &wanted));
        }
        self.out.flush().map_err(io)?;
        Ok(self.out)
    }

    /// Where data goes once `index` tensors are complete, from the start of the data.
    fn offset(&self, index: usize) -> u64 {
        let own = self.tensors.iter().skip(index).find(|tensor| !tensor.shared);
        own.map_or(self.end, |tensor| tensor.offset)
    }

    /// Tensors without data of their own are complete as soon as it is their turn.
    fn pass_shared(&mut self) {
        while self.tensors.get(self.complete).is_some_and(|tensor| tensor.shared) {
            self.complete += 1;
        }
    }

    /// The header of what was announced so far, and how many bytes of data follow it.
    pub(crate) fn announced(&self) -> Result<(Vec<u8>, u64), Error> {
        Ok((self.header()?, self.end))
    }

    /// The header, padded.
    fn header(&self) -> Result<Vec<u8>, Error> {
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            put_text(&mut header, key.as_bytes());
            header.extend(value.type_id().to_le_bytes());
            put_value(&mut header, value);
        }
        for tensor in &self.tensors {
            put_text(&mut header, tensor.name.as_bytes());
            let dims = u32::try_from(tensor.dims.len()).expect("a kind has a size at 1 to 4 dims");
            header.extend(dims.to_le_bytes());
            header.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            let base = tensor.planes.map_or(0, |_| PLANES_TYPE_BASE);
            header.extend((base + tensor.kind.gguf_id()).to_le_bytes());
            header.extend(tensor.offset.to_le_bytes());
        }
        if header.len() as u64 > HEADER_BYTES_MAX {
            let wanted = format!("at most {HEADER_BYTES_MAX} are read");
            return Err(wrong("header", &format!("{} bytes", header.len()), &wanted));
        }
        let alignment = usize::try_from(self.alignment).expect("alignment is at most 2^20");
        header.resize(header.len().next_multiple_of(alignment), 0);
        Ok(header)
    }
}

fn wrong(field: &str, found: &str, wanted: &str) -> Error {
    error::format("the file being written", field, found, wanted)
}

fn io(source: std::io::Error) -> Error {
    Error::Io { doing: "writing", file: "the model".into(), source }
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
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
    out.extend(array.type_id().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::U16(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::I16(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::U32(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::I32(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::F32(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|v| u8::from(*v))),
        Array::String(v) => v.iter().for_each(|v| put_text(out, v)),
        Array::Array(v) => v.iter().for_each(|v| put_array(out, v)),
        Array::U64(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::I64(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::F64(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
    }
}
