//! From costs to rates.

use super::costs::{Costs, Timed};

/// Chunks that a pipeline's rate of reading is taken over: a prompt of 16 K tokens in steps of 512.
const CHUNKS: usize = 32;

/// How ranks share the work of one copy of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Ranks that share every layer.
    pub tensor: usize,
    /// Ranges of layers, each with as many ranks.
    pub stages: usize,
}

impl Layout {
    /// Ranks in all.
    #[must_use]
    pub fn ranks(self) -> usize {
        self.tensor * self.stages
    }

    /// In words.
    #[must_use]
    pub fn name(self) -> String {
        match (self.tensor, self.stages) {
            (1, 1) => "single".into(),
            (tensor, 1) => format!("tensor {tensor}"),
            (1, stages) => format!("pipeline {stages}"),
            (tensor, stages) => format!("tensor {tensor} x pipeline {stages}"),
        }
    }
}

/// Tokens a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Of an answer, one session.
    pub decode: f64,
    /// Of a long prompt.
    pub prefill: f64,
}

/// What users ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Sessions that answer at once, in all.
    pub sessions: usize,
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens of an answer.
    pub answer: usize,
    /// Share of a prompt's tokens that the replica which had the session before still holds.
    pub kept: f64,
}

/// Copies of the model behind a router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fleet {
    /// Requests a second when the router sends a session to where it was before.
    pub requests: f64,
    /// Tokens of answers a second, likewise.
    pub tokens: f64,
    /// Tokens of answers a second when it sends requests anywhere.
    pub tokens_unrouted: f64,
}

/// One line of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// How a copy is shared.
    pub layout: Layout,
    /// How many copies.
    pub replicas: usize,
    /// Of one copy.
    pub rates: Rates,
    /// Of all copies under the load.
    pub fleet: Fleet,
}

impl Costs {
    /// Every way to use so many ranks: all of them on one copy, or copies side by side.
    #[must_use]
    pub fn plan(&self, ranks: usize, load: Load) -> Vec<Prediction> {
        let tensors = std::iter::once(1).chain(self.model.rank_counts.iter().copied());
        let mut tensors: Vec<usize> =
            tensors.filter(|n| *n > 0 && ranks.is_multiple_of(*n)).collect();
        tensors.sort_unstable();
        tensors.dedup();
        let mut lines = Vec::new();
        for tensor in tensors {
            let rest = ranks / tensor;
            let mut splits: Vec<usize> =
                [1, rest].into_iter().filter(|s| *s <= self.model.layers).collect();
            splits.dedup();
            for stages in splits {
                let (layout, replicas) = (Layout { tensor, stages }, rest / stages);
                let (rates, fleet) = (self.rates(layout), self.fleet(layout, replicas, load));
                lines.push(Prediction { layout, replicas, rates, fleet });
            }
        }
        lines
    }

    /// One copy.
    #[must_use]
    pub fn rates(&self, layout: Layout) -> Rates {
        Rates {
            decode: 1.0 / self.decode_seconds(layout),
            prefill: 1.0 / self.prefill_seconds(layout),
        }
    }

    /// A token of one session: all stages in a row, gates in each layer, hops between stages and
    /// back to the first.
    #[must_use]
    pub fn decode_seconds(&self, layout: Layout) -> f64 {
        self.part(layout.tensor).0 + self.token_gates(layout.tensor) + self.hops(layout, 1)
    }

    /// A token of a long prompt, when chunks follow each other through the stages.
    #[must_use]
    pub fn prefill_seconds(&self, layout: Layout) -> f64 {
        let rows = self.node.prefill_rows;
        let gates = match layout.tensor {
            1 => 0.0,
            tensor => {
                2.0 * count(self.model.layers) * self.gate(rows * self.model.width * 4, tensor)
            }
        };
        let chunk = count(rows) * self.part(layout.tensor).1 + gates;
        let stages: Vec<f64> =
            self.layers_of(layout.stages).into_iter().map(|share| share * chunk).collect();
        let hop = if layout.stages == 1 { 0.0 } else { self.hop(self.stream_bytes(rows)) };
        pipeline_seconds(&stages, hop, CHUNKS) / count(CHUNKS * rows)
    }

    /// Copies under a load. A replica reads what is not kept of a prompt, then answers in steps
    /// with its share of the sessions; stages of a pipeline work on different sessions meanwhile.
    #[must_use]
    pub fn fleet(&self, layout: Layout, replicas: usize, load: Load) -> Fleet {
        let replicas = replicas.max(1);
        let here = load.sessions.div_ceil(replicas).max(1);
        // Sessions that are in different stages of a pipeline share no step.
        let groups = here.min(layout.stages).max(1);
        let step = self.batch_seconds(layout, here.div_ceil(groups));
        let slowest = self.layers_of(layout.stages).into_iter().fold(0.0, f64::max);
        let round = step.max(count(groups) * step * slowest);
        let answer = count(load.answer) * round / count(here);
        let read = |kept: f64| count(load.prompt) * (1.0 - kept) * self.prefill_seconds(layout);
        let requests = |kept: f64| count(replicas) / (read(kept) + answer);
        let (routed, blind) = (requests(load.kept), requests(load.kept / count(replicas)));
        let tokens = count(load.answer);
        Fleet { requests: routed, tokens: routed * tokens, tokens_unrouted: blind * tokens }
    }

    /// A token of an answer and of a prompt on one of so many ranks, without gates. A part that
    /// was measured is taken as it is.
    fn part(&self, ranks: usize) -> (f64, f64) {
        let node = (self.node.decode_seconds, self.node.prefill_seconds);
        if ranks == 1 {
            return node;
        }
        if let Some(part) = self.parts.iter().find(|part| part.ranks == ranks) {
            return (part.decode_seconds, part.prefill_seconds);
        }
        let share = |whole: f64, replicated: f64, uneven: f64| {
            let routed = self.model.routed.min(1.0 - replicated);
            let dense = 1.0 - replicated - routed;
            whole * (replicated + (dense + routed * uneven) / count(ranks))
        };
        let replicated = |whole: f64, part: fn(&super::PartCosts) -> f64| {
            let Some(measured) = self.parts.first() else { return self.model.replicated };
            let split = 1.0 / count(measured.ranks);
            ((part(measured) / whole - split) / (1.0 - split)).clamp(0.0, 1.0)
        };
        let (one, many) = (self.uneven(ranks, false), self.uneven(ranks, true));
        (
            share(node.0, replicated(node.0, |part| part.decode_seconds), one),
            share(node.1, replicated(node.1, |part| part.prefill_seconds), many),
        )
    }

    /// How much more experts the busiest rank computes than the mean. Two ranks halve every expert;
    /// from four on they have groups of experts too (DESIGN 5). `many` rows choose as often as the
    /// experts are popular; of one row the expected maximum counts.
    #[must_use]
    pub fn uneven(&self, ranks: usize, many: bool) -> f64 {
        let Some(experts) = self.experts.as_ref().filter(|_| ranks > 2) else { return 1.0 };
        let (groups, all) = (ranks / 2, experts.popularity.len());
        let sum: f64 = experts.popularity.iter().sum();
        let of = |group: usize| -> f64 {
            experts.popularity[group * all / groups..(group + 1) * all / groups].iter().sum()
        };
        let shares: Vec<f64> = (0..groups).map(|group| of(group) / sum).collect();
        if many {
            return shares.iter().copied().fold(0.0, f64::max) * count(groups);
        }
        expected_maximum(&shares, experts.used) * count(groups) / count(experts.used)
    }

    /// Two sums a layer, the logits' parts, and the order before the step.
    fn token_gates(&self, ranks: usize) -> f64 {
        if ranks == 1 {
            return 0.0;
        }
        let sums = 2.0 * count(self.model.layers) * self.gate(self.model.width * 4, ranks);
        let logits = self.gate(self.model.vocabulary.div_ceil(ranks) * 4, ranks);
        sums + logits + self.link.order_seconds
    }

    /// A gate among so many ranks. Every rank takes the parts of all others, so time goes with the
    /// bytes that come.
    #[must_use]
    pub fn gate(&self, bytes: usize, ranks: usize) -> f64 {
        let measured = self.link.ranks - 1;
        let points = self.link.gates.iter().map(|t| (count(t.bytes * measured), t.seconds));
        along(&points.collect::<Vec<_>>(), count(bytes) * count(ranks - 1))
    }

    fn hops(&self, layout: Layout, rows: usize) -> f64 {
        match layout.stages {
            1 => 0.0,
            stages => count(stages) * self.hop(self.stream_bytes(rows)),
        }
    }

    fn hop(&self, bytes: usize) -> f64 {
        if self.link.hops.is_empty() {
            return self.gate(bytes, 2);
        }
        let points = |t: &Timed| (count(t.bytes), t.seconds);
        along(&self.link.hops.iter().map(points).collect::<Vec<_>>(), count(bytes))
    }

    fn stream_bytes(&self, rows: usize) -> usize {
        rows.saturating_mul(self.model.streams * self.model.width * 4)
    }

    /// A step that gives each of so many sessions a token.
    fn batch_seconds(&self, layout: Layout, sessions: usize) -> f64 {
        let one = (1.0, self.node.decode_seconds);
        let more = self.node.batches.iter().filter(|batch| batch.sessions > 1);
        let points: Vec<(f64, f64)> =
            std::iter::once(one).chain(more.map(|b| (count(b.sessions), b.seconds))).collect();
        let whole = match points.len() {
            // Nothing is known of common steps: sessions take turns.
            1 => self.node.decode_seconds * count(sessions),
            _ => along(&points, count(sessions)),
        };
        let (tensor, gates) = (layout.tensor, self.token_gates(layout.tensor));
        whole * self.part(tensor).0 / self.node.decode_seconds + gates + self.hops(layout, sessions)
    }

    /// Shares of the layers that stages have.
    fn layers_of(&self, stages: usize) -> Vec<f64> {
        let layers = self.model.layers;
        let at = |stage: usize| stage * layers / stages;
        (0..stages).map(|s| count(at(s + 1) - at(s)) / count(layers)).collect()
    }
}

/// When the last of so many chunks has left the last stage: a stage begins a chunk when it has done
/// the one before and the stage before it has sent this one.
#[must_use]
pub(super) fn pipeline_seconds(stages: &[f64], hop: f64, chunks: usize) -> f64 {
    let mut free = vec![0.0f64; stages.len()];
    for _ in 0..chunks {
        let mut there = 0.0f64;
        for (free, stage) in free.iter_mut().zip(stages) {
            *free = free.max(there) + stage;
            there = *free + hop;
        }
    }
    free.last().copied().unwrap_or(0.0)
}

/// The expected number of draws that the fullest of a few groups gets.
#[must_use]
pub(super) fn expected_maximum(shares: &[f64], draws: usize) -> f64 {
    /// Adds up over all ways to give `left` draws to the groups from `shares` on.
    fn walk(shares: &[f64], left: usize, most: usize, weight: f64) -> f64 {
        let Some((share, rest)) = shares.split_first() else {
            return if left == 0 { weight * count(most) } else { 0.0 };
        };
        let (mut sum, mut factor) = (0.0, 1.0);
        for here in 0..=left {
            // Choose `here` of `left`, each with this share.
            if here > 0 {
                factor *= share * count(left - here + 1) / count(here);
            }
            if rest.is_empty() && here < left {
                continue;
            }
            sum += walk(rest, left - here, most.max(here), weight * factor);
        }
        sum
    }
    walk(shares, draws, 0, 1.0)
}

/// Between two points in a straight line, before the first as the first, and after the last by the
/// line through the last two.
fn along(points: &[(f64, f64)], x: f64) -> f64 {
    let Some(&(first, least)) = points.first() else { return 0.0 };
    if x <= first || points.len() == 1 {
        let (last, most) = points[points.len() - 1];
        // One size alone: in proportion beyond it.
        return if x > last { most * x / last.max(1.0) } else { least };
    }
    let at = points.partition_point(|point| point.0 < x).clamp(1, points.len() - 1);
    let ((x0, y0), (x1, y1)) = (points[at - 1], points[at]);
    (y0 + (y1 - y0) * (x - x0) / (x1 - x0)).max(least.min(y0))
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn count(n: usize) -> f64 {
    n as f64
}
