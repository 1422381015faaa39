//! Progress of long work: one bar on standard error, only on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::io::IsTerminal;

/// A bar that vanishes when it is done; silent where standard error is not a terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of `total` units; `unit` is "tokens", "rows" or "bytes".
    #[must_use]
    pub fn new(what: &str, total: u64, unit: &str) -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let counts = if unit == "bytes" {
            "{bytes}/{total_bytes} {bytes_per_sec}".to_owned()
        } else {
            format!("{{pos}}/{{len}} {unit} {{rate}}")
        };
        let template = format!("{{msg}} [{{bar:30}}] {counts} {{eta}}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                let _ = write!(out, "{:.0}/s", state.per_sec());
            };
            bar.set_style(style.with_key("rate", rate).progress_chars("=> "));
        }
        bar.set_message(what.to_owned());
        Progress { bar }
    }

    /// Changes the length.
    pub fn total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Moves to a place.
    pub fn at(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Says what is being done.
    pub fn message(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
