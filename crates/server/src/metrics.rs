//! Counts of what the server does, as Prometheus reads them.

use ironstar_engine::scheduler::{Stats, Status};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets of times, in milliseconds.
const BUCKETS_MS: [u64; 12] = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 10_000, 60_000, 600_000];

/// Classes of status codes that are counted, each with its first code.
const CLASSES: [(u16, &str); 4] = [(200, "2xx"), (300, "3xx"), (400, "4xx"), (500, "5xx")];

#[derive(Debug, Default)]
struct Times {
    buckets: [AtomicU64; BUCKETS_MS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Times {
    fn add(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        for (bucket, bound) in self.buckets.iter().zip(BUCKETS_MS) {
            if micros <= bound * 1000 {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (bucket, bound) in self.buckets.iter().zip(BUCKETS_MS) {
            let (whole, part) = (bound / 1000, bound % 1000);
            let count = bucket.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{whole}.{part:03}\"}} {count}");
        }
        let (count, micros) =
            (self.count.load(Ordering::Relaxed), self.micros.load(Ordering::Relaxed));
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let (whole, part) = (micros / 1_000_000, micros % 1_000_000);
        let _ = writeln!(out, "{name}_sum {whole}.{part:06}\n{name}_count {count}");
    }
}

/// The counts of one server.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    responses: [AtomicU64; CLASSES.len()],
    pub connections: AtomicU64,
    pub accept_errors: AtomicU64,
    pub cancelled: AtomicU64,
    pub slow_readers: AtomicU64,
    pub failed: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    answer_tokens: AtomicU64,
    drafted: AtomicU64,
    accepted: AtomicU64,
    queued: Times,
    first_token: Times,
    answer: Times,
}

impl Metrics {
    /// A response went out.
    pub fn responded(&self, status: u16) {
        for (count, (first, _)) in self.responses.iter().zip(CLASSES) {
            if (first..first + 100).contains(&status) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// An answer ended, whichever way.
    pub fn answered(&self, stats: &Stats) {
        let add = |count: &AtomicU64, more: usize| {
            count.fetch_add(u64::try_from(more).unwrap_or(u64::MAX), Ordering::Relaxed)
        };
        add(&self.prompt_tokens, stats.prompt);
        add(&self.cached_tokens, stats.reused);
        add(&self.answer_tokens, stats.tokens);
        add(&self.drafted, stats.speculation.drafted);
        add(&self.accepted, stats.speculation.accepted);
        self.queued.add(stats.queued);
        if stats.tokens > 0 {
            self.first_token.add(stats.queued + stats.reading);
            self.answer.add(stats.answering);
        }
    }

    /// The page that Prometheus reads.
    pub fn page(&self, status: &Status, open: usize) -> String {
        let mut out = String::with_capacity(4096);
        let line = "ironstar_http_responses_total";
        let _ = writeln!(out, "# HELP {line} Responses by class of status.\n# TYPE {line} counter");
        for (count, (_, class)) in self.responses.iter().zip(CLASSES) {
            let _ = writeln!(out, "{line}{{class=\"{class}\"}} {}", count.load(Ordering::Relaxed));
        }
        let counters = [
            ("connections_total", "Connections accepted.", &self.connections),
            ("accept_errors_total", "Connections that could not be accepted.", &self.accept_errors),
            ("cancelled_total", "Requests whose client left.", &self.cancelled),
            ("slow_readers_total", "Answers given up since nobody read them.", &self.slow_readers),
            ("failed_total", "Requests that failed in the engine.", &self.failed),
            ("prompt_tokens_total", "Tokens of prompts.", &self.prompt_tokens),
            (
                "prompt_cached_tokens_total",
                "Tokens of prompts that were reused.",
                &self.cached_tokens,
            ),
            ("answer_tokens_total", "Tokens of answers.", &self.answer_tokens),
            ("draft_tokens_total", "Tokens guessed.", &self.drafted),
            ("draft_accepted_total", "Guesses that were right.", &self.accepted),
        ];
        for (name, help, count) in counters {
            let count = count.load(Ordering::Relaxed);
            write_number(&mut out, (name, "counter", help), count);
        }
        let numbers = [
            ("requests_open", "gauge", "Requests that wait or run.", open as u64),
            ("requests_queued", "gauge", "Requests without a session.", status.queued as u64),
            ("requests_running", "gauge", "Requests with a session.", status.running as u64),
            ("session_bytes", "gauge", "Memory planned for sessions.", status.session_bytes),
            ("engine_steps_total", "counter", "Steps of the engine.", status.steps),
            ("engine_prompt_rows_total", "counter", "Rows of prompts in them.", status.prompt_rows),
            ("engine_answer_rows_total", "counter", "Rows of answers in them.", status.answer_rows),
        ];
        for (name, kind, help, number) in numbers {
            write_number(&mut out, (name, kind, help), number);
        }
        self.queued.write(&mut out, "ironstar_queue_seconds", "Time in the queue.");
        let help = "Time to the first token of an answer.";
        self.first_token.write(&mut out, "ironstar_first_token_seconds", help);
        let help = "Time from the first token of an answer to its end.";
        self.answer.write(&mut out, "ironstar_answer_seconds", help);
        out
    }
}

fn write_number(out: &mut String, (name, kind, help): (&str, &str, &str), number: u64) {
    let _ = writeln!(
        out,
        "# HELP ironstar_{name} {help}\n# TYPE ironstar_{name} {kind}\nironstar_{name} {number}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_each_name_once_and_sums_in_seconds() {
        let metrics = Metrics::default();
        metrics.responded(200);
        metrics.responded(404);
        let reading = Duration::from_millis(70);
        metrics.answered(&Stats { prompt: 9, reused: 4, tokens: 2, reading, ..Stats::default() });
        let page = metrics.page(&Status { queued: 3, ..Status::default() }, 5);
        for line in [
            "ironstar_http_responses_total{class=\"2xx\"} 1",
            "ironstar_http_responses_total{class=\"4xx\"} 1",
            "ironstar_prompt_cached_tokens_total 4",
            "ironstar_requests_queued 3",
            "ironstar_requests_open 5",
            "ironstar_first_token_seconds_bucket{le=\"0.050\"} 0",
            "ironstar_first_token_seconds_bucket{le=\"0.100\"} 1",
            "ironstar_first_token_seconds_sum 0.070000",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} in\n{page}");
        }
        let names: Vec<&str> = page.lines().filter(|l| l.starts_with("# TYPE")).collect();
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(names.len(), distinct.len());
    }
}
