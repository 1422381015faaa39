//! `cargo xtask flaky CRATE`: the test programs of a package, stopped at random moments and beside
//! threads that take the processors, as on a machine that others use too. What fails here and
//! passes alone has a clock in it that it should not have.

use crate::suites::{self, Suite};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Milliseconds that a program goes on between two stops, and that it is stopped for.
const RUNS_MS: [u64; 2] = [200, 2500];
const STOPS_MS: [u64; 2] = [1000, 3000];

struct Flags {
    runs: u64,
    busy: usize,
    seed: u64,
    /// What goes to the test programs, such as a part of a test's name.
    rest: Vec<String>,
}

/// Runs the tests of a package so often, and lists what failed how often.
pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let [package, words @ ..] = words else {
        bail!("which package? `cargo xtask flaky CRATE [--runs N] [--busy N] [--seed N] [-- ARGS]`")
    };
    let flags = parse(words)?;
    let mut suites = suites::programs(root)?;
    suites.retain(|suite| suite.name.split(' ').next() == Some(package));
    if suites.is_empty() {
        bail!("no folder of a package is named {package}");
    }
    for suite in &mut suites {
        let command = suite.command.args(&flags.rest).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    println!("flaky: {} runs with seed {}", flags.runs, flags.seed);
    let is_over = AtomicBool::new(false);
    let mut failed: BTreeMap<String, u64> = BTreeMap::new();
    std::thread::scope(|scope| {
        (0..flags.busy).for_each(|_| drop(scope.spawn(|| spin(&is_over))));
        let result = (1..=flags.runs).try_for_each(|run| {
            for suite in &mut suites {
                for name in once(suite, flags.seed.wrapping_mul(1000) + run)? {
                    *failed.entry(name).or_default() += 1;
                }
            }
            anyhow::Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        result
    })?;
    if !failed.is_empty() {
        let lines: Vec<String> =
            failed.iter().map(|(name, count)| format!("{name} ({count})")).collect();
        bail!("of {} runs failed: {}", flags.runs, lines.join(", "));
    }
    println!("flaky: nothing failed in {} runs", flags.runs);
    Ok(())
}

fn parse(words: &[&str]) -> Result<Flags> {
    let mut flags = Flags { runs: 3, busy: 0, seed: 1, rest: Vec::new() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64> {
            let value = words.next().with_context(|| format!("{word} wants a number"))?;
            value.parse().with_context(|| format!("{word} {value} is no number"))
        };
        match *word {
            "--runs" => flags.runs = number()?,
            "--busy" => flags.busy = usize::try_from(number()?)?,
            "--seed" => flags.seed = number()?,
            "--" => flags.rest.extend(words.by_ref().map(|word| (*word).to_owned())),
            other => bail!("`{other}` is none of --runs N, --busy N, --seed N, -- ARGS"),
        }
    }
    Ok(flags)
}

/// Takes a processor until all is over.
fn spin(is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// Runs a program with stops; the tests that failed.
fn once(suite: &mut Suite, seed: u64) -> Result<Vec<String>> {
    let begun = Instant::now();
    let child = suite.command.spawn().with_context(|| format!("starting {}", suite.name))?;
    let process = child.id();
    let (done, wait) = channel::<()>();
    let (output, stops) = std::thread::scope(|scope| {
        let stopper = scope.spawn(move || stop_now_and_then(process, seed, &wait));
        let output = child.wait_with_output();
        drop(done);
        (output, stopper.join().unwrap_or(0))
    });
    let output = output.with_context(|| format!("waiting for {}", suite.name))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut failed = failures(&text);
    if failed.is_empty() && !output.status.success() {
        failed.push(format!("{} ended with {}", suite.name, output.status));
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("flaky: {} stopped {stops} times in {seconds:.0} s", suite.name);
    if !failed.is_empty() {
        println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(failed)
}

/// The names in a test program's lines of failures.
fn failures(text: &str) -> Vec<String> {
    let name =
        |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    text.lines().filter_map(name).collect()
}

/// Stops a process and what it has started, lets them go on, and again, until the sender is gone;
/// how often.
fn stop_now_and_then(process: u32, seed: u64, wait: &Receiver<()>) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut between = |[least, most]: [u64; 2]| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Duration::from_millis(least + state % (most - least))
    };
    let mut stops = 0;
    while wait.recv_timeout(between(RUNS_MS)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        let stopped = stop_all(process);
        std::thread::sleep(between(STOPS_MS));
        signal("CONT", &stopped);
        stops += 1;
    }
    stops
}

/// Stops a process, then its children and theirs, so that none starts another meanwhile. One that
/// is stopped already is left out: its test did that, and ends it.
fn stop_all(process: u32) -> Vec<u32> {
    let mut stopped = vec![process];
    signal("STOP", &stopped);
    loop {
        let fresh: Vec<u32> = processes()
            .into_iter()
            .filter(|(id, state, parent)| {
                !"TtZ".contains(*state) && stopped.contains(parent) && !stopped.contains(id)
            })
            .map(|(id, ..)| id)
            .collect();
        if fresh.is_empty() {
            return stopped;
        }
        signal("STOP", &fresh);
        stopped.extend(fresh);
    }
}

/// Sends a signal; who has ended meanwhile does not get it.
fn signal(name: &str, processes: &[u32]) {
    let ids: Vec<String> = processes.iter().map(u32::to_string).collect();
    let words = format!("kill -{name} {}", ids.join(" "));
    let _some_ended = Command::new("sh").args(["-c", &words]).stderr(Stdio::null()).status();
}

/// All processes of the machine: number, state, parent.
fn processes() -> Vec<(u32, char, u32)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        .filter_map(|stat| of_stat(&stat))
        .collect()
}

/// The name of a program may have spaces and brackets in it; it ends at the last one.
fn of_stat(stat: &str) -> Option<(u32, char, u32)> {
    let id = stat.split(' ').next()?.parse().ok()?;
    let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
    let state = rest.next()?.chars().next()?;
    Some((id, state, rest.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{failures, of_stat, parse, processes, signal, stop_all};
    use std::process::{Command, Stdio};

    #[test]
    fn words_and_lines_are_read() {
        let flags = parse(&["--runs", "7", "--busy", "2", "--", "life::", "--exact"]).expect("all");
        assert_eq!((flags.runs, flags.busy, flags.seed), (7, 2, 1));
        assert_eq!(flags.rest, ["life::", "--exact"]);
        assert!(parse(&["--runs"]).is_err() && parse(&["--run", "7"]).is_err());
        let text = "test a::b ... ok\ntest a::c ... FAILED\ntest d ... ignored\nFAILED\n";
        assert_eq!(failures(text), ["a::c"]);
        assert_eq!(of_stat("41 (a (b) c) S 7 41 41"), Some((41, 'S', 7)));
        assert_eq!(of_stat(""), None);
    }

    /// A shell and what it started stand still until they are told to go on.
    #[test]
    fn a_program_and_its_children_are_stopped() {
        let mut shell = Command::new("sh")
            .args(["-c", "sh -c 'read line; exit 3'; exit $?"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut stopped = Vec::new();
        // The shell may not have come to its child yet.
        while stopped.len() < 2 {
            signal("CONT", &stopped);
            stopped = stop_all(shell.id());
        }
        for id in &stopped {
            // A signal is on its way for a moment.
            let state = || processes().into_iter().find(|process| process.0 == *id);
            while state().expect("it has not ended").1 != 'T' {}
        }
        signal("CONT", &stopped);
        drop(shell.stdin.take());
        assert_eq!(shell.wait().expect("it ends").code(), Some(3));
    }
}
