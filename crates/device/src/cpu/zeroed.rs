//! Zeroed memory whose pages cost nothing until they are touched, also where memory was in use
//! before: a session that begins beside others must not make them wait while it is wiped.

use ironstar_quant::fp4::INDEXER_BYTES;
use memmap2::MmapMut;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Elements that may be zeroed memory.
///
/// # Safety
/// All zero bytes must be a valid value, and dropping one does nothing.
pub(crate) unsafe trait Zeroable: Copy {}
// SAFETY: plain numbers and bytes.
unsafe impl Zeroable for f32 {}
// SAFETY: as above.
unsafe impl Zeroable for u16 {}
// SAFETY: as above.
unsafe impl Zeroable for u32 {}
// SAFETY: as above.
unsafe impl Zeroable for [u8; INDEXER_BYTES] {}

/// From so many bytes on the system is asked for pages. The allocator would wipe memory that it
/// had given out before, which takes 0.1 ms a megabyte.
const PAGES_FROM: usize = 64 << 10;

/// A slice that starts as zeros.
#[derive(Debug)]
pub(crate) struct Zeroed<T> {
    start: NonNull<T>,
    len: usize,
    owner: Owner,
}

/// Whose memory it is.
#[derive(Debug)]
enum Owner {
    /// No bytes at all.
    Nobody,
    /// The allocator's, by this layout.
    Allocator(Layout),
    /// The system's.
    Pages(#[expect(dead_code, reason = "kept until the slice is dropped")] MmapMut),
}

// SAFETY: the memory belongs to this value alone, like that of a `Vec`.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

impl<T> Zeroed<T> {
    /// No elements.
    pub const fn empty() -> Self {
        Zeroed { start: NonNull::dangling(), len: 0, owner: Owner::Nobody }
    }
}

impl<T: Zeroable> Zeroed<T> {
    /// So many zeros; `None` if there is no memory.
    pub fn new(len: usize) -> Option<Self> {
        let layout = Layout::array::<T>(len).ok()?;
        if layout.size() == 0 {
            return Some(Self::empty());
        }
        if layout.size() >= PAGES_FROM
            && let Ok(mut pages) = MmapMut::map_anon(layout.size())
        {
            let start = NonNull::new(pages.as_mut_ptr())?.cast();
            return Some(Zeroed { start, len, owner: Owner::Pages(pages) });
        }
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?.cast();
        Some(Zeroed { start, len, owner: Owner::Allocator(layout) })
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        if let Owner::Allocator(layout) = self.owner {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements from `start` on are this value's, and were zeros at first.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Zeroed<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::{PAGES_FROM, Zeroed};

    #[test]
    fn memory_is_zeros_whatever_was_there_before() {
        for len in [0, 1, PAGES_FROM / 4 - 1, PAGES_FROM / 4, 3 * PAGES_FROM + 5] {
            for _ in 0..3 {
                let mut memory = Zeroed::<u32>::new(len).expect("memory");
                assert_eq!(memory.len(), len);
                assert!(memory.iter().all(|&value| value == 0), "{len}");
                memory.fill(u32::MAX);
            }
        }
    }

    #[test]
    fn what_cannot_be_had_is_none() {
        assert!(Zeroed::<f32>::new(usize::MAX).is_none());
        assert!(Zeroed::<f32>::new(usize::MAX / 8).is_none());
    }
}
