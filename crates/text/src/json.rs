//! The published `tokenizer.json`, read as hostile input.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::{Value, json};

use super::Error;
use super::error::shortened;
use super::scan::PATTERNS;
use super::vocabulary::{Kind, PRE_TOKENIZER, Parts};

/// Texts by which a published file's own special tokens are known.
const BOS: &str = "<｜begin▁of▁sentence｜>";
const EOS: &str = "<｜end▁of▁sentence｜>";
const PAD: &str = "<｜▁pad▁｜>";

#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default, rename = "type")]
    kind: Value,
    #[serde(default)]
    dropout: Value,
    #[serde(default)]
    unk_token: Value,
    #[serde(default)]
    continuing_subword_prefix: Value,
    #[serde(default)]
    end_of_word_suffix: Value,
    #[serde(default)]
    byte_fallback: Value,
    #[serde(default)]
    ignore_merges: Value,
    vocab: HashMap<String, u32>,
    merges: Vec<Pair>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

/// A merge, `"a b"` in older files and `["a", "b"]` in newer ones, kept in the older form.
struct Pair(String);

/// Reads the file into the form that model metadata has.
pub(crate) fn read(tokenizer_json: &[u8]) -> Result<Parts, Error> {
    let file: File = serde_json::from_slice(tokenizer_json)?;
    check_model(&file.model)?;
    check_normalizer(&file.normalizer)?;
    check_pre_tokenizer(&file.pre_tokenizer)?;
    let by_id = tokens_by_id(file.model.vocab, file.added_tokens)?;
    let find = |text: &str| {
        let at = by_id.iter().position(|(token, kind)| token == text && *kind != Kind::Normal);
        at.and_then(|at| u32::try_from(at).ok())
    };
    Ok(Parts {
        merges: file.model.merges.into_iter().map(|pair| pair.0).collect(),
        pre: PRE_TOKENIZER.to_owned(),
        bos: find(BOS),
        eos: find(EOS),
        pad: find(PAD),
        kinds: by_id.iter().map(|&(_, kind)| kind as u32).collect(),
        tokens: by_id.into_iter().map(|(token, _)| token.into_bytes()).collect(),
    })
}

fn check_model(model: &Model) -> Result<(), Error> {
    let off = [Value::Null, json!(false), json!(0), json!(0.0), json!("")];
    let fields = [
        ("model.dropout", &model.dropout),
        ("model.unk_token", &model.unk_token),
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
        ("model.byte_fallback", &model.byte_fallback),
        ("model.ignore_merges", &model.ignore_merges),
    ];
    for (field, found) in fields {
        if !off.contains(found) {
            return Err(unsupported(field, found, "null or false"));
        }
    }
    if model.kind != Value::Null && model.kind != json!("BPE") {
        return Err(unsupported("model.type", &model.kind, "\"BPE\""));
    }
    Ok(())
}

fn check_normalizer(normalizer: &Value) -> Result<(), Error> {
    let empty = json!({"type": "Sequence", "normalizers": []});
    if normalizer.is_null() || *normalizer == empty {
        return Ok(());
    }
    Err(unsupported("normalizer", normalizer, "null"))
}

fn check_pre_tokenizer(found: &Value) -> Result<(), Error> {
    let splits = PATTERNS.map(|pattern| {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
               "invert": false})
    });
    let steps = found.get("pretokenizers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let [first, second, third, last] = steps else {
        return Err(unsupported(
            "pre_tokenizer",
            found,
            "the DeepSeek V3/V4 sequence of three splits and a byte level",
        ));
    };
    for (step, wanted) in [first, second, third].into_iter().zip(&splits) {
        if step != wanted {
            return Err(unsupported("pre_tokenizer.pretokenizers", step, wanted));
        }
    }
    let wanted = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false});
    let byte_level = wanted.as_object().into_iter().flatten();
    for (key, value) in byte_level {
        if last.get(key) != Some(value) {
            return Err(unsupported("pre_tokenizer.pretokenizers", last, &wanted));
        }
    }
    Ok(())
}

fn unsupported(field: &'static str, found: impl fmt::Display, wanted: impl fmt::Display) -> Error {
    Error::Unsupported { field, found: shortened(found), wanted: wanted.to_string() }
}

/// All tokens in the order of their ids, which must have no gap.
fn tokens_by_id(
    vocab: HashMap<String, u32>,
    added: Vec<Added>,
) -> Result<Vec<(String, Kind)>, Error> {
    let mut kinds: HashMap<String, (u32, Kind)> = HashMap::with_capacity(vocab.len());
    kinds.extend(vocab.into_iter().map(|(text, id)| (text, (id, Kind::Normal))));
    for token in added {
        if token.single_word || token.lstrip || token.rstrip {
            return Err(Error::Unsupported {
                field: "added_tokens",
                found: format!(
                    "{:?} with single_word, lstrip or rstrip",
                    shortened(&token.content)
                ),
                wanted: "plain added tokens".to_owned(),
            });
        }
        let kind = if token.special { Kind::Control } else { Kind::UserDefined };
        let text = token.content;
        if text.is_empty() {
            return Err(Error::Vocabulary(format!("added token {} is empty", token.id)));
        }
        match kinds.insert(text.clone(), (token.id, kind)) {
            Some((id, _)) if id != token.id => {
                return Err(Error::Vocabulary(format!(
                    "{:?} has the ids {id} and {}; wanted one",
                    shortened(text),
                    token.id
                )));
            }
            _ => {}
        }
    }
    let count = kinds.len();
    let mut by_id = vec![None; count];
    for (text, (id, kind)) in kinds {
        let place = by_id.get_mut(id as usize).ok_or_else(|| {
            Error::Vocabulary(format!(
                "{:?} has the id {id}; wanted ids below the number of tokens, {count}",
                shortened(&text)
            ))
        })?;
        if let Some((earlier, _)) = place.replace((text.clone(), kind)) {
            return Err(Error::Vocabulary(format!(
                "{:?} and {:?} both have the id {id}",
                shortened(earlier),
                shortened(text)
            )));
        }
    }
    // As many places as tokens and no place taken twice: every place is taken.
    Ok(by_id.into_iter().flatten().collect())
}

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PairVisitor)
    }
}

struct PairVisitor;

impl<'de> Visitor<'de> for PairVisitor {
    type Value = Pair;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a merge: \"a b\" or [\"a\", \"b\"]")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Pair, E> {
        Ok(Pair(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sides: A) -> Result<Pair, A::Error> {
        let mut side =
            |at| sides.next_element::<String>()?.ok_or_else(|| A::Error::invalid_length(at, &self));
        let pair = format!("{} {}", side(0)?, side(1)?);
        if sides.next_element::<String>()?.is_some() {
            return Err(A::Error::invalid_length(3, &self));
        }
        Ok(Pair(pair))
    }
}
