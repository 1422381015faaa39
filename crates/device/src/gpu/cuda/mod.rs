//! The CUDA driver: cards through NVIDIA's driver library, loaded at run time; kernels compiled at
//! the first start by NVRTC and kept on disk.
//!
//! One stream carries the work, so calls take effect in their order; large uploads run beside it
//! and meet it again. A sequence of launches can be captured as a graph, whose replay costs a
//! fraction of the launches (docs/gpu.md has the figures).

mod cache;
mod call;
mod clusters;
mod compile;
mod context;
mod edges;
mod lanes;
mod modules;
mod nvrtc;
mod peer;
mod probe;
mod staging;
#[cfg(test)]
mod tests;
mod timeline;
mod times;

pub use compile::{Compiling, cuda_compile};
pub(super) use peer::windows;
pub use probe::{CudaDevice, cuda_count, cuda_device, cuda_devices, cuda_read_bandwidth};
pub use timeline::{Stamp, Timeline, timeline_tables};
pub use times::{KernelTime, KernelTimes};

use super::driver::{
    Address, Collective, Driver, Entrance, Facts, Fill, GATHER, GATHER_KERNEL, Graph, Handle,
    Kernel,
};
use super::exchange::{Lent, Map, Window, bytes_of_gather};
use super::text;
use crate::Error;
use call::{check, failure};
use compile::compiled;
use context::{Context, Stream, shown};
use cudarc::driver::sys::{self, CUresult};
use lanes::Lanes;
use modules::Module;
use staging::Staging;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;
use timeline::Stamps;
use times::Clock;

/// What the kernels are compiled with, here and by `cargo xtask kernel-check`.
pub(super) const OPTIONS: &str = include_str!("../../../kernels/cuda.options");

/// Most parameters of a kernel.
const PARAMETERS_MAX: usize = 32;

/// Which card, and where compiled kernels and their compiler are.
#[derive(Clone, Debug, Default)]
pub struct CudaConfig {
    /// Number of the card, as the driver counts.
    pub device: u32,
    /// Folder of compiled kernels; `None` compiles at every start.
    pub cache: Option<PathBuf>,
    /// Folder of NVRTC, if it is not where the loader looks.
    pub nvrtc: Option<PathBuf>,
    /// Measures every launch, which slows them all.
    pub times: Option<KernelTimes>,
    /// Starts no kernel before the one before it has ended; for comparison.
    pub serial: bool,
    /// Who is told of kernels that are being compiled.
    pub compiling: Compiling,
    /// Notes when each launch of a replay starts; cards of compute capability 9.0 and later.
    pub timeline: Option<Timeline>,
}

/// A kernel that was looked up.
struct Loaded {
    function: sys::CUfunction,
    name: &'static str,
    /// Bytes of its parameters at its last launch, which are those that it takes.
    parameters: Vec<usize>,
    /// Bytes of its pool of shared memory.
    pool: u32,
    /// Groups of a cluster.
    cluster: u32,
}

/// One card. Fields are dropped in this order: the context is last.
pub(crate) struct Cuda {
    facts: Facts,
    /// Whether kernels read any memory of the process, mapped files included, by its address.
    reaches_pages: bool,
    graphs: Vec<Option<sys::CUgraphExec>>,
    kernels: Vec<Loaded>,
    names: HashMap<&'static str, Kernel>,
    capturing: bool,
    /// Streams of the lanes of a recording beside the main one, and places on any of them.
    lanes: Lanes,
    collective: Option<Arc<dyn Collective>>,
    /// Launches may overlap: every kernel of the text waits first.
    overlap: bool,
    clock: Option<Clock>,
    stamps: Option<Stamps>,
    /// Bytes of each live allocation, by address.
    allocations: BTreeMap<u64, u64>,
    modules: Vec<Module>,
    staging: Staging,
    main: Stream,
    context: Context,
}

// SAFETY: the driver's handles may be used from any thread whose current context is theirs; every
// method enters the context first, and there is one owner.
unsafe impl Send for Cuda {}

impl Cuda {
    /// Opens a card with the kernels of all parts of a text.
    pub(crate) fn open(config: &CudaConfig, parts: &[String]) -> Result<Cuda, Error> {
        let context = Context::open(config.device)?;
        let facts = facts(&context)?;
        let reaches_pages = facts.unified && reaches_pages(&context)?;
        let (main, staging) = (context.urgent_stream()?, Staging::new(&context)?);
        let waiting = match config.serial || config.times.is_some() || !can_overlap(&context)? {
            true => None,
            false => {
                let started = match config.timeline {
                    Some(_) => edges::with_stamps,
                    None => edges::with_waits,
                };
                parts.iter().map(|part| started(part)).collect::<Option<Vec<_>>>()
            }
        };
        let codes = code(&context, config, waiting.as_deref().unwrap_or(parts))?;
        let modules = codes.iter().map(|code| Module::load(code));
        let modules = modules.collect::<Result<Vec<_>, _>>()?;
        let stamped = config.timeline.clone().filter(|_| waiting.is_some());
        let stamped = stamped.zip(modules.first());
        let stamps = stamped.map(|(timeline, module)| Stamps::new(timeline, module.raw()));
        let stamps = stamps.transpose()?;
        let (graphs, kernels, names) = (Vec::new(), Vec::new(), HashMap::new());
        let (capturing, lanes, allocations) = (false, Lanes::default(), BTreeMap::new());
        let mut cuda = Cuda {
            facts,
            reaches_pages,
            graphs,
            kernels,
            names,
            capturing,
            lanes,
            collective: None,
            overlap: waiting.is_some(),
            clock: config.times.clone().map(Clock::new),
            stamps,
            allocations,
            modules,
            staging,
            main,
            context,
        };
        // Such kernels are only in code for cards that have what they need.
        cuda.facts.signals = cuda.kernel("wide_q8_0").is_ok();
        cuda.facts.clusters = cuda.has_clusters();
        Ok(cuda)
    }

    /// A call that cannot be part of a recording.
    fn outside_capture(&self, operation: &'static str) -> Result<(), Error> {
        self.context.enter()?;
        match self.capturing {
            false => Ok(()),
            true => Err(Error::Shape {
                operation,
                found: "called while launches are recorded".into(),
                wanted: "it must come before or after".into(),
            }),
        }
    }

    /// Refuses ranges that are not inside one allocation, which the card would only report later.
    /// Puts a gather of all ranks where the next launch would go.
    fn gather(&mut self, buffers: &[Address], arguments: &[u8]) -> Result<(), Error> {
        let (Some(by), [from, to]) = (self.collective.clone(), buffers) else {
            return Err(Error::Handle { operation: "launch", id: GATHER_KERNEL.0 });
        };
        let bytes = bytes_of_gather(arguments);
        self.inside("gather", *from, bytes)?;
        self.inside("gather", *to, bytes.saturating_mul(by.ranks()))?;
        let stream = self.lanes.stream(&self.main).raw();
        by.gather(*from, *to, bytes, stream.cast())?;
        // What follows waits for its end: its kernels say nothing before.
        self.lanes.broken_off();
        Ok(())
    }

    fn inside(&self, operation: &'static str, at: Address, bytes: usize) -> Result<(), Error> {
        let below = self.allocations.range(..=at.0).next_back();
        let fits = below.is_some_and(|(start, size)| {
            let left = size.checked_sub(at.0 - start);
            left.is_some_and(|left| bytes as u64 <= left)
        });
        if fits {
            return Ok(());
        }
        let found = format!("{bytes} bytes at {:#x}", at.0);
        Err(Error::Shape { operation, found, wanted: "a range inside one allocation".into() })
    }

    /// Everything started has ended: reads what was measured.
    fn waited(&mut self) -> Result<(), Error> {
        self.stamps.as_mut().map_or(Ok(()), Stamps::waited)?;
        self.clock.as_mut().map_or(Ok(()), Clock::waited)
    }

    fn graph(&self, graph: Graph) -> Result<sys::CUgraphExec, Error> {
        let index = usize::try_from(graph.0).ok();
        let found = index.and_then(|index| self.graphs.get(index).copied().flatten());
        found.ok_or(Error::Handle { operation: "replay", id: graph.0 })
    }
}

/// Whether the card knows programmatic edges.
fn can_overlap(context: &Context) -> Result<bool, Error> {
    let major = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    Ok(context.attribute(major)? >= 9)
}

/// Whether the card's kernels read the host's pages without being told of them. Such parts (GB10)
/// may know no registered memory, so that is not asked for.
fn reaches_pages(context: &Context) -> Result<bool, Error> {
    let access = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
    Ok(context.attribute(access)? == 1)
}

/// Machine code for the card: from the cache, or compiled now.
fn code(context: &Context, config: &CudaConfig, parts: &[String]) -> Result<Vec<Vec<u8>>, Error> {
    use sys::CUdevice_attribute as A;
    let major = context.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = context.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    compiled(config, [major * 10 + minor, context.driver.cast_unsigned()], parts)
}

fn facts(context: &Context) -> Result<Facts, Error> {
    use sys::CUdevice_attribute as A;
    let (memory_free, memory_total) = context.memory()?;
    Ok(Facts {
        device: format!("{} (driver for CUDA {})", context.name()?, shown(context.driver)),
        simd_width: context.attribute(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        group_max: context.attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        group_bytes: context.attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        multiprocessors: context.attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_total,
        memory_free,
        clock_khz: context.attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        // Known once the kernels are there.
        signals: false,
        clusters: false,
        unified: context.is_unified()?,
    })
}

/// Lets a kernel have more shared memory than the usual limit.
fn allow_pool(function: sys::CUfunction, bytes: u32) -> Result<(), Error> {
    let wanted = i32::try_from(bytes).expect("pools are some kilobytes");
    let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function is of the loaded module.
    let status = unsafe { sys::cuFuncSetAttribute(function, which, wanted) };
    check("asking for shared memory", status)
}

impl Driver for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn alloc(&mut self, bytes: u64) -> Result<Address, Error> {
        self.outside_capture("alloc")?;
        let memory =
            |what: &str| Error::Memory { device: "cuda", what: what.into(), wanted: bytes };
        let size = usize::try_from(bytes).map_err(|_| memory("a buffer"))?;
        let mut address = 0;
        // SAFETY: a context is current; the out-parameter lives here.
        match unsafe { sys::cuMemAlloc_v2(&raw mut address, size) } {
            CUresult::CUDA_SUCCESS => {}
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, _) = self.context.memory()?;
                return Err(memory(&format!("a buffer, and {free} bytes are free")));
            }
            other => return Err(failure("taking memory", other)),
        }
        self.allocations.insert(address, bytes);
        // SAFETY: exactly the range just allocated.
        let status = unsafe { sys::cuMemsetD8Async(address, 0, size, self.main.raw()) };
        check("clearing memory", status)?;
        Ok(Address(address))
    }

    fn free(&mut self, address: Address) {
        if self.allocations.remove(&address.0).is_some() && self.context.enter().is_ok() {
            // A fault of the card is reported by the next call that can.
            let _ = self.main.wait();
            // SAFETY: an allocation of ours that nobody has freed, and no work that was launched
            // before runs any more.
            unsafe { sys::cuMemFree_v2(address.0) };
        }
    }

    fn upload(&mut self, to: Address, bytes: &[u8]) -> Result<(), Error> {
        self.outside_capture("upload")?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.inside("upload", to, bytes.len())?;
        let fill = |at: usize, to: &mut [u8]| to.copy_from_slice(&bytes[at..][..to.len()]);
        self.staging.upload(&self.context, &self.main, (to.0, bytes.len()), &fill)
    }

    fn upload_from(&mut self, to: Address, bytes: usize, fill: &Fill<'_>) -> Result<(), Error> {
        self.outside_capture("upload")?;
        if bytes == 0 {
            return Ok(());
        }
        self.inside("upload", to, bytes)?;
        self.staging.upload(&self.context, &self.main, (to.0, bytes), fill)
    }

    fn reach(&mut self, bytes: &[u8]) -> Option<Address> {
        self.reaches_pages.then_some(Address(bytes.as_ptr() as u64))
    }

    fn download(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), Error> {
        self.outside_capture("download")?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.inside("download", from, bytes.len())?;
        self.staging.download(&self.context, &self.main, from.0, bytes)?;
        self.waited()
    }

    fn download_all(&mut self, ranges: Vec<(Address, Vec<&mut [u8]>)>) -> Result<(), Error> {
        self.outside_capture("download")?;
        for (from, places) in &ranges {
            self.inside("download", *from, places.iter().map(|place| place.len()).sum())?;
        }
        self.staging.download_all(&self.context, &self.main, ranges)?;
        self.waited()
    }

    fn lend(&mut self, map: &Arc<Map>) -> Result<Lent, Error> {
        self.outside_capture("lend")?;
        peer::lend(&self.context, map)
    }

    fn window(&mut self, bytes: usize, nonce: u64) -> Result<(Arc<dyn Window>, Handle), Error> {
        self.outside_capture("window")?;
        let (window, handle) = peer::window(&self.context, bytes, nonce)?;
        Ok((Arc::new(window), handle))
    }

    fn open_window(
        &mut self,
        handle: &Handle,
        bytes: usize,
        nonce: u64,
    ) -> Result<Arc<dyn Window>, Error> {
        self.outside_capture("open_window")?;
        Ok(Arc::new(peer::OpenedWindow::open(&self.context, handle, bytes, nonce)?))
    }

    fn entrance(&self) -> Result<Box<dyn Entrance>, Error> {
        Ok(Box::new(self.context.again()?))
    }

    fn collective(&mut self, by: Arc<dyn Collective>) -> Result<(), Error> {
        self.collective = Some(by);
        // Calls of the library that follow are about this card.
        self.context.enter()
    }

    fn kernel(&mut self, name: &'static str) -> Result<Kernel, Error> {
        if let Some(kernel) = self.names.get(name) {
            return Ok(*kernel);
        }
        if name == GATHER && self.collective.is_some() {
            return Ok(GATHER_KERNEL);
        }
        self.context.enter()?;
        let module = self.modules.iter().find(|module| module.has(name));
        let module = module.ok_or_else(|| Error::Shape {
            operation: "kernel",
            found: format!("no kernel `{name}`"),
            wanted: "a name of the kernel text".into(),
        })?;
        let function = module.function(name)?;
        let pool = text::pool_bytes(name);
        if pool > 0 {
            allow_pool(function, pool)?;
        }
        let cluster = text::cluster_of(name);
        if cluster > 1 {
            clusters::allow(function)?;
        }
        let id = u32::try_from(self.kernels.len()).expect("a few hundred kernels");
        self.kernels.push(Loaded { function, name, parameters: Vec::new(), pool, cluster });
        self.names.insert(name, Kernel(id));
        Ok(Kernel(id))
    }

    fn launch(
        &mut self,
        kernel: Kernel,
        grid: [u32; 3],
        group: u32,
        buffers: &[Address],
        arguments: &[u8],
    ) -> Result<(), Error> {
        self.context.enter()?;
        if kernel == GATHER_KERNEL {
            return self.gather(buffers, arguments);
        }
        let index = usize::try_from(kernel.0).ok().filter(|index| *index < self.kernels.len());
        let index = index.ok_or(Error::Handle { operation: "launch", id: kernel.0 })?;
        let known = [self.context.tells_parameters(), self.stamps.is_some()];
        fits(&mut self.kernels[index], known, buffers.len(), arguments)?;
        let loaded = &self.kernels[index];
        let number = self.stamps.as_mut().map(|stamps| {
            let (lane, joins) = (self.lanes.now(), !self.lanes.follows());
            let (name, groups) = (loaded.name, grid[0] * grid[1] * grid[2]);
            let launch = Stamp { name, lane, joins, groups, there_ns: 0, begun_ns: 0 };
            stamps.number(self.capturing, launch)
        });
        let mut pointers = [std::ptr::null_mut::<c_void>(); PARAMETERS_MAX];
        for (pointer, buffer) in pointers.iter_mut().zip(buffers) {
            *pointer = (&raw const buffer.0).cast_mut().cast();
        }
        if !arguments.is_empty() {
            pointers[buffers.len()] = arguments.as_ptr().cast_mut().cast();
        }
        if let Some(number) = &number {
            let before = buffers.len() + usize::from(!arguments.is_empty());
            pointers[before] = std::ptr::from_ref(number).cast_mut().cast();
        }
        let begun = match &mut self.clock {
            Some(clock) => Some(clock.mark(&self.context, &self.main)?),
            None => None,
        };
        let mut asked = clusters::attributes(self.overlap && self.lanes.follows(), loaded.cluster);
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: group,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: loaded.pool,
            hStream: self.lanes.stream(&self.main).raw(),
            attrs: asked.as_mut_ptr(),
            numAttrs: u32::try_from(asked.len()).expect("two at most"),
        };
        let (function, values, extra) =
            (loaded.function, pointers.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the function is of the loaded module; `pointers` has one entry a parameter, each
        // to a value of the parameter's size (`fits`), which the call copies; the attributes live
        // here. What the kernel does with the addresses is the contract of the kernel text.
        let status = unsafe { sys::cuLaunchKernelEx(&raw const config, function, values, extra) };
        if status == CUresult::CUDA_ERROR_INVALID_VALUE {
            let found = format!("{} with a grid of {grid:?} groups of {group}", loaded.name);
            let wanted = "sizes within the card's limits and above 0".into();
            return Err(Error::Shape { operation: "launch", found, wanted });
        }
        check("launching a kernel", status)?;
        self.lanes.launched();
        if let (Some(clock), Some(begun)) = (&mut self.clock, begun) {
            let ended = clock.mark(&self.context, &self.main)?;
            clock.launched(loaded.name, begun, ended);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.outside_capture("finish")?;
        self.main.wait()?;
        self.waited()
    }

    fn begin_capture(&mut self) -> Result<bool, Error> {
        self.outside_capture("begin_capture")?;
        if self.clock.is_some() {
            return Ok(false);
        }
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and not recording.
        check("starting a recording", unsafe {
            sys::cuStreamBeginCapture_v2(self.main.raw(), mode)
        })?;
        self.capturing = true;
        self.lanes.begin(&self.context, &self.main)?;
        Ok(true)
    }

    fn lane(&mut self, lane: usize, behind: &[usize]) -> Result<(), Error> {
        self.context.enter()?;
        self.lanes.change(&self.context, &self.main, lane, behind)
    }

    fn mark(&mut self, mark: usize) -> Result<(), Error> {
        self.context.enter()?;
        self.lanes.mark(&self.context, &self.main, mark)
    }

    fn end_capture(&mut self) -> Result<Graph, Error> {
        self.context.enter()?;
        self.capturing = false;
        self.lanes.end();
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is alive; the out-parameter lives here.
        let status = unsafe { sys::cuStreamEndCapture(self.main.raw(), &raw mut graph) };
        check("ending a recording", status)?;
        // SAFETY: the graph was just given; it is not needed once it was instantiated.
        let status = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0) };
        // SAFETY: as above.
        unsafe { sys::cuGraphDestroy(graph) };
        check("preparing a recording", status)?;
        // SAFETY: the executable graph was just given.
        check("preparing a recording", unsafe { sys::cuGraphUpload(executable, self.main.raw()) })?;
        let free = self.graphs.iter().position(Option::is_none);
        let index = free.unwrap_or(self.graphs.len());
        match free {
            Some(index) => self.graphs[index] = Some(executable),
            None => self.graphs.push(Some(executable)),
        }
        let index = u32::try_from(index).expect("a few graphs");
        if let Some(stamps) = &mut self.stamps {
            stamps.recorded(index);
        }
        Ok(Graph(index))
    }

    fn replay(&mut self, graph: Graph) -> Result<(), Error> {
        self.outside_capture("replay")?;
        let executable = self.graph(graph)?;
        // SAFETY: the graph is alive until `drop_graph`.
        let status = unsafe { sys::cuGraphLaunch(executable, self.main.raw()) };
        check("replaying a recording", status)?;
        if let Some(stamps) = &mut self.stamps {
            stamps.replayed(graph.0);
        }
        Ok(())
    }

    fn drop_graph(&mut self, graph: Graph) {
        let Ok(executable) = self.graph(graph) else { return };
        let index = usize::try_from(graph.0).expect("it was found");
        self.graphs[index] = None;
        if self.context.enter().is_ok() {
            let _ = self.main.wait();
            // SAFETY: instantiated by `end_capture`, waited for, and forgotten here.
            unsafe { sys::cuGraphExecDestroy(executable) };
        }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.context.enter().is_err() {
            return;
        }
        let _ = self.main.wait();
        for graph in self.graphs.drain(..).flatten() {
            // SAFETY: alive until here, and nothing runs any more.
            unsafe { sys::cuGraphExecDestroy(graph) };
        }
        for address in std::mem::take(&mut self.allocations).into_keys() {
            // SAFETY: an allocation of ours, freed only here.
            unsafe { sys::cuMemFree_v2(address) };
        }
    }
}

/// Bytes of the first parameters of a kernel, of which it should have so many; fewer if it has
/// fewer. What lies behind the last is never asked for: that is an error to the driver, and to
/// tools that look for errors.
fn parameters(function: sys::CUfunction, count: usize) -> Vec<usize> {
    let size_of = |index: usize| {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is of a loaded module; an index past the last gives an error.
        let status =
            unsafe { sys::cuFuncGetParamInfo(function, index, &raw mut offset, &raw mut size) };
        (status == CUresult::CUDA_SUCCESS).then_some(size)
    };
    (0..count).map_while(size_of).collect()
}

/// Whether a launch passes what the kernel takes, where the driver tells. The struct behind the
/// buffers tells a buffer too few: it has a size of its own.
fn fits(
    kernel: &mut Loaded,
    [tells, numbered]: [bool; 2],
    buffers: usize,
    arguments: &[u8],
) -> Result<(), Error> {
    let last = (!arguments.is_empty()).then_some(arguments.len());
    let number = numbered.then_some(size_of::<u32>());
    let given = || std::iter::repeat_n(size_of::<u64>(), buffers).chain(last).chain(number);
    let count = given().count();
    let fits = count <= PARAMETERS_MAX;
    if fits && (!tells || given().eq(kernel.parameters.iter().copied())) {
        return Ok(());
    }
    let wanted = if fits {
        let sizes = parameters(kernel.function, count);
        if given().eq(sizes.iter().copied()) {
            kernel.parameters = sizes;
            return Ok(());
        }
        format!("parameters of {sizes:?} bytes")
    } else {
        format!("at most {PARAMETERS_MAX} parameters")
    };
    let found = format!("{} with {buffers} buffers and {} bytes", kernel.name, arguments.len());
    Err(Error::Shape { operation: "launch", found, wanted })
}
