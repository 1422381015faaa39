//! Several processes on one model: what rank 0 does to have the others, and what they have in
//! common with it.
//!
//! What is wanted comes from flags, from a file or from whatever launched the processes
//! ([`group`]). Where nobody else starts the other ranks, rank 0 does, as `ironstar worker` of the
//! same file, and starts one again that has died ([`crew`]). Its group then forms anew at the next
//! request.

mod cards;
mod crew;
mod file;
mod group;

use crate::failure::Failure;
use crate::flags::{self, BackendName, Carrier, ProfileGates, Ranks};
use crate::loading::{self, Opened};
pub use crew::{Crew, add_paths, rank_commands};
pub use group::{Group, Layers, Place, address};
use ironstar_cluster::{Alone, Cluster, Deadlines, Identity, Key, Settings};
use ironstar_device::{Backend, Cpu, CpuConfig, Exchange, Part};
use ironstar_engine::{EngineOptions, check_host};
use ironstar_model::deepseek_v4::{SparkShape, drafter_specs, rank_plan, stage_plan, tensor_specs};
use ironstar_model::{Fingerprint, Pipeline, PlanLine, Shape, Stages, balanced_stages};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// How long all ranks may take to load their parts.
pub const LOADING: Duration = Duration::from_secs(1800);
/// How long a request waits for a rank that has to be started again.
const FORM_HERE: Duration = Duration::from_secs(30);
/// The same, where people start ranks on other machines.
const FORM_AWAY: Duration = Duration::from_secs(120);

/// A backend that is rank 0 of the group that the flags want, with its other ranks.
pub fn lead(
    flags: &flags::Model,
    group: &Group,
    opened: &Opened,
    options: &EngineOptions,
) -> Result<Box<dyn Backend>, Failure> {
    if flags.backend == BackendName::Cuda {
        return cards::lead(flags, group, opened, options);
    }
    no_peer(&flags.ranks)?;
    no_cards(&flags.ranks)?;
    let parts = rank_plans(opened, group.ranks)?;
    let here = if group.listen.is_none() && !flags.ranks.fake_gates { parts.len() } else { 1 };
    check_memory(parts.iter().take(here))?;
    let threads = threads(group, options);
    let exchange: Box<dyn Exchange> = match flags.ranks.fake_gates {
        true => Box::new(alone(&flags.ranks, group.ranks)),
        false => Box::new(gather(flags, group, opened, threads)?),
    };
    let (isa, float_products) = (options.isa, options.float_products);
    let cpu = Cpu::new(CpuConfig { threads, isa, float_products });
    let cpu = cpu.map_err(|error| Failure::environment(error.to_string()))?;
    Ok(Box::new(cpu.with_exchange(exchange)))
}

/// Refuses what only cards can do.
fn no_peer(flags: &Ranks) -> Result<(), Failure> {
    let name = match flags.transport {
        Some(Carrier::Peer) => "peer",
        Some(Carrier::Nccl) => "nccl",
        Some(Carrier::Transport(_)) | None => return Ok(()),
    };
    Err(Failure::caller(format!(
        "--transport {name} is for cards that one process drives and that share every layer: add \
         --backend cuda and --ranks N"
    )))
}

/// Refuses flags of ranks that are cards.
fn no_cards(flags: &Ranks) -> Result<(), Failure> {
    if flags.devices.is_empty() && flags.gates.is_none() {
        return Ok(());
    }
    let text = "--devices and --gates are for cards that share every layer: add --backend cuda and \
                --ranks N";
    Err(Failure::caller(text))
}

/// Rank 0 of a group that exchanges nothing.
fn alone(flags: &Ranks, ranks: usize) -> Alone {
    note("--fake-gates: gates exchange nothing, so speed is right and every token is wrong");
    let mut alone = Alone::new(0, ranks);
    if flags.profile_gates.is_some() {
        alone.record_into(flags.recorder.clone());
    }
    alone
}

/// What gates cost, on standard error, if that is asked for.
pub fn tell_gates(flags: &Ranks) {
    let Some(how) = flags.profile_gates else { return };
    let report = flags.recorder.report();
    let mut text = report.table();
    if how == ProfileGates::Trace {
        text += &report.trace();
    }
    let _ = write!(std::io::stderr(), "{text}");
}

/// The same for programs.
pub fn gates_json(flags: &Ranks) -> Option<serde_json::Value> {
    let how = flags.profile_gates?;
    let mut object = flags.recorder.report().json(how == ProfileGates::Trace);
    object["exchange_nothing"] = flags.fake_gates.into();
    Some(object)
}

/// Rank 0 of the pipeline that the flags want, with the bytes of its layers, its threads and the
/// other nodes.
pub fn lead_pipeline(
    flags: &flags::Model,
    group: &Group,
    layers: &Layers,
    opened: &Opened,
    options: &EngineOptions,
) -> Result<(Pipeline, u64, usize), Failure> {
    no_peer(&flags.ranks)?;
    no_cards(&flags.ranks)?;
    let stages = stages(opened, group.ranks, layers)?;
    let plans = stage_plans(opened, &stages)?;
    // What does not fit a card its node refuses.
    let on_cards = flags.backend == BackendName::Cuda;
    if group.listen.is_none() && !on_cards {
        check_memory(plans.iter())?;
    }
    for (node, plan) in plans.iter().enumerate() {
        let range = stages.range(node);
        let machine = group.machines.get(node).and_then(Option::as_deref);
        let card = (on_cards && group.listen.is_none()).then(|| cards::of_node(node));
        let machine = match (machine, card) {
            (Some(machine), _) => format!(" at {machine}"),
            (None, Some(card)) => format!(" on card {card}"),
            (None, None) => String::new(),
        };
        note(&format!(
            "node {node}{machine}: layers {} to {}, {} MiB of weights",
            range.start,
            range.end - 1,
            sum(plan) >> 20
        ));
    }
    let threads = threads(group, options);
    let cluster = gather(flags, group, opened, threads)?;
    let pipeline = Pipeline::lead(Box::new(cluster), stages, layers.wire);
    Ok((pipeline.map_err(loading::from_model)?, sum(&plans[0]), threads))
}

/// Threads of one rank: those of this machine are shared where all ranks are on it.
fn threads(group: &Group, options: &EngineOptions) -> usize {
    let all = options.threads.max(1);
    if group.listen.is_none() { (all / group.ranks).max(1) } else { all }
}

/// The other ranks, started here or waited for.
fn gather(
    flags: &flags::Model,
    group: &Group,
    opened: &Opened,
    threads: usize,
) -> Result<Cluster, Failure> {
    let address = group.listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let form = if group.listen.is_some() { FORM_AWAY } else { FORM_HERE };
    let settings = Settings { streams: group.layers.is_some(), ..settings(opened, group, form)? };
    let hub = Cluster::bind(address, group.ranks, group.transport, settings).map_err(failure)?;
    if group.listen.is_some() {
        note(&format!("waiting for {} ranks at {}", group.ranks - 1, hub.address()));
        return Ok(recorded(Cluster::lead(hub).map_err(failure)?, &flags.ranks));
    }
    let crew = Crew::start(crew::commands(flags, group, hub.address(), threads)?)?;
    let cluster = Cluster::lead(hub).map_err(failure)?.keeping(crew);
    Ok(recorded(cluster, &flags.ranks))
}

/// Writes gates down if that is asked for.
fn recorded(mut cluster: Cluster, flags: &Ranks) -> Cluster {
    if flags.profile_gates.is_some() {
        cluster.record_into(flags.recorder.clone());
    }
    cluster
}

/// Refuses weights that this machine cannot hold, as one process does.
pub fn check_memory<'p>(plans: impl Iterator<Item = &'p Vec<PlanLine>>) -> Result<(), Failure> {
    if let Some(text) =
        check_host(plans.map(|plan| sum(plan)).sum()).map_err(loading::from_engine)?
    {
        note(&text);
    }
    Ok(())
}

/// Bytes of a plan.
pub fn sum(plan: &[PlanLine]) -> u64 {
    plan.iter().map(|line| line.bytes).sum()
}

/// What each rank holds of the weights, the drafter included. A rank count that the model does not
/// allow is refused.
pub fn rank_plans(opened: &Opened, ranks: usize) -> Result<Vec<Vec<PlanLine>>, Failure> {
    let named = |error| loading::in_file(&opened.name, loading::from_model(error));
    let shape = Shape::from_metadata(opened.gguf.metadata()).map_err(named)?;
    let all = |rank: usize| -> Result<Vec<PlanLine>, ironstar_model::Error> {
        let part = Part { rank, ranks };
        let mut lines = rank_plan(&opened.gguf, &shape, &tensor_specs(&shape), part)?;
        if let Some(drafter) = &opened.drafter {
            let specs = match SparkShape::from_gguf(drafter, &shape)? {
                Some(spark) => spark.specs_in(drafter, &shape),
                None => drafter_specs(&shape),
            };
            let more = rank_plan(drafter, &shape, &specs, part)?;
            lines.iter_mut().zip(more).for_each(|(line, more)| line.bytes += more.bytes);
        }
        Ok(lines)
    };
    // The first one also refuses counts that cannot be, so the list is never long.
    all(0).map_err(named)?;
    (0..ranks).map(|rank| all(rank).map_err(named)).collect()
}

/// The cut that is wanted of a model's layers; by weight where no layers are named.
pub fn stages(opened: &Opened, nodes: usize, layers: &Layers) -> Result<Stages, Failure> {
    let named = |error| loading::in_file(&opened.name, loading::from_model(error));
    let shape = Shape::from_metadata(opened.gguf.metadata()).map_err(named)?;
    let stages = match &layers.cut {
        Some(stages) => stages.clone(),
        None => {
            balanced_stages(&opened.gguf, &shape, &tensor_specs(&shape), nodes).map_err(named)?
        }
    };
    stages.check(shape.layers).map_err(named)?;
    Ok(stages)
}

/// What each node of a pipeline holds of the weights, the drafter included.
pub fn stage_plans(opened: &Opened, stages: &Stages) -> Result<Vec<Vec<PlanLine>>, Failure> {
    let named = |error| loading::in_file(&opened.name, loading::from_model(error));
    let shape = Shape::from_metadata(opened.gguf.metadata()).map_err(named)?;
    let specs = tensor_specs(&shape);
    let drafts = opened.drafter.is_some();
    let plan = |node| stage_plan(&opened.gguf, &specs, stages, node, drafts).map_err(named);
    let mut plans = (0..stages.count()).map(plan).collect::<Result<Vec<_>, Failure>>()?;
    let tensors = opened.drafter.iter().flat_map(|drafter| drafter.tensors());
    let bytes = tensors.filter_map(|tensor| tensor.byte_count()).sum();
    let what = "what guesses tokens";
    for (node, plan) in plans.iter_mut().enumerate() {
        plan.push(PlanLine { what, bytes: if node == stages.last() { bytes } else { 0 } });
    }
    Ok(plans)
}

/// What a rank must know of its group.
pub fn settings(opened: &Opened, group: &Group, form: Duration) -> Result<Settings, Failure> {
    let key = match &group.key_file {
        None => None,
        Some(path) => {
            let text = crate::commands::read_text(path)?;
            let key = Key::from_hex(&text);
            Some(key.map_err(|e| Failure::caller(format!("{}: {e}", path.display())))?)
        }
    };
    let mut print = Fingerprint::default();
    for gguf in std::iter::once(&opened.gguf).chain(&opened.drafter) {
        for tensor in gguf.tensors() {
            let line = format!("{} {} {:?}", tensor.name, tensor.kind.name(), tensor.dims);
            print.add(line.as_bytes());
        }
    }
    let identity = Identity {
        model: print.to_string(),
        layout: "eight shards".into(),
        build: env!("CARGO_PKG_VERSION").into(),
    };
    let deadlines = Deadlines { form, ..Deadlines::default() };
    let (trusted_link, verbs) = (group.trusted_link, group.rdma.clone());
    Ok(Settings { identity, key, deadlines, trusted_link, verbs, ..Settings::default() })
}

/// The blame of a group that was not formed.
pub fn failure(error: ironstar_cluster::Error) -> Failure {
    match error {
        ironstar_cluster::Error::Settings { .. } => Failure::caller(error.to_string()),
        _ => Failure::environment(error.to_string()),
    }
}

/// A line on standard error.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "ironstar: {text}");
}
