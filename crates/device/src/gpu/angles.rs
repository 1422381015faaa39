//! Cosines and sines of rotary tables, made on the host.

use super::record::{Place, Recorder};
use super::size;
use crate::cpu;

/// Positions whose angles one thread makes, and most threads for more.
const ANGLES_ALONE: usize = 256;
const ANGLES_THREADS: usize = 8;

/// `[positions][pairs][2]` in the step's data: cosines and sines.
pub(super) fn angles_at(
    recorder: &mut Recorder,
    frequencies: &[f32],
    positions: &[usize],
) -> Place {
    let each = 2 * frequencies.len();
    let mut rows = vec![0f32; size(&[positions.len(), each])];
    let threads = match positions.len() {
        0..ANGLES_ALONE => 1,
        _ => std::thread::available_parallelism().map_or(1, usize::from).min(ANGLES_THREADS),
    };
    let some = positions.len().div_ceil(threads).max(1);
    let fill = |positions: &[usize], rows: &mut [f32]| {
        for (position, row) in positions.iter().zip(rows.chunks_exact_mut(each.max(1))) {
            cpu::rope::fill(frequencies, *position, row);
        }
    };
    std::thread::scope(|scope| {
        let mut parts = positions.chunks(some).zip(rows.chunks_mut((some * each).max(1)));
        let first = parts.next();
        for (positions, rows) in parts {
            scope.spawn(move || fill(positions, rows));
        }
        if let Some((positions, rows)) = first {
            fill(positions, rows);
        }
    });
    recorder.put_floats(&rows)
}
