//! Files of records, each a position and a row of values, as NumPy reads and writes them: a header
//! that is a Python literal, then the records behind one another.

use super::DumpError;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// First bytes of a file, version 1.0 of the format.
const MAGIC: &[u8; 8] = b"\x93NUMPY\x01\x00";
/// Bytes of the headers that are written: room for any number of records.
const HEADER_BYTES: usize = 192;
/// Longest header that is read.
const HEADER_BYTES_MAX: usize = 4096;

/// What a row holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Floats,
    Words,
}

/// Shape of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub kind: Kind,
    /// Values of a row.
    pub width: usize,
    pub records: usize,
}

impl Table {
    fn record_bytes(&self) -> u64 {
        (self.width as u64).saturating_add(1).saturating_mul(4)
    }

    /// The whole header of a file.
    fn header(&self) -> Vec<u8> {
        let kind = if self.kind == Kind::Floats { "<f4" } else { "<u4" };
        let (width, records) = (self.width, self.records);
        let mut text = format!(
            "{{'descr': [('position', '<u4'), ('values', '{kind}', ({width},))], \
             'fortran_order': False, 'shape': ({records},), }}"
        );
        let length = HEADER_BYTES - MAGIC.len() - 2;
        while text.len() + 1 < length {
            text.push(' ');
        }
        text.push('\n');
        let length = u16::try_from(length).expect("a small constant");
        [&MAGIC[..], &length.to_le_bytes(), text.as_bytes()].concat()
    }

    /// What a header says, if it is one of a dump.
    fn parse(text: &str) -> Option<Table> {
        let rest = text.trim_end().strip_prefix("{'descr': [('position', '<u4'), ('values', '")?;
        let (kind, rest) = rest.split_once("', (")?;
        let kind = match kind {
            "<f4" => Kind::Floats,
            "<u4" => Kind::Words,
            _ => return None,
        };
        let (width, rest) = rest.split_once(",))], 'fortran_order': False, 'shape': (")?;
        let records = rest.strip_suffix(",), }")?;
        let number = |text: &str| {
            let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            if is_plain { text.parse().ok() } else { None }
        };
        Some(Table { kind, width: number(width)?, records: number(records)? })
    }
}

/// Makes a file without records.
pub(super) fn create(path: &Path, kind: Kind, width: usize) -> Result<(), DumpError> {
    let header = Table { kind, width, records: 0 }.header();
    std::fs::write(path, header).map_err(|error| DumpError::file("writing", path, error))
}

/// Adds records to a file. It is opened anew each time: a pass has more tensors than a process may
/// have files.
pub(super) fn append(path: &Path, records: &[u8]) -> Result<(), DumpError> {
    let failed = |error| DumpError::file("writing", path, error);
    let mut file = OpenOptions::new().append(true).open(path).map_err(failed)?;
    file.write_all(records).map_err(failed)
}

/// Says in the header how many records there are.
pub(super) fn close(path: &Path, table: Table) -> Result<(), DumpError> {
    let failed = |error| DumpError::file("writing", path, error);
    let mut file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    file.write_all(&table.header()).map_err(failed)
}

/// A file that is read.
pub(super) struct Records {
    path: PathBuf,
    file: File,
    /// Where the records begin.
    start: u64,
    pub table: Table,
}

impl Records {
    /// Opens a file and checks that its length is what its header says.
    pub fn open(path: &Path) -> Result<Records, DumpError> {
        let failed = |error| DumpError::file("reading", path, error);
        let wrong = |found: String, wanted: &str| DumpError::Format {
            path: path.to_owned(),
            found,
            wanted: wanted.to_owned(),
        };
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let mut head = Vec::new();
        let most = (MAGIC.len() + 2 + HEADER_BYTES_MAX) as u64;
        (&file).take(most).read_to_end(&mut head).map_err(failed)?;
        let length = match head.split_at_checked(MAGIC.len()) {
            Some((magic, rest)) if magic == MAGIC => rest.first_chunk::<2>(),
            _ => None,
        };
        let length = length.map(|length| usize::from(u16::from_le_bytes(*length)));
        let start = length.map_or(usize::MAX, |length| MAGIC.len() + 2 + length);
        let text = head.get(MAGIC.len() + 2..start).and_then(|text| std::str::from_utf8(text).ok());
        let Some(table) = text.and_then(Table::parse) else {
            return Err(wrong(format!("a file of {bytes} bytes"), "an array of records of a dump"));
        };
        let start = start as u64;
        let records = table.record_bytes().saturating_mul(table.records as u64);
        if table.width == 0 || start.saturating_add(records) != bytes {
            let found = format!("{bytes} bytes with {} records of {}", table.records, table.width);
            return Err(wrong(found, "the length that the header says"));
        }
        Ok(Records { path: path.to_owned(), file, start, table })
    }

    /// Position of every record.
    pub fn positions(&mut self) -> Result<Vec<u32>, DumpError> {
        let mut all = Vec::new();
        for index in 0..self.table.records {
            let mut word = [0; 4];
            self.at(index, 0, &mut word)?;
            all.push(u32::from_le_bytes(word));
        }
        Ok(all)
    }

    /// The values of a record, as words.
    pub fn row(&mut self, index: usize) -> Result<Vec<u32>, DumpError> {
        let mut bytes = vec![0; self.table.width * 4];
        self.at(index, 4, &mut bytes)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    fn at(&mut self, index: usize, within: u64, bytes: &mut [u8]) -> Result<(), DumpError> {
        let place = self.start + index as u64 * self.table.record_bytes() + within;
        let read = self.file.seek(SeekFrom::Start(place));
        let read = read.and_then(|_| self.file.read_exact(bytes));
        read.map_err(|error| DumpError::file("reading", &self.path, error))
    }
}
