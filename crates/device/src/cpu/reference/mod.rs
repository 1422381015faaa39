//! What each operation means, one file a family. Every function checks its operands, then runs a
//! kernel over independent rows, heads or groups.

pub(super) mod attention;
pub(super) mod compressor;
pub(super) mod experts;
pub(super) mod heads;
pub(super) mod indexer;
pub(super) mod norm;
pub(super) mod project;
pub(super) mod router;
pub(super) mod steer;
pub(super) mod streams;

use super::pool::Pool;
use super::product::{Inputs, View};
use super::spare::grow;
use ironstar_quant::Activation;

/// Memory that operations reuse; its contents mean nothing between operations.
#[derive(Default)]
pub(super) struct Scratch {
    inputs: InputSet,
    /// Coefficients before they are split: [rows, matrix.rows].
    mixes: Vec<f32>,
    /// One stretch a part: rows that are worked on.
    parts: Vec<f32>,
    outputs: project::Outputs,
    attention: attention::Scratch,
    compressor: compressor::Scratch,
    indexer: indexer::Scratch,
    experts: experts::Scratch,
}

/// The same rows prepared for each kind of activation that an operation's matrices want.
#[derive(Default)]
pub(super) struct InputSet {
    int8x32: Inputs,
    int8x256: Inputs,
}

impl InputSet {
    /// `x` [rows, columns] as it was prepared for an activation.
    fn get<'a>(
        &'a self,
        activation: Activation,
        x: &'a [f32],
        [rows, columns]: [usize; 2],
    ) -> View<'a> {
        match activation {
            Activation::F32 => View::of_floats(x, rows, columns),
            Activation::Int8x32 => self.int8x32.view(),
            Activation::Int8x256 => self.int8x256.view(),
        }
    }

    /// Prepares `x` [rows, columns] for each of the activations.
    fn prepare(
        &mut self,
        pool: &Pool,
        activations: impl IntoIterator<Item = Activation>,
        x: &[f32],
        [rows, columns]: [usize; 2],
    ) {
        let (mut has_32, mut has_256) = (false, false);
        for activation in activations {
            let (inputs, done) = match activation {
                Activation::F32 => continue,
                Activation::Int8x32 => (&mut self.int8x32, &mut has_32),
                Activation::Int8x256 => (&mut self.int8x256, &mut has_256),
            };
            if !std::mem::replace(done, true) {
                inputs.prepare(pool, activation, x, rows, columns);
            }
        }
    }
}
