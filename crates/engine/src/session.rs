//! One timeline of tokens with its state.
//!
//! Invariant: the first `position` tokens of the timeline are evaluated and the state is theirs;
//! the rest wait. Every way out, errors and cancels included, leaves it so. A session that lost its
//! state to a failed step has position 0 and evaluates again, from a checkpoint where one serves.

use crate::engine::Dropped;
use crate::room::Room;
use crate::snapshot::Snapshot;
use crate::speculation::CostModel;
use crate::store::{Checkpoint, Found, Key, LoadError, Loaded, Receipt, Suspects};
use crate::{CancelFlag, Engine, Error};
use ironstar_device::{Draw, Step};
use ironstar_model::{BLOCK_TOKENS, LogitsFor, ROLLBACK_ROWS, State};
use std::ops::Range;
use std::sync::PoisonError;

/// Stored states that are tried on the way to some tokens; each that is damaged leaves the store.
const LOADS_MAX: usize = 8;

/// Blocks that are copied before their checkpoint comes: it is memory that no limit counts.
const READY_MAX: usize = 32;

/// Blocks for which memory is laid out ahead.
const ROOM_MAX: usize = 64;

/// One timeline of tokens with its state, on the engine that made it.
#[derive(Debug)]
pub struct Session {
    /// There until the session ends.
    state: Option<State>,
    pub(crate) timeline: Vec<u32>,
    /// Logits of the token before `logits_at`.
    pub(crate) logits: Vec<f32>,
    /// 0 if there are none.
    pub(crate) logits_at: usize,
    /// What guessing costs and gains here.
    pub(crate) costs: CostModel,
    /// Blocks that were evaluated since the last checkpoint, copied for the next.
    ready: Vec<(usize, Vec<u8>)>,
    /// Memory for those, and for the rest of the checkpoint.
    room: Room,
    /// On its way to what is stored of its tokens.
    arrival: Option<Arrival>,
    /// Where it came from, until a step has shown that one can go on from there.
    restored: Option<Found>,
    /// Whether the last failure may have been that one's fault.
    pub(crate) forgiven: bool,
    /// Whether it came from a snapshot that was steered otherwise than the model is.
    is_foreign: bool,
    suspects: Suspects,
    dropped: Dropped,
}

/// How far a stored state is put back, where that is done in pieces.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// What the state belongs to: under another key everything begins again.
    key: Key,
    found: Found,
    /// Blocks in their place.
    blocks: usize,
    /// Stored states that may still be tried after this one.
    tries: usize,
}

/// What [`Session::sync`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncReport {
    /// Tokens that needed no work.
    pub reused: usize,
    /// Tokens that were evaluated.
    pub evaluated: usize,
    /// How many of those the session had evaluated before, since it could not go back exactly.
    pub rebuilt: usize,
}

/// How far a sync is; sent after each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncProgress {
    /// Tokens evaluated or reused.
    pub done: usize,
    /// Tokens wanted.
    pub total: usize,
}

/// Receives [`SyncProgress`].
pub type OnProgress<'a> = &'a mut dyn FnMut(SyncProgress);

impl Session {
    pub(crate) fn new(
        state: State,
        costs: CostModel,
        dropped: Dropped,
        suspects: Suspects,
    ) -> Self {
        Session {
            state: Some(state),
            timeline: Vec::new(),
            logits: Vec::new(),
            logits_at: 0,
            costs,
            ready: Vec::new(),
            room: Room::default(),
            arrival: None,
            restored: None,
            forgiven: false,
            is_foreign: false,
            suspects,
            dropped,
        }
    }

    /// Its tokens; the last may still wait to be evaluated.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.timeline
    }

    /// How many of its tokens are evaluated.
    #[must_use]
    pub fn position(&self) -> usize {
        self.state().position()
    }

    /// Tokens that it has room for.
    #[must_use]
    pub fn context(&self) -> usize {
        self.state().context()
    }

    /// Logits of what follows the last token, if that is evaluated.
    #[must_use]
    pub fn logits(&self) -> Option<&[f32]> {
        let there = self.logits_at > 0 && self.logits_at == self.timeline.len();
        there.then_some(&self.logits[..])
    }

    /// Makes the session exactly these tokens, with the logits of the last, by the cheapest way:
    /// nothing if it is there, going on from where it is, going back within the rings, from the
    /// furthest checkpoint that serves, or from the start.
    ///
    /// When cancelled (looked at before each step) or failed, the session holds the tokens but has
    /// not evaluated all of them; the next call goes on. No error of the arguments changes
    /// anything.
    pub fn sync(
        &mut self,
        engine: &mut Engine,
        tokens: &[u32],
        on_progress: OnProgress<'_>,
        cancel: &CancelFlag,
    ) -> Result<SyncReport, Error> {
        self.check_tokens(engine, tokens)?;
        let before = self.common(tokens);
        let reused = self.reach(engine, tokens, tokens.len())?;
        self.timeline = tokens.to_vec();
        let reused = self.catch_up(engine, on_progress, cancel)?.min(reused);
        if reused < tokens.len() {
            self.checkpoint_if_far(engine)?;
        }
        let rebuilt = before.saturating_sub(reused);
        Ok(SyncReport { reused, evaluated: tokens.len() - reused, rebuilt })
    }

    /// Adds one token and gives the logits of what follows it.
    pub fn push(&mut self, engine: &mut Engine, token: u32) -> Result<&[f32], Error> {
        self.check_tokens(engine, &[token])?;
        self.check_room(self.timeline.len() + 1)?;
        self.timeline.push(token);
        self.catch_up(engine, &mut |_| {}, &CancelFlag::default())?;
        Ok(&self.logits)
    }

    /// The whole session at this moment, to come back to with [`Session::restore`].
    pub fn snapshot(&self, engine: &mut Engine) -> Result<Snapshot, Error> {
        let position = self.position();
        let logits = (position > 0 && self.logits_at == position).then(|| self.logits[..].into());
        let state = self.state().save(engine.backend.as_mut())?.into();
        let identity = self.is_shareable(engine).then(|| engine.model.state_identity().into());
        Ok(Snapshot { tokens: self.timeline[..].into(), position, state, identity, logits })
    }

    /// Becomes a session that has these tokens, with random rows for a state instead of what
    /// reading them would give: for measuring speed at a depth. Nothing of it is kept for others.
    pub fn fill_random(
        &mut self,
        engine: &mut Engine,
        tokens: &[u32],
        seed: u64,
    ) -> Result<(), Error> {
        self.check_tokens(engine, tokens)?;
        self.restored = None;
        self.ready.clear();
        if let Err(error) =
            self.state_mut().fill_random(engine.backend.as_mut(), tokens.len(), seed)
        {
            self.recover();
            return Err(error.into());
        }
        self.is_foreign = true;
        self.timeline = tokens.to_vec();
        self.logits_at = 0;
        Ok(())
    }

    /// Bytes of its state at this moment.
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        self.state().live_bytes()
    }

    /// Bytes of its state that the next token reads.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.state().read_bytes()
    }

    /// Becomes what a snapshot holds, of this session or of another one of the same model;
    /// evaluates nothing.
    pub fn restore(&mut self, engine: &mut Engine, snapshot: &Snapshot) -> Result<(), Error> {
        self.check_room(snapshot.tokens.len())?;
        self.load(engine, snapshot)?;
        self.timeline = snapshot.tokens.to_vec();
        Ok(())
    }

    /// Stores what is evaluated, within the engine's limits, for this session, others and later
    /// runs. Syncs and answers do so at their ends and every
    /// [`crate::EngineOptions::checkpoint_spacing`] tokens; the receipt tells when it is on disk.
    pub fn checkpoint(&mut self, engine: &mut Engine) -> Result<Receipt, Error> {
        let position = self.position();
        if engine.current_store().is_off() || position == 0 || !self.is_shareable(engine) {
            return Ok(Receipt::none());
        }
        let (tokens, backend) = (&self.timeline[..position], engine.backend.as_mut());
        let (mut room, mut ready) =
            (std::mem::take(&mut self.room), std::mem::take(&mut self.ready));
        let missing = engine.store.missing(tokens);
        ready.retain(|(block, _)| missing.contains(block));
        let lacking: Vec<usize> =
            missing.into_iter().filter(|block| ready.iter().all(|(of, _)| of != block)).collect();
        let mut blocks = ready;
        for run in lacking.chunk_by(|a, b| a + 1 == *b) {
            let run = run[0]..run[0] + run.len();
            let made = self.state().export_blocks(backend, run.clone(), &mut |n| room.take(n))?;
            blocks.extend(run.zip(made));
        }
        blocks.sort_by_key(|(block, _)| *block);
        let mut bytes = self.state().export_checkpoint(backend, &mut |n| room.take(n))?;
        let has_logits = self.logits_at == position;
        if has_logits {
            self.logits.iter().for_each(|logit| bytes.extend_from_slice(&logit.to_le_bytes()));
        }
        let text = engine.text_of(tokens);
        Ok(engine.store.insert(tokens, blocks, Checkpoint { bytes, has_logits, text }))
    }

    /// Whether others may go on from its state: all of it was steered as the model is now.
    fn is_shareable(&self, engine: &Engine) -> bool {
        !self.is_foreign && engine.model.is_steered_alike(self.state())
    }

    /// Copies the blocks that the last rows completed, so that a checkpoint does not have to copy
    /// all of them at once.
    pub(crate) fn make_ready(&mut self, engine: &mut Engine, before: usize) -> Result<(), Error> {
        let blocks = before / BLOCK_TOKENS..self.position() / BLOCK_TOKENS;
        if blocks.is_empty() || engine.current_store().is_off() || !self.is_shareable(engine) {
            return Ok(());
        }
        let room = READY_MAX.saturating_sub(self.ready.len()).min(blocks.len());
        let blocks = blocks.start..blocks.start + room;
        let mut room = std::mem::take(&mut self.room);
        let state = self.state();
        let made =
            state.export_blocks(engine.backend.as_mut(), blocks.clone(), &mut |n| room.take(n));
        self.room = room;
        self.ready.extend(blocks.zip(made?));
        Ok(())
    }

    /// Before steps that go to a position: begins to lay out memory for copies of what they make.
    pub(crate) fn make_room(&mut self, engine: &mut Engine, end: usize) {
        let begin = self.position();
        let is_far = end.saturating_sub(begin) >= ROLLBACK_ROWS;
        if !is_far || engine.current_store().is_off() || !self.is_shareable(engine) {
            return;
        }
        let blocks = (end / BLOCK_TOKENS - begin / BLOCK_TOKENS).min(ROOM_MAX);
        let block = self.state().block_bytes();
        let logits = size_of::<f32>() * engine.model.shape().vocabulary;
        let rest = self.state().checkpoint_bytes(end) + logits;
        self.room.lay_out(std::iter::repeat_n(block, blocks).chain([rest]));
    }

    /// Begins to put back what is stored of these tokens; for a session without any.
    /// [`Session::arrive`] goes on.
    pub(crate) fn set_out(&mut self, engine: &mut Engine, tokens: &[u32]) {
        engine.model.look();
        self.next_arrival(engine, tokens, LOADS_MAX);
    }

    fn next_arrival(&mut self, engine: &mut Engine, tokens: &[u32], tries: usize) {
        let Some(tries) = tries.checked_sub(1) else { return };
        let store = engine.current_store();
        let (found, key) = (store.find(tokens, tokens.len()), *store.key());
        self.arrival = found.map(|found| Arrival { key, found, blocks: 0, tries });
    }

    /// Puts back no more than `most` blocks of what is stored, or the rest; whether that is all. A
    /// stored state that cannot be had is followed by the next best.
    pub(crate) fn arrive(
        &mut self,
        engine: &mut Engine,
        tokens: &[u32],
        most: usize,
    ) -> Result<bool, Error> {
        let Some(mut arrival) = self.arrival.take() else { return Ok(true) };
        let is_there = if *engine.current_store().key() != arrival.key {
            false
        } else if arrival.blocks < arrival.found.blocks() {
            let end = arrival.blocks.saturating_add(most.max(1));
            let blocks = arrival.blocks..end.min(arrival.found.blocks());
            arrival.blocks = blocks.end;
            self.load_stored(engine, &arrival.found, tokens, blocks, false)?
        } else {
            let blocks = arrival.blocks..arrival.blocks;
            if self.load_stored(engine, &arrival.found, tokens, blocks, true)? {
                return Ok(true);
            }
            false
        };
        if is_there {
            self.arrival = Some(arrival);
        } else {
            self.next_arrival(engine, tokens, arrival.tries);
        }
        Ok(self.arrival.is_none())
    }

    /// A checkpoint, unless one is so near that rings or a short step lead here as well.
    pub(crate) fn checkpoint_if_far(&mut self, engine: &mut Engine) -> Result<(), Error> {
        let nearest = engine.current_store().nearest(&self.timeline[..self.position()]);
        if self.position() - nearest >= ROLLBACK_ROWS {
            self.checkpoint(engine)?;
        }
        // What was laid out for one that is not taken is let go.
        self.room = Room::default();
        Ok(())
    }

    pub(crate) fn state(&self) -> &State {
        self.state.as_ref().expect("a session has a state until it ends")
    }

    pub(crate) fn state_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("a session has a state until it ends")
    }

    /// Refuses tokens that the model does not have, and more than there is room for.
    pub(crate) fn check_tokens(&self, engine: &Engine, tokens: &[u32]) -> Result<(), Error> {
        self.check_room(tokens.len())?;
        let vocabulary = engine.model.shape().vocabulary;
        let wrong = |t: &&u32| usize::try_from(**t).is_ok_and(|t| t >= vocabulary);
        match tokens.iter().find(wrong) {
            Some(&token) => Err(ironstar_model::Error::Token { token, vocabulary }.into()),
            None => Ok(()),
        }
    }

    fn check_room(&self, wanted: usize) -> Result<(), Error> {
        let context = self.context();
        if wanted > context {
            return Err(ironstar_model::Error::Context { wanted, context }.into());
        }
        Ok(())
    }

    /// How many evaluated tokens are the first ones of `tokens`.
    fn common(&self, tokens: &[u32]) -> usize {
        let there = if self.state().is_lost() { 0 } else { self.position() };
        let live = &self.timeline[..there];
        live.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }

    /// Moves the state, without evaluating, to the furthest position on the way to `tokens` that is
    /// in reach and not beyond `most`, and gives it. What the timeline held beyond is
    /// forgotten.
    pub(crate) fn reach(
        &mut self,
        engine: &mut Engine,
        tokens: &[u32],
        most: usize,
    ) -> Result<usize, Error> {
        engine.model.look();
        let (position, common) = (self.position(), self.common(tokens));
        let there = common == position && position <= most;
        let live = if there && (position < tokens.len() || self.logits_at == position) {
            position
        } else {
            // The last token is evaluated again for its logits.
            let to = common.min(most).min(tokens.len().saturating_sub(1));
            if to < self.state().rewind_floor() { 0 } else { to }
        };
        for _ in 0..LOADS_MAX {
            let found =
                engine.current_store().find(tokens, most).filter(|found| found.position() > live);
            let Some(found) = found else { break };
            self.go_back(live)?;
            let blocks = (common / BLOCK_TOKENS).min(found.blocks())..found.blocks();
            if self.load_stored(engine, &found, tokens, blocks, true)? {
                return Ok(found.position());
            }
        }
        self.go_back(live)?;
        Ok(live)
    }

    /// To a position that the rings hold, or to none.
    fn go_back(&mut self, live: usize) -> Result<(), Error> {
        let position = self.position();
        self.state_mut().truncate(live)?;
        self.timeline.truncate(live);
        self.ready.retain(|(block, _)| (block + 1) * BLOCK_TOKENS <= live);
        self.is_foreign &= live > 0;
        if live != position {
            self.logits_at = 0;
        }
        Ok(())
    }

    /// Puts back blocks of a stored state, and where it `ends` with them goes to its position; or
    /// tells that it cannot be had. The rows of the blocks before are in their place: the session
    /// evaluated the same tokens, or was given them.
    fn load_stored(
        &mut self,
        engine: &mut Engine,
        found: &Found,
        tokens: &[u32],
        blocks: Range<usize>,
        ends: bool,
    ) -> Result<bool, Error> {
        self.ready.clear();
        let position = found.position();
        let logits_bytes = if found.has_logits() { engine.model.shape().vocabulary * 4 } else { 0 };
        let (state, backend) = (self.state.as_mut(), engine.backend.as_mut());
        let state = state.expect("a session has a state until it ends");
        let mut logits = Vec::new();
        let mut put = |part: Loaded<'_>| match part {
            Loaded::Block(block, bytes) => state.import_block(backend, block, bytes),
            Loaded::Checkpoint(bytes) => {
                let at = bytes.len().saturating_sub(logits_bytes);
                let (rings, tail) = bytes.split_at(at);
                let values = tail.as_chunks::<4>().0.iter();
                logits = values.map(|bytes| f32::from_le_bytes(*bytes)).collect();
                state.import_checkpoint(backend, position, rings)
            }
        };
        let loaded = match ends {
            true => engine.store.load(found, tokens, blocks.start, &mut put),
            false => engine.store.load_blocks(found, tokens, blocks, &mut put),
        };
        match loaded {
            Ok(()) => {}
            Err(LoadError::Lost) => return Ok(false),
            Err(LoadError::Sink(ironstar_model::Error::Saved { .. })) => {
                engine.store.set_aside(found);
                return Ok(false);
            }
            Err(LoadError::Sink(error)) => {
                self.recover();
                return Err(error.into());
            }
        }
        if !ends {
            return Ok(true);
        }
        engine.model.adopt(self.state_mut());
        self.is_foreign = false;
        self.timeline = tokens[..position].to_vec();
        self.logits_at = 0;
        if !logits.is_empty() {
            (self.logits, self.logits_at) = (logits, position);
        }
        self.restored = Some(found.clone());
        Ok(true)
    }

    /// The state, evaluated tokens and logits of a snapshot. When the device fails, nothing is
    /// evaluated.
    fn load(&mut self, engine: &mut Engine, snapshot: &Snapshot) -> Result<(), Error> {
        self.restored = None;
        self.ready.clear();
        let restored = self.state_mut().restore(engine.backend.as_mut(), &snapshot.state);
        if let Err(error) = restored {
            self.recover();
            return Err(error.into());
        }
        let identity = engine.model.state_identity();
        self.is_foreign = snapshot.identity.as_deref() != Some(&identity[..]);
        if !self.is_foreign {
            engine.model.adopt(self.state_mut());
        }
        self.timeline = snapshot.tokens[..snapshot.position].to_vec();
        self.logits_at = 0;
        if let Some(logits) = &snapshot.logits {
            self.logits = logits.to_vec();
            self.logits_at = snapshot.position;
        }
        Ok(())
    }

    /// Evaluates what waits on the timeline, and gives the position that it began at. The flag is
    /// looked at before each step. When the first step after a stored state fails, that is set
    /// aside and everything is evaluated.
    pub(crate) fn catch_up(
        &mut self,
        engine: &mut Engine,
        on_progress: OnProgress<'_>,
        cancel: &CancelFlag,
    ) -> Result<usize, Error> {
        let total = self.timeline.len();
        let no_logits = self.position() == total && self.logits_at != total;
        if total > 0 && (self.position() == 0 || no_logits) {
            let tokens = self.timeline.clone();
            self.reach(engine, &tokens, total)?;
            self.timeline = tokens;
        }
        let mut begin = self.position();
        while self.position() < total {
            let position = self.position();
            if cancel.is_raised() {
                return Err(Error::Cancelled { position, wanted: total });
            }
            let spacing = engine.options.checkpoint_spacing;
            let mark = (position / spacing + 1).saturating_mul(spacing);
            let end = (position + engine.options.step_rows).min(total).min(mark);
            let wanted = if end == total { LogitsFor::Last } else { LogitsFor::None };
            let tokens = self.timeline[position..end].to_vec();
            let was_restored = self.restored.is_some();
            self.make_room(engine, total.min(mark));
            let output = match self.step(engine, &tokens, wanted, LogitsFor::None) {
                Err(_) if was_restored => {
                    begin = self.position();
                    continue;
                }
                other => other?,
            };
            self.keep(engine, tokens.len())?;
            if end == total {
                self.logits = output.logits.row(0).to_vec();
                self.logits_at = end;
            } else if end == mark {
                self.checkpoint(engine)?;
            }
            on_progress(SyncProgress { done: end, total });
        }
        Ok(begin)
    }

    /// Evaluates all tokens but the last again, after the first step from a stored state failed.
    pub(crate) fn read_again(&mut self, engine: &mut Engine) -> Result<(), Error> {
        let last = self.timeline.pop();
        let read = self.catch_up(engine, &mut |_| {}, &CancelFlag::default());
        self.timeline.extend(last);
        read.map(|_| ())
    }

    /// Whether no step has followed a stored state yet.
    pub(crate) fn is_just_restored(&self) -> bool {
        self.restored.is_some()
    }

    /// Evaluates rows after the position without keeping them; a failure leaves a session that can
    /// go on.
    pub(crate) fn step(
        &mut self,
        engine: &mut Engine,
        tokens: &[u32],
        logits: LogitsFor<'_>,
        drafts: LogitsFor<'_>,
    ) -> Result<ironstar_model::Output, Error> {
        let output = engine.step(self.state_mut(), tokens, logits, drafts);
        if output.is_err() {
            self.recover();
        }
        output
    }

    /// The same for rows of which the device draws the tokens.
    pub(crate) fn step_drawn(
        &mut self,
        engine: &mut Engine,
        tokens: &[u32],
        draws: &[Draw],
    ) -> Result<Vec<Option<u32>>, Error> {
        let step = Step::single(tokens, self.position());
        let drawn = engine.step_drawn_of(&step, &mut [self.state_mut()], LogitsFor::All, draws);
        if drawn.is_err() {
            self.recover();
        }
        drawn
    }

    /// Keeps the first rows of the last step.
    pub(crate) fn keep(&mut self, engine: &Engine, rows: usize) -> Result<(), Error> {
        engine.model.commit(self.state_mut(), rows)?;
        self.restored = None;
        Ok(())
    }

    /// After a failure: a state that the rings no longer hold goes to 0, from where stored ones are
    /// found; so does one that was just restored, which is not trusted again.
    pub(crate) fn recover(&mut self) {
        // Where a node of a pipeline has gone, what was restored is not at fault.
        let is_lost = self.state().is_lost();
        let suspect = self.restored.take().filter(|_| !is_lost);
        self.forgiven = suspect.is_some();
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        suspects.extend(suspect);
        drop(suspects);
        let forgiven = self.forgiven;
        let state = self.state_mut();
        if forgiven || state.position() < state.rewind_floor() {
            state.truncate(0).expect("0 is always in reach");
        }
        self.ready.clear();
        if self.position() == 0 {
            self.logits_at = 0;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.extend(self.state.take());
    }
}
