//! Names of what is stored: hashes over the model and all tokens up to there.

use ironstar_model::BLOCK_TOKENS;
use std::fmt;

/// What entries of a store belong to: a model, its settings, the backend. Entries of another key
/// are never seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// A key of parts, in their order.
    #[must_use]
    pub fn new(parts: &[&[u8]]) -> Key {
        let mut hasher = blake3::Hasher::new_derive_key("ironstar state store, version 1");
        for part in parts {
            hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            hasher.update(part);
        }
        Key(*hasher.finalize().as_bytes())
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Where files of this key are.
    pub(super) fn home(&self) -> Home {
        Home(*self.0.first_chunk().expect("a key has 32 bytes"))
    }
}

/// Names the folder of a key, for files of this version of the format: `v1-` and sixteen digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Home([u8; Home::BYTES]);

impl Home {
    const BYTES: usize = 8;
    const PREFIX: &str = "v1-";

    pub fn parse(text: &str) -> Option<Home> {
        Some(Home(hex(text.strip_prefix(Home::PREFIX)?)?))
    }
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Home::PREFIX)?;
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// What tokens say, whatever they are: the length of their text and its hash. Two rows of tokens
/// with the same are the same text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    pub(super) bytes: u64,
    pub(super) id: Id,
}

impl Text {
    /// Of a text whose beginnings are all different from other texts' beginnings.
    #[must_use]
    pub fn new(key: &Key, text: &[u8]) -> Text {
        let mut hasher = Text::hasher(key);
        hasher.update(text);
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        Text { bytes, id: first_bytes(hasher.finalize()) }
    }

    fn hasher(key: &Key) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&key.0);
        hasher.update(b"text");
        hasher
    }
}

/// Those of `known`, in rising order of length, that are beginnings of a text.
pub(super) fn beginnings<T>(
    key: &Key,
    text: &[u8],
    known: impl Iterator<Item = (Text, T)>,
) -> Vec<T> {
    let (mut hasher, mut done, mut found) = (Text::hasher(key), 0, Vec::new());
    let mut last: Option<Text> = None;
    for (candidate, what) in known {
        let end = usize::try_from(candidate.bytes).ok().filter(|end| *end <= text.len());
        let Some(end) = end else { break };
        if end > done || last.is_none() {
            hasher.update(&text[done..end]);
            done = end;
            last = Some(Text { bytes: candidate.bytes, id: first_bytes(hasher.finalize()) });
        }
        if last == Some(candidate) {
            found.push(what);
        }
    }
    found
}

/// Names a place in the tree: 160 bits of a cryptographic hash, so that no prompt can be made to
/// meet another one's state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub(super) [u8; Id::BYTES]);

impl Id {
    /// Bytes of an id.
    pub const BYTES: usize = 20;

    /// Reads the form that [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Id> {
        Some(Id(hex(text)?))
    }
}

/// Bytes of exactly so many digits, the small letters among them.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// What a node of the tree holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Rows of a block of tokens.
    Block,
    /// What a position needs beside the rows of the blocks before it.
    Checkpoint,
    /// The same, and the logits of its last token.
    CheckpointWithLogits,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Block, Kind::Checkpoint, Kind::CheckpointWithLogits];

    /// In hashes and files.
    pub(super) fn code(self) -> u32 {
        match self {
            Kind::Block => 1,
            Kind::Checkpoint => 2,
            Kind::CheckpointWithLogits => 3,
        }
    }

    /// In names of files.
    pub(super) fn letter(self) -> char {
        match self {
            Kind::Block => 'b',
            Kind::Checkpoint => 'c',
            Kind::CheckpointWithLogits => 'l',
        }
    }
}

/// Where the tree of a key begins.
pub(super) fn root(key: &Key) -> Id {
    first_bytes(blake3::keyed_hash(&key.0, b"root"))
}

/// Name of a node after its parent: the block before it, or the root.
pub(super) fn child(key: &Key, parent: Id, kind: Kind, tokens: &[u32]) -> Id {
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    hasher.update(&parent.0);
    hasher.update(&kind.code().to_le_bytes());
    hasher.update(&token_bytes(tokens));
    first_bytes(hasher.finalize())
}

/// The root, then every whole block of the tokens.
pub(super) fn blocks(key: &Key, tokens: &[u32]) -> Vec<Id> {
    let mut chain = vec![root(key)];
    for block in tokens.as_chunks::<BLOCK_TOKENS>().0 {
        let parent = *chain.last().expect("the root is there");
        chain.push(child(key, parent, Kind::Block, block));
    }
    chain
}

pub(super) fn token_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
}

fn first_bytes(hash: blake3::Hash) -> Id {
    let mut id = [0; Id::BYTES];
    id.copy_from_slice(&hash.as_bytes()[..Id::BYTES]);
    Id(id)
}
