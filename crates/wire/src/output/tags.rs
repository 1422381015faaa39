//! Tags of the call markup, as models write them and as they almost write them.

use std::ops::Range;

use ironstar_text::chat::Release;

/// The control token that every tag has after its bracket.
pub(super) const MARKER: &str = "｜DSML｜";
/// The marker, and what models write where they miss its first bar.
const MARKERS: [&str; 2] = [MARKER, "DSML｜"];
/// Bytes of a tag with its attributes; what is longer is text.
const TAG_BYTES_MAX: usize = 4096;
/// Quotes around an attribute, typographic ones included.
const QUOTES: [char; 8] = ['"', '\'', '“', '”', '„', '‘', '’', '＂'];

/// Names of tags by kind, those of all releases.
const NAMES: [(&str, Name); 5] = [
    ("tool_calls", Name::Calls),
    ("function_calls", Name::Calls),
    ("calls", Name::Calls),
    ("invoke", Name::Invoke),
    ("parameter", Name::Parameter),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Calls,
    Invoke,
    Parameter,
}

/// A tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Calls,
    CallsEnd,
    Invoke {
        name: String,
    },
    InvokeEnd,
    /// `string` as the attribute says, if it says something.
    Parameter {
        name: String,
        string: Option<bool>,
    },
    ParameterEnd,
}

/// What a text that begins with `<` begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No tag.
    Text,
    /// What may become a tag when more comes.
    Open,
    /// A tag of so many bytes, and where in it the control token stands.
    Tag(Tag, usize, Option<Range<usize>>),
}

/// How a block of calls begins in a release.
pub(super) fn calls_open(release: Release) -> &'static str {
    match release {
        Release::April | Release::V0731 => "\n\n<｜DSML｜tool_calls>\n",
        Release::V41 => "\n\n<｜DSML｜ calls>\n",
    }
}

/// Reads the tag at the beginning of a text, which is a `<`.
pub(super) fn find(text: &str) -> Found {
    match read(text) {
        Read::Tag(tag, len, marker) => Found::Tag(tag, len, marker),
        Read::Open if text.len() < TAG_BYTES_MAX => Found::Open,
        Read::Open | Read::Text => Found::Text,
    }
}

/// Whether text has what only a tag begins with.
pub(super) fn looks_like_markup(text: &str) -> bool {
    text.contains("DSML｜")
}

enum Read {
    Text,
    Open,
    Tag(Tag, usize, Option<Range<usize>>),
}

/// A position in a text of which more may come.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_spaces(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    /// Passes one of the words; `Err(true)` if more text could make it one of them.
    fn word(&mut self, words: &[&'static str]) -> Result<&'static str, bool> {
        let rest = self.rest();
        if let Some(word) = words.iter().find(|word| rest.starts_with(**word)) {
            self.at += word.len();
            return Ok(word);
        }
        Err(words.iter().any(|word| word.starts_with(rest)))
    }
}

fn read(text: &str) -> Read {
    let mut reader = Reader { text, at: 1 };
    let closing = reader.rest().starts_with('/');
    reader.at += usize::from(closing);
    let start = reader.at;
    let marker = match reader.word(&MARKERS) {
        Ok(marker) => (marker == MARKER).then_some(start..reader.at),
        Err(open) => return if open { Read::Open } else { Read::Text },
    };
    if reader.rest().starts_with(' ') {
        reader.at += 1;
    }
    let words = NAMES.map(|(word, _)| word);
    let name = match reader.word(&words) {
        Ok(word) => NAMES.iter().find(|(known, _)| *known == word).map(|&(_, name)| name),
        Err(open) => return if open { Read::Open } else { Read::Text },
    };
    let Some(name) = name else { return Read::Text };
    let attributes = match attributes(&mut reader) {
        Ok(attributes) => attributes,
        Err(open) => return if open { Read::Open } else { Read::Text },
    };
    match tag(name, closing, attributes) {
        Some(tag) => Read::Tag(tag, reader.at, marker),
        None => Read::Text,
    }
}

fn tag(name: Name, closing: bool, attributes: Vec<(String, String)>) -> Option<Tag> {
    let mut attributes = attributes;
    let mut take = |wanted: &str| {
        let at = attributes.iter().position(|(key, _)| key == wanted)?;
        Some(attributes.swap_remove(at).1)
    };
    Some(match (name, closing) {
        (Name::Calls, false) => Tag::Calls,
        (Name::Calls, true) => Tag::CallsEnd,
        (Name::Invoke, true) => Tag::InvokeEnd,
        (Name::Parameter, true) => Tag::ParameterEnd,
        (Name::Invoke, false) => {
            Tag::Invoke { name: take("name").filter(|name| !name.is_empty())? }
        }
        (Name::Parameter, false) => {
            let string = take("string").and_then(|value| value.trim().parse().ok());
            Tag::Parameter { name: take("name")?, string }
        }
    })
}

/// Attributes up to the closing bracket, which is passed. `Err(true)` if more text could make
/// these attributes, `Err(false)` if nothing can.
fn attributes(reader: &mut Reader<'_>) -> Result<Vec<(String, String)>, bool> {
    let mut found = Vec::new();
    loop {
        reader.skip_spaces();
        let rest = reader.rest();
        if rest.starts_with('>') {
            reader.at += 1;
            return Ok(found);
        }
        let key_len = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        if key_len == rest.len() {
            return Err(true);
        }
        if key_len == 0 {
            return Err(false);
        }
        reader.at += key_len;
        reader.skip_spaces();
        match reader.rest().chars().next() {
            None => return Err(true),
            Some('=') => reader.at += 1,
            Some(_) => return Err(false),
        }
        reader.skip_spaces();
        let value = attribute_value(reader)?;
        found.push((rest[..key_len].to_owned(), value));
    }
}

/// A value in quotes of any kind, which ends at a quote before a space or the bracket, so that
/// quotes within it are part of it; or a bare word.
fn attribute_value(reader: &mut Reader<'_>) -> Result<String, bool> {
    let rest = reader.rest();
    let first = rest.chars().next().ok_or(true)?;
    if !QUOTES.contains(&first) {
        let len = rest.find([' ', '\t', '\n', '\r', '>', '<']).ok_or(true)?;
        reader.at += len;
        return Ok(rest[..len].to_owned());
    }
    let inside = &rest[first.len_utf8()..];
    for (at, quote) in inside.match_indices(|quote| QUOTES.contains(&quote)) {
        match inside[at + quote.len()..].chars().next() {
            None => return Err(true),
            Some(' ' | '\t' | '\n' | '\r' | '>') => {
                reader.at += first.len_utf8() + at + quote.len();
                return Ok(inside[..at].to_owned());
            }
            Some(_) => {}
        }
    }
    Err(true)
}
