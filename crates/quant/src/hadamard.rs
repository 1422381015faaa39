//! The Hadamard rotation of indexer queries and rows (spec/deepseek_v4.md 2.7).

/// Multiplies `x` by the normalised Hadamard matrix in Sylvester order.
///
/// Butterflies of distance 1, 2, 4, ... then one product with n^-0.5; the order is part of the
/// result's bits. Panics unless the length is a power of two.
pub fn hadamard(x: &mut [f32]) {
    assert!(x.len().is_power_of_two(), "{} values are not a power of two", x.len());
    let mut distance = 1;
    while distance < x.len() {
        for pair in x.chunks_exact_mut(2 * distance) {
            let (low, high) = pair.split_at_mut(distance);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        distance *= 2;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the nearest f32 is meant")]
    let scale = (1.0 / (x.len() as f64).sqrt()) as f32;
    for v in x {
        *v *= scale;
    }
}
