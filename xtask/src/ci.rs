//! `cargo xtask ci`: every check, in order of what fails fastest, each with its time.
//!
//! Three kinds of build are made and no more: check (clippy and rustdoc share it), dev (tests and
//! the fuzz driver) and release (the binary). One target folder holds all of them.

use crate::{clients, kernel_check, metal_check, suites, tidy, verbs_check};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Seconds of fuzzing for each target, and targets at the same time: each needs one processor.
const FUZZ_SECONDS: &str = "3";
const FUZZ_JOBS: &str = "2";
/// What an answer of the smoke run has at least, in bytes of text.
const ANSWER_BYTES: usize = 20;

type Work = fn(&Path) -> Result<()>;
type Step = (&'static str, &'static str, Work);

const STEPS: [Step; 12] = [
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
    ("release", "the release build of the binary", release),
    ("smoke", "the first command of README.md answers, from any folder", smoke),
    ("clients", "SDKs, an agent, made-up requests and a browser against the server", clients),
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

fn release(root: &Path) -> Result<()> {
    cargo(root, &["build", "--release"], &[])
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

/// The words after `cargo run --release --` in README's first command, given to the binary in a
/// folder that is not the project's.
fn smoke(root: &Path) -> Result<()> {
    let readme = std::fs::read_to_string(root.join("README.md")).context("README.md")?;
    let command = readme
        .lines()
        .find_map(|line| line.trim().strip_prefix("cargo run --release -- "))
        .context("README.md shows no `cargo run --release -- ..`")?;
    let elsewhere = target_folder(root)?.join("smoke");
    std::fs::create_dir_all(&elsewhere)?;
    let begun = Instant::now();
    let output = Command::new(target_folder(root)?.join("release").join("ironstar"))
        .args(shell_words(command)?)
        .current_dir(&elsewhere)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("the release binary could not be started")?;
    let answer = String::from_utf8(output.stdout).context("the answer is not UTF-8")?;
    println!("{}", answer.trim_end());
    if !output.status.success() {
        bail!("`ironstar {command}` ended with {}", output.status);
    }
    if answer.trim().len() < ANSWER_BYTES {
        bail!("`ironstar {command}` printed {} bytes, which is no answer", answer.trim().len());
    }
    println!("ci: smoke: `ironstar {command}` took {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Uses the binary of the release step.
fn clients(root: &Path) -> Result<()> {
    clients::run(root, &target_folder(root)?)
}

/// Splits at spaces, with double quotes as the only other syntax.
fn shell_words(text: &str) -> Result<Vec<String>> {
    let parts: Vec<&str> = text.split('"').collect();
    if parts.len().is_multiple_of(2) {
        bail!("`{text}` has an open quote");
    }
    let mut words = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_string)),
            _ => words.push(part.to_string()),
        }
    }
    Ok(words)
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

#[cfg(test)]
mod tests {
    use super::shell_words;

    #[test]
    fn words_of_a_command_line() {
        let words = shell_words("run -p \"Tell me a story.\" -n 3").expect("quotes are closed");
        assert_eq!(words, ["run", "-p", "Tell me a story.", "-n", "3"]);
        assert!(shell_words("run -p \"open").is_err());
    }
}
