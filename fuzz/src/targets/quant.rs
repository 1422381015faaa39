//! Block formats on any bytes: decode, encode, dot.

use super::{Target, signature};
use ironstar_quant::{Activation, FORMATS, Int8Blocks, Row, dot, dot_shards, quantize_int8, tree8};

/// The first byte chooses the format and whether to encode again; the rest is a row of its blocks.
pub const BLOCKS: Target = Target {
    name: "quant-blocks",
    seeds: block_seeds,
    dictionary: &[b"\x00\x7c", b"\x00\xfc", b"\xff\x7f", b"\xff\xff", b"\x00\x80"],
    len_max: 1536,
    base_bytes: 1 << 20,
    bytes_per_byte: 256,
    run: blocks,
};

/// Any floats as activations, against a dot product written out here.
pub const INT8: Target = Target {
    name: "quant-int8",
    seeds: int8_seeds,
    dictionary: &[
        b"\x00\x00\x80\x7f",
        b"\x00\x00\x80\xff",
        b"\x00\x00\xc0\x7f",
        b"\x01\x00\x00\x00",
    ],
    len_max: 8192,
    base_bytes: 1 << 20,
    bytes_per_byte: 64,
    run: int8,
};

fn block_seeds() -> Vec<Vec<u8>> {
    let row = |index: usize| {
        let body = 2 * FORMATS[index % FORMATS.len()].block_bytes.max(64);
        let first = u8::try_from(index).expect("an index below 256 fits a byte");
        std::iter::once(first).chain((0..body).map(|i| (i % 251).to_le_bytes()[0])).collect()
    };
    let encoded = 256 / FORMATS.len() * FORMATS.len() - FORMATS.len();
    (0..FORMATS.len()).chain(encoded..encoded + FORMATS.len()).map(row).collect()
}

fn blocks(bytes: &[u8]) -> u64 {
    let Some((&first, rest)) = bytes.split_first() else {
        return 0;
    };
    let info = &FORMATS[usize::from(first) % FORMATS.len()];
    let count = rest.len() / info.block_bytes;
    let weights = &rest[..count * info.block_bytes];
    let columns = count * info.block_elements;
    let mut values = vec![0.0; columns];
    (info.decode)(weights, &mut values);
    if let Some(encode) = info.encode.filter(|_| first >= 0x80) {
        let mut again = vec![0; weights.len()];
        encode(&values, (first >= 0xc0).then_some(&values), &mut again);
    }
    let block = match info.activation {
        Activation::F32 => 0,
        Activation::Int8x32 => 32,
        Activation::Int8x256 => 256,
    };
    let x: Vec<f32> = (0..columns).map(|i| (i % 17) as f32 - 8.0).collect();
    let (shards, whole) = match columns.checked_div(block) {
        None => (
            dot_shards(info.format, weights, Row::F32(&x)),
            dot(info.format, weights, Row::F32(&x)),
        ),
        Some(groups) => {
            let (mut codes, mut scales) = (vec![0; columns], vec![0.0; groups]);
            quantize_int8(&x, block, &mut codes, &mut scales);
            let row = || Row::Int8(Int8Blocks { codes: &codes, scales: &scales });
            (dot_shards(info.format, weights, row()), dot(info.format, weights, row()))
        }
    };
    let sum = tree8(&shards);
    assert!(sum.to_bits() == whole.to_bits() || sum.is_nan(), "{sum} is not {whole}");
    signature(info.name) ^ class(whole)
}

/// What kind of number came out.
fn class(value: f32) -> u64 {
    match value.classify() {
        std::num::FpCategory::Nan => 1,
        std::num::FpCategory::Infinite => 2,
        std::num::FpCategory::Zero => 3,
        std::num::FpCategory::Subnormal => 4,
        std::num::FpCategory::Normal => 5 + u64::from(value < 0.0),
    }
}

fn int8_seeds() -> Vec<Vec<u8>> {
    let floats =
        |f: fn(f32) -> f32| (0_u8..=255).flat_map(|i| f(f32::from(i)).to_le_bytes()).collect();
    vec![floats(|i| i - 128.0), floats(f32::sin), floats(|i| (i - 128.0).exp()), floats(|_| 0.0)]
}

fn int8(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<4>();
    let mut x: Vec<f32> = words.iter().map(|w| f32::from_le_bytes(*w)).collect();
    x.truncate(x.len() / 32 * 32);
    let (mut codes, mut scales) = (vec![0_i8; x.len()], vec![0.0; x.len() / 32]);
    quantize_int8(&x, 32, &mut codes, &mut scales);
    let mut seen = 0;
    for ((values, codes), &scale) in x.chunks(32).zip(codes.chunks(32)).zip(&scales) {
        let largest = values.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        seen |= 1 << class(largest);
        assert!(codes.iter().all(|&c| c > i8::MIN), "a code below -127");
        if !values.iter().all(|v| v.is_finite()) {
            continue;
        }
        for (&value, &code) in values.iter().zip(codes) {
            let error = (f64::from(code) * f64::from(scale) - f64::from(value)).abs();
            let bound = f64::from(largest) / 127.0 * 0.5001 + f64::from(f32::MIN_POSITIVE);
            assert!(error <= bound || scale == 0.0, "{value} became {code} times {scale}");
        }
    }
    let weights: Vec<u8> = (0..x.len() / 32 * 34).map(|i| (i * 7 % 253).to_le_bytes()[0]).collect();
    let found = dot_shards(
        ironstar_quant::Format::Q8_0,
        &weights,
        Row::Int8(Int8Blocks { codes: &codes, scales: &scales }),
    );
    let wanted = q8_0_shards(&weights, &codes, &scales);
    let bits = |shards: [f32; 8]| shards.map(|s| if s.is_nan() { 0 } else { s.to_bits() });
    assert_eq!(bits(found), bits(wanted), "the dot product and its definition differ");
    seen
}

/// The definition of the Q8_0 dot product (DESIGN 5), written from it and from nothing else.
fn q8_0_shards(weights: &[u8], codes: &[i8], scales: &[f32]) -> [f32; 8] {
    let blocks = scales.len();
    std::array::from_fn(|shard| {
        let mut sum = 0.0_f32;
        for block in shard * blocks / 8..(shard + 1) * blocks / 8 {
            let (scale, row) = weights[block * 34..][..34].split_at(2);
            let products = row.iter().zip(&codes[block * 32..]);
            let total: i32 =
                products.map(|(&w, &c)| i32::from(w.cast_signed()) * i32::from(c)).sum();
            let scale = half(u16::from_le_bytes([scale[0], scale[1]])) * scales[block];
            #[expect(clippy::cast_precision_loss, reason = "below 2^24, so exact")]
            let total = total as f32;
            sum = scale.mul_add(total, sum);
        }
        sum
    })
}

/// IEEE binary16 to binary32, by the meaning of its fields.
fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    match exponent {
        0 => sign * fraction * 2.0_f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1024.0 + fraction) * 2.0_f32.powi(exponent - 25),
    }
}
