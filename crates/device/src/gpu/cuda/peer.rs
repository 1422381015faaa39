//! Memory of several cards of one host that all of them write: peer access in one process, and
//! windows that a process opens by a handle (CUDA IPC) between several.

use super::super::driver::{Address, HANDLE_BYTES, Handle};
use super::super::exchange::{Lent, Map, NAME_AT, Window, name_of};
use super::call::{check, failure};
use super::context::Context;
use crate::Error;
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// A stretch of one card's memory, in the card's primary context.
pub(crate) struct CardWindow {
    address: u64,
    /// Dropped after the memory is freed.
    context: Context,
}

/// Zeroed windows of `bytes` on these cards, which may write into each other's.
pub(crate) fn windows(devices: &[u32], bytes: usize) -> Result<Vec<CardWindow>, Error> {
    let contexts = devices.iter().map(|device| Context::open(*device));
    let contexts = contexts.collect::<Result<Vec<_>, _>>()?;
    for one in &contexts {
        for other in &contexts {
            one.reach(other)?;
        }
    }
    contexts.into_iter().map(|context| CardWindow::new(context, bytes)).collect()
}

impl CardWindow {
    fn new(context: Context, bytes: usize) -> Result<CardWindow, Error> {
        context.enter()?;
        let mut address = 0;
        // SAFETY: a context is current; the out-parameter lives here.
        let status = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) };
        if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let what = "a window for other cards".to_owned();
            return Err(Error::Memory { device: "cuda", what, wanted: bytes as u64 });
        }
        check("taking memory", status)?;
        let window = CardWindow { address, context };
        // SAFETY: exactly the range just allocated.
        check("clearing memory", unsafe { sys::cuMemsetD8_v2(address, 0, bytes) })?;
        // SAFETY: a context is current.
        check("clearing memory", unsafe { sys::cuCtxSynchronize() })?;
        Ok(window)
    }
}

impl Window for CardWindow {
    fn address(&self) -> Address {
        Address(self.address)
    }

    fn tell(&self, word: u32) {
        if self.context.enter().is_ok() {
            // A card that is gone has no kernel that waits. The null stream does not wait for ours.
            // SAFETY: the first word of the allocation; kernels only read it, in one access.
            unsafe { sys::cuMemsetD32_v2(self.address, word, 1) };
        }
    }
}

impl Drop for CardWindow {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: allocated by `new`, freed only here; the last rank is gone, and each has
            // waited for its kernels.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

impl Context {
    /// Lets kernels of this card use the other's memory.
    fn reach(&self, other: &Context) -> Result<(), Error> {
        let (mine, theirs) = (self.device(), other.device());
        if mine == theirs {
            return Ok(());
        }
        let mut able = 0;
        // SAFETY: both devices were given by the driver; the out-parameter lives here.
        let status = unsafe { sys::cuDeviceCanAccessPeer(&raw mut able, mine, theirs) };
        check("asking whether cards reach each other", status)?;
        if able == 0 {
            return Err(Error::Unsupported {
                found: format!("cards {mine} and {theirs}, which do not reach each other's memory"),
                wanted: "cards joined by NVLink, or a PCIe switch that lets them".into(),
            });
        }
        self.enter()?;
        // SAFETY: the other context is retained as long as this one is used.
        match unsafe { sys::cuCtxEnablePeerAccess(other.raw(), 0) } {
            CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            status => Err(failure("letting a card into another's memory", status)),
        }
    }
}

/// A zeroed window on this card and the handle by which other processes open it.
pub(super) fn window(
    context: &Context,
    bytes: usize,
    nonce: u64,
) -> Result<(CardWindow, Handle), Error> {
    let window = CardWindow::new(context.again()?, bytes)?;
    let name: Vec<u8> = name_of(nonce, bytes).into_iter().flat_map(u64::to_le_bytes).collect();
    let at = window.address + 8 * NAME_AT as u64;
    // SAFETY: the name is inside the head of the window, which was just allocated.
    let status = unsafe { sys::cuMemcpyHtoD_v2(at, name.as_ptr().cast(), name.len()) };
    check("naming a window", status)?;
    let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
    // SAFETY: the address is that of an allocation of the current context.
    let status = unsafe { sys::cuIpcGetMemHandle(&raw mut handle, window.address) };
    check("asking for a handle that other processes open", status)?;
    // The library's char has a sign on some processors only.
    Ok((window, handle.reserved.map(|byte| u8::from_ne_bytes(byte.to_ne_bytes()))))
}

/// Another process's window; closed with this.
pub(crate) struct OpenedWindow {
    address: u64,
    context: Context,
}

impl OpenedWindow {
    /// The window that a handle names, if it is one of this size and number.
    pub(super) fn open(
        context: &Context,
        handle: &Handle,
        bytes: usize,
        nonce: u64,
    ) -> Result<OpenedWindow, Error> {
        let context = context.again()?;
        context.enter()?;
        let handle =
            sys::CUipcMemHandle { reserved: handle.map(|byte| c_char::from_ne_bytes([byte])) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: a context is current; the driver checks the handle.
        let status = unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, flags) };
        check("opening another process's window", status)?;
        let window = OpenedWindow { address, context };
        let (mut start, mut size) = (0, 0);
        // SAFETY: the address was just given by the driver; the out-parameters live here.
        let status =
            unsafe { sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut size, address) };
        check("asking how long another process's window is", status)?;
        let mut name = [0; 24];
        if start == address && size >= bytes {
            let at = address + 8 * NAME_AT as u64;
            // SAFETY: the head is inside the range that the driver has just told.
            let status = unsafe { sys::cuMemcpyDtoH_v2(name.as_mut_ptr().cast(), at, name.len()) };
            check("reading the name of another process's window", status)?;
        }
        let words = name.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        if words.eq(name_of(nonce, bytes)) {
            return Ok(window);
        }
        Err(Error::Unsupported {
            found: format!("{size} bytes of another process's card that are no window"),
            wanted: format!("the window of {bytes} bytes that it has told of"),
        })
    }
}

impl Window for OpenedWindow {
    fn address(&self) -> Address {
        Address(self.address)
    }

    fn tell(&self, word: u32) {
        if self.context.enter().is_ok() {
            // A card that is gone has no kernel that waits.
            // SAFETY: the first word of a window that is open as long as this lives.
            unsafe { sys::cuMemcpyHtoD_v2(self.address, (&raw const word).cast(), 4) };
        }
    }
}

impl Drop for OpenedWindow {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: opened by `open`, closed only here; whoever holds this has waited for the
            // kernels that write it.
            unsafe { sys::cuIpcCloseMemHandle(self.address) };
        }
    }
}

/// Memory of the host that a card has been told of; forgotten with this.
struct Registered {
    start: usize,
    context: Context,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: registered by `lend`, forgotten only here; whoever holds this has waited for
            // the kernels that use it, and the map is dropped afterwards.
            unsafe { sys::cuMemHostUnregister(self.start as *mut c_void) };
        }
    }
}

/// Lets a card read and write a map of the host.
pub(super) fn lend(context: &Context, map: &Arc<Map>) -> Result<Lent, Error> {
    let context = context.again()?;
    let start: *mut c_void = map.start().cast();
    let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
    // SAFETY: a context is current; the range is exactly the map, which outlives the registration.
    let status = unsafe { sys::cuMemHostRegister_v2(start, map.len(), flags) };
    check("pinning memory that ranks share", status)?;
    let registered = Registered { start: start as usize, context };
    let mut address = 0;
    // SAFETY: the memory was just registered; the out-parameter lives here.
    let status = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address, start, 0) };
    check("asking where the card sees it", status)?;
    Ok(Lent::new(map.clone(), Address(address), Some(Box::new(registered))))
}
