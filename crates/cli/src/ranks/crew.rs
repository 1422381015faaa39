//! The other ranks of this machine: what starts them, looks after them, and ends them.

use super::{Group, note};
use crate::failure::Failure;
use crate::flags::{self, BackendName};
use clap::ValueEnum;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it is looked whether all ranks live.
const LOOK: Duration = Duration::from_millis(50);
/// How often a rank that dies is started again.
const RESTARTS_MAX: usize = 16;
/// How long ranks may take to end by themselves, and then by the end of their input.
const ENDING: Duration = Duration::from_millis(1500);

/// The command of each rank above 0.
pub fn commands(
    flags: &flags::Model,
    group: &Group,
    address: SocketAddr,
    threads: usize,
) -> Result<Vec<Command>, Failure> {
    let make = |command: &mut Command| {
        let chunk = flags.backend.chunk(flags.prefill_chunk);
        command.args(["--prefill-chunk", &chunk.to_string()]);
        command.args(["--numerics", &value_name(flags.numerics)]);
        if group.layers.is_some() || flags.backend == BackendName::Cuda {
            command.args(["--backend", &value_name(flags.backend)]);
        }
        if let Some(isa) = flags.isa {
            command.args(["--isa", &value_name(isa)]);
        }
        let paths = [
            ("--model", &flags.model),
            ("--mtp-model", &flags.mtp_model),
            ("--rank-key-file", &group.key_file),
        ];
        add_paths(command, &paths);
        command.args(flags.ranks.rdma.words());
    };
    let mut all = rank_commands(&["worker"], group.ranks, address, threads, make)?;
    for (command, device) in all.iter_mut().zip(flags.ranks.devices.iter().skip(1)) {
        command.args(["--device", &device.to_string()]);
    }
    if group.layers.is_some() && flags.backend != BackendName::Cpu {
        for (at, command) in all.iter_mut().enumerate() {
            command.args(["--device", &super::cards::of_node(at + 1).to_string()]);
        }
    }
    Ok(all)
}

/// This program as each rank above 0 of a group that meets at `address`: with these first words,
/// its place, and what `more` adds. It ends with its input.
pub fn rank_commands(
    words: &[&str],
    ranks: usize,
    address: SocketAddr,
    threads: usize,
    more: impl Fn(&mut Command),
) -> Result<Vec<Command>, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::environment(format!("finding this program: {error}")))?;
    let make = |rank: usize| {
        let mut command = Command::new(&program);
        command.args(words).args(["--tied", "--join", &address.to_string()]);
        command.args(["--rank", &rank.to_string(), "--threads", &threads.to_string()]);
        more(&mut command);
        // Ctrl-C is for rank 0, which ends the others.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command
    };
    Ok((1..ranks).map(make).collect())
}

/// Flags with the paths that are there.
pub fn add_paths(command: &mut Command, paths: &[(&str, &Option<PathBuf>)]) {
    for (flag, path) in paths {
        if let Some(path) = path {
            command.arg(flag).arg(path);
        }
    }
}

fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}

/// The other ranks of this machine, and a thread that looks after them.
pub struct Crew {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Crew {
    /// Starts a process for each command.
    pub fn start(mut commands: Vec<Command>) -> Result<Crew, Failure> {
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
        // One that ended in peace was told to, or saw rank 0 end a moment before this thread does.
        if over.load(Ordering::Relaxed) || *restarts >= RESTARTS_MAX || status.success() {
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
