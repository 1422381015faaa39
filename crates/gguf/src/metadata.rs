//! Metadata: keys with typed values, in the order of the file.

use crate::error::shown;
use crate::{Array, Error, Value};

/// Integers up to this magnitude are exact in f32.
const F32_EXACT_MAX: i128 = 1 << 24;

/// All metadata of a file. Keys differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Metadata {
    /// The file, for messages.
    pub(crate) file: String,
    pub(crate) entries: Vec<(String, Value)>,
}

/// What getters want, in words.
mod wanted {
    pub const U32: &str = "a whole number from 0 to 4294967295";
    pub const U64: &str = "a whole number from 0 to 18446744073709551615";
    pub const F32: &str = "a number in the range of f32";
    pub const BOOL: &str = "true or false";
    pub const STR: &str = "a text";
    pub const ARRAY_U32: &str = "an array of whole numbers from 0 to 4294967295";
    pub const ARRAY_I32: &str = "an array of whole numbers of 32 bits";
    pub const ARRAY_I64: &str = "an array of whole numbers of 64 bits";
    pub const ARRAY_F32: &str = "an array of numbers in the range of f32";
    pub const ARRAY_STR: &str = "an array of UTF-8 texts";
    pub const ARRAY_BYTES: &str = "an array of texts";
}

impl Metadata {
    /// Entries in the order of the file.
    #[must_use]
    pub fn entries(&self) -> &[(String, Value)] {
        &self.entries
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    /// A whole number of any width that fits 32 bits.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.typed(key, wanted::U32, |v| v.integer()?.try_into().ok())
    }

    /// A whole number of any width.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.typed(key, wanted::U64, |v| v.integer()?.try_into().ok())
    }

    /// A real number, or a whole number that f32 holds exactly.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, wanted::F32, |value| match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => narrow(v),
            #[expect(clippy::cast_precision_loss, reason = "exact up to the limit")]
            _ => value.integer().filter(|v| v.abs() <= F32_EXACT_MAX).map(|v| v as f32),
        })
    }

    /// A truth value.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, wanted::BOOL, |value| match value {
            Value::Bool(v) => Some(*v),
            _ => None,
        })
    }

    /// A text.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, wanted::STR, |value| match value {
            Value::String(v) => Some(v.as_str()),
            _ => None,
        })
    }

    /// Whole numbers of any width that fit 32 bits without a sign.
    pub fn opt_array_u32(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        self.array(key, wanted::ARRAY_U32, Array::integers)
    }

    /// Whole numbers of any width that fit 32 bits with a sign.
    pub fn opt_array_i32(&self, key: &str) -> Result<Option<Vec<i32>>, Error> {
        self.array(key, wanted::ARRAY_I32, Array::integers)
    }

    /// Whole numbers of any width that fit 64 bits with a sign.
    pub fn opt_array_i64(&self, key: &str) -> Result<Option<Vec<i64>>, Error> {
        self.array(key, wanted::ARRAY_I64, Array::integers)
    }

    /// Real numbers.
    pub fn opt_array_f32(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.array(key, wanted::ARRAY_F32, |array| match array {
            Array::F32(v) => Some(v.clone()),
            Array::F64(v) => v.iter().copied().map(narrow).collect(),
            _ => None,
        })
    }

    /// Texts, every one UTF-8.
    pub fn opt_array_str(&self, key: &str) -> Result<Option<Vec<&str>>, Error> {
        self.array(key, wanted::ARRAY_STR, |array| match array {
            Array::String(v) => v.iter().map(|text| std::str::from_utf8(text).ok()).collect(),
            _ => None,
        })
    }

    /// Texts as bytes, for tokens: they need not be UTF-8.
    pub fn opt_array_bytes(&self, key: &str) -> Result<Option<&[Vec<u8>]>, Error> {
        self.array(key, wanted::ARRAY_BYTES, |array| match array {
            Array::String(v) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// [`Metadata::opt_u32`] of a key that must be there.
    pub fn u32(&self, key: &str) -> Result<u32, Error> {
        self.need(key, wanted::U32, self.opt_u32(key)?)
    }

    /// [`Metadata::opt_u64`] of a key that must be there.
    pub fn u64(&self, key: &str) -> Result<u64, Error> {
        self.need(key, wanted::U64, self.opt_u64(key)?)
    }

    /// [`Metadata::opt_f32`] of a key that must be there.
    pub fn f32(&self, key: &str) -> Result<f32, Error> {
        self.need(key, wanted::F32, self.opt_f32(key)?)
    }

    /// [`Metadata::opt_bool`] of a key that must be there.
    pub fn bool(&self, key: &str) -> Result<bool, Error> {
        self.need(key, wanted::BOOL, self.opt_bool(key)?)
    }

    /// [`Metadata::opt_str`] of a key that must be there.
    pub fn str(&self, key: &str) -> Result<&str, Error> {
        self.need(key, wanted::STR, self.opt_str(key)?)
    }

    /// [`Metadata::opt_array_u32`] of a key that must be there.
    pub fn array_u32(&self, key: &str) -> Result<Vec<u32>, Error> {
        self.need(key, wanted::ARRAY_U32, self.opt_array_u32(key)?)
    }

    /// [`Metadata::opt_array_i32`] of a key that must be there.
    pub fn array_i32(&self, key: &str) -> Result<Vec<i32>, Error> {
        self.need(key, wanted::ARRAY_I32, self.opt_array_i32(key)?)
    }

    /// [`Metadata::opt_array_i64`] of a key that must be there.
    pub fn array_i64(&self, key: &str) -> Result<Vec<i64>, Error> {
        self.need(key, wanted::ARRAY_I64, self.opt_array_i64(key)?)
    }

    /// [`Metadata::opt_array_f32`] of a key that must be there.
    pub fn array_f32(&self, key: &str) -> Result<Vec<f32>, Error> {
        self.need(key, wanted::ARRAY_F32, self.opt_array_f32(key)?)
    }

    /// [`Metadata::opt_array_str`] of a key that must be there.
    pub fn array_str(&self, key: &str) -> Result<Vec<&str>, Error> {
        self.need(key, wanted::ARRAY_STR, self.opt_array_str(key)?)
    }

    /// [`Metadata::opt_array_bytes`] of a key that must be there.
    pub fn array_bytes(&self, key: &str) -> Result<&[Vec<u8>], Error> {
        self.need(key, wanted::ARRAY_BYTES, self.opt_array_bytes(key)?)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || self.wrong(key, format!("it is {}", described(value)), wanted);
        read(value).map(Some).ok_or_else(wrong)
    }

    fn array<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        read: impl FnOnce(&'a Array) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        self.typed(key, wanted, |value| match value {
            Value::Array(array) => read(array),
            _ => None,
        })
    }

    fn need<T>(&self, key: &str, wanted: &'static str, found: Option<T>) -> Result<T, Error> {
        found.ok_or_else(|| self.wrong(key, "it is missing".into(), wanted))
    }

    fn wrong(&self, key: &str, found: String, wanted: &'static str) -> Error {
        Error::Key { file: self.file.clone(), key: key.to_owned(), found, wanted }
    }
}

/// A double rounded to f32 once; `None` if a finite number would become infinite.
fn narrow(wide: f64) -> Option<f32> {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is meant, range is checked")]
    let rounded = wide as f32;
    (rounded.is_finite() || !wide.is_finite()).then_some(rounded)
}

/// A value in a few words.
fn described(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("an array of {} {}", array.len(), array.type_name()),
        Value::String(text) => format!("the text '{}'", shown(text)),
        Value::F32(v) => format!("the f32 {v:?}"),
        Value::F64(v) => format!("the f64 {v:?}"),
        Value::Bool(v) => format!("the bool {v}"),
        _ => format!("the {} {}", value.type_name(), value.integer().unwrap_or_default()),
    }
}
