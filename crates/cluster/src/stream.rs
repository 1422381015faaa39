//! Records from one rank to another, both ways at once: what the layer pipeline sends.
//!
//! A thread owns the link, so that a rank computes while its last record leaves and the next one
//! arrives. A record of any length is cut into messages, each under the same header and checksum
//! as a gate's; the receiver answers each message, and at most half of the granted receives are
//! under way unanswered, so data and answers both always meet a posted receive.

use crate::link::{Link, LinkError};
use crate::message::{HEADER_BYTES, Header};
use crate::pace::{Next, Pace, Waiting};
use crate::watch::Watch;
use ironstar_device::ExchangeError;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel,
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes of one record: the streams of a long chunk of prompt.
pub const RECORD_BYTES_MAX: usize = 1 << 30;
/// Records that wait to be sent, and that wait to be taken.
const QUEUE: usize = 4;
/// How long a handle sleeps between looks whether the group still stands.
const LOOK: Duration = Duration::from_millis(20);

/// What is sent: a number that the two ends agree on, and bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What the record is, in the caller's numbering.
    pub tag: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// One end of a stream of records.
pub struct Stream {
    peer: usize,
    watch: Watch,
    outgoing: Option<SyncSender<Record>>,
    /// Under a lock, so that one thread may send while another receives.
    incoming: Mutex<Receiver<Record>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The state of the thread.
struct Service {
    peer: usize,
    epoch: u32,
    link: Box<dyn Link>,
    pace: Pace,
    /// Messages sent, answers among them, and messages that came.
    sent: u64,
    received: u64,
    /// Messages with data that the peer has not answered.
    unanswered: usize,
    /// The record that is being sent, its number, and its next part.
    leaving: Option<(Record, u64, u32)>,
    records_sent: u64,
    records_come: u64,
    /// The record that is arriving, and its next part.
    arriving: Option<(Record, u32)>,
    /// A whole record that nobody has room for yet.
    whole: Option<Record>,
}

impl Stream {
    /// A stream over `link`, which nothing else uses, to `peer`. Posts its receives; the first
    /// record may be sent once the other end has come this far.
    pub fn new(
        peer: usize,
        epoch: u32,
        mut link: Box<dyn Link>,
        pace: Pace,
        watch: Watch,
    ) -> Result<Self, ExchangeError> {
        let limits = link.limits();
        for _ in 0..limits.posted_max {
            let posted = link.post_recv(limits.message_bytes_max);
            posted.map_err(|error| failed(peer, error))?;
        }
        let (outgoing, to_send) = sync_channel(QUEUE);
        let (taken, incoming) = sync_channel(QUEUE);
        let mut service = Service {
            peer,
            epoch,
            link,
            pace,
            sent: 0,
            received: 0,
            unanswered: 0,
            leaving: None,
            records_sent: 0,
            records_come: 0,
            arriving: None,
            whole: None,
        };
        let mine = watch.clone();
        let named = std::thread::Builder::new().name(format!("cluster-stream-{peer}"));
        let thread = named.spawn(move || {
            match service.run(&to_send, &taken, &mine) {
                // A peer may end in peace while gates finish; a dead one has a monitor that says
                // so. This stream's handle finds it ended.
                Ok(()) | Err(ExchangeError::Lost { .. }) => {}
                Err(error) => drop(mine.fail(error)),
            }
        });
        let thread = thread.map_err(|error| ExchangeError::Lost {
            rank: peer,
            found: format!("no thread for its stream: {error}"),
        })?;
        Ok(Self {
            peer,
            watch,
            outgoing: Some(outgoing),
            incoming: Mutex::new(incoming),
            thread: Some(thread),
        })
    }

    /// Gives a record to be sent, and waits for room in the queue no longer than `time`.
    pub fn send(&self, record: Record, time: Duration) -> Result<(), ExchangeError> {
        if record.bytes.len() > RECORD_BYTES_MAX {
            return Err(ExchangeError::Misuse {
                found: format!("a record of {} bytes", record.bytes.len()),
                wanted: format!("{RECORD_BYTES_MAX} are the most"),
            });
        }
        let Some(outgoing) = &self.outgoing else { return Err(self.gone()) };
        let (start, mut record) = (Instant::now(), record);
        loop {
            match outgoing.try_send(record) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(self.gone()),
                Err(TrySendError::Full(back)) => record = back,
            }
            self.look(start, time)?;
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The next record, waited for no longer than `time`.
    pub fn receive(&self, time: Duration) -> Result<Record, ExchangeError> {
        let start = Instant::now();
        loop {
            let came = self.incoming().recv_timeout(LOOK.min(time));
            match came {
                Ok(record) => return Ok(record),
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
                Err(RecvTimeoutError::Timeout) => self.look(start, time)?,
            }
        }
    }

    /// The next record, if it is there.
    pub fn try_receive(&self) -> Result<Option<Record>, ExchangeError> {
        let came = self.incoming().try_recv();
        match came {
            Ok(record) => Ok(Some(record)),
            Err(TryRecvError::Empty) => self.watch.error().map_or(Ok(None), Err),
            Err(TryRecvError::Disconnected) => Err(self.gone()),
        }
    }

    fn incoming(&self) -> MutexGuard<'_, Receiver<Record>> {
        // A thread that panicked between two records left none half taken.
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, start: Instant, time: Duration) -> Result<(), ExchangeError> {
        if let Some(error) = self.watch.error() {
            return Err(error);
        }
        if start.elapsed() < time {
            return Ok(());
        }
        let waited_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let late = ExchangeError::Late { rank: self.peer, waited_ms, gate: "record" };
        Err(self.watch.fail(late))
    }

    fn gone(&self) -> ExchangeError {
        // The thread says why before it ends.
        let found = "its stream has ended".into();
        self.watch.error().unwrap_or(ExchangeError::Lost { rank: self.peer, found })
    }
}

impl Drop for Stream {
    /// What was given to [`Stream::send`] still leaves, unless the group is broken.
    fn drop(&mut self) {
        self.outgoing = None;
        // A thread that wants to hand over a record sees that nobody takes it.
        let (_, nobody) = sync_channel(0);
        *self.incoming() = nobody;
        if let Some(thread) = self.thread.take() {
            // It ends by itself, and reports through the watch.
            let _ = thread.join();
        }
    }
}

impl Service {
    fn run(
        &mut self,
        to_send: &Receiver<Record>,
        taken: &SyncSender<Record>,
        watch: &Watch,
    ) -> Result<(), ExchangeError> {
        let mut waiting = Waiting::new(self.pace, Instant::now());
        let mut ended = None;
        loop {
            let mut moved = self.hand_over(taken);
            if self.leaving.is_none() {
                match to_send.try_recv() {
                    Ok(record) => {
                        self.records_sent += 1;
                        self.leaving = Some((record, self.records_sent, 0));
                    }
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => {
                        ended.get_or_insert_with(Instant::now);
                    }
                }
            }
            moved |= self.push()?;
            match self.pull() {
                Ok(came) => moved |= came,
                // The other end may go first once this one has nothing more to say.
                Err(ExchangeError::Lost { .. }) if ended.is_some() => return Ok(()),
                Err(error) => return Err(error),
            }
            let idle = self.leaving.is_none() && self.unanswered == 0;
            let flushed = self.link.flush().map_err(|error| failed(self.peer, error))?;
            if ended.is_some_and(|at| (idle && flushed) || at.elapsed() > LINGER) {
                return Ok(());
            }
            let next = waiting.next(moved);
            if next != Next::Look && watch.error().is_some() {
                return Ok(());
            }
            if let Next::Rest(most) = next {
                self.link.rest(most);
            }
        }
    }

    /// Gives a whole record to the caller, if there is room.
    fn hand_over(&mut self, taken: &SyncSender<Record>) -> bool {
        let Some(record) = self.whole.take() else { return false };
        match taken.try_send(record) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => true,
            Err(TrySendError::Full(record)) => {
                self.whole = Some(record);
                false
            }
        }
    }

    fn part_bytes(&self) -> usize {
        self.link.limits().message_bytes_max - HEADER_BYTES
    }

    /// Sends parts of the record that leaves while the window has room.
    fn push(&mut self) -> Result<bool, ExchangeError> {
        let (part_bytes, window) = (self.part_bytes(), self.link.limits().posted_max / 2);
        let mut moved = false;
        while let Some((record, number, part)) = &mut self.leaving
            && self.unanswered < window
        {
            let parts = parts_of(record.bytes.len(), part_bytes);
            let start = *part as usize * part_bytes;
            let payload = &record.bytes[start..record.bytes.len().min(start + part_bytes)];
            self.sent += 1;
            let header = Header {
                epoch: self.epoch,
                class: Header::RECORD,
                part: *part,
                parts,
                total: record.bytes.len() as u64,
                exchange: *number,
                sequence: self.sent,
                tag: record.tag,
            };
            let sent = self.link.send(&header.seal(payload), payload);
            sent.map_err(|error| failed(self.peer, error))?;
            self.unanswered += 1;
            moved = true;
            *part += 1;
            if *part == parts {
                self.leaving = None;
            }
        }
        Ok(moved)
    }

    /// Takes what has come; stops while a whole record waits for room, which holds up the sender.
    fn pull(&mut self) -> Result<bool, ExchangeError> {
        let (peer, part_bytes) = (self.peer, self.part_bytes());
        let wrong =
            |found: String, wanted: String| ExchangeError::Wrong { rank: peer, found, wanted };
        let mut moved = false;
        while self.whole.is_none() {
            let message = match self.link.receive() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => return Err(failed(peer, error)),
            };
            let (header, payload) = Header::open(message)
                .map_err(|damage| wrong(damage.to_string(), "a part of a record".into()))?;
            self.received += 1;
            if header.sequence != self.received || header.epoch != self.epoch {
                let wanted = format!("message {} of epoch {}", self.received, self.epoch);
                let found = format!("message {} of epoch {}", header.sequence, header.epoch);
                return Err(wrong(found, wanted));
            }
            match header.class {
                Header::ACK if payload.is_empty() && self.unanswered > 0 => self.unanswered -= 1,
                Header::RECORD => {
                    let due = (self.records_come, self.arriving.take());
                    let (record, next) = accept(due, &header, payload, part_bytes)
                        .map_err(|(found, wanted)| wrong(found, wanted))?;
                    if next == header.parts {
                        self.records_come += 1;
                        self.whole = Some(record);
                    } else {
                        self.arriving = Some((record, next));
                    }
                    self.sent += 1;
                    let answer =
                        Header { class: Header::ACK, total: 0, sequence: self.sent, ..header };
                    let sent = self.link.send(&answer.seal(&[]), &[]);
                    sent.map_err(|error| failed(peer, error))?;
                }
                class => return Err(wrong(format!("class {class}"), "a part of a record".into())),
            }
            let bytes = self.link.limits().message_bytes_max;
            self.link.post_recv(bytes).map_err(|error| failed(peer, error))?;
            moved = true;
        }
        Ok(moved)
    }
}

/// How long an end that was dropped still tries to send what it was given.
const LINGER: Duration = Duration::from_secs(2);

/// Puts a part where it belongs: the record so far, and the part that is due next.
fn accept(
    (come, arriving): (u64, Option<(Record, u32)>),
    header: &Header,
    payload: &[u8],
    part_bytes: usize,
) -> Result<(Record, u32), (String, String)> {
    let total = usize::try_from(header.total).unwrap_or(usize::MAX);
    if total > RECORD_BYTES_MAX {
        let wanted = format!("{RECORD_BYTES_MAX} are the most");
        return Err((format!("a record of {total} bytes"), wanted));
    }
    let parts = parts_of(total, part_bytes);
    // Room is made as bytes come: a length alone reserves nothing.
    let begun = arriving.unwrap_or((Record { tag: header.tag, bytes: Vec::new() }, 0));
    let (mut record, part) = begun;
    let start = part as usize * part_bytes;
    let same = header.exchange == come + 1
        && (header.part, header.parts) == (part, parts)
        && header.tag == record.tag
        && payload.len() == part_bytes.min(total.saturating_sub(start));
    if !same {
        return Err((
            format!("part {} of record {}", header.part, header.exchange),
            format!("part {part} of record {} is due", come + 1),
        ));
    }
    record.bytes.extend_from_slice(payload);
    Ok((record, part + 1))
}

fn parts_of(total: usize, part_bytes: usize) -> u32 {
    u32::try_from(total.div_ceil(part_bytes).max(1)).expect("records are bounded")
}

fn failed(rank: usize, error: LinkError) -> ExchangeError {
    match error {
        LinkError::Closed | LinkError::System { .. } => {
            ExchangeError::Lost { rank, found: error.to_string() }
        }
        LinkError::Wrong { found, wanted } => ExchangeError::Wrong { rank, found, wanted },
        LinkError::Misuse { found, wanted } => ExchangeError::Misuse { found, wanted },
    }
}
