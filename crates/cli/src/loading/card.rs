//! What a card would hold, and how many rows its steps have room for.

use super::Opened;
use crate::commands::gib;
use crate::flags::{self, CARD_CHUNK, CHUNK};
use ironstar_device::CudaDevice;
use ironstar_engine::{EngineOptions, RESERVE_BYTES};
use ironstar_gguf::Gguf;
use ironstar_model::{Model, Options as ModelOptions, Shape};

/// What a card would hold.
pub struct CardPlan<'a> {
    card: &'a CudaDevice,
    shape: Shape,
    options: &'a EngineOptions,
    context: usize,
    drafts: bool,
    weights: u64,
    /// Whether the card reads them in the file's pages.
    in_place: bool,
    /// Of a step.
    pub rows: usize,
}

impl<'a> CardPlan<'a> {
    /// A file that cannot be read is told of when it is loaded.
    pub fn new(
        card: &'a CudaDevice,
        opened: &Opened,
        options: &'a EngineOptions,
        flags: &flags::Model,
    ) -> Option<CardPlan<'a>> {
        let bytes = |gguf: &Gguf| -> u64 {
            gguf.tensors().iter().filter_map(ironstar_gguf::TensorInfo::byte_count).sum()
        };
        let weights = bytes(&opened.gguf) + opened.drafter.as_ref().map_or(0, bytes);
        let shape = Shape::from_metadata(opened.gguf.metadata()).ok()?;
        let (context, drafts, rows) = (flags.ctx, opened.drafter.is_some(), options.step_rows);
        let in_place = card.reads_mapped && opened.gguf.is_packed();
        Some(CardPlan { card, shape, options, context, drafts, weights, in_place, rows })
    }

    /// A session's state, and what steps of so many rows need.
    fn beside(&self, rows: usize) -> u64 {
        let (round_trips, kept) = (self.options.round_trips, self.options.rows);
        let options = ModelOptions { round_trips, rows: kept, step_rows_max: rows };
        let plan = Model::memory_plan(&self.shape, self.context, &options, self.drafts);
        plan.iter().map(|line| line.bytes).sum()
    }

    /// The longest steps that leave the room that is kept free; short ones where the model does not
    /// fit, which is said by who refuses it.
    pub fn choose_rows(&mut self) {
        let free = self.card.memory_free.saturating_sub(RESERVE_BYTES);
        let fits = |rows: &usize| self.weights.saturating_add(self.beside(*rows)) <= free;
        let shorter = |rows: &usize| (*rows > CHUNK).then_some(rows / 2);
        self.rows = std::iter::successors(Some(CARD_CHUNK), shorter).find(fits).unwrap_or(CHUNK);
    }

    pub fn text(&self) -> String {
        let unified = match (self.card.unified, self.in_place) {
            (true, true) => {
                ", which the processor shares: weights are read where the file is mapped"
            }
            (true, false) => {
                ", which the processor shares: pages of the file are given back as they are copied"
            }
            (false, _) => "",
        };
        format!(
            "{} has {} free{unified}; the weights take {}, and {} are for a session of {} tokens \
             and steps of {} rows",
            self.card.name,
            gib(self.card.memory_free),
            gib(self.weights),
            gib(self.beside(self.rows)),
            self.context,
            self.rows,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironstar_model::deepseek_v4::known;

    #[test]
    fn steps_are_as_long_as_there_is_room_for() {
        let options = EngineOptions::default();
        let device = |memory_free| CudaDevice {
            index: 0,
            name: "a card".into(),
            capability: (9, 0),
            driver: "13.0".into(),
            multiprocessors: 132,
            memory_total: 1 << 40,
            memory_free,
            unified: false,
            reads_mapped: false,
        };
        let weights = 80 << 30;
        let rows = |free: u64| {
            let card = device(free);
            let mut plan = CardPlan {
                card: &card,
                shape: known::flash(),
                options: &options,
                context: 8192,
                drafts: false,
                weights,
                in_place: false,
                rows: CHUNK,
            };
            plan.choose_rows();
            let beside = plan.beside(plan.rows);
            (plan.rows, beside)
        };
        let (most, beside) = rows(u64::MAX);
        assert_eq!(most, CARD_CHUNK);
        let enough = weights + beside + RESERVE_BYTES;
        assert_eq!(rows(enough).0, CARD_CHUNK);
        assert_eq!(rows(enough - 1).0, CARD_CHUNK / 2);
        assert_eq!(rows(0).0, CHUNK);
    }
}
