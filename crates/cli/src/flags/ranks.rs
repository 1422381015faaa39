//! Flags of several ranks on one model, and of `worker`.

use super::{IsaName, Numerics};
use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

/// How many processes share the model.
#[derive(Args, Debug)]
#[command(next_help_heading = "Ranks")]
pub struct Ranks {
    /// Share the model among N processes (1, 2, 4 or 8), each with its part of the weights; the
    /// answer does not depend on it. Threads are shared too
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub ranks: usize,
    /// What carries what they say to each other
    #[arg(long, value_name = "NAME", default_value = "shm")]
    pub transport: TransportName,
    /// Wait at this address for `ironstar worker --join` instead of starting the other ranks here
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// The key that all ranks share, 64 hexadecimal digits in a file; needed beyond this machine
    #[arg(long, value_name = "FILE")]
    pub rank_key_file: Option<PathBuf>,
}

/// Transports by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportName {
    /// Shared memory of one machine.
    Shm,
    /// TCP.
    Tcp,
}

/// `worker`
///
/// One rank of a group: it loads its part of the model that rank 0 was started with, and does what
/// rank 0 says. It ends when rank 0 does.
#[derive(Args, Debug)]
pub struct Worker {
    /// Where rank 0 waits
    #[arg(long, value_name = "HOST:PORT")]
    pub join: String,
    /// Which rank to be (default: any that is free)
    #[arg(long, value_name = "N")]
    pub rank: Option<usize>,
    /// The key that all ranks share, 64 hexadecimal digits in a file
    #[arg(long, value_name = "FILE")]
    pub rank_key_file: Option<PathBuf>,
    /// The model, the same file as rank 0's (default: the bundled nano model)
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// The next-token block (default: MODEL-mtp.gguf beside the model, if it is there)
    #[arg(long, value_name = "FILE")]
    pub mtp_model: Option<PathBuf>,
    /// Processor threads (default: all cores)
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Instruction set (default: the best that is there)
    #[arg(long, value_name = "NAME")]
    pub isa: Option<IsaName>,
    /// How matrices are multiplied, as on rank 0
    #[arg(long, value_name = "NAME", default_value = "quantized")]
    pub numerics: Numerics,
    /// Rows a prefill step, as on rank 0
    #[arg(long, value_name = "N", default_value_t = 512,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=8192))]
    pub prefill_chunk: usize,
    /// End when standard input does: whoever started it is gone
    #[arg(long, hide = true)]
    pub tied: bool,
}
