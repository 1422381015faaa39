//! The fork-join pool: parts of one operation run on all threads, the caller's included.
//!
//! A model step is hundreds of short parallel regions, so workers spin for a bounded while before
//! they sleep, and a region costs an atomic or two a part. Nothing here decides bits: a part must
//! not depend on which thread runs it, nor when.

use super::product::{Piece, Task};
use super::spare::Spare;
use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, yield_now};
use std::time::{Duration, Instant};

/// How long an idle worker looks for work before it gives its core to others, and before it sleeps.
const SPIN: Duration = Duration::from_micros(30);
const AWAKE: Duration = Duration::from_micros(100);
/// Looks between two readings of the clock.
const LOOKS: u32 = 32;

/// Threads that run the parts of one operation.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Memory that parts work in: as many as ever ran at the same time.
    buffers: Mutex<Vec<Vec<u32>>>,
    /// Memory of batches of products: as many as ever were there at the same time.
    lists: Mutex<Vec<(Spare<Task<'static>>, Vec<Piece>)>>,
}

/// What a region runs; the lifetime is that of the call of [`Pool::run`].
type Part = dyn Fn(usize) + Sync;

/// How many parts a stage has, and what runs one.
pub(crate) type Stage<'a> = (usize, &'a (dyn Fn(usize) + Sync));

/// The region that is running.
///
/// `ticket` is the only word that hands out work: the region's number above, how many of its parts
/// nobody has taken below. Whoever takes a part by compare-exchange knows that its region cannot
/// end before the part does, so `call` and `parts` stay as they are until then.
#[derive(Debug)]
struct Shared {
    ticket: AtomicU64,
    parts: AtomicUsize,
    call: UnsafeCell<Option<*const Part>>,
    ended: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// A region is running, so another one runs on its caller's thread alone.
    busy: AtomicBool,
    stop: AtomicBool,
    sleepers: AtomicU32,
    bed: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `call` is written only by the thread that holds `busy`, while no part is out, and read
// only by threads that hold a part of the region (see `ticket`); what it points to is `Sync` and
// outlives the region. Everything else is atomic or locked.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of so many threads, the caller's included; 0 means one for each core. If the system
    /// refuses a thread, the pool has fewer.
    pub fn new(threads: usize) -> Self {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { all() } else { threads };
        let shared = Arc::new(Shared {
            ticket: AtomicU64::new(0),
            parts: AtomicUsize::new(0),
            call: UnsafeCell::new(None),
            ended: AtomicUsize::new(0),
            panic: Mutex::new(None),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            bed: Mutex::new(()),
            wake: Condvar::new(),
        });
        let spawn = |number: usize| {
            let shared = shared.clone();
            let name = format!("ironstar-cpu-{number}");
            std::thread::Builder::new().name(name).spawn(move || shared.work()).ok()
        };
        let workers = (1..threads).map_while(spawn).collect();
        Pool { shared, workers, buffers: Mutex::default(), lists: Mutex::default() }
    }

    /// Threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Lends memory that holds anything and stays with the pool.
    pub fn with_buffer<T>(&self, f: impl FnOnce(&mut Vec<u32>) -> T) -> T {
        let mut buffer = lock(&self.buffers).pop().unwrap_or_default();
        let result = f(&mut buffer);
        lock(&self.buffers).push(buffer);
        result
    }

    /// Empty lists for a batch of products.
    pub fn lists<'a>(&self) -> (Vec<Task<'a>>, Vec<Piece>) {
        let (mut tasks, pieces) = lock(&self.lists).pop().unwrap_or_default();
        (tasks.list(), pieces)
    }

    /// Takes those lists back.
    pub fn keep_lists(&self, tasks: Vec<Task<'_>>, mut pieces: Vec<Piece>) {
        let mut spare = Spare::default();
        spare.keep(tasks);
        pieces.clear();
        lock(&self.lists).push((spare, pieces));
    }

    /// Calls `f` once with each of `0..parts`, on any thread, and returns when all are done.
    ///
    /// If parts panic, the others still run, and then the first panic goes on in the caller. A call
    /// from inside a part, or while another thread's call runs, does its parts alone on its own
    /// thread.
    pub fn run(&self, parts: usize, f: &(dyn Fn(usize) + Sync)) {
        let alone = parts < 2 || self.workers.is_empty() || u32::try_from(parts).is_err();
        if alone || self.shared.busy.swap(true, Ordering::Acquire) {
            return run_alone(parts, f);
        }
        self.leave(self.shared.region(parts, f));
    }

    /// [`Pool::run`] of several stages as one region: a part begins when all parts of the stages
    /// before its own have ended. So nobody goes home between them, and whoever is done with one
    /// stage waits for the last parts of it at most. `alone` keeps small work on this thread.
    pub fn run_stages(&self, alone: bool, stages: &[Stage<'_>]) {
        let total = stages.iter().fold(0, |all: usize, (parts, _)| all.saturating_add(*parts));
        let alone = alone || total < 2 || self.workers.is_empty() || u32::try_from(total).is_err();
        if alone || self.shared.busy.swap(true, Ordering::Acquire) {
            return stages.iter().for_each(|(parts, f)| run_alone(*parts, f));
        }
        let panic = self.shared.region(total, &|part| {
            let mut first = 0;
            for (parts, f) in stages {
                if part < first + parts {
                    // Parts are taken in order, so those of earlier stages are in the hands of
                    // threads that wait for nothing behind them.
                    self.shared.wait(first);
                    return f(part - first);
                }
                first += parts;
            }
        });
        self.leave(panic);
    }

    /// Ends a region.
    fn leave(&self, panic: Option<Box<dyn Any + Send>>) {
        self.shared.busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.bed));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of parts, so there is nothing to learn from its end.
            let _ = worker.join();
        }
    }
}

fn run_alone(parts: usize, f: &(dyn Fn(usize) + Sync)) {
    let mut panic = None;
    for part in 0..parts {
        if let Err(caught) = catch_unwind(AssertUnwindSafe(|| f(part))) {
            panic.get_or_insert(caught);
        }
    }
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

impl Shared {
    /// Runs a region; the caller holds `busy`.
    fn region(&self, parts: usize, f: &(dyn Fn(usize) + Sync)) -> Option<Box<dyn Any + Send>> {
        let call: *const (dyn Fn(usize) + Sync + '_) = std::ptr::from_ref(f);
        // SAFETY: only the lifetime is dropped, and no thread uses the pointer after this function:
        // it returns when every part has ended, and no part can be taken after the last one
        // was.
        let call: *const Part = unsafe { std::mem::transmute(call) };
        // SAFETY: the caller holds `busy` and the last region has ended, so nobody reads `call`.
        unsafe { *self.call.get() = Some(call) };
        self.parts.store(parts, Ordering::Relaxed);
        self.ended.store(0, Ordering::Relaxed);
        let region = (self.ticket.load(Ordering::Relaxed) >> 32).wrapping_add(1) << 32;
        // Sequentially consistent with `sleep`: either this thread sees the sleeper, or the sleeper
        // sees the ticket.
        self.ticket.store(region | parts as u64, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.bed));
            self.wake.notify_all();
        }
        while self.take_part() {}
        self.wait(parts);
        lock(&self.panic).take()
    }

    /// Waits until so many parts of the running region have ended.
    fn wait(&self, parts: usize) {
        let mut looks = 0u32;
        while self.ended.load(Ordering::Acquire) < parts {
            looks = looks.saturating_add(1);
            // About thirty microseconds; then the thread with the last part may need this core.
            if looks < 1000 { spin_loop() } else { yield_now() }
        }
    }

    /// Takes a part of the running region and runs it; false if there is none.
    fn take_part(&self) -> bool {
        let mut ticket = self.ticket.load(Ordering::Acquire);
        let left = loop {
            let left = ticket & u64::from(u32::MAX);
            if left == 0 {
                return false;
            }
            let taken = self.ticket.compare_exchange_weak(
                ticket,
                ticket - 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match taken {
                Ok(_) => break usize::try_from(left).expect("32 bits"),
                Err(now) => ticket = now,
            }
        };
        let part = self.parts.load(Ordering::Relaxed) - left;
        // SAFETY: this thread holds a part, so the region's `call` is in place and alive.
        let call = unsafe { (*self.call.get()).expect("set before the ticket") };
        // SAFETY: as above.
        let call = unsafe { &*call };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| call(part))) {
            lock(&self.panic).get_or_insert(panic);
        }
        self.ended.fetch_add(1, Ordering::Release);
        true
    }

    /// A worker's life.
    fn work(&self) {
        let mut idle = Instant::now();
        let mut looks = 0u32;
        let mut waited = Duration::ZERO;
        while !self.stop.load(Ordering::Relaxed) {
            if self.take_part() {
                while self.take_part() {}
                (idle, looks, waited) = (Instant::now(), 0, Duration::ZERO);
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) || waited >= SPIN {
                waited = idle.elapsed();
            }
            if waited < SPIN {
                spin_loop();
            } else if waited < AWAKE {
                yield_now();
            } else {
                self.sleep();
                (idle, waited) = (Instant::now(), Duration::ZERO);
            }
        }
    }

    /// Sleeps until a region begins or the pool ends.
    fn sleep(&self) {
        let mut bed = lock(&self.bed);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.ticket.load(Ordering::SeqCst) & u64::from(u32::MAX) == 0
            && !self.stop.load(Ordering::SeqCst)
        {
            bed = self.wake.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Nothing panics while these locks are held, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
