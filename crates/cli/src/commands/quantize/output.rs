//! Writing one file: atomic, and continued where a stopped run left it.
//!
//! Data goes to `OUTPUT.partial`; `OUTPUT.partial.json` says how many tensors are complete and
//! safely on disk, and from what input. Only when all are there does the file get its name.

use super::encode::encode_rows;
use super::plan::Planned;
use super::source::{Source, rows_of};
use crate::failure::Failure;
use crate::loading;
use crate::progress::Progress;
use ironstar_gguf::{TensorKind, Value, Writer};
use ironstar_model::deepseek_v4::TensorSpec;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

/// Values that are decoded at a time: 1 MiB, however large a matrix is.
const SLAB_VALUES: usize = 1 << 18;

/// What a file shall hold.
pub struct Job<'a> {
    /// Its name in the end.
    pub path: &'a Path,
    /// Keys and values.
    pub metadata: Vec<(String, Value)>,
    /// Tensors in order.
    pub tensors: Vec<Planned>,
}

#[derive(Serialize, Deserialize, PartialEq)]
struct Journal {
    /// The input, so that a partial file of another is not continued.
    input: String,
    /// Tensors that are complete on disk.
    done: usize,
}

/// Bytes of a planned tensor.
#[must_use]
pub fn bytes_of(planned: &Planned) -> u64 {
    let dims: Vec<u64> = planned.spec.dims.iter().map(|dim| *dim as u64).collect();
    planned.kind.bytes(&dims).unwrap_or(0)
}

/// Writes the file.
pub fn write(job: &Job<'_>, source: &Source, input: &Path, threads: usize) -> Result<(), Failure> {
    let partial = with_ending(job.path, ".partial");
    let journal_path = with_ending(job.path, ".partial.json");
    let input = source.identity(input);
    let header = header_of(job)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file =
        options.open(&partial).map_err(|error| Failure::file("creating", &partial, &error))?;
    lock(&file, &partial)?;
    let done = resumable(&partial, &journal_path, &header, &input);
    if done == 0 {
        file.set_len(0).map_err(|error| Failure::file("emptying", &partial, &error))?;
    }
    let mut writer = announced(job, &file)?;
    writer.skip(done).map_err(|error| loading::from_gguf(&error))?;

    let total = job.tensors.iter().map(bytes_of).sum();
    let progress = Progress::new("writing", total, "bytes");
    let mut written: u64 = job.tensors[..done].iter().map(bytes_of).sum();
    for (index, planned) in job.tensors.iter().enumerate().skip(done) {
        progress.message(&planned.spec.name);
        write_tensor(&mut writer, planned, source, threads)?;
        written += bytes_of(planned);
        progress.at(written);
        if index + 1 < job.tensors.len() {
            file.sync_data().map_err(|error| Failure::file("writing", &partial, &error))?;
            save_journal(&journal_path, &Journal { input: input.clone(), done: index + 1 })?;
        }
    }
    writer.finish().map_err(|error| loading::from_gguf(&error))?;
    file.sync_all()
        .and_then(|()| std::fs::rename(&partial, job.path))
        .map_err(|error| Failure::file("finishing", job.path, &error))?;
    match std::fs::remove_file(&journal_path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::file("removing", &journal_path, &error))
        }
        _ => Ok(()),
    }
}

/// Keeps other runs away from the same output for as long as the file is open.
fn lock(file: &File, path: &Path) -> Result<(), Failure> {
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

fn write_tensor(
    writer: &mut Writer<&File>,
    planned: &Planned,
    source: &Source,
    threads: usize,
) -> Result<(), Failure> {
    let spec = &planned.spec;
    let mut put =
        |bytes: &[u8]| writer.data(&spec.name, bytes).map_err(|error| loading::from_gguf(&error));
    let kind = planned.kind;
    if let Some(bytes) = source.stored_as(spec, kind)? {
        return put(&bytes);
    }
    for index in 0..spec.stack() {
        match (source.imported(spec, index, kind)?, kind) {
            (Some(bytes), _) => put(&bytes)?,
            (None, TensorKind::Block(format)) => {
                let (rows, columns) = (rows_of(spec), spec.dims[0]);
                let slab = (SLAB_VALUES / columns).max(1);
                for start in (0..rows).step_by(slab) {
                    let values = source.values(spec, index, start..rows.min(start + slab))?;
                    check_numbers(spec, index, start * columns, &values)?;
                    put(&encode_rows(format, &values, columns, threads))?;
                }
            }
            (None, _) => {
                return Err(Failure::caller(format!(
                    "{} is not stored as {}",
                    spec.name,
                    kind.name()
                )));
            }
        }
    }
    Ok(())
}

/// Refuses what is no number: an encoder would make one of it.
fn check_numbers(
    spec: &TensorSpec,
    index: usize,
    first: usize,
    values: &[f32],
) -> Result<(), Failure> {
    let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
    let (row, column) = ((first + at) / spec.dims[0], (first + at) % spec.dims[0]);
    Err(Failure::caller(format!(
        "{}: {} in row {row}, column {column} of matrix {index}; the weights are damaged",
        spec.name, values[at]
    )))
}

/// A writer that knows all keys and tensors of the job.
fn announced<W: std::io::Write + std::io::Seek>(
    job: &Job<'_>,
    out: W,
) -> Result<Writer<W>, Failure> {
    let mut writer = Writer::new(out);
    for (key, value) in &job.metadata {
        writer.metadata(key, value.clone()).map_err(|error| loading::from_gguf(&error))?;
    }
    for planned in &job.tensors {
        let dims: Vec<u64> = planned.spec.dims.iter().map(|dim| *dim as u64).collect();
        writer
            .tensor(&planned.spec.name, planned.kind, &dims)
            .map_err(|error| loading::from_gguf(&error))?;
    }
    Ok(writer)
}

fn header_of(job: &Job<'_>) -> Result<Vec<u8>, Failure> {
    let mut header = Cursor::new(Vec::new());
    announced(job, &mut header)?.start_data().map_err(|error| loading::from_gguf(&error))?;
    Ok(header.into_inner())
}

/// How many tensors of a partial file can be kept: none unless header and input are the same.
fn resumable(partial: &Path, journal: &Path, header: &[u8], input: &str) -> usize {
    let saved =
        std::fs::read(journal).ok().and_then(|text| serde_json::from_slice::<Journal>(&text).ok());
    let Some(saved) = saved.filter(|saved| saved.input == input) else { return 0 };
    let mut found = vec![0; header.len()];
    let same = File::open(partial).and_then(|mut file| file.read_exact(&mut found)).is_ok();
    if same && found == header { saved.done } else { 0 }
}

fn save_journal(path: &Path, journal: &Journal) -> Result<(), Failure> {
    let fresh = with_ending(path, ".new");
    let text = serde_json::to_vec(journal).map_err(|error| Failure::ours(error.to_string()))?;
    std::fs::write(&fresh, text)
        .and_then(|()| std::fs::rename(&fresh, path))
        .map_err(|error| Failure::file("writing", path, &error))
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}
