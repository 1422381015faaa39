//! `ironstar doctor --cluster`: what a group's gates cost here, and whether it pays.
//!
//! Rank 0 says what is measured, so the others need nothing but the same model. A rank's share of a
//! token is measured, not estimated: every rank loads the part of rank 0 in a group that exchanges
//! nothing and computes at the same time as the others, as it would in earnest.

use super::super::synth::{bytes_of, kind_of};
use super::super::worker;
use super::cards;
use super::verdict::{Found, Speed};
use crate::failure::Failure;
use crate::flags::{BackendName, ClusterTest, SynthMix, SynthShape};
use crate::loading::{self, Opened};
use crate::ranks::{self, Crew, Group};
use crate::{bandwidth, print};
use clap::ValueEnum;
use ironstar_cluster::sim::{Costs, LinkCosts, ModelCosts, NodeCosts, PartCosts, Timed};
use ironstar_cluster::{
    Alone, Cluster, LinkTime, Member, Recorder, Settings, Timing, Transport, VerbsSettings,
    measure_hop, measure_orders, measure_sizes,
};
use ironstar_device::{Backend, Cpu, CpuConfig, Exchange, ExchangeError, GateKind, Part};
use ironstar_engine::{CancelFlag, Engine, EngineOptions};
use ironstar_model::Shape;
use ironstar_model::deepseek_v4::{
    Cut, Field, Kind, TensorSpec, find, known, rank_plan, tensor_specs,
};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes of gates, and how often.
const SIZES: [(usize, usize); 7] = [
    (64, 400),
    (1024, 400),
    (4096, 400),
    (16_384, 400),
    (65_536, 100),
    (1 << 20, 20),
    (16 << 20, 3),
];
/// Rows of a prompt's step that rates are for.
const ROWS: usize = 256;
/// Tokens of the answer that is timed, and most tries of which the best counts.
const ANSWER: usize = 32;
const TRIES: usize = 3;
/// Seconds after which no other try begins.
const ENOUGH: f64 = 2.0;
/// Bytes of an order of a step.
const ORDER: usize = 256;
/// How long ranks may be apart: one measures alone while the others wait.
const PATIENCE: Duration = Duration::from_secs(1800);
/// How long ranks are waited for that are started here, and by people.
const FORM: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(120));

/// What all ranks do, as rank 0 says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    /// Bytes of gates, and how often.
    gates: Vec<(usize, usize)>,
    /// Bytes of records, and how often.
    hops: Vec<(usize, usize)>,
    /// Whether the part of a rank is timed.
    parts: bool,
}

/// The model that is predicted for.
pub(super) struct Subject {
    pub opened: Opened,
    pub shape: Shape,
    /// Whose speed follows from its bytes.
    pub absent: Option<(SynthShape, SynthMix)>,
}

/// Bytes of weights that a token reads.
struct TokenBytes {
    replicated: f64,
    dense: f64,
    routed: f64,
}

/// What a group found.
pub(super) struct Measured {
    pub gates: Vec<LinkTime>,
    pub order: Duration,
    pub hops: Vec<LinkTime>,
    /// Of ranks that wait for each other at every gate: how many, and their speed.
    pub parts: Vec<(usize, Speed)>,
}

/// Runs the command.
pub fn run(flags: &ClusterTest, json: bool) -> Result<(), Failure> {
    if flags.tied {
        worker::end_with_input()?;
    }
    let subject = Subject::open(flags)?;
    if flags.backend == BackendName::Cuda {
        let found = cards::measure(flags, &subject)?;
        return match json {
            true => print(format!("{}\n", found.json()).as_bytes()),
            false => print(found.text().as_bytes()),
        };
    }
    if let Some(address) = &flags.join {
        return follow(flags, &subject, address);
    }
    if flags.ranks < 2 {
        return Err(Failure::caller(
            "--cluster measures a group: say how many ranks with --ranks N",
        ));
    }
    subject.check(flags.ranks)?;
    let found = lead(flags, &subject)?;
    match json {
        true => print(format!("{}\n", found.json()).as_bytes()),
        false => print(found.text().as_bytes()),
    }
}

fn lead(flags: &ClusterTest, subject: &Subject) -> Result<Found, Failure> {
    let group = group(flags);
    let all = flags.threads.map_or_else(loading::cores, usize::from);
    let here = group.listen.is_none();
    let each = if here { (all / group.ranks).max(1) } else { all };
    let (whole, node) = match subject.absent {
        Some(_) => {
            let speed = subject.reading_speed(all)?;
            // Ranks of one machine share its memory's bandwidth.
            (speed, if here { speed.slower(group.ranks) } else { speed })
        }
        None => {
            let whole = speed(&subject.opened, all, None)?;
            let node = if each == all { whole } else { speed(&subject.opened, each, None)? };
            (whole, node)
        }
    };
    let form = if here { FORM.0 } else { FORM.1 };
    let address = group.listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let settings = Settings { streams: true, ..settings(&group, subject, form)? };
    let hub = Cluster::bind(address, group.ranks, group.transport, settings);
    let hub = hub.map_err(ranks::failure)?;
    let mut cluster = if here {
        let crew = Crew::start(commands(flags, hub.address(), each)?)?;
        Cluster::lead(hub).map_err(ranks::failure)?.keeping(crew)
    } else {
        ranks::note(&format!("waiting for {} ranks at {}", group.ranks - 1, hub.address()));
        Cluster::lead(hub).map_err(ranks::failure)?
    };
    let plan = subject.plan(group.ranks);
    let mut bytes = serde_json::to_vec(&plan).map_err(|e| Failure::ours(e.to_string()))?;
    cluster.broadcast(&mut bytes).map_err(lost)?;
    let measured = measure(&mut cluster, subject, &plan, each)?;
    let costs = subject.costs((group.ranks, ROWS), &measured, node)?;
    Ok(Found {
        model: subject.name(),
        transport: group.transport.name(),
        ranks: group.ranks,
        here,
        threads: (all, each),
        whole,
        gates: measured.gates,
        order: measured.order,
        hops: measured.hops,
        costs,
    })
}

/// One of the other ranks.
fn follow(flags: &ClusterTest, subject: &Subject, address: &str) -> Result<(), Failure> {
    let settings = settings(&group(flags), subject, FORM.1)?;
    let member = Member::new(ranks::address(address, "--join")?, flags.rank, None, settings);
    let mut cluster = Cluster::join(member.map_err(ranks::failure)?).map_err(ranks::failure)?;
    let mut bytes = Vec::new();
    cluster.broadcast(&mut bytes).map_err(lost)?;
    let plan: Plan = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::environment(format!("rank 0 says what this program does not know: {error}"))
    })?;
    let threads = flags.threads.map_or_else(loading::cores, usize::from);
    measure(&mut cluster, subject, &plan, threads)?;
    // Stays until rank 0 is gone, which would take a process that ends for one that died.
    let _gone = cluster.broadcast(&mut bytes);
    Ok(())
}

/// What all ranks do together.
fn measure(
    cluster: &mut Cluster,
    subject: &Subject,
    plan: &Plan,
    threads: usize,
) -> Result<Measured, Failure> {
    let gates = measure_sizes(cluster, &plan.gates).map_err(lost)?;
    let order = measure_orders(cluster, ORDER, 200).map_err(lost)?;
    let mut hops = Vec::new();
    let rank = cluster.rank();
    if let Some(stream) = (rank < 2).then(|| cluster.take_stream(1 - rank)).flatten() {
        for &sizes in &plan.hops {
            hops.extend(measure_hop(&stream, rank == 0, sizes, PATIENCE).map_err(lost)?);
        }
    }
    let mut parts = Vec::new();
    if plan.parts {
        let speed = speed(&subject.opened, threads, Some(cluster));
        let speed = speed.inspect_err(|failure| cluster.abort(&failure.message))?;
        parts.push((cluster.ranks(), speed));
    }
    Ok(Measured { gates, order, hops, parts })
}

/// One try of a rank.
struct Try {
    speed: Speed,
    /// Since the first try began.
    elapsed: f64,
    /// Of each token: seconds from gate to gate.
    stretches: Vec<Vec<f32>>,
}

impl Try {
    /// What a group would take that computes so, and the longest that any rank has tried. Ranks
    /// meet at each gate: of every stretch the slowest rank's time counts, and not the slowest
    /// rank's sum.
    fn together(&self, group: &mut Cluster) -> Result<(Speed, f64), Failure> {
        let (steps, all) = (self.stretches.len().max(1) as f64, self.stretches.concat());
        let sum: f64 = all.iter().map(|stretch| f64::from(*stretch)).sum();
        // What follows the last gate of a token.
        let rest = (self.speed.decode - sum / steps).max(0.0);
        let numbers = [self.speed.prefill, self.elapsed, rest];
        let mut mine: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let words = mine.len();
        mine.extend(all.iter().flat_map(|stretch| stretch.to_le_bytes()));
        let mut theirs = vec![0; mine.len() * group.ranks()];
        group.gather(GateKind::Status, &mine, &mut theirs).map_err(lost)?;
        let ranks: Vec<&[u8]> = theirs.chunks_exact(mine.len()).collect();
        let number = |at: usize| {
            let of = |rank: &&[u8]| rank[..words].as_chunks::<8>().0[at];
            ranks.iter().map(of).map(f64::from_le_bytes).fold(0.0, f64::max)
        };
        let stretch = |at: usize| {
            let of = |rank: &&[u8]| rank[words..].as_chunks::<4>().0[at];
            f64::from(ranks.iter().map(of).map(f32::from_le_bytes).fold(0.0, f32::max))
        };
        let stretches: f64 = (0..all.len()).map(stretch).sum();
        let decode = stretches / steps + number(2);
        Ok((Speed { decode, prefill: number(0) }, number(1)))
    }
}

/// Times a prompt and an answer on this machine: of the whole model, or of a rank's part of it in a
/// group that exchanges nothing, begun together with the other ranks.
fn speed(
    opened: &Opened,
    threads: usize,
    mut group: Option<&mut Cluster>,
) -> Result<Speed, Failure> {
    let config = CpuConfig { threads, ..CpuConfig::default() };
    let cpu = Cpu::new(config).map_err(|error| Failure::environment(error.to_string()))?;
    let recorder = Recorder::default();
    let backend: Box<dyn Backend> = match &group {
        None => Box::new(cpu),
        Some(group) => {
            let mut alone = Alone::new(0, group.ranks());
            alone.record_into(recorder.clone());
            Box::new(cpu.with_exchange(Box::new(alone)))
        }
    };
    let options =
        EngineOptions { threads, step_rows: ROWS, store_ram_bytes: 0, ..EngineOptions::default() };
    let engine = Engine::on_backend(backend, &opened.gguf, None, options, &mut |_| {});
    let mut engine = engine.map_err(loading::from_engine)?;
    engine.meet(PATIENCE).map_err(loading::from_engine)?;
    let mut best = Speed { decode: f64::MAX, prefill: f64::MAX };
    let mut begun = None;
    for _ in 0..TRIES {
        if let Some(group) = &mut group {
            let mut all = vec![0; group.ranks()];
            group.gather(GateKind::Status, &[0], &mut all).map_err(lost)?;
        }
        let begun = *begun.get_or_insert_with(Instant::now);
        let speed = once(&mut engine, ROWS)?;
        let elapsed = begun.elapsed().as_secs_f64();
        let (speed, elapsed) = match &mut group {
            None => (speed, elapsed),
            Some(group) => {
                let stretches = recorder.report().stretches_of_steps(ANSWER);
                Try { speed, elapsed, stretches }.together(group)?
            }
        };
        best.decode = best.decode.min(speed.decode);
        best.prefill = best.prefill.min(speed.prefill);
        if elapsed > ENOUGH {
            break;
        }
    }
    Ok(best)
}

/// One prompt of so many tokens and one answer.
pub(super) fn once(engine: &mut Engine, rows: usize) -> Result<Speed, Failure> {
    let vocabulary = u32::try_from(engine.model().shape().vocabulary).unwrap_or(u32::MAX).max(1);
    let token = |at: usize| u32::try_from(at * 977 + 13).unwrap_or(0) % vocabulary;
    let prompt: Vec<u32> = (0..rows).map(token).collect();
    let mut session = engine.session(rows + ANSWER).map_err(loading::from_engine)?;
    let start = Instant::now();
    let synced = session.sync(engine, &prompt, &mut |_| {}, &CancelFlag::default());
    synced.map_err(loading::from_engine)?;
    let prefill = start.elapsed().as_secs_f64() / rows as f64;
    let start = Instant::now();
    for at in 0..ANSWER {
        session.push(engine, token(rows + at)).map_err(loading::from_engine)?;
    }
    Ok(Speed { decode: start.elapsed().as_secs_f64() / ANSWER as f64, prefill })
}

impl Subject {
    fn open(flags: &ClusterTest) -> Result<Subject, Failure> {
        let opened = loading::open(flags.model.as_deref(), None)?;
        let named = |error| loading::in_file(&opened.name, loading::from_model(error));
        let absent = flags.shape.map(|shape| (shape, flags.mix));
        let shape = match flags.shape {
            None => Shape::from_metadata(opened.gguf.metadata()).map_err(named)?,
            Some(SynthShape::Flash) => known::flash(),
            Some(SynthShape::Pro) => known::pro(),
            Some(SynthShape::Reduced | SynthShape::Tiny) => {
                return Err(Failure::caller(
                    "--shape reduced and tiny: write one with `ironstar synth` and name it with \
                     --model",
                ));
            }
        };
        Ok(Subject { opened, shape, absent })
    }

    pub fn name(&self) -> String {
        match self.absent {
            None => self.opened.name.clone(),
            Some((shape, mix)) => {
                let name = |value: Option<clap::builder::PossibleValue>| {
                    value.map(|value| value.get_name().to_owned()).unwrap_or_default()
                };
                format!("{} {}", name(shape.to_possible_value()), name(mix.to_possible_value()))
            }
        }
    }

    /// Whether the model can be shared among so many ranks.
    pub fn allows(&self, ranks: usize) -> Result<(), ironstar_model::Error> {
        if self.absent.is_some() {
            let fits =
                matches!(ranks, 1 | 2 | 4 | 8) && self.shape.output_groups.is_multiple_of(ranks);
            return if fits {
                Ok(())
            } else {
                Err(ironstar_model::Error::Ranks {
                    ranks,
                    found: format!("it has {} output groups", self.shape.output_groups),
                    wanted: "1, 2, 4 or 8 ranks that divide them".into(),
                })
            };
        }
        let specs = tensor_specs(&self.shape);
        rank_plan(&self.opened.gguf, &self.shape, &specs, Part { rank: 0, ranks }).map(|_| ())
    }

    fn check(&self, ranks: usize) -> Result<(), Failure> {
        self.allows(ranks)
            .map_err(|error| loading::in_file(&self.name(), loading::from_model(error)))
    }

    /// Gates of all sizes and of the model's own; records of a token and of a step of a prompt.
    fn plan(&self, ranks: usize) -> Plan {
        let (width, vocabulary) = (self.shape.width * 4, self.shape.vocabulary.div_ceil(ranks) * 4);
        let mut gates = SIZES.to_vec();
        for (bytes, repeats) in [(width, 400), (vocabulary, 100), (ROWS * width, 20)] {
            if gates.iter().all(|(size, _)| *size != bytes) {
                gates.push((bytes, repeats));
            }
        }
        gates.sort_unstable();
        let row = self.shape.streams * width;
        Plan { gates, hops: vec![(row, 200), (ROWS * row, 10)], parts: self.absent.is_none() }
    }

    fn token_bytes(&self) -> Result<TokenBytes, Failure> {
        let mut all = TokenBytes { replicated: 0.0, dense: 0.0, routed: 0.0 };
        for spec in tensor_specs(&self.shape) {
            let bytes = self.bytes(&spec)?;
            match (spec.kind, spec.cut, spec.field) {
                // A row of it.
                (Kind::Table, ..) | (_, _, Field::Embedding) => {}
                (Kind::Routed, ..) => {
                    let used = self.shape.experts_used as f64 / self.shape.experts.max(1) as f64;
                    all.routed += bytes * used;
                }
                (_, Cut::Whole, _) => all.replicated += bytes,
                _ => all.dense += bytes,
            }
        }
        Ok(all)
    }

    fn bytes(&self, spec: &TensorSpec) -> Result<f64, Failure> {
        if let Some((_, mix)) = self.absent {
            return Ok(bytes_of(spec, kind_of(spec, mix))? as f64);
        }
        let gguf = &self.opened.gguf;
        let Some(info) = find(gguf, spec).map_err(loading::from_model)? else { return Ok(0.0) };
        Ok(gguf.bytes(info).map_err(|error| loading::from_gguf(&error))?.len() as f64)
    }

    /// A token at the read bandwidth of so many threads. Of a prompt nothing is known: its rows are
    /// taken to cost as much as an eighth of a token each, which only the ratios use.
    fn reading_speed(&self, threads: usize) -> Result<Speed, Failure> {
        let bytes = self.token_bytes()?;
        let all = bytes.replicated + bytes.dense + bytes.routed;
        let decode = all / bandwidth::of_host(threads).wall;
        Ok(Speed { decode, prefill: decode / 8.0 })
    }

    pub fn costs(
        &self,
        (ranks, rows): (usize, usize),
        measured: &Measured,
        node: Speed,
    ) -> Result<Costs, Failure> {
        let bytes = self.token_bytes()?;
        let all = (bytes.replicated + bytes.dense + bytes.routed).max(1.0);
        let timed = |times: &[LinkTime]| {
            let each = |t: &LinkTime| Timed { bytes: t.bytes, seconds: t.p50.as_secs_f64() };
            times.iter().map(each).collect::<Vec<_>>()
        };
        let part = |(ranks, speed): &(usize, Speed)| PartCosts {
            ranks: *ranks,
            decode_seconds: speed.decode,
            prefill_seconds: speed.prefill,
        };
        Ok(Costs {
            model: ModelCosts {
                name: self.name(),
                layers: self.shape.layers,
                width: self.shape.width,
                streams: self.shape.streams,
                vocabulary: self.shape.vocabulary,
                rank_counts: [1, 2, 4, 8].into_iter().filter(|n| self.allows(*n).is_ok()).collect(),
                replicated: bytes.replicated / all,
                routed: bytes.routed / all,
            },
            node: NodeCosts {
                decode_seconds: node.decode,
                prefill_seconds: node.prefill,
                prefill_rows: rows,
                batches: Vec::new(),
            },
            parts: measured.parts.iter().map(part).collect(),
            link: LinkCosts {
                ranks,
                gates: timed(&measured.gates),
                hops: timed(&measured.hops),
                order_seconds: measured.order.as_secs_f64(),
            },
            experts: None,
        })
    }
}

/// The group that the flags want.
fn group(flags: &ClusterTest) -> Group {
    let usual = if flags.listen.is_some() { Transport::Tcp } else { Transport::Shm };
    Group {
        ranks: flags.ranks,
        layers: None,
        transport: flags.transport.unwrap_or(usual),
        listen: flags.listen,
        key_file: flags.rank_key_file.clone(),
        trusted_link: flags.trusted_link,
        rdma: flags.rdma.over(VerbsSettings::default()),
        machines: Vec::new(),
    }
}

fn settings(group: &Group, subject: &Subject, form: Duration) -> Result<Settings, Failure> {
    let mut settings = ranks::settings(&subject.opened, group, form)?;
    // A worker of `run` has nothing to do here.
    settings.identity.layout = "self-test".into();
    settings.timing = Timing { gate: PATIENCE, ..settings.timing };
    Ok(settings)
}

/// The command of each other rank.
fn commands(
    flags: &ClusterTest,
    address: SocketAddr,
    threads: usize,
) -> Result<Vec<Command>, Failure> {
    let make = |command: &mut Command| {
        command.args(flags.rdma.words());
        let paths = [("--model", &flags.model), ("--rank-key-file", &flags.rank_key_file)];
        ranks::add_paths(command, &paths);
    };
    ranks::rank_commands(&["doctor", "--cluster"], flags.ranks, address, threads, make)
}

fn lost(error: ExchangeError) -> Failure {
    Failure::environment(format!("the group broke while it was measured: {error}"))
}
