//! Small launches in place that are put off, since a kernel that reads their result can do them on
//! its way.
//!
//! The launch is owed until something else touches the buffer, or what it is made of, which then
//! finds it done as ever, or until the buffer is written anew.

use super::arguments::{CellsArgs, HeadArgs, RmsArgs};
use super::record::Place;
use super::{Gpu, ops};
use crate::Error;

/// A launch that is owed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    /// The buffer that it writes and reads.
    pub at: Place,
    /// Floats of it.
    pub len: usize,
    /// What is to be done.
    pub work: Work,
}

/// What is owed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// A norm of one row, with these weights.
    Norm { weight: Place, arguments: RmsArgs },
    /// Norm and rotation of rows' query heads, with this rotary table.
    Heads { table: Place, arguments: HeadArgs },
    /// The sum of cells of very many rows, of these ids, halves and shards.
    Cells { places: [Place; 3], arguments: CellsArgs },
}

impl Owed {
    /// Whether nobody may read or write this buffer before it is done: the one that it is about, or
    /// one that it is made of.
    pub fn touches(&self, place: Place) -> bool {
        let made_of = |work| matches!(work, Work::Cells { places, .. } if places.contains(&place));
        place == self.at || made_of(self.work)
    }
}

impl Gpu {
    /// Puts a launch off.
    pub(super) fn owe(&mut self, owed: Owed) -> Result<(), Error> {
        self.pay(&[owed.at], Place::NONE)?;
        self.owed.push(owed);
        Ok(())
    }

    /// What is owed of a buffer.
    pub(super) fn owed_of(&self, at: Place) -> Option<Owed> {
        self.owed.iter().find(|owed| owed.at == at).copied()
    }

    /// The next launch does on its way what is owed of this buffer; it leaves the buffer alone.
    pub(super) fn take_along(&mut self, at: Place) {
        self.taken = at;
    }

    /// So many floats of a buffer will be written without being read.
    pub(super) fn overwritten(&mut self, at: Place, len: usize) {
        self.owed.retain(|owed| owed.at != at || owed.len > len);
    }

    /// Records what is owed of these buffers, but for what is being taken along.
    pub(super) fn pay(&mut self, places: &[Place], taken: Place) -> Result<(), Error> {
        let due = |owed: &Owed| owed.at != taken && places.iter().any(|place| owed.touches(*place));
        while let Some(index) = self.owed.iter().position(due) {
            let owed = self.owed.swap_remove(index);
            let before = (self.beside, self.behind, self.fresh, self.hidden);
            (self.beside, self.behind, self.fresh, self.hidden) = (false, false, false, [0; 2]);
            let result = match owed.work {
                Work::Norm { weight, arguments } => {
                    ops::streams::norm_plain(self, [owed.at, weight, owed.at], 1, &arguments)
                }
                Work::Heads { table, arguments } => {
                    ops::heads::make_heads(self, [owed.at, table], &arguments)
                }
                Work::Cells { places, arguments } => {
                    ops::experts::make_cells(self, places, owed.at, &arguments)
                }
            };
            (self.beside, self.behind, self.fresh, self.hidden) = before;
            result?;
        }
        Ok(())
    }

    /// Records all that is owed.
    pub(super) fn pay_all(&mut self) -> Result<(), Error> {
        let places: Vec<Place> = self.owed.iter().map(|owed| owed.at).collect();
        self.pay(&places, Place::NONE)
    }
}
