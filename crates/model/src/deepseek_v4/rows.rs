//! A step of many rows on ranks that meet quickly: what every rank would compute alike, each
//! computes for its own rows only, and they meet where all rows are needed.
//!
//! ```text
//!  own rows   mix, low ranks, key/value, products of compressors
//!             ── all get these rows ──
//!  all rows   queries of own heads, compressors
//!  own rows   indexer            ── all get its choice ──
//!  all rows   attention of own heads, output
//!             ── each gets the sums of its own rows ──
//!  own rows   spread, mix, router
//!             ── all get the input and the choice of experts ──
//!  all rows   experts, own part
//!             ── each gets the sums of its own rows ──
//!  own rows   spread
//! ```
//!
//! Rows do not depend on each other where they are split, so the bits are those of a whole step.

use super::few::Few;
use super::forward::{Pass, Run};
use super::load::Block;
use super::scratch::Scratch;
use super::state::State;
use super::weights::parts;
use crate::Error;
use ironstar_device::{Buffer, GateKind, Part, RowsOf, Step};
use std::ops::Range;

/// Ranges of rows begin at multiples of this.
const ALIGNED: usize = 4;

/// Where each rank's rows begin, and how many there are; `None` where some rank would have too few.
pub(super) fn starts(rows: usize, ranks: usize) -> Option<Vec<usize>> {
    let mut starts: Vec<usize> =
        (0..ranks).map(|rank| rows * rank / ranks / ALIGNED * ALIGNED).collect();
    starts.push(rows);
    starts.windows(2).all(|range| range[1] - range[0] >= 2 * ALIGNED).then_some(starts)
}

/// The rows of a step that this rank computes alone.
struct OwnRows {
    starts: Vec<usize>,
    rows: Range<usize>,
    /// Which of the step's spans have any of them.
    spans: Range<usize>,
    /// The step's buffers, and from these rows on.
    whole: Scratch,
    own: Scratch,
}

impl OwnRows {
    /// A layer on these rows.
    fn run(&self, run: &Run) -> Run {
        let (rings, compressors) = (Few::None, Few::None);
        let indexes = match run.indexes.is_empty() {
            true => Few::None,
            false => run.indexes[self.spans.clone()].iter().copied().collect(),
        };
        Run { x: self.own.x, rings, compressors, indexes, ..*run }
    }
}

/// All layers of a step, whose streams are in the pass's `x` before, and after where `streams` are
/// wanted.
pub(super) fn layers(
    pass: &mut Pass<'_>,
    blocks: &[(usize, Block)],
    step: &Step,
    states: &[&mut State],
    streams: bool,
) -> Result<(), Error> {
    let Part { rank, ranks } = pass.part;
    let Some(starts) = starts(pass.rows, ranks) else {
        let found = format!("{} rows over {ranks} ranks", pass.rows);
        return Err(Error::Step { found, wanted: "some for each".into() });
    };
    let rows = starts[rank]..starts[rank + 1];
    let before = step.spans.iter().take_while(|span| span.rows.end <= rows.start).count();
    let inside = step.spans.iter().take_while(|span| span.rows.start < rows.end).count();
    let (whole, own) = (pass.scratch, pass.scratch.behind(rows.start, pass.shape));
    let own = OwnRows { starts, rows, spans: before..inside, whole, own };
    for (layer, block) in blocks {
        let run = Run::layer(pass, *layer, states.iter().map(|state| &state.layers[*layer]));
        pass.block_by_rows(block, &run, &own)?;
    }
    if streams {
        let width = pass.shape.streams * pass.shape.width;
        pass.share(&own, GateKind::Ffn, &[(whole.x, width)])?;
    }
    Ok(())
}

impl Pass<'_> {
    /// [`Pass::block`], with the streams of this rank's rows only.
    fn block_by_rows(&mut self, weights: &Block, run: &Run, own: &OwnRows) -> Result<(), Error> {
        let (mine, z) = (own.run(run), RowsOf { buffer: own.whole.z, width: self.shape.width });
        self.attention_by_rows(weights, run, own)?;
        self.backend.sum_rows(GateKind::Attention, z, &own.starts)?;

        self.enter_own(own, run)?;
        self.leave_attention(&mine)?;
        self.mix(mine.x, weights.hc_ffn, weights.ffn_norm)?;
        self.route(weights, &mine)?;
        self.enter_all(own)?;
        let (s, top_k) = (own.whole, self.shape.experts_used);
        let chosen = [(s.y, self.shape.width), (s.ids, top_k), (s.id_weights, top_k)];
        self.share(own, GateKind::Ffn, &chosen)?;
        self.experts(weights, run)?;
        self.backend.sum_rows(GateKind::Ffn, z, &own.starts)?;

        self.enter_own(own, run)?;
        self.leave_ffn(&mine)?;
        self.enter_all(own)
    }

    /// The streams of own rows to this rank's part of all rows of attention's output.
    fn attention_by_rows(
        &mut self,
        weights: &Block,
        run: &Run,
        own: &OwnRows,
    ) -> Result<(), Error> {
        let (shape, s, mine) = (self.shape, own.whole, own.run(run));
        self.enter_own(own, run)?;
        self.mix(mine.x, weights.hc_attn, weights.attn_norm)?;
        self.attention_inputs(weights, false)?;
        self.kv_rows(weights, self.rope(run))?;
        self.enter_all(own)?;
        let mut made = vec![(s.q_a, shape.q_rank), (s.kv, shape.head_width)];
        if weights.compressor.is_some() {
            let width = parts(run.ratio) * shape.head_width;
            made.extend([(s.values, width), (s.scores, width)]);
        }
        if weights.indexer.is_some() {
            let width = parts(run.ratio) * shape.index_width;
            made.extend([(s.index_values, width), (s.index_scores, width)]);
        }
        self.share(own, GateKind::Attention, &made)?;
        self.project(s.q_a, self.rows, &[(weights.q_b, s.q)])?;
        self.query_heads(run)?;
        self.compress_rows(weights, run)?;
        if weights.indexer.is_some() {
            self.enter_own(own, run)?;
            self.choose_rows(&mine)?;
            self.enter_all(own)?;
            self.share(own, GateKind::Attention, &[(s.choice, shape.index_top_k)])?;
        }
        self.attend(weights, run)
    }

    /// What follows is about this rank's rows.
    fn enter_own(&mut self, own: &OwnRows, run: &Run) -> Result<(), Error> {
        let first = own.rows.start * parts(run.ratio.max(1)) * self.shape.head_width;
        let (values, scores) = (own.whole.values.behind(first), own.whole.scores.behind(first));
        self.scratch = Scratch { values, scores, ..own.own };
        self.rows = own.rows.len();
        Ok(self.backend.narrow(Some(own.rows.clone()))?)
    }

    /// What follows is about all rows.
    fn enter_all(&mut self, own: &OwnRows) -> Result<(), Error> {
        self.scratch = own.whole;
        self.rows = own.starts.last().copied().unwrap_or(0);
        Ok(self.backend.narrow(None)?)
    }

    /// All ranks get all rows of these buffers of the whole step.
    fn share(
        &mut self,
        own: &OwnRows,
        gate: GateKind,
        buffers: &[(Buffer, usize)],
    ) -> Result<(), Error> {
        let rows: Vec<RowsOf> =
            buffers.iter().map(|&(buffer, width)| RowsOf { buffer, width }).collect();
        Ok(self.backend.share_rows(gate, &rows, &own.starts)?)
    }
}

#[cfg(test)]
mod tests;
