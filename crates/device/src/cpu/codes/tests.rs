//! Tiles against the definition, over all codes and scales.

use super::*;
use crate::cpu::Isa;
use crate::cpu::isa::{Kernel, launch};
use crate::cpu::pool::Pool;
use ironstar_quant::fp4::{INDEXER_BYTES, indexer_dot};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Mutex;

/// Rows of any bytes; scales near one another, at both ends, and NaN.
fn rows(count: usize, seed: u64) -> Vec<Fp4Row> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33).to_le_bytes()[0]
    };
    let ends = [0, 1, 2, 60, 64, 65, 127, 128, 190, 191, 192, 253, 254, 255];
    let mut row = || {
        let mut row = [0u8; INDEXER_BYTES];
        row.fill_with(&mut next);
        for scale in &mut row[INDEXER_DIMS / 2..] {
            let scale_code = usize::from(next());
            *scale =
                if scale_code < 128 { 120 + next() % 12 } else { ends[scale_code % ends.len()] };
        }
        row
    };
    (0..count).map(|_| row()).collect()
}

struct OneTile<'a, C> {
    keys: &'a [Fp4Row],
    heads: &'a [Query],
    weights: &'a [f32],
    out: Mutex<[f32; KEYS]>,
    codes: PhantomData<C>,
}

impl<C: Codes> Kernel for OneTile<'_, C> {
    #[inline(always)]
    fn run(&self, _part: usize, _items: Range<usize>) {
        let mut tile = Tile::new();
        tile.fill::<C>(self.keys);
        *self.out.lock().expect("nobody panics") = tile.score::<C>(self.heads, self.weights);
    }
}

fn scores<C: Codes>(isa: Isa, keys: &[Fp4Row], heads: &[Query], weights: &[f32]) -> [f32; KEYS] {
    let out = Mutex::new([0.0; KEYS]);
    let kernel = OneTile::<C> { keys, heads, weights, out, codes: PhantomData };
    launch(&Pool::new(1), isa, 1, 1, &kernel);
    kernel.out.into_inner().expect("nobody panics")
}

#[test]
fn tiles_equal_the_definition() {
    for seed in 0..200 {
        let (keys, queries) = (rows(KEYS, seed), rows(3, seed + 1000));
        let weights = [0.75f32, -1.5, 0.3];
        let heads: Vec<Query> = queries.iter().map(Query::new).collect();
        let wanted: Vec<u32> = keys
            .iter()
            .map(|key| {
                let heads = queries.iter().zip(weights);
                let score = heads.fold(0f32, |score, (query, weight)| {
                    let dot = indexer_dot(query, key);
                    weight.mul_add(if dot < 0.0 { 0.0 } else { dot }, score)
                });
                // Which NaN is no part of the contract.
                if score.is_nan() { u32::MAX } else { score.to_bits() }
            })
            .collect();
        for isa in Isa::available() {
            let found = match isa {
                Isa::Scalar => scores::<Portable>(isa, &keys, &heads, &weights),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => scores::<Avx2>(isa, &keys, &heads, &weights),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Amx => scores::<Avx512>(isa, &keys, &heads, &weights),
                _ => scores::<Portable>(isa, &keys, &heads, &weights),
            };
            let bits = |score: f32| if score.is_nan() { u32::MAX } else { score.to_bits() };
            assert_eq!(found.map(bits).to_vec(), wanted, "{isa:?}, seed {seed}");
        }
    }
}
