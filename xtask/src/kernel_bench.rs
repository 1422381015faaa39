//! `cargo xtask kernel-bench`: builds the example that measures kernels alone, and runs it where
//! there is a card. Elsewhere it says where the binary lies, which needs nothing but a driver.

use crate::ci;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// Runs the command; the words go to the example.
pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "-p", "ironstar-device", "--example", "kernel_bench"]);
    if !build.current_dir(root).status()?.success() {
        bail!("the example was not built");
    }
    let binary = ci::target_folder(root)?.join("release/examples/kernel_bench");
    if !Command::new(&binary).args(words).current_dir(root).status()?.success() {
        bail!(
            "nothing was measured; on a machine without a card, carry {} to one that has a driver",
            binary.display()
        );
    }
    Ok(())
}
