//! The draft block, MTP (spec 4.1): from the backbone's streams at position t and token t + 1 it
//! guesses token t + 2.
//!
//! It is one block with a window ring of its own. A row of that ring depends on nothing but its
//! pair (streams at t, token t + 1), so every step of the backbone feeds the ring with the pairs it
//! completes: the streams of its rows shifted by one, the first taken from what the session kept of
//! the last step. The ring is then complete however positions were cut into steps, and lies one
//! position behind. A chain of guesses feeds the block its own streams, and writes the rows of its
//! positions ahead of what lives.

use super::few::Few;
use super::forward::{Pass, Run};
use super::load::{Mtp, Weights};
use super::state::{CHAIN_MAX, DraftState, STREAM_SLOTS, State, draft_slots};
use crate::{Drafted, Error, Logits};
use ironstar_device::{
    AddToStreams, Buffer, Embed, GatherRows, Span, Step, StoreWindow, WEIGHTS_MAX, exp_weights,
};

/// A step of the draft block and the rows of the backbone's step that it belongs to.
struct Feed {
    step: Step,
    /// Row of the backbone's step, for each row.
    rows: Vec<usize>,
    /// Which span of the backbone's step, for each span.
    spans: Vec<usize>,
}

impl Feed {
    /// The pairs that a step completes: all rows, apart from those of position 0.
    fn new(step: &Step) -> Feed {
        let mut feed = Feed { step: Step::default(), rows: Vec::new(), spans: Vec::new() };
        for (index, span) in step.spans.iter().enumerate() {
            let rows = span.rows.start + usize::from(span.position == 0)..span.rows.end;
            if rows.is_empty() {
                continue;
            }
            let start = feed.rows.len();
            feed.step.tokens.extend_from_slice(&step.tokens[rows.clone()]);
            feed.rows.extend(rows);
            let position = span.position.saturating_sub(1);
            feed.step.spans.push(Span { rows: start..feed.rows.len(), position });
            feed.spans.push(index);
        }
        feed
    }
}

fn draft_run(pass: &Pass<'_>, x: Buffer, rings: Few<Buffer>) -> Run {
    Run {
        layer: pass.shape.layers,
        ratio: 0,
        swiglu_limit: pass.shape.draft_swiglu_limit(),
        x,
        rings,
        capacity: draft_slots(pass.shape),
        mutual: false,
        compressors: Few::None,
        indexes: Few::None,
        store: true,
    }
}

/// After the last layer: keeps the streams, completes the draft rings, and gives the draft logits
/// that are wanted. Rows are those of the backbone's step.
pub(super) fn feed(
    pass: &mut Pass<'_>,
    weights: &Weights,
    drafter: &Mtp,
    step: &Step,
    states: &[&mut State],
    wanted: Vec<usize>,
) -> Result<Logits, Error> {
    let width = pass.shape.streams * pass.shape.width;
    let (x, scratch) = (pass.scratch.x, pass.scratch.draft.expect("made with the drafter"));
    let draft = |span: usize| states[span].draft.as_ref().expect("made with the drafter");
    let feed = Feed::new(step);
    for (span, &index) in feed.step.spans.iter().zip(&feed.spans) {
        let (mut at, out) = (span.rows.start, scratch.before);
        if feed.rows[at] == step.spans[index].rows.start {
            let (x, slot) = (draft(index).streams, [span.position % STREAM_SLOTS]);
            pass.backend.gather_rows(&GatherRows { x, width, rows: &slot, out, at })?;
            at += 1;
        }
        let rows: Vec<usize> = feed.rows[at..span.rows.end].iter().map(|row| row - 1).collect();
        if !rows.is_empty() {
            pass.backend.gather_rows(&GatherRows { x, width, rows: &rows, out, at })?;
        }
    }
    let kept: Vec<Buffer> = (0..step.spans.len()).map(|span| draft(span).streams).collect();
    let store = StoreWindow { kv: x, width, rings: &kept, capacity: STREAM_SLOTS };
    pass.backend.store_window(&store)?;
    if feed.rows.is_empty() {
        return Ok(Logits { vocabulary: pass.shape.vocabulary, ..Logits::default() });
    }

    let rings = feed.spans.iter().map(|&index| draft(index).ring).collect();
    pass.backend.begin(&feed.step)?;
    pass.rows = feed.rows.len();
    enter(pass, weights, drafter)?;
    let run = draft_run(pass, scratch.x, rings);
    if wanted.is_empty() {
        pass.kv_only(&drafter.block, &run)?;
        return Ok(Logits { vocabulary: pass.shape.vocabulary, ..Logits::default() });
    }
    pass.block(&drafter.block, &run)?;
    let place = |row: &usize| feed.rows.binary_search(row).ok();
    let inner = wanted.iter().filter_map(place).collect();
    let mut logits = pass.logits(scratch.x, inner, &drafter.head, weights.output())?;
    logits.rows = wanted.into_iter().filter(|row| place(row).is_some()).collect();
    Ok(logits)
}

/// One guess: logits of the token after `next_token`, which follows the state's last position.
pub(super) fn guess(
    pass: &mut Pass<'_>,
    weights: &Weights,
    drafter: &Mtp,
    state: &State,
    next_token: u32,
) -> Result<Logits, Error> {
    let (draft, last) = begin(pass, state)?;
    link(pass, weights, drafter, draft, (next_token, last))
}

/// Probability below which a guess is the last of its chain: what would follow a guess that is
/// hardly right is not worth a pass.
const SURE_MIN: f64 = 0.6;

/// A chain of greedy guesses after `next_token`: each from the streams that the block made of the
/// one before. It ends with the first that is not sure.
pub(super) fn chain(
    pass: &mut Pass<'_>,
    weights: &Weights,
    drafter: &Mtp,
    state: &State,
    next_token: u32,
    most: usize,
) -> Result<Drafted, Error> {
    let (draft, last) = begin(pass, state)?;
    let (mut drafted, mut token) = (Drafted::default(), next_token);
    drafted.logits.vocabulary = pass.shape.vocabulary;
    let scratch = pass.scratch.draft.expect("made with the drafter");
    let width = pass.shape.streams * pass.shape.width;
    for depth in 0..most.min(CHAIN_MAX) {
        if depth > 0 {
            let (x, out) = (scratch.x, scratch.before);
            pass.backend.gather_rows(&GatherRows { x, width, rows: &[0], out, at: 0 })?;
        }
        let logits = link(pass, weights, drafter, draft, (token, last + depth))?;
        let Some(guess) = Logits::likeliest(logits.row(0)) else { break };
        let sure = probability(logits.row(0), guess);
        drafted.tokens.push(guess);
        #[expect(clippy::cast_possible_truncation, reason = "a logit")]
        drafted.confidence.push((sure / (1.0 - sure)).ln() as f32);
        drafted.logits.rows.push(depth);
        drafted.logits.values.extend_from_slice(logits.row(0));
        if sure < SURE_MIN || sure.is_nan() {
            break;
        }
        token = guess;
    }
    Ok(drafted)
}

/// Probability that logits give their likeliest token; no number where one of them is none.
fn probability(logits: &[f32], likeliest: u32) -> f64 {
    let top = usize::try_from(likeliest).ok().and_then(|at| logits.get(at)).copied();
    let Some(top) = top.filter(|top| top.is_finite()) else { return f64::NAN };
    let is_wrong = |logit: &f32| logit.is_nan() || *logit > top;
    if logits.iter().filter(|logit| is_wrong(logit)).count() > 0 || logits.len() > WEIGHTS_MAX {
        return f64::NAN;
    }
    let mut weights = vec![0; logits.len()];
    let all = exp_weights(logits, top, 1.0, &mut weights);
    let own = weights.iter().copied().max().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "a probability of some digits")]
    let share = own as f64 / all as f64;
    share
}

/// The streams of the state's last position in `before`, and that position.
fn begin<'s>(pass: &mut Pass<'_>, state: &'s State) -> Result<(&'s DraftState, usize), Error> {
    let width = pass.shape.streams * pass.shape.width;
    let scratch = pass.scratch.draft.expect("made with the drafter");
    let draft = state.draft.as_ref().expect("made with the drafter");
    let Some(last) = state.position().checked_sub(1) else {
        return Err(Error::Draft("no token was evaluated yet"));
    };
    let (rows, out) = ([last % STREAM_SLOTS], scratch.before);
    pass.backend.gather_rows(&GatherRows { x: draft.streams, width, rows: &rows, out, at: 0 })?;
    Ok((draft, last))
}

/// The block on the streams in `before` and a token, at a position: logits of what follows.
fn link(
    pass: &mut Pass<'_>,
    weights: &Weights,
    drafter: &Mtp,
    draft: &DraftState,
    (token, position): (u32, usize),
) -> Result<Logits, Error> {
    let scratch = pass.scratch.draft.expect("made with the drafter");
    pass.backend.begin(&Step::single(&[token], position))?;
    pass.rows = 1;
    enter(pass, weights, drafter)?;
    let run = draft_run(pass, scratch.x, Few::One([draft.ring]));
    pass.block(&drafter.block, &run)?;
    pass.logits(scratch.x, vec![0], &drafter.head, weights.output())
}

/// Joins the streams in `before` with the embeddings of the step's tokens.
fn enter(pass: &mut Pass<'_>, weights: &Weights, drafter: &Mtp) -> Result<(), Error> {
    let s = pass.scratch.draft.expect("made with the drafter");
    let (rows, streams) = (pass.rows, pass.shape.streams);
    pass.norm(s.before, rows * streams, drafter.stream_norm)?;
    pass.project(s.before, rows * streams, &[(drafter.stream_projection, s.x)])?;
    pass.backend.embed(&Embed { table: weights.embedding(), streams: 1, out: s.embedded })?;
    pass.norm(s.embedded, rows, drafter.embedding_norm)?;
    pass.project(s.embedded, rows, &[(drafter.embedding_projection, s.projected)])?;
    let width = pass.shape.width;
    pass.backend.add_to_streams(&AddToStreams { row: s.projected, x: s.x, streams, width })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::probability;

    #[test]
    fn a_probability_is_what_softmax_gives() {
        let value = |i: u32| u16::try_from(i * 7919 % 997).expect("below 997");
        let logits: Vec<f32> = (0..5000).map(|i| f32::from(value(i)) / 90.0).collect();
        let (at, top) = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("some");
        let sum: f64 = logits.iter().map(|l| (f64::from(*l) - f64::from(*top)).exp()).sum();
        let found = probability(&logits, u32::try_from(at).expect("small"));
        assert!((found * sum - 1.0).abs() < 1e-6, "{found} of {}", 1.0 / sum);
        assert!(probability(&[0.0, f32::NAN], 0).is_nan());
        assert!(probability(&[f32::INFINITY, 0.0], 0).is_nan());
        assert!(probability(&[0.0], 1).is_nan());
        assert!((probability(&[f32::NEG_INFINITY, 3.0], 1) - 1.0).abs() < 1e-12);
    }
}
