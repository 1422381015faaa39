//! How a weight matrix lies on the device: blocks cut into planes, so that loads are aligned.
//!
//! Plane k holds the k-th piece of every block of the whole stack, in block order; planes start
//! at multiples of 256 bytes. The integers are those of the file, and so are the bits of every
//! product.

use ironstar_quant::Format;

/// Most planes of a format.
pub(crate) const PLANES_MAX: usize = 4;

/// Pieces of a block in the order of planes: (offset in the block, bytes).
pub(crate) fn pieces(format: Format) -> &'static [(usize, usize)] {
    match format {
        Format::F32 => &[(0, 4)],
        Format::F16 | Format::Bf16 => &[(0, 2)],
        Format::Q4_0 => &[(2, 16), (0, 2)],
        Format::Q8_0 => &[(2, 32), (0, 2)],
        Format::Q2K => &[(16, 64), (0, 16), (80, 4)],
        Format::Q3K => &[(32, 64), (0, 32), (96, 12), (108, 2)],
        Format::Q4K => &[(16, 128), (0, 16)],
        Format::Q5K => &[(48, 128), (16, 32), (0, 16)],
        Format::Q6K => &[(0, 128), (128, 64), (192, 16), (208, 2)],
        Format::Iq2Xxs => &[(2, 64), (0, 2)],
        Format::Mxfp4 => &[(1, 16), (0, 1)],
    }
}

/// Where the planes of a stack of matrices start, and how long it all is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Block format.
    pub format: Format,
    /// Blocks of the whole stack.
    pub blocks: u64,
    /// Byte offset of each plane.
    pub planes: [u64; PLANES_MAX],
    /// Bytes of all planes.
    pub bytes: u64,
}

impl Layout {
    /// The layout of so many blocks; `None` if it would be larger than any memory.
    pub fn new(format: Format, blocks: u64) -> Option<Self> {
        let (mut planes, mut bytes) = ([0u64; PLANES_MAX], 0u64);
        for (plane, (_, piece)) in planes.iter_mut().zip(pieces(format)) {
            *plane = bytes;
            let own = blocks.checked_mul(*piece as u64)?;
            bytes = bytes.checked_add(own)?.checked_next_multiple_of(256)?;
        }
        Some(Layout { format, blocks, planes, bytes })
    }

    /// Cuts blocks of the file into planes, some blocks at a time: calls `put(offset, bytes)`.
    pub fn repack<E>(
        &self,
        file: &[u8],
        mut put: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let pieces = pieces(self.format);
        if let [_] = pieces {
            return put(0, file);
        }
        let block_bytes = self.format.info().block_bytes;
        let mut first = 0u64;
        let mut plane = Vec::new();
        for chunk in file.chunks(CHUNK_BLOCKS * block_bytes) {
            for ((start, piece), offset) in pieces.iter().zip(self.planes) {
                plane.clear();
                for block in chunk.chunks_exact(block_bytes) {
                    plane.extend_from_slice(&block[*start..start + piece]);
                }
                put(offset + first * *piece as u64, &plane)?;
            }
            first += (chunk.len() / block_bytes) as u64;
        }
        Ok(())
    }
}

/// Blocks that are cut at a time: some tens of megabytes.
const CHUNK_BLOCKS: usize = 1 << 18;

#[cfg(test)]
mod tests;
