//! Nodes of a pipeline give the bits of one machine, through everything that a session may go
//! through, and go on after one of them was lost. Here they are threads of this process.

use crate::common::{Rows, Runner, default_mode, exact, room, same_bits};
use crate::one_answer::{Case, act, live_on, quantised};
use crate::ranks::{in_common, wide};
use ironstar_device::{
    Cpu, Error as DeviceError, Exchange, ExchangeError, GateCounts, GateKind, Local, LocalGroup,
};
use ironstar_gguf::Gguf;
use ironstar_model::deepseek_v4::{stage_plan, tensor_specs};
use ironstar_model::testing::Tiny;
use ironstar_model::{
    Error, Followed, LogitsFor, Model, Pipeline, Shape, Stages, Step, Wire, balanced_stages,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::{Arc, Barrier, LazyLock};
use std::thread;
use std::time::Duration;

/// Long enough for a busy machine: only what hangs meets it.
const DEADLINE: Duration = Duration::from_secs(240);

static EXACT: LazyLock<Case> = LazyLock::new(|| Case::new(&wide(5), false, exact(), 300));
static ROUNDED: LazyLock<Case> =
    LazyLock::new(|| Case::new(&wide(6), true, default_mode(1, None), 300));

fn stages(cut: &str) -> Stages {
    Stages::parse(cut).expect("a cut")
}

/// The model of a node, with the names of the tensors that it made resident.
fn load(case: &Case, pipeline: Pipeline) -> (Cpu, Model, BTreeSet<String>) {
    let (config, options) = case.mode.clone();
    let mut cpu = Cpu::new(config).unwrap();
    let mut names = BTreeSet::new();
    let drafter = Some(&case.drafter);
    let on_progress = &mut |progress: ironstar_model::Progress<'_>| {
        names.insert(progress.tensor.to_owned());
    };
    let model =
        Model::load_node(&case.gguf, drafter, &mut cpu, options, Some(pipeline), on_progress);
    (cpu, model.unwrap(), names)
}

fn follow(case: &Case, exchange: impl Exchange + 'static) -> Result<Vec<Followed>, Error> {
    let lost = |e: &ExchangeError| {
        matches!(e, ExchangeError::Lost { rank: 0, .. } | ExchangeError::Misuse { .. })
    };
    let pipeline = Pipeline::hear(Box::new(exchange), &mut |error| !lost(error))?;
    let (mut cpu, mut model, _) = load(case, pipeline);
    let mut events = Vec::new();
    let mut on_event = |event| {
        let goes_on = match &event {
            Followed::Waiting(error) | Followed::Broken(error) => !lost(error),
            Followed::Epoch(_) => true,
        };
        events.push(event);
        goes_on
    };
    model.follow(&mut cpu, &mut on_event).map(|()| events)
}

fn lead(case: &Case, exchange: Local, cut: &str, wire: Wire) -> Runner {
    let pipeline = Pipeline::lead(Box::new(exchange), stages(cut), wire).unwrap();
    let (mut cpu, model, _) = load(case, pipeline);
    model.meet(&mut cpu, DEADLINE).unwrap();
    let state = model.new_state(&mut cpu, 400).unwrap();
    Runner { cpu, model, state }
}

/// Runs a closure on rank 0 of a pipeline; the others follow until it is done.
fn on_nodes<T>(case: &Case, cut: &str, wire: Wire, work: impl FnOnce(&mut Runner) -> T) -> T {
    let mut group = LocalGroup::whole(stages(cut).count(), DEADLINE);
    let others = group.split_off(1);
    thread::scope(|scope| {
        let others: Vec<_> =
            others.into_iter().map(|local| scope.spawn(|| follow(case, local))).collect();
        let mut runner = lead(case, group.remove(0), cut, wire);
        let given = work(&mut runner);
        runner.model.dismiss(&mut runner.cpu);
        for other in others {
            assert_eq!(other.join().unwrap().unwrap(), [], "nothing breaks");
        }
        given
    })
}

#[test]
fn any_cut_of_the_layers_gives_the_bits_of_one_machine() {
    for (name, case) in [("exact", &EXACT), ("default", &ROUNDED)] {
        let saved = {
            let mut one = case.runner();
            one.cuts(&case.tokens, []);
            one.saved()
        };
        for cut in ["0,1-2", "0-1,2", "0,1,2"] {
            let (rows, state) = on_nodes(case, cut, Wire::F32, |runner| {
                let rows = runner.cuts(&case.tokens, [3, 124, 1, 1, 101]);
                (rows, runner.saved())
            });
            rows.assert_same_bits(&case.rows, &format!("{name}, {cut}"));
            assert!(state == saved, "{name}, {cut}: a saved state is that of one machine");
        }
    }
}

#[test]
fn sessions_in_common_steps_and_guesses_of_the_draft_block() {
    let case = &ROUNDED;
    let one = in_common(case, &mut case.runner());
    for cut in ["0,1-2", "0,1,2"] {
        same_bits(&on_nodes(case, cut, Wire::F32, |runner| in_common(case, runner)), &one, cut);
    }
}

/// DSpark reads the streams behind some layers, and the node that runs it must have them.
#[test]
fn dspark_guesses_where_its_layers_are_and_nowhere_else() {
    let small = wide(6);
    let shape = Shape {
        layers: 4,
        ratios: [&small.shape.ratios[..], &[4]].concat(),
        swiglu_limits: vec![small.shape.swiglu_limits[0]; 4],
        ..small.shape.clone()
    };
    let tiny = Tiny { shape, ..small };
    let case = Case {
        drafter: tiny.dspark_as(&quantised),
        gguf: tiny.gguf_as(&quantised),
        tokens: tiny.tokens(300),
        mode: default_mode(1, None),
        rows: Rows::default(),
        vocabulary: tiny.shape.vocabulary,
    };
    let mut one = case.runner();
    assert_eq!(one.model.spark().unwrap().targets, [1, 2, 3]);
    let one = in_common(&case, &mut one);
    let two = on_nodes(&case, "0,1-3", Wire::F32, |runner| in_common(&case, runner));
    same_bits(&two, &one, "two nodes with DSpark");

    let mut group = LocalGroup::whole(2, DEADLINE);
    let exchange = Box::new(group.remove(0));
    let pipeline = Pipeline::lead(exchange, stages("0-1,2-3"), Wire::F32).unwrap();
    let (config, options) = case.mode.clone();
    let (mut cpu, drafter) = (Cpu::new(config).unwrap(), Some(&case.drafter));
    let model =
        Model::load_node(&case.gguf, drafter, &mut cpu, options, Some(pipeline), &mut |_| {});
    let error = model.err().expect("the last node lacks a target").to_string();
    assert!(error.contains("DSpark reads layer 1, and the last node begins with 2"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 5,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(3),
        ..Default::default()
    })]

    #[test]
    fn any_life_of_a_session_on_nodes(
        acts in prop::collection::vec(act(), 4..14),
        cut in prop_oneof![Just("0,1-2"), Just("0-1,2"), Just("0,1,2")],
        is_exact in any::<bool>(),
    ) {
        let case: &Case = if is_exact { &EXACT } else { &ROUNDED };
        on_nodes(case, cut, Wire::F32, |runner| live_on(case, runner, &acts));
    }
}

/// Saved on three nodes, restored on one and on two, and the other way round; blocks and
/// checkpoints as a store takes them too.
#[test]
fn a_state_moves_between_any_numbers_of_nodes() {
    let case = &ROUNDED;
    let at = 200;
    let parts = |runner: &mut Runner| {
        runner.step(&case.tokens[..at]);
        let block = runner.state.export_blocks(&mut runner.cpu, 0..1, &mut room).unwrap().remove(0);
        let checkpoint = runner.state.export_checkpoint(&mut runner.cpu, &mut room).unwrap();
        (runner.saved(), block, checkpoint)
    };
    let three = on_nodes(case, "0,1,2", Wire::F32, parts);
    assert!(three == parts(&mut case.runner()), "the bytes of one machine");
    let (saved, block, checkpoint) = three;
    let go_on = |runner: &mut Runner, what: &str| {
        assert_eq!(runner.state.position(), at);
        let output = runner.step(&case.tokens[at..]);
        case.check(at, 300 - at, &output, what);
    };
    let whole = |runner: &mut Runner| {
        // A state with another past.
        runner.step(&case.tokens[50..180]);
        runner.state.restore(&mut runner.cpu, &saved).unwrap();
        go_on(runner, "restored whole");
    };
    let stored = |runner: &mut Runner| {
        runner.step(&case.tokens[50..180]);
        runner.state.truncate(0).unwrap();
        runner.state.import_block(&mut runner.cpu, 0, &block).unwrap();
        runner.state.import_checkpoint(&mut runner.cpu, at, &checkpoint).unwrap();
        go_on(runner, "from a store");
    };
    let filled = |runner: &mut Runner| {
        runner.state.fill_random(&mut runner.cpu, 150, 9).unwrap();
        runner.saved()
    };
    let random = filled(&mut case.runner());
    assert!(on_nodes(case, "0,1,2", Wire::F32, filled) == random, "a state for measurements");
    whole(&mut case.runner());
    stored(&mut case.runner());
    for cut in ["0-1,2", "0,1,2"] {
        on_nodes(case, cut, Wire::F32, whole);
        on_nodes(case, cut, Wire::F32, stored);
    }
}

/// A node that waits at its first streams until rank 0 comes to the barrier.
struct Held {
    local: Local,
    barrier: Option<Arc<Barrier>>,
    /// Records after which its process ends.
    dies_at: usize,
}

impl Exchange for Held {
    fn rank(&self) -> usize {
        self.local.rank()
    }
    fn ranks(&self) -> usize {
        self.local.ranks()
    }
    fn post(&mut self, gate: GateKind, mine: &[u8]) -> Result<(), ExchangeError> {
        self.local.post(gate, mine)
    }
    fn wait(&mut self, all: &mut [u8]) -> Result<(), ExchangeError> {
        self.local.wait(all)
    }
    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
        self.local.broadcast(bytes)
    }
    fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), ExchangeError> {
        self.local.send(to, bytes)
    }
    fn receive(&mut self, from: usize) -> Result<Vec<u8>, ExchangeError> {
        if let Some(barrier) = self.barrier.take() {
            barrier.wait();
        }
        self.dies_at -= 1;
        if self.dies_at == 0 {
            let (found, wanted) = ("the end".to_owned(), "nothing".to_owned());
            return Err(ExchangeError::Misuse { found, wanted });
        }
        self.local.receive(from)
    }
    fn abort(&mut self, reason: &str) {
        self.local.abort(reason);
    }
    fn reform(&mut self) -> Result<u64, ExchangeError> {
        if self.dies_at == 0 {
            let (found, wanted) = ("the dead".to_owned(), "the living".to_owned());
            return Err(ExchangeError::Misuse { found, wanted });
        }
        self.local.reform()
    }
    fn epoch(&self) -> u64 {
        self.local.epoch()
    }
    fn counts(&self) -> GateCounts {
        self.local.counts()
    }
}

/// Chunks of a prompt do not wait for the nodes behind: rank 0 is through with two before node 1
/// begins with the first. A wait would meet the deadline.
#[test]
fn chunks_of_a_prompt_overlap() {
    let case = &ROUNDED;
    let mut group = LocalGroup::whole(2, DEADLINE);
    let barrier = Arc::new(Barrier::new(2));
    let (local, theirs) = (group.pop().unwrap(), Some(barrier.clone()));
    let held = Held { local, barrier: theirs, dies_at: usize::MAX };
    thread::scope(|scope| {
        let other = scope.spawn(move || follow(case, held));
        let mut runner = lead(case, group.pop().unwrap(), "0,1-2", Wire::F32);
        for at in [0, 60] {
            let step = Step::single(&case.tokens[at..at + 60], at);
            let states = &mut [&mut runner.state];
            runner.model.forward(&mut runner.cpu, &step, states, LogitsFor::None).unwrap();
            runner.model.commit(&mut runner.state, 60).unwrap();
        }
        barrier.wait();
        let output = runner.step(&case.tokens[120..]);
        case.check(120, 180, &output, "after two chunks at once");
        runner.model.dismiss(&mut runner.cpu);
        assert_eq!(other.join().unwrap().unwrap(), []);
    });
}

/// Node 1 of 3 dies in the third step: that step fails with the reason, the state is lost, the
/// others keep their weights, a replacement comes, and what was saved goes on there, as what is
/// evaluated again does.
#[test]
fn a_lost_node_loses_its_rows_and_is_replaced() {
    let case = &ROUNDED;
    let group = LocalGroup::new(3, DEADLINE);
    thread::scope(|scope| {
        let local = |rank| group.join(rank).unwrap();
        let survivor = {
            let local = local(2);
            scope.spawn(move || follow(case, local))
        };
        let mortal = Held { local: local(1), barrier: None, dies_at: 3 };
        let victim = scope.spawn(move || follow(case, mortal));
        let mut runner = lead(case, local(0), "0,1,2", Wire::F32);
        let next = |runner: &mut Runner, rows: usize| {
            let at = runner.state.position();
            let step = Step::single(&case.tokens[at..at + rows], at);
            let states = &mut [&mut runner.state];
            let logits = runner.model.forward(&mut runner.cpu, &step, states, LogitsFor::Last)?;
            runner.model.commit(&mut runner.state, rows).unwrap();
            let (v, last) = (case.vocabulary, at + rows - 1);
            same_bits(logits.row(0), &case.rows.logits[last * v..][..v], "a row");
            Ok::<_, Error>(())
        };
        next(&mut runner, 40).unwrap();
        next(&mut runner, 1).unwrap();
        let saved = runner.saved();
        let error = next(&mut runner, 2).expect_err("node 1 is dead");
        let is_lost = |error: &Error| {
            matches!(
                error,
                Error::Device(DeviceError::Exchange(ExchangeError::Lost { rank: 1, .. }))
            )
        };
        assert!(is_lost(&error), "{error}");
        assert!(victim.join().unwrap().is_err());
        assert!(runner.state.is_lost() && runner.state.position() == 41);
        assert!(is_lost(&next(&mut runner, 2).expect_err("its rows are gone")));
        assert!(is_lost(&runner.state.save(&mut runner.cpu).expect_err("its rows are gone")));
        let replacement = {
            let local = local(1);
            scope.spawn(move || follow(case, local))
        };
        runner.state.restore(&mut runner.cpu, &saved).unwrap();
        assert!(!runner.state.is_lost());
        [1, 1, 60, 1].into_iter().for_each(|rows| next(&mut runner, rows).unwrap());
        runner.state.truncate(0).unwrap();
        [30, 1].into_iter().for_each(|rows| next(&mut runner, rows).unwrap());
        runner.model.dismiss(&mut runner.cpu);
        let events = survivor.join().unwrap().unwrap();
        assert!(matches!(events[..], [Followed::Broken(_), Followed::Epoch(1)]), "{events:?}");
        // It came into a broken group, and heard the cut in the new epoch.
        assert_eq!(replacement.join().unwrap().unwrap(), []);
    });
}

#[test]
fn another_model_on_a_node_is_refused() {
    let (case, other) = (&ROUNDED, &EXACT);
    let mut group = LocalGroup::whole(2, DEADLINE);
    let one = group.pop().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || follow(other, one));
        let pipeline = Pipeline::lead(Box::new(group.pop().unwrap()), stages("0,1-2"), Wire::F32);
        let (mut cpu, model, _) = load(case, pipeline.unwrap());
        let error = model.meet(&mut cpu, DEADLINE).expect_err("node 1 has another model");
        assert!(error.to_string().contains("node 1: it has another model"), "{error}");
        model.dismiss(&mut cpu);
    });
}

/// Fewer bits on the wire change numbers. How near they stay depends on the model, whose choice of
/// experts may tip; half of all logits of this one differ by less than these shares of the usual.
#[test]
fn fewer_bits_are_near_and_not_equal() {
    let case = &ROUNDED;
    let median = |values: &mut Vec<f32>| {
        values.sort_by(f32::total_cmp);
        values[values.len() / 2]
    };
    let usual = median(&mut case.rows.logits.iter().map(|value| value.abs()).collect());
    for (wire, most) in [(Wire::Bf16, 0.25), (Wire::Int8, 0.6)] {
        let rows = on_nodes(case, "0,1-2", wire, |runner| runner.cuts(&case.tokens, [100, 1]));
        let pairs = rows.logits.iter().zip(&case.rows.logits);
        let share = median(&mut pairs.map(|(a, b)| (a - b).abs()).collect()) / usual;
        assert!(share > 0.0 && share < most, "{wire:?}: {share}");
    }
}

/// A node makes its layers resident and nothing else, and the plan counts just that.
#[test]
fn every_node_loads_its_own_layers() {
    let case = &ROUNDED;
    let shape = wide(6).shape;
    let specs = tensor_specs(&shape);
    let cut = stages("0,1,2");
    let bytes = |name: &str| {
        let tensor = case.gguf.tensors().iter().find(|t| t.name == name).expect("a tensor");
        case.gguf.bytes(tensor).unwrap().len() as u64
    };
    let mut all = BTreeSet::new();
    let mut group = LocalGroup::whole(3, DEADLINE);
    let others = group.split_off(1);
    let loaded = thread::scope(|scope| {
        let others: Vec<_> = others
            .into_iter()
            .map(|local| {
                scope.spawn(|| {
                    let pipeline = Pipeline::hear(Box::new(local), &mut |_| false).unwrap();
                    let (mut cpu, mut model, names) = load(case, pipeline);
                    model.follow(&mut cpu, &mut |_| false).unwrap();
                    names
                })
            })
            .collect();
        let exchange = Box::new(group.remove(0));
        let pipeline = Pipeline::lead(exchange, cut.clone(), Wire::F32).unwrap();
        let (mut cpu, model, names) = load(case, pipeline);
        model.meet(&mut cpu, DEADLINE).unwrap();
        model.dismiss(&mut cpu);
        std::iter::once(names).chain(others.into_iter().map(|o| o.join().unwrap())).collect()
    });
    let loaded: Vec<BTreeSet<String>> = loaded;
    for (stage, names) in loaded.iter().enumerate() {
        let is_of = |name: &&String| name.starts_with("blk.");
        let prefix = format!("blk.{stage}.");
        assert!(names.iter().filter(is_of).all(|name| name.starts_with(&prefix)), "{names:?}");
        let model = |name: &&String| case.gguf.tensors().iter().any(|t| t.name == **name);
        let held: u64 = names.iter().filter(model).map(|name| bytes(name)).sum();
        let plan = stage_plan(&case.gguf, &specs, &cut, stage, true).unwrap();
        assert_eq!(plan.iter().map(|line| line.bytes).sum::<u64>(), held, "node {stage}");
        all.extend(names.iter().cloned());
    }
    assert!(case.gguf.tensors().iter().all(|tensor| all.contains(&tensor.name)));
    let head = ["output.weight", "token_embd.weight"]
        .map(|name| loaded.iter().map(|names| names.contains(name)).collect::<Vec<_>>());
    assert_eq!(head, [[false, false, true], [true, false, true]]);
}

#[test]
fn a_cut_by_weight_is_even_and_cuts_that_cannot_be_are_refused() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nano.gguf");
    let nano = Gguf::open(&path).unwrap();
    let shape = Shape::from_metadata(nano.metadata()).unwrap();
    let specs = tensor_specs(&shape);
    let sum = |cut: &Stages, stage| -> u64 {
        let plan = stage_plan(&nano, &specs, cut, stage, false).unwrap();
        plan.iter().map(|line| line.bytes).sum()
    };
    let cut = balanced_stages(&nano, &shape, &specs, 2).unwrap();
    let halves = [sum(&cut, 0), sum(&cut, 1)];
    let all: u64 = nano.tensors().iter().map(|t| nano.bytes(t).unwrap().len() as u64).sum();
    assert_eq!(halves.iter().sum::<u64>(), all, "every tensor is on one node");
    assert!(halves.iter().all(|half| *half < all / 3 * 2), "{halves:?}");
    let error = balanced_stages(&nano, &shape, &specs, shape.layers + 1).expect_err("too many");
    assert!(error.to_string().contains("every node needs a layer"), "{error}");
    let mut group = LocalGroup::whole(2, DEADLINE);
    let wrong = Pipeline::lead(Box::new(group.remove(0)), stages("0,1,2"), Wire::F32);
    assert!(wrong.err().unwrap().to_string().contains("rank 0 of 3"));
}
