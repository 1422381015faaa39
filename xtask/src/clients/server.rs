//! `ironstar serve` as a child.

use crate::ci::finish;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server of ours; it is killed if nobody stops it.
pub struct Server {
    process: Child,
    /// Its address.
    pub url: String,
}

impl Server {
    /// Starts it on a free port.
    pub fn start(binary: &Path, arguments: &[&str]) -> Result<Server> {
        let mut process = Command::new(binary)
            .args(["serve", "--port", "0"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .context("the release binary could not be started")?;
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

    /// Asks it to end, as a service manager does.
    pub fn stop(mut self) -> Result<()> {
        let id = self.process.id().to_string();
        finish(Command::new("kill").args(["-TERM", &id]))?;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
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
