//! Which tokens the filters keep, found without sorting the row.
//!
//! The kept tokens are a prefix of the order (logit descending, id ascending), so it is enough to
//! find its last one. Tokens near the largest logit are gathered first, by blocks whose maximum is
//! near enough; only if they do not reach far enough, the reach grows. Among those gathered, the
//! cut is found by halving (quickselect), which is linear.

use super::Settings;
use ironstar_device::WEIGHT_BITS;
use std::cmp::Ordering;

/// Logits a block, for which one maximum is kept.
pub(super) const BLOCK: usize = 64;

/// A token that may be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Larger is earlier in the order; see [`key_of`].
    pub key: u64,
    pub weight: u64,
}

impl Candidate {
    pub fn id(self) -> usize {
        usize::try_from(!self.key & 0xffff_ffff).expect("an index of the row")
    }
}

/// Orders tokens: the logit's bits so that larger floats have larger keys (-0 equals +0), then the
/// id, lower ones larger.
pub(super) fn key_of(logit: f32, id: usize) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let upper = if bits >> 31 == 0 { bits | 0x8000_0000 } else { !bits };
    let id = u32::try_from(id).expect("an index of the row");
    u64::from(upper) << 32 | u64::from(!id)
}

/// A row with what is known of it.
pub(super) struct Row<'a> {
    pub logits: &'a [f32],
    pub weights: &'a [u64],
    /// Sum of all weights.
    pub total: u64,
    pub block_max: &'a [f32],
    pub max: f32,
    pub temperature: f64,
}

impl Row<'_> {
    fn candidate(&self, id: usize) -> Candidate {
        Candidate { key: key_of(self.logits[id], id), weight: self.weights[id] }
    }

    /// The logit so far below the largest, in units of temperature.
    #[expect(clippy::cast_possible_truncation, reason = "a reach need not be exact")]
    fn logit_below(&self, reach: f64) -> f32 {
        (f64::from(self.max) - reach * self.temperature) as f32
    }

    /// Weight at a logit; tokens below it weigh at most one more, by rounding.
    fn weight_below(&self, logit: f32) -> u64 {
        let scale = 1.0 / self.temperature;
        let mut weight = [0];
        ironstar_device::exp_weights(&[logit], self.max, scale, &mut weight)
    }
}

/// The filters in whole numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filters {
    /// Most tokens to keep, if fewer than there are.
    count: Option<usize>,
    /// p times 2^53, if below 2^53.
    part: Option<u64>,
    /// Least weight; 0 if none.
    weight: u64,
}

const PART_ONE: u64 = 1 << 53;

impl Filters {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 1, times a power of two that f64 holds"
    )]
    pub fn new(settings: &Settings, tokens: usize) -> Self {
        let part = (settings.top_p * PART_ONE as f64).round() as u64;
        Filters {
            count: (1..tokens).contains(&settings.top_k).then_some(settings.top_k),
            part: (part < PART_ONE).then_some(part),
            weight: (settings.min_p * (1u64 << WEIGHT_BITS) as f64).ceil() as u64,
        }
    }

    /// Whether nothing is filtered.
    pub fn keep_all(&self) -> bool {
        self.count.is_none() && self.part.is_none() && self.weight == 0
    }

    /// Whether the cut lies inside a prefix of so many tokens and such a weight. `low` says that
    /// the prefix holds every token of at least the least weight.
    fn ends_in(&self, count: usize, weight: u64, total: u64, low: bool) -> bool {
        match (self.count, self.part) {
            (Some(most), Some(_)) => count >= most,
            (Some(most), None) => count >= most || low,
            (None, Some(part)) => weight >= share(part, total) || low,
            (None, None) => low,
        }
    }
}

/// ceil(part * total / 2^53).
fn share(part: u64, total: u64) -> u64 {
    let product = u128::from(part) * u128::from(total);
    u64::try_from(product.div_ceil(u128::from(PART_ONE))).expect("a part of the total")
}

/// First reach, in units of temperature: the usual nucleus lies within.
const NEAR: f64 = 3.0;
/// One token in so many is looked at to guess how far a wide nucleus reaches.
const STRIDE: usize = 32;

/// Key of the last token that is kept. Afterwards `candidates` holds at least all kept ones, by
/// ascending id.
pub(super) fn cut(
    row: &Row<'_>,
    filters: &Filters,
    candidates: &mut Vec<Candidate>,
    order: &mut Vec<Candidate>,
) -> u64 {
    for attempt in 0..3 {
        let least = match attempt {
            0 => nearby(row, filters),
            1 => guess(row, filters, order),
            _ => f32::NEG_INFINITY,
        };
        gather(row, least, candidates);
        let weight: u64 = candidates.iter().map(|c| c.weight).sum();
        let all = least == f32::NEG_INFINITY;
        let low = all || (filters.weight > 0 && row.weight_below(least) + 2 < filters.weight);
        if all || filters.ends_in(candidates.len(), weight, row.total, low) {
            break;
        }
    }
    order.clone_from(candidates);
    let mut kept = order.as_mut_slice();
    let mut total = row.total;
    if let Some(count) = filters.count.filter(|count| *count < kept.len()) {
        kept.select_nth_unstable_by(count - 1, earlier);
        kept = &mut kept[..count];
    }
    if filters.count.is_some() {
        total = kept.iter().map(|c| c.weight).sum();
    }
    if let Some(part) = filters.part {
        let count = prefix_reaching(kept, share(part, total));
        kept = &mut kept[..count];
    }
    let heavy = kept.iter().filter(|c| c.weight >= filters.weight);
    heavy.map(|c| c.key).min().expect("the first token weighs most and is always kept")
}

/// Logits from here up are looked at first.
fn nearby(row: &Row<'_>, filters: &Filters) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "a guess")]
    let reach = match filters.weight {
        0 => NEAR,
        weight => libm::log((1u64 << WEIGHT_BITS) as f64 / weight as f64) + 0.01,
    };
    row.logit_below(reach)
}

/// A logit from which top-k or top-p probably end above, from a sample of the row.
fn guess(row: &Row<'_>, filters: &Filters, order: &mut Vec<Candidate>) -> f32 {
    order.clear();
    let sample = (0..row.logits.len()).step_by(STRIDE);
    order.extend(sample.map(|id| row.candidate(id)));
    let count = match (filters.count, filters.part) {
        (Some(count), _) => count / STRIDE * 5 / 4 + 16,
        (None, Some(part)) => {
            let total = order.iter().map(|c| c.weight).sum();
            prefix_reaching(order, share(part + (PART_ONE - part) / 4, total))
        }
        (None, None) => order.len(),
    };
    if count >= order.len() {
        return f32::NEG_INFINITY;
    }
    let (_, last, _) = order.select_nth_unstable_by(count, earlier);
    row.logits[last.id()]
}

fn earlier(a: &Candidate, b: &Candidate) -> Ordering {
    b.key.cmp(&a.key)
}

/// All tokens with at least this logit, by ascending id.
fn gather(row: &Row<'_>, least: f32, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    for (block, &max) in row.block_max.iter().enumerate() {
        if max >= least {
            let start = block * BLOCK;
            let end = (start + BLOCK).min(row.logits.len());
            let ids = (start..end).filter(|&id| row.logits[id] >= least);
            candidates.extend(ids.map(|id| row.candidate(id)));
        }
    }
}

/// Moves the shortest prefix of the order that reaches a weight to the front and returns its
/// length, at least 1. The slice is not empty and its weight is at least `target`.
fn prefix_reaching(slice: &mut [Candidate], target: u64) -> usize {
    let (mut start, mut end, mut left) = (0, slice.len(), target);
    // Before `start` lie the first tokens of the order, and they fall short by `left`.
    while end - start > 1 {
        let middle = start.midpoint(end);
        slice[start..end].select_nth_unstable_by(middle - start, earlier);
        let weight: u64 = slice[start..middle].iter().map(|c| c.weight).sum();
        if weight >= left {
            end = middle;
        } else {
            (start, left) = (middle, left - weight);
        }
    }
    end
}

/// The token whose interval holds `at`, tokens laid out by id.
pub(super) fn walk(weights: &[u64], at: u64) -> usize {
    let mut before = 0;
    for (block, chunk) in weights.chunks(BLOCK).enumerate() {
        let sum: u64 = chunk.iter().sum();
        if at < before + sum {
            for (inside, weight) in chunk.iter().enumerate() {
                before += weight;
                if at < before {
                    return block * BLOCK + inside;
                }
            }
        }
        before += sum;
    }
    unreachable!("the number is below the sum of the weights")
}

/// The likeliest tokens, in order; forbidden ones are left out.
pub(super) fn top(logits: &[f32], block_max: &[f32], count: usize) -> Vec<usize> {
    let mut keys: Vec<u64> = Vec::with_capacity(count.min(logits.len()) + 1);
    if count == 0 {
        return Vec::new();
    }
    for (block, &max) in block_max.iter().enumerate() {
        let start = block * BLOCK;
        if keys.len() == count && key_of(max, start) < keys[count - 1] {
            continue;
        }
        let end = (start + BLOCK).min(logits.len());
        for id in (start..end).filter(|&id| logits[id] > f32::NEG_INFINITY) {
            let key = key_of(logits[id], id);
            if keys.len() == count && key < keys[count - 1] {
                continue;
            }
            let place = keys.partition_point(|&k| k > key);
            keys.insert(place, key);
            keys.truncate(count);
        }
    }
    keys.into_iter().map(|key| Candidate { key, weight: 0 }.id()).collect()
}
