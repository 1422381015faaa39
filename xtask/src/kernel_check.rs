//! `cargo xtask kernel-check`: the CUDA spelling of all kernels, compiled for every architecture
//! that is supported, without a GPU: NVRTC comes from a Python package into a folder under target.

use crate::ci::{finish, target_folder};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler, pinned: what it accepts is what users' drivers of CUDA 13 accept.
const PACKAGE: &str = "nvidia-cuda-nvrtc==13.0.88";

/// Ampere to Blackwell; 90a has Hopper's own instructions, 121 is GB10.
const ARCHITECTURES: [&str; 8] =
    ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120", "sm_121"];

/// Where the kernels lie, from the root.
pub const KERNELS: &str = "crates/device/kernels";

/// The Rust file whose `include_str!` lines say what the text is made of, in order.
const TEXT: &str = "crates/device/src/gpu/text.rs";

/// Compiles everything; the last line says ok.
pub fn run(root: &Path) -> Result<()> {
    let folder = target_folder(root)?.join("kernel-check");
    std::fs::create_dir_all(&folder)?;
    let library = library(&folder)?;
    let text = folder.join("kernels.cu");
    std::fs::write(&text, kernel_text(root, "prelude_cuda.h")?)?;
    let record = folder.join("resources.tsv");
    let mut command = Command::new("python3");
    command
        .arg(root.join("xtask/src/kernel_check.py"))
        .args([&library, &text, &root.join(KERNELS).join("cuda.options"), &record])
        .args(ARCHITECTURES);
    finish(&mut command).context("the kernels do not compile everywhere")?;
    println!("registers, stack and spills of each kernel: {}", record.display());
    println!("kernel-check: ok");
    Ok(())
}

/// A target's text, put together as the device crate does it: the prelude, then the kernels.
pub fn kernel_text(root: &Path, prelude: &str) -> Result<String> {
    let list = std::fs::read_to_string(root.join(TEXT)).context(TEXT)?;
    let kernels = included(&list).into_iter().filter(|name| name.ends_with(".k"));
    let mut text = String::new();
    for name in std::iter::once(prelude).chain(kernels) {
        let path = root.join(KERNELS).join(name);
        let part = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        text += &format!("#line 1 \"{name}\"\n{part}\n");
    }
    Ok(text)
}

/// Names in the kernel folder that a Rust text includes.
fn included(list: &str) -> Vec<&str> {
    list.split("include_str!(\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next()?.split_once("kernels/"))
        .map(|(_, name)| name)
        .collect()
}

/// The folder of the compiler's library, installed at the first run.
fn library(folder: &Path) -> Result<PathBuf> {
    let environment = folder.join("python");
    if let Some(found) = installed(&environment) {
        return Ok(found);
    }
    let mut create = Command::new("python3");
    create.args(["-m", "venv"]).arg(&environment);
    finish(&mut create).context("python3 with venv is missing; on Debian: python3-venv")?;
    let mut install = Command::new(environment.join("bin/python"));
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE]);
    finish(&mut install).with_context(|| format!("{PACKAGE} could not be installed"))?;
    installed(&environment).with_context(|| format!("{PACKAGE} holds no libnvrtc.so.13"))
}

fn installed(environment: &Path) -> Option<PathBuf> {
    let pythons = std::fs::read_dir(environment.join("lib")).ok()?;
    pythons
        .filter_map(|python| Some(python.ok()?.path().join("site-packages/nvidia/cu13/lib")))
        .find(|folder| folder.join("libnvrtc.so.13").exists())
}

#[cfg(test)]
mod tests {
    use super::included;

    #[test]
    fn the_text_is_what_the_crate_includes() {
        let list = "const A: &str = include_str!(\"../../kernels/prelude_cuda.h\");\n\
                    const B: &str = include_str!(\"../../kernels/fast/norm.k\");\n\
                    const C: &str = include_str!(\"other.txt\");";
        assert_eq!(included(list), ["prelude_cuda.h", "fast/norm.k"]);
    }
}
