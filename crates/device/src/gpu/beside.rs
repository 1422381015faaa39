//! What an operation says of the launches that it records: which others they need not wait for.

use super::Gpu;
use super::{Error, SOME_ROWS};

impl Gpu {
    /// Records what may run beside the launches around it, where there are so few rows that it
    /// leaves most of a card idle.
    pub(super) fn beside<T>(
        &mut self,
        run: impl FnOnce(&mut Gpu) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let before = std::mem::replace(&mut self.beside, self.rows.len() <= SOME_ROWS);
        let result = run(self);
        self.beside = before;
        result
    }

    /// Records products that fill so many quarters of the device, wherever they run.
    pub(super) fn in_quarters<T>(
        &mut self,
        quarters: u32,
        run: impl FnOnce(&mut Gpu) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let before = self.quarters.replace(quarters);
        let result = run(self);
        self.quarters = before;
        result
    }

    /// What may run beside, and fill so many quarters of the device all the same.
    pub(super) fn beside_in<T>(
        &mut self,
        quarters: u32,
        run: impl FnOnce(&mut Gpu) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.beside(|gpu| gpu.in_quarters(quarters, run))
    }

    /// Records what may run beside, behind what the main lane has so far: nothing near waits for
    /// it, so that it leaves the memory to what was recorded before.
    pub(super) fn behind<T>(
        &mut self,
        run: impl FnOnce(&mut Gpu) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let before = std::mem::replace(&mut self.behind, true);
        let result = self.beside(run);
        self.behind = before;
        result
    }

    /// The same where groups that are there and only wait would keep others out.
    pub(super) fn afresh<T>(
        &mut self,
        run: impl FnOnce(&mut Gpu) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let before = std::mem::replace(&mut self.fresh, true);
        let result = self.beside(run);
        self.fresh = before;
        result
    }

    /// Says what the next launch reads and writes through tables, as masks of
    /// [`super::lanes::hidden`].
    pub(super) fn through_tables(&mut self, reads: u8, writes: u8) {
        self.hidden = [reads, writes];
    }
}
