//! Writing a dump while the model runs.

use super::npy::{self, Kind, Table};
use super::{DumpError, Key};
use ironstar_device::Step;
use ironstar_model::{At, Logits, Observer, Shape, What};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A folder that takes what an observed engine computes.
#[derive(Clone, Debug)]
pub struct Dump(Arc<Mutex<Writer>>);

#[derive(Debug)]
struct Writer {
    folder: PathBuf,
    /// Of each layer.
    ratios: Vec<usize>,
    /// Which ones are kept.
    positions: Range<usize>,
    tables: BTreeMap<Key, Table>,
    /// Position of the step's first row, unless it has rows of several sessions.
    first: Option<usize>,
    /// What comes after the last layer is a drafter's.
    is_over: bool,
    failure: Option<DumpError>,
}

impl Dump {
    /// A dump of these positions of a model's only session, in a folder that is empty or not there.
    pub fn create(
        folder: &Path,
        shape: &Shape,
        positions: Range<usize>,
    ) -> Result<Dump, DumpError> {
        let failed = |error| DumpError::file("making", folder, error);
        std::fs::create_dir_all(folder).map_err(failed)?;
        if std::fs::read_dir(folder).map_err(failed)?.next().is_some() {
            let (found, wanted) = ("a folder with something in it".into(), "an empty one".into());
            return Err(DumpError::Format { path: folder.to_owned(), found, wanted });
        }
        let writer = Writer {
            folder: folder.to_owned(),
            ratios: shape.ratios.clone(),
            positions,
            tables: BTreeMap::new(),
            first: None,
            is_over: false,
            failure: None,
        };
        Ok(Dump(Arc::new(Mutex::new(writer))))
    }

    /// For [`crate::Engine::set_observer`].
    #[must_use]
    pub fn observer(&self) -> Box<dyn Observer + Send> {
        Box::new(self.clone())
    }

    /// Completes the files, and gives their number and the records of all; or what went wrong
    /// first.
    pub fn finish(&self) -> Result<(usize, usize), DumpError> {
        let mut writer = self.lock();
        if let Some(failure) = writer.failure.take() {
            return Err(failure);
        }
        for (key, table) in &writer.tables {
            npy::close(&writer.path(*key), *table)?;
        }
        Ok((writer.tables.len(), writer.tables.values().map(|table| table.records).sum()))
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows of the step at a point of the pass.
    fn take(&self, at: At, kind: Kind, width: usize, words: &[u32]) {
        let mut writer = self.lock();
        if writer.is_over || width == 0 {
            return;
        }
        writer.is_over = at.layer == writer.ratios.len();
        let ratio = writer.ratios.get(at.layer).copied().unwrap_or(0).max(1);
        let Some(first) = writer.first else { return };
        let is_group = matches!(at.what, What::CompressedRows | What::IndexRows);
        let position = |row: usize| match is_group {
            true => (first / ratio + row + 1) * ratio - 1,
            false => first + row,
        };
        let mut rows: Vec<(usize, Vec<u32>)> = (0..)
            .zip(words.chunks_exact(width))
            .map(|(i, row)| (position(i), row.to_vec()))
            .collect();
        if at.what == What::IndexChoice {
            for (position, row) in &mut rows {
                let chosen = row.len().min((*position + 1) / ratio);
                row[chosen..].fill(u32::MAX);
            }
        }
        writer.add(Key::Layer(at.layer, at.what), kind, width, &rows);
    }
}

impl Writer {
    fn path(&self, key: Key) -> PathBuf {
        self.folder.join(format!("{}.npy", key.name()))
    }

    /// Adds those rows whose positions are kept; the first failure is kept for the end.
    fn add(&mut self, key: Key, kind: Kind, width: usize, rows: &[(usize, Vec<u32>)]) {
        if self.failure.is_none() {
            self.failure = self.write(key, kind, width, rows).err();
        }
    }

    fn write(
        &mut self,
        key: Key,
        kind: Kind,
        width: usize,
        rows: &[(usize, Vec<u32>)],
    ) -> Result<(), DumpError> {
        let (mut records, mut count) = (Vec::new(), 0);
        for (position, row) in rows.iter().filter(|(at, _)| self.positions.contains(at)) {
            let position = u32::try_from(*position).unwrap_or(u32::MAX);
            records.extend(position.to_le_bytes());
            records.extend(row.iter().flat_map(|word| word.to_le_bytes()));
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        let path = self.path(key);
        if !self.tables.contains_key(&key) {
            npy::create(&path, kind, width)?;
        }
        npy::append(&path, &records)?;
        let table = self.tables.entry(key).or_insert(Table { kind, width, records: 0 });
        table.records += count;
        Ok(())
    }
}

impl Observer for Dump {
    fn begins(&mut self, step: &Step) {
        let mut writer = self.lock();
        writer.is_over = false;
        writer.first = match &step.spans[..] {
            [span] => Some(span.position),
            _ => None,
        };
        if let Some(first) = writer.first {
            let rows: Vec<_> = (first..).zip(step.tokens.iter().map(|&id| vec![id])).collect();
            writer.add(Key::Tokens, Kind::Words, 1, &rows);
        }
    }

    fn wants(&self, _: What) -> bool {
        true
    }

    fn floats(&mut self, at: At, width: usize, values: &mut [f32]) -> bool {
        let words: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        self.take(at, Kind::Floats, width, &words);
        false
    }

    fn ids(&mut self, at: At, width: usize, ids: &[u32]) {
        self.take(at, Kind::Words, width, ids);
    }

    fn logits(&mut self, logits: &Logits) {
        let mut writer = self.lock();
        let Some(first) = writer.first else { return };
        let row = |(index, row): (usize, &usize)| {
            let words = logits.row(index).iter().map(|value| value.to_bits());
            (first + row, words.collect())
        };
        let rows: Vec<_> = logits.rows().iter().enumerate().map(row).collect();
        let width = rows.first().map_or(0, |(_, row): &(usize, Vec<u32>)| row.len());
        writer.add(Key::Logits, Kind::Floats, width, &rows);
    }
}
