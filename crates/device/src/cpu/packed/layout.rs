//! Where the bytes of a row go in a tile.
//!
//! A tile is 16 rows of a matrix, all columns. Its bytes are those of the file, permuted: a block
//! is cut into fields of equal units (a word of codes, an f16 scale), and each field lies as
//! `[block][unit][row]`, so one vector load gives the same unit of neighbouring rows.
//!
//! Scales of as many blocks as fill a cache line lie before the codes of those blocks, so that a
//! tile is read from its start to its end: memory answers one such stream sooner than two. Nothing
//! grows but the last tile, whose missing rows are zero bytes, and the last line of scales.

use super::TILE_ROWS;
use ironstar_quant::Format;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

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

impl Field {
    /// Bytes of a block's units of all rows of a tile.
    const fn tile_bytes(&self) -> usize {
        self.unit * self.count * TILE_ROWS
    }
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

/// How blocks follow each other in a tile: the second fields of some, then their first fields, then
/// the same of the next ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    /// Blocks of a run.
    pub count: usize,
    /// Bytes of a block's first field (codes) and of its second (what scales them; 0 if there is
    /// none).
    pub sizes: [usize; FIELDS],
}

impl Runs {
    /// Those of a format.
    pub const fn of(format: Format) -> Self {
        let fields = fields(format);
        let second = if fields.len() == FIELDS { fields[1].tile_bytes() } else { 0 };
        let count = if 0 < second && second < LINE { LINE / second } else { 1 };
        Runs { count, sizes: [fields[0].tile_bytes(), second] }
    }

    /// Bytes from a field of a run's last block to that of the next run's first.
    pub const fn steps(&self) -> [usize; FIELDS] {
        let [first, second] = self.sizes;
        [first + self.count * second, second + self.count * first]
    }

    /// Where the fields of a block start in a tile.
    pub const fn start(&self, block: usize) -> [usize; FIELDS] {
        let ([first, second], at) = (self.sizes, block % self.count);
        let run = (block - at) * (first + second);
        [run + self.count * second + at * first, run + at * second]
    }
}

/// The tile of one matrix shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    fields: &'static [Field],
    runs: Runs,
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
        let (fields, runs) = (fields(format), Runs::of(format));
        let [codes, scales] = runs.sizes;
        let tile_bytes = blocks * codes + blocks.next_multiple_of(runs.count) * scales;
        let tile_bytes = tile_bytes.next_multiple_of(LINE);
        Some(Plan { fields, runs, block_bytes: info.block_bytes, blocks, tile_bytes })
    }

    /// Packs rows (at most 16, of whole blocks) into a tile of zeros.
    pub fn pack(&self, rows: &[u8], tile: &mut [u8]) {
        for (index, field) in self.fields.iter().enumerate() {
            match field.unit {
                1 => self.pack_field::<1>(index, rows, tile),
                2 => self.pack_field::<2>(index, rows, tile),
                _ => self.pack_field::<4>(index, rows, tile),
            }
        }
    }

    /// Block by block, so that the lines that the rows share stay in the first-level cache; blocks
    /// of one unit, which float formats have, some at a time.
    fn pack_field<const UNIT: usize>(&self, index: usize, rows: &[u8], tile: &mut [u8]) {
        const SOME: usize = 64;
        let (field, row_bytes) = (&self.fields[index], self.blocks * self.block_bytes);
        let step = if self.block_bytes == UNIT { SOME } else { 1 };
        for first in (0..self.blocks).step_by(step) {
            let count = step.min(self.blocks - first) * field.count;
            let (units, _) = tile[self.runs.start(first)[index]..].as_chunks_mut::<UNIT>();
            let (units, _) = units.as_chunks_mut::<TILE_ROWS>();
            let (units, start) = (&mut units[..count], first * self.block_bytes + field.offset);
            for (row, bytes) in rows.chunks_exact(row_bytes).enumerate() {
                let from = bytes[start..].as_chunks::<UNIT>().0;
                for (to, unit) in units.iter_mut().zip(from) {
                    to[row] = *unit;
                }
            }
        }
    }

    /// The bytes of blocks of one row from block `first` on, as in the file: the inverse of
    /// [`Plan::pack`].
    pub fn unpack_row(&self, tile: &[u8], row: usize, first: usize, out: &mut [u8]) {
        for (index, field) in self.fields.iter().enumerate() {
            for (at, block) in out.chunks_exact_mut(self.block_bytes).enumerate() {
                let start = self.runs.start(first + at)[index];
                let units = tile[start..].chunks_exact(field.unit * TILE_ROWS);
                let to = block[field.offset..].chunks_exact_mut(field.unit).take(field.count);
                for (to, rows) in to.zip(units) {
                    to.copy_from_slice(&rows[row * field.unit..][..field.unit]);
                }
            }
        }
    }

    /// Bytes from the start of a tile to the fields of its first block for vectors that start at
    /// `row`.
    pub fn offsets(&self, row: usize) -> [usize; FIELDS] {
        let mut offsets = self.runs.start(0);
        for (offset, field) in offsets.iter_mut().zip(self.fields) {
            *offset += row * field.unit;
        }
        offsets
    }
}

/// Zeroed memory on a cache line, on huge pages where the system gives them: weights are streamed,
/// and a page table walk every 4 KiB would cost a part of the read rate.
pub(crate) struct Lines {
    /// What the allocator gave.
    base: NonNull<u8>,
    layout: Layout,
    /// The first aligned byte, and how many are used.
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone, like that of a `Vec<u8>`.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    /// So many zero bytes; `None` if there is no memory.
    pub fn zeroed(len: usize) -> Option<Self> {
        // Half a huge page is read often enough to be worth a whole one.
        let align = if len >= HUGE / 2 { HUGE } else { LINE };
        let whole = len.max(align);
        // Aligned by hand: of a small alignment the allocator gives fresh pages without touching
        // them, so that whoever fills a page is the first to touch it.
        let layout = Layout::from_size_align(whole.checked_add(align)?, 1).ok()?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let offset = base.align_offset(align);
        // SAFETY: at most `align - 1` bytes on, which were asked for.
        let start = unsafe { base.add(offset) };
        if align == HUGE {
            advise_huge(start, whole);
        }
        Some(Lines { base, layout, start, len })
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

impl Deref for Lines {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes from `start` on are part of the allocation.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Size of a huge page.
const HUGE: usize = 2 << 20;

/// Asks for huge pages; a system that has none says so, and nothing else happens.
#[cfg(target_os = "linux")]
fn advise_huge(start: NonNull<u8>, len: usize) {
    // SAFETY: the C library's own declaration, of a function that every Linux has.
    unsafe extern "C" {
        fn madvise(start: *mut u8, len: usize, advice: i32) -> i32;
    }
    const MADV_HUGEPAGE: i32 = 14;
    // SAFETY: whole pages of an allocation of our own; the advice changes no contents.
    unsafe { madvise(start.as_ptr(), len / HUGE * HUGE, MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge(_: NonNull<u8>, _: usize) {}
