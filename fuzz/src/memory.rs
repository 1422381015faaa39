//! An allocator that counts, so that a target's appetite can be compared with its input.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// No input justifies this much; an allocation that reaches it never returns, and the watchdog
/// reports its input.
const LIVE_BYTES_MAX: usize = 2 << 30;

/// The system's allocator with counters. Install it with `#[global_allocator]`.
pub struct Counting {
    live: AtomicUsize,
    peak: AtomicUsize,
    refused: AtomicUsize,
}

impl Counting {
    /// Counters at zero.
    #[must_use]
    pub const fn new() -> Self {
        Counting {
            live: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        }
    }

    /// Starts a measurement; returns the bytes that are live now.
    pub fn mark(&self) -> usize {
        let live = self.live.load(Relaxed);
        self.peak.store(live, Relaxed);
        live
    }

    /// The most bytes that were live since [`Counting::mark`].
    pub fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }

    /// Size of the allocation that was too large to be tried, or 0.
    pub fn refused(&self) -> usize {
        self.refused.load(Relaxed)
    }

    fn grow(&self, bytes: usize) {
        let live = self.live.load(Relaxed).saturating_add(bytes);
        if live > LIVE_BYTES_MAX {
            self.refused.store(bytes, Relaxed);
            loop {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        self.live.fetch_add(bytes, Relaxed);
        self.peak.fetch_max(live, Relaxed);
    }
}

impl Default for Counting {
    fn default() -> Self {
        Counting::new()
    }
}

// SAFETY: every call goes to `System` with the arguments as they came; counting allocates nothing
// and does not unwind.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is that of `System`.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.grow(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`, which is that of
    // `System`.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.grow(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`, which is that of `System`.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.live.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`, which is that of `System`.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.grow(size);
        self.live.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
