//! A thread for each control connection while an epoch lives: beats both ways, and the reason
//! when somebody gives up.

use super::{Channel, Deadlines, Word};
use crate::watch::Watch;
use ironstar_device::ExchangeError;
use std::time::{Duration, Instant};

/// Time between two beats.
const BEAT: Duration = Duration::from_millis(250);
/// Time between two looks at what this end knows.
const LOOK: Duration = Duration::from_millis(10);
/// Most time that counts as silence between two looks. When more has gone by this thread was
/// stopped itself, perhaps with all of the machine, and is no witness of what it did not wait for.
const WITNESSED_MAX: Duration = Duration::from_millis(100);

/// Watches the connection to `rank` until the epoch ends.
pub(super) fn spawn(
    rank: usize,
    mut channel: Channel,
    deadlines: Deadlines,
    watch: Watch,
) -> std::io::Result<()> {
    watch.attach();
    let mine = watch.clone();
    let thread = std::thread::Builder::new().name(format!("cluster-watch-{rank}"));
    let spawned = thread.spawn(move || {
        if let Err(error) = run(rank, &mut channel, deadlines, &mine) {
            mine.fail(error);
        }
        mine.detach();
    });
    if spawned.is_err() {
        watch.detach();
    }
    spawned.map(drop)
}

fn run(
    rank: usize,
    channel: &mut Channel,
    deadlines: Deadlines,
    watch: &Watch,
) -> Result<(), ExchangeError> {
    let lost = |found: String| ExchangeError::Lost { rank, found };
    let (mut silent, mut looked, mut beaten) = (Duration::ZERO, Instant::now(), Instant::now());
    loop {
        silent += looked.elapsed().min(WITNESSED_MAX);
        looked = Instant::now();
        // What this end knows goes out before anything else is read.
        if let Some(error) = watch.error() {
            // The other end may be gone; then nobody needs to know.
            let _ = channel.say(&Word::Abort { reason: error.to_string() });
            return Ok(());
        }
        if watch.is_closed() {
            let _ = channel.say(&Word::Bye);
            return Ok(());
        }
        if beaten.elapsed() >= BEAT {
            channel.say(&Word::Beat).map_err(|e| lost(e.to_string()))?;
            beaten = Instant::now();
        }
        match channel.hear(Instant::now() + LOOK) {
            Ok(Some(Word::Beat)) => silent = Duration::ZERO,
            Ok(Some(Word::Abort { reason })) => {
                return Err(ExchangeError::Aborted { rank, reason });
            }
            // What it sent before is still read; a gate that it does not pass finds its link
            // closed.
            Ok(Some(Word::Bye)) => return Ok(()),
            Ok(Some(word)) => {
                let (found, wanted) = (format!("{word:?}"), "a beat".to_string());
                return Err(ExchangeError::Wrong { rank, found, wanted });
            }
            Ok(None) if silent > deadlines.silence => {
                return Err(lost(format!("silent for {} ms", silent.as_millis())));
            }
            Ok(None) => {}
            Err(error) => return Err(lost(error.to_string())),
        }
    }
}
