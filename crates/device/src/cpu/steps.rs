//! The rows of the current step.

use crate::{Error, Span, Step};

/// Tokens, spans, and what is derived from them for each row.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub tokens: Vec<u32>,
    pub spans: Vec<Span>,
    /// Position of each row.
    pub positions: Vec<usize>,
    /// Span of each row.
    pub span_of: Vec<usize>,
}

impl Rows {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Some of the rows, and the spans that have any of them.
    pub fn part(&self, rows: std::ops::Range<usize>) -> Rows {
        let cut = |span: &Span| {
            let (start, end) = (span.rows.start.max(rows.start), span.rows.end.min(rows.end));
            let position = span.position + start.saturating_sub(span.rows.start);
            (start < end).then(|| Span { rows: start - rows.start..end - rows.start, position })
        };
        let spans: Vec<Span> = self.spans.iter().filter_map(cut).collect();
        let count = |(index, span): (usize, &Span)| std::iter::repeat_n(index, span.rows.len());
        Rows {
            tokens: self.tokens[rows.clone()].to_vec(),
            positions: self.positions[rows].to_vec(),
            span_of: spans.iter().enumerate().flat_map(count).collect(),
            spans,
        }
    }

    /// Takes over a step, checked: the spans cover all rows in order.
    pub fn set(&mut self, step: &Step) -> Result<(), Error> {
        let error = |found: String, wanted: &str| Error::Shape {
            operation: "begin",
            found,
            wanted: wanted.to_owned(),
        };
        let mut next = 0;
        for span in &step.spans {
            if span.rows.start != next || span.rows.end < next {
                let found = format!("span {:?} after row {next}", span.rows);
                return Err(error(found, "spans cover the rows in order"));
            }
            next = span.rows.end;
            if span.position.checked_add(span.rows.len()).is_none_or(|end| end > 1 << 40) {
                let found = format!("position {}", span.position);
                return Err(error(found, "positions are below 2^40"));
            }
        }
        if next != step.tokens.len() {
            let found = format!("spans of {next} rows for {} tokens", step.tokens.len());
            return Err(error(found, "spans cover all rows"));
        }
        self.tokens.clone_from(&step.tokens);
        self.spans.clone_from(&step.spans);
        self.positions.clear();
        self.span_of.clear();
        for (index, span) in step.spans.iter().enumerate() {
            self.positions.extend(span.position..span.position + span.rows.len());
            self.span_of.extend(span.rows.clone().map(|_| index));
        }
        Ok(())
    }
}
