//! `ironstar worker`: a rank that follows another process.

use crate::failure::Failure;
use crate::flags::{Numerics, Worker};
use crate::{loading, ranks};
use ironstar_cluster::{Cluster, Member};
use ironstar_device::{Cpu, CpuConfig};
use ironstar_model::{Followed, Model, Options};
use std::io::Read;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long a try to come together may take, before it is looked whether that still makes sense.
const FORM: Duration = Duration::from_secs(30);
/// How long rank 0 may be gone before a rank that nobody looks after gives up.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs the command.
pub fn run(flags: &Worker) -> Result<(), Failure> {
    if flags.tied {
        end_with_input()?;
    }
    let opened = loading::open(flags.model.as_deref(), flags.mtp_model.as_deref())?;
    let settings = ranks::settings(&opened, flags.rank_key_file.as_deref(), FORM)?;
    let member = Member::new(address(&flags.join)?, flags.rank, None, settings);
    let cluster = Cluster::join(member.map_err(ranks::failure)?).map_err(ranks::failure)?;
    let config = CpuConfig {
        threads: flags.threads.map_or(0, usize::from),
        isa: flags.isa.map(loading::isa),
        float_products: flags.numerics != Numerics::Quantized,
    };
    let cpu = Cpu::new(config).map_err(|error| Failure::environment(error.to_string()))?;
    let mut cpu = cpu.with_exchange(Box::new(cluster));
    let options = Options {
        round_trips: flags.numerics != Numerics::Exact,
        rows: loading::rows(flags.numerics),
        step_rows_max: flags.prefill_chunk,
    };
    let drafter = opened.drafter.as_ref();
    let named = |error| loading::in_file(&opened.name, loading::from_model(error));
    let model = Model::load(&opened.gguf, drafter, &mut cpu, options, &mut |_| {});
    let mut model = model.map_err(named)?;
    let mut waiting: Option<Instant> = None;
    let mut on_event = |event: Followed| {
        let tell = |text: &str| {
            // Rank 0 tells the same where it has started this process.
            if !flags.tied {
                ranks::note(text);
            }
        };
        match event {
            Followed::Broken(reason) => tell(&format!("the group broke: {reason}")),
            Followed::Epoch(epoch) => {
                waiting = None;
                tell(&format!("the group goes on, in epoch {epoch}"));
            }
            Followed::Waiting(_) => {
                let since = waiting.get_or_insert_with(Instant::now);
                return flags.tied || since.elapsed() < PATIENCE;
            }
        }
        true
    };
    model.follow(&mut cpu, &mut on_event).map_err(loading::from_model)
}

fn address(text: &str) -> Result<SocketAddr, Failure> {
    let wrong = |found: String| {
        Failure::caller(format!("--join {text}: {found}; HOST:PORT of rank 0 is wanted"))
    };
    let mut all = text.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    all.next().ok_or_else(|| wrong("no address".into()))
}

/// Ends this process when its standard input does, since whoever holds the other end is gone.
fn end_with_input() -> Result<(), Failure> {
    let wait = || {
        let mut rest = Vec::new();
        // Whatever comes, or an error: the end is what matters.
        let _end = std::io::stdin().lock().read_to_end(&mut rest);
        std::process::exit(1);
    };
    let thread = std::thread::Builder::new().name("tie".into()).spawn(wait);
    thread.map_err(|error| Failure::environment(format!("starting a thread: {error}")))?;
    Ok(())
}
