//! Measured errors.
