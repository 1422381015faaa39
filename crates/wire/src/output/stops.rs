//! Stop strings, wherever the text is cut.

/// Text that may still turn out to be a stop string, and what is before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Stops {
    stops: Vec<String>,
    held: String,
    found: Option<usize>,
}

impl Stops {
    pub(super) fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new(), found: None }
    }

    /// The stop string that came.
    pub(super) fn found(&self) -> Option<&str> {
        self.found.map(|at| self.stops[at].as_str())
    }

    /// Takes text and returns what is certainly before any stop string.
    pub(super) fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        self.held.push_str(text);
        // The first to end counts, as if the text had come byte by byte; of those the longest.
        let first = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(at, stop)| Some((self.held.find(stop.as_str())?, at, stop.len())))
            .min_by_key(|&(start, at, len)| (start + len, start, at));
        if let Some((start, at, _)) = first {
            self.found = Some(at);
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        let keep = (from..self.held.len())
            .filter(|&at| self.held.is_char_boundary(at))
            .find(|&at| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..])))
            .unwrap_or(self.held.len());
        let rest = self.held.split_off(keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// No more text comes here: what was held is no stop string.
    pub(super) fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
