//! Programs that people use, against the server: `cargo xtask ci --only clients` runs SDKs, an
//! agent, the OpenAPI file's tester and a browser against the server; `cargo xtask clients`
//! runs all coding agents. What each does is a script in `crates/server/tests`.

mod packages;
mod server;

use crate::ci::target_folder;
use anyhow::{Context, Result, bail};
use packages::Packages;
use server::Server;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Where scripts, playbooks and lists of packages are.
const FOLDER: &str = "crates/server/tests/clients";
/// Longest time of all checks of CI together, which take twenty seconds: only what hangs meets it.
const LIMIT: Duration = Duration::from_secs(1200);
/// Requests that are made up for each operation of the OpenAPI file, good ones and bad ones.
const MADE_UP: &str = "12";
/// How often a cost is measured at most.
const TRIES: usize = 3;
/// Time in which nobody asks.
const IDLE: Duration = Duration::from_secs(2);
/// Most microseconds of the server's threads for a token.
const OVERHEAD_MICROS_MAX: f64 = 20.0;
/// What is looked at in each of their answers.
const LOOKED_AT: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                         response_schema_conformance,response_headers_conformance,\
                         unsupported_method,allow_header_conformance,negative_data_rejection";

/// Fetches what the step of CI needs, so that it may be done while something else is built.
pub fn fetch(root: &Path) -> Result<()> {
    Packages::fetch(root, &target_folder(root)?).map(drop)
}

/// The step of CI, with a binary.
pub fn run(root: &Path, binary: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    let target = target_folder(root)?;
    let packages = Packages::fetch(root, &target)?;
    let play = folder.join("play.json");
    let play = play.to_str().context("the path of the playbook is not text")?;
    let scripted = Server::start(binary, &["--scripted", play])?;
    let nano = Server::start(binary, &["--ctx", "4096", "--parallel", "2"])?;
    // It leaves folders of its own where it runs.
    let made_up = target.join("made-up-requests");
    std::fs::create_dir_all(&made_up)?;
    let mut tester = Command::new(packages.python("st"));
    tester.arg("run").arg(root.join("crates/server/openapi.json")).current_dir(made_up);
    tester.args(["--url", &scripted.url, "--phases", "fuzzing", "--max-examples", MADE_UP]);
    tester.args(["--checks", LOOKED_AT, "--seed", "1", "--no-color", "--warnings", "off"]);
    let mut sdks = Command::new(packages.python("python"));
    sdks.arg(folder.join("clients.py")).args([&scripted.url, &nano.url]);
    let mut ai = Command::new("node");
    ai.arg(folder.join("ai.mjs")).args([&scripted.url, &nano.url]).current_dir(&packages.ai);
    let mut agent = Command::new(packages.python("python"));
    agent.arg(folder.join("agents.py")).arg(binary).arg(&packages.agents).arg("pi");
    let mut page = Command::new(packages.python("python"));
    page.arg(root.join("crates/server/tests/page/page.py")).arg(binary);
    let end = Instant::now() + LIMIT;
    // The tester takes its time beside the others.
    let mut tester = start("schemathesis", &mut tester)?;
    for (name, command) in [
        ("the Python SDKs", &mut sdks),
        ("the AI SDK", &mut ai),
        ("pi", &mut agent),
        ("the page in Chromium", &mut page),
    ] {
        start(name, command)?.wait(end)?;
    }
    tester.wait(end)?;
    costs(&scripted, &nano)?;
    scripted.stop()?;
    nano.stop()
}

/// What servers cost: nothing while nobody asks, and little for a token. The bounds are loose and
/// the least of some tries counts, since the machine may be busy; docs/server.md has figures.
fn costs(scripted: &Server, nano: &Server) -> Result<()> {
    let mut micros = Vec::new();
    for _ in 0..TRIES {
        micros.push(scripted.overhead()?);
    }
    let least = micros.iter().copied().fold(f64::INFINITY, f64::min);
    println!("clients: {micros:.1?} us of the server's threads for a token of a stream");
    if least > OVERHEAD_MICROS_MAX {
        bail!("a token costs {least:.1} us beside the engine; {OVERHEAD_MICROS_MAX} are allowed");
    }
    for _ in 0..TRIES {
        let (before, begun) = ([scripted.times("")?, nano.times("")?], Instant::now());
        std::thread::sleep(IDLE);
        let used = [scripted.used_since("", &before[0])?, nano.used_since("", &before[1])?];
        let idle = begun.elapsed();
        println!("clients: {used:?} of processor time in {idle:.1?} of idleness");
        if used.iter().all(|used| *used <= idle / 100) {
            return Ok(());
        }
    }
    bail!("servers that nobody asks use more than 1 % of a processor");
}

/// All agents, with the release binary; `names` are some of them, or none for all.
pub fn agents(root: &Path, names: &[&str]) -> Result<()> {
    let target = target_folder(root)?;
    let binary = target.join("release").join("ironstar");
    if !binary.exists() {
        bail!("{} is not there; build it: cargo build --release", binary.display());
    }
    let packages = Packages::fetch_agents(root, &target)?;
    let mut script = Command::new("python3");
    script.arg(root.join(FOLDER).join("agents.py")).arg(binary).arg(packages).args(names);
    start("agents.py", &mut script)?.wait(Instant::now() + Duration::from_secs(600))
}

/// A check that runs; it is killed if nobody waits for it.
struct Check {
    name: &'static str,
    process: std::process::Child,
}

fn start(name: &'static str, command: &mut Command) -> Result<Check> {
    command.env("NO_PROXY", "127.0.0.1");
    let process = command.spawn().with_context(|| format!("{name}: cannot be started"))?;
    Ok(Check { name, process })
}

impl Check {
    fn wait(&mut self, end: Instant) -> Result<()> {
        while Instant::now() < end {
            match self.process.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{} ended with {status}: see above", self.name),
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        }
        bail!("{} is not done, and all checks together may take {} s", self.name, LIMIT.as_secs())
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        // It has ended, unless another one failed first.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}
