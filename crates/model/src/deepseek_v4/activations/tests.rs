use super::*;

fn through(wire: Wire, values: &[f32]) -> Vec<f32> {
    let floats: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut sent = Vec::new();
    wire.encode(&floats, &mut sent);
    assert_eq!(sent.len(), wire.bytes(values.len()));
    let back = wire.decode(&sent, values.len()).expect("our own bytes");
    assert!(wire.decode(&sent[1..], values.len()).is_err());
    back.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// Rounding to sixteen bits by halves of the distance to the neighbours, in f64.
fn nearest(value: f32) -> f32 {
    let down = f32::from_bits(value.to_bits() & 0xffff_0000);
    let up = f32::from_bits((value.to_bits() & 0xffff_0000).wrapping_add(0x1_0000));
    let (below, above) = (f64::from(value) - f64::from(down), f64::from(up) - f64::from(value));
    let even = down.to_bits() >> 16 & 1 == 0;
    let takes_down = below.abs() < above.abs() || (below.abs() == above.abs() && even);
    if takes_down { down } else { up }
}

#[test]
fn values_come_back_as_near_as_the_bits_allow() {
    let values: Vec<f32> = (0..200u16)
        .map(|i| (f32::from(i) - 90.0) * 1.37 + 1.0 / (f32::from(i) + 3.0))
        .chain([0.0, -0.0, 1e-30, 3e38, -7.5, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0])
        .collect();
    assert_eq!(through(Wire::F32, &values), values);
    let rounded: Vec<f32> = values.iter().map(|value| nearest(*value)).collect();
    assert_eq!(through(Wire::Bf16, &values), rounded);
    let tame = &values[..200];
    for (block, back) in tame.chunks(BLOCK).zip(through(Wire::Int8, tame).chunks(BLOCK)) {
        let most = block.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > most / 127.0 * 0.501;
        assert!(!block.iter().zip(back).any(far));
    }
    assert_eq!(through(Wire::Int8, &[0.0; 70]), [0.0; 70]);
    assert!(through(Wire::Bf16, &[f32::NAN, f32::INFINITY])[0].is_nan());
}

#[test]
fn bits_name_the_ways() {
    for (bits, wire) in Wire::BITS {
        assert_eq!((wire.bits(), Wire::of_bits(bits)), (bits, Some(wire)));
    }
    assert_eq!(Wire::of_bits(4), None);
}
