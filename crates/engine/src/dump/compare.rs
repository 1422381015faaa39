//! Two dumps, tensor by tensor in the order of a pass.

use super::npy::{Kind, Records};
use super::{DumpError, Key};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// How two dumps compare.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Every tensor that both have, in the order of a pass.
    pub tensors: Vec<Difference>,
    /// Names that only one of them has.
    pub only_one: Vec<String>,
    /// The first position with another token, from which on nothing is compared.
    pub tokens_part_at: Option<u32>,
    /// Positions of common tokens.
    pub positions: usize,
}

/// How a tensor differs.
#[derive(Clone, Debug)]
pub struct Difference {
    /// As in the files' names.
    pub name: String,
    /// Rows that were compared, and those of them with other bits.
    pub rows: (usize, usize),
    /// The first value with other bits.
    pub first: Option<Place>,
    /// The value that is furthest apart; of ids, the first that is another one.
    pub largest: Option<Place>,
    /// Most that a row is apart, as a share of it: root mean squares of the difference and of the
    /// first dump's row. Rows with another id, or with something that is no number, are infinitely
    /// far apart.
    pub relative: f64,
}

/// A value of both dumps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Position of its row.
    pub position: u32,
    /// Index within the row.
    pub index: usize,
    /// What each has.
    pub values: [f64; 2],
}

impl Place {
    /// How far the two are apart; what is no number is infinitely far from everything.
    #[must_use]
    pub fn apart(&self) -> f64 {
        let apart = (self.values[0] - self.values[1]).abs();
        if apart.is_nan() { f64::INFINITY } else { apart }
    }
}

impl Comparison {
    /// The first tensor of which a row is further apart than this share of it; with 0, the first
    /// with other bits.
    #[must_use]
    pub fn first_beyond(&self, tolerance: f64) -> Option<&Difference> {
        let is_beyond = |d: &&Difference| match tolerance {
            0.0 => d.first.is_some(),
            _ => d.relative > tolerance,
        };
        self.tensors.iter().find(is_beyond)
    }
}

/// Compares two folders.
pub fn compare(a: &Path, b: &Path) -> Result<Comparison, DumpError> {
    let (keys_a, keys_b) = (keys(a)?, keys(b)?);
    let open = |folder: &Path, key: Key| Records::open(&folder.join(format!("{}.npy", key.name())));
    let (mut file_a, mut file_b) = (open(a, Key::Tokens)?, open(b, Key::Tokens)?);
    let (ids_a, ids_b) = (rows_of(&mut file_a)?, rows_of(&mut file_b)?);
    let mut all = Comparison::default();
    for (&position, &index) in &ids_a {
        let Some(&other) = ids_b.get(&position) else { continue };
        if file_a.row(index)? != file_b.row(other)? {
            all.tokens_part_at = Some(position);
            break;
        }
        all.positions += 1;
    }
    if all.positions == 0 {
        let found = format!("{} and {} share no token", a.display(), b.display());
        return Err(DumpError::Apart { found });
    }
    let end = all.tokens_part_at.unwrap_or(u32::MAX);
    let differing = keys_a.symmetric_difference(&keys_b);
    all.only_one = differing.map(|key| key.name()).collect();
    for &key in keys_a.intersection(&keys_b).filter(|key| **key != Key::Tokens) {
        let (mut one, mut other) = (open(a, key)?, open(b, key)?);
        all.tensors.push(tensor(key, (&mut one, &mut other), end, b)?);
    }
    Ok(all)
}

/// The tensors of a folder; other files are not looked at.
fn keys(folder: &Path) -> Result<BTreeSet<Key>, DumpError> {
    let failed = |error| DumpError::file("reading", folder, error);
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_str().and_then(|name| name.strip_suffix(".npy"));
        all.extend(name.and_then(Key::named));
    }
    Ok(all)
}

/// The last record of each position.
fn rows_of(file: &mut Records) -> Result<BTreeMap<u32, usize>, DumpError> {
    Ok(file.positions()?.into_iter().zip(0..).collect())
}

fn tensor(
    key: Key,
    (one, other): (&mut Records, &mut Records),
    end: u32,
    folder: &Path,
) -> Result<Difference, DumpError> {
    let (a, b) = (one.table, other.table);
    if (a.kind, a.width) != (b.kind, b.width) {
        return Err(DumpError::Format {
            path: folder.join(format!("{}.npy", key.name())),
            found: format!("{} {:?} a row", b.width, b.kind),
            wanted: format!("{} {:?}, as the first dump has,", a.width, a.kind),
        });
    }
    let mut found =
        Difference { name: key.name(), rows: (0, 0), first: None, largest: None, relative: 0.0 };
    let others = rows_of(other)?;
    for (position, index) in rows_of(one)?.range(..end) {
        if let Some(&at) = others.get(position) {
            let rows = (one.row(*index)?, other.row(at)?);
            found.add(*position, a.kind, &rows.0, &rows.1);
        }
    }
    Ok(found)
}

impl Difference {
    /// Compares a row.
    fn add(&mut self, position: u32, kind: Kind, a: &[u32], b: &[u32]) {
        self.rows.0 += 1;
        if a == b {
            return;
        }
        self.rows.1 += 1;
        let value = |word: u32| match kind {
            Kind::Floats => f64::from(f32::from_bits(word)),
            Kind::Words => f64::from(word),
        };
        let (mut squares, mut own) = (0.0, 0.0);
        for (index, (&x, &y)) in a.iter().zip(b).enumerate() {
            own += value(x) * value(x);
            if x == y {
                continue;
            }
            let place = Place { position, index, values: [value(x), value(y)] };
            squares += place.apart() * place.apart();
            self.first.get_or_insert(place);
            let is_larger = self.largest.is_none_or(|most| place.apart() > most.apart());
            if is_larger && (kind == Kind::Floats || self.largest.is_none()) {
                self.largest = Some(place);
            }
        }
        let apart = match kind {
            Kind::Words => f64::INFINITY,
            // Zeros of both signs.
            Kind::Floats if squares == 0.0 => 0.0,
            Kind::Floats => (squares / own).sqrt(),
        };
        self.relative = self.relative.max(if apart.is_nan() { f64::INFINITY } else { apart });
    }
}
