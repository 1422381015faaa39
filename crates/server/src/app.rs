//! What all requests share.

use super::answers::{Answers, Shelf};
use super::grammar::Grammars;
use super::listen::{Phase, Shutdown};
use super::metrics::Metrics;
use super::{Model, Options};
use ironstar_engine::scheduler::Client;
use ironstar_engine::store::Folder;
use ironstar_wire::{ApiError, CallMemory, ErrorKind};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Bytes of sampled calls that are remembered for exact replay.
const CALL_MEMORY_BYTES: usize = 256 << 20;

pub(crate) struct App {
    pub options: Options,
    pub model: Model,
    pub client: Client,
    /// Where it really listens.
    pub address: SocketAddr,
    pub metrics: Metrics,
    pub memory: Mutex<CallMemory>,
    pub answers: Answers,
    pub grammars: Grammars,
    /// Seconds since 1970 when it started.
    pub started: u64,
    open: Arc<AtomicUsize>,
    phase: watch::Receiver<Phase>,
    ids: Ids,
}

impl App {
    pub fn new(
        (options, model): (Options, Model),
        client: Client,
        address: SocketAddr,
        shutdown: &Shutdown,
    ) -> App {
        let shelf = options
            .store_dir
            .clone()
            .map(|folder| Shelf::new(Arc::new(Folder::new(folder)), options.store_disk_bytes));
        App {
            client,
            address,
            metrics: Metrics::default(),
            memory: Mutex::new(CallMemory::new(CALL_MEMORY_BYTES)),
            answers: Answers::new(options.store_bytes, shelf),
            grammars: Grammars::new(&model),
            started: now(),
            open: Arc::default(),
            phase: shutdown.watch(),
            ids: Ids::default(),
            options,
            model,
        }
    }

    /// A line for the log.
    pub fn log(&self, line: &str) {
        (self.options.log)(line);
    }

    /// Letters and digits that nobody can guess.
    pub fn fresh_id(&self) -> String {
        self.ids.fresh()
    }

    /// A seed for an answer whose request names none.
    pub fn fresh_seed(&self) -> u64 {
        self.ids.number()
    }

    /// Requests that wait or run.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// A place among the requests that wait or run; it is given back when dropped.
    pub fn admit(&self) -> Result<Place, ApiError> {
        let most = self.options.requests_max;
        let place = Place(self.open.clone());
        // Counted first, so that two can never both take the last place.
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        if before >= most {
            drop(place);
            let text = format!(
                "{before} requests wait or run, and no more than {most} may; try again in a few \
                 seconds"
            );
            return Err(ApiError::new(ErrorKind::Busy, "queue_full", text));
        }
        Ok(place)
    }

    /// Whether it is on its way down.
    pub fn is_stopping(&self) -> bool {
        *self.phase.borrow() > Phase::Serving
    }

    /// The server's way down.
    pub fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.clone()
    }
}

/// One of the places of [`App::admit`].
pub(crate) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Numbers from a keyed hash of a counter; the keys are the system's random bytes.
#[derive(Default)]
struct Ids {
    keys: [RandomState; 2],
    counter: AtomicU64,
}

impl Ids {
    fn numbers(&self) -> [u64; 2] {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        self.keys.each_ref().map(|key| {
            let mut hasher = key.build_hasher();
            hasher.write_u64(count);
            hasher.finish()
        })
    }

    fn number(&self) -> u64 {
        self.numbers()[0]
    }

    fn fresh(&self) -> String {
        const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let mut id = String::with_capacity(24);
        for mut number in self.numbers() {
            for _ in 0..11 {
                let digit = usize::try_from(number % 62).unwrap_or(0);
                id.push(char::from(DIGITS[digit]));
                number /= 62;
            }
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::Ids;
    use std::collections::HashSet;

    #[test]
    fn ids_differ_and_are_letters_and_digits() {
        let (ids, others) = (Ids::default(), Ids::default());
        let made: HashSet<String> = (0..1000).flat_map(|_| [ids.fresh(), others.fresh()]).collect();
        assert_eq!(made.len(), 2000);
        let plain = |id: &String| id.len() == 22 && id.bytes().all(|b| b.is_ascii_alphanumeric());
        assert!(made.iter().all(plain));
    }
}
