//! Parts of a state in and out, wherever they are: here, or on the other nodes of a pipeline, which
//! have the layers that this one has not. The bytes are those of one machine, whatever the cut.

use super::{BLOCK_TOKENS, Part, Piece, Room, State, bytes_of, cut, read_pieces, write_pieces};
use crate::Error;
use crate::deepseek_v4::pipeline::Pipe;
use ironstar_device::Backend;
use std::ops::Range;

impl State {
    pub(super) fn pieces_of(&self, part: Part) -> Vec<Piece> {
        match part {
            Part::Whole(position) => self.pieces(position, 0),
            Part::Block(block) => self.block_pieces(block..block + 1),
            Part::Checkpoint(position) => {
                self.pieces(position, position / BLOCK_TOKENS * BLOCK_TOKENS)
            }
        }
    }

    /// Rank 0's pipeline.
    fn led(&self) -> Option<&Pipe> {
        self.kept.pipe.as_ref().filter(|pipe| pipe.stage == 0)
    }

    /// Before it changes from outside: ranks that have all of it must be told again. Nodes of a
    /// pipeline get their parts of the change.
    pub(super) fn forget(&self) {
        if self.kept.pipe.is_none() {
            self.shared.known.forget();
        }
    }

    /// Reads a part into as many bytes, those of other nodes between this one's.
    pub(super) fn read_part(
        &self,
        backend: &mut dyn Backend,
        part: Part,
        mut into: &mut [u8],
    ) -> Result<(), Error> {
        let pieces = self.pieces_of(part);
        let Some(pipe) = self.led() else { return read_pieces(backend, &pieces, into) };
        let away = pipe.save(self, &self.kept.meeting(), part, &sizes(&pieces, pipe))?;
        let mut rests: Vec<&[u8]> = away.iter().map(Vec::as_slice).collect();
        for piece in &pieces {
            let place = cut(&mut into, piece.bytes());
            if piece.stage == pipe.stage {
                backend.read(piece.buffer, piece.offset, place)?;
            } else {
                let (now, later) = rests[piece.stage].split_at(place.len());
                place.copy_from_slice(now);
                rests[piece.stage] = later;
            }
        }
        Ok(())
    }

    /// Bytes of blocks, each as [`State::read_part`] gives them.
    pub(super) fn read_blocks(
        &self,
        backend: &mut dyn Backend,
        blocks: Range<usize>,
        room: Room<'_>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let total = self.block_bytes();
        let mut all: Vec<Vec<u8>> = blocks.clone().map(|_| room(total)).collect();
        if self.led().is_some() {
            for (block, bytes) in blocks.zip(&mut all) {
                self.read_part(backend, Part::Block(block), bytes)?;
            }
            return Ok(all);
        }
        let (count, pieces) = (blocks.len(), self.block_pieces(blocks));
        let mut rests: Vec<&mut [u8]> = all.iter_mut().map(Vec::as_mut_slice).collect();
        // Every piece has as many bytes of each block.
        let run = |piece: &Piece| {
            let each = piece.bytes() / count;
            piece.run(rests.iter_mut().map(|rest| cut(rest, each)).collect())
        };
        backend.read_all(pieces.iter().map(run).collect())?;
        Ok(all)
    }

    /// Puts a part where it belongs; its size was checked.
    pub(super) fn write_part(
        &self,
        backend: &mut dyn Backend,
        part: Part,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let pieces = self.pieces_of(part);
        let Some(pipe) = self.led() else { return write_pieces(backend, &pieces, bytes) };
        super::check_size(&pieces, bytes)?;
        let (mut rest, mut away) = (bytes, Vec::new());
        for piece in &pieces {
            let (now, later) = rest.split_at(piece.bytes());
            if piece.stage == pipe.stage {
                backend.write(piece.buffer, piece.offset, now)?;
            } else {
                away.extend_from_slice(now);
            }
            rest = later;
        }
        self.write_away(part, &away)
    }

    /// Gives the other nodes their pieces of a part, which stand one behind the other.
    pub(super) fn write_away(&self, part: Part, bytes: &[u8]) -> Result<(), Error> {
        let Some(pipe) = self.led() else { return Ok(()) };
        let mut theirs = vec![Vec::new(); pipe.stages.count()];
        let mut rest = bytes;
        for piece in self.pieces_of(part).iter().filter(|piece| piece.stage != pipe.stage) {
            let (now, later) = rest.split_at(piece.bytes());
            theirs[piece.stage].extend_from_slice(now);
            rest = later;
        }
        pipe.load(self, &self.kept.meeting(), part, &theirs)
    }

    /// On a node that follows: this node's bytes of a part.
    pub(in crate::deepseek_v4) fn mine(
        &self,
        backend: &mut dyn Backend,
        part: Part,
    ) -> Result<Vec<u8>, Error> {
        let pieces = self.own(part)?;
        let mut bytes = vec![0; bytes_of(&pieces)];
        read_pieces(backend, &pieces, &mut bytes)?;
        Ok(bytes)
    }

    /// How many they are.
    pub(in crate::deepseek_v4) fn mine_bytes(&self, part: Part) -> Result<usize, Error> {
        Ok(bytes_of(&self.own(part)?))
    }

    /// On a node that follows: takes this node's bytes of a part.
    pub(in crate::deepseek_v4) fn take_mine(
        &mut self,
        backend: &mut dyn Backend,
        part: Part,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let pieces = self.own(part)?;
        let moves_to = match part {
            Part::Whole(position) | Part::Checkpoint(position) => Some(position),
            Part::Block(_) => None,
        };
        if moves_to.is_some() {
            self.truncate(0)?;
        }
        write_pieces(backend, &pieces, bytes)?;
        if let Some(position) = moves_to {
            (self.position, self.floor, self.written) = (position, position, position);
        }
        Ok(())
    }

    /// This node's pieces of a part, which must lie inside of the context: it was told by another.
    fn own(&self, part: Part) -> Result<Vec<Piece>, Error> {
        let end = match part {
            Part::Whole(position) | Part::Checkpoint(position) => position,
            Part::Block(block) => block.saturating_add(1).saturating_mul(BLOCK_TOKENS),
        };
        self.check_part(end)?;
        let mut pieces = self.pieces_of(part);
        pieces.retain(|piece| self.kept.holds(piece.stage));
        Ok(pieces)
    }
}

/// Bytes that each node has of the pieces.
fn sizes(pieces: &[Piece], pipe: &Pipe) -> Vec<usize> {
    let mut sizes = vec![0; pipe.stages.count()];
    pieces.iter().for_each(|piece| sizes[piece.stage] += piece.bytes());
    sizes
}
