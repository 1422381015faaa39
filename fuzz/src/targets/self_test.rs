//! Faults on purpose: what the driver must catch, one of each kind.

use super::Target;
use std::hint::black_box;

pub const ALL: &[Target] = &[
    faulty("faulty-panic", panics),
    faulty("faulty-slow", never_returns),
    faulty("faulty-memory", takes_more_than_allowed),
    faulty("faulty-huge", takes_more_than_there_is),
    faulty("faulty-stack", recurses_for_ever),
    faulty("faultless", |bytes| u64::from(bytes.first().copied().unwrap_or(0))),
];

const fn faulty(name: &'static str, run: fn(&[u8]) -> u64) -> Target {
    let (len_max, base_bytes, bytes_per_byte) = (256, 1 << 16, 64);
    Target { name, seeds: seed, dictionary: &[b"bad"], len_max, base_bytes, bytes_per_byte, run }
}

fn seed() -> Vec<Vec<u8>> {
    vec![b"good words, good words, good words".to_vec()]
}

/// The trigger of all faults.
fn is_bad(bytes: &[u8]) -> bool {
    bytes.windows(3).any(|three| three == b"bad")
}

fn panics(bytes: &[u8]) -> u64 {
    assert!(!is_bad(bytes), "the word that must not come");
    0
}

fn never_returns(bytes: &[u8]) -> u64 {
    while is_bad(bytes) {
        std::thread::yield_now();
    }
    0
}

fn takes_more_than_allowed(bytes: &[u8]) -> u64 {
    black_box(vec![1_u8; if is_bad(bytes) { 1 << 20 } else { 16 }]).len() as u64
}

fn takes_more_than_there_is(bytes: &[u8]) -> u64 {
    let wanted = if is_bad(bytes) { 1 << 45 } else { 16 };
    black_box(Vec::<u8>::with_capacity(black_box(wanted))).capacity() as u64
}

fn recurses_for_ever(bytes: &[u8]) -> u64 {
    if is_bad(bytes) {
        return black_box(recurses_for_ever(black_box(bytes))).wrapping_add(1);
    }
    0
}
