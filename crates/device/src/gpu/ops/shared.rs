//! The shared expert of one row in the launches of the chosen ones (`fast/top_shared.k`).

use super::super::arguments::ProductArgs;
use super::super::record::Place;
use super::super::text::pool_bytes;
use super::super::{Gpu, Shortcuts, size, small};
use super::chosen;
use super::experts::{Half, Matrices};
use super::products::Inputs;
use crate::Error;
use ironstar_quant::{Activation, Format};

/// Threads of a group; rows of gate and up, and of the last matrix, that a group makes at most.
const GROUP: u32 = 640;
const OPEN_ROWS: usize = 36;
const CLOSE_ROWS: usize = 32;
/// Bytes of a group's shared memory besides its pool, at most.
const BESIDES: u32 = 5120;
/// Kernel, format of the chosen matrices, and columns: of gate and up, and of the last.
const OPEN: (&str, Format, usize) = ("chosen_iq2_xxs_shared", Format::Iq2Xxs, 4096);
const CLOSE: (&str, Format, usize) = ("chosen_q2_k_shared", Format::Q2K, 2048);

/// Whether a device has the kernels for these matrices.
fn fits(gpu: &Gpu, [shared, routed]: [&Matrices<'_>; 2]) -> bool {
    let formats = |m: &Matrices<'_>| m.weights.map(|weights| weights.format());
    let shape = |m: &&Matrices<'_>| (m.ways, [m.ffn.gate.columns, m.down.columns]);
    let facts = gpu.driver.facts();
    formats(routed) == [OPEN.1, OPEN.1, CLOSE.1]
        && formats(shared) == [Format::Q8_0; 3]
        && [shared, routed].iter().all(|m| shape(m) == (1, [OPEN.2, CLOSE.2]))
        && shared.down.rows.is_multiple_of(CLOSE_ROWS)
        && facts.group_max >= GROUP
        && [OPEN.0, CLOSE.0].iter().all(|name| facts.group_bytes >= pool_bytes(name) + BESIDES)
}

/// What the last matrices of both give, if they have kernels together.
pub(super) fn products(
    gpu: &mut Gpu,
    [shared, routed]: [&Half<'_>; 2],
    inputs: &mut Inputs,
    (x, shape): (Place, [usize; 2]),
    limit: f32,
) -> Result<Option<[Place; 2]>, Error> {
    if gpu.rows.len() != 1 {
        return Ok(None);
    }
    let (own, all) = (&shared.matrices, &routed.matrices);
    let takes = gpu.takes(Shortcuts::SHARED) && gpu.takes(Shortcuts::STAGED);
    gpu.shared = takes && fits(gpu, [own, all]);
    let (true, Some(stacked), Some(gains)) = (gpu.shared, routed.stacked, routed.gains) else {
        let why = || "other formats or shapes, too little shared memory, or it is disabled".into();
        gpu.goes_without(Shortcuts::SHARED, "experts", why)?;
        return Ok(None);
    };
    let [mut open, mut close] = arguments([shared, routed], limit)?;
    let open_grid = grid(gpu, &mut open, (2 * own.ffn.gate.rows).div_ceil(OPEN_ROWS))?;
    let close_grid = grid(gpu, &mut close, own.down.rows / CLOSE_ROWS)?;

    let blocks = inputs.get(gpu, Activation::Int8x256, x, shape)?;
    let own_blocks = inputs.get(gpu, Activation::Int8x32, x, shape)?;
    let (routed_made, shared_made) = (room(gpu, routed)?, room(gpu, shared)?);
    let [gate, up, own_gate, own_up, down, own_down] = [
        all.weights[0],
        all.weights[1],
        own.weights[0],
        own.weights[1],
        all.weights[2],
        own.weights[2],
    ]
    .map(|weights| Place::At(weights.address));
    let (ids, none) = (stacked.ids, Place::NONE);
    let weights = [
        gate,
        routed_made[0],
        up,
        routed_made[1],
        own_gate,
        shared_made[0],
        own_up,
        shared_made[1],
    ];
    let rest = [blocks[0], blocks[1], ids, none, own_blocks[0], own_blocks[1]];
    gpu.launch(OPEN.0, open_grid, GROUP, &[&weights[..], &rest].concat(), &open)?;
    let weights = [down, routed_made[2], own_down, shared_made[2], none, none, none, none];
    let rest = [routed_made[0], routed_made[1], ids, gains, shared_made[0], shared_made[1]];
    gpu.launch(CLOSE.0, close_grid, GROUP, &[&weights[..], &rest].concat(), &close)?;
    Ok(Some([shared_made[2], routed_made[2]]))
}

/// What both launches are told, but for their groups.
fn arguments([shared, routed]: [&Half<'_>; 2], limit: f32) -> Result<[ProductArgs; 2], Error> {
    let operation = "experts";
    let (own, all) = (&shared.matrices, &routed.matrices);
    let mut open = ProductArgs {
        columns: small(operation, OPEN.2)?,
        slots: small(operation, routed.slots)?,
        groups: 1,
        planes_out: 1,
        per_row: small(operation, routed.per_row)?,
        stacked: 1,
        stack: small(operation, all.ffn.gate.stack)?,
        held: small(operation, own.ffn.gate.rows)?,
        ..ProductArgs::default()
    };
    let mut close = ProductArgs {
        columns: small(operation, CLOSE.2)?,
        planes_out: routed.planes_out,
        per_row: 1,
        source: 2,
        bound: limit,
        width: small(operation, CLOSE.2)?,
        held: small(operation, own.down.rows)?,
        ..open
    };
    open.rows[0] = small(operation, all.ffn.gate.rows)?;
    open.rows[1] = small(operation, all.ffn.up.rows)?;
    close.rows[0] = small(operation, all.down.rows)?;
    let [gate, up, down] = all.weights;
    let [own_gate, own_up, own_down] = own.weights;
    open.planes = [gate, up, own_gate, own_up].map(|weights| weights.planes());
    [close.planes[0], close.planes[1]] = [down.planes(), own_down.planes()];
    Ok([open, close])
}

/// Room for gate, up and what the last matrices give.
fn room(gpu: &mut Gpu, half: &Half<'_>) -> Result<[Place; 3], Error> {
    let inner = size(&[half.slots, half.matrices.ffn.gate.rows, 4]);
    let out = [half.slots, half.planes_out as usize, half.matrices.down.rows, 4];
    Ok([
        gpu.scratch(half.scratch[0], inner)?,
        gpu.scratch(half.scratch[1], inner)?,
        gpu.scratch(half.scratch[4], size(&out))?,
    ])
}

/// As many groups as the chosen matrices take, and no fewer than those that the shared one wants.
fn grid(gpu: &Gpu, arguments: &mut ProductArgs, least: usize) -> Result<[u32; 3], Error> {
    let slots = arguments.slots;
    let least = small("experts", least)?.div_ceil(slots.max(1));
    arguments.run = chosen::groups_of(gpu, arguments).max(least);
    Ok([arguments.run, slots, 1])
}
