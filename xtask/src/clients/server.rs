//! `ironstar serve` as a child.

use crate::ci::finish;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Tokens of the answer whose cost is measured: as many as a server keeps for a reader that is
/// stopped for a while.
const TOKENS: u32 = 8_000;

/// A server of ours; it is killed if nobody stops it.
pub struct Server {
    process: Child,
    /// Its address.
    pub url: String,
}

/// Processor time of threads, by their folder under `/proc`.
#[derive(Debug, Default)]
pub struct Times(BTreeMap<PathBuf, Duration>);

impl Server {
    /// Starts it on a free port.
    pub fn start(binary: &Path, arguments: &[&str]) -> Result<Server> {
        let mut process = Command::new(binary)
            .args(["serve", "--port", "0"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} could not be started", binary.display()))?;
        let stderr = process.stderr.take().context("its standard error is piped")?;
        let mut lines = BufReader::new(stderr);
        let mut told = String::new();
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line)? == 0 {
                bail!("`ironstar serve {}` ended: {told}", arguments.join(" "));
            }
            if let Some((_, url)) = line.split_once(" at http://") {
                let url = format!("http://{}", url.trim());
                // Nobody reads its log, but it must be able to write it.
                std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
                return Ok(Server { process, url });
            }
            told.push_str(&line);
        }
    }

    /// Streams an answer of many tokens and says how much processor time of the server's threads a
    /// token took, in microseconds; the engine's thread does not count.
    pub fn overhead(&self) -> Result<f64> {
        let before = self.times("server")?;
        let body = format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"endless\"}}], \"stream\": true, \
             \"max_tokens\": {TOKENS}}}"
        );
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address)?;
        write!(
            stream,
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer);
        if !answer.contains("\"finish_reason\":\"length\"") || !answer.contains("[DONE]") {
            bail!("the answer of {TOKENS} tokens is not whole");
        }
        let used = self.used_since("server", &before)?;
        if used.is_zero() {
            bail!("the kernel counts no processor time of threads in /proc/PID/task/*/schedstat");
        }
        Ok(used.as_secs_f64() * 1e6 / f64::from(TOKENS))
    }

    /// Processor time so far of each of its threads whose name begins so.
    pub fn times(&self, name: &str) -> Result<Times> {
        let mut times = Times::default();
        for task in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let folder = task?.path();
            let read = |file| std::fs::read_to_string(folder.join(file));
            // A thread may end meanwhile.
            let (Ok(thread), Ok(stat)) = (read("comm"), read("schedstat")) else { continue };
            if thread.starts_with(name) {
                let first = stat.split(' ').next().context("schedstat is empty")?;
                let nanos = first.parse().context("schedstat begins with a number")?;
                times.0.insert(folder, Duration::from_nanos(nanos));
            }
        }
        Ok(times)
    }

    /// Processor time of those threads since then; of one that has ended it is not known.
    pub fn used_since(&self, name: &str, before: &Times) -> Result<Duration> {
        let now = self.times(name)?.0;
        let of = |folder| before.0.get(folder).copied().unwrap_or_default();
        Ok(now.iter().map(|(folder, time)| time.saturating_sub(of(folder))).sum())
    }

    /// Asks it to end, as a service manager does.
    pub fn stop(mut self) -> Result<()> {
        let id = self.process.id().to_string();
        finish(Command::new("kill").args(["-TERM", &id]))?;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(120) {
            if let Some(status) = self.process.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                bail!("after SIGTERM the server ended with {status}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the server does not end after SIGTERM");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}
