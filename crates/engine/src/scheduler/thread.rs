//! A scheduler on its own thread, and how others speak with it.

use super::core::{Scheduler, Status};
use super::request::{Event, Failure, Request, RequestId, Sink, Stats};
use super::source::Source;
use crate::{CancelFlag, Control};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Commands that may wait for the end of a step.
const COMMANDS_MAX: usize = 8192;

enum Command {
    Submit(RequestId, Box<Request>, Sink),
    Cancel(RequestId),
    Stop,
}

/// Speaks with a scheduler's thread; clones speak with the same.
#[derive(Clone)]
pub struct Client {
    commands: SyncSender<Command>,
    next: Arc<AtomicU64>,
    status: Arc<Mutex<Status>>,
    session_tokens_max: usize,
}

/// Starts the thread. It ends after [`Client::stop`], or when all clients are gone and all is
/// answered, and gives the source back.
pub fn spawn<S>(scheduler: Scheduler<S>) -> io::Result<(Client, JoinHandle<S>)>
where
    S: Source + Send + 'static,
    S::Session: Send,
{
    let (commands, received) = mpsc::sync_channel(COMMANDS_MAX);
    let status = scheduler.shared_status();
    let session_tokens_max = scheduler.session_tokens_max();
    let body = move || run(scheduler, &received);
    let thread = std::thread::Builder::new().name("scheduler".into()).spawn(body)?;
    Ok((Client { commands, next: Arc::default(), status, session_tokens_max }, thread))
}

fn run<S: Source>(mut scheduler: Scheduler<S>, received: &mpsc::Receiver<Command>) -> S {
    let (mut busy, mut has_taken) = (false, false);
    loop {
        // While there is work, commands are only picked up, and where answers would wait for that
        // one by one.
        let command = if has_taken && busy && scheduler.is_due() {
            Err(RecvTimeoutError::Timeout)
        } else if busy {
            received.recv_timeout(Duration::ZERO)
        } else {
            received.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        has_taken = command.is_ok();
        match command {
            Ok(Command::Submit(id, request, sink)) => {
                scheduler.submit(id, *request, sink);
                busy = true;
            }
            Ok(Command::Cancel(id)) => scheduler.cancel(id),
            Ok(Command::Stop) => return scheduler.stop(),
            Err(RecvTimeoutError::Disconnected) if !busy => return scheduler.stop(),
            Err(_) => busy = scheduler.turn(),
        }
    }
}

impl Client {
    /// Asks for an answer; its events come through the ticket.
    #[must_use]
    pub fn submit(&self, request: Request) -> Ticket {
        let (sender, events) = mpsc::channel();
        let cancel = request.cancel.clone();
        let sink = move |event| match sender.send(event) {
            Ok(()) => Control::Continue,
            Err(_) => Control::Stop,
        };
        let id = self.submit_to(request, Box::new(sink));
        Ticket { id, events, cancel }
    }

    /// Asks for an answer whose events go to a function, on the scheduler's thread.
    pub fn submit_to(&self, request: Request, sink: Sink) -> RequestId {
        let id = RequestId(self.next.fetch_add(1, Ordering::Relaxed));
        let (command, failure) =
            match self.commands.try_send(Command::Submit(id, Box::new(request), sink)) {
                Ok(()) => return id,
                Err(TrySendError::Full(command)) => {
                    let (waiting, most) = (COMMANDS_MAX, COMMANDS_MAX);
                    (command, Failure::QueueFull { waiting, most })
                }
                Err(TrySendError::Disconnected(command)) => (command, Failure::Stopped),
            };
        if let Command::Submit(_, _, mut sink) = command {
            sink(Event::Failed { failure, stats: Stats::default() });
        }
        id
    }

    /// Ends a request before the next step.
    pub fn cancel(&self, id: RequestId) {
        // A thread that has ended has no requests.
        let _gone = self.commands.send(Command::Cancel(id));
    }

    /// Ends all requests and the thread.
    pub fn stop(&self) {
        let _gone = self.commands.send(Command::Stop);
    }

    /// Most tokens of prompt and answer whose memory a request may have: a longer one fails, and
    /// who asks here first can say so before anything else.
    #[must_use]
    pub fn session_tokens_max(&self) -> usize {
        self.session_tokens_max
    }

    /// What the scheduler is doing, as of its last turn.
    #[must_use]
    pub fn status(&self) -> Status {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer to come; dropping it cancels the request.
#[derive(Debug)]
pub struct Ticket {
    id: RequestId,
    events: mpsc::Receiver<Event>,
    cancel: CancelFlag,
}

impl Ticket {
    /// Names the request.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The next event; none after the last, or when the scheduler is gone.
    #[must_use]
    pub fn next_event(&self) -> Option<Event> {
        self.events.recv().ok()
    }

    /// The next event, if it comes in time.
    #[must_use]
    pub fn next_event_within(&self, time: Duration) -> Option<Event> {
        self.events.recv_timeout(time).ok()
    }

    /// Ends the request before the next step; its last event still comes.
    pub fn cancel(&self) {
        self.cancel.raise();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel.raise();
    }
}
