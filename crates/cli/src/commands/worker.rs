//! `ironstar worker`: a rank that follows another process.

use crate::failure::Failure;
use crate::flags::{BackendName, Numerics, Worker};
use crate::loading::{self, Opened};
use crate::ranks::{self, Place};
use ironstar_cluster::{Cluster, Member};
use ironstar_device::{Backend, Cpu, CpuConfig, ExchangeError, GateRoute};
use ironstar_engine::{EngineOptions, ProcessCard, open_backend};
use ironstar_model::{Followed, Model, Options, Pipeline};
use std::io::Read;
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
    let place = Place::of_flags(flags)?;
    let opened = loading::open(flags.model.as_deref(), flags.mtp_model.as_deref())?;
    let settings = ranks::settings(&opened, &place.group, FORM)?;
    let member = Member::new(place.join, place.rank, place.ranks, settings);
    let cluster = Cluster::join(member.map_err(ranks::failure)?).map_err(ranks::failure)?;
    let (mut backend, pipeline) = if cluster.has_streams() {
        let (backend, pipeline) = node(flags, &opened, cluster)?;
        (backend, Some(pipeline))
    } else {
        (rank(flags, &opened, cluster)?, None)
    };
    let options = Options {
        round_trips: flags.numerics != Numerics::Exact,
        rows: loading::rows(flags.numerics),
        step_rows_max: flags.backend.chunk(flags.prefill_chunk),
    };
    let drafter = opened.drafter.as_ref();
    let named = |error| loading::in_file(&opened.name, loading::from_model(error));
    let device = backend.as_mut();
    let model = Model::load_node(&opened.gguf, drafter, device, options, pipeline, &mut |_| {});
    let mut model = model.map_err(named)?;
    let mut patience = Patience::new(flags.tied);
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
                patience.since = None;
                tell(&format!("the group goes on, in epoch {epoch}"));
            }
            Followed::Waiting(_) => return patience.lasts(),
        }
        true
    };
    model.follow(backend.as_mut(), &mut on_event).map_err(loading::from_model)
}

/// How long rank 0 is waited for.
struct Patience {
    tied: bool,
    since: Option<Instant>,
}

impl Patience {
    fn new(tied: bool) -> Patience {
        Patience { tied, since: None }
    }

    /// Whoever is tied to rank 0 ends with it, and not before.
    fn lasts(&mut self) -> bool {
        let since = self.since.get_or_insert_with(Instant::now);
        self.tied || since.elapsed() < PATIENCE
    }
}

/// A rank with a part of every layer.
fn rank(flags: &Worker, opened: &Opened, cluster: Cluster) -> Result<Box<dyn Backend>, Failure> {
    let exchange: Box<dyn ironstar_device::Exchange> = Box::new(cluster);
    if flags.backend == BackendName::Cuda {
        let card = ProcessCard { device: flags.device, most: Some(GateRoute::Peer) };
        let options = card_options(flags);
        let opened = card.open(&opened.gguf, exchange, &options).map_err(loading::from_engine)?;
        ranks::note(&opened.1);
        return Ok(opened.0);
    }
    let plans = ranks::rank_plans(opened, exchange.ranks())?;
    if !flags.tied {
        ranks::check_memory(plans.iter().skip(exchange.rank()).take(1))?;
    }
    let config = CpuConfig {
        threads: flags.threads.map_or(0, usize::from),
        isa: flags.isa.map(loading::isa),
        float_products: flags.numerics != Numerics::Quantized,
    };
    let cpu = Cpu::new(config).map_err(|error| Failure::environment(error.to_string()))?;
    Ok(Box::new(cpu.with_exchange(exchange)))
}

/// What the flags say of devices.
fn card_options(flags: &Worker) -> EngineOptions {
    EngineOptions {
        backend: flags.backend.choice(),
        card: flags.device.unwrap_or(0),
        kernel_cache: loading::kernel_cache(),
        threads: flags.threads.map_or(0, usize::from),
        isa: flags.isa.map(loading::isa),
        float_products: flags.numerics != Numerics::Quantized,
        ..EngineOptions::default()
    }
}

/// A node with some of the layers, which rank 0 names.
fn node(
    flags: &Worker,
    opened: &Opened,
    cluster: Cluster,
) -> Result<(Box<dyn Backend>, Pipeline), Failure> {
    let mut patience = Patience::new(flags.tied);
    let mut goes_on = |_: &ExchangeError| patience.lasts();
    let pipeline = Pipeline::hear(Box::new(cluster), &mut goes_on).map_err(loading::from_model)?;
    let plans = ranks::stage_plans(opened, pipeline.stages())?;
    let bytes = plans.get(pipeline.stage()).map_or(0, |plan| ranks::sum(plan));
    let range = pipeline.stages().range(pipeline.stage());
    if !flags.tied {
        let (first, last) = (range.start, range.end - 1);
        ranks::note(&format!("has layers {first} to {last}, {} MiB of weights", bytes >> 20));
    }
    let (backend, note) =
        open_backend(&card_options(flags), bytes).map_err(loading::from_engine)?;
    if let Some(note) = note.filter(|_| !flags.tied || flags.backend == BackendName::Auto) {
        ranks::note(&note);
    }
    Ok((backend, pipeline))
}

/// Ends this process when its standard input does, since whoever holds the other end is gone.
pub(super) fn end_with_input() -> Result<(), Failure> {
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
