//! Where the bytes of a row go in a tile.
//!
//! A tile is 16 rows of a matrix, all columns. Its bytes are those of the file, permuted: a block
//! is cut into fields of equal units (a word of codes, an f16 scale), and each field of the whole
//! tile lies as `[block][unit][row]`, so one vector load gives the same unit of neighbouring rows.
//! Nothing grows but the last tile, whose missing rows are zero bytes, and each field, which starts
//! on a cache line.

use super::TILE_ROWS;
use ironstar_quant::Format;
use std::alloc::{Layout, alloc_zeroed};

/// A cache line: the alignment of tiles and of their fields.
pub(crate) const LINE: usize = 64;
/// Most fields that a format has.
pub(crate) const FIELDS: usize = 2;

/// A run of units in a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// Where it starts in the block of the file.
    pub offset: usize,
    /// Bytes of a unit.
    pub unit: usize,
    /// Units.
    pub count: usize,
}

/// The fields of a format's block: together all its bytes.
pub(crate) const fn fields(format: Format) -> &'static [Field] {
    const fn field(offset: usize, unit: usize, count: usize) -> Field {
        Field { offset, unit, count }
    }
    match format {
        Format::F32 => const { &[field(0, 4, 1)] },
        Format::F16 | Format::Bf16 => const { &[field(0, 2, 1)] },
        // Codes first, then what scales them.
        Format::Q4_0 => const { &[field(2, 4, 4), field(0, 2, 1)] },
        Format::Q8_0 => const { &[field(2, 4, 8), field(0, 2, 1)] },
        Format::Mxfp4 => const { &[field(1, 4, 4), field(0, 1, 1)] },
        // scales 0..4, codes 4..20 | d, dmin
        Format::Q2K => const { &[field(0, 4, 20), field(80, 2, 2)] },
        // high bits 0..8, codes 8..24, scales 24..27 | d
        Format::Q3K => const { &[field(0, 4, 27), field(108, 2, 1)] },
        // scales 0..3, codes 3..35 | d, dmin
        Format::Q4K => const { &[field(4, 4, 35), field(0, 2, 2)] },
        // scales 0..3, fifth bits 3..11, codes 11..43 | d, dmin
        Format::Q5K => const { &[field(4, 4, 43), field(0, 2, 2)] },
        // low bits 0..32, high bits 32..48, scales 48..52 | d
        Format::Q6K => const { &[field(0, 4, 52), field(208, 2, 1)] },
        // per 32 elements: indices, then signs and scale | d
        Format::Iq2Xxs => const { &[field(2, 4, 16), field(0, 2, 1)] },
    }
}

/// The tile of one matrix shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    fields: &'static [Field],
    /// Where each field starts in a tile.
    starts: [usize; FIELDS],
    block_bytes: usize,
    /// Blocks of a row.
    pub blocks: usize,
    /// Bytes of a tile, a multiple of [`LINE`].
    pub tile_bytes: usize,
}

impl Plan {
    /// `None` if the size overflows or the columns are not whole blocks.
    pub fn new(format: Format, columns: usize) -> Option<Self> {
        let info = format.info();
        let blocks = columns / info.block_elements;
        // Every size below is at most this.
        let bytes = format.row_bytes(columns)?.checked_mul(TILE_ROWS)?;
        bytes.checked_add((FIELDS + 1) * LINE)?;
        let (fields, mut starts, mut tile_bytes) = (fields(format), [0; FIELDS], 0usize);
        for (field, start) in fields.iter().zip(&mut starts) {
            *start = tile_bytes;
            tile_bytes += (blocks * field.count * field.unit * TILE_ROWS).next_multiple_of(LINE);
        }
        Some(Plan { fields, starts, block_bytes: info.block_bytes, blocks, tile_bytes })
    }

    /// Packs rows (at most 16, of whole blocks) into a tile of zeros.
    pub fn pack(&self, rows: &[u8], tile: &mut [u8]) {
        self.each_field(|field, start| match field.unit {
            1 => self.pack_field::<1>(field, rows, &mut tile[start..]),
            2 => self.pack_field::<2>(field, rows, &mut tile[start..]),
            _ => self.pack_field::<4>(field, rows, &mut tile[start..]),
        });
    }

    fn pack_field<const UNIT: usize>(&self, field: &Field, rows: &[u8], tile: &mut [u8]) {
        let row_bytes = self.blocks * self.block_bytes;
        let tile = tile.as_chunks_mut::<UNIT>().0.as_chunks_mut::<TILE_ROWS>().0;
        for (row, bytes) in rows.chunks_exact(row_bytes).enumerate() {
            let blocks = bytes.chunks_exact(self.block_bytes);
            for (block, tile) in blocks.zip(tile.chunks_exact_mut(field.count)) {
                let units = block[field.offset..].as_chunks::<UNIT>().0;
                for (unit, rows) in units.iter().zip(tile) {
                    rows[row] = *unit;
                }
            }
        }
    }

    /// The bytes of one row as in the file: the inverse of [`Plan::pack`].
    pub fn unpack_row(&self, tile: &[u8], row: usize, out: &mut [u8]) {
        self.each_field(|field, start| {
            let units = tile[start..].chunks_exact(field.unit * TILE_ROWS);
            let mut units = units.map(|rows| &rows[row * field.unit..][..field.unit]);
            for block in out.chunks_exact_mut(self.block_bytes) {
                let to = block[field.offset..].chunks_exact_mut(field.unit).take(field.count);
                for (to, unit) in to.zip(&mut units) {
                    to.copy_from_slice(unit);
                }
            }
        });
    }

    fn each_field(&self, mut f: impl FnMut(&Field, usize)) {
        for (field, &start) in self.fields.iter().zip(&self.starts) {
            f(field, start);
        }
    }

    /// Bytes from the start of a tile to its fields for vectors that start at `row`.
    pub fn offsets(&self, row: usize) -> [usize; FIELDS] {
        let mut offsets = self.starts;
        for (offset, field) in offsets.iter_mut().zip(self.fields) {
            *offset += row * field.unit;
        }
        offsets
    }
}

/// Sixty-four bytes, aligned.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(pub [u8; LINE]);

/// Zeroed lines; `None` if there is no memory.
pub(crate) fn zeroed_lines(count: usize) -> Option<Vec<Line>> {
    let layout = Layout::array::<Line>(count).ok()?;
    if layout.size() == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the layout is not empty.
    let start = unsafe { alloc_zeroed(layout) }.cast::<Line>();
    if start.is_null() {
        return None;
    }
    // SAFETY: allocated by the global allocator with the layout of `count` lines, all of them zero
    // bytes, which is a valid value.
    Some(unsafe { Vec::from_raw_parts(start, count, count) })
}

/// Lines as bytes.
pub(crate) fn bytes_of(lines: &[Line]) -> &[u8] {
    const { assert!(size_of::<Line>() == LINE) };
    // SAFETY: a `Line` is an array of bytes without padding, by the assertion.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LINE) }
}

/// Lines as bytes to write.
pub(crate) fn bytes_of_mut(lines: &mut [Line]) -> &mut [u8] {
    const { assert!(size_of::<Line>() == LINE) };
    // SAFETY: as in `bytes_of`; any bytes are a valid `Line`, and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LINE) }
}
