//! Where the ranks of a group meet in a pass: sums of partial rows, and the parts of the
//! vocabulary. On one device nothing happens here but a read of the logits.
//!
//! Every rank adds the same parts by the same tree, whose lower levels the parts are; so all ranks
//! go on with equal bits, and with those of one device.

use crate::Error;
use ironstar_device::{Backend, Buffer, GateKind, Part};
use ironstar_quant::subtree;

/// Replaces the first `len` floats of a buffer, this rank's part of a sum, by the sum of all
/// ranks.
pub(super) fn sum(
    backend: &mut dyn Backend,
    gate: GateKind,
    buffer: Buffer,
    len: usize,
) -> Result<(), Error> {
    let Some(ranks) = backend.exchange().map(|exchange| exchange.ranks()).filter(|r| *r > 1) else {
        return Ok(());
    };
    let mut mine = vec![0; len * 4];
    backend.read(buffer, 0, &mut mine)?;
    let mut all = vec![0; mine.len() * ranks];
    gather(backend, gate, &mine, &mut all)?;
    let words: Vec<&[[u8; 4]]> =
        all.chunks_exact(mine.len()).map(|part| part.as_chunks::<4>().0).collect();
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
    // Parts differ by a token where the ranks do not divide the vocabulary; messages do not.
    let (rows, wide) = (out.len() / vocabulary, vocabulary.div_ceil(part.ranks));
    let mut mine = vec![0; rows * wide * 4];
    let width = part.of(vocabulary).len() * 4;
    let mut held = vec![0; rows * width];
    backend.read(buffer, 0, &mut held)?;
    for (to, from) in mine.chunks_exact_mut(wide * 4).zip(held.chunks_exact(width)) {
        to[..width].copy_from_slice(from);
    }
    let mut all = vec![0; mine.len() * part.ranks];
    gather(backend, GateKind::Vocabulary, &mine, &mut all)?;
    for (rank, theirs) in all.chunks_exact(mine.len()).enumerate() {
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

/// One gate of the group that the backend is in.
fn gather(
    backend: &mut dyn Backend,
    gate: GateKind,
    mine: &[u8],
    all: &mut [u8],
) -> Result<(), Error> {
    let exchange = backend.exchange().expect("the caller has seen that there is one");
    exchange.gather(gate, mine, all).map_err(ironstar_device::Error::from)?;
    Ok(())
}
