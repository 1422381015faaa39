//! Rows of floats into blocks, on all cores. The bytes do not depend on the number of threads,
//! since every row is encoded alone.

use ironstar_quant::Format;

/// Rows a thread takes at a time: enough to pay for starting it, few enough to share the end
/// fairly.
const ROWS_MIN: usize = 16;

/// Encodes whole rows of `columns` values.
///
/// # Panics
/// If the format has no encoder or rows are not whole blocks; the plan has checked both.
#[must_use]
pub fn encode_rows(format: Format, values: &[f32], columns: usize, threads: usize) -> Vec<u8> {
    let encode = format.info().encode.expect("the plan only has formats that can be written");
    let row_bytes =
        format.row_bytes(columns).expect("the plan has checked that rows are whole blocks");
    let rows = values.len() / columns;
    let mut bytes = vec![0; rows * row_bytes];
    let share = rows.div_ceil(threads.max(1)).max(ROWS_MIN);
    std::thread::scope(|scope| {
        let parts = values.chunks(share * columns).zip(bytes.chunks_mut(share * row_bytes));
        for (values, bytes) in parts {
            scope.spawn(move || {
                let rows = values.chunks_exact(columns).zip(bytes.chunks_exact_mut(row_bytes));
                for (values, bytes) in rows {
                    encode(values, None, bytes);
                }
            });
        }
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
        let one = encode_rows(Format::Q8_0, &values, columns, 1);
        for threads in [2, 3, 7, 200] {
            assert_eq!(
                encode_rows(Format::Q8_0, &values, columns, threads),
                one,
                "{threads} threads"
            );
        }
    }
}
