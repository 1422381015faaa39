//! A container.
//!
//! ```
//! ```
pub fn map() -> u8 {
    // SAFETY: two places are allowed.
    unsafe { *std::ptr::null() }
}

pub fn second() -> u8 {
    // SAFETY: this is the other one.
    unsafe { *std::ptr::null() }
}

pub fn third() -> u8 {
    // SAFETY: but not three.
    unsafe { *std::ptr::null() }
}
