//! Random numbers by counter: Philox 4x32 with ten rounds (Salmon and others, 2011).
//!
//! The number at a position depends on the seed and the position and on nothing drawn before, so
//! that speculation, restores and other hosts draw the same tokens.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds over a counter.
pub(super) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let products = [0, 1].map(|i| u64::from(MULTIPLIERS[i]) * u64::from(counter[2 * i]));
        let [(low0, high0), (low1, high1)] = products.map(halves);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// 64 bits for a position: the first two words of the counter (position low, high, 0, 0), the lower
/// word first, under the key (seed low, high).
pub(super) fn bits(seed: u64, position: u64) -> u64 {
    let ((low, high), (key_low, key_high)) = (halves(position), halves(seed));
    let [a, b, ..] = philox([low, high, 0, 0], [key_low, key_high]);
    u64::from(b) << 32 | u64::from(a)
}

/// A whole number below `total`: floor(bits * total / 2^64). The probability of each is off by less
/// than 2^-64.
pub(super) fn below(bits: u64, total: u64) -> u64 {
    let product = u128::from(bits) * u128::from(total);
    u64::try_from(product >> 64).expect("below total")
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves")]
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
