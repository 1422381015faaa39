//! The receive-posting discipline of one link, as numbers: who may send when.
//!
//! Both ends post two windows of receives before the first send, and one more after each message
//! that came. A rank sends only while fewer than one window of its messages is unanswered, and
//! every message is answered by one. So a send never meets an empty queue, without any barrier
//! after the first: the peer has sent at most a window more than it received, of which this end
//! has received all but a window at most. [`Flow`] is what the gates run on, and what the
//! exhaustive model of `tests/suite/model.rs` walks.

/// Counts of one link's messages in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    window: u64,
    posted: u64,
    sent: u64,
    received: u64,
}

impl Flow {
    /// Nothing was sent yet. `granted` are the receives that the link can hold; half of them is
    /// the window.
    #[must_use]
    pub fn new(granted: usize) -> Self {
        Self { window: (granted as u64 / 2).max(1), posted: 0, sent: 0, received: 0 }
    }

    /// Receives that are to be posted before anything else is done.
    #[must_use]
    pub fn missing(&self) -> u64 {
        (self.received + 2 * self.window).saturating_sub(self.posted)
    }

    /// One receive was posted.
    pub fn posted(&mut self) {
        self.posted += 1;
    }

    /// Whether the peer is sure to have room for one more message, and this end for the answer.
    #[must_use]
    pub fn may_send(&self) -> bool {
        self.missing() == 0 && self.sent < self.received + self.window
    }

    /// Counts a message that is sent now and gives its number, from 1.
    pub fn send(&mut self) -> u64 {
        debug_assert!(self.may_send(), "a send beyond the grant");
        self.sent += 1;
        self.sent
    }

    /// Counts a message that came and gives the number that it must have, from 1.
    pub fn receive(&mut self) -> u64 {
        self.received += 1;
        self.received
    }

    /// Receives that are posted and not used up.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.posted - self.received
    }

    /// Messages that were sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Messages that came.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }
}
