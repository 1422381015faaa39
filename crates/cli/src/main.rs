//! The ironstar binary.
fn main() {}
