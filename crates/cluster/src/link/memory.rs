//! Two ends in one process: what tests and a cluster of threads use.

use super::{Limits, Link, LinkError, Posted};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Messages on their way in one direction, and whether the sender has gone.
#[derive(Default)]
struct Lane {
    messages: VecDeque<Vec<u8>>,
    closed: bool,
}

/// One end of a pair that lives in this process.
pub struct MemoryLink {
    mine: Arc<Mutex<Lane>>,
    theirs: Arc<Mutex<Lane>>,
    posted: Posted,
    given: Vec<u8>,
}

impl MemoryLink {
    /// Two ends of one link.
    #[must_use]
    pub fn pair(limits: Limits) -> (Self, Self) {
        let (left, right) = (Arc::default(), Arc::default());
        let end = |mine: &Arc<Mutex<Lane>>, theirs: &Arc<Mutex<Lane>>| Self {
            mine: Arc::clone(mine),
            theirs: Arc::clone(theirs),
            posted: Posted::new(limits),
            given: Vec::new(),
        };
        (end(&left, &right), end(&right, &left))
    }
}

fn lock(lane: &Mutex<Lane>) -> MutexGuard<'_, Lane> {
    // A thread that panicked between two calls left whole messages behind.
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link for MemoryLink {
    fn limits(&self) -> Limits {
        self.posted.limits
    }

    fn post_recv(&mut self, bytes: usize) -> Result<(), LinkError> {
        self.posted.post(bytes)
    }

    fn send(&mut self, head: &[u8], body: &[u8]) -> Result<(), LinkError> {
        self.posted.check_length(head.len() + body.len())?;
        if lock(&self.theirs).closed {
            return Err(LinkError::Closed);
        }
        lock(&self.mine).messages.push_back([head, body].concat());
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<&[u8]>, LinkError> {
        let (next, closed) = {
            let mut lane = lock(&self.theirs);
            (lane.messages.pop_front(), lane.closed)
        };
        let Some(next) = next else {
            return if closed { Err(LinkError::Closed) } else { Ok(None) };
        };
        self.posted.check_arrival(next.len() as u64)?;
        self.posted.take();
        self.given = next;
        Ok(Some(&self.given))
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn rest(&mut self, at_most: Duration) {
        std::thread::sleep(at_most.min(Duration::from_micros(50)));
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        lock(&self.mine).closed = true;
    }
}
