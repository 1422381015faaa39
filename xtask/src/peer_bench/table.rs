//! What was compared, as a table and as JSON.

use super::build::Peer;
use anyhow::{Context, Result};
use serde_json::{Value, json};

/// One line: both engines on one model.
pub struct Row {
    /// Formats of the experts.
    pub mix: String,
    /// Threads of both.
    pub threads: usize,
    /// "prefill" or "decode".
    pub what: &'static str,
    /// Tokens that were read or given.
    pub tokens: usize,
    /// Seconds a token, of the processor and of the clock.
    pub ours: (f64, f64),
    /// The same of the peer.
    pub peer: (f64, f64),
    /// Bytes a token needs over our time over the read bandwidth: by the clock, and by processor
    /// time, which other programs disturb less.
    pub fractions: Option<(f64, f64)>,
}

/// All lines, and what they were measured with.
pub struct Table {
    version: String,
    features: String,
    /// The lines.
    pub rows: Vec<Row>,
    /// Threads and the bytes a second that they read together.
    pub bandwidth: Vec<(usize, f64)>,
    /// Divergences of each mix.
    pub kl: Vec<(String, Value)>,
    /// How long all of it took, without building.
    pub seconds: u64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours.0 / self.peer.0
    }
}

impl Table {
    /// No line yet.
    pub fn new(peer: &Peer) -> Self {
        let (version, features) = (peer.version.clone(), peer.features.clone());
        let (rows, bandwidth, kl) = (Vec::new(), Vec::new(), Vec::new());
        Table { version, features, rows, bandwidth, kl, seconds: 0 }
    }

    /// The worst ratio of a kind of line.
    fn worst(&self, what: &str) -> Option<f64> {
        let rows = self.rows.iter().filter(|row| row.what == what);
        rows.map(Row::ratio).reduce(f64::max)
    }

    /// The least shares of the bandwidth, by the clock and by processor time.
    fn fractions(&self) -> Option<(f64, f64)> {
        let rows = self.rows.iter().filter_map(|row| row.fractions);
        rows.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)))
    }

    /// Divergences of a mix, of the path that was timed and of the peer.
    fn divergences(&self, mix: &str) -> String {
        let of = |kl: &Value| match (kl["ours"].as_f64(), kl["peer"].as_f64()) {
            (Some(ours), Some(peer)) => format!("{ours:.1e}, {peer:.1e}"),
            _ => String::new(),
        };
        self.kl.iter().find(|(of, _)| of == mix).map_or(String::new(), |(_, kl)| of(kl))
    }

    /// Prints it.
    pub fn give(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", self.json());
        } else {
            print!("{}", self.text().context("no line was measured")?);
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "mix": row.mix, "threads": row.threads, "what": row.what, "tokens": row.tokens,
                "ours_processor_seconds": row.ours.0, "peer_processor_seconds": row.peer.0,
                "ours_wall_seconds": row.ours.1, "peer_wall_seconds": row.peer.1,
                "ratio": row.ratio(), "bandwidth_fraction": row.fractions.map(|f| f.0),
                "bandwidth_fraction_processor": row.fractions.map(|f| f.1),
            })
        };
        json!({
            "processor": processor(),
            "peer": self.version,
            "peer_features": self.features,
            "seconds": self.seconds,
            "decode_ratio": self.worst("decode"),
            "prefill_ratio": self.worst("prefill"),
            "bandwidth_fraction": self.fractions().map(|f| f.0),
            "bandwidth_fraction_processor": self.fractions().map(|f| f.1),
            "read_bytes_per_second": self.bandwidth.iter()
                .map(|(threads, rate)| json!({"threads": threads, "rate": rate}))
                .collect::<Vec<_>>(),
            "kl": self.kl.iter().cloned().collect::<serde_json::Map<_, _>>(),
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }

    /// In the form of docs/measurements.md.
    fn text(&self) -> Option<String> {
        let mut text = format!(
            "{}; {}; {}\n\n| mix | threads | what | tokens | ours, ms a token | peer, ms a token \
             | ratio | of bandwidth (by processor time) | KL from the float reference: ours, peer \
             |\n|---|---|---|---|---|---|---|---|---|\n",
            processor(),
            self.version,
            self.features
        );
        for row in &self.rows {
            let percent = |(wall, busy)| format!("{:.0} % ({:.0} %)", wall * 100.0, busy * 100.0);
            let fraction = row.fractions.map_or(String::new(), percent);
            text.push_str(&format!(
                "| {} | {} | {} | {} | {:.1} | {:.1} | {:.3} | {fraction} | {} |\n",
                row.mix,
                row.threads,
                row.what,
                row.tokens,
                row.ours.0 * 1e3,
                row.peer.0 * 1e3,
                row.ratio(),
                self.divergences(&row.mix)
            ));
        }
        text.push('\n');
        let (decode, prefill) = (self.worst("decode"), self.worst("prefill")?);
        let decode = decode.map_or(String::new(), |d| format!("decode_ratio {d:.3}, "));
        let (wall, busy) = self.fractions().unwrap_or((f64::NAN, f64::NAN));
        text.push_str(&format!(
            "{decode}prefill_ratio {prefill:.3}, bandwidth_fraction {wall:.3} ({busy:.3})\n"
        ));
        Some(text)
    }
}

/// Name of this processor, as the system tells it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().find_map(|line| line.strip_prefix("model name"));
    let name = named.map_or("processor unknown", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores of {}", name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_line_counts() {
        let peer = Peer { binary: "x".into(), version: "v".into(), features: "f".into() };
        let mut table = Table::new(&peer);
        let row = |what, ours, fractions| Row {
            mix: "q2".into(),
            threads: 1,
            what,
            tokens: 8,
            ours: (ours, ours),
            peer: (1.0, 1.0),
            fractions,
        };
        table.rows.push(row("prefill", 0.2, None));
        table.rows.push(row("prefill", 0.3, None));
        table.rows.push(row("decode", 0.5, Some((0.9, 0.9))));
        table.rows.push(row("decode", 0.4, Some((0.8, 0.95))));
        let json = table.json();
        assert_eq!(json["prefill_ratio"], 0.3);
        assert_eq!(json["decode_ratio"], 0.5);
        assert_eq!(json["bandwidth_fraction"], 0.8);
        assert_eq!(json["bandwidth_fraction_processor"], 0.9);
        table.kl.push(("q2".into(), json!({"ours": 0.0023, "peer": 0.002})));
        let text = table.text().expect("four lines");
        assert!(text.contains("prefill_ratio 0.300"), "{text}");
        assert!(text.contains("| 0.300 |  | 2.3e-3, 2.0e-3 |"), "{text}");
    }
}
