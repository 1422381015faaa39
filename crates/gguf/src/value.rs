//! Metadata values and their types.

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

/// The numbers by which a file names the types of values.
pub(crate) mod id {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

/// Names of the types, by their number.
const TYPE_NAMES: [&str; 13] =
    ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"];

impl Value {
    /// Name of the type, for messages.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        TYPE_NAMES[self.type_id() as usize]
    }

    /// Number of the type in a file.
    pub(crate) fn type_id(&self) -> u32 {
        match self {
            Value::U8(_) => id::U8,
            Value::I8(_) => id::I8,
            Value::U16(_) => id::U16,
            Value::I16(_) => id::I16,
            Value::U32(_) => id::U32,
            Value::I32(_) => id::I32,
            Value::F32(_) => id::F32,
            Value::Bool(_) => id::BOOL,
            Value::String(_) => id::STRING,
            Value::Array(_) => id::ARRAY,
            Value::U64(_) => id::U64,
            Value::I64(_) => id::I64,
            Value::F64(_) => id::F64,
        }
    }

    /// The value as an integer, if it is one.
    pub(crate) fn integer(&self) -> Option<i128> {
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

    /// Name of the entries' type, for messages.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        TYPE_NAMES[self.type_id() as usize]
    }

    /// Number of the entries' type in a file.
    pub(crate) fn type_id(&self) -> u32 {
        match self {
            Array::U8(_) => id::U8,
            Array::I8(_) => id::I8,
            Array::U16(_) => id::U16,
            Array::I16(_) => id::I16,
            Array::U32(_) => id::U32,
            Array::I32(_) => id::I32,
            Array::F32(_) => id::F32,
            Array::Bool(_) => id::BOOL,
            Array::String(_) => id::STRING,
            Array::Array(_) => id::ARRAY,
            Array::U64(_) => id::U64,
            Array::I64(_) => id::I64,
            Array::F64(_) => id::F64,
        }
    }

    /// How deep arrays are nested: 1 for plain entries.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Array::Array(inner) => 1 + inner.iter().map(Array::depth).max().unwrap_or(0),
            _ => 1,
        }
    }

    /// The entries as integers of a type that holds them all, if they are integers.
    pub(crate) fn integers<T: TryFrom<i128>>(&self) -> Option<Vec<T>> {
        fn all<S: Copy + Into<i128>, T: TryFrom<i128>>(v: &[S]) -> Option<Vec<T>> {
            v.iter().map(|&v| T::try_from(v.into()).ok()).collect()
        }
        match self {
            Array::U8(v) => all(v),
            Array::I8(v) => all(v),
            Array::U16(v) => all(v),
            Array::I16(v) => all(v),
            Array::U32(v) => all(v),
            Array::I32(v) => all(v),
            Array::U64(v) => all(v),
            Array::I64(v) => all(v),
            _ => None,
        }
    }
}
