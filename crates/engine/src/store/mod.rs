//! Saved states of sessions: one prefix tree in memory and on disk.
//!
//! A node is a block of 128 tokens with the rows that it closed, or a checkpoint with the rest that
//! a session needs to go on at a position (`State::export_blocks`, `State::export_checkpoint`). Its
//! name is a hash over the model and all tokens up to there, so whoever has the same tokens finds
//! it: another session, a branch, the next run. A prefix that many share is there once. A
//! checkpoint may also be found by what its tokens say ([`Store::tokens_of_text`]), for a client
//! that sends back the text of an answer and not its tokens.
//!
//! Payloads are bytes that the store does not understand. Memory has a limit, and so has the
//! folder, for all models in it and whoever writes there; what is worth least for its bytes goes
//! first (`tree.rs`). The disk tier is written by a thread
//! of its own and read with distrust; whatever happens to the folder, requests go on without it,
//! and [`Status::problems`] tells. `docs/state-format.md` has the files.
//!
//! ```
//! use ironstar_engine::store::{Checkpoint, Key, Settings, Store};
//! let mut store = Store::new(Key::new(&[b"a model"]), Settings::default());
//! let tokens: Vec<u32> = (0..300).collect();
//! let blocks = store.missing(&tokens).into_iter().map(|block| (block, vec![1; 50])).collect();
//! store.insert(&tokens, blocks, Checkpoint::plain(b"rings".to_vec()));
//! let found = store.find(&[&tokens[..], &[7]].concat(), 301).expect("just stored");
//! assert_eq!((found.position(), found.blocks()), (300, 2));
//! ```

mod chain;
mod disk;
mod file;
mod lane;
pub mod sim;
mod tree;
mod writer;

pub use chain::{Id, Key, Kind, Text};
pub use disk::{Claim, Disk, Folder, Listed};
pub use file::{Damage, View, read_file, sealed};
pub use writer::{Problem, Receipt};

use file::{Name, Payload};
use ironstar_model::BLOCK_TOKENS;
use lane::Lane;
use std::sync::{Arc, Mutex, PoisonError};
use tree::{Node, Tree};
use writer::{Part, Save, Shared, Writer};

/// Threads that read ahead when a long state comes from disk: checking a file costs as much as
/// reading it.
const READERS: usize = 2;
/// Files that each of them holds ready.
const READ_AHEAD: usize = 2;
/// Checkpoints of the same text that are looked at.
const TEXTS_MAX: usize = 4;

/// Limits of a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Memory of all payloads; 0 keeps none in memory.
    pub ram_bytes: u64,
    /// All files of the folder: those of other models and processes too.
    pub disk_bytes: u64,
    /// One file; larger ones are not believed.
    pub file_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { ram_bytes: 128 << 20, disk_bytes: 16 << 30, file_bytes_max: 1 << 30 }
    }
}

/// Who writes to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// A thread.
    Thread,
    /// Whoever inserts; for simulations.
    AtOnce,
    /// [`Store::flush`]; for simulations.
    OnFlush,
}

/// What is stored at a position beside the blocks before it.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Its payload.
    pub bytes: Vec<u8>,
    /// Whether the logits of its last token are in there.
    pub has_logits: bool,
    /// What all its tokens say, where that is known.
    pub text: Option<Text>,
}

impl Checkpoint {
    /// One without logits and text.
    #[must_use]
    pub fn plain(bytes: Vec<u8>) -> Checkpoint {
        Checkpoint { bytes, has_logits: false, text: None }
    }
}

/// A payload in memory, and the tokens of its own.
#[derive(Debug)]
struct Kept {
    payload: Payload,
    tokens: Box<[u32]>,
}

/// A checkpoint that was found, and the blocks before it.
#[derive(Clone, Debug)]
pub struct Found {
    name: Name,
    /// The root, then the blocks.
    chain: Vec<Id>,
}

impl Found {
    /// Tokens that it stands for.
    #[must_use]
    pub fn position(&self) -> usize {
        self.name.position
    }

    /// Whole blocks before it.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.chain.len() - 1
    }

    /// Whether the logits of its last token are there.
    #[must_use]
    pub fn has_logits(&self) -> bool {
        self.name.kind == Kind::CheckpointWithLogits
    }

    /// All nodes of the way.
    fn ids(&self) -> impl Iterator<Item = Id> {
        self.chain[1..].iter().copied().chain([self.name.id])
    }
}

/// A part of a stored state, in the order in which it is put back.
#[derive(Clone, Copy, Debug)]
pub enum Loaded<'a> {
    /// Rows of a block, and its number.
    Block(usize, &'a [u8]),
    /// The checkpoint, after all blocks.
    Checkpoint(&'a [u8]),
}

/// Why a stored state could not be loaded.
#[derive(Debug, PartialEq, Eq)]
pub enum LoadError<E> {
    /// A part of it is gone or damaged; it will not be found again.
    Lost,
    /// The receiver failed.
    Sink(E),
}

/// What a store holds, and how it fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Payloads in memory.
    pub ram_bytes: u64,
    /// How many.
    pub ram_nodes: usize,
    /// Files of the folder, of all models.
    pub disk_bytes: u64,
    /// How many.
    pub disk_nodes: usize,
    /// Bytes that wait to be written.
    pub queued_bytes: u64,
    /// Saves that reached the disk.
    pub saved: u64,
    /// Saves that did not.
    pub not_saved: u64,
    /// What went wrong with the folder.
    pub problems: Vec<Problem>,
}

/// States that made a step fail; sessions put them here.
pub(crate) type Suspects = Arc<Mutex<Vec<Found>>>;

/// Stored states of one model.
pub struct Store {
    key: Key,
    settings: Settings,
    ram: Tree<Kept>,
    disk: Option<(Arc<Shared>, Lane)>,
    suspects: Suspects,
}

impl Store {
    /// A store in memory.
    #[must_use]
    pub fn new(key: Key, settings: Settings) -> Store {
        let (ram, suspects) = (Tree::default(), Suspects::default());
        Store { key, settings, ram, disk: None, suspects }
    }

    /// A store that also keeps files; it sees at once what is there.
    #[must_use]
    pub fn with_disk(mut self, disk: Arc<dyn Disk>, writing: Writing) -> Store {
        let Settings { disk_bytes, file_bytes_max, .. } = self.settings;
        let shared = Arc::new(Shared::new(disk, disk_bytes, file_bytes_max));
        let mut writer = Writer::new(shared.clone());
        writer.open();
        self.disk = Some((shared, Lane::new(writer, writing)));
        self
    }

    /// What it belongs to.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// From now on only what belongs to another key is seen; the rest stays, for when its key comes
    /// back.
    pub fn set_key(&mut self, key: Key) {
        self.key = key;
    }

    /// Its limits.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.settings.ram_bytes == 0 && self.disk.is_none()
    }

    /// The furthest stored position on the way to these tokens, but not beyond `most` of them. At
    /// the last token only one with logits serves.
    pub fn find(&mut self, tokens: &[u32], most: usize) -> Option<Found> {
        self.look();
        let serves =
            |name: &Name| name.position < tokens.len() || name.kind == Kind::CheckpointWithLogits;
        self.furthest(tokens, most, &serves)
    }

    /// The furthest stored position on the way to these tokens; 0 if there is none.
    #[must_use]
    pub fn nearest(&self, tokens: &[u32]) -> usize {
        self.furthest(tokens, tokens.len(), &|_| true).map_or(0, |found| found.position())
    }

    fn furthest(
        &self,
        tokens: &[u32],
        most: usize,
        serves: &dyn Fn(&Name) -> bool,
    ) -> Option<Found> {
        let (mut chain, home) = (chain::blocks(&self.key, tokens), self.key.home());
        let view = self.disk.as_ref().map(|(shared, _)| shared.view());
        let disk = view.as_ref().map(|view| &view.tree);
        let is_there = |id: &Id| self.ram.contains(id) || disk.is_some_and(|d| d.contains(id));
        let whole = chain[1..].iter().take_while(|id| is_there(id)).count();
        for blocks in (0..=whole).rev() {
            let (block, start) = (chain[blocks], blocks * BLOCK_TOKENS);
            let of_ram = self.ram.checkpoints_after(&block);
            let of_ram = of_ram.map(|(id, n)| (id, n.kind, n.position, n.text));
            let of_disk = disk.into_iter().flat_map(|d| d.checkpoints_after(&block));
            let of_disk = of_disk.map(|(id, n)| (id, n.kind, n.position, n.text));
            let best = of_ram
                .chain(of_disk)
                .map(|(id, kind, position, text)| Name {
                    home,
                    kind,
                    position,
                    parent: block,
                    id,
                    text,
                })
                .filter(|name| (start..start + BLOCK_TOKENS).contains(&name.position))
                .filter(|name| name.position <= most.min(tokens.len()) && serves(name))
                .filter(|name| {
                    let tail = &tokens[start..name.position];
                    chain::child(&self.key, block, name.kind, tail) == name.id
                })
                .max_by_key(|name| (name.position, name.kind.code()));
            if let Some(name) = best {
                chain.truncate(blocks + 1);
                return Some(Found { name, chain });
            }
        }
        None
    }

    /// Tokens of a checkpoint whose text is a beginning of this one and has more than `least`
    /// bytes; of the longest such.
    pub fn tokens_of_text(&mut self, text: &[u8], least: usize) -> Option<Vec<u32>> {
        self.look();
        let long = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        let (least, most) = (long(least), long(text.len()));
        let mut known: Vec<(Text, Id)> = self.ram.texts(least, most).collect();
        if let Some((shared, _)) = &self.disk {
            known.extend(shared.view().tree.texts(least, most));
        }
        known.sort_by_key(|(text, _)| text.bytes);
        let found = chain::beginnings(&self.key, text, known.into_iter());
        found.into_iter().rev().take(TEXTS_MAX).find_map(|id| self.tokens_to(id))
    }

    /// All tokens of a checkpoint, from memory or the heads of its files; none if a part of its way
    /// is gone.
    fn tokens_to(&self, checkpoint: Id) -> Option<Vec<u32>> {
        let (root, mut at, mut parts) = (chain::root(&self.key), checkpoint, Vec::new());
        let mut whole = None;
        while at != root {
            let (position, parent, tokens) = match (self.ram.get(&at), &self.disk) {
                (Some(node), _) => (node.position, node.parent, node.payload.tokens.to_vec()),
                (None, None) => return None,
                (None, Some((shared, _))) => {
                    let name = shared.view().tree.get(&at).map(|node| writer::name_of(at, node))?;
                    (name.position, name.parent, shared.own_tokens(&self.key, &name)?)
                }
            };
            let most = *whole.get_or_insert(position);
            // A way longer than it says is none.
            if position > most || parts.len() > most / BLOCK_TOKENS {
                return None;
            }
            parts.push(tokens);
            at = parent;
        }
        parts.reverse();
        let tokens = parts.concat();
        (Some(tokens.len()) == whole).then_some(tokens)
    }

    /// Gives the parts of a stored state to `sink`, without the blocks before `first_block`, which
    /// the receiver has. `tokens` are those that it was found with.
    pub fn load<E>(
        &mut self,
        found: &Found,
        tokens: &[u32],
        first_block: usize,
        sink: &mut dyn FnMut(Loaded<'_>) -> Result<(), E>,
    ) -> Result<(), LoadError<E>> {
        self.load_parts(found, tokens, (first_block, usize::MAX), sink)
    }

    /// Gives some of its blocks only; [`Store::load`] gives those that follow, and the rest.
    pub fn load_blocks<E>(
        &mut self,
        found: &Found,
        tokens: &[u32],
        blocks: std::ops::Range<usize>,
        sink: &mut dyn FnMut(Loaded<'_>) -> Result<(), E>,
    ) -> Result<(), LoadError<E>> {
        let most = blocks.end.min(found.blocks()).saturating_sub(blocks.start);
        self.load_parts(found, tokens, (blocks.start, most), sink)
    }

    /// Parts from a block on, no more than `most`.
    fn load_parts<E>(
        &mut self,
        found: &Found,
        tokens: &[u32],
        (first_block, most): (usize, usize),
        sink: &mut dyn FnMut(Loaded<'_>) -> Result<(), E>,
    ) -> Result<(), LoadError<E>> {
        let mut wanted = self.wanted(found, tokens, first_block);
        let fits = self.way_bytes(found, &wanted) <= self.settings.ram_bytes;
        let whole = wanted.len();
        wanted.truncate(most);
        let ahead = self.disk.as_ref().map(|(shared, lane)| (&**shared, lane.is_thread()));
        let mut read = Vec::new();
        let mut take = |index: usize, name: Name, payload: Payload| {
            let end = index + 1 == whole;
            let part = if end {
                Loaded::Checkpoint(&payload)
            } else {
                Loaded::Block(first_block + index, &payload)
            };
            sink(part).map_err(LoadError::Sink)?;
            if fits {
                read.push((name, payload, wanted[index].tokens));
            }
            Ok(())
        };
        let done = match ahead {
            Some((shared, true)) => lane::read_ahead(shared, &wanted, &mut take),
            Some((shared, false)) => lane::read_plainly(Some(shared), &wanted, &mut take),
            None => lane::read_plainly(None, &wanted, &mut take),
        };
        done?;
        self.used(found, read);
        Ok(())
    }

    fn wanted<'t>(&self, found: &Found, tokens: &'t [u32], first: usize) -> Vec<lane::Wanted<'t>> {
        let mut wanted = Vec::new();
        let mut add = |name: Name, tokens: &'t [u32]| {
            let held = self.ram.get(&name.id).map(|node| node.payload.payload.clone());
            wanted.push(lane::Wanted { key: self.key, name, tokens, held });
        };
        for block in first..found.blocks() {
            let position = (block + 1) * BLOCK_TOKENS;
            let (parent, id) = (found.chain[block], found.chain[block + 1]);
            let (home, kind, text) = (self.key.home(), Kind::Block, None);
            let name = Name { home, kind, position, parent, id, text };
            add(name, &tokens[block * BLOCK_TOKENS..position]);
        }
        add(found.name, &tokens[found.blocks() * BLOCK_TOKENS..found.position()]);
        wanted
    }

    /// Memory that a state would take with all its blocks, as far as they are known.
    fn way_bytes(&self, found: &Found, wanted: &[lane::Wanted<'_>]) -> u64 {
        let before = &found.chain[1..=found.blocks() + 1 - wanted.len()];
        let held = before.iter().filter_map(|id| self.ram.get(id)).map(|node| node.bytes);
        let view = self.disk.as_ref().map(|(shared, _)| shared.view());
        let size = |wanted: &lane::Wanted<'_>| match &wanted.held {
            Some(payload) => u64::try_from(payload.len()).unwrap_or(u64::MAX),
            None => {
                let node = view.as_ref().and_then(|view| view.tree.get(&wanted.name.id));
                node.map_or(0, |node| node.bytes)
            }
        };
        held.sum::<u64>() + wanted.iter().map(size).sum::<u64>()
    }

    /// Notes a use, and keeps in memory what was read.
    fn used(&mut self, found: &Found, read: Vec<(Name, Payload, &[u32])>) {
        for (name, payload, tokens) in read {
            self.keep(&name, payload, tokens);
        }
        self.ram.touch(&found.name.id);
        self.ram.evict(self.settings.ram_bytes, &found.ids().collect());
        if let Some((shared, _)) = &self.disk {
            let path = shared.view().touch(&found.name.id);
            // Where this fails only the order of eviction elsewhere suffers.
            let _hint = path.map(|path| shared.disk.touch(&path));
        }
    }

    fn keep(&mut self, name: &Name, payload: Payload, tokens: &[u32]) {
        let Name { kind, position, parent, id, text, .. } = *name;
        let bytes = u64::try_from(payload.len()).unwrap_or(u64::MAX);
        let payload = Kept { payload, tokens: tokens.into() };
        self.ram.insert(id, Node { kind, parent, position, bytes, text, payload });
    }

    /// Blocks on the way to these tokens that an insert would have to bring.
    #[must_use]
    pub fn missing(&self, tokens: &[u32]) -> Vec<usize> {
        let view = self.disk.as_ref().map(|(shared, _)| shared.view());
        let on_disk = |id: &Id| {
            view.as_ref().is_some_and(|v| v.tree.contains(id) || v.pending.contains_key(id))
        };
        let is_missing = |id: &Id| !self.ram.contains(id) && !on_disk(id);
        let chain = chain::blocks(&self.key, tokens);
        let blocks = chain[1..].iter().enumerate();
        blocks.filter(|(_, id)| is_missing(id)).map(|(block, _)| block).collect()
    }

    /// Keeps the state after these tokens: the blocks that were [`Store::missing`], and the
    /// checkpoint. What is there already is left as it is.
    pub fn insert(
        &mut self,
        tokens: &[u32],
        blocks: Vec<(usize, Vec<u8>)>,
        checkpoint: Checkpoint,
    ) -> Receipt {
        self.drop_suspects();
        let Checkpoint { bytes, has_logits, text } = checkpoint;
        let (chain, home) = (chain::blocks(&self.key, tokens), self.key.home());
        let (whole, position) = (chain.len() - 1, tokens.len());
        let kind = if has_logits { Kind::CheckpointWithLogits } else { Kind::Checkpoint };
        let parent = chain[whole];
        let id = chain::child(&self.key, parent, kind, &tokens[whole * BLOCK_TOKENS..]);
        let found = Found { name: Name { home, kind, position, parent, id, text }, chain };
        let mut fresh: Vec<(Name, Payload)> = Vec::with_capacity(blocks.len() + 1);
        for (block, bytes) in blocks.into_iter().filter(|(block, _)| *block < whole) {
            let (parent, id) = (found.chain[block], found.chain[block + 1]);
            let (kind, text, position) = (Kind::Block, None, (block + 1) * BLOCK_TOKENS);
            let name = Name { home, kind, position, parent, id, text };
            fresh.push((name, Payload::new(bytes)));
        }
        fresh.push((found.name, Payload::new(bytes)));
        let receipt = self.save(tokens, &found, &fresh);
        let new = fresh.iter().filter(|(name, _)| !self.ram.contains(&name.id));
        let new: u64 = new.map(|(_, p)| u64::try_from(p.len()).unwrap_or(u64::MAX)).sum();
        let old: u64 = found.ids().filter_map(|id| Some(self.ram.get(&id)?.bytes)).sum();
        if new.saturating_add(old) <= self.settings.ram_bytes {
            for (name, payload) in fresh {
                self.keep(&name, payload, own_part(tokens, &name));
            }
            self.ram.evict(self.settings.ram_bytes, &found.ids().collect());
        }
        receipt
    }

    /// Hands to the writer what the disk does not have.
    fn save(&mut self, tokens: &[u32], found: &Found, fresh: &[(Name, Payload)]) -> Receipt {
        let Some((shared, lane)) = &mut self.disk else { return Receipt::settled(false) };
        let mut parts = Vec::new();
        {
            let view = shared.view();
            for id in found.ids() {
                if view.tree.contains(&id) || view.pending.contains_key(&id) {
                    continue;
                }
                let new = fresh.iter().find(|(name, _)| name.id == id);
                let (name, payload) = match (new, self.ram.get(&id)) {
                    (Some((name, payload)), _) => (*name, payload.clone()),
                    (None, Some(node)) => {
                        let Node { kind, position, parent, text, .. } = *node;
                        let home = self.key.home();
                        let name = Name { home, kind, position, parent, id, text };
                        (name, node.payload.payload.clone())
                    }
                    // The disk lost it just now; the next save brings it.
                    (None, None) => return Receipt::settled(false),
                };
                let tokens = own_part(tokens, &name).to_vec();
                parts.push(Part { name, tokens, payload });
            }
        }
        let receipt = Receipt::default();
        let save =
            Save { key: self.key, parts, chain: found.ids().collect(), receipt: receipt.clone() };
        lane.send(shared, save);
        receipt
    }

    /// Waits until all that was inserted is written, or given up.
    pub fn flush(&mut self) {
        if let Some((_, lane)) = &mut self.disk {
            lane.flush();
        }
    }

    /// Forgets what is in memory; for measurements.
    pub fn forget(&mut self) {
        self.ram = Tree::default();
    }

    /// What it holds.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut status =
            Status { ram_bytes: self.ram.bytes(), ram_nodes: self.ram.len(), ..Status::default() };
        if let Some((shared, _)) = &self.disk {
            let view = shared.view();
            (status.disk_bytes, status.disk_nodes) = (view.tree.bytes(), view.tree.len());
            (status.saved, status.not_saved) = (view.saved, view.not_saved);
            status.queued_bytes = view.queued_bytes;
            status.problems.clone_from(&view.problems);
        }
        status
    }

    pub(crate) fn suspects(&self) -> Suspects {
        self.suspects.clone()
    }

    /// Takes out what is suspected to be wrong: a checkpoint, and the blocks before it.
    pub fn set_aside(&mut self, found: &Found) {
        let ids: Vec<Id> = found.ids().collect();
        for id in &ids {
            self.ram.remove(id);
        }
        if let Some((shared, _)) = &self.disk {
            shared.set_aside(&ids);
        }
    }

    /// Before a lookup.
    fn look(&mut self) {
        self.drop_suspects();
        if let Some((shared, lane)) = &mut self.disk
            && shared.is_stale()
        {
            lane.refresh();
        }
    }

    fn drop_suspects(&mut self) {
        let suspects =
            std::mem::take(&mut *self.suspects.lock().unwrap_or_else(PoisonError::into_inner));
        for found in &suspects {
            self.set_aside(found);
        }
    }
}

/// Tokens of a node's own, of all those up to its end or further.
fn own_part<'t>(tokens: &'t [u32], name: &Name) -> &'t [u32] {
    let start = match name.kind {
        Kind::Block => name.position - BLOCK_TOKENS,
        Kind::Checkpoint | Kind::CheckpointWithLogits => {
            name.position - name.position % BLOCK_TOKENS
        }
    };
    &tokens[start..name.position]
}

#[cfg(test)]
mod tests;
