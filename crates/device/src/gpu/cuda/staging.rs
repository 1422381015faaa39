//! Uploads through pinned memory.
//!
//! A small upload (a step's table) takes the next of a ring of slots on the main stream and waits
//! for nobody. A large one (weights) is cut into pieces that several threads copy into slots of
//! their own and send on streams of their own, so that reading the source, which may be a mapped
//! file, overlaps with the bus. Either way the call is back as soon as the source was read.

use super::super::driver::Fill;
use super::context::{Context, Event, Pinned, Stream};
use crate::Error;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a small slot, and so the largest upload that is small.
const SMALL_BYTES: usize = 64 << 10;
/// Small uploads that may be on their way at once.
const SMALL_SLOTS: usize = 32;
/// Bytes of a piece of a large upload.
const PIECE_BYTES: usize = 4 << 20;
/// Most threads of a large upload: eight readers of a memory-backed file outrun a bus of 50 GB/s.
const LANES_MAX: usize = 8;
/// Pieces of a thread that may be on their way at once.
const LANE_SLOTS: usize = 2;

/// Pinned memory, and when it may be used again.
struct Slot {
    memory: Pinned,
    sent: Event,
}

impl Slot {
    fn new(context: &Context, bytes: usize) -> Result<Slot, Error> {
        Ok(Slot { memory: context.pinned(bytes)?, sent: context.event(false)? })
    }

    /// Waits for its last use, then copies and sends.
    fn send(
        &mut self,
        stream: &Stream,
        (to, bytes): (u64, usize),
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        self.sent.wait()?;
        self.memory.fill(bytes, fill);
        // SAFETY: `to` is the caller's allocation; the memory is written again only after `sent`.
        unsafe { stream.copy_in(to, &self.memory, bytes) }?;
        stream.record(&self.sent)
    }
}

/// A thread's stream and slots.
struct Lane {
    slots: Vec<Slot>,
    sent: Event,
    stream: Stream,
}

impl Lane {
    fn new(context: &Context) -> Result<Lane, Error> {
        let slots = (0..LANE_SLOTS).map(|_| Slot::new(context, PIECE_BYTES));
        let slots = slots.collect::<Result<_, _>>()?;
        Ok(Lane { slots, sent: context.event(false)?, stream: context.stream()? })
    }

    /// Sends pieces until none is left.
    fn send(
        &mut self,
        context: &Context,
        before: &Event,
        (to, bytes): (u64, usize),
        fill: &Fill<'_>,
        next: &AtomicUsize,
    ) -> Result<(), Error> {
        context.enter()?;
        self.stream.after(before)?;
        for turn in 0.. {
            let start = next.fetch_add(1, Ordering::Relaxed) * PIECE_BYTES;
            let Some(rest) = bytes.checked_sub(start).filter(|rest| *rest > 0) else { break };
            let piece = (to + start as u64, rest.min(PIECE_BYTES));
            self.slots[turn % LANE_SLOTS].send(&self.stream, piece, |to| fill(start, to))?;
        }
        self.stream.record(&self.sent)
    }
}

/// All pinned memory of a driver.
pub(super) struct Staging {
    small: Vec<Slot>,
    next_small: usize,
    /// Made at the first large upload.
    lanes: Vec<Lane>,
    /// Made at the first large download.
    down: Option<Slot>,
    /// Where the main stream was when a large upload began.
    before: Event,
}

impl Staging {
    pub(super) fn new(context: &Context) -> Result<Staging, Error> {
        let small = (0..SMALL_SLOTS).map(|_| Slot::new(context, SMALL_BYTES));
        let small = small.collect::<Result<_, _>>()?;
        let (lanes, before) = (Vec::new(), context.event(false)?);
        Ok(Staging { small, next_small: 0, lanes, down: None, before })
    }

    /// Copies to device memory, after everything on the main stream and before what follows.
    pub(super) fn upload(
        &mut self,
        context: &Context,
        main: &Stream,
        (to, bytes): (u64, usize),
        fill: &Fill<'_>,
    ) -> Result<(), Error> {
        if bytes <= SMALL_BYTES {
            let slot = &mut self.small[self.next_small];
            self.next_small = (self.next_small + 1) % SMALL_SLOTS;
            return slot.send(main, (to, bytes), |to| fill(0, to));
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = threads.min(LANES_MAX).min(bytes.div_ceil(PIECE_BYTES));
        while self.lanes.len() < wanted {
            self.lanes.push(Lane::new(context)?);
        }
        main.record(&self.before)?;
        let (next, before) = (AtomicUsize::new(0), &self.before);
        let lanes = &mut self.lanes[..wanted];
        let results: Vec<Result<(), Error>> = match lanes {
            [lane] => vec![lane.send(context, before, (to, bytes), fill, &next)],
            lanes => std::thread::scope(|scope| {
                let running: Vec<_> = lanes
                    .iter_mut()
                    .map(|lane| {
                        let next = &next;
                        scope.spawn(move || lane.send(context, before, (to, bytes), fill, next))
                    })
                    .collect();
                running
                    .into_iter()
                    .map(|thread| thread.join().expect("a lane returns its errors"))
                    .collect()
            }),
        };
        results.into_iter().collect::<Result<(), Error>>()?;
        for lane in &self.lanes[..wanted] {
            main.after(&lane.sent)?;
        }
        Ok(())
    }

    /// Copies from device memory through pinned memory.
    pub(super) fn download(
        &mut self,
        context: &Context,
        main: &Stream,
        from: u64,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let piece_bytes = if bytes.len() <= SMALL_BYTES { SMALL_BYTES } else { PIECE_BYTES };
        if piece_bytes == PIECE_BYTES && self.down.is_none() {
            self.down = Some(Slot::new(context, PIECE_BYTES)?);
        }
        for (piece, bytes) in bytes.chunks_mut(piece_bytes).enumerate() {
            let slot = match &mut self.down {
                Some(down) if piece_bytes == PIECE_BYTES => down,
                _ => {
                    self.next_small = (self.next_small + 1) % SMALL_SLOTS;
                    &mut self.small[self.next_small]
                }
            };
            slot.sent.wait()?;
            let from = from + (piece * piece_bytes) as u64;
            // SAFETY: `from` is the caller's allocation; the memory is read after the wait below.
            unsafe { main.copy_out(from, &slot.memory, bytes.len()) }?;
            main.wait()?;
            slot.memory.read(bytes);
        }
        Ok(())
    }
}
