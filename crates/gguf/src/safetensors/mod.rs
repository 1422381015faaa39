//! Published checkpoints: safetensors files, alone or sharded by an index, in the layout of
//! spec/deepseek_v4.md 7.1.
//!
//! A file is a header (JSON behind its length) and data; offsets in the header are claims until
//! checked. Matrices may be stored as E4M3 with a grid of scales, or as FP4 pairs with one E8M0
//! scale per 32 columns; the scales are a tensor of their own (`X.weight` and `X.scale`).
//!
//! Names are kept in one form, see `names.rs`; every form is understood.
//!
//! ```no_run
//! # use ironstar_gguf::safetensors::Checkpoint;
//! let checkpoint = Checkpoint::open("weights".as_ref())?;
//! let rows = checkpoint.to_f32("layers.0.attn.wkv.weight")?;
//! # Ok::<(), ironstar_gguf::Error>(())
//! ```

mod header;
mod names;
mod values;

pub use header::{DIMS_MAX, Dtype, HEADER_BYTES_MAX};

use crate::bytes::{Bytes, Store, map, read_text};
use crate::{Error, error};
use header::Entry;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Name of the index of a sharded checkpoint.
pub const INDEX: &str = "model.safetensors.index.json";
/// Name of a checkpoint in one file.
pub const SINGLE: &str = "model.safetensors";
/// Name of the text that describes the model.
pub const CONFIG: &str = "config.json";
/// Longest index that is read; the largest published one has some twenty million bytes.
pub const INDEX_BYTES_MAX: u64 = 1 << 27;
/// Longest `config.json` that is read.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Most shards of a checkpoint.
pub const SHARDS_MAX: usize = 1024;

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorMeta {
    /// What it is stored as.
    pub dtype: Dtype,
    /// Dims, outermost first as in the file.
    pub shape: Vec<u64>,
    shard: usize,
    /// Inside the shard's bytes.
    range: Range<usize>,
}

struct Shard {
    name: String,
    store: Arc<Store>,
}

/// An opened checkpoint.
///
/// Invariant: the range of every tensor lies inside its shard and has the size that its shape and
/// type need.
pub struct Checkpoint {
    /// Where `config.json` would be.
    folder: Option<PathBuf>,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, TensorMeta>,
}

impl Checkpoint {
    /// Opens a file, or a folder with an index or a single `model.safetensors`. Files are mapped;
    /// the caution of [`crate::Gguf::open`] holds.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if !path.is_dir() {
            let mut checkpoint = Checkpoint::empty(path.parent().map(Path::to_owned));
            checkpoint.add(path.display().to_string(), map(path)?)?;
            return Ok(checkpoint);
        }
        let mut checkpoint = Checkpoint::empty(Some(path.to_owned()));
        let (index, single) = (path.join(INDEX), path.join(SINGLE));
        if index.exists() {
            checkpoint.add_shards(path, &index)?;
        } else if single.exists() {
            checkpoint.add(single.display().to_string(), map(&single)?)?;
        } else {
            return Err(Error::NotAFile {
                file: path.display().to_string(),
                found: "a folder without a checkpoint",
                wanted: "model.safetensors.index.json or model.safetensors is wanted in it",
            });
        }
        Ok(checkpoint)
    }

    /// Reads one file that lies in memory.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, Error> {
        let mut checkpoint = Checkpoint::empty(None);
        checkpoint.add(name.to_owned(), Store::Vec(bytes))?;
        Ok(checkpoint)
    }

    /// The text of the `config.json` beside the weights, if there is one.
    pub fn config(&self) -> Result<Option<String>, Error> {
        let path = self.folder.as_ref().map(|folder| folder.join(CONFIG));
        match path.filter(|path| path.exists()) {
            Some(path) => read_text(&path, CONFIG_BYTES_MAX).map(Some),
            None => Ok(None),
        }
    }

    /// Names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor by name, in any form.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorMeta> {
        self.tensors.get(&names::canonical(name))
    }

    /// The stored bytes of a tensor, without a copy.
    pub fn bytes(&self, name: &str) -> Result<Bytes, Error> {
        let meta = self.need(name)?;
        let bytes = Bytes::new(&self.shards[meta.shard].store, meta.range.clone());
        Ok(bytes.expect("ranges were checked when the shard was opened"))
    }

    fn empty(folder: Option<PathBuf>) -> Self {
        Checkpoint { folder, shards: Vec::new(), tensors: BTreeMap::new() }
    }

    fn need(&self, name: &str) -> Result<&TensorMeta, Error> {
        self.tensor(name).ok_or_else(|| {
            let file = self.shards.first().map_or("the checkpoint", |shard| shard.name.as_str());
            let wanted = "a whole checkpoint of this architecture is wanted";
            error::format(file, name, "the tensor is missing", wanted)
        })
    }

    /// An error about a tensor, which names the shard that holds it.
    fn wrong(&self, name: &str, found: impl Into<String>, wanted: impl Into<String>) -> Error {
        let shard = self.tensor(name).and_then(|meta| self.shards.get(meta.shard));
        error::format(shard.map_or("the checkpoint", |shard| &shard.name), name, found, wanted)
    }

    /// Takes in every shard that an index names, and checks that each tensor is where it says.
    fn add_shards(&mut self, folder: &Path, index: &Path) -> Result<(), Error> {
        let file = index.display().to_string();
        let announced = header::read_index(&file, &read_text(index, INDEX_BYTES_MAX)?)?;
        if let Some((name, shard)) = announced.iter().find(|(_, shard)| !inside_folder(shard)) {
            let found = format!("its file is '{}'", error::shown(shard));
            return Err(error::format(&file, name, found, "a file in the same folder is wanted"));
        }
        let mut shards: Vec<&str> = announced.iter().map(|(_, shard)| shard.as_str()).collect();
        shards.sort_unstable();
        shards.dedup();
        if shards.len() > SHARDS_MAX {
            let wanted = format!("at most {SHARDS_MAX} are read");
            return Err(error::format(&file, "weight_map", shards.len().to_string(), wanted));
        }
        for shard in &shards {
            let path = folder.join(shard);
            self.add(path.display().to_string(), map(&path)?)?;
        }
        let misplaced = announced.iter().find(|(name, shard)| {
            let found = self.tensor(name).map(|meta| shards[meta.shard]);
            found != Some(shard)
        });
        match misplaced {
            None => Ok(()),
            Some((name, shard)) => {
                let found = format!("the tensor is not in '{}'", error::shown(shard));
                let wanted = "index and shards of one checkpoint are wanted; fetch them again";
                Err(error::format(&file, name, found, wanted))
            }
        }
    }

    /// Takes in one file, each tensor checked to lie inside it and apart from the others.
    fn add(&mut self, file: String, store: Store) -> Result<(), Error> {
        let (entries, data_start) = header::read(&file, &store)?;
        let mut ranges = Vec::with_capacity(entries.len());
        for (name, entry) in entries {
            let range = checked_range(&file, &name, &entry, data_start, store.len())?;
            ranges.push((range.start, range.end));
            let Entry { dtype, shape, .. } = entry;
            let meta = TensorMeta { dtype, shape, shard: self.shards.len(), range };
            if self.tensors.insert(names::canonical(&name), meta).is_some() {
                let wanted = "names must differ, in every form of a name";
                return Err(error::format(&file, &name, "the tensor occurs twice", wanted));
            }
        }
        ranges.sort_unstable();
        if let Some(pair) = ranges.windows(2).find(|pair| pair[1].0 < pair[0].1) {
            let found = format!("two tensors overlap at byte {}", pair[1].0);
            return Err(error::format(&file, "data_offsets", found, "tensors must lie apart"));
        }
        self.shards.push(Shard { name: file, store: Arc::new(store) });
        Ok(())
    }
}

/// Where a tensor lies in a file of `len` bytes whose data begins at `data_start`.
fn checked_range(
    file: &str,
    name: &str,
    entry: &Entry,
    data_start: usize,
    len: usize,
) -> Result<Range<usize>, Error> {
    let (start, end) = entry.data_offsets;
    let Some(bytes) = entry.bytes().filter(|bytes| end.checked_sub(start) == Some(*bytes)) else {
        let found = format!("offsets {start}..{end} for {:?} of {:?}", entry.shape, entry.dtype);
        let wanted = format!("up to {DIMS_MAX} dims and the bytes that they need are wanted");
        return Err(error::format(file, name, found, wanted));
    };
    let data_bytes = len - data_start;
    match (usize::try_from(start), usize::try_from(end)) {
        (Ok(start), Ok(end)) if end <= data_bytes => Ok(data_start + start..data_start + end),
        _ => Err(error::truncated(file, name, bytes, (data_bytes as u64).saturating_sub(start))),
    }
}

/// Whether a file name names a file of its folder, and no other.
fn inside_folder(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none()
}
