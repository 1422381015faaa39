//! Memory that somebody else writes too: another process, or a network card. All unsafe code of
//! this crate is here, in `functions.rs`, `verbs/device.rs`, `mpi/library.rs` and `sum.rs`.

use super::Taken;
use crate::message::{HEADER_BYTES, PAYLOAD_PLACE};
use crate::sum::copy_summed_from;
use memmap2::{MmapMut, MmapRaw};
use std::fs::File;
use std::sync::atomic::AtomicU64;

/// A shared mapping of a whole file. Nothing in it is ever a Rust reference to plain bytes: the
/// other process may write at any time, so bytes are copied in and out, and counters are atomics.
pub(super) struct SharedMap {
    map: MmapRaw,
}

impl SharedMap {
    /// Maps `file`, which nobody may shorten while the map lives (it is made by one of the two
    /// ends and unlinked as soon as both have it).
    pub fn new(file: &File) -> std::io::Result<Self> {
        Ok(Self { map: MmapRaw::map_raw(file)? })
    }

    /// Pages of zeros that no other process has: for a card. A child of this process gets none of
    /// them, since a fork would put copies under what the card writes to.
    pub fn private(bytes: usize) -> std::io::Result<Self> {
        let map = MmapMut::map_anon(bytes)?;
        #[cfg(target_os = "linux")]
        map.advise(memmap2::Advice::DontFork)?;
        Ok(Self { map: map.into() })
    }

    /// Where it begins, for a card.
    pub fn address(&self) -> *mut std::ffi::c_void {
        self.map.as_mut_ptr().cast()
    }

    /// Bytes of the map.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// The counter at `offset`, which is a multiple of 8 inside of the map.
    pub fn counter(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.map.len(), "a counter of the map");
        // SAFETY: the eight bytes are inside the map (checked above) and aligned, since maps begin
        // at a page; they live as long as `self`, and both processes use them only as atomics.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    /// Copies `bytes` to `offset`.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(self.inside(offset, bytes.len()), "a range of the map");
        // SAFETY: the range is inside the map (checked above) and `bytes` is memory of this
        // process. The reader looks at it only after a counter said so; one that does not keep
        // to that sees a wrong checksum, and nothing in this process refers to these bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.map.as_mut_ptr().add(offset),
                bytes.len(),
            );
        }
    }

    /// Copies from `offset` to `into`. What another process writes meanwhile may be torn: the
    /// caller checks what it got.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(self.inside(offset, into.len()), "a range of the map");
        // SAFETY: the range is inside the map (checked above) and `into` is memory of this
        // process alone; any bytes are valid.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.map.as_ptr().add(offset),
                into.as_mut_ptr(),
                into.len(),
            );
        }
    }

    /// A message of `length` bytes at `offset`: its header and its payload, which is summed on the
    /// way. One that has not the length which is due leaves both as they are.
    pub fn take(
        &self,
        offset: usize,
        length: usize,
        head: &mut [u8; HEADER_BYTES],
        body: &mut [u8],
    ) -> Taken {
        let mut taken = Taken { length, payload_sum: 0 };
        if length == HEADER_BYTES + body.len() {
            self.read(offset, head);
            taken.payload_sum = self.read_payload(offset + HEADER_BYTES, body);
        }
        taken
    }

    /// [`SharedMap::read`] of a message's payload, and its `payload_sum`: of the bytes that were
    /// copied, whatever the other process writes meanwhile.
    fn read_payload(&self, offset: usize, into: &mut [u8]) -> u64 {
        assert!(self.inside(offset, into.len()), "a range of the map");
        // SAFETY: the range is inside the map (checked above), and `into` is memory of this process
        // alone.
        unsafe { copy_summed_from(self.map.as_ptr().add(offset), into, PAYLOAD_PLACE) }
    }

    fn inside(&self, offset: usize, bytes: usize) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.map.len())
    }
}
