//! Packages of other people, pinned, in folders of the target; each is fetched once for a list.

use super::FOLDER;
use crate::ci::finish;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders with what the checks need.
pub struct Packages {
    /// A virtual environment.
    venv: PathBuf,
    /// A folder whose `node_modules` have the AI SDK.
    pub ai: PathBuf,
    /// A folder whose `node_modules` have the agent that CI runs.
    pub agents: PathBuf,
}

impl Packages {
    /// What the step of CI needs.
    pub fn fetch(root: &Path, target: &Path) -> Result<Packages> {
        let folder = root.join(FOLDER);
        let agents = folder.join("agents").join("package.json");
        let pi = "@mariozechner/pi-coding-agent";
        let manifest: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(agents)?)?;
        let version = manifest["dependencies"][pi].as_str().context("pi has no version")?;
        let only_pi = serde_json::json!({"private": true, "dependencies": {pi: version}});
        Ok(Packages {
            venv: environment(&folder, target)?,
            ai: modules(
                &target.join("clients-ai"),
                &std::fs::read_to_string(folder.join("package.json"))?,
                Some(&std::fs::read_to_string(folder.join("package-lock.json"))?),
            )?,
            agents: modules(&target.join("clients-pi"), &only_pi.to_string(), None)?,
        })
    }

    /// The folder with all agents.
    pub fn fetch_agents(root: &Path, target: &Path) -> Result<PathBuf> {
        let manifest = root.join(FOLDER).join("agents").join("package.json");
        modules(&target.join("clients-agents"), &std::fs::read_to_string(manifest)?, None)
    }

    /// A program of the virtual environment.
    pub fn python(&self, name: &str) -> PathBuf {
        self.venv.join("bin").join(name)
    }
}

/// Python with the packages that are wanted.
fn environment(folder: &Path, target: &Path) -> Result<PathBuf> {
    let list = folder.join("requirements.txt");
    let wanted = std::fs::read_to_string(&list)?;
    let home = target.join("clients-venv");
    if is_made_of(&home, &wanted) {
        return Ok(home);
    }
    let mut make = Command::new("python3");
    finish(make.args(["-m", "venv", "--clear"]).arg(&home))
        .context("python3 with its venv module is needed (Debian: apt-get install python3-venv)")?;
    let mut install = Command::new(home.join("bin").join("python"));
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]);
    finish(install.arg(list))?;
    std::fs::write(home.join(STAMP), wanted)?;
    Ok(home)
}

/// A folder with the packages of a manifest; with a lock file, of exactly these versions.
fn modules(home: &Path, manifest: &str, lock: Option<&str>) -> Result<PathBuf> {
    let wanted = format!("{manifest}{}", lock.unwrap_or_default());
    if is_made_of(home, &wanted) {
        return Ok(home.to_path_buf());
    }
    std::fs::create_dir_all(home)?;
    std::fs::write(home.join("package.json"), manifest)?;
    let mut npm = Command::new("npm");
    match lock {
        Some(lock) => {
            std::fs::write(home.join("package-lock.json"), lock)?;
            npm.arg("ci");
        }
        None => {
            npm.args(["install", "--no-package-lock"]);
        }
    }
    npm.args(["--no-audit", "--no-fund", "--silent"]).current_dir(home);
    finish(&mut npm).context("node and npm are needed (Debian: apt-get install nodejs npm)")?;
    std::fs::write(home.join(STAMP), wanted)?;
    Ok(home.to_path_buf())
}

/// Says what a folder was made of, once it is whole.
const STAMP: &str = "made-of.txt";

fn is_made_of(home: &Path, wanted: &str) -> bool {
    std::fs::read_to_string(home.join(STAMP)).is_ok_and(|made| made == wanted)
}
