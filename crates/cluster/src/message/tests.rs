use super::*;
use proptest::prelude::*;

fn header() -> Header {
    Header { epoch: 3, class: 1, part: 2, parts: 5, total: 99, exchange: 7, sequence: 12, tag: 5 }
}

fn message(payload: &[u8]) -> Vec<u8> {
    [&header().seal(payload)[..], payload].concat()
}

/// The sum as its formula says, a word after the other.
fn plain_sum(bytes: &[u8], first: u64) -> u64 {
    bytes.chunks(4).enumerate().fold(0, |sum: u64, (index, word)| {
        let value = word.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte));
        sum.wrapping_add(value.wrapping_mul(2 * (first + index as u64) + 1))
    })
}

#[test]
fn a_message_comes_back() {
    for payload in [&b""[..], b"a", b"abcd", b"sixteen bytes ok", &[7; 1000]] {
        let bytes = message(payload);
        assert_eq!(Header::open(&bytes), Ok((header(), payload)));
    }
}

#[test]
fn every_cut_and_every_flipped_bit_is_found() {
    let bytes = message(b"some payload that is not a multiple of four!!!");
    for length in 0..bytes.len() {
        assert!(Header::open(&bytes[..length]).is_err(), "cut to {length}");
    }
    for bit in 0..8 * bytes.len() {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Header::open(&bytes).is_err(), "bit {bit}");
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

    #[test]
    fn any_bytes_are_a_message_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok((header, payload)) = Header::open(&bytes) {
            prop_assert_eq!([&header.seal(payload)[..], payload].concat(), bytes);
        }
    }
}
