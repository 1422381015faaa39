//! One node as a file (`docs/state-format.md`), and its name. Nothing that is read is believed
//! before its checksum and its place in the tree are checked.

use super::chain::{self, Id, Key, Kind};
use ironstar_model::BLOCK_TOKENS;
use std::ops::Deref;
use std::sync::Arc;

/// First bytes; the last one is the version.
pub(super) const MAGIC: &[u8; 8] = b"ISTORE\0\x01";
/// Bytes before the tokens.
const HEADER_BYTES: usize = 112;
/// Hash of all bytes before it.
const CHECKSUM_BYTES: usize = 32;
/// Most bytes of extras: room for a rendered text of some 100,000 tokens.
const EXTRAS_MAX: usize = 1 << 20;
/// End of every name.
const SUFFIX: &str = ".state";

/// Bytes of a node, part of the file that they came from; clones share them.
#[derive(Clone, Debug)]
pub(super) struct Payload {
    file: Arc<Vec<u8>>,
    start: usize,
    end: usize,
}

impl Payload {
    pub fn new(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Payload { file: Arc::new(bytes), start: 0, end }
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.file[self.start..self.end]
    }
}

/// What a file's name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub kind: Kind,
    pub position: usize,
    pub parent: Id,
    pub id: Id,
}

impl Name {
    pub fn text(&self) -> String {
        let Name { kind, position, parent, id } = self;
        format!("{}{position:010}-{parent}-{id}{SUFFIX}", kind.letter())
    }

    pub fn parse(text: &str) -> Option<Name> {
        let rest = text.strip_suffix(SUFFIX)?;
        let mut letters = rest.chars();
        let letter = letters.next()?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.letter() == letter)?;
        let mut parts = letters.as_str().split('-');
        let position = parts.next()?.parse().ok()?;
        let (parent, id) = (Id::parse(parts.next()?)?, Id::parse(parts.next()?)?);
        let name = Name { kind, position, parent, id };
        // Only the one spelling is ours.
        (name.text() == text).then_some(name)
    }
}

/// Why a file is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Shorter than its parts.
    #[error("it ends too early")]
    Short,
    /// Another kind of file, or another version.
    #[error("it does not begin as a stored state of version 1")]
    Magic,
    /// Numbers of the header that cannot be.
    #[error("its header has impossible numbers")]
    Header,
    /// Bytes changed.
    #[error("its checksum is wrong")]
    Checksum,
    /// Sound, but not what its name or its reader says.
    #[error("it belongs to another place")]
    Place,
}

/// What a sound file holds.
#[derive(Debug)]
pub struct View<'a> {
    /// Key of the store.
    pub key: &'a [u8],
    /// What it is.
    pub kind: Kind,
    /// The node before it.
    pub parent: Id,
    /// Its own name.
    pub id: Id,
    /// Tokens from the beginning to its end.
    pub position: usize,
    /// Its own tokens: those of the block, or those after the last block.
    pub tokens: Vec<u32>,
    /// Optional fields of later versions, to be skipped.
    pub extras: &'a [u8],
    /// The rest.
    pub payload: &'a [u8],
}

/// Reads a file that may be anything; allocates no more than its tokens.
pub fn read_file(bytes: &[u8]) -> Result<View<'_>, Damage> {
    let body = bytes.len().checked_sub(CHECKSUM_BYTES).ok_or(Damage::Short)?;
    let (header, rest) = bytes[..body].split_at_checked(HEADER_BYTES).ok_or(Damage::Short)?;
    if header[..8] != *MAGIC {
        return Err(Damage::Magic);
    }
    let number = |at: usize| {
        let bytes = header[at..at + 4].try_into().expect("four bytes");
        usize::try_from(u32::from_le_bytes(bytes)).map_err(|_| Damage::Header)
    };
    let long = |at: usize| {
        let bytes = header[at..at + 8].try_into().expect("eight bytes");
        usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| Damage::Header)
    };
    let (code, count, extras) = (number(80)?, number(84)?, number(104)?);
    let (position, payload) = (long(88)?, long(96)?);
    let kind = Kind::ALL.into_iter().find(|kind| kind.code() as usize == code);
    let kind = kind.ok_or(Damage::Header)?;
    let own = match kind {
        Kind::Block => position.is_multiple_of(BLOCK_TOKENS) && count == BLOCK_TOKENS,
        Kind::Checkpoint | Kind::CheckpointWithLogits => count == position % BLOCK_TOKENS,
    };
    if !own || position == 0 || extras > EXTRAS_MAX || number(108)? != 0 {
        return Err(Damage::Header);
    }
    let wanted = payload.checked_add(extras).and_then(|n| n.checked_add(count * 4));
    if wanted != Some(rest.len()) {
        return Err(Damage::Short);
    }
    if blake3::hash(&bytes[..body]).as_bytes()[..] != bytes[body..] {
        return Err(Damage::Checksum);
    }
    let (tokens, rest) = rest.split_at(count * 4);
    let (extras, payload) = rest.split_at(extras);
    let id = |at: usize| Id(header[at..at + Id::BYTES].try_into().expect("bytes of an id"));
    Ok(View {
        key: &header[8..40],
        kind,
        parent: id(40),
        id: id(60),
        position,
        tokens: tokens.as_chunks::<4>().0.iter().map(|t| u32::from_le_bytes(*t)).collect(),
        extras,
        payload,
    })
}

/// The payload of a file that must be this node of this key.
pub(super) fn open(
    bytes: Vec<u8>,
    key: &Key,
    name: &Name,
    tokens: &[u32],
) -> Result<Payload, Damage> {
    let view = read_file(&bytes)?;
    let Name { kind, position, parent, id } = *name;
    let named = (view.kind, view.position, view.parent, view.id) == (kind, position, parent, id);
    let placed = view.key == key.bytes() && view.tokens == tokens;
    if !named || !placed || chain::child(key, parent, kind, tokens) != id {
        return Err(Damage::Place);
    }
    let end = bytes.len() - CHECKSUM_BYTES;
    let start = end - view.payload.len();
    Ok(Payload { file: Arc::new(bytes), start, end })
}

/// What stands before and after a payload.
pub(super) fn frame(key: &Key, name: &Name, tokens: &[u32], payload: &[u8]) -> [Vec<u8>; 2] {
    let mut head = Vec::with_capacity(HEADER_BYTES + tokens.len() * 4);
    let short = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
    let long = |n: usize| u64::try_from(n).unwrap_or(u64::MAX).to_le_bytes();
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(key.bytes());
    head.extend_from_slice(&name.parent.0);
    head.extend_from_slice(&name.id.0);
    head.extend_from_slice(&name.kind.code().to_le_bytes());
    head.extend_from_slice(&short(tokens.len()));
    head.extend_from_slice(&long(name.position));
    head.extend_from_slice(&long(payload.len()));
    // No extras and no flags yet.
    head.extend_from_slice(&[0; 8]);
    debug_assert_eq!(head.len(), HEADER_BYTES);
    head.extend_from_slice(&chain::token_bytes(tokens));
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head);
    hasher.update(payload);
    [head, hasher.finalize().as_bytes().to_vec()]
}

/// Bytes of a file with so many tokens of its own and such a payload.
pub(super) fn file_bytes(tokens: usize, payload: usize) -> u64 {
    u64::try_from(HEADER_BYTES + tokens * 4 + payload + CHECKSUM_BYTES).unwrap_or(u64::MAX)
}
