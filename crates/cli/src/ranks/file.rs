//! The file of `--cluster`: JSON that all ranks share (docs/ranks.md).

use crate::failure::Failure;
use ironstar_cluster::Transport;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Most bytes of such a file.
const BYTES_MAX: u64 = 1 << 20;

/// A group of ranks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// How the model is cut.
    pub mode: Mode,
    /// Where rank 0 waits for the others.
    pub listen: SocketAddr,
    /// The key that all share, beside this file.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The cable is private: links are not encrypted.
    #[serde(default)]
    pub trusted_link: bool,
    /// What carries gates and streams.
    #[serde(default = "tcp")]
    pub transport: Transport,
    /// Bits a value of a pipeline's streams.
    #[serde(default)]
    pub activation_bits: Option<u32>,
    /// Every rank, the first of them rank 0.
    pub ranks: Vec<Rank>,
}

/// One rank.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rank {
    /// Its machine, for people and messages.
    #[serde(default)]
    pub address: Option<String>,
    /// Its layers, where the model is cut by them: `0-20`.
    #[serde(default)]
    pub layers: Option<String>,
    /// Its RDMA device, where transport `verbs` shall not choose.
    #[serde(default)]
    pub device: Option<String>,
    /// The index of its address on that device.
    #[serde(default)]
    pub gid: Option<u32>,
}

/// How a model is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Every rank has a part of every layer.
    Tensor,
    /// Every rank has some of the layers.
    Pipeline,
}

fn tcp() -> Transport {
    Transport::Tcp
}

impl ClusterFile {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<ClusterFile, Failure> {
        let named = |text: String| Failure::caller(format!("{}: {text}", path.display()));
        let size = std::fs::metadata(path).map_err(|e| Failure::file("reading", path, &e))?.len();
        if size > BYTES_MAX {
            return Err(named(format!("{size} bytes; a cluster's file has {BYTES_MAX} at most")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| Failure::file("reading", path, &e))?;
        ClusterFile::parse(&text).map_err(named)
    }

    /// A file's text; an error names line and key.
    pub fn parse(text: &str) -> Result<ClusterFile, String> {
        let parsed = serde_json::from_str(text);
        let file: ClusterFile = parsed.map_err(|error| {
            let key = key_before(text, error.line(), error.column());
            let key = key.map(|key| format!(" (at `{key}`)")).unwrap_or_default();
            format!("{error}{key}; docs/ranks.md shows such a file")
        })?;
        if file.ranks.len() < 2 {
            return Err(format!("`ranks` lists {}; a group has 2 or more", file.ranks.len()));
        }
        Ok(file)
    }
}

/// The last key that begins before a place of a JSON text.
fn key_before(text: &str, line: usize, column: usize) -> Option<&str> {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let end = text.floor_char_boundary((start + column).min(text.len()));
    let (mut key, mut rest) = (None, &text[..end]);
    while let Some((_, after)) = rest.split_once('"') {
        let Some((word, behind)) = after.split_once('"') else { break };
        if behind.trim_start().starts_with(':') {
            key = Some(word);
        }
        rest = behind;
    }
    key
}
