//! Directional steering: in every layer a share of one direction is taken out of the output of
//! attention, of the FFN, or of both, before it spreads over the streams.
//!
//! `y -= scale * v * (v . y)`: a scale of 1 removes the direction v, a negative one strengthens it.
//! The file is the yardstick's: f32, little-endian, `layers x width`, no header.

use crate::{Error, Fingerprint};
use ironstar_device::{Arena, Backend, Buffer, Element};

/// Largest magnitude of a scale.
pub const STEERING_SCALE_MAX: f32 = 100.0;

/// How much a row's length may differ from 1.
const UNIT_TOLERANCE: f64 = 1e-2;

/// One direction a layer; a row of zeros leaves its layer alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Directions {
    layers: usize,
    width: usize,
    values: Vec<f32>,
}

impl Directions {
    /// Reads a file for a model of so many layers of this width. Rows have length 1 or 0.
    pub fn from_bytes(bytes: &[u8], layers: usize, width: usize) -> Result<Self, Error> {
        let wanted = layers * width * 4;
        if bytes.len() != wanted {
            return Err(Error::Steering {
                found: format!("{} bytes", bytes.len()),
                wanted: format!("{layers} layers of {width} f32 are {wanted} bytes"),
            });
        }
        let (words, _) = bytes.as_chunks::<4>();
        Self::new(layers, width, words.iter().map(|word| f32::from_le_bytes(*word)).collect())
    }

    /// Directions from their numbers, `[layers, width]`.
    pub fn new(layers: usize, width: usize, values: Vec<f32>) -> Result<Self, Error> {
        if values.len() != layers * width {
            let found = format!("{} numbers", values.len());
            return Err(Error::Steering { found, wanted: format!("{layers} layers of {width}") });
        }
        for (layer, row) in values.chunks(width.max(1)).enumerate() {
            let square: f64 = row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
            let length = square.sqrt();
            let is_unit = (length - 1.0).abs() <= UNIT_TOLERANCE;
            if !is_unit && length != 0.0 {
                return Err(Error::Steering {
                    found: format!("a row of length {length} for layer {layer}"),
                    wanted: "rows have length 1, or 0 to leave a layer alone".into(),
                });
            }
        }
        Ok(Directions { layers, width, values })
    }

    /// The file's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// The direction of a layer.
    #[must_use]
    pub fn row(&self, layer: usize) -> &[f32] {
        &self.values[layer * self.width..][..self.width]
    }
}

/// How strongly a model is steered.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SteeringScales {
    /// At the output of attention.
    pub attention: f32,
    /// At the output of the FFN, shared expert included.
    pub ffn: f32,
}

impl SteeringScales {
    fn check(self) -> Result<(), Error> {
        for (what, scale) in [("attention", self.attention), ("FFN", self.ffn)] {
            if scale.is_nan() || scale.abs() > STEERING_SCALE_MAX {
                return Err(Error::Steering {
                    found: format!("{scale} as the scale of {what} outputs"),
                    wanted: format!("-{STEERING_SCALE_MAX} to {STEERING_SCALE_MAX}"),
                });
            }
        }
        Ok(())
    }
}

/// Directions on a device, with their scales.
pub(crate) struct Steering {
    arena: Arena,
    /// What other ranks are told.
    pub told: Directions,
    pub directions: Buffer,
    pub scales: SteeringScales,
    print: Fingerprint,
}

impl Steering {
    pub fn new(
        backend: &mut dyn Backend,
        directions: &Directions,
        (layers, width): (usize, usize),
        scales: SteeringScales,
    ) -> Result<Self, Error> {
        scales.check()?;
        if (directions.layers, directions.width) != (layers, width) {
            return Err(Error::Steering {
                found: format!("{} layers of {}", directions.layers, directions.width),
                wanted: format!("the model has {layers} layers of {width}"),
            });
        }
        let arena = backend.arena();
        let made = backend.alloc(arena, Element::F32, directions.values.len());
        let made = made.and_then(|buffer| {
            backend.write_f32(buffer, 0, &directions.values)?;
            Ok(buffer)
        });
        let directions_on_device = made.inspect_err(|_| backend.release(arena))?;
        let mut print = Fingerprint::default();
        print.add(&directions.to_bytes());
        let told = directions.clone();
        Ok(Steering { arena, told, directions: directions_on_device, scales, print })
    }

    pub fn set_scales(&mut self, scales: SteeringScales) -> Result<(), Error> {
        scales.check()?;
        self.scales = scales;
        Ok(())
    }

    /// What tells states made under it from others; empty where it changes nothing.
    pub fn identity(&self) -> Vec<u8> {
        let SteeringScales { attention, ffn } = self.scales;
        if attention == 0.0 && ffn == 0.0 {
            return Vec::new();
        }
        let scales = [attention, ffn].map(f32::to_le_bytes);
        [&self.print.bytes()[..], scales.as_flattened()].concat()
    }

    pub fn release(self, backend: &mut dyn Backend) {
        backend.release(self.arena);
    }
}
