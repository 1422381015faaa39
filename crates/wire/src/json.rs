//! Requests as JSON, read a level at a time.
//!
//! Values stay text until somebody asks, so numbers keep their spelling and nothing recurses:
//! a level is cut into the texts of its members, each with the path that errors name.

use std::collections::HashMap;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

use crate::{ApiError, ErrorKind, Limits};

/// Members of an object; a vocabulary's worth of biases is more than anybody sends.
const MEMBERS_MAX: usize = 16_384;

/// A JSON value of a request.
#[derive(Clone, Debug)]
pub(crate) struct Node<'a> {
    raw: &'a str,
    path: String,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Bool,
    Number,
    String,
    Array,
    Object,
}

/// Members of an object. Who reads one takes it; what nobody took is unknown.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    path: String,
    members: Vec<(String, &'a RawValue)>,
    taken: Vec<bool>,
}

/// Checks a body: its size, encoding, depth and syntax.
pub(crate) fn body<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Node<'a>, ApiError> {
    let whole = |code, message: String| ApiError::new(ErrorKind::Invalid, code, message);
    if bytes.len() > limits.body_bytes {
        return Err(ApiError::new(
            ErrorKind::TooLarge,
            "body_too_large",
            format!("the body has {} bytes; at most {} are taken", bytes.len(), limits.body_bytes),
        ));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        whole("invalid_json", format!("the body is not UTF-8 from byte {at} on; wanted JSON"))
    })?;
    let depth = depth(text);
    if depth > limits.depth {
        return Err(whole(
            "too_deep",
            format!("the body is nested {depth} deep; at most {} levels are taken", limits.depth),
        ));
    }
    let raw: &RawValue = serde_json::from_str(text)
        .map_err(|error| whole("invalid_json", format!("the body is not JSON: {error}")))?;
    Ok(Node { raw: raw.get(), path: String::new() })
}

/// Most brackets that are open at once.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut quoted, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

impl<'a> Node<'a> {
    /// The value as it was written.
    pub(crate) fn raw(&self) -> &'a str {
        self.raw
    }

    /// Where it stands, as `messages[3].content`.
    pub(crate) fn path(&self) -> &str {
        if self.path.is_empty() { "body" } else { &self.path }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.raw.as_bytes().first() {
            Some(b'"') => Kind::String,
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b't' | b'f') => Kind::Bool,
            Some(b'n') => Kind::Null,
            _ => Kind::Number,
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        self.kind() == Kind::Null
    }

    /// The error that this is not what was wanted.
    pub(crate) fn wrong(&self, wanted: &str) -> ApiError {
        let found = match self.kind() {
            Kind::Object => "an object".to_owned(),
            Kind::Array => "an array".to_owned(),
            _ => shortened(self.raw),
        };
        let path = self.path();
        ApiError::invalid(path, format!("`{path}` is {found}; wanted {wanted}"))
    }

    pub(crate) fn object(&self) -> Result<Fields<'a>, ApiError> {
        if self.kind() != Kind::Object {
            return Err(self.wrong("an object"));
        }
        let Members(members) = serde_json::from_str(self.raw)
            .map_err(|_| self.wrong(&format!("at most {MEMBERS_MAX} members")))?;
        let taken = vec![false; members.len()];
        Ok(Fields { path: self.path.clone(), members, taken })
    }

    /// Items of an array of at most so many.
    pub(crate) fn array(&self, most: usize) -> Result<Vec<Node<'a>>, ApiError> {
        if self.kind() != Kind::Array {
            return Err(self.wrong("an array"));
        }
        let mut deserializer = serde_json::Deserializer::from_str(self.raw);
        let items = ItemsVisitor { most }.deserialize(&mut deserializer);
        let items = items.map_err(|_| self.wrong(&format!("at most {most} items")))?;
        let node =
            |(at, raw): (usize, &'a RawValue)| Node { raw: raw.get(), path: self.item_path(at) };
        Ok(items.into_iter().enumerate().map(node).collect())
    }

    fn item_path(&self, at: usize) -> String {
        format!("{}[{at}]", self.path)
    }

    /// A string. Half of a surrogate pair is replaced, since no character can stand for it.
    pub(crate) fn string(&self) -> Result<String, ApiError> {
        if self.kind() != Kind::String {
            return Err(self.wrong("a string"));
        }
        serde_json::from_str(self.raw)
            .or_else(|_| serde_json::from_str(&without_lone_surrogates(self.raw)))
            .map_err(|error| {
                let path = self.path();
                ApiError::invalid(path, format!("`{path}` is no proper string: {error}"))
            })
    }

    pub(crate) fn bool(&self) -> Result<bool, ApiError> {
        serde_json::from_str(self.raw).map_err(|_| self.wrong("true or false"))
    }

    /// A number within bounds.
    pub(crate) fn number(&self, least: f64, most: f64) -> Result<f64, ApiError> {
        let wrong = || self.wrong(&format!("a number from {least} to {most}"));
        if self.kind() != Kind::Number {
            return Err(wrong());
        }
        let number: f64 = serde_json::from_str(self.raw).map_err(|_| wrong())?;
        if (least..=most).contains(&number) { Ok(number) } else { Err(wrong()) }
    }

    /// A whole number within bounds; `5.0` is one.
    pub(crate) fn whole(&self, least: i64, most: i64) -> Result<i64, ApiError> {
        let wrong = || {
            let most = if most == i64::MAX { String::new() } else { format!(" to {most}") };
            self.wrong(&format!("a whole number from {least}{most}"))
        };
        let digits = self.raw.strip_suffix(".0").unwrap_or(self.raw);
        let number: i64 = serde_json::from_str(digits).map_err(|_| wrong())?;
        if (least..=most).contains(&number) { Ok(number) } else { Err(wrong()) }
    }

    /// A count from `least` on.
    pub(crate) fn count(&self, least: u32, most: usize) -> Result<usize, ApiError> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let number = self.whole(i64::from(least), most)?;
        usize::try_from(number).map_err(|_| self.wrong("a smaller number"))
    }

    /// One of the words; the error lists them.
    pub(crate) fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, ApiError> {
        let found = if self.kind() == Kind::String { self.string()? } else { String::new() };
        let hit = words.iter().find(|(word, _)| *word == found && !found.is_empty());
        hit.map(|&(_, value)| value).ok_or_else(|| {
            let mut listed: Vec<String> =
                words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            listed.dedup();
            self.wrong(&format!("one of {}", listed.join(", ")))
        })
    }
}

impl<'a> Fields<'a> {
    /// A member that is there and not null.
    pub(crate) fn take(&mut self, name: &str) -> Option<Node<'a>> {
        self.take_any(name).filter(|node| !node.is_null())
    }

    /// A member that is there, null or not.
    pub(crate) fn take_any(&mut self, name: &str) -> Option<Node<'a>> {
        let at = self.members.iter().position(|(key, _)| key == name)?;
        self.taken[at] = true;
        Some(Node { raw: self.members[at].1.get(), path: self.path_of(name) })
    }

    /// A member that is there and not null, for somebody else to take.
    pub(crate) fn peek(&self, name: &str) -> Option<Node<'a>> {
        let (_, raw) = self.members.iter().find(|(key, _)| key == name)?;
        Some(Node { raw: raw.get(), path: self.path_of(name) }).filter(|node| !node.is_null())
    }

    /// All members, taken or not.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, Node<'a>)> {
        let node =
            |name: &str, raw: &'a RawValue| Node { raw: raw.get(), path: self.path_of(name) };
        self.members.iter().map(move |(name, raw)| (name.as_str(), node(name, raw)))
    }

    /// A member that must be there.
    pub(crate) fn need(&mut self, name: &str) -> Result<Node<'a>, ApiError> {
        self.take(name).ok_or_else(|| self.missing(name))
    }

    pub(crate) fn missing(&self, name: &str) -> ApiError {
        let path = self.path_of(name);
        let mut error = ApiError::invalid(path.clone(), format!("`{path}` is missing"));
        error.code = "missing_field";
        error
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.take(name).map(|node| node.string()).transpose()
    }

    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.take(name).map(|node| node.bool()).transpose()
    }

    /// Members that nobody took and that say something.
    pub(crate) fn left(&self) -> impl Iterator<Item = &str> {
        let left = self.members.iter().zip(&self.taken).filter(|(_, taken)| !**taken);
        left.filter(|((_, raw), _)| raw.get() != "null").map(|((name, _), _)| name.as_str())
    }

    pub(crate) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

/// Members in order; of a repeated name the last value counts.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members: Vec<(String, &'de RawValue)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
            if members.len() == MEMBERS_MAX {
                return Err(A::Error::custom("too many members"));
            }
            match places.get(&name) {
                Some(&place) => members[place].1 = value,
                None => {
                    places.insert(name.clone(), members.len());
                    members.push((name, value));
                }
            }
        }
        Ok(Members(members))
    }
}

/// Reads items until there are too many: a body of nothing but commas must not become a list that
/// is many times as large.
struct ItemsVisitor {
    most: usize,
}

impl<'de> DeserializeSeed<'de> for ItemsVisitor {
    type Value = Vec<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ItemsVisitor {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "at most {} items", self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            if items.len() == self.most {
                return Err(A::Error::invalid_length(items.len() + 1, &self));
            }
            items.push(item);
        }
        Ok(items)
    }
}

/// A JSON string with every lone surrogate written as the replacement character.
fn without_lone_surrogates(json: &str) -> String {
    let unit = |text: &str| {
        let digits = text.strip_prefix("\\u").and_then(|rest| rest.get(..4))?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let len = match unit(rest) {
            Some(0xd800..=0xdbff) => {
                let low = rest.get(6..).and_then(unit);
                if low.is_some_and(|low| (0xdc00..=0xdfff).contains(&low)) { 12 } else { 0 }
            }
            Some(0xdc00..=0xdfff) => 0,
            Some(_) => 6,
            None => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
        };
        if len == 0 {
            out.push_str("\\ufffd");
            rest = &rest[6..];
        } else {
            out.push_str(&rest[..len]);
            rest = &rest[len..];
        }
    }
    out.push_str(rest);
    out
}

/// A value cut to what fits a line.
pub(crate) fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    match text.char_indices().nth(CHARS_MAX) {
        Some((at, _)) => format!("{} ...", &text[..at]),
        None => text.to_owned(),
    }
}
