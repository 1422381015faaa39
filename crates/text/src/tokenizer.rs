//! Text to token ids and back.

use super::bpe::{Scratch, Seed};
use super::markers::Markers;
use super::scan::Pieces;
use super::vocabulary::{Kind, Vocabulary};
use super::whole::WholeTokens;
use super::{Error, Parts, Segment, StreamDecoder, json};

/// A byte-level BPE tokenizer of the DeepSeek V3/V4 family.
///
/// Plain text never becomes a control token: the constructors refuse a vocabulary in which a merge
/// could make one, and the encoders of plain text look for none.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    markers: Markers,
    /// Pieces that merge to a single token, with that token.
    whole: WholeTokens,
    pre: String,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
}

impl Tokenizer {
    /// Builds a tokenizer from the `tokenizer.json` that is published beside a model's weights.
    pub fn from_json(tokenizer_json: &[u8]) -> Result<Self, Error> {
        Self::from_parts(json::read(tokenizer_json)?)
    }

    /// Builds a tokenizer from the metadata of a model file.
    pub fn from_parts(parts: Parts) -> Result<Self, Error> {
        let seed = Seed::random();
        let vocabulary = Vocabulary::new(&parts, seed)?;
        let markers =
            Markers::new(vocabulary.ids(false).map(|id| (vocabulary.token_bytes(id), id)));
        let mut whole = WholeTokens::new(seed);
        let (mut scratch, mut ids) = (Scratch::default(), Vec::new());
        for id in vocabulary.ids(true) {
            ids.clear();
            let piece = vocabulary.token_bytes(id);
            vocabulary.merge_piece(piece, &mut scratch, &mut ids);
            if ids == [id] {
                whole.insert(piece, id);
            }
        }
        let Parts { pre, bos, eos, pad, .. } = parts;
        Ok(Self { vocabulary, markers, whole, pre, bos, eos, pad })
    }

    /// The metadata from which [`Tokenizer::from_parts`] makes this tokenizer again.
    #[must_use]
    pub fn parts(&self) -> Parts {
        let ids = 0..self.vocab_size();
        Parts {
            tokens: ids.map(|id| self.vocabulary.file_text(id)).collect(),
            merges: self.vocabulary.merge_texts(),
            kinds: self.vocabulary.kinds.iter().map(|&kind| kind as u32).collect(),
            pre: self.pre.clone(),
            bos: self.bos,
            eos: self.eos,
            pad: self.pad,
        }
    }

    /// Ids of plain text. Control tokens are never produced, whatever the text says.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.encode_bytes(text.as_bytes())
    }

    /// Ids of plain text that need not be UTF-8; a byte that belongs to no character counts as a
    /// character without a class, and [`Tokenizer::decode`] gives it back.
    #[must_use]
    pub fn encode_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let mut ids = Vec::with_capacity(bytes.len() / 4 + 1);
        self.encode_into(bytes, &mut Scratch::default(), &mut ids);
        ids
    }

    /// Ids of a prompt. Neighbouring texts count as one text.
    pub fn encode_segments(&self, segments: &[Segment]) -> Result<Vec<u32>, Error> {
        let (mut ids, mut scratch) = (Vec::new(), Scratch::default());
        let mut text = String::new();
        for segment in segments {
            match segment {
                Segment::Text(more) => text.push_str(more),
                Segment::Special(marker) => {
                    self.encode_into(text.as_bytes(), &mut scratch, &mut ids);
                    text.clear();
                    let id = self.special(marker);
                    ids.push(id.ok_or_else(|| Error::MissingSpecial(marker.to_string()))?);
                }
            }
        }
        self.encode_into(text.as_bytes(), &mut scratch, &mut ids);
        Ok(ids)
    }

    /// Ids of a prompt written out as one string, in which every marker becomes its control
    /// token. Only for text that its author may trust with that, such as a raw prompt.
    #[must_use]
    pub fn encode_rendered(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut scratch) = (Vec::new(), Scratch::default());
        let mut rest = text.as_bytes();
        while let Some((start, end, id)) = self.markers.find(rest) {
            self.encode_into(&rest[..start], &mut scratch, &mut ids);
            ids.push(id);
            rest = &rest[end..];
        }
        self.encode_into(rest, &mut scratch, &mut ids);
        ids
    }

    /// Number of ids; all are below it.
    #[must_use]
    pub fn vocab_size(&self) -> u32 {
        u32::try_from(self.vocabulary.len()).expect("checked when the vocabulary was built")
    }

    /// Id of the token that begins a text.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Id of the token that ends a text.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Id of the padding token.
    #[must_use]
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// Id of a control token by its text.
    #[must_use]
    pub fn special(&self, text: &str) -> Option<u32> {
        self.markers.get(text.as_bytes())
    }

    /// Whether an id is a control token, which text never becomes.
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        self.vocabulary.kind(id).is_some_and(|kind| kind != Kind::Normal)
    }

    /// The bytes that a token stands for, control tokens as their text; empty for an id beyond
    /// the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.token_bytes(id)
    }

    /// The bytes that a row of tokens stands for.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect()
    }

    /// A decoder that takes one token at a time and hands out whole characters.
    #[must_use]
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    fn encode_into(&self, text: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        for piece in Pieces::new(text) {
            match self.whole.get(piece) {
                Some(id) => ids.push(id),
                None => self.vocabulary.merge_piece(piece, scratch, ids),
            }
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = formatter.debug_struct("Tokenizer");
        fields.field("tokens", &self.vocab_size()).field("pre", &self.pre).finish_non_exhaustive()
    }
}
