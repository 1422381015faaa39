//! One target in one process: replay, then mutate until the time is up, and report the first fault.

use crate::options::Options;
use ironstar_fuzz::{Counting, Session, Target, minimise};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks of the watchdog.
const WATCH: Duration = Duration::from_millis(50);
/// Most time that counts between two looks: when more has gone by the process was stopped.
const WATCHED_MAX: Duration = Duration::from_millis(200);
/// What an input did wrong.
struct Fault {
    /// Equal for inputs that show the same fault.
    kind: String,
    text: String,
}

/// Longest report of a panic, in bytes.
const MESSAGE_MAX: usize = 2000;

/// The input that is running, for the watchdog.
type Running = Arc<Mutex<Option<(Vec<u8>, Instant)>>>;

/// Place and message.
type LastPanic = Arc<Mutex<(String, String)>>;

struct Worker<'a> {
    target: &'static Target,
    options: &'a Options,
    memory: &'static Counting,
    running: Running,
    panic: LastPanic,
    peak: usize,
}

/// Replays the regressions of `target`, then fuzzes it.
pub fn run(
    target: &'static Target,
    options: &Options,
    memory: &'static Counting,
) -> Result<(), String> {
    let running = Running::default();
    let panic = capture_panics();
    watch(target, memory, running.clone(), options);
    let mut worker = Worker { target, options, memory, running, panic, peak: 0 };
    let replayed = worker.replay()?;
    let mut session = Session::new(target, options.seed);
    let begun = Instant::now();
    let mut inputs = 0_u64;
    while begun.elapsed().as_secs_f64() < options.seconds {
        let input = session.next_input();
        let signature =
            worker.one(&input).map_err(|fault| worker.report(&input, &fault, inputs))?;
        session.keep(input, signature);
        inputs += 1;
    }
    println!(
        "fuzz: {}: {inputs} inputs, {replayed} regressions, {} outcomes, peak {} KiB, ok",
        target.name,
        session.outcomes(),
        worker.peak / 1024,
    );
    Ok(())
}

impl Worker<'_> {
    fn replay(&mut self) -> Result<usize, String> {
        let folder = self.options.regressions(self.target.name);
        let Ok(entries) = std::fs::read_dir(&folder) else {
            return Ok(0);
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in &paths {
            let input = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
            self.one(&input)
                .map_err(|fault| format!("{} fails again: {}", path.display(), fault.text))?;
        }
        Ok(paths.len())
    }

    /// Runs one input; the error says what went wrong.
    fn one(&mut self, input: &[u8]) -> Result<u64, Fault> {
        if let Some(trace) = &self.options.trace {
            let text = |e| format!("{}: {e}", trace.display());
            let written = std::fs::write(trace, input);
            written.map_err(|e| Fault { kind: "trace".into(), text: text(e) })?;
        }
        *lock(&self.running) = Some((input.to_vec(), Instant::now()));
        let before = self.memory.mark();
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.target.run)(input)));
        let taken = self.memory.peak().saturating_sub(before);
        *lock(&self.running) = None;
        self.peak = self.peak.max(taken);
        let allowed = self.target.base_bytes + self.target.bytes_per_byte * input.len();
        match outcome {
            Err(_) => {
                let (place, message) = lock(&self.panic).clone();
                Err(Fault { text: format!("panic: {place}: {message}"), kind: place })
            }
            Ok(_) if taken > allowed => Err(Fault {
                kind: "memory".into(),
                text: format!(
                    "memory: {taken} bytes, where {} of input justify {allowed}",
                    input.len()
                ),
            }),
            Ok(signature) => Ok(signature),
        }
    }

    /// Makes the input smaller, saves it, and says where it is.
    fn report(&mut self, input: &[u8], fault: &Fault, inputs: u64) -> String {
        let begun = Instant::now();
        let small = minimise(input, |candidate| {
            begun.elapsed().as_secs() < 20
                && self.one(candidate).is_err_and(|found| found.kind == fault.kind)
        });
        let saved = save(&self.options.artifacts(self.target.name), &small);
        format!(
            "{}: input {inputs} of seed {} (made smaller: {} bytes): {}\n{saved}",
            self.target.name,
            self.options.seed,
            small.len(),
            fault.text,
        )
    }
}

/// Keeps the message of the last panic instead of printing it.
fn capture_panics() -> LastPanic {
    let message = LastPanic::default();
    let kept = message.clone();
    std::panic::set_hook(Box::new(move |info| {
        let place =
            info.location().map(|l| format!("{}:{}", l.file(), l.line())).unwrap_or_default();
        let text = info.payload_as_str().unwrap_or("(no text)");
        let cut = text.floor_char_boundary(MESSAGE_MAX);
        *lock(&kept) = (place, text[..cut].to_string());
    }));
    message
}

/// Ends the process when an input takes too long or asks for too much; saves the input first.
fn watch(target: &'static Target, memory: &'static Counting, running: Running, options: &Options) {
    let (folder, limit) = (options.artifacts(target.name), options.input_seconds_max);
    std::thread::spawn(move || {
        let (mut looked, mut last, mut spent) = (Instant::now(), None, Duration::ZERO);
        loop {
            std::thread::sleep(WATCH);
            let passed = looked.elapsed().min(WATCHED_MAX);
            looked = Instant::now();
            let state = lock(&running);
            let Some((input, since)) = state.as_ref() else {
                continue;
            };
            spent = if last == Some(*since) { spent + passed } else { Duration::ZERO };
            last = Some(*since);
            let fault = match memory.refused() {
                0 if spent.as_secs_f64() > limit => {
                    format!("slow: more than {limit} s")
                }
                0 => continue,
                bytes => format!("memory: an allocation of {bytes} bytes"),
            };
            eprintln!("fuzz: {}: {fault}\n{}", target.name, save(&folder, input));
            std::process::exit(1);
        }
    });
}

fn save(folder: &Path, input: &[u8]) -> String {
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let path = folder.join(format!("{hash:016x}.bin"));
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, input));
    match written {
        Ok(()) => {
            format!("saved as {}; when it is mended, keep it under regressions/", path.display())
        }
        Err(error) => format!("could not be saved as {}: {error}", path.display()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
