//! Flags of several ranks on one model, and of `worker`.

use super::{BackendName, Command, IsaName, Model, Numerics, Rdma};
use clap::{Args, ValueEnum};
use ironstar_cluster::{Launch, Recorder, Transport};
use ironstar_device::GateRoute;
use std::net::SocketAddr;
use std::path::PathBuf;

/// How many processes share the model.
#[derive(Args, Debug)]
#[command(next_help_heading = "Ranks")]
pub struct Ranks {
    /// Share the model among N processes (1, 2, 4 or 8), each with its part of every layer; the
    /// answer does not depend on it. Threads are shared too. 'auto' is as many as torchrun, mpirun,
    /// srun or a LeaderWorkerSet has started
    #[arg(long, value_name = "N|auto", default_value = "1", value_parser = rank_count)]
    pub ranks: RankCount,
    /// Cut the model's layers into N runs of about equal size instead, each on a process of its own
    #[arg(long, value_name = "N")]
    pub stages: Option<usize>,
    /// The same with these runs: 0-20,21-42
    #[arg(long, value_name = "RANGES", conflicts_with = "stages")]
    pub layers: Option<String>,
    /// Bits of a value between such runs; fewer than 32 change answers
    #[arg(long, value_name = "32|16|8", default_value = "32", value_parser = activation_bits)]
    pub activation_bits: u32,
    /// What carries what ranks say to each other: shm (the default where they are started here),
    /// tcp (the default where others start them), verbs (RDMA), mpi (in a build with that feature),
    /// peer (the default of cards of one machine: one process drives them, and each writes into the
    /// others' memory), nccl (the same cards by NVIDIA's library)
    #[arg(long, value_name = "NAME", value_parser = carrier)]
    pub transport: Option<Carrier>,
    /// Cards of the ranks that are started here, by their numbers (default: 0, 1, ...)
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub devices: Vec<u32>,
    /// How cards that processes of their own drive may exchange sums: peer (each writes into the
    /// others' memory), shared (the default: all write into memory of the machine), carried (a
    /// thread carries what the card puts into memory of the host), host (every step stops at every
    /// gate). What does not work is told, and goes the next way
    #[arg(long, value_name = "NAME", value_parser = gates)]
    pub gates: Option<GateRoute>,
    /// Wait at this address for `ironstar worker --join` instead of starting the other ranks here
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// The key that all ranks share, 64 hexadecimal digits in a file; needed beyond this machine
    #[arg(long, value_name = "FILE")]
    pub rank_key_file: Option<PathBuf>,
    /// The cable between the machines is private: do not encrypt what ranks say to each other
    #[arg(long)]
    pub trusted_link: bool,
    /// All of this from a file that the ranks share (docs/ranks.md)
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["ranks", "stages", "layers", "activation_bits", "transport",
                                "listen", "trusted_link"])]
    pub cluster: Option<PathBuf>,
    /// Devices of `--transport verbs`.
    #[command(flatten)]
    pub rdma: Rdma,
    /// Say at the end what each kind of gate cost; 'trace' adds the gates of one token
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true,
          default_missing_value = "table")]
    pub profile_gates: Option<ProfileGates>,
    /// Be one of the ranks alone, whose gates exchange nothing: speed without gates, wrong tokens
    #[arg(long, conflicts_with_all = ["cluster", "stages", "layers", "listen"])]
    pub fake_gates: bool,
    /// Where gates are written down if --profile-gates asks for it.
    #[arg(skip)]
    pub recorder: Recorder,
    /// What started this process, where that is asked for.
    #[arg(skip)]
    pub launch: Option<Launch>,
}

/// How much is told of gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProfileGates {
    /// A line a kind.
    Table,
    /// The same, and a line for each gate of one token.
    Trace,
}

/// How many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankCount {
    /// As a launcher says.
    Auto,
    /// So many.
    Of(usize),
}

fn rank_count(text: &str) -> Result<RankCount, String> {
    if text == "auto" {
        return Ok(RankCount::Auto);
    }
    text.parse().map(RankCount::Of).map_err(|_| "a number or 'auto' is wanted".to_owned())
}

fn activation_bits(text: &str) -> Result<u32, String> {
    let bits = text.parse().ok().filter(|bits| ironstar_model::Wire::of_bits(*bits).is_some());
    bits.ok_or_else(|| "32, 16 or 8 is wanted".to_owned())
}

/// What carries what ranks say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A transport between processes.
    Transport(Transport),
    /// Cards of one process, by each other's memory.
    Peer,
    /// Cards of one process, by NVIDIA's library.
    Nccl,
}

/// A carrier by its name.
fn carrier(text: &str) -> Result<Carrier, String> {
    match text {
        "peer" => Ok(Carrier::Peer),
        "nccl" => Ok(Carrier::Nccl),
        _ => {
            let carried = transport(text).map(Carrier::Transport);
            carried.map_err(|text| format!("{text}; or peer or nccl"))
        }
    }
}

/// A route of gates by its name.
fn gates(text: &str) -> Result<GateRoute, String> {
    let found = GateRoute::NAMES.iter().find(|(name, _)| *name == text);
    found.map(|(_, route)| *route).ok_or_else(|| {
        let names: Vec<&str> = GateRoute::NAMES.iter().map(|(name, _)| *name).collect();
        format!("one of {} is wanted", names.join(", "))
    })
}

/// A transport by its name.
pub fn transport(text: &str) -> Result<Transport, String> {
    let found = Transport::NAMES.iter().find(|(name, _)| *name == text);
    found.map(|(_, transport)| *transport).ok_or_else(|| {
        let names: Vec<&str> = Transport::NAMES.iter().map(|(name, _)| *name).collect();
        format!("one of {} is wanted", names.join(", "))
    })
}

/// `worker`
///
/// One rank of a group: it loads its part of the model that rank 0 was started with, and does what
/// rank 0 says. It ends when rank 0 does. Which part that is rank 0 tells it.
#[derive(Args, Debug)]
pub struct Worker {
    /// Where rank 0 waits (default: as --cluster or a launcher's variables say)
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "cluster")]
    pub join: Option<String>,
    /// The file that the ranks share; then --rank says which of them this is
    #[arg(long, value_name = "FILE", requires = "rank")]
    pub cluster: Option<PathBuf>,
    /// Where rank 0 waits, for a launcher that does not name its machine
    #[arg(long, value_name = "ADDRESS:PORT", hide = true)]
    pub listen: Option<SocketAddr>,
    /// Which rank to be (default: any that is free)
    #[arg(long, value_name = "N")]
    pub rank: Option<usize>,
    /// The key that all ranks share, 64 hexadecimal digits in a file
    #[arg(long, value_name = "FILE")]
    pub rank_key_file: Option<PathBuf>,
    /// The cable between the machines is private, as on rank 0
    #[arg(long)]
    pub trusted_link: bool,
    /// The model, the same file as rank 0's (default: the bundled nano model)
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// The next-token block (default: MODEL-mtp.gguf beside the model, if it is there)
    #[arg(long, value_name = "FILE")]
    pub mtp_model: Option<PathBuf>,
    /// Where to run, as on rank 0; a node of a pipeline may choose
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub backend: BackendName,
    /// The card, by its number (default: by the rank's number, over the cards that are here)
    #[arg(long, value_name = "N")]
    pub device: Option<u32>,
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
    #[arg(long, value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=8192))]
    pub prefill_chunk: Option<usize>,
    /// End when standard input does: whoever started it is gone
    #[arg(long, hide = true)]
    pub tied: bool,
    /// Devices, where rank 0 wants RDMA.
    #[command(flatten)]
    pub rdma: Rdma,
    /// What started this process.
    #[arg(skip)]
    pub launch: Option<Launch>,
}

impl Command {
    /// Whether it wants to know what launched this process.
    pub fn asks_for_launch(&mut self) -> bool {
        match self {
            Command::Worker(worker) => worker.join.is_none() && worker.cluster.is_none(),
            other => other.model().is_some_and(|model| model.ranks.ranks == RankCount::Auto),
        }
    }

    /// Tells it. A command of rank 0 is a worker's in the other processes of its launch.
    pub fn set_launch(&mut self, launch: Option<Launch>) -> Option<Worker> {
        if let Command::Worker(worker) = self {
            worker.launch = launch;
            return None;
        }
        let model = self.model()?;
        let launch = launch?;
        if launch.rank > 0 {
            return Some(Worker::of_model(model, launch));
        }
        model.ranks.launch = Some(launch);
        None
    }

    /// Its flags of a model that ranks may share.
    fn model(&mut self) -> Option<&mut Model> {
        match self {
            Command::Run(flags) => Some(&mut flags.model),
            Command::Serve(flags) => Some(&mut flags.model),
            Command::Bench(flags) => Some(&mut flags.model),
            Command::Replay(flags) => Some(&mut flags.model),
            Command::Perplexity(flags) => Some(&mut flags.model),
            Command::Eval(flags) => Some(&mut flags.model),
            _ => None,
        }
    }
}

impl Worker {
    /// The worker that a launcher's process is which was started by rank 0's command line.
    pub fn of_model(model: &Model, launch: Launch) -> Worker {
        let ranks = &model.ranks;
        Worker {
            join: None,
            cluster: None,
            listen: ranks.listen,
            rank: None,
            rank_key_file: ranks.rank_key_file.clone(),
            trusted_link: ranks.trusted_link,
            rdma: ranks.rdma.clone(),
            model: model.model.clone(),
            mtp_model: model.mtp_model.clone(),
            backend: model.backend,
            device: ranks.devices.get(launch.rank).copied(),
            threads: model.threads,
            isa: model.isa,
            numerics: model.numerics,
            prefill_chunk: model.prefill_chunk,
            tied: false,
            launch: Some(launch),
        }
    }
}
