//! Kernels of a text that is compiled in parts, side by side: from the cache, or made now.

use super::nvrtc::Compiler;
use super::{CudaConfig, OPTIONS, cache, edges};
use crate::Error;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most threads that compile: the longest part takes a tenth of all, so more would only wait.
const THREADS_MAX: usize = 16;
/// Compilers recurse deeply; what a main thread usually has.
const STACK_BYTES: usize = 16 << 20;
/// How long a start waits for another that compiles: longer than one core takes for all.
const TURN: Duration = Duration::from_secs(120);

/// Who is told how many parts of the kernels are compiled, and of how many, while that is done;
/// from whatever thread. Clones share it.
#[derive(Clone, Default)]
pub struct Compiling(Option<Arc<Told>>);

type Told = dyn Fn(usize, usize) + Send + Sync;

impl Compiling {
    /// Calls this: first with none of all, then with each that is done.
    pub fn told(by: impl Fn(usize, usize) + Send + Sync + 'static) -> Compiling {
        Compiling(Some(Arc::new(by)))
    }

    fn tell(&self, done: usize, all: usize) {
        if let Some(told) = &self.0 {
            told(done, all);
        }
    }
}

impl fmt::Debug for Compiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Compiling").field(&self.0.is_some()).finish()
    }
}

/// Code of each part of a text, for a compute capability (90 for 9.0) and a driver (13000 for CUDA
/// 13.0).
pub(super) fn compiled(
    config: &CudaConfig,
    [capability, driver]: [u32; 2],
    parts: &[String],
) -> Result<Vec<Vec<u8>>, Error> {
    let (architecture, driver) = (capability.to_string(), driver.to_string());
    let folder = config.cache.as_deref();
    let entry = |part: &String| cache::Entry::new(folder, &[part, OPTIONS, &architecture, &driver]);
    let entries: Vec<_> = parts.iter().map(entry).collect();
    let mut codes: Vec<_> = entries.iter().map(cache::Entry::load).collect();
    if codes.iter().any(Option::is_none) {
        let compiler = Compiler::load(config.nvrtc.as_deref())?;
        // Whose turn it was before may have left what is wanted.
        let _turn = cache::Turn::wait(folder, TURN);
        for (code, entry) in codes.iter_mut().zip(&entries).filter(|(code, _)| code.is_none()) {
            *code = entry.load();
        }
        let wanted: Vec<_> = (0..codes.len()).filter(|at| codes[*at].is_none()).collect();
        let capability = i32::try_from(capability).expect("two digits or three");
        let make = |at: usize| {
            let code = compiler.compile(&parts[wanted[at]], OPTIONS, capability)?;
            entries[wanted[at]].store(&code);
            Ok(code)
        };
        let made = side_by_side(wanted.len(), &config.compiling, &make)?;
        for (at, code) in wanted.iter().zip(made) {
            codes[*at] = Some(code);
        }
    }
    Ok(codes.into_iter().flatten().collect())
}

/// What `make` gives for each number below `all`, on as many threads as there are cores; or the
/// first error, after which nothing more is begun.
fn side_by_side(
    all: usize,
    compiling: &Compiling,
    make: &(impl Fn(usize) -> Result<Vec<u8>, Error> + Sync),
) -> Result<Vec<Vec<u8>>, Error> {
    if all > 0 {
        compiling.tell(0, all);
    }
    let (next, made) = (AtomicUsize::new(0), Mutex::new(Ok((0, vec![Vec::new(); all]))));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= all {
                return;
            }
            let code = make(at);
            let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
            match (code, &mut *made) {
                (Ok(code), Ok((done, codes))) => {
                    codes[at] = code;
                    *done += 1;
                    compiling.tell(*done, all);
                }
                (Err(error), Ok(_)) => *made = Err(error),
                (_, Err(_)) => {}
            }
            if made.is_err() {
                next.store(all, Ordering::Relaxed);
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let builder = || std::thread::Builder::new().name("nvrtc".into()).stack_size(STACK_BYTES);
        let threads = 0..cores.min(THREADS_MAX).min(all);
        let given = threads.map_while(|_| builder().spawn_scoped(scope, work).ok()).count();
        // A system that gives no thread at all.
        if given == 0 {
            work();
        }
    });
    let (_, codes) = made.into_inner().unwrap_or_else(PoisonError::into_inner)?;
    Ok(codes)
}

/// Compiles the kernels for a card that is elsewhere into the folder of the settings, where its
/// first start finds them: as they run, without programmatic edges, and with stamps. Gives the
/// bytes of each.
pub fn cuda_compile(config: &CudaConfig, card: [u32; 2]) -> Result<[usize; 3], Error> {
    let parts = crate::gpu::text::cuda_parts();
    let texts = [
        parts.iter().map(|part| edges::with_waits(part)).collect(),
        Some(parts),
        edges::with_stamps(&crate::gpu::text::cuda()).map(|text| vec![text]),
    ];
    let mut bytes = [0; 3];
    for (bytes, parts) in bytes.iter_mut().zip(texts.iter().flatten()) {
        *bytes = compiled(config, card, parts)?.iter().map(Vec::len).sum();
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(at: usize) -> Error {
        Error::Shape { operation: "compile", found: at.to_string(), wanted: "another".into() }
    }

    #[test]
    fn parts_come_in_their_order_and_each_is_told_of() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = seen.clone();
        let compiling = Compiling::told(move |done, all| {
            told.lock().expect("nobody panicked").push((done, all));
        });
        let make = |at: usize| Ok(vec![u8::try_from(at).expect("small")]);
        let codes = side_by_side(4, &compiling, &make).map_err(|error| error.to_string());
        assert_eq!(codes, Ok(vec![vec![0], vec![1], vec![2], vec![3]]));
        let seen = seen.lock().expect("nobody panicked");
        assert_eq!(*seen, [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]);
    }

    #[test]
    fn the_first_error_ends_it() {
        let begun = AtomicUsize::new(0);
        let make = |at: usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            Err(failed(at))
        };
        let nobody = Compiling::default();
        assert!(side_by_side(1000, &nobody, &make).is_err());
        assert!(begun.into_inner() <= THREADS_MAX, "each thread began one at most");
        let nothing = side_by_side(0, &nobody, &|at| Err(failed(at)));
        assert!(nothing.is_ok_and(|codes| codes.is_empty()));
    }
}
