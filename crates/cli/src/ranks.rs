//! Several processes on one model: what rank 0 does to have the others, and what they have in
//! common with it.
//!
//! With `--ranks N` rank 0 starts the other ranks itself, as `ironstar worker` of the same file,
//! and starts one again that has died. Its group then forms anew at the next request.

use crate::failure::Failure;
use crate::flags::{self, BackendName, Ranks, TransportName};
use crate::loading::{self, Opened};
use clap::ValueEnum;
use ironstar_cluster::{Cluster, Deadlines, Identity, Key, Settings, Transport};
use ironstar_device::{
    Backend, Cpu, CpuConfig, Exchange, ExchangeError, GateCounts, GateKind, Part,
};
use ironstar_engine::EngineOptions;
use ironstar_model::deepseek_v4::{rank_plan, tensor_specs};
use ironstar_model::{Fingerprint, Shape};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long all ranks may take to load their parts.
pub const LOADING: Duration = Duration::from_secs(1800);
/// How long a request waits for a rank that has to be started again.
const FORM_HERE: Duration = Duration::from_secs(10);
/// The same, where people start ranks on other machines.
const FORM_AWAY: Duration = Duration::from_secs(120);
/// How often it is looked whether all ranks live.
const LOOK: Duration = Duration::from_millis(50);
/// How often a rank that dies is started again.
const RESTARTS_MAX: usize = 16;
/// How long ranks may take to end by themselves, and then by the end of their input.
const ENDING: Duration = Duration::from_millis(1500);

/// A backend that is rank 0 of the group that the flags want, with its other ranks.
pub fn lead(
    flags: &flags::Model,
    opened: &Opened,
    options: &EngineOptions,
) -> Result<Box<dyn Backend>, Failure> {
    let group = &flags.ranks;
    if flags.backend == BackendName::Cuda {
        return Err(Failure::caller(
            "--ranks shares a model among processors so far; leave out --backend cuda",
        ));
    }
    check(opened, group.ranks)?;
    let address = group.listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let transport = match group.transport {
        TransportName::Shm => Transport::Shm,
        TransportName::Tcp => Transport::Tcp,
    };
    let form = if group.listen.is_some() { FORM_AWAY } else { FORM_HERE };
    let settings = settings(opened, group.rank_key_file.as_deref(), form)?;
    let hub = Cluster::bind(address, group.ranks, transport, settings).map_err(failure)?;
    let threads = options.threads.max(1) / group.ranks;
    let threads = threads.max(1);
    let crew = match group.listen {
        None => Some(Crew::start(commands(flags, hub.address(), threads)?)?),
        Some(_) => {
            note(&format!("waiting for {} ranks at {}", group.ranks - 1, hub.address()));
            None
        }
    };
    let led = Led { cluster: Cluster::lead(hub).map_err(failure)?, _crew: crew };
    let (isa, float_products) = (options.isa, options.float_products);
    let own = if crew_is_here(group) { threads } else { options.threads };
    let cpu = Cpu::new(CpuConfig { threads: own, isa, float_products });
    let cpu = cpu.map_err(|error| Failure::environment(error.to_string()))?;
    Ok(Box::new(cpu.with_exchange(Box::new(led))))
}

fn crew_is_here(group: &Ranks) -> bool {
    group.listen.is_none()
}

/// Refuses a rank count that the model does not allow.
fn check(opened: &Opened, ranks: usize) -> Result<(), Failure> {
    let named = |error| loading::in_file(&opened.name, loading::from_model(error));
    let shape = Shape::from_metadata(opened.gguf.metadata()).map_err(named)?;
    let specs = tensor_specs(&shape);
    rank_plan(&opened.gguf, &shape, &specs, Part { rank: 0, ranks }).map_err(named)?;
    Ok(())
}

/// What a rank must know of its group.
pub fn settings(opened: &Opened, key: Option<&Path>, form: Duration) -> Result<Settings, Failure> {
    let key = match key {
        None => None,
        Some(path) => {
            let text = crate::commands::read_text(path)?;
            let key = Key::from_hex(&text);
            Some(key.map_err(|e| Failure::caller(format!("{}: {e}", path.display())))?)
        }
    };
    let mut print = Fingerprint::default();
    for gguf in std::iter::once(&opened.gguf).chain(&opened.drafter) {
        for tensor in gguf.tensors() {
            let line = format!("{} {} {:?}", tensor.name, tensor.kind.name(), tensor.dims);
            print.add(line.as_bytes());
        }
    }
    let identity = Identity {
        model: print.to_string(),
        layout: "eight shards".into(),
        build: env!("CARGO_PKG_VERSION").into(),
    };
    let deadlines = Deadlines { form, ..Deadlines::default() };
    Ok(Settings { identity, key, deadlines, ..Settings::default() })
}

/// The blame of a group that was not formed.
pub fn failure(error: ironstar_cluster::Error) -> Failure {
    match error {
        ironstar_cluster::Error::Settings { .. } => Failure::caller(error.to_string()),
        _ => Failure::environment(error.to_string()),
    }
}

/// A line on standard error.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "ironstar: {text}");
}

/// The command of each rank above 0.
fn commands(
    flags: &flags::Model,
    address: SocketAddr,
    threads: usize,
) -> Result<Vec<Command>, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::environment(format!("finding this program: {error}")))?;
    let make = |rank: usize| {
        let mut command = Command::new(&program);
        command.args(["worker", "--tied", "--join", &address.to_string()]);
        command.args(["--rank", &rank.to_string(), "--threads", &threads.to_string()]);
        command.args(["--prefill-chunk", &flags.prefill_chunk.to_string()]);
        command.args(["--numerics", &value_name(flags.numerics)]);
        if let Some(isa) = flags.isa {
            command.args(["--isa", &value_name(isa)]);
        }
        for (flag, path) in [
            ("--model", &flags.model),
            ("--mtp-model", &flags.mtp_model),
            ("--rank-key-file", &flags.ranks.rank_key_file),
        ] {
            if let Some(path) = path {
                command.arg(flag).arg(path);
            }
        }
        // Ctrl-C is for rank 0, which ends the others.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command
    };
    Ok((1..flags.ranks.ranks).map(make).collect())
}

fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}

/// The other ranks of this machine, and a thread that looks after them.
struct Crew {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Crew {
    fn start(mut commands: Vec<Command>) -> Result<Crew, Failure> {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut children = Vec::with_capacity(commands.len());
        for command in &mut commands {
            match command.spawn() {
                Ok(child) => children.push(child),
                Err(error) => {
                    end(&mut children);
                    return Err(Failure::environment(format!("starting a rank: {error}")));
                }
            }
        }
        let over = is_over.clone();
        let watch = move || {
            let mut restarts = 0;
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
                look_after(&mut commands, &mut children, &mut restarts, &over);
            }
            end(&mut children);
        };
        let thread = std::thread::Builder::new().name("crew".into()).spawn(watch);
        let thread =
            thread.map_err(|error| Failure::environment(format!("starting a thread: {error}")))?;
        Ok(Crew { is_over, thread: Some(thread) })
    }
}

/// Starts again what has died.
fn look_after(
    commands: &mut [Command],
    children: &mut [Child],
    restarts: &mut usize,
    over: &AtomicBool,
) {
    for (at, (command, child)) in commands.iter_mut().zip(children).enumerate() {
        let Ok(Some(status)) = child.try_wait() else { continue };
        if over.load(Ordering::Relaxed) || *restarts >= RESTARTS_MAX {
            continue;
        }
        *restarts += 1;
        let rank = at + 1;
        match command.spawn() {
            Ok(fresh) => {
                note(&format!("rank {rank} ended ({status}) and was started again"));
                *child = fresh;
            }
            Err(error) => note(&format!("rank {rank} ended ({status}) and cannot start: {error}")),
        }
    }
}

/// Waits until all have ended; who does not is ended.
fn end(children: &mut [Child]) {
    let all_end = |children: &mut [Child]| {
        let start = Instant::now();
        loop {
            if children.iter_mut().all(|child| !matches!(child.try_wait(), Ok(None))) {
                return true;
            }
            if start.elapsed() >= ENDING {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    if all_end(children) {
        return;
    }
    // A rank that is tied to this process ends with its input.
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    if all_end(children) {
        return;
    }
    for child in children {
        // One that has ended meanwhile cannot be ended.
        let _ended = child.kill();
        let _gone = child.wait();
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell.
            let _ended = thread.join();
        }
    }
}

/// Rank 0's end of the group; the ranks that it started live as long.
struct Led {
    cluster: Cluster,
    _crew: Option<Crew>,
}

impl Exchange for Led {
    fn rank(&self) -> usize {
        self.cluster.rank()
    }

    fn ranks(&self) -> usize {
        self.cluster.ranks()
    }

    fn post(&mut self, gate: GateKind, mine: &[u8]) -> Result<(), ExchangeError> {
        self.cluster.post(gate, mine)
    }

    fn wait(&mut self, all: &mut [u8]) -> Result<(), ExchangeError> {
        self.cluster.wait(all)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
        self.cluster.broadcast(bytes)
    }

    fn abort(&mut self, reason: &str) {
        self.cluster.abort(reason);
    }

    fn reform(&mut self) -> Result<u64, ExchangeError> {
        self.cluster.reform()
    }

    fn epoch(&self) -> u64 {
        self.cluster.epoch()
    }

    fn counts(&self) -> GateCounts {
        self.cluster.counts()
    }
}
