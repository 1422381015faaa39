//! The first command of README.md, given to a binary that was built: it answers from any folder,
//! soon, and in little memory.

use crate::ci::target_folder;
use anyhow::{Context, Result, bail};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What an answer has at least, in bytes of text.
const ANSWER_BYTES: usize = 20;
/// Most memory of the process, in kibibytes.
const PEAK_KIB_MAX: u64 = 200 * 1024;
/// Most time from the start to the first text, of a release build.
pub const FIRST_TEXT_MAX: Duration = Duration::from_secs(1);

/// Runs the words after `cargo run --release --` in README's first command in a folder that is not
/// the project's. The first text must be there within `first_max`, where that is known.
pub fn run(root: &Path, binary: &Path, first_max: Option<Duration>) -> Result<()> {
    let readme = std::fs::read_to_string(root.join("README.md")).context("README.md")?;
    let command = readme
        .lines()
        .find_map(|line| line.trim().strip_prefix("cargo run --release -- "))
        .context("README.md shows no `cargo run --release -- ..`")?;
    let elsewhere = target_folder(root)?.join("smoke");
    std::fs::create_dir_all(&elsewhere)?;
    let begun = Instant::now();
    let mut process = Command::new(binary)
        .args(shell_words(command)?)
        .current_dir(&elsewhere)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} could not be started", binary.display()))?;
    let mut out = process.stdout.take().context("its standard output is piped")?;
    let (mut answer, mut piece, mut first, mut peak) = (Vec::new(), [0; 256], None, None);
    loop {
        let bytes = out.read(&mut piece)?;
        if bytes == 0 {
            break;
        }
        first.get_or_insert_with(|| begun.elapsed());
        answer.extend_from_slice(&piece[..bytes]);
        peak = peak_kib(process.id()).or(peak);
    }
    let status = process.wait()?;
    let answer = String::from_utf8(answer).context("the answer is not UTF-8")?;
    println!("{}", answer.trim_end());
    if !status.success() {
        bail!("`ironstar {command}` ended with {status}");
    }
    if answer.trim().len() < ANSWER_BYTES {
        bail!("`ironstar {command}` printed {} bytes, which is no answer", answer.trim().len());
    }
    let first = first.context("an answer has a first piece")?;
    let memory =
        peak.map_or("memory not measured".to_owned(), |kib| format!("{} MiB at most", kib / 1024));
    let (first_s, all_s) = (first.as_secs_f64(), begun.elapsed().as_secs_f64());
    println!(
        "smoke: `ironstar {command}`: first text after {first_s:.2} s of {all_s:.2}, {memory}"
    );
    if first_max.is_some_and(|most| first > most) {
        bail!("the first text came after {first_s:.2} s; {FIRST_TEXT_MAX:?} are allowed");
    }
    if let Some(kib) = peak.filter(|kib| *kib > PEAK_KIB_MAX) {
        bail!("it used {kib} KiB of memory; {PEAK_KIB_MAX} are allowed");
    }
    Ok(())
}

/// Most memory that a process has had; only Linux says so.
fn peak_kib(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok())
}

/// Splits at spaces, with double quotes as the only other syntax.
fn shell_words(text: &str) -> Result<Vec<String>> {
    let parts: Vec<&str> = text.split('"').collect();
    if parts.len().is_multiple_of(2) {
        bail!("`{text}` has an open quote");
    }
    let mut words = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_string)),
            _ => words.push(part.to_string()),
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::shell_words;

    #[test]
    fn words_of_a_command_line() {
        let words = shell_words("run -p \"Tell me a story.\" -n 3").expect("quotes are closed");
        assert_eq!(words, ["run", "-p", "Tell me a story.", "-n", "3"]);
        assert!(shell_words("run -p \"open").is_err());
    }
}
