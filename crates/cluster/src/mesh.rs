//! The gates of one epoch: every rank sends its part to every other, and all parts are put in rank
//! order. Direct exchange: one hop, whatever the number of ranks.
//!
//! A gate larger than a message is cut into parts that follow each other under the window of
//! [`Flow`]. Any error breaks the epoch, and the first one is what every later call says.

use crate::flow::Flow;
use crate::link::{Link, LinkError};
use crate::message::{Damage, HEADER_BYTES, Header, copy_payload, payload_sum};
use crate::pace::{Next, Pace, Waiting};
use crate::profile::{GateProfile, GateTimes, Recorder};
use crate::watch::Watch;
use ironstar_device::{ExchangeError, GateCounts, GateKind};
use std::time::{Duration, Instant};

/// Most bytes of one broadcast: commands of a step with their tokens are far below.
pub const BROADCAST_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long a closed link waits for the control connection to say why.
const REASON: Duration = Duration::from_millis(100);

/// How a mesh waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a rank may be late at a gate.
    pub gate: Duration,
    /// How it is waited for.
    pub pace: Pace,
}

impl Default for Timing {
    fn default() -> Self {
        Self { gate: Duration::from_secs(10), pace: Pace::SPINNING }
    }
}

/// Which rank of which group in which epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// This rank.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// The epoch that stands in every message.
    pub epoch: u32,
}

/// One rank's links to all others, and the gates over them.
pub struct Mesh {
    place: Place,
    timing: Timing,
    peers: Vec<Peer>,
    watch: Watch,
    /// Exchanges of this epoch, broadcasts counted.
    exchanges: u64,
    /// The gate that is posted and not waited for.
    pending: Option<Pending>,
    /// This rank's part of it.
    mine: Vec<u8>,
    /// Sums of the parts of the exchange under way that some peer was sent already.
    sums: Vec<u64>,
    counts: GateCounts,
    profile: GateProfile,
    /// Who wants to know of every gate.
    recorder: Option<Recorder>,
}

struct Peer {
    rank: usize,
    link: Box<dyn Link>,
    flow: Flow,
    /// Parts of the exchange under way that were sent, and that came.
    sent: u32,
    came: u32,
    /// Answers to broadcasts that are still to come.
    acks: u64,
}

#[derive(Clone, Copy)]
struct Pending {
    kind: GateKind,
    due: Due,
    begun: Instant,
    post: Duration,
    posted: Instant,
}

/// What every message of an exchange says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    class: u32,
    exchange: u64,
    parts: u32,
    total: u64,
    epoch: u32,
    part_bytes: usize,
}

impl Mesh {
    /// A mesh over links to all other ranks, each with the rank at its other end. Posts the
    /// receives of every link; the first gate may be posted once all ranks have come this far.
    pub fn new(
        place: Place,
        links: Vec<(usize, Box<dyn Link>)>,
        timing: Timing,
        watch: Watch,
    ) -> Result<Self, ExchangeError> {
        let mut peers: Vec<Peer> = links
            .into_iter()
            .map(|(rank, link)| {
                let flow = Flow::new(link.limits().posted_max);
                Peer { rank, link, flow, sent: 0, came: 0, acks: 0 }
            })
            .collect();
        peers.sort_by_key(|peer| peer.rank);
        let wanted = (0..place.ranks).filter(|&rank| rank != place.rank);
        if !peers.iter().map(|peer| peer.rank).eq(wanted) {
            return Err(ExchangeError::Misuse {
                found: format!("links to {} ranks", peers.len()),
                wanted: "one to every other rank".into(),
            });
        }
        for peer in &mut peers {
            peer.arm()?;
        }
        Ok(Self {
            place,
            timing,
            peers,
            watch,
            exchanges: 0,
            pending: None,
            mine: Vec::new(),
            sums: Vec::new(),
            counts: GateCounts::default(),
            profile: GateProfile::default(),
            recorder: None,
        })
    }

    /// Writes every gate from now on into a notebook.
    pub fn record_into(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    /// Which rank this is.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Begins a gate.
    pub fn post(&mut self, kind: GateKind, mine: &[u8]) -> Result<(), ExchangeError> {
        let begun = Instant::now();
        // Kept, since parts of it may leave later.
        let mut kept = std::mem::take(&mut self.mine);
        kept.resize(mine.len(), 0);
        let due = self.send_first(kind, mine, &mut kept);
        self.mine = kept;
        let (due, posted) = (due?, Instant::now());
        self.pending = Some(Pending { kind, due, begun, post: posted - begun, posted });
        Ok(())
    }

    /// Ends the gate that was posted.
    pub fn wait(&mut self, all: &mut [u8]) -> Result<(), ExchangeError> {
        self.check()?;
        let Some(pending) = self.pending.take() else {
            return self.broken(misuse("a wait without a gate".into(), "post one first"));
        };
        self.check_room(self.mine.len(), all)?;
        let begun = Instant::now();
        let mine = std::mem::take(&mut self.mine);
        all[self.place.rank * mine.len()..][..mine.len()].copy_from_slice(&mine);
        let whole = self.exchange(&pending.due, &mine, all);
        let length = mine.len();
        self.mine = mine;
        self.end_gate(&pending, length, begun, whole)
    }

    /// [`Mesh::post`] and [`Mesh::wait`], with a copy less.
    pub fn gather(
        &mut self,
        kind: GateKind,
        mine: &[u8],
        all: &mut [u8],
    ) -> Result<(), ExchangeError> {
        self.check_room(mine.len(), all)?;
        let begun = Instant::now();
        let kept = &mut all[self.place.rank * mine.len()..][..mine.len()];
        let due = self.send_first(kind, mine, kept)?;
        let posted = Instant::now();
        let whole = self.exchange(&due, mine, all);
        let pending = Pending { kind, due, begun, post: posted - begun, posted };
        self.end_gate(&pending, mine.len(), posted, whole)
    }

    /// Numbers a gate, copies this rank's part while it is summed, and sends what may be sent.
    fn send_first(
        &mut self,
        kind: GateKind,
        mine: &[u8],
        kept: &mut [u8],
    ) -> Result<Due, ExchangeError> {
        self.check()?;
        if let Some(pending) = &self.pending {
            let found = format!("a gate is posted while one of {} waits", pending.kind.name());
            return self.broken(misuse(found, "wait for it first"));
        }
        let due = self.begin(kind as u32, mine.len())?;
        let parts = mine.chunks(due.part_bytes).zip(kept.chunks_mut(due.part_bytes));
        self.sums.extend(parts.map(|(part, kept)| copy_payload(part, kept)));
        for index in 0..self.peers.len() {
            if let Err(error) = self.peers[index].push(&due, mine, &mut self.sums) {
                return self.broken(error);
            }
        }
        Ok(due)
    }

    fn check_room(&mut self, length: usize, all: &[u8]) -> Result<(), ExchangeError> {
        if all.len() == self.place.ranks * length {
            return Ok(());
        }
        let found = format!("{} bytes for {} ranks", all.len(), self.place.ranks);
        self.broken(misuse(found, "room for every rank's part"))
    }

    /// Counts and times a gate that all have passed, or breaks the epoch.
    fn end_gate(
        &mut self,
        &Pending { kind, begun: start, post, posted, .. }: &Pending,
        length: usize,
        begun: Instant,
        whole: Result<(Instant, Instant), ExchangeError>,
    ) -> Result<(), ExchangeError> {
        let (first, last) = match whole {
            Ok(times) => times,
            Err(error) => return self.broken(error),
        };
        self.counts.count(kind, length);
        let times = GateTimes {
            gates: 1,
            post,
            overlap: begun - posted,
            wait: first - begun,
            exchange: last - first,
            release: last.elapsed(),
        };
        self.profile.add(kind, times);
        if let Some(recorder) = &self.recorder {
            recorder.gate(kind, length, start, times);
        }
        Ok(())
    }

    /// Gives rank 0's bytes to all.
    pub fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
        self.check()?;
        if self.pending.is_some() {
            return self.broken(misuse("a broadcast while a gate waits".into(), "wait first"));
        }
        if let Some(recorder) = self.recorder.as_ref().filter(|_| self.place.rank == 0) {
            recorder.step();
        }
        let done = if self.place.rank == 0 { self.give(bytes) } else { self.take(bytes) };
        if let Some(recorder) = self.recorder.as_ref().filter(|_| self.place.rank > 0) {
            recorder.step();
        }
        done.or_else(|error| self.broken(error))
    }

    /// What was exchanged in this epoch.
    #[must_use]
    pub fn counts(&self) -> GateCounts {
        self.counts
    }

    /// Where its time went.
    #[must_use]
    pub fn profile(&self) -> &GateProfile {
        &self.profile
    }

    /// What the control connections know.
    #[must_use]
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    fn check(&self) -> Result<(), ExchangeError> {
        self.watch.error().map_or(Ok(()), Err)
    }

    /// The epoch ends with `error`, or with the reason that was there before.
    fn broken<T>(&mut self, error: ExchangeError) -> Result<T, ExchangeError> {
        self.pending = None;
        // A rank that gives up says why on its control connection before its links close, but the
        // two may come in either order.
        let start = Instant::now();
        while matches!(error, ExchangeError::Lost { .. })
            && self.watch.error().is_none()
            && self.watch.monitors() > 0
            && start.elapsed() < REASON
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(self.watch.fail(error))
    }

    /// Numbers the next exchange and counts its parts.
    fn begin(&mut self, class: u32, total: usize) -> Result<Due, ExchangeError> {
        let room = self.peers.iter().map(|peer| peer.link.limits().message_bytes_max).min();
        let part_bytes = room.unwrap_or(usize::MAX).saturating_sub(HEADER_BYTES).max(1);
        let parts = u32::try_from(total.div_ceil(part_bytes).max(1));
        let Ok(parts) = parts else {
            return self.broken(misuse(format!("{total} bytes at once"), "far fewer"));
        };
        self.exchanges += 1;
        self.sums.clear();
        for peer in &mut self.peers {
            (peer.sent, peer.came) = (0, 0);
        }
        let (exchange, epoch, total) = (self.exchanges, self.place.epoch, total as u64);
        Ok(Due { class, exchange, parts, total, epoch, part_bytes })
    }

    /// Moves all parts of a gate both ways; when the first part of every rank was there, and when
    /// the last.
    fn exchange(
        &mut self,
        due: &Due,
        mine: &[u8],
        all: &mut [u8],
    ) -> Result<(Instant, Instant), ExchangeError> {
        let mut waiting = Waiting::new(self.timing.pace, Instant::now());
        let mut first = None;
        loop {
            let (mut moved, mut done, mut begun) = (false, true, true);
            for peer in &mut self.peers {
                moved |= peer.push(due, mine, &mut self.sums)?;
                moved |= peer.pull(due, &mut all[peer.rank * mine.len()..][..mine.len()])?;
                begun &= peer.came > 0;
                done &= peer.came == due.parts && peer.sent == due.parts && peer.flushed()?;
            }
            if begun && first.is_none() {
                first = Some(Instant::now());
            }
            if done {
                let last = Instant::now();
                return Ok((first.unwrap_or(last), last));
            }
            self.pause(&mut waiting, moved, Some(due))?;
        }
    }

    /// Rank 0's side of a broadcast: sends and goes on; the answers come with the next gate.
    fn give(&mut self, bytes: &[u8]) -> Result<(), ExchangeError> {
        if bytes.len() > BROADCAST_BYTES_MAX {
            let wanted = format!("{BROADCAST_BYTES_MAX} are the most");
            return Err(misuse(format!("{} bytes to all", bytes.len()), &wanted));
        }
        let due = self.begin(Header::BROADCAST, bytes.len())?;
        let mut waiting = Waiting::new(self.timing.pace, Instant::now());
        loop {
            let (mut moved, mut done) = (false, true);
            for peer in &mut self.peers {
                let before = peer.sent;
                moved |= peer.push(&due, bytes, &mut self.sums)?;
                peer.acks += u64::from(peer.sent - before);
                if peer.sent < due.parts {
                    moved |= peer.pull_acks()?;
                }
                done &= peer.sent == due.parts && peer.flushed()?;
            }
            if done {
                return Ok(());
            }
            self.pause(&mut waiting, moved, Some(&due))?;
        }
    }

    /// The others' side: as long as rank 0 lives, since it may have nothing to say for hours.
    fn take(&mut self, bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
        bytes.clear();
        let mut due = self.begin(Header::BROADCAST, 0)?;
        let mut waiting = Waiting::new(self.timing.pace, Instant::now());
        loop {
            // Rank 0 is the first peer of every other.
            let peer = &mut self.peers[0];
            let moved = peer.pull_broadcast(&mut due, bytes)?;
            if peer.came == due.parts && peer.flushed()? {
                return Ok(());
            }
            // Only a broadcast that has begun has a deadline.
            let begun = peer.came > 0;
            if moved {
                waiting = Waiting::new(self.timing.pace, Instant::now());
            }
            self.pause(&mut waiting, moved, begun.then_some(&due))?;
        }
    }

    /// After a look at all links: keeps the deadline and what the watch knows, and the core free.
    fn pause(
        &mut self,
        waiting: &mut Waiting,
        moved: bool,
        due: Option<&Due>,
    ) -> Result<(), ExchangeError> {
        let next = waiting.next(moved);
        if next == Next::Look {
            return Ok(());
        }
        self.check()?;
        let waited = waiting.start().elapsed();
        let behind =
            |peer: &&mut Peer| due.is_none_or(|due| peer.came < due.parts || peer.sent < due.parts);
        if let Some(due) = due
            && waited > self.timing.gate
        {
            let rank = self.peers.iter_mut().find(behind).map_or(0, |peer| peer.rank);
            let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            return Err(ExchangeError::Late { rank, waited_ms, gate: class_name(due.class) });
        }
        if let Next::Rest(most) = next
            && let Some(peer) = self.peers.iter_mut().find(behind)
        {
            peer.link.rest(most);
        }
        Ok(())
    }
}

impl Drop for Mesh {
    /// The control connections end with the mesh, and say so.
    fn drop(&mut self) {
        self.watch.close();
        // The process may end right after: what the others are to hear leaves first.
        let start = Instant::now();
        while self.watch.monitors() > 0 && start.elapsed() < REASON {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Peer {
    /// Posts the receives that are missing.
    fn arm(&mut self) -> Result<(), ExchangeError> {
        let bytes = self.link.limits().message_bytes_max;
        while self.flow.missing() > 0 {
            let posted = self.link.post_recv(bytes);
            posted.map_err(|error| self.error(error))?;
            self.flow.posted();
        }
        Ok(())
    }

    /// Sends the parts that may be sent now; whether any was.
    fn push(&mut self, due: &Due, mine: &[u8], sums: &mut Vec<u64>) -> Result<bool, ExchangeError> {
        let before = self.sent;
        while self.sent < due.parts && self.flow.may_send() {
            let start = self.sent as usize * due.part_bytes;
            let part = &mine[start..mine.len().min(start.saturating_add(due.part_bytes))];
            // Every peer gets the parts in order, so a sum is there or is the next.
            if sums.len() == self.sent as usize {
                sums.push(payload_sum(part));
            }
            let header = due.header(self.sent, self.flow.send());
            let header = header.seal_summed(part.len(), sums[self.sent as usize]);
            let sent = self.link.send(&header, part);
            sent.map_err(|error| self.error(error))?;
            self.sent += 1;
        }
        Ok(self.sent > before)
    }

    /// Takes the parts that have come, each to its place in `all` of the peer's bytes.
    fn pull(&mut self, due: &Due, all: &mut [u8]) -> Result<bool, ExchangeError> {
        let mut moved = self.pull_acks()?;
        while self.acks == 0 && self.came < due.parts {
            let start = self.came as usize * due.part_bytes;
            let end = all.len().min(start.saturating_add(due.part_bytes));
            let (mut head, room) = ([0; HEADER_BYTES], &mut all[start..end]);
            let taken = match self.link.receive_into(&mut head, room) {
                Ok(Some(taken)) => taken,
                Ok(None) => break,
                Err(error) => return Err(self.error(error)),
            };
            let wanted = due.header(self.came, self.flow.received() + 1);
            let length = HEADER_BYTES + room.len();
            if taken.length != length {
                let found = format!("a message of {} bytes", taken.length);
                return Err(wrong(self.rank, found, format!("{} of {length}", describe(&wanted))));
            }
            let opened = Header::open_summed(&head, room.len(), || taken.payload_sum);
            is_due(self.rank, opened, &wanted)?;
            self.flow.receive();
            self.came += 1;
            self.arm()?;
            moved = true;
        }
        Ok(moved)
    }

    /// Takes answers to broadcasts.
    fn pull_acks(&mut self) -> Result<bool, ExchangeError> {
        let before = self.acks;
        while self.acks > 0 {
            let message = match self.link.receive() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => return Err(self.error(error)),
            };
            let (header, payload) = Header::open(message)
                .map_err(|damage| wrong(self.rank, damage.to_string(), "an answer".into()))?;
            let sequence = self.flow.received() + 1;
            if header.class != Header::ACK || header.sequence != sequence || !payload.is_empty() {
                let wanted = format!("the answer to a broadcast, message {sequence}");
                return Err(wrong(self.rank, describe(&header), wanted));
            }
            self.flow.receive();
            self.acks -= 1;
            self.arm()?;
        }
        Ok(self.acks < before)
    }

    /// Takes parts of a broadcast, the first of which says how many there are, and answers each.
    fn pull_broadcast(
        &mut self,
        due: &mut Due,
        bytes: &mut Vec<u8>,
    ) -> Result<bool, ExchangeError> {
        let mut moved = false;
        while self.came < due.parts && self.flow.may_send() {
            let message = match self.link.receive() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => return Err(self.error(error)),
            };
            if self.came == 0 {
                // Its length is the sender's to say: only bounded here, and grown as bytes come.
                let (header, _) = Header::open(message)
                    .map_err(|damage| wrong(self.rank, damage.to_string(), "a command".into()))?;
                let total = usize::try_from(header.total).unwrap_or(usize::MAX);
                if total > BROADCAST_BYTES_MAX {
                    let wanted = format!("{BROADCAST_BYTES_MAX} bytes are the most");
                    return Err(wrong(self.rank, describe(&header), wanted));
                }
                due.total = header.total;
                let parts = total.div_ceil(due.part_bytes).max(1);
                due.parts = u32::try_from(parts).unwrap_or(u32::MAX);
            }
            let wanted = due.header(self.came, self.flow.received() + 1);
            let payload = open(self.rank, message, &wanted)?;
            let start = self.came as usize * due.part_bytes;
            if payload.len() != due.part_bytes.min(to_usize(due.total) - start) {
                let found = format!("{} bytes of part {}", payload.len(), self.came);
                return Err(wrong(self.rank, found, "all bytes of it".into()));
            }
            bytes.extend_from_slice(payload);
            self.flow.receive();
            self.came += 1;
            self.sent = self.came;
            self.arm()?;
            let answer =
                Header { class: Header::ACK, total: 0, sequence: self.flow.send(), ..wanted };
            let sent = self.link.send(&answer.seal(&[]), &[]);
            sent.map_err(|error| self.error(error))?;
            moved = true;
        }
        Ok(moved)
    }

    fn flushed(&mut self) -> Result<bool, ExchangeError> {
        self.link.flush().map_err(|error| self.error(error))
    }

    fn error(&self, error: LinkError) -> ExchangeError {
        let rank = self.rank;
        match error {
            LinkError::Closed | LinkError::System { .. } => {
                ExchangeError::Lost { rank, found: error.to_string() }
            }
            LinkError::Wrong { found, wanted } => ExchangeError::Wrong { rank, found, wanted },
            LinkError::Misuse { found, wanted } => ExchangeError::Misuse { found, wanted },
        }
    }
}

impl Due {
    fn header(&self, part: u32, sequence: u64) -> Header {
        Header {
            epoch: self.epoch,
            class: self.class,
            part,
            parts: self.parts,
            total: self.total,
            exchange: self.exchange,
            sequence,
            tag: 0,
        }
    }
}

/// The payload of a message that must be exactly the one that is due.
fn open<'a>(rank: usize, message: &'a [u8], due: &Header) -> Result<&'a [u8], ExchangeError> {
    let (opened, payload) = match Header::open(message) {
        Ok((header, payload)) => (Ok(header), payload),
        Err(damage) => (Err(damage), &[][..]),
    };
    is_due(rank, opened, due)?;
    Ok(payload)
}

/// Whether the header of a message is exactly the one that is due.
fn is_due(rank: usize, opened: Result<Header, Damage>, due: &Header) -> Result<(), ExchangeError> {
    match opened {
        Ok(header) if header == *due => Ok(()),
        Ok(header) => Err(wrong(rank, describe(&header), describe(due))),
        Err(damage) => Err(wrong(rank, damage.to_string(), describe(due))),
    }
}

fn describe(header: &Header) -> String {
    format!(
        "message {} (epoch {}, exchange {} of kind {}, part {} of {}, {} bytes)",
        header.sequence,
        header.epoch,
        header.exchange,
        class_name(header.class),
        header.part + 1,
        header.parts,
        header.total
    )
}

fn class_name(class: u32) -> &'static str {
    match class {
        Header::BROADCAST => "command",
        Header::ACK => "answer",
        Header::RECORD => "record",
        _ => {
            let kind = GateKind::ALL.into_iter().find(|&kind| kind as u32 == class);
            kind.map_or("unknown", GateKind::name)
        }
    }
}

fn to_usize(length: u64) -> usize {
    usize::try_from(length).expect("it came from a usize or was bounded")
}

fn wrong(rank: usize, found: String, wanted: String) -> ExchangeError {
    ExchangeError::Wrong { rank, found, wanted }
}

fn misuse(found: String, wanted: &str) -> ExchangeError {
    ExchangeError::Misuse { found, wanted: wanted.into() }
}
