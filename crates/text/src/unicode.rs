//! Character classes of the published pre-tokenizer, as one byte of flags per character.
//!
//! The table comes from the regex engine that is the oracle for token ids ([`RUNS`]), so that a
//! newer Unicode version of some library can never move a token boundary.

#[cfg(test)]
mod tests;

use super::unicode_runs::RUNS;

/// General class of a character, as the published pattern distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Letter,
    Mark,
    Number,
    Punctuation,
    Symbol,
    Space,
    Other,
}

/// `\p{L}` or `\p{M}`.
pub(crate) const WORD: u8 = 1;
/// `\p{P}` or `\p{S}`.
pub(crate) const SIGN: u8 = 2;
/// `\p{N}`.
pub(crate) const NUMBER: u8 = 4;
/// `\s`.
pub(crate) const SPACE: u8 = 8;
/// Carriage return or line feed; these are spaces too.
pub(crate) const NEWLINE: u8 = 16;
/// In the ranges that the second split isolates: ideographs, hiragana, katakana.
pub(crate) const CJK: u8 = 32;
/// One of the 32 ASCII signs that the third split glues to ASCII letters.
pub(crate) const ASCII_SIGN: u8 = 64;
/// An ASCII letter.
pub(crate) const ASCII_LETTER: u8 = 128;

/// Flags of every character of the basic plane.
static BASIC_PLANE: [u8; 0x10000] = basic_plane();

/// Flags of a character given by its code point.
#[inline]
pub(crate) fn flags(code_point: u32) -> u8 {
    match BASIC_PLANE.get(code_point as usize) {
        Some(&flags) => flags,
        None => class_flags(class(code_point)),
    }
}

fn class(code_point: u32) -> Class {
    let after = RUNS.partition_point(|&(first, _)| first <= code_point);
    RUNS[after.saturating_sub(1)].1
}

const fn class_flags(class: Class) -> u8 {
    match class {
        Class::Letter | Class::Mark => WORD,
        Class::Number => NUMBER,
        Class::Punctuation | Class::Symbol => SIGN,
        Class::Space => SPACE,
        Class::Other => 0,
    }
}

const fn basic_plane() -> [u8; 0x10000] {
    let mut table = [0; 0x10000];
    let mut run = 0;
    let mut at = 0;
    while at < table.len() {
        while RUNS[run + 1].0 as usize <= at {
            run += 1;
        }
        table[at] = class_flags(RUNS[run].1) | range_flags(at);
        at += 1;
    }
    table
}

/// Flags that depend on ranges named in the pattern and not on a Unicode class.
const fn range_flags(code_point: usize) -> u8 {
    match code_point {
        0x0A | 0x0D => NEWLINE,
        0x21..=0x2F | 0x3A..=0x40 | 0x5B..=0x60 | 0x7B..=0x7E => ASCII_SIGN,
        0x41..=0x5A | 0x61..=0x7A => ASCII_LETTER,
        0x3040..=0x309F | 0x30A0..=0x30FF | 0x4E00..=0x9FA5 => CJK,
        _ => 0,
    }
}
