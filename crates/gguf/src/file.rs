//! An opened model: one or more files, their tensors checked to lie inside.

use crate::bytes::{Bytes, Made, Store, map};
use crate::error;
use crate::header::{self, Header, RawTensor};
use crate::packed::{self, PLANES_KEY};
use crate::tensor::{DataPlace, TensorInfo, TensorKind, TensorSpan, element_count};
use crate::{Error, Metadata, Writer};
use std::collections::HashMap;
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::Arc;

pub(crate) struct Part {
    pub name: String,
    pub store: Arc<Store>,
}

/// An opened model.
///
/// Invariant: the span of every tensor lies inside its part; names differ over all parts.
pub struct Gguf {
    pub(crate) parts: Vec<Part>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Gguf {
    /// Opens a file, and its other parts if it is split (`NAME-00001-of-00003.gguf`).
    ///
    /// Files are mapped, not read. They must not be shortened or written to while the model is in
    /// use: a map shows such a change at once, and reading past a new end kills the process.
    /// Replacing a file by renaming another over it is safe.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut gguf = Gguf::from_store(path.display().to_string(), map(path)?)?;
        gguf.open_other_parts(path)?;
        Ok(gguf)
    }

    /// Reads a model that lies in memory, whole: not split.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        Gguf::from_store("the model in memory".into(), Store::Vec(bytes))?.whole()
    }

    /// Reads a model that is part of the program.
    pub fn from_static(bytes: &'static [u8]) -> Result<Self, Error> {
        Gguf::from_store("the bundled model".into(), Store::Static(bytes))?.whole()
    }

    /// A model that is nowhere: what the writer was told of its keys and tensors, whose data is
    /// made each time that it is asked for. Tensors that share data get equal bytes.
    pub fn made<W: Write + Seek>(
        name: &str,
        announced: &Writer<W>,
        make: impl Fn(&TensorInfo) -> Vec<u8> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let (header, data) = announced.announced()?;
        let bytes = usize::try_from(data).ok().and_then(|data| data.checked_add(header.len()));
        let bytes = bytes.ok_or_else(|| {
            error::format(name, "data", format!("{data} bytes"), "this machine counts fewer")
        })?;
        let store = Store::Made(Made { header, bytes, make: Box::new(make) });
        Gguf::from_store(name.into(), store)?.whole()
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

    /// The bytes of a tensor of this model: without a copy, unless it lies in planes.
    pub fn bytes(&self, tensor: &TensorInfo) -> Result<Bytes, Error> {
        let stored = self.stored(tensor)?;
        let Some(planes) = tensor.planes else { return Ok(stored) };
        let bytes = usize::try_from(planes.block_bytes()).expect("fewer than the file has");
        let mut blocks = vec![0; bytes];
        planes.blocks(&stored, 0, &mut blocks);
        Ok(Bytes::of(blocks))
    }

    /// The bytes of a tensor of this model as they lie in the file, without a copy: in the order of
    /// [`TensorInfo::planes`], or whole blocks.
    pub fn stored(&self, tensor: &TensorInfo) -> Result<Bytes, Error> {
        let DataPlace { part, range } = self.place(tensor)?;
        if let Store::Made(made) = &*self.parts[part].store {
            let bytes = (made.make)(tensor);
            let (field, found) = (format!("tensor '{}'", tensor.name), bytes.len());
            if found != range.len() {
                let wanted = format!("{} are wanted", range.len());
                let found = format!("{found} bytes were made");
                return Err(error::format(&self.parts[part].name, &field, found, &wanted));
            }
            return Ok(Bytes::of(bytes));
        }
        let bytes = Bytes::new(&self.parts[part].store, range);
        Ok(bytes.expect("`place` has checked the range"))
    }

    /// Gives the memory of a tensor's bytes back, as far as they are a file's pages: they are read
    /// again when somebody looks at them. For who has copied them.
    pub fn forget(&self, tensor: &TensorInfo) {
        if let Ok(DataPlace { part, range }) = self.place(tensor) {
            self.parts[part].store.forget(range);
        }
    }

    /// Where the bytes of a tensor of this model lie. Tensors that share bytes have one place.
    pub fn place(&self, tensor: &TensorInfo) -> Result<DataPlace, Error> {
        let wrong = |file: &str, found: String, wanted: &str| {
            Err(error::format(file, &format!("tensor '{}'", tensor.name), found, wanted))
        };
        let part = match self.parts.get(tensor.part) {
            Some(part) if self.tensor(&tensor.name) == Some(tensor) => part,
            _ => {
                let file = &self.metadata.file;
                return wrong(file, "it is of another model".into(), "one of this is wanted");
            }
        };
        match tensor.span.and_then(|span| span.check(part.store.file_len())) {
            Some(range) => Ok(DataPlace { part: tensor.part, range }),
            None => {
                let found = format!("it is stored as {}", tensor.kind.name());
                let wanted = "a type that this program knows is wanted; a newer one may read it";
                wrong(&part.name, found, wanted)
            }
        }
    }

    fn from_store(name: String, store: Store) -> Result<Self, Error> {
        let Header { metadata, tensors, data_start, alignment, is_packed } =
            header::read(&name, &store)?;
        let mut gguf =
            Gguf { parts: Vec::new(), metadata, tensors: Vec::new(), by_name: HashMap::new() };
        gguf.add(name, store, tensors, Data { start: data_start, alignment, is_packed })?;
        Ok(gguf)
    }

    /// Takes in the tensors of one file, each checked to lie inside it.
    pub(crate) fn add(
        &mut self,
        name: String,
        store: Store,
        tensors: Vec<RawTensor>,
        data: Data,
    ) -> Result<(), Error> {
        self.tensors.reserve(tensors.len());
        self.by_name.reserve(tensors.len());
        for raw in tensors {
            let tensor = data.checked(&name, store.file_len(), raw, self.parts.len())?;
            let index = self.tensors.len();
            if self.by_name.insert(tensor.name.clone(), index).is_some() {
                let field = format!("tensor '{}'", tensor.name);
                return Err(error::format(&name, &field, "it occurs twice", "names must differ"));
            }
            self.tensors.push(tensor);
        }
        self.parts.push(Part { name, store: Arc::new(store) });
        Ok(())
    }
}

/// Where the data of a file is.
#[derive(Clone, Copy)]
pub(crate) struct Data {
    pub start: u64,
    pub alignment: u64,
    /// Whether tensors may lie in planes.
    pub is_packed: bool,
}

impl Data {
    /// A tensor, checked: possible dims, an aligned offset, data inside a file of `len` bytes.
    /// Tensors may overlap: synthetic files share data that way.
    fn checked(
        self,
        file: &str,
        len: usize,
        raw: RawTensor,
        part: usize,
    ) -> Result<TensorInfo, Error> {
        let field = format!("tensor '{}'", raw.name);
        let wrong = |found: String, wanted: &str| error::format(file, &field, found, wanted);
        let in_planes = packed::format_of(raw.kind);
        let kind = in_planes.map_or_else(|| TensorKind::from_gguf_id(raw.kind), TensorKind::Block);
        let mut bytes = kind.bytes(&raw.dims);
        let planes = in_planes.and_then(|format| packed::layout_of(format, &raw.dims));
        if in_planes.is_some() {
            bytes = planes.map(|planes| planes.bytes);
        }
        let sized = bytes.is_some() || matches!(kind, TensorKind::Other(_));
        if element_count(&raw.dims).is_none() || !sized {
            let found = format!("dims {:?} of type {}", raw.dims, kind.name());
            return Err(wrong(found, "dims above zero and rows of whole blocks are wanted"));
        }
        if planes.is_some() && !self.is_packed {
            let found = format!("it lies in planes, and there is no {PLANES_KEY}");
            return Err(wrong(
                found,
                "that key says in which; the file is damaged: fetch it again",
            ));
        }
        if !raw.offset.is_multiple_of(self.alignment) {
            let found = format!("its data is at offset {}", raw.offset);
            return Err(wrong(found, &format!("a multiple of {} is wanted", self.alignment)));
        }
        let span = match bytes {
            None => None,
            Some(bytes) => {
                let start = self.start.saturating_add(raw.offset);
                let span = TensorSpan { start, bytes };
                if span.check(len).is_none() {
                    let left = (len as u64).saturating_sub(start);
                    return Err(error::truncated(file, &field, bytes, left));
                }
                Some(span)
            }
        };
        Ok(TensorInfo { name: raw.name, kind, dims: raw.dims, part, span, planes })
    }
}
