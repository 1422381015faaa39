//! Random blocks of every format that a mix uses: valid, mean 0, of a given spread.
//!
//! A tensor's bytes are cut from a tile of its format and spread, each piece from a place that its
//! name decides, so that files of 80 GiB are written at the speed of a copy.

use crate::failure::Failure;
use ironstar_quant::{Format, f32_to_bf16, f32_to_f16};
use std::collections::HashMap;

/// Bytes of a tile, about.
const TILE: usize = 32 << 20;

/// Tiles made so far.
pub struct Tiles {
    /// The file's seed.
    pub seed: u64,
    made: HashMap<(Format, u32), Vec<u8>>,
}

impl Tiles {
    /// No tile yet.
    #[must_use]
    pub fn new(seed: u64) -> Tiles {
        Tiles { seed, made: HashMap::new() }
    }

    /// Gives `bytes` of blocks of this spread in pieces of at most `piece`.
    pub fn fill(
        &mut self,
        format: Format,
        spread: f32,
        name: &str,
        bytes: u64,
        piece: usize,
        put: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let seed = self.seed;
        let tile = self.made.entry((format, spread.to_bits())).or_insert_with(|| {
            let label = format!("tile {format} {}", spread.to_bits());
            tile(format, spread, TILE, key(seed, &label))
        });
        let block = format.info().block_bytes;
        let (piece, blocks) = (piece / block * block, (tile.len() / block) as u64);
        let (mut state, mut left) = (key(seed, name), bytes);
        while left > 0 {
            let start = usize::try_from(next(&mut state) % blocks).expect("inside the tile");
            let mut rest = usize::try_from(left).unwrap_or(usize::MAX).min(piece);
            let mut from = start * block;
            left -= rest as u64;
            while rest > 0 {
                let run = rest.min(tile.len() - from);
                put(&tile[from..from + run])?;
                (rest, from) = (rest - run, 0);
            }
        }
        Ok(())
    }
}

/// Equal values as F32.
#[must_use]
pub fn constant(value: f32, len: usize) -> Vec<u8> {
    value.to_le_bytes().repeat(len)
}

/// The state of a random sequence, from the file's seed and a name.
#[must_use]
pub fn key(seed: u64, name: &str) -> u64 {
    let hash = |h: u64, c: u8| (h ^ u64::from(c)).wrapping_mul(0x100_0000_01B3);
    name.bytes().fold(0xCBF2_9CE4_8422_2325 ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15), hash)
}

/// The next number of a sequence (splitmix64).
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// About `bytes` of whole blocks.
fn tile(format: Format, spread: f32, bytes: usize, mut state: u64) -> Vec<u8> {
    let size = format.info().block_bytes;
    let mut tile = vec![0; bytes / size * size];
    for eight in tile.chunks_mut(8) {
        let random = next(&mut state).to_le_bytes();
        eight.copy_from_slice(&random[..eight.len()]);
    }
    for block in tile.chunks_exact_mut(size) {
        // Blocks differ in magnitude too.
        let random = next(&mut state);
        let jitter = 0.7 + 0.6 * unit(random);
        shape_block(format, spread * jitter, random, block, &mut state);
    }
    tile
}

/// Gives random bytes the scales that make their values' standard deviation about `spread`. The
/// divisors are the deviations of the codes alone.
fn shape_block(format: Format, spread: f32, random: u64, block: &mut [u8], state: &mut u64) {
    match format {
        Format::F32 => block.copy_from_slice(&(spread * normal(state)).to_le_bytes()),
        Format::F16 => put_half(block, 0, spread * normal(state)),
        Format::Bf16 => {
            block.copy_from_slice(&f32_to_bf16(spread * normal(state)).to_le_bytes());
        }
        Format::Q8_0 => put_half(block, 0, spread / 73.9),
        Format::Iq2Xxs => put_half(block, 0, spread / 57.0),
        // Every sub-block's minimum is its scale, and dmin is the middle code: mean 0.
        Format::Q2K => {
            put_half(block, 80, spread / (8.0 * 1.118));
            put_half(block, 82, spread * 1.5 / (8.0 * 1.118));
            for (sub, packed) in block[..16].iter_mut().enumerate() {
                let scale = 5 + u8::try_from((random >> (4 * sub)) % 7).expect("below 7");
                *packed = scale | (scale << 4);
            }
        }
        // All scales and minimums 32.
        Format::Q4K => {
            put_half(block, 0, spread / (32.0 * 4.61));
            put_half(block, 2, spread * 7.5 / (32.0 * 4.61));
            block[4..12].fill(32 | (2 << 6));
            block[12..16].fill(0);
        }
        Format::Mxfp4 => {
            // 2^(e - 127) times codes of deviation 2.93.
            let exponent = (spread / 2.93).log2().round() + 127.0;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "clamped to a byte"
            )]
            let exponent = exponent.clamp(1.0, 254.0) as u8;
            block[0] = exponent;
        }
        Format::Q4_0 | Format::Q3K | Format::Q5K | Format::Q6K => {
            unreachable!("no mix of `synth` has {format}")
        }
    }
}

fn put_half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f32_to_f16(value).to_le_bytes());
}

/// From 0 up to 1.
fn unit(random: u64) -> f32 {
    f32::from(u16::try_from(random >> 48).expect("sixteen bits")) / 65_536.0
}

/// About a normal distribution of deviation 1: the sum of four uniform numbers.
fn normal(state: &mut u64) -> f32 {
    let random = next(state);
    let sum: f32 = (0..4).map(|part| unit(random << (16 * part))).sum();
    (sum - 2.0) * 3f32.sqrt()
}

#[cfg(test)]
mod tests {
    use super::{Tiles, key, tile};
    use ironstar_quant::Format;

    const FORMATS: [Format; 7] = [
        Format::F32,
        Format::F16,
        Format::Q8_0,
        Format::Q2K,
        Format::Q4K,
        Format::Iq2Xxs,
        Format::Mxfp4,
    ];

    /// As the decoders of `quant` see them.
    #[test]
    fn values_have_mean_zero_and_the_spread_that_was_asked() {
        for format in FORMATS {
            let info = format.info();
            let tile = tile(format, 0.03, 1 << 20, 5);
            let mut values = vec![0.0; tile.len() / info.block_bytes * info.block_elements];
            (info.decode)(&tile, &mut values);
            assert!(values.iter().all(|v| v.is_finite()), "{format}");
            #[expect(clippy::cast_precision_loss, reason = "a count of samples")]
            let count = values.len() as f64;
            let sum = |f: fn(f64) -> f64| values.iter().map(|v| f(f64::from(*v))).sum::<f64>();
            let (mean, deviation) = (sum(|v| v) / count, (sum(|v| v * v) / count).sqrt());
            assert!(mean.abs() < 0.001, "{format}: mean {mean}");
            // MXFP4 has powers of two only.
            assert!((0.02..0.045).contains(&deviation), "{format}: deviation {deviation}");
        }
    }

    #[test]
    fn pieces_do_not_change_the_bytes_and_names_do() {
        let mut tiles = Tiles::new(7);
        let mut bytes = |name: &str| {
            let mut out: Vec<u8> = Vec::new();
            let whole = 34 * 100_000;
            tiles
                .fill(Format::Q8_0, 1.0, name, whole, 1 << 20, &mut |piece| {
                    out.extend(piece);
                    Ok(())
                })
                .expect("nothing fails");
            assert_eq!(out.len() as u64, whole);
            out
        };
        let (first, again, other) = (bytes("a"), bytes("a"), bytes("b"));
        assert!(first == again && first != other);
        assert_ne!(key(1, "a"), key(2, "a"));
    }
}
