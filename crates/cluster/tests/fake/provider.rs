//! The fake libibverbs as a file: compiled once for its text, kept in the temporary folder.
//!
//! Shared by tests, an example and xtask, each of which includes this file.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: [(&str, &str); 5] = [
    ("abi.h", include_str!("abi.h")),
    ("fake.h", include_str!("fake.h")),
    ("fake.c", include_str!("fake.c")),
    ("wire.c", include_str!("wire.c")),
    ("exports.map", include_str!("exports.map")),
];

/// Path of a provider that behaves as `words` say (`fake.c` lists them; empty: well).
pub fn provider(words: &str) -> PathBuf {
    let folder = std::env::temp_dir().join("ironstar-fake-verbs").join(fingerprint());
    let plain = folder.join("libibverbs.so.1");
    if !plain.exists() {
        compile(&folder, &plain);
    }
    if words.is_empty() {
        return plain;
    }
    // A file of its own is a library of its own, with its own behaviour.
    let copy = folder.join(format!("libibverbs+{words}.so"));
    if !copy.exists() {
        let own = unique(&folder);
        std::fs::copy(&plain, &own).expect("the temporary folder can be written");
        std::fs::rename(&own, &copy).expect("the temporary folder can be written");
    }
    copy
}

/// A name that nobody else uses; others may do the same at the same time.
fn unique(folder: &Path) -> PathBuf {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("part-{}-{number}", std::process::id()))
}

fn compile(folder: &Path, made: &Path) {
    let own = unique(folder);
    std::fs::create_dir_all(&own).expect("the temporary folder can be written");
    for (name, text) in SOURCES {
        std::fs::write(own.join(name), text).expect("the temporary folder can be written");
    }
    let output = Command::new("cc")
        .current_dir(&own)
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"])
        .args(["-Wl,--version-script=exports.map", "-Wl,-soname,libibverbs.so.1"])
        .args(["-Wl,-z,nodelete", "-o", "made.so", "fake.c", "wire.c", "-ldl"])
        .output()
        .expect("a C compiler is part of what builds this project");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "compiling the fake provider: {errors}");
    std::fs::rename(own.join("made.so"), made).expect("the temporary folder can be written");
    std::fs::remove_dir_all(&own).expect("it was made above");
}

/// FNV-1a of the sources and of this file.
fn fingerprint() -> String {
    let texts = SOURCES.iter().map(|(_, text)| *text).chain([include_str!("provider.rs")]);
    let bytes = texts.flat_map(str::bytes);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}
