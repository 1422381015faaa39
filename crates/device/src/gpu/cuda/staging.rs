//! Copies through pinned memory.
//!
//! A small upload (a step's table) takes the next of a ring of slots on the main stream and waits
//! for nobody. A large one (weights) is cut into pieces that several threads copy into slots of
//! their own and send on streams of their own, so that reading the source, which may be a mapped
//! file, overlaps with the bus. Either way the call is back as soon as the source was read.
//!
//! Downloads are back when all is there; the same threads lay down large ones.

use super::super::driver::{Address, Fill};
use super::context::{Context, Event, Pinned, Stream};
use crate::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

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

/// Bytes that a lane fetches at a time of a large download, no more than a piece's.
const LOAD_BYTES: usize = 1 << 20;
/// What ranges begin at a multiple of in a load.
const RANGE_ALIGN: usize = 64;

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

    /// Fetches loads, and lays them down, until none is left.
    fn receive(
        &self,
        context: &Context,
        before: &Event,
        loads: &Mutex<std::vec::IntoIter<Load<'_>>>,
    ) -> Result<(), Error> {
        context.enter()?;
        self.stream.after(before)?;
        let slot = &self.slots[0];
        loop {
            let next = loads.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(load) = next else { return Ok(()) };
            slot.sent.wait()?;
            for copy in &load.copies {
                // SAFETY: the ranges are the caller's allocations; the slot's last use was waited
                // for, and this one is read after the wait below.
                unsafe { self.stream.copy_out(copy.from, (&slot.memory, copy.at), copy.bytes) }?;
            }
            self.stream.record(&slot.sent)?;
            slot.sent.wait()?;
            for (at, place) in load.places {
                place.copy_from_slice(&slot.memory.read()[at..][..place.len()]);
            }
        }
    }
}

/// All pinned memory of a driver.
pub(super) struct Staging {
    small: Vec<Slot>,
    next_small: usize,
    /// Made as large copies want them.
    lanes: Vec<Lane>,
    /// Where the main stream was when a large copy began.
    before: Event,
}

impl Staging {
    pub(super) fn new(context: &Context) -> Result<Staging, Error> {
        let small = (0..SMALL_SLOTS).map(|_| Slot::new(context, SMALL_BYTES));
        let small = small.collect::<Result<_, _>>()?;
        Ok(Staging { small, next_small: 0, lanes: Vec::new(), before: context.event(false)? })
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
        let next = AtomicUsize::new(0);
        let work =
            |lane: &mut Lane, before: &Event| lane.send(context, before, (to, bytes), fill, &next);
        let lanes = self.in_lanes(context, main, bytes.div_ceil(PIECE_BYTES), &work)?;
        for lane in lanes {
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
            return self.download_all(context, main, vec![(Address(from), vec![bytes])]);
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

    /// Copies many ranges through pinned memory, each cut to its places.
    pub(super) fn download_all(
        &mut self,
        context: &Context,
        main: &Stream,
        ranges: Vec<(Address, Vec<&mut [u8]>)>,
    ) -> Result<(), Error> {
        let loads = loads(ranges);
        let (count, loads) = (loads.len(), Mutex::new(loads.into_iter()));
        let work = |lane: &mut Lane, before: &Event| lane.receive(context, before, &loads);
        self.in_lanes(context, main, count, &work).map(drop)
    }

    /// Gives work to as many lanes as there are shares of it, and gives them back when all is done.
    /// What they send is after everything on the main stream.
    fn in_lanes(
        &mut self,
        context: &Context,
        main: &Stream,
        shares: usize,
        work: &(dyn Fn(&mut Lane, &Event) -> Result<(), Error> + Sync),
    ) -> Result<&[Lane], Error> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = threads.min(LANES_MAX).min(shares);
        while self.lanes.len() < wanted {
            self.lanes.push(Lane::new(context)?);
        }
        main.record(&self.before)?;
        let before = &self.before;
        match &mut self.lanes[..wanted] {
            [lane] => work(lane, before)?,
            lanes => std::thread::scope(|scope| {
                let start = |lane| scope.spawn(move || work(lane, before));
                let running: Vec<_> = lanes.iter_mut().map(start).collect();
                // All of them end before the first error is told.
                let ended: Vec<Result<(), Error>> = running
                    .into_iter()
                    .map(|thread| thread.join().expect("a lane returns its errors"))
                    .collect();
                ended.into_iter().collect::<Result<(), Error>>()
            })?,
        }
        Ok(&self.lanes[..wanted])
    }
}

/// Bytes that come in one go, and where they come to in a slot.
struct Fetch {
    from: u64,
    at: usize,
    bytes: usize,
}

/// What a slot takes, and the places that it goes to.
#[derive(Default)]
struct Load<'b> {
    copies: Vec<Fetch>,
    places: Vec<(usize, &'b mut [u8])>,
}

/// Ranges cut into loads, in their order.
fn loads(ranges: Vec<(Address, Vec<&mut [u8]>)>) -> Vec<Load<'_>> {
    let (mut loads, mut load, mut at) = (Vec::new(), Load::default(), 0usize);
    for (Address(mut from), places) in ranges {
        at = at.next_multiple_of(RANGE_ALIGN);
        // Whether what comes next goes on where the last copy ends.
        let mut is_open = false;
        for mut place in places {
            while !place.is_empty() {
                if at == LOAD_BYTES {
                    loads.push(std::mem::take(&mut load));
                    (at, is_open) = (0, false);
                }
                let own = place.split_off_mut(..place.len().min(LOAD_BYTES - at)).expect("so much");
                let bytes = own.len();
                match load.copies.last_mut() {
                    Some(last) if is_open => last.bytes += bytes,
                    _ => load.copies.push(Fetch { from, at, bytes }),
                }
                load.places.push((at, own));
                (from, at, is_open) = (from + bytes as u64, at + bytes, true);
            }
        }
    }
    loads.extend((!load.copies.is_empty()).then_some(load));
    loads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_into_loads() {
        let most = LOAD_BYTES;
        let mut room = vec![0; most + 100];
        let mut rest = &mut room[..];
        let mut place = |bytes: usize| rest.split_off_mut(..bytes).expect("there is room");
        let ranges = vec![
            (Address(0), vec![place(5), place(0), place(2)]),
            (Address(100), vec![place(most)]),
            (Address(9), vec![place(0)]),
            (Address(50), vec![place(3)]),
        ];
        let found = loads(ranges);
        let copies: Vec<Vec<_>> = found
            .iter()
            .map(|load| load.copies.iter().map(|c| (c.from, c.at, c.bytes)).collect())
            .collect();
        let first = most - RANGE_ALIGN;
        let rest = 100 + first as u64;
        assert_eq!(
            copies,
            [
                [(0, 0, 7), (100, RANGE_ALIGN, first)],
                [(rest, 0, RANGE_ALIGN), (50, RANGE_ALIGN, 3)]
            ]
        );
        let places: Vec<Vec<_>> = found
            .iter()
            .map(|load| load.places.iter().map(|(at, place)| (*at, place.len())).collect())
            .collect();
        assert_eq!(places[0], [(0, 5), (5, 2), (RANGE_ALIGN, first)]);
        assert_eq!(places[1], [(0, RANGE_ALIGN), (RANGE_ALIGN, 3)]);
        assert!(loads(vec![]).is_empty());
    }
}
