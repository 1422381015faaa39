//! JSON kept as text, in the spacing that the models were trained on.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::Value;
use serde_json::value::RawValue;

use super::Error;
use super::error::shortened;

/// A JSON value as text: `", "` and `": "` between things, other characters than ASCII as they are,
/// keys in the order they came in and every number spelt as it was (so `1.0`, `1e3` and integers
/// of any size survive).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonText(String);

impl JsonText {
    /// Checks a JSON text and brings its spacing and escapes into the one form.
    pub fn parse(json: &str) -> Result<Self, serde_json::Error> {
        let raw: &RawValue = serde_json::from_str(json)?;
        respaced(raw.get()).map(Self)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Keys and values if this is an object, in order; of a repeated key the last value counts,
    /// in the place of the first.
    #[must_use]
    pub fn entries(&self) -> Option<Vec<(String, JsonText)>> {
        let inside = self.0.strip_prefix('{')?.strip_suffix('}')?;
        let mut entries: Vec<(String, JsonText)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut rest = inside;
        while !rest.is_empty() {
            let (key, after) = rest.split_at(value_len(rest));
            let after = after.strip_prefix(": ")?;
            let (value, after) = after.split_at(value_len(after));
            let key: String = serde_json::from_str(key).ok()?;
            let value = JsonText(value.to_owned());
            match places.entry(key) {
                Entry::Occupied(place) => entries[*place.get()].1 = value,
                Entry::Vacant(place) => {
                    entries.push((place.key().clone(), value));
                    place.insert(entries.len() - 1);
                }
            }
            rest = after.strip_prefix(", ").unwrap_or(after);
        }
        Some(entries)
    }

    /// Whether this is an object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.0.starts_with('{')
    }

    /// The string that this is, if it is one.
    #[must_use]
    pub fn as_string(&self) -> Option<String> {
        if self.0.starts_with('"') { serde_json::from_str(&self.0).ok() } else { None }
    }
}

impl From<&Value> for JsonText {
    fn from(value: &Value) -> Self {
        let json = value.to_string();
        Self(respaced(&json).expect("serde_json reads what it wrote"))
    }
}

/// Reads a JSON text that a conversation carries.
pub(crate) fn parse_at(json: &str, at: &str) -> Result<JsonText, Error> {
    JsonText::parse(json).map_err(|error| Error::Conversation {
        at: at.to_owned(),
        found: format!("{} is not JSON ({error})", shortened(json)),
        wanted: "wanted a JSON value".to_owned(),
    })
}

/// The same JSON with the spacing of this module. `json` is valid but for lone surrogates.
fn respaced(json: &str) -> Result<String, serde_json::Error> {
    let mut out = String::with_capacity(json.len() + json.len() / 8);
    let mut rest = json;
    while let Some(&first) = rest.as_bytes().first() {
        let len = match first {
            b'"' => string_len(rest),
            _ => 1,
        };
        let (token, after) = rest.split_at(len);
        rest = after;
        match first {
            b' ' | b'\t' | b'\n' | b'\r' => {}
            b',' => out.push_str(", "),
            b':' => out.push_str(": "),
            b'"' if token.contains('\\') => {
                let text: String = serde_json::from_str(token)?;
                out.push_str(&serde_json::to_string(&text)?);
            }
            _ => out.push_str(token),
        }
    }
    Ok(out)
}

/// Length of the JSON string that a valid text begins with, quotes included.
fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of the value that a text of this module begins with: up to the comma, colon or end
/// that closes it.
fn value_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += string_len(&text[at..]);
                continue;
            }
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' | b':' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    at
}
