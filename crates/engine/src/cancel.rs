//! A flag that another thread or a signal handler raises to stop work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks work to stop at its next named point: before each step of a prompt, and before each step of
/// an answer. Clones are the same flag.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Asks to stop.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Takes the request back, for the next piece of work.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether work should stop.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
