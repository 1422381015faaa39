//! `cargo xtask mpi-check`: the transport over MPI, which CI does not build.
//!
//! The suites of links and of faults run with both ends in one process, which MPI lets send to
//! itself. Then `mpirun` starts two ranks of the nano model, whose answer must be that of one
//! process without MPI.

use crate::ci::{finish, target_folder};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

const PACKAGE: &str = "openmpi-bin";
const PROMPT: &str = "Tell me a story.";

/// Runs all of it.
pub fn run(root: &Path) -> Result<()> {
    install()?;
    let mut suite = Command::new("cargo");
    suite.args(["test", "-p", "ironstar-cluster", "--features", "mpi", "--test", "suite", "--"]);
    finish(suite.args(["links::", "faults::", "streams::"]).current_dir(root))?;
    let mut build = Command::new("cargo");
    build.args(["build", "-p", "ironstar-cli", "--features", "mpi"]);
    finish(build.current_dir(root))?;
    let program = target_folder(root)?.join("debug/ironstar");
    let words = ["run", "-p", PROMPT, "-n", "24", "--temp", "0", "--threads", "1"];
    let alone = answer(Command::new(&program).args(words))?;
    let mut ranks = Command::new("mpirun");
    // Two ranks on whatever cores there are, and as whatever user.
    ranks.args(["-np", "2", "--oversubscribe", "--allow-run-as-root"]).arg(&program);
    let shared = answer(ranks.args(words).args(["--ranks", "auto", "--transport", "mpi"]))?;
    if alone.is_empty() || shared != alone {
        bail!("two ranks over MPI answer {shared:?}, and one process {alone:?}");
    }
    println!("mpi-check: two ranks by mpirun answer as one process: ok");
    Ok(())
}

/// Has `mpirun` and its library, by the system's packages if need be.
fn install() -> Result<()> {
    if Command::new("mpirun").arg("--version").output().is_ok_and(|out| out.status.success()) {
        return Ok(());
    }
    let mut get = Command::new("apt-get");
    get.args(["install", "-y", "--no-install-recommends", PACKAGE]);
    finish(&mut get).with_context(|| format!("there is no mpirun; install {PACKAGE}"))
}

/// What a command prints.
fn answer(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} could not be started"))?;
    if !output.status.success() {
        bail!("{name} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}
