//! Uploads through pinned memory.
//!
//! A small upload (a step's table) takes the next of a ring of slots on the main stream and waits
//! for nobody. A large one (weights) is cut into pieces that several threads copy into slots of
//! their own and send on streams of their own, so that reading the source, which may be a mapped
//! file, overlaps with the bus. Either way the call is back as soon as the source was read.

use super::super::driver::{Address, Fill};
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

/// Slots of large downloads, which are as large as pieces.
const DOWN_SLOTS: usize = 2;
/// What parts of a slot begin at a multiple of.
const PART_ALIGN: usize = 64;

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
    down: Vec<Slot>,
    /// Where the main stream was when a large upload began.
    before: Event,
}

impl Staging {
    pub(super) fn new(context: &Context) -> Result<Staging, Error> {
        let small = (0..SMALL_SLOTS).map(|_| Slot::new(context, SMALL_BYTES));
        let small = small.collect::<Result<_, _>>()?;
        let (lanes, down, before) = (Vec::new(), Vec::new(), context.event(false)?);
        Ok(Staging { small, next_small: 0, lanes, down, before })
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
        if bytes.len() > SMALL_BYTES {
            let (whole, mut at) = ([(Address(from), bytes.len())], 0);
            return self.download_each(context, main, &whole, &mut |_, part| {
                bytes[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            });
        }
        self.next_small = (self.next_small + 1) % SMALL_SLOTS;
        let slot = &self.small[self.next_small];
        slot.sent.wait()?;
        // SAFETY: `from` is the caller's allocation; the memory is read after the wait below.
        unsafe { main.copy_out(from, (&slot.memory, 0), bytes.len()) }?;
        main.wait()?;
        bytes.copy_from_slice(&slot.memory.read()[..bytes.len()]);
        Ok(())
    }

    /// Copies many ranges, as many at once as a slot has room for; while those of one slot are
    /// given out, the next ones come to the other.
    pub(super) fn download_each(
        &mut self,
        context: &Context,
        main: &Stream,
        ranges: &[(Address, usize)],
        take: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        while self.down.len() < DOWN_SLOTS {
            self.down.push(Slot::new(context, PIECE_BYTES)?);
        }
        let loads = loads(ranges);
        for turn in 0..=loads.len() {
            if let Some(load) = loads.get(turn) {
                let slot = &self.down[turn % DOWN_SLOTS];
                for part in load {
                    // SAFETY: the ranges are the caller's allocations; the slot's last load was
                    // waited for, and this one is read after the wait below.
                    unsafe { main.copy_out(part.from, (&slot.memory, part.at), part.bytes) }?;
                }
                main.record(&slot.sent)?;
            }
            let Some(before) = turn.checked_sub(1) else { continue };
            let slot = &self.down[before % DOWN_SLOTS];
            slot.sent.wait()?;
            for part in &loads[before] {
                take(part.range, &slot.memory.read()[part.at..][..part.bytes]);
            }
        }
        Ok(())
    }
}

/// A part of a range, and where it comes to in a slot.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    range: usize,
    from: u64,
    at: usize,
    bytes: usize,
}

/// Ranges cut into loads of a slot, in their order.
fn loads(ranges: &[(Address, usize)]) -> Vec<Vec<Part>> {
    let (mut loads, mut load, mut at) = (Vec::new(), Vec::new(), 0);
    for (range, (from, bytes)) in ranges.iter().enumerate() {
        let mut done = 0;
        while done < *bytes {
            if at == PIECE_BYTES {
                loads.push(std::mem::take(&mut load));
                at = 0;
            }
            let now = (bytes - done).min(PIECE_BYTES - at);
            load.push(Part { range, from: from.0 + done as u64, at, bytes: now });
            done += now;
            at = (at + now).next_multiple_of(PART_ALIGN);
        }
    }
    loads.extend((!load.is_empty()).then_some(load));
    loads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_into_loads() {
        let part = |range, from: usize, at, bytes| Part { range, from: from as u64, at, bytes };
        let most = PIECE_BYTES;
        let ranges = [(Address(0), 5), (Address(100), most), (Address(9), 0), (Address(50), 3)];
        let first = most - PART_ALIGN;
        let wanted = vec![
            vec![part(0, 0, 0, 5), part(1, 100, PART_ALIGN, first)],
            vec![part(1, 100 + first, 0, PART_ALIGN), part(3, 50, PART_ALIGN, 3)],
        ];
        assert_eq!(loads(&ranges), wanted);
        assert_eq!(loads(&[(Address(7), most)]), [[part(0, 7, 0, most)]]);
        assert!(loads(&[]).is_empty());
    }
}
