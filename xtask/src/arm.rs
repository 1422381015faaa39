//! `cargo xtask arm`: the processor backend's tests compiled for Arm and run under an emulator.
//!
//! It shows that the kernels for Arm give the bits of the scalar loops; it says nothing of speed.

use crate::ci::finish;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// The emulator, with Debian's libraries for the target. Its default processor has the dot product
/// and the matrix extension.
const RUNNER: &str = "qemu-aarch64 -L /usr/aarch64-linux-gnu";
/// What is run: formats and operations on every instruction set that the processor has.
const TESTS: [&str; 4] = ["cpu::product", "cpu::packed", "cpu::codes", "cpu::isa"];

/// Runs the command.
pub fn run(root: &Path) -> Result<()> {
    needed()?;
    let mut test = Command::new("cargo");
    test.args(["test", "--package", "ironstar-device", "--no-default-features", "--lib"])
        .args(["--target", TARGET, "--"])
        .args(TESTS)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", RUNNER)
        .current_dir(root);
    finish(&mut test)
}

/// Says what to install.
fn needed() -> Result<()> {
    let mut library = Command::new("rustc");
    library.args(["--print", "target-libdir", "--target", TARGET]);
    let printed = library.output().context("rustc could not be started")?;
    let folder = PathBuf::from(String::from_utf8_lossy(&printed.stdout).trim());
    if !folder.is_dir() {
        bail!("no standard library for {TARGET}: rustup target add {TARGET}");
    }
    for (program, package) in [(LINKER, "gcc-aarch64-linux-gnu"), ("qemu-aarch64", "qemu-user")] {
        if Command::new(program).arg("--version").output().is_err() {
            bail!("{program} is missing: apt-get install {package}");
        }
    }
    Ok(())
}
