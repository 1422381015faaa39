//! Lanes of a recording: the main stream and some beside it, which meet by events. In the graph
//! the events are edges.

use super::context::{Context, Event, Stream};
use crate::Error;
use std::collections::HashMap;

/// Streams and places on them.
#[derive(Default)]
pub(super) struct Lanes {
    /// Lanes 1, 2, ...
    side: Vec<Stream>,
    /// Which of them take part in the present recording.
    joined: Vec<bool>,
    now: usize,
    /// Whether the next launch comes behind another lane too.
    meets: bool,
    marks: HashMap<usize, Event>,
    spare: Vec<Event>,
    begun: Option<Event>,
}

impl Lanes {
    /// The stream of the present lane.
    pub fn stream<'a>(&'a self, main: &'a Stream) -> &'a Stream {
        match self.now {
            0 => main,
            lane => &self.side[lane - 1],
        }
    }

    /// The present lane.
    pub fn now(&self) -> usize {
        self.now
    }

    /// Whether the next launch may begin while the one before it in its lane ends: not if it comes
    /// behind another lane too.
    pub fn follows(&self) -> bool {
        !self.meets
    }

    /// A launch was made.
    pub fn launched(&mut self) {
        self.meets = false;
    }

    /// Something was put on the lane that is no launch of ours.
    pub fn broken_off(&mut self) {
        self.meets = true;
    }

    /// Starts a recording on the main stream.
    pub fn begin(&mut self, context: &Context, main: &Stream) -> Result<(), Error> {
        self.end();
        let begun = match self.begun.take() {
            Some(event) => event,
            None => context.event(false)?,
        };
        main.record(&begun)?;
        self.begun = Some(begun);
        Ok(())
    }

    /// Goes to a lane, behind these marks.
    pub fn change(
        &mut self,
        context: &Context,
        main: &Stream,
        lane: usize,
        behind: &[usize],
    ) -> Result<(), Error> {
        while self.side.len() < lane {
            self.side.push(context.stream()?);
            self.joined.push(false);
        }
        self.now = lane;
        self.meets = !behind.is_empty();
        let first = lane > 0 && !std::mem::replace(&mut self.joined[lane - 1], true);
        if first {
            // A stream takes part in a recording from its first wait on.
            let begun = self.begun.as_ref().expect("`begin` made it");
            self.stream(main).after(begun)?;
            self.meets = true;
        }
        for mark in behind {
            let event = self.marks.get(mark).ok_or_else(|| Error::Shape {
                operation: "lane",
                found: format!("mark {mark}"),
                wanted: "a launch that was marked".into(),
            })?;
            self.stream(main).after(event)?;
        }
        Ok(())
    }

    /// Marks the place behind the present lane's launches.
    pub fn mark(&mut self, context: &Context, main: &Stream, mark: usize) -> Result<(), Error> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => context.event(false)?,
        };
        self.stream(main).record(&event)?;
        self.marks.insert(mark, event);
        Ok(())
    }

    /// Back to the main stream; marks are forgotten.
    pub fn end(&mut self) {
        self.now = 0;
        self.meets = false;
        self.joined.fill(false);
        self.spare.extend(self.marks.drain().map(|(_, event)| event));
    }
}
