//! Settings of a loaded model, and what is reported about it.

use ironstar_device::Element;

/// How a model is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The FP8 and FP4 round trips that are part of the model (spec 2.9). Off only for checking.
    pub round_trips: bool,
    /// How key/value rows are kept.
    pub rows: RowStorage,
    /// Most rows of a step: the size of the scratch buffers.
    pub step_rows_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { round_trips: true, rows: RowStorage::Bf16, step_rows_max: 512 }
    }
}

/// Storage of key/value rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStorage {
    /// Two bytes a value: what the published code keeps.
    Bf16,
    /// Four bytes a value, for checking.
    F32,
}

impl RowStorage {
    pub(crate) fn element(self) -> Element {
        match self {
            RowStorage::Bf16 => Element::Bf16,
            RowStorage::F32 => Element::F32,
        }
    }
}

/// How far loading is; sent before each tensor and once at the end, then with an empty name.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Tensor that comes next.
    pub tensor: &'a str,
    /// Bytes made resident.
    pub bytes_done: usize,
    /// Bytes in all.
    pub bytes_total: usize,
}

/// One line of a memory plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanLine {
    /// What the memory is for.
    pub what: &'static str,
    /// How much.
    pub bytes: u64,
}
