//! F16 matrices on matrix units: their definition (`tiles_halves.k`) once more in plain Rust, and
//! every kernel that makes such products against it, bit for bit.

use crate::common::{Bench, Numbers, bits, encode};
use ironstar_device::*;
use ironstar_quant::{Format, f16_to_f32, f32_to_f16};
use std::sync::Arc;

/// Elements of a unit in the order in which the host driver adds them: the places of K of two
/// matrix products.
fn places() -> [[usize; 16]; 2] {
    [0, 1].map(|half| {
        std::array::from_fn(|k| {
            let (lane, pair) = (k % 8 / 2, k / 8);
            8 * lane + 4 * half + 2 * pair + k % 2
        })
    })
}

/// 2^n of a normal number.
fn power(n: i32) -> f32 {
    f32::from_bits(u32::try_from(n + 127).expect("a normal number") << 23)
}

/// The two halves of each element of a shard, and what a sum of them is multiplied with.
fn split(x: &[f32]) -> (Vec<[f32; 2]>, f32) {
    if !x.iter().all(|v| v.is_finite()) {
        return (vec![[0.0; 2]; x.len()], f32::from_bits(0x7fc0_0000));
    }
    let most = x.iter().fold(0f32, |most, v| most.max(v.abs()));
    if most == 0.0 {
        return (vec![[0.0; 2]; x.len()], 0.0);
    }
    let exponent = i32::try_from(most.to_bits() >> 23).expect("eight bits").max(15) - 127;
    let halves = x.iter().map(|v| {
        let scaled = v * power(14 - exponent);
        let high = f16_to_f32(f32_to_f16(scaled));
        [high, f16_to_f32(f32_to_f16(scaled - high))]
    });
    (halves.collect(), power(exponent - 14))
}

fn shard(w: &[f32], x: &[f32]) -> f32 {
    let (halves, factor) = split(x);
    let mut sum = 0f32;
    for (w, x) in w.chunks_exact(32).zip(halves.chunks_exact(32)) {
        for which in [0, 1] {
            for half in places() {
                for at in half {
                    sum = w[at].mul_add(x[at][which], sum);
                }
            }
        }
    }
    sum * factor
}

/// Sums of the eight shards of a row.
fn shards(w: &[f32], x: &[f32]) -> [f32; 8] {
    let each = x.len() / 8;
    std::array::from_fn(|i| shard(&w[i * each..(i + 1) * each], &x[i * each..(i + 1) * each]))
}

fn row(w: &[f32], x: &[f32]) -> f32 {
    let s = shards(w, x);
    ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
}

fn decoded(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<2>().0.iter().map(|b| f16_to_f32(u16::from_le_bytes(*b))).collect()
}

/// Products of these rows of `x` with matrices of equal columns.
fn products(mut bench: Bench, columns: usize, coded: &[Arc<Vec<u8>>], x: &[f32]) -> Vec<Vec<u32>> {
    let n = x.len() / columns;
    bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
    let x = bench.floats(x);
    let outputs: Vec<_> = coded
        .iter()
        .map(|bytes| {
            let rows = bytes.len() / (2 * columns);
            let matrix = bench.encoded(Format::F16, [1, rows, columns], bytes.clone());
            (matrix, bench.zeros(n * rows))
        })
        .collect();
    bench.cpu.project(&Project { x, rows: n, outputs: &outputs }).expect("fits");
    outputs.iter().map(|(_, out)| bits(&bench.read(*out))).collect()
}

/// What the definition gives.
fn wanted(columns: usize, coded: &[Arc<Vec<u8>>], x: &[f32]) -> Vec<Vec<u32>> {
    let of = |bytes: &Arc<Vec<u8>>| {
        let w = decoded(bytes);
        let x = x.chunks_exact(columns);
        x.flat_map(|x| w.chunks_exact(columns).map(|w| row(w, x).to_bits())).collect()
    };
    coded.iter().map(of).collect()
}

fn matrices(numbers: &mut Numbers, columns: usize, rows: &[usize]) -> Vec<Arc<Vec<u8>>> {
    let one = |rows: &usize| encode(Format::F16, &numbers.floats(rows * columns, 0.2));
    rows.iter().map(one).collect()
}

/// One row, some, and tiles of both sizes, whose rows and slots end inside of them, have the bits
/// of the definition. A fifth matrix begins another launch.
#[test]
fn any_number_of_rows_has_the_bits_of_the_definition() {
    for (columns, rows, counts) in [
        (256, &[3, 17][..], &[1, 2, 16][..]),
        (1280, &[9, 1, 20, 16, 5], &[1, 7, 9]),
        (8448, &[5], &[1]),
        (512, &[40, 130], &[17, 131]),
        (768, &[40], &[30]),
        (1024, &[40], &[30]),
        (4096, &[3], &[1]),
        (768, &[1, 2], &[1]),
    ] {
        let mut numbers = Numbers(columns as u64);
        let coded = matrices(&mut numbers, columns, rows);
        let most = counts.iter().max().expect("some");
        let mut x = numbers.floats(most * columns, 1.0);
        // Shards of other magnitudes.
        for (i, v) in x.iter_mut().enumerate() {
            *v *= power(i32::try_from(i * 8 / columns % 5).expect("small") * 9 - 18);
        }
        for n in counts {
            let x = &x[..n * columns];
            let wanted = wanted(columns, &coded, x);
            let found = products(Bench::gpu(), columns, &coded, x);
            assert!(found == wanted, "{n} rows of {columns} columns: other bits");
            if *n > 1 {
                let found = products(Bench::small_gpu(), columns, &coded, x);
                assert!(found == wanted, "{n} rows, little shared memory: other bits");
            }
            if *n > 16 {
                let config = GpuConfig { disabled: Shortcuts::FOUR, ..GpuConfig::default() };
                let found = products(Bench::gpu_with(config), columns, &coded, x);
                assert!(found == wanted, "{n} rows without `four`: other bits");
            }
        }
    }
}

/// Kernels that were not taken would prove nothing: of few rows of weights, and of more.
#[test]
fn kernels_of_one_row_are_taken() {
    let mut gpu = Gpu::host(GpuConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let arena = gpu.arena();
    gpu.begin(&Step::single(&[0], 0)).expect("a step");
    let mut matrix = |rows: usize| {
        let (format, bytes) = (Format::F16, encode(Format::F16, &vec![0.5; rows * 512]));
        gpu.matrix(MatrixSource {
            name: "m",
            format,
            rows,
            columns: 512,
            stack: 1,
            bytes,
            planes: None,
        })
        .expect("fits")
    };
    let matrices = [matrix(3), matrix(40)];
    let mut zeros = |len| gpu.alloc(arena, Element::F32, len).expect("small");
    let (x, outs) = (zeros(512), [3, 40].map(zeros));
    for (matrix, out) in matrices.into_iter().zip(outs) {
        gpu.project(&Project { x, rows: 1, outputs: &[(matrix, out)] }).expect("fits");
    }
    gpu.finish().expect("no fault");
    for name in ["halves_ahead", "halves_one"] {
        let count = gpu.launches().kernels.iter().find(|(own, _)| *own == name).map(|(_, n)| *n);
        assert_eq!(count, Some(1), "{name}");
    }
}

/// A part of K has the sums of its shards.
#[test]
fn parts_of_k_have_the_shards_of_the_whole() {
    let (rows, columns, n) = (16, 512, 3);
    let mut numbers = Numbers(5);
    let x = numbers.floats(n * columns, 1.0);
    for shards_of_part in [4, 1] {
        let ways = 8 / shards_of_part;
        let own = columns / ways;
        let bytes = encode(Format::F16, &numbers.floats(rows * own, 0.2));
        let w = decoded(&bytes);
        let x: Vec<f32> =
            x.chunks_exact(columns).flat_map(|row| row[..own].iter().copied()).collect();
        let mut bench = Bench::gpu();
        bench.cpu.begin(&Step::single(&vec![0; n], 0)).expect("a step");
        let name = "a test's part";
        let (format, stack) = (Format::F16, 1);
        let source = MatrixSource { name, format, rows, columns: own, stack, bytes, planes: None };
        let part = MatrixPart { shards: shards_of_part, strides: None };
        let matrix = bench.cpu.matrix_part(source, part).expect("a right shape");
        let (input, out) = (bench.floats(&x), bench.zeros(n * rows));
        let a = Project { x: input, rows: n, outputs: &[(matrix, out)] };
        bench.cpu.project(&a).expect("a product");
        let found = bits(&bench.read(out));
        let each = own / shards_of_part;
        for (slot, x) in x.chunks_exact(own).enumerate() {
            for (r, w) in w.chunks_exact(own).enumerate() {
                let parts: Vec<f32> = w
                    .chunks_exact(each)
                    .zip(x.chunks_exact(each))
                    .map(|(w, x)| shard(w, x))
                    .collect();
                let sum = match parts[..] {
                    [one] => one,
                    [a, b, c, d] => (a + b) + (c + d),
                    _ => unreachable!("one shard or four"),
                };
                let at = slot * rows + r;
                assert_eq!(found[at], sum.to_bits(), "{shards_of_part} shards, {slot}, {r}");
            }
        }
    }
}

/// Numbers that are not finite spoil their row and no other; zeros, the largest and the smallest
/// numbers have the products of the definition.
#[test]
fn rows_that_are_hard_to_scale() {
    let columns = 256;
    let mut numbers = Numbers(9);
    let coded = matrices(&mut numbers, columns, &[20]);
    let plain = numbers.floats(columns, 1.0);
    let with = |at: usize, v: f32| {
        let mut x = plain.clone();
        x[at] = v;
        x
    };
    let scaled = |by: f32| plain.iter().map(|v| v * by).collect::<Vec<f32>>();
    let rows = [
        with(3, f32::NAN),
        plain.clone(),
        with(200, f32::INFINITY),
        vec![0.0; columns],
        scaled(f32::MIN_POSITIVE / 64.0),
        scaled(f32::MAX / 4.0),
        with(255, f32::NEG_INFINITY),
        with(0, f32::MAX),
        plain.clone(),
    ];
    let all = rows.concat();
    let together = products(Bench::gpu(), columns, &coded, &all);
    let wanted = wanted(columns, &coded, &all);
    for (index, x) in rows.iter().enumerate() {
        let own = &together[0][20 * index..][..20];
        let alone = products(Bench::gpu(), columns, &coded, x);
        assert!(alone[0] == own, "row {index} alone");
        let bad = x.iter().any(|v| !v.is_finite());
        let nan = own.iter().all(|v| f32::from_bits(*v).is_nan());
        assert_eq!(nan, bad, "row {index}");
        assert!(bad || own == &wanted[0][20 * index..][..20], "row {index}: other bits");
    }
    // As tiles, too.
    let many: Vec<f32> = all.repeat(2);
    let tiles = products(Bench::gpu(), columns, &coded, &many);
    assert!(tiles[0] == together[0].repeat(2), "tiles: other bits");
}

/// The definition is as near to the product as sums of floats are: its error is below what 22 bits
/// of the inputs and the roundings of a sum allow.
#[test]
fn sums_are_near_the_products() {
    let columns = 4096;
    let mut numbers = Numbers(11);
    let w = decoded(&encode(Format::F16, &numbers.floats(8 * columns, 0.2)));
    let mut x = numbers.floats(columns, 1.0);
    // Magnitudes from 2^-12 to 2^12 in every shard.
    for (i, v) in x.iter_mut().enumerate() {
        *v *= power(i32::try_from(i % 25).expect("small") - 12);
    }
    for w in w.chunks_exact(columns) {
        let products = || w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
        let (exact, size) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
        let found = f64::from(row(w, &x));
        assert!((found - exact).abs() < 1e-7 * size, "{found} for {exact} of {size}");
        let short: f64 = w
            .iter()
            .zip(&x)
            .map(|(w, x)| f64::from(*w) * f64::from(f16_to_f32(f32_to_f16(*x))))
            .sum();
        assert!((short - exact).abs() > 4.0 * (found - exact).abs(), "halves alone are as near");
    }
}

/// The exact mode has the floats of the processor.
#[test]
fn the_exact_mode_keeps_its_floats() {
    let (columns, n) = (512, 3);
    let mut numbers = Numbers(2);
    let coded = matrices(&mut numbers, columns, &[19]);
    let x = numbers.floats(n * columns, 1.0);
    let config = GpuConfig { float_products: true, ..GpuConfig::default() };
    let found = products(Bench::gpu_with(config), columns, &coded, &x);
    assert!(found == products(Bench::scalar(), columns, &coded, &x), "other bits");
    assert!(found != products(Bench::gpu(), columns, &coded, &x), "the modes do not differ");
}
