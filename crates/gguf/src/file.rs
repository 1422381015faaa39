//! An opened model: one or more files, their tensors checked to lie inside.

use crate::bytes::{Bytes, Store};
use crate::{Error, Metadata, header};
use ironstar_quant::Format;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Most parts of a split model.
pub const PARTS_MAX: u64 = 1024;

/// What a tensor is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are GGUF's own")]
pub enum TensorKind {
    /// Blocks of a format that we know.
    Block(Format),
    I8,
    I16,
    I32,
    I64,
    F64,
    /// A type that we do not know: listed, but not readable.
    Other(u32),
}

impl TensorKind {
    /// From GGUF's number.
    #[must_use]
    pub fn from_gguf_id(id: u32) -> Self {
        match (Format::from_gguf_id(id), id) {
            (Some(format), _) => TensorKind::Block(format),
            (None, 24) => TensorKind::I8,
            (None, 25) => TensorKind::I16,
            (None, 26) => TensorKind::I32,
            (None, 27) => TensorKind::I64,
            (None, 28) => TensorKind::F64,
            (None, other) => TensorKind::Other(other),
        }
    }

    /// GGUF's number.
    #[must_use]
    pub fn gguf_id(self) -> u32 {
        match self {
            TensorKind::Block(format) => format.info().gguf_id,
            TensorKind::I8 => 24,
            TensorKind::I16 => 25,
            TensorKind::I32 => 26,
            TensorKind::I64 => 27,
            TensorKind::F64 => 28,
            TensorKind::Other(id) => id,
        }
    }

    /// Name for people.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            TensorKind::Block(format) => format.info().name.to_owned(),
            TensorKind::I8 => "I8".into(),
            TensorKind::I16 => "I16".into(),
            TensorKind::I32 => "I32".into(),
            TensorKind::I64 => "I64".into(),
            TensorKind::F64 => "F64".into(),
            TensorKind::Other(id) => format!("type {id}"),
        }
    }

    /// Bytes of a tensor with these dims; `None` if the type is unknown, a row is not whole blocks, or the
    /// number does not fit.
    #[must_use]
    pub fn bytes(self, dims: &[u64]) -> Option<u64> {
        let (columns, outer) = dims.split_first()?;
        let row = match self {
            TensorKind::Block(format) => format.row_bytes(usize::try_from(*columns).ok()?)? as u64,
            TensorKind::I8 => *columns,
            TensorKind::I16 => columns.checked_mul(2)?,
            TensorKind::I32 => columns.checked_mul(4)?,
            TensorKind::I64 | TensorKind::F64 => columns.checked_mul(8)?,
            TensorKind::Other(_) => return None,
        };
        outer.iter().try_fold(row, |bytes, dim| bytes.checked_mul(*dim))
    }
}

/// A range that a file alleges; only [`TensorSpan::check`] makes a range of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TensorSpan {
    start: u64,
    bytes: u64,
}

impl TensorSpan {
    /// The range, if it lies inside `len` bytes.
    fn check(self, len: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(self.start).ok()?;
        let end = start.checked_add(usize::try_from(self.bytes).ok()?)?;
        (end <= len).then_some(start..end)
    }
}

/// A tensor of an opened model.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// What it is stored as.
    pub kind: TensorKind,
    /// Dims, innermost first as in the file.
    pub dims: Vec<u64>,
    /// Which file of a split model holds it.
    pub part: usize,
    span: Option<TensorSpan>,
}

impl TensorInfo {
    /// Bytes it takes in the file; `None` if its type is unknown.
    #[must_use]
    pub fn byte_count(&self) -> Option<u64> {
        self.span.map(|span| span.bytes)
    }
}

struct Part {
    name: String,
    store: Arc<Store>,
}

/// An opened model.
pub struct Gguf {
    parts: Vec<Part>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Gguf {
    /// Opens a file, and its other parts if it is split (`NAME-00001-of-00003.gguf`).
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut gguf = Gguf::from_store(path.display().to_string(), map(path)?)?;
        if let Some(count) = gguf.metadata.opt_u64("split.count")?.filter(|count| *count > 1) {
            gguf.open_parts(path, count)?;
        }
        Ok(gguf)
    }

    /// Reads a model that lies in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        Gguf::from_store("a model in memory".into(), Store::Vec(bytes))
    }

    /// Reads a model that is part of the program.
    pub fn from_static(bytes: &'static [u8]) -> Result<Self, Error> {
        Gguf::from_store("the bundled model".into(), Store::Static(bytes))
    }

    /// Keys and values (of the first part).
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of the files.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor by name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|index| &self.tensors[*index])
    }

    /// The bytes of a tensor.
    pub fn bytes(&self, tensor: &TensorInfo) -> Result<Bytes, Error> {
        let part = self.parts.get(tensor.part);
        let found = part
            .zip(tensor.span)
            .and_then(|(part, span)| Bytes::new(&part.store, span.check(part.store.len())?));
        found.ok_or_else(|| Error::Format {
            file: part.map_or("this model".into(), |part| part.name.clone()),
            field: tensor.name.clone(),
            found: format!("its type is {}", tensor.kind.name()),
            wanted: "a type that this program knows is wanted; a newer program may read it".into(),
        })
    }

    fn from_store(name: String, store: Store) -> Result<Self, Error> {
        let header = header::read(&name, &store)?;
        let mut gguf = Gguf {
            parts: Vec::new(),
            metadata: header.metadata.clone(),
            tensors: Vec::new(),
            by_name: HashMap::new(),
        };
        gguf.add(name, store, header)?;
        Ok(gguf)
    }

    /// Takes in the tensors of one file, each checked to lie inside it.
    fn add(&mut self, name: String, store: Store, header: header::Header) -> Result<(), Error> {
        for raw in header.tensors {
            let kind = TensorKind::from_gguf_id(raw.kind);
            let wrong = |found: String, wanted: &str| Error::Format {
                file: name.clone(),
                field: format!("tensor '{}'", raw.name),
                found,
                wanted: wanted.to_owned(),
            };
            if raw.offset % header.alignment != 0 {
                let found = format!("its data is at offset {}", raw.offset);
                return Err(wrong(found, &format!("a multiple of {} is wanted", header.alignment)));
            }
            let span = match (kind, kind.bytes(&raw.dims)) {
                (TensorKind::Other(_), _) => None,
                (_, Some(bytes)) => {
                    let start = header.data_start.checked_add(raw.offset);
                    let span = start.map(|start| TensorSpan { start, bytes });
                    let inside = span.filter(|span| span.check(store.len()).is_some());
                    Some(inside.ok_or_else(|| {
                        let found = format!(
                            "it claims {bytes} bytes at offset {} of the data, and the file has {} bytes",
                            raw.offset,
                            store.len()
                        );
                        wrong(found, "it must lie inside; the file was cut short or is damaged")
                    })?)
                }
                (_, None) => {
                    let found = format!("dims {:?} of type {}", raw.dims, kind.name());
                    return Err(wrong(found, "rows of whole blocks of a possible size are wanted"));
                }
            };
            if self.by_name.contains_key(&raw.name) {
                return Err(wrong(
                    "the tensor is also in an earlier part".into(),
                    "names must differ",
                ));
            }
            self.by_name.insert(raw.name.clone(), self.tensors.len());
            let part = self.parts.len();
            self.tensors.push(TensorInfo { name: raw.name, kind, dims: raw.dims, part, span });
        }
        self.parts.push(Part { name, store: Arc::new(store) });
        Ok(())
    }

    fn open_parts(&mut self, first: &Path, count: u64) -> Result<(), Error> {
        let file = first.display().to_string();
        let wrong = |field: &str, found: String, wanted: String| Error::Format {
            file: file.clone(),
            field: field.to_owned(),
            found,
            wanted,
        };
        if count > PARTS_MAX {
            return Err(wrong(
                "split.count",
                count.to_string(),
                format!("at most {PARTS_MAX} is wanted"),
            ));
        }
        if let Some(number) = self.metadata.opt_u64("split.no")?.filter(|number| *number != 0) {
            let found = format!("this is part {} of {count}", number + 1);
            return Err(wrong("split.no", found, "open the first part (-00001-of-)".into()));
        }
        let ending = format!("-00001-of-{count:05}.gguf");
        let name = first.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let stem = name.strip_suffix(&ending).ok_or_else(|| {
            let found = format!("the file is called '{name}' and is the first of {count} parts");
            wrong("split.count", found, format!("a name that ends in '{ending}' is wanted"))
        })?;
        for number in 2..=count {
            let path = first.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"));
            let part = path.display().to_string();
            let store = map(&path)?;
            let header = header::read(&part, &store)?;
            let found =
                (header.metadata.opt_u64("split.no")?, header.metadata.opt_u64("split.count")?);
            if found != (Some(number - 1), Some(count)) {
                let found = format!("{part} says it is part {:?} of {:?}", found.0, found.1);
                let wanted = format!("part {} of {count} is wanted (counted from 0)", number - 1);
                return Err(wrong("split.no", found, wanted));
            }
            self.add(part, store, header)?;
        }
        let wanted = self.metadata.opt_u64("split.tensors.count")?;
        match wanted.filter(|wanted| *wanted != self.tensors.len() as u64) {
            Some(wanted) => Err(wrong(
                "split.tensors.count",
                format!("the parts hold {} tensors", self.tensors.len()),
                format!("{wanted} are announced; parts of different models may be mixed"),
            )),
            None => Ok(()),
        }
    }
}

/// Maps a file for reading.
pub(crate) fn map(path: &Path) -> Result<Store, Error> {
    let failed =
        |doing| move |source| Error::Io { doing, file: path.display().to_string(), source };
    let file = File::open(path).map_err(failed("opening"))?;
    let about = file.metadata().map_err(failed("reading"))?;
    if !about.is_file() {
        return Err(Error::Format {
            file: path.display().to_string(),
            field: "the path".into(),
            found: "it is not a file".into(),
            wanted: "name a file".into(),
        });
    }
    if about.len() == 0 {
        return Ok(Store::Vec(Vec::new()));
    }
    // SAFETY: the map is only read. If another process truncates or rewrites the file, reads may fault or see
    // new bytes; every consumer treats the bytes as hostile, and the manual says not to write to a file in use.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(failed("mapping"))?;
    Ok(Store::Map(map))
}
