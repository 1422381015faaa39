use super::*;
use ironstar_quant::FORMATS;
use std::sync::Arc;

/// Two matrices of eight rows of four bytes, of which each row of the tensor has eight.
fn source() -> MatrixSource<'static> {
    let bytes: Vec<u8> = (0..=255).collect();
    let (format, rows, columns, stack) = (Format::F32, 8, 1, 2);
    MatrixSource {
        name: "test",
        format,
        rows,
        columns,
        stack,
        bytes: Arc::new(bytes),
        planes: None,
    }
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

/// Two matrices of eight rows of two blocks, as blocks and as planes.
fn blocks_and_planes(format: Format) -> [MatrixSource<'static>; 2] {
    let info = format.info();
    let (rows, columns, stack) = (8, 2 * info.block_elements, 2);
    let blocks: Vec<u8> = (0..=250).cycle().take(32 * info.block_bytes).collect();
    let layout = Layout::new(format, 32).expect("small");
    let mut cut = vec![0; usize::try_from(layout.bytes).expect("small")];
    let put = |offset, bytes: &[u8]| {
        let offset = usize::try_from(offset).expect("small");
        cut[offset..][..bytes.len()].copy_from_slice(bytes);
        Ok::<_, ()>(())
    };
    assert_eq!(layout.repack(&blocks, put), Ok(()));
    [(blocks, None), (cut, Some(layout))].map(|(bytes, planes)| {
        let bytes = Arc::new(bytes);
        MatrixSource { name: "test", format, rows, columns, stack, bytes, planes }
    })
}

#[test]
fn planes_give_the_rows_of_blocks() {
    for info in FORMATS {
        let size = info.block_bytes;
        let [blocks, planes] = blocks_and_planes(info.format);
        assert!(planes.clone().gathered(None).is_err(), "whoever takes blocks refuses planes");
        let whole = [&blocks, &planes].map(|source| Laid::whole(source).gathered());
        assert_eq!(whole[0], whole[1], "{}", info.name);
        assert!(Laid::whole(&planes).in_order().is_some());
        let one_piece = planes::pieces(info.format).len() == 1;
        assert_eq!(Laid::whole(&blocks).in_order().is_some(), one_piece);
        for (start, matrix) in [(0, 16), (1, 16), (4, 10)] {
            let strides = Strides { start: start * size, row: 2 * size, matrix: matrix * size };
            for (columns, rows, ways) in [(1, 4, 1), (1, 6, 2), (2, 4, 1), (2, 6, 2)] {
                let columns = columns * info.block_elements;
                let [one, other] = [&blocks, &planes].map(|source| {
                    let part = MatrixSource { rows, columns, ..source.clone() };
                    let laid = Laid::rows(&part, strides, ways).expect("inside");
                    let mut odd = vec![0; laid.len() - 3];
                    laid.fill(3, &mut odd);
                    assert!(laid.planes.is_none() || laid.in_order().is_none());
                    (laid.gathered(), odd)
                });
                assert_eq!(one, other, "{}: {rows} rows from {start} on", info.name);
            }
        }
    }
}

#[test]
fn planes_that_are_not_all_are_refused() {
    let [_, planes] = blocks_and_planes(Format::Q8_0);
    let layout = planes.planes.expect("it has some");
    let wrong = [
        Layout { blocks: 33, ..layout },
        Layout { blocks: u64::MAX, ..layout },
        Layout { format: Format::Q4_0, ..layout },
        Layout { planes: [0; planes::PLANES_MAX], ..layout },
        Layout::new(Format::Q8_0, 500).expect("small"),
    ];
    for layout in wrong {
        let source = MatrixSource { planes: Some(layout), ..planes.clone() };
        let text = source.checked_len().expect_err("another layout").to_string();
        assert!(text.contains("planes"), "{text}");
        let strides = Strides { start: 0, row: 68, matrix: 544 };
        assert!(Laid::rows(&source, strides, 1).is_err());
    }
}
