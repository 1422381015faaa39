//! One node as a file (`docs/state-format.md`), and its name. Nothing that is read is believed
//! before its checksum and its place in the tree are checked.

use super::chain::{self, Home, Id, Key, Kind, Text};
use ironstar_model::BLOCK_TOKENS;
use std::ops::Deref;
use std::sync::Arc;

/// First bytes; the last one is the version.
pub(super) const MAGIC: &[u8; 8] = b"ISTORE\0\x01";
/// Bytes before the tokens.
const HEADER_BYTES: usize = 112;
/// Bytes that share a checksum, from the beginning of the file; the last ones are fewer.
const PIECE_BYTES: usize = 1 << 16;
/// Most bytes of extras.
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
    pub home: Home,
    pub kind: Kind,
    pub position: usize,
    pub parent: Id,
    pub id: Id,
    /// Where it is known.
    pub text: Option<Text>,
}

impl Name {
    /// Folder and name.
    pub fn path(&self) -> String {
        let Name { home, kind, position, parent, id, text } = self;
        let text = text.map_or(String::new(), |t| format!("-{:012}-{}", t.bytes, t.id));
        format!("{home}/{}{position:010}-{parent}-{id}{text}{SUFFIX}", kind.letter())
    }

    pub fn parse(path: &str) -> Option<Name> {
        let (home, name) = path.split_once('/')?;
        let home = Home::parse(home)?;
        let mut letters = name.strip_suffix(SUFFIX)?.chars();
        let letter = letters.next()?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.letter() == letter)?;
        let mut parts = letters.as_str().split('-');
        let position = parts.next()?.parse().ok()?;
        let (parent, id) = (Id::parse(parts.next()?)?, Id::parse(parts.next()?)?);
        let text = match parts.next() {
            None => None,
            Some(bytes) => Some(Text { bytes: bytes.parse().ok()?, id: Id::parse(parts.next()?)? }),
        };
        let name = Name { home, kind, position, parent, id, text };
        // Only the one spelling is ours.
        (name.path() == path).then_some(name)
    }
}

/// Bytes from the beginning of a file that its own tokens end within.
pub(super) const HEAD_BYTES: u64 = (HEADER_BYTES + BLOCK_TOKENS * 4) as u64;

/// A node's own tokens, from the beginning of its file. No checksum is needed: its id is a hash
/// over them.
pub(super) fn own_tokens(head: &[u8], key: &Key, name: &Name) -> Option<Vec<u32>> {
    let (header, rest) = head.split_at_checked(HEADER_BYTES)?;
    let count = u32::from_le_bytes(header[84..88].try_into().expect("four bytes"));
    let count = usize::try_from(count).ok().filter(|count| *count <= BLOCK_TOKENS)?;
    let tokens = rest.get(..count * 4)?.as_chunks::<4>().0.iter();
    let tokens: Vec<u32> = tokens.map(|t| u32::from_le_bytes(*t)).collect();
    (chain::child(key, name.parent, name.kind, &tokens) == name.id).then_some(tokens)
}

/// Why a file is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Larger than any of its model.
    #[error("it is larger than it can be")]
    Large,
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
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(Damage::Short)?;
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
    let size = payload.checked_add(extras).and_then(|n| n.checked_add(count * 4));
    let size = size.filter(|size| *size <= rest.len()).ok_or(Damage::Short)?;
    let (rest, found) = rest.split_at(size);
    if found.len() != checksum_bytes(HEADER_BYTES + size) {
        return Err(Damage::Short);
    }
    if checksums(&[&bytes[..HEADER_BYTES + size]]) != found {
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

/// CRC-32 of each piece of the parts, one behind the other.
fn checksums(parts: &[&[u8]]) -> Vec<u8> {
    let (mut all, mut hasher, mut room) = (Vec::new(), crc32fast::Hasher::new(), PIECE_BYTES);
    for mut part in parts.iter().copied() {
        while !part.is_empty() {
            let (now, later) = part.split_at(part.len().min(room));
            hasher.update(now);
            (part, room) = (later, room - now.len());
            if room == 0 {
                let piece = std::mem::replace(&mut hasher, crc32fast::Hasher::new());
                all.extend_from_slice(&piece.finalize().to_le_bytes());
                room = PIECE_BYTES;
            }
        }
    }
    if room < PIECE_BYTES {
        all.extend_from_slice(&hasher.finalize().to_le_bytes());
    }
    all
}

fn checksum_bytes(body: usize) -> usize {
    body.div_ceil(PIECE_BYTES) * 4
}

/// Bytes with the checksums that they should end with in their place; for tests of what lies
/// behind that check.
#[must_use]
pub fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    // So many pieces that they and their checksums fill the file.
    let pieces = bytes.len().div_ceil(PIECE_BYTES + 4);
    if let Some(body) = bytes.len().checked_sub(pieces * 4) {
        let fresh = checksums(&[&bytes[..body]]);
        bytes.truncate(body);
        bytes.extend_from_slice(&fresh);
    }
    bytes
}

/// The payload of a file that must be this node of this key.
pub(super) fn open(
    bytes: Vec<u8>,
    key: &Key,
    name: &Name,
    tokens: &[u32],
) -> Result<Payload, Damage> {
    let view = read_file(&bytes)?;
    let Name { kind, position, parent, id, .. } = *name;
    let named = (view.kind, view.position, view.parent, view.id) == (kind, position, parent, id);
    let placed = view.key == key.bytes() && view.tokens == tokens;
    if !named || !placed || chain::child(key, parent, kind, tokens) != id {
        return Err(Damage::Place);
    }
    let start = HEADER_BYTES + view.tokens.len() * 4 + view.extras.len();
    let end = start + view.payload.len();
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
    let tail = checksums(&[&head, payload]);
    [head, tail]
}

/// Bytes of a file with so many tokens of its own and such a payload.
pub(super) fn file_bytes(tokens: usize, payload: usize) -> u64 {
    let body = HEADER_BYTES + tokens * 4 + payload;
    u64::try_from(body + checksum_bytes(body)).unwrap_or(u64::MAX)
}
