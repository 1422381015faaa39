//! How ranks share more of a step than its weights: who scores which compressed rows, and a step in
//! two halves of its rows, so that one half is computed while the other's partial sums travel.
//!
//! Rank 0 decides and says so in its order, since all ranks must pass the same gates:
//!
//! ```text
//!  first half   attention ─ post ─────── wait ─ FFN ─ post ─────── wait ─ attention ...
//!  second half              attention ── post ─────── wait ─ FFN ─ post ─────── ...
//! ```
//!
//! Rows of the first half never need the second, and the second finds the first's key/value rows
//! where an earlier step would have left them. So this is two steps of the session, layer by layer
//! in turn, and the bits are those of one.

use super::forward::{Pass, Run};
use super::gates;
use super::load::Block;
use super::scratch::Scratch;
use super::state::State;
use crate::Error;
use ironstar_device::{Error as DeviceError, ExchangeError, GateKind, GatherRows, Span, Step};
use std::ops::Range;

/// From where on ranks share more of a step; only rank 0's counts, and no bit depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Each rank scores a part of the compressed rows once a step ends at this position: a gate
    /// more in each layer with an indexer. On ranks that meet on their devices, where scores are
    /// quick, from four times as far.
    pub index_from: usize,
    /// A step of so many rows is computed in two halves: twice as many gates, each beside work.
    pub halves_from: usize,
    /// In a step of so many rows each rank computes its own of what all have alike, where
    /// [`ironstar_device::Backend::splits_rows`].
    pub rows_from: usize,
}

impl Sharing {
    /// Weights only.
    pub const NEVER: Sharing =
        Sharing { index_from: usize::MAX, halves_from: usize::MAX, rows_from: usize::MAX };
}

impl Default for Sharing {
    /// From 4,096 compressed rows on half of the scores is more work than a gate; halves of a step
    /// read experts twice, and no measurement here has shown a gain (docs/cluster.md).
    fn default() -> Self {
        Sharing { index_from: 16_384, halves_from: usize::MAX, rows_from: 128 }
    }
}

/// What rank 0 decided for a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shared {
    /// Whether each rank scores a part of the compressed rows.
    pub index: bool,
    /// Rows of the first half; 0 where the step is computed whole.
    pub first_rows: usize,
    /// Whether each rank computes its own rows of what all have alike.
    pub rows: bool,
}

impl Shared {
    /// As an order may ask for it: both halves have rows, and the second has room.
    pub fn check(self, rows: usize, room: usize) -> Result<(), Error> {
        let second = rows.checked_sub(self.first_rows);
        if self.first_rows == 0 || second.is_some_and(|second| (1..=room).contains(&second)) {
            return Ok(());
        }
        let found = format!("a step of {rows} rows, {} in its first half", self.first_rows);
        let wanted = format!("the second has 1 to {room}");
        Err(DeviceError::from(ExchangeError::Wrong { rank: 0, found, wanted }).into())
    }
}

/// Half of a step's rows, with buffers of its own.
struct Half {
    step: Step,
    /// Which of the step's spans it has rows of.
    spans: Range<usize>,
    scratch: Scratch,
}

impl Half {
    fn of(step: &Step, rows: Range<usize>, scratch: Scratch) -> Half {
        let inside = |span: &&Span| span.rows.start < rows.end && span.rows.end > rows.start;
        let before = step.spans.iter().take_while(|span| span.rows.end <= rows.start).count();
        let spans: Vec<Span> = step
            .spans
            .iter()
            .filter(inside)
            .map(|span| {
                let (start, end) = (span.rows.start.max(rows.start), span.rows.end.min(rows.end));
                let position = span.position + (start - span.rows.start);
                Span { rows: start - rows.start..end - rows.start, position }
            })
            .collect();
        let tokens = step.tokens[rows].to_vec();
        Half { spans: before..before + spans.len(), step: Step { tokens, spans }, scratch }
    }
}

impl Half {
    /// A layer on its spans' states; the pass is at this half.
    fn run(&self, pass: &Pass<'_>, states: &[&mut State], layer: usize) -> Run {
        let states = states[self.spans.clone()].iter();
        Run::layer(pass, layer, states.map(|state| &state.layers[layer]))
    }
}

/// All layers of a step, whose streams are in the pass's `x` before and after, the rows from
/// `first_rows` on with the `second` buffers.
pub(super) fn layers(
    pass: &mut Pass<'_>,
    blocks: &[(usize, Block)],
    step: &Step,
    states: &[&mut State],
    (first_rows, second): (usize, Scratch),
) -> Result<(), Error> {
    let (main, rows) = (pass.scratch, step.tokens.len());
    let width = pass.shape.streams * pass.shape.width;
    let later: Vec<usize> = (first_rows..rows).collect();
    let (x, out) = (main.x, second.x);
    pass.backend.gather_rows(&GatherRows { x, width, rows: &later, out, at: 0 })?;
    let halves = [Half::of(step, 0..first_rows, main), Half::of(step, first_rows..rows, second)];
    let shares_index = pass.index_spans.is_some();
    let mut travelling: Option<&Half> = None;
    for (layer, block) in blocks {
        let layer = *layer;
        for gate in [GateKind::Attention, GateKind::Ffn] {
            for half in &halves {
                enter(pass, half, shares_index)?;
                let run = half.run(pass, states, layer);
                match gate {
                    GateKind::Attention => {
                        if let Some(before) = layer.checked_sub(1) {
                            pass.leave_ffn(&half.run(pass, states, before))?;
                        }
                        if shares_index && block.indexer.is_some() {
                            // It has a gate of its own, and one gate is under way at a time.
                            arrive(pass, travelling.take())?;
                        }
                        pass.enter_attention(block, &run)?;
                    }
                    _ => {
                        pass.leave_attention(&run)?;
                        pass.enter_ffn(block, &run)?;
                    }
                }
                let len = pass.sum_len();
                let mine = gates::part(pass.backend, half.scratch.z, len)?;
                arrive(pass, travelling.replace(half))?;
                gates::post(pass.backend, gate, &mine)?;
            }
        }
    }
    arrive(pass, travelling)?;
    for half in &halves {
        enter(pass, half, shares_index)?;
        let layer = blocks.last().map_or(0, |(layer, _)| *layer);
        pass.leave_ffn(&half.run(pass, states, layer))?;
    }
    let [_, last] = &halves;
    let all: Vec<usize> = (0..last.step.tokens.len()).collect();
    let (x, out, at) = (second.x, main.x, first_rows);
    pass.backend.gather_rows(&GatherRows { x, width, rows: &all, out, at })?;
    (pass.scratch, pass.rows) = (main, rows);
    pass.index_spans = shares_index.then(|| step.spans.clone());
    Ok(pass.backend.begin(step)?)
}

/// What follows is about this half.
fn enter(pass: &mut Pass<'_>, half: &Half, shares_index: bool) -> Result<(), Error> {
    (pass.scratch, pass.rows) = (half.scratch, half.step.tokens.len());
    pass.index_spans = shares_index.then(|| half.step.spans.clone());
    Ok(pass.backend.begin(&half.step)?)
}

/// Waits for the sum of a half that travels.
fn arrive(pass: &mut Pass<'_>, half: Option<&Half>) -> Result<(), Error> {
    let Some(half) = half else { return Ok(()) };
    gates::take(pass.backend, half.scratch.z, half.step.tokens.len() * pass.shape.width)
}

#[cfg(test)]
mod tests;
