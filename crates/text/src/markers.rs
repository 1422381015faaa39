//! Control tokens by their text.

/// Control tokens, sorted by text.
pub(crate) struct Markers {
    sorted: Vec<(Box<[u8]>, u32)>,
    /// Whether a marker starts with a byte: most bytes of a text can be skipped by it.
    starts: [bool; 256],
}

impl Markers {
    pub(crate) fn new<'a>(markers: impl Iterator<Item = (&'a [u8], u32)>) -> Self {
        let mut sorted: Vec<(Box<[u8]>, u32)> = markers
            .filter(|(text, _)| !text.is_empty())
            .map(|(text, id)| (text.into(), id))
            .collect();
        sorted.sort_unstable();
        let mut starts = [false; 256];
        for (text, _) in &sorted {
            starts[usize::from(text[0])] = true;
        }
        Self { sorted, starts }
    }

    pub(crate) fn get(&self, text: &[u8]) -> Option<u32> {
        let at = self.sorted.binary_search_by(|(marker, _)| (**marker).cmp(text)).ok()?;
        Some(self.sorted[at].1)
    }

    /// The first marker in a text, the longest of those that start there: start, end and id.
    pub(crate) fn find(&self, text: &[u8]) -> Option<(usize, usize, u32)> {
        (0..text.len()).filter(|&at| self.starts[usize::from(text[at])]).find_map(|start| {
            let (len, id) = self.longest_prefix(&text[start..])?;
            Some((start, start + len, id))
        })
    }

    /// The longest marker that the text starts with: its length and id.
    fn longest_prefix(&self, text: &[u8]) -> Option<(usize, u32)> {
        let mut found = None;
        let mut candidates = self.sorted.as_slice();
        // Narrow the sorted list by one byte at a time. The texts share their first `len` bytes,
        // so the one that ends there, if any, comes first.
        for len in 0..=text.len() {
            match candidates.first() {
                None => break,
                Some((marker, id)) if marker.len() == len => {
                    found = Some((len, *id));
                    candidates = &candidates[1..];
                }
                Some(_) => {}
            }
            let Some(&byte) = text.get(len) else { break };
            let from = candidates.partition_point(|(marker, _)| marker[len] < byte);
            let to = candidates.partition_point(|(marker, _)| marker[len] <= byte);
            candidates = &candidates[from..to];
        }
        found
    }
}
