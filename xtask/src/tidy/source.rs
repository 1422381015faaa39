//! One Rust file as tidy sees it: the text, and the same text with comments and literals blanked.

use std::ops::Range;

/// A Rust file and what a rule may ask of it.
pub struct Source {
    /// Path from the root, with `/`.
    pub path: String,
    /// The file as it is.
    pub text: String,
    /// Same length and line breaks as `text`; comments and the insides of literals are spaces.
    pub code: String,
    /// Whole file is test, example or build code.
    pub test: bool,
    tests: Vec<Range<usize>>,
    line_starts: Vec<usize>,
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of the word `fn`, from 1.
    pub first_line: usize,
    /// Line of the closing brace.
    pub last_line: usize,
}

impl Source {
    /// Reads `text`; `test` says that all of it is test code.
    pub fn new(path: &str, text: String, test: bool) -> Self {
        let code = blank(&text);
        let line_starts =
            std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let mut source =
            Source { path: path.to_string(), text, code, test, tests: Vec::new(), line_starts };
        source.tests = source.test_modules();
        source
    }

    /// Line number of a byte offset, from 1.
    pub fn line(&self, at: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= at)
    }

    /// The text of line `line` (from 1), without its end.
    pub fn line_text(&self, line: usize) -> &str {
        self.text.lines().nth(line.saturating_sub(1)).unwrap_or("")
    }

    /// Whether a byte offset lies in test code.
    pub fn in_test(&self, at: usize) -> bool {
        self.test || self.tests.iter().any(|range| range.contains(&at))
    }

    /// Offsets where `word` stands in code, not inside a longer word.
    pub fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        let bytes = self.code.as_bytes();
        self.code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
            let before = at.checked_sub(1).map(|i| bytes[i]);
            let after = bytes.get(at + word.len()).copied();
            let own_edge = |b: Option<u8>| !b.is_some_and(is_word);
            (own_edge(before) || !word.starts_with(is_word_char))
                && (own_edge(after) || !word.ends_with(is_word_char))
        })
    }

    /// All functions that have a body, in the order of the file.
    pub fn functions(&self) -> Vec<Function> {
        self.words("fn").filter_map(|at| self.function_at(at)).collect()
    }

    fn function_at(&self, at: usize) -> Option<Function> {
        let name = word_after(&self.code, at + 2)?;
        let mut depth = 0_usize;
        for (offset, byte) in self.code.bytes().enumerate().skip(at) {
            match byte {
                b'(' | b'[' => depth += 1,
                b')' | b']' => depth = depth.saturating_sub(1),
                b';' if depth == 0 => return None,
                b'{' if depth == 0 => {
                    let end = self.matching_brace(offset)?;
                    return Some(Function {
                        name: name.to_string(),
                        first_line: self.line(at),
                        last_line: self.line(end),
                    });
                }
                _ => {}
            }
        }
        None
    }

    /// Offset of the brace that closes the one at `open`.
    pub fn matching_brace(&self, open: usize) -> Option<usize> {
        let mut depth = 0_usize;
        for (offset, byte) in self.code.bytes().enumerate().skip(open) {
            match byte {
                b'{' => depth += 1,
                b'}' if depth == 1 => return Some(offset),
                b'}' => depth -= 1,
                _ => {}
            }
        }
        None
    }

    /// The code before `at` back to the end of the previous item: attributes and visibility.
    pub fn attributes_before(&self, at: usize) -> &str {
        let start = self.code[..at].rfind([';', '{', '}']).map_or(0, |i| i + 1);
        &self.text[start..at]
    }

    fn test_modules(&self) -> Vec<Range<usize>> {
        let inline = |at: usize| {
            let open = at + self.code[at..].find(['{', ';'])?;
            let is_block = self.code.as_bytes()[open] == b'{';
            let is_test = self.attributes_before(at).contains("cfg(test)");
            (is_block && is_test).then_some(open)
        };
        self.words("mod")
            .filter_map(inline)
            .filter_map(|open| Some(open..self.matching_brace(open)?))
            .collect()
    }
}

/// The identifier that follows `at`, spaces skipped.
pub fn word_after(code: &str, at: usize) -> Option<&str> {
    let rest = code[at..].trim_start();
    let end = rest.find(|c| !is_word_char(c)).unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Replaces comments and the insides of string and character literals by spaces.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let inside = literal_or_comment(text, at);
        let end = inside.end.min(bytes.len());
        for byte in &mut out[inside.start..end.max(inside.start)] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8(out).expect("whole characters are blanked, so the rest stays UTF-8")
}

/// The range to blank that begins at `at`; empty where plain code stands. The opening quote of a
/// literal stays, the closing one is blanked, so that it does not open the next literal.
fn literal_or_comment(text: &str, at: usize) -> Range<usize> {
    let rest = &text[at.min(text.len())..];
    let bytes = text.as_bytes();
    let word_before = at > 0 && is_word(bytes[at - 1]);
    if rest.starts_with("//") {
        return at..at + rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return at..at + block_comment(rest);
    }
    if let Some(hashes) = raw_string(rest).filter(|_| !word_before) {
        let close = format!("\"{}", "#".repeat(hashes));
        let open = at + rest.find('"').expect("raw_string saw the quote") + 1;
        let end = text[open..].find(&close).map_or(text.len(), |i| open + i + 1);
        return open..end;
    }
    match bytes[at] {
        b'"' => at + 1..quoted_end(bytes, at + 1, b'"') + 1,
        b'\'' => char_literal(text, at),
        _ => at + char_len(bytes[at])..at + char_len(bytes[at]),
    }
}

fn char_len(first: u8) -> usize {
    match first {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    }
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    let bytes = rest.as_bytes();
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" if depth == 1 => return at + 2,
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    rest.len()
}

/// Number of hashes, if a raw string (`r"`, `br#"`, `cr##"`) begins here.
fn raw_string(rest: &str) -> Option<usize> {
    let after = ["r", "br", "cr"].iter().find_map(|p| rest.strip_prefix(p))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some(hashes)
}

fn quoted_end(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at
}

/// A character literal, or nothing where the quote begins a lifetime.
fn char_literal(text: &str, at: usize) -> Range<usize> {
    let bytes = text.as_bytes();
    let Some(&first) = bytes.get(at + 1) else {
        return at + 1..at + 1;
    };
    if first == b'\\' {
        return at + 1..quoted_end(bytes, at + 1, b'\'') + 1;
    }
    let end = at + 1 + char_len(first);
    if bytes.get(end) == Some(&b'\'') { at + 1..end + 1 } else { at + 1..at + 1 }
}
