//! Which layers each node of a pipeline has, and what it holds of the weights.
//!
//! Nodes have consecutive layers, none has none. The first also has the embedding, the last the
//! output head and whatever guesses tokens (with an embedding of its own for that).

use super::load::find;
use super::shape::Shape;
use super::weights::{Field, Kind, Place, TensorSpec};
use crate::{Error, PlanLine};
use ironstar_gguf::Gguf;
use std::fmt;
use std::ops::Range;

/// Most nodes of a pipeline.
pub const STAGES_MAX: usize = 64;

/// A cut of a model's layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stages {
    /// The layer behind the last of each node, ascending.
    ends: Vec<usize>,
}

fn refused<T>(nodes: usize, found: String, wanted: &str) -> Result<T, Error> {
    Err(Error::Ranks { ranks: nodes, found, wanted: wanted.to_owned() })
}

impl Stages {
    /// Nodes that end before these layers.
    pub fn new(ends: Vec<usize>) -> Result<Stages, Error> {
        let nodes = ends.len();
        if !(2..=STAGES_MAX).contains(&nodes) {
            let wanted = format!("a pipeline has 2 to {STAGES_MAX}");
            return refused(nodes, format!("{nodes} nodes"), &wanted);
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        if let Some((start, end)) = starts.zip(&ends).find(|(start, end)| start >= *end) {
            let found = format!("a node with layers from {start} to before {end}");
            return refused(nodes, found, "every node needs a layer");
        }
        Ok(Stages { ends })
    }

    /// A cut as people write it: `0-20,21-42`, first and last layer of each node.
    pub fn parse(text: &str) -> Result<Stages, Error> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let (mut ends, mut next) = (Vec::new(), 0usize);
        for part in &parts {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n < 1 << 20);
            let (Some(first), Some(last)) = (number(first), number(last)) else {
                let wanted = "ranges look like 0-20,21-42";
                return refused(parts.len(), format!("layers `{part}`"), wanted);
            };
            if first != next || last < first {
                let wanted = format!("a range that begins with layer {next} is due");
                return refused(parts.len(), format!("layers `{part}`"), &wanted);
            }
            next = last + 1;
            ends.push(next);
        }
        Stages::new(ends)
    }

    /// The cut over so many nodes whose heaviest node is lightest, each layer having its cost.
    pub fn balanced(costs: &[u64], nodes: usize) -> Result<Stages, Error> {
        let layers = costs.len();
        if nodes > layers {
            let found = format!("the model has {layers} layers");
            return refused(nodes, found, "every node needs a layer");
        }
        let mut sums = vec![0u64];
        costs.iter().for_each(|cost| sums.push(sums[sums.len() - 1].saturating_add(*cost)));
        // best[end]: the heaviest node of the lightest cut of the layers before `end`, and where
        // its last node begins; for one node more in each round.
        let mut best: Vec<(u64, usize)> = sums.iter().map(|sum| (*sum, 0)).collect();
        let mut begins: Vec<Vec<usize>> = Vec::new();
        for node in 1..nodes {
            let next = |end: usize| {
                let cuts = (node..end).map(|at| (best[at].0.max(sums[end] - sums[at]), at));
                cuts.min().unwrap_or((u64::MAX, 0))
            };
            let fresh: Vec<(u64, usize)> = (0..=layers).map(next).collect();
            begins.push(fresh.iter().map(|(_, at)| *at).collect());
            best = fresh;
        }
        let mut ends = vec![layers];
        for begins in begins.iter().rev() {
            ends.push(begins[ends[ends.len() - 1]]);
        }
        ends.reverse();
        Stages::new(ends)
    }

    /// Refuses a cut of another number of layers.
    pub fn check(&self, layers: usize) -> Result<(), Error> {
        let end = self.ends[self.ends.len() - 1];
        if end == layers {
            return Ok(());
        }
        let wanted = format!("the model has layers 0 to {}", layers.saturating_sub(1));
        refused(self.count(), format!("a cut into layers {self}"), &wanted)
    }

    /// How many nodes there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Layers of a node.
    #[must_use]
    pub fn range(&self, stage: usize) -> Range<usize> {
        let start = stage.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[stage]
    }

    /// The node that has a layer.
    #[must_use]
    pub fn of_layer(&self, layer: usize) -> usize {
        self.ends.partition_point(|end| *end <= layer).min(self.ends.len() - 1)
    }

    /// The node with the output head.
    #[must_use]
    pub fn last(&self) -> usize {
        self.ends.len() - 1
    }

    pub(super) fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// Whether a node holds a tensor; `drafts` if there is something that guesses tokens.
    pub(super) fn holds(&self, stage: usize, spec: &TensorSpec, drafts: bool) -> bool {
        let is_last = stage == self.last();
        match (spec.place, spec.field) {
            (Place::Layer(layer), _) => self.range(stage).contains(&layer),
            (Place::Top, Field::Embedding) => stage == 0 || (is_last && drafts),
            (Place::Top | Place::Draft | Place::Spark(_), _) => is_last,
        }
    }
}

impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for stage in 0..self.count() {
            let range = self.range(stage);
            let comma = if stage == 0 { "" } else { "," };
            match range.len() {
                1 => write!(f, "{comma}{}", range.start)?,
                _ => write!(f, "{comma}{}-{}", range.start, range.end - 1)?,
            }
        }
        Ok(())
    }
}

/// The cut of a file's layers over so many nodes by what their weights take, the first with the
/// embedding and the last with the head.
pub fn balanced_stages(
    gguf: &Gguf,
    shape: &Shape,
    specs: &[TensorSpec],
    nodes: usize,
) -> Result<Stages, Error> {
    let mut costs = vec![0u64; shape.layers];
    for spec in specs {
        let Some(info) = find(gguf, spec)? else { continue };
        let layer = match (spec.place, spec.field) {
            (Place::Layer(layer), _) => layer,
            // Its rows are read one by one: it costs memory, which is what the cut is by.
            (Place::Top, Field::Embedding) => 0,
            _ => shape.layers - 1,
        };
        let bytes = gguf.place(info)?.range.len() as u64;
        costs[layer] = costs[layer].saturating_add(bytes);
    }
    Stages::balanced(&costs, nodes)
}

/// What a node holds of a file's weights.
pub fn stage_plan(
    gguf: &Gguf,
    specs: &[TensorSpec],
    stages: &Stages,
    stage: usize,
    drafts: bool,
) -> Result<Vec<PlanLine>, Error> {
    let mut lines =
        ["routed experts of its layers", "the rest of its layers", "embedding", "output head"]
            .map(|what| PlanLine { what, bytes: 0 });
    for spec in specs.iter().filter(|spec| stages.holds(stage, spec, drafts)) {
        let Some(info) = find(gguf, spec)? else { continue };
        let line = match (spec.place, spec.kind, spec.field) {
            (Place::Layer(_), Kind::Routed, _) => 0,
            (Place::Layer(_), _, _) => 1,
            (_, _, Field::Embedding) => 2,
            _ => 3,
        };
        lines[line].bytes += gguf.place(info)?.range.len() as u64;
    }
    Ok(lines.into())
}

#[cfg(test)]
mod tests;
