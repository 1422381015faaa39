//! Memory of this machine that cards write and read by themselves, and that ranks in processes of
//! their own can all have: the windows of cards that do not reach each other's memory.
//!
//! Nothing in it is ever a Rust reference to plain bytes, since cards and other processes write
//! it at any time: it is atomic words.

use super::super::driver::Address;
#[cfg(feature = "host-driver")]
use super::super::driver::{HANDLE_BYTES, Handle};
use super::Window;
use crate::Error;
use memmap2::MmapRaw;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of the head that say what the memory is, behind the one that kernels read.
pub(crate) const NAME_AT: usize = 4;
/// Letters and the version of a window.
const MAGIC: u64 = u64::from_le_bytes(*b"ISTRWIN\x01");

/// What the head of a window of this number says.
pub(crate) fn name_of(nonce: u64, bytes: usize) -> [u64; 3] {
    [MAGIC, nonce, bytes as u64]
}

/// A number that windows of other processes and times do not have.
pub(super) fn nonce() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Shared memory of a window's size.
pub(crate) struct Map {
    raw: MmapRaw,
    file: File,
    nonce: u64,
}

/// Where a process has a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    pub process: u64,
    pub descriptor: u64,
    pub nonce: u64,
    pub bytes: u64,
}

/// The host driver's windows are maps: what a handle of theirs says.
#[cfg(feature = "host-driver")]
impl Offer {
    pub fn handle(self) -> Handle {
        let mut handle = [0; HANDLE_BYTES];
        handle[..8].copy_from_slice(&self.process.to_le_bytes());
        handle[8..16].copy_from_slice(&self.descriptor.to_le_bytes());
        handle
    }

    pub fn of_handle(handle: &Handle, bytes: usize, nonce: u64) -> Offer {
        let words = handle.as_chunks::<8>().0;
        let [process, descriptor] = [0, 1].map(|at| u64::from_le_bytes(words[at]));
        Offer { process, descriptor, nonce, bytes: bytes as u64 }
    }
}

fn failed(doing: &'static str, found: String) -> Error {
    let advice = "sums go another way; --gates host does without such memory";
    Error::Device { device: "this machine".into(), doing, found, advice }
}

impl Map {
    /// Zeros, of whose pages only those take memory that are touched or pinned.
    pub fn new(bytes: usize) -> Result<Map, Error> {
        Self::named(bytes, nonce())
    }

    /// The same with a number that somebody else has made.
    pub fn named(bytes: usize, nonce: u64) -> Result<Map, Error> {
        let io =
            |error: std::io::Error| failed("making memory that ranks share", error.to_string());
        let file = memory_file(bytes as u64).map_err(io)?;
        let raw = MmapRaw::map_raw(&file).map_err(io)?;
        let map = Map { raw, file, nonce };
        for (at, word) in map.name().into_iter().enumerate() {
            map.word(NAME_AT + at).store(word, Ordering::Release);
        }
        Ok(map)
    }

    /// What other processes need to find it.
    pub fn offer(&self) -> Offer {
        let descriptor = descriptor(&self.file);
        let process = u64::from(std::process::id());
        Offer { process, descriptor, nonce: self.nonce, bytes: self.raw.len() as u64 }
    }

    /// The memory that another rank offers, if that is on this machine.
    pub fn open(offer: &Offer, bytes: usize) -> Result<Map, Error> {
        let path = format!("/proc/{}/fd/{}", offer.process, offer.descriptor);
        let wrong = |found: String| failed("opening another rank's window", found);
        if offer.bytes != bytes as u64 {
            return Err(wrong(format!("{} bytes where {bytes} are due", offer.bytes)));
        }
        let io = |error: std::io::Error| wrong(format!("{path}: {error}"));
        // Looked at first: opening what is no file may do something.
        let about = std::fs::metadata(&path).map_err(io)?;
        if !about.is_file() || about.len() != offer.bytes {
            let found = about.len();
            return Err(wrong(format!("{path} has {found} bytes where a file of {bytes} is due")));
        }
        let file = File::options().read(true).write(true).open(&path).map_err(io)?;
        if !cannot_shrink(&file).map_err(io)? {
            return Err(wrong(format!("{path} may be shortened, which would end this process")));
        }
        let raw = MmapRaw::map_raw(&file).map_err(io)?;
        let map = Map { raw, file, nonce: offer.nonce };
        let mut words = map.name().into_iter().enumerate();
        let same = |(at, word)| map.word(NAME_AT + at).load(Ordering::Acquire) == word;
        if map.raw.len() != bytes || !words.all(same) {
            return Err(wrong(format!("{path} is another machine's, or no window")));
        }
        Ok(map)
    }

    fn name(&self) -> [u64; 3] {
        name_of(self.nonce, self.raw.len())
    }

    /// A word by its number.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.raw.len() / 8, "a word of the map");
        // SAFETY: the eight bytes are inside the map (checked above) and aligned, since maps begin
        // at a page; they live as long as `self`, and this process uses them only as atomics.
        unsafe { AtomicU64::from_ptr(self.raw.as_mut_ptr().cast::<u64>().add(index)) }
    }

    /// Where it begins, for a driver.
    pub fn start(&self) -> *mut u8 {
        self.raw.as_mut_ptr()
    }

    /// How long it is.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Ends the waiting of kernels that read this window.
    pub fn tell(&self, word: u32) {
        self.word(0).store(u64::from(word), Ordering::Release);
    }
}

/// A file that is memory only, and that nobody can shorten under those who have mapped it.
#[cfg(target_os = "linux")]
fn memory_file(bytes: u64) -> std::io::Result<File> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("ironstar-window", flags)?);
    file.set_len(bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Whether a file is sealed as those of [`memory_file`] are.
#[cfg(target_os = "linux")]
fn cannot_shrink(file: &File) -> std::io::Result<bool> {
    use rustix::fs::{SealFlags, fcntl_get_seals};
    Ok(fcntl_get_seals(file)?.contains(SealFlags::SHRINK))
}

#[cfg(not(target_os = "linux"))]
fn memory_file(_: u64) -> std::io::Result<File> {
    Err(std::io::Error::other("only Linux has files that are memory"))
}

#[cfg(not(target_os = "linux"))]
fn cannot_shrink(_: &File) -> std::io::Result<bool> {
    Ok(false)
}

#[cfg(unix)]
fn descriptor(file: &File) -> u64 {
    use std::os::fd::AsRawFd;
    u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX)
}

#[cfg(not(unix))]
fn descriptor(_: &File) -> u64 {
    u64::MAX
}

/// A map where a card reaches it.
pub(crate) struct Lent {
    /// What takes it back from the card; dropped before the map.
    _back: Option<Box<dyn Send + Sync>>,
    map: Arc<Map>,
    address: Address,
}

impl Lent {
    /// A map at an address of the card, until what is dropped with it.
    pub fn new(map: Arc<Map>, address: Address, back: Option<Box<dyn Send + Sync>>) -> Lent {
        Lent { _back: back, map, address }
    }
}

impl Window for Lent {
    fn address(&self) -> Address {
        self.address
    }

    fn tell(&self, word: u32) {
        self.map.tell(word);
    }
}
