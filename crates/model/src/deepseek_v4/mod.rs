//! DeepSeek V4 (Flash and PRO).
//!
//! One layer, for one token at position `t`; `X` is `streams` residual streams of width `d`:
//!
//! ```text
//!  X ──hc_pre──▶ y ─┬─ q_a ─ norm ─┬─ q_b ─ norm and rotate each head ───────────▶ q ─────┐
//!  │  (mix 1 row,   │              └─ indexer q ─┐ (ratio 4)                              │
//!  │   norm it)     ├─ indexer compressor ─▶ rows ┴─▶ top-k ─▶ choice ──┐                 ▼
//!  │                ├─ compressor ─▶ one row every 4 or 128 tokens ─────┴────────▶ attend, with
//!  │                └─ kv ─ norm ─ rotate ─ FP8 ─▶ window ring, both key and value ─▶ sinks
//!  │                                                                            │
//!  ▼                                                       un-rotate, output_a by groups, output_b
//!  X ◀──hc_post── z ◀───────────────────────────────────────────────────────────┘
//!  │
//!  X ──hc_pre──▶ y ── router ─▶ chosen experts, clamped SwiGLU, + shared ──▶ z ──hc_post──▶ X
//! ```
//!
//! Where it differs from a plain transformer: `streams` residuals joined by learned, doubly
//! stochastic mixes (mHC); one key/value row for all heads; attention over a short window plus rows
//! that stand for groups of 4 tokens (chosen by an indexer) or 128 tokens (all of them); a sink
//! logit a head; rotation undone on the output; the output projection in low-rank groups; experts
//! of the first layers looked up by token; FP8 and FP4 round trips of cached rows as part of the
//! definition.
//!
//! [`shape`] has the numbers, [`weights`] the table of tensors, [`state`] what a session keeps,
//! `forward.rs` the pass, `draft.rs` the MTP block and [`dspark`] the other drafter; [`import`]
//! maps published checkpoints. Several ranks share a model by `part.rs` (who holds what),
//! `gates.rs` (where partial sums meet) and `follow.rs` (how the others learn what rank 0 does);
//! nodes of a `pipeline.rs` have some of the layers each.

mod activations;
mod draft;
pub mod dspark;
mod dspark_pass;
mod few;
mod follow;
mod forward;
mod gates;
mod halves;
pub mod import;
pub mod known;
mod load;
mod observed;
mod orders;
mod part;
mod pipeline;
mod results;
mod rotary;
mod rows;
mod scratch;
pub mod shape;
mod stages;
pub mod state;
pub mod weights;

pub use activations::Wire;
pub use dspark::SparkShape;
pub use follow::Followed;
pub use halves::Sharing;
pub use load::find;
pub use part::rank_plan;
pub use pipeline::Pipeline;
pub use shape::Shape;
pub use stages::{STAGES_MAX, Stages, balanced_stages, stage_plan};
pub use state::{BLOCK_TOKENS, CHAIN_MAX, Room, State};
pub use weights::{Cut, Field, Kind, Place, TensorSpec, drafter_specs, spark_specs, tensor_specs};

use crate::steering::Steering;
use crate::{
    At, Directions, Drafted, Error, Fingerprint, Logits, LogitsFor, Observer, Options, Output,
    PlanLine, Progress, SteeringScales, Wanted, What,
};
use follow::Known;
use forward::{Pass, Ropes, Run, shared_logit_rows};
use halves::Shared;
use ironstar_device::{Arena, Backend, Draw, Embed, Part, Step};
use ironstar_gguf::Gguf;
use load::{Drafter, Loaded, Weights};
use orders::Order;
use pipeline::Pipe;
use results::Given;
use scratch::{For, LOGIT_ROWS, Scratch};
use state::Kept;
use std::sync::Arc;

/// Rows that want logits and draft logits, how their tokens are drawn where they are, and the
/// order's number.
type Asked<'a> = (Vec<usize>, Vec<usize>, &'a [Draw], u64);

/// Limit on [`Options::step_rows_max`].
const STEP_ROWS_LIMIT: usize = 65_536;

/// Weights resident on a backend, and the scratch to run them.
pub struct Model {
    kept: Arc<Kept>,
    /// What this rank holds of every layer.
    part: Part,
    /// In which epoch the other ranks were seen to have the same model.
    met: Known,
    arena: Arena,
    weights: Weights,
    drafter: Option<Drafter>,
    ropes: Ropes,
    scratch: Scratch,
    /// For half of a step's rows, where there are other ranks.
    second: Option<Scratch>,
    /// Rank 0's decision.
    sharing: Sharing,
    ignored: Vec<String>,
    steering: Option<Steering>,
    /// In which epoch the other ranks were told of it, and whether there ever was any.
    steering_told: Known,
    was_steered: bool,
    /// Logits whose memory the next step's may have.
    given_back: Logits,
}

impl Model {
    /// Checks a file (and the draft block's, where there is one) and makes its weights resident.
    pub fn load(
        gguf: &Gguf,
        drafter: Option<&Gguf>,
        backend: &mut dyn Backend,
        options: Options,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Model, Error> {
        Self::load_node(gguf, drafter, backend, options, None, progress)
    }

    /// [`Model::load`] of the layers that a node of a pipeline has.
    pub fn load_node(
        gguf: &Gguf,
        drafter: Option<&Gguf>,
        backend: &mut dyn Backend,
        options: Options,
        pipeline: Option<Pipeline>,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Model, Error> {
        let shape = Shape::from_metadata(gguf.metadata())?;
        if !(1..=STEP_ROWS_LIMIT).contains(&options.step_rows_max) {
            let found = format!("step_rows_max {}", options.step_rows_max);
            return Err(Error::Step { found, wanted: format!("1 to {STEP_ROWS_LIMIT}") });
        }
        let arena = backend.arena();
        let pipe = pipeline.map(Pipe::new);
        let made = Self::make(gguf, drafter, (shape, pipe), backend, arena, options, progress);
        made.inspect_err(|_| backend.release(arena))
    }

    fn make(
        gguf: &Gguf,
        drafter: Option<&Gguf>,
        (shape, pipe): (Shape, Option<Pipe>),
        backend: &mut dyn Backend,
        arena: Arena,
        options: Options,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Model, Error> {
        let mut known = None;
        if let Some(pipe) = &pipe {
            pipe.stages.check(shape.layers)?;
            known = drafter.map(|gguf| load::drafter_print(gguf, &shape)).transpose()?;
            let spark = known.as_ref().and_then(|(_, spark)| spark.as_ref());
            check_targets(&pipe.stages, spark)?;
        }
        let held = (pipe.as_ref(), drafter.is_some());
        let backbone = load::backbone(gguf, &shape, held, backend, arena, progress)?;
        let drafter = drafter
            .filter(|_| pipe.as_ref().is_none_or(Pipe::is_last))
            .map(|gguf| load::drafter(gguf, &shape, backend, arena, progress))
            .transpose()?;
        let ropes = Ropes {
            plain: backend.rope(&rotary::plain(&shape))?,
            yarn: backend.rope(&rotary::yarn(&shape))?,
        };
        let (mut draft_print, elsewhere) = known.map_or((None, None), |(p, s)| (Some(p), s));
        let spark = drafter.as_ref().and_then(|loaded| match &loaded.weights {
            Drafter::Spark(spark) => Some(spark.shape.clone()),
            Drafter::Mtp(_) => None,
        });
        let Loaded { weights, fingerprint, mut ignored } = backbone;
        let drafter = drafter.map(|loaded| {
            draft_print = Some(loaded.fingerprint);
            ignored.extend(loaded.ignored);
            loaded.weights
        });
        let kept = Kept {
            shape,
            options,
            fingerprint,
            drafter: draft_print,
            spark: spark.or(elsewhere),
            pipe,
            backend: backend.name(),
            ..Kept::default()
        };
        let scratch = Scratch::new(&kept.shape, &kept.options, kept.drafts_here(), backend, arena)?;
        let (part, met) = (load::part_of(backend), Known::default());
        let second = second_scratch(part, &kept, backend, arena)?;
        let kept = Arc::new(kept);
        Ok(Model {
            kept,
            part,
            met,
            arena,
            weights,
            drafter,
            ropes,
            scratch,
            second,
            sharing: Sharing::default(),
            ignored,
            steering: None,
            steering_told: Known::default(),
            was_steered: false,
            given_back: Logits::default(),
        })
    }

    /// From where on ranks share more of a step than its weights; rank 0's counts.
    pub fn share(&mut self, sharing: Sharing) {
        self.sharing = sharing;
    }

    /// The numbers of this model.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.kept.shape
    }

    /// How it is run.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.kept.options
    }

    /// Whether [`Model::draft_tokens`] can be called.
    #[must_use]
    pub fn has_drafter(&self) -> bool {
        self.kept.drafter.is_some()
    }

    /// Whether the drafter is a next-token block, whose logits [`Model::draft`] and steps give.
    #[must_use]
    pub fn has_mtp(&self) -> bool {
        self.kept.drafter.is_some() && self.kept.spark.is_none()
    }

    /// Numbers of DSpark, where that is the drafter.
    #[must_use]
    pub fn spark(&self) -> Option<&SparkShape> {
        self.kept.spark.as_ref()
    }

    /// Hash of the shape, the tensor table and samples of the weights (of the backbone).
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.kept.fingerprint
    }

    /// Fingerprints of model and drafter, the options that change what a state holds, and the
    /// steering in force: equal exactly where states can be exchanged on one backend.
    #[must_use]
    pub fn state_identity(&self) -> Vec<u8> {
        let mut identity = self.kept.identity();
        identity.extend(self.steering.iter().flat_map(Steering::identity));
        identity
    }

    /// Steers all sessions from their next step on; `None` stops that. What they have evaluated
    /// stays as it is, so a session that was steered otherwise before is
    /// [mixed](State::is_mixed). Other ranks hear of it before their next step.
    pub fn steer(
        &mut self,
        backend: &mut dyn Backend,
        how: Option<(&Directions, SteeringScales)>,
    ) -> Result<(), Error> {
        if self.kept.pipe.is_some() && how.is_some() {
            let wanted = "steering is for one process or for ranks so far".to_owned();
            let found = "directions to steer by in a pipeline".to_owned();
            return Err(Error::Ranks { ranks: self.ranks(), found, wanted });
        }
        let shape = (self.kept.shape.layers, self.kept.shape.width);
        let fresh = how
            .map(|(directions, scales)| Steering::new(backend, directions, shape, scales))
            .transpose()?;
        if let Some(old) = std::mem::replace(&mut self.steering, fresh) {
            old.release(backend);
        }
        self.was_steered |= self.steering.is_some();
        self.steering_told.forget();
        Ok(())
    }

    /// Other scales for the same directions, from every session's next step on.
    pub fn set_steering_scales(&mut self, scales: SteeringScales) -> Result<(), Error> {
        match &mut self.steering {
            Some(steering) => {
                steering.set_scales(scales)?;
                self.steering_told.forget();
                Ok(())
            }
            None => Err(Error::Steering {
                found: "no directions are loaded".into(),
                wanted: "scales belong to a file of directions".into(),
            }),
        }
    }

    /// The scales in force, where directions are loaded.
    #[must_use]
    pub fn steering_scales(&self) -> Option<SteeringScales> {
        self.steering.as_ref().map(|steering| steering.scales)
    }

    /// Whether all of a state was evaluated under the steering in force, so that another session
    /// may go on from it.
    #[must_use]
    pub fn is_steered_alike(&self, state: &State) -> bool {
        let steering = self.steering.as_ref().map(Steering::identity).unwrap_or_default();
        state.is_steered(&steering)
    }

    /// Says that a restored state was made under the steering in force.
    pub fn adopt(&self, state: &mut State) {
        let steering = self.steering.as_ref().map(Steering::identity).unwrap_or_default();
        state.adopt(steering);
    }

    /// Tensors of the files that this architecture does not know.
    #[must_use]
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// A session's state at position 0, with room for `context` positions.
    pub fn new_state(&self, backend: &mut dyn Backend, context: usize) -> Result<State, Error> {
        let limit = self.kept.shape.context;
        if context == 0 || context > limit {
            return Err(Error::Context { wanted: context, context: limit });
        }
        State::new(self.kept.clone(), backend, context)
    }

    /// Evaluates the rows of a step. Positions stay where they are until [`Model::commit`].
    pub fn forward(
        &mut self,
        backend: &mut dyn Backend,
        step: &Step,
        states: &mut [&mut State],
        logits: LogitsFor<'_>,
    ) -> Result<Logits, Error> {
        let wanted = Wanted { logits, drafts: LogitsFor::None };
        Ok(self.forward_observed(backend, step, states, &wanted, None)?.logits)
    }

    /// [`Model::forward`] with draft logits of the same rows, and somebody who looks on.
    pub fn forward_observed(
        &mut self,
        backend: &mut dyn Backend,
        step: &Step,
        states: &mut [&mut State],
        wanted: &Wanted<'_>,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Output, Error> {
        self.check_step(step, states)?;
        let Logits { rows: memory, values, .. } = std::mem::take(&mut self.given_back);
        let rows = rows_of(wanted.logits, step, memory)?;
        let draft_rows = rows_of(wanted.drafts, step, Vec::new())?;
        if !self.has_mtp() && wanted.drafts != LogitsFor::None {
            return Err(Error::Draft("no draft block was loaded"));
        }
        for (span, state) in step.spans.iter().zip(states.iter()) {
            state.check_begin(span.rows.len())?;
        }
        let shared = self.shared(backend, step, observer.is_some());
        let wants = (&rows[..], wanted.drafts, &draft_rows[..], shared);
        let number = self.lead_step(backend, step, states, wants)?;
        let is_wanted = !rows.is_empty() || wanted.drafts != LogitsFor::None;
        let rows = (rows, draft_rows, &[][..], number);
        let made = self.evaluate(backend, step, states, (rows, values), (shared, observer));
        let made = match &self.kept.pipe {
            // The rest of a step that gives nothing is not waited for.
            Some(pipe) if pipe.stage == 0 && is_wanted => {
                made.and_then(|_| pipe.output(self.kept.shape.vocabulary))
            }
            _ => made,
        };
        made.inspect_err(|error| self.give_up(backend, error))
    }

    /// Most rows of a step whose tokens [`Model::forward_drawn`] can draw; 0 if it cannot.
    #[must_use]
    pub fn draw_rows(&self, backend: &dyn Backend) -> usize {
        match self.part.ranks {
            _ if self.kept.pipe.is_some() || !backend.draws() => 0,
            1 => LOGIT_ROWS,
            _ => {
                let tokens = self.kept.shape.vocabulary;
                shared_logit_rows(backend, self.part, tokens, &self.scratch)
            }
        }
    }

    /// [`Model::forward`] for those who want tokens: the device draws one of each of these rows,
    /// and no logits come back. `None` where they must be looked at.
    pub fn forward_drawn(
        &mut self,
        backend: &mut dyn Backend,
        step: &Step,
        states: &mut [&mut State],
        rows: LogitsFor<'_>,
        draws: &[Draw],
    ) -> Result<Vec<Option<u32>>, Error> {
        self.check_step(step, states)?;
        let rows = rows_of(rows, step, Vec::new())?;
        let most = self.draw_rows(backend);
        if rows.len() != draws.len() || rows.len() > most {
            let found = format!("{} draws of {} rows", draws.len(), rows.len());
            return Err(Error::Step { found, wanted: format!("one each, of at most {most} rows") });
        }
        for (span, state) in step.spans.iter().zip(states.iter()) {
            state.check_begin(span.rows.len())?;
        }
        let shared = self.shared(backend, step, false);
        self.lead_step(backend, step, states, (&rows, LogitsFor::None, &[], shared))?;
        let rows = (rows, Vec::new(), draws, 0);
        let made = self.evaluate(backend, step, states, (rows, Vec::new()), (shared, None));
        made.map(|output| output.drawn).inspect_err(|error| self.give_up(backend, error))
    }

    /// Logits of the first rows that the last [`Model::forward_drawn`] drew from, as long as
    /// nothing was evaluated or guessed since.
    pub fn drawn_logits(&self, backend: &mut dyn Backend, rows: usize) -> Result<Vec<f32>, Error> {
        let mut values = vec![0.0; rows * self.kept.shape.vocabulary];
        backend.read_f32(self.scratch.logits, 0, &mut values)?;
        Ok(values)
    }

    /// What ranks share of a step, as rank 0 decides it. Who looks on wants all rows at once.
    fn shared(&self, backend: &dyn Backend, step: &Step, is_observed: bool) -> Shared {
        let ends = step.spans.iter().map(|span| span.position + span.rows.len());
        let index_from = match backend.splits_rows() {
            true => self.sharing.index_from.saturating_mul(4),
            false => self.sharing.index_from,
        };
        let long = ends.max().is_some_and(|end| end >= index_from);
        let rows = step.tokens.len();
        let ranks = self.part.ranks;
        let halves = self.second.is_some() && !is_observed && rows >= self.sharing.halves_from;
        let first_rows = if halves && rows > 1 { rows.div_ceil(2) } else { 0 };
        // DSpark looks at all rows after each layer.
        let whole = is_observed || first_rows > 0 || self.kept.spark.is_some();
        let split = ranks > 1 && !whole && rows >= self.sharing.rows_from;
        let rows = split && backend.splits_rows() && rows::starts(rows, ranks).is_some();
        // Where rows are split, each rank's own choose from all.
        let index = ranks > 1 && long && !rows && backend.splits_index();
        Shared { index, first_rows, rows }
    }

    /// On the other ranks: [`Model::forward_observed`] as rank 0 ordered it.
    fn forward_shared(
        &mut self,
        backend: &mut dyn Backend,
        step: &Step,
        states: &mut [&mut State],
        wanted: &Wanted<'_>,
        shared: Shared,
    ) -> Result<Output, Error> {
        self.check_step(step, states)?;
        let room = self.second.map_or(0, |_| self.kept.options.step_rows_max / 2);
        shared.check(step.tokens.len(), room)?;
        let rows = rows_of(wanted.logits, step, Vec::new())?;
        let draft_rows = rows_of(wanted.drafts, step, Vec::new())?;
        if !self.has_mtp() && wanted.drafts != LogitsFor::None {
            return Err(Error::Draft("no draft block was loaded"));
        }
        for (span, state) in step.spans.iter().zip(states.iter()) {
            state.check_begin(span.rows.len())?;
        }
        let rows = (rows, draft_rows, &[][..], 0);
        let made = self.evaluate(backend, step, states, (rows, Vec::new()), (shared, None));
        made.inspect_err(|error| self.give_up(backend, error))
    }

    /// The pass itself, on this rank's part.
    fn evaluate(
        &self,
        backend: &mut dyn Backend,
        step: &Step,
        states: &mut [&mut State],
        ((rows, draft_rows, draws, number), values): (Asked<'_>, Vec<f32>),
        (shared, observer): (Shared, Option<&mut dyn Observer>),
    ) -> Result<Output, Error> {
        let steering = self.steering.as_ref().map(Steering::identity).unwrap_or_default();
        for (span, state) in step.spans.iter().zip(states.iter_mut()) {
            state.begin(span.rows.len(), &steering);
        }
        let mut pass = Pass {
            backend,
            part: self.part,
            shape: &self.kept.shape,
            round_trips: self.kept.options.round_trips,
            ropes: self.ropes,
            scratch: self.scratch,
            rows: step.tokens.len(),
            index_spans: shared.index.then(|| step.spans.clone()),
            steering: self.steering.as_ref(),
            observer: observer.map(|o| o as &mut dyn Observer),
            spans: &step.spans,
            values,
        };
        if let Some(observer) = pass.observer.as_deref_mut() {
            observer.begins(step);
        }
        pass.backend.begin(step)?;
        let (streams, out, pipe) = (pass.shape.streams, pass.scratch.x, self.kept.pipe.as_ref());
        let all = (out, pass.rows * streams * pass.shape.width);
        match pipe.filter(|pipe| pipe.stage > 0) {
            Some(pipe) => pipe.take_over(pass.backend, number, all)?,
            None => {
                let table = self.weights.embedding();
                pass.backend.embed(&Embed { table, streams, out })?;
            }
        }
        let blocks = &self.weights.layers;
        match self.second.filter(|_| shared.first_rows > 0) {
            Some(second) => {
                halves::layers(&mut pass, blocks, step, states, (shared.first_rows, second))?;
            }
            None if shared.rows => {
                let wanted = !rows.is_empty() || self.drafter.is_some();
                rows::layers(&mut pass, blocks, step, states, wanted)?;
            }
            None => self.layers(&mut pass, states)?,
        }
        let output = match pipe.filter(|pipe| !pipe.is_last()) {
            Some(pipe) => pipe.pass_on(pass.backend, number, all).map(|()| Output::default())?,
            None => self.finish(&mut pass, step, states, (rows, draft_rows, draws))?,
        };
        if self.part.ranks > 1 {
            // A gate that has failed is seen before its rows can be kept.
            pass.backend.finish()?;
        }
        for (span, state) in step.spans.iter().zip(states.iter_mut()) {
            state.written(span.rows.len());
        }
        Ok(output)
    }

    /// What follows the last layer.
    fn finish(
        &self,
        pass: &mut Pass<'_>,
        step: &Step,
        states: &[&mut State],
        (rows, draft_rows, draws): (Vec<usize>, Vec<usize>, &[Draw]),
    ) -> Result<Output, Error> {
        let (streams, out) = (pass.shape.streams, pass.scratch.x);
        let end = At { layer: pass.shape.layers, what: What::LayerIn };
        pass.observe(end, out, streams * pass.shape.width)?;
        let (head, output) = (self.weights.head(), self.weights.output());
        let none = Logits { vocabulary: pass.shape.vocabulary, ..Logits::default() };
        let (logits, drawn) = match draws {
            // What rank 0 does with them, the others neither know nor need.
            [] if pass.part.rank > 0 => {
                pass.give_logits(out, &rows, head, output)?;
                (none.clone(), Vec::new())
            }
            [] => (pass.logits(out, rows, head, output)?, Vec::new()),
            _ => (none.clone(), pass.draw(out, &rows, (head, output), draws)?),
        };
        if let Some(observer) = pass.observer.as_deref_mut()
            && !logits.is_empty()
        {
            observer.logits(&logits);
        }
        let mut drafts = none;
        match &self.drafter {
            None => {}
            Some(Drafter::Spark(spark)) => dspark_pass::feed(pass, spark, states)?,
            Some(Drafter::Mtp(mtp)) => {
                drafts = draft::feed(pass, &self.weights, mtp, step, states, draft_rows)?;
            }
        }
        Ok(Output { logits, drafts, drawn })
    }

    /// All layers of this node, with all rows at once.
    fn layers(&self, pass: &mut Pass<'_>, states: &[&mut State]) -> Result<(), Error> {
        for (layer, block) in &self.weights.layers {
            let run = Run::layer(pass, *layer, states.iter().map(|s| &s.layers[*layer]));
            pass.block(block, &run)?;
            if let Some(Drafter::Spark(spark)) = &self.drafter {
                dspark_pass::collect(pass, spark, *layer)?;
            }
        }
        Ok(())
    }

    /// On rank 0 of a pipeline: sees whether the other nodes are there. If not, states that they
    /// had a part of are [lost](State::is_lost) from now on.
    pub fn look(&self) {
        if let Some(pipe) = &self.kept.pipe {
            pipe.look();
        }
    }

    /// Tells the other ranks of a step, if there are any.
    fn lead_step(
        &self,
        backend: &mut dyn Backend,
        step: &Step,
        states: &[&mut State],
        (logits, wants_drafts, drafts, shared): (&[usize], LogitsFor<'_>, &[usize], Shared),
    ) -> Result<u64, Error> {
        if self.ranks() == 1 {
            return Ok(0);
        }
        if self.kept.pipe.as_ref().is_some_and(|pipe| pipe.stage > 0) {
            return Ok(self.followed_step());
        }
        let (states, step): (Vec<&State>, _) =
            (states.iter().map(|s| &**s).collect(), step.clone());
        let drafts = (wants_drafts != LogitsFor::None).then(|| drafts.to_vec());
        let ids = states.iter().map(|state| state.shared.id).collect();
        let logits = logits.to_vec();
        let order = Order::Step { ids, step, logits, drafts, shared };
        if let Some(pipe) = &self.kept.pipe {
            return pipe.lead_step(&states, &self.meeting(), &order);
        }
        self.lead(backend, &states, &order).map(|()| 0)
    }

    /// Takes logits that nobody looks at any more: the next step's come to lie in their memory.
    pub fn take_back(&mut self, logits: Logits) {
        self.given_back = logits;
    }

    /// Moves a state's position over the first `rows_kept` rows of its last step; the others never
    /// were.
    pub fn commit(&self, state: &mut State, rows_kept: usize) -> Result<(), Error> {
        state.advance(rows_kept)
    }

    /// Logits of the token after `next_token`, guessed by the draft block; changes nothing.
    pub fn draft(
        &mut self,
        backend: &mut dyn Backend,
        state: &State,
        next_token: u32,
    ) -> Result<Logits, Error> {
        self.check_draft(state, next_token)?;
        if let Some(given) = self.draft_away(state, next_token, None)? {
            let Given::Logits(logits) = given else { return Err(Error::Draft("no logits came")) };
            return Ok(logits);
        }
        let Some(Drafter::Mtp(mtp)) = &self.drafter else {
            return Err(Error::Draft("no draft block was loaded"));
        };
        self.lead_draft(backend, state, next_token, None)?;
        let mut pass = self.draft_pass(backend);
        let made = draft::guess(&mut pass, &self.weights, mtp, state, next_token);
        made.inspect_err(|error| self.give_up(backend, error))
    }

    /// At most so many guesses of the tokens after `next_token`, which follows the state's last
    /// position, each the likeliest; changes nothing that lives.
    pub fn draft_tokens(
        &mut self,
        backend: &mut dyn Backend,
        state: &State,
        next_token: u32,
        most: usize,
    ) -> Result<Drafted, Error> {
        self.check_draft(state, next_token)?;
        if let Some(given) = self.draft_away(state, next_token, Some(most))? {
            let Given::Drafted(drafted) = given else { return Err(Error::Draft("no guess came")) };
            return Ok(drafted);
        }
        if self.has_drafter() {
            self.lead_draft(backend, state, next_token, Some(most))?;
        }
        let mut pass = self.draft_pass(backend);
        let made = match &self.drafter {
            None => Err(Error::Draft("no draft block was loaded")),
            Some(Drafter::Mtp(mtp)) => {
                draft::chain(&mut pass, &self.weights, mtp, state, next_token, most)
            }
            Some(Drafter::Spark(spark)) => {
                dspark_pass::guess(&mut pass, &self.weights, spark, state, next_token, most)
            }
        };
        made.inspect_err(|error| self.give_up(backend, error))
    }

    /// On rank 0 of a pipeline, what the last node guesses.
    fn draft_away(
        &self,
        state: &State,
        token: u32,
        most: Option<usize>,
    ) -> Result<Option<Given>, Error> {
        let Some(pipe) = self.kept.pipe.as_ref().filter(|pipe| pipe.stage == 0) else {
            return Ok(None);
        };
        if !(if most.is_some() { self.has_drafter() } else { self.has_mtp() }) {
            return Err(Error::Draft("no draft block was loaded"));
        }
        let (id, position) = (state.shared.id, state.position());
        if position == 0 {
            return Err(Error::Draft("no token was evaluated yet"));
        }
        let order = Order::Draft { id, position, token, most };
        pipe.draft(state, &self.meeting(), self.kept.shape.vocabulary, &order).map(Some)
    }

    fn lead_draft(
        &self,
        backend: &mut dyn Backend,
        state: &State,
        token: u32,
        most: Option<usize>,
    ) -> Result<(), Error> {
        let (id, position) = (state.shared.id, state.position());
        if position == 0 {
            return Err(Error::Draft("no token was evaluated yet"));
        }
        self.lead(backend, &[state], &Order::Draft { id, position, token, most })
    }

    fn check_draft(&self, state: &State, next_token: u32) -> Result<(), Error> {
        self.check_token(next_token)?;
        if state.belongs_to(&self.kept) { Ok(()) } else { Err(foreign_state()) }
    }

    fn draft_pass<'p>(&'p self, backend: &'p mut dyn Backend) -> Pass<'p> {
        Pass {
            backend,
            part: self.part,
            shape: &self.kept.shape,
            round_trips: self.kept.options.round_trips,
            ropes: self.ropes,
            scratch: self.scratch,
            rows: 1,
            index_spans: None,
            steering: None,
            observer: None,
            spans: &[],
            values: Vec::new(),
        }
    }

    /// Memory of one session and of the scratch buffers; weights are in [`weight_plan`].
    #[must_use]
    pub fn memory_plan(
        shape: &Shape,
        context: usize,
        options: &Options,
        drafter: bool,
    ) -> Vec<PlanLine> {
        plan_for(shape, context, options, if drafter { For::Mtp } else { For::None })
    }

    /// [`Model::memory_plan`] with DSpark as the drafter.
    #[must_use]
    pub fn spark_memory_plan(
        shape: &Shape,
        context: usize,
        options: &Options,
        spark: &SparkShape,
    ) -> Vec<PlanLine> {
        plan_for(shape, context, options, For::Spark(spark))
    }

    /// [`Model::memory_plan`] of this model.
    #[must_use]
    pub fn plan(&self, context: usize) -> Vec<PlanLine> {
        plan_for(&self.kept.shape, context, &self.kept.options, self.kept.drafts())
    }

    /// Frees vectors and scratch on the device; matrices go with the backend.
    pub fn release(self, backend: &mut dyn Backend) {
        if let Some(steering) = self.steering {
            steering.release(backend);
        }
        backend.release(self.arena);
    }

    fn check_token(&self, token: u32) -> Result<(), Error> {
        let vocabulary = self.kept.shape.vocabulary;
        if usize::try_from(token).is_ok_and(|t| t < vocabulary) {
            return Ok(());
        }
        Err(Error::Token { token, vocabulary })
    }

    fn check_step(&self, step: &Step, states: &[&mut State]) -> Result<(), Error> {
        let refuse = |found: String, wanted: String| Err(Error::Step { found, wanted });
        let (rows, most) = (step.tokens.len(), self.kept.options.step_rows_max);
        if rows == 0 || rows > most {
            return refuse(format!("{rows} rows"), format!("1 to {most} are possible"));
        }
        if step.spans.len() != states.len() {
            let found = format!("{} spans and {} states", step.spans.len(), states.len());
            return refuse(found, "each span needs its state".into());
        }
        let mut next = 0;
        for (span, state) in step.spans.iter().zip(states) {
            if span.rows.start != next || span.rows.is_empty() {
                return refuse(
                    format!("a span of rows {:?} after {next}", span.rows),
                    "spans follow one another".into(),
                );
            }
            next = span.rows.end;
            if !state.belongs_to(&self.kept) {
                return Err(foreign_state());
            }
            if span.position != state.position() {
                let wanted = format!("its state is at {}", state.position());
                return refuse(format!("a span at position {}", span.position), wanted);
            }
        }
        if next != rows {
            return refuse(format!("spans of {next} rows"), format!("there are {rows} tokens"));
        }
        step.tokens.iter().try_for_each(|&token| self.check_token(token))
    }
}

/// DSpark reads the streams behind some layers, which the node that runs it must have.
fn check_targets(stages: &Stages, spark: Option<&SparkShape>) -> Result<(), Error> {
    let last = stages.range(stages.last());
    let Some(target) = spark.and_then(|s| s.targets.iter().find(|t| !last.contains(t))) else {
        return Ok(());
    };
    Err(Error::Ranks {
        ranks: stages.count(),
        found: format!("DSpark reads layer {target}, and the last node begins with {}", last.start),
        wanted: "give the last node that layer too, or name an MTP block with --mtp-model".into(),
    })
}

fn plan_for(shape: &Shape, context: usize, options: &Options, drafter: For<'_>) -> Vec<PlanLine> {
    let mut lines = state::plan(shape, context, options, drafter);
    lines.push(scratch::plan(shape, options, drafter));
    lines
}

/// Buffers for half of a step's rows, where there are other ranks. DSpark looks at all rows after
/// each layer, so with it steps stay whole.
fn second_scratch(
    part: Part,
    kept: &Kept,
    backend: &mut dyn Backend,
    arena: Arena,
) -> Result<Option<Scratch>, Error> {
    if part.ranks == 1 || kept.spark.is_some() {
        return Ok(None);
    }
    let step_rows_max = kept.options.step_rows_max / 2;
    let half = Options { step_rows_max, ..kept.options.clone() };
    Ok(Some(Scratch::new(&kept.shape, &half, For::None, backend, arena)?))
}

fn foreign_state() -> Error {
    Error::Step {
        found: "a state of another model".into(),
        wanted: "it must be this model's".into(),
    }
}

/// The rows that are meant, in the memory of a list.
fn rows_of(wanted: LogitsFor<'_>, step: &Step, mut list: Vec<usize>) -> Result<Vec<usize>, Error> {
    let rows = step.tokens.len();
    list.clear();
    match wanted {
        LogitsFor::None => {}
        LogitsFor::Last => list.extend(step.spans.iter().map(|span| span.rows.end - 1)),
        LogitsFor::All => list.extend(0..rows),
        LogitsFor::Rows(wanted) => {
            if let Some(row) = wanted.iter().find(|&&row| row >= rows) {
                let (found, wanted) =
                    (format!("logits of row {row}"), format!("there are {rows} rows"));
                return Err(Error::Step { found, wanted });
            }
            list.extend_from_slice(wanted);
        }
    }
    Ok(list)
}

/// Bytes of a file's weights by class, as they lie in the file.
pub fn weight_plan(gguf: &Gguf, specs: &[TensorSpec]) -> Result<Vec<PlanLine>, Error> {
    let classes = [
        (Kind::Routed, "routed experts"),
        (Kind::Dense, "dense matrices"),
        (Kind::Float, "float matrices"),
        (Kind::Vector, "vectors"),
        (Kind::Table, "tables"),
    ];
    let mut lines = classes.map(|(_, what)| PlanLine { what, bytes: 0 });
    for spec in specs {
        let Some(info) = find(gguf, spec)? else { continue };
        let at = classes.iter().position(|(kind, _)| *kind == spec.kind);
        let at = at.expect("every class has a line");
        lines[at].bytes += gguf.place(info)?.range.len() as u64;
    }
    Ok(lines.into())
}
