//! What the one GPU backend asks of a device API. Implemented by `cuda`, `host` (tests) and, when
//! it is there, `metal`.
//!
//! Calls take effect in the order in which they are made, as on one stream: a launch sees every
//! upload before it, and an upload waits for the launches before it. Only [`Driver::download`] and
//! [`Driver::finish`] wait.

use super::exchange::{Lent, Map, Window};
use crate::Error;
use std::sync::Arc;

/// A place in device memory: the device's own pointer, or a number that the host driver made up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Address(pub u64);

impl Address {
    /// No memory: passed for a buffer that a kernel does not touch.
    pub const NULL: Address = Address(0);

    /// The place `bytes` behind this one.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Address(self.0 + bytes)
    }
}

/// By what a process opens a window in the memory of another process's device.
pub(crate) type Handle = [u8; HANDLE_BYTES];
/// `CU_IPC_HANDLE_SIZE`.
pub(crate) const HANDLE_BYTES: usize = 64;

/// A kernel of the compiled text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel(pub u32);

/// Writes the bytes from a place on.
pub(crate) type Fill<'a> = dyn Fn(usize, &mut [u8]) + Sync + 'a;

/// A captured sequence of launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Graph(pub u32);

/// What a device is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Name for messages, as the device gives it.
    pub device: String,
    /// Lanes of a simdgroup; equals `SIMD_WIDTH` of the kernel text.
    pub simd_width: u32,
    /// Most threads of a group.
    pub group_max: u32,
    /// Most bytes of memory that a group shares.
    pub group_bytes: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of device memory.
    pub memory_total: u64,
    /// Bytes of it that nobody has taken.
    pub memory_free: u64,
    /// Ticks of its clock (`clock_ticks` of the kernel text) in a millisecond.
    pub clock_khz: u32,
    /// Whether a barrier can be waited for in two halves (`SIGNALS` of the kernel text).
    pub signals: bool,
    /// Whether sixteen groups can run at the same time and reach each other's shared memory
    /// (`CLUSTERS` of the kernel text).
    pub clusters: bool,
    /// Whether its memory is the host's.
    pub unified: bool,
}

/// A gather of all ranks' parts, recorded among launches: its buffers are the part and the parts of
/// all, its arguments begin with the bytes of a part.
pub(crate) const GATHER: &str = "all_gather";
/// What [`Driver::kernel`] gives for it.
pub(crate) const GATHER_KERNEL: Kernel = Kernel(u32::MAX);

/// What makes a thread one that calls of other libraries about the device may come from.
pub(crate) trait Entrance: Send {
    /// The calling thread is one, as long as this lives.
    fn enter(&self) -> Result<(), Error>;
}

/// All threads are.
pub(crate) struct Open;

impl Entrance for Open {
    fn enter(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Who carries it out.
pub(crate) trait Collective: Send + Sync {
    /// Puts the gather on a stream of the device: `bytes` of each rank.
    fn gather(
        &self,
        from: Address,
        to: Address,
        bytes: usize,
        stream: *mut std::ffi::c_void,
    ) -> Result<(), Error>;
    /// How many ranks there are.
    fn ranks(&self) -> usize;
}

/// One device behind its API.
///
/// A kernel's parameters are its buffers in order, then one `repr(C)` struct of arguments by value.
/// What changes from token to token (tokens, positions, row counts, tables of the sessions'
/// buffers) lies in device memory, never in the arguments, so that a captured graph serves every
/// token.
pub(crate) trait Driver: Send {
    /// Name as in `--backend`.
    fn name(&self) -> &'static str;
    /// What the device is.
    fn facts(&self) -> &Facts;
    /// Zeroed memory, aligned to 256 bytes. `bytes` is not 0.
    fn alloc(&mut self, bytes: u64) -> Result<Address, Error>;
    /// Gives memory back once everything launched so far has run.
    fn free(&mut self, address: Address);
    /// Copies to the device. The bytes may change as soon as the call is back.
    fn upload(&mut self, to: Address, bytes: &[u8]) -> Result<(), Error>;
    /// The same of bytes that several threads may ask for at once, a run of them at a time: `fill`
    /// is told where a run begins. Nobody asks for them once the call is back.
    fn upload_from(&mut self, to: Address, bytes: usize, fill: &Fill<'_>) -> Result<(), Error> {
        let mut all = vec![0; bytes];
        fill(0, &mut all);
        self.upload(to, &all)
    }
    /// Where kernels read these bytes of the host's memory as fast as their own, if they do; for as
    /// long as the caller keeps them.
    fn reach(&mut self, _bytes: &[u8]) -> Option<Address> {
        None
    }
    /// Copies from the device; waits for everything before.
    fn download(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), Error>;
    /// The same of many ranges, each cut to the places that are given with it.
    fn download_all(&mut self, ranges: Vec<(Address, Vec<&mut [u8]>)>) -> Result<(), Error> {
        for (mut from, places) in ranges {
            for place in places {
                self.download(from, place)?;
                from = from.offset(place.len() as u64);
            }
        }
        Ok(())
    }
    /// Lets kernels read and write memory of the host, as long as what comes back lives.
    fn lend(&mut self, _map: &Arc<Map>) -> Result<Lent, Error> {
        let found = format!("memory of the host for kernels of {}", self.name());
        Err(Error::Unsupported { found, wanted: "sums go through the host".into() })
    }
    /// A zeroed window in this device's memory, and by what other processes open it, who are told
    /// the number too.
    fn window(&mut self, bytes: usize, _nonce: u64) -> Result<(Arc<dyn Window>, Handle), Error> {
        let found = format!("a window of {bytes} bytes on {} for other processes", self.name());
        Err(Error::Unsupported { found, wanted: "windows in memory of the host".into() })
    }
    /// The window that another process has on its device.
    fn open_window(
        &mut self,
        _handle: &Handle,
        bytes: usize,
        _nonce: u64,
    ) -> Result<Arc<dyn Window>, Error> {
        let found = format!("another process's window of {bytes} bytes, from {}", self.name());
        Err(Error::Unsupported { found, wanted: "windows in memory of the host".into() })
    }
    /// For another thread that calls other libraries about the device.
    fn entrance(&self) -> Result<Box<dyn Entrance>, Error> {
        Ok(Box::new(Open))
    }
    /// From here on [`GATHER`] is a kernel.
    fn collective(&mut self, by: Arc<dyn Collective>) -> Result<(), Error> {
        let found = format!("gathers of {} ranks on {}", by.ranks(), self.name());
        Err(Error::Unsupported { found, wanted: "sums that the host makes".into() })
    }
    /// A kernel by its name in the text.
    fn kernel(&mut self, name: &'static str) -> Result<Kernel, Error>;
    /// Starts `grid` groups of `group` threads each (a multiple of the SIMD width). `arguments` is
    /// the struct behind the buffers, as bytes.
    fn launch(
        &mut self,
        kernel: Kernel,
        grid: [u32; 3],
        group: u32,
        buffers: &[Address],
        arguments: &[u8],
    ) -> Result<(), Error>;
    /// Waits for everything; reports a fault of the device.
    fn finish(&mut self) -> Result<(), Error>;
    /// From here on launches are recorded and not run. `false`: this driver cannot do that, and
    /// launches run as ever. No upload or download until the end.
    fn begin_capture(&mut self) -> Result<bool, Error>;
    /// While launches are recorded: the next ones go to this lane, behind its own and behind those
    /// marks of other lanes. Lane 0 is where recording begins, and everything must meet there
    /// before its end.
    fn lane(&mut self, lane: usize, behind: &[usize]) -> Result<(), Error>;
    /// Gives the launch just recorded a number that [`Driver::lane`] can name.
    fn mark(&mut self, mark: usize) -> Result<(), Error>;
    /// Ends the recording.
    fn end_capture(&mut self) -> Result<Graph, Error>;
    /// Starts everything that was recorded.
    fn replay(&mut self, graph: Graph) -> Result<(), Error>;
    /// Forgets a recording.
    fn drop_graph(&mut self, graph: Graph);
}
