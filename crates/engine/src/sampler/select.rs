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

/// Whether a logit is NaN or +inf. Without a branch, so that loops vectorise.
#[inline(always)]
pub(super) fn is_wrong(logit: f32) -> bool {
    logit.is_nan() | (logit == f32::INFINITY)
}

/// Largest logit of a block, and whether it has one that is NaN or +inf. Sixteen lanes, so that it
/// vectorises.
pub(super) fn block_max(block: &[f32]) -> (f32, bool) {
    const LANES: usize = 16;
    let (mut max, mut wrong) = ([f32::NEG_INFINITY; LANES], [0u32; LANES]);
    let (rows, rest) = block.as_chunks::<LANES>();
    for row in rows {
        for lane in 0..LANES {
            max[lane] = if row[lane] > max[lane] { row[lane] } else { max[lane] };
        }
        for lane in 0..LANES {
            wrong[lane] |= u32::from(is_wrong(row[lane]));
        }
    }
    for (lane, &logit) in rest.iter().enumerate() {
        max[lane] = if logit > max[lane] { logit } else { max[lane] };
        wrong[lane] |= u32::from(is_wrong(logit));
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            let other = max[lane + half];
            max[lane] = if other > max[lane] { other } else { max[lane] };
            wrong[lane] |= wrong[lane + half];
        }
    }
    (max[0], wrong[0] != 0)
}

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
        let start = block * BLOCK;
        (start..self.logits.len().min(start + BLOCK)).map(|id| self.candidate(id))
    }

    /// Weight of the tokens of a block whose logits pass.
    #[inline(always)]
    fn block_weight(&self, block: usize, passes: impl Fn(f32) -> bool) -> u64 {
        let start = block * BLOCK;
        let end = self.logits.len().min(start + BLOCK);
        let pairs = self.logits[start..end].iter().zip(&self.weights[start..end]);
        pairs.map(|(&logit, &weight)| if passes(logit) { weight } else { 0 }).sum()
    }

    /// Blocks with a token from a logit up.
    fn blocks_from(&self, logit: f32) -> usize {
        self.block_max.iter().filter(|max| **max >= logit).count()
    }

    /// Weight of all tokens from a logit up.
    fn weight_from(&self, logit: f32) -> u64 {
        let blocks = self.block_max.iter().enumerate().filter(|(_, max)| **max >= logit);
        blocks.map(|(block, _)| self.block_weight(block, |l| l >= logit)).sum()
    }

    /// The logit so far below the largest, in units of temperature.
    #[expect(clippy::cast_possible_truncation, reason = "a reach need not be exact")]
    fn logit_below(&self, reach: f64) -> f32 {
        (f64::from(self.max) - reach * self.temperature) as f32
    }

    /// More than any token below a logit weighs: weights fall with logits but for their last few
    /// bits.
    fn weight_below(&self, logit: f32) -> u64 {
        let mut weight = [0];
        ironstar_device::exp_weights(&[logit], self.max, 1.0 / self.temperature, &mut weight);
        weight[0] + (weight[0] >> 30) + 2
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

    /// Whether the cut lies in a band of `count` tokens, between two prefixes of the weights
    /// `before` and `weight`. `lowest` says that no token below the band has the least weight.
    fn ends_in(
        &self,
        count: usize,
        (before, weight): (u64, u64),
        total: u64,
        lowest: bool,
    ) -> bool {
        match (self.count, self.part) {
            (Some(most), Some(_)) => count >= most,
            (Some(most), None) => count >= most || lowest,
            (None, Some(part)) => {
                let target = share(part, total);
                before < target.max(1) && (weight >= target || lowest)
            }
            (None, None) => lowest,
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
/// Tokens of a block that are looked at to guess how far a wide nucleus reaches, besides the
/// largest.
const SAMPLE: [usize; 2] = [13, 45];
/// Tokens that each of them stands for.
const STANDS_FOR: u64 = (BLOCK as u64 - 1) / SAMPLE.len() as u64;

/// Where the cut is looked for: tokens with logits from `low` on and below `high`.
struct Band {
    low: f32,
    high: f32,
}

/// Key of the last token that is kept. `band` and `sample` are memory to work in.
pub(super) fn cut(
    row: &Row<'_>,
    filters: &Filters,
    band: &mut Vec<Candidate>,
    sample: &mut Vec<Candidate>,
) -> u64 {
    let mut before = 0;
    let mut bounds = Band { low: f32::NEG_INFINITY, high: f32::INFINITY };
    for attempt in 0..5 {
        bounds = match attempt {
            0 => Band { low: nearby(row, filters), high: f32::INFINITY },
            // Not too many blocks reach a little further: cheaper than a sample.
            1 => match row.logit_below(3.0 * NEAR) {
                low if row.blocks_from(low) <= row.block_max.len() / 4 => {
                    Band { low, high: f32::INFINITY }
                }
                _ => continue,
            },
            2 => guess(row, filters, 2, sample),
            3 => guess(row, filters, 16, sample),
            _ => Band { low: f32::NEG_INFINITY, high: f32::INFINITY },
        };
        let Band { low, high } = bounds;
        before = if high < f32::INFINITY { row.weight_from(high) } else { 0 };
        gather(row, &bounds, band);
        let weight = before + band.iter().map(|c| c.weight).sum::<u64>();
        let all = low == f32::NEG_INFINITY && high == f32::INFINITY;
        let lowest = all || (filters.weight > 0 && row.weight_below(low) < filters.weight);
        if all || filters.ends_in(band.len(), (before, weight), row.total, lowest) {
            break;
        }
    }
    if let (Some(part), None) = (filters.part, filters.count) {
        before += narrow(band, (&bounds, row.max), share(part, row.total) - before, sample);
        std::mem::swap(band, sample);
    }
    let mut kept = band.as_mut_slice();
    if let Some(count) = filters.count.filter(|count| *count < kept.len()) {
        kept.select_nth_unstable_by(count - 1, earlier);
        kept = &mut kept[..count];
    }
    if let Some(part) = filters.part {
        let left = match filters.count {
            Some(_) => share(part, kept.iter().map(|c| c.weight).sum()),
            None => share(part, row.total) - before,
        };
        let count = prefix_reaching(kept, left);
        kept = &mut kept[..count];
    }
    let heavy = kept.iter().filter(|c| c.weight >= filters.weight);
    heavy
        .map(|c| c.key)
        .min()
        .expect("with min-p the band begins at the first token, which is heavy")
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

/// A band in which top-k or top-p probably end, from a sample: the largest of each block, which
/// counts for itself, and a few others, which count for the rest. More `caution` means a wider
/// band.
fn guess(row: &Row<'_>, filters: &Filters, caution: u64, sample: &mut Vec<Candidate>) -> Band {
    sample.clear();
    let mut weights = vec![0; row.block_max.len()];
    ironstar_device::exp_weights(row.block_max, row.max, 1.0 / row.temperature, &mut weights);
    let counts = filters.count.is_some();
    let mut add = |logit: f32, weight: u64, times: u64| {
        let weight = if counts { times } else { weight * times };
        // The number of the sample is in the place of the id.
        sample.push(Candidate { key: key_of(logit, sample.len()), weight });
    };
    for (block, (&max, &weight)) in row.block_max.iter().zip(&weights).enumerate() {
        add(max, weight, 1);
        for id in SAMPLE.map(|place| block * BLOCK + place) {
            if row.logits.get(id).is_some_and(|&logit| logit < max) {
                add(row.logits[id], row.weights[id], STANDS_FOR);
            }
        }
    }
    let total: u64 = sample.iter().map(|c| c.weight).sum();
    let (enough, most) = match (filters.count, filters.part) {
        (Some(count), _) => (0, (count + BLOCK) as u64 + (count / 8) as u64 * caution),
        (None, Some(part)) => {
            let target = share(part, total);
            let (above, below) = (target / 32 * caution, (total - target) / 2);
            (target.saturating_sub(above), target + below + below / 16 * caution)
        }
        (None, None) => (0, total),
    };
    let mut logit_at = |weight: u64| {
        let last = prefix_reaching(sample, weight);
        logit_of(sample[..last].iter().map(|c| c.key).min().expect("at least one"))
    };
    Band {
        low: if most < total { logit_at(most) } else { f32::NEG_INFINITY },
        high: if enough > 0 { logit_at(enough) } else { f32::INFINITY },
    }
}

fn earlier(a: &Candidate, b: &Candidate) -> Ordering {
    b.key.cmp(&a.key)
}

/// All tokens of a band, by ascending id.
fn gather(row: &Row<'_>, band: &Band, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    for (block, &max) in row.block_max.iter().enumerate() {
        if max < band.low {
            continue;
        }
        let start = block * BLOCK;
        let logits = &row.logits[start..row.logits.len().min(start + BLOCK)];
        // No branch for each token: which ones pass cannot be foreseen.
        let (mut found, mut count) = ([0u8; BLOCK], 0);
        for (place, &logit) in (0u8..).zip(logits) {
            found[count] = place;
            count += usize::from(logit >= band.low) & usize::from(logit < band.high);
        }
        candidates.extend(found[..count].iter().map(|&p| row.candidate(start + usize::from(p))));
    }
}

/// Bins of [`narrow`].
const BINS: usize = 256;

/// Puts into `order` the few candidates among which the weight reaches `target`, all candidates if
/// there are few or they fall short, and gives the weight of those before them. Bins are equal
/// steps of the logit.
fn narrow(
    candidates: &[Candidate],
    (band, max): (&Band, f32),
    target: u64,
    order: &mut Vec<Candidate>,
) -> u64 {
    order.clear();
    let top = if band.high < f32::INFINITY { band.high } else { max };
    let steps = BINS as f32 / (top - band.low);
    if candidates.len() < 4 * BINS || !steps.is_finite() || steps == 0.0 {
        order.extend_from_slice(candidates);
        return 0;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let bin = |c: &Candidate| (((top - logit_of(c.key)) * steps) as usize).min(BINS - 1);
    let mut weights = [0u64; BINS];
    candidates.iter().for_each(|c| weights[bin(c)] += c.weight);
    let mut before = 0;
    for (index, weight) in weights.into_iter().enumerate() {
        if before + weight >= target {
            order.extend(candidates.iter().filter(|c| bin(c) == index));
            if !order.is_empty() {
                return before;
            }
        }
        before += weight;
    }
    order.clear();
    order.extend_from_slice(candidates);
    0
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
    let (logit, last) = (logit_of(least), Candidate { key: least, weight: 0 }.id() / BLOCK);
    sums.clear();
    for (block, &max) in row.block_max.iter().enumerate() {
        sums.push(match block.cmp(&last) {
            _ if max < logit => 0,
            // Of tokens with the last one's logit, those before it are kept and those after it are
            // not.
            Ordering::Less => row.block_weight(block, |l| l >= logit),
            Ordering::Greater => row.block_weight(block, |l| l > logit),
            Ordering::Equal => row.block(block).filter(|c| c.key >= least).map(|c| c.weight).sum(),
        });
    }
    sums.iter().sum()
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
