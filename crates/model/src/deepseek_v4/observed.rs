//! What an observer is shown of a pass. Without one nothing is read.

use super::forward::{Pass, Run};
use super::weights::parts;
use crate::{At, Error, What};
use ironstar_device::{Buffer, Element, Span};
use ironstar_quant::fp4;

impl Pass<'_> {
    /// Whether somebody looks here.
    fn is_seen(&self, what: What) -> bool {
        self.observer.as_deref().is_some_and(|observer| observer.wants(what))
    }

    /// Shows rows of floats, which the observer may change.
    pub fn observe(&mut self, at: At, buffer: Buffer, width: usize) -> Result<(), Error> {
        if !self.is_seen(at.what) {
            return Ok(());
        }
        let mut values = vec![0.0; self.rows * width];
        self.backend.read_f32(buffer, 0, &mut values)?;
        let Some(observer) = self.observer.as_deref_mut() else { return Ok(()) };
        if observer.floats(at, width, &mut values) {
            if self.part.ranks > 1 {
                return Err(Error::Ranks {
                    ranks: self.part.ranks,
                    found: "an observer that changes what it sees".into(),
                    wanted: "only one rank can do that, since the others do not see it".into(),
                });
            }
            self.backend.write_f32(buffer, 0, &values)?;
        }
        Ok(())
    }

    /// Shows rows of ids.
    pub fn observe_ids(&mut self, at: At, buffer: Buffer, width: usize) -> Result<(), Error> {
        if !self.is_seen(at.what) {
            return Ok(());
        }
        let mut bytes = vec![0; self.rows * width * 4];
        self.backend.read(buffer, 0, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        let ids: Vec<u32> = words.iter().map(|&word| u32::from_le_bytes(word)).collect();
        let Some(observer) = self.observer.as_deref_mut() else { return Ok(()) };
        observer.ids(at, width, &ids);
        Ok(())
    }

    /// Products that the compressor and the indexer start from.
    pub fn observe_inputs(&mut self, run: &Run) -> Result<(), Error> {
        let (shape, s) = (self.shape, self.scratch);
        let at = |what| At { layer: run.layer, what };
        if !run.compressors.is_empty() {
            let width = parts(run.ratio) * shape.head_width;
            self.observe(at(What::CompressorValues), s.values, width)?;
            self.observe(at(What::CompressorScores), s.scores, width)?;
        }
        if !run.indexes.is_empty() {
            let width = shape.index_heads * shape.index_width;
            self.observe(at(What::IndexQueries), s.index_q, width)?;
        }
        Ok(())
    }

    /// Queries and key/value rows, as attention takes them.
    pub fn observe_rows(&mut self, run: &Run) -> Result<(), Error> {
        let (shape, s) = (self.shape, self.scratch);
        let heads = shape.heads / self.part.ranks;
        let at = |what| At { layer: run.layer, what };
        self.observe(at(What::Queries), s.q, heads * shape.head_width)?;
        if !self.is_seen(What::KvRows) {
            return Ok(());
        }
        // They are kept as the state is, so nobody may change them here.
        let mut rows = self.floats(s.kv, 0, self.rows * shape.head_width)?;
        if let Some(observer) = self.observer.as_deref_mut() {
            observer.floats(at(What::KvRows), shape.head_width, &mut rows);
        }
        Ok(())
    }

    /// Rows that the step has closed.
    pub fn observe_compressed(&mut self, run: &Run) -> Result<(), Error> {
        let at = |what| At { layer: run.layer, what };
        if !run.compressors.is_empty() && self.is_seen(What::CompressedRows) {
            let width = self.shape.head_width;
            let mut all = Vec::new();
            for (state, (first, count)) in run.compressors.iter().zip(self.closed(run.ratio)) {
                all.extend(self.floats(state.rows, first * width, count * width)?);
            }
            if let Some(observer) = self.observer.as_deref_mut() {
                observer.floats(at(What::CompressedRows), width, &mut all);
            }
        }
        if !run.indexes.is_empty() && self.is_seen(What::IndexRows) {
            let width = self.shape.index_width;
            let mut all = Vec::new();
            for (state, (first, count)) in run.indexes.iter().zip(self.closed(run.ratio)) {
                // An FP4 row is one element.
                let row = if state.rows.element == Element::Fp4Row { 1 } else { width };
                all.extend(self.floats(state.rows, first * row, count * row)?);
            }
            if let Some(observer) = self.observer.as_deref_mut() {
                observer.floats(at(What::IndexRows), width, &mut all);
            }
        }
        Ok(())
    }

    /// First group that each span of the step closes, and how many.
    fn closed(&self, ratio: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let of = |span: &Span| {
            let (from, to) = (span.position, span.position + span.rows.len());
            (from / ratio, to / ratio - from / ratio)
        };
        self.spans.iter().map(of).collect::<Vec<_>>().into_iter()
    }

    /// Elements of a buffer as floats.
    fn floats(&mut self, buffer: Buffer, first: usize, count: usize) -> Result<Vec<f32>, Error> {
        let mut bytes = vec![0; count * buffer.element.bytes()];
        self.backend.read(buffer, first, &mut bytes)?;
        Ok(match buffer.element {
            Element::Bf16 => {
                let (halves, _) = bytes.as_chunks::<2>();
                let widen = |half: &[u8; 2]| u32::from(u16::from_le_bytes(*half)) << 16;
                halves.iter().map(|half| f32::from_bits(widen(half))).collect()
            }
            Element::Fp4Row => {
                let (rows, _) = bytes.as_chunks::<{ fp4::INDEXER_BYTES }>();
                let mut values = vec![0.0; rows.len() * fp4::INDEXER_DIMS];
                let (decoded, _) = values.as_chunks_mut::<{ fp4::INDEXER_DIMS }>();
                rows.iter().zip(decoded).for_each(|(row, out)| fp4::decode_row(row, out));
                values
            }
            _ => bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect(),
        })
    }
}
