//! The CPU backend: buffers in plain memory, every operation run at once.
//!
//! `reference/` holds the meaning of each operation, one file a family. The same text is compiled
//! for each instruction set (`isa.rs`), with lanes and trees written out, so all of them give equal
//! bits. `product.rs` multiplies matrices, `pool.rs` runs parts on threads.

mod codes;
mod isa;
mod lanes;
mod math;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_variables, reason = "tiles are for x86-64 so far; see product.rs")
)]
mod packed;
mod pool;
mod probe;
mod product;
mod reference;
pub(crate) mod rope;
mod share;
mod spare;
pub(crate) mod steps;
mod store;
mod wide;
mod zeroed;

use crate::*;
pub use isa::Isa;
use pool::Pool;
pub use probe::ReadProbe;
use product::{Packed, Weights};
use reference::Scratch;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};
use steps::Rows;
use store::{Ask, Store};

/// Settings of the CPU backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuConfig {
    /// Threads, the caller's included; 0 means one for each core.
    pub threads: usize,
    /// Instruction set; `None` means the best that is there.
    pub isa: Option<Isa>,
    /// Multiplies every matrix as floats of its decoded values with f32 inputs: the *exact* mode
    /// of the oracles.
    pub float_products: bool,
}

/// The CPU backend.
pub struct Cpu {
    config: CpuConfig,
    isa: Isa,
    pool: Pool,
    store: Store,
    matrices: Vec<(Matrix, Weights)>,
    packed: Packed,
    ropes: rope::Tables,
    rows: Rows,
    counters: Counters,
    scratch: Scratch,
    exchange: Option<Box<dyn Exchange>>,
}

impl Cpu {
    /// A backend on this machine's cores.
    pub fn new(config: CpuConfig) -> Result<Self, Error> {
        let isa = Isa::choose(config.isa)?;
        Ok(Cpu {
            config: CpuConfig { isa: Some(isa), ..config },
            isa,
            pool: Pool::new(config.threads),
            store: Store::default(),
            matrices: Vec::new(),
            packed: Packed::default(),
            ropes: rope::Tables::default(),
            rows: Rows::default(),
            counters: Counters::default(),
            scratch: Scratch::default(),
            exchange: None,
        })
    }

    /// The same as one rank of a group: models that are loaded from here on are this rank's part.
    #[must_use]
    pub fn with_exchange(self, exchange: Box<dyn Exchange>) -> Self {
        Cpu { exchange: Some(exchange), ..self }
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads in use.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// What it costs that every thread takes part in a region: the median time of `rounds` regions
    /// whose parts only wait for each other to begin.
    pub fn region_cost(&mut self, rounds: usize) -> Duration {
        let threads = self.pool.threads();
        let mut times: Vec<Duration> = (0..rounds)
            .map(|_| {
                let begun = AtomicUsize::new(0);
                let start = Instant::now();
                // Nobody else has this backend, so no other region makes the parts run one by one.
                self.pool.run(threads, &|_| {
                    begun.fetch_add(1, Ordering::Relaxed);
                    let mut looks = 0u32;
                    while begun.load(Ordering::Relaxed) < threads {
                        looks = looks.saturating_add(1);
                        if looks < 1000 { spin_loop() } else { yield_now() }
                    }
                });
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        times.get(rounds / 2).copied().unwrap_or_default()
    }
}

/// The weights behind a handle.
fn weights<'a>(
    matrices: &'a [(Matrix, Weights)],
    operation: &'static str,
    matrix: Matrix,
) -> Result<&'a Weights, Error> {
    matrices
        .get(matrix.id as usize)
        .filter(|(made, _)| *made == matrix)
        .map(|(_, weights)| weights)
        .ok_or(Error::Handle { operation, id: matrix.id })
}

/// Checks what a caller passed.
fn check(
    operation: &'static str,
    ok: bool,
    found: impl FnOnce() -> String,
    wanted: impl std::fmt::Display,
) -> Result<(), Error> {
    if ok {
        return Ok(());
    }
    Err(Error::Shape { operation, found: found(), wanted: wanted.to_string() })
}

/// Product of sizes; too large a product becomes a size that no buffer has.
fn size(factors: &[usize]) -> usize {
    factors.iter().fold(1, |product, factor| product.saturating_mul(*factor))
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn arena(&mut self) -> Arena {
        self.store.arena()
    }

    fn alloc(&mut self, arena: Arena, element: Element, len: usize) -> Result<Buffer, Error> {
        self.store.alloc(arena, element, len)
    }

    fn release(&mut self, arena: Arena) {
        self.store.release(arena);
    }

    fn write(&mut self, to: Buffer, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.store.write(to, offset, bytes)
    }

    fn read(&mut self, from: Buffer, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.store.read(from, offset, bytes)
    }

    fn write_f32(&mut self, to: Buffer, offset: usize, values: &[f32]) -> Result<(), Error> {
        let ask = Ask { operation: "write_f32", operand: "the buffer" };
        let end = offset.saturating_add(values.len());
        self.store.f32_mut(ask, to, end)?[offset..].copy_from_slice(values);
        Ok(())
    }

    fn read_f32(&mut self, from: Buffer, offset: usize, values: &mut [f32]) -> Result<(), Error> {
        let ask = Ask { operation: "read_f32", operand: "the buffer" };
        let end = offset.saturating_add(values.len());
        values.copy_from_slice(&self.store.f32(ask, from, end)?[offset..]);
        Ok(())
    }

    fn matrix(&mut self, source: MatrixSource<'_>) -> Result<Matrix, Error> {
        self.matrix_part(source, MatrixPart::WHOLE)
    }

    fn exchange(&mut self) -> Option<&mut dyn Exchange> {
        self.exchange.as_deref_mut().map(|exchange| exchange as &mut dyn Exchange)
    }

    fn matrix_part(&mut self, source: MatrixSource<'_>, part: MatrixPart) -> Result<Matrix, Error> {
        let (source, shards) = (source.gathered(part.strides)?, part.shards);
        check(
            "matrix",
            matches!(shards, 1 | 2 | 4 | 8),
            || format!("{} has {shards} shards", source.name),
            "1, 2, 4 or 8 are a subtree",
        )?;
        let MatrixSource { format, rows, columns, stack, .. } = source;
        let found = (*source.bytes).as_ref().len();
        let wanted = format
            .row_bytes(columns)
            .and_then(|bytes| bytes.checked_mul(rows)?.checked_mul(stack))
            .filter(|_| rows > 0 && columns > 0 && stack > 0);
        check(
            "matrix",
            wanted == Some(found),
            || format!("{} has {found} bytes", source.name),
            format_args!("{stack} x {rows} x {columns} in {format:?} make {wanted:?} bytes"),
        )?;
        let id = u32::try_from(self.matrices.len()).map_err(|_| Error::Memory {
            device: "cpu",
            what: "another matrix handle".to_owned(),
            wanted: 1,
        })?;
        let matrix = Matrix { id, format, rows, columns, stack };
        let weights =
            Weights::new(&source, &self.config, &self.pool, &mut self.packed)?.of_shards(shards);
        self.matrices.push((matrix, weights));
        Ok(matrix)
    }

    fn rope(&mut self, frequencies: &[f32]) -> Result<Rope, Error> {
        Ok(self.ropes.add(frequencies))
    }

    fn begin(&mut self, step: &Step) -> Result<(), Error> {
        self.rows.set(step)?;
        self.ropes.begin();
        self.counters.steps += 1;
        self.counters.rows += step.tokens.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn embed(&mut self, a: &Embed) -> Result<(), Error> {
        reference::streams::embed(self, a)
    }

    fn hc_pre(&mut self, a: &HcPre) -> Result<(), Error> {
        reference::streams::hc_pre(self, a)
    }

    fn hc_post(&mut self, a: &HcPost) -> Result<(), Error> {
        reference::streams::hc_post(self, a)
    }

    fn hc_head(&mut self, a: &HcHead) -> Result<(), Error> {
        reference::streams::hc_head(self, a)
    }

    fn rms_norm(&mut self, a: &RmsNorm) -> Result<(), Error> {
        reference::norm::rms_norm(self, a)
    }

    fn project(&mut self, a: &Project<'_>) -> Result<(), Error> {
        reference::project::project(self, a)
    }

    fn project_grouped(&mut self, a: &ProjectGrouped) -> Result<(), Error> {
        reference::project::project_grouped(self, a)
    }

    fn query_heads(&mut self, a: &QueryHeads) -> Result<(), Error> {
        reference::heads::query_heads(self, a)
    }

    fn kv_rows(&mut self, a: &KvRows) -> Result<(), Error> {
        reference::heads::kv_rows(self, a)
    }

    fn compress(&mut self, a: &Compress<'_>) -> Result<(), Error> {
        reference::compressor::compress(self, a)
    }

    fn index_select(&mut self, a: &IndexSelect<'_>) -> Result<(), Error> {
        reference::indexer::index_select(self, a)
    }

    fn splits_index(&self) -> bool {
        true
    }

    fn index_best(
        &mut self,
        a: &IndexSelect<'_>,
        runs: &[std::ops::Range<usize>],
        best: &mut [u64],
    ) -> Result<(), Error> {
        reference::indexer::index_best(self, a, runs, best)
    }

    fn attend(&mut self, a: &Attend<'_>) -> Result<(), Error> {
        reference::attention::attend(self, a)
    }

    fn store_window(&mut self, a: &StoreWindow<'_>) -> Result<(), Error> {
        reference::attention::store_window(self, a)
    }

    fn route(&mut self, a: &Route) -> Result<(), Error> {
        reference::router::route(self, a)
    }

    fn experts(&mut self, a: &Experts) -> Result<(), Error> {
        reference::experts::experts(self, a, Cells::of_part(Part::WHOLE, a.routed.gate.stack))
    }

    fn experts_part(&mut self, a: &Experts, cells: Cells) -> Result<(), Error> {
        reference::experts::experts(self, a, cells)
    }

    fn add_to_streams(&mut self, a: &AddToStreams) -> Result<(), Error> {
        reference::streams::add_to_streams(self, a)
    }

    fn steer(&mut self, a: &Steer) -> Result<(), Error> {
        reference::steer::steer(self, a)
    }

    fn gather_rows(&mut self, a: &GatherRows<'_>) -> Result<(), Error> {
        reference::streams::gather_rows(self, a)
    }
}
