//! What `ironstar doctor` asks: which cards there are, and how fast their memory is read.

use super::context::{Context, shown, start};
use super::{Cuda, CudaConfig};
use crate::Error;
use crate::gpu::driver::{Address, Driver as _};
use cudarc::driver::sys::CUdevice_attribute as A;

/// The probe's own text: one kernel, so that it compiles at once.
const TEXT: &str = include_str!("bandwidth.cu");

/// Bytes that are read: far more than any cache.
const PROBE_BYTES: u64 = 2 << 30;
/// Reads that are timed; the median counts.
const ROUNDS: usize = 9;
/// Threads of a group.
const GROUP: u32 = 256;
/// Groups for each multiprocessor.
const GROUPS_EACH: u32 = 8;

/// A card as `doctor` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// Number, as the driver counts.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Compute capability, as 9.0.
    pub capability: (u32, u32),
    /// CUDA version of the driver, as 13.0.
    pub driver: String,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory.
    pub memory_total: u64,
    /// Bytes that nobody has taken.
    pub memory_free: u64,
    /// Whether it shares the host's memory.
    pub unified: bool,
    /// Whether it reads weights where their file is mapped, if their layout allows that.
    pub reads_mapped: bool,
}

/// How many cards the driver sees; none is opened. An error says why there are none.
pub fn cuda_count() -> Result<u32, Error> {
    let (_, count) = start()?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// All cards, which are opened one after the other; an error says why there are none.
pub fn cuda_devices() -> Result<Vec<CudaDevice>, Error> {
    (0..cuda_count()?).map(cuda_device).collect()
}

/// One card and no other: each that is opened takes time and some of its memory, which counts where
/// every card has a process.
pub fn cuda_device(index: u32) -> Result<CudaDevice, Error> {
    let context = Context::open(index)?;
    let (memory_free, memory_total) = context.memory()?;
    let unified = context.is_unified()?;
    Ok(CudaDevice {
        index,
        name: context.name()?,
        capability: (
            context.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            context.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        driver: shown(context.driver),
        multiprocessors: context.attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_total,
        memory_free,
        unified,
        reads_mapped: unified && super::reaches_pages(&context)?,
    })
}

/// Bytes a second at which a card reads its memory: the median of nine reads of 2 GiB, or of a
/// quarter of what is free if that is less.
pub fn cuda_read_bandwidth(config: &CudaConfig) -> Result<f64, Error> {
    let mut cuda = Cuda::open(config, &[TEXT.to_owned()])?;
    let bytes = PROBE_BYTES.min(cuda.facts.memory_free / 4) / 4096 * 4096;
    let (source, sink) = (cuda.alloc(bytes.max(4096))?, cuda.alloc(256)?);
    let kernel = cuda.kernel("read_bandwidth")?;
    let groups = cuda.facts.multiprocessors * GROUPS_EACH;
    let words = (bytes.max(4096) / 16).to_le_bytes();
    let read = |cuda: &mut Cuda, source: Address| {
        cuda.launch(kernel, [groups, 1, 1], GROUP, &[source, sink], &words)
    };
    for _ in 0..3 {
        read(&mut cuda, source)?;
    }
    let mut seconds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let (begun, ended) = (cuda.context.event(true)?, cuda.context.event(true)?);
        cuda.main.record(&begun)?;
        read(&mut cuda, source)?;
        cuda.main.record(&ended)?;
        ended.wait()?;
        seconds.push(f64::from(ended.milliseconds_since(&begun)?) / 1e3);
    }
    seconds.sort_by(f64::total_cmp);
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = bytes.max(4096) as f64 / seconds[ROUNDS / 2];
    Ok(rate)
}
