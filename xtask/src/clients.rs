//! The SDKs that people use, against the release binary: scripted answers and the nano model.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where script, playbook and requirements are.
const FOLDER: &str = "crates/server/tests/clients";
/// Longest time of all checks together.
const LIMIT: Duration = Duration::from_secs(170);

/// Runs the step; `target` is the folder with the release binary.
pub fn run(root: &Path, target: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    let python = environment(&folder, target)?;
    let play = folder.join("play.json");
    let play = play.to_str().context("the path of the playbook is not text")?;
    let binary = target.join("release").join("ironstar");
    let scripted = Server::start(&binary, &["--scripted", play])?;
    let nano = Server::start(&binary, &["--ctx", "4096", "--parallel", "2"])?;
    let mut script = Command::new(python)
        .arg(folder.join("clients.py"))
        .args([&scripted.url, &nano.url])
        .env("NO_PROXY", "127.0.0.1")
        .spawn()
        .context("the clients could not be started")?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = script.try_wait()? {
            break status;
        }
        if begun.elapsed() > LIMIT {
            script.kill()?;
            bail!("the clients took more than {} s", LIMIT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    if !status.success() {
        bail!("a client was not content: see its traceback above");
    }
    scripted.stop()?;
    nano.stop()
}

/// Python with the packages that are wanted, in a folder of the target; made once.
fn environment(folder: &Path, target: &Path) -> Result<PathBuf> {
    let wanted = std::fs::read_to_string(folder.join("requirements.txt"))?;
    let home = target.join("clients-venv");
    let (stamp, python) = (home.join("made-of.txt"), home.join("bin").join("python"));
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    let mut make = Command::new("python3");
    finish(make.args(["-m", "venv", "--clear"]).arg(&home))
        .context("python3 with its venv module is needed (Debian: apt-get install python3-venv)")?;
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]);
    finish(install.arg(folder.join("requirements.txt")))?;
    std::fs::write(stamp, wanted)?;
    Ok(python)
}

/// A server of ours; it is killed if nobody stops it.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start(binary: &Path, arguments: &[&str]) -> Result<Server> {
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
    fn stop(mut self) -> Result<()> {
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

fn finish(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("{name} could not be started"))?;
    if !status.success() {
        bail!("`{name}` ended with {status}");
    }
    Ok(())
}
