//! `ironstar steer`: directions from two sets of prompts, and answers under several scales.

use crate::answer::Answerer;
use crate::failure::Failure;
use crate::flags::{Build, Place, Steer, Sweep};
use crate::progress::Progress;
use crate::{asking, interrupt, loading, outfile, print};
use ironstar_engine::CancelFlag;
use ironstar_engine::sampler::Settings;
use ironstar_model::{At, Directions, Observer, SteeringScales, What};
use ironstar_text::chat::Thinking;
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Runs the command.
pub fn run(flags: &Steer) -> Result<(), Failure> {
    match flags {
        Steer::Build(flags) => build(flags),
        Steer::Sweep(flags) => sweep(flags),
    }
}

/// The lines of a file that are not empty.
fn prompts(path: &Path) -> Result<Vec<String>, Failure> {
    let text = super::read_text(path)?;
    let lines: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if lines.is_empty() {
        return Err(Failure::caller(format!(
            "{} holds no prompt; one a line is wanted",
            path.display()
        )));
    }
    Ok(lines)
}

/// The output of every layer after the last token of a step, `[layers, width]`.
type Outputs = Arc<Mutex<Vec<f32>>>;

/// Keeps them.
struct Keeper {
    what: What,
    layers: usize,
    outputs: Outputs,
}

impl Observer for Keeper {
    fn floats(&mut self, at: At, width: usize, values: &mut [f32]) -> bool {
        if at.what == self.what && at.layer < self.layers {
            let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
            outputs.resize(self.layers * width, 0.0);
            let last = &values[values.len() - width..];
            outputs[at.layer * width..][..width].copy_from_slice(last);
        }
        false
    }

    fn ids(&mut self, _: At, _: usize, _: &[u32]) {}
}

fn build(flags: &Build) -> Result<(), Failure> {
    outfile::check(&flags.output, &[&flags.toward, &flags.away], flags.force)?;
    let (toward, away) = (prompts(&flags.toward)?, prompts(&flags.away)?);
    let cancel = interrupt::cancel_on_interrupt()?;
    let mut answerer = Answerer::open(&flags.model)?;
    let shape = answerer.engine.model().shape();
    let (layers, width) = (shape.layers, shape.width);
    let what = match flags.at {
        Place::Ffn => What::FfnOut,
        Place::Attention => What::AttentionOut,
    };
    let outputs = Outputs::default();
    let keeper = Keeper { what, layers, outputs: outputs.clone() };
    answerer.engine.set_observer(Some(Box::new(keeper)));
    let bar = Progress::new("reading", (toward.len() + away.len()) as u64, "prompts");
    let mut sums = [vec![0.0f64; layers * width], vec![0.0f64; layers * width]];
    let mut done = 0;
    for (sum, prompts) in sums.iter_mut().zip([&toward, &away]) {
        for prompt in prompts {
            // A stored state of the same prompt would leave nothing to look at.
            answerer.engine.forget_checkpoints();
            let ids = asking::question(&answerer.tokenizer, None, prompt, Thinking::Off)?;
            let mut session = answerer.engine.session(ids.len()).map_err(loading::from_engine)?;
            session
                .sync(&mut answerer.engine, &ids, &mut |_| {}, &cancel)
                .map_err(loading::from_engine)?;
            let outputs = outputs.lock().unwrap_or_else(PoisonError::into_inner);
            sum.iter_mut().zip(&*outputs).for_each(|(sum, value)| *sum += f64::from(*value));
            done += 1;
            bar.at(done);
        }
    }
    drop(bar);
    let [toward_sum, away_sum] = sums;
    let counts = [toward.len(), away.len()];
    let (values, lengths) = differences((&toward_sum, &away_sum), counts, width);
    let directions = Directions::new(layers, width, values).map_err(loading::from_model)?;
    std::fs::write(&flags.output, directions.to_bytes())
        .map_err(|error| Failure::file("writing", &flags.output, &error))?;
    report(flags, counts, &lengths)
}

/// Unit rows along the difference of two means, and the lengths that they had. A layer without a
/// difference gets a row of zeros, which leaves it alone.
fn differences(
    (toward, away): (&[f64], &[f64]),
    counts: [usize; 2],
    width: usize,
) -> (Vec<f32>, Vec<f64>) {
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let [toward_count, away_count] = counts.map(|count| count as f64);
    let difference: Vec<f64> =
        toward.iter().zip(away).map(|(a, b)| a / toward_count - b / away_count).collect();
    let (mut values, mut lengths) = (Vec::with_capacity(difference.len()), Vec::new());
    for row in difference.chunks(width) {
        let length = row.iter().map(|v| v * v).sum::<f64>().sqrt();
        let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
        #[expect(clippy::cast_possible_truncation, reason = "the file holds f32")]
        values.extend(row.iter().map(|v| (v * scale) as f32));
        lengths.push(length);
    }
    (values, lengths)
}

fn report(flags: &Build, counts: [usize; 2], lengths: &[f64]) -> Result<(), Failure> {
    if flags.json {
        let object = json!({
            "file": flags.output.display().to_string(), "toward": counts[0], "away": counts[1],
            "lengths": lengths,
        });
        return print(format!("{object}\n").as_bytes());
    }
    let mut text = format!(
        "{}: {} layers, from {} prompts toward and {} away\nlayer  distance of the means\n",
        flags.output.display(),
        lengths.len(),
        counts[0],
        counts[1],
    );
    for (layer, length) in lengths.iter().enumerate() {
        text.push_str(&format!("{layer:>5}  {length:.4}\n"));
    }
    print(text.as_bytes())
}

fn sweep(flags: &Sweep) -> Result<(), Failure> {
    if flags.model.steering.dir_steering_file.is_none() {
        return Err(Failure::caller(
            "steer sweep needs --dir-steering-file FILE; 'ironstar steer build' makes one",
        ));
    }
    let prompts = prompts(&flags.prompts)?;
    let cancel = interrupt::cancel_on_interrupt()?;
    let mut answerer = Answerer::open(&flags.model)?;
    let thinking = asking::thinking(&flags.prompt);
    for prompt in &prompts {
        for &scale in &flags.scales {
            let attention = if flags.attention { scale } else { 0.0 };
            let scales = SteeringScales { ffn: scale, attention };
            answerer.engine.set_steering_scales(scales).map_err(loading::from_engine)?;
            let content = fresh_answer(&mut answerer, flags, prompt, thinking, &cancel)?;
            let text = if flags.json {
                format!("{}\n", json!({"prompt": prompt, "scale": scale, "content": content}))
            } else {
                format!(
                    "{scale:>6} | {prompt}\n       | {}\n",
                    content.replace('\n', "\n       | ")
                )
            };
            print(text.as_bytes())?;
        }
    }
    Ok(())
}

/// The likeliest answer of a session that saw no other scale.
fn fresh_answer(
    answerer: &mut Answerer,
    flags: &Sweep,
    prompt: &str,
    thinking: Thinking,
    cancel: &CancelFlag,
) -> Result<String, Failure> {
    let system = flags.prompt.system.as_deref();
    let ids = asking::question(&answerer.tokenizer, system, prompt, thinking)?;
    answerer.session = answerer.engine.session(flags.model.ctx).map_err(loading::from_engine)?;
    let how = (Settings::greedy(), 0, flags.prompt.tokens.or(Some(128)));
    let answer = answerer.answer(&ids, thinking != Thinking::Off, how, cancel, &mut |_, _| {})?;
    Ok(answer.content)
}
