//! The GPU backend: one for every device API behind [`driver::Driver`], one kernel text
//! (`crates/device/kernels`).
//!
//! An operation checks its operands, then records launches (`record.rs`); they run when something
//! is read, when the next step begins, or at `finish`. `ops/` has one file a family, as the kernels
//! and `cpu/reference` have; `weights.rs` how weights get there, `arguments.rs` what kernels are
//! told.
//! Drivers: `cuda`, and `host`, which runs the kernels on the CPU for tests.

mod angles;
mod arguments;
mod beside;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod driver;
mod exchange;
#[cfg(feature = "host-driver")]
pub(crate) mod host;
mod lanes;
mod narrow;
mod ops;
mod owed;
mod prepared;
mod record;
mod scratch;
mod shortcuts;
mod store;
mod text;
mod weights;

pub use shortcuts::Shortcuts;

use crate::cpu::steps::Rows;
use crate::*;
use angles::angles_at;
use arguments::{Arguments, Planes, SpanRows, bytes_of};
use driver::{Address, Driver};
use exchange::{Apart, Gates, Gatherer, Ranks, StepGates};
pub use exchange::{GatePeer, GateRoute, Nccl, Peers};
#[cfg(feature = "host-driver")]
pub use host::HostFault;
use ironstar_quant::planes::{Layout, PLANES_MAX};
use ironstar_quant::{Activation, Format};
use lanes::Access;
use owed::Owed;
use prepared::Prepared;
use record::{Place, Recorder};
use scratch::Scratch;
use std::cell::Cell;
use std::collections::HashMap;
use store::{Ask, Store};
use weights::{Laid, Placed};

/// Settings of the GPU backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuConfig {
    /// Multiplies every matrix as floats of its decoded values with f32 inputs: the *exact* mode
    /// of the oracles.
    pub float_products: bool,
    /// Launches that come again are captured and replayed.
    pub graphs: bool,
    /// What is left out, for diagnosis.
    pub disabled: Shortcuts,
    /// What must be taken wherever it could be: where a format or a device has no kernel for it,
    /// the operation fails instead of going another way.
    pub required: Shortcuts,
    /// Runs launches that may run beside each other in another order, for tests.
    pub reorder: bool,
}

impl Default for GpuConfig {
    fn default() -> Self {
        let (disabled, required, reorder) = (Shortcuts::NONE, Shortcuts::NONE, false);
        GpuConfig { float_products: false, graphs: true, disabled, required, reorder }
    }
}

/// What was launched so far; read by `bench` and reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuCounters {
    /// Kernels recorded.
    pub launches: u64,
    /// Replays of a captured graph.
    pub replays: u64,
    /// Bytes of weights that were copied to the device.
    pub copied: u64,
    /// Bytes of weights that it reads where they lie in the host's memory.
    pub mapped: u64,
    /// How often each kernel was recorded, by name, most often first.
    pub kernels: Vec<(&'static str, u64)>,
}

/// The GPU backend.
pub struct Gpu {
    driver: Box<dyn Driver>,
    config: GpuConfig,
    store: Store,
    matrices: Vec<(Matrix, Weights)>,
    /// Frequencies of each rotary table.
    ropes: Vec<Vec<f32>>,
    rows: Rows,
    step: StepData,
    /// The step's other view, while it is narrowed or once it was.
    narrowed: narrow::Narrowed,
    recorder: Recorder,
    /// A buffer whose rows lie in scratch memory as int8 blocks too.
    prepared: Cell<Option<Prepared>>,
    /// A spread over the streams that is not recorded yet, since a mix of them may take it along.
    pending: Option<Pending>,
    /// A mix that is put off with its spread, since its router may take them along.
    mixing: Option<ops::cluster::Mixing>,
    /// Whether the last experts of one row were launched with the shared one: what follows their
    /// choice may be set up early.
    shared: bool,
    /// Launches that are put off, and the buffer of the one that the next launch does on its way.
    owed: Vec<Owed>,
    taken: Place,
    /// Whether launches may run beside others, and whether behind the main lane's last one, or
    /// only once what they wait for has ended.
    beside: bool,
    behind: bool,
    fresh: bool,
    /// Quarters of the device that products may fill, where it is said; see `room`.
    quarters: Option<u32>,
    /// Memory behind tables that the next launch reads and writes.
    hidden: [u8; 2],
    scratch: HashMap<Scratch, (Address, u64)>,
    kernels: HashMap<&'static str, driver::Kernel>,
    counters: Counters,
    placed: Placed,
    exchange: Option<Ranks>,
    gates: Option<Gates>,
    apart: Option<Apart>,
    nccl: Option<Gatherer>,
}

/// A weight matrix on the device.
#[derive(Clone, Copy, Debug)]
struct Weights {
    layout: Layout,
    address: Address,
    /// Bytes of one matrix of the stack in the file.
    matrix_bytes: u64,
    /// Whether it is read where the file is mapped.
    mapped: bool,
    /// Where the columns are a part of K: how they are held.
    folded: Option<Folded>,
}

/// A part of K as a matrix of eight shards (`ops/part.rs`).
#[derive(Clone, Copy, Debug)]
struct Folded {
    /// The matrix that kernels see.
    matrix: Matrix,
    /// Shards of the part.
    shards: usize,
}

impl Folded {
    /// Rows of the part in a row of the folded matrix.
    fn ways(&self) -> usize {
        8 / self.shards
    }
}

impl Weights {
    fn format(&self) -> Format {
        self.layout.format
    }

    fn activation(&self) -> Activation {
        self.format().info().activation
    }

    fn planes(&self) -> Planes {
        Planes { at: std::array::from_fn(|i| self.layout.planes[i + 1]) }
    }
}

const _: () = assert!(PLANES_MAX == 4);

/// A spread over the streams whose operands are checked.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// Output of the sublayer, streams, and the two tables of coefficients.
    places: [Place; 4],
    arguments: arguments::SpreadArgs,
}

/// Where the step's own numbers lie.
#[derive(Default)]
struct StepData {
    tokens: Option<Place>,
    positions: Option<Place>,
    span_of: Option<Place>,
    spans: Option<Place>,
    /// Cosines and sines of each table at the rows' positions.
    angles: HashMap<u32, Place>,
    /// Groups that close, by ratio: their place and how many places there are.
    closing: HashMap<usize, (Place, usize)>,
    /// Cosines and sines of a table at the first positions of closing groups.
    closing_angles: HashMap<(u32, usize), Place>,
    gates: Option<StepGates>,
}

/// Checks what a caller passed.
fn check(
    operation: &'static str,
    ok: bool,
    found: impl FnOnce() -> String,
    wanted: &str,
) -> Result<(), Error> {
    if ok {
        return Ok(());
    }
    Err(Error::Shape { operation, found: found(), wanted: wanted.to_owned() })
}

/// Product of sizes; too large a product becomes a size that no buffer has.
fn size(factors: &[usize]) -> usize {
    factors.iter().fold(1, |product, factor| product.saturating_mul(*factor))
}

/// A number that kernels take as 32 bits.
fn small(operation: &'static str, value: usize) -> Result<u32, Error> {
    u32::try_from(value).map_err(|_| Error::Shape {
        operation,
        found: format!("a size of {value}"),
        wanted: "sizes on a GPU fit 32 bits".to_owned(),
    })
}

/// Rows of a step that leave most of a card idle if each is one group's work.
const FEW_ROWS: usize = 4;
/// Rows of a step from which on the device is the one to wait for: its launches begin while the
/// host records the next, and are not kept.
const LONG_ROWS: usize = 128;
/// Rows of as many answers as share steps: more of them fill a card by themselves.
const SOME_ROWS: usize = 16;
/// Most rows of a step: a dimension of a grid.
const ROWS_MAX: usize = 65_535;
/// Which bits kernels give: another number with every change of an operation's results, so that
/// nobody goes on from what other kernels stored. 2: F16 products on matrix units.
const BITS: u32 = 2;

impl Gpu {
    /// A backend over a driver.
    fn over(driver: Box<dyn Driver>, config: GpuConfig) -> Self {
        let mut recorder = Recorder::default();
        recorder.graphs = config.graphs;
        recorder.lanes = !config.disabled.contains(Shortcuts::LANES);
        recorder.reorder = config.reorder;
        Gpu {
            driver,
            config,
            store: Store::default(),
            matrices: Vec::new(),
            ropes: Vec::new(),
            rows: Rows::default(),
            step: StepData::default(),
            narrowed: narrow::Narrowed::default(),
            recorder,
            prepared: Cell::new(None),
            pending: None,
            mixing: None,
            shared: false,
            owed: Vec::new(),
            taken: Place::NONE,
            beside: false,
            behind: false,
            fresh: false,
            quarters: None,
            hidden: [0; 2],
            scratch: HashMap::new(),
            kernels: HashMap::new(),
            counters: Counters::default(),
            placed: Placed::default(),
            exchange: None,
            gates: None,
            apart: None,
            nccl: None,
        }
    }

    /// The same as one rank of a group: models that are loaded from here on are this rank's part.
    #[must_use]
    pub fn with_exchange(mut self, exchange: Box<dyn Exchange>) -> Self {
        // A step that stops at every gate has more lists of launches than are remembered.
        self.recorder.graphs = false;
        Gpu { exchange: Some(Ranks::new(exchange)), ..self }
    }

    /// A backend on an NVIDIA card.
    #[cfg(feature = "cuda")]
    pub fn cuda(device: &CudaConfig, config: GpuConfig) -> Result<Self, Error> {
        // Stamps lie in a table of one module.
        let parts = match device.timeline {
            Some(_) => vec![text::cuda()],
            None => text::cuda_parts(),
        };
        let driver = cuda::Cuda::open(device, &parts)?;
        Ok(Gpu::over(Box::new(driver), config))
    }

    /// A backend that runs the kernels on the CPU, checked and slow: for tests.
    #[cfg(feature = "host-driver")]
    pub fn host(config: GpuConfig) -> Result<Self, Error> {
        Ok(Gpu::over(Box::new(host::Host::new()?), config))
    }

    /// The same with faults that a test plants.
    #[cfg(feature = "host-driver")]
    pub fn host_failing(config: GpuConfig, fault: HostFault) -> Result<Self, Error> {
        Ok(Gpu::over(Box::new(host::Host::failing(fault)?), config))
    }

    /// The same with memory of its own, as most cards have it.
    #[cfg(feature = "host-driver")]
    pub fn host_apart(config: GpuConfig) -> Result<Self, Error> {
        Ok(Gpu::over(Box::new(host::Host::apart()?), config))
    }

    /// The same with little shared memory, as many cards have it.
    #[cfg(feature = "host-driver")]
    pub fn host_small(config: GpuConfig) -> Result<Self, Error> {
        Ok(Gpu::over(Box::new(host::Host::small()?), config))
    }

    /// Name of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.driver.facts().device
    }

    /// Bytes of device memory: (all, free at the start).
    #[must_use]
    pub fn memory(&self) -> (u64, u64) {
        let facts = self.driver.facts();
        (facts.memory_total, facts.memory_free)
    }

    /// What was launched so far.
    #[must_use]
    pub fn launches(&self) -> GpuCounters {
        let count = |(name, kernel): (&&'static str, &driver::Kernel)| {
            let count = self.recorder.counts.get(kernel).copied().unwrap_or(0);
            (*name, count)
        };
        let mut kernels: Vec<_> = self.kernels.iter().map(count).collect();
        kernels.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        let Recorder { launches, replays, .. } = self.recorder;
        let Placed { copied, mapped, .. } = self.placed;
        GpuCounters { launches, replays, copied, mapped, kernels }
    }

    /// Runs what was recorded.
    fn flush(&mut self) -> Result<(), Error> {
        let _waiting = exchange::waiting(self);
        self.settle()?;
        self.pay_all()?;
        if !self.recorder.graphs {
            self.goes_without(Shortcuts::LANES, "a step", || "nothing is captured".into())?;
        }
        self.recorder.flush(&mut *self.driver)
    }

    /// Records a launch.
    fn launch<A: Arguments>(
        &mut self,
        name: &'static str,
        grid: [u32; 3],
        group: u32,
        places: &[Place],
        arguments: &A,
    ) -> Result<(), Error> {
        let hidden = std::mem::take(&mut self.hidden);
        let taken = std::mem::replace(&mut self.taken, Place::NONE);
        self.settle()?;
        self.pay(places, taken)?;
        let kernel = match self.kernels.get(name) {
            Some(kernel) => *kernel,
            None => {
                let kernel = self.driver.kernel(name)?;
                self.kernels.insert(name, kernel);
                kernel
            }
        };
        let (beside, behind, fresh) = (self.beside, self.behind, self.fresh);
        let access = Access { beside, behind, fresh, hidden, ..Access::of(name) };
        self.recorder.push(kernel, grid, group, places, bytes_of(arguments), access);
        if !self.recorder.is_due() {
            return Ok(());
        }
        let _waiting = exchange::waiting(self);
        self.recorder.flush(&mut *self.driver)
    }

    /// Runs what was recorded of a long step of few rows, at a place where nothing runs beside.
    fn cut(&mut self) -> Result<(), Error> {
        match self.rows.len() <= FEW_ROWS {
            true => self.recorder.cut(&mut *self.driver),
            false => Ok(()),
        }
    }

    /// Records a spread, or a mix, that was put off; never both are.
    fn settle(&mut self) -> Result<(), Error> {
        let (mixing, pending) = (self.mixing.take(), self.pending.take());
        if mixing.is_none() && pending.is_none() {
            return Ok(());
        }
        let before = (self.beside, self.behind, self.fresh);
        (self.beside, self.behind, self.fresh) = (false, false, false);
        let mixed = mixing.map_or(Ok(()), |mixing| ops::cluster::settle(self, &mixing));
        let spread = pending.map_or(Ok(()), |pending| ops::streams::spread(self, &pending));
        (self.beside, self.behind, self.fresh) = before;
        mixed.and(spread)
    }

    /// Whether a shortcut may be taken.
    fn takes(&self, shortcut: Shortcuts) -> bool {
        !self.config.disabled.contains(shortcut)
    }

    /// An operation goes without a shortcut that its rows could take: an error, where it must.
    fn goes_without(
        &self,
        shortcut: Shortcuts,
        operation: &'static str,
        why: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        if !self.config.required.contains(shortcut) {
            return Ok(());
        }
        Err(Error::Unsupported {
            found: format!("{operation} without the shortcut {shortcut} ({})", why()),
            wanted: "it is required; leave that out, or use a model and a device that have it"
                .into(),
        })
    }

    /// Scratch memory of at least so many bytes. Where it grows, what was put off is run: nothing
    /// may be taken along yet.
    fn scratch(&mut self, which: Scratch, bytes: usize) -> Result<Place, Error> {
        debug_assert_eq!(self.taken, Place::NONE, "taken along before there was memory");
        let bytes = (bytes as u64).max(256);
        if let Some((address, have)) = self.scratch.get(&which).copied() {
            if have >= bytes {
                return Ok(Place::At(address));
            }
            // What was recorded may use the old memory.
            self.flush()?;
            self.scratch.remove(&which);
            self.driver.free(address);
        }
        let address = self.driver.alloc(bytes)?;
        self.scratch.insert(which, (address, bytes));
        Ok(Place::At(address))
    }

    /// Which rank this is among those whose devices meet by themselves.
    fn part(&self) -> Part {
        self.gates.as_ref().map_or(Part::WHOLE, Gates::part)
    }

    /// Multiprocessors of the device, at least one.
    fn multiprocessors(&self) -> u32 {
        self.driver.facts().multiprocessors.max(1)
    }

    /// Multiprocessors whose groups a product may fill: what runs beside others takes a quarter
    /// unless more was said, so that it leaves places to them, and the memory quick enough for the
    /// small among them.
    fn room(&self) -> u32 {
        let quarters = self.quarters.unwrap_or(if self.beside { 1 } else { 4 });
        (self.multiprocessors() * quarters).div_ceil(4)
    }

    /// A buffer of floats. Whoever asks may write it, but for the inputs of products.
    fn f32(&self, ask: Ask, buffer: Buffer, len: usize) -> Result<Place, Error> {
        let place = Place::At(self.store.address(ask, buffer, &[Element::F32], len)?);
        let product = matches!(ask.operation, "project" | "project_grouped" | "experts");
        let written = !(product && ask.operand == "x");
        if written && self.prepared.get().is_some_and(|own| own.x == place) {
            self.prepared.set(None);
        }
        Ok(place)
    }

    /// A buffer of ids.
    fn u32(&self, ask: Ask, buffer: Buffer, len: usize) -> Result<Place, Error> {
        Ok(Place::At(self.store.address(ask, buffer, &[Element::U32], len)?))
    }

    /// A buffer of floats in either storage.
    fn floats(&self, ask: Ask, buffer: Buffer, len: usize) -> Result<Place, Error> {
        let elements = [Element::F32, Element::Bf16];
        let place = Place::At(self.store.address(ask, buffer, &elements, len)?);
        if self.prepared.get().is_some_and(|own| own.x == place) {
            self.prepared.set(None);
        }
        Ok(place)
    }

    /// What is behind a handle.
    fn held(&self, operation: &'static str, matrix: Matrix) -> Result<Weights, Error> {
        let found = self.matrices.get(matrix.id as usize);
        let found = found.filter(|(made, _)| *made == matrix);
        found.map(|(_, weights)| *weights).ok_or(Error::Handle { operation, id: matrix.id })
    }

    /// The weights behind a handle to all of K.
    fn weights(&self, operation: &'static str, matrix: Matrix) -> Result<Weights, Error> {
        let held = self.held(operation, matrix)?;
        let part = |folded: Folded| format!("{} of the eight shards of K", folded.shards);
        let found = || held.folded.map(part).unwrap_or_default();
        check(operation, held.folded.is_none(), found, "this operation takes all of them")?;
        Ok(held)
    }

    /// A table of buffers' addresses in the step's data.
    fn table(&mut self, addresses: impl IntoIterator<Item = Address>) -> Place {
        self.recorder.put(addresses.into_iter().flat_map(|address| address.0.to_le_bytes()))
    }

    /// Rows of the step, as kernels take them.
    fn n(&self) -> u32 {
        u32::try_from(self.rows.len()).expect("checked by `begin`")
    }

    fn tokens(&mut self) -> Place {
        if let Some(place) = self.step.tokens {
            return place;
        }
        let place = self.recorder.put(self.rows.tokens.iter().flat_map(|t| t.to_le_bytes()));
        *self.step.tokens.insert(place)
    }

    fn positions(&mut self) -> Place {
        if let Some(place) = self.step.positions {
            return place;
        }
        let bytes = self.rows.positions.iter().flat_map(|p| position(*p).to_le_bytes());
        let place = self.recorder.put(bytes);
        *self.step.positions.insert(place)
    }

    fn span_of(&mut self) -> Place {
        if let Some(place) = self.step.span_of {
            return place;
        }
        let bytes = self.rows.span_of.iter().flat_map(|span| position(*span).to_le_bytes());
        let place = self.recorder.put(bytes);
        *self.step.span_of.insert(place)
    }

    fn spans(&mut self) -> Place {
        if let Some(place) = self.step.spans {
            return place;
        }
        let rows = |span: &Span| SpanRows {
            first: position(span.rows.start),
            end: position(span.rows.end),
            position: position(span.position),
            pad: 0,
        };
        let spans: Vec<u8> =
            self.rows.spans.iter().flat_map(|span| bytes_of(&rows(span)).to_vec()).collect();
        let place = self.recorder.put(spans);
        *self.step.spans.insert(place)
    }

    /// `[rows][pairs][2]`: cosines and sines at the rows' positions.
    fn angles(&mut self, operation: &'static str, rope: Rope) -> Result<Place, Error> {
        self.check_rope(operation, rope)?;
        if let Some(place) = self.step.angles.get(&rope.id) {
            return Ok(*place);
        }
        let (frequencies, recorder) = (&self.ropes[rope.id as usize], &mut self.recorder);
        if let Some(place) = self.narrowed.angles(recorder, frequencies, rope) {
            return Ok(place);
        }
        let place = angles_at(recorder, frequencies, &self.rows.positions);
        self.step.angles.insert(rope.id, place);
        Ok(place)
    }

    fn check_rope(&self, operation: &'static str, rope: Rope) -> Result<(), Error> {
        let found = self.ropes.get(rope.id as usize).filter(|f| f.len() == rope.pairs);
        found.map(|_| ()).ok_or(Error::Handle { operation, id: rope.id })
    }

    /// Groups of all spans that close in this step: as many places as steps of these lengths can
    /// ever need, those without a group marked, so that the grid does not depend on positions.
    fn closing(&mut self, ratio: usize) -> (Place, usize) {
        if let Some(found) = self.step.closing.get(&ratio) {
            return *found;
        }
        let groups = self.closing_groups(ratio);
        let none = (u32::MAX, 0);
        let bytes = groups.iter().flat_map(|group| {
            let (span, group) = group.map_or(none, |(s, g)| (position(s), position(g)));
            [span.to_le_bytes(), group.to_le_bytes()].concat()
        });
        let place = self.recorder.put(bytes);
        self.step.closing.insert(ratio, (place, groups.len()));
        (place, groups.len())
    }

    /// Whether a group of so many tokens closes in this step.
    fn closes(&self, ratio: usize) -> bool {
        let ends = |span: &Span| (span.position + span.rows.len()) / ratio > span.position / ratio;
        self.rows.spans.iter().any(ends)
    }

    fn closing_groups(&self, ratio: usize) -> Vec<Option<(usize, usize)>> {
        let mut groups = Vec::new();
        for (index, span) in self.rows.spans.iter().enumerate() {
            let len = span.rows.len();
            let places = len.div_ceil(ratio);
            let closing = span.position / ratio..(span.position + len) / ratio;
            let count = closing.len();
            groups.extend(closing.map(|group| Some((index, group))));
            groups.extend((count..places).map(|_| None));
        }
        groups
    }

    /// `[places][pairs][2]`: cosines and sines at the first positions of closing groups.
    fn closing_angles(
        &mut self,
        operation: &'static str,
        rope: Rope,
        ratio: usize,
    ) -> Result<Place, Error> {
        self.check_rope(operation, rope)?;
        if let Some(place) = self.step.closing_angles.get(&(rope.id, ratio)) {
            return Ok(*place);
        }
        let groups = self.closing_groups(ratio);
        let positions = groups.iter().map(|group| group.map_or(0, |(_, group)| group * ratio));
        let positions: Vec<usize> = positions.collect();
        let place = angles_at(&mut self.recorder, &self.ropes[rope.id as usize], &positions);
        self.step.closing_angles.insert((rope.id, ratio), place);
        Ok(place)
    }
}

/// A position or an index of the step as kernels take it.
fn position(value: usize) -> u32 {
    u32::try_from(value).expect("checked by `begin`")
}

impl Backend for Gpu {
    fn name(&self) -> &'static str {
        self.driver.name()
    }

    fn kind(&self) -> String {
        format!("{} {}, bits {BITS}", self.driver.name(), self.driver.facts().device)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn arena(&mut self) -> Arena {
        self.store.arena()
    }

    fn alloc(&mut self, arena: Arena, element: Element, len: usize) -> Result<Buffer, Error> {
        self.store.alloc(&mut *self.driver, arena, element, len)
    }

    fn release(&mut self, arena: Arena) {
        // What was recorded may use the buffers. An error comes again with the next call that can
        // report it.
        self.prepared.set(None);
        let _waiting = exchange::waiting(self);
        let _ = self.flush();
        self.store.release(&mut *self.driver, arena);
    }

    fn write(&mut self, to: Buffer, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let address = self.store.raw("write", to, offset, bytes.len())?;
        let _waiting = exchange::waiting(self);
        self.prepared.set(None);
        self.flush()?;
        self.driver.upload(address, bytes)
    }

    fn read(&mut self, from: Buffer, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let address = self.store.raw("read", from, offset, bytes.len())?;
        let _waiting = exchange::waiting(self);
        self.flush()?;
        self.driver.download(address, bytes)?;
        exchange::look(self)
    }

    fn read_all(&mut self, runs: Vec<ReadRun<'_>>) -> Result<(), Error> {
        let mut ranges = Vec::with_capacity(runs.len());
        for ReadRun { from, offset, into } in runs {
            let bytes = into.iter().map(|place| place.len()).sum();
            ranges.push((self.store.raw("read", from, offset, bytes)?, into));
        }
        let _waiting = exchange::waiting(self);
        self.flush()?;
        self.driver.download_all(ranges)?;
        exchange::look(self)
    }

    fn write_f32(&mut self, to: Buffer, offset: usize, values: &[f32]) -> Result<(), Error> {
        let ask = Ask { operation: "write_f32", operand: "the buffer" };
        let end = offset.saturating_add(values.len());
        let address = self.store.address(ask, to, &[Element::F32], end)?;
        let _waiting = exchange::waiting(self);
        self.prepared.set(None);
        self.flush()?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.driver.upload(address.offset(4 * offset as u64), &bytes)
    }

    fn read_f32(&mut self, from: Buffer, offset: usize, values: &mut [f32]) -> Result<(), Error> {
        let ask = Ask { operation: "read_f32", operand: "the buffer" };
        let end = offset.saturating_add(values.len());
        let address = self.store.address(ask, from, &[Element::F32], end)?;
        let _waiting = exchange::waiting(self);
        self.flush()?;
        let mut bytes = vec![0u8; 4 * values.len()];
        self.driver.download(address.offset(4 * offset as u64), &mut bytes)?;
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        exchange::look(self)
    }

    fn matrix(&mut self, source: MatrixSource<'_>) -> Result<Matrix, Error> {
        let MatrixSource { format, rows, columns, stack, .. } = source;
        let found = source.checked_len()?;
        let wanted = format
            .row_bytes(columns)
            .and_then(|bytes| bytes.checked_mul(rows)?.checked_mul(stack))
            .filter(|_| rows > 0 && columns > 0 && stack > 0);
        check(
            "matrix",
            wanted == Some(found),
            || format!("{} has {found} bytes", source.name),
            &format!("{stack} x {rows} x {columns} in {format:?} make {wanted:?} bytes"),
        )?;
        self.place_matrix(source.name, [stack, rows, columns], &Laid::whole(&source))
    }

    fn matrix_part(&mut self, source: MatrixSource<'_>, part: MatrixPart) -> Result<Matrix, Error> {
        ops::part::matrix(self, source, part)
    }

    fn takes_planes(&self) -> bool {
        true
    }

    fn lets_go(&self, matrix: Matrix) -> bool {
        let held = self.held("lets_go", matrix);
        self.driver.facts().unified && held.is_ok_and(|weights| !weights.mapped)
    }

    fn exchange(&mut self) -> Option<&mut dyn Exchange> {
        self.exchange.as_mut().map(|exchange| exchange as &mut dyn Exchange)
    }

    fn sum_ranks(&mut self, gate: GateKind, buffer: Buffer, len: usize) -> Result<bool, Error> {
        exchange::sum(self, gate, buffer, len)
    }

    fn gate_times(&mut self) -> Result<Vec<f64>, Error> {
        exchange::times(self)
    }

    fn leave_out(&mut self, shortcuts: Shortcuts) -> Result<bool, Error> {
        shortcuts::leave_out(self, shortcuts)
    }

    fn join_epoch(&mut self) -> Result<(), Error> {
        exchange::join_epoch(self)
    }

    fn gates_note(&mut self) -> Option<String> {
        exchange::note(self)
    }

    fn splits_rows(&self) -> bool {
        exchange::splits_rows(self)
    }

    fn splits_index(&self) -> bool {
        self.gates.is_some() && exchange::splits_rows(self)
    }

    fn index_together(&mut self, a: &IndexSelect<'_>) -> Result<bool, Error> {
        ops::indexer::together(self, a)
    }

    fn narrow(&mut self, rows: Option<std::ops::Range<usize>>) -> Result<(), Error> {
        narrow::narrow(self, rows)
    }

    fn sum_rows(&mut self, gate: GateKind, part: RowsOf, starts: &[usize]) -> Result<(), Error> {
        exchange::sum_own(self, gate, part, starts)
    }

    fn share_rows(
        &mut self,
        gate: GateKind,
        rows: &[RowsOf],
        starts: &[usize],
    ) -> Result<(), Error> {
        exchange::share(self, gate, rows, starts)
    }

    fn rope(&mut self, frequencies: &[f32]) -> Result<Rope, Error> {
        let id = small("rope", self.ropes.len())?;
        self.ropes.push(frequencies.to_vec());
        Ok(Rope { id, pairs: frequencies.len() })
    }

    fn begin(&mut self, step: &Step) -> Result<(), Error> {
        self.flush()?;
        check(
            "begin",
            step.tokens.len() <= ROWS_MAX,
            || format!("{} rows", step.tokens.len()),
            &format!("at most {ROWS_MAX} in a step on a GPU"),
        )?;
        for span in &step.spans {
            let end = span.position.saturating_add(span.rows.len());
            let found = || format!("position {}", span.position);
            check("begin", end < 1 << 31, found, "positions on a GPU are below 2^31")?;
        }
        self.rows.set(step)?;
        self.recorder.begin(step.tokens.len() >= LONG_ROWS);
        self.prepared.set(None);
        (self.beside, self.hidden) = (false, [0; 2]);
        (self.step, self.narrowed) = (StepData::default(), narrow::Narrowed::default());
        self.counters.steps += 1;
        self.counters.rows += step.tokens.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        let _waiting = exchange::waiting(self);
        self.flush()?;
        self.driver.finish()?;
        exchange::look(self)
    }

    fn embed(&mut self, a: &Embed) -> Result<(), Error> {
        ops::streams::embed(self, a)
    }

    fn hc_pre(&mut self, a: &HcPre) -> Result<(), Error> {
        ops::streams::hc_pre(self, a)
    }

    fn hc_post(&mut self, a: &HcPost) -> Result<(), Error> {
        ops::streams::hc_post(self, a)
    }

    fn hc_head(&mut self, a: &HcHead) -> Result<(), Error> {
        ops::streams::hc_head(self, a)
    }

    fn rms_norm(&mut self, a: &RmsNorm) -> Result<(), Error> {
        ops::streams::rms_norm(self, a)
    }

    fn project(&mut self, a: &Project<'_>) -> Result<(), Error> {
        ops::products::project(self, a)
    }

    fn project_later(&mut self, a: &Project<'_>) -> Result<(), Error> {
        match a.rows {
            // The memory has nothing to do while a row's norm is made.
            1 => self.beside(|gpu| ops::products::project(gpu, a)),
            _ => self.behind(|gpu| ops::products::project(gpu, a)),
        }
    }

    fn project_grouped(&mut self, a: &ProjectGrouped) -> Result<(), Error> {
        ops::products::project_grouped(self, a)
    }

    fn query_heads(&mut self, a: &QueryHeads) -> Result<(), Error> {
        ops::heads::query_heads(self, a)
    }

    fn kv_rows(&mut self, a: &KvRows) -> Result<(), Error> {
        ops::heads::kv_rows(self, a)
    }

    fn compress(&mut self, a: &Compress<'_>) -> Result<(), Error> {
        ops::compressor::compress(self, a)
    }

    fn index_select(&mut self, a: &IndexSelect<'_>) -> Result<(), Error> {
        ops::indexer::index_select(self, a)
    }

    fn attend(&mut self, a: &Attend<'_>) -> Result<(), Error> {
        ops::attention::attend(self, a)
    }

    fn store_window(&mut self, a: &StoreWindow<'_>) -> Result<(), Error> {
        ops::heads::store_window(self, a)
    }

    fn route(&mut self, a: &Route) -> Result<(), Error> {
        ops::experts::route(self, a)
    }

    fn experts(&mut self, a: &Experts) -> Result<(), Error> {
        ops::experts::experts(self, a, Cells::of_part(Part::WHOLE, a.routed.gate.stack))
    }

    fn experts_part(&mut self, a: &Experts, cells: Cells) -> Result<(), Error> {
        ops::experts::experts(self, a, cells)
    }

    fn add_to_streams(&mut self, a: &AddToStreams) -> Result<(), Error> {
        ops::streams::add_to_streams(self, a)
    }

    fn steer(&mut self, a: &Steer) -> Result<(), Error> {
        ops::streams::steer(self, a)
    }

    fn draws(&self) -> bool {
        true
    }

    fn draw(&mut self, a: &DrawRows<'_>) -> Result<Vec<Option<u32>>, Error> {
        ops::draw::draw(self, a)
    }

    fn gather_rows(&mut self, a: &GatherRows<'_>) -> Result<(), Error> {
        ops::streams::gather_rows(self, a)
    }
}
