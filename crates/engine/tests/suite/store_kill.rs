//! A process that saves is killed with SIGKILL at random moments; nothing that it reported as saved
//! is lost, and nothing damaged is found.
#![expect(clippy::unwrap_used, reason = "a failed process fails the test")]
#![expect(clippy::print_stdout, reason = "the child reports through its output")]
#![cfg(unix)]

use ironstar_engine::store::{Checkpoint, Folder, Key, Loaded, Settings, Store, Writing};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Names the folder to the child, which is this test program again.
const FOLDER: &str = "IRONSTAR_TEST_STORE_FOLDER";
const BLOCK_BYTES: usize = 60_000;

fn open(folder: &Path) -> Store {
    let settings = Settings { ram_bytes: 0, ..Settings::default() };
    let disk = Arc::new(Folder::new(folder.to_owned()));
    Store::new(Key::new(&[b"killed"]), settings).with_disk(disk, Writing::Thread)
}

/// Tokens of the n-th save: a conversation that grows, and a new one every eight.
fn tokens(n: u32) -> Vec<u32> {
    let (talk, turn) = (n / 8, n % 8);
    (0..200 + turn * 150).map(|i| i.wrapping_mul(2_654_435_761) ^ talk).collect()
}

fn payload(tokens: &[u32], bytes: usize) -> Vec<u8> {
    let mut state = tokens.iter().fold(1_u64, |s, t| s.wrapping_mul(31).wrapping_add((*t).into()));
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        out.extend_from_slice(&state.to_le_bytes());
    }
    out
}

/// Only does something when the parent starts it: saves without end, and reports what is saved.
#[test]
fn child() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let mut store = open(Path::new(&folder));
    for n in 0.. {
        let tokens = tokens(n);
        let blocks = store.missing(&tokens).into_iter();
        let blocks = blocks.map(|b| (b, payload(&tokens[..(b + 1) * 128], BLOCK_BYTES))).collect();
        let checkpoint = Checkpoint::plain(payload(&tokens, 2 * BLOCK_BYTES));
        assert!(store.insert(&tokens, blocks, checkpoint).wait());
        println!("saved {n}");
    }
}

fn kill_some(kills: usize) {
    let folder: PathBuf =
        std::env::temp_dir().join(format!("ironstar-kill-{}", std::process::id()));
    let _absent = std::fs::remove_dir_all(&folder);
    let mut saved = 0;
    for kill in 0..kills {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store_kill::child", "--nocapture"])
            .env(FOLDER, &folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (start, wait) = (Instant::now(), Duration::from_millis(20 + (kill as u64 * 37) % 180));
        let mut reported = Vec::new();
        for line in output.lines() {
            let line = line.unwrap();
            if let Some((_, n)) = line.split_once("saved ") {
                reported.push(n.parse::<u32>().unwrap());
                if start.elapsed() > wait {
                    // The kill comes while the next ones are being written.
                    let (_never, moment) = mpsc::channel::<()>();
                    let _later =
                        moment.recv_timeout(Duration::from_micros(kill as u64 * 1171 % 20_000));
                    child.kill().unwrap();
                    break;
                }
            }
        }
        child.wait().unwrap();
        saved += reported.len();
        let mut store = open(&folder);
        for n in reported {
            let wanted = [tokens(n), vec![7]].concat();
            let found = store.find(&wanted, wanted.len()).unwrap();
            assert_eq!(found.position() + 1, wanted.len(), "kill {kill}: save {n} is lost");
            let loaded = store.load(&found, &wanted, 0, &mut |part| {
                let (own, bytes) = match part {
                    Loaded::Block(b, bytes) => {
                        (payload(&wanted[..(b + 1) * 128], BLOCK_BYTES), bytes)
                    }
                    Loaded::Checkpoint(bytes) => {
                        (payload(&wanted[..found.position()], 2 * BLOCK_BYTES), bytes)
                    }
                };
                if own == bytes { Ok(()) } else { Err(n) }
            });
            assert_eq!(loaded, Ok(()), "kill {kill}");
        }
        assert!(store.status().problems.is_empty(), "{:?}", store.status());
        drop(store);
        let left = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name());
        let left: Vec<_> = left.filter(|n| n.to_string_lossy().contains("writer")).collect();
        assert_eq!(left, Vec::<std::ffi::OsString>::new(), "half-written files are cleaned");
        if kill % 5 == 4 {
            std::fs::remove_dir_all(&folder).unwrap();
        }
    }
    let _absent = std::fs::remove_dir_all(&folder);
    assert!(saved >= kills, "{saved} saves before {kills} kills");
}

#[test]
fn twenty_kills_lose_nothing_that_was_saved() {
    kill_some(20);
}

#[test]
#[ignore = "takes a minute: cargo test -p ironstar-engine --test suite store_kill -- --ignored"]
fn two_hundred_kills_lose_nothing_that_was_saved() {
    kill_some(200);
}
