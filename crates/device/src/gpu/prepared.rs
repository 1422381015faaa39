//! Rows that a kernel leaves as products take them, beside the floats.

use super::record::Place;
use super::scratch::Scratch;
use super::{Gpu, ops, size};
use crate::Error;
use ironstar_quant::Activation;

/// Where blocks of 32 are left: codes and scales.
pub(super) const NARROW: [Scratch; 2] = [Scratch::PreparedCodes, Scratch::PreparedScales];
/// The same of a launch that reads such blocks.
pub(super) const LEFT: [Scratch; 2] = [Scratch::LeftCodes, Scratch::LeftScales];

/// Rows that a kernel left as int8 blocks beside the floats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    /// The floats.
    pub x: Place,
    /// How many.
    pub len: usize,
    /// Codes and scales of blocks of 32, then of 256.
    blocks: [Place; 4],
    /// Rows and columns as operands of products of halves, and where.
    halves: Option<([usize; 2], [Place; 2])>,
}

impl Gpu {
    /// Room for the int8 blocks of the rows that the next launch writes to `x`.
    pub(super) fn prepare(
        &mut self,
        x: Place,
        [rows, columns]: [usize; 2],
    ) -> Result<[Place; 4], Error> {
        let len = size(&[rows, columns]);
        let blocks = [
            self.scratch(Scratch::PreparedCodes, len)?,
            self.scratch(Scratch::PreparedScales, size(&[len / 32, 4]))?,
            self.scratch(Scratch::PreparedCodes256, len)?,
            self.scratch(Scratch::PreparedScales256, size(&[len / 256, 4]))?,
        ];
        self.prepared.set(Some(Prepared { x, len, blocks, halves: None }));
        Ok(blocks)
    }

    /// The same for blocks of 32 only. A launch that reads such blocks itself has room of its own
    /// for them ([`LEFT`]), any other has [`NARROW`].
    pub(super) fn prepare_narrow(
        &mut self,
        x: Place,
        [rows, columns]: [usize; 2],
        [codes, scales]: [Scratch; 2],
    ) -> Result<[Place; 2], Error> {
        let len = size(&[rows, columns]);
        let made = [self.scratch(codes, len)?, self.scratch(scales, size(&[len / 32, 4]))?];
        let blocks = [made[0], made[1], Place::NONE, Place::NONE];
        self.prepared.set(Some(Prepared { x, len, blocks, halves: None }));
        Ok(made)
    }

    /// Room for the operands of products of halves of the rows that [`Gpu::prepare`] was told of.
    pub(super) fn prepare_halves(&mut self, shape: [usize; 2]) -> Result<[Place; 2], Error> {
        let [rows, columns] = shape;
        let [operands, factors] = ops::halves::room(rows, columns);
        let made = [
            self.scratch(Scratch::PreparedHalves, operands)?,
            self.scratch(Scratch::PreparedFactors, factors)?,
        ];
        let own = self.prepared.get();
        self.prepared.set(own.map(|own| Prepared { halves: Some((shape, made)), ..own }));
        Ok(made)
    }

    /// The int8 blocks of a buffer's rows, if a kernel left them.
    pub(super) fn prepared(
        &self,
        x: Place,
        activation: Activation,
        [rows, columns]: [usize; 2],
    ) -> Option<[Place; 2]> {
        // Blocks lie behind one another, so rows may be cut otherwise, if they are whole blocks.
        let whole = activation.block().is_some_and(|block| columns.is_multiple_of(block));
        let len = size(&[rows, columns]);
        let found = self.prepared.get().filter(|own| whole && own.x == x && own.len >= len)?;
        let [codes, scales, codes256, scales256] = found.blocks;
        let found = match activation {
            Activation::Int8x32 => [codes, scales],
            Activation::Int8x256 => [codes256, scales256],
            Activation::F32 => return None,
        };
        (found[0] != Place::NONE).then_some(found)
    }

    /// The operands of products of halves, if a kernel left them.
    pub(super) fn prepared_halves(&self, x: Place, shape: [usize; 2]) -> Option<[Place; 2]> {
        let found = self.prepared.get().filter(|own| own.x == x)?.halves;
        found.filter(|(own, _)| *own == shape).map(|(_, made)| made)
    }
}
