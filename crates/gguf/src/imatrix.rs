//! Importances of a model's inputs, as `llama-imatrix` and ds4 write them: for each tensor the sum
//! of squares of every input that it was multiplied with.
//!
//! Two layouts, told apart by their first bytes. In the **newer** one, a GGUF file whose
//! `general.type` is `imatrix`, tensor NAME has `NAME.in_sum2` (F32, columns x matrices: sums of
//! squares) and `NAME.counts` (F32, 1 x matrices: how many inputs were seen). The **older** one,
//! little endian, is: number of entries (i32); for each the length of its name (i32), the name,
//! a number of calls (i32), number of values (i32), values (F32, means of squares times the number
//! of calls, all matrices of a stack behind each other); then, where the writer was not too old,
//! the number of chunks (i32), the length of the data set's name (i32) and that name.

use crate::bytes::{Bytes, Store, map};
use crate::error::{self, shown, truncated};
use crate::header::MAGIC;
use crate::{Array, Error, Gguf, TensorInfo, TensorKind, Value};
use ironstar_quant::Format;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// End of the name of a tensor of sums.
const SUMS: &str = ".in_sum2";
/// End of the name of a tensor of counts.
const COUNTS: &str = ".counts";

/// An opened file of importances.
///
/// Invariant: the values of an entry are whole F32, and so many as its matrices have columns.
pub struct Imatrix {
    file: String,
    entries: HashMap<String, Entry>,
    datasets: Vec<String>,
    chunks: u64,
}

/// What is known of one tensor.
struct Entry {
    values: Bytes,
    counts: Counts,
}

/// How many inputs a matrix saw.
enum Counts {
    /// One F32 a matrix.
    Each(Bytes),
    /// One number for all.
    All(u32),
}

impl Imatrix {
    /// Opens a file of either layout; it is mapped (see [`Gguf::open`]).
    pub fn open(path: &Path) -> Result<Self, Error> {
        let store = map(path)?;
        if store.starts_with(&MAGIC) {
            return Imatrix::from_gguf(&Gguf::open(path)?);
        }
        Imatrix::from_older(path.display().to_string(), store)
    }

    /// Reads a file that lies in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        if bytes.starts_with(&MAGIC) {
            return Imatrix::from_gguf(&Gguf::from_bytes(bytes)?);
        }
        Imatrix::from_older("the importances in memory".into(), Store::Vec(bytes))
    }

    /// Names of the tensors that it has importances of, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.entries.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// What was read to collect them, as the file says.
    #[must_use]
    pub fn datasets(&self) -> &[String] {
        &self.datasets
    }

    /// How many chunks of it; 0 if the file does not say.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Whether there are importances of a tensor of so many columns and matrices; an error if they
    /// are of one of another size.
    pub fn has(&self, name: &str, columns: usize, matrices: usize) -> Result<bool, Error> {
        let Some(entry) = self.entries.get(name) else { return Ok(false) };
        let values = entry.values.len() / 4;
        let counts = match &entry.counts {
            Counts::Each(counts) => counts.len() / 4,
            Counts::All(_) => matrices,
        };
        if columns.checked_mul(matrices) == Some(values) && counts == matrices {
            return Ok(true);
        }
        let found = match &entry.counts {
            Counts::Each(_) => format!("{values} importances of {counts} matrices"),
            Counts::All(_) => format!("{values} importances"),
        };
        let wanted = format!(
            "the model's tensor has {columns} columns and {matrices} matrices; the importances \
             were collected with another model"
        );
        Err(self.wrong(name, found, wanted))
    }

    /// Mean squares of the inputs of one matrix of a tensor; `None` if nothing is known of it, for
    /// want of an entry or because no input reached it.
    pub fn of(
        &self,
        name: &str,
        index: usize,
        columns: usize,
        matrices: usize,
    ) -> Result<Option<Vec<f32>>, Error> {
        let known = self.has(name, columns, matrices)? && index < matrices;
        let Some(entry) = self.entries.get(name).filter(|_| known) else { return Ok(None) };
        let count = match &entry.counts {
            Counts::Each(counts) => floats(counts).nth(index).unwrap_or(0.0),
            #[expect(clippy::cast_precision_loss, reason = "importances are relative")]
            Counts::All(count) => *count as f32,
        };
        if !(count.is_finite() && count >= 0.0) {
            let wanted = format!("matrix {index} must have seen a number of inputs from 0 up");
            return Err(self.wrong(name, format!("a count of {count}"), wanted));
        }
        let mut means = Vec::with_capacity(columns);
        for (column, sum) in floats(&entry.values[4 * columns * index..][..4 * columns]).enumerate()
        {
            if !(sum.is_finite() && sum >= 0.0) {
                let found = format!("{sum} in matrix {index}, column {column}");
                let wanted = "sums of squares are wanted; the file is damaged";
                return Err(self.wrong(name, found, wanted.to_owned()));
            }
            means.push(sum / count.max(1.0));
        }
        let is_known = count > 0.0 && means.iter().any(|mean| *mean > 0.0);
        Ok(is_known.then_some(means))
    }

    fn wrong(&self, name: &str, found: String, wanted: String) -> Error {
        error::format(&self.file, &format!("importances of '{name}'"), found, wanted)
    }

    fn from_gguf(gguf: &Gguf) -> Result<Self, Error> {
        let metadata = gguf.metadata();
        let file = metadata.file.clone();
        match metadata.opt_str("general.type")? {
            Some("imatrix") => {}
            other => {
                let found =
                    other.map_or("there is none".into(), |kind| format!("'{}'", shown(kind)));
                let wanted = "'imatrix' is wanted: a file of importances and not a model";
                return Err(error::format(&file, "general.type", found, wanted));
            }
        }
        let mut entries = HashMap::new();
        for sums in gguf.tensors() {
            let Some(name) = sums.name.strip_suffix(SUMS) else { continue };
            let counts_name = format!("{name}{COUNTS}");
            let Some(counts) = gguf.tensor(&counts_name) else {
                let field = format!("tensor '{counts_name}'");
                let wanted = format!("'{}' needs it", shown(&sums.name));
                return Err(error::format(&file, &field, "it is missing", wanted));
            };
            let (columns, matrices) = (sums.dims[0], sums.dims[1..].iter().product::<u64>());
            if counts.element_count() != matrices {
                let found = format!("{} counts", counts.element_count());
                let wanted = format!("one for each of {matrices} matrices of {columns} columns");
                return Err(error::format(
                    &file,
                    &format!("tensor '{counts_name}'"),
                    found,
                    wanted,
                ));
            }
            let counts = Counts::Each(float_bytes(gguf, counts)?);
            let entry = Entry { values: float_bytes(gguf, sums)?, counts };
            entries.insert(name.to_owned(), entry);
        }
        let datasets = match metadata.get("imatrix.datasets") {
            Some(Value::Array(Array::String(names))) => names.iter().map(|n| text_of(n)).collect(),
            _ => Vec::new(),
        };
        let chunks = metadata.opt_u64("imatrix.chunk_count")?.unwrap_or(0);
        Ok(Imatrix { file, entries, datasets, chunks })
    }

    fn from_older(file: String, store: Store) -> Result<Self, Error> {
        let store = Arc::new(store);
        let mut reader = Reader { file: &file, store: &store, at: 0 };
        let count = reader.count("number of entries")?;
        let mut entries = HashMap::new();
        for index in 0..count {
            let field = format!("entry {index}");
            let length = reader.count(&field)?;
            let name = reader.take(&field, length)?;
            let name = match std::str::from_utf8(&name) {
                Ok(name) if !name.is_empty() => name.to_owned(),
                _ => {
                    let wanted = "a tensor's name is wanted; this is no file of importances";
                    return Err(error::format(&file, &field, "its name is no text", wanted));
                }
            };
            let field = format!("importances of '{name}'");
            let calls = reader.count(&field)?;
            let values = reader.count(&field)?;
            let values = reader.take(&field, values.saturating_mul(4))?;
            let calls = u32::try_from(calls).unwrap_or(u32::MAX);
            let entry = Entry { values, counts: Counts::All(calls.max(1)) };
            if entries.insert(name, entry).is_some() {
                return Err(error::format(&file, &field, "they occur twice", "names must differ"));
            }
        }
        let (mut chunks, mut datasets) = (0, Vec::new());
        if reader.left() > 0 {
            chunks = reader.count("number of chunks")? as u64;
            let length = reader.count("name of the data set")?;
            let name = reader.take("name of the data set", length)?;
            datasets.push(text_of(&name));
        }
        let left = reader.left();
        if left > 0 {
            let wanted = "nothing is wanted there; this is no file of importances";
            return Err(error::format(&file, "end", format!("{left} more bytes"), wanted));
        }
        Ok(Imatrix { file, entries, datasets, chunks })
    }
}

/// Walks over an older file.
struct Reader<'a> {
    file: &'a str,
    store: &'a Arc<Store>,
    at: usize,
}

impl Reader<'_> {
    fn left(&self) -> usize {
        self.store.len() - self.at
    }

    fn take(&mut self, field: &str, length: usize) -> Result<Bytes, Error> {
        let range = self.at..self.at.saturating_add(length);
        let Some(bytes) = Bytes::new(self.store, range) else {
            return Err(truncated(self.file, field, length as u64, self.left() as u64));
        };
        self.at += length;
        Ok(bytes)
    }

    /// A number from 0 up.
    fn count(&mut self, field: &str) -> Result<usize, Error> {
        let bytes = self.take(field, 4)?;
        let number = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        usize::try_from(number).map_err(|_| {
            let wanted = "a number from 0 up is wanted; this is no file of importances";
            error::format(self.file, field, format!("{number}"), wanted)
        })
    }
}

/// The bytes of a tensor that must be F32.
fn float_bytes(gguf: &Gguf, tensor: &TensorInfo) -> Result<Bytes, Error> {
    if tensor.kind != TensorKind::Block(Format::F32) {
        let field = format!("tensor '{}'", tensor.name);
        let found = format!("it is stored as {}", tensor.kind.name());
        return Err(error::format(&gguf.metadata().file, &field, found, "F32 is wanted"));
    }
    gguf.bytes(tensor)
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

/// A name from a file, as far as it is text.
fn text_of(bytes: &[u8]) -> String {
    shown(&String::from_utf8_lossy(bytes))
}
