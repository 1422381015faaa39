//! Bytes that keep their owner alive: a range of a mapped file, a vector, a part of the program.

use crate::{Error, TensorInfo};
use std::fs::File;
use std::io::Read;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// Where bytes live.
#[derive(Debug)]
pub(crate) enum Store {
    Map(Mapped),
    Vec(Vec<u8>),
    Static(&'static [u8]),
    Made(Made),
}

/// Makes the data of a tensor.
pub(crate) type Make = dyn Fn(&TensorInfo) -> Vec<u8> + Send + Sync;

/// The start of a file that is nowhere, and what makes its data.
pub(crate) struct Made {
    pub header: Vec<u8>,
    /// Bytes of header and data.
    pub bytes: usize,
    pub make: Box<Make>,
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Made").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// A mapped file.
#[derive(Debug)]
pub(crate) struct Mapped {
    map: memmap2::Mmap,
    /// Told of pages that nobody needs.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux is told"))]
    file: File,
}

impl Store {
    /// Bytes of the whole file, also of one that is nowhere.
    pub(crate) fn file_len(&self) -> usize {
        match self {
            Store::Made(made) => made.bytes,
            held => held.len(),
        }
    }

    /// Gives the memory of a range of a file back; whoever looks at it again reads it from the
    /// file. Pages that others have mapped stay.
    pub(crate) fn forget(&self, range: Range<usize>) {
        let Store::Map(Mapped { map, file }) = self else { return };
        if range.is_empty() || self.get(range.clone()).is_none() {
            return;
        }
        // Both are advice: where the system does not take it, nothing is lost.
        #[cfg(unix)]
        {
            // SAFETY: the range is inside (checked above) of a map of a file that is only read:
            // its pages come back with the same bytes.
            let _ = unsafe {
                let unneeded = memmap2::UncheckedAdvice::DontNeed;
                map.unchecked_advise_range(unneeded, range.start, range.len())
            };
        }
        #[cfg(target_os = "linux")]
        {
            let len = std::num::NonZeroU64::new(range.len() as u64);
            let unneeded = rustix::fs::Advice::DontNeed;
            let _ = rustix::fs::fadvise(file, range.start as u64, len, unneeded);
        }
        #[cfg(not(unix))]
        let _ = (map, file);
    }
}

impl Deref for Store {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Store::Map(mapped) => &mapped.map,
            Store::Vec(vec) => vec,
            Store::Static(bytes) => bytes,
            Store::Made(made) => &made.header,
        }
    }
}

/// A range of somebody's bytes; cloning is cheap and keeps the owner alive.
#[derive(Clone, Debug)]
pub struct Bytes {
    store: Arc<Store>,
    range: Range<usize>,
}

impl Bytes {
    /// `None` if the range is not inside.
    pub(crate) fn new(store: &Arc<Store>, range: Range<usize>) -> Option<Self> {
        store.get(range.clone())?;
        Some(Bytes { store: Arc::clone(store), range })
    }

    /// All of a vector.
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Bytes { store: Arc::new(Store::Vec(bytes)), range }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.store[self.range.clone()]
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Maps a file for reading; only regular files that are not empty.
pub(crate) fn map(path: &Path) -> Result<Store, Error> {
    let file = open(path, "a model file is wanted")?;
    // SAFETY: the map is only read. If another process shortens or rewrites the file meanwhile,
    // reads may fault or see new bytes; `Gguf::open` documents that, and whoever uses the bytes
    // takes any value.
    let map = unsafe { memmap2::Mmap::map(&file) };
    let failed = |source| Error::Io { doing: "mapping", file: path.display().to_string(), source };
    map.map(|map| Store::Map(Mapped { map, file })).map_err(failed)
}

/// Reads a text file of at most `bytes_max`.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> Result<String, Error> {
    let file = open(path, "a JSON text is wanted")?;
    let mut text = String::new();
    let read = file.take(bytes_max + 1).read_to_string(&mut text);
    let wrong = |found: &str| {
        let wanted = format!("UTF-8 of at most {bytes_max} bytes is wanted");
        crate::error::format(&path.display().to_string(), "text", found, wanted)
    };
    match read {
        Ok(bytes) if bytes as u64 > bytes_max => Err(wrong("it is longer")),
        Ok(_) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            Err(wrong("it is not UTF-8"))
        }
        Err(source) => {
            Err(Error::Io { doing: "reading", file: path.display().to_string(), source })
        }
    }
}

/// Opens a regular file that is not empty. It is looked at before it is opened, since opening a
/// pipe may wait for ever.
fn open(path: &Path, wanted: &'static str) -> Result<File, Error> {
    let failed =
        |doing| move |source| Error::Io { doing, file: path.display().to_string(), source };
    let unfit = |found| Error::NotAFile { file: path.display().to_string(), found, wanted };
    let about = std::fs::metadata(path).map_err(failed("opening"))?;
    if about.is_dir() {
        return Err(unfit("it is a folder"));
    }
    if !about.is_file() {
        return Err(unfit("it is a device or a pipe"));
    }
    if about.len() == 0 {
        return Err(unfit("the file is empty"));
    }
    File::open(path).map_err(failed("opening"))
}
