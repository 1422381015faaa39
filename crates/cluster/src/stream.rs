//! Records from one rank to another, both ways at once: what the layer pipeline sends.
//!
//! Whoever sends or waits moves the link's bytes himself, so that a record wakes no thread; and a
//! thread does it meanwhile, so that a rank computes while its last record leaves and the next one
//! arrives. A record of any length is cut into messages, each under the same header and checksum as
//! a gate's; the receiver answers each message, and at most half of the granted receives are under
//! way unanswered, so data and answers both always meet a posted receive.

use crate::link::{Link, LinkError, rest_at};
use crate::message::{HEADER_BYTES, Header};
use crate::pace::{Next, Pace, Waiting};
use crate::watch::Watch;
use ironstar_device::ExchangeError;
use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes of one record: the streams of a long chunk of prompt.
pub const RECORD_BYTES_MAX: usize = 1 << 30;
/// Records that wait to be sent, and that wait to be taken.
const QUEUE: usize = 4;
/// How long nobody looks where a link cannot wake anybody.
const NAP: Duration = Duration::from_micros(50);
/// How long the thread sleeps while nothing is under way: at a link that wakes it, and at others.
const IDLE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_micros(500));

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
    pace: Pace,
    shared: Arc<Shared>,
    /// Sleeps until the link has something, where it can tell.
    sleeper: Option<TcpStream>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What callers and the thread have in common.
struct Shared {
    service: Mutex<Service>,
    /// Callers that wait, and move the bytes meanwhile: the thread need not.
    waiting: AtomicUsize,
    /// The handle was dropped.
    dropped: AtomicBool,
}

/// The state of both directions.
struct Service {
    peer: usize,
    epoch: u32,
    link: Box<dyn Link>,
    watch: Watch,
    /// Messages sent, answers among them, and messages that came.
    sent: u64,
    received: u64,
    /// Messages with data that the peer has not answered.
    unanswered: usize,
    /// Records that wait to be sent.
    outgoing: VecDeque<Record>,
    /// The record that is being sent, its number, and its next part.
    leaving: Option<(Record, u64, u32)>,
    records_sent: u64,
    records_come: u64,
    /// The record that is arriving, and its next part.
    arriving: Option<(Record, u32)>,
    /// Whole records that nobody has taken yet.
    incoming: VecDeque<Record>,
    /// The link has passed on all that it was given.
    is_flushed: bool,
    /// Nothing moves any more.
    is_over: bool,
}

impl Stream {
    /// A stream over `link`, which nothing else uses, to `peer`. Posts its receives; the first
    /// record may be sent once the other end has come this far. Callers wait at this pace; the
    /// thread, which may have nothing to do for hours, never spins.
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
        let sleeper = [link.sleeper(), link.sleeper()];
        let service = Service {
            peer,
            epoch,
            link,
            watch: watch.clone(),
            sent: 0,
            received: 0,
            unanswered: 0,
            outgoing: VecDeque::with_capacity(QUEUE),
            leaving: None,
            records_sent: 0,
            records_come: 0,
            arriving: None,
            incoming: VecDeque::with_capacity(QUEUE),
            is_flushed: true,
            is_over: false,
        };
        let shared = Arc::new(Shared {
            service: Mutex::new(service),
            waiting: AtomicUsize::new(0),
            dropped: AtomicBool::new(false),
        });
        let [sleeper, its] = sleeper;
        let mine = Arc::clone(&shared);
        let named = std::thread::Builder::new().name(format!("cluster-stream-{peer}"));
        let thread = named.spawn(move || mine.run(its.as_ref()));
        let thread = thread.map_err(|error| ExchangeError::Lost {
            rank: peer,
            found: format!("no thread for its stream: {error}"),
        })?;
        Ok(Self { peer, watch, pace, shared, sleeper, thread: Some(thread) })
    }

    /// Gives a record to be sent, and waits for room in the queue no longer than `time`.
    pub fn send(&self, record: Record, time: Duration) -> Result<(), ExchangeError> {
        if record.bytes.len() > RECORD_BYTES_MAX {
            return Err(ExchangeError::Misuse {
                found: format!("a record of {} bytes", record.bytes.len()),
                wanted: format!("{RECORD_BYTES_MAX} are the most"),
            });
        }
        let mut record = Some(record);
        self.until(time, |service| {
            if service.outgoing.len() < QUEUE
                && let Some(record) = record.take()
            {
                service.outgoing.push_back(record);
                // What leaves now needs no other thread; an error is the next call's.
                service.step();
            }
            record.is_none().then_some(())
        })
    }

    /// The next record, waited for no longer than `time`.
    pub fn receive(&self, time: Duration) -> Result<Record, ExchangeError> {
        self.until(time, |service| service.incoming.pop_front())
    }

    /// The next record, if it is there.
    pub fn try_receive(&self) -> Result<Option<Record>, ExchangeError> {
        let mut service = self.shared.service();
        if service.incoming.is_empty() && !service.is_over {
            service.step();
        }
        match service.incoming.pop_front() {
            Some(record) => Ok(Some(record)),
            None if service.is_over => Err(self.gone()),
            None => self.watch.error().map_or(Ok(None), Err),
        }
    }

    /// Moves bytes until `done` has what it looks for, no longer than `time`.
    fn until<T>(
        &self,
        time: Duration,
        mut done: impl FnMut(&mut Service) -> Option<T>,
    ) -> Result<T, ExchangeError> {
        let waits = self.waits();
        let start = Instant::now();
        let mut waiting = Waiting::new(self.pace, start);
        loop {
            let (moved, is_full) = {
                let mut service = self.shared.service();
                // What came before the end is still there.
                if let Some(found) = done(&mut service) {
                    let has_more = service.is_under_way();
                    drop((service, waits));
                    if has_more && let Some(thread) = &self.thread {
                        // The rest is its.
                        thread.thread().unpark();
                    }
                    return Ok(found);
                }
                if service.is_over {
                    return Err(self.gone());
                }
                (service.step(), service.is_full())
            };
            let next = waiting.next(moved);
            if next != Next::Look {
                self.look(start, time)?;
            }
            if let Next::Rest(most) = next {
                rest(self.sleeper.as_ref().filter(|_| !is_full), most);
            }
        }
    }

    /// While this lives the thread leaves the link to the caller.
    fn waits(&self) -> impl Drop {
        struct Waits<'a>(&'a AtomicUsize);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::AcqRel);
            }
        }
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        Waits(&self.shared.waiting)
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
        // Whoever ended it has said why.
        let found = "its stream has ended".into();
        self.watch.error().unwrap_or(ExchangeError::Lost { rank: self.peer, found })
    }
}

impl Drop for Stream {
    /// What was given to [`Stream::send`] still leaves, unless the group is broken.
    fn drop(&mut self) {
        self.shared.dropped.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It ends by itself, and reports through the watch.
            let _ = thread.join();
        }
    }
}

/// Sleeps until the link may have something, and no longer than `most`.
fn rest(sleeper: Option<&TcpStream>, most: Duration) {
    match sleeper {
        Some(sleeper) => rest_at(sleeper, most),
        None => std::thread::sleep(most.min(NAP)),
    }
}

impl Shared {
    fn service(&self) -> MutexGuard<'_, Service> {
        // A thread that panicked between two messages left none half taken.
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: moves what no caller moves, until the stream ends.
    fn run(&self, sleeper: Option<&TcpStream>) {
        let mut waiting = Waiting::new(Pace::BLOCKING, Instant::now());
        let mut ended = None;
        loop {
            if self.dropped.load(Ordering::Acquire) {
                ended.get_or_insert_with(Instant::now);
            }
            // While callers wait, the link is theirs.
            let mut is_at_link = self.waiting.load(Ordering::Acquire) == 0;
            let (mut moved, mut is_busy) = (false, true);
            if is_at_link {
                let mut service = self.service();
                if ended.is_some() {
                    // Nobody takes them.
                    service.incoming.clear();
                }
                moved = service.step();
                if moved && ended.is_some() {
                    // As long as the peer takes what is left, or this thread was stopped.
                    ended = Some(Instant::now());
                }
                let idle = service.leaving.is_none()
                    && service.outgoing.is_empty()
                    && service.unanswered == 0
                    && service.is_flushed;
                is_busy = !idle || service.is_under_way() || ended.is_some();
                // What has come stays on the link until somebody takes records.
                is_at_link = !service.is_full();
                let lingers = |at: Instant| !idle && at.elapsed() <= LINGER;
                if service.is_over || ended.is_some_and(|at| !lingers(at)) {
                    return;
                }
            }
            match waiting.next(moved) {
                Next::Rest(most) if is_at_link && is_busy => rest(sleeper, most),
                Next::Rest(_) if is_at_link => match sleeper {
                    Some(sleeper) => rest_at(sleeper, IDLE.0),
                    None => std::thread::park_timeout(IDLE.1),
                },
                Next::Rest(most) => std::thread::park_timeout(most),
                Next::Look | Next::Check => {}
            }
        }
    }
}

impl Service {
    /// Moves what can be moved now; whether anything was. An error ends the stream.
    fn step(&mut self) -> bool {
        match self.try_step() {
            Ok(moved) => moved,
            Err(error) => {
                self.is_over = true;
                // A peer may end in peace while gates finish; a dead one has a monitor that says
                // so. This stream's handle finds it ended.
                if !matches!(error, ExchangeError::Lost { .. }) {
                    self.watch.fail(error);
                }
                false
            }
        }
    }

    fn try_step(&mut self) -> Result<bool, ExchangeError> {
        if self.is_over || self.watch.error().is_some() {
            self.is_over = true;
            return Ok(false);
        }
        let mut moved = false;
        loop {
            if self.leaving.is_none()
                && let Some(record) = self.outgoing.pop_front()
            {
                self.records_sent += 1;
                self.leaving = Some((record, self.records_sent, 0));
            }
            let now = self.push()? | self.pull()?;
            moved |= now;
            if !now {
                break;
            }
        }
        self.is_flushed = self.link.flush().map_err(|error| failed(self.peer, error))?;
        Ok(moved)
    }

    /// Whether no more records are taken from the link.
    fn is_full(&self) -> bool {
        self.incoming.len() >= QUEUE
    }

    /// Whether a record is half sent or half there.
    fn is_under_way(&self) -> bool {
        self.leaving.is_some() || !self.outgoing.is_empty() || self.arriving.is_some()
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

    /// Takes what has come; stops while whole records wait to be taken, which holds up the sender.
    fn pull(&mut self) -> Result<bool, ExchangeError> {
        let (peer, part_bytes) = (self.peer, self.part_bytes());
        let wrong =
            |found: String, wanted: String| ExchangeError::Wrong { rank: peer, found, wanted };
        let mut moved = false;
        while !self.is_full() {
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
                        self.incoming.push_back(record);
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

/// How long an end that was dropped still tries to send what it was given while nothing moves.
const LINGER: Duration = Duration::from_secs(5);

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
