//! What a caller asks of a step and gets back, and how one may look inside.

use ironstar_device::Step;

/// Which rows of a step need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsFor<'a> {
    /// None: a chunk of a prompt.
    None,
    /// The last row of each span.
    Last,
    /// Every row.
    All,
    /// These rows.
    Rows(&'a [usize]),
}

/// What a step should give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// Logits of the model. Row of position t: what follows token t.
    pub logits: LogitsFor<'a>,
    /// Logits of the draft block for the pair (position t - 1, token t), as they would have been
    /// drafted with the model at t - 1: what follows token t. Rows of position 0 have none and are
    /// left out.
    pub drafts: LogitsFor<'a>,
}

/// What a step gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Logits of the model.
    pub logits: Logits,
    /// Logits of the draft block.
    pub drafts: Logits,
    /// Tokens that the device has drawn, where it was asked for those instead of logits; `None`
    /// where the logits must be looked at.
    pub drawn: Vec<Option<u32>>,
}

/// Logits of some rows of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logits {
    pub(crate) vocabulary: usize,
    pub(crate) rows: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

impl Logits {
    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Which rows of the step they belong to.
    #[must_use]
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// One logit a token, of the `index`-th row that was asked for.
    #[must_use]
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values[index * self.vocabulary..(index + 1) * self.vocabulary]
    }

    /// The largest logit's token, the lowest of equals, as the zeros of both signs are; none where
    /// there is no number.
    #[must_use]
    pub fn likeliest(logits: &[f32]) -> Option<u32> {
        let (mut best, mut largest) = (None, f32::NEG_INFINITY);
        for (token, &logit) in (0u32..).zip(logits) {
            if logit > largest {
                (best, largest) = (Some(token), logit);
            }
        }
        best
    }

    /// All rows behind one another.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }
}

/// Guesses of a drafter, each the likeliest token of its row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drafted {
    /// The guesses.
    pub tokens: Vec<u32>,
    /// Logits that they were taken from.
    pub logits: Logits,
    /// Logit of each guess's surviving, given those before it: what a head of the drafter's says,
    /// or what its logits do.
    pub confidence: Vec<f32>,
}

/// Looks at a pass while it runs (`--debug steps`, `--dump`, tests); reading costs a wait at each
/// point, and a device then computes what it would have left to a later launch.
pub trait Observer {
    /// A step of the model begins; what is seen until the next one belongs to its rows.
    fn begins(&mut self, _step: &Step) {}
    /// Whether it looks here: what nobody looks at is not read. By default at what lies between
    /// blocks, and not inside them.
    fn wants(&self, what: What) -> bool {
        !what.is_inside()
    }
    /// Rows of floats, `width` a row. They may be changed; then the answer is true and they are
    /// written back.
    fn floats(&mut self, at: At, width: usize, values: &mut [f32]) -> bool;
    /// Rows of ids, `width` a row. Of an indexer's choice at position t only the first
    /// `min(width, (t + 1) / ratio)` mean anything.
    fn ids(&mut self, at: At, width: usize, ids: &[u32]);
    /// Logits of the model, where a step gives any.
    fn logits(&mut self, _logits: &Logits) {}
}

/// A point of the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    /// Layer; draft blocks count as those after the last.
    pub layer: usize,
    /// What is seen there.
    pub what: What,
}

/// What is seen, in the order of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// Streams at a layer's entry, `[streams, d]`; also after the last layer, as the entry of the
    /// next.
    LayerIn,
    /// Normalised input of attention, `[d]`.
    AttentionIn,
    /// Queries, normed and rotated, `[heads, D]`.
    Queries,
    /// The step's key/value rows, `[D]`.
    KvRows,
    /// What goes into the compressor, `[parts, D]`.
    CompressorValues,
    /// Its scores, without the position table, `[parts, D]`.
    CompressorScores,
    /// Compressed rows that the step closes, `[D]`: of each span from group `position / ratio` on,
    /// span by span.
    CompressedRows,
    /// The same of the indexer, `[width]`.
    IndexRows,
    /// Queries of the indexer before their rotation, `[heads, width]`.
    IndexQueries,
    /// Rows the indexer chose, ascending.
    IndexChoice,
    /// What the heads bring back, un-rotated, `[heads, D]`.
    Attended,
    /// Output of attention, `[d]`.
    AttentionOut,
    /// Normalised input of the FFN, `[d]`.
    FfnIn,
    /// Logits of the router, `[experts]`.
    RouterLogits,
    /// Experts of a token, ascending ids.
    Experts,
    /// Their weights.
    ExpertWeights,
    /// Output of the FFN, `[d]`.
    FfnOut,
}

impl What {
    /// All of them, in order.
    pub const ALL: [What; 17] = [
        What::LayerIn,
        What::AttentionIn,
        What::Queries,
        What::KvRows,
        What::CompressorValues,
        What::CompressorScores,
        What::CompressedRows,
        What::IndexRows,
        What::IndexQueries,
        What::IndexChoice,
        What::Attended,
        What::AttentionOut,
        What::FfnIn,
        What::RouterLogits,
        What::Experts,
        What::ExpertWeights,
        What::FfnOut,
    ];

    /// Name for printing.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            What::LayerIn => "layer_in",
            What::AttentionIn => "attention_in",
            What::Queries => "queries",
            What::KvRows => "kv_rows",
            What::CompressorValues => "compressor_values",
            What::CompressorScores => "compressor_scores",
            What::CompressedRows => "compressed_rows",
            What::IndexRows => "index_rows",
            What::IndexQueries => "index_queries",
            What::IndexChoice => "index_choice",
            What::Attended => "attended",
            What::AttentionOut => "attention_out",
            What::FfnIn => "ffn_in",
            What::RouterLogits => "router_logits",
            What::Experts => "experts",
            What::ExpertWeights => "expert_weights",
            What::FfnOut => "ffn_out",
        }
    }

    /// Whether it lies inside of a block, where a device may keep it in another form or leave it
    /// out.
    #[must_use]
    pub fn is_inside(self) -> bool {
        !matches!(
            self,
            What::LayerIn
                | What::IndexChoice
                | What::AttentionOut
                | What::Experts
                | What::ExpertWeights
                | What::FfnOut
        )
    }
}
