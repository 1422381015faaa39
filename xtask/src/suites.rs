//! The test step: every test program of the workspace, and rustdoc's examples, two at a time.
//!
//! `cargo test` runs one program after the other, and programs whose tests wait for deadlines, or
//! that end with one long test, leave processors idle. What a program prints is kept and shown
//! when it fails.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Programs at once. Each runs as many tests as there are processors: more of them would only
/// make tests with deadlines slow.
const LANES: usize = 2;

/// What begins first, since it takes longest; the rest in cargo's order.
const LONGEST: [&str; 6] =
    ["model suite", "device suite", "engine suite", "cli suite", "server all", "cluster suite"];

/// One of the programs.
#[derive(Debug)]
pub struct Suite {
    /// The package, without `ironstar-`, and the target.
    pub name: String,
    /// What runs it.
    pub command: Command,
}

/// How a program ended.
struct Ended {
    name: String,
    passed: bool,
    output: String,
    took: Duration,
}

/// Builds everything and runs it.
pub fn run(root: &Path) -> Result<()> {
    let begun = Instant::now();
    let mut suites = programs(root)?;
    let mut examples = Command::new("cargo");
    examples.args(["test", "--quiet", "--workspace", "--doc"]).current_dir(root);
    suites.push(Suite { name: "examples of rustdoc".to_owned(), command: examples });
    longest_first(&mut suites);
    println!("test: {} programs built in {:.0} s", suites.len(), begun.elapsed().as_secs_f64());
    let queue = Mutex::new(VecDeque::from(suites));
    let lane = || {
        let mut failed = Vec::new();
        // One statement, so that the lock is not held while a program runs.
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        while let Some(suite) = next() {
            let ended = finish(suite);
            println!("{}", report(&ended));
            if !ended.passed {
                failed.push(ended.name);
            }
        }
        failed
    };
    let failed: Vec<String> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        lanes
            .into_iter()
            .flat_map(|lane| lane.join().unwrap_or_else(|_| vec!["?".into()]))
            .collect()
    });
    if !failed.is_empty() {
        bail!("failed, see above: {}", failed.join(", ") + &again(&failed));
    }
    Ok(())
}

/// How to repeat what failed alone. It is not repeated here: what passes at the second try has a
/// fault all the same.
fn again(failed: &[String]) -> String {
    let mut folders: Vec<&str> = failed.iter().filter_map(|name| name.split(' ').next()).collect();
    folders.dedup();
    let line = |folder: &str| {
        let package =
            if folder == "xtask" { folder.to_owned() } else { format!("ironstar-{folder}") };
        format!(
            "\n  cargo test --package {package}    (a busy machine: cargo xtask flaky {folder})"
        )
    };
    folders.into_iter().filter(|folder| *folder != "examples").map(line).collect()
}

/// All test programs, built.
pub fn programs(root: &Path) -> Result<Vec<Suite>> {
    parse(&build(root)?)
}

/// Cargo's messages about the programs that it built. Examples are left to clippy, which checks
/// them: linking them proves nothing more.
fn build(root: &Path) -> Result<String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--workspace", "--tests", "--no-run"]);
    cargo.arg("--message-format=json-render-diagnostics").current_dir(root);
    let output = cargo.stderr(Stdio::inherit()).output().context("cargo could not be started")?;
    if !output.status.success() {
        bail!("the tests do not build ({})", output.status);
    }
    String::from_utf8(output.stdout).context("cargo's messages are not text")
}

/// The test programs among what cargo built, each in its package's folder, as `cargo test` does.
fn parse(messages: &str) -> Result<Vec<Suite>> {
    let mut suites = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("a message of cargo")?;
        let Some(program) = message["executable"].as_str() else { continue };
        if message["profile"]["test"] != true {
            continue;
        }
        let manifest = message["manifest_path"].as_str().context("a program has no manifest")?;
        let folder = Path::new(manifest).parent().context("a manifest lies in a folder")?;
        let package = folder.file_name().context("a package's folder has a name")?;
        let target = message["target"]["name"].as_str().context("a target has no name")?;
        let mut command = Command::new(PathBuf::from(program));
        command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
        let name = format!("{} {target}", package.to_string_lossy());
        suites.push(Suite { name, command });
    }
    if suites.is_empty() {
        bail!("cargo built no test programs");
    }
    Ok(suites)
}

/// Stable, so that what is not listed stays in its order.
fn longest_first(suites: &mut [Suite]) {
    let rank = |suite: &Suite| LONGEST.iter().position(|name| *name == suite.name);
    suites.sort_by_key(|suite| rank(suite).unwrap_or(LONGEST.len()));
}

fn finish(mut suite: Suite) -> Ended {
    let begun = Instant::now();
    let output = suite.command.stdin(Stdio::null()).output();
    let took = begun.elapsed();
    let (passed, output) = match output {
        Ok(output) => {
            let text = [&output.stdout[..], &output.stderr[..]].concat();
            let mut text = String::from_utf8_lossy(&text).into_owned();
            if !output.status.success() {
                text += &format!("ended with {}\n", output.status);
            }
            (output.status.success(), text)
        }
        Err(error) => (false, format!("{:?} could not be started: {error}", suite.command)),
    };
    Ended { name: suite.name, passed, output, took }
}

/// A line for a program that passed, everything for one that failed.
fn report(ended: &Ended) -> String {
    let seconds = ended.took.as_secs_f64();
    if !ended.passed {
        return format!("test: {} FAILED in {seconds:.1} s:\n{}", ended.name, ended.output);
    }
    let [passed, ignored] = [" passed;", " ignored;"].map(|word| counted(&ended.output, word));
    format!("test: {:24} {passed:3} passed, {ignored} ignored, {seconds:.1} s", ended.name)
}

/// The sum of the numbers before a word in the lines of results.
fn counted(output: &str, word: &str) -> u64 {
    let results = output.lines().filter(|line| line.starts_with("test result:"));
    let number = |line: &str| line.split_once(word)?.0.rsplit(' ').next()?.parse::<u64>().ok();
    results.filter_map(number).sum()
}

#[cfg(test)]
mod tests {
    use super::{Ended, Suite, again, counted, finish, longest_first, parse, report};
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn test_programs_are_found_and_long_ones_come_first() {
        let message = |folder: &str, target: &str, program: &str, test: bool| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"/x/{folder}/Cargo.toml\",\
                 \"target\":{{\"name\":\"{target}\"}},\"profile\":{{\"test\":{test}}},\
                 \"executable\":{program}}}\n"
            )
        };
        let messages = [
            message("quant", "suite", "\"/t/quant-1\"", true),
            message("cli", "ironstar", "\"/t/ironstar\"", false),
            message("model", "suite", "\"/t/model-1\"", true),
            message("model", "ironstar_model", "null", true),
            "{\"reason\":\"build-finished\",\"success\":true}\n".to_owned(),
        ];
        let mut suites = parse(&messages.concat()).expect("messages");
        longest_first(&mut suites);
        let names: Vec<&str> = suites.iter().map(|suite| suite.name.as_str()).collect();
        assert_eq!(names, ["model suite", "quant suite"]);
        let folder = suites[0].command.get_current_dir().expect("a folder");
        assert_eq!(folder.to_str(), Some("/x/model"));
        assert!(parse("").is_err(), "no programs are no success");
    }

    #[test]
    fn results_are_summed_and_failures_are_shown_whole() {
        let output = "test result: ok. 41 passed; 0 failed; 1 ignored; 0 measured\n\
                      some 7 passed; words\n\
                      test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n";
        assert_eq!((counted(output, " passed;"), counted(output, " ignored;")), (43, 1));
        let took = Duration::from_millis(1500);
        let (name, output) = ("quant suite".to_owned(), output.to_owned());
        let mut ended = Ended { name, passed: true, output, took };
        assert!(report(&ended).ends_with(" 43 passed, 1 ignored, 1.5 s"), "{}", report(&ended));
        ended.passed = false;
        assert!(report(&ended).contains("some 7 passed; words"));
        let told = again(&["cli suite".to_owned(), "examples of rustdoc".to_owned()]);
        assert!(told.contains("--package ironstar-cli ") && told.lines().count() == 2, "{told}");
    }

    #[test]
    fn a_program_that_fails_or_is_not_there_has_failed() {
        let ran = |program: &str| {
            finish(Suite { name: program.to_owned(), command: Command::new(program) })
        };
        assert!(ran("true").passed);
        assert!(!ran("false").passed);
        assert!(!ran("/no/such/program").passed);
    }
}
