//! Where the time of gates goes: sums by kind, and the last gates one by one.

use ironstar_device::GateKind;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Gates that a [`Recorder`] remembers one by one: some ninety tokens of a deep model.
const EVENTS: usize = 8192;

/// Times of one kind of gate, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateTimes {
    /// Gates that were passed.
    pub gates: u64,
    /// Making the messages and handing them to the links.
    pub post: Duration,
    /// From the end of the post to the wait: work of the caller that hides the exchange.
    pub overlap: Duration,
    /// From the wait until every rank's first message was there: the ranks' skew and the wire.
    pub wait: Duration,
    /// From then until the last message was there: what large gates still move.
    pub exchange: Duration,
    /// From then until the caller has the parts.
    pub release: Duration,
}

impl GateTimes {
    /// What the caller stands still for: everything but the overlap.
    #[must_use]
    pub fn cost(&self) -> Duration {
        self.post + self.wait + self.exchange + self.release
    }

    /// Names and times of the stretches, in their order.
    fn stretches(&self) -> [(&'static str, Duration); 5] {
        [
            ("post", self.post),
            ("overlap", self.overlap),
            ("wait", self.wait),
            ("exchange", self.exchange),
            ("release", self.release),
        ]
    }
}

/// Times of all kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateProfile {
    /// In the order of [`GateKind::ALL`].
    pub kinds: [GateTimes; GateKind::ALL.len()],
}

impl GateProfile {
    /// Times of one kind.
    #[must_use]
    pub fn of(&self, kind: GateKind) -> &GateTimes {
        &self.kinds[kind as usize]
    }

    /// Adds one gate.
    pub fn add(&mut self, kind: GateKind, gate: GateTimes) {
        let sum = &mut self.kinds[kind as usize];
        sum.gates += gate.gates;
        sum.post += gate.post;
        sum.overlap += gate.overlap;
        sum.wait += gate.wait;
        sum.exchange += gate.exchange;
        sum.release += gate.release;
    }

    /// A line for each kind that was used: mean microseconds of each stretch.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::from(
            "gate           count    post us  overlap us  wait us  exchange us  release us\n",
        );
        for kind in GateKind::ALL {
            let times = self.of(kind);
            if times.gates == 0 {
                continue;
            }
            let mean = |time: Duration| time.as_secs_f64() * 1e6 / times.gates as f64;
            text += &format!(
                "{:10} {:>9} {:>10.2} {:>11.2} {:>8.2} {:>12.2} {:>11.2}\n",
                kind.name(),
                times.gates,
                mean(times.post),
                mean(times.overlap),
                mean(times.wait),
                mean(times.exchange),
                mean(times.release),
            );
        }
        text
    }
}

/// One gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateEvent {
    /// Which step it belongs to: orders of rank 0 so far.
    pub step: u64,
    /// What it carried.
    pub kind: GateKind,
    /// Bytes that this rank gave.
    pub bytes: usize,
    /// When it was posted, from the order that began the step.
    pub at: Duration,
    /// How long it took; `gates` is 1.
    pub times: GateTimes,
}

/// A shared notebook of gates: whoever passes them writes, whoever asked for it reads. Clones are
/// the same notebook.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    profile: GateProfile,
    steps: u64,
    /// When the step began.
    begun: Option<Instant>,
    /// The last [`EVENTS`] gates; a ring once it is full.
    events: Vec<GateEvent>,
    next: usize,
}

impl Recorder {
    /// An order of rank 0 begins a step.
    pub fn step(&self) {
        let mut notes = self.notes();
        notes.steps += 1;
        notes.begun = Some(Instant::now());
    }

    /// One gate was passed, which was posted at `posted`.
    pub fn gate(&self, kind: GateKind, bytes: usize, posted: Instant, times: GateTimes) {
        let mut notes = self.notes();
        notes.profile.add(kind, times);
        let at = notes.begun.map_or(Duration::ZERO, |begun| posted.duration_since(begun));
        let event = GateEvent { step: notes.steps, kind, bytes, at, times };
        let next = notes.next;
        match notes.events.get_mut(next) {
            Some(old) => *old = event,
            None => notes.events.push(event),
        }
        notes.next = (next + 1) % EVENTS;
    }

    /// What was written so far.
    #[must_use]
    pub fn report(&self) -> GateReport {
        let notes = self.notes();
        let (newer, older) = notes.events.split_at(notes.next.min(notes.events.len()));
        let events: Vec<GateEvent> = older.iter().chain(newer).copied().collect();
        GateReport { profile: notes.profile, events }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a [`Recorder`] holds at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateReport {
    /// All gates.
    pub profile: GateProfile,
    /// The last ones, oldest first.
    pub events: Vec<GateEvent>,
}

impl GateReport {
    /// The middle of [`GateTimes::cost`] and what 99 of 100 do not pass, over the last gates of a
    /// kind.
    #[must_use]
    pub fn quantiles(&self, kind: GateKind) -> Option<(Duration, Duration)> {
        let of_kind = self.events.iter().filter(|event| event.kind == kind);
        let mut costs: Vec<Duration> = of_kind.map(|event| event.times.cost()).collect();
        costs.sort_unstable();
        let at = |percent: usize| costs.get((costs.len() * percent / 100).min(costs.len() - 1));
        (!costs.is_empty()).then(|| Some((*at(50)?, *at(99)?))).flatten()
    }

    /// The gates of the last whole step that gave logits: one token's cycle, where a token is a
    /// step.
    #[must_use]
    pub fn cycle(&self) -> &[GateEvent] {
        let is_last = |event: &&GateEvent| event.kind == GateKind::Vocabulary;
        let Some(step) = self.events.iter().rev().find(is_last).map(|event| event.step) else {
            return &[];
        };
        let of_step = |event: &GateEvent| event.step == step;
        let first = self.events.iter().position(of_step).unwrap_or(0);
        let last = self.events.iter().rposition(of_step).map_or(0, |last| last + 1);
        &self.events[first..last]
    }

    /// Of the last steps that gave logits, at most `most`, oldest first: the seconds of each
    /// stretch from the order or the gate before to the end of a gate.
    #[must_use]
    pub fn stretches_of_steps(&self, most: usize) -> Vec<Vec<f32>> {
        let steps = self.events.chunk_by(|one, next| one.step == next.step);
        let whole =
            |step: &&[GateEvent]| step.last().is_some_and(|last| last.kind == GateKind::Vocabulary);
        let of_step = |step: &[GateEvent]| {
            let mut before = Duration::ZERO;
            let stretch = |event: &GateEvent| {
                let end = event.at + event.times.cost() + event.times.overlap;
                let stretch = end.saturating_sub(before);
                before = end;
                stretch.as_secs_f32()
            };
            step.iter().map(stretch).collect()
        };
        let mut steps: Vec<Vec<f32>> = steps.filter(whole).map(of_step).collect();
        steps.drain(..steps.len().saturating_sub(most));
        steps
    }

    /// A line a kind: how many, what they cost in all, the middle, the 99th of 100, and where the
    /// mean goes.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:10} {:>8} {:>9} {:>9} {:>9}   mean us:{:>8} {:>8} {:>8} {:>8} {:>8}\n",
            "gate",
            "count",
            "total ms",
            "p50 us",
            "p99 us",
            "post",
            "overlap",
            "wait",
            "exchange",
            "release"
        );
        for kind in GateKind::ALL {
            let times = self.profile.of(kind);
            let Some((middle, high)) = self.quantiles(kind) else { continue };
            text += &format!(
                "{:10} {:>8} {:>9.2} {:>9.2} {:>9.2}           ",
                kind.name(),
                times.gates,
                times.cost().as_secs_f64() * 1e3,
                micros(middle),
                micros(high)
            );
            for (_, time) in times.stretches() {
                text += &format!(" {:>8.2}", micros(time) / times.gates as f64);
            }
            text.push('\n');
        }
        text
    }

    /// A line a gate of [`GateReport::cycle`]: when it was posted, and what came before it.
    #[must_use]
    pub fn trace(&self) -> String {
        let cycle = self.cycle();
        let Some(first) = cycle.first() else {
            return "no step with logits was seen\n".into();
        };
        let mut text = format!(
            "step {}: times in us from its order\n{:>9} {:10} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} \
             {:>8}\n",
            first.step,
            "at",
            "gate",
            "bytes",
            "computed",
            "post",
            "overlap",
            "wait",
            "exchange",
            "release"
        );
        let mut free = Duration::ZERO;
        for event in cycle {
            let computed = event.at.saturating_sub(free);
            text += &format!(
                "{:>9.1} {:10} {:>9} {:>9.1}",
                micros(event.at),
                event.kind.name(),
                event.bytes,
                micros(computed)
            );
            for (_, time) in event.times.stretches() {
                text += &format!(" {:>8.2}", micros(time));
            }
            text.push('\n');
            free = event.at + event.times.cost() + event.times.overlap;
        }
        text
    }

    /// All of it for programs; times in seconds.
    #[must_use]
    pub fn json(&self, with_trace: bool) -> Value {
        let stretches = |times: &GateTimes, gates: f64| {
            let all = times
                .stretches()
                .map(|(name, time)| (name.to_owned(), json!(time.as_secs_f64() / gates.max(1.0))));
            Value::Object(all.into_iter().collect())
        };
        let kind_json = |kind: GateKind| {
            let times = self.profile.of(kind);
            let (middle, high) = self.quantiles(kind)?;
            Some(json!({
                "kind": kind.name(),
                "count": times.gates,
                "total_seconds": times.cost().as_secs_f64(),
                "p50_seconds": middle.as_secs_f64(),
                "p99_seconds": high.as_secs_f64(),
                "mean_seconds": stretches(times, times.gates as f64),
            }))
        };
        let kinds: Vec<Value> = GateKind::ALL.into_iter().filter_map(kind_json).collect();
        let trace: Vec<Value> = self
            .cycle()
            .iter()
            .map(|event| {
                json!({
                    "kind": event.kind.name(),
                    "bytes": event.bytes,
                    "at_seconds": event.at.as_secs_f64(),
                    "seconds": stretches(&event.times, 1.0),
                })
            })
            .collect();
        match with_trace {
            true => json!({"kinds": kinds, "trace": trace}),
            false => json!({"kinds": kinds}),
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests;
