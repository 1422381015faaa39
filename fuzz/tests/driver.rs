//! The driver against targets with known faults: each kind must be caught, reported and saved.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the driver on one target with a folder of its own. A fault ends it long before its time,
/// whatever else the machine does.
fn drive(target: &str, folder: &Path) -> Output {
    let seconds = if target == "faultless" { "1" } else { "300" };
    let input_seconds = if target == "faulty-slow" { "1" } else { "120" };
    Command::new(env!("CARGO_BIN_EXE_ironstar-fuzz"))
        .args(["--target", target, "--seconds", seconds, "--seed", "7"])
        .args(["--input-seconds", input_seconds, "--folder"])
        .arg(folder)
        .output()
        .expect("the driver starts")
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("an old folder can go");
    }
    folder
}

/// Checks that the fault is reported in `words` and that a saved input triggers it.
fn check(target: &str, words: &str, smallest: bool) {
    let folder = folder(target);
    let output = drive(target, &folder);
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{target} went unnoticed");
    assert!(report.contains(words), "{report}");
    let saved: Vec<Vec<u8>> = std::fs::read_dir(folder.join("artifacts").join(target))
        .expect("an input was saved")
        .map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a file"))
        .collect();
    assert_eq!(saved.len(), 1, "one input");
    assert!(saved[0].windows(3).any(|three| three == b"bad"), "{saved:?}");
    assert!(!smallest || saved[0] == b"bad", "not the smallest input: {saved:?}");

    let kept = folder.join("regressions").join(target);
    std::fs::create_dir_all(&kept).expect("a folder can be made");
    std::fs::write(kept.join("again.bin"), &saved[0]).expect("a file can be written");
    let again = drive(target, &folder);
    assert!(!again.status.success(), "a regression was not replayed");
}

#[test]
fn a_panic_is_caught_and_made_smaller() {
    check("faulty-panic", "panic: ", true);
}

#[test]
fn memory_beyond_what_the_input_justifies() {
    check("faulty-memory", "memory: ", true);
}

#[test]
fn memory_beyond_what_there_is() {
    check("faulty-huge", "an allocation of 35184372088832 bytes", false);
}

#[test]
fn an_input_that_never_ends() {
    check("faulty-slow", "slow: ", false);
}

#[test]
fn a_stack_that_overflows() {
    check("faulty-stack", "the process died", false);
}

#[test]
fn no_fault_no_report() {
    let output = drive("faultless", &folder("faultless"));
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success());
    assert!(report.contains("inputs, 0 regressions, ") && report.contains(" outcomes"), "{report}");
}
