//! Query heads, key/value rows, the window ring.

use super::super::arguments::{HeadArgs, KvArgs, WindowArgs};
use super::super::lanes::hidden;
use super::super::owed::{Owed, Work};
use super::super::record::Place;
use super::super::store::Ask;
use super::super::{Gpu, SOME_ROWS, Shortcuts, check, size, small};
use super::GROUP;
use crate::{Element, Error, KvRows, QueryHeads, StoreWindow};

/// `WIDTH_MAX` of the kernels.
pub(super) const WIDTH_MAX: usize = 1024;
/// Width of the heads that kernels of few rows know.
pub(super) const FEW_WIDTH: usize = 512;
/// Heads that are made by small groups, so that many groups have some.
const FEW_HEADS: u32 = 512;
/// Block of the FP8 round trip of keys and values.
const KV_BLOCK: usize = 64;

/// The unrotated dims of a row are whole blocks of the round trip, where there is one.
pub(super) fn check_row(
    operation: &'static str,
    width: usize,
    pairs: usize,
    round_trip: bool,
) -> Result<(), Error> {
    let plain = width.checked_sub(2 * pairs);
    check(
        operation,
        width > 0 && plain.is_some_and(|plain| !round_trip || plain.is_multiple_of(KV_BLOCK)),
        || format!("rows of {width} with {pairs} rotated pairs"),
        "the rotated pairs fit, and the dims before them are whole blocks of 64",
    )?;
    let found = || format!("rows of {width}");
    check(operation, width <= WIDTH_MAX, found, "at most 1024 on a GPU")
}

pub(in super::super) fn query_heads(gpu: &mut Gpu, a: &QueryHeads) -> Result<(), Error> {
    let operation = "query_heads";
    let n = gpu.rows.len();
    check_row(operation, a.width, a.rope.pairs, false)?;
    check(operation, a.heads > 0, || "no heads".to_owned(), "at least one")?;
    let q = gpu.f32(Ask { operation, operand: "q" }, a.q, size(&[n, a.heads, a.width]))?;
    let table = gpu.angles(operation, a.rope)?;
    let arguments = HeadArgs {
        items: small(operation, size(&[n, a.heads]))?,
        heads: small(operation, a.heads)?,
        width: small(operation, a.width)?,
        pairs: small(operation, a.rope.pairs)?,
        norm: u32::from(a.eps.is_some()),
        eps: a.eps.unwrap_or(0.0),
    };
    let made_later = match n <= SOME_ROWS {
        true => a.width == FEW_WIDTH && gpu.takes(Shortcuts::STAGED),
        false => super::attention::makes_heads(gpu, a.width, &arguments),
    };
    if made_later {
        let work = Work::Heads { table, arguments };
        return gpu.owe(Owed { at: q, len: size(&[n, a.heads, a.width]), work });
    }
    make_heads(gpu, [q, table], &arguments)
}

/// Eight lanes a head; four heads a group, where there are few rows.
pub(in super::super) fn make_heads(
    gpu: &mut Gpu,
    places: [Place; 2],
    arguments: &HeadArgs,
) -> Result<(), Error> {
    if arguments.width as usize == FEW_WIDTH && arguments.items <= FEW_HEADS {
        let grid = [arguments.items.div_ceil(4), 1, 1];
        return gpu.launch("query_heads_few", grid, 32, &places, arguments);
    }
    let grid = [arguments.items.div_ceil(GROUP / 8), 1, 1];
    let name = match arguments.width == 512 && arguments.pairs.is_multiple_of(4) {
        true => "query_heads_512",
        false => "query_heads",
    };
    gpu.launch(name, grid, GROUP, &places, arguments)
}

pub(in super::super) fn kv_rows(gpu: &mut Gpu, a: &KvRows) -> Result<(), Error> {
    let operation = "kv_rows";
    let ask = |operand| Ask { operation, operand };
    let (n, width) = (gpu.rows.len(), a.norm.len);
    check_row(operation, width, a.rope.pairs, a.round_trip)?;
    let x = gpu.f32(ask("x"), a.x, size(&[n, width]))?;
    let norm = gpu.f32(ask("norm"), a.norm, width)?;
    let out = gpu.floats(ask("out"), a.out, size(&[n, width]))?;
    let table = gpu.angles(operation, a.rope)?;
    let arguments = KvArgs {
        width: small(operation, width)?,
        pairs: small(operation, a.rope.pairs)?,
        round_trip: u32::from(a.round_trip),
        bf16: u32::from(a.out.element == Element::Bf16),
        eps: a.eps,
        pad: 0,
    };
    let grid = [gpu.n(), 1, 1];
    gpu.beside(|gpu| gpu.launch("kv_rows", grid, GROUP, &[x, norm, table, out], &arguments))
}

pub(in super::super) fn store_window(gpu: &mut Gpu, a: &StoreWindow<'_>) -> Result<(), Error> {
    let operation = "store_window";
    let ask = |operand| Ask { operation, operand };
    check(
        operation,
        a.rings.len() == gpu.rows.spans.len() && a.capacity > 0 && a.width > 0,
        || format!("{} rings of {} x {}", a.rings.len(), a.capacity, a.width),
        "one ring a span, not empty",
    )?;
    let kv = gpu.floats(ask("kv"), a.kv, size(&[gpu.rows.len(), a.width]))?;
    let mut rings = Vec::with_capacity(a.rings.len());
    for ring in a.rings {
        let len = size(&[a.capacity, a.width]);
        rings.push(gpu.store.address(ask("ring"), *ring, &[a.kv.element], len)?);
    }
    let arguments = WindowArgs {
        width: small(operation, a.width)?,
        capacity: small(operation, a.capacity)?,
        bf16: u32::from(a.kv.element == Element::Bf16),
        pad: 0,
    };
    let places = [kv, gpu.positions(), gpu.span_of(), gpu.spans(), gpu.table(rings)];
    let grid = [arguments.width.div_ceil(GROUP), gpu.n(), 1];
    gpu.through_tables(0, hidden::RINGS);
    gpu.beside(|gpu| gpu.launch("store_window", grid, GROUP, &places, &arguments))
}
