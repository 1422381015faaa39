use super::*;
use std::sync::Arc;

/// Two matrices of eight rows of four bytes, of which each row of the tensor has eight.
fn source() -> MatrixSource<'static> {
    let bytes: Vec<u8> = (0..=255).collect();
    let (format, rows, columns, stack) = (Format::F32, 8, 1, 2);
    MatrixSource { name: "test", format, rows, columns, stack, bytes: Arc::new(bytes) }
}

#[test]
fn rows_come_in_the_order_of_the_device_however_they_are_cut() {
    let source = source();
    let strides = Strides { start: 4, row: 8, matrix: 96 };
    for ways in [1u8, 2, 4, 8] {
        let laid = Laid::rows(&source, strides, ways.into()).expect("all inside");
        let mut wanted = Vec::new();
        for matrix in 0..2u8 {
            for row in 0..8u8 / ways {
                for way in 0..ways {
                    let first = 4 + 96 * matrix + 8 * (way * (8 / ways) + row);
                    wanted.extend(first..first + 4);
                }
            }
        }
        assert_eq!((laid.len(), laid.gathered()), (64, wanted.clone()), "{ways} ways");
        for piece in [1, 3, 7, 40] {
            let mut found = vec![0; 64];
            for (at, to) in found.chunks_mut(piece).enumerate() {
                laid.fill(at * piece, to);
            }
            assert_eq!(found, wanted, "{ways} ways, {piece} bytes at a time");
        }
        let usual = source.clone().gathered(Some(strides)).expect("all inside");
        assert!(ways > 1 || *(*usual.bytes).as_ref() == *wanted);
    }
}

#[test]
fn rows_behind_one_another_are_one_run() {
    let source = source();
    let apart = Laid::rows(&source, Strides { start: 0, row: 4, matrix: 48 }, 1).expect("inside");
    assert_eq!((apart.stack, apart.rows, apart.row_bytes), (2, 1, 32));
    let strides = Strides { start: 16, row: 4, matrix: 32 };
    let near = Laid::rows(&source, strides, 1).expect("inside");
    assert_eq!((near.stack, near.rows, near.row_bytes), (1, 1, 64));
    assert_eq!(near.gathered(), (16..80).collect::<Vec<u8>>());
}

#[test]
fn rows_outside_of_the_bytes_are_refused() {
    let far = [
        Strides { start: 0, row: 8, matrix: 200 },
        Strides { start: 256, row: 0, matrix: 0 },
        Strides { start: usize::MAX, row: 8, matrix: 96 },
        Strides { start: 0, row: usize::MAX, matrix: 96 },
    ];
    for strides in far {
        let source = source();
        let error = Laid::rows(&source, strides, 1).map(|_| ()).expect_err("outside").to_string();
        assert!(error.contains("in 256 bytes"), "{error}");
        assert!(source.gathered(Some(strides)).is_err());
    }
}
