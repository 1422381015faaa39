//! Shared memory: two ranks of one host, one ring of slots each way in one mapped file.
//!
//! The file: a page of its own description, then for each direction a page of counters and the
//! slots. `written` counts messages that are whole in the ring, `read` those that were copied
//! out; only the writer stores the one and only the reader the other. A slot begins with the
//! number of its message and the length, so that a counter that lies is found.

use super::map::SharedMap;
use super::{Limits, Link, LinkError, Posted, Taken};
use crate::message::HEADER_BYTES;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// First word of a file that is complete: letters and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"ISTRSHM\x01");
const PAGE: usize = 4096;
/// Offsets in the page of counters; each has its own two cache lines.
const WRITTEN: usize = 0;
const READ: usize = 128;
const GONE: usize = 256;
/// Bytes of number and length before a message in its slot.
const SLOT_HEAD: usize = 64;

/// The form of the rings, which both ends must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmSize {
    limits: Limits,
    slot: usize,
}

impl ShmSize {
    /// Rings that hold all messages that `limits` lets be under way.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, slot: (SLOT_HEAD + limits.message_bytes_max).next_multiple_of(64) }
    }

    fn ring(&self) -> usize {
        PAGE + (self.slot * self.limits.posted_max).next_multiple_of(PAGE)
    }

    fn file(&self) -> usize {
        PAGE + 2 * self.ring()
    }
}

/// One end of a pair of rings.
pub struct ShmLink {
    map: SharedMap,
    size: ShmSize,
    posted: Posted,
    /// Where the ring begins that this end writes, and the one that it reads.
    mine: usize,
    theirs: usize,
    written: u64,
    read: u64,
    message: Vec<u8>,
    /// The file, while its name is this end's to remove.
    path: Option<PathBuf>,
}

impl ShmLink {
    /// Makes the file at `path`, which must not exist, and is the first end. `nonce` is what the
    /// second must know.
    pub fn create(path: &Path, limits: Limits, nonce: u64) -> Result<Self, LinkError> {
        let size = ShmSize::new(limits);
        let file = new_file(path).map_err(|e| system("making the shared file", path, &e))?;
        file.set_len(size.file() as u64).map_err(|e| system("sizing the shared file", path, &e))?;
        let map = SharedMap::new(&file).map_err(|e| system("mapping the shared file", path, &e))?;
        for (index, word) in size.description(nonce).into_iter().enumerate() {
            map.counter(8 + 8 * index).store(word, Ordering::Relaxed);
        }
        // The last store: whoever sees it sees the rest.
        map.counter(0).store(MAGIC, Ordering::Release);
        Ok(Self::over(map, size, true, Some(path.to_path_buf())))
    }

    /// Opens what the first end made at `path`, waiting for it until `deadline`, and removes the
    /// name: the memory lives while either end does.
    pub fn open(
        path: &Path,
        limits: Limits,
        nonce: u64,
        deadline: Instant,
    ) -> Result<Self, LinkError> {
        let size = ShmSize::new(limits);
        loop {
            match Self::try_open(path, size, nonce) {
                Ok(Some(link)) => {
                    // Whoever comes first removes it; the first end forgives that it is gone.
                    let _ = std::fs::remove_file(path);
                    return Ok(link);
                }
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Ok(None) => {
                    return Err(LinkError::Wrong {
                        found: format!("nobody made {} in time", path.display()),
                        wanted: "both ranks must be on this machine and see the same folder".into(),
                    });
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn try_open(path: &Path, size: ShmSize, nonce: u64) -> Result<Option<Self>, LinkError> {
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(system("opening the shared file", path, &e)),
        };
        let bytes = file.metadata().map_err(|e| system("asking for its size", path, &e))?.len();
        if bytes == 0 {
            return Ok(None);
        }
        let wrong = |found: String, wanted: String| LinkError::Wrong { found, wanted };
        if bytes != size.file() as u64 {
            return Err(wrong(
                format!("{} has {bytes} bytes", path.display()),
                format!("rings of this group have {}", size.file()),
            ));
        }
        let map = SharedMap::new(&file).map_err(|e| system("mapping the shared file", path, &e))?;
        if map.len() as u64 != bytes {
            return Err(wrong("the shared file changed its size".into(), "it must keep it".into()));
        }
        if map.counter(0).load(Ordering::Acquire) != MAGIC {
            return Ok(None);
        }
        let same = size.description(nonce).into_iter().enumerate();
        if same.clone().any(|(i, word)| map.counter(8 + 8 * i).load(Ordering::Relaxed) != word) {
            return Err(wrong(
                format!("{} belongs to another group or build", path.display()),
                "its description must be the one that was agreed on".into(),
            ));
        }
        Ok(Some(Self::over(map, size, false, None)))
    }

    fn over(map: SharedMap, size: ShmSize, first: bool, path: Option<PathBuf>) -> Self {
        let (low, high) = (PAGE, PAGE + size.ring());
        let (mine, theirs) = if first { (low, high) } else { (high, low) };
        let posted = Posted::new(size.limits);
        let message = vec![0; size.limits.message_bytes_max];
        Self { map, size, posted, mine, theirs, written: 0, read: 0, message, path }
    }

    fn slot(&self, ring: usize, number: u64) -> usize {
        let slots = self.size.limits.posted_max as u64;
        let index = usize::try_from(number % slots).expect("it is less than a usize");
        ring + PAGE + index * self.size.slot
    }

    /// Messages in the ring that is read, checked.
    fn arrived(&self) -> Result<u64, LinkError> {
        let written = self.map.counter(self.theirs + WRITTEN).load(Ordering::Acquire);
        let waiting = written.wrapping_sub(self.read);
        if waiting > self.size.limits.posted_max as u64 {
            return Err(LinkError::Wrong {
                found: format!("the other end claims {waiting} messages in its ring"),
                wanted: format!("it has {} slots", self.size.limits.posted_max),
            });
        }
        Ok(waiting)
    }

    /// Where the next message is and how long, if one is there, checked; its receive is used up.
    fn next_slot(&mut self) -> Result<Option<(usize, usize)>, LinkError> {
        if self.arrived()? == 0 {
            let gone = self.map.counter(self.theirs + GONE).load(Ordering::Acquire) != 0;
            // What was written before the end is read first.
            let closed = gone && self.arrived()? == 0;
            return if closed { Err(LinkError::Closed) } else { Ok(None) };
        }
        let slot = self.slot(self.theirs, self.read);
        let number = self.map.counter(slot).load(Ordering::Relaxed);
        if number != self.read {
            return Err(LinkError::Wrong {
                found: format!("message {number} stands in the slot"),
                wanted: format!("message {} is due", self.read),
            });
        }
        // Read once: what is compared is what is used.
        let length = self.map.counter(slot + 8).load(Ordering::Relaxed);
        self.posted.check_arrival(length)?;
        self.posted.take();
        let length = usize::try_from(length).expect("it was compared with a usize");
        Ok(Some((slot + SLOT_HEAD, length)))
    }

    /// The message of [`ShmLink::next_slot`] was copied out.
    fn free_slot(&mut self) {
        self.read += 1;
        self.map.counter(self.theirs + READ).store(self.read, Ordering::Release);
    }
}

impl ShmSize {
    fn description(&self, nonce: u64) -> [u64; 3] {
        [self.limits.message_bytes_max as u64, self.limits.posted_max as u64, nonce]
    }
}

impl Link for ShmLink {
    fn limits(&self) -> Limits {
        self.size.limits
    }

    fn post_recv(&mut self, bytes: usize) -> Result<(), LinkError> {
        self.posted.post(bytes)
    }

    fn send(&mut self, head: &[u8], body: &[u8]) -> Result<(), LinkError> {
        let length = head.len() + body.len();
        self.posted.check_length(length)?;
        if self.map.counter(self.theirs + GONE).load(Ordering::Acquire) != 0 {
            return Err(LinkError::Closed);
        }
        let read = self.map.counter(self.mine + READ).load(Ordering::Acquire);
        if self.written.wrapping_sub(read) >= self.size.limits.posted_max as u64 {
            return Err(LinkError::Misuse {
                found: format!("{} messages are unread", self.written.wrapping_sub(read)),
                wanted: "a sender keeps to its grant, which is the ring's size at most".into(),
            });
        }
        let slot = self.slot(self.mine, self.written);
        self.map.counter(slot).store(self.written, Ordering::Relaxed);
        self.map.counter(slot + 8).store(length as u64, Ordering::Relaxed);
        self.map.write(slot + SLOT_HEAD, head);
        self.map.write(slot + SLOT_HEAD + head.len(), body);
        self.written += 1;
        // Publishes the slot.
        self.map.counter(self.mine + WRITTEN).store(self.written, Ordering::Release);
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<&[u8]>, LinkError> {
        let Some((slot, length)) = self.next_slot()? else { return Ok(None) };
        self.map.read(slot, &mut self.message[..length]);
        self.free_slot();
        Ok(Some(&self.message[..length]))
    }

    fn receive_into(
        &mut self,
        head: &mut [u8; HEADER_BYTES],
        body: &mut [u8],
    ) -> Result<Option<Taken>, LinkError> {
        let Some((slot, length)) = self.next_slot()? else { return Ok(None) };
        let taken = self.map.take(slot, length, head, body);
        self.free_slot();
        Ok(Some(taken))
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn rest(&mut self, at_most: Duration) {
        std::thread::sleep(at_most.min(Duration::from_micros(50)));
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.map.counter(self.mine + GONE).store(1, Ordering::Release);
        if let Some(path) = &self.path {
            // The second end has removed it already, unless it never came.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn new_file(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn system(doing: &'static str, path: &Path, error: &std::io::Error) -> LinkError {
    LinkError::System { doing, found: format!("{}: {error}", path.display()) }
}
