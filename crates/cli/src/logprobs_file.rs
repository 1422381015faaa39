//! Saved log probabilities: the baseline of a KL divergence (`docs/formats.md`).
//!
//! Little endian: `ISLOGP\0\x01`, u32 vocabulary, then records. A sequence is the tag `SEQ `, u32
//! n, n ids (u32), and n rows of vocabulary f32 log probabilities, row i being what follows token
//! i. The file ends with `END ` and the u32 number of sequences, so that a file that was cut short
//! is noticed.

use crate::failure::Failure;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"ISLOGP\0\x01";
const SEQUENCE: [u8; 4] = *b"SEQ ";
const END: [u8; 4] = *b"END ";

/// Writes a file; it appears under its name only when finished.
pub struct LogprobsWriter {
    file: BufWriter<File>,
    partial: PathBuf,
    path: PathBuf,
    sequences: u32,
}

impl LogprobsWriter {
    /// Starts a file.
    pub fn create(path: &Path, vocabulary: u32) -> Result<Self, Failure> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = File::create(&partial).map_err(|e| Failure::file("creating", &partial, &e))?;
        let mut writer =
            LogprobsWriter { file: BufWriter::new(file), partial, path: path.into(), sequences: 0 };
        writer.put(&MAGIC)?;
        writer.put(&vocabulary.to_le_bytes())?;
        Ok(writer)
    }

    /// Starts a sequence; one [`LogprobsWriter::row`] a token must follow.
    pub fn sequence(&mut self, ids: &[u32]) -> Result<(), Failure> {
        let count = u32::try_from(ids.len())
            .map_err(|_| Failure::caller("a sequence of more than 4 billion tokens"))?;
        self.sequences += 1;
        self.put(&SEQUENCE)?;
        self.put(&count.to_le_bytes())?;
        for id in ids {
            self.put(&id.to_le_bytes())?;
        }
        Ok(())
    }

    /// Log probabilities after the next token of the sequence.
    pub fn row(&mut self, logprobs: &[f32]) -> Result<(), Failure> {
        for value in logprobs {
            self.put(&value.to_le_bytes())?;
        }
        Ok(())
    }

    /// Ends the file and gives it its name.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.put(&END)?;
        let count = self.sequences.to_le_bytes();
        self.put(&count)?;
        self.file
            .flush()
            .and_then(|()| self.file.get_ref().sync_all())
            .and_then(|()| std::fs::rename(&self.partial, &self.path))
            .map_err(|e| Failure::file("writing", &self.path, &e))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|e| Failure::file("writing", &self.partial, &e))
    }
}

/// Reads a file back, row by row, trusting nothing in it.
pub struct LogprobsReader<R = BufReader<File>> {
    file: R,
    name: String,
    row: Vec<u8>,
}

impl LogprobsReader {
    /// Opens a file for a model with this vocabulary.
    pub fn open(path: &Path, vocabulary: usize) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|e| Failure::file("opening", path, &e))?;
        LogprobsReader::new(BufReader::new(file), path.display().to_string(), vocabulary)
    }
}

impl<R: Read> LogprobsReader<R> {
    /// Reads the header.
    pub fn new(file: R, name: String, vocabulary: usize) -> Result<Self, Failure> {
        let mut reader = LogprobsReader { file, name, row: vec![0; vocabulary * 4] };
        let mut magic = [0; 8];
        reader.fill(&mut magic)?;
        if magic != MAGIC {
            return Err(reader.wrong("is not a file of saved log probabilities, version 1"));
        }
        let found = reader.number()?;
        if usize::try_from(found) != Ok(vocabulary) {
            return Err(reader.wrong(&format!(
                "is for a vocabulary of {found}, but the model's has {vocabulary} entries"
            )));
        }
        Ok(reader)
    }

    /// Checks that the next record is this very sequence.
    pub fn expect_sequence(&mut self, ids: &[u32]) -> Result<(), Failure> {
        let mut tag = [0; 4];
        self.fill(&mut tag)?;
        if tag == END {
            return Err(
                self.wrong("has fewer sequences than this run; use the same text and window")
            );
        }
        let count = self.number()?;
        let same_length = tag == SEQUENCE && usize::try_from(count) == Ok(ids.len());
        if !same_length {
            return Err(self.wrong(&format!(
                "has a sequence of {count} tokens where this run has {}; use the same text \
                 and window",
                ids.len()
            )));
        }
        for (position, id) in ids.iter().enumerate() {
            let found = self.number()?;
            if found != *id {
                return Err(self.wrong(&format!(
                    "has token {found} at position {position} where this run has {id}; use the \
                     same text"
                )));
            }
        }
        Ok(())
    }

    /// Reads the next row.
    pub fn row(&mut self, logprobs: &mut Vec<f32>) -> Result<(), Failure> {
        let mut bytes = std::mem::take(&mut self.row);
        let read = self.fill(&mut bytes);
        logprobs.clear();
        logprobs.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)));
        self.row = bytes;
        read
    }

    fn number(&mut self) -> Result<u32, Failure> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Failure> {
        self.file.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.wrong("ends early; make it again"),
            _ => Failure::environment(format!("reading {}: {error}", self.name)),
        })
    }

    fn wrong(&self, what: &str) -> Failure {
        Failure::caller(format!("{} {what}", self.name))
    }
}
