use super::*;
use proptest::prelude::*;

/// The sum as its formula says, a word after the other.
fn plain_sum(bytes: &[u8], first: u64) -> u64 {
    bytes.chunks(4).enumerate().fold(0, |sum: u64, (index, word)| {
        let value = word.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte));
        sum.wrapping_add(value.wrapping_mul(2 * (first + index as u64) + 1))
    })
}

/// Bytes in which no two words are equal.
fn bytes(len: usize) -> Vec<u8> {
    let mut state = 7_u32;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()
    })
    .flatten()
    .take(len)
    .collect()
}

#[test]
fn sums_and_copies_of_all_lengths_are_the_formula() {
    for len in (0..300).chain([4096, 16_384, 65_536]) {
        let from = bytes(len + 1);
        // Any place in memory will do.
        for from in [&from[..len], &from[1..]] {
            let mut into = vec![9; len];
            assert_eq!(placed_sum(from, 16), plain_sum(from, 16), "{len}");
            assert_eq!(copy_summed(from, &mut into, 16), plain_sum(from, 16), "{len}");
            assert_eq!(into, from);
        }
    }
}

#[test]
fn every_machine_gives_the_same_sums() {
    for rows in [0, 1, 3, 256] {
        let from = bytes(ROW * rows);
        // SAFETY: the range is the slice's, and nothing is written.
        let columns = unsafe { add_rows_plain::<false>(from.as_ptr(), std::ptr::null_mut(), rows) };
        assert_eq!(placed_sum(&from, 5), placed(&columns, rows as u64, 5));
    }
}

/// What a late or confused writer leaves, each at every place of a few rows.
#[test]
fn torn_shifted_swapped_and_flipped_bytes_are_found() {
    let (whole, old) = (bytes(320), vec![0; 320]);
    let sum = placed_sum(&whole, 16);
    let differs = |what: &str, bytes: &[u8]| assert_ne!(placed_sum(bytes, 16), sum, "{what}");
    for at in 0..whole.len() {
        // The end, or the beginning, is still what was there before.
        differs("torn", &[&whole[..at], &old[at..]].concat());
        if at > 0 {
            differs("torn", &[&old[..at], &whole[at..]].concat());
            let mut shifted = whole.clone();
            shifted.rotate_left(at);
            differs("shifted", &shifted);
        }
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            differs("flipped", &flipped);
        }
    }
    for size in [4, 8, 64] {
        for (i, j) in (0..320 / size).flat_map(|j| (0..j).map(move |i| (i * size, j * size))) {
            let mut swapped = whole.clone();
            swapped[j..j + size].copy_from_slice(&whole[i..i + size]);
            swapped[i..i + size].copy_from_slice(&whole[j..j + size]);
            differs("swapped", &swapped);
        }
    }
}

/// Floats that differ in their sign alone: a sum of 64-bit words with odd factors misses these.
#[test]
fn words_that_differ_in_one_bit_and_change_places_are_found() {
    for (i, j) in [(0, 1), (1, 2), (1, 17), (3, 35), (0, 64)] {
        let mut words = [0x3F80_0000_u32; 80];
        words[i] |= 1 << 31;
        let sum = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            placed_sum(&bytes, 16)
        };
        let before = sum(&words);
        words.swap(i, j);
        assert_ne!(sum(&words), before, "{i} and {j}");
    }
}

proptest! {
    #[test]
    fn the_sum_is_its_formula(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        first in 0..1000_u64,
    ) {
        prop_assert_eq!(placed_sum(&bytes, first), plain_sum(&bytes, first));
    }

    #[test]
    fn words_that_change_places_are_found(
        words in proptest::collection::vec(any::<u32>(), 2..100),
        pick in any::<[proptest::sample::Index; 2]>(),
    ) {
        let (i, j) = (pick[0].index(words.len()), pick[1].index(words.len()));
        prop_assume!(words[i] != words[j]);
        let mut swapped = words.clone();
        swapped.swap(i, j);
        let bytes = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        prop_assert_ne!(placed_sum(&bytes(&words), 16), placed_sum(&bytes(&swapped), 16));
    }
}
