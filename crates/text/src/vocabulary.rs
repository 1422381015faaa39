//! The tokens themselves: their texts, their kinds, and the checks that make encoding safe.

use std::collections::HashMap;

use super::Error;
use super::bpe::{Merge, Merges, Scratch, Seed};
use super::error::shortened;

/// What the metadata of a model file says about its tokenizer (GGUF `tokenizer.ggml.*`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Text of each token by id: base tokens in the byte-level alphabet (`Ġthe`), added tokens as
    /// they are (`<think>`).
    pub tokens: Vec<Vec<u8>>,
    /// Two token texts with a space between, in the order of their rank.
    pub merges: Vec<String>,
    /// Kind of each token: 1 normal, 3 control, 4 user defined, 5 unused. May be empty; then every
    /// token that neither is a byte nor comes from a merge counts as control.
    pub kinds: Vec<u32>,
    /// Name of the pre-tokenizer; must be [`PRE_TOKENIZER`].
    pub pre: String,
    /// Id of the token that begins a text.
    pub bos: Option<u32>,
    /// Id of the token that ends a text.
    pub eos: Option<u32>,
    /// Id of the padding token.
    pub pad: Option<u32>,
}

/// Name that model files give to the one pre-tokenizer of this crate.
pub const PRE_TOKENIZER: &str = "joyai-llm";

/// More tokens than any model has; a bound on what a file can make us allocate.
const TOKENS_MAX: usize = 1 << 24;

/// Kind of a token, with the number that GGUF gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Made of bytes; the only kind that text becomes.
    Normal = 1,
    /// A marker.
    Control = 3,
    /// A marker that the published file does not call special.
    UserDefined = 4,
    /// A place in the table that nothing uses; a marker as far as text is concerned.
    Unused = 5,
}

/// Token texts and kinds, checked.
pub(crate) struct Vocabulary {
    /// What each token decodes to, one after the other.
    bytes: Vec<u8>,
    /// Where token `id` ends in `bytes`.
    ends: Vec<usize>,
    pub(crate) kinds: Vec<Kind>,
    /// Ids of the 256 single-byte tokens.
    pub(crate) byte_ids: [u32; 256],
    /// Ids of a merge's two sides, by rank.
    pub(crate) merge_pairs: Vec<(u32, u32)>,
    pub(crate) merges: Merges,
}

impl Vocabulary {
    pub(crate) fn new(parts: &Parts, seed: Seed) -> Result<Self, Error> {
        check_header(parts)?;
        let index = index_by_text(&parts.tokens)?;
        let byte_ids = byte_ids(&index)?;
        let mut merges = Merges::new(seed);
        let mut reached = vec![false; parts.tokens.len()];
        for &id in &byte_ids {
            reached[id as usize] = true;
        }
        let mut merge_pairs = Vec::with_capacity(parts.merges.len());
        for (rank, text) in parts.merges.iter().enumerate() {
            let (left, right, id) = resolve_merge(rank, text, &index)?;
            let merge = Merge { rank: id_of(rank), id };
            if let Some(earlier) = merges.insert(left, right, merge) {
                return Err(Error::Vocabulary(format!(
                    "merges {} and {rank} are both {:?}; wanted each once",
                    earlier.rank,
                    shortened(text)
                )));
            }
            for id in [left, right, id] {
                reached[id as usize] = true;
            }
            merge_pairs.push((left, right));
        }
        merges.finish(&byte_ids);
        let (kinds, bytes, ends) = decode_table(parts, &reached)?;
        Ok(Self { bytes, ends, kinds, byte_ids, merge_pairs, merges })
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// What a token decodes to; empty for an id that does not exist.
    pub(crate) fn token_bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }

    pub(crate) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    /// All ids of one sort: those of text, or those of markers.
    pub(crate) fn ids(&self, normal: bool) -> impl Iterator<Item = u32> + '_ {
        (0..id_of(self.len()))
            .filter(move |&id| (self.kinds[id as usize] == Kind::Normal) == normal)
    }

    /// Ids of one piece of text, appended.
    pub(crate) fn merge_piece(&self, piece: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        self.merges.encode(piece, &self.byte_ids, scratch, ids);
    }

    /// Text of a token as model files spell it.
    pub(crate) fn file_text(&self, id: u32) -> Vec<u8> {
        let bytes = self.token_bytes(id);
        match self.kind(id) {
            Some(Kind::Normal) => to_alphabet(bytes).into_bytes(),
            _ => bytes.to_vec(),
        }
    }

    /// The merges as model files spell them.
    pub(crate) fn merge_texts(&self) -> Vec<String> {
        let text = |id| to_alphabet(self.token_bytes(id));
        let pairs = self.merge_pairs.iter();
        pairs.map(|&(left, right)| format!("{} {}", text(left), text(right))).collect()
    }
}

/// An id from an index into a table that was checked to be short.
fn id_of(index: usize) -> u32 {
    u32::try_from(index).expect("token and merge counts were checked against TOKENS_MAX")
}

fn check_header(parts: &Parts) -> Result<(), Error> {
    if parts.pre != PRE_TOKENIZER {
        return Err(Error::Unsupported {
            field: "pre-tokenizer",
            found: format!("{:?}", shortened(&parts.pre)),
            wanted: format!("{PRE_TOKENIZER:?}"),
        });
    }
    let count = parts.tokens.len();
    for (what, found) in [("tokens", count), ("merges", parts.merges.len())] {
        if found > TOKENS_MAX {
            return Err(Error::Vocabulary(format!("{found} {what}; wanted at most {TOKENS_MAX}")));
        }
    }
    if !parts.kinds.is_empty() && parts.kinds.len() != count {
        return Err(Error::Vocabulary(format!(
            "{} token types for {count} tokens; wanted one each",
            parts.kinds.len()
        )));
    }
    for (name, id) in [("bos", parts.bos), ("eos", parts.eos), ("pad", parts.pad)] {
        if let Some(id) = id
            && id as usize >= count
        {
            return Err(Error::Vocabulary(format!(
                "the {name} token is {id}; wanted an id below {count}"
            )));
        }
    }
    Ok(())
}

fn index_by_text(tokens: &[Vec<u8>]) -> Result<HashMap<&[u8], u32>, Error> {
    let mut index = HashMap::with_capacity(tokens.len());
    for (id, text) in tokens.iter().enumerate() {
        if let Some(earlier) = index.insert(text.as_slice(), id_of(id)) {
            return Err(Error::Vocabulary(format!(
                "tokens {earlier} and {id} are both {:?}; wanted each text once",
                shortened(String::from_utf8_lossy(text))
            )));
        }
    }
    Ok(index)
}

fn byte_ids(index: &HashMap<&[u8], u32>) -> Result<[u32; 256], Error> {
    let mut ids = [0; 256];
    for (byte, id) in (0..=u8::MAX).zip(&mut ids) {
        let text = alphabet_char(byte).to_string();
        *id = *index.get(text.as_bytes()).ok_or_else(|| {
            Error::Vocabulary(format!(
                "no token {text:?} for the byte {byte:#04x}; wanted all 256 of the byte alphabet"
            ))
        })?;
    }
    Ok(ids)
}

/// Ids of the two sides of a merge and of what they make.
fn resolve_merge(
    rank: usize,
    text: &str,
    index: &HashMap<&[u8], u32>,
) -> Result<(u32, u32, u32), Error> {
    let sides = text
        .split_once(' ')
        .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '));
    let Some((left, right)) = sides else {
        return Err(Error::Vocabulary(format!(
            "merge {rank} is {:?}; wanted two tokens with one space between",
            shortened(text)
        )));
    };
    let find = |token: &str| {
        index.get(token.as_bytes()).copied().ok_or_else(|| {
            Error::Vocabulary(format!(
                "merge {rank} needs the token {:?}, which is missing",
                shortened(token)
            ))
        })
    };
    Ok((find(left)?, find(right)?, find(&format!("{left}{right}"))?))
}

/// Kinds of all tokens and what they decode to (all bytes, and where each token ends).
#[expect(clippy::type_complexity, reason = "three columns of one table")]
fn decode_table(
    parts: &Parts,
    reached: &[bool],
) -> Result<(Vec<Kind>, Vec<u8>, Vec<usize>), Error> {
    let count = parts.tokens.len();
    let (mut kinds, mut bytes) = (Vec::with_capacity(count), Vec::new());
    let mut ends = Vec::with_capacity(count);
    for (id, text) in parts.tokens.iter().enumerate() {
        let decoded = from_alphabet(text);
        let mut kind = match parts.kinds.get(id) {
            None if reached[id] => Kind::Normal,
            None | Some(3) => Kind::Control,
            Some(1) => Kind::Normal,
            Some(4) => Kind::UserDefined,
            Some(5) => Kind::Unused,
            Some(other) => {
                return Err(Error::Vocabulary(format!(
                    "token {id} has type {other}; wanted 1, 3, 4 or 5"
                )));
            }
        };
        if reached[id] && kind != Kind::Normal {
            // Otherwise text could spell a control token.
            return Err(Error::Vocabulary(format!(
                "the control token {id} ({:?}) is a byte or part of a merge; wanted it apart",
                shortened(String::from_utf8_lossy(text))
            )));
        }
        match decoded {
            Some(decoded) if kind == Kind::Normal => bytes.extend(decoded),
            Some(_) => bytes.extend(text),
            None => {
                // Some converters call the markers normal; no merge makes them, so they are not.
                if kind == Kind::Normal {
                    kind = Kind::Control;
                }
                bytes.extend(text);
            }
        }
        kinds.push(kind);
        ends.push(bytes.len());
    }
    Ok((kinds, bytes, ends))
}

/// The character that stands for a byte in the byte-level alphabet: itself where it is visible
/// Latin-1, else the next free one from U+0100 on.
fn alphabet_char(byte: u8) -> char {
    let shifted = match byte {
        0x00..=0x20 => u32::from(byte),
        0x7F..=0xA0 => u32::from(byte) - 0x7F + 0x21,
        0xAD => 0x43,
        _ => return char::from(byte),
    };
    char::from_u32(0x100 + shifted).expect("U+0100 to U+0143 are characters")
}

fn alphabet_byte(symbol: char) -> Option<u8> {
    let code = u32::from(symbol);
    let byte = match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

fn to_alphabet(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| alphabet_char(byte)).collect()
}

/// Bytes of a text in the byte-level alphabet; none if it is not in that alphabet.
fn from_alphabet(text: &[u8]) -> Option<Vec<u8>> {
    std::str::from_utf8(text).ok()?.chars().map(alphabet_byte).collect()
}
