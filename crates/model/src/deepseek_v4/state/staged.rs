//! Parts of a state in and out, wherever they are: here, or on the other nodes of a pipeline, which
//! have the layers that this one has not. The bytes are those of one machine, whatever the cut.

use super::{BLOCK_TOKENS, Part, Piece, State, read_pieces, runs, write_pieces};
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

    /// Bytes of a part behind so many zeros, those of other nodes between this one's.
    pub(super) fn read_part(
        &self,
        backend: &mut dyn Backend,
        part: Part,
        header_bytes: usize,
    ) -> Result<Vec<u8>, Error> {
        let pieces = self.pieces_of(part);
        let Some(pipe) = self.led() else { return read_pieces(backend, &pieces, header_bytes) };
        let away = pipe.save(self, &self.kept.meeting(), part, &sizes(&pieces, pipe))?;
        let mut rests: Vec<&[u8]> = away.iter().map(Vec::as_slice).collect();
        let total: usize = pieces.iter().map(Piece::bytes).sum();
        let mut bytes = vec![0; header_bytes];
        bytes.reserve(total);
        for piece in &pieces {
            let (at, size) = (bytes.len(), piece.bytes());
            if piece.stage == pipe.stage {
                bytes.resize(at + size, 0);
                backend.read(piece.buffer, piece.offset, &mut bytes[at..])?;
            } else {
                let (now, later) = rests[piece.stage].split_at(size);
                bytes.extend_from_slice(now);
                rests[piece.stage] = later;
            }
        }
        Ok(bytes)
    }

    /// Bytes of blocks, each as [`State::read_part`] gives them.
    pub(super) fn read_blocks(
        &self,
        backend: &mut dyn Backend,
        blocks: Range<usize>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        if self.led().is_some() {
            return blocks.map(|block| self.read_part(backend, Part::Block(block), 0)).collect();
        }
        let (count, pieces) = (blocks.len(), self.block_pieces(blocks));
        // Every piece has as many bytes of each block.
        let each: Vec<usize> = pieces.iter().map(|piece| piece.bytes() / count).collect();
        let mut all = vec![Vec::with_capacity(each.iter().sum()); count];
        let (mut now, mut block, mut missing) = (usize::MAX, 0, 0);
        backend.read_each(&runs(&pieces), &mut |piece, mut part| {
            if piece != now {
                (now, block, missing) = (piece, 0, each[piece]);
            }
            while !part.is_empty() {
                if missing == 0 {
                    (block, missing) = (block + 1, each[piece]);
                }
                let (own, later) = part.split_at(part.len().min(missing));
                all[block].extend_from_slice(own);
                missing -= own.len();
                part = later;
            }
        })?;
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
        read_pieces(backend, &self.own(part)?, 0)
    }

    /// How many they are.
    pub(in crate::deepseek_v4) fn mine_bytes(&self, part: Part) -> Result<usize, Error> {
        Ok(self.own(part)?.iter().map(Piece::bytes).sum())
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
