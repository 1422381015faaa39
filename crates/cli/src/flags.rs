//! The command line: one table of commands and flags. Help, the manual page and shell completions
//! are generated from it, so a flag that is not here does not exist.

mod bench;
mod cluster;
mod diff;
mod ranks;
mod rdma;
mod serve;
mod steer;

pub use bench::{Bench, Fill, Sweep as BenchSweep};
use clap::{Args, Parser, Subcommand, ValueEnum};
pub use cluster::{ClusterTest, Sim};
pub use diff::{Diff, Dumping};
use ironstar_device::Shortcuts;
use ironstar_engine::BackendChoice;
pub use ranks::{Carrier, ProfileGates, RankCount, Ranks, Worker, transport};
pub use rdma::Rdma;
pub use serve::{Replay, Serve, ThinkingName};
use std::path::PathBuf;
pub use steer::{Build, Place, Steer, Steering, Sweep};

/// Runs large open-weight models on hardware that people own.
///
/// Without a command it is `run`; without a model it is the small bundled one.
#[derive(Debug, Parser)]
#[command(
    name = "ironstar",
    version,
    args_conflicts_with_subcommands = true,
    max_term_width = 100,
    after_help = "Exit status: 0 on success, 2 if the command line or an input is wrong, 130 after \
                  Ctrl-C, 1 otherwise."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `run`, when no command is named.
    #[command(flatten)]
    pub run: Run,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer a prompt, or chat when none is given
    Run(Box<Run>),
    /// Serve a model over HTTP
    Serve(Box<Serve>),
    /// Be one rank of a model that several processes share
    Worker(Box<Worker>),
    /// Ask again what a trace of `serve` holds
    Replay(Box<Replay>),
    /// Show a model file's shape, tensors and memory plan
    Inspect(Inspect),
    /// Show how text becomes tokens, and back
    Tokens(Tokens),
    /// Make a GGUF file from published weights or another GGUF
    Quantize(Quantize),
    /// Make a file whose weights lie as cards read them, from a GGUF file, or undo that
    Pack(Pack),
    /// Measure how well a model predicts a text
    Perplexity(Perplexity),
    /// Score a model on a file of cases
    Eval(Eval),
    /// Measure how fast a model reads and answers at growing depths
    Bench(Box<Bench>),
    /// Make and try directions that steer a model
    #[command(subcommand)]
    Steer(Steer),
    /// Say where two dumps of what a model computes part first
    Diff(Diff),
    /// Show what this machine is, how fast it reads, and which models fit
    Doctor(Box<Doctor>),
    /// Predict what groups and fleets of other sizes would give, from measured costs
    Sim(Sim),
    /// Write a random model of full or reduced size, to measure speed without weights
    Synth(Synth),
    /// Print a shell's completion script
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, in roff
    Man,
}

/// `run`
///
/// The answer goes to standard output, everything else to standard error. With no prompt on the
/// command line, in a file or on standard input it opens a chat: Ctrl-C stops an answer, Ctrl-D
/// leaves, /help lists what can be typed.
#[derive(Args, Debug)]
pub struct Run {
    /// What is asked.
    #[command(flatten)]
    pub prompt: Prompt,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: Sampling,
    /// What is kept of the work.
    #[command(flatten)]
    pub dumping: Dumping,
    /// Which model, on what.
    #[command(flatten)]
    pub model: Model,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub json: bool,
}

/// What is asked.
#[derive(Args, Debug)]
#[command(next_help_heading = "Prompt")]
pub struct Prompt {
    /// The prompt
    #[arg(short, long, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,
    /// The prompt from a file ('-' is standard input)
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// A system text before the prompt
    #[arg(short, long, visible_alias = "sys", value_name = "TEXT")]
    pub system: Option<String>,
    /// Take the prompt as it is: no chat markers added, and markers written in it are control
    /// tokens
    #[arg(long, alias = "raw-prompt", conflicts_with_all = ["system", "think", "effort"])]
    pub raw: bool,
    /// Let the model reason before it answers
    #[arg(long)]
    pub think: bool,
    /// Answer directly (the default)
    #[arg(long, alias = "nothink", conflicts_with_all = ["think", "effort"])]
    pub no_think: bool,
    /// How hard to think; implies --think
    #[arg(long, value_name = "LEVEL")]
    pub effort: Option<Effort>,
    /// Stop after N tokens (default: at the context's end)
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    pub tokens: Option<usize>,
}

/// How hard to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Effort {
    /// A little.
    Low,
    /// Much.
    High,
    /// As much as the model can.
    Max,
}

/// How tokens are drawn.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct Sampling {
    /// Temperature; 0 is greedy (default: what the model file recommends, else 1)
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub temp: Option<f64>,
    /// Keep the N likeliest tokens; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub top_k: usize,
    /// Keep the likeliest tokens that together reach F
    #[arg(long, value_name = "F", default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f64,
    /// Drop tokens less likely than F times the likeliest
    #[arg(long, value_name = "F", default_value_t = 0.05, allow_negative_numbers = true)]
    pub min_p: f64,
    /// Seed of the draws: the same seed gives the same answer (default: drawn, and shown at the
    /// end)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Show each token's log probability and its N likeliest alternatives
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=128))]
    pub logprobs: Option<u8>,
}

/// Which model, on what, how.
#[derive(Args, Debug)]
#[command(next_help_heading = "Model")]
pub struct Model {
    /// The model (default: the bundled nano model)
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// The next-token block (default: MODEL-mtp.gguf beside the model, if it is there)
    #[arg(long, value_name = "FILE")]
    pub mtp_model: Option<PathBuf>,
    /// Where to run
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub backend: BackendName,
    /// Processor threads (default: all cores)
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Instruction set (default: the best that is there); the answer does not depend on it
    #[arg(long, value_name = "NAME")]
    pub isa: Option<IsaName>,
    /// How matrices are multiplied
    #[arg(long, value_name = "NAME", default_value = "quantized")]
    pub numerics: Numerics,
    /// Tokens a session can hold
    #[arg(short, long, value_name = "N", default_value_t = 8192,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub ctx: usize,
    /// Rows a prefill step (default: 512, on a card that has room for it 4096); the answer does not
    /// depend on it
    #[arg(long, value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=8192))]
    pub prefill_chunk: Option<usize>,
    /// Keep what was read in a folder, so that later runs need not read it again
    /// (docs/state-format.md)
    #[arg(long, value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,
    /// Most MiB of that folder, whatever models and processes write there
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    pub state_disk_mib: u32,
    /// Most MiB of memory for what was read, beside the sessions themselves
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub state_ram_mib: u32,
    /// Draft tokens ahead and verify them; the answer does not depend on it
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub speculate: Speculate,
    /// Diagnosis: 'steps' prints the time and checksum of each block; 'disable=NAME' leaves a
    /// shortcut of a GPU out, 'require=NAME' makes going without it an error (docs/gpu.md). May be
    /// repeated
    #[arg(long, value_name = "KEY", value_parser = debug_key)]
    pub debug: Vec<DebugKey>,
    /// How many processes share it.
    #[command(flatten)]
    pub ranks: Ranks,
    /// How it is steered.
    #[command(flatten)]
    pub steering: Steering,
}

/// Rows of a prefill step of a processor; of a card, whose tiles of chosen experts are full then.
pub const CHUNK: usize = 512;
pub const CARD_CHUNK: usize = 4096;

impl BackendName {
    /// What the engine calls it.
    pub fn choice(self) -> BackendChoice {
        match self {
            BackendName::Auto => BackendChoice::Auto,
            BackendName::Cpu => BackendChoice::Cpu,
            BackendName::Cuda => BackendChoice::Cuda,
        }
    }

    /// Rows of a prefill step, named or not: every rank of a group must take the same.
    pub fn chunk(self, named: Option<usize>) -> usize {
        named.unwrap_or(if self == BackendName::Cuda { CARD_CHUNK } else { CHUNK })
    }
}

/// Backends by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// A card with room for the model, else the processor.
    Auto,
    /// The processor.
    Cpu,
    /// The first NVIDIA card.
    Cuda,
}

/// Instruction sets by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IsaName {
    /// Plain code.
    Scalar,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 with VNNI.
    Avx512,
    /// AVX-512 and the tile unit (not run so far).
    Amx,
    /// Arm's dot products.
    Neon,
    /// Arm's matrix products of bytes.
    I8mm,
}

/// How matrices are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Numerics {
    /// Integer products of quantised activations.
    Quantized,
    /// Products of the decoded weights in f32; for checking.
    Float,
    /// Float, and no FP8 or FP4 round trips of the state; for checking.
    Exact,
}

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Speculate {
    /// The drafter if there is one, and repeats of the text, as long as they pay.
    Auto,
    /// No drafts.
    Off,
    /// The next-token block.
    Mtp,
    /// The DSpark drafter.
    Dspark,
    /// Repeats found in the session's own text.
    Lookup,
}

/// Keys of `--debug`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugKey {
    /// Time and checksum of each block of the forward pass.
    Steps,
    /// A shortcut of a GPU is left out.
    Disable(Shortcuts),
    /// Going without it is an error.
    Require(Shortcuts),
}

fn debug_key(word: &str) -> Result<DebugKey, String> {
    let named = |name: &str| Shortcuts::named(name).map_err(|error| error.to_string());
    match word.split_once('=') {
        None if word == "steps" => Ok(DebugKey::Steps),
        Some(("disable", name)) => named(name).map(DebugKey::Disable),
        Some(("require", name)) => named(name).map(DebugKey::Require),
        _ => Err("'steps', 'disable=NAME' or 'require=NAME' is wanted".into()),
    }
}

/// `inspect`
///
/// Reads only the header: it answers at once, whatever the size of the file.
#[derive(Args, Debug)]
pub struct Inspect {
    /// The model (default: the bundled nano model)
    pub model: Option<PathBuf>,
    /// Tokens a session shall hold, for the memory plan
    #[arg(short, long, value_name = "N", default_value_t = 8192,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub ctx: usize,
    /// Show what each of N ranks would hold of the weights
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Show what each of N nodes would hold that have some of the layers each
    #[arg(long, value_name = "N", conflicts_with_all = ["ranks", "layers"])]
    pub stages: Option<usize>,
    /// The same with these layers: 0-20,21-42
    #[arg(long, value_name = "RANGES", conflicts_with = "ranks")]
    pub layers: Option<String>,
    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
    /// List every metadata key
    #[arg(long)]
    pub metadata: bool,
    /// Read every value instead, and say whether all are finite numbers
    #[arg(long, conflicts_with_all = ["tensors", "metadata", "json"])]
    pub check: bool,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// `tokens`
///
/// Plain text never becomes a control token; with --raw the markers written in it do.
#[derive(Args, Debug)]
pub struct Tokens {
    /// The text, or ids with --decode (default: standard input)
    pub text: Option<String>,
    /// The text from a file
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    pub prompt_file: Option<PathBuf>,
    /// Markers written in the text become control tokens
    #[arg(long)]
    pub raw: bool,
    /// Render the text as a user's turn first
    #[arg(long, conflicts_with = "raw")]
    pub chat: bool,
    /// The input is token ids; show their text
    #[arg(long, conflicts_with_all = ["raw", "chat"])]
    pub decode: bool,
    /// The model whose tokenizer is used (default: the bundled nano model)
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// `quantize`
///
/// OUTPUT appears only when it is complete; a run that was stopped goes on where it was. A
/// next-token block goes to a second file, OUTPUT-mtp.gguf, where the engine looks for it.
#[derive(Args, Debug)]
pub struct Quantize {
    /// A folder of safetensors with config.json and tokenizer.json, or a GGUF file
    pub input: PathBuf,
    /// The file to make
    pub output: PathBuf,
    /// Formats by tensor class
    #[arg(long, value_name = "NAME", default_value = "mxfp4")]
    pub mix: Mix,
    /// A format for a class (experts, gate, up, down, attention, shared, embedding, output,
    /// indexer, compressor, router, mhc) or for tensors whose name starts with WHICH. May be
    /// repeated; the last that fits wins
    #[arg(long, value_name = "WHICH=TYPE")]
    pub tensor_type: Vec<String>,
    /// Importances of inputs, as llama-imatrix or ds4 collect them: errors that matter more to the
    /// model's answers are made smaller. Q8_0 and float formats take no notice
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Refuse importances that say nothing of a tensor that they could steer
    #[arg(long, requires = "imatrix")]
    pub imatrix_strict: bool,
    /// The model's name in the file (default: the input's)
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// tokenizer.json (default: the one beside the weights)
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Temperature that the file recommends (default: the input's)
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub default_temp: Option<f32>,
    /// Processor threads (default: all cores)
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Replace OUTPUT if it exists
    #[arg(long)]
    pub force: bool,
    /// Show the plan and sizes; write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// `pack`
///
/// The weights are the same, and so are all answers; quantised ones lie in the order in which cards
/// hold them. A card that shares the processor's memory reads them where the file is mapped, any
/// other one copies them as they are. The processor, which makes blocks of them at every start,
/// starts faster from the file as it was, and other programs refuse the packed one.
#[derive(Args, Debug)]
pub struct Pack {
    /// A GGUF file; of a split model the first, all parts become one
    pub input: PathBuf,
    /// The file to make
    pub output: PathBuf,
    /// Make the file that INPUT was packed from
    #[arg(long)]
    pub undo: bool,
    /// Replace OUTPUT if it exists
    #[arg(long)]
    pub force: bool,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Named choices of formats by tensor class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mix {
    /// Experts MXFP4 (lossless from published FP4), dense matrices Q8_0.
    Mxfp4,
    /// Experts Q2_K, dense matrices Q8_0.
    Q2,
    /// Experts Q4_K, dense matrices Q8_0.
    Q4,
    /// Experts Q6_K, dense matrices Q8_0.
    Q6,
    /// Everything large Q8_0.
    Q8,
    /// Everything large BF16.
    Bf16,
    /// Everything large F32.
    F32,
}

/// `perplexity`
///
/// Each line of ids, or each window of a text, starts from an empty session. Saved log
/// probabilities of one run are the baseline of another's KL divergence.
#[derive(Args, Debug)]
pub struct Perplexity {
    /// A text, or with --ids lines of token ids
    pub file: PathBuf,
    /// FILE holds token ids, one sequence a line
    #[arg(long)]
    pub ids: bool,
    /// Tokens a window of text
    #[arg(long, value_name = "N", default_value_t = 2048,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..=1_048_576))]
    pub window: usize,
    /// Write every position's log probabilities: 4 bytes a vocabulary entry a position
    #[arg(long, value_name = "FILE")]
    pub save_logits: Option<PathBuf>,
    /// Replace that file if it exists
    #[arg(long)]
    pub force: bool,
    /// Compare with saved log probabilities
    #[arg(long, value_name = "FILE")]
    pub kl_against: Option<PathBuf>,
    /// Which model, on what.
    #[command(flatten)]
    pub model: Model,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// `eval`
///
/// Cases of three forms: spans of a token sequence that must be predicted, a prompt with the answer
/// that must be given, a prompt with the tool call that must be made (docs/testing.md).
#[derive(Args, Debug)]
pub struct Eval {
    /// The cases
    pub file: PathBuf,
    /// At most N cases of each kind
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Only kinds that start with NAME
    #[arg(long, value_name = "NAME")]
    pub kind: Option<String>,
    /// Which model, on what.
    #[command(flatten)]
    pub model: Model,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// `doctor`
///
/// Reads from memory for about a second, on the processor and on each card. With --cluster it
/// measures a group of ranks instead.
#[derive(Args, Debug)]
pub struct Doctor {
    /// Where NVIDIA's run-time compiler (libnvrtc) is, if it is not installed
    #[arg(long, value_name = "FOLDER")]
    pub nvrtc: Option<PathBuf>,
    /// A group.
    #[command(flatten)]
    pub test: ClusterTest,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// `synth`
///
/// The same flags give the same file, and what the model says is noise. A full model of the q2 mix
/// has 81 GiB; with --alias 2 the file has 5 GiB, and a card still gets all 81.
#[derive(Args, Debug)]
pub struct Synth {
    /// The file to make
    pub output: PathBuf,
    /// Whose numbers it has
    #[arg(long, value_name = "NAME", default_value = "reduced")]
    pub shape: SynthShape,
    /// Formats of the experts; dense matrices are Q8_0
    #[arg(long, value_name = "NAME", default_value = "q2")]
    pub mix: SynthMix,
    /// Only the first N layers
    #[arg(long, value_name = "N")]
    pub layers: Option<usize>,
    /// Only N experts a layer
    #[arg(long, value_name = "N")]
    pub experts: Option<usize>,
    /// Only N layers of each kind have data of their own, the others share it
    #[arg(long, value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub alias: Option<usize>,
    /// Seed of the random values
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also write a next-token block, to measure what guesses cost; they are noise
    #[arg(long, value_name = "FILE")]
    pub mtp: Option<PathBuf>,
    /// Also write a prompt of varied tokens
    #[arg(long, value_name = "FILE")]
    pub prompt: Option<PathBuf>,
    /// Tokens of that prompt, about
    #[arg(long, value_name = "N", default_value_t = 70_000)]
    pub prompt_tokens: usize,
    /// Replace OUTPUT if it exists
    #[arg(long)]
    pub force: bool,
}

/// A random model.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// Whose numbers it has.
    pub shape: SynthShape,
    /// Formats of the experts.
    pub mix: SynthMix,
    /// Only the first so many layers.
    pub layers: Option<usize>,
    /// Only so many experts a layer.
    pub experts: Option<usize>,
    /// Only so many layers of each kind have data of their own.
    pub alias: Option<usize>,
    /// Seed of the values.
    pub seed: u64,
}

impl Synth {
    /// What is made.
    pub fn random(&self) -> Random {
        let Synth { shape, mix, layers, experts, alias, seed, .. } = *self;
        Random { shape, mix, layers, experts, alias, seed }
    }
}

/// Shapes by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SynthShape {
    /// DeepSeek V4 Flash.
    Flash,
    /// DeepSeek V4 PRO.
    Pro,
    /// Flash in small: every kind of layer.
    Reduced,
    /// One layer of each kind, a few megabytes: for tools that check every access of a device.
    Tiny,
}

/// Formats of the experts by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SynthMix {
    /// Gate and up IQ2_XXS, down Q2_K.
    Q2,
    /// Q4_K.
    Q4,
    /// MXFP4.
    Mxfp4,
}
