//! A card's context, and the small things made in it: streams, events, pinned memory.

use super::call::{check, describe, library_present};
use crate::gpu::driver::Entrance;
use crate::{Error, HostMemory, host_memory};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

/// Oldest driver that is used: every function called here exists since then.
const DRIVER_MIN: c_int = 12_000;
/// Since this driver a kernel's parameters can be asked for.
const DRIVER_TELLS_PARAMETERS: c_int = 12_040;

/// The primary context of one card.
#[derive(Debug)]
pub(super) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// As 13000 for 13.0.
    pub driver: c_int,
}

// SAFETY: a context may be made current on any thread, and all calls on it are thread-safe.
unsafe impl Send for Context {}
// SAFETY: as above; nothing in it changes after it was made.
unsafe impl Sync for Context {}

/// Starts the driver and gives its version (13000 for 13.0) and the number of cards.
pub(super) fn start() -> Result<(c_int, c_int), Error> {
    let none = |found: String| Error::Unsupported {
        found: format!("the backend cuda ({found})"),
        wanted: "an NVIDIA card with driver 525 or newer, or --backend cpu".into(),
    };
    if !library_present() {
        return Err(none("there is no NVIDIA driver: libcuda was not found".into()));
    }
    let (mut version, mut count) = (0, 0);
    // SAFETY: the library is present, so the symbols load; the out-parameter lives here.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    if status != CUresult::CUDA_SUCCESS || version < DRIVER_MIN {
        return Err(none(format!("its driver is for CUDA {}", shown(version))));
    }
    // SAFETY: no condition but the driver's presence.
    let status = unsafe { sys::cuInit(0) };
    if status != CUresult::CUDA_SUCCESS {
        return Err(none(describe(status)));
    }
    // SAFETY: initialised above; the out-parameter lives here.
    let status = unsafe { sys::cuDeviceGetCount(&raw mut count) };
    if status != CUresult::CUDA_SUCCESS || count == 0 {
        return Err(none("the driver sees no card".into()));
    }
    Ok((version, count))
}

/// `13.0` for 13000.
pub(super) fn shown(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

impl Context {
    /// Opens a card by its number.
    pub(super) fn open(index: u32) -> Result<Context, Error> {
        let (driver, count) = start()?;
        let ordinal = c_int::try_from(index).ok().filter(|i| *i < count);
        let Some(ordinal) = ordinal else {
            return Err(Error::Unsupported {
                found: format!("card {index}"),
                wanted: format!("one of the {count} that the driver sees, counted from 0"),
            });
        };
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the driver is initialised and the ordinal in range; out-parameters live here.
        check("opening the card", unsafe { sys::cuDeviceGet(&raw mut device, ordinal) })?;
        // SAFETY: the device is the one just given.
        let status = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) };
        check("making a context on the card", status)?;
        let context = Context { device, context, driver };
        context.enter()?;
        Ok(context)
    }

    /// The same context once more.
    pub(super) fn again(&self) -> Result<Context, Error> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the device was given by the driver; the out-parameter lives here.
        let status = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, self.device) };
        check("keeping a context", status)?;
        let (device, driver) = (self.device, self.driver);
        let context = Context { device, context, driver };
        context.enter()?;
        Ok(context)
    }

    pub(super) fn device(&self) -> sys::CUdevice {
        self.device
    }

    pub(super) fn raw(&self) -> sys::CUcontext {
        self.context
    }

    /// Makes it the calling thread's own.
    pub(super) fn enter(&self) -> Result<(), Error> {
        // SAFETY: the context is retained until drop.
        check("entering the context", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Whether `cuFuncGetParamInfo` is there.
    pub(super) fn tells_parameters(&self) -> bool {
        self.driver >= DRIVER_TELLS_PARAMETERS
    }

    /// A number about the card.
    pub(super) fn attribute(&self, which: sys::CUdevice_attribute) -> Result<u32, Error> {
        let mut value = 0;
        // SAFETY: the device was given by the driver; the out-parameter lives here.
        let status = unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, self.device) };
        check("asking what the card is", status)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Its name.
    pub(super) fn name(&self) -> Result<String, Error> {
        let mut text = [0u8; 256];
        // SAFETY: the array's length is passed with it; the driver closes the text with zero.
        let status = unsafe { sys::cuDeviceGetName(text.as_mut_ptr().cast(), 256, self.device) };
        check("asking what the card is", status)?;
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    /// Whether its memory is the host's.
    pub(super) fn is_unified(&self) -> Result<bool, Error> {
        Ok(self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? == 1)
    }

    /// Free and total bytes of its memory. Where that is the host's, the driver says what lies
    /// bare, and counts pages of files as taken that the system gives back when they are wanted.
    pub(super) fn memory(&self) -> Result<(u64, u64), Error> {
        self.enter()?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: a context is current; out-parameters live here.
        let status = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        check("asking for free memory", status)?;
        let host = if self.is_unified()? { host_memory() } else { None };
        Ok((with_pages(free as u64, total as u64, host), total as u64))
    }

    /// A stream that does not wait for the default one.
    pub(super) fn stream(&self) -> Result<Stream, Error> {
        self.enter()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current; the out-parameter lives here.
        check("making a stream", unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
        Ok(Stream(stream))
    }

    /// A stream whose groups come first where they could run beside those of others.
    pub(super) fn urgent_stream(&self) -> Result<Stream, Error> {
        self.enter()?;
        let (mut least, mut most, mut stream) = (0, 0, std::ptr::null_mut());
        // SAFETY: a context is current; the out-parameters live here.
        let status = unsafe { sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut most) };
        check("asking for priorities", status)?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: as above.
        let status = unsafe { sys::cuStreamCreateWithPriority(&raw mut stream, flags, most) };
        check("making a stream", status)?;
        Ok(Stream(stream))
    }

    /// An event, with a clock if times are wanted.
    pub(super) fn event(&self, timed: bool) -> Result<Event, Error> {
        self.enter()?;
        let mut event = std::ptr::null_mut();
        let flags = match timed {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        // SAFETY: a context is current; the out-parameter lives here.
        check("making an event", unsafe { sys::cuEventCreate(&raw mut event, flags as u32) })?;
        Ok(Event(event))
    }

    /// Host memory that the card reads and writes by itself.
    pub(super) fn pinned(&self, bytes: usize) -> Result<Pinned, Error> {
        self.enter()?;
        let mut memory: *mut c_void = std::ptr::null_mut();
        // SAFETY: a context is current; the out-parameter lives here.
        let status = unsafe { sys::cuMemHostAlloc(&raw mut memory, bytes, 0) };
        check("pinning host memory", status)?;
        let memory = NonNull::new(memory.cast::<u8>());
        let memory = memory.expect("the driver gave memory with success");
        // SAFETY: exactly the range just allocated.
        unsafe { memory.as_ptr().write_bytes(0, bytes) };
        Ok(Pinned { memory, bytes })
    }
}

/// Free bytes with what the host would give back.
pub(super) fn with_pages(free: u64, total: u64, host: Option<HostMemory>) -> u64 {
    host.and_then(|host| host.now).map_or(free, |now| free.max(now.min(total)))
}

impl Entrance for Context {
    fn enter(&self) -> Result<(), Error> {
        Context::enter(self)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`; whatever was made in it has been dropped before, since
        // the context is its owner's last field.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A stream; its context is current whenever it is used.
#[derive(Debug)]
pub(super) struct Stream(sys::CUstream);

// SAFETY: streams may be used from any thread whose current context is theirs.
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn raw(&self) -> sys::CUstream {
        self.0
    }

    /// Waits for everything on it.
    pub(super) fn wait(&self) -> Result<(), Error> {
        // SAFETY: the stream is alive until drop.
        check("running the kernels", unsafe { sys::cuStreamSynchronize(self.0) })
    }

    /// Marks a place on it.
    pub(super) fn record(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: stream and event are alive.
        check("recording an event", unsafe { sys::cuEventRecord(event.0, self.0) })
    }

    /// What comes next on it comes after the event.
    pub(super) fn after(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: stream and event are alive.
        check("ordering streams", unsafe { sys::cuStreamWaitEvent(self.0, event.0, 0) })
    }

    /// Copies from pinned memory.
    ///
    /// # Safety
    /// `bytes` at `to` are device memory of this context, and `from[..bytes]` is not written until
    /// the stream has passed.
    pub(super) unsafe fn copy_in(&self, to: u64, from: &Pinned, bytes: usize) -> Result<(), Error> {
        assert!(bytes <= from.bytes, "the copy is inside the pinned memory");
        let source = from.memory.as_ptr().cast_const().cast();
        // SAFETY: the caller's promise, and the length was checked.
        let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to, source, bytes, self.0) };
        check("copying to the card", status)
    }

    /// Copies to pinned memory, so many bytes from its start.
    ///
    /// # Safety
    /// `bytes` at `from` are device memory of this context, and `to` is not read or written until
    /// the stream has passed.
    pub(super) unsafe fn copy_out(
        &self,
        from: u64,
        (to, at): (&Pinned, usize),
        bytes: usize,
    ) -> Result<(), Error> {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= to.bytes);
        assert!(fits, "the copy is inside the pinned memory");
        // SAFETY: the offset is inside the allocation.
        let target = unsafe { to.memory.as_ptr().add(at) }.cast();
        // SAFETY: the caller's promise, and the length was checked.
        let status = unsafe { sys::cuMemcpyDtoHAsync_v2(target, from, bytes, self.0) };
        check("copying from the card", status)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `Context::stream`, destroyed only here.
        unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// A place on a stream.
#[derive(Debug)]
pub(super) struct Event(sys::CUevent);

// SAFETY: events may be used from any thread whose current context is theirs.
unsafe impl Send for Event {}
// SAFETY: recording and waiting are thread-safe in the driver.
unsafe impl Sync for Event {}

impl Event {
    /// Waits until the place was passed.
    pub(super) fn wait(&self) -> Result<(), Error> {
        // SAFETY: the event is alive until drop.
        check("waiting for the card", unsafe { sys::cuEventSynchronize(self.0) })
    }

    /// Milliseconds from an earlier event to this one; both are timed and were passed.
    pub(super) fn milliseconds_since(&self, earlier: &Event) -> Result<f32, Error> {
        let mut time = 0.0;
        // The second version of this function is newer than the oldest driver.
        // SAFETY: both events are alive; the out-parameter lives here.
        let status = unsafe { sys::cuEventElapsedTime(&raw mut time, earlier.0, self.0) };
        check("reading the card's clock", status)?;
        Ok(time)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `Context::event`, destroyed only here.
        unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// Host memory that does not move.
#[derive(Debug)]
pub(super) struct Pinned {
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Lets the caller write the first bytes; they have waited for copies that use this memory.
    pub(super) fn fill(&mut self, bytes: usize, write: impl FnOnce(&mut [u8])) {
        assert!(bytes <= self.bytes, "the bytes fit the pinned memory");
        // SAFETY: the range is inside the allocation, which was cleared, and this borrow is the
        // only one; the card does not read it before the caller's next copy.
        write(unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), bytes) });
    }

    /// What the card has written; the caller has waited for the copies.
    pub(super) fn read(&self) -> &[u8] {
        // SAFETY: the whole allocation, which was cleared or written by the card; as long as this
        // borrow lives its owner starts no copy into it.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: given by `Context::pinned`, freed only here, and its owner has waited for copies.
        unsafe { sys::cuMemFreeHost(self.memory.as_ptr().cast()) };
    }
}
