//! Where the ranks of a group meet in a pass: sums of partial rows, the best compressed rows of
//! each part of them, and the parts of the vocabulary. On one device nothing happens here but a
//! read of the logits.
//!
//! Every rank adds the same parts by the same tree, whose lower levels the parts are; so all ranks
//! go on with equal bits, and with those of one device.

use super::shape::Shape;
use crate::Error;
use ironstar_device::{Backend, Buffer, Exchange, GateKind, Part};
use ironstar_quant::subtree;

/// Replaces the first `len` floats of a buffer, this rank's part of a sum, by the sum of all
/// ranks.
pub(super) fn sum(
    backend: &mut dyn Backend,
    gate: GateKind,
    buffer: Buffer,
    len: usize,
) -> Result<(), Error> {
    if backend.exchange().is_none_or(|exchange| exchange.ranks() == 1) {
        return Ok(());
    }
    if backend.sum_ranks(gate, buffer, len)? {
        return Ok(());
    }
    let mine = part(backend, buffer, len)?;
    let mut all = vec![0; mine.len() * super::load::part_of(backend).ranks];
    gather(backend, gate, &mine, &mut all)?;
    add(backend, buffer, len, &all)
}

/// This rank's part of a sum.
pub(super) fn part(
    backend: &mut dyn Backend,
    buffer: Buffer,
    len: usize,
) -> Result<Vec<u8>, Error> {
    let mut mine = vec![0; len * 4];
    backend.read(buffer, 0, &mut mine)?;
    Ok(mine)
}

/// Begins a gate.
pub(super) fn post(backend: &mut dyn Backend, gate: GateKind, mine: &[u8]) -> Result<(), Error> {
    Ok(exchange(backend).post(gate, mine).map_err(ironstar_device::Error::from)?)
}

/// Ends the gate that was posted with the part of `len` floats: the sum is in the buffer.
pub(super) fn take(backend: &mut dyn Backend, buffer: Buffer, len: usize) -> Result<(), Error> {
    let exchange = exchange(backend);
    let ranks = exchange.ranks();
    let mut all = vec![0; len * 4 * ranks];
    exchange.wait(&mut all).map_err(ironstar_device::Error::from)?;
    add(backend, buffer, len, &all)
}

/// Adds the parts of all ranks.
fn add(backend: &mut dyn Backend, buffer: Buffer, len: usize, all: &[u8]) -> Result<(), Error> {
    let ranks = all.len() / (len * 4).max(1);
    let words: Vec<&[[u8; 4]]> =
        all.chunks_exact(len * 4).map(|part| part.as_chunks::<4>().0).collect();
    let mut parts = [0.0; 8];
    let values: Vec<f32> = (0..len)
        .map(|at| {
            for (part, words) in parts.iter_mut().zip(&words) {
                *part = f32::from_le_bytes(words[at]);
            }
            subtree(&parts[..ranks])
        })
        .collect();
    backend.write_f32(buffer, 0, &values)?;
    Ok(())
}

/// Rows of logits, `vocabulary` a row, from a buffer that holds this rank's part of each.
pub(super) fn vocabulary(
    backend: &mut dyn Backend,
    buffer: Buffer,
    vocabulary: usize,
    out: &mut [f32],
) -> Result<(), Error> {
    let part = super::load::part_of(backend);
    if part.ranks == 1 {
        return Ok(backend.read_f32(buffer, 0, out)?);
    }
    let wide = vocabulary.div_ceil(part.ranks);
    let all = parts_of_vocabulary(backend, buffer, out.len() / vocabulary, vocabulary)?;
    for (rank, theirs) in all.chunks_exact(all.len() / part.ranks).enumerate() {
        let tokens = Part { rank, ..part }.of(vocabulary);
        for (row, from) in theirs.chunks_exact(wide * 4).enumerate() {
            let to = &mut out[row * vocabulary..][tokens.clone()];
            for (to, word) in to.iter_mut().zip(from.as_chunks::<4>().0) {
                *to = f32::from_le_bytes(*word);
            }
        }
    }
    Ok(())
}

/// A rank's side of [`vocabulary`] where nobody looks at the logits.
pub(super) fn give_vocabulary(
    backend: &mut dyn Backend,
    buffer: Buffer,
    rows: usize,
    shape: &Shape,
) -> Result<(), Error> {
    parts_of_vocabulary(backend, buffer, rows, shape.vocabulary).map(|_| ())
}

/// Every rank's part of rows of logits. Parts differ by a token where the ranks do not divide the
/// vocabulary; messages do not.
fn parts_of_vocabulary(
    backend: &mut dyn Backend,
    buffer: Buffer,
    rows: usize,
    vocabulary: usize,
) -> Result<Vec<u8>, Error> {
    let part = super::load::part_of(backend);
    let wide = vocabulary.div_ceil(part.ranks);
    let mut mine = vec![0; rows * wide * 4];
    let width = part.of(vocabulary).len() * 4;
    let mut held = vec![0; rows * width];
    backend.read(buffer, 0, &mut held)?;
    for (to, from) in mine.chunks_exact_mut(wide * 4).zip(held.chunks_exact(width)) {
        to[..width].copy_from_slice(from);
    }
    let mut all = vec![0; mine.len() * part.ranks];
    gather(backend, GateKind::Vocabulary, &mine, &mut all)?;
    Ok(all)
}

/// The choice of each row from the keys of all ranks' runs of compressed rows
/// ([`Backend::index_best`]): the `top_k` smallest, ascending by row. `visible` is how many
/// compressed rows each row sees; who sees no more than `top_k` takes all.
pub(super) fn choose(
    backend: &mut dyn Backend,
    mine: &[u64],
    top_k: usize,
    visible: &[usize],
    out: Buffer,
) -> Result<(), Error> {
    let mine: Vec<u8> = mine.iter().flat_map(|key| key.to_le_bytes()).collect();
    let ranks = super::load::part_of(backend).ranks;
    let mut all = vec![0; mine.len() * ranks];
    gather(backend, GateKind::Index, &mine, &mut all)?;
    let (words, _) = all.as_chunks::<8>();
    let mut ids = vec![0u32; visible.len() * top_k];
    let mut keys = Vec::with_capacity(ranks * top_k);
    for (row, (visible, ids)) in visible.iter().zip(ids.chunks_exact_mut(top_k)).enumerate() {
        if *visible <= top_k {
            (0u32..).zip(&mut ids[..*visible]).for_each(|(row, id)| *id = row);
            continue;
        }
        keys.clear();
        for theirs in words.chunks_exact(words.len() / ranks) {
            let row = &theirs[row * top_k..][..top_k];
            keys.extend(row.iter().map(|word| u64::from_le_bytes(*word)));
        }
        keys.select_nth_unstable(top_k - 1);
        for (id, key) in ids.iter_mut().zip(&keys) {
            *id = u32::try_from(key & u64::from(u32::MAX)).expect("masked to 32 bits");
        }
        ids.sort_unstable();
    }
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    Ok(backend.write(out, 0, &bytes)?)
}

/// The group that the backend is in.
fn exchange(backend: &mut dyn Backend) -> &mut dyn Exchange {
    backend.exchange().expect("the caller has seen that there is one")
}

/// One gate of the group.
fn gather(
    backend: &mut dyn Backend,
    gate: GateKind,
    mine: &[u8],
    all: &mut [u8],
) -> Result<(), Error> {
    Ok(exchange(backend).gather(gate, mine, all).map_err(ironstar_device::Error::from)?)
}
