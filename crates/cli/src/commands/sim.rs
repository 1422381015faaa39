//! `ironstar sim`: what groups and fleets would give, from costs that were measured.

use crate::commands::read_text;
use crate::failure::Failure;
use crate::flags::Sim;
use crate::print;
use ironstar_cluster::sim::{Costs, Layout, Load, Prediction};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// Runs the command.
pub fn run(flags: &Sim) -> Result<(), Failure> {
    let mut costs = Costs::from_json(&read_text(&flags.costs)?)
        .map_err(|error| Failure::caller(format!("{}: {error}", flags.costs.display())))?;
    if let Some(path) = &flags.bench {
        let bench = Bench::read(path)?;
        bench.want_ranks(path, |ranks| ranks == 1, "of one rank")?;
        costs.node.decode_seconds = 1.0 / bench.decode;
        costs.node.prefill_seconds = 1.0 / bench.prefill;
    }
    if !(0.0..=1.0).contains(&flags.kept) || flags.within.is_nan() || flags.within <= 0.0 {
        return Err(Failure::caller(format!(
            "--kept {} and --within {}: a share of 0 to 1, and per cent above 0",
            flags.kept, flags.within
        )));
    }
    let load = Load {
        sessions: flags.sessions,
        prompt: flags.prompt,
        answer: flags.answer,
        kept: flags.kept,
    };
    let lines: Vec<Prediction> =
        flags.ranks.iter().flat_map(|&ranks| costs.plan(ranks, load)).collect();
    let against = flags.against.as_deref().map(|path| Comparison::of(&costs, path)).transpose()?;
    if flags.json {
        let lines: Vec<Value> = lines.iter().map(line_json).collect();
        let object = json!({
            "model": costs.model.name,
            "sessions": load.sessions,
            "predictions": lines,
            "against": against.as_ref().map(Comparison::json),
        });
        print(format!("{object}\n").as_bytes())?;
    } else {
        print(text(&costs, &lines, load, against.as_ref()).as_bytes())?;
    }
    match against.filter(|against| against.off().abs() * 100.0 > flags.within) {
        None => Ok(()),
        Some(far) => Err(Failure::environment(format!(
            "the prediction is {:+.1} % from what was measured, and {} % are allowed; measure the \
             costs again on the machine as it is now",
            far.off() * 100.0,
            flags.within
        ))),
    }
}

/// What a run of `bench --json` found.
struct Bench {
    ranks: usize,
    decode: f64,
    prefill: f64,
}

impl Bench {
    fn read(path: &Path) -> Result<Bench, Failure> {
        let wrong = |what: &str| {
            Failure::caller(format!(
                "{}: {what}; what `ironstar bench --json` prints is wanted",
                path.display()
            ))
        };
        let value: Value = serde_json::from_str(&read_text(path)?)
            .map_err(|error| wrong(&format!("no JSON ({error})")))?;
        let rate = |name: &str| {
            let rate = value["rows"][0][name].as_f64().filter(|rate| *rate > 0.0);
            rate.ok_or_else(|| wrong(&format!("its first row has no rate `{name}`")))
        };
        let ranks = value["ranks"].as_u64().and_then(|ranks| usize::try_from(ranks).ok());
        Ok(Bench {
            ranks: ranks.filter(|r| *r > 0).ok_or_else(|| wrong("it does not say its `ranks`"))?,
            decode: rate("gen_tps")?,
            prefill: rate("prefill_tps")?,
        })
    }

    fn want_ranks(
        &self,
        path: &Path,
        fits: impl Fn(usize) -> bool,
        wanted: &str,
    ) -> Result<(), Failure> {
        if fits(self.ranks) {
            return Ok(());
        }
        Err(Failure::caller(format!(
            "{}: a run of {} ranks, and one {wanted} is needed here",
            path.display(),
            self.ranks
        )))
    }
}

/// A prediction beside what was measured.
struct Comparison {
    ranks: usize,
    predicted: (f64, f64),
    measured: (f64, f64),
}

impl Comparison {
    fn of(costs: &Costs, path: &Path) -> Result<Comparison, Failure> {
        let bench = Bench::read(path)?;
        let counts = &costs.model.rank_counts;
        let wanted = format!("that the model can be shared among ({counts:?})");
        bench.want_ranks(path, |ranks| counts.contains(&ranks), &wanted)?;
        let rates = costs.rates(Layout { tensor: bench.ranks, stages: 1 });
        Ok(Comparison {
            ranks: bench.ranks,
            predicted: (rates.decode, rates.prefill),
            measured: (bench.decode, bench.prefill),
        })
    }

    /// How far the predicted rate of an answer is, as a share.
    fn off(&self) -> f64 {
        self.predicted.0 / self.measured.0 - 1.0
    }

    fn json(&self) -> Value {
        json!({
            "ranks": self.ranks,
            "predicted_decode_tps": self.predicted.0,
            "measured_decode_tps": self.measured.0,
            "predicted_prefill_tps": self.predicted.1,
            "measured_prefill_tps": self.measured.1,
            "decode_off": self.off(),
        })
    }
}

fn line_json(line: &Prediction) -> Value {
    json!({
        "ranks": line.layout.ranks() * line.replicas,
        "replicas": line.replicas,
        "tensor": line.layout.tensor,
        "stages": line.layout.stages,
        "decode_tps": line.rates.decode,
        "prefill_tps": line.rates.prefill,
        "fleet_tps": line.fleet.tokens,
        "fleet_tps_unrouted": line.fleet.tokens_unrouted,
        "fleet_requests_per_second": line.fleet.requests,
    })
}

fn text(costs: &Costs, lines: &[Prediction], load: Load, against: Option<&Comparison>) -> String {
    let mut text = format!(
        "{}: tokens/s of one copy (an answer, a long prompt), and of all copies with {} sessions \
         of {} + {} tokens\n{:>5} {:>8}  {:24} {:>9} {:>10} {:>10} {:>12} {:>10}\n",
        costs.model.name,
        load.sessions,
        load.prompt,
        load.answer,
        "ranks",
        "copies",
        "each copy",
        "answer",
        "prompt",
        "all",
        "any router",
        "requests/s"
    );
    for line in lines {
        let _ = writeln!(
            text,
            "{:>5} {:>8}  {:24} {:>9.2} {:>10.1} {:>10.1} {:>12.1} {:>10.3}",
            line.layout.ranks() * line.replicas,
            line.replicas,
            line.layout.name(),
            line.rates.decode,
            line.rates.prefill,
            line.fleet.tokens,
            line.fleet.tokens_unrouted,
            line.fleet.requests
        );
    }
    if let Some(against) = against {
        let _ = writeln!(
            text,
            "\n{} ranks, answer: predicted {:.2}, measured {:.2} tokens/s ({:+.1} %); prompt: \
             predicted {:.1}, measured {:.1}",
            against.ranks,
            against.predicted.0,
            against.measured.0,
            against.off() * 100.0,
            against.predicted.1,
            against.measured.1
        );
    }
    text
}
