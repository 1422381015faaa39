//! Residual streams on their way to the next node of a pipeline: as they are, or in fewer bits.
//! Fewer bits change the numbers, so they are outside of the promise that answers do not depend on
//! how many nodes there are.

use crate::Error;
use ironstar_device::{Error as DeviceError, ExchangeError};

/// Values that share a scale where eight bits are sent.
const BLOCK: usize = 64;

/// How streams are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// As they are.
    #[default]
    F32,
    /// The upper half of each, rounded to the nearest.
    Bf16,
    /// Codes of -127 to 127, with a scale for every 64.
    Int8,
}

impl Wire {
    /// Every way with its bits a value, scales aside.
    pub const BITS: [(u32, Wire); 3] = [(32, Wire::F32), (16, Wire::Bf16), (8, Wire::Int8)];

    /// Bits a value.
    #[must_use]
    pub fn bits(self) -> u32 {
        Self::BITS.iter().find(|(_, wire)| *wire == self).map_or(32, |(bits, _)| *bits)
    }

    /// The way that sends so many bits.
    #[must_use]
    pub fn of_bits(bits: u32) -> Option<Wire> {
        Self::BITS.iter().find(|(all, _)| *all == bits).map(|(_, wire)| *wire)
    }

    /// Bytes of so many values.
    #[must_use]
    pub fn bytes(self, values: usize) -> usize {
        match self {
            Wire::F32 => values * 4,
            Wire::Bf16 => values * 2,
            Wire::Int8 => values + values.div_ceil(BLOCK) * 4,
        }
    }

    /// Puts little-endian floats behind what is there.
    pub(super) fn encode(self, floats: &[u8], to: &mut Vec<u8>) {
        let words = floats.as_chunks::<4>().0;
        match self {
            Wire::F32 => to.extend_from_slice(floats),
            Wire::Bf16 => to.extend(words.iter().flat_map(|word| bf16(*word))),
            Wire::Int8 => {
                for block in words.chunks(BLOCK) {
                    let values = block.iter().map(|word| f32::from_le_bytes(*word));
                    let most = values.clone().fold(0.0f32, |most, value| most.max(value.abs()));
                    let back = if most > 0.0 { 127.0 / most } else { 0.0 };
                    to.extend((most / 127.0).to_le_bytes());
                    #[expect(clippy::cast_possible_truncation, reason = "at most 127 by the scale")]
                    let code = |value: f32| (value * back).round_ties_even() as i8;
                    to.extend(values.flat_map(|value| code(value).to_le_bytes()));
                }
            }
        }
    }

    /// Little-endian floats of what [`Wire::encode`] gave.
    pub(super) fn decode(self, bytes: &[u8], values: usize) -> Result<Vec<u8>, Error> {
        if bytes.len() != self.bytes(values) {
            let found = format!("{} bytes of activations", bytes.len());
            let wanted = format!("{} are due", self.bytes(values));
            return Err(DeviceError::from(ExchangeError::Wrong { rank: 0, found, wanted }).into());
        }
        Ok(match self {
            Wire::F32 => bytes.to_vec(),
            Wire::Bf16 => {
                bytes.as_chunks::<2>().0.iter().flat_map(|b| [0, 0, b[0], b[1]]).collect()
            }
            Wire::Int8 => {
                let blocks = bytes.chunks(BLOCK + 4).filter_map(|block| block.split_first_chunk());
                let value = |scale: f32, code: u8| f32::from(i8::from_le_bytes([code])) * scale;
                let of = |(scale, codes): (&[u8; 4], &[u8])| -> Vec<u8> {
                    let scale = f32::from_le_bytes(*scale);
                    codes.iter().flat_map(|code| value(scale, *code).to_le_bytes()).collect()
                };
                blocks.flat_map(of).collect()
            }
        })
    }
}

/// The upper half, rounded to the nearest, to even where two are as near.
fn bf16(word: [u8; 4]) -> [u8; 2] {
    let bits = u32::from_le_bytes(word);
    let is_nan = f32::from_bits(bits).is_nan();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let upper = if is_nan { bits >> 16 | 0x40 } else { rounded >> 16 };
    let [low, high, ..] = upper.to_le_bytes();
    [low, high]
}

#[cfg(test)]
mod tests;
