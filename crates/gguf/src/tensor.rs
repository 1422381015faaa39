//! What a tensor is stored as, and where it claims to be.

use crate::header::DIMS_MAX;
use ironstar_quant::Format;
use ironstar_quant::planes::Layout;
use std::ops::Range;

/// What a tensor is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are GGUF's own")]
pub enum TensorKind {
    /// Blocks of a format that we know.
    Block(Format),
    I8,
    I16,
    I32,
    I64,
    F64,
    /// A type that we do not know: listed, but not readable.
    Other(u32),
}

/// A kind that is no block format.
struct Plain {
    kind: TensorKind,
    gguf_id: u32,
    name: &'static str,
    element_bytes: u64,
}

const PLAIN: [Plain; 5] = [
    Plain { kind: TensorKind::I8, gguf_id: 24, name: "I8", element_bytes: 1 },
    Plain { kind: TensorKind::I16, gguf_id: 25, name: "I16", element_bytes: 2 },
    Plain { kind: TensorKind::I32, gguf_id: 26, name: "I32", element_bytes: 4 },
    Plain { kind: TensorKind::I64, gguf_id: 27, name: "I64", element_bytes: 8 },
    Plain { kind: TensorKind::F64, gguf_id: 28, name: "F64", element_bytes: 8 },
];

impl TensorKind {
    /// From GGUF's number.
    #[must_use]
    pub fn from_gguf_id(id: u32) -> Self {
        if let Some(format) = Format::from_gguf_id(id) {
            return TensorKind::Block(format);
        }
        let plain = PLAIN.iter().find(|plain| plain.gguf_id == id);
        plain.map_or(TensorKind::Other(id), |plain| plain.kind)
    }

    /// GGUF's number.
    #[must_use]
    pub fn gguf_id(self) -> u32 {
        match self {
            TensorKind::Block(format) => format.info().gguf_id,
            TensorKind::Other(id) => id,
            plain => plain.plain().map_or(u32::MAX, |plain| plain.gguf_id),
        }
    }

    /// Name for people.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            TensorKind::Block(format) => format.info().name.to_owned(),
            TensorKind::Other(id) => format!("type {id}"),
            plain => plain.plain().map_or("unknown", |plain| plain.name).to_owned(),
        }
    }

    /// Bytes of a tensor with these dims (innermost first). `None` if the type is unknown, the
    /// dims are not 1 to 4 numbers above zero, a row is not whole blocks, or the size overflows.
    #[must_use]
    pub fn bytes(self, dims: &[u64]) -> Option<u64> {
        let elements = element_count(dims)?;
        match self {
            TensorKind::Other(_) => None,
            TensorKind::Block(format) => {
                let row = format.row_bytes(usize::try_from(dims[0]).ok()?)?;
                (elements / dims[0]).checked_mul(u64::try_from(row).ok()?)
            }
            plain => elements.checked_mul(plain.plain()?.element_bytes),
        }
    }

    fn plain(self) -> Option<&'static Plain> {
        PLAIN.iter().find(|plain| plain.kind == self)
    }
}

/// Product of dims; `None` unless there are 1 to 4 of them, none zero, and it fits.
pub(crate) fn element_count(dims: &[u64]) -> Option<u64> {
    let possible = !dims.is_empty() && dims.len() <= DIMS_MAX && !dims.contains(&0);
    dims.iter().try_fold(1, |product: u64, dim| product.checked_mul(*dim)).filter(|_| possible)
}

/// A range that a file alleges: only [`TensorSpan::check`] makes a range of it, for a file of a
/// given length. Whatever else may be built on a span rests on that check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorSpan {
    /// From the start of the file.
    pub start: u64,
    pub bytes: u64,
}

impl TensorSpan {
    /// The range, if it lies inside `len` bytes.
    pub(crate) fn check(self, len: usize) -> Option<Range<usize>> {
        let start = usize::try_from(self.start).ok()?;
        let end = start.checked_add(usize::try_from(self.bytes).ok()?)?;
        (end <= len).then_some(start..end)
    }
}

/// Where a tensor's bytes lie: checked to be there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DataPlace {
    /// Which file of a split model, from 0.
    pub part: usize,
    /// Bytes of it.
    pub range: Range<usize>,
}

/// A tensor of an opened model.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name; names of a model differ.
    pub name: String,
    /// What it is stored as.
    pub kind: TensorKind,
    /// Dims, innermost first as in the file: 1 to 4, none zero, their product fits.
    pub dims: Vec<u64>,
    /// Which file of a split model holds it, from 0.
    pub part: usize,
    /// `None` if the kind is unknown, and with it the size.
    pub(crate) span: Option<TensorSpan>,
    /// Where it lies in a packed file.
    pub(crate) planes: Option<Layout>,
}

impl TensorInfo {
    /// Bytes of its data, of which planes take a little more; `None` if its type is unknown.
    #[must_use]
    pub fn byte_count(&self) -> Option<u64> {
        self.span.map(|span| self.planes.map_or(span.bytes, |planes| planes.block_bytes()))
    }

    /// How its blocks lie in the file, if they are cut into planes.
    #[must_use]
    pub fn planes(&self) -> Option<Layout> {
        self.planes
    }

    /// How many values it has.
    #[must_use]
    pub fn element_count(&self) -> u64 {
        self.dims.iter().product()
    }
}
