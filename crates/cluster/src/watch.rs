//! What is known of the other ranks beside the gates: one place that the threads of the control
//! connections write and the gates look at.

use ironstar_device::{Alarm, ExchangeError};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Whether the group of one epoch still stands.
#[derive(Clone, Default)]
pub struct Watch(Arc<Shared>);

#[derive(Default)]
struct Shared {
    broken: AtomicBool,
    closed: AtomicBool,
    monitors: AtomicUsize,
    error: Mutex<Option<ExchangeError>>,
}

impl Watch {
    /// Breaks the group; the first reason stays. Gives the reason that holds.
    pub fn fail(&self, error: ExchangeError) -> ExchangeError {
        let mut first = self.0.error.lock().unwrap_or_else(PoisonError::into_inner);
        let first = first.get_or_insert(error).clone();
        self.0.broken.store(true, Ordering::Release);
        first
    }

    /// Why the group is broken, if it is. Cheap while it is not.
    #[must_use]
    pub fn error(&self) -> Option<ExchangeError> {
        if !self.0.broken.load(Ordering::Acquire) {
            return None;
        }
        self.0.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The mesh of this end was given up in peace.
    pub(crate) fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
    }

    /// Whether it was.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    /// One more control connection is looked at.
    pub(crate) fn attach(&self) {
        self.0.monitors.fetch_add(1, Ordering::AcqRel);
    }

    /// It has ended.
    pub(crate) fn detach(&self) {
        self.0.monitors.fetch_sub(1, Ordering::AcqRel);
    }

    /// How many are looked at.
    pub(crate) fn monitors(&self) -> usize {
        self.0.monitors.load(Ordering::Acquire)
    }
}

impl Alarm for Watch {
    fn error(&self) -> Option<ExchangeError> {
        Watch::error(self)
    }

    fn fail(&self, error: ExchangeError) {
        Watch::fail(self, error);
    }
}
