//! A clock whose time goes by when a test says so: what the server does *while* the engine works is
//! seen without a race against it.

use super::client::PATIENCE;
use ironstar_engine::scheduler::Clock;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A scripted engine waits here for each time of its script; clones are the same clock. What takes
/// no time does not wait. It is open at first.
#[derive(Clone, Default)]
pub struct Held(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    closed: bool,
    /// Waits that may end although it is closed.
    allowed: u64,
    /// Whether the engine waits.
    waits: bool,
}

impl Held {
    /// The engine's next time does not end.
    pub fn close(&self) {
        self.0.0.lock().unwrap().closed = true;
    }

    /// So many times of the engine may end.
    pub fn allow(&self, count: u64) {
        self.0.0.lock().unwrap().allowed += count;
        self.0.1.notify_all();
    }

    /// From now on all times end at once.
    pub fn open(&self) {
        self.0.0.lock().unwrap().closed = false;
        self.0.1.notify_all();
    }

    /// Comes back when the engine waits and may not go on.
    pub fn until_it_waits(&self) {
        let state = self.0.0.lock().unwrap();
        let gone_on = |state: &mut State| !state.waits || state.allowed > 0;
        let (state, _) = self.0.1.wait_timeout_while(state, PATIENCE, gone_on).unwrap();
        assert!(state.waits && state.allowed == 0, "the engine does not come to a step");
    }
}

impl Clock for Held {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wait(&self, time: Duration) {
        if time.is_zero() {
            return;
        }
        let mut state = self.0.0.lock().unwrap();
        state.waits = true;
        self.0.1.notify_all();
        let held = |state: &mut State| state.closed && state.allowed == 0;
        state = self.0.1.wait_while(state, held).unwrap();
        state.waits = false;
        state.allowed = state.allowed.saturating_sub(1);
    }
}
