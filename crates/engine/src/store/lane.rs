//! How work reaches the disk: a thread that writes, threads that read ahead, or neither.

use super::chain::Key;
use super::file::{Name, Payload};
use super::writer::{Save, Shared, Writer};
use super::{LoadError, READ_AHEAD, READERS, Writing};
use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::JoinHandle;

/// Saves that may wait.
const QUEUE_MAX: usize = 256;
/// Bytes that may wait: more would be memory that no limit counts.
const QUEUE_BYTES_MAX: u64 = 256 << 20;

pub(super) enum Job {
    Save(Save),
    Refresh,
    Flush(SyncSender<()>),
}

/// Who writes.
pub(super) enum Lane {
    Thread { jobs: Option<SyncSender<Job>>, thread: Option<JoinHandle<()>> },
    Here { writer: Box<Writer>, jobs: VecDeque<Job>, at_once: bool },
}

impl Lane {
    pub fn new(mut writer: Writer, writing: Writing) -> Lane {
        if writing != Writing::Thread {
            let at_once = writing == Writing::AtOnce;
            return Lane::Here { writer: Box::new(writer), jobs: VecDeque::new(), at_once };
        }
        let (jobs, received) = mpsc::sync_channel(QUEUE_MAX);
        let body = move || received.into_iter().for_each(|job| run(&mut writer, job));
        // Without a thread nothing is saved, and every receipt says so.
        match std::thread::Builder::new().name("state writer".into()).spawn(body) {
            Ok(thread) => Lane::Thread { jobs: Some(jobs), thread: Some(thread) },
            Err(_) => Lane::Thread { jobs: None, thread: None },
        }
    }

    pub fn is_thread(&self) -> bool {
        matches!(self, Lane::Thread { .. })
    }

    /// Hands a save over, or gives it up when too much waits already.
    pub fn send(&mut self, shared: &Shared, save: Save) {
        {
            let (mut view, bytes) = (shared.view(), save.bytes());
            if view.queued_bytes + bytes > QUEUE_BYTES_MAX && view.queued_bytes > 0 {
                view.not_saved += 1;
                drop(view);
                return save.receipt.settle(false);
            }
            view.queued_bytes += bytes;
            for part in &save.parts {
                *view.pending.entry(part.name.id).or_default() += 1;
            }
        }
        let refused = match self {
            Lane::Here { writer, jobs, at_once } => {
                jobs.push_back(Job::Save(save));
                if *at_once {
                    jobs.drain(..).for_each(|job| run(writer, job));
                }
                None
            }
            Lane::Thread { jobs: Some(jobs), .. } => match jobs.try_send(Job::Save(save)) {
                Ok(()) => None,
                Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => Some(job),
            },
            Lane::Thread { jobs: None, .. } => Some(Job::Save(save)),
        };
        if let Some(Job::Save(save)) = refused {
            save.give_up(shared);
        }
    }

    /// Asks for a look at the folder, some time soon.
    pub fn refresh(&mut self) {
        match self {
            Lane::Here { jobs, .. } => {
                if !matches!(jobs.back(), Some(Job::Refresh)) {
                    jobs.push_back(Job::Refresh);
                }
            }
            Lane::Thread { jobs, .. } => {
                // One that does not fit is asked for again.
                let _later = jobs.as_ref().map(|jobs| jobs.try_send(Job::Refresh));
            }
        }
    }

    /// Returns when all that was sent is done.
    pub fn flush(&mut self) {
        match self {
            Lane::Here { writer, jobs, .. } => jobs.drain(..).for_each(|job| run(writer, job)),
            Lane::Thread { jobs: Some(jobs), .. } => {
                let (sender, done) = mpsc::sync_channel(1);
                if jobs.send(Job::Flush(sender)).is_ok() {
                    let _ended = done.recv();
                }
            }
            Lane::Thread { jobs: None, .. } => {}
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Lane::Thread { jobs, thread } = self {
            drop(jobs.take());
            if let Some(thread) = thread.take() {
                let _ended = thread.join();
            }
        }
    }
}

fn run(writer: &mut Writer, job: Job) {
    match job {
        Job::Save(save) => writer.save(&save),
        // Several may have waited behind a long save.
        Job::Refresh if writer.is_fresh() => {}
        Job::Refresh => {
            // Told in the status; the next lookup asks again.
            let _seen = writer.refresh();
        }
        Job::Flush(done) => {
            let _gone = done.send(());
        }
    }
}

/// A node that is to be loaded: from memory if it is held there.
pub(super) struct Wanted<'t> {
    pub key: Key,
    pub name: Name,
    pub tokens: &'t [u32],
    pub held: Option<Payload>,
}

/// Receives payloads in order.
type Take<'a, E> = &'a mut dyn FnMut(usize, Name, Payload) -> Result<(), LoadError<E>>;

/// One after the other.
pub(super) fn read_plainly<E>(
    shared: Option<&Shared>,
    wanted: &[Wanted<'_>],
    take: Take<'_, E>,
) -> Result<(), LoadError<E>> {
    for (index, Wanted { key, name, tokens, held }) in wanted.iter().enumerate() {
        let read = || shared.and_then(|shared| shared.read(key, name, tokens));
        let payload = held.clone().or_else(read).ok_or(LoadError::Lost)?;
        take(index, *name, payload)?;
    }
    Ok(())
}

/// Reads and checks files on threads of their own, while the receiver is at work.
pub(super) fn read_ahead<E>(
    shared: &Shared,
    wanted: &[Wanted<'_>],
    take: Take<'_, E>,
) -> Result<(), LoadError<E>> {
    let from_disk: Vec<&Wanted<'_>> = wanted.iter().filter(|w| w.held.is_none()).collect();
    if from_disk.len() < 2 * READERS {
        return read_plainly(Some(shared), wanted, take);
    }
    std::thread::scope(|scope| {
        let mut readers: Vec<Receiver<Option<Payload>>> = Vec::new();
        for reader in 0..READERS {
            let (sender, receiver) = mpsc::sync_channel(READ_AHEAD);
            let mine: Vec<&Wanted<'_>> =
                from_disk.iter().skip(reader).step_by(READERS).copied().collect();
            let body = move || {
                for wanted in mine {
                    let payload = shared.read(&wanted.key, &wanted.name, wanted.tokens);
                    let lost = payload.is_none();
                    if sender.send(payload).is_err() || lost {
                        break;
                    }
                }
            };
            let spawned = std::thread::Builder::new().spawn_scoped(scope, body);
            if spawned.is_err() {
                break;
            }
            readers.push(receiver);
        }
        if readers.len() < READERS {
            drop(readers);
            return read_plainly(Some(shared), wanted, take);
        }
        let mut next = 0;
        for (index, wanted) in wanted.iter().enumerate() {
            let payload = match &wanted.held {
                Some(payload) => payload.clone(),
                None => {
                    let reader = &readers[next % READERS];
                    next += 1;
                    reader.recv().ok().flatten().ok_or(LoadError::Lost)?
                }
            };
            take(index, wanted.name, payload)?;
        }
        Ok(())
    })
}
