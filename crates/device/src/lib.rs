//! Devices: the [`Backend`] trait and what implements it.
//!
//! A backend runs about thirty model-shaped operations on resident buffers. It knows shapes,
//! formats and bits; it does not know models, files, tokenizers, sessions or sockets. Handles
//! ([`Buffer`], [`Matrix`]) carry sizes and a number; no pointer leaves this crate.
//!
//! Start reading at [`Backend`], then `cpu/reference` for what each operation means, then
//! `cpu/fast`.
//!
//! ```
//! use ironstar_device::{Backend, Cpu, CpuConfig, Element};
//! let mut cpu = Cpu::new(CpuConfig::default()).expect("a CPU is always there");
//! let arena = cpu.arena();
//! let x = cpu.alloc(arena, Element::F32, 4).expect("sixteen bytes");
//! cpu.write_f32(x, 0, &[1.0, 2.0, 3.0, 4.0]).expect("in range");
//! ```

mod args;
mod cpu;
mod exchange;
mod functions;
#[cfg(any(feature = "cuda", feature = "host-driver"))]
mod gpu;
mod handles;
mod memory;
mod sample;

pub use args::*;
pub use cpu::{Cpu, CpuConfig, Isa, ReadProbe};
pub use exchange::{Alarm, Exchange, ExchangeError, GateCounts, GateKind, Local, LocalGroup};
#[cfg(feature = "host-driver")]
pub use gpu::HostFault;
#[cfg(feature = "cuda")]
pub use gpu::cuda::{
    Compiling, CudaConfig, CudaDevice, KernelTime, KernelTimes, Stamp, Timeline, cuda_compile,
    cuda_count, cuda_device, cuda_devices, cuda_read_bandwidth, timeline_tables,
};
#[cfg(any(feature = "cuda", feature = "host-driver"))]
pub use gpu::{GatePeer, GateRoute, Gpu, GpuConfig, GpuCounters, Nccl, Peers, Shortcuts};
pub use handles::{Arena, Buffer, Element, Matrix, Rope, SharedBytes};
pub use memory::{HostMemory, host_memory};
pub use sample::{
    LOGIT_BLOCK, LOGIT_STRIDE, Parted, WEIGHT_BITS, WEIGHTS_MAX, block_maxima, exp_weights,
    logit_steps, weights_from, weights_split,
};

/// Why a backend could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine has not enough memory for an allocation.
    #[error(
        "out of memory on {device}: {wanted} bytes wanted for {what}; use a smaller context \
         or model"
    )]
    Memory {
        /// Which device.
        device: &'static str,
        /// What the memory was for.
        what: String,
        /// How much was asked for.
        wanted: u64,
    },
    /// An operation was called with operands that do not fit together: a bug in the caller.
    #[error("{operation}: {found}, but {wanted}")]
    Shape {
        /// Name of the [`Backend`] operation.
        operation: &'static str,
        /// What was passed.
        found: String,
        /// What the operation needs.
        wanted: String,
    },
    /// A handle that this backend did not make or has released: a bug in the caller.
    #[error("{operation}: handle {id} is not alive on this backend")]
    Handle {
        /// Name of the operation.
        operation: &'static str,
        /// Number in the handle.
        id: u32,
    },
    /// The device or its driver failed while it worked.
    #[error("{device}: {doing} failed: {found}; {advice}")]
    Device {
        /// Which device.
        device: String,
        /// What was being done.
        doing: &'static str,
        /// What the driver says.
        found: String,
        /// What can be done.
        advice: &'static str,
    },
    /// The ranks could not exchange something.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A setting that this machine cannot follow.
    #[error("{found} cannot be used on this machine: {wanted}")]
    Unsupported {
        /// What was asked for.
        found: String,
        /// What would work.
        wanted: String,
    },
}

/// What a backend has done since it was made; read by tests, `bench` and `--debug`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps begun.
    pub steps: u64,
    /// Rows in those steps.
    pub rows: u64,
    /// Bytes of plain matrices read, each matrix counted once an operation however many rows share
    /// it.
    pub dense_bytes: u64,
    /// Bytes of expert matrices read, each distinct expert counted once an operation.
    pub expert_bytes: u64,
}

/// The operations a model is made of, on one device.
///
/// **Rows.** [`Backend::begin`] names the rows of a step: tokens, and spans of consecutive
/// positions, one span a session. Until the next `begin`, "n" below is the number of those rows,
/// row-shaped buffers are `[n, width]` in f32, and a slice of buffers "per span" has one entry a
/// span, in the order of the spans.
///
/// **State** is rings by position and append-only rows, nothing else: slot `position % capacity`,
/// and row `g` at index `g`. A ring is as long as what is ever read back plus [`ROLLBACK_ROWS`], so
/// dropping the last few positions of a session is only a smaller position, and there is nothing to
/// undo.
///
/// **One answer.** The bits of a row do not depend on the other rows of the step, on how positions
/// were cut into steps, or on the number of threads.
///
/// Operations may be recorded and run later; [`Backend::read`] and [`Backend::finish`] wait for
/// them.
pub trait Backend: Send {
    /// Name as in `--backend`.
    fn name(&self) -> &'static str;
    /// Which kind of device it is: two of the same kind give the same bits, so that one may go on
    /// from what the other stored. One name for all processors, whatever their instruction sets.
    fn kind(&self) -> String {
        self.name().to_owned()
    }
    /// What was done so far.
    fn counters(&self) -> Counters;

    /// A new empty group of buffers with one lifetime (a session, a model's weights, scratch).
    fn arena(&mut self) -> Arena;
    /// A zeroed buffer of `len` elements that lives until its arena is released.
    fn alloc(&mut self, arena: Arena, element: Element, len: usize) -> Result<Buffer, Error>;
    /// Frees every buffer of the arena.
    fn release(&mut self, arena: Arena);
    /// Writes raw little-endian elements, starting at element `offset`.
    fn write(&mut self, to: Buffer, offset: usize, bytes: &[u8]) -> Result<(), Error>;
    /// Reads raw little-endian elements, starting at element `offset`; waits for pending work.
    fn read(&mut self, from: Buffer, offset: usize, bytes: &mut [u8]) -> Result<(), Error>;
    /// Reads many runs: a device waits for them at once, and several threads lay down what comes.
    fn read_all(&mut self, runs: Vec<ReadRun<'_>>) -> Result<(), Error> {
        for ReadRun { from, mut offset, into } in runs {
            for place in into {
                self.read(from, offset, place)?;
                offset += place.len() / from.element.bytes();
            }
        }
        Ok(())
    }
    /// [`Backend::write`] for an f32 buffer.
    fn write_f32(&mut self, to: Buffer, offset: usize, values: &[f32]) -> Result<(), Error>;
    /// [`Backend::read`] for an f32 buffer.
    fn read_f32(&mut self, from: Buffer, offset: usize, values: &mut [f32]) -> Result<(), Error>;
    /// Makes a weight matrix (or a stack of expert matrices) resident, in this device's own layout.
    fn matrix(&mut self, source: MatrixSource<'_>) -> Result<Matrix, Error>;
    /// [`Backend::matrix`] of a part of a tensor, whose rows may lie apart in the source's bytes.
    /// The columns may be a part of K too: so many of its eight shards, neighbours in a subtree,
    /// and products give that subtree's sum.
    fn matrix_part(&mut self, source: MatrixSource<'_>, part: MatrixPart) -> Result<Matrix, Error> {
        if part.shards == 8 {
            return self.matrix(source.gathered(part.strides)?);
        }
        let shards = part.shards;
        let found = format!("{shards} of the eight shards of {} on {}", source.name, self.name());
        Err(Error::Unsupported { found, wanted: "the cpu backend can hold a part".into() })
    }
    /// Whether matrices may come in planes, as packed files have them.
    fn takes_planes(&self) -> bool {
        false
    }
    /// Whether the device has a copy of a matrix in the memory that it shares with the host: what
    /// it was made from then only takes room from it.
    fn lets_go(&self, _matrix: Matrix) -> bool {
        false
    }
    /// The ranks that this device computes with, if it is not alone.
    fn exchange(&mut self) -> Option<&mut dyn Exchange> {
        None
    }
    /// Where the device itself can add the first `len` floats of all ranks' buffers, this rank's
    /// part of a sum, by their tree: does it, and is true. What comes of it may be seen later: as
    /// an error of [`Backend::read`] or [`Backend::finish`], before anything of it is given out.
    fn sum_ranks(&mut self, _gate: GateKind, _part: Buffer, _len: usize) -> Result<bool, Error> {
        Ok(false)
    }
    /// Microseconds that the last gates of [`Backend::sum_ranks`] took on the device, waiting
    /// included.
    fn gate_times(&mut self) -> Result<Vec<f64>, Error> {
        Ok(Vec::new())
    }
    /// Leaves out these shortcuts from here on and takes all others; false where a device has none
    /// to leave out. No bit depends on it, so that they can be compared on a model in place.
    #[cfg(any(feature = "cuda", feature = "host-driver"))]
    fn leave_out(&mut self, _shortcuts: Shortcuts) -> Result<bool, Error> {
        Ok(false)
    }
    /// All ranks of a group call this together in each new epoch, once they have met: what the
    /// device needs to add over ranks by itself is made and tried. Where that does not work sums
    /// go another way, with equal bits.
    fn join_epoch(&mut self) -> Result<(), Error> {
        Ok(())
    }
    /// What [`Backend::join_epoch`] has found, once.
    fn gates_note(&mut self) -> Option<String> {
        None
    }
    /// Whether the next three can be called: ranks that share a step's rows.
    fn splits_rows(&self) -> bool {
        false
    }
    /// From here on until it is called again or the next step begins, the step is these of its rows
    /// only, or all of them again: n is their number, spans are those that have any of them, and
    /// buffers begin with the first of them ([`Buffer::behind`]).
    fn narrow(&mut self, _rows: Option<std::ops::Range<usize>>) -> Result<(), Error> {
        let found = format!("some rows of a step on {}", self.name());
        Err(Error::Unsupported { found, wanted: "steps are computed whole here".into() })
    }
    /// Where all ranks have a part of the sum of each row: each gets the sums of its own rows, from
    /// `starts[rank]` to the next start (multiples of four, but for the last), by the tree of
    /// [`Backend::sum_ranks`]. The others' rows hold nothing of use afterwards.
    fn sum_rows(&mut self, _gate: GateKind, part: RowsOf, _starts: &[usize]) -> Result<(), Error> {
        let found = format!("sums of rows of {} over ranks on {}", part.width, self.name());
        Err(Error::Unsupported { found, wanted: "`splits_rows` says where".into() })
    }
    /// Where each rank has its own rows of these buffers: all get all.
    fn share_rows(
        &mut self,
        _gate: GateKind,
        rows: &[RowsOf],
        _starts: &[usize],
    ) -> Result<(), Error> {
        let found = format!("rows of {} buffers over ranks on {}", rows.len(), self.name());
        Err(Error::Unsupported { found, wanted: "`splits_rows` says where".into() })
    }
    /// Makes a rotary table of these frequencies, one for each pair of dims.
    fn rope(&mut self, frequencies: &[f32]) -> Result<Rope, Error>;

    /// Starts a step: the rows that all following operations work on.
    fn begin(&mut self, step: &Step) -> Result<(), Error>;
    /// Waits until every recorded operation has run.
    fn finish(&mut self) -> Result<(), Error>;

    /// Rows of the embedding table for the step's tokens, repeated over the streams.
    fn embed(&mut self, a: &Embed) -> Result<(), Error>;
    /// Mixes the streams into one row and normalises it; keeps the coefficients for
    /// [`Backend::hc_post`].
    fn hc_pre(&mut self, a: &HcPre) -> Result<(), Error>;
    /// Spreads a sublayer's output over the streams.
    fn hc_post(&mut self, a: &HcPost) -> Result<(), Error>;
    /// Collapses the streams before the output head and normalises.
    fn hc_head(&mut self, a: &HcHead) -> Result<(), Error>;
    /// Root-mean-square norm of rows, with weight.
    fn rms_norm(&mut self, a: &RmsNorm) -> Result<(), Error>;
    /// Several matrices times the same rows.
    fn project(&mut self, a: &Project<'_>) -> Result<(), Error>;
    /// The same where nothing near waits for the outputs: it may run behind and beside what the
    /// caller asks for before and after.
    fn project_later(&mut self, a: &Project<'_>) -> Result<(), Error> {
        self.project(a)
    }
    /// A matrix whose row groups each see their own slice of the input (`wo_a`).
    fn project_grouped(&mut self, a: &ProjectGrouped) -> Result<(), Error>;
    /// Weightless norm and rotation of every query head, in place.
    fn query_heads(&mut self, a: &QueryHeads) -> Result<(), Error>;
    /// Norm, rotation and FP8 round trip of the step's key/value rows.
    fn kv_rows(&mut self, a: &KvRows) -> Result<(), Error>;
    /// Feeds a compressor: appends the rows of all groups that close in this step, keeps the open
    /// ones.
    fn compress(&mut self, a: &Compress<'_>) -> Result<(), Error>;
    /// Chooses the compressed rows that each row of the step may attend to.
    fn index_select(&mut self, a: &IndexSelect<'_>) -> Result<(), Error>;
    /// Whether ranks can score a part of the rows each, by one of the next two.
    fn splits_index(&self) -> bool {
        false
    }
    /// Where the devices of all ranks meet by themselves: [`Backend::index_select`], each scoring a
    /// run of the rows, and true.
    fn index_together(&mut self, _a: &IndexSelect<'_>) -> Result<bool, Error> {
        Ok(false)
    }
    /// [`Backend::index_select`] over a run of each span's compressed rows, for ranks that score a
    /// part each: `best[n, top_k]` becomes a key for each of the best rows of the run, in any
    /// order, filled up with `u64::MAX`. The smaller a key the better the row, and its low 32 bits
    /// are the row; so the smallest keys of all runs are the choice. `a.out` is not used, and rows
    /// of the step that see no more than `top_k` compressed rows get no keys.
    fn index_best(
        &mut self,
        a: &IndexSelect<'_>,
        _runs: &[std::ops::Range<usize>],
        _best: &mut [u64],
    ) -> Result<(), Error> {
        let found = format!("a part of {} rows of the indexer on {}", a.rows.len(), self.name());
        Err(Error::Unsupported { found, wanted: "the cpu backend can score a part".into() })
    }
    /// Attention over the window and the chosen compressed rows, un-rotated at the end.
    fn attend(&mut self, a: &Attend<'_>) -> Result<(), Error>;
    /// Moves the step's key/value rows into the window rings.
    fn store_window(&mut self, a: &StoreWindow<'_>) -> Result<(), Error>;
    /// Chooses experts and their weights.
    fn route(&mut self, a: &Route) -> Result<(), Error>;
    /// Routed and shared experts, summed in the eight cells of DESIGN 5.
    fn experts(&mut self, a: &Experts) -> Result<(), Error>;
    /// [`Backend::experts`] for some of the cells: the subtree's sum of those.
    fn experts_part(&mut self, a: &Experts, cells: Cells) -> Result<(), Error> {
        if cells.count == 8 {
            return self.experts(a);
        }
        let found = format!("{cells:?} on {}", self.name());
        Err(Error::Unsupported { found, wanted: "the cpu backend can compute a part".into() })
    }
    /// Adds one row to each stream (`x[n, streams, d] += row[n, d]`).
    fn add_to_streams(&mut self, a: &AddToStreams) -> Result<(), Error>;
    /// Takes a share of a direction out of rows.
    fn steer(&mut self, a: &Steer) -> Result<(), Error> {
        let found = format!("steering along direction {} on {}", a.row, self.name());
        Err(Error::Unsupported { found, wanted: "the cpu backend can steer".into() })
    }
    /// Whether [`Backend::draw`] can be called.
    fn draws(&self) -> bool {
        false
    }
    /// Draws a token of each row of logits: the one that the sampler draws of them (`sample.rs`
    /// says what a token weighs). `None` where the host must look at the logits: one is no number,
    /// none is allowed, or the row does not narrow. Waits for pending work.
    fn draw(&mut self, a: &DrawRows<'_>) -> Result<Vec<Option<u32>>, Error> {
        let found = format!("drawing tokens of {} rows on {}", a.rows.len(), self.name());
        Err(Error::Unsupported { found, wanted: "reading the logits and the sampler".into() })
    }
    /// Copies chosen rows.
    fn gather_rows(&mut self, a: &GatherRows<'_>) -> Result<(), Error>;
}

/// Positions that can be dropped from a session without copies: the slack of every ring.
pub const ROLLBACK_ROWS: usize = 64;
