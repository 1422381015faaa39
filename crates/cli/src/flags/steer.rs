//! Flags of directional steering, and of `steer`.

use super::{Model, Prompt};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// How a model is steered.
#[derive(Args, Debug)]
#[command(next_help_heading = "Steering")]
pub struct Steering {
    /// Directions to steer along: f32, layers x width, no header ('ironstar steer build' makes one)
    #[arg(long, value_name = "FILE")]
    pub dir_steering_file: Option<PathBuf>,
    /// Share of its direction that is taken out of each FFN's output; negative strengthens it
    #[arg(
        long,
        value_name = "F",
        default_value_t = 1.0,
        allow_negative_numbers = true,
        requires = "dir_steering_file"
    )]
    pub dir_steering_ffn: f32,
    /// The same for each attention's output
    #[arg(
        long,
        value_name = "F",
        default_value_t = 0.0,
        allow_negative_numbers = true,
        requires = "dir_steering_file"
    )]
    pub dir_steering_attn: f32,
}

/// `steer`
#[derive(Debug, Subcommand)]
pub enum Steer {
    /// Make directions from two sets of prompts: where the model is after the one, less where it
    /// is after the other
    Build(Box<Build>),
    /// Answer prompts under several scales, to see what a direction does
    Sweep(Box<Sweep>),
}

/// `steer build`
#[derive(Args, Debug)]
pub struct Build {
    /// Prompts that show what the direction stands for, one a line
    #[arg(long, value_name = "FILE")]
    pub toward: PathBuf,
    /// Prompts that do not, one a line
    #[arg(long, value_name = "FILE")]
    pub away: PathBuf,
    /// The file that is made
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace that file if it exists
    #[arg(long)]
    pub force: bool,
    /// Which output the directions are taken from
    #[arg(long, value_name = "NAME", default_value = "ffn")]
    pub at: Place,
    /// Which model, on what.
    #[command(flatten)]
    pub model: Model,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub json: bool,
}

/// `steer sweep`
#[derive(Args, Debug)]
pub struct Sweep {
    /// Prompts, one a line
    #[arg(value_name = "FILE")]
    pub prompts: PathBuf,
    /// Scales of the FFN outputs
    #[arg(
        long,
        value_name = "F,..",
        value_delimiter = ',',
        allow_negative_numbers = true,
        default_value = "-2,-1,0,1,2"
    )]
    pub scales: Vec<f32>,
    /// Scale attention's outputs as well
    #[arg(long)]
    pub attention: bool,
    /// How prompts are put.
    #[command(flatten)]
    pub prompt: Prompt,
    /// Which model, on what.
    #[command(flatten)]
    pub model: Model,
    /// One JSON object a line on standard output instead of text
    #[arg(long)]
    pub json: bool,
}

/// Outputs by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// The FFN's.
    Ffn,
    /// Attention's.
    Attention,
}
