//! Measures the state store with payloads of full size: saving and loading 100,000 tokens of V4
//! Flash in a folder, beside plain reads of the same files, with the system's cache of them dropped
//! before each and once more with it. What storage delivered is counted by the kernel, so a second
//! pass over the data would show.
//!
//! `cargo run --release -p ironstar-engine --example store_rate FOLDER [TOKENS]`; Linux only.
#![expect(clippy::print_stdout, reason = "a measuring tool")]

use ironstar_engine::store::{Checkpoint, Disk, Folder, Key, Settings, Store, Writing};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Rows of 128 tokens of V4 Flash: 21 layers of ratio 4 (32 rows of 512 BF16 and 32 of 68 bytes)
/// and 20 of ratio 128 (one row of 512 BF16).
const BLOCK: usize = 21 * 32 * (1024 + 68) + 20 * 1024;
/// Rings of 43 layers, and logits.
const CHECKPOINT: usize = 43 * 127 * 1024 + 129_280 * 4;

#[expect(clippy::cast_precision_loss, reason = "rates")]
fn main() {
    let mut words = std::env::args().skip(1);
    let folder = PathBuf::from(words.next().expect("a folder is named"));
    let count = words.next().map_or(100_000, |n| n.parse().expect("a number of tokens"));
    let tokens: Vec<u32> = (0..count).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
    let settings = Settings { ram_bytes: 0, ..Settings::default() };
    let open = || {
        let disk = Arc::new(Folder::new(folder.clone()));
        Store::new(Key::new(&[b"rate"]), settings).with_disk(disk, Writing::Thread)
    };
    let mut store = open();
    let noise: Vec<u8> = (0..BLOCK.max(CHECKPOINT))
        .map(|i| u8::try_from(((i * 7919) >> 3) % 256).expect("a byte"))
        .collect();
    let (start, mut inserting) = (Instant::now(), 0.0_f64);
    for end in (2048..=tokens.len()).step_by(2048) {
        let blocks = store.missing(&tokens[..end]).into_iter();
        let blocks = blocks.map(|b| (b, noise[..BLOCK].to_vec())).collect();
        let begin = Instant::now();
        let checkpoint = Checkpoint::plain(noise[..CHECKPOINT].to_vec());
        let receipt = store.insert(&tokens[..end], blocks, checkpoint);
        inserting = inserting.max(begin.elapsed().as_secs_f64());
        assert!(receipt.wait(), "{:?}", store.status());
    }
    let (saving, bytes) = (start.elapsed().as_secs_f64(), store.status().disk_bytes as f64);
    let rows = (tokens.len() / 2048 * 16 * BLOCK) as f64;
    println!(
        "saved {:.0} MB in {} files: {:.0} MB/s with all syncs; {:.2} bytes written for each \
         byte of rows; the engine's thread waited {:.2} ms at most",
        bytes / 1e6,
        store.status().disk_nodes,
        bytes / 1e6 / saving,
        bytes / rows,
        inserting * 1e3,
    );
    drop(store);
    // Loads first: the machine below this one may keep what was read once.
    for round in 0..3 {
        for what in ["load", "plain"] {
            drop_cache(&folder);
            timed(&format!("cold {what} {round}"), || {
                if what == "load" { load(&mut open(), &tokens) } else { plain(&folder) }
            });
        }
    }
    timed("load, files in the cache", || load(&mut open(), &tokens));
    timed("plain, files in the cache", || plain(&folder));
}

/// Says how fast a number of bytes came, and how many of them from storage.
#[expect(clippy::cast_precision_loss, reason = "rates")]
fn timed(what: &str, read: impl FnOnce() -> usize) {
    let (start, stored) = (Instant::now(), storage_bytes());
    let bytes = read() as f64;
    let (seconds, stored) = (start.elapsed().as_secs_f64(), storage_bytes() - stored);
    println!(
        "{what}: {:.0} MB in {seconds:.2} s, {:.0} MB/s; storage delivered {:.3} of them",
        bytes / 1e6,
        bytes / 1e6 / seconds,
        stored as f64 / bytes
    );
}

/// A restore: every file read, checked and placed once.
fn load(store: &mut Store, tokens: &[u32]) -> usize {
    let found = store.find(tokens, tokens.len()).expect("just saved");
    assert_eq!(found.position(), tokens.len() / 2048 * 2048);
    let (mut loaded, mut place) = (0, vec![0; BLOCK.max(CHECKPOINT)]);
    let done = store.load(&found, tokens, 0, &mut |part| {
        use ironstar_engine::store::Loaded::{Block, Checkpoint};
        let (Block(_, bytes) | Checkpoint(bytes)) = part;
        place[..bytes.len()].copy_from_slice(bytes);
        loaded += bytes.len();
        Ok::<(), ()>(())
    });
    assert_eq!(done, Ok(()));
    loaded
}

/// Every file of the folder, one after the other.
fn plain(folder: &Path) -> usize {
    let disk = Folder::new(folder.to_owned());
    let files = disk.list().expect("the folder is there");
    files.iter().map(|file| disk.read(&file.name, u64::MAX).expect("it is there").len()).sum()
}

/// Asks the system to forget what it holds of the files.
fn drop_cache(folder: &Path) {
    for file in Folder::new(folder.to_owned()).list().expect("the folder is there") {
        let file = std::fs::File::open(folder.join(&file.name)).expect("it is there");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice is free");
    }
}

/// Bytes that storage has delivered to this process.
fn storage_bytes() -> u64 {
    let counters = std::fs::read_to_string("/proc/self/io").expect("a Linux kernel");
    let read = counters.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    read.expect("it counts them").parse().expect("a number")
}
