//! Files that commands write: what stands in their place is not lost by accident.

use crate::failure::Failure;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// Refuses a path where writing would destroy an input, something that is no regular file, or,
/// without `force`, any file; and one in a folder that is not there, before hours of work are lost.
pub fn check(path: &Path, inputs: &[&Path], force: bool) -> Result<(), Failure> {
    let shown = path.display();
    let Ok(there) = std::fs::metadata(path) else {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        return match folder {
            Some(folder) if !folder.is_dir() => Err(Failure::caller(format!(
                "{shown}: there is no folder {}; make it, or name another file",
                folder.display()
            ))),
            _ => Ok(()),
        };
    };
    if !there.is_file() {
        return Err(Failure::caller(format!(
            "{shown} is not a regular file; name a file that can be replaced"
        )));
    }
    let real = path.canonicalize().ok();
    if real.is_some() && inputs.iter().any(|input| input.canonicalize().ok() == real) {
        return Err(Failure::caller(format!(
            "{shown} is what is read; name another file to write"
        )));
    }
    if !force {
        return Err(Failure::caller(format!("{shown} exists; --force replaces it")));
    }
    Ok(())
}

/// Keeps other runs away from the same output for as long as the file is open.
pub fn lock(file: &File, path: &Path) -> Result<(), Failure> {
    let other = || {
        Failure::environment(format!(
            "{} is being written by another run; wait for it, or name another output",
            path.display()
        ))
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(other()),
        Err(TryLockError::Error(error)) => return Err(Failure::file("locking", path, &error)),
    }
    // The run that had it may have finished in between: then the path is gone or another file.
    if is_at(file, path) { Ok(()) } else { Err(other()) }
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |about: std::io::Result<std::fs::Metadata>| about.ok().map(|a| (a.dev(), a.ino()));
    place(file.metadata()).is_some() && place(file.metadata()) == place(std::fs::metadata(path))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// The path with something behind its name.
pub fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_kept() {
        let folder = std::env::temp_dir().join(format!("ironstar-outfile-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for temporary files");
        let (file, other) = (folder.join("file"), folder.join("other"));
        std::fs::write(&file, "x").expect("room");
        let refused = |path: &Path, inputs: &[&Path], force| {
            check(path, inputs, force).expect_err("refused").message
        };
        assert!(check(&other, &[&file], false).is_ok());
        assert!(check(&file, &[&other], true).is_ok());
        assert!(refused(&file, &[], false).contains("--force"));
        assert!(refused(&file, &[&folder.join(".").join("file")], true).contains("is read"));
        assert!(refused(&folder, &[], true).contains("regular"));
        assert!(refused(&folder.join("none").join("file"), &[], true).contains("no folder"));
        assert!(refused(&file.join("under a file"), &[], true).contains("no folder"));
        #[cfg(unix)]
        assert!(refused(Path::new("/dev/null"), &[], true).contains("regular"));
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
