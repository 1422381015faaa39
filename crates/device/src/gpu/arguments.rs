//! Argument structs of the kernels: the twins of those in the kernel text, field by field.
//!
//! A test compares sizes with what the C++ compiler says. Every field is a `u32`, `f32` or `u64`,
//! the `u64` first, and there is no padding, so a struct is its bytes.

use ironstar_quant::planes::PLANES_MAX;
/// Arguments of a kernel.
///
/// # Safety
/// The type is `repr(C)`, made of integers and floats (or such types) only, and has no padding.
pub(crate) unsafe trait Arguments: Copy {
    /// Name of the struct in the kernel text.
    #[allow(dead_code, reason = "a test compares the twins by name")]
    const NAME: &'static str;
}

/// The bytes of a struct of arguments.
pub(crate) fn bytes_of<A: Arguments>(arguments: &A) -> &[u8] {
    // SAFETY: `Arguments` promises that there is no padding, so all bytes are initialised; the
    // slice has the struct's own lifetime and length.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(arguments).cast(), size_of::<A>()) }
}

/// Byte offsets of the second and later planes of a matrix.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Planes {
    pub at: [u64; PLANES_MAX - 1],
}
// SAFETY: repr(C) of three u64.
unsafe impl Arguments for Planes {
    const NAME: &'static str = "Planes";
}

/// A run of slots of one expert.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct TileOfSlots {
    pub expert: u32,
    pub first: u32,
    pub count: u32,
    pub pad: u32,
}
// SAFETY: repr(C) of four u32.
unsafe impl Arguments for TileOfSlots {
    const NAME: &'static str = "TileOfSlots";
}

/// First row, end and first position of a span.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SpanRows {
    pub first: u32,
    pub end: u32,
    pub position: u32,
    pub pad: u32,
}
// SAFETY: repr(C) of four u32.
unsafe impl Arguments for SpanRows {
    const NAME: &'static str = "SpanRows";
}

/// Matrices times rows.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ProductArgs {
    pub planes: [Planes; 4],
    pub rows: [u32; 4],
    pub columns: u32,
    pub slots: u32,
    pub groups: u32,
    pub planes_out: u32,
    pub per_row: u32,
    pub stacked: u32,
    pub stack: u32,
    pub run: u32,
    pub source: u32,
    pub bound: f32,
    pub width: u32,
    pub held: u32,
}
// SAFETY: repr(C), 96 + 64 bytes, a multiple of 8.
unsafe impl Arguments for ProductArgs {
    const NAME: &'static str = "ProductArgs";
}

/// Rows that become operands of halves.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SplitArgs {
    pub rows: u32,
    pub columns: u32,
}
// SAFETY: repr(C) of two u32.
unsafe impl Arguments for SplitArgs {
    const NAME: &'static str = "SplitArgs";
}

/// Shards of a product that become their sums.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct AddShardsArgs {
    pub rows: u32,
    pub slots: u32,
}
// SAFETY: repr(C) of two u32.
unsafe impl Arguments for AddShardsArgs {
    const NAME: &'static str = "AddShardsArgs";
}

/// Shards of a wide float matrix.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ShardsArgs {
    pub rows: u32,
    pub columns: u32,
}
// SAFETY: repr(C) of two u32.
unsafe impl Arguments for ShardsArgs {
    const NAME: &'static str = "ShardsArgs";
}

/// Blocks of a file to planes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CutArgs {
    pub first: u64,
    pub at: [u64; PLANES_MAX],
    pub offsets: [u32; PLANES_MAX],
    pub bytes: [u32; PLANES_MAX],
    pub pieces: u32,
    pub block_bytes: u32,
    pub blocks: u32,
    pub threads: u32,
}
// SAFETY: repr(C), 40 + 48 bytes, a multiple of 8.
unsafe impl Arguments for CutArgs {
    const NAME: &'static str = "CutArgs";
}

/// Rows to int8 blocks.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct QuantiseArgs {
    pub blocks: u32,
    pub block: u32,
}
// SAFETY: repr(C) of two u32.
unsafe impl Arguments for QuantiseArgs {
    const NAME: &'static str = "QuantiseArgs";
}

/// Slots sorted by expert.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SortArgs {
    pub slots: u32,
    pub experts: u32,
    pub tiles: u32,
    pub width: u32,
}
// SAFETY: repr(C) of four u32.
unsafe impl Arguments for SortArgs {
    const NAME: &'static str = "SortArgs";
}

/// The activation of an FFN.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ActivateArgs {
    pub blocks: u32,
    pub block: u32,
    pub width: u32,
    pub weighted: u32,
    pub limit: f32,
    pub quantised: u32,
    pub copies: u32,
}
// SAFETY: repr(C) of seven 4-byte numbers.
unsafe impl Arguments for ActivateArgs {
    const NAME: &'static str = "ActivateArgs";
}

/// The eight cells.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CellsArgs {
    pub width: u32,
    pub top_k: u32,
    pub experts: u32,
    pub pad: u32,
}
// SAFETY: repr(C) of four u32.
unsafe impl Arguments for CellsArgs {
    const NAME: &'static str = "CellsArgs";
}

/// Some of the eight cells.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CellsPartArgs {
    pub width: u32,
    pub top_k: u32,
    pub experts: u32,
    pub first: u32,
    pub count: u32,
}
// SAFETY: repr(C) of five u32.
unsafe impl Arguments for CellsPartArgs {
    const NAME: &'static str = "CellsPartArgs";
}

/// Rows repeated for a part of K.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RepeatArgs {
    pub blocks: u32,
    pub block: u32,
    pub per_row: u32,
    pub copies: u32,
}
// SAFETY: repr(C) of four u32.
unsafe impl Arguments for RepeatArgs {
    const NAME: &'static str = "RepeatArgs";
}

/// Ids of the experts that a rank holds.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct LocalArgs {
    pub slots: u32,
    pub first: u32,
    pub count: u32,
}
// SAFETY: repr(C) of three u32.
unsafe impl Arguments for LocalArgs {
    const NAME: &'static str = "LocalArgs";
}

/// Shards to sums of two.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct PairsArgs {
    pub rows: u32,
    pub width: u32,
}
// SAFETY: repr(C) of two u32.
unsafe impl Arguments for PairsArgs {
    const NAME: &'static str = "PairsArgs";
}

/// A gate between cards.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct GateArgs {
    pub limit: u64,
    pub len: u32,
    pub index: u32,
    pub rank: u32,
    pub ranks: u32,
    pub groups: u32,
    /// 0: a whole gate; 1: this rank's part is sent; 2: the others' are waited for and added.
    pub leg: u32,
}
// SAFETY: repr(C), 8 + 24 bytes.
unsafe impl Arguments for GateArgs {
    const NAME: &'static str = "GateArgs";
}

/// Rows of which each rank has some.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RowsArgs {
    pub limit: u64,
    pub index: u32,
    pub rank: u32,
    pub ranks: u32,
    pub groups: u32,
    pub segments: u32,
    pub pad: u32,
    pub first: [u32; 8],
    pub count: [u32; 8],
    pub words: [u32; 6],
}
// SAFETY: repr(C), 8 + 24 + 64 + 24 bytes, a multiple of 8.
unsafe impl Arguments for RowsArgs {
    const NAME: &'static str = "RowsArgs";
}

/// The router.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RouteArgs {
    pub experts: u32,
    pub top_k: u32,
    pub by_token: u32,
    pub table_rows: u32,
    pub scale: f32,
    pub rows: u32,
}
// SAFETY: repr(C) of six 4-byte numbers.
unsafe impl Arguments for RouteArgs {
    const NAME: &'static str = "RouteArgs";
}

/// The mix of a row with its router; behind [`HcArgs`], which it names, in the text.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct HcRouteArgs {
    pub hc: HcArgs,
    pub route: RouteArgs,
    /// 1: what follows is set up as soon as this launch has begun.
    pub early: u32,
}
// SAFETY: repr(C) of structs of seven and of six 4-byte numbers, and one more.
unsafe impl Arguments for HcRouteArgs {
    const NAME: &'static str = "HcRouteArgs";
}

/// The embedding.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct EmbedArgs {
    pub planes: Planes,
    pub width: u32,
    pub streams: u32,
    pub rows: u32,
    pub pad: u32,
}
// SAFETY: repr(C), 24 + 16 bytes.
unsafe impl Arguments for EmbedArgs {
    const NAME: &'static str = "EmbedArgs";
}

/// A norm.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RmsArgs {
    pub width: u32,
    pub eps: f32,
}
// SAFETY: repr(C) of two 4-byte numbers.
unsafe impl Arguments for RmsArgs {
    const NAME: &'static str = "RmsArgs";
}

/// Mixing of streams.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct HcArgs {
    pub streams: u32,
    pub width: u32,
    pub iterations: u32,
    pub norm_eps: f32,
    pub hc_eps: f32,
    pub shards: u32,
    pub split: u32,
    pub halves: u32,
}
// SAFETY: repr(C) of eight 4-byte numbers.
unsafe impl Arguments for HcArgs {
    const NAME: &'static str = "HcArgs";
}

/// Spreading over streams.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SpreadArgs {
    pub streams: u32,
    pub width: u32,
}
// SAFETY: repr(C) of two u32.
unsafe impl Arguments for SpreadArgs {
    const NAME: &'static str = "SpreadArgs";
}

/// A spread and the mixing product behind it, of very many rows.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SpreadMixArgs {
    pub rows: u32,
    pub width: u32,
}
// SAFETY: repr(C) of two u32.
unsafe impl Arguments for SpreadMixArgs {
    const NAME: &'static str = "SpreadMixArgs";
}

/// Mixing matrices of many rows.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MixingArgs {
    pub rows: u32,
    pub iterations: u32,
    pub eps: f32,
    pub pad: u32,
}
// SAFETY: repr(C) of three u32 and an f32.
unsafe impl Arguments for MixingArgs {
    const NAME: &'static str = "MixingArgs";
}

/// Steering.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SteerArgs {
    pub width: u32,
    pub direction: u32,
    pub scale: f32,
    pub rows: u32,
}
// SAFETY: repr(C) of four 4-byte numbers.
unsafe impl Arguments for SteerArgs {
    const NAME: &'static str = "SteerArgs";
}

/// Copies of rows.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct GatherArgs {
    pub width: u32,
    pub at: u32,
    pub from_bf16: u32,
    pub to_bf16: u32,
}
// SAFETY: repr(C) of four u32.
unsafe impl Arguments for GatherArgs {
    const NAME: &'static str = "GatherArgs";
}

/// Query heads.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct HeadArgs {
    pub items: u32,
    pub heads: u32,
    pub width: u32,
    pub pairs: u32,
    pub norm: u32,
    pub eps: f32,
}
// SAFETY: repr(C) of six 4-byte numbers.
unsafe impl Arguments for HeadArgs {
    const NAME: &'static str = "HeadArgs";
}

/// Key/value rows.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct KvArgs {
    pub width: u32,
    pub pairs: u32,
    pub round_trip: u32,
    pub bf16: u32,
    pub eps: f32,
    pub pad: u32,
}
// SAFETY: repr(C) of six 4-byte numbers.
unsafe impl Arguments for KvArgs {
    const NAME: &'static str = "KvArgs";
}

/// The window ring.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct WindowArgs {
    pub width: u32,
    pub capacity: u32,
    pub bf16: u32,
    pub pad: u32,
}
// SAFETY: repr(C) of four u32.
unsafe impl Arguments for WindowArgs {
    const NAME: &'static str = "WindowArgs";
}

/// A compressor.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CompressArgs {
    pub ratio: u32,
    pub parts: u32,
    pub width: u32,
    pub pairs: u32,
    pub round_trip: u32,
    pub index: u32,
    pub storage: u32,
    pub capacity: u32,
    pub closing: u32,
    pub eps: f32,
    pub single: u32,
}
// SAFETY: repr(C) of eleven 4-byte numbers.
unsafe impl Arguments for CompressArgs {
    const NAME: &'static str = "CompressArgs";
}

/// Parts of all ranks to their sum.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct GatherAddArgs {
    pub len: u32,
    pub ranks: u32,
}
// SAFETY: repr(C) of two 4-byte numbers.
unsafe impl Arguments for GatherAddArgs {
    const NAME: &'static str = "GatherAddArgs";
}

/// The indexer.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct IndexArgs {
    pub heads: u32,
    pub width: u32,
    pub pairs: u32,
    pub ratio: u32,
    pub top_k: u32,
    pub fp4: u32,
    pub stride: u32,
    pub row0: u32,
    pub factor: f32,
    pub rank: u32,
    pub ranks: u32,
    pub slots: u32,
    pub groups: u32,
    pub single: u32,
    pub run: u32,
}
// SAFETY: repr(C) of fifteen 4-byte numbers.
unsafe impl Arguments for IndexArgs {
    const NAME: &'static str = "IndexArgs";
}

/// Attention.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct AttendArgs {
    pub heads: u32,
    pub width: u32,
    pub pairs: u32,
    pub window: u32,
    pub capacity: u32,
    pub ratio: u32,
    pub top_k: u32,
    pub stride: u32,
    pub row0: u32,
    pub kv_bf16: u32,
    pub rows_bf16: u32,
    pub scale: f32,
    pub mutual: u32,
    pub made: u32,
    pub eps: f32,
    pub single: u32,
    pub splits: u32,
}
// SAFETY: repr(C) of seventeen 4-byte numbers.
unsafe impl Arguments for AttendArgs {
    const NAME: &'static str = "AttendArgs";
}

/// Drawing tokens.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct DrawArgs {
    pub tokens: u32,
    pub strides: u32,
}
// SAFETY: repr(C) of two u32.
unsafe impl Arguments for DrawArgs {
    const NAME: &'static str = "DrawArgs";
}

/// How a row's token is drawn.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct DrawRow {
    /// Bits of an f64.
    pub scale: u64,
    pub number: u64,
    pub part: u64,
    pub least: u64,
    pub count: u32,
    pub first: u32,
}
// SAFETY: repr(C), 32 + 8 bytes, a multiple of 8.
unsafe impl Arguments for DrawRow {
    const NAME: &'static str = "DrawRow";
}

/// What a stride's tokens weigh.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct DrawPart {
    pub sum: u64,
    pub heavy: u64,
    pub count: u32,
    pub low: u32,
}
// SAFETY: repr(C), 16 + 8 bytes, a multiple of 8.
unsafe impl Arguments for DrawPart {
    const NAME: &'static str = "DrawPart";
}

/// Name and size of every struct that both sides have.
#[cfg(test)]
pub(crate) const TWINS: &[(&str, usize)] = &[
    twin::<Planes>(),
    twin::<TileOfSlots>(),
    twin::<SpanRows>(),
    twin::<ProductArgs>(),
    twin::<QuantiseArgs>(),
    twin::<SplitArgs>(),
    twin::<AddShardsArgs>(),
    twin::<SortArgs>(),
    twin::<ActivateArgs>(),
    twin::<CellsArgs>(),
    twin::<CellsPartArgs>(),
    twin::<RepeatArgs>(),
    twin::<LocalArgs>(),
    twin::<PairsArgs>(),
    twin::<GateArgs>(),
    twin::<RowsArgs>(),
    twin::<RouteArgs>(),
    twin::<EmbedArgs>(),
    twin::<RmsArgs>(),
    twin::<HcArgs>(),
    twin::<HcRouteArgs>(),
    twin::<SpreadArgs>(),
    twin::<SpreadMixArgs>(),
    twin::<MixingArgs>(),
    twin::<SteerArgs>(),
    twin::<GatherArgs>(),
    twin::<HeadArgs>(),
    twin::<KvArgs>(),
    twin::<WindowArgs>(),
    twin::<CompressArgs>(),
    twin::<GatherAddArgs>(),
    twin::<IndexArgs>(),
    twin::<AttendArgs>(),
    twin::<CutArgs>(),
    twin::<ShardsArgs>(),
    twin::<DrawArgs>(),
    twin::<DrawRow>(),
    twin::<DrawPart>(),
];

#[cfg(test)]
const fn twin<A: Arguments>() -> (&'static str, usize) {
    (A::NAME, size_of::<A>())
}
