//! `cargo xtask kernel-check`: the CUDA spelling of all kernels, compiled for every architecture
//! that is supported, without a GPU: compiler and assembler come from Python packages into a
//! folder under target.

use crate::ci::{finish, target_folder};
use crate::packages;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler and the assembler, pinned: what they accept is what users' drivers of CUDA 13
/// accept.
const PACKAGES: [&str; 2] = ["nvidia-cuda-nvrtc==13.0.88", "nvidia-cuda-nvcc==13.0.88"];

/// Ampere to Blackwell; 90a has Hopper's own instructions, 121 is GB10. The text is compiled once
/// for the architecture before a colon, which takes most of the time, and assembled for those
/// behind it. On a device both are done for its own architecture; when they were compared
/// (2026-11-30), all of a family gave equal text for the assembler. The check refuses kernels that
/// tell members of a family apart by the compiler's macros: those need a family of their own, as
/// what only Hopper has.
const FAMILIES: [&str; 3] = [
    "compute_80:sm_80,sm_86,sm_89,sm_90",
    "compute_90a:sm_90a",
    "compute_100:sm_100,sm_120,sm_121",
];

/// Where the kernels lie, from the root.
pub const KERNELS: &str = "crates/device/kernels";

/// The Rust file whose `include_str!` lines say what the text is made of, in order.
const TEXT: &str = "crates/device/src/gpu/text.rs";

/// Compiles everything; the last line says ok.
pub fn run(root: &Path) -> Result<()> {
    let folder = target_folder(root)?.join("kernel-check");
    std::fs::create_dir_all(&folder)?;
    let python = fetch(root)?;
    let text = folder.join("kernels.cu");
    std::fs::write(&text, kernel_text(root, "prelude_cuda.h")?)?;
    let parts = write_parts(root, &folder)?;
    let record = folder.join("resources.tsv");
    let mut command = Command::new(python);
    command
        .arg(root.join("xtask/src/kernel_check.py"))
        .args([&text, &parts, &root.join(KERNELS).join("cuda.options"), &record])
        .args(FAMILIES);
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

/// The parts that the device crate compiles apart (`cuda_parts` there), each a file of a folder.
fn write_parts(root: &Path, folder: &Path) -> Result<PathBuf> {
    let parts = folder.join("parts");
    if parts.exists() {
        std::fs::remove_dir_all(&parts)?;
    }
    std::fs::create_dir_all(&parts)?;
    let kind = |words: &str| format!("#undef MADE\n#define MADE {words} __global__\n");
    let (made, left_out) = (kind("extern \"C\""), kind("template <int> static"));
    let whole = kernel_text(root, "prelude_cuda.h")?;
    let marks: Vec<_> = whole.match_indices("#line 1 ").map(|(at, _)| at).collect();
    let ends = marks.iter().skip(1).copied().chain([whole.len()]);
    for (number, (begin, end)) in marks.iter().zip(ends).enumerate().skip(1) {
        let own = &whole[*begin..end];
        if own.contains("KERNEL") {
            let (prelude, before) = whole[..*begin].split_at(marks[1]);
            let text = format!("{prelude}{left_out}{before}{made}{own}");
            std::fs::write(parts.join(format!("{number:02}.cu")), text)?;
        }
    }
    Ok(parts)
}

/// Names in the kernel folder that a Rust text includes.
fn included(list: &str) -> Vec<&str> {
    list.split("include_str!(\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next()?.split_once("kernels/"))
        .map(|(_, name)| name)
        .collect()
}

/// The interpreter of an environment with compiler and assembler, made at the first run.
pub fn fetch(root: &Path) -> Result<PathBuf> {
    let environment = target_folder(root)?.join("kernel-check").join("python");
    // The assembler's package names others, of which nothing is needed.
    packages::python(&environment, &PACKAGES, &["--no-deps"])
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
