//! `cargo xtask metal-check`: the Metal spelling of all kernels through the front end of clang,
//! with real address spaces. Apple's compiler is not redistributed, so this is the nearest thing
//! that runs everywhere; libclang comes from a Python package into a folder under target.

use crate::ci::{finish, target_folder};
use crate::kernel_check::{KERNELS, kernel_text};
use crate::packages;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The front end, pinned.
const PACKAGE: &str = "libclang==18.1.1";

/// Checks everything; the last line says ok.
pub fn run(root: &Path) -> Result<()> {
    let folder = target_folder(root)?.join("metal-check");
    std::fs::create_dir_all(&folder)?;
    let python = fetch(root)?;
    let text = folder.join("kernels.metal");
    std::fs::write(&text, kernel_text(root, "prelude_metal.h")?)?;
    let mut command = Command::new(python);
    command
        .arg(root.join("xtask/src/metal_check.py"))
        .args([&text, &root.join(KERNELS).join("check")]);
    finish(&mut command).context("the Metal spelling has errors")?;
    println!("metal-check: ok");
    Ok(())
}

/// The interpreter of an environment with libclang, made at the first run.
pub fn fetch(root: &Path) -> Result<PathBuf> {
    let environment = target_folder(root)?.join("metal-check").join("python");
    packages::python(&environment, &[PACKAGE], &[])
}
