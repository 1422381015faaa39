//! Developer commands: ci, tidy, fuzz, golden.
fn main() {}
