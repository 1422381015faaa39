//! A step that is some of its rows for a while ([`crate::Backend::narrow`]).

use super::record::{Place, Recorder};
use super::{Gpu, StepData, angles_at, check};
use crate::cpu::steps::Rows;
use crate::{Error, Rope};
use std::ops::Range;

/// The view of the step that is not in use: the whole while it is narrowed, else the last part.
#[derive(Default)]
pub(super) struct Narrowed {
    now: Option<Range<usize>>,
    other: Option<(Range<usize>, Rows, StepData)>,
}

impl Narrowed {
    /// Where the angles of a narrowed step lie in those of the whole, which are made if need be.
    pub fn angles(
        &mut self,
        recorder: &mut Recorder,
        frequencies: &[f32],
        rope: Rope,
    ) -> Option<Place> {
        let (Some(range), Some((_, rows, step))) = (&self.now, &mut self.other) else {
            return None;
        };
        let whole = step.angles.entry(rope.id);
        let whole = *whole.or_insert_with(|| angles_at(recorder, frequencies, &rows.positions));
        match whole {
            Place::Step(at) => Some(Place::Step(at + (range.start * rope.pairs * 8) as u64)),
            Place::At(_) => None,
        }
    }
}

/// [`crate::Backend::narrow`].
pub(super) fn narrow(gpu: &mut Gpu, rows: Option<Range<usize>>) -> Result<(), Error> {
    if gpu.narrowed.now == rows {
        return Ok(());
    }
    gpu.settle()?;
    // What is owed is found by where its rows begin, and so are blocks beside rows: the whole and a
    // part share that.
    gpu.pay_all()?;
    gpu.prepared.set(None);
    if let Some(range) = gpu.narrowed.now.take() {
        swap(gpu, range);
    }
    let Some(range) = rows else { return Ok(()) };
    let all = gpu.rows.len();
    let found = || format!("rows {range:?} of {all}");
    let inside = range.start < range.end && range.end <= all;
    check("narrow", inside, found, "rows of the step, and some")?;
    if gpu.narrowed.other.as_ref().is_none_or(|(own, ..)| *own != range) {
        let part = gpu.rows.part(range.clone());
        gpu.narrowed.other = Some((range.clone(), part, StepData::default()));
    }
    swap(gpu, range.clone());
    gpu.narrowed.now = Some(range);
    Ok(())
}

/// Changes the view in use for the other. Numbers of gates go on in both: each counts from where
/// the step stood when it passed its first.
fn swap(gpu: &mut Gpu, range: Range<usize>) {
    if let Some((_, rows, step)) = gpu.narrowed.other.take() {
        let rows = std::mem::replace(&mut gpu.rows, rows);
        let step = std::mem::replace(&mut gpu.step, step);
        gpu.narrowed.other = Some((range, rows, step));
    }
}
