use super::*;
use ironstar_quant::FORMATS;

/// The planes hold every byte of the blocks once, each piece where the layout says.
#[test]
fn planes_are_a_permutation() {
    for info in FORMATS {
        let blocks = 37u64;
        let layout = Layout::new(info.format, blocks).expect("small");
        let file: Vec<u8> = (0..=250u8).cycle().take(37 * info.block_bytes).collect();
        let mut out = vec![0u8; usize::try_from(layout.bytes).expect("small")];
        let result = layout.repack(&file, |offset, bytes| {
            let offset = usize::try_from(offset).expect("small");
            out[offset..offset + bytes.len()].copy_from_slice(bytes);
            Ok::<_, ()>(())
        });
        assert_eq!(result, Ok(()));
        let pieces = pieces(info.format);
        assert_eq!(pieces.iter().map(|(_, n)| n).sum::<usize>(), info.block_bytes, "{}", info.name);
        for (index, block) in file.chunks_exact(info.block_bytes).enumerate() {
            for ((start, piece), plane) in pieces.iter().zip(layout.planes) {
                let at = usize::try_from(plane).expect("small") + index * piece;
                assert_eq!(out[at..at + piece], block[*start..start + piece], "{}", info.name);
            }
        }
    }
}

#[test]
fn too_large_is_none() {
    assert_eq!(Layout::new(Format::Q8_0, u64::MAX / 3), None);
}
