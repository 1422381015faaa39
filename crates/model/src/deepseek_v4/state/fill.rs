//! States for measurements: random rows up to a position that nobody has read, and what a token
//! there would read of them.

use super::{Part, Piece, State, compressors};
use crate::Error;
use ironstar_device::{Backend, Element};

/// Elements of the random tile that rows are cut from.
const TILE: usize = 1 << 16;
/// E8M0 scales of random indexer rows: 1/2, 1, 2.
const SCALES: [u8; 3] = [126, 127, 128];

impl State {
    /// Goes to a position as if that many tokens had been read, with random rows of about unit
    /// size in every buffer: for measuring speed at a depth that takes hours to reach. What
    /// follows is arithmetic on noise.
    pub fn fill_random(
        &mut self,
        backend: &mut dyn Backend,
        position: usize,
        seed: u64,
    ) -> Result<(), Error> {
        if position > self.context {
            return Err(Error::Context { wanted: position, context: self.context });
        }
        self.forget();
        self.truncate(0)?;
        let mut random = Random(seed);
        let mut away = Vec::new();
        for piece in self.pieces(position, 0) {
            let tile = tile(piece.buffer.element, &mut random);
            let is_here = self.kept.holds(piece.stage);
            let mut put = |backend: &mut dyn Backend, offset: usize, bytes: &[u8]| {
                if is_here {
                    return Ok(backend.write(piece.buffer, offset, bytes)?);
                }
                away.extend_from_slice(bytes);
                Ok(())
            };
            fill_piece(backend, &piece, &tile, (&mut random, &mut put))?;
        }
        self.write_away(Part::Whole(position), &away)?;
        (self.position, self.floor, self.written) = (position, position, position);
        Ok(())
    }

    /// Bytes that [`State::save`] gives at the position, its header aside.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.pieces(self.position, 0).iter().map(|piece| piece.bytes() as u64).sum()
    }

    /// Bytes of rows that the token at the position reads: windows, the rows that it attends to,
    /// and all rows that an indexer scores.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        let shape = &self.kept.shape;
        let mut bytes = 0;
        for (layer, state) in self.layers.iter().enumerate() {
            let row = |element: Element| shape.head_width * element.bytes();
            let window = (self.position + 1).min(shape.window);
            bytes += window * row(state.ring.element);
            let [keys, index] = compressors(shape, &self.kept.options, layer, self.context);
            let Some(keys) = keys else { continue };
            let rows = self.position / keys.ratio;
            let attended = if index.is_some() { rows.min(shape.index_top_k) } else { rows };
            bytes += attended * row(keys.element);
            bytes += index.map_or(0, |i| rows * i.row_elements() * i.element.bytes());
        }
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// Takes elements from an offset of a buffer on.
type Put<'a> = dyn FnMut(&mut dyn Backend, usize, &[u8]) -> Result<(), Error> + 'a;

fn fill_piece(
    backend: &mut dyn Backend,
    piece: &Piece,
    tile: &[u8],
    (random, put): (&mut Random, &mut Put<'_>),
) -> Result<(), Error> {
    let size = piece.buffer.element.bytes();
    let mut done = 0;
    while done < piece.len {
        let start = usize::try_from(random.next() % (TILE as u64)).unwrap_or(0);
        let count = (TILE - start).min(piece.len - done);
        let bytes = &tile[start * size..(start + count) * size];
        put(backend, piece.offset + done, bytes)?;
        done += count;
    }
    Ok(())
}

/// Little-endian elements: floats of unit size, or rows of FP4 codes.
fn tile(element: Element, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(TILE * element.bytes());
    for _ in 0..TILE {
        match element {
            Element::F32 => bytes.extend(random.unit().to_le_bytes()),
            // The upper half of an f32 is a bf16.
            Element::Bf16 => bytes.extend(&random.unit().to_le_bytes()[2..]),
            Element::U32 => bytes.extend([0; 4]),
            Element::Fp4Row => {
                for _ in 0..8 {
                    bytes.extend(random.next().to_le_bytes());
                }
                let drawn = random.next().to_le_bytes();
                bytes.extend(drawn.iter().take(4).map(|byte| SCALES[usize::from(byte % 3)]));
            }
        }
    }
    bytes
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Evenly from -1.73 to 1.73: mean 0, mean square 1.
    fn unit(&mut self) -> f32 {
        let bits = u16::try_from(self.next() >> 48).unwrap_or(0);
        (f32::from(bits) / 32_768.0 - 1.0) * 3f32.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Tiny;
    use crate::{LogitsFor, Model, Options};
    use ironstar_device::{Cpu, CpuConfig, Step};

    /// A filled state is one that steps follow, equal seeds give equal bytes, and it is as large
    /// as a state that was read.
    #[test]
    fn a_filled_state_goes_on_like_a_read_one() {
        let (gguf, mut cpu) =
            (Tiny::small(7).gguf(), Cpu::new(CpuConfig::default()).expect("a processor"));
        let mut model = Model::load(&gguf, None, &mut cpu, Options::default(), &mut |_| {})
            .expect("a tiny model");
        let mut at = |position: usize, seed| {
            let mut state = model.new_state(&mut cpu, 300).expect("room");
            state.fill_random(&mut cpu, position, seed).expect("inside the context");
            let saved = state.save(&mut cpu).expect("readable");
            let step = Step::single(&[3], position);
            let logits = model
                .forward(&mut cpu, &step, &mut [&mut state], LogitsFor::Last)
                .expect("a step at the filled position");
            model.commit(&mut state, 1).expect("one row");
            assert_eq!(state.position(), position + 1);
            (saved, logits.row(0).to_vec())
        };
        let (first, again, other) = (at(250, 1), at(250, 1), at(250, 2));
        assert_eq!(first, again);
        assert_ne!(first.1, other.1);
        assert!(first.1.iter().all(|logit| logit.is_finite()));
        let mut state = model.new_state(&mut cpu, 300).expect("room");
        assert!(state.fill_random(&mut cpu, 301, 1).is_err());
        let ids: Vec<u32> = (0..250).map(|i| i % 9).collect();
        let step = Step::single(&ids, 0);
        model.forward(&mut cpu, &step, &mut [&mut state], LogitsFor::None).expect("a prompt");
        model.commit(&mut state, 250).expect("all rows");
        assert_eq!(state.save(&mut cpu).expect("readable").len(), first.0.len());
        assert!(state.live_bytes() > 0 && state.live_bytes() < first.0.len() as u64);
        let read = state.read_bytes();
        state.truncate(0).expect("0 is in reach");
        assert!(state.read_bytes() < read);
    }
}
