//! Metadata: keys with typed values, in the order of the file.

use crate::Error;

/// A metadata value. Text is kept as bytes inside arrays, since tokens need not be UTF-8.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are GGUF's own")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of equal things.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are GGUF's own")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<Vec<u8>>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// Name of the type, for messages.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::F32(_) => "f32",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F64(_) => "f64",
        }
    }

    /// The value as an integer, if it is one.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }
}

impl Array {
    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::Array(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// All metadata of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    pub(crate) entries: Vec<(String, Value)>,
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
        self.typed(key, "a whole number below 2^32", |v| {
            v.integer().and_then(|v| v.try_into().ok())
        })
    }

    /// A whole number of any width.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.typed(key, "a whole number", |v| v.integer().and_then(|v| v.try_into().ok()))
    }

    /// A real number; whole numbers that f32 holds exactly are accepted.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, "a number", |value| match *value {
            Value::F32(v) => Some(v),
            #[expect(clippy::cast_possible_truncation, reason = "rounding a given constant once")]
            Value::F64(v) => Some(v as f32),
            _ => value.integer().and_then(|v| i16::try_from(v).ok()).map(f32::from),
        })
    }

    /// A truth value.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "true or false", |v| if let Value::Bool(v) = v { Some(*v) } else { None })
    }

    /// A text.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(
            key,
            "a text",
            |v| if let Value::String(v) = v { Some(v.as_str()) } else { None },
        )
    }

    /// Whole numbers of any width.
    pub fn opt_array_i64(&self, key: &str) -> Result<Option<Vec<i64>>, Error> {
        self.typed(key, "an array of whole numbers", |value| match value {
            Value::Array(Array::U8(v)) => Some(v.iter().map(|v| (*v).into()).collect()),
            Value::Array(Array::I8(v)) => Some(v.iter().map(|v| (*v).into()).collect()),
            Value::Array(Array::U16(v)) => Some(v.iter().map(|v| (*v).into()).collect()),
            Value::Array(Array::I16(v)) => Some(v.iter().map(|v| (*v).into()).collect()),
            Value::Array(Array::U32(v)) => Some(v.iter().map(|v| (*v).into()).collect()),
            Value::Array(Array::I32(v)) => Some(v.iter().map(|v| (*v).into()).collect()),
            Value::Array(Array::I64(v)) => Some(v.clone()),
            Value::Array(Array::U64(v)) => v.iter().map(|v| i64::try_from(*v).ok()).collect(),
            _ => None,
        })
    }

    /// Whole numbers that fit 32 bits.
    pub fn opt_array_u32(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        let Some(numbers) = self.opt_array_i64(key)? else { return Ok(None) };
        let narrow: Result<Vec<u32>, _> = numbers.iter().map(|v| u32::try_from(*v)).collect();
        narrow.map(Some).map_err(|_| Error::Key {
            key: key.to_owned(),
            found: "a number outside 0..2^32 was found".into(),
            wanted: "an array of whole numbers below 2^32",
        })
    }

    /// Real numbers.
    pub fn opt_array_f32(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.typed(key, "an array of numbers", |value| match value {
            Value::Array(Array::F32(v)) => Some(v.clone()),
            #[expect(clippy::cast_possible_truncation, reason = "rounding given constants once")]
            Value::Array(Array::F64(v)) => Some(v.iter().map(|v| *v as f32).collect()),
            _ => None,
        })
    }

    /// Texts, as bytes.
    pub fn opt_array_bytes(&self, key: &str) -> Result<Option<&[Vec<u8>]>, Error> {
        self.typed(key, "an array of texts", |value| match value {
            Value::Array(Array::String(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = format!("it is of type {}", value.type_name());
        read(value).map(Some).ok_or(Error::Key { key: key.to_owned(), found, wanted })
    }
}

/// Defines the getter of a key that must be there, beside the optional one.
macro_rules! required {
    ($name:ident, $optional:ident, $type:ty, $wanted:literal) => {
        #[doc = concat!("[`Metadata::", stringify!($optional), "`] of a key that must be there.")]
        pub fn $name(&self, key: &str) -> Result<$type, Error> {
            self.$optional(key)?.ok_or(Error::Key {
                key: key.to_owned(),
                found: "it is missing".into(),
                wanted: $wanted,
            })
        }
    };
}

impl Metadata {
    required!(u32, opt_u32, u32, "a whole number below 2^32");
    required!(u64, opt_u64, u64, "a whole number");
    required!(f32, opt_f32, f32, "a number");
    required!(bool, opt_bool, bool, "true or false");
    required!(str, opt_str, &str, "a text");
    required!(array_i64, opt_array_i64, Vec<i64>, "an array of whole numbers");
    required!(array_u32, opt_array_u32, Vec<u32>, "an array of whole numbers below 2^32");
    required!(array_f32, opt_array_f32, Vec<f32>, "an array of numbers");
    required!(array_bytes, opt_array_bytes, &[Vec<u8>], "an array of texts");
}
