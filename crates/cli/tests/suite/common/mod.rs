//! The binary under test, and folders that vanish.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The binary with some words.
pub fn ironstar(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironstar"));
    command.args(words).stdin(Stdio::null());
    command
}

/// Runs it and wants success.
pub fn run(words: &[&str]) -> Output {
    let output = ironstar(words).output().expect("the binary was built for this test");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ironstar {words:?} failed: {errors}");
    output
}

/// Standard output of a successful run.
pub fn text(words: &[&str]) -> String {
    String::from_utf8(run(words).stdout).expect("text")
}

/// Exit code and standard error of a run that fails.
pub fn failure(words: &[&str]) -> (i32, String) {
    let output = ironstar(words).output().expect("the binary was built for this test");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("an exit code"), errors)
}

/// A file of the project.
pub fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// An empty folder of this test's own.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    folder
}
