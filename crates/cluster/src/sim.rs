//! What groups of ranks would give that are not here: tokens a second of 1 to 64 ranks and of
//! fleets of replicas, from costs that were measured on a few.
//!
//! [`Costs`] is what was measured (docs/cluster.md shows one, and `ironstar doctor --cluster
//! --json` writes one). [`Costs::rates`] adds up a token of ranks that share every layer,
//! and plays a prompt's chunks through stages one by one; [`Costs::fleet`] gives a request's time
//! to replicas. All of it is arithmetic on a few numbers: nothing is drawn, so the same file gives
//! the same answer.

mod costs;
mod predict;

pub use costs::{Batch, Costs, Experts, LinkCosts, ModelCosts, NodeCosts, PartCosts, Timed};
pub use predict::{Fleet, Layout, Load, Prediction, Rates};

#[cfg(test)]
mod tests;
