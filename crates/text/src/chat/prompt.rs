//! A prompt under construction.

use std::borrow::Cow;

use super::texts::TEXT_MARKERS;
use crate::Segment;

/// Segments in order; neighbouring texts are one segment, empty ones none.
#[derive(Default)]
pub(super) struct Prompt {
    segments: Vec<Segment>,
}

impl Prompt {
    /// A control token.
    pub(super) fn special(&mut self, marker: &'static str) {
        self.segments.push(Segment::Special(Cow::Borrowed(marker)));
    }

    /// Text from outside, whatever it says.
    pub(super) fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.segments.last_mut() {
            Some(Segment::Text(last)) => last.push_str(text),
            _ => self.segments.push(Segment::Text(text.to_owned())),
        }
    }

    /// A piece of an earlier prompt or answer.
    pub(super) fn segment(&mut self, segment: Segment) {
        match segment {
            Segment::Text(text) => self.text(&text),
            special @ Segment::Special(_) => self.segments.push(special),
        }
    }

    /// A fixed text of this program, in which markers are control tokens.
    pub(super) fn fixed(&mut self, text: &'static str) {
        let mut rest = text;
        while let Some((at, marker)) = TEXT_MARKERS
            .iter()
            .filter_map(|marker| Some((rest.find(marker)?, *marker)))
            .min_by_key(|&(at, _)| at)
        {
            self.text(&rest[..at]);
            self.special(marker);
            rest = &rest[at + marker.len()..];
        }
        self.text(rest);
    }

    pub(super) fn finish(self) -> Vec<Segment> {
        self.segments
    }
}
