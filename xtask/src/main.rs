//! Developer commands, run as `cargo xtask NAME`.
//!
//! It knows the tree, cargo and git, and nothing of models: it must build in seconds and link no
//! crate of the product. Start reading at [`run`]; `tidy/mod.rs` lists the rules of the house.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

mod arm;
mod cards;
mod ci;
mod clients;
mod flaky;
mod fuzz;
mod kernel_bench;
mod kernel_check;
mod metal_check;
mod mpi_check;
mod packages;
mod peer_bench;
mod smoke;
mod suites;
mod tidy;
mod verbs_check;

use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask ci [--only STEP] [--list]
    Everything a change must pass, in order; stops at the first step that fails.
cargo xtask release
    The release build: README's first command soon and in little memory, clients against its server.
cargo xtask tidy [--root DIR]
    The rules of the house that no compiler checks. Exceptions: xtask/tidy-exceptions.txt.
cargo xtask kernel-check
    The CUDA kernels through NVRTC for every architecture, with registers and spills; no GPU.
cargo xtask kernel-bench [NAME] [--rows N,N] [--rounds N] [--disable NAME] [--list]
    Operations at Flash's sizes alone on a card, kernel by kernel, against what bounds them.
cargo xtask metal-check
    The Metal spelling of the kernels through clang's front end; no Mac.
cargo xtask verbs-check [--prefix DIR]
    Our structures of libibverbs against its header, and its pingpong programs on our fake of it.
cargo xtask mpi-check
    Links over MPI through their suite, and two ranks of the nano model by mpirun; installs it.
cargo xtask cards [--count N]
    A script that measures all of one card, or of several of a host; it is run where they are.
cargo xtask arm
    The processor backend's tests for Arm, under an emulator.
cargo xtask peer-bench [--quick] [--json] [--keep] [--mix NAME] [--threads N] [--prefill N]
    Our binary and the CPU engine that people use, on the same files, in processor seconds.
cargo xtask clients [pi] [claude] [codex] [opencode]
    Coding agents, fetched by npm, against the release binary with prepared answers.
cargo xtask flaky CRATE [--runs N] [--busy N] [--seed N] [-- ARGS]
    Test programs of a package that are stopped at random moments; what fails has a clock in it.
cargo xtask fuzz [--target NAME] [--jobs N] [--seconds N] [--seed N] [--list] [--export DIR]
    Mutated inputs for every parser of outside bytes; docs/testing.md says more.";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let root = project_root()?;
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["ci"] => ci::run(&root, None),
        ["ci", "--list"] => ci::list(),
        ["ci", "--only", step] => ci::run(&root, Some(step)),
        ["release"] => ci::release(&root),
        ["tidy"] => tidy::run(&root),
        ["tidy", "--root", folder] => tidy::run(&PathBuf::from(folder)),
        ["kernel-check"] => kernel_check::run(&root),
        ["kernel-bench", rest @ ..] => kernel_bench::run(&root, rest),
        ["metal-check"] => metal_check::run(&root),
        ["verbs-check"] => verbs_check::run(&root, None),
        ["verbs-check", "--prefix", folder] => {
            verbs_check::run(&root, Some(&PathBuf::from(folder)))
        }
        ["cards"] => cards::run("1"),
        ["cards", "--count", count] => cards::run(count),
        ["mpi-check"] => mpi_check::run(&root),
        ["arm"] => arm::run(&root),
        ["peer-bench", rest @ ..] => peer_bench::run(&root, rest),
        ["clients", names @ ..] => clients::agents(&root, names),
        ["flaky", rest @ ..] => flaky::run(&root, rest),
        ["fuzz", rest @ ..] => fuzz::run(&root, rest),
        [] | ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        other => bail!("`{}` is not a command; these are:\n{HELP}", other.join(" ")),
    }
}

/// The folder above xtask's own, so that the commands work from anywhere in the tree.
fn project_root() -> Result<PathBuf> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("xtask lies in a folder of the project")?.to_path_buf())
}
