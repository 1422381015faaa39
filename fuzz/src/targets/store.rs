//! Files of the state store: alone, and under the name that an engine looks for.

use super::{Target, signature};
use ironstar_engine::store::sim::SimDisk;
use ironstar_engine::store::{Disk, Writing, read_file, sealed};
use ironstar_engine::{CancelFlag, Engine, EngineOptions};
use ironstar_model::testing::Tiny;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Any bytes, with and without a checksum that fits.
pub const FILE: Target = Target {
    name: "store-file",
    seeds: || bench().files.iter().map(|(_, bytes)| bytes.clone()).collect(),
    dictionary: &[b"ISTORE\0\x01"],
    len_max: 64 * 1024,
    base_bytes: 1 << 20,
    bytes_per_byte: 16,
    run: file,
};

/// A file in the place of one that a session comes back from. The first byte says which.
pub const ENTRY: Target = Target {
    name: "store-entry",
    seeds: entries,
    dictionary: &[b"ISTORE\0\x01", b"\0\0\x80\x7f", b"\0\0\xc0\x7f"],
    len_max: 64 * 1024,
    base_bytes: 8 << 20,
    bytes_per_byte: 64,
    run: entry,
};

/// A block and a tail.
const TOKENS: usize = 140;

/// An engine, a conversation, and the files that it leaves on a disk.
struct Bench {
    engine: Engine,
    tokens: Vec<u32>,
    files: Vec<(String, Vec<u8>)>,
}

fn bench() -> MutexGuard<'static, Bench> {
    static BENCH: OnceLock<Mutex<Bench>> = OnceLock::new();
    let make = || {
        let (tiny, disk) = (Tiny::small(1), SimDisk::new(1));
        let options = EngineOptions { threads: 1, store_ram_bytes: 0, ..EngineOptions::default() };
        let engine = Engine::from_gguf(&tiny.gguf(), None, options, &mut |_| {});
        let mut engine = engine.expect("a model of our own making");
        engine.set_disk(Arc::new(disk.clone()), Writing::AtOnce);
        let tokens = tiny.tokens(TOKENS + 1);
        sync(&mut engine, &tokens[..TOKENS]);
        let names = disk.names().into_iter().filter(|name| name.ends_with(".state"));
        let read = |name: String| (disk.read(&name, u64::MAX).expect("just written"), name);
        let files = names.map(read).map(|(bytes, name)| (name, bytes)).collect();
        Mutex::new(Bench { engine, tokens, files })
    };
    BENCH.get_or_init(make).lock().unwrap_or_else(PoisonError::into_inner)
}

fn sync(engine: &mut Engine, tokens: &[u32]) -> usize {
    let mut session = engine.session(TOKENS + 2).expect("a small context");
    let report = session.sync(engine, tokens, &mut |_| {}, &CancelFlag::default());
    report.expect("whatever was stored, the tokens can be read").reused
}

fn file(bytes: &[u8]) -> u64 {
    let mut outcome = 0;
    for bytes in [bytes.to_vec(), sealed(bytes.to_vec())] {
        outcome = match read_file(&bytes) {
            Ok(view) => {
                assert!(view.tokens.len() * 4 + view.payload.len() <= bytes.len());
                assert!(view.tokens.len() <= view.position);
                view.kind as u64
            }
            Err(damage) => signature(&damage.to_string()),
        };
    }
    outcome
}

fn entries() -> Vec<Vec<u8>> {
    let bench = bench();
    let files = (0..).zip(&bench.files);
    files.map(|(at, (_, bytes))| [&[at], &bytes[..]].concat()).collect()
}

fn entry(input: &[u8]) -> u64 {
    let Some((which, bytes)) = input.split_first() else { return 0 };
    let mut bench = bench();
    let Bench { engine, tokens, files } = &mut *bench;
    let (name, sound) = &files[usize::from(*which) % files.len()];
    // Behind the header lies what the model reads; so also with a header that is right.
    let head = sound.len().min(bytes.len()).min(112);
    let under_header = [&sound[..head], &bytes[head..]].concat();
    let mut reused = 0;
    for bytes in [sealed(bytes.to_vec()), sealed(under_header)] {
        let disk = SimDisk::new(1);
        files.iter().for_each(|(name, bytes)| disk.put(name, bytes.clone()));
        disk.put(name, bytes);
        engine.set_disk(Arc::new(disk), Writing::AtOnce);
        reused = sync(engine, tokens);
    }
    reused as u64
}
