//! The host driver: the kernel text compiled by the system's C++ compiler into a library and run on
//! the CPU, every thread of a group a fibre. For tests: it checks what a device does not.
//!
//! A fault that it finds (divergent barriers, missing lanes, races and unwritten words in shared
//! memory, accesses outside of buffers) is an error of the launch that names kernel and group.

mod fault;
mod memory;

pub use fault::HostFault;
pub(crate) use memory::Memory;

use super::driver::{
    Address, Collective, Driver, Facts, GATHER, GATHER_KERNEL, Graph, Handle, Kernel,
};
use super::exchange::{Lent, Map, Offer, Window, bytes_of_gather};
use super::text;
use crate::Error;
use libloading::Library;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Options of the C++ compiler. Contraction off: a fused multiply-add is written out.
const OPTIONS: &[&str] = &[
    "-std=c++14",
    "-O2",
    "-shared",
    "-fPIC",
    "-march=native",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    // Who runs is looked up at every step of every fibre.
    "-ftls-model=initial-exec",
    "-w",
];

/// Compilers that are tried.
const COMPILERS: &[&str] = &["c++", "g++", "clang++"];

/// Most parameters of a kernel, arguments included; `POINTERS` of the scheduler.
const PARAMETERS_MAX: usize = 24;

// SAFETY: for a caller: the function is a kernel, and the arrays have the lengths that are said.
type Launch = unsafe extern "C" fn(
    *mut c_void,
    *const c_char,
    *const u32,
    u32,
    u32,
    *const *const c_void,
    u32,
) -> *const c_char;
// SAFETY: for a caller: nothing; null when there is no memory.
type Alloc = unsafe extern "C" fn(usize) -> *mut c_void;
// SAFETY: for a caller: a live allocation and its size.
type Intact = unsafe extern "C" fn(*const c_void, usize) -> c_int;
// SAFETY: for a caller: a live allocation and its size, forgotten afterwards.
type Free = unsafe extern "C" fn(*mut c_void, usize);

/// The functions of the scheduler.
#[derive(Clone, Copy)]
struct Runtime {
    launch: Launch,
    alloc: Alloc,
    intact: Intact,
    free: Free,
}

/// The kernels as a library of this machine.
pub(crate) struct Host {
    facts: Facts,
    runtime: Runtime,
    kernels: Vec<(*mut c_void, CString)>,
    names: HashMap<&'static str, Kernel>,
    /// Bytes of each allocation.
    allocations: BTreeMap<u64, usize>,
    /// Allocations that were passed to kernels since their marks were last checked.
    passed: HashSet<u64>,
    fault: HostFault,
    collective: Option<Arc<dyn Collective>>,
    library: Library,
}

// SAFETY: the library has no state but that of the thread which calls it; pointers to its functions
// may be used from any thread as long as the library is loaded, and it is dropped last.
unsafe impl Send for Host {}

impl Host {
    /// The kernels, compiled unless this machine has them already.
    pub fn new() -> Result<Self, Error> {
        Host::with("")
    }

    /// As a device in which a test plants faults.
    pub fn failing(fault: HostFault) -> Result<Self, Error> {
        let mut host = Host::new()?;
        host.fault = fault;
        Ok(host)
    }

    /// As a device whose groups have little shared memory.
    pub fn small() -> Result<Self, Error> {
        let mut host = Host::new()?;
        host.facts.group_bytes = 96 << 10;
        host.facts.signals = false;
        host.facts.clusters = false;
        Ok(host)
    }

    /// As a device with memory of its own.
    pub fn apart() -> Result<Self, Error> {
        let mut host = Host::new()?;
        host.facts.unified = false;
        Ok(host)
    }

    /// The kernels with more of them behind.
    pub fn with(more: &str) -> Result<Self, Error> {
        let text = format!("{}{}", text::host(more), text::HOST_RUNTIME);
        let path = compiled(&text)?;
        let failed = |doing, found: String| device_error(doing, found);
        // SAFETY: the library was made by `compiled` from our own text; loading it runs nothing
        // but the C++ runtime's own start.
        let library = unsafe { Library::new(&path) }
            .map_err(|error| failed("loading the compiled kernels", error.to_string()))?;
        // SAFETY: the types are those of the definitions in `host_rt.cpp`.
        let runtime = unsafe {
            let get = |error: libloading::Error| failed("finding the scheduler", error.to_string());
            Runtime {
                launch: *library.get::<Launch>("host_launch").map_err(get)?,
                alloc: *library.get::<Alloc>("host_alloc").map_err(get)?,
                intact: *library.get::<Intact>("host_intact").map_err(get)?,
                free: *library.get::<Free>("host_free").map_err(get)?,
            }
        };
        let facts = Facts {
            device: "this machine's CPU, kernels as fibres".into(),
            simd_width: 32,
            group_max: 1024,
            group_bytes: 228 << 10,
            multiprocessors: 1,
            signals: true,
            clusters: true,
            memory_total: 1 << 40,
            memory_free: 1 << 40,
            unified: true,
            clock_khz: 1_000_000,
        };
        let (kernels, names, passed) = (Vec::new(), HashMap::new(), HashSet::new());
        let (allocations, fault) = (BTreeMap::new(), HostFault::default());
        let collective = None;
        Ok(Host { facts, runtime, kernels, names, allocations, passed, fault, collective, library })
    }

    /// The allocation that an address lies in or behind.
    fn around(&self, at: Address) -> Option<(u64, usize)> {
        self.allocations.range(..=at.0).next_back().map(|(start, size)| (*start, *size))
    }

    /// Refuses ranges that are not inside one allocation.
    fn range(&self, operation: &'static str, at: Address, bytes: usize) -> Result<(), Error> {
        let inside = self.around(at).is_some_and(|(start, size)| {
            let end = (at.0 - start).checked_add(bytes as u64);
            end.is_some_and(|end| end <= size as u64)
        });
        if inside {
            return Ok(());
        }
        let found = format!("{bytes} bytes at {:#x}", at.0);
        Err(Error::Shape { operation, found, wanted: "a range inside one allocation".into() })
    }

    /// Whether the marks round these allocations are as they were made.
    fn check_marks(&self, starts: impl IntoIterator<Item = u64>) -> Result<(), Error> {
        for start in starts {
            let Some(size) = self.allocations.get(&start) else { continue };
            // SAFETY: a live allocation of this runtime with its size.
            if unsafe { (self.runtime.intact)(start as *const c_void, *size) } == 0 {
                let found = format!("a kernel wrote outside of the buffer of {size} bytes");
                return Err(device_error("checking memory", found));
            }
        }
        Ok(())
    }
}

fn device_error(doing: &'static str, found: String) -> Error {
    let advice = "the host driver is for tests: the message names the kernel to look at";
    Error::Device { device: "host".into(), doing, found, advice }
}

/// Path of the library of this text, compiled if it is not there. Other tests may do the same at
/// the same time: each compiles under its own name and renames.
pub(crate) fn compiled(text: &str) -> Result<PathBuf, Error> {
    let io = |error: std::io::Error| device_error("writing the kernel text", error.to_string());
    let folder = std::env::temp_dir().join("ironstar-host-kernels");
    std::fs::create_dir_all(&folder).map_err(io)?;
    let library = folder.join(format!("{:016x}.so", fingerprint(text)));
    // Who comes while somebody compiles waits, since that takes a processor for a while.
    let lock = std::fs::File::create(folder.join("lock")).map_err(io)?;
    lock.lock().map_err(io)?;
    if library.exists() {
        return Ok(library);
    }
    let own = format!("{:016x}-{}-{}", fingerprint(text), std::process::id(), unique());
    let (source, made) = (folder.join(format!("{own}.cpp")), folder.join(format!("{own}.so")));
    std::fs::write(&source, text).map_err(io)?;
    compile(&source, &made)?;
    std::fs::rename(&made, &library).map_err(io)?;
    std::fs::remove_file(&source).map_err(io)?;
    Ok(library)
}

fn compile(source: &Path, made: &Path) -> Result<(), Error> {
    for compiler in COMPILERS {
        let mut command = Command::new(compiler);
        command.args(OPTIONS).arg("-o").arg(made).arg(source);
        match command.output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(device_error("starting the C++ compiler", error.to_string())),
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(device_error("compiling the kernels", text));
            }
        }
    }
    Err(Error::Unsupported {
        found: "the host driver without a C++ compiler".into(),
        wanted: format!("install one of {COMPILERS:?} (Debian: apt-get install g++)"),
    })
}

/// FNV-1a of the text and the options.
fn fingerprint(text: &str) -> u64 {
    let bytes = text.bytes().chain(OPTIONS.iter().flat_map(|option| option.bytes()));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// A number that no other call in this process gets.
fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Driver for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn alloc(&mut self, bytes: u64) -> Result<Address, Error> {
        let memory = || Error::Memory { device: "host", what: "a buffer".into(), wanted: bytes };
        let size = usize::try_from(bytes).map_err(|_| memory())?;
        if bytes > self.facts.memory_total {
            return Err(memory());
        }
        // SAFETY: the function takes any size.
        let at = unsafe { (self.runtime.alloc)(size) };
        if at.is_null() {
            return Err(memory());
        }
        let address = at as u64;
        self.allocations.insert(address, size);
        Ok(Address(address))
    }

    fn free(&mut self, address: Address) {
        if let Some(size) = self.allocations.remove(&address.0) {
            // SAFETY: an allocation of this runtime with this size that is freed only here.
            unsafe { (self.runtime.free)(address.0 as *mut c_void, size) };
        }
    }

    fn upload(&mut self, to: Address, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.range("upload", to, bytes.len())?;
        // SAFETY: the range is inside a live allocation, which no Rust reference covers.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.0 as *mut u8, bytes.len()) };
        Ok(())
    }

    fn reach(&mut self, bytes: &[u8]) -> Option<Address> {
        self.facts.unified.then_some(Address(bytes.as_ptr() as u64))
    }

    fn download(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let passed = std::mem::take(&mut self.passed);
        self.check_marks(passed)?;
        self.range("download", from, bytes.len())?;
        // SAFETY: as in `upload`.
        unsafe {
            std::ptr::copy_nonoverlapping(from.0 as *const u8, bytes.as_mut_ptr(), bytes.len());
        }
        Ok(())
    }

    fn lend(&mut self, map: &Arc<Map>) -> Result<Lent, Error> {
        Ok(Lent::new(map.clone(), Address(map.start() as u64), None))
    }

    fn window(&mut self, bytes: usize, nonce: u64) -> Result<(Arc<dyn Window>, Handle), Error> {
        let map = Arc::new(Map::named(bytes, nonce)?);
        let handle = map.offer().handle();
        Ok((Arc::new(self.lend(&map)?), handle))
    }

    fn open_window(
        &mut self,
        handle: &Handle,
        bytes: usize,
        nonce: u64,
    ) -> Result<Arc<dyn Window>, Error> {
        let map = Map::open(&Offer::of_handle(handle, bytes, nonce), bytes)?;
        Ok(Arc::new(self.lend(&Arc::new(map))?))
    }

    fn collective(&mut self, by: Arc<dyn Collective>) -> Result<(), Error> {
        self.collective = Some(by);
        Ok(())
    }

    fn kernel(&mut self, name: &'static str) -> Result<Kernel, Error> {
        if let Some(kernel) = self.names.get(name) {
            return Ok(*kernel);
        }
        if name == GATHER && self.collective.is_some() {
            return Ok(GATHER_KERNEL);
        }
        // SAFETY: only the address is taken; `host_launch` calls it as a kernel.
        let symbol =
            unsafe { self.library.get::<*mut c_void>(name) }.map_err(|_| Error::Shape {
                operation: "kernel",
                found: format!("no kernel `{name}`"),
                wanted: "a name of the kernel text".into(),
            })?;
        // SAFETY: the pointer is used as long as `self.library` is loaded.
        let function = unsafe { symbol.try_as_raw_ptr() };
        let function = function.expect("a symbol that was found has an address");
        let id = u32::try_from(self.kernels.len()).expect("a few hundred kernels");
        self.kernels.push((function, CString::new(name).expect("names of kernels are words")));
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
        if self.fault.strikes() {
            return Err(device_error("launching a kernel", "a planted fault".into()));
        }
        if let (GATHER_KERNEL, Some(by), [from, to]) = (kernel, &self.collective, buffers) {
            let bytes = bytes_of_gather(arguments);
            self.range("gather", *from, bytes)?;
            self.range("gather", *to, bytes.saturating_mul(by.ranks()))?;
            return by.gather(*from, *to, bytes, std::ptr::null_mut());
        }
        let found = usize::try_from(kernel.0).ok().and_then(|index| self.kernels.get(index));
        let (function, name) = found.ok_or(Error::Handle { operation: "launch", id: kernel.0 })?;
        let cluster = text::cluster_of(name.to_str().unwrap_or_default());
        let fits = buffers.len() < PARAMETERS_MAX
            && group > 0
            && group.is_multiple_of(self.facts.simd_width)
            && group <= self.facts.group_max
            && !grid.contains(&0)
            && grid[0].is_multiple_of(cluster);
        if !fits {
            return Err(Error::Shape {
                operation: "launch",
                found: format!("{name:?} with a grid of {grid:?} groups of {group}"),
                wanted: "sizes above 0, whole simdgroups, few buffers".into(),
            });
        }
        // The arguments are read as a struct, so they are copied to where a struct may be.
        let mut aligned = vec![0u64; arguments.len().div_ceil(8)];
        for (word, bytes) in aligned.iter_mut().zip(arguments.chunks(8)) {
            let mut own = [0u8; 8];
            own[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(own);
        }
        let passed: Vec<u64> =
            buffers.iter().filter_map(|b| self.around(*b)).map(|(start, _)| start).collect();
        let mut pointers: Vec<*const c_void> =
            buffers.iter().map(|buffer| buffer.0 as *const c_void).collect();
        pointers.push(aligned.as_ptr().cast());
        let count = u32::try_from(pointers.len()).expect("few parameters");
        // SAFETY: the function is a kernel of the loaded library, whose parameters are pointers;
        // the arguments outlive the call. What it does with addresses of buffers is guarded by the
        // pages round them.
        let message = unsafe {
            (self.runtime.launch)(
                *function,
                name.as_ptr(),
                grid.as_ptr(),
                cluster,
                group,
                pointers.as_ptr(),
                count,
            )
        };
        self.passed.extend(passed);
        if message.is_null() {
            return Ok(());
        }
        // SAFETY: the message ends with zero and lives until this thread's next launch.
        let message = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
        Err(device_error("running a kernel", message))
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.passed.clear();
        self.check_marks(self.allocations.keys().copied())
    }

    fn begin_capture(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    fn lane(&mut self, _lane: usize, _behind: &[usize]) -> Result<(), Error> {
        Ok(())
    }

    fn mark(&mut self, _mark: usize) -> Result<(), Error> {
        Ok(())
    }

    fn end_capture(&mut self) -> Result<Graph, Error> {
        Err(Error::Unsupported {
            found: "a recording on the host driver".into(),
            wanted: "launches without one".into(),
        })
    }

    fn replay(&mut self, graph: Graph) -> Result<(), Error> {
        Err(Error::Handle { operation: "replay", id: graph.0 })
    }

    fn drop_graph(&mut self, _graph: Graph) {}
}

impl Drop for Host {
    fn drop(&mut self) {
        for (address, size) in std::mem::take(&mut self.allocations) {
            // SAFETY: an allocation of this runtime with its size that is freed only here.
            unsafe { (self.runtime.free)(address as *mut c_void, size) };
        }
    }
}

#[cfg(test)]
mod tests;
