//! Starts the fuzz driver (package `ironstar-fuzz`), which knows the targets and the flags.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// Builds and runs the driver with the flags as they were given.
pub fn run(root: &Path, flags: &[&str]) -> Result<()> {
    let status = Command::new("cargo")
        .args(["run", "--quiet", "--package", "ironstar-fuzz", "--"])
        .args(flags)
        .current_dir(root)
        .status()
        .context("cargo could not be started")?;
    if !status.success() {
        bail!("fuzzing found a fault or could not run ({status})");
    }
    Ok(())
}
