//! Blocks cut into planes: how cards hold weights, and how packed files do, so that every load of a
//! kernel is aligned.
//!
//! Plane k holds the k-th piece of every block of a whole tensor, in block order; planes start at
//! multiples of [`ALIGNMENT`] and are padded with zeros. The integers are those of the blocks, and
//! so are the bits of every product. Files have this order: another one needs another [`VERSION`].

use crate::Format;

/// Most planes of a format.
pub const PLANES_MAX: usize = 4;
/// Planes start at multiples of so many bytes.
pub const ALIGNMENT: u32 = 256;
/// Of the table of pieces, in files that have it.
pub const VERSION: u32 = 1;

/// Pieces of a block in the order of planes: (offset in the block, bytes).
pub fn pieces(format: Format) -> &'static [(usize, usize)] {
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

/// Where the planes of a tensor's blocks start, and how long it all is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Block format.
    pub format: Format,
    /// Blocks of the whole tensor.
    pub blocks: u64,
    /// Byte offset of each plane.
    pub planes: [u64; PLANES_MAX],
    /// Bytes of all planes, padding included.
    pub bytes: u64,
}

impl Layout {
    /// The layout of so many blocks; `None` if it would be larger than any memory.
    pub fn new(format: Format, blocks: u64) -> Option<Self> {
        let (mut planes, mut bytes) = ([0u64; PLANES_MAX], 0u64);
        for (plane, (_, piece)) in planes.iter_mut().zip(pieces(format)) {
            *plane = bytes;
            let own = blocks.checked_mul(*piece as u64)?;
            bytes = bytes.checked_add(own)?.checked_next_multiple_of(ALIGNMENT.into())?;
        }
        Some(Layout { format, blocks, planes, bytes })
    }

    /// Bytes of the blocks, which are fewer by the padding.
    pub fn block_bytes(&self) -> u64 {
        self.blocks * self.format.info().block_bytes as u64
    }

    /// Cuts blocks into planes, some blocks at a time: calls `put(offset, bytes)` for parts of each
    /// plane, and never for padding.
    pub fn repack<E>(
        &self,
        blocks: &[u8],
        mut put: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let pieces = pieces(self.format);
        if let [_] = pieces {
            return put(0, blocks);
        }
        let block_bytes = self.format.info().block_bytes;
        let mut first = 0u64;
        let mut plane = Vec::new();
        for chunk in blocks.chunks(CHUNK_BLOCKS * block_bytes) {
            for (index, offset) in self.planes[..pieces.len()].iter().enumerate() {
                plane.clear();
                cut(self.format, index, chunk, &mut plane);
                put(offset + first * pieces[index].1 as u64, &plane)?;
            }
            first += (chunk.len() / block_bytes) as u64;
        }
        Ok(())
    }

    /// Gives the bytes of plane `index` of these blocks in order, padding included, some at a time
    /// and never none.
    pub fn plane<E>(
        &self,
        index: usize,
        blocks: &[u8],
        mut put: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut plane = Vec::new();
        for chunk in blocks.chunks(CHUNK_BLOCKS * self.format.info().block_bytes) {
            plane.clear();
            cut(self.format, index, chunk, &mut plane);
            put(&plane)?;
        }
        let end = self.planes[..pieces(self.format).len()].get(index + 1).unwrap_or(&self.bytes);
        let own = self.planes[index] + self.blocks * pieces(self.format)[index].1 as u64;
        let padding = usize::try_from(end - own).expect("less than the alignment");
        if padding > 0 {
            put(&[0; ALIGNMENT as usize][..padding])?;
        }
        Ok(())
    }

    /// Bytes of the blocks from byte `start` on, out of their planes. Panics if `planes` is not all
    /// of them, or if there are fewer blocks.
    pub fn blocks(&self, planes: &[u8], start: usize, out: &mut [u8]) {
        assert_eq!(planes.len() as u64, self.bytes, "bytes of planes");
        assert!((start + out.len()) as u64 <= self.block_bytes(), "bytes behind the last block");
        let size = self.format.info().block_bytes;
        let (first, skipped) = (start / size, start % size);
        if skipped + out.len() <= size {
            return self.part(planes, first, skipped, out);
        }
        let (head, rest) = out.split_at_mut((size - skipped) % size);
        self.part(planes, first, skipped, head);
        let first = first + usize::from(!head.is_empty());
        let (whole, tail) = rest.split_at_mut(rest.len() / size * size);
        for (index, (offset, piece)) in pieces(self.format).iter().enumerate() {
            let from = self.at(index, first);
            let from = planes[from..].chunks_exact(*piece);
            for (block, from) in whole.chunks_exact_mut(size).zip(from) {
                block[*offset..offset + piece].copy_from_slice(from);
            }
        }
        self.part(planes, first + whole.len() / size, 0, tail);
    }

    /// Bytes of one block from `skipped` on.
    fn part(&self, planes: &[u8], block: usize, skipped: usize, out: &mut [u8]) {
        if out.is_empty() {
            return;
        }
        let mut whole = [0; BLOCK_BYTES_MAX];
        for (index, (offset, piece)) in pieces(self.format).iter().enumerate() {
            let from = self.at(index, block);
            whole[*offset..offset + piece].copy_from_slice(&planes[from..from + piece]);
        }
        out.copy_from_slice(&whole[skipped..skipped + out.len()]);
    }

    /// Where a block's piece lies in its plane.
    fn at(&self, index: usize, block: usize) -> usize {
        let plane = usize::try_from(self.planes[index]).expect("the planes are in memory");
        plane + block * pieces(self.format)[index].1
    }
}

/// Blocks that are cut at a time: some tens of megabytes.
const CHUNK_BLOCKS: usize = 1 << 18;
/// More than a block of any format has.
const BLOCK_BYTES_MAX: usize = 256;

/// Adds the pieces of these blocks that go to one plane.
fn cut(format: Format, index: usize, blocks: &[u8], plane: &mut Vec<u8>) {
    let (start, piece) = pieces(format)[index];
    for block in blocks.chunks_exact(format.info().block_bytes) {
        plane.extend_from_slice(&block[start..start + piece]);
    }
}
