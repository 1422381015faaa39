//! The disk tier: what is believed to be in the folder, and who writes to it.
//!
//! Files never change: a node is written under a name of its own and then renamed to the name that
//! its content gives it, in the folder of its model's key. So two processes that write the same
//! write the same bytes, and whoever reads sees a whole file or none. A save is acknowledged when
//! all its files and the folders are synced. The view holds the files of all keys, since they share
//! one limit. Its lock is never held while a file is read or written.

use super::chain::{Home, Id, Key};
use super::disk::{Claim, Disk, Listed};
use super::file::{self, Damage, Name, Payload};
use super::tree::{Node, Tree};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Files that a view holds at most.
const NODES_MAX: usize = 1 << 20;
/// Different problems that are kept.
const PROBLEMS_MAX: usize = 32;
/// How long nothing is written after a failure.
const REST: Duration = Duration::from_secs(10);
/// How old a listing may be.
const LISTING_AGE: Duration = Duration::from_secs(2);
/// Ends of the names of files that are being written, and of the claims on them.
const TEMPORARY: &str = ".tmp";
const CLAIM: &str = ".claim";

/// Something that went wrong with the folder; requests went on without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What was tried, and what happened.
    pub text: String,
    /// How often.
    pub count: u64,
}

/// Tells whether a save has reached the disk.
#[derive(Clone, Debug, Default)]
pub struct Receipt(Arc<(Mutex<Option<bool>>, Condvar)>);

impl Receipt {
    /// A receipt of what no disk was asked to save.
    pub(crate) fn none() -> Receipt {
        Receipt::settled(false)
    }

    /// A receipt of something that is settled.
    pub(super) fn settled(saved: bool) -> Receipt {
        let receipt = Receipt::default();
        receipt.settle(saved);
        receipt
    }

    pub(super) fn settle(&self, saved: bool) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
        self.0.1.notify_all();
    }

    /// Whether it would survive a crash of the machine now.
    #[must_use]
    pub fn is_saved(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) == Some(true)
    }

    /// Waits for the writer; false if it could not be saved, or there is no disk to save to.
    #[must_use]
    pub fn wait(&self) -> bool {
        let mut settled = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(saved) = *settled {
                return saved;
            }
            settled = self.0.1.wait(settled).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A node to be written.
#[derive(Debug)]
pub(super) struct Part {
    pub name: Name,
    pub tokens: Vec<u32>,
    pub payload: Payload,
}

impl Part {
    fn bytes(&self) -> u64 {
        file::file_bytes(self.tokens.len(), self.payload.len())
    }
}

/// A checkpoint and all that it needs.
#[derive(Debug)]
pub(super) struct Save {
    pub key: Key,
    pub parts: Vec<Part>,
    /// Names of all nodes of the way, written now or before.
    pub chain: Vec<Id>,
    pub receipt: Receipt,
}

impl Save {
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(Part::bytes).sum()
    }

    /// Takes it off the view's books and tells the receipt.
    fn settle(&self, mut view: MutexGuard<'_, View>, saved: bool) {
        view.queued_bytes -= self.bytes();
        for part in &self.parts {
            if let Some(count) = view.pending.get_mut(&part.name.id) {
                *count -= 1;
                if *count == 0 {
                    view.pending.remove(&part.name.id);
                }
            }
        }
        view.saved += u64::from(saved);
        view.not_saved += u64::from(!saved);
        drop(view);
        self.receipt.settle(saved);
    }

    /// What no writer takes is not saved.
    pub fn give_up(&self, shared: &Shared) {
        self.settle(shared.view(), false);
    }
}

/// What is known of a file beside its node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    home: Home,
    /// When it was last used as the folder told it; `None` after a use of our own, whose time the
    /// next listing tells.
    used: Option<SystemTime>,
}

#[derive(Debug, Default)]
pub(super) struct View {
    pub tree: Tree<Seen>,
    /// Nodes in saves that wait, and in how many.
    pub pending: HashMap<Id, usize>,
    pub queued_bytes: u64,
    pub problems: Vec<Problem>,
    pub saved: u64,
    pub not_saved: u64,
    listed: Option<Duration>,
    resting: Option<Duration>,
}

impl View {
    /// Notes a use, if the file is there, and gives its path.
    pub fn touch(&mut self, id: &Id) -> Option<String> {
        self.tree.touch(id);
        let node = self.tree.get_mut(id)?;
        node.payload.used = None;
        Some(name_of(*id, node).path())
    }

    fn report(&mut self, text: String) {
        if let Some(known) = self.problems.iter_mut().find(|p| p.text == text) {
            known.count += 1;
        } else if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem { text, count: 1 });
        }
    }
}

/// What the engine's thread and the writer's share.
pub(super) struct Shared {
    pub disk: Arc<dyn Disk>,
    /// Most bytes of all files, whatever their keys.
    pub limit: u64,
    /// Most bytes of one.
    pub file_max: u64,
    view: Mutex<View>,
}

impl Shared {
    pub fn new(disk: Arc<dyn Disk>, limit: u64, file_max: u64) -> Shared {
        Shared { disk, limit, file_max, view: Mutex::default() }
    }

    pub fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a node that the view has. One that is not there or not sound leaves the view.
    pub fn read(&self, key: &Key, name: &Name, tokens: &[u32]) -> Option<Payload> {
        let path = name.path();
        let read = self.disk.read(&path, self.file_max);
        let opened = match read {
            Ok(bytes) => file::open(bytes, key, name, tokens).map_err(Lost::Damaged),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(Lost::Damaged(Damage::Large))
            }
            Err(error) => Err(Lost::Unread(error)),
        };
        let lost = match opened {
            Ok(payload) => return Some(payload),
            Err(lost) => lost,
        };
        let mut view = self.view();
        view.tree.remove(&name.id);
        match lost {
            // Another process needed the room.
            Lost::Unread(error) if error.kind() == io::ErrorKind::NotFound => {}
            Lost::Unread(error) => view.report(format!("cannot read a stored state: {error}")),
            Lost::Damaged(damage) => {
                view.report(format!("a stored state is damaged and was removed: {damage}"));
                drop(view);
                let _gone = self.disk.remove(&path);
            }
        }
        None
    }

    /// Own tokens of a node that the view has.
    pub fn own_tokens(&self, key: &Key, name: &Name) -> Option<Vec<u32>> {
        let head = self.disk.read_head(&name.path(), file::HEAD_BYTES).ok()?;
        file::own_tokens(&head, key, name)
    }

    /// Takes nodes out of the folder that are suspected to be wrong.
    pub fn set_aside(&self, chain: &[Id]) {
        for id in chain {
            let node = self.view().tree.remove(id);
            if let Some(node) = node {
                let _gone = self.disk.remove(&name_of(*id, &node).path());
            }
        }
    }

    /// Whether the folder was not looked at for a while.
    pub fn is_stale(&self) -> bool {
        let now = self.disk.now();
        !self.view().listed.is_some_and(|at| is_within(at, now, LISTING_AGE))
    }
}

enum Lost {
    Unread(io::Error),
    Damaged(Damage),
}

/// Whether `now` is less than `span` after `at`; a clock that went back says no.
fn is_within(at: Duration, now: Duration, span: Duration) -> bool {
    now.checked_sub(at).is_some_and(|age| age < span)
}

pub(super) fn name_of(id: Id, node: &Node<Seen>) -> Name {
    let Node { kind, parent, position, text, payload, .. } = *node;
    Name { home: payload.home, kind, position, parent, id, text }
}

fn node_of(name: &Name, bytes: u64, used: Option<SystemTime>) -> Node<Seen> {
    let Name { home, kind, position, parent, text, .. } = *name;
    Node { kind, parent, position, bytes, text, payload: Seen { home, used } }
}

/// Why a save was given up.
enum Refusal {
    /// A trouble of the disk; it is left alone for a while.
    Disk(&'static str, io::Error),
    /// A way that does not fit, or lost a block meanwhile.
    Way,
}

/// Writes saves, one after the other.
pub(super) struct Writer {
    shared: Arc<Shared>,
    claim: Option<(u64, Claim)>,
    written: u64,
}

impl Writer {
    pub fn new(shared: Arc<Shared>) -> Writer {
        Writer { shared, claim: None, written: 0 }
    }

    /// A first look at the folder: removes what dead writers left half-written.
    pub fn open(&mut self) {
        if let Err(error) = self.clean() {
            self.shared.view().report(format!("cannot read the state folder: {error}"));
            return;
        }
        self.refresh();
        let gone = {
            let mut view = self.shared.view();
            view.tree.evict(self.shared.limit, &HashSet::new())
        };
        self.remove(gone);
    }

    /// Whether the last look at the folder was a moment ago.
    pub fn is_fresh(&self) -> bool {
        !self.shared.is_stale()
    }

    fn clean(&self) -> io::Result<()> {
        let disk = &self.shared.disk;
        for listed in disk.list()? {
            let name = &listed.name;
            let owner = (name.strip_suffix(CLAIM))
                .or_else(|| name.strip_suffix(TEMPORARY)?.split_once('-').map(|(owner, _)| owner));
            let Some(owner) = owner.filter(|o| o.starts_with("writer")) else { continue };
            if !disk.is_claimed(&format!("{owner}{CLAIM}")) {
                let _gone = disk.remove(name);
            }
        }
        Ok(())
    }

    /// Makes the view what the folder is; false if the folder does not tell.
    pub fn refresh(&mut self) -> bool {
        let listing = self.shared.disk.list();
        let now = self.shared.disk.now();
        let mut view = self.shared.view();
        let mut files = match listing {
            Ok(files) => files,
            Err(error) => {
                view.report(format!("cannot read the state folder: {error}"));
                return false;
            }
        };
        files.sort_by(|a, b| a.modified.cmp(&b.modified).then(a.name.cmp(&b.name)));
        let named: Vec<(Name, &Listed)> =
            files.iter().filter_map(|f| Some((Name::parse(&f.name)?, f))).collect();
        let named = &named[named.len().saturating_sub(NODES_MAX)..];
        let there: HashSet<Id> = named.iter().map(|(name, _)| name.id).collect();
        let gone: Vec<Id> = view.tree.ids().filter(|id| !there.contains(id)).copied().collect();
        for id in &gone {
            view.tree.remove(id);
        }
        for (name, file) in named {
            let used = Some(file.modified);
            let Some(node) = view.tree.get_mut(&name.id) else {
                view.tree.insert(name.id, node_of(name, file.bytes, used));
                continue;
            };
            // A use by another process counts as one of ours.
            let newer = node.payload.used.is_some_and(|known| known < file.modified);
            node.payload.used = used;
            if newer {
                view.tree.touch(&name.id);
            }
        }
        view.listed = Some(now);
        true
    }

    /// Writes what is not there yet, and tells the receipt.
    pub fn save(&mut self, save: &Save) {
        let now = self.shared.disk.now();
        let rests = self.shared.view().resting.is_some_and(|at| is_within(at, now, REST));
        // What is not seen to be there is not acknowledged.
        let result = if rests || !self.refresh() {
            Err(Refusal::Way)
        } else {
            match self.write(save, 0) {
                Err(Refusal::Disk(_, error)) if error.kind() == io::ErrorKind::StorageFull => {
                    self.write(save, save.bytes())
                }
                other => other,
            }
        };
        let mut view = self.shared.view();
        if let Err(Refusal::Disk(what, error)) = &result {
            view.report(format!("cannot {what}: {error}"));
            view.resting = Some(self.shared.disk.now());
            view.listed = None;
            self.claim = None;
        }
        save.settle(view, result.is_ok());
    }

    /// Makes room within the limit (and `more` bytes, where the disk itself is full), then writes
    /// parents before children.
    fn write(&mut self, save: &Save, more: u64) -> Result<(), Refusal> {
        let todo: Vec<&Part> = {
            let view = self.shared.view();
            save.parts.iter().filter(|part| !view.tree.contains(&part.name.id)).collect()
        };
        let needed: u64 = todo.iter().map(|part| part.bytes()).sum();
        let gone = {
            let mut view = self.shared.view();
            let fresh: HashSet<Id> = todo.iter().map(|part| part.name.id).collect();
            let mut whole = needed;
            for id in save.chain.iter().filter(|id| !fresh.contains(id)) {
                whole += view.tree.get(id).ok_or(Refusal::Way)?.bytes;
            }
            if whole > self.shared.limit || todo.iter().any(|p| p.bytes() > self.shared.file_max) {
                return Err(Refusal::Way);
            }
            let room = self.shared.limit - needed;
            let room =
                if more > 0 { room.min(view.tree.bytes().saturating_sub(more)) } else { room };
            view.tree.evict(room, &save.chain.iter().copied().collect())
        };
        self.remove(gone);
        for part in &todo {
            self.write_one(&save.key, part)?;
        }
        let disk = &self.shared.disk;
        disk.sync_folder().map_err(|e| Refusal::Disk("sync the state folder", e))?;
        let mut view = self.shared.view();
        for part in todo {
            view.tree.insert(part.name.id, node_of(&part.name, part.bytes(), None));
        }
        Ok(())
    }

    fn write_one(&mut self, key: &Key, part: &Part) -> Result<(), Refusal> {
        let owner = self.owner().map_err(|e| Refusal::Disk("write to the state folder", e))?;
        self.written += 1;
        let temporary = format!("{owner}-{}{TEMPORARY}", self.written);
        let disk = &self.shared.disk;
        let [head, checksum] = file::frame(key, &part.name, &part.tokens, &part.payload);
        let written = disk
            .create(&temporary, &[&head, &part.payload, &checksum])
            .and_then(|()| disk.rename(&temporary, &part.name.path()));
        written.map_err(|error| {
            let _gone = disk.remove(&temporary);
            Refusal::Disk("write to the state folder", error)
        })
    }

    /// Beginning of the names of this writer's temporary files, claimed while it lives.
    fn owner(&mut self) -> io::Result<String> {
        let name = |number: u64| format!("writer{number:016x}");
        if let Some((number, _)) = &self.claim {
            return Ok(name(*number));
        }
        let number = self.shared.disk.unique();
        let claim = self.shared.disk.claim(&format!("{}{CLAIM}", name(number)))?;
        self.claim = Some((number, claim));
        Ok(name(number))
    }

    fn remove(&self, gone: Vec<(Id, Node<Seen>)>) {
        for (id, node) in gone {
            match self.shared.disk.remove(&name_of(id, &node).path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    self.shared.view().report(format!("cannot remove a stored state: {error}"));
                }
                _ => {}
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some((number, claim)) = self.claim.take() {
            let _gone = self.shared.disk.remove(&format!("writer{number:016x}{CLAIM}"));
            drop(claim);
        }
    }
}
