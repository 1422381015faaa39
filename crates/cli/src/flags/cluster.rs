//! Flags of `doctor --cluster` and of `sim`.

use super::{BackendName, Rdma, SynthMix, SynthShape, transport};
use clap::Args;
use ironstar_cluster::Transport;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A group that measures itself.
#[derive(Args, Debug)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterTest {
    /// Measure a group of ranks: what gates cost by size, and whether several ranks pay
    #[arg(long)]
    pub cluster: bool,
    /// Be one of its other ranks: where rank 0 waits (`--cluster --ranks N --listen` there)
    #[arg(long, value_name = "HOST:PORT", requires = "cluster")]
    pub join: Option<String>,
    /// Which of them (default: any that is free)
    #[arg(long, value_name = "N", requires = "join")]
    pub rank: Option<usize>,
    /// Where the ranks run; cuda measures on one card what a rank of 2, 4 and 8 would take, and a
    /// gate inside a graph over memory of this machine
    #[arg(long, value_name = "NAME", default_value = "cpu", requires = "cluster")]
    pub backend: BackendName,
    /// The model whose speed is measured, the same file on all ranks (default: the bundled nano
    /// model)
    #[arg(short, long, value_name = "FILE", requires = "cluster")]
    pub model: Option<PathBuf>,
    /// Predict for a model that is not here, from its bytes and this machine's read bandwidth
    #[arg(long, value_name = "NAME", requires = "cluster", conflicts_with = "model")]
    pub shape: Option<SynthShape>,
    /// Formats of its experts
    #[arg(long, value_name = "NAME", default_value = "q2")]
    pub mix: SynthMix,
    /// Processor threads of this machine (default: all cores)
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// How many ranks the group has (1, 2, 4 or 8)
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub ranks: usize,
    /// What carries what they say to each other: shm (the default here), tcp (with --listen)
    #[arg(long, value_name = "NAME", value_parser = transport)]
    pub transport: Option<Transport>,
    /// Wait at this address for the other ranks instead of starting them here
    #[arg(long, value_name = "ADDRESS:PORT", requires = "cluster")]
    pub listen: Option<SocketAddr>,
    /// The key that all ranks share, 64 hexadecimal digits in a file; needed beyond this machine
    #[arg(long, value_name = "FILE", requires = "cluster")]
    pub rank_key_file: Option<PathBuf>,
    /// The cable between the machines is private: do not encrypt what ranks say to each other
    #[arg(long, requires = "cluster")]
    pub trusted_link: bool,
    /// Devices of `--transport verbs`.
    #[command(flatten)]
    pub rdma: Rdma,
    /// End when standard input does: whoever started it is gone
    #[arg(long, hide = true)]
    pub tied: bool,
}

/// `sim`
///
/// Arithmetic on measured costs: nothing runs. Counts that the model cannot be shared among are
/// used as pipelines and replicas of those that it can.
#[derive(Args, Debug)]
pub struct Sim {
    /// Measured costs: what `doctor --cluster --json` prints, or its `costs` (docs/cluster.md)
    #[arg(long, value_name = "FILE")]
    pub costs: PathBuf,
    /// Take the node's speed from what `bench --json` printed on one rank, at its first frontier
    #[arg(long, value_name = "FILE")]
    pub bench: Option<PathBuf>,
    /// Compare with what `bench --json` printed on several ranks; exit 1 if the answer's rate is
    /// more than --within away
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// How far a prediction may be from what was measured, in per cent
    #[arg(long, value_name = "F", default_value_t = 15.0)]
    pub within: f64,
    /// Rank counts
    #[arg(long, value_name = "N,..", value_delimiter = ',',
          default_values_t = [1, 2, 4, 8, 16, 32, 64],
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub ranks: Vec<usize>,
    /// Sessions that answer at once
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub sessions: usize,
    /// Tokens of a prompt
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub prompt: usize,
    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 512,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub answer: usize,
    /// Share of a prompt that the replica which had the session before still holds
    #[arg(long, value_name = "F", default_value_t = 0.8)]
    pub kept: f64,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}
