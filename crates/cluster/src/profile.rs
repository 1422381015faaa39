//! Where the time of gates goes, by kind.

use ironstar_device::GateKind;
use std::time::Duration;

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
