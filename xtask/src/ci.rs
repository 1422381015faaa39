//! `cargo xtask ci`: every check, in order of what fails fastest, each with its time.
//!
//! Two kinds of build are made and no more: check (clippy and rustdoc share it) and dev (tests, the
//! fuzz driver and the binary that answers). One target folder holds both. The release build, which
//! takes as long again as a fifth of all this, has its own command: [`release`].

use crate::{clients, kernel_check, metal_check, smoke, suites, tidy, verbs_check};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Seconds of fuzzing for each target, and targets at the same time: each needs one processor.
const FUZZ_SECONDS: &str = "3";
const FUZZ_JOBS: &str = "2";

type Work = fn(&Path) -> Result<()>;
type Step = (&'static str, &'static str, Work);

const STEPS: [Step; 11] = [
    ("fmt", "cargo fmt --check", fmt),
    ("tidy", "the rules of the house", tidy::run),
    (
        "verbs",
        "RDMA structures against rdma-core's header, its programs on the fake provider",
        verbs,
    ),
    ("clippy", "clippy on everything, warnings are errors", clippy),
    ("doc", "rustdoc without warnings", doc),
    ("metal", "the Metal spelling of the kernels has no errors", metal_check::run),
    ("kernels", "the kernels compile for every CUDA architecture", kernel_check::run),
    ("test", "all tests of the workspace", suites::run),
    ("fuzz", "every fuzz target for a few seconds", fuzz),
    ("smoke", "the first command of README.md answers, from any folder", answers),
    ("clients", "SDKs, an agent, made-up requests and a browser against the server", serves),
];

/// What steps need of other people's packages. Fetching is waiting for others, so it is done while
/// the first steps build; where it fails the step says so.
const FETCHES: [(&str, Work); 3] = [
    ("metal", |root| metal_check::fetch(root).map(drop)),
    ("kernels", |root| kernel_check::fetch(root).map(drop)),
    ("clients", clients::fetch),
];

/// Prints the steps.
pub fn list() -> Result<()> {
    for (name, what, _) in STEPS {
        println!("{name:8} {what}");
    }
    Ok(())
}

/// Runs all steps, or the one named; stops at the first that fails.
pub fn run(root: &Path, only: Option<&str>) -> Result<()> {
    let chosen: Vec<Step> =
        STEPS.iter().filter(|step| only.is_none_or(|name| name == step.0)).copied().collect();
    if chosen.is_empty() {
        let names: Vec<&str> = STEPS.iter().map(|step| step.0).collect();
        bail!("no step `{}`; there are: {}", only.unwrap_or(""), names.join(", "));
    }
    let start = Instant::now();
    let mut times = Vec::new();
    let mut fetching: Vec<_> = FETCHES
        .into_iter()
        .filter(|(name, _)| chosen.iter().any(|step| step.0 == *name))
        .map(|(name, fetch)| {
            let root = root.to_path_buf();
            (name, std::thread::spawn(move || fetch(&root)))
        })
        .collect();
    for (name, what, step) in chosen {
        println!("ci: {name}: {what}");
        let begun = Instant::now();
        if let Some(at) = fetching.iter().position(|fetch| fetch.0 == name) {
            let _told_by_the_step = fetching.swap_remove(at).1.join();
        }
        step(root).with_context(|| {
            format!("step {name} failed; to repeat it alone: cargo xtask ci --only {name}")
        })?;
        times.push(format!("{name} {:.0} s", begun.elapsed().as_secs_f64()));
        println!("ci: {name}: ok in {:.1} s", begun.elapsed().as_secs_f64());
    }
    println!("ci: {} (all {:.0} s)", times.join(", "), start.elapsed().as_secs_f64());
    println!("ci: ok");
    Ok(())
}

fn fmt(root: &Path) -> Result<()> {
    component(root, "fmt", "rustfmt")?;
    cargo(root, &["fmt", "--all", "--check"], &[])
}

fn clippy(root: &Path) -> Result<()> {
    component(root, "clippy", "clippy")?;
    cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])
}

fn doc(root: &Path) -> Result<()> {
    let flags = [("RUSTDOCFLAGS", "-D warnings")];
    cargo(root, &["doc", "--workspace", "--no-deps", "--document-private-items"], &flags)
}

fn verbs(root: &Path) -> Result<()> {
    verbs_check::run(root, None)
}

/// The release build, and what the last two steps do with it.
pub fn release(root: &Path) -> Result<()> {
    cargo(root, &["build", "--release"], &[])?;
    let binary = target_folder(root)?.join("release").join("ironstar");
    smoke::run(root, &binary, Some(smoke::FIRST_TEXT_MAX))?;
    clients::run(root, &binary)
}

/// Runs the driver that the test step built, so that nothing is built with other features.
fn fuzz(root: &Path) -> Result<()> {
    let driver = target_folder(root)?.join("debug").join("ironstar-fuzz");
    if !driver.exists() {
        cargo(root, &["build", "--package", "ironstar-fuzz"], &[])?;
    }
    let mut command = Command::new(&driver);
    finish(command.args(["--seconds", FUZZ_SECONDS, "--jobs", FUZZ_JOBS]).current_dir(root))
}

fn answers(root: &Path) -> Result<()> {
    smoke::run(root, &dev_binary(root)?, None)
}

fn serves(root: &Path) -> Result<()> {
    clients::run(root, &dev_binary(root)?)
}

/// The binary that the test step built.
fn dev_binary(root: &Path) -> Result<PathBuf> {
    let binary = target_folder(root)?.join("debug").join("ironstar");
    if !binary.exists() {
        cargo(root, &["build"], &[])?;
    }
    Ok(binary)
}

/// Where cargo builds.
pub fn target_folder(root: &Path) -> Result<PathBuf> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root)
        .output()
        .context("cargo could not be started")?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    metadata["target_directory"].as_str().map(PathBuf::from).context("cargo names no target folder")
}

/// Says what to install where a part of the toolchain is missing.
fn component(root: &Path, subcommand: &str, component: &str) -> Result<()> {
    let mut version = Command::new("cargo");
    version.args([subcommand, "--version"]).current_dir(root);
    let output = version.output().context("cargo could not be started")?;
    if !output.status.success() {
        bail!("`cargo {subcommand}` is missing; install it: rustup component add {component}");
    }
    Ok(())
}

fn cargo(root: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(arguments).envs(environment.iter().copied()).current_dir(root);
    finish(&mut command)
}

/// Runs a command that must succeed.
pub fn finish(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("{name} could not be started"))?;
    if !status.success() {
        let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
        bail!("`{name} {}` ended with {status}", words.join(" "));
    }
    Ok(())
}
