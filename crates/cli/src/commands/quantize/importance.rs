//! Importances of the inputs of tensors (`--imatrix`): read, checked against the plan, and handed
//! to the encoders.

use super::plan::Planned;
use super::source::Source;
use crate::failure::Failure;
use crate::loading::from_gguf;
use ironstar_gguf::{Imatrix, TensorKind, Value};
use ironstar_model::deepseek_v4::TensorSpec;
use ironstar_quant::Format;
use std::path::Path;

/// An opened file of importances.
pub struct Importances {
    imatrix: Imatrix,
    /// Its name without folders.
    name: String,
}

/// What it does for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Tensors whose encoding it steers.
    pub weighed: usize,
    /// Tensors that it could steer but says nothing of.
    pub unknown: usize,
}

impl Importances {
    /// Opens a file of either layout.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let imatrix = Imatrix::open(path).map_err(|error| from_gguf(&error))?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Importances { imatrix, name: name.unwrap_or_default() })
    }

    /// Checks that what it says is of this model, and of all its tensors if that is wanted.
    pub fn check<'a>(
        &self,
        all: impl Iterator<Item = &'a Planned>,
        source: &Source,
        strict: bool,
    ) -> Result<Reach, Failure> {
        let (mut reach, mut known) = (Reach { weighed: 0, unknown: 0 }, 0);
        for Planned { spec, kind } in all {
            let has = self
                .imatrix
                .has(&spec.name, spec.dims[0], spec.stack())
                .map_err(|error| from_gguf(&error))?;
            known += usize::from(has);
            match (is_steered(*kind) && !source.copies(spec, *kind), has) {
                (false, _) => {}
                (true, true) => reach.weighed += 1,
                (true, false) if strict => {
                    return Err(Failure::caller(format!(
                        "--imatrix {}: it says nothing of {}; collect importances of all tensors, \
                         or leave --imatrix-strict out",
                        self.name, spec.name
                    )));
                }
                (true, false) => reach.unknown += 1,
            }
        }
        if known == 0 {
            return Err(Failure::caller(format!(
                "--imatrix {}: none of its {} tensors is one of this model's; importances that \
                 were collected with this model are wanted",
                self.name,
                self.imatrix.names().len()
            )));
        }
        Ok(reach)
    }

    /// Those of one matrix of a tensor, one for each column.
    pub fn of(&self, spec: &TensorSpec, index: usize) -> Result<Option<Vec<f32>>, Failure> {
        self.imatrix
            .of(&spec.name, index, spec.dims[0], spec.stack())
            .map_err(|error| from_gguf(&error))
    }

    /// What the file that is made says of them, by the keys that llama.cpp uses.
    pub fn metadata(&self, weighed: usize) -> Vec<(String, Value)> {
        let count = |count: u64| Value::U32(u32::try_from(count).unwrap_or(u32::MAX));
        let mut all = vec![
            ("quantize.imatrix.file".to_owned(), Value::String(self.name.clone())),
            ("quantize.imatrix.entries_count".to_owned(), count(weighed as u64)),
            ("quantize.imatrix.chunks_count".to_owned(), count(self.imatrix.chunks())),
        ];
        if let Some(dataset) = self.imatrix.datasets().first() {
            let dataset = Value::String(dataset.clone());
            all.insert(1, ("quantize.imatrix.dataset".to_owned(), dataset));
        }
        all
    }
}

/// Whether importances change how a tensor is encoded.
fn is_steered(kind: TensorKind) -> bool {
    match kind {
        TensorKind::Block(format) => {
            !matches!(format, Format::F32 | Format::F16 | Format::Bf16 | Format::Q8_0)
        }
        _ => false,
    }
}
