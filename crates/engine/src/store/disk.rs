//! A folder as the store sees it. A trait because a store must be tested on disks that tear, fill
//! up and crash: [`Folder`] is the real one, [`super::sim::SimDisk`] the other.

use std::any::Any;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// A file in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// When it was last used, by whatever clock; only the order is used, and only as a hint.
    pub modified: SystemTime,
}

/// Holds a claim as long as it lives.
pub type Claim = Box<dyn Any + Send + Sync>;

/// A folder of files, a clock, and numbers that do not repeat.
pub trait Disk: Send + Sync {
    /// All files of the folder; none if it is not there.
    fn list(&self) -> io::Result<Vec<Listed>>;
    /// A whole file, unless it is larger than `most`.
    fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>>;
    /// Writes a new file of these parts; when this returns, its bytes survive a crash (its name may
    /// not). The folder is made if it is not there.
    fn create(&self, name: &str, parts: &[&[u8]]) -> io::Result<()>;
    /// Gives a file another name, in one step, in place of what had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// When this returns, all names as they are now survive a crash.
    fn sync_folder(&self) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Notes that a file was used.
    fn touch(&self, name: &str) -> io::Result<()>;
    /// Makes a file that is claimed until the claim is dropped or the process dies.
    fn claim(&self, name: &str) -> io::Result<Claim>;
    /// Whether somebody who lives holds the claim.
    fn is_claimed(&self, name: &str) -> bool;
    /// Time since some start. It may jump; nothing but the pace of retries depends on it.
    fn now(&self) -> Duration;
    /// A number that nobody else gets.
    fn unique(&self) -> u64;
}

/// A real folder.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    start: Instant,
}

impl Folder {
    /// A folder that is made when something is written.
    #[must_use]
    pub fn new(path: PathBuf) -> Folder {
        Folder { path, start: Instant::now() }
    }

    fn create_new(&self, name: &str) -> io::Result<File> {
        let open = || OpenOptions::new().write(true).create_new(true).open(self.path.join(name));
        match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&self.path)?;
                open()
            }
            other => other,
        }
    }
}

impl Disk for Folder {
    fn list(&self) -> io::Result<Vec<Listed>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            // One that another process has just removed is no error.
            let Ok(about) = entry.metadata() else { continue };
            let Ok(name) = entry.file_name().into_string() else { continue };
            if about.is_file() {
                let modified = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                files.push(Listed { name, bytes: about.len(), modified });
            }
        }
        Ok(files)
    }

    fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.path.join(name))?;
        let size = file.metadata()?.len();
        let room = usize::try_from(size).ok().filter(|_| size <= most);
        let Some(room) = room else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "larger than it can be"));
        };
        let mut bytes = Vec::with_capacity(room + 1);
        (&mut file).take(size + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let mut file = self.create_new(name)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    #[cfg(unix)]
    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    #[cfg(not(unix))]
    fn sync_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn touch(&self, name: &str) -> io::Result<()> {
        let file = OpenOptions::new().append(true).open(self.path.join(name))?;
        file.set_modified(SystemTime::now())
    }

    fn claim(&self, name: &str) -> io::Result<Claim> {
        let file = self.create_new(name)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::from(io::ErrorKind::AlreadyExists),
            TryLockError::Error(error) => error,
        })?;
        Ok(Box::new(file))
    }

    fn is_claimed(&self, name: &str) -> bool {
        match File::open(self.path.join(name)) {
            Ok(file) => !matches!(file.try_lock(), Ok(())),
            Err(_) => false,
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn unique(&self) -> u64 {
        std::hash::RandomState::new().build_hasher().finish()
    }
}
