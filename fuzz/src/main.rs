//! The fuzz driver. `--list` names the targets; without `--target` every one runs.
//!
//! Each target runs in a process of its own. Panics, slow inputs and greedy inputs are caught
//! inside it; what kills a process (a stack that overflows) is seen from outside, and the same
//! session is run again with every input written down first.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

mod options;
mod worker;

use ironstar_fuzz::{Counting, TARGETS, find};
use options::Options;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};

#[global_allocator]
static MEMORY: Counting = Counting::new();

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match Options::parse(&words).and_then(|options| run(&options, &words)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("fuzz: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options, words: &[String]) -> Result<(), String> {
    if options.list {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        return Ok(());
    }
    if let Some(folder) = &options.export {
        return export(folder).map_err(|e| format!("{}: {e}", folder.display()));
    }
    if options.worker {
        let name = options.target.as_deref().unwrap_or_default();
        let target = find(name).ok_or_else(|| format!("no target `{name}`; see --list"))?;
        return worker::run(target, options, &MEMORY);
    }
    match &options.target {
        Some(name) => supervise(name, options, words),
        None => every(options, words),
    }
}

/// Runs all targets, so many at a time as was asked for; a lane stops at its first fault.
fn every(options: &Options, words: &[String]) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    let lane = || {
        while let Some(target) = TARGETS.get(next.fetch_add(1, Ordering::Relaxed)) {
            supervise(target.name, options, words)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> =
            (0..options.jobs.clamp(1, TARGETS.len())).map(|_| scope.spawn(lane)).collect();
        let stopped = |_| Err("a thread of the driver panicked".to_owned());
        lanes.into_iter().try_for_each(|lane| lane.join().unwrap_or_else(stopped))
    })
}

/// Writes the seeds as files, a folder for each target.
fn export(folder: &Path) -> std::io::Result<()> {
    for target in TARGETS {
        std::fs::create_dir_all(folder.join(target.name))?;
        for (index, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(folder.join(target.name).join(format!("seed-{index}")), seed)?;
        }
    }
    Ok(())
}

/// Runs one target in its own process; finds the input that killed it, if one did.
fn supervise(name: &str, options: &Options, words: &[String]) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find myself: {e}"))?;
    let worker = |more: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words).args(["--worker", "--target", name]).args(more);
        command.status().map_err(|e| format!("cannot start a worker: {e}"))
    };
    let status = worker(&[])?;
    if status.success() {
        return Ok(());
    }
    if status.code().is_some() {
        return Err(format!("target {name} failed"));
    }
    eprintln!("fuzz: {name}: the process died ({status}); running again to see at which input");
    let trace: PathBuf = options.artifacts(name).join("died.bin");
    std::fs::create_dir_all(options.artifacts(name)).map_err(|e| format!("artifacts: {e}"))?;
    worker(&["--trace", &trace.to_string_lossy()])?;
    Err(format!("target {name} died; the input is in {}", trace.display()))
}
