//! Packed files: models whose quantised tensors lie as cards read them, in planes, so that a card
//! that shares the processor's memory reads them where the file is mapped.
//!
//! The key [`PLANES_KEY`] says in which planes (`ironstar_quant::planes::VERSION`). A tensor in
//! planes has a type number of its own, [`PLANES_TYPE_BASE`] and its format's: a reader that does
//! not know planes refuses it, and does not take planes for blocks. All else is as it was, but for
//! the alignment, which [`PLANES_ALIGNMENT_KEY`] keeps, so that the file can be made as it was.

use crate::header::ALIGNMENT_KEY;
use crate::tensor::element_count;
use crate::{
    Bytes, DataPlace, Error, Gguf, Metadata, TensorInfo, TensorKind, Value, Writer, error,
};
use ironstar_quant::Format;
use ironstar_quant::planes::{self, Layout};
use std::collections::HashMap;
use std::io::{Seek, Write};

/// Key of the planes' version.
pub const PLANES_KEY: &str = "ironstar.planes";
/// Key of the alignment that the file had before; absent if it named none.
pub const PLANES_ALIGNMENT_KEY: &str = "ironstar.planes.alignment";
/// What is added to the number of a format's type in planes: far above the numbers that GGUF gives.
pub const PLANES_TYPE_BASE: u32 = 0x4953_0000;

/// Bytes that are written at a time.
const SLAB: usize = 4 << 20;

/// The format of a type in planes. Formats of one piece have no such type: blocks are planes.
pub(crate) fn format_of(gguf_id: u32) -> Option<Format> {
    Format::from_gguf_id(gguf_id.checked_sub(PLANES_TYPE_BASE)?).filter(|f| has_planes(*f))
}

fn has_planes(format: Format) -> bool {
    planes::pieces(format).len() > 1
}

/// Where the planes of a tensor lie; `None` unless its rows are whole blocks.
pub(crate) fn layout_of(format: Format, dims: &[u64]) -> Option<Layout> {
    TensorKind::Block(format).bytes(dims)?;
    Layout::new(format, element_count(dims)? / format.info().block_elements as u64)
}

/// Whether a file's tensors may lie in planes, of the one version that is read.
pub(crate) fn is_announced(metadata: &Metadata, alignment: u64) -> Result<bool, Error> {
    let Some(version) = metadata.opt_u32(PLANES_KEY)? else { return Ok(false) };
    let wrong = |key, found, wanted: String| Err(error::format(&metadata.file, key, found, wanted));
    if version != planes::VERSION {
        let wanted = format!(
            "version {} is read; pack the model again with this program, or use one of the version \
             that packed it",
            planes::VERSION
        );
        return wrong(PLANES_KEY, format!("planes of version {version}"), wanted);
    }
    if !alignment.is_multiple_of(planes::ALIGNMENT.into()) {
        let found = format!("{alignment} in a file of planes");
        let wanted = format!("a multiple of {} is wanted; pack the model again", planes::ALIGNMENT);
        return wrong(ALIGNMENT_KEY, found, wanted);
    }
    Ok(true)
}

impl Gguf {
    /// Whether it is a packed file.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        self.metadata().get(PLANES_KEY).is_some()
    }

    /// Whether a file is what [`Writer`] makes of its keys, tensors and data: then packing it and
    /// making it as it was gives its very bytes. Most programs write such files.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let [part] = &self.parts[..] else { return false };
        let entries = self.metadata().entries().to_vec();
        let Ok(writer) = Job::new(self, Order::AsItIs).announced(entries, std::io::empty()) else {
            return false;
        };
        let Ok((header, data)) = writer.announced() else { return false };
        let len = header.len() as u64 + data;
        if part.store.get(..header.len()) != Some(&header) || part.store.file_len() as u64 != len {
            return false;
        }
        let mut ends: Vec<_> = self.tensors().iter().filter_map(|t| self.place(t).ok()).collect();
        ends.sort_by_key(|place| place.range.start);
        let next = ends.iter().skip(1).map(|place| place.range.start).chain([part.store.len()]);
        let mut gaps = ends.iter().zip(next).map(|(place, next)| place.range.end..next);
        gaps.all(|gap| {
            let zeros = |gap: &[u8]| gap.iter().all(|byte| *byte == 0);
            gap.is_empty() || part.store.get(gap).is_some_and(zeros)
        })
    }
}

/// Writes a model with its quantised tensors in planes. `progress` is told of each tensor before
/// its data is written.
pub fn pack<W: Write + Seek>(
    model: &Gguf,
    out: W,
    progress: &mut dyn FnMut(&TensorInfo),
) -> Result<W, Error> {
    let file = &model.metadata().file;
    if model.is_packed() {
        let wanted = "a file that is not packed is wanted";
        return Err(error::format(file, PLANES_KEY, "the model is packed already", wanted));
    }
    let was = model.metadata().opt_u32(ALIGNMENT_KEY)?;
    let alignment = was.unwrap_or(0).max(planes::ALIGNMENT);
    let mut entries = model.metadata().entries().to_vec();
    if model.parts.len() > 1 {
        // They become one file.
        entries.retain(|(key, _)| !key.starts_with("split."));
    }
    set(&mut entries, ALIGNMENT_KEY, alignment);
    set(&mut entries, PLANES_KEY, planes::VERSION);
    if let Some(was) = was {
        set(&mut entries, PLANES_ALIGNMENT_KEY, was);
    }
    Job::new(model, Order::Planes).write(entries, out, progress)
}

/// Writes the model that a file was packed from; equal bytes if that [`Gguf::is_plain`].
pub fn unpack<W: Write + Seek>(
    model: &Gguf,
    out: W,
    progress: &mut dyn FnMut(&TensorInfo),
) -> Result<W, Error> {
    if !model.is_packed() {
        let wanted = "a packed file is wanted; this one can be used as it is";
        let found = "the model is not packed";
        return Err(error::format(&model.metadata().file, PLANES_KEY, found, wanted));
    }
    let was = model.metadata().opt_u32(PLANES_ALIGNMENT_KEY)?;
    let mut entries = model.metadata().entries().to_vec();
    entries.retain(|(key, _)| key != PLANES_KEY && key != PLANES_ALIGNMENT_KEY);
    match was {
        Some(was) => set(&mut entries, ALIGNMENT_KEY, was),
        None => entries.retain(|(key, _)| key != ALIGNMENT_KEY),
    }
    Job::new(model, Order::Blocks).write(entries, out, progress)
}

/// Gives a key a value, where it is if it is there.
fn set(entries: &mut Vec<(String, Value)>, key: &str, value: u32) {
    match entries.iter_mut().find(|(found, _)| found == key) {
        Some((_, old)) => *old = Value::U32(value),
        None => entries.push((key.to_owned(), Value::U32(value))),
    }
}

/// How tensors are to lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    AsItIs,
    Blocks,
    Planes,
}

/// The same model in another file.
struct Job<'a> {
    model: &'a Gguf,
    order: Order,
}

impl<'a> Job<'a> {
    fn new(model: &'a Gguf, order: Order) -> Self {
        Job { model, order }
    }

    /// How a tensor is to lie in planes, if at all.
    fn planes(&self, tensor: &TensorInfo) -> Option<Layout> {
        match (self.order, tensor.kind) {
            (Order::AsItIs, _) => tensor.planes,
            (Order::Planes, TensorKind::Block(format)) if has_planes(format) => {
                layout_of(format, &tensor.dims)
            }
            _ => None,
        }
    }

    /// A writer that knows all keys and tensors. Those that share data go on to.
    fn announced<W: Write + Seek>(
        &self,
        entries: Vec<(String, Value)>,
        out: W,
    ) -> Result<Writer<W>, Error> {
        let mut writer = Writer::new(out);
        for (key, value) in entries {
            writer.metadata(&key, value)?;
        }
        let mut first: HashMap<(DataPlace, Option<Format>), &str> = HashMap::new();
        for tensor in self.model.tensors() {
            let place = self.model.place(tensor)?;
            let planes = self.planes(tensor);
            let format = planes.map(|planes| planes.format);
            let with = first.get(&(place.clone(), format)).copied();
            writer.announce(&tensor.name, (tensor.kind, planes), &tensor.dims, with)?;
            first.entry((place, format)).or_insert(&tensor.name);
        }
        Ok(writer)
    }

    fn write<W: Write + Seek>(
        &self,
        entries: Vec<(String, Value)>,
        out: W,
        progress: &mut dyn FnMut(&TensorInfo),
    ) -> Result<W, Error> {
        let mut writer = self.announced(entries, out)?;
        for (index, tensor) in self.model.tensors().iter().enumerate() {
            progress(tensor);
            if writer.is_shared(index) {
                continue;
            }
            self.data(tensor, &mut writer)?;
            self.model.forget(tensor);
        }
        writer.finish()
    }

    fn data<W: Write + Seek>(
        &self,
        tensor: &TensorInfo,
        writer: &mut Writer<W>,
    ) -> Result<(), Error> {
        let stored: Bytes = self.model.stored(tensor)?;
        let name = &tensor.name;
        match (tensor.planes, self.planes(tensor)) {
            (None, Some(planes)) => {
                let count = planes::pieces(planes.format).len();
                (0..count).try_for_each(|index| {
                    planes.plane(index, &stored, |bytes| writer.data(name, bytes))
                })
            }
            (Some(planes), None) => {
                let all = usize::try_from(planes.block_bytes()).expect("fewer than the file has");
                let mut slab = vec![0; SLAB.min(all)];
                (0..all).step_by(SLAB).try_for_each(|start| {
                    let slab = &mut slab[..SLAB.min(all - start)];
                    planes.blocks(&stored, start, slab);
                    writer.data(name, slab)
                })
            }
            _ => stored.chunks(SLAB).try_for_each(|bytes| writer.data(name, bytes)),
        }
    }
}
