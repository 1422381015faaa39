//! Writing one file: atomic, and continued where a stopped run left it.
//!
//! Data goes to `OUTPUT.partial`; `OUTPUT.partial.json` says which tensors are complete and safely
//! on disk, by the checksum of each, and from what input. A later run keeps those whose bytes still
//! have that sum. Only when all are there does the file get its name.

use super::encode::encode_rows;
use super::importance::Importances;
use super::plan::Planned;
use super::source::{Source, rows_of};
use crate::failure::Failure;
use crate::loading;
use crate::outfile::{lock, with_ending};
use crate::progress::Progress;
use ironstar_gguf::{TensorKind, Value, Writer};
use ironstar_model::deepseek_v4::TensorSpec;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;

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
    /// CRC-32 of each tensor that is complete on disk, in order.
    sums: Vec<u32>,
}

/// Bytes of a planned tensor.
#[must_use]
pub fn bytes_of(planned: &Planned) -> u64 {
    let dims: Vec<u64> = planned.spec.dims.iter().map(|dim| *dim as u64).collect();
    planned.kind.bytes(&dims).unwrap_or(0)
}

fn total_of(job: &Job<'_>) -> u64 {
    job.tensors.iter().map(bytes_of).sum()
}

/// What tensors are made from.
pub struct Inputs<'a> {
    /// The weights.
    pub source: &'a Source,
    /// What steers the encoders.
    pub importances: Option<&'a Importances>,
    /// What both were read from: a partial output is continued only from the same.
    pub identity: String,
    /// Threads that encode.
    pub threads: usize,
}

/// Writes the file.
pub fn write(job: &Job<'_>, inputs: &Inputs<'_>) -> Result<(), Failure> {
    let partial = with_ending(job.path, ".partial");
    let journal_path = with_ending(job.path, ".partial.json");
    let input = inputs.identity.clone();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file =
        options.open(&partial).map_err(|error| Failure::file("creating", &partial, &error))?;
    lock(&file, &partial)?;
    let sums = resumable(job, &file, &journal_path, &input)?;
    let done = sums.len();
    let mut journal = Journal { input, sums };
    if done == 0 {
        file.set_len(0).map_err(|error| Failure::file("emptying", &partial, &error))?;
    }
    (&file).rewind().map_err(|error| Failure::file("reading", &partial, &error))?;
    let mut writer = announced(job, &file)?;
    writer.skip(done).map_err(|error| loading::from_gguf(&error))?;

    let progress = Progress::new("writing", total_of(job), "bytes");
    let mut written: u64 = job.tensors[..done].iter().map(bytes_of).sum();
    for (index, planned) in job.tensors.iter().enumerate().skip(done) {
        progress.message(&planned.spec.name);
        journal.sums.push(write_tensor(&mut writer, planned, inputs)?);
        written += bytes_of(planned);
        progress.at(written);
        if index + 1 < job.tensors.len() {
            file.sync_data().map_err(|error| Failure::file("writing", &partial, &error))?;
            save_journal(&journal_path, &journal)?;
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

/// Writes a tensor and gives its checksum.
fn write_tensor(
    writer: &mut Writer<&File>,
    planned: &Planned,
    inputs: &Inputs<'_>,
) -> Result<u32, Failure> {
    let (spec, source) = (&planned.spec, inputs.source);
    let mut sum = crc32fast::Hasher::new();
    let mut put = |bytes: &[u8]| {
        sum.update(bytes);
        writer.data(&spec.name, bytes).map_err(|error| loading::from_gguf(&error))
    };
    let kind = planned.kind;
    if let Some(bytes) = source.stored_as(spec, kind)? {
        put(&bytes)?;
        return Ok(sum.finalize());
    }
    for index in 0..spec.stack() {
        match (source.imported(spec, index, kind)?, kind) {
            (Some(bytes), _) => put(&bytes)?,
            (None, TensorKind::Block(format)) => {
                let (rows, columns) = (rows_of(spec), spec.dims[0]);
                let slab = (SLAB_VALUES / columns).max(1);
                let importance = match inputs.importances {
                    Some(importances) => importances.of(spec, index)?,
                    None => None,
                };
                for start in (0..rows).step_by(slab) {
                    let values = source.values(spec, index, start..rows.min(start + slab))?;
                    check_numbers(spec, index, start * columns, &values)?;
                    let importance = importance.as_deref();
                    put(&encode_rows(format, &values, importance, columns, inputs.threads))?;
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
    Ok(sum.finalize())
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
fn announced<W: Write + Seek>(job: &Job<'_>, out: W) -> Result<Writer<W>, Failure> {
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

/// Checksums of the tensors of a partial file that can be kept: none unless header and input are
/// the same, then as many as are what was written.
fn resumable(job: &Job<'_>, file: &File, journal: &Path, input: &str) -> Result<Vec<u32>, Failure> {
    let saved =
        std::fs::read(journal).ok().and_then(|text| serde_json::from_slice::<Journal>(&text).ok());
    let Some(Journal { mut sums, .. }) = saved.filter(|saved| saved.input == input) else {
        return Ok(Vec::new());
    };
    sums.truncate(job.tensors.len());
    let mut header = Cursor::new(Vec::new());
    let mut layout = announced(job, &mut header)?;
    let spans: Result<Vec<_>, _> = (0..sums.len()).map(|index| layout.span(index)).collect();
    let spans = spans.map_err(|error| loading::from_gguf(&error))?;
    let header = header.into_inner();
    let mut found = vec![0; header.len()];
    if (&*file).read_exact(&mut found).is_err() || found != header {
        return Ok(Vec::new());
    }
    let progress = Progress::new("checking", spans.iter().map(|span| span.1).sum(), "bytes");
    let mut checked = 0;
    for (index, (start, bytes)) in spans.into_iter().enumerate() {
        if sum_of(file, start, bytes).ok() != Some(sums[index]) {
            sums.truncate(index);
            break;
        }
        checked += bytes;
        progress.at(checked);
    }
    Ok(sums)
}

/// CRC-32 of a part of a file.
fn sum_of(mut file: &File, start: u64, bytes: u64) -> std::io::Result<u32> {
    file.seek(SeekFrom::Start(start))?;
    let mut sum = crc32fast::Hasher::new();
    let (mut left, mut slab) = (bytes, vec![0; SLAB_VALUES]);
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(slab.len());
        file.read_exact(&mut slab[..length])?;
        sum.update(&slab[..length]);
        left -= length as u64;
    }
    Ok(sum.finalize())
}

fn save_journal(path: &Path, journal: &Journal) -> Result<(), Failure> {
    let fresh = with_ending(path, ".new");
    let text = serde_json::to_vec(journal).map_err(|error| Failure::ours(error.to_string()))?;
    std::fs::write(&fresh, text)
        .and_then(|()| std::fs::rename(&fresh, path))
        .map_err(|error| Failure::file("writing", path, &error))
}
