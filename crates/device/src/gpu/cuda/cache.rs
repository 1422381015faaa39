//! Compiled kernels on disk, so that only the first start compiles.
//!
//! An entry holds everything that it was made from, whole; it is used only if that is equal to what
//! is wanted, so a collision or a damaged file is a miss and never a wrong kernel.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often it is asked whether it is our turn.
const LOOK: Duration = Duration::from_millis(50);
const MAGIC: &[u8; 8] = b"ISKERN02";
/// Larger files are not ours.
const BYTES_MAX: u64 = 256 << 20;

/// Where a compiled text lies, and what it must have been made from.
pub(super) struct Entry {
    path: Option<PathBuf>,
    key: Vec<u8>,
}

impl Entry {
    /// `made_from` is everything that the result depends on. No folder means no cache.
    pub(super) fn new(folder: Option<&Path>, made_from: &[&str]) -> Entry {
        let mut key = Vec::new();
        for part in made_from {
            key.extend((part.len() as u64).to_le_bytes());
            key.extend(part.as_bytes());
        }
        let name = format!("{:016x}.kernels", hash(&key));
        Entry { path: folder.map(|folder| folder.join(name)), key }
    }

    /// The compiled code, if it is there, whole, and made from the same.
    pub(super) fn load(&self) -> Option<Vec<u8>> {
        let path = self.path.as_ref()?;
        if fs::metadata(path).ok()?.len() > BYTES_MAX {
            return None;
        }
        let bytes = fs::read(path).ok()?;
        let rest = bytes.strip_prefix(MAGIC)?;
        let (sum, rest) = rest.split_first_chunk::<8>()?;
        if hash(rest) != u64::from_le_bytes(*sum) {
            return None;
        }
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (key, code) = rest.split_at_checked(length)?;
        (key == self.key && !code.is_empty()).then(|| code.to_vec())
    }

    /// Keeps compiled code. A cache that cannot be written only costs time, so nobody is told.
    pub(super) fn store(&self, code: &[u8]) {
        let Some(path) = &self.path else { return };
        let _ = self.write(path, code);
    }

    /// Written beside its place and renamed, so that no reader sees half a file.
    fn write(&self, path: &Path, code: &[u8]) -> std::io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let mut body = Vec::with_capacity(self.key.len() + code.len() + 8);
        body.extend((self.key.len() as u64).to_le_bytes());
        body.extend(&self.key);
        body.extend(code);
        // Who else in this process writes the same has another thread.
        let own = format!("{}-{:?}.tmp", std::process::id(), std::thread::current().id());
        let beside = path.with_extension(own);
        let mut file = fs::File::create(&beside)?;
        file.write_all(MAGIC)?;
        file.write_all(&hash(&body).to_le_bytes())?;
        file.write_all(&body)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    }
}

/// Whose turn it is to compile into a folder: of many that start at once, as ranks do, one does the
/// work. It ends with this value or its process.
pub(super) struct Turn {
    /// Locked, unless nobody can tell whose turn it is.
    _file: Option<fs::File>,
}

impl Turn {
    /// Waits for it, and goes on without after so long: who has it may have been stopped.
    pub(super) fn wait(folder: Option<&Path>, most: Duration) -> Turn {
        let open = |folder: &Path| {
            fs::create_dir_all(folder).ok()?;
            fs::File::create(folder.join("turn")).ok()
        };
        let Some(file) = folder.and_then(open) else { return Turn { _file: None } };
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Turn { _file: Some(file) },
                Err(fs::TryLockError::WouldBlock) if begun.elapsed() < most => {
                    std::thread::sleep(LOOK);
                }
                // A file system without locks is no reason to wait either.
                Err(_) => return Turn { _file: None },
            }
        }
    }
}

/// As FNV-1a, by words and turned after each: tells damage and names files; equality is what is
/// relied on.
fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let mixed = |h: u64, word: u64| (h ^ word).wrapping_mul(0x100_0000_01B3).rotate_left(29);
    words.chain(rest.iter().map(|byte| u64::from(*byte))).fold(0xCBF2_9CE4_8422_2325, mixed)
}

#[cfg(test)]
mod tests {
    use super::{Entry, Turn};
    use std::fs;
    use std::time::Duration;

    /// A folder of one test's own, removed at its end.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir()
                .join(format!("ironstar-kernel-cache-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Folder(path)
        }

        fn only_file(&self) -> std::path::PathBuf {
            let mut files = fs::read_dir(&self.0).expect("the folder was made");
            let file = files.next().expect("one file").expect("readable").path();
            assert!(files.next().is_none(), "nothing is left beside the entry");
            file
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_stored_comes_back_for_the_same_origin_only() {
        let folder = Folder::new("origin");
        let entry = Entry::new(Some(&folder.0), &["text", "sm_90a", "13000"]);
        assert_eq!(entry.load(), None);
        entry.store(b"code");
        assert_eq!(entry.load().as_deref(), Some(&b"code"[..]));
        for other in [["text", "sm_90", "13000"], ["texts", "m_90a", "13000"]] {
            assert_eq!(Entry::new(Some(&folder.0), &other).load(), None);
        }
        // A name that two origins share is not enough.
        let other = Entry { path: Some(folder.only_file()), key: b"another".to_vec() };
        assert_eq!(other.load(), None);
    }

    #[test]
    fn every_damaged_file_is_a_miss() {
        let folder = Folder::new("damage");
        let entry = Entry::new(Some(&folder.0), &["text"]);
        entry.store(&[7; 40]);
        let file = folder.only_file();
        let whole = fs::read(&file).expect("the entry");
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(&file, &bytes).expect("writable");
            assert_eq!(entry.load(), None, "byte {at} turned");
            fs::write(&file, &whole[..at]).expect("writable");
            assert_eq!(entry.load(), None, "cut after {at} bytes");
        }
        entry.store(&[8; 3]);
        assert_eq!(entry.load().as_deref(), Some(&[8; 3][..]), "a damaged entry is replaced");
    }

    /// Somebody who never gives the turn back keeps nobody for longer than is said.
    #[test]
    fn one_has_the_turn_at_a_time() {
        let (folder, short) = (Folder::new("turn"), Duration::from_millis(20));
        let first = Turn::wait(Some(&folder.0), Duration::MAX);
        let file = fs::File::open(folder.0.join("turn")).expect("it was made");
        assert!(file.try_lock().is_err());
        drop(Turn::wait(Some(&folder.0), short));
        assert!(file.try_lock().is_err(), "the second never had it");
        drop(first);
        assert!(file.try_lock().is_ok());
        drop(Turn::wait(None, Duration::MAX));
    }

    #[test]
    fn no_folder_is_no_cache() {
        let entry = Entry::new(None, &["text"]);
        entry.store(b"code");
        assert_eq!(entry.load(), None);
    }
}
