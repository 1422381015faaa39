//! A disk that tears, fills up, lies and crashes, for tests of the store and of what uses it.
//!
//! Bytes of a file survive a crash when `create` has returned; names do when `sync_folder` has.
//! What is not safe yet survives or not by a throw of dice: an unfinished file is cut anywhere or
//! ends in zeros, and each change of a name since the last sync is there or is not, whatever
//! others did.

use super::disk::{Claim, Disk, Listed};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

/// Chances of a fault at each operation, in 1,024ths, and the room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// A read that fails.
    pub read: u32,
    /// A write that fails after some bytes, a rename, sync or removal that fails.
    pub write: u32,
    /// Bytes of all files.
    pub capacity: u64,
    /// The operation during which the machine dies; counted from the start.
    pub crash_at: Option<u64>,
    /// Nothing can be changed.
    pub read_only: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Faults { read: 0, write: 0, capacity: u64::MAX, crash_at: None, read_only: false }
    }
}

/// What is done to a file that lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rot {
    /// One bit changes.
    Flip,
    /// The end is missing.
    Cut,
    /// Another file's bytes.
    Swap,
    /// It is gone.
    Gone,
}

/// A change of names that a crash may lose.
#[derive(Clone, Debug)]
enum Change {
    Link(String, usize),
    Unlink(String),
    Rename(String, String, usize),
}

#[derive(Clone, Debug, Default)]
struct Inode {
    bytes: Vec<u8>,
    safe: bool,
    used: u64,
}

#[derive(Debug, Default)]
struct World {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    safe_names: BTreeMap<String, usize>,
    changes: Vec<Change>,
    claims: BTreeMap<String, Weak<()>>,
    faults: Faults,
    random: u64,
    operations: u64,
    crashed: bool,
    now: Duration,
    uses: u64,
}

/// A simulated disk; clones are the same disk, so several stores may share it.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<World>>);

impl SimDisk {
    /// An empty disk; the seed decides all faults.
    #[must_use]
    pub fn new(seed: u64) -> SimDisk {
        let random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        SimDisk(Arc::new(Mutex::new(World { random, ..World::default() })))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.world().faults = faults;
    }

    /// Operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.world().operations
    }

    /// Whether the machine died.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.world().crashed
    }

    /// Sets the clock, forward or back.
    pub fn set_now(&self, now: Duration) {
        self.world().now = now;
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.world().bytes()
    }

    /// Names of all files.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.world().names.keys().cloned().collect()
    }

    /// Puts a file there, as somebody else might.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut world = self.world();
        let at = world.add(bytes, true);
        world.names.insert(name.to_owned(), at);
        world.safe_names.insert(name.to_owned(), at);
    }

    /// Removes all files, as somebody else might.
    pub fn wipe(&self) {
        let mut world = self.world();
        world.names.clear();
        world.safe_names.clear();
        world.changes.clear();
    }

    /// Damages a file.
    pub fn rot(&self, name: &str, rot: Rot) {
        let mut world = self.world();
        let Some(&at) = world.names.get(name) else { return };
        let len = world.inodes[at].bytes.len();
        match rot {
            Rot::Flip if len > 0 => {
                let (byte, bit) = (world.below(len), world.below(8));
                world.inodes[at].bytes[byte] ^= 1 << bit;
            }
            Rot::Cut => {
                let keep = world.below(len);
                world.inodes[at].bytes.truncate(keep);
            }
            Rot::Swap => {
                let others: Vec<usize> = world.names.values().copied().collect();
                let other = others[world.below(others.len())];
                world.inodes[at].bytes = world.inodes[other].bytes.clone();
            }
            Rot::Gone => {
                world.names.remove(name);
                world.safe_names.remove(name);
            }
            Rot::Flip => {}
        }
    }

    /// The disk after a crash (if there was none yet, now): what was safe, and of the rest what the
    /// dice leave.
    #[must_use]
    pub fn restart(&self) -> SimDisk {
        let mut world = self.world();
        let mut names = std::mem::take(&mut world.safe_names);
        for change in std::mem::take(&mut world.changes) {
            if world.below(2) == 0 {
                apply(&mut names, change);
            }
        }
        let mut inodes = std::mem::take(&mut world.inodes);
        for inode in inodes.iter_mut().filter(|inode| !inode.safe) {
            let len = inode.bytes.len();
            let keep = world.below(len + 1);
            if world.below(2) == 0 {
                inode.bytes.truncate(keep);
            } else {
                inode.bytes[keep..].fill(0);
            }
            inode.safe = true;
        }
        world.crashed = true;
        let fresh = World {
            inodes,
            safe_names: names.clone(),
            names,
            random: world.random,
            now: world.now,
            uses: world.uses,
            ..World::default()
        };
        SimDisk(Arc::new(Mutex::new(fresh)))
    }
}

fn apply(names: &mut BTreeMap<String, usize>, change: Change) {
    match change {
        Change::Link(name, at) => {
            names.insert(name, at);
        }
        Change::Unlink(name) => {
            names.remove(&name);
        }
        Change::Rename(from, to, at) => {
            names.remove(&from);
            names.insert(to, at);
        }
    }
}

fn failed(text: &'static str) -> io::Error {
    io::Error::other(text)
}

impl World {
    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let bound = u64::try_from(bound.max(1)).expect("a small number");
        usize::try_from((self.random >> 11) % bound).expect("below a usize")
    }

    fn read_fails(&mut self) -> bool {
        self.chance(self.faults.read)
    }

    fn write_fails(&mut self) -> bool {
        self.chance(self.faults.write)
    }

    fn chance(&mut self, of_1024: u32) -> bool {
        of_1024 > 0 && self.below(1024) < of_1024 as usize
    }

    fn bytes(&self) -> u64 {
        let size = |at: &usize| self.inodes[*at].bytes.len() as u64;
        self.names.values().map(size).sum()
    }

    fn add(&mut self, bytes: Vec<u8>, safe: bool) -> usize {
        self.uses += 1;
        self.inodes.push(Inode { bytes, safe, used: self.uses });
        self.inodes.len() - 1
    }

    /// Counts an operation. Whether the machine dies in it, before or after it has its effect.
    fn begin(&mut self) -> io::Result<bool> {
        if self.crashed {
            return Err(failed("the machine is off"));
        }
        self.operations += 1;
        let dies = self.faults.crash_at == Some(self.operations);
        if dies {
            self.crashed = true;
            if self.below(2) == 0 {
                return Err(failed("the machine dies"));
            }
        }
        Ok(dies)
    }

    fn change(&mut self, change: Change) -> io::Result<()> {
        let dies = self.begin()?;
        if self.faults.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        if self.write_fails() {
            return Err(failed("a simulated failure to write"));
        }
        apply(&mut self.names, change.clone());
        self.changes.push(change);
        if dies { Err(failed("the machine dies")) } else { Ok(()) }
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<Listed>> {
        let mut world = self.world();
        let dies = world.begin()?;
        if dies || world.read_fails() {
            return Err(failed("a simulated failure to list"));
        }
        let listed = |(name, at): (&String, &usize)| {
            let inode = &world.inodes[*at];
            let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(inode.used);
            Listed { name: name.clone(), bytes: inode.bytes.len() as u64, modified }
        };
        Ok(world.names.iter().map(listed).collect())
    }

    fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let mut world = self.world();
        let dies = world.begin()?;
        if dies || world.read_fails() {
            return Err(failed("a simulated failure to read"));
        }
        let bytes = &world.inodes[world.find(name)?].bytes;
        if bytes.len() as u64 > most {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(bytes.clone())
    }

    fn read_head(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = self.read(name, u64::MAX)?;
        bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(bytes)
    }

    fn create(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let mut world = self.world();
        let bytes = parts.concat();
        let at = world.add(Vec::new(), false);
        world.change(Change::Link(name.to_owned(), at))?;
        let room = world.faults.capacity.saturating_sub(world.bytes());
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        if bytes.len() > room {
            world.inodes[at].bytes = bytes[..room].to_vec();
            return Err(io::ErrorKind::StorageFull.into());
        }
        // A second operation, so that a crash can leave the file without its sync.
        let dies = match world.begin() {
            Ok(dies) => dies,
            Err(error) => {
                let half = world.below(bytes.len() + 1);
                world.inodes[at].bytes = bytes[..half].to_vec();
                return Err(error);
            }
        };
        world.inodes[at].bytes = bytes;
        if dies || world.write_fails() {
            return Err(failed("a simulated failure to sync"));
        }
        world.inodes[at].safe = true;
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world();
        let at = world.find(from)?;
        world.change(Change::Rename(from.to_owned(), to.to_owned(), at))
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut world = self.world();
        let dies = world.begin()?;
        if world.write_fails() {
            return Err(failed("a simulated failure to sync"));
        }
        world.safe_names = world.names.clone();
        world.changes.clear();
        if dies { Err(failed("the machine dies")) } else { Ok(()) }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut world = self.world();
        world.find(name)?;
        world.change(Change::Unlink(name.to_owned()))
    }

    fn touch(&self, name: &str) -> io::Result<()> {
        let mut world = self.world();
        let at = world.find(name)?;
        world.uses += 1;
        world.inodes[at].used = world.uses;
        Ok(())
    }

    fn claim(&self, name: &str) -> io::Result<Claim> {
        self.create(name, &[])?;
        let held = Arc::new(());
        self.world().claims.insert(name.to_owned(), Arc::downgrade(&held));
        Ok(Box::new(held))
    }

    fn is_claimed(&self, name: &str) -> bool {
        self.world().claims.get(name).is_some_and(|held| held.strong_count() > 0)
    }

    fn now(&self) -> Duration {
        self.world().now
    }

    fn unique(&self) -> u64 {
        let mut world = self.world();
        world.below(usize::MAX) as u64
    }
}
