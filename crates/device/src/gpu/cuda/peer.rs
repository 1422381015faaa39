//! Memory of several cards of one host that all of them write: peer access in one process.

use super::super::driver::Address;
use super::super::exchange::{Lent, Map, Window};
use super::call::{check, failure};
use super::context::Context;
use crate::Error;
use cudarc::driver::sys::{self, CUresult};
use std::ffi::c_void;
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
