//! The forward pass in the paper's order, one function a block (spec 2). All work goes to the
//! backend on the rows of the current step.

use super::few::Few;
use super::gates;
use super::load::{Block, Compressor, Head};
use super::scratch::{LOGIT_ROWS, Scratch};
use super::shape::Shape;
use super::state::{LayerState, window_slots};
use super::weights::parts;
use crate::steering::Steering;
use crate::{At, Error, Logits, Observer, What};
use ironstar_device::{
    Attend, Backend, Buffer, Cells, Compress, CompressState, CompressedRows, Draw, DrawRows,
    Experts, GateKind, GatherRows, HcHead, HcPost, HcPre, HcWeights, IndexSelect, KvRows, Matrix,
    Part, Project, ProjectGrouped, QueryHeads, RmsNorm, Rope, Route, RowKind, RowsOf, Span, Steer,
    StoreWindow,
};

/// From so many rows on no product is put off for others that are waited for longer.
const ROWS_TOGETHER: usize = 128;

/// What the functions of a pass share.
pub(super) struct Pass<'a> {
    pub backend: &'a mut dyn Backend,
    /// Which part of every layer this rank computes.
    pub part: Part,
    pub shape: &'a Shape,
    pub round_trips: bool,
    pub ropes: Ropes,
    pub scratch: Scratch,
    /// Rows of the step.
    pub rows: usize,
    /// The step's spans, where each rank scores a part of their compressed rows.
    pub index_spans: Option<Vec<Span>>,
    pub steering: Option<&'a Steering>,
    pub observer: Option<&'a mut dyn Observer>,
    /// The spans of the model's step, for the observer.
    pub spans: &'a [Span],
    /// Memory for the logits.
    pub values: Vec<f32>,
}

/// The two rotary tables.
#[derive(Clone, Copy)]
pub(super) struct Ropes {
    pub plain: Rope,
    pub yarn: Rope,
}

/// What tells one block of a pass from another, besides its weights.
pub(super) struct Run {
    pub layer: usize,
    /// 0, 4 or 128
    pub ratio: usize,
    pub swiglu_limit: f32,
    /// [n, streams, d], in place
    pub x: Buffer,
    /// Per span.
    pub rings: Few<Buffer>,
    /// Slots of a ring.
    pub capacity: usize,
    /// Whether the rows of a span all see one another.
    pub mutual: bool,
    pub compressors: Few<CompressState>,
    pub indexes: Few<CompressState>,
    /// Whether the rows of this step go into the window ring.
    pub store: bool,
}

impl Run {
    /// A layer of the backbone on the states of a step's spans.
    pub fn layer<'s>(
        pass: &Pass<'_>,
        layer: usize,
        states: impl Iterator<Item = &'s LayerState> + Clone,
    ) -> Run {
        Run {
            layer,
            ratio: pass.shape.ratios[layer],
            swiglu_limit: pass.shape.swiglu_limits[layer],
            x: pass.scratch.x,
            rings: states.clone().map(|s| s.ring).collect(),
            capacity: window_slots(pass.shape),
            mutual: false,
            compressors: states.clone().filter_map(|s| s.compressor).collect(),
            indexes: states.filter_map(|s| s.index).collect(),
            store: true,
        }
    }
}

/// Of how many rows all ranks get all logits on their device; 0 where they meet on the host. Equal
/// parts that begin at multiples of four tokens go in one gate, those of several rows through a
/// buffer that is free behind the layers.
pub(super) fn shared_logit_rows(
    backend: &dyn Backend,
    part: Part,
    tokens: usize,
    scratch: &Scratch,
) -> usize {
    if !backend.splits_rows() || !tokens.is_multiple_of(4 * part.ranks) || tokens < 8 * part.ranks {
        return 0;
    }
    (scratch.q.len / tokens).clamp(1, LOGIT_ROWS)
}

impl Pass<'_> {
    /// One layer: attention, then FFN, each between a mix of the streams and a spread over them.
    pub fn block(&mut self, weights: &Block, run: &Run) -> Result<(), Error> {
        let (z, len) = (self.scratch.z, self.sum_len());
        self.enter_attention(weights, run)?;
        gates::sum(self.backend, GateKind::Attention, z, len)?;
        self.leave_attention(run)?;

        self.enter_ffn(weights, run)?;
        gates::sum(self.backend, GateKind::Ffn, z, len)?;
        self.leave_ffn(run)
    }

    /// Floats of a sum over ranks.
    pub fn sum_len(&self) -> usize {
        self.rows * self.shape.width
    }

    /// Streams to attention's output, or this rank's part of its sum.
    pub fn enter_attention(&mut self, weights: &Block, run: &Run) -> Result<(), Error> {
        let at = At { layer: run.layer, what: What::LayerIn };
        self.observe(at, run.x, self.shape.streams * self.shape.width)?;
        self.mix(run.x, weights.hc_attn, weights.attn_norm)?;
        let at = At { layer: run.layer, what: What::AttentionIn };
        self.observe(at, self.scratch.y, self.shape.width)?;
        self.attention(weights, run)
    }

    /// Attention's output back to the streams.
    pub fn leave_attention(&mut self, run: &Run) -> Result<(), Error> {
        let at = At { layer: run.layer, what: What::AttentionOut };
        self.observe(at, self.scratch.z, self.shape.width)?;
        self.steer(run.layer, self.steering.map_or(0.0, |s| s.scales.attention))?;
        self.spread(run.x)
    }

    /// Streams to the output of the FFN, or this rank's part of its sum.
    pub fn enter_ffn(&mut self, weights: &Block, run: &Run) -> Result<(), Error> {
        self.mix(run.x, weights.hc_ffn, weights.ffn_norm)?;
        let at = At { layer: run.layer, what: What::FfnIn };
        self.observe(at, self.scratch.y, self.shape.width)?;
        self.ffn(weights, run)
    }

    /// The output of the FFN back to the streams.
    pub fn leave_ffn(&mut self, run: &Run) -> Result<(), Error> {
        let at = At { layer: run.layer, what: What::FfnOut };
        self.observe(at, self.scratch.z, self.shape.width)?;
        self.steer(run.layer, self.steering.map_or(0.0, |s| s.scales.ffn))?;
        self.spread(run.x)
    }

    /// Takes a share of the layer's direction out of `z`; a draft block is left as it is.
    fn steer(&mut self, layer: usize, scale: f32) -> Result<(), Error> {
        let Some(steering) = self.steering.filter(|_| layer < self.shape.layers) else {
            return Ok(());
        };
        if scale != 0.0 {
            let (x, width, directions) = (self.scratch.z, self.shape.width, steering.directions);
            self.backend.steer(&Steer { x, directions, row: layer, width, scale })?;
        }
        Ok(())
    }

    /// Streams to the normalised input `y` of a sublayer.
    pub fn mix(&mut self, x: Buffer, weights: HcWeights, norm: Buffer) -> Result<(), Error> {
        let (shape, s) = (self.shape, self.scratch);
        self.backend.hc_pre(&HcPre {
            x,
            streams: shape.streams,
            weights,
            norm,
            norm_eps: shape.norm_eps,
            hc_eps: shape.hc_eps,
            iterations: shape.sinkhorn_iterations,
            out: s.y,
            post: s.post,
            comb: s.comb,
        })?;
        Ok(())
    }

    /// Output `z` of a sublayer back to the streams.
    fn spread(&mut self, x: Buffer) -> Result<(), Error> {
        let (s, streams, width) = (self.scratch, self.shape.streams, self.shape.width);
        self.backend.hc_post(&HcPost { z: s.z, x, streams, width, post: s.post, comb: s.comb })?;
        Ok(())
    }

    /// `y` to `z`: window, compressed rows and sinks (spec 2.5). A rank computes some of the heads,
    /// and gets its part of the output projection's sum.
    fn attention(&mut self, weights: &Block, run: &Run) -> Result<(), Error> {
        self.attention_inputs(weights, true)?;
        self.observe_inputs(run)?;
        self.query_heads(run)?;
        self.kv_rows(weights, self.rope(run))?;
        self.observe_rows(run)?;
        self.compress_rows(weights, run)?;
        self.observe_compressed(run)?;
        if weights.indexer.is_some() {
            self.choose_rows(run)?;
        }
        self.attend(weights, run)
    }

    /// The rotary table of a layer.
    pub fn rope(&self, run: &Run) -> Rope {
        if run.ratio == 0 { self.ropes.plain } else { self.ropes.yarn }
    }

    /// Norm and rotation of this rank's heads.
    pub fn query_heads(&mut self, run: &Run) -> Result<(), Error> {
        let (shape, rope) = (self.shape, self.rope(run));
        let (heads, q) = (shape.heads / self.part.ranks, self.scratch.q);
        let (width, eps) = (shape.head_width, Some(shape.norm_eps));
        Ok(self.backend.query_heads(&QueryHeads { q, heads, width, eps, rope })?)
    }

    /// Feeds the layer's compressors.
    pub fn compress_rows(&mut self, weights: &Block, run: &Run) -> Result<(), Error> {
        let rope = self.rope(run);
        if let Some(compressor) = &weights.compressor {
            let kind = RowKind::Kv { round_trip: self.round_trips };
            self.compress(compressor, run, kind, rope)?;
        }
        if let Some(indexer) = &weights.indexer {
            self.compress(&indexer.compressor, run, RowKind::Index, rope)?;
        }
        Ok(())
    }

    /// Queries and keys to `z`, this rank's part of attention's output.
    pub fn attend(&mut self, weights: &Block, run: &Run) -> Result<(), Error> {
        let (shape, s, rope) = (self.shape, self.scratch, self.rope(run));
        let heads = shape.heads / self.part.ranks;
        let rows: Few<Buffer> = run.compressors.iter().map(|c| c.rows).collect();
        let choice = weights.indexer.as_ref().map(|_| (s.choice, shape.index_top_k));
        self.backend.attend(&Attend {
            q: s.q,
            kv: s.kv,
            sinks: weights.sinks,
            heads,
            rope,
            window: shape.window,
            mutual: run.mutual,
            rings: &run.rings,
            capacity: run.capacity,
            compressed: weights.compressor.is_some().then_some(CompressedRows {
                rows: &rows,
                ratio: run.ratio,
                choice,
            }),
            out: s.attended,
        })?;
        let at = At { layer: run.layer, what: What::Attended };
        self.observe(at, s.attended, heads * shape.head_width)?;
        if run.store {
            self.store_window(&run.rings, run.capacity)?;
        }
        let groups = shape.output_groups / self.part.ranks;
        let matrix = weights.output_a;
        self.backend.project_grouped(&ProjectGrouped {
            x: s.attended,
            matrix,
            groups,
            out: s.output_a,
        })?;
        self.project(s.output_a, self.rows, &[(weights.output_b, s.z)])
    }

    /// All products of attention's input, and of the query's low rank; without `heads` those only
    /// that all ranks have alike.
    pub fn attention_inputs(&mut self, weights: &Block, heads: bool) -> Result<(), Error> {
        let (shape, s) = (self.shape, self.scratch);
        // The lists with everything; a layer takes as much of their fronts as it has.
        let (q_a, kv) = ((weights.q_a, s.q_a), (weights.kv, s.kv_plain));
        let (mut from_y, mut of_y) = ([q_a, kv, q_a, q_a, q_a, q_a, q_a], 2);
        let (mut from_q, mut of_q) = ([(weights.q_b, s.q); 2], usize::from(heads));
        let compressor = weights.compressor.as_ref();
        let compressor = compressor.map(|c| [(c.values, s.values), (c.scores, s.scores)]);
        // What reads `y` as halves reads it once.
        let together = self.rows >= ROWS_TOGETHER;
        if let Some(i) = &weights.indexer {
            let c = &i.compressor;
            let own = [(c.values, s.index_values), (c.scores, s.index_scores)];
            from_y[2..4].copy_from_slice(&own);
            from_y[4] = (i.weights, s.index_weights);
            of_y = 5;
            if let Some(own) = compressor.filter(|_| together) {
                from_y[5..].copy_from_slice(&own);
                from_y[2..].rotate_left(2);
                of_y = 7;
            }
            // The choice is waited for longest.
            from_q[0] = (i.query, s.index_q);
            of_q += 1;
        } else if let Some(own) = compressor {
            from_y[2..4].copy_from_slice(&own);
            of_y = 4;
        }
        self.project(s.y, self.rows, &from_y[..of_y])?;
        self.norm(s.q_a, self.rows, weights.q_norm)?;
        debug_assert_eq!(weights.q_norm.len, shape.q_rank);
        self.project(s.q_a, self.rows, &from_q[..of_q])?;
        if let Some(outputs) = compressor.filter(|_| weights.indexer.is_some() && !together) {
            let later = Project { x: s.y, rows: self.rows, outputs: &outputs };
            self.backend.project_later(&later)?;
        }
        Ok(())
    }

    /// The step's key/value rows in `kv`, as they are kept.
    pub fn kv_rows(&mut self, weights: &Block, rope: Rope) -> Result<(), Error> {
        let s = self.scratch;
        self.backend.kv_rows(&KvRows {
            x: s.kv_plain,
            norm: weights.kv_norm,
            eps: self.shape.norm_eps,
            rope,
            round_trip: self.round_trips,
            out: s.kv,
        })?;
        Ok(())
    }

    pub fn store_window(&mut self, rings: &[Buffer], capacity: usize) -> Result<(), Error> {
        let (kv, width) = (self.scratch.kv, self.shape.head_width);
        self.backend.store_window(&StoreWindow { kv, width, rings, capacity })?;
        Ok(())
    }

    /// Feeds one compressor of a layer (spec 2.6).
    fn compress(
        &mut self,
        weights: &Compressor,
        run: &Run,
        kind: RowKind,
        rope: Rope,
    ) -> Result<(), Error> {
        let (shape, s) = (self.shape, self.scratch);
        let (values, scores, width, states) = match kind {
            RowKind::Kv { .. } => (s.values, s.scores, shape.head_width, &run.compressors),
            RowKind::Index => (s.index_values, s.index_scores, shape.index_width, &run.indexes),
        };
        self.backend.compress(&Compress {
            values,
            scores,
            positions: weights.positions,
            norm: weights.norm,
            eps: shape.norm_eps,
            rope,
            ratio: run.ratio,
            parts: parts(run.ratio),
            width,
            kind,
            states,
        })?;
        Ok(())
    }

    /// The indexer (spec 2.7): `choice` for each row.
    pub fn choose_rows(&mut self, run: &Run) -> Result<(), Error> {
        let (shape, s, rope) = (self.shape, self.scratch, self.rope(run));
        let rows: Few<Buffer> = run.indexes.iter().map(|c| c.rows).collect();
        let select = IndexSelect {
            q: s.index_q,
            weights: s.index_weights,
            heads: shape.index_heads,
            width: shape.index_width,
            rope,
            ratio: run.ratio,
            top_k: shape.index_top_k,
            rows: &rows,
            out: s.choice,
        };
        match self.index_spans.take() {
            None => self.backend.index_select(&select)?,
            Some(spans) => {
                self.choose_together(&select, &spans)?;
                self.index_spans = Some(spans);
            }
        }
        let at = At { layer: run.layer, what: What::IndexChoice };
        self.observe_ids(at, s.choice, shape.index_top_k)
    }

    /// The same over ranks: each scores a run of every span's compressed rows, and the best of all
    /// runs are the choice.
    fn choose_together(&mut self, select: &IndexSelect<'_>, spans: &[Span]) -> Result<(), Error> {
        let seen = |span: &Span, rows: usize| (span.position + rows) / select.ratio;
        let visible: Vec<usize> =
            spans.iter().flat_map(|span| (1..=span.rows.len()).map(|r| seen(span, r))).collect();
        if visible.iter().all(|&visible| visible <= select.top_k) {
            // All are chosen, as every rank sees.
            return Ok(self.backend.index_select(select)?);
        }
        if self.backend.index_together(select)? {
            return Ok(());
        }
        let runs: Vec<_> =
            spans.iter().map(|span| self.part.of(seen(span, span.rows.len()))).collect();
        let mut best = vec![0; visible.len() * select.top_k];
        self.backend.index_best(select, &runs, &mut best)?;
        gates::choose(self.backend, &best, select.top_k, &visible, select.out)
    }

    /// `y` to `z`: routed and shared experts (spec 2.8). A rank computes some cells of the sum.
    fn ffn(&mut self, weights: &Block, run: &Run) -> Result<(), Error> {
        self.route(weights, run)?;
        self.experts(weights, run)
    }

    /// Chooses experts from `y`.
    pub fn route(&mut self, weights: &Block, run: &Run) -> Result<(), Error> {
        let (shape, s, top_k) = (self.shape, self.scratch, self.shape.experts_used);
        self.project(s.y, self.rows, &[(weights.router, s.router)])?;
        self.backend.route(&Route {
            logits: s.router,
            experts: shape.experts,
            by: weights.route_by,
            top_k,
            scale: shape.expert_scale,
            ids: s.ids,
            weights: s.id_weights,
        })?;
        let at = |what| At { layer: run.layer, what };
        self.observe(at(What::RouterLogits), s.router, shape.experts)?;
        self.observe_ids(at(What::Experts), s.ids, top_k)?;
        self.observe(at(What::ExpertWeights), s.id_weights, top_k)
    }

    /// `y` to `z`: the chosen experts, or this rank's part of their sum.
    pub fn experts(&mut self, weights: &Block, run: &Run) -> Result<(), Error> {
        let (shape, s, top_k) = (self.shape, self.scratch, self.shape.experts_used);
        let experts = Experts {
            x: s.y,
            routed: weights.routed,
            shared: weights.shared,
            ids: s.ids,
            weights: s.id_weights,
            top_k,
            limit: run.swiglu_limit,
            out: s.z,
        };
        self.backend.experts_part(&experts, Cells::of_part(self.part, shape.experts))?;
        Ok(())
    }

    /// Logits of some rows of `x` (spec 2.3 and 2.1 steps 4 to 6).
    pub fn logits(
        &mut self,
        x: Buffer,
        rows: Vec<usize>,
        head: &Head,
        output: Matrix,
    ) -> Result<Logits, Error> {
        let (vocabulary, logits) = (self.shape.vocabulary, self.scratch.logits);
        let mut values = std::mem::take(&mut self.values);
        values.clear();
        values.resize(rows.len() * vocabulary, 0.0);
        for (rows, out) in rows.chunks(LOGIT_ROWS).zip(values.chunks_mut(LOGIT_ROWS * vocabulary)) {
            match self.output_rows(x, rows, head, output)? {
                true => self.backend.read_f32(logits, 0, out)?,
                false => gates::vocabulary(self.backend, logits, vocabulary, out)?,
            }
        }
        Ok(Logits { vocabulary, rows, values })
    }

    /// On ranks above 0: their part in the logits that rank 0 wants.
    pub fn give_logits(
        &mut self,
        x: Buffer,
        rows: &[usize],
        head: &Head,
        output: Matrix,
    ) -> Result<(), Error> {
        for rows in rows.chunks(LOGIT_ROWS) {
            if !self.output_rows(x, rows, head, output)? {
                gates::give_vocabulary(self.backend, self.scratch.logits, rows.len(), self.shape)?;
            }
        }
        Ok(())
    }

    /// Tokens of at most [`LOGIT_ROWS`] rows of `x`, drawn where their logits are, which stay there
    /// until others come.
    pub fn draw(
        &mut self,
        x: Buffer,
        rows: &[usize],
        (head, output): (&Head, Matrix),
        draws: &[Draw],
    ) -> Result<Vec<Option<u32>>, Error> {
        self.output_rows(x, rows, head, output)?;
        let (logits, tokens) = (self.scratch.logits, self.shape.vocabulary);
        Ok(self.backend.draw(&DrawRows { logits, tokens, rows: draws })?)
    }

    /// Logits of at most [`LOGIT_ROWS`] rows of `x` in their buffer: of all tokens if true, else of
    /// this rank's.
    fn output_rows(
        &mut self,
        x: Buffer,
        rows: &[usize],
        head: &Head,
        output: Matrix,
    ) -> Result<bool, Error> {
        let (shape, s) = (self.shape, self.scratch);
        let width = shape.streams * shape.width;
        self.backend.gather_rows(&GatherRows { x, width, rows, out: s.picked, at: 0 })?;
        self.backend.hc_head(&HcHead {
            x: s.picked,
            rows: rows.len(),
            streams: shape.streams,
            weights: head.mix,
            norm: head.norm,
            norm_eps: shape.norm_eps,
            hc_eps: shape.hc_eps,
            out: s.hidden,
        })?;
        let (n, tokens) = (rows.len(), shape.vocabulary);
        if self.part.ranks == 1 || n > shared_logit_rows(self.backend, self.part, tokens, &s) {
            self.project(s.hidden, n, &[(output, s.logits)])?;
            return Ok(self.part.ranks == 1);
        }
        // Ranks lie behind one another, which for one row is its order.
        let all = if n == 1 { s.logits } else { s.q };
        let each = n * (tokens / self.part.ranks);
        let starts: Vec<usize> = (0..=self.part.ranks).map(|rank| each * rank).collect();
        self.project(s.hidden, n, &[(output, all.behind(starts[self.part.rank]))])?;
        let parts = [RowsOf { buffer: all, width: 1 }];
        self.backend.share_rows(GateKind::Vocabulary, &parts, &starts)?;
        if n > 1 {
            let rows: Vec<usize> =
                (0..n).flat_map(|row| (0..self.part.ranks).map(move |r| r * n + row)).collect();
            let (x, width) = (all, tokens / self.part.ranks);
            let gather = GatherRows { x, width, rows: &rows, out: s.logits, at: 0 };
            self.backend.gather_rows(&gather)?;
        }
        Ok(true)
    }

    pub fn project(
        &mut self,
        x: Buffer,
        rows: usize,
        outputs: &[(Matrix, Buffer)],
    ) -> Result<(), Error> {
        self.backend.project(&Project { x, rows, outputs })?;
        Ok(())
    }

    /// Norm in place.
    pub fn norm(&mut self, x: Buffer, rows: usize, weight: Buffer) -> Result<(), Error> {
        self.backend.rms_norm(&RmsNorm { x, rows, weight, eps: self.shape.norm_eps, out: x })?;
        Ok(())
    }

    /// Input of a draft block's attention, without its output: mix, key/value product, rows.
    pub fn kv_only(&mut self, weights: &Block, run: &Run) -> Result<(), Error> {
        let s = self.scratch;
        self.mix(run.x, weights.hc_attn, weights.attn_norm)?;
        self.project(s.y, self.rows, &[(weights.kv, s.kv_plain)])?;
        self.kv_rows(weights, self.ropes.plain)?;
        self.store_window(&run.rings, run.capacity)
    }
}
