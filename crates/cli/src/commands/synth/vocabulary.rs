//! A vocabulary of any size that needs no file: control tokens, bytes, and words of four letters.
//!
//! The letters of a word come from four classes that have no letter in common, so there is one way
//! to merge them, and a text of such words has as many tokens as words.

use super::blocks::{key, next};
use ironstar_gguf::{Array, Value};

/// Control tokens, in the places that other tools expect the first three in.
const CONTROL: [&str; 8] = [
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
];
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Letters of a class at most.
const CLASS: usize = 13;
/// Words of a line of a prompt.
const WORDS: usize = 7;
/// Kinds of tokens in a file.
const NORMAL: i32 = 1;
/// See [`NORMAL`].
const CONTROLLING: i32 = 3;
/// See [`NORMAL`].
const UNUSED: i32 = 5;

/// Keys that make a tokenizer.
pub fn metadata(size: usize) -> Vec<(String, Value)> {
    let (mut tokens, mut kinds, mut merges) = (Vec::new(), Vec::new(), Vec::new());
    let mut add = |token: String, kind: i32| {
        tokens.push(token);
        kinds.push(kind);
    };
    CONTROL.iter().for_each(|token| add((*token).into(), CONTROLLING));
    byte_characters().for_each(|c| add(c.into(), NORMAL));
    let [a, b, c, d] = classes(size);
    let (front, back) = (pairs(&a, &b), pairs(&c, &d));
    for pair in front.iter().chain(&back) {
        let mut letters = pair.chars();
        let (first, second) = (letters.next().unwrap_or(' '), letters.as_str());
        merges.push(format!("{first} {second}"));
        add(pair.clone(), NORMAL);
    }
    for x in &front {
        for y in &back {
            merges.push(format!("{x} {y}"));
            add(format!("{x}{y}"), NORMAL);
        }
    }
    for id in tokens.len()..size {
        tokens.push(format!("<unused{id}>"));
        kinds.push(UNUSED);
    }
    let text = |text: &str| Value::String(text.into());
    let texts = |list: Vec<String>| {
        Value::Array(Array::String(list.into_iter().map(String::into_bytes).collect()))
    };
    [
        ("model", text("gpt2")),
        ("pre", text(ironstar_text::PRE_TOKENIZER)),
        ("tokens", texts(tokens)),
        ("token_type", Value::Array(Array::I32(kinds))),
        ("merges", texts(merges)),
        ("bos_token_id", Value::U32(0)),
        ("eos_token_id", Value::U32(1)),
        ("padding_token_id", Value::U32(2)),
        ("add_bos_token", Value::Bool(true)),
        ("add_eos_token", Value::Bool(false)),
    ]
    .map(|(name, value)| (format!("tokenizer.ggml.{name}"), value))
    .into()
}

/// A text of about so many varied tokens.
#[must_use]
pub fn prompt(size: usize, tokens: usize, seed: u64) -> String {
    let (classes, mut state) = (classes(size), key(seed, "prompt"));
    let mut text = String::new();
    for word in 1..=tokens {
        for class in &classes {
            let index = usize::try_from(next(&mut state) >> 33).expect("31 bits") % class.len();
            text.push(class[index]);
        }
        if word % WORDS == 0 {
            text.push('\n');
        }
    }
    text
}

/// Four classes, as large as a vocabulary of this size has room for.
fn classes(size: usize) -> [Vec<char>; 4] {
    let room = |k: usize| CONTROL.len() + 256 + 2 * k * k + k.pow(4) <= size;
    let count = (1..=CLASS).rev().find(|k| room(*k)).unwrap_or(1);
    std::array::from_fn(|class| LETTERS.chars().skip(class * CLASS).take(count).collect())
}

fn pairs(first: &[char], second: &[char]) -> Vec<String> {
    first.iter().flat_map(|a| second.iter().map(move |b| format!("{a}{b}"))).collect()
}

/// The character that stands for each byte in byte-level vocabularies.
fn byte_characters() -> impl Iterator<Item = char> {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let shown = (0..256).filter(move |b| printable(*b));
    let hidden = (0..256).filter(move |b| !printable(*b)).enumerate();
    let hidden = hidden.map(|(index, _)| 256 + u32::try_from(index).expect("below 256"));
    shown.chain(hidden).filter_map(char::from_u32)
}
