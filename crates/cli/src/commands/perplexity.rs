//! `ironstar perplexity`: how well a model predicts a text, and how far it is from another run.

use crate::failure::Failure;
use crate::flags::Perplexity;
use crate::logprobs_file::{LogprobsReader, LogprobsWriter};
use crate::progress::Progress;
use crate::{interrupt, loading, outfile, print};
use ironstar_engine::sampler::Sampler;
use ironstar_engine::{CancelFlag, Control, Engine, Score, Scored};
use ironstar_model::Logits;
use std::collections::BTreeMap;
use std::path::Path;

/// Runs the command.
pub fn run(flags: &Perplexity) -> Result<(), Failure> {
    let text = super::read_text(&flags.file)?;
    let cancel = interrupt::cancel_on_interrupt()?;
    let (mut engine, opened) = loading::engine(&flags.model)?;
    let vocabulary = engine.model().shape().vocabulary;
    let sequences = if flags.ids {
        id_lines(&text, vocabulary)?
    } else {
        let ids = loading::engine_tokenizer(&engine, &opened)?.encode(&text);
        ids.chunks(flags.window).map(<[u32]>::to_vec).collect()
    };
    let mut meter = Meter::new(flags, vocabulary)?;
    let total: usize = sequences.iter().map(Vec::len).sum();
    let bar = Progress::new("scoring", total as u64, "tokens");
    for sequence in sequences.iter().filter(|sequence| sequence.len() > 1) {
        meter.sequence(sequence)?;
        score(&mut engine, sequence, &mut meter, &bar, &cancel)?;
    }
    drop(bar);
    meter.finish(&opened.name, flags.json)
}

/// One sequence of ids a line.
fn id_lines(text: &str, vocabulary: usize) -> Result<Vec<Vec<u32>>, Failure> {
    let vocabulary = u32::try_from(vocabulary).unwrap_or(u32::MAX);
    text.lines()
        .enumerate()
        .map(|(index, line)| {
            super::parse_ids(line, vocabulary)
                .map_err(|wrong| Failure::caller(format!("line {}: {wrong}", index + 1)))
        })
        .collect()
}

/// Evaluates one sequence in a session of its own.
fn score(
    engine: &mut Engine,
    sequence: &[u32],
    meter: &mut Meter,
    bar: &Progress,
    cancel: &CancelFlag,
) -> Result<(), Failure> {
    let mut session = engine.session(sequence.len()).map_err(loading::from_engine)?;
    let drafts = engine.model().has_mtp();
    let what = Score { from: 0, drafts };
    let before = meter.positions;
    let mut failure = None;
    let mut on_row = |row: Scored<'_>| match meter.row(&row) {
        Ok(()) => {
            bar.at(meter.positions as u64);
            Control::Continue
        }
        Err(wrong) => {
            failure = Some(wrong);
            Control::Stop
        }
    };
    let scored = session.score(engine, sequence, what, &mut on_row, cancel);
    match (scored, failure) {
        (_, Some(failure)) => Err(failure),
        (Err(error), _) => Err(loading::from_engine(error)),
        (Ok(()), None) => {
            debug_assert_eq!(meter.positions - before, sequence.len());
            Ok(())
        }
    }
}

/// What is summed up over all positions.
struct Meter {
    sampler: Sampler,
    writer: Option<LogprobsWriter>,
    reader: Option<LogprobsReader>,
    logprobs: Vec<f32>,
    baseline: Vec<f32>,
    positions: usize,
    predictions: usize,
    loss: f64,
    right: usize,
    drafts: usize,
    drafts_right: usize,
    divergence: f64,
    divergence_max: f64,
    same_best: usize,
}

impl Meter {
    fn new(flags: &Perplexity, vocabulary: usize) -> Result<Self, Failure> {
        let width = u32::try_from(vocabulary)
            .map_err(|_| Failure::caller("a vocabulary of more than 4 billion tokens"))?;
        if let Some(path) = &flags.save_logits {
            let model = flags.model.model.as_deref();
            let inputs: Vec<&Path> = [Some(&*flags.file), model, flags.kl_against.as_deref()]
                .into_iter()
                .flatten()
                .collect();
            outfile::check(path, &inputs, flags.force)?;
        }
        let writer = flags.save_logits.as_deref().map(|path| LogprobsWriter::create(path, width));
        let reader = flags.kl_against.as_deref().map(|path| LogprobsReader::open(path, vocabulary));
        Ok(Meter {
            sampler: Sampler::default(),
            writer: writer.transpose()?,
            reader: reader.transpose()?,
            logprobs: Vec::new(),
            baseline: Vec::new(),
            positions: 0,
            predictions: 0,
            loss: 0.0,
            right: 0,
            drafts: 0,
            drafts_right: 0,
            divergence: 0.0,
            divergence_max: 0.0,
            same_best: 0,
        })
    }

    fn sequence(&mut self, ids: &[u32]) -> Result<(), Failure> {
        if let Some(writer) = &mut self.writer {
            writer.sequence(ids)?;
        }
        self.reader.as_mut().map_or(Ok(()), |reader| reader.expect_sequence(ids))
    }

    fn row(&mut self, row: &Scored<'_>) -> Result<(), Failure> {
        let normal =
            self.sampler.logprobs(row.logits, row.position).map_err(loading::from_engine)?;
        self.positions += 1;
        let best = Logits::likeliest(row.logits);
        if let Some(next) = row.next {
            self.predictions += 1;
            self.loss -= normal.of(row.logits[next as usize]);
            self.right += usize::from(best == Some(next));
        }
        if let Some(draft) = row.draft {
            // How often a draft made one token earlier would have been what the model says.
            self.drafts += 1;
            self.drafts_right += usize::from(Logits::likeliest(draft) == best);
        }
        if self.writer.is_none() && self.reader.is_none() {
            return Ok(());
        }
        self.logprobs.clear();
        #[expect(clippy::cast_possible_truncation, reason = "stored as f32")]
        self.logprobs.extend(row.logits.iter().map(|logit| normal.of(*logit) as f32));
        if let Some(writer) = &mut self.writer {
            writer.row(&self.logprobs)?;
        }
        if let Some(reader) = &mut self.reader {
            reader.row(&mut self.baseline)?;
            let divergence = divergence(&self.baseline, &self.logprobs);
            self.divergence += divergence;
            self.divergence_max = self.divergence_max.max(divergence);
            self.same_best += usize::from(Logits::likeliest(&self.baseline) == best);
        }
        Ok(())
    }

    fn finish(self, model: &str, json: bool) -> Result<(), Failure> {
        if self.predictions == 0 {
            return Err(Failure::caller(
                "nothing to predict: sequences of two tokens or more are wanted",
            ));
        }
        let compared = self.reader.is_some();
        if let Some(writer) = self.writer {
            writer.finish()?;
        }
        #[expect(clippy::cast_precision_loss, reason = "counts for people")]
        let share = |part: f64, whole: usize| part / (whole.max(1) as f64);
        #[expect(clippy::cast_precision_loss, reason = "counts for people")]
        let count = |n: usize| n as f64;
        let loss = share(self.loss, self.predictions);
        let mut figures = BTreeMap::from([
            ("loss", loss),
            ("perplexity", loss.exp()),
            ("accuracy", share(count(self.right), self.predictions)),
            ("tokens", count(self.positions)),
        ]);
        if self.drafts > 0 {
            figures.insert("draft_agreement", share(count(self.drafts_right), self.drafts));
        }
        if compared {
            figures.insert("kl_mean", share(self.divergence, self.positions));
            figures.insert("kl_max", self.divergence_max);
            figures.insert("same_best", share(count(self.same_best), self.positions));
        }
        if json {
            let object = serde_json::json!({ "model": model, "figures": figures });
            return print(format!("{object}\n").as_bytes());
        }
        let lines: String =
            figures.iter().map(|(name, value)| format!("{name:<16} {value:.6}\n")).collect();
        print(lines.as_bytes())
    }
}

/// Kullback-Leibler divergence of log probabilities from a baseline's: sum of p (log p - log q).
fn divergence(baseline: &[f32], logprobs: &[f32]) -> f64 {
    let terms = baseline.iter().zip(logprobs).map(|(p, q)| {
        let (p, q) = (f64::from(*p), f64::from(*q));
        p.exp() * (p - q)
    });
    terms.filter(|term| !term.is_nan()).sum()
}
