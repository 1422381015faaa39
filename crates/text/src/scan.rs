//! The published pre-tokenizer as one pass over the bytes: constant stack, linear time.
//!
//! The tokenizer file describes three splits, each applied to the pieces of the one before:
//! 1. numbers in groups of at most three,
//! 2. runs of ideographs, hiragana and katakana,
//! 3. inside what is left, and inside those runs too, the first that applies of
//!    - word: letters and marks, with at most one character before them that is no letter, sign
//!      or newline; an ASCII sign may come before ASCII letters instead,
//!    - signs, with at most one space before and all newlines after them,
//!    - white space up to its last newline,
//!    - white space, less its last character if something follows in the same piece,
//!    - white space.
//!
//!    Characters that start none of these stay together until something does start.
//!
//! A piece of split 1 or 2 ends the world for split 3: its look-ahead does not see beyond. So the
//! scanner carries the *domain* it is in (the CJK flag) and stops where the flag changes.
//!
//! Bytes that are not UTF-8 are our own rule: each is one character without any class.

#[cfg(test)]
mod tests;

use super::unicode::{
    ASCII_LETTER, ASCII_SIGN, CJK, NEWLINE, NUMBER, SIGN, SPACE, WORD, flags as flags_of,
};

/// The three patterns, exactly as a tokenizer file must spell them for this scanner to be right.
pub(crate) const PATTERNS: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
        "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+",
        "| ?[\\p{P}\\p{S}]+[\r\n]*",
        "|\\s*[\r\n]+",
        r"|\s+(?!\S)|\s+",
    ),
];

/// Largest group of numbers that stays together.
const NUMBERS_MAX: usize = 3;

/// Iterator over the pieces of a text; their concatenation is the text.
pub(crate) struct Pieces<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Flags and length in bytes of the character at a position; length 0 at the end.
#[derive(Clone, Copy)]
struct Char {
    flags: u8,
    len: usize,
}

impl<'a> Pieces<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The character at `at`. A malformed sequence counts as one byte of no class.
    #[inline]
    fn char_at(&self, at: usize) -> Char {
        match self.bytes.get(at) {
            None => Char { flags: 0, len: 0 },
            Some(&byte) if byte < 0x80 => Char { flags: flags_of(u32::from(byte)), len: 1 },
            Some(&lead) => wide_char(lead, &self.bytes[at + 1..]),
        }
    }

    /// End of the run of characters from `at` that have any of `wanted` and belong to `domain`.
    #[inline]
    fn run(&self, mut at: usize, wanted: u8, domain: u8) -> usize {
        loop {
            let next = self.char_at(at);
            if next.flags & wanted == 0 || next.flags & CJK != domain {
                return at;
            }
            at += next.len;
        }
    }

    /// Whether the character at `at` belongs to `domain` and has any of `wanted`.
    #[inline]
    fn follows(&self, at: usize, wanted: u8, domain: u8) -> bool {
        let next = self.char_at(at);
        next.flags & wanted != 0 && next.flags & CJK == domain
    }

    fn numbers_end(&self, mut at: usize) -> usize {
        for _ in 0..NUMBERS_MAX {
            let next = self.char_at(at);
            if next.flags & NUMBER == 0 {
                break;
            }
            at += next.len;
        }
        at
    }

    /// End of the piece of split 3 that starts at `at` with `first`.
    #[inline]
    fn piece_end(&self, at: usize, first: Char) -> usize {
        let domain = first.flags & CJK;
        let second = at + first.len;
        if first.flags & WORD != 0 {
            return self.run(second, WORD, domain);
        }
        if first.flags & SIGN != 0 {
            if first.flags & ASCII_SIGN != 0 && self.follows(second, ASCII_LETTER, domain) {
                return self.run(second, ASCII_LETTER, domain);
            }
            return self.signs_end(second, domain);
        }
        if first.flags & NEWLINE == 0 && self.follows(second, WORD, domain) {
            return self.run(second, WORD, domain);
        }
        if first.flags & SPACE == 0 {
            return self.unclassed_end(second, domain);
        }
        if self.bytes[at] == b' ' && self.follows(second, SIGN, domain) {
            return self.signs_end(second, domain);
        }
        self.space_end(at, domain)
    }

    fn signs_end(&self, at: usize, domain: u8) -> usize {
        self.run(self.run(at, SIGN, domain), NEWLINE, domain)
    }

    /// The three alternatives of white space, of which the first that applies wins.
    fn space_end(&self, start: usize, domain: u8) -> usize {
        let (mut at, mut last_char, mut newline_end) = (start, start, None);
        loop {
            let next = self.char_at(at);
            if next.flags & SPACE == 0 || next.flags & CJK != domain {
                break;
            }
            last_char = at;
            at += next.len;
            if next.flags & NEWLINE != 0 {
                newline_end = Some(at);
            }
        }
        if let Some(end) = newline_end {
            return end;
        }
        let next = self.char_at(at);
        let piece_goes_on = next.len > 0 && next.flags & CJK == domain && next.flags & NUMBER == 0;
        if piece_goes_on && last_char > start { last_char } else { at }
    }

    /// Characters of no class from `at` on, up to where one of them starts a word as its prefix.
    fn unclassed_end(&self, mut at: usize, domain: u8) -> usize {
        loop {
            let next = self.char_at(at);
            let any_class = WORD | SIGN | NUMBER | SPACE;
            if next.len == 0 || next.flags & any_class != 0 || next.flags & CJK != domain {
                return at;
            }
            if self.follows(at + next.len, WORD, domain) {
                return at;
            }
            at += next.len;
        }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let first = self.char_at(self.at);
        if first.len == 0 {
            return None;
        }
        let start = self.at;
        self.at = if first.flags & NUMBER != 0 {
            self.numbers_end(start)
        } else {
            self.piece_end(start, first)
        };
        Some(&self.bytes[start..self.at])
    }
}

/// Decodes a character whose first byte is not ASCII; `rest` is what follows that byte.
#[inline]
fn wide_char(lead: u8, rest: &[u8]) -> Char {
    const MALFORMED: Char = Char { flags: 0, len: 1 };
    let tail = |at: usize| match rest.get(at) {
        Some(&byte) if byte & 0xC0 == 0x80 => Some(u32::from(byte & 0x3F)),
        _ => None,
    };
    let lead_bits = u32::from(lead);
    match lead {
        0xC2..=0xDF => tail(0)
            .map(|a| Char { flags: flags_of((lead_bits & 0x1F) << 6 | a), len: 2 })
            .unwrap_or(MALFORMED),
        0xE0..=0xEF => match (tail(0), tail(1)) {
            (Some(a), Some(b)) => {
                let code_point = (lead_bits & 0x0F) << 12 | a << 6 | b;
                // Shorter forms and surrogates are not UTF-8.
                if code_point < 0x800 || matches!(code_point, 0xD800..=0xDFFF) {
                    return MALFORMED;
                }
                Char { flags: flags_of(code_point), len: 3 }
            }
            _ => MALFORMED,
        },
        0xF0..=0xF4 => match (tail(0), tail(1), tail(2)) {
            (Some(a), Some(b), Some(c)) => {
                let code_point = (lead_bits & 0x07) << 18 | a << 12 | b << 6 | c;
                if !(0x10000..=0x10FFFF).contains(&code_point) {
                    return MALFORMED;
                }
                Char { flags: flags_of(code_point), len: 4 }
            }
            _ => MALFORMED,
        },
        _ => MALFORMED,
    }
}
