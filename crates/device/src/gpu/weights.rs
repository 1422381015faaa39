//! Weights on their way to the device: read where they lie in the file, in the order in which the
//! device holds them, by the threads that send them ([`super::driver::Driver::upload_from`]).
//! Blocks become planes on the device; planes of a packed file stay what they are.

use super::arguments::{CutArgs, bytes_of};
use super::driver::Address;
use super::record::Place;
use super::{Gpu, Scratch, Shortcuts, Weights, small};
use crate::{Error, Matrix, MatrixSource, SharedBytes, Strides};
use ironstar_quant::planes::{self, Layout};
use ironstar_quant::{Activation, Format};

/// Matrices of fewer bytes are cut on the host, which needs no memory on the device.
const CUT_MIN: usize = 1 << 18;
/// Of what kernels load at once.
const ALIGNMENT: usize = 16;
/// Bytes that are cut at a time.
const CUT_BYTES: usize = 32 << 20;
/// Groups and threads that cut: enough to keep up with any bus.
const CUT_GROUPS: u32 = 512;
const CUT_GROUP: u32 = 256;

/// Rows of a stack of matrices in somebody's bytes, as one run of bytes in the device's order.
///
/// Strides and rows are those of blocks, also where the bytes are planes.
pub(super) struct Laid<'a> {
    bytes: &'a [u8],
    /// How blocks lie in the bytes, if they are cut into planes.
    planes: Option<Layout>,
    /// Who keeps the bytes, if they can be kept.
    owner: Option<&'a SharedBytes>,
    format: Format,
    strides: Strides,
    stack: usize,
    /// Rows of a matrix and bytes of a row; where rows follow one another they are taken as one.
    rows: usize,
    row_bytes: usize,
    /// So many rows make a row of the device's (`ops/part.rs`): the parts of the rows in turn.
    ways: usize,
}

impl<'a> Laid<'a> {
    /// All of the source's bytes as they are. Their number is checked.
    pub fn whole(source: &'a MatrixSource<'_>) -> Self {
        let (bytes, planes) = ((*source.bytes).as_ref(), source.planes);
        let len = source.block_bytes();
        let strides = Strides { start: 0, row: len, matrix: len };
        let (stack, rows, row_bytes, ways) = (1, 1, len, 1);
        let (owner, format) = (Some(&source.bytes), source.format);
        Laid { bytes, planes, owner, format, strides, stack, rows, row_bytes, ways }
    }

    /// Rows that may lie apart, `ways` of which are folded to one. They divide the rows.
    pub fn rows(
        source: &'a MatrixSource<'_>,
        strides: Strides,
        ways: usize,
    ) -> Result<Self, Error> {
        source.checked_len()?;
        let row_bytes = source.check_strides(strides)?;
        let (bytes, planes, format) = ((*source.bytes).as_ref(), source.planes, source.format);
        let (mut stack, mut rows, mut row_bytes) = (source.stack, source.rows, row_bytes);
        if ways == 1 && strides.row == row_bytes {
            (rows, row_bytes) = (1, rows * row_bytes);
            if strides.matrix == row_bytes {
                (stack, row_bytes) = (1, stack * row_bytes);
            }
        }
        let owner = Some(&source.bytes);
        Ok(Laid { bytes, planes, owner, format, strides, stack, rows, row_bytes, ways })
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.stack * self.rows * self.row_bytes
    }

    /// The bytes from `start` on, as many as there is room for.
    pub fn fill(&self, start: usize, mut to: &mut [u8]) {
        let each = self.rows / self.ways;
        let (mut at, mut skipped) = (start / self.row_bytes, start % self.row_bytes);
        while !to.is_empty() {
            let (matrix, row) = (at / self.rows, at % self.rows);
            let row = row % self.ways * each + row / self.ways;
            let Strides { start, row: stride, matrix: far } = self.strides;
            let from = start + matrix * far + row * stride + skipped;
            let (now, later) = to.split_at_mut((self.row_bytes - skipped).min(to.len()));
            match self.planes {
                Some(planes) => planes.blocks(self.bytes, from, now),
                None => now.copy_from_slice(&self.bytes[from..][..now.len()]),
            }
            (to, at, skipped) = (later, at + 1, 0);
        }
    }

    /// The bytes where they lie, if that is how the device wants them: one run of blocks of a
    /// single piece, or all planes.
    fn in_order(&self) -> Option<&'a [u8]> {
        let is_run = self.stack == 1 && self.rows == 1 && self.ways == 1;
        let (start, bytes) = (self.strides.start, self.row_bytes);
        match self.planes.filter(|_| is_run) {
            Some(planes) => (bytes as u64 == planes.block_bytes()).then_some(self.bytes),
            None if is_run && planes::pieces(self.format).len() == 1 => {
                self.bytes.get(start..)?.get(..bytes)
            }
            None => None,
        }
    }

    fn gathered(&self) -> Vec<u8> {
        let mut all = vec![0; self.len()];
        self.fill(0, &mut all);
        all
    }
}

/// How weights became resident.
#[derive(Default)]
pub(super) struct Placed {
    /// Bytes that were copied to the device.
    pub copied: u64,
    /// Bytes that it reads where they lie in the host's memory.
    pub mapped: u64,
    /// Those bytes.
    kept: Vec<SharedBytes>,
}

impl Gpu {
    /// Makes rows resident as a stack of matrices of these rows and columns.
    pub(super) fn place_matrix(
        &mut self,
        name: &str,
        [stack, rows, columns]: [usize; 3],
        laid: &Laid<'_>,
    ) -> Result<Matrix, Error> {
        for side in [rows, columns, stack] {
            small("matrix", side)?;
        }
        let id = small("matrix", self.matrices.len())?;
        let matrix = Matrix { id, format: laid.format, rows, columns, stack };
        let matrix_bytes = (laid.len() / stack) as u64;
        let info = laid.format.info();
        let weights = match info.activation {
            Activation::Int8x32 | Activation::Int8x256 if self.config.float_products => {
                let mut values = vec![0f32; stack * rows * columns];
                (info.decode)(&laid.gathered(), &mut values);
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                let (stack, rows, row_bytes) = (1, 1, bytes.len());
                let strides = Strides { start: 0, row: row_bytes, matrix: row_bytes };
                let (format, ways, owner, planes) = (Format::F32, 1, None, None);
                let bytes = &bytes;
                let laid =
                    Laid { bytes, planes, owner, format, strides, stack, rows, row_bytes, ways };
                self.upload_matrix(name, &laid, matrix_bytes)?
            }
            _ => self.upload_matrix(name, laid, matrix_bytes)?,
        };
        self.matrices.push((matrix, weights));
        Ok(matrix)
    }

    fn upload_matrix(
        &mut self,
        name: &str,
        laid: &Laid<'_>,
        matrix_bytes: u64,
    ) -> Result<Weights, Error> {
        let (format, len) = (laid.format, laid.len());
        let blocks = (len / format.info().block_bytes) as u64;
        let layout = Layout::new(format, blocks).ok_or_else(|| Error::Memory {
            device: self.driver.name(),
            what: name.to_owned(),
            wanted: u64::MAX,
        })?;
        if let Some(address) = self.in_place(laid) {
            let (folded, mapped) = (None, true);
            self.placed.mapped += len as u64;
            return Ok(Weights { layout, address, matrix_bytes, folded, mapped });
        }
        self.placed.copied += len as u64;
        let address = self.driver.alloc(layout.bytes)?;
        let driver = &mut *self.driver;
        if let Some(bytes) = laid.in_order() {
            let fill =
                |start: usize, to: &mut [u8]| to.copy_from_slice(&bytes[start..][..to.len()]);
            driver.upload_from(address, bytes.len(), &fill)?;
        } else if planes::pieces(format).len() == 1 {
            driver.upload_from(address, len, &|start, to| laid.fill(start, to))?;
        } else if len < CUT_MIN {
            let put = |offset, bytes: &[u8]| driver.upload(address.offset(offset), bytes);
            layout.repack(&laid.gathered(), put)?;
        } else {
            self.cut_on_device(&layout, address, laid)?;
        }
        Ok(Weights { layout, address, matrix_bytes, folded: None, mapped: false })
    }

    /// Where kernels read a matrix in the bytes that it comes from, if they can: the layout is the
    /// same, and so are the alignment that their loads need and the memory.
    fn in_place(&mut self, laid: &Laid<'_>) -> Option<Address> {
        let bytes = laid.in_order()?;
        let owner = laid.owner.filter(|_| self.takes(Shortcuts::MAPPED))?;
        let is_aligned = bytes.as_ptr().addr().is_multiple_of(ALIGNMENT);
        let address = self.driver.reach(bytes).filter(|_| is_aligned)?;
        self.placed.kept.push(owner.clone());
        Some(address)
    }

    /// Uploads blocks as they are and lets the device cut them into planes, a piece at a time; one
    /// piece is on its way while the one before is cut.
    fn cut_on_device(
        &mut self,
        layout: &Layout,
        address: Address,
        laid: &Laid<'_>,
    ) -> Result<(), Error> {
        let block_bytes = layout.format.info().block_bytes;
        let piece = CUT_BYTES / block_bytes * block_bytes;
        let Place::At(raw) = self.scratch(Scratch::Raw, 2 * CUT_BYTES)? else {
            unreachable!("scratch lies in memory that stays")
        };
        let kernel = self.driver.kernel("cut_planes")?;
        let narrow = |value: usize| small("matrix", value);
        let pieces = planes::pieces(layout.format);
        let mut arguments = CutArgs {
            at: layout.planes,
            pieces: narrow(pieces.len())?,
            block_bytes: narrow(block_bytes)?,
            threads: CUT_GROUPS * CUT_GROUP,
            ..CutArgs::default()
        };
        for (index, (offset, piece)) in pieces.iter().enumerate() {
            arguments.offsets[index] = narrow(*offset)?;
            arguments.bytes[index] = narrow(*piece)?;
        }
        for (turn, start) in (0..laid.len()).step_by(piece).enumerate() {
            let (from, len) = (raw.offset((turn % 2 * CUT_BYTES) as u64), laid.len() - start);
            let len = len.min(piece);
            self.driver.upload_from(from, len, &|at, to| laid.fill(start + at, to))?;
            arguments.blocks = narrow(len / block_bytes)?;
            let (grid, buffers) = ([CUT_GROUPS, 1, 1], [from, address]);
            self.driver.launch(kernel, grid, CUT_GROUP, &buffers, bytes_of(&arguments))?;
            arguments.first += u64::from(arguments.blocks);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
