//! Flags of `serve`.

use super::Model;
use clap::{Args, ValueEnum};
use std::net::IpAddr;
use std::path::PathBuf;

/// `serve`
///
/// OpenAI's chat completions, completions and responses, Anthropic's messages, and a page at /
/// (docs/server.md). Ctrl-C or SIGTERM lets running answers end; a second one ends them.
#[derive(Args, Debug)]
pub struct Serve {
    /// Where it listens.
    #[command(flatten)]
    pub network: Network,
    /// How much it does at once.
    #[command(flatten)]
    pub load: Load,
    /// Which model, on what.
    #[command(flatten)]
    pub model: Model,
    /// Reason where a request does not say
    #[arg(long, value_name = "LEVEL", default_value = "high")]
    pub thinking: ThinkingName,
    /// The model's name in answers (default: the file's)
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Another name in the list of models; any name is answered. May be repeated
    #[arg(long, value_name = "NAME")]
    pub alias: Vec<String>,
    /// Write a file for each request into a folder: body, prompt, tokens, times. Keys are left out,
    /// texts are not
    #[arg(long, value_name = "FOLDER")]
    pub trace: Option<PathBuf>,
    /// No line for each request on standard error
    #[arg(short, long)]
    pub quiet: bool,
    /// Prepared answers instead of a model, for tests of clients
    #[arg(long, value_name = "FILE", hide = true)]
    pub scripted: Option<PathBuf>,
}

/// Where it listens, and to whom.
#[derive(Args, Debug)]
#[command(next_help_heading = "Network")]
pub struct Network {
    /// Address to listen on; other machines reach only one that is not 127.0.0.1
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// Keys, one a line; a request must bring one of them
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Listen on a public address without a key
    #[arg(long)]
    pub no_key: bool,
    /// Let web pages of this origin use the server ('*' for all)
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Option<String>,
}

/// How much it does at once.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct Load {
    /// Requests that are answered at a time; others wait
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub parallel: usize,
    /// Requests that wait or run before new ones are turned away
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    pub queue: usize,
    /// Largest body of a request, in MiB
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub body_mib: usize,
    /// Seconds of silence after which a stream gets a sign of life
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=60))]
    pub keepalive: u64,
    /// Seconds that running answers get when the server stops
    #[arg(long, value_name = "N", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub grace: u64,
}

/// `replay`
///
/// Asks again what a trace of `serve --trace` holds, with the same seed, and says whether prompt
/// and answer are the same. The new trace lies in FILE.replay.
#[derive(Args, Debug)]
pub struct Replay {
    /// The trace
    pub file: PathBuf,
    /// Which model, on what.
    #[command(flatten)]
    pub model: Model,
    /// Reason where the request does not say
    #[arg(long, value_name = "LEVEL", default_value = "high")]
    pub thinking: ThinkingName,
}

/// How hard to think where a request does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ThinkingName {
    /// Not at all.
    Off,
    /// A little.
    Low,
    /// Much.
    High,
    /// As much as the model can.
    Max,
}
