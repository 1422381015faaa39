//! Which tokens the filters keep, found without sorting the row.
//!
//! The kept tokens are a prefix of the order (logit descending, id ascending), so it is enough to
//! find its last one. It lies in a band of logits that whole sums over the row close in on, from
//! the largest logit down; the tokens of a band that is narrow enough are gathered, and among them
//! the last one is found by halving (quickselect). The sums cost a few microseconds each where few
//! blocks reach the band, as in the rows of language models.

use super::Settings;
use ironstar_device::{LOGIT_BLOCK, WEIGHT_BITS, weights_from};
use std::cmp::Ordering;
use std::ops::Range;

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

/// A key that every token has at least: that of -inf and an id beyond all.
pub(super) const LAST: u64 = 0x007f_ffff << 32;

/// The logit of a key.
fn logit_of(key: u64) -> f32 {
    let upper = u32::try_from(key >> 32).expect("32 bits");
    f32::from_bits(if upper >> 31 == 1 { upper & 0x7fff_ffff } else { !upper })
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

    /// Tokens of a block.
    fn block(&self, block: usize) -> impl Iterator<Item = Candidate> {
        let start = block * LOGIT_BLOCK;
        (start..self.logits.len().min(start + LOGIT_BLOCK)).map(|id| self.candidate(id))
    }

    /// Number and weight of the tokens from a logit up; `sums` is memory to work in.
    fn from(&self, logit: f32, sums: &mut Vec<u64>) -> Amount {
        sums.resize(self.block_max.len(), 0);
        let (count, weight) = weights_from(self.logits, self.weights, self.block_max, logit, sums);
        Amount { count, weight }
    }

    /// The logit so far below the largest, in units of temperature.
    #[expect(clippy::cast_possible_truncation, reason = "a reach need not be exact")]
    fn logit_below(&self, reach: f64) -> f32 {
        (f64::from(self.max) - reach * self.temperature) as f32
    }
}

/// Some tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    count: usize,
    weight: u64,
}

/// What a prefix of the order must reach.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// So many tokens.
    Count(usize),
    /// A weight, above 0.
    Weight(u64),
}

impl Goal {
    fn is_reached(self, amount: Amount) -> bool {
        match self {
            Goal::Count(count) => amount.count >= count,
            Goal::Weight(weight) => amount.weight >= weight,
        }
    }

    /// How far an amount is from the goal; exact enough for a guess.
    #[expect(clippy::cast_precision_loss, reason = "a guess")]
    fn distance(self, amount: Amount) -> f32 {
        match self {
            Goal::Count(count) => count.abs_diff(amount.count) as f32,
            Goal::Weight(weight) => weight.abs_diff(amount.weight) as f32,
        }
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
}

/// ceil(part * total / 2^53).
fn share(part: u64, total: u64) -> u64 {
    let product = u128::from(part) * u128::from(total);
    u64::try_from(product.div_ceil(u128::from(PART_ONE))).expect("a part of the total")
}

/// A key that the kept tokens have at least, and no other. `band` and `sums` are memory to work in.
pub(super) fn cut(
    row: &Row<'_>,
    filters: &Filters,
    band: &mut Vec<Candidate>,
    sums: &mut Vec<u64>,
) -> u64 {
    let (mut least, mut total) = (LAST, row.total);
    if let Some(count) = filters.count {
        least = locate(row, Goal::Count(count), band, sums);
        total = kept(row, least, sums);
    }
    if let Some(part) = filters.part {
        let goal = Goal::Weight(share(part, total).max(1));
        least = least.max(locate(row, goal, band, sums));
    }
    if filters.weight > 0 {
        least = least.max(lightest(row, filters.weight, band));
    }
    least
}

/// First reach, in units of temperature: the usual nucleus lies within.
const NEAR: f64 = 3.0;
/// Times that the reach grows threefold before all is taken.
const REACHES: usize = 4;
/// A band of so few tokens is narrow enough.
const BAND: usize = 512;
/// Most sums that narrow a band.
const NARROWINGS: usize = 16;

/// Key of the last token of the shortest prefix that reaches a goal; the row does.
fn locate(row: &Row<'_>, goal: Goal, band: &mut Vec<Candidate>, sums: &mut Vec<u64>) -> u64 {
    // Tokens from `high` up fall short, those from `low` up do not.
    let (mut high, mut before) = (row.max.next_up(), Amount::default());
    let mut low = f32::NEG_INFINITY;
    let mut after = Amount { count: row.logits.len(), weight: row.total };
    let mut reach = NEAR;
    for _ in 0..REACHES {
        let logit = row.logit_below(reach);
        let amount = row.from(logit, sums);
        if goal.is_reached(amount) {
            (low, after) = (logit, amount);
            break;
        }
        if logit < high {
            (high, before) = (logit, amount);
        }
        reach *= 3.0;
    }
    // False position; an end that stays is drawn nearer each time (the Illinois rule).
    let (mut above, mut below) = (goal.distance(before), goal.distance(after));
    let mut was_reached = None;
    for _ in 0..NARROWINGS {
        if after.count - before.count <= BAND || low == f32::NEG_INFINITY {
            break;
        }
        let part = (above / (above + below).max(1.0)).clamp(0.01, 0.99);
        let logit = high - (high - low) * part;
        if logit <= low || logit >= high {
            break;
        }
        let amount = row.from(logit, sums);
        let reached = goal.is_reached(amount);
        if reached {
            (low, after, below) = (logit, amount, goal.distance(amount));
        } else {
            (high, before, above) = (logit, amount, goal.distance(amount));
        }
        if was_reached == Some(reached) {
            let stays = if reached { &mut above } else { &mut below };
            *stays *= 0.5;
        }
        was_reached = Some(reached);
    }
    gather(row, low, high, band);
    let count = match goal {
        Goal::Count(count) => {
            let left = count - before.count;
            band.select_nth_unstable_by(left - 1, earlier);
            left
        }
        Goal::Weight(weight) => prefix_reaching(band, weight - before.weight),
    };
    band[..count].iter().map(|c| c.key).min().expect("a prefix has a token")
}

/// A key that the tokens of at least a weight have at least, and no other.
fn lightest(row: &Row<'_>, weight: u64, band: &mut Vec<Candidate>) -> u64 {
    // Weights fall with logits but for a few parts in 10^12, so a band about the logit of this
    // weight tells: above it all are heavy enough, below it none.
    let reach = libm::log((1u64 << WEIGHT_BITS) as f64 / weight as f64);
    let high = row.logit_below(reach - 0.01).next_up();
    gather(row, row.logit_below(reach + 0.01).next_down(), high, band);
    let heavy = band.iter().filter(|c| c.weight >= weight);
    heavy.map(|c| c.key).min().unwrap_or_else(|| key_of(high, 0) & !0xffff_ffff)
}

fn earlier(a: &Candidate, b: &Candidate) -> Ordering {
    b.key.cmp(&a.key)
}

/// All tokens with logits from `low` up and below `high`, by ascending id.
fn gather(row: &Row<'_>, low: f32, high: f32, band: &mut Vec<Candidate>) {
    band.clear();
    for (block, &max) in row.block_max.iter().enumerate() {
        if max < low {
            continue;
        }
        let start = block * LOGIT_BLOCK;
        let logits = &row.logits[start..row.logits.len().min(start + LOGIT_BLOCK)];
        let inside = |logit: f32| (logit >= low) & (logit < high);
        if logits.iter().map(|&logit| u32::from(inside(logit))).sum::<u32>() == 0 {
            continue;
        }
        let ids = logits.iter().enumerate().filter(|(_, logit)| inside(**logit));
        band.extend(ids.map(|(place, _)| row.candidate(start + place)));
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

/// Weights of each block's kept tokens, those with keys from `least` on; and their sum.
pub(super) fn kept(row: &Row<'_>, least: u64, sums: &mut Vec<u64>) -> u64 {
    let logit = logit_of(least);
    sums.resize(row.block_max.len(), 0);
    let id = usize::try_from(!least & 0xffff_ffff).unwrap_or(usize::MAX);
    let last = (id / LOGIT_BLOCK).min(sums.len());
    // Of tokens with the last one's logit, those before it are kept and those after it are not.
    let from = |blocks: Range<usize>, logit: f32, sums: &mut [u64]| {
        let at = |block: usize| row.logits.len().min(block * LOGIT_BLOCK);
        let ids = at(blocks.start)..at(blocks.end);
        let (logits, weights) = (&row.logits[ids.clone()], &row.weights[ids]);
        weights_from(logits, weights, &row.block_max[blocks.clone()], logit, &mut sums[blocks]).1
    };
    let mut total = from(0..last, logit, sums);
    if last < sums.len() {
        sums[last] = row.block(last).filter(|c| c.key >= least).map(|c| c.weight).sum();
        total += sums[last] + from(last + 1..sums.len(), logit.next_up(), sums);
    }
    total
}

/// The kept token whose interval holds `at`, tokens laid out by id.
pub(super) fn walk(row: &Row<'_>, least: u64, sums: &[u64], at: u64) -> usize {
    let mut before = 0;
    for (block, sum) in sums.iter().enumerate() {
        if at < before + sum {
            for candidate in row.block(block).filter(|c| c.key >= least) {
                before += candidate.weight;
                if at < before {
                    return candidate.id();
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
        let start = block * LOGIT_BLOCK;
        if keys.len() == count && key_of(max, start) < keys[count - 1] {
            continue;
        }
        let end = (start + LOGIT_BLOCK).min(logits.len());
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
