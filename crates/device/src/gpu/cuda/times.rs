//! How long each kernel takes: a clock before and after every launch, for diagnosis. Launches are
//! not captured meanwhile, and each carries the cost of two events, some microseconds.

use super::context::{Context, Event, Stream};
use crate::Error;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Times of all launches by kernel; clones share them.
#[derive(Clone, Debug, Default)]
pub struct KernelTimes {
    totals: Arc<Mutex<BTreeMap<&'static str, KernelTime>>>,
}

/// What one kernel has taken so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelTime {
    /// Launches.
    pub launches: u64,
    /// Milliseconds on the card.
    pub milliseconds: f64,
}

impl KernelTimes {
    /// Name and time of each kernel, the longest first; forgets them.
    #[must_use]
    pub fn take(&self) -> Vec<(&'static str, KernelTime)> {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = std::mem::take(&mut *totals).into_iter().collect();
        all.sort_by(|a, b| b.1.milliseconds.total_cmp(&a.1.milliseconds));
        all
    }

    fn add(&self, name: &'static str, milliseconds: f32) {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let total = totals.entry(name).or_default();
        total.launches += 1;
        total.milliseconds += f64::from(milliseconds);
    }
}

/// The events of launches that were not looked at yet.
pub(super) struct Clock {
    times: KernelTimes,
    running: Vec<(&'static str, Event, Event)>,
    spare: Vec<Event>,
}

impl Clock {
    pub(super) fn new(times: KernelTimes) -> Clock {
        Clock { times, running: Vec::new(), spare: Vec::new() }
    }

    /// A mark on the stream.
    pub(super) fn mark(&mut self, context: &Context, stream: &Stream) -> Result<Event, Error> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => context.event(true)?,
        };
        stream.record(&event)?;
        Ok(event)
    }

    /// A launch between two marks.
    pub(super) fn launched(&mut self, name: &'static str, begun: Event, ended: Event) {
        self.running.push((name, begun, ended));
    }

    /// Everything launched has run.
    pub(super) fn waited(&mut self) -> Result<(), Error> {
        for (name, begun, ended) in self.running.drain(..) {
            self.times.add(name, ended.milliseconds_since(&begun)?);
            self.spare.extend([begun, ended]);
        }
        Ok(())
    }
}
