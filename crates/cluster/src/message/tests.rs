use super::*;
use proptest::prelude::*;

fn header() -> Header {
    Header { epoch: 3, class: 1, part: 2, parts: 5, total: 99, exchange: 7, sequence: 12, tag: 5 }
}

fn message(payload: &[u8]) -> Vec<u8> {
    [&header().seal(payload)[..], payload].concat()
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
    fn any_bytes_are_a_message_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok((header, payload)) = Header::open(&bytes) {
            prop_assert_eq!([&header.seal(payload)[..], payload].concat(), bytes);
        }
    }
}
