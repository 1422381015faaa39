//! Blocks cut into planes and put together again.

use ironstar_quant::planes::{ALIGNMENT, Layout, VERSION, pieces};
use ironstar_quant::{FORMATS, Format};
use proptest::collection::vec;
use proptest::prelude::*;

/// Blocks whose bytes differ from their neighbours'.
fn blocks(format: Format, count: usize) -> Vec<u8> {
    (0..=250u8).cycle().take(count * format.info().block_bytes).collect()
}

fn all(layout: &Layout) -> Vec<u8> {
    vec![0; usize::try_from(layout.bytes).expect("small")]
}

fn cut(layout: &Layout, blocks: &[u8]) -> Vec<u8> {
    let mut planes = all(layout);
    let result = layout.repack(blocks, |offset, bytes| {
        let offset = usize::try_from(offset).expect("small");
        planes[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok::<_, ()>(())
    });
    assert_eq!(result, Ok(()));
    planes
}

/// The planes hold every byte of the blocks once, each piece where the layout says.
#[test]
fn planes_are_a_permutation() {
    for info in FORMATS {
        let layout = Layout::new(info.format, 37).expect("small");
        let file = blocks(info.format, 37);
        assert_eq!(layout.block_bytes(), file.len() as u64);
        let out = cut(&layout, &file);
        let pieces = pieces(info.format);
        assert_eq!(pieces.iter().map(|(_, n)| n).sum::<usize>(), info.block_bytes, "{}", info.name);
        for (index, block) in file.chunks_exact(info.block_bytes).enumerate() {
            for ((start, piece), plane) in pieces.iter().zip(layout.planes) {
                assert!(plane.is_multiple_of(ALIGNMENT.into()));
                let at = usize::try_from(plane).expect("small") + index * piece;
                assert_eq!(out[at..at + piece], block[*start..start + piece], "{}", info.name);
            }
        }
    }
}

/// Packed files have this order: whoever changes it changes the version, so that they are refused.
#[test]
fn the_table_is_that_of_the_version() {
    let table: Vec<_> = FORMATS.iter().map(|info| pieces(info.format)).collect();
    let wanted = "[[(0, 4)], [(0, 2)], [(0, 2)], [(2, 16), (0, 2)], [(2, 32), (0, 2)], \
        [(16, 64), (0, 16), (80, 4)], [(32, 64), (0, 32), (96, 12), (108, 2)], \
        [(16, 128), (0, 16)], [(48, 128), (16, 32), (0, 16)], \
        [(0, 128), (128, 64), (192, 16), (208, 2)], [(2, 64), (0, 2)], [(1, 16), (0, 1)]]";
    assert_eq!((format!("{table:?}").as_str(), VERSION, ALIGNMENT), (wanted, 1, 256));
}

#[test]
fn too_large_is_none() {
    assert_eq!(Layout::new(Format::Q8_0, u64::MAX / 3), None);
}

proptest! {
    /// Any run of bytes of the blocks comes back, and planes one by one are all of them.
    #[test]
    fn blocks_come_back(
        format in proptest::sample::select(FORMATS.iter().map(|i| i.format).collect::<Vec<_>>()),
        count in prop_oneof![1..70_usize, Just(128), Just(256)],
        runs in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..12),
    ) {
        let file = blocks(format, count);
        let layout = Layout::new(format, count as u64).expect("small");
        let planes = cut(&layout, &file);
        let mut one_by_one = Vec::new();
        for index in 0..pieces(format).len() {
            let put = |bytes: &[u8]| {
                one_by_one.extend_from_slice(bytes);
                if bytes.is_empty() { Err(()) } else { Ok(()) }
            };
            prop_assert_eq!(layout.plane(index, &file, put), Ok(()));
        }
        prop_assert_eq!(&one_by_one, &planes);
        let whole = (0, file.len());
        let runs = runs.into_iter().map(|(start, len)| {
            let start = start.index(file.len() + 1);
            (start, len.index(file.len() - start + 1))
        });
        for (start, len) in runs.chain([whole]) {
            let mut back = vec![0; len];
            layout.blocks(&planes, start, &mut back);
            prop_assert_eq!(&back[..], &file[start..start + len]);
        }
    }
}
