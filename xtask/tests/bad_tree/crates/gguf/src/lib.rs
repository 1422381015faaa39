//! A container.
//!
//! ```
//! ```
pub fn map() -> u8 {
    // SAFETY: one place is allowed.
    unsafe { *std::ptr::null() }
}

pub fn second() -> u8 {
    // SAFETY: but not two.
    unsafe { *std::ptr::null() }
}
