//! Threads beside a card.

use crate::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Starts a thread.
pub(super) fn start(
    name: &'static str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|error| Error::Device {
        device: "this machine".into(),
        doing: "starting a thread for gates",
        found: format!("{name}: {error}"),
        advice: "allow more threads",
    })
}

/// A thread that looks again and again, and ends when it need not look any more or with its owner.
pub(super) struct Looker {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Looker {
    /// `look` says whether that was all.
    pub fn start(
        name: &'static str,
        every: Duration,
        mut look: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Looker, Error> {
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let run = move || {
            while !seen.load(Ordering::Acquire) && !look() {
                std::thread::park_timeout(every);
            }
        };
        Ok(Looker { over, thread: Some(start(name, run)?) })
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has nothing to tell.
            let _ended = thread.join();
        }
    }
}
