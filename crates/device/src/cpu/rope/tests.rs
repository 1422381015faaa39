use super::cos_sin;

/// Both functions at once are each of them, from tiny angles to those of a million positions.
#[test]
fn both_functions_are_each() {
    for pair in 0..32i16 {
        let frequency = 10_000f32.powf(-f32::from(pair) / 32.0);
        for position in (0..4096).chain((4096..1_100_000).step_by(977)) {
            #[expect(clippy::cast_precision_loss, reason = "as the table does it")]
            let angle = f64::from(position as f32 * frequency);
            #[expect(clippy::cast_possible_truncation, reason = "as the table does it")]
            let wanted = [libm::cos(angle) as f32, libm::sin(angle) as f32];
            assert_eq!(cos_sin(frequency, position).map(f32::to_bits), wanted.map(f32::to_bits));
        }
    }
}
