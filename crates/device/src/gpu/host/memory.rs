//! Memory that the kernels of several host drivers share.

use super::super::driver::Address;
use super::super::exchange::Window;
use std::sync::atomic::{AtomicU32, Ordering};

/// Zeroed words, aligned to 256 bytes.
pub(crate) struct Memory {
    words: Vec<AtomicU32>,
    /// Words before the first that is aligned.
    skipped: usize,
}

const ALIGNMENT: usize = 256;

impl Memory {
    pub(crate) fn new(bytes: usize) -> Memory {
        let words: Vec<AtomicU32> = zeroed(bytes.div_ceil(4) + ALIGNMENT / 4);
        let skipped = words.as_ptr().cast::<u8>().align_offset(ALIGNMENT) / 4;
        Memory { words, skipped }
    }

    fn first(&self) -> &AtomicU32 {
        self.word(0)
    }

    /// A word by its number from the aligned start.
    pub(crate) fn word(&self, index: usize) -> &AtomicU32 {
        &self.words[self.skipped + index]
    }
}

/// Pages that are never touched cost nothing.
fn zeroed(len: usize) -> Vec<AtomicU32> {
    let words = vec![0u32; len].into_boxed_slice();
    let (raw, len) = (Box::into_raw(words), len);
    // SAFETY: an `AtomicU32` has the size, alignment and bit validity of a `u32`; the box is given
    // over whole.
    unsafe { Vec::from_raw_parts(raw.cast::<AtomicU32>(), len, len) }
}

impl Window for Memory {
    fn address(&self) -> Address {
        // Kernels write through it, which atomics allow behind a shared reference.
        Address(self.first().as_ptr() as u64)
    }

    fn tell(&self, word: u32) {
        self.first().store(word, Ordering::Relaxed);
    }
}
