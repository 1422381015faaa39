//! Flags of `bench`.

use super::{Model, Random, SynthMix, SynthShape};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `bench`
///
/// Reads a prompt up to each frontier and measures the new part only, then answers from there and
/// goes back. Speculation is off. Without a prompt the tokens are random ids. One line a frontier
/// on standard output; --csv and --json have more columns.
#[derive(Args, Debug)]
pub struct Bench {
    /// What is read and answered.
    #[command(flatten)]
    pub sweep: Sweep,
    /// Write the table to a file as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Replace that file if it exists
    #[arg(long)]
    pub force: bool,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// A random model instead of a file.
    #[command(flatten)]
    pub synth: InMemory,
    /// Which model, on what; --ctx is not used, sessions are as long as the sweep needs.
    #[command(flatten)]
    pub model: Model,
}

/// A model as `synth` would write it, without the file: tensors are made one after the other as
/// they are loaded.
#[derive(Args, Debug)]
#[command(next_help_heading = "Random model")]
pub struct InMemory {
    /// Measure a random model of this shape, which needs no file
    #[arg(long, value_name = "NAME", conflicts_with_all = ["model", "mtp_model"])]
    pub synth: Option<SynthShape>,
    /// Formats of its experts; dense matrices are Q8_0
    #[arg(long, value_name = "NAME", default_value = "q2", requires = "synth")]
    pub synth_mix: SynthMix,
    /// Only its first N layers
    #[arg(long, value_name = "N", requires = "synth")]
    pub synth_layers: Option<usize>,
    /// Only N experts a layer
    #[arg(long, value_name = "N", requires = "synth")]
    pub synth_experts: Option<usize>,
    /// Only N layers of each kind have data of their own, which a processor holds once
    #[arg(long, value_name = "N", requires = "synth",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub synth_alias: Option<usize>,
    /// Seed of its values
    #[arg(long, value_name = "N", default_value_t = 1, requires = "synth")]
    pub synth_seed: u64,
}

impl InMemory {
    /// What is made, if that was asked for.
    pub fn random(&self) -> Option<Random> {
        let (mix, layers, experts) = (self.synth_mix, self.synth_layers, self.synth_experts);
        let (alias, seed) = (self.synth_alias, self.synth_seed);
        self.synth.map(|shape| Random { shape, mix, layers, experts, alias, seed })
    }
}

/// What is read and answered.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sweep")]
pub struct Sweep {
    /// The prompt from a file, taken as it is
    #[arg(long, value_name = "FILE", conflicts_with_all = ["chat_prompt_file", "ids"])]
    pub prompt_file: Option<PathBuf>,
    /// The prompt from a file, as one user's turn
    #[arg(long, value_name = "FILE", conflicts_with = "ids")]
    pub chat_prompt_file: Option<PathBuf>,
    /// A system text before that turn
    #[arg(short, long, visible_alias = "sys", value_name = "TEXT", requires = "chat_prompt_file")]
    pub system: Option<String>,
    /// The prompt as token ids from a file
    #[arg(long, value_name = "FILE")]
    pub ids: Option<PathBuf>,
    /// First frontier, in tokens (default: 2048, or --ctx-max if that is less)
    #[arg(long, value_name = "N", value_parser = positive())]
    pub ctx_start: Option<usize>,
    /// Last frontier (default: 32768, or what the model's context leaves)
    #[arg(long, value_name = "N", value_parser = positive())]
    pub ctx_max: Option<usize>,
    /// Tokens a session has room for (default: --ctx-max and the answer)
    #[arg(long, value_name = "N", value_parser = positive())]
    pub ctx_alloc: Option<usize>,
    /// Tokens from one frontier to the next
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = positive())]
    pub step_incr: usize,
    /// Above 1: each frontier is F times the one before, whatever --step-incr is
    #[arg(long, value_name = "F", default_value_t = 1.0, allow_negative_numbers = true)]
    pub step_mul: f64,
    /// Tokens of the answer at each frontier; 0 measures reading only
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    pub gen_tokens: usize,
    /// Take the answer's tokens from the prompt, not from the model
    #[arg(long)]
    pub teacher_forced_decode: bool,
    /// Answers in common steps
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=512))]
    pub sessions: usize,
    /// What states hold at a frontier: 'random' rows reach any depth at once, for speed only
    #[arg(long, value_name = "HOW", default_value = "read")]
    pub fill: Fill,
    /// With --fill random: tokens before each frontier that are read all the same
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = positive())]
    pub fill_tail: usize,
    /// Seed of random ids and rows
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Sweep N times and keep the best of each number
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    pub repeat: usize,
}

/// How a frontier is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fill {
    /// By reading the prompt.
    Read,
    /// By random rows.
    Random,
}

fn positive() -> clap::builder::RangedU64ValueParser<usize> {
    clap::builder::RangedU64ValueParser::<usize>::new().range(1..)
}
