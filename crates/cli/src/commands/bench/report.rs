//! The table: for people, as CSV with the yardstick's columns first, and as JSON.

use super::sweep::{Measured, Row, count};
use crate::bandwidth::Rate;
use crate::failure::Failure;
use crate::flags::Fill;
use crate::print;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// What was measured, on what.
#[derive(Debug)]
pub struct Facts {
    /// Name of the model file.
    pub model: String,
    /// Name of the backend.
    pub backend: &'static str,
    /// Processor threads.
    pub threads: usize,
    /// Instruction set, on the processor.
    pub isa: Option<&'static str>,
    /// What the tokens are.
    pub prompt: &'static str,
    /// How frontiers were reached.
    pub fill: Fill,
    /// Whether answers are the prompt's.
    pub teacher_forced: bool,
    /// Sessions in common steps.
    pub sessions: usize,
    /// Ranks that share the model.
    pub ranks: usize,
    /// Sweeps of which the best is shown.
    pub repeats: usize,
    /// Most rows of a prompt's step.
    pub prefill_chunk: usize,
    /// How fast this machine reads, measured in this run.
    pub bandwidth: Option<Rate>,
}

/// Everything that is shown.
#[derive(Debug)]
pub struct Report {
    /// What was measured.
    pub facts: Facts,
    /// One row a frontier.
    pub rows: Vec<Row>,
    /// What gates cost, if that was asked for.
    pub gates: Option<Value>,
}

/// Names of the CSV's columns; the first nine are the yardstick's (`spec/features.md` 1.5).
const COLUMNS: &str = "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,gen_first_ms,\
gen_steady_tokens,gen_steady_tps,kvcache_bytes,sessions,fill,prefill_processor_seconds,\
gen_processor_seconds,prefill_bytes_per_token,gen_bytes_per_token,read_bytes_per_second,\
gen_bandwidth_fraction,gen_processor_fraction";

impl Report {
    /// Prints the table and writes the file.
    pub fn give(&self, csv: Option<&Path>, json: bool) -> Result<(), Failure> {
        if let Some(path) = csv {
            let failed = |error| Failure::file("writing", path, &error);
            std::fs::write(path, self.csv()).map_err(failed)?;
        }
        match json {
            true => print(format!("{}\n", self.json()).as_bytes()),
            false => print(self.text().as_bytes()),
        }
    }

    /// Numbers of a row in the order of [`COLUMNS`]; `None` is an empty field.
    fn numbers(&self, row: &Row) -> Vec<(&'static str, Option<Value>)> {
        let (prefill, decode, steady) = (&row.prefill, row.decode.as_ref(), row.steady.as_ref());
        let rounded = |value: f64, digits: i32| {
            let scale = 10f64.powi(digits);
            Some(json!((value * scale).round() / scale))
        };
        let seconds = |m: &Measured| m.time.processor.and_then(|s| rounded(s, 6));
        let each = |m: &Measured| json!(m.bytes / m.tokens.max(1) as u64);
        let names = COLUMNS.split(',');
        let tokens = |m: Option<&Measured>| Some(json!(m.map_or(0, |m| m.tokens)));
        let values = [
            Some(json!(row.context)),
            Some(json!(prefill.tokens)),
            rounded(prefill.rate(), 3),
            tokens(decode),
            decode.and_then(|m| rounded(m.rate(), 3)),
            decode.and_then(|_| rounded(row.first_seconds * 1e3, 3)),
            tokens(steady),
            steady.and_then(|m| rounded(m.rate(), 3)),
            Some(json!(row.state_bytes)),
            Some(json!(self.facts.sessions)),
            Some(json!(self.fill())),
            seconds(prefill),
            decode.and_then(seconds),
            Some(each(prefill)),
            decode.map(each),
            self.facts.bandwidth.and_then(|rate| rounded(rate.wall, 0)),
            self.fraction(decode).and_then(|f| rounded(f, 4)),
            self.processor_fraction(decode).and_then(|f| rounded(f, 4)),
        ];
        names.zip(values).collect()
    }

    /// Bytes over time over the read bandwidth.
    fn fraction(&self, measured: Option<&Measured>) -> Option<f64> {
        let (measured, rate) = (measured?, self.facts.bandwidth?);
        Some(bytes(measured) / measured.time.wall / rate.wall)
    }

    /// The same by processor time, which other programs disturb less.
    fn processor_fraction(&self, measured: Option<&Measured>) -> Option<f64> {
        let (measured, rate) = (measured?, self.facts.bandwidth?.processor?);
        Some(bytes(measured) / measured.time.processor? * count(self.facts.threads) / rate)
    }

    fn fill(&self) -> &'static str {
        match self.facts.fill {
            Fill::Read => "read",
            Fill::Random => "random",
        }
    }

    fn csv(&self) -> String {
        let mut text = format!("{COLUMNS}\n");
        for row in &self.rows {
            let field = |(_, value): (_, Option<Value>)| match value {
                None => String::new(),
                Some(Value::String(word)) => word,
                Some(number) => number.to_string(),
            };
            let fields: Vec<String> = self.numbers(row).into_iter().map(field).collect();
            let _ = writeln!(text, "{}", fields.join(","));
        }
        text
    }

    fn json(&self) -> Value {
        let facts = &self.facts;
        let row = |row: &Row| -> Value {
            let numbers = self.numbers(row).into_iter();
            numbers.map(|(name, value)| (name.to_owned(), json!(value))).collect()
        };
        json!({
            "model": facts.model,
            "version": env!("CARGO_PKG_VERSION"),
            "backend": facts.backend,
            "threads": facts.threads,
            "instruction_set": facts.isa,
            "prompt": facts.prompt,
            "fill": self.fill(),
            "teacher_forced_decode": facts.teacher_forced,
            "sessions": facts.sessions,
            "ranks": facts.ranks,
            "repeats": facts.repeats,
            "prefill_chunk": facts.prefill_chunk,
            "read_bytes_per_second": facts.bandwidth.map(|rate| rate.wall),
            "read_bytes_per_processor_second": facts.bandwidth.and_then(|rate| rate.processor),
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "gates": self.gates,
        })
    }

    fn text(&self) -> String {
        let facts = &self.facts;
        let set = facts.isa.map(|isa| format!(", {isa}")).unwrap_or_default();
        let bandwidth = facts
            .bandwidth
            .map_or_else(|| "not measured".into(), |rate| format!("{:.1} GB/s", rate.wall / 1e9));
        let mut text = format!(
            "{}: {}, {} threads{set}; prompt: {}; read bandwidth {bandwidth}\n",
            facts.model, facts.backend, facts.threads, facts.prompt
        );
        if facts.fill == Fill::Random {
            text.push_str("states are random rows: these are speeds only, and nobody's text\n");
        }
        text.push_str(
            " context  prefill  tokens/s   answer  tokens/s  first ms  steady t/s  MB/token  \
             of bandwidth\n",
        );
        for row in &self.rows {
            let _ = write!(
                text,
                "{:>8} {:>8} {:>9.1}",
                row.context,
                row.prefill.tokens,
                row.prefill.rate()
            );
            if let Some(decode) = &row.decode {
                let megabytes = bytes(decode) / count(decode.tokens) / 1e6;
                let steady = row.steady.as_ref().map_or(0.0, Measured::rate);
                let _ = write!(
                    text,
                    " {:>8} {:>9.2} {:>9.1} {steady:>11.2} {megabytes:>9.1}",
                    decode.tokens,
                    decode.rate(),
                    row.first_seconds * 1e3,
                );
                if let Some(fraction) = self.fraction(Some(decode)) {
                    let _ = write!(text, " {:>12.1}%", fraction * 100.0);
                }
            }
            text.push('\n');
        }
        text
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn bytes(measured: &Measured) -> f64 {
    measured.bytes as f64
}
