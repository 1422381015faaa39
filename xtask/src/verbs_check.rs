//! `cargo xtask verbs-check`: what the project says of libibverbs, against the real thing.
//!
//! A C program prints sizes, offsets and numbers of the installed header; they must be those of
//! `tests/golden/cluster/verbs_layout.txt`, which a test of the cluster crate holds our structures
//! to, and those of the fake provider's own header. Then rdma-core's `ibv_uc_pingpong` and
//! `ibv_rc_pingpong` run on the fake provider, both ends and with checked contents: programs that
//! know nothing of us find the interface that they were built for.

use crate::ci::{finish, target_folder};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[path = "../../crates/cluster/tests/fake/provider.rs"]
mod provider;

const FAKE: &str = "crates/cluster/tests/fake";
const GOLDEN: &str = "tests/golden/cluster/verbs_layout.txt";
const PACKAGES: &str = "on Debian: apt-get install libibverbs-dev ibverbs-utils";
/// How long the two ends of a pingpong may take, and how often they are tried: another program
/// may have the port.
const PATIENCE: Duration = Duration::from_secs(300);
const TRIES: u16 = 3;

/// Checks everything; `prefix` is where header and programs are, if not in the system's folders
/// (the packages unpacked: `PREFIX/usr/include`, `PREFIX/usr/bin`).
pub fn run(root: &Path, prefix: Option<&Path>) -> Result<()> {
    let folder = target_folder(root)?.join("verbs-check");
    std::fs::create_dir_all(&folder)?;
    let wanted = std::fs::read_to_string(root.join(GOLDEN)).context(GOLDEN)?;
    let wanted: String =
        wanted.lines().filter(|line| !line.starts_with('#')).map(|l| format!("{l}\n")).collect();
    for real in [true, false] {
        let found = layout(root, &folder, prefix, real)?;
        if found != wanted {
            let header = if real { "<infiniband/verbs.h>" } else { "the fake provider's abi.h" };
            let different = found.lines().zip(wanted.lines()).find(|(one, other)| one != other);
            bail!("{header} and {GOLDEN} differ: {different:?} is the first line that does");
        }
    }
    println!("verbs-check: {} sizes, offsets and numbers", wanted.lines().count());
    let library = folder.join("libibverbs.so.1");
    std::fs::copy(provider::provider(""), &library)?;
    for program in ["ibv_uc_pingpong", "ibv_rc_pingpong"] {
        pingpong(program, prefix, &folder)?;
    }
    println!("verbs-check: ok");
    Ok(())
}

/// What the C program prints.
fn layout(root: &Path, folder: &Path, prefix: Option<&Path>, real: bool) -> Result<String> {
    let made = folder.join("layout");
    let mut command = Command::new("cc");
    command.arg(root.join(FAKE).join("layout.c")).arg("-o").arg(&made);
    if real {
        command.arg("-DREAL");
        if let Some(prefix) = prefix {
            command.arg("-I").arg(prefix.join("usr/include"));
        }
    }
    finish(&mut command).with_context(|| format!("the header is missing; {PACKAGES}"))?;
    let output = Command::new(&made).output().context("the C program could not be started")?;
    Ok(String::from_utf8(output.stdout)?)
}

/// Both ends of a stock program with the fake provider in front of the system's library.
fn pingpong(program: &str, prefix: Option<&Path>, library: &Path) -> Result<()> {
    let path = prefix.map_or_else(|| PathBuf::from(program), |p| p.join("usr/bin").join(program));
    for port in 0..TRIES {
        // Index 3 is the fake's address 127.0.0.1 as RoCE v2.
        let port = (18_515 + 7 * port).to_string();
        let start = |more: &[&str]| {
            let mut command = Command::new(&path);
            command.args(["-p", &port, "-g", "3", "-c", "-n", "1000"]).args(more);
            command.env("LD_LIBRARY_PATH", library).stdout(Stdio::null());
            if !more.is_empty() {
                // That nobody listens yet is no news.
                command.stderr(Stdio::null());
            }
            command.spawn().with_context(|| format!("{program} could not be started; {PACKAGES}"))
        };
        let mut server = start(&[])?;
        // It listens soon; a client that comes too early ends at once and is started again.
        let begun = Instant::now();
        let passed = loop {
            let client = start(&["127.0.0.1"])?;
            if ends_well(client, begun) {
                break ends_well(server, begun);
            }
            if begun.elapsed() > PATIENCE / 2 || !matches!(server.try_wait(), Ok(None)) {
                // It has ended, or is to: another try has another port.
                let _ = server.kill();
                let _ = server.wait();
                break false;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        if passed {
            println!("verbs-check: {program} on the fake provider, contents checked");
            return Ok(());
        }
    }
    bail!("{program} does not run on the fake provider")
}

fn ends_well(mut process: Child, begun: Instant) -> bool {
    loop {
        match process.try_wait() {
            Ok(None) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(Some(status)) => return status.success(),
            _ => {
                let _ = process.kill();
                let _ = process.wait();
                return false;
            }
        }
    }
}
