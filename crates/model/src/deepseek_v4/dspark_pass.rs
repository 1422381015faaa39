//! Runs DSpark (spec 4.2; the picture is in `dspark.rs`).
//!
//! A ring row of position t depends on nothing but the model's streams at t, so every step of the
//! model fills the rings of its own positions, and they are the same however positions were cut
//! into steps. A draft reads them, writes nothing that lives, and works on rows of its own.
//!
//! The mean over streams is a sum here: the norm behind the projection divides by the root mean
//! square, so a factor that is a power of two changes its epsilon and no bit else.

use super::few::Few;
use super::forward::{Pass, Run};
use super::gates;
use super::load::{ConfidenceHead, Spark, Weights};
use super::state::{State, window_slots};
use crate::{Drafted, Error, Logits};
use ironstar_device::{AddToStreams, Buffer, Embed, GatherRows, RmsNorm, Step};

/// After a layer: if it is a target, keeps the sum of each row's streams.
pub(super) fn collect(pass: &mut Pass<'_>, spark: &Spark, layer: usize) -> Result<(), Error> {
    let Some(index) = spark.shape.targets.iter().position(|&target| target == layer) else {
        return Ok(());
    };
    let s = pass.scratch.spark.expect("made with the drafter");
    let (x, rows, streams, width) =
        (pass.scratch.x, pass.rows, pass.shape.streams, pass.shape.width);
    for stream in 0..streams {
        let chosen: Vec<usize> = (0..rows).map(|row| row * streams + stream).collect();
        let out = if stream == 0 { s.sum } else { s.part };
        pass.backend.gather_rows(&GatherRows { x, width, rows: &chosen, out, at: 0 })?;
        if stream > 0 {
            let add = AddToStreams { row: s.part, x: s.sum, streams: 1, width };
            pass.backend.add_to_streams(&add)?;
        }
    }
    let all: Vec<usize> = (0..rows).collect();
    let (out, at) = (s.sums, index * rows);
    pass.backend.gather_rows(&GatherRows { x: s.sum, width, rows: &all, out, at })?;
    Ok(())
}

/// After the last layer: the rings' rows of the step's positions.
pub(super) fn feed(pass: &mut Pass<'_>, spark: &Spark, states: &[&mut State]) -> Result<(), Error> {
    let s = pass.scratch.spark.expect("made with the drafter");
    let (rows, width, targets) = (pass.rows, pass.shape.width, spark.shape.targets.len());
    let order: Vec<usize> =
        (0..rows).flat_map(|row| (0..targets).map(move |target| target * rows + row)).collect();
    let gather = GatherRows { x: s.sums, width, rows: &order, out: s.features, at: 0 };
    pass.backend.gather_rows(&gather)?;
    pass.project(s.features, rows, &[(spark.main_projection, s.main)])?;
    #[expect(clippy::cast_precision_loss, reason = "a handful of streams")]
    let factor = pass.shape.streams as f32;
    let eps = pass.shape.norm_eps * factor * factor;
    let norm = RmsNorm { x: s.main, rows, weight: spark.main_norm, eps, out: s.main };
    pass.backend.rms_norm(&norm)?;
    let kv_plain = pass.scratch.kv_plain;
    for (index, stage) in spark.stages.iter().enumerate() {
        pass.project(s.main, rows, &[(stage.kv, kv_plain)])?;
        pass.kv_rows(stage, pass.ropes.plain)?;
        let rings: Vec<Buffer> = states.iter().map(|state| state.spark[index]).collect();
        pass.store_window(&rings, window_slots(pass.shape))?;
    }
    Ok(())
}

/// Guesses of the tokens after `anchor`, which follows the state's last position.
pub(super) fn guess(
    pass: &mut Pass<'_>,
    weights: &Weights,
    spark: &Spark,
    state: &State,
    anchor: u32,
    most: usize,
) -> Result<Drafted, Error> {
    let position = state.position();
    if position == 0 {
        return Err(Error::Draft("no token was evaluated yet"));
    }
    let (block, shape, x) = (spark.shape.block, pass.shape, pass.scratch.x);
    let mut ids = vec![spark.shape.noise; block];
    ids[0] = anchor;
    pass.backend.begin(&Step::single(&ids, position))?;
    pass.rows = block;
    let (table, streams) = (weights.embedding(), shape.streams);
    pass.backend.embed(&Embed { table, streams, out: x })?;
    for (index, stage) in spark.stages.iter().enumerate() {
        let run = Run {
            layer: shape.layers + index,
            ratio: 0,
            swiglu_limit: shape.draft_swiglu_limit(),
            x,
            rings: Few::One([state.spark[index]]),
            capacity: window_slots(shape),
            mutual: true,
            compressors: Few::None,
            indexes: Few::None,
            store: false,
        };
        pass.block(stage, &run)?;
    }
    let mut logits = pass.logits(x, (0..block).collect(), &spark.head, weights.output())?;
    let width = streams * shape.width;
    let mut rows = vec![0.0; block * width];
    pass.backend.read_f32(x, 0, &mut rows)?;

    let (mut tokens, mut confidence, mut before) = (Vec::new(), Vec::new(), anchor);
    let vocabulary = shape.vocabulary;
    for (row, x) in rows.chunks_exact(width).enumerate().take(most) {
        let base = &mut logits.values[row * vocabulary..][..vocabulary];
        let markov = markov(pass, spark, before, base)?;
        let sure = spark.confidence.logit(x, &markov, (shape.norm_eps, shape.hc_eps));
        let Some(token) = Logits::likeliest(base) else { break };
        tokens.push(token);
        confidence.push(sure);
        before = token;
    }
    logits.rows.truncate(tokens.len());
    logits.values.truncate(tokens.len() * vocabulary);
    Ok(Drafted { tokens, logits, confidence })
}

/// Adds to a row of logits what follows from the token before it; gives that token's `[rank]`.
fn markov(
    pass: &mut Pass<'_>,
    spark: &Spark,
    before: u32,
    logits: &mut [f32],
) -> Result<Vec<f32>, Error> {
    let s = pass.scratch.spark.expect("made with the drafter");
    pass.backend.begin(&Step::single(&[before], 0))?;
    pass.rows = 1;
    pass.backend.embed(&Embed { table: spark.markov_embedding, streams: 1, out: s.markov })?;
    pass.project(s.markov, 1, &[(spark.markov_output, pass.scratch.logits)])?;
    let (mut bias, mut markov) = (vec![0.0; logits.len()], vec![0.0; spark.shape.rank]);
    gates::vocabulary(pass.backend, pass.scratch.logits, pass.shape.vocabulary, &mut bias)?;
    pass.backend.read_f32(s.markov, 0, &mut markov)?;
    logits.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += bias);
    Ok(markov)
}

impl ConfidenceHead {
    /// Logit of "this row survives", from a row's streams and the Markov row of the token before:
    /// `h` is spec 2.3 without the norm. A few thousand numbers, so here and in f64.
    fn logit(&self, x: &[f32], markov: &[f32], (norm_eps, hc_eps): (f32, f32)) -> f32 {
        let (streams, width) = (self.base.len(), x.len() / self.base.len());
        let wide = |v: &f32| f64::from(*v);
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^52")]
        let mean = dot(x, x) / x.len() as f64;
        let root = 1.0 / (mean + f64::from(norm_eps)).sqrt();
        let scale = self.scale.first().map_or(0.0, wide);
        let mut sum = dot(&self.weights[width..], markov);
        for stream in 0..streams {
            let mix = dot(&self.matrix[stream * x.len()..][..x.len()], x) * root * scale;
            let mix = mix + f64::from(self.base[stream]);
            let pre = 1.0 / (1.0 + (-mix).exp()) + f64::from(hc_eps);
            sum += pre * dot(&self.weights[..width], &x[stream * width..][..width]);
        }
        #[expect(clippy::cast_possible_truncation, reason = "the model's heads are f32")]
        let logit = sum as f32;
        logit
    }
}
