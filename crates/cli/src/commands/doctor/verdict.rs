//! What was measured of a group, in words, and which way to run a model on it.

use ironstar_cluster::LinkTime;
use ironstar_cluster::sim::{Costs, Layout, Rates};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// Seconds of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Of an answer.
    pub decode: f64,
    /// Of a prompt.
    pub prefill: f64,
}

impl Speed {
    /// Where so many share what sets the speed.
    pub fn slower(self, sharers: usize) -> Speed {
        let sharers = sharers as f64;
        Speed { decode: self.decode * sharers, prefill: self.prefill * sharers }
    }
}

/// What was measured.
pub struct Found {
    /// What to call the model.
    pub model: String,
    /// What carries gates.
    pub transport: &'static str,
    /// Ranks of the group.
    pub ranks: usize,
    /// Whether all of them share this machine.
    pub here: bool,
    /// Threads of this machine, and of a rank.
    pub threads: (usize, usize),
    /// One process with all threads of this machine.
    pub whole: Speed,
    /// Gates by size.
    pub gates: Vec<LinkTime>,
    /// An order of rank 0.
    pub order: Duration,
    /// Records by size.
    pub hops: Vec<LinkTime>,
    /// All of it, to predict from.
    pub costs: Costs,
}

/// A way to run the model, with its rates.
type Way = (&'static str, Rates);

impl Found {
    fn ways(&self) -> [Way; 3] {
        let single = Rates { decode: 1.0 / self.whole.decode, prefill: 1.0 / self.whole.prefill };
        let stages = self.ranks.min(self.costs.model.layers);
        [
            ("single", single),
            ("tensor", self.costs.rates(Layout { tensor: self.ranks, stages: 1 })),
            ("pipeline", self.costs.rates(Layout { tensor: 1, stages })),
        ]
    }

    /// The fastest for answers, and for prompts; the simplest of equals.
    fn best(&self) -> (&'static str, &'static str) {
        let best = |rate: fn(&Rates) -> f64| {
            self.ways().into_iter().fold(("single", 0.0), |best, (name, rates)| {
                if rate(&rates) > best.1 { (name, rate(&rates)) } else { best }
            })
        };
        (best(|rates| rates.decode).0, best(|rates| rates.prefill).0)
    }

    /// The time of a gate up to which sharing a token pays; not above 0 if it never does.
    fn gate_that_pays(&self) -> f64 {
        let layers = self.costs.model.layers as f64;
        let gate = self.costs.gate(self.costs.model.width * 4, self.ranks);
        let tensor = self.costs.decode_seconds(Layout { tensor: self.ranks, stages: 1 });
        gate + (self.whole.decode - tensor) / (2.0 * layers)
    }

    /// For people.
    pub fn text(&self) -> String {
        let place = if self.here { "on this machine" } else { "between machines" };
        let mut text = format!(
            "Group of {} ranks over {}, {place}\n\nGates    bytes a rank    p50 us    p99 us   \
             best us      GB/s\n",
            self.ranks, self.transport
        );
        for time in &self.gates {
            text += &line(time);
        }
        let _ = writeln!(text, "an order before a step    {:>8.1} us\n\nHops", micros(self.order));
        for time in &self.hops {
            text += &line(time);
        }
        let model = &self.costs.model;
        let _ = writeln!(
            text,
            "\nModel {}: {} layers, {} gates of {} bytes a token",
            self.model,
            model.layers,
            2 * model.layers,
            model.width * 4
        );
        let (all, each) = self.threads;
        let mut speed = |what: String, decode: f64, prefill: f64| {
            let _ = writeln!(
                text,
                "  {what:<44} {:>9.3} ms a token, {:>9.3} ms a row of a prompt",
                decode * 1e3,
                prefill * 1e3
            );
        };
        speed(format!("one process, {all} threads"), self.whole.decode, self.whole.prefill);
        let node = &self.costs.node;
        speed(format!("one process, {each} threads"), node.decode_seconds, node.prefill_seconds);
        for part in &self.costs.parts {
            let what = format!("a rank of {}, {each} threads, without gates", part.ranks);
            speed(what, part.decode_seconds, part.prefill_seconds);
        }
        text.push_str("\nPredicted tokens/s         answer   long prompt\n");
        for (name, rates) in self.ways() {
            let _ = writeln!(text, "  {name:<20} {:>10.2} {:>13.1}", rates.decode, rates.prefill);
        }
        let (answer, prompt) = self.best();
        let _ = writeln!(text, "\nUse: {answer} for answers, {prompt} for long prompts.");
        let pays = self.gate_that_pays() * 1e6;
        if pays > 0.0 {
            let gate = self.costs.gate(model.width * 4, self.ranks) * 1e6;
            let _ = writeln!(
                text,
                "Tensor parallel pays for answers while a gate costs less than {pays:.1} us; here \
                 it costs {gate:.1}."
            );
        } else {
            text.push_str(
                "Tensor parallel would not pay for answers with gates that cost nothing.\n",
            );
        }
        text
    }

    /// For programs; `costs` is what `ironstar sim` reads.
    pub fn json(&self) -> Value {
        let times = |times: &[LinkTime]| -> Vec<Value> {
            times
                .iter()
                .map(|time| {
                    json!({
                        "bytes": time.bytes,
                        "p50_seconds": time.p50.as_secs_f64(),
                        "p99_seconds": time.p99.as_secs_f64(),
                        "best_seconds": time.best.as_secs_f64(),
                        "bytes_per_second": time.bytes_per_second(),
                    })
                })
                .collect()
        };
        let ways: serde_json::Map<String, Value> = self
            .ways()
            .into_iter()
            .map(|(name, rates)| {
                let rates = json!({"decode_tps": rates.decode, "prefill_tps": rates.prefill});
                (name.to_owned(), rates)
            })
            .collect();
        let (answer, prompt) = self.best();
        json!({
            "model": self.model,
            "transport": self.transport,
            "ranks": self.ranks,
            "one_machine": self.here,
            "threads": self.threads.0,
            "threads_of_a_rank": self.threads.1,
            "gates": times(&self.gates),
            "order_seconds": self.order.as_secs_f64(),
            "hops": times(&self.hops),
            "single": {
                "decode_seconds": self.whole.decode,
                "prefill_seconds": self.whole.prefill,
            },
            "predicted": ways,
            "use": {"answers": answer, "prompts": prompt},
            "gate_that_pays_seconds": self.gate_that_pays(),
            "costs": self.costs,
        })
    }
}

fn line(time: &LinkTime) -> String {
    format!(
        "      {:>12} {:>11.1} {:>9.1} {:>9.1} {:>9.3}\n",
        time.bytes,
        micros(time.p50),
        micros(time.p99),
        micros(time.best),
        time.bytes_per_second() / 1e9
    )
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
