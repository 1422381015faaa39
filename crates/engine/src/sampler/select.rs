//! Which tokens the filters keep, found without sorting the row.
//!
//! The kept tokens are a prefix of the order (logit descending, id ascending), so it is enough to
//! find its last one. It lies in a band of logits that one sum near the largest logit bounds; that
//! costs a few microseconds where few blocks reach so far, as in the rows of language models. Where
//! the band is still wide, the tokens of some blocks tell where the last one probably is, one pass
//! over the row sums what is above and gathers what is there, and only if it is elsewhere do more
//! sums close in on it. Among the gathered tokens it is found by halving (quickselect).

use super::Settings;
use ironstar_device::{
    LOGIT_BLOCK, LOGIT_STRIDE, WEIGHT_BITS, logit_steps, weights_from, weights_split,
};
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

    /// Number and weight of the tokens from `high` up; those from `low` up to there are gathered,
    /// by ascending id.
    fn split(&self, low: f32, high: f32, room: &mut Room) -> Amount {
        room.ids.resize(self.logits.len() + LOGIT_BLOCK, 0);
        room.strides.resize(self.logits.len().div_ceil(LOGIT_STRIDE), 0);
        room.strides_from = None;
        let Room { band, ids, strides, .. } = room;
        let logits = (low, high);
        let parted = weights_split(self.logits, self.weights, self.block_max, logits, ids, strides);
        band.clear();
        band.extend(ids[..parted.between].iter().map(|&id| self.candidate(id as usize)));
        Amount { count: parted.count, weight: parted.weight }
    }

    /// Whether three blocks in four lie below a logit.
    fn few_reach(&self, logit: f32) -> bool {
        let reach = self.block_max.iter().filter(|max| **max >= logit).count();
        reach < self.block_max.len() / 4
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
    fn distance(self, amount: Amount) -> f64 {
        match self {
            Goal::Count(count) => count.abs_diff(amount.count) as f64,
            Goal::Weight(weight) => weight.abs_diff(amount.weight) as f64,
        }
    }
}

/// The filters in whole numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filters {
    /// Most tokens to keep, if fewer than there are.
    pub count: Option<usize>,
    /// p times 2^53, if below 2^53.
    pub part: Option<u64>,
    /// Least weight; 0 if none.
    pub weight: u64,
}

pub(super) const PART_ONE: u64 = 1 << 53;

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

/// Memory to work in.
#[derive(Debug, Default)]
pub(super) struct Room {
    band: Vec<Candidate>,
    /// The band's, and as much memory as a row's need.
    ids: Vec<u32>,
    sums: Vec<u64>,
    /// Weight of the tokens of each [`LOGIT_STRIDE`] with keys from [`Room::strides_from`] on.
    strides: Vec<u64>,
    strides_from: Option<u64>,
    steps: Steps,
}

/// A prefix of the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix {
    /// Its tokens have keys from here on, and no others.
    pub least: u64,
    /// Their weight.
    pub weight: u64,
}

/// The tokens that the filters keep.
pub(super) fn cut(row: &Row<'_>, filters: &Filters, room: &mut Room) -> Prefix {
    let mut kept = Prefix { least: LAST, weight: row.total };
    room.strides_from = None;
    if let Some(count) = filters.count {
        kept = locate(row, Goal::Count(count), room);
    }
    if let Some(part) = filters.part {
        // It reaches a part of what is kept, so it is no longer.
        kept = locate(row, Goal::Weight(share(part, kept.weight).max(1)), room);
    }
    if filters.weight > 0 {
        let least = lightest(row, filters.weight, room);
        if least > kept.least {
            room.sums.resize(row.block_max.len(), 0);
            let weight = weight_in(row, least, 0..row.block_max.len(), &mut room.sums);
            kept = Prefix { least, weight };
        }
    }
    kept
}

/// A band of so few tokens is narrow enough.
const BAND: usize = 3072;
/// Most sums that narrow a band, after one look at some of its tokens.
const NARROWINGS: usize = 20;

/// A band of logits that holds the last token of a prefix: tokens from `high` up fall short of the
/// goal, those from `low` up do not.
struct Band {
    low: f32,
    after: Amount,
    high: f32,
    before: Amount,
}

impl Band {
    fn count(&self) -> usize {
        self.after.count - self.before.count
    }

    /// Takes in what was found at a logit inside.
    fn narrow(&mut self, goal: Goal, logit: f32, amount: Amount) -> bool {
        let reached = goal.is_reached(amount);
        if reached {
            (self.low, self.after) = (logit, amount);
        } else {
            (self.high, self.before) = (logit, amount);
        }
        reached
    }
}

/// The shortest prefix that reaches a goal; the row does.
fn locate(row: &Row<'_>, goal: Goal, room: &mut Room) -> Prefix {
    let after = Amount { count: row.logits.len(), weight: row.total };
    let (low, high) = (f32::NEG_INFINITY, row.max.next_up());
    let mut band = Band { low, after, high, before: Amount::default() };
    // Logits that few blocks reach, so that the sum costs little.
    for reach in [3.0, 6.0, 12.0] {
        let logit = row.logit_below(reach);
        if band.low > f32::NEG_INFINITY || logit >= band.high || !row.few_reach(logit) {
            break;
        }
        band.narrow(goal, logit, row.from(logit, &mut room.sums));
    }
    let mut gathered = false;
    for _ in 0..ESTIMATES {
        if band.count() <= BAND {
            break;
        }
        let Some(guess) = estimate(row, goal, &band, &mut room.steps) else { break };
        if guess.count > SPLIT {
            band.narrow(goal, guess.middle, row.from(guess.middle, &mut room.sums));
            continue;
        }
        let before = row.split(guess.low, guess.high, room);
        let inside: u64 = room.band.iter().map(|c| c.weight).sum();
        let after =
            Amount { count: before.count + room.band.len(), weight: before.weight + inside };
        gathered = !band.narrow(goal, guess.high, before) && band.narrow(goal, guess.low, after);
        break;
    }
    if !gathered {
        narrow(row, goal, &mut band, &mut room.sums);
        row.split(band.low, band.high, room);
    }
    let count = match goal {
        Goal::Count(count) => {
            let left = count - band.before.count;
            room.band.select_nth_unstable_by(left - 1, earlier);
            left
        }
        Goal::Weight(weight) => prefix_reaching(&mut room.band, weight - band.before.weight),
    };
    let (mut least, mut weight) = (u64::MAX, band.before.weight);
    for token in &room.band[..count] {
        least = least.min(token.key);
        weight += token.weight;
        room.strides[token.id() / LOGIT_STRIDE] += token.weight;
    }
    room.strides_from = Some(least);
    Prefix { least, weight }
}

/// Narrows a band by whole sums: false position; an end that stays is drawn nearer each time (the
/// Illinois rule).
fn narrow(row: &Row<'_>, goal: Goal, band: &mut Band, sums: &mut Vec<u64>) {
    let (mut above, mut below) = (goal.distance(band.before), goal.distance(band.after));
    let mut was_reached = None;
    for _ in 0..NARROWINGS {
        if band.count() <= BAND {
            break;
        }
        // Below all that weighs anything lies nothing of interest.
        let low = band.low.max(row.logit_below(32.0));
        let part = (above / (above + below).max(1.0)).clamp(0.01, 0.99);
        let logit = part_way((band.high, low), part);
        if logit <= band.low || logit >= band.high {
            break;
        }
        let amount = row.from(logit, sums);
        let reached = band.narrow(goal, logit, amount);
        *(if reached { &mut below } else { &mut above }) = goal.distance(amount);
        if was_reached == Some(reached) {
            *(if reached { &mut above } else { &mut below }) *= 0.5;
        }
        was_reached = Some(reached);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a part from 0.01 to 0.99")]
fn part_way((from, to): (f32, f32), part: f64) -> f32 {
    from - (from - to) * part as f32
}

/// Tokens that are looked at for an estimate.
const SAMPLE: usize = 4096;
/// Steps of logits in which they are counted.
const STEPS: usize = 1024;
/// Most estimates.
const ESTIMATES: usize = 3;
/// Most tokens that are gathered after an estimate.
const SPLIT: usize = 8192;

/// Some tokens of a band, counted by steps of their logits from its top down.
#[derive(Debug)]
struct Steps {
    counts: [u32; STEPS],
    /// Amount of the tokens before each step, and of their squares; the last entry is the whole.
    before: [(f64, f64); STEPS + 1],
}

impl Default for Steps {
    fn default() -> Self {
        Steps { counts: [0; STEPS], before: [(0.0, 0.0); STEPS + 1] }
    }
}

impl Steps {
    /// The step in which so much is reached.
    fn reaching(&self, amount: f64) -> usize {
        self.before[1..STEPS].partition_point(|before| before.0 < amount)
    }
}

/// Where the last token of a prefix probably lies.
struct Guess {
    low: f32,
    middle: f32,
    high: f32,
    /// Tokens from `low` to `high`, about.
    count: usize,
}

/// A guess from the tokens of some blocks and the exact amounts at both ends of the band; `None`
/// where they tell nothing. Sums over the row decide whether it is right.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn estimate(row: &Row<'_>, goal: Goal, band: &Band, steps: &mut Steps) -> Option<Guess> {
    let every = (row.logits.len() / SAMPLE).max(1);
    let mut least = [f32::INFINITY; LOGIT_BLOCK];
    for block in row.logits.as_chunks::<LOGIT_BLOCK>().0.iter().step_by(every) {
        for (least, &logit) in least.iter_mut().zip(block) {
            *least = if logit < *least { logit } else { *least };
        }
    }
    let floor = least.into_iter().fold(f32::INFINITY, f32::min);
    let floor = floor.max(band.low).max(row.logit_below(32.0));
    let top = band.high;
    let per_step = STEPS as f32 / (top - floor);
    if floor >= top || !per_step.is_finite() {
        return None;
    }
    let seen = logit_steps(row.logits, every, (band.low, top), per_step, &mut steps.counts);
    // What one sampled token stands for.
    let stands_for = row.logits.len() as f64 / seen as f64;
    weigh_steps(row, goal, (top, per_step), steps);
    // The place can be reckoned from either end of the band; what lies between it and that end
    // says how well.
    let (total, squares) = steps.before[STEPS];
    let from_top = goal.distance(band.before) / stands_for;
    let from_bottom = total - goal.distance(band.after) / stands_for;
    let above = steps.before[steps.reaching(from_top) + 1].1;
    let below = squares - steps.before[steps.reaching(from_bottom)].1;
    let (place, squares) = if above < below { (from_top, above) } else { (from_bottom, below) };
    let error = 2.5 * squares.max(0.0).sqrt();
    let (first, last) = (steps.reaching(place - error), steps.reaching(place + error));
    let logit_at = |step: usize| top - step as f32 / per_step;
    // The steps of both ends stay inside.
    let high = if first == 0 { band.high } else { logit_at(first).next_up().min(band.high) };
    let low = logit_at(last + 1).next_down().max(band.low);
    let middle = logit_at(steps.reaching(place) + 1).clamp(low, high);
    let count = every * steps.counts[first..=last].iter().map(|c| *c as usize).sum::<usize>();
    (low < middle && middle < high).then_some(Guess { low, middle, high, count })
}

/// Sums what was counted. All tokens of a step are taken to weigh what one in its middle does: a
/// step is narrow, and the sample itself knows less.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn weigh_steps(row: &Row<'_>, goal: Goal, (top, per_step): (f32, f32), steps: &mut Steps) {
    let width = 1.0 / (f64::from(per_step) * row.temperature);
    let (mut one, fall) = match goal {
        Goal::Count(_) => (1.0, 1.0),
        Goal::Weight(_) => {
            let reach = f64::from(row.max - top) / row.temperature;
            ((1u64 << WEIGHT_BITS) as f64 * libm::exp(-reach - 0.5 * width), libm::exp(-width))
        }
    };
    let mut sum = (0.0, 0.0);
    for (count, before) in steps.counts.iter().zip(&mut steps.before[1..]) {
        let amount = f64::from(*count) * one;
        sum = (sum.0 + amount, sum.1 + amount * one);
        *before = sum;
        one *= fall;
    }
}

/// A key that the tokens of at least a weight have at least, and no other.
fn lightest(row: &Row<'_>, weight: u64, room: &mut Room) -> u64 {
    // Weights fall with logits but for a few parts in 10^12, so a band about the logit of this
    // weight tells: above it all are heavy enough, below it none.
    let reach = libm::log((1u64 << WEIGHT_BITS) as f64 / weight as f64);
    let high = row.logit_below(reach - 0.01).next_up();
    row.split(row.logit_below(reach + 0.01).next_down(), high, room);
    let heavy = room.band.iter().filter(|c| c.weight >= weight);
    heavy.map(|c| c.key).min().unwrap_or_else(|| key_of(high, 0) & !0xffff_ffff)
}

fn earlier(a: &Candidate, b: &Candidate) -> Ordering {
    b.key.cmp(&a.key)
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

/// Weight of the tokens with keys from `least` on in some blocks, and in each of them.
fn weight_in(row: &Row<'_>, least: u64, blocks: Range<usize>, sums: &mut [u64]) -> u64 {
    let logit = logit_of(least);
    let id = usize::try_from(!least & 0xffff_ffff).unwrap_or(usize::MAX);
    let last = (id / LOGIT_BLOCK).clamp(blocks.start, blocks.end);
    // Of tokens with the last one's logit, those before it are kept and those after it are not.
    let from = |part: Range<usize>, logit: f32, sums: &mut [u64]| {
        let at = |block: usize| row.logits.len().min(block * LOGIT_BLOCK);
        let ids = at(part.start)..at(part.end);
        let (logits, weights) = (&row.logits[ids.clone()], &row.weights[ids]);
        let sums = &mut sums[part.start - blocks.start..part.end - blocks.start];
        weights_from(logits, weights, &row.block_max[part], logit, sums).1
    };
    let mut total = from(blocks.start..last, logit, sums);
    if last < blocks.end {
        let here = row.block(last).filter(|c| c.key >= least).map(|c| c.weight).sum();
        sums[last - blocks.start] = here;
        total += here + from(last + 1..blocks.end, logit.next_up(), sums);
    }
    total
}

/// Blocks that are summed at once on the way to a token.
const STRIDE: usize = LOGIT_STRIDE / LOGIT_BLOCK;

/// The kept token whose interval holds `at`, tokens laid out by id.
pub(super) fn walk(row: &Row<'_>, least: u64, at: u64, room: &Room) -> usize {
    let known = if room.strides_from == Some(least) { &room.strides[..] } else { &[] };
    let (mut before, blocks) = (0, row.block_max.len());
    let mut sums = [0; STRIDE];
    for (stride, start) in (0..blocks).step_by(STRIDE).enumerate() {
        if let Some(sum) = known.get(stride)
            && at >= before + sum
        {
            before += sum;
            continue;
        }
        let end = blocks.min(start + STRIDE);
        let sum = weight_in(row, least, start..end, &mut sums[..end - start]);
        if at >= before + sum {
            before += sum;
            continue;
        }
        for (block, sum) in (start..end).zip(sums) {
            if at >= before + sum {
                before += sum;
                continue;
            }
            for candidate in row.block(block).filter(|c| c.key >= least) {
                before += candidate.weight;
                if at < before {
                    return candidate.id();
                }
            }
        }
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
