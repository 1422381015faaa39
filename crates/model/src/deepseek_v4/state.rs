//! Everything a session keeps on the device, what it costs, and its bytes outside.
//!
//! A layer keeps rings by position and append-only rows (spec 3), nothing else:
//!
//! | buffer | slots | row | live at position `p` |
//! |---|---|---|---|
//! | window ring | window + rollback | D | the `window - 1` positions before `p` |
//! | draft ring, if any | window + rollback + ahead | D | the `window - 1` before `p - 1` |
//! | draft streams | 1 + rollback | streams x d | position `p - 1` |
//! | DSpark rings, if any | window + rollback | D | the `window` positions before `p` |
//! | compressor rings | span + rollback | parts x width | open group, half of the one before |
//! | compressed rows | context / ratio | width | `p / ratio` |
//!
//! A step writes slots ahead of the position and `commit` moves the position; so taking back is a
//! smaller position. Saved bytes hold the live part in the order of this table, each line for all
//! layers, the last two layer by layer: equal prefixes give equal bytes, however they were
//! evaluated. Where groups overlap (ratio 4) the first halves of the group before the open one are
//! live too.
//!
//! In parts, for a store that keeps shared rows once: a *block* is the rows that [`BLOCK_TOKENS`]
//! tokens closed, layer by layer; a *checkpoint* is the table at a position, with those rows only
//! that no whole block holds. Every ratio divides a block, so blocks never share a row.

mod fill;
mod staged;

use super::dspark::SparkShape;
use super::follow::Shared;
use super::orders::Part;
use super::pipeline::Pipe;
use super::scratch::For;
use super::shape::Shape;
use super::weights::parts;
use crate::{Error, Fingerprint, Options, PlanLine, RowStorage};
use ironstar_device::{Arena, Backend, Buffer, CompressState, Element, ROLLBACK_ROWS, ReadRun};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Tokens of a block: a multiple of every ratio, so that its rows are its own.
pub const BLOCK_TOKENS: usize = 128;

/// First bytes of a saved state; the last one is the version.
const MAGIC: &[u8; 8] = b"ISTATE\0\x01";
/// Magic, two fingerprints, flags, position, payload size, checksum.
const HEADER_BYTES: usize = 8 + 32 + 32 + 4 + 8 + 8 + 8;

/// What states of one model have in common.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub shape: Shape,
    pub options: Options,
    pub fingerprint: Fingerprint,
    pub drafter: Option<Fingerprint>,
    /// Numbers of DSpark, where that is the drafter.
    pub spark: Option<SparkShape>,
    /// The next session's number; ranks name sessions by it.
    pub ids: AtomicU32,
    /// The other nodes, where this one has some of the layers.
    pub pipe: Option<Pipe>,
    /// Name of what computes: another kind gives other bits.
    pub backend: &'static str,
}

impl Kept {
    /// Which drafter the buffers are for.
    pub fn drafts(&self) -> For<'_> {
        match (&self.spark, self.drafter) {
            (Some(spark), _) => For::Spark(spark),
            (None, Some(_)) => For::Mtp,
            (None, None) => For::None,
        }
    }

    /// Which drafter this node runs.
    pub fn drafts_here(&self) -> For<'_> {
        if self.holds(self.drafting_stage()) { self.drafts() } else { For::None }
    }

    /// The node that has a layer; 0 where there is one only.
    fn stage_of(&self, layer: usize) -> usize {
        self.pipe.as_ref().map_or(0, |pipe| pipe.stages.of_layer(layer))
    }

    fn drafting_stage(&self) -> usize {
        self.pipe.as_ref().map_or(0, |pipe| pipe.stages.last())
    }

    fn holds(&self, stage: usize) -> bool {
        self.pipe.as_ref().is_none_or(|pipe| pipe.stage == stage)
    }

    /// Options that change what is kept.
    fn flags(&self) -> u32 {
        let options = &self.options;
        u32::from(options.round_trips) | u32::from(options.rows == RowStorage::F32) << 1
    }

    /// What states must have in common to be exchanged: model, drafter, options.
    pub fn identity(&self) -> Vec<u8> {
        let mut all = self.fingerprint.bytes().to_vec();
        all.extend_from_slice(&self.drafter.map_or([0; 32], |f| f.bytes()));
        all.extend_from_slice(&self.flags().to_le_bytes());
        all
    }

    /// What ranks must have in common: that, the rows of a step, and the kind of backend.
    pub fn meeting(&self) -> Vec<u8> {
        let mut all = self.identity();
        let rows = u64::try_from(self.options.step_rows_max).unwrap_or(u64::MAX);
        all.extend_from_slice(&rows.to_le_bytes());
        all.extend_from_slice(self.backend.as_bytes());
        all
    }

    /// Whether rank 0's [`Kept::meeting`] is this rank's, or what differs.
    pub fn meets(&self, theirs: &[u8]) -> Result<(), String> {
        let mine = self.meeting();
        if mine == theirs {
            return Ok(());
        }
        let common = mine.len() - self.backend.len();
        match theirs.split_at_checked(common) {
            Some((same, kind)) if same == &mine[..common] => {
                let (mine, theirs) = (self.backend, String::from_utf8_lossy(kind));
                Err(format!("it runs on {mine} and rank 0 on {theirs}, which give other bits"))
            }
            _ => {
                Err("it has another model, drafter, settings or rows a step than rank 0".to_owned())
            }
        }
    }
}

/// One session's timeline on a device.
#[derive(Debug)]
pub struct State {
    arena: Arena,
    kept: Arc<Kept>,
    pub(super) layers: Vec<LayerState>,
    pub(super) draft: Option<DraftState>,
    /// DSpark's rings, one a stage: [window + rollback, D]
    pub(super) spark: Vec<Buffer>,
    context: usize,
    position: usize,
    /// Lowest position that the rings can still go back to.
    floor: usize,
    /// End of the last step, whose rows [`State::advance`] may keep.
    written: usize,
    /// How what it holds was steered; see [`State::is_mixed`].
    steering: Vec<u8>,
    is_mixed: bool,
    /// What the other ranks know of it.
    pub(super) shared: Shared,
}

#[derive(Debug)]
pub(super) struct LayerState {
    /// [window + rollback, D]
    pub ring: Buffer,
    pub compressor: Option<CompressState>,
    pub index: Option<CompressState>,
}

#[derive(Debug)]
pub(super) struct DraftState {
    /// [window + rollback + ahead, D]: rows of the draft block, one position behind
    pub ring: Buffer,
    /// [1 + rollback, streams * d]: what the backbone's last layer gave
    pub streams: Buffer,
}

/// Buffers of all layers, of the draft block and of DSpark's stages.
type Allocated = (Vec<LayerState>, Option<DraftState>, Vec<Buffer>);

/// Ring slots of a window.
pub(super) fn window_slots(shape: &Shape) -> usize {
    shape.window + ROLLBACK_ROWS
}

/// Tokens that the draft block may guess in a chain.
pub const CHAIN_MAX: usize = 8;

/// Ring slots of the draft block, which writes the rows of a chain ahead.
pub(super) fn draft_slots(shape: &Shape) -> usize {
    window_slots(shape) + CHAIN_MAX
}

/// Ring slots of the draft block's stream rows.
pub(super) const STREAM_SLOTS: usize = 1 + ROLLBACK_ROWS;

/// Sizes of one compressor's buffers.
struct CompressSizes {
    ratio: usize,
    parts: usize,
    width: usize,
    capacity: usize,
    element: Element,
    rows: usize,
}

impl CompressSizes {
    fn new(ratio: usize, width: usize, element: Element, context: usize) -> Self {
        let parts = parts(ratio);
        let capacity = parts * ratio + ROLLBACK_ROWS;
        CompressSizes { ratio, parts, width, capacity, element, rows: context / ratio }
    }

    /// Elements of a row in `rows`: an FP4 row is one element.
    fn row_elements(&self) -> usize {
        if self.element == Element::Fp4Row { 1 } else { self.width }
    }

    fn ring_len(&self) -> usize {
        self.capacity * self.parts * self.width
    }

    /// At least one, so that a context shorter than a group has a buffer to name.
    fn rows_len(&self) -> usize {
        self.rows.max(1) * self.row_elements()
    }

    fn bytes(&self) -> (u64, u64) {
        let ring = 2 * size(Element::F32, self.ring_len());
        (ring, size(self.element, self.rows_len()))
    }

    fn alloc(&self, space: &mut Space<'_>) -> Result<CompressState, Error> {
        Ok(CompressState {
            values: space.alloc(Element::F32, self.ring_len())?,
            scores: space.alloc(Element::F32, self.ring_len())?,
            capacity: self.capacity,
            rows: space.alloc(self.element, self.rows_len())?,
        })
    }
}

/// Where the buffers of a layer are made. What another node has is a name here, of one element.
struct Space<'a> {
    backend: &'a mut dyn Backend,
    arena: Arena,
    is_here: bool,
}

impl Space<'_> {
    fn alloc(&mut self, element: Element, len: usize) -> Result<Buffer, Error> {
        let len = if self.is_here { len } else { 1 };
        Ok(self.backend.alloc(self.arena, element, len)?)
    }
}

fn size(element: Element, len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX).saturating_mul(element.bytes() as u64)
}

/// The compressors of a layer: keys and values, then the indexer's.
fn compressors(
    shape: &Shape,
    options: &Options,
    layer: usize,
    context: usize,
) -> [Option<CompressSizes>; 2] {
    let ratio = shape.ratios[layer];
    let of = |width, element| CompressSizes::new(ratio, width, element, context);
    let index_element = if options.round_trips { Element::Fp4Row } else { Element::F32 };
    [
        (ratio > 0).then(|| of(shape.head_width, options.rows.element())),
        (ratio == 4).then(|| of(shape.index_width, index_element)),
    ]
}

/// Bytes of one session's state, by what they are for.
pub(super) fn plan(
    shape: &Shape,
    context: usize,
    options: &Options,
    drafter: For<'_>,
) -> Vec<PlanLine> {
    let slots = match drafter {
        For::None => 0,
        For::Mtp => draft_slots(shape),
        For::Spark(spark) => spark.stages * window_slots(shape),
    };
    let slots = slots.saturating_add(shape.layers.saturating_mul(window_slots(shape)));
    let windows = size(options.rows.element(), slots.saturating_mul(shape.head_width));
    let (mut frontiers, mut rows, mut index) = (0, 0, 0);
    for layer in 0..shape.layers {
        let [kv, indexer] =
            compressors(shape, options, layer, context).map(|c| c.map(|c| c.bytes()));
        frontiers += kv.map_or(0, |b| b.0) + indexer.map_or(0, |b| b.0);
        rows += kv.map_or(0, |b| b.1);
        index += indexer.map_or(0, |b| b.1);
    }
    let streams = STREAM_SLOTS * shape.streams * shape.width;
    let mut lines = vec![
        PlanLine { what: "window rings", bytes: windows },
        PlanLine { what: "compressor frontiers", bytes: frontiers },
        PlanLine { what: "compressed rows", bytes: rows },
        PlanLine { what: "indexer rows", bytes: index },
    ];
    if let For::Mtp = drafter {
        lines.push(PlanLine { what: "draft streams", bytes: size(Element::F32, streams) });
    }
    lines
}

/// Gives places of so many bytes, with whatever in them, for copies of a state.
pub type Room<'a> = &'a mut dyn FnMut(usize) -> Vec<u8>;

/// A run of live elements.
struct Piece {
    /// The node that has them.
    stage: usize,
    buffer: Buffer,
    offset: usize,
    len: usize,
}

/// Runs that are listed one behind the other.
#[derive(Default)]
struct Pieces {
    all: Vec<Piece>,
    /// The node that has what is listed next.
    stage: usize,
}

impl Pieces {
    fn push(&mut self, buffer: Buffer, offset: usize, len: usize) {
        self.all.push(Piece { stage: self.stage, buffer, offset, len });
    }
}

impl Piece {
    fn bytes(&self) -> usize {
        self.len * self.buffer.element.bytes()
    }

    /// As a backend reads it.
    fn run<'b>(&self, into: Vec<&'b mut [u8]>) -> ReadRun<'b> {
        ReadRun { from: self.buffer, offset: self.offset, into }
    }
}

impl State {
    pub(super) fn new(
        kept: Arc<Kept>,
        backend: &mut dyn Backend,
        context: usize,
    ) -> Result<State, Error> {
        let arena = backend.arena();
        let made = Self::alloc(&kept, backend, arena, context);
        let (layers, draft, spark) = made.inspect_err(|_| backend.release(arena))?;
        let id = kept.ids.fetch_add(1, Ordering::Relaxed);
        Ok(State {
            arena,
            shared: Shared { id, ..Shared::default() },
            kept,
            layers,
            draft,
            spark,
            context,
            position: 0,
            floor: 0,
            written: 0,
            steering: Vec::new(),
            is_mixed: false,
        })
    }

    fn alloc(
        kept: &Kept,
        backend: &mut dyn Backend,
        arena: Arena,
        context: usize,
    ) -> Result<Allocated, Error> {
        let (shape, options) = (&kept.shape, &kept.options);
        let ring_len = window_slots(shape) * shape.head_width;
        let element = options.rows.element();
        let mut layers = Vec::with_capacity(shape.layers);
        let mut space = Space { backend, arena, is_here: true };
        for layer in 0..shape.layers {
            space.is_here = kept.holds(kept.stage_of(layer));
            let ring = space.alloc(element, ring_len)?;
            let [kv, index] = compressors(shape, options, layer, context);
            let compressor = kv.map(|sizes| sizes.alloc(&mut space)).transpose()?;
            let index = index.map(|sizes| sizes.alloc(&mut space)).transpose()?;
            layers.push(LayerState { ring, compressor, index });
        }
        space.is_here = kept.holds(kept.drafting_stage());
        let mut draft = None;
        let mut spark = Vec::new();
        match kept.drafts() {
            For::None => {}
            For::Mtp => {
                let len = STREAM_SLOTS * shape.streams * shape.width;
                let ring = space.alloc(element, draft_slots(shape) * shape.head_width)?;
                let streams = space.alloc(Element::F32, len)?;
                draft = Some(DraftState { ring, streams });
            }
            For::Spark(numbers) => {
                for _ in 0..numbers.stages {
                    spark.push(space.alloc(element, ring_len)?);
                }
            }
        }
        Ok((layers, draft, spark))
    }

    /// Position of the next token.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Positions there is room for.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// Whether parts of it were evaluated under different steering: then it is no other session's
    /// prefix, and must not be kept for one.
    #[must_use]
    pub fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// Lowest position that [`State::truncate`] can go back to, apart from 0.
    #[must_use]
    pub fn rewind_floor(&self) -> usize {
        if self.is_lost() {
            return usize::MAX;
        }
        self.floor.max(self.shared.floor.load(Ordering::Relaxed))
    }

    /// Whether a part of it was on a node of a pipeline that is gone: only 0 can be reached, and
    /// what was saved.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.position > 0 && self.kept.pipe.as_ref().is_some_and(|pipe| pipe.is_lost(&self.shared))
    }

    /// Goes back to an earlier position: to 0, or by as much as the rings hold
    /// ([`ROLLBACK_ROWS`] from the highest position that a step has written).
    pub fn truncate(&mut self, position: usize) -> Result<(), Error> {
        let lowest = self.rewind_floor();
        if position == 0 {
            self.floor = 0;
            self.shared.floor.store(0, Ordering::Relaxed);
        } else if position < lowest || position > self.position {
            return Err(Error::Rewind { wanted: position, lowest, highest: self.position });
        }
        (self.position, self.written) = (position, position);
        Ok(())
    }

    pub(super) fn belongs_to(&self, kept: &Arc<Kept>) -> bool {
        Arc::ptr_eq(&self.kept, kept)
    }

    /// Whether a step of so many rows can follow.
    pub(super) fn check_begin(&self, rows: usize) -> Result<(), Error> {
        let end = self.position.saturating_add(rows);
        if end > self.context {
            return Err(Error::Context { wanted: end, context: self.context });
        }
        if let Some(pipe) = self.kept.pipe.as_ref().filter(|_| self.is_lost()) {
            return Err(pipe.why());
        }
        let lowest = self.rewind_floor();
        if self.position < lowest {
            let wanted = self.position;
            return Err(Error::Rewind { wanted, lowest, highest: self.position });
        }
        Ok(())
    }

    /// Called before a step writes: from here on only the end of it can be taken back.
    pub(super) fn begin(&mut self, rows: usize, steering: &[u8]) {
        if self.position == 0 {
            (self.steering, self.is_mixed) = (steering.to_vec(), false);
        } else {
            self.is_mixed |= self.steering != steering;
        }
        self.floor = self.floor.max((self.position + rows).saturating_sub(ROLLBACK_ROWS));
        self.written = self.position;
    }

    pub(super) fn is_steered(&self, steering: &[u8]) -> bool {
        !self.is_mixed && self.steering == steering
    }

    pub(super) fn adopt(&mut self, steering: Vec<u8>) {
        (self.steering, self.is_mixed) = (steering, false);
    }

    /// Called when a step has written all it had to.
    pub(super) fn written(&mut self, rows: usize) {
        self.written = self.position + rows;
    }

    pub(super) fn advance(&mut self, rows: usize) -> Result<(), Error> {
        if let Some(pipe) = self.kept.pipe.as_ref().filter(|_| self.is_lost()) {
            return Err(pipe.why());
        }
        let to = self.position.saturating_add(rows);
        let lowest = self.rewind_floor();
        if to > self.written || to < lowest {
            let highest = self.written;
            return Err(Error::Rewind { wanted: to, lowest, highest });
        }
        (self.position, self.written) = (to, to);
        Ok(())
    }

    /// Runs of elements that matter at a position, in the order of the page's table; rows only of
    /// positions from `rows_from` on.
    fn pieces(&self, position: usize, rows_from: usize) -> Vec<Piece> {
        let shape = &self.kept.shape;
        let mut pieces = Pieces::default();
        let slots = window_slots(shape);
        let mut window = |stage: usize, ring: Buffer, slots: usize, rows: usize, end: usize| {
            let from = end.saturating_sub(rows);
            pieces.stage = stage;
            ring_pieces(&mut pieces, ring, slots, shape.head_width, from..end);
        };
        for (layer, state) in self.layers.iter().enumerate() {
            window(self.kept.stage_of(layer), state.ring, slots, shape.window - 1, position);
        }
        let drafting = self.kept.drafting_stage();
        for ring in &self.spark {
            window(drafting, *ring, slots, shape.window, position);
        }
        if let Some(draft) = &self.draft {
            let (slots, end) = (draft_slots(shape), position.saturating_sub(1));
            window(drafting, draft.ring, slots, shape.window - 1, end);
            let width = shape.streams * shape.width;
            let last = position.saturating_sub(1)..position;
            ring_pieces(&mut pieces, draft.streams, STREAM_SLOTS, width, last);
        }
        for (layer, state) in self.layers.iter().enumerate() {
            pieces.stage = self.kept.stage_of(layer);
            let sizes = compressors(shape, &self.kept.options, layer, self.context);
            for (sizes, state) in sizes.iter().zip([&state.compressor, &state.index]) {
                if let (Some(sizes), Some(state)) = (sizes, state) {
                    frontier_pieces(&mut pieces, sizes, state, position);
                    row_pieces(&mut pieces, sizes, state, rows_from..position);
                }
            }
        }
        pieces.all
    }

    /// Rows that blocks closed, layer by layer, keys and values before the indexer's.
    fn block_pieces(&self, blocks: Range<usize>) -> Vec<Piece> {
        let mut pieces = Pieces::default();
        let positions = blocks.start * BLOCK_TOKENS..blocks.end * BLOCK_TOKENS;
        for (layer, state) in self.layers.iter().enumerate() {
            pieces.stage = self.kept.stage_of(layer);
            let sizes = compressors(&self.kept.shape, &self.kept.options, layer, self.context);
            for (sizes, state) in sizes.iter().zip([&state.compressor, &state.index]) {
                if let (Some(sizes), Some(state)) = (sizes, state) {
                    row_pieces(&mut pieces, sizes, state, positions.clone());
                }
            }
        }
        pieces.all
    }

    /// Rows of blocks that are evaluated whole, each block's apart. Those of neighbours lie behind
    /// one another on the device and are read together.
    pub fn export_blocks(
        &self,
        backend: &mut dyn Backend,
        blocks: Range<usize>,
        room: Room<'_>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        if blocks.end > self.position / BLOCK_TOKENS {
            let (wanted, highest) = (blocks.end.saturating_mul(BLOCK_TOKENS), self.position);
            return Err(Error::Rewind { wanted, lowest: 0, highest });
        }
        self.read_blocks(backend, blocks, room)
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        bytes_of(&self.block_pieces(0..1))
    }

    /// What the position needs beside the rows of whole blocks before it.
    pub fn export_checkpoint(
        &self,
        backend: &mut dyn Backend,
        room: Room<'_>,
    ) -> Result<Vec<u8>, Error> {
        let mut bytes = room(self.checkpoint_bytes(self.position));
        self.read_part(backend, Part::Checkpoint(self.position), &mut bytes)?;
        Ok(bytes)
    }

    /// Bytes of a checkpoint at a position.
    #[must_use]
    pub fn checkpoint_bytes(&self, position: usize) -> usize {
        bytes_of(&self.pieces_of(Part::Checkpoint(position)))
    }

    /// Puts a block's rows in their place. Live rows must be those of the same tokens; the position
    /// stays, and [`State::import_checkpoint`] moves it.
    pub fn import_block(
        &mut self,
        backend: &mut dyn Backend,
        block: usize,
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.check_part(block.saturating_add(1).saturating_mul(BLOCK_TOKENS))?;
        self.forget();
        self.write_part(backend, Part::Block(block), bytes)
    }

    /// Goes to a checkpoint's position, when all blocks before it are in their place. When the
    /// device fails in the middle, the state is at position 0.
    pub fn import_checkpoint(
        &mut self,
        backend: &mut dyn Backend,
        position: usize,
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.check_part(position)?;
        let part = Part::Checkpoint(position);
        check_size(&self.pieces_of(part), bytes)?;
        self.forget();
        self.truncate(0)?;
        self.write_part(backend, part, bytes)?;
        (self.position, self.floor, self.written) = (position, position, position);
        Ok(())
    }

    fn check_part(&self, end: usize) -> Result<(), Error> {
        if end > self.context {
            let wanted = format!("at most {}: use a larger context", self.context);
            return Err(Error::Saved { found: format!("position {end}"), wanted });
        }
        Ok(())
    }

    /// The live bytes, with a header that says what they belong to.
    pub fn save(&self, backend: &mut dyn Backend) -> Result<Vec<u8>, Error> {
        let part = Part::Whole(self.position);
        let mut bytes = vec![0; HEADER_BYTES + bytes_of(&self.pieces_of(part))];
        self.read_part(backend, part, &mut bytes[HEADER_BYTES..])?;
        let header = self.header(self.position, &bytes[HEADER_BYTES..]);
        bytes[..HEADER_BYTES].copy_from_slice(&header);
        Ok(bytes)
    }

    /// Goes to the position of saved bytes. They are checked whole before anything changes; when
    /// the device fails in the middle, the state is at position 0.
    pub fn restore(&mut self, backend: &mut dyn Backend, bytes: &[u8]) -> Result<(), Error> {
        let (position, payload) = self.check_saved(bytes)?;
        self.forget();
        self.truncate(0)?;
        self.write_part(backend, Part::Whole(position), payload)?;
        (self.position, self.floor, self.written) = (position, position, position);
        Ok(())
    }

    /// Frees the device memory.
    pub fn release(self, backend: &mut dyn Backend) {
        self.tell_release(backend);
        if let Some(pipe) = &self.kept.pipe {
            pipe.tell_release(&self.shared);
        }
        backend.release(self.arena);
    }

    /// Fields in the order of [`HEADER_BYTES`].
    fn header(&self, position: usize, payload: &[u8]) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&self.kept.fingerprint.bytes());
        header.extend_from_slice(&self.kept.drafter.map_or([0; 32], |f| f.bytes()));
        header.extend_from_slice(&self.kept.flags().to_le_bytes());
        for number in [position, payload.len()] {
            header.extend_from_slice(&u64::try_from(number).unwrap_or(u64::MAX).to_le_bytes());
        }
        let mut checksum = Fingerprint::default();
        checksum.add(payload);
        header.extend_from_slice(&checksum.bytes()[..8]);
        header
    }

    /// Position and payload of saved bytes that fit this state in every respect.
    fn check_saved<'b>(&self, bytes: &'b [u8]) -> Result<(usize, &'b [u8]), Error> {
        let refuse =
            |found: String, wanted: &str| Err(Error::Saved { found, wanted: wanted.to_owned() });
        let Some((header, payload)) = bytes.split_at_checked(HEADER_BYTES) else {
            return refuse(format!("{} bytes", bytes.len()), "at least a header of 100 bytes");
        };
        if header[..8] != *MAGIC {
            return refuse(format!("a start of {:?}", &header[..8]), "a saved state, version 1");
        }
        let mut number = [0; 8];
        number.copy_from_slice(&header[76..84]);
        let position = usize::try_from(u64::from_le_bytes(number)).unwrap_or(usize::MAX);
        if position > self.context {
            let wanted = format!("at most {}: use a larger context", self.context);
            return refuse(format!("position {position}"), &wanted);
        }
        check_size(&self.pieces(position, 0), payload)?;
        let wanted = self.header(position, payload);
        let what = [
            (8..40, "another model", "the model that it was saved with"),
            (40..72, "another drafter", "the drafter that it was saved with"),
            (72..76, "other rounding options", "the options that it was saved with"),
            (84..100, "a wrong size or checksum", "undamaged bytes"),
        ];
        for (range, found, want) in what {
            if header[range.clone()] != wanted[range] {
                return refuse(found.to_owned(), want);
            }
        }
        Ok((position, payload))
    }
}

/// Whole rows of consecutive positions: at most two runs, since a ring wraps once.
fn ring_pieces(
    pieces: &mut Pieces,
    ring: Buffer,
    slots: usize,
    width: usize,
    positions: Range<usize>,
) {
    let mut at = positions.start;
    while at < positions.end {
        let slot = at % slots;
        let rows = (positions.end - at).min(slots - slot);
        pieces.push(ring, slot * width, rows * width);
        at += rows;
    }
}

/// The open group, before it the first halves of the previous one where groups overlap.
fn frontier_pieces(
    pieces: &mut Pieces,
    sizes: &CompressSizes,
    state: &CompressState,
    position: usize,
) {
    let row = sizes.parts * sizes.width;
    let open = position / sizes.ratio * sizes.ratio;
    for ring in [state.values, state.scores] {
        if sizes.parts == 2 {
            for before in open.saturating_sub(sizes.ratio)..open {
                let offset = before % sizes.capacity * row;
                pieces.push(ring, offset, sizes.width);
            }
        }
        ring_pieces(pieces, ring, sizes.capacity, row, open..position);
    }
}

/// Rows of the groups that close in a run of positions, which begins between two groups.
fn row_pieces(
    pieces: &mut Pieces,
    sizes: &CompressSizes,
    state: &CompressState,
    positions: Range<usize>,
) {
    let (first, end) = (positions.start / sizes.ratio, positions.end / sizes.ratio);
    let (offset, len) = (first * sizes.row_elements(), (end - first) * sizes.row_elements());
    if len > 0 {
        pieces.push(state.rows, offset, len);
    }
}

/// Reads the pieces, one behind the other, into as many bytes.
fn read_pieces(
    backend: &mut dyn Backend,
    pieces: &[Piece],
    mut into: &mut [u8],
) -> Result<(), Error> {
    let runs = pieces.iter().map(|piece| piece.run(vec![cut(&mut into, piece.bytes())])).collect();
    Ok(backend.read_all(runs)?)
}

fn bytes_of(pieces: &[Piece]) -> usize {
    pieces.iter().map(Piece::bytes).sum()
}

/// The first bytes of a rest, which loses them.
fn cut<'b>(rest: &mut &'b mut [u8], bytes: usize) -> &'b mut [u8] {
    rest.split_off_mut(..bytes).expect("there is room for all pieces")
}

/// Nothing is written unless all bytes have their place.
fn write_pieces(
    backend: &mut dyn Backend,
    pieces: &[Piece],
    mut bytes: &[u8],
) -> Result<(), Error> {
    check_size(pieces, bytes)?;
    for piece in pieces {
        let (now, later) = bytes.split_at(piece.bytes());
        backend.write(piece.buffer, piece.offset, now)?;
        bytes = later;
    }
    Ok(())
}

fn check_size(pieces: &[Piece], bytes: &[u8]) -> Result<(), Error> {
    let total: usize = pieces.iter().map(Piece::bytes).sum();
    if bytes.len() != total {
        let (found, wanted) = (format!("{} bytes of state", bytes.len()), total.to_string());
        return Err(Error::Saved { found, wanted });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
