//! A folder of stored answers.
//!
//! What is there is what the folder holds: nothing is remembered of it but a guess of its size, so
//! several servers may share one, and whoever empties it harms nobody. A file is written under a
//! name that nobody looks for, synced, and renamed. The oldest go when the folder is full.

use super::{Answer, file};
use ironstar_engine::store::{Disk, Listed};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// End of the name of a stored answer.
const SUFFIX: &str = ".answer";
/// End of the name of one that is being written.
const TEMPORARY: &str = ".answer-new";
/// Age from which one that is being written was left behind by a process that died.
const ABANDONED: Duration = Duration::from_secs(600);
/// Bytes of a file; larger ones are neither written nor read.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// What a file takes at least, so that small ones are bounded in number too.
const FILE_BYTES_MIN: u64 = 4096;
/// Letters and digits of an id, its prefix included; ids come from requests and become names.
const ID_BYTES_MAX: usize = 64;

/// Stored answers in a folder.
pub(crate) struct Shelf {
    disk: Arc<dyn Disk>,
    bytes_max: u64,
    /// Bytes of the folder as far as this process knows: others may have written since.
    bytes: Mutex<Option<u64>>,
    /// Whether the last write failed.
    failing: AtomicBool,
}

impl Shelf {
    /// A shelf in a folder, which need not be there yet.
    pub fn new(disk: Arc<dyn Disk>, bytes_max: u64) -> Shelf {
        Shelf { disk, bytes_max, bytes: Mutex::new(None), failing: AtomicBool::new(false) }
    }

    /// The answer with an id, if its file is whole.
    pub fn get(&self, id: &str) -> Option<Answer> {
        let name = name(id)?;
        let bytes = self.disk.read(&name, FILE_BYTES_MAX).ok()?;
        let answer = file::read(id, &bytes)?;
        // A conversation that goes on is not old. If this fails it is only forgotten earlier.
        let _used = self.disk.touch(&name);
        Some(answer)
    }

    /// Whether there was such an answer; there is none now.
    pub fn remove(&self, id: &str) -> bool {
        let gone = name(id).is_some_and(|name| self.disk.remove(&name).is_ok());
        // Where this fails, a crash may bring it back; there is nobody to tell.
        let _safe = gone.then(|| self.disk.sync_folder());
        gone
    }

    /// Writes an answer. The error is a line for the log, the first time of several.
    pub fn keep(&self, id: &str, answer: &Answer) -> Result<(), Option<String>> {
        let result = self.try_keep(id, answer);
        let failed_before = self.failing.swap(result.is_err(), Ordering::Relaxed);
        result.map_err(|error| {
            let line = || {
                format!(
                    "cannot store an answer in the state folder: {error}; until that works, \
                     answers are kept in memory"
                )
            };
            (!failed_before).then(line)
        })
    }

    fn try_keep(&self, id: &str, answer: &Answer) -> io::Result<()> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text.to_owned());
        let name = name(id).ok_or_else(|| invalid("its id is no id"))?;
        let bytes = file::write(id, answer).map_err(io::Error::from)?;
        let size = counted(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if size > FILE_BYTES_MAX.min(self.bytes_max) {
            return Err(invalid("it is larger than the folder may be"));
        }
        // Held while writing: one file at a time.
        let mut known = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none_or(|known| known.saturating_add(size) > self.bytes_max) {
            *known = Some(self.make_room(self.bytes_max - size)?);
        }
        let written = match self.write(&name, &bytes) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                // The disk is smaller than was allowed: give back what the oldest take.
                let now = known.unwrap_or(0);
                *known = Some(self.make_room(now.saturating_sub(2 * size))?);
                self.write(&name, &bytes)
            }
            other => other,
        };
        *known = written.is_ok().then(|| known.unwrap_or(0).saturating_add(size));
        written
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!("{:016x}{TEMPORARY}", self.disk.unique());
        let written = self
            .disk
            .create(&temporary, &[bytes])
            .and_then(|()| self.disk.rename(&temporary, name))
            .and_then(|()| self.disk.sync_folder());
        if written.is_err() {
            // It may never have been made.
            let _gone = self.disk.remove(&temporary);
        }
        written
    }

    /// Removes the oldest until so many bytes are left at most, and somewhat more, so that the next
    /// answers need not look again; says how many are left.
    fn make_room(&self, most: u64) -> io::Result<u64> {
        let mut files: Vec<Listed> = Vec::new();
        for listed in self.disk.list()? {
            if listed.name.ends_with(SUFFIX) {
                files.push(listed);
            } else if listed.name.ends_with(TEMPORARY) && is_abandoned(&listed) {
                // Another process may have removed it already.
                let _gone = self.disk.remove(&listed.name);
            }
        }
        files.sort_by(|a, b| a.modified.cmp(&b.modified).then(a.name.cmp(&b.name)));
        let mut left: u64 = files.iter().map(|file| counted(file.bytes)).sum();
        let wanted = if left > most { most - most / 8 } else { most };
        for file in files {
            if left <= wanted {
                break;
            }
            match self.disk.remove(&file.name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => left -= counted(file.bytes),
            }
        }
        Ok(left)
    }
}

fn counted(bytes: u64) -> u64 {
    bytes.max(FILE_BYTES_MIN)
}

fn is_abandoned(listed: &Listed) -> bool {
    // A clock that went back makes it wait for the next time.
    SystemTime::now().duration_since(listed.modified).is_ok_and(|age| age > ABANDONED)
}

/// The name of an answer's file. An id with anything but letters, digits and `_` is none of ours.
fn name(id: &str) -> Option<String> {
    let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let good = plain && id.starts_with("resp_") && id.len() <= ID_BYTES_MAX;
    good.then(|| format!("{id}{SUFFIX}"))
}
