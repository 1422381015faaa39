//! Windows: a card's memory that its peers write. They live as long as any rank, so that a kernel
//! never writes what is gone.

use super::super::driver::Address;
use super::{CHUNK, CHUNKS, HEAD, UNITS};
#[cfg(feature = "cuda")]
use crate::Error;
use std::sync::Arc;

/// One card's window.
pub(crate) trait Window: Send + Sync {
    /// Where it is, for all cards of the group.
    fn address(&self) -> Address;
    /// Sets its first word, while kernels may run that read it.
    fn tell(&self, word: u32);
}

/// The windows of the cards of one process, which exchange sums through them.
#[derive(Clone)]
pub struct Peers(Arc<Vec<Arc<dyn Window>>>);

impl Peers {
    /// Windows on these NVIDIA cards, one a rank; an error says what keeps them from writing into
    /// each other's memory.
    #[cfg(feature = "cuda")]
    pub fn cuda(devices: &[u32]) -> Result<Peers, Error> {
        let cards = super::super::cuda::windows(devices, bytes(devices.len()))?;
        Ok(Peers(Arc::new(cards.into_iter().map(|card| Arc::new(card) as Arc<_>).collect())))
    }

    /// Windows in plain memory, for kernels on the host driver: tests.
    #[cfg(feature = "host-driver")]
    #[must_use]
    pub fn host(ranks: usize) -> Peers {
        let window = || Arc::new(super::super::host::Memory::new(bytes(ranks))) as Arc<_>;
        Peers(Arc::new((0..ranks).map(|_| window()).collect()))
    }

    /// Windows that somebody else has made.
    pub(super) fn of(windows: Vec<Arc<dyn Window>>) -> Peers {
        Peers(Arc::new(windows))
    }

    pub(super) fn ranks(&self) -> usize {
        self.0.len()
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = Address> {
        self.0.iter().map(|window| window.address())
    }

    /// Ends the waiting of all other ranks for this one in an epoch.
    pub(super) fn give_up(&self, rank: usize, epoch: u64) {
        let epoch = u32::try_from(epoch).unwrap_or(u32::MAX);
        let others = self.0.iter().enumerate().filter(|(other, _)| *other != rank);
        others.for_each(|(_, window)| window.tell(epoch.wrapping_add(1)));
    }
}

/// Bytes of a window: its head, and for both parities and each rank words, flags and chunks.
pub(super) fn bytes(ranks: usize) -> usize {
    HEAD + 2 * ranks * (16 * UNITS + CHUNKS * (16 + 4 * CHUNK))
}
