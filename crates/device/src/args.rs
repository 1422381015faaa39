//! Arguments of the operations: one small struct each, so that a new field is a compile error
//! wherever it matters. `n` is the number of rows of the step, `d` the model width, `D` the width
//! of a head.

use crate::{Buffer, Error, Matrix, Rope, SharedBytes};
use ironstar_quant::Format;
use ironstar_quant::planes::Layout;
use std::ops::Range;

/// The rows of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// One token a row.
    pub tokens: Vec<u32>,
    /// The rows cut into sessions; together they cover all rows in order.
    pub spans: Vec<Span>,
}

/// Consecutive positions of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which rows of the step.
    pub rows: Range<usize>,
    /// Position of the first of them.
    pub position: usize,
}

impl Step {
    /// A step of one session's consecutive tokens.
    #[must_use]
    pub fn single(tokens: &[u32], position: usize) -> Self {
        let spans = vec![Span { rows: 0..tokens.len(), position }];
        Step { tokens: tokens.to_vec(), spans }
    }
}

/// What [`Backend::read_all`](crate::Backend::read_all) reads.
#[derive(Debug)]
pub struct ReadRun<'a> {
    /// Where from.
    pub from: Buffer,
    /// Its first element.
    pub offset: usize,
    /// The places that it is cut to, each of whole elements.
    pub into: Vec<&'a mut [u8]>,
}

/// Where a matrix comes from.
#[derive(Clone)]
pub struct MatrixSource<'a> {
    /// Name for messages.
    pub name: &'a str,
    /// Block format.
    pub format: Format,
    /// Output width.
    pub rows: usize,
    /// Input width.
    pub columns: usize,
    /// How many such matrices follow one another.
    pub stack: usize,
    /// `stack * rows` rows of whole blocks; may be kept and read in place.
    pub bytes: SharedBytes,
    /// How the blocks lie in the bytes, if they are cut into planes: for backends that take them
    /// ([`crate::Backend::takes_planes`]).
    pub planes: Option<Layout>,
}

/// Where the rows of a part of a tensor lie in its bytes, whose columns or rows others hold too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// Bytes before the first row of the first matrix.
    pub start: usize,
    /// Bytes from the start of a row to that of the next.
    pub row: usize,
    /// The same from matrix to matrix of a stack.
    pub matrix: usize,
}

/// Which part of a tensor a matrix is; see [`crate::Backend::matrix_part`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixPart {
    /// How many of the eight shards of K the columns are: 1, 2, 4 or 8.
    pub shards: usize,
    /// Where the rows lie in the source's bytes; `None`: behind one another.
    pub strides: Option<Strides>,
}

impl MatrixPart {
    /// All of K, rows behind one another.
    pub const WHOLE: MatrixPart = MatrixPart { shards: 8, strides: None };
}

impl<'a> MatrixSource<'a> {
    /// The same with its rows behind one another, copied where they lie apart.
    pub(crate) fn gathered(self, strides: Option<Strides>) -> Result<MatrixSource<'a>, Error> {
        self.check_blocks()?;
        let Some(strides) = strides else { return Ok(self) };
        let row_bytes = self.check_strides(strides)?;
        let bytes = (*self.bytes).as_ref();
        let mut all = Vec::with_capacity(self.stack * self.rows * row_bytes);
        for matrix in 0..self.stack {
            let first = strides.start + matrix * strides.matrix;
            for row in 0..self.rows {
                all.extend_from_slice(&bytes[first + row * strides.row..][..row_bytes]);
            }
        }
        Ok(MatrixSource { bytes: std::sync::Arc::new(all), ..self })
    }

    /// Refuses planes, for a backend that takes blocks.
    fn check_blocks(&self) -> Result<(), Error> {
        if self.planes.is_none() {
            return Ok(());
        }
        Err(Error::Shape {
            operation: "matrix",
            found: format!("{} in planes", self.name),
            wanted: "whole blocks".into(),
        })
    }

    /// Bytes of all blocks, once planes are known to be what they say.
    pub(crate) fn checked_len(&self) -> Result<usize, Error> {
        let found = (*self.bytes).as_ref().len();
        let fits = self.planes.is_none_or(|planes| {
            let same = Layout::new(self.format, planes.blocks) == Some(planes);
            same && planes.bytes == found as u64
        });
        if fits {
            return Ok(self.block_bytes());
        }
        Err(Error::Shape {
            operation: "matrix",
            found: format!("{} has {found} bytes for {:?}", self.name, self.planes),
            wanted: format!("all planes of blocks of {:?}", self.format),
        })
    }

    /// Bytes of all blocks.
    pub(crate) fn block_bytes(&self) -> usize {
        let own = (*self.bytes).as_ref().len();
        let planes = self.planes.map(|planes| usize::try_from(planes.block_bytes()));
        planes.map_or(own, |bytes| bytes.unwrap_or(0))
    }

    /// Bytes of a row, once every row is known to lie inside the source's bytes.
    pub(crate) fn check_strides(&self, strides: Strides) -> Result<usize, Error> {
        let MatrixSource { rows, columns, stack, .. } = *self;
        let len = self.block_bytes();
        let row_bytes = self.format.row_bytes(columns).filter(|bytes| *bytes > 0);
        let end = row_bytes.and_then(|bytes| {
            let rows = rows.checked_sub(1)?.checked_mul(strides.row)?;
            let matrices = stack.checked_sub(1)?.checked_mul(strides.matrix)?;
            strides.start.checked_add(rows)?.checked_add(matrices)?.checked_add(bytes)
        });
        match (row_bytes, end) {
            (Some(bytes), Some(end)) if end <= len => Ok(bytes),
            _ => Err(Error::Shape {
                operation: "matrix_part",
                found: format!("{} with {strides:?} in {len} bytes", self.name),
                wanted: format!("{stack} x {rows} rows of {columns} columns inside of them"),
            }),
        }
    }
}

/// A buffer `[n, width]` of rows that ranks share.
#[derive(Clone, Copy, Debug)]
pub struct RowsOf {
    /// `[n, width]`
    pub buffer: Buffer,
    /// Elements of a row.
    pub width: usize,
}

/// Arguments of [`crate::Backend::embed`].
#[derive(Clone, Copy, Debug)]
pub struct Embed {
    /// `[vocabulary, d]`
    pub table: Matrix,
    /// Copies of the row that are written.
    pub streams: usize,
    /// `[n, streams, d]`
    pub out: Buffer,
}

/// Coefficients of a hyper-connection.
#[derive(Clone, Copy, Debug)]
pub struct HcWeights {
    /// `[(2 + streams) * streams, streams * d]`, or [streams, streams * d] for the head; a float
    /// format.
    pub matrix: Matrix,
    /// As many as the matrix has rows.
    pub base: Buffer,
    /// 3, or 1 for the head.
    pub scale: Buffer,
}

/// Arguments of [`crate::Backend::hc_pre`] (spec 2.2; the norm of the sublayer included).
#[derive(Clone, Copy, Debug)]
pub struct HcPre {
    /// `[n, streams, d]`
    pub x: Buffer,
    /// Streams.
    pub streams: usize,
    /// Mixing weights.
    pub weights: HcWeights,
    /// `[d]`, attn_norm or ffn_norm
    pub norm: Buffer,
    /// Epsilon of both norms.
    pub norm_eps: f32,
    /// Epsilon of the coefficients.
    pub hc_eps: f32,
    /// Sinkhorn passes.
    pub iterations: usize,
    /// `[n, d]`: the normalised input of the sublayer
    pub out: Buffer,
    /// `[n, streams]`
    pub post: Buffer,
    /// `[n, streams, streams]`
    pub comb: Buffer,
}

/// Arguments of [`crate::Backend::hc_post`]: `x_k = post_k * z + sum_j comb_jk * x_j`, in place.
#[derive(Clone, Copy, Debug)]
pub struct HcPost {
    /// `[n, d]`
    pub z: Buffer,
    /// `[n, streams, d]`
    pub x: Buffer,
    /// Streams.
    pub streams: usize,
    /// Width d of a stream.
    pub width: usize,
    /// `[n, streams]`
    pub post: Buffer,
    /// `[n, streams, streams]`
    pub comb: Buffer,
}

/// Arguments of [`crate::Backend::hc_head`] (spec 2.3 and the norm after it). Works on `rows`
/// leading rows.
#[derive(Clone, Copy, Debug)]
pub struct HcHead {
    /// `[rows, streams, d]`
    pub x: Buffer,
    /// How many rows; not tied to the step, since only some rows need logits.
    pub rows: usize,
    /// Streams.
    pub streams: usize,
    /// Mixing weights.
    pub weights: HcWeights,
    /// `[d]`
    pub norm: Buffer,
    /// Epsilon of both norms.
    pub norm_eps: f32,
    /// Epsilon of the coefficients.
    pub hc_eps: f32,
    /// `[rows, d]`
    pub out: Buffer,
}

/// Arguments of [`crate::Backend::rms_norm`].
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// `[rows, width]`
    pub x: Buffer,
    /// How many rows (n, or n * streams).
    pub rows: usize,
    /// `[width]`
    pub weight: Buffer,
    /// Epsilon.
    pub eps: f32,
    /// `[rows, width]`; may be `x`
    pub out: Buffer,
}

/// Arguments of [`crate::Backend::project`].
#[derive(Clone, Copy, Debug)]
pub struct Project<'a> {
    /// `[rows, columns]`; quantised once for all outputs
    pub x: Buffer,
    /// How many rows (n, n * streams, or those that need logits).
    pub rows: usize,
    /// Matrices with equal column counts, each with its output [rows, matrix.rows]; that which is
    /// waited for longest comes first.
    pub outputs: &'a [(Matrix, Buffer)],
}

/// Arguments of [`crate::Backend::project_grouped`]: group `g` of `matrix.rows / groups` output
/// rows sees input columns `g * columns .. (g + 1) * columns`.
#[derive(Clone, Copy, Debug)]
pub struct ProjectGrouped {
    /// `[n, groups * matrix.columns]`
    pub x: Buffer,
    /// `[groups * out, columns]`
    pub matrix: Matrix,
    /// Groups.
    pub groups: usize,
    /// `[n, matrix.rows]`
    pub out: Buffer,
}

/// Arguments of [`crate::Backend::query_heads`] (spec 2.5 step 2).
#[derive(Clone, Copy, Debug)]
pub struct QueryHeads {
    /// `[n, heads, D]`, in place
    pub q: Buffer,
    /// Heads.
    pub heads: usize,
    /// Width D of a head.
    pub width: usize,
    /// Epsilon; `None` leaves out the norm (V4.1).
    pub eps: Option<f32>,
    /// Rotation.
    pub rope: Rope,
}

/// Arguments of [`crate::Backend::kv_rows`] (spec 2.5 step 3).
#[derive(Clone, Copy, Debug)]
pub struct KvRows {
    /// `[n, D]`
    pub x: Buffer,
    /// `[D]`
    pub norm: Buffer,
    /// Epsilon.
    pub eps: f32,
    /// Rotation.
    pub rope: Rope,
    /// FP8 round trip of the dims that are not rotated, in blocks of 64.
    pub round_trip: bool,
    /// `[n, D]`, F32 or Bf16 as the session's rows are stored
    pub out: Buffer,
}

/// What a compressor's rows are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// Keys and values: FP8 round trip of the unrotated dims if on.
    Kv {
        /// Whether the round trip is applied.
        round_trip: bool,
    },
    /// Indexer keys: Hadamard always; FP4 when the output buffer holds [`crate::Element::Fp4Row`].
    Index,
}

/// Per-session buffers of one compressor.
#[derive(Clone, Copy, Debug)]
pub struct CompressState {
    /// `[capacity, parts * width]`: values by position; the capacity is a group's span and
    /// [`crate::ROLLBACK_ROWS`]
    pub values: Buffer,
    /// `[capacity, parts * width]`: scores (position table already added)
    pub scores: Buffer,
    /// Ring slots of both.
    pub capacity: usize,
    /// Append-only rows, `[rows, width]` (F32 or Bf16) or `[rows]` (Fp4Row)
    pub rows: Buffer,
}

/// Arguments of [`crate::Backend::compress`] (spec 2.6). Ratio 4 overlaps: `parts` = 2, else 1.
#[derive(Clone, Copy, Debug)]
pub struct Compress<'a> {
    /// `[n, parts * width]`
    pub values: Buffer,
    /// `[n, parts * width]`, without the position table, which is added in place
    pub scores: Buffer,
    /// `[ratio, parts * width]`
    pub positions: Buffer,
    /// `[width]`
    pub norm: Buffer,
    /// Epsilon.
    pub eps: f32,
    /// Rotation, at the position of a group's first token.
    pub rope: Rope,
    /// Tokens a row.
    pub ratio: usize,
    /// 2 where groups overlap (ratio 4), else 1.
    pub parts: usize,
    /// Width of a row.
    pub width: usize,
    /// What the rows are for.
    pub kind: RowKind,
    /// Per span.
    pub states: &'a [CompressState],
}

/// Arguments of [`crate::Backend::index_select`] (spec 2.7). The choice of row `t` has
/// `min(top_k, (t + 1) / ratio)` ascending entries.
#[derive(Clone, Copy, Debug)]
pub struct IndexSelect<'a> {
    /// `[n, heads, width]`, not rotated yet; destroyed
    pub q: Buffer,
    /// `[n, heads]`, the plain projection; scaled by (width * heads)^-0.5 inside
    pub weights: Buffer,
    /// Heads.
    pub heads: usize,
    /// Width of an indexer head.
    pub width: usize,
    /// Rotation.
    pub rope: Rope,
    /// Tokens a row.
    pub ratio: usize,
    /// Rows that are kept.
    pub top_k: usize,
    /// Per span: F32 rows [rows, width] (no rounding of queries) or Fp4Row (queries rounded too).
    pub rows: &'a [Buffer],
    /// `[n, top_k]`, U32
    pub out: Buffer,
}

/// Compressed rows that attention may read.
#[derive(Clone, Copy, Debug)]
pub struct CompressedRows<'a> {
    /// Per span: [rows, D]
    pub rows: &'a [Buffer],
    /// Tokens a row.
    pub ratio: usize,
    /// The indexer's choice [n, top_k] with its top_k; `None`: all visible rows.
    pub choice: Option<(Buffer, usize)>,
}

/// Arguments of [`crate::Backend::attend`] (spec 2.5 steps 6 to 8). Keys in order: compressed rows
/// ascending, then window positions ascending.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// `[n, heads, D]`: read, and of no meaning afterwards, since what came before it may be done
    /// on the way
    pub q: Buffer,
    /// `[n, D]`: rows of this step
    pub kv: Buffer,
    /// `[heads]`
    pub sinks: Buffer,
    /// Heads.
    pub heads: usize,
    /// Rotation that is undone on the output.
    pub rope: Rope,
    /// Positions seen, the own one included; with `mutual`, those before the span.
    pub window: usize,
    /// Whether every row sees all rows of its span, later ones too (a block that is drafted at
    /// once, spec 4.2).
    pub mutual: bool,
    /// Per span: ring [capacity, D] of earlier positions
    pub rings: &'a [Buffer],
    /// Ring slots.
    pub capacity: usize,
    /// Compressed rows, where the layer has any.
    pub compressed: Option<CompressedRows<'a>>,
    /// `[n, heads, D]`
    pub out: Buffer,
}

/// Arguments of [`crate::Backend::store_window`].
#[derive(Clone, Copy, Debug)]
pub struct StoreWindow<'a> {
    /// `[n, D]`
    pub kv: Buffer,
    /// Width D.
    pub width: usize,
    /// Per span: ring [capacity, D]
    pub rings: &'a [Buffer],
    /// Ring slots.
    pub capacity: usize,
}

/// How experts are chosen.
#[derive(Clone, Copy, Debug)]
pub enum RouteBy {
    /// The largest score plus bias `[experts]`; ties to the lower id.
    Score {
        /// Added for the choice only.
        bias: Buffer,
    },
    /// A table [vocabulary, top_k] of ids (U32), looked up by the step's tokens.
    Token {
        /// The table.
        table: Buffer,
    },
}

/// Arguments of [`crate::Backend::route`] (spec 2.8 steps 1 to 3).
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// `[n, experts]`
    pub logits: Buffer,
    /// Experts.
    pub experts: usize,
    /// How they are chosen.
    pub by: RouteBy,
    /// Experts a row.
    pub top_k: usize,
    /// Factor on the normalised weights.
    pub scale: f32,
    /// `[n, top_k]`, U32, ascending ids
    pub ids: Buffer,
    /// `[n, top_k]`, in the order of `ids`
    pub weights: Buffer,
}

/// Three matrices of a gated FFN.
#[derive(Clone, Copy, Debug)]
pub struct Ffn {
    /// w1 [inner, d]
    pub gate: Matrix,
    /// w3 [inner, d]
    pub up: Matrix,
    /// w2 [d, inner]
    pub down: Matrix,
}

/// Arguments of [`crate::Backend::experts`] (spec 2.8 steps 4 and 5).
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// `[n, d]`
    pub x: Buffer,
    /// Stacks of experts.
    pub routed: Ffn,
    /// The shared expert.
    pub shared: Ffn,
    /// `[n, top_k]`, U32, ascending
    pub ids: Buffer,
    /// `[n, top_k]`
    pub weights: Buffer,
    /// Experts a row.
    pub top_k: usize,
    /// Clamp of gate (above) and up (both sides).
    pub limit: f32,
    /// `[n, d]`
    pub out: Buffer,
}

/// Which of several ranks a device works for, each on its part of every layer (DESIGN 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Its number, from 0.
    pub rank: usize,
    /// How many there are: 1, 2, 4 or 8.
    pub ranks: usize,
}

impl Part {
    /// A device that computes everything.
    pub const WHOLE: Part = Part { rank: 0, ranks: 1 };

    /// This part of `0..n`, in order of the ranks; equal parts where the ranks divide n.
    #[must_use]
    pub fn of(self, n: usize) -> Range<usize> {
        let at = |rank: usize| n / self.ranks * rank + n % self.ranks * rank / self.ranks;
        at(self.rank)..at(self.rank + 1)
    }

    /// How many of the eight shards of K, and of the eight cells of the FFN sum, are this rank's.
    #[must_use]
    pub fn shards(self) -> usize {
        8 / self.ranks
    }
}

/// Cells of the FFN sum that a device computes: `first .. first + count` of the eight, number
/// 4h + g being half h of the inner width times group g of the experts (DESIGN 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells {
    /// First of them.
    pub first: usize,
    /// How many: a subtree of 1, 2, 4 or 8.
    pub count: usize,
    /// Routed experts of all devices together.
    pub experts: usize,
}

impl Cells {
    /// The cells of a part.
    #[must_use]
    pub fn of_part(part: Part, experts: usize) -> Cells {
        Cells { first: part.rank * part.shards(), count: part.shards(), experts }
    }

    /// Whether these cells are a subtree of the eight.
    #[must_use]
    pub fn is_subtree(self) -> bool {
        matches!(self.count, 1 | 2 | 4 | 8)
            && self.first.is_multiple_of(self.count)
            && self.first + self.count <= 8
    }

    /// Ids of the experts whose products are wanted: those of its groups.
    #[must_use]
    pub fn held(self) -> Range<usize> {
        let border = |group: usize| group * self.experts / 4;
        if self.count >= 4 {
            return 0..self.experts;
        }
        let group = self.first % 4;
        border(group)..border(group + self.count)
    }
}

/// Arguments of [`crate::Backend::add_to_streams`].
#[derive(Clone, Copy, Debug)]
pub struct AddToStreams {
    /// `[n, d]`
    pub row: Buffer,
    /// `[n, streams, d]`, in place
    pub x: Buffer,
    /// Streams.
    pub streams: usize,
    /// Width d of a stream.
    pub width: usize,
}

/// Arguments of [`crate::Backend::steer`]: `x -= scale * v * (v . x)` with v one row of
/// `directions`.
#[derive(Clone, Copy, Debug)]
pub struct Steer {
    /// `[n, width]`, in place
    pub x: Buffer,
    /// `[_, width]`, f32
    pub directions: Buffer,
    /// Which of them.
    pub row: usize,
    /// Width of a row.
    pub width: usize,
    /// 1 takes the direction out, negative numbers strengthen it.
    pub scale: f32,
}

/// Arguments of [`crate::Backend::draw`].
#[derive(Clone, Copy, Debug)]
pub struct DrawRows<'a> {
    /// `[_, tokens]`
    pub logits: Buffer,
    /// Tokens of a row, at most [`crate::WEIGHTS_MAX`].
    pub tokens: usize,
    /// One for each of the first rows.
    pub rows: &'a [Draw],
}

/// How a row's token is drawn: what the sampler makes of a request's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Factor of the logits, finite and not negative; `None` takes the likeliest token.
    pub scale: Option<f64>,
    /// Keeps so many of the likeliest tokens; 0 keeps all.
    pub count: u32,
    /// Keeps the likeliest tokens that together have this part of the weight, times 2^53; 2^53
    /// keeps all.
    pub part: u64,
    /// Keeps the tokens up to the last with this weight; 0 keeps all.
    pub weight: u64,
    /// Uniform bits that choose among what is kept.
    pub number: u64,
}

/// Arguments of [`crate::Backend::gather_rows`].
#[derive(Clone, Copy, Debug)]
pub struct GatherRows<'a> {
    /// `[_, width]`
    pub x: Buffer,
    /// Width of a row.
    pub width: usize,
    /// Which rows.
    pub rows: &'a [usize],
    /// `[_, width]`: rows `at .. at + rows.len()` are written
    pub out: Buffer,
    /// First row of `out` that is written.
    pub at: usize,
}
