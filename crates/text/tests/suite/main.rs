//! The tests of this crate as one binary, which links once and keeps every core busy.

mod chat_faults;
mod chat_golden;
mod golden_ids;
mod hostile_files;
mod streams;
mod support;
mod tokenizer_faults;
