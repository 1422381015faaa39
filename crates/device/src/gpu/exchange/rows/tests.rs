use super::*;

#[test]
fn pieces_have_all_rows_and_fit_a_gate() {
    let segment = |words| Segment { place: Place::NONE, words };
    let long = [segment(4096)];
    let wide = [1024, 256, 1024, 1024, 256, 256].map(segment);
    assert_eq!(pieces(&long, &[2048, 2048]), 2);
    assert_eq!(pieces(&long, &[1024, 1020]), 1);
    assert_eq!(pieces(&[segment(16_384)], &[2048; 2]), 8);
    for (segments, lens) in [(&long[..], [2044, 2052]), (&wide, [2048, 2048]), (&wide, [33, 40])] {
        let count = pieces(segments, &lens);
        for len in lens {
            let mut next = 0;
            for piece in 0..count {
                let rows = piece_of(len, count, piece);
                assert_eq!((rows.start, rows.start % ALIGNED), (next, 0));
                let chunks = |words: usize| (rows.len() * words).div_ceil(CHUNK);
                assert!(segments.iter().map(|s| chunks(s.words)).sum::<usize>() <= CHUNKS);
                next = rows.end;
            }
            assert_eq!(next, len);
        }
    }
    // A row longer than a gate goes nowhere.
    assert_eq!(pieces(&[segment(CHUNK * CHUNKS + 1)], &[8, 8]), 9);
}
