//! A folder as the store sees it. A trait because a store must be tested on disks that tear, fill
//! up and crash: [`Folder`] is the real one, [`super::sim::SimDisk`] the other.

use super::chain::Home;
use std::any::Any;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
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

/// A folder of files, a clock, and numbers that do not repeat. A name may have one folder before it
/// (`v1-0123456789abcdef/file`).
pub trait Disk: Send + Sync {
    /// All files of the folder, and of those in it that hold stored states; none if it is not
    /// there.
    fn list(&self) -> io::Result<Vec<Listed>>;
    /// A whole file, unless it is larger than `most`.
    fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>>;
    /// The first bytes of a file; fewer where it is shorter.
    fn read_head(&self, name: &str, most: u64) -> io::Result<Vec<u8>>;
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
    /// Folders inside that have names which may not survive a crash.
    unsafe_names: Mutex<BTreeSet<PathBuf>>,
}

impl Folder {
    /// A folder that is made when something is written.
    #[must_use]
    pub fn new(path: PathBuf) -> Folder {
        Folder { path, start: Instant::now(), unsafe_names: Mutex::default() }
    }

    /// Opening what only looks like a file, a pipe, would wait for somebody who never writes.
    fn open(&self, name: &str) -> io::Result<File> {
        let path = self.path.join(name);
        if !fs::metadata(&path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a file"));
        }
        File::open(path)
    }

    fn create_new(&self, name: &str) -> io::Result<File> {
        let open = || OpenOptions::new().write(true).create_new(true).open(self.path.join(name));
        match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&self.path)?;
                // Where this cannot be done, a crash may take the new folder with it.
                let _safe = self.path.parent().map(|parent| File::open(parent)?.sync_all());
                open()
            }
            other => other,
        }
    }
}

/// Adds the files of a folder, none if it is not there, and gives the folders in it that may hold
/// stored states.
fn list_one(path: &Path, prefix: &str, files: &mut Vec<Listed>) -> io::Result<Vec<String>> {
    let mut inner = Vec::new();
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(inner),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        // One that another process has just removed is no error.
        let Ok(about) = entry.metadata() else { continue };
        let Ok(name) = entry.file_name().into_string() else { continue };
        if about.is_file() {
            let modified = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            files.push(Listed { name: format!("{prefix}{name}"), bytes: about.len(), modified });
        } else if about.is_dir() && Home::parse(&name).is_some() {
            inner.push(name);
        }
    }
    Ok(inner)
}

impl Disk for Folder {
    fn list(&self) -> io::Result<Vec<Listed>> {
        let mut files = Vec::new();
        for inner in list_one(&self.path, "", &mut files)? {
            // One that cannot be read hides no others.
            let _seen = list_one(&self.path.join(&inner), &format!("{inner}/"), &mut files);
        }
        Ok(files)
    }

    fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let mut file = self.open(name)?;
        let size = file.metadata()?.len();
        let room = usize::try_from(size).ok().filter(|_| size <= most);
        let Some(room) = room else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "larger than it can be"));
        };
        let mut bytes = Vec::with_capacity(room + 1);
        (&mut file).take(size + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn read_head(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let mut file = self.create_new(name)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.path.join(from), self.path.join(to));
        let inner = to.parent().filter(|inner| *inner != self.path).map(PathBuf::from);
        let renamed = match (fs::rename(&from, &to), &inner) {
            (Err(error), Some(inner)) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(inner)?;
                fs::rename(&from, &to)
            }
            (other, _) => other,
        };
        self.unsafe_names.lock().unwrap_or_else(PoisonError::into_inner).extend(inner);
        renamed
    }

    #[cfg(unix)]
    fn sync_folder(&self) -> io::Result<()> {
        let mut inner = self.unsafe_names.lock().unwrap_or_else(PoisonError::into_inner);
        for folder in inner.iter() {
            match File::open(folder) {
                // Whoever removed it removed its names too.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?.sync_all()?,
            }
        }
        File::open(&self.path)?.sync_all()?;
        inner.clear();
        Ok(())
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
