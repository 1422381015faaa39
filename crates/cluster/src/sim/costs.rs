//! Measured costs, as a file holds them.

use serde::{Deserialize, Serialize};

/// Longest list that a file may have.
const LIST_MAX: usize = 65_536;
/// Most layers, ranks and experts that are believed.
const COUNT_MAX: usize = 1 << 20;

/// What was measured of a model, a node and a link. Times are seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// The model.
    pub model: ModelCosts,
    /// One node that holds all of it.
    pub node: NodeCosts,
    /// Nodes that hold a part of it, as one of so many ranks, without gates.
    #[serde(default)]
    pub parts: Vec<PartCosts>,
    /// What joins them.
    pub link: LinkCosts,
    /// How often experts are chosen, if that was counted.
    #[serde(default)]
    pub experts: Option<Experts>,
}

/// Numbers of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelCosts {
    /// What it is called.
    pub name: String,
    /// Layers.
    pub layers: usize,
    /// Floats of a row that a gate sums.
    pub width: usize,
    /// Residual streams: a pipeline sends so many rows a token.
    pub streams: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Rank counts that it can be shared among.
    pub rank_counts: Vec<usize>,
    /// Share of a token's work that every rank does in full, where no part was measured.
    pub replicated: f64,
    /// Share of a token's work that routed experts are.
    pub routed: f64,
}

/// A node that holds the whole model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeCosts {
    /// A token of an answer.
    pub decode_seconds: f64,
    /// A token of a prompt.
    pub prefill_seconds: f64,
    /// Rows of a prompt's step.
    pub prefill_rows: usize,
    /// A step of several sessions, fewest first.
    #[serde(default)]
    pub batches: Vec<Batch>,
}

/// A step that gives a token to each of several sessions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Sessions.
    pub sessions: usize,
    /// The step.
    pub seconds: f64,
}

/// A node that holds a part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartCosts {
    /// Of how many ranks.
    pub ranks: usize,
    /// A token of an answer, gates left out.
    pub decode_seconds: f64,
    /// A token of a prompt, gates left out.
    pub prefill_seconds: f64,
}

/// What joins nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCosts {
    /// Ranks of the group that gates were measured in.
    pub ranks: usize,
    /// A gate, by the bytes that each rank gives; fewest first.
    pub gates: Vec<Timed>,
    /// From one node to the next, by bytes; fewest first. None if nothing but gates was measured:
    /// then a gate of as many bytes stands for it.
    #[serde(default)]
    pub hops: Vec<Timed>,
    /// An order of rank 0 before a step.
    #[serde(default)]
    pub order_seconds: f64,
}

/// The time of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    /// Bytes.
    pub bytes: usize,
    /// Their time.
    pub seconds: f64,
}

/// Experts of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// How many a token chooses.
    pub used: usize,
    /// How often each was chosen, in order of their numbers.
    pub popularity: Vec<f64>,
}

impl Costs {
    /// Reads a file: the costs themselves, or an object that has them as `costs`. The error says
    /// what was found and what is wanted.
    pub fn from_json(text: &str) -> Result<Costs, String> {
        let mut value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| format!("this is no JSON: {error}"))?;
        if let Some(inner) = value.get_mut("costs") {
            value = inner.take();
        }
        let costs: Costs = serde_json::from_value(value).map_err(|error| {
            format!("{error}; `ironstar doctor --cluster --json` writes such a file")
        })?;
        costs.check()?;
        Ok(costs)
    }

    fn check(&self) -> Result<(), String> {
        let model = &self.model;
        for (name, count) in [
            ("model.layers", model.layers),
            ("model.width", model.width),
            ("model.streams", model.streams),
            ("model.vocabulary", model.vocabulary),
            ("node.prefill_rows", self.node.prefill_rows),
        ] {
            if !(1..=COUNT_MAX).contains(&count) {
                return Err(format!("{name} is {count}, but 1 to {COUNT_MAX} are possible"));
            }
        }
        for (name, share) in
            [("model.replicated", model.replicated), ("model.routed", model.routed)]
        {
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("{name} is {share}, but a share is 0 to 1"));
            }
        }
        time("node.decode_seconds", self.node.decode_seconds)?;
        time("node.prefill_seconds", self.node.prefill_seconds)?;
        for part in &self.parts {
            if part.ranks < 2 {
                return Err(format!("a part of {} ranks, but a part has 2 or more", part.ranks));
            }
            time("parts.decode_seconds", part.decode_seconds)?;
            time("parts.prefill_seconds", part.prefill_seconds)?;
        }
        if self.link.ranks < 2 || self.link.gates.is_empty() {
            let (ranks, sizes) = (self.link.ranks, self.link.gates.len());
            return Err(format!(
                "{sizes} sizes of gates among {ranks} ranks, but a link has two ranks and a size"
            ));
        }
        if !(self.link.order_seconds >= 0.0 && self.link.order_seconds.is_finite()) {
            return Err(format!("link.order_seconds is {}", self.link.order_seconds));
        }
        let timed = |list: &[Timed]| list.iter().map(|t| (t.bytes, t.seconds)).collect::<Vec<_>>();
        growing("link.gates", &timed(&self.link.gates))?;
        growing("link.hops", &timed(&self.link.hops))?;
        let batches = self.node.batches.iter().map(|b| (b.sessions, b.seconds));
        growing("node.batches", &batches.collect::<Vec<_>>())?;
        self.experts.as_ref().map_or(Ok(()), Experts::check)
    }
}

impl Experts {
    fn check(&self) -> Result<(), String> {
        let (used, all) = (self.used, self.popularity.len());
        if !(1..=64).contains(&used) || !(used..=LIST_MAX).contains(&all) {
            return Err(format!("{used} of {all} experts, but 1 to 64 of those there are"));
        }
        let sum: f64 = self.popularity.iter().sum();
        if self.popularity.iter().any(|&p| !(p >= 0.0 && p.is_finite())) || sum <= 0.0 {
            return Err("experts.popularity: counts are 0 or more, and not all 0".into());
        }
        Ok(())
    }
}

fn time(name: &str, seconds: f64) -> Result<(), String> {
    if seconds > 0.0 && seconds.is_finite() {
        return Ok(());
    }
    Err(format!("{name} is {seconds}, but a time is above 0"))
}

/// Sizes grow, and all have a time.
fn growing(name: &str, list: &[(usize, f64)]) -> Result<(), String> {
    if list.len() > LIST_MAX {
        return Err(format!("{name} has {} entries, but {LIST_MAX} are the most", list.len()));
    }
    list.iter().try_for_each(|(_, seconds)| time(name, *seconds))?;
    match list.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        None => Ok(()),
        Some(pair) => Err(format!("{name}: {} before {}, but sizes grow", pair[0].0, pair[1].0)),
    }
}
