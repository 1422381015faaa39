//! Python packages of other people in environments of their own; each is made once for a list.

use crate::ci::finish;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter of an environment that has these packages and what they need, or, with
/// `--no-deps` among the options of pip, these alone.
pub fn python(environment: &Path, packages: &[&str], options: &[&str]) -> Result<PathBuf> {
    let (python, done) = (environment.join("bin/python"), environment.join("made-of.txt"));
    let wanted = packages.join("\n");
    if std::fs::read_to_string(&done).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    let mut create = Command::new("python3");
    create.args(["-m", "venv", "--clear"]).arg(environment);
    finish(&mut create).context("python3 with venv is missing; on Debian: python3-venv")?;
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    install.args(options).args(packages);
    finish(&mut install).with_context(|| format!("{wanted} could not be installed"))?;
    std::fs::write(&done, wanted)?;
    Ok(python)
}
