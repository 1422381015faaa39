//! Measures the state store with payloads of full size: saving and loading 100,000 tokens of V4
//! Flash in a folder, beside what the disk itself reads.
//!
//! `cargo run --release -p ironstar-engine --example store_rate FOLDER [TOKENS]`
#![expect(clippy::print_stdout, reason = "a measuring tool")]

use ironstar_engine::store::{Checkpoint, Disk, Folder, Key, Settings, Store, Writing};
use std::path::PathBuf;
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
    let disk = Folder::new(folder.clone());
    let (start, mut read) = (Instant::now(), 0);
    for file in disk.list().expect("the folder is there") {
        read += disk.read(&file.name, u64::MAX).expect("the file is there").len();
    }
    let plain = read as f64 / 1e6 / start.elapsed().as_secs_f64();
    let mut store = open();
    let found = store.find(&tokens, tokens.len()).expect("just saved");
    let (start, mut loaded) = (Instant::now(), 0);
    let mut place = vec![0; BLOCK.max(CHECKPOINT)];
    let done = store.load(&found, &tokens, 0, &mut |part| {
        use ironstar_engine::store::Loaded::{Block, Checkpoint};
        let (Block(_, bytes) | Checkpoint(bytes)) = part;
        place[..bytes.len()].copy_from_slice(bytes);
        loaded += bytes.len();
        Ok::<(), ()>(())
    });
    assert_eq!(done, Ok(()));
    let rate = loaded as f64 / 1e6 / start.elapsed().as_secs_f64();
    println!(
        "loaded {} tokens, {:.0} MB: {rate:.0} MB/s, checked; plain reads of the files \
              one by one: {plain:.0} MB/s",
        found.position(),
        loaded as f64 / 1e6
    );
}
