//! Rows of floats into blocks, on all cores. The bytes do not depend on the number of threads,
//! since every row is encoded alone.

use ironstar_quant::Format;
use std::sync::{Mutex, PoisonError};

/// Rows a thread takes at a time: enough to pay for starting it, few enough to share the end
/// fairly.
const ROWS_MIN: usize = 16;

/// Parts of the rows for each thread, so that a slow one leaves some to the others.
const PARTS: usize = 4;

/// Encodes whole rows of `columns` values; `importance`, one a column, says which errors matter.
///
/// # Panics
/// If the format has no encoder or rows are not whole blocks; the plan has checked both.
#[must_use]
pub fn encode_rows(
    format: Format,
    values: &[f32],
    importance: Option<&[f32]>,
    columns: usize,
    threads: usize,
) -> Vec<u8> {
    let encode = format.info().encode.expect("the plan only has formats that can be written");
    let row_bytes =
        format.row_bytes(columns).expect("the plan has checked that rows are whole blocks");
    let rows = values.len() / columns;
    let mut bytes = vec![0; rows * row_bytes];
    let share = rows.div_ceil(threads.max(1) * PARTS).max(ROWS_MIN);
    let parts = values.chunks(share * columns).zip(bytes.chunks_mut(share * row_bytes));
    let parts = Mutex::new(parts);
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((values, bytes)) = next() {
            let rows = values.chunks_exact(columns).zip(bytes.chunks_exact_mut(row_bytes));
            rows.for_each(|(values, bytes)| encode(values, importance, bytes));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(rows.div_ceil(share)) {
            // A machine that gives no more threads is slower, that is all.
            if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_do_not_change_the_bytes() {
        let columns = 64;
        let values: Vec<f32> = (0..columns * 100).map(|i| ((i * 37 % 101) as f32).sin()).collect();
        let one = encode_rows(Format::Q8_0, &values, None, columns, 1);
        for threads in [2, 3, 7, 200] {
            assert_eq!(
                encode_rows(Format::Q8_0, &values, None, columns, threads),
                one,
                "{threads} threads"
            );
        }
    }
}
