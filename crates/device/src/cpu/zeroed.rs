//! Zeroed memory whose pages cost nothing until they are touched, also where memory was in use
//! before: a session that begins beside others must not make them wait while it is wiped.

use ironstar_quant::fp4::INDEXER_BYTES;
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
    /// What the allocator gave it by; `None` for pages of the system, and for no bytes.
    layout: Option<Layout>,
}

// SAFETY: the memory belongs to this value alone, like that of a `Vec`.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

impl<T> Zeroed<T> {
    /// No elements.
    pub const fn empty() -> Self {
        Zeroed { start: NonNull::dangling(), len: 0, layout: None }
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
            && let Some(start) = pages::map(layout.size())
        {
            return Some(Zeroed { start: start.cast(), len, layout: None });
        }
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?.cast();
        Some(Zeroed { start, len, layout: Some(layout) })
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        match self.layout {
            // SAFETY: allocated in `new` with this layout.
            Some(layout) => unsafe { dealloc(self.start.as_ptr().cast(), layout) },
            None if self.len == 0 => {}
            None => pages::unmap(self.start.cast(), self.len * size_of::<T>()),
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

/// Pages of the system, which are zeros.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod pages {
    use std::ffi::{c_int, c_void};
    use std::ptr::{NonNull, null_mut};

    // SAFETY: the C library's own declarations, of functions that every Linux has; `off_t` has 64
    // bits there, since pointers have.
    unsafe extern "C" {
        fn mmap(
            start: *mut c_void,
            bytes: usize,
            may: c_int,
            flags: c_int,
            file: c_int,
            offset: i64,
        ) -> *mut c_void;
        fn munmap(start: *mut c_void, bytes: usize) -> c_int;
    }
    /// To be read and written.
    const READ_WRITE: c_int = 1 | 2;
    /// Private, and of no file.
    const PRIVATE_ANONYMOUS: c_int = 2 | 0x20;

    pub(super) fn map(bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: new pages wherever the system puts them; nothing that exists is touched.
        let start = unsafe { mmap(null_mut(), bytes, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0) };
        // The failure is the address of the last byte.
        (start.addr() != usize::MAX).then(|| NonNull::new(start.cast()))?
    }

    pub(super) fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: `map` gave these pages, and their owner is gone. That it cannot fail then is in
        // the system's description.
        unsafe { munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod pages {
    use std::ptr::NonNull;

    pub(super) fn map(_: usize) -> Option<NonNull<u8>> {
        None
    }

    pub(super) fn unmap(_: NonNull<u8>, _: usize) {}
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
