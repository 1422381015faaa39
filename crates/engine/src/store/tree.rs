//! One tier's view of the prefix tree: what is there, what it weighs, and what goes first.
//!
//! Blocks hang on blocks, checkpoints are leaves on blocks. Eviction takes leaves only: a
//! checkpoint, and with it the blocks that then lead nowhere. So what a checkpoint needs is there
//! as long as the checkpoint is.
//!
//! A checkpoint's value for each byte is `hits x gain / (bytes x age)`: gain is the number of
//! tokens that would be evaluated again without it, bytes are those that go with it, age counts
//! uses of the tier since its own last one, so that no clock matters. A checkpoint on the way to a
//! later one serves rewinds only and counts a quarter.

use super::chain::{Id, Kind, Text};
use std::collections::{BTreeMap, HashMap, HashSet};

#[derive(Debug)]
pub(super) struct Node<P> {
    pub kind: Kind,
    pub parent: Id,
    /// Tokens from the root to its end.
    pub position: usize,
    pub bytes: u64,
    /// What its tokens and all before them say, of a checkpoint where that is known.
    pub text: Option<Text>,
    pub payload: P,
}

#[derive(Debug)]
struct Held<P> {
    node: Node<P>,
    used: u64,
    hits: u32,
}

#[derive(Debug)]
pub(super) struct Tree<P> {
    nodes: HashMap<Id, Held<P>>,
    /// Checkpoints after each block, whether that is here or not.
    checkpoints: HashMap<Id, Vec<Id>>,
    /// Nodes after each block, checkpoints included.
    children: HashMap<Id, usize>,
    /// Texts of checkpoints and where those are, by the length of the text.
    texts: BTreeMap<u64, Vec<(Id, Id)>>,
    bytes: u64,
    tick: u64,
}

impl<P> Default for Tree<P> {
    fn default() -> Self {
        Tree {
            nodes: HashMap::new(),
            checkpoints: HashMap::new(),
            children: HashMap::new(),
            texts: BTreeMap::new(),
            bytes: 0,
            tick: 0,
        }
    }
}

impl<P> Tree<P> {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn get(&self, id: &Id) -> Option<&Node<P>> {
        self.nodes.get(id).map(|held| &held.node)
    }

    pub fn get_mut(&mut self, id: &Id) -> Option<&mut Node<P>> {
        self.nodes.get_mut(id).map(|held| &mut held.node)
    }

    pub fn contains(&self, id: &Id) -> bool {
        self.nodes.contains_key(id)
    }

    pub fn ids(&self) -> impl Iterator<Item = &Id> {
        self.nodes.keys()
    }

    /// Checkpoints directly after a block.
    pub fn checkpoints_after(&self, block: &Id) -> impl Iterator<Item = (Id, &Node<P>)> {
        let ids = self.checkpoints.get(block).map_or(&[][..], |ids| ids);
        ids.iter().filter_map(|id| Some((*id, self.get(id)?)))
    }

    /// Checkpoints whose texts have more than `least` bytes and no more than `most`, the shortest
    /// first.
    pub fn texts<'t>(&'t self, least: u64, most: u64) -> impl Iterator<Item = (Text, Id)> + 't {
        let range = least.saturating_add(1)..=most.max(least.saturating_add(1));
        let of = |(bytes, all): (&u64, &'t Vec<(Id, Id)>)| {
            let bytes = *bytes;
            all.iter().map(move |&(id, node)| (Text { bytes, id }, node))
        };
        self.texts.range(range).flat_map(of)
    }

    /// Adds a node; one that is there already stays.
    pub fn insert(&mut self, id: Id, node: Node<P>) {
        if self.nodes.contains_key(&id) {
            return;
        }
        *self.children.entry(node.parent).or_default() += 1;
        if node.kind != Kind::Block {
            self.checkpoints.entry(node.parent).or_default().push(id);
        }
        if let Some(Text { bytes, id: text }) = node.text {
            self.texts.entry(bytes).or_default().push((text, id));
        }
        self.bytes += node.bytes;
        self.tick += 1;
        self.nodes.insert(id, Held { node, used: self.tick, hits: 0 });
    }

    /// Notes that a checkpoint was of use.
    pub fn touch(&mut self, id: &Id) {
        self.tick += 1;
        if let Some(held) = self.nodes.get_mut(id) {
            held.used = self.tick;
            held.hits = held.hits.saturating_add(1);
        }
    }

    /// Takes one node out, whatever hangs on it.
    pub fn remove(&mut self, id: &Id) -> Option<Node<P>> {
        let node = self.nodes.remove(id)?.node;
        self.bytes -= node.bytes;
        if let Some(count) = self.children.get_mut(&node.parent) {
            *count -= 1;
            if *count == 0 {
                self.children.remove(&node.parent);
            }
        }
        if let Some(ids) = self.checkpoints.get_mut(&node.parent) {
            ids.retain(|other| other != id);
            if ids.is_empty() {
                self.checkpoints.remove(&node.parent);
            }
        }
        if let Some(Text { bytes, .. }) = node.text
            && let Some(all) = self.texts.get_mut(&bytes)
        {
            all.retain(|(_, other)| other != id);
            if all.is_empty() {
                self.texts.remove(&bytes);
            }
        }
        Some(node)
    }

    /// Lets the least valuable go until no more than `limit` bytes are left, but nothing of `keep`.
    pub fn evict(&mut self, limit: u64, keep: &HashSet<Id>) -> Vec<(Id, Node<P>)> {
        let mut gone = Vec::new();
        while self.bytes > limit {
            let victims = self.victims(keep);
            if victims.is_empty() {
                break;
            }
            for id in victims {
                if self.bytes <= limit {
                    break;
                }
                self.remove_upward(id, keep, &mut gone);
            }
        }
        gone
    }

    /// Leaves, the least valuable first; of equal ones the one used longest ago.
    fn victims(&self, keep: &HashSet<Id>) -> Vec<Id> {
        let mut found: Vec<(f64, u64, Id)> = (self.nodes.iter())
            .filter(|(id, _)| !self.children.contains_key(id) && !keep.contains(id))
            .map(|(id, held)| (self.value(id, held), held.used, *id))
            .collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        found.into_iter().map(|(_, _, id)| id).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn value(&self, id: &Id, held: &Held<P>) -> f64 {
        let node = &held.node;
        if node.kind == Kind::Block {
            return 0.0;
        }
        let (mut bytes, mut exclusive, mut at) = (node.bytes, true, node.parent);
        let mut before = 0;
        loop {
            let nearest = (self.checkpoints_after(&at))
                .filter(|(other, c)| other != id && c.position < node.position)
                .map(|(_, c)| c.position)
                .max();
            if let Some(position) = nearest {
                before = position;
                break;
            }
            let Some(block) = self.get(&at) else { break };
            exclusive &= self.children.get(&at) == Some(&1);
            bytes += if exclusive { block.bytes } else { 0 };
            at = block.parent;
        }
        let beside = self.checkpoints.get(&node.parent).map_or(0, Vec::len);
        let passed = self.children.get(&node.parent).is_some_and(|all| *all > beside);
        let gain = (node.position - before) as f64 * if passed { 0.25 } else { 1.0 };
        let age = (self.tick - held.used + 1) as f64;
        f64::from(held.hits.saturating_add(1)) * gain / (bytes.max(1) as f64 * age)
    }

    /// A node, and the blocks before it that then lead nowhere.
    fn remove_upward(&mut self, id: Id, keep: &HashSet<Id>, gone: &mut Vec<(Id, Node<P>)>) {
        let mut at = id;
        while !self.children.contains_key(&at) && !keep.contains(&at) {
            let Some(node) = self.remove(&at) else { break };
            let parent = node.parent;
            gone.push((at, node));
            at = parent;
        }
    }
}
