//! Attention of a block whose rows all see one another, against plain sums in f64.
#![expect(clippy::cast_precision_loss, reason = "small test numbers")]

use ironstar_device::{Attend, Backend, Buffer, Cpu, CpuConfig, Element, Isa, Step};

const WIDTH: usize = 64;
const HEADS: usize = 3;
const CAPACITY: usize = 20;

/// Some numbers that differ.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 101) % 211) as f32 / 105.5 - 1.0).collect()
}

fn filled(cpu: &mut Cpu, values: &[f32]) -> Buffer {
    let arena = cpu.arena();
    let buffer = cpu.alloc(arena, Element::F32, values.len()).expect("small");
    cpu.write_f32(buffer, 0, values).expect("it fits");
    buffer
}

/// One row and head, without rotation: the frequencies of the test are zero.
fn plain(query: &[f32], keys: &[&[f32]], sink: f32) -> Vec<f64> {
    let dot = |key: &&[f32]| -> f64 {
        let sum: f64 = query.iter().zip(*key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        (sum / (WIDTH as f64).sqrt()).exp()
    };
    let weights: Vec<f64> = keys.iter().map(dot).collect();
    let total = weights.iter().sum::<f64>() + f64::from(sink).exp();
    let value = |d: usize| -> f64 {
        weights.iter().zip(keys).map(|(w, key)| w * f64::from(key[d])).sum::<f64>() / total
    };
    (0..WIDTH).map(value).collect()
}

#[test]
fn every_row_sees_the_window_before_and_the_whole_block() {
    for isa in Isa::available() {
        for (position, rows) in [(0, 5), (1, 1), (3, 5), (7, 5), (8, 5), (31, 5), (50, 12)] {
            let config = CpuConfig { threads: 2, isa: Some(isa), ..CpuConfig::default() };
            let mut cpu = Cpu::new(config).expect("a CPU");
            let window = 8;
            let q = numbers(1, rows * HEADS * WIDTH);
            let (kv, ring, sink) = (numbers(2, rows * WIDTH), numbers(3, CAPACITY * WIDTH), 0.3);
            let out = filled(&mut cpu, &vec![0.0; q.len()]);
            let rings = [filled(&mut cpu, &ring)];
            let attend = Attend {
                q: filled(&mut cpu, &q),
                kv: filled(&mut cpu, &kv),
                sinks: filled(&mut cpu, &[sink; HEADS]),
                heads: HEADS,
                rope: cpu.rope(&[0.0; WIDTH / 2]).expect("a table"),
                window,
                mutual: true,
                rings: &rings,
                capacity: CAPACITY,
                compressed: None,
                out,
            };
            cpu.begin(&Step::single(&vec![0; rows], position)).expect("a step");
            cpu.attend(&attend).expect("it fits");
            let mut found = vec![0.0; q.len()];
            cpu.read_f32(out, 0, &mut found).expect("written");

            let before = (position.max(window) - window..position).map(|p| p % CAPACITY);
            let mut keys: Vec<&[f32]> = before.map(|slot| &ring[slot * WIDTH..][..WIDTH]).collect();
            keys.extend(kv.chunks_exact(WIDTH));
            assert_eq!(keys.len(), position.min(window) + rows);
            for (query, found) in q.chunks_exact(WIDTH).zip(found.chunks_exact(WIDTH)) {
                for (found, wanted) in found.iter().zip(plain(query, &keys, sink)) {
                    let error = (f64::from(*found) - wanted).abs();
                    assert!(error < 1e-5, "{} at {position}: {found} {wanted}", isa.name());
                }
            }
        }
    }
}
