//! Ranks that share a model give the bits of one device, through everything that a session may go
//! through, and go on after one of them was lost. Here they are threads of this process.

use crate::common::{Rows, Runner, default_mode, exact, joined, same_bits};
use crate::one_answer::{Case, act, live_on, quantised};
use ironstar_device::{
    Cpu, Error as DeviceError, Exchange, ExchangeError, GateCounts, GateKind, Local, LocalGroup,
    Part,
};
use ironstar_gguf::Gguf;
use ironstar_model::deepseek_v4::{Field, Kind, rank_plan, tensor_specs};
use ironstar_model::testing::{Tiny, encode};
use ironstar_model::{
    Directions, Error, Followed, LogitsFor, Model, Shape, Sharing, SteeringScales, Step,
};
use ironstar_quant::Format;
use proptest::prelude::*;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

/// Long enough for a busy machine: only what hangs meets it.
const DEADLINE: Duration = Duration::from_secs(240);

/// One that eight ranks can share, with groups of experts and parts of the vocabulary of unequal
/// size.
pub fn wide(seed: u64) -> Tiny {
    let small = Tiny::small(seed);
    let shape = Shape {
        heads: 8,
        output_groups: 8,
        vocabulary: 97,
        experts: 6,
        experts_used: 3,
        expert_width: 256,
        ..small.shape
    };
    Tiny { seed, shape }
}

static EXACT: LazyLock<Case> = LazyLock::new(|| Case::new(&wide(3), false, exact(), 300));
static ROUNDED: LazyLock<Case> =
    LazyLock::new(|| Case::new(&wide(4), true, default_mode(1, None), 300));

/// A rank of the case's model.
fn rank(case: &Case, exchange: impl Exchange + 'static) -> (Cpu, Model) {
    let (config, options) = case.mode.clone();
    let mut cpu = Cpu::new(config).unwrap().with_exchange(Box::new(exchange));
    let drafter = Some(&case.drafter);
    let model = Model::load(&case.gguf, drafter, &mut cpu, options, &mut |_| {}).unwrap();
    (cpu, model)
}

fn follow(case: &Case, exchange: impl Exchange + 'static) -> Result<Vec<Followed>, Error> {
    let (mut cpu, mut model) = rank(case, exchange);
    let mut events = Vec::new();
    let mut on_event = |event| {
        let lost = |e: &ExchangeError| matches!(e, ExchangeError::Lost { rank: 0, .. });
        let goes_on = match &event {
            Followed::Waiting(error) => {
                !lost(error) && !matches!(error, ExchangeError::Misuse { .. })
            }
            Followed::Broken(error) => !lost(error),
            Followed::Epoch(_) => true,
        };
        events.push(event);
        goes_on
    };
    model.follow(&mut cpu, &mut on_event).map(|()| events)
}

fn lead(case: &Case, exchange: impl Exchange + 'static) -> Runner {
    let (mut cpu, model) = rank(case, exchange);
    model.meet(&mut cpu, DEADLINE).unwrap();
    let state = model.new_state(&mut cpu, 400).unwrap();
    Runner { cpu, model, state }
}

/// The indexer's rows in parts and steps in halves, from the first on.
const ALWAYS: Sharing = Sharing { index_from: 0, halves_from: 0, rows_from: 0 };

/// Runs a closure on rank 0 of a group; the others follow until it is done.
fn on_ranks<T>(case: &Case, ranks: usize, work: impl FnOnce(&mut Runner) -> T) -> T {
    let mut group = LocalGroup::whole(ranks, DEADLINE);
    let others = group.split_off(1);
    thread::scope(|scope| {
        let others: Vec<_> =
            others.into_iter().map(|local| scope.spawn(|| follow(case, local))).collect();
        let mut runner = lead(case, group.remove(0));
        let given = work(&mut runner);
        runner.model.dismiss(&mut runner.cpu);
        for other in others {
            assert_eq!(other.join().unwrap().unwrap(), [], "nothing breaks");
        }
        given
    })
}

#[test]
fn any_number_of_ranks_gives_the_bits_of_one() {
    for (name, case) in [("exact", &EXACT), ("default", &ROUNDED)] {
        let saved = {
            let mut one = case.runner();
            one.cuts(&case.tokens, []);
            one.saved()
        };
        let groups = if name == "exact" {
            [(2, Sharing::NEVER), (4, ALWAYS)]
        } else {
            [(2, ALWAYS), (8, ALWAYS)]
        };
        for (ranks, sharing) in groups {
            let cuts = [3, 124, 1, 1, 101];
            let (rows, state) = on_ranks(case, ranks, |runner| {
                runner.model.share(sharing);
                let rows = runner.cuts(&case.tokens, cuts);
                (rows, runner.saved())
            });
            rows.assert_same_bits(&case.rows, &format!("{name}, {ranks} ranks"));
            assert!(state == saved, "{name}, {ranks} ranks: a saved state is that of one device");
        }
    }
}

/// Gates of three steps: 50 rows without logits, one with, 40 with all.
fn counted(case: &Case, sharing: Sharing) -> GateCounts {
    on_ranks(case, 2, |runner| {
        runner.model.share(sharing);
        let before = Model::gate_counts(&mut runner.cpu);
        for (at, rows, wanted) in
            [(0, 50, LogitsFor::None), (50, 1, LogitsFor::Last), (51, 40, LogitsFor::All)]
        {
            let step = Step::single(&case.tokens[at..at + rows], at);
            let states = &mut [&mut runner.state];
            runner.model.forward(&mut runner.cpu, &step, states, wanted).unwrap();
            runner.model.commit(&mut runner.state, rows).unwrap();
        }
        let after = Model::gate_counts(&mut runner.cpu);
        let mut gates = after.gates;
        gates.iter_mut().zip(before.gates).for_each(|(after, before)| *after -= before);
        let mut bytes = after.bytes;
        bytes.iter_mut().zip(before.bytes).for_each(|(after, before)| *after -= before);
        GateCounts { gates, bytes }
    })
}

#[test]
fn a_layer_has_two_gates_a_step_and_the_vocabulary_one() {
    let counts = counted(&ROUNDED, Sharing::NEVER);
    let layers = 3;
    assert_eq!(counts.of(GateKind::Attention), 3 * layers);
    assert_eq!(counts.of(GateKind::Ffn), 3 * layers);
    // Logits of 40 rows go in runs of at most 32.
    assert_eq!(counts.of(GateKind::Vocabulary), 1 + 2);
    assert_eq!(counts.of(GateKind::Index), 0);
    assert_eq!(counts.of(GateKind::Status), 1, "the state is told once");
    assert_eq!(counts.bytes[0], 91 * layers * 64 * 4, "a partial row is one row of floats");
    assert_eq!(counts.bytes[3], 41 * 49 * 4, "half of 97 tokens, rounded up");
}

/// Two sessions in the same steps, and guesses for one: logits of both kinds.
pub fn in_common(case: &Case, runner: &mut Runner) -> Vec<f32> {
    let mut other = runner.model.new_state(&mut runner.cpu, 300).unwrap();
    let (mut rows, mut at) = (Vec::new(), [0, 0]);
    for (mine, theirs) in [(20, 70), (1, 1), (90, 1), (1, 40), (2, 2)] {
        let parts = [
            (&case.tokens[at[0]..at[0] + mine], at[0]),
            (&case.tokens[at[1]..at[1] + theirs], at[1]),
        ];
        let (step, states) = (joined(&parts), &mut [&mut runner.state, &mut other]);
        let logits = runner.model.forward(&mut runner.cpu, &step, states, LogitsFor::Last);
        rows.extend_from_slice(logits.unwrap().values());
        runner.model.commit(&mut runner.state, mine).unwrap();
        runner.model.commit(&mut other, theirs).unwrap();
        at = [at[0] + mine, at[1] + theirs];
        let (cpu, next) = (&mut runner.cpu, case.tokens[at[1]]);
        let guessed = runner.model.draft_tokens(cpu, &other, next, 4).unwrap();
        rows.extend_from_slice(guessed.logits.values());
    }
    other.release(&mut runner.cpu);
    rows
}

#[test]
fn an_indexer_in_parts_has_a_gate_more_and_halves_have_twice_as_many() {
    let shape = &wide(4).shape;
    let indexers = shape.ratios.iter().filter(|&&ratio| ratio == 4).count() as u64;
    let top_k = shape.index_top_k as u64;
    let split = counted(&ROUNDED, Sharing { index_from: 51, ..Sharing::NEVER });
    // The first step ends at 50, so only the others ask for parts.
    assert_eq!(split.of(GateKind::Index), 2 * indexers);
    assert_eq!(split.bytes[2], 41 * indexers * top_k * 8, "a score and a row for each of the best");
    assert_eq!((split.of(GateKind::Attention), split.of(GateKind::Ffn)), (3 * 3, 3 * 3));

    let halves = counted(&ROUNDED, Sharing { halves_from: 2, ..Sharing::NEVER });
    // A step of one row has no halves.
    assert_eq!((halves.of(GateKind::Attention), halves.of(GateKind::Ffn)), (5 * 3, 5 * 3));
    assert_eq!(halves.bytes[0], 91 * 3 * 64 * 4, "and no byte more");
    assert_eq!(halves.of(GateKind::Index), 0);

    let both = counted(&ROUNDED, ALWAYS);
    // In the first step only the second half sees more rows than the indexer keeps: 12 of 8.
    assert_eq!(both.of(GateKind::Index), (1 + 1 + 2) * indexers);
}

#[test]
fn sessions_in_common_steps_and_guesses_of_both_drafters() {
    let case = &ROUNDED;
    let both = |runner: &mut Runner| {
        runner.model.share(ALWAYS);
        in_common(case, runner)
    };
    let one = both(&mut case.runner());
    same_bits(&on_ranks(case, 2, both), &one, "two ranks");

    // The same with DSpark in the draft block's place.
    let tiny = wide(4);
    let spark = Case {
        drafter: tiny.dspark_as(&quantised),
        gguf: tiny.gguf_as(&quantised),
        tokens: case.tokens.clone(),
        mode: case.mode.clone(),
        rows: Rows::default(),
        vocabulary: case.vocabulary,
    };
    let one = both(&mut spark.runner());
    let four = on_ranks(&spark, 4, both);
    same_bits(&four, &one, "four ranks with DSpark");
}

#[test]
fn ranks_are_steered_as_one_device_is() {
    let case = &ROUNDED;
    let steered = |runner: &mut Runner| {
        let (layers, width) = (runner.model.shape().layers, runner.model.shape().width);
        let row = |layer: usize| (0..width).map(move |at| f32::from(u8::from(at == layer)));
        let directions = Directions::new(layers, width, (0..layers).flat_map(row).collect());
        let directions = directions.unwrap();
        let scales = |attention, ffn| SteeringScales { attention, ffn };
        let mut rows = Vec::new();
        let mut next = |runner: &mut Runner, count: usize| {
            let at = runner.state.position();
            let step = Step::single(&case.tokens[at..at + count], at);
            let states = &mut [&mut runner.state];
            let logits = runner.model.forward(&mut runner.cpu, &step, states, LogitsFor::Last);
            rows.extend_from_slice(logits.unwrap().values());
            runner.model.commit(&mut runner.state, count).unwrap();
        };
        next(runner, 30);
        let how = Some((&directions, scales(0.5, -1.0)));
        runner.model.steer(&mut runner.cpu, how).unwrap();
        next(runner, 20);
        runner.model.set_steering_scales(scales(0.0, 2.0)).unwrap();
        next(runner, 1);
        runner.model.steer(&mut runner.cpu, None).unwrap();
        next(runner, 1);
        rows
    };
    let one = steered(&mut case.runner());
    let plain = [29, 49, 50, 51].map(|row| &case.rows.logits[row * case.vocabulary..][..4]);
    let found = [0, 1, 2].map(|row| &one[row * case.vocabulary..][..4]);
    assert!(found[0] == plain[0] && found[1] != plain[1] && found[2] != plain[2], "it steers");
    same_bits(&on_ranks(case, 2, steered), &one, "two ranks");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(2),
        ..Default::default()
    })]

    #[test]
    fn any_life_of_a_session_on_ranks(
        acts in prop::collection::vec(act(), 4..14),
        ranks in prop_oneof![Just(2usize), Just(4)],
        is_exact in any::<bool>(),
        shares in any::<bool>(),
    ) {
        let case: &Case = if is_exact { &EXACT } else { &ROUNDED };
        on_ranks(case, ranks, |runner| {
            runner.model.share(if shares { ALWAYS } else { Sharing::NEVER });
            live_on(case, runner, &acts);
        });
    }
}

/// A rank whose process ends at its n-th gate.
struct Mortal(Local, usize);

impl Exchange for Mortal {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn ranks(&self) -> usize {
        self.0.ranks()
    }
    fn post(&mut self, gate: GateKind, mine: &[u8]) -> Result<(), ExchangeError> {
        self.1 -= 1;
        if self.1 == 0 {
            let (found, wanted) = ("the end".to_owned(), "nothing".to_owned());
            return Err(ExchangeError::Misuse { found, wanted });
        }
        self.0.post(gate, mine)
    }
    fn wait(&mut self, all: &mut [u8]) -> Result<(), ExchangeError> {
        self.0.wait(all)
    }
    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
        self.0.broadcast(bytes)
    }
    fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), ExchangeError> {
        self.0.send(to, bytes)
    }
    fn receive(&mut self, from: usize) -> Result<Vec<u8>, ExchangeError> {
        self.0.receive(from)
    }
    fn abort(&mut self, reason: &str) {
        self.0.abort(reason);
    }
    fn reform(&mut self) -> Result<u64, ExchangeError> {
        let (found, wanted) = ("the dead".to_owned(), "the living".to_owned());
        Err(ExchangeError::Misuse { found, wanted })
    }
    fn epoch(&self) -> u64 {
        self.0.epoch()
    }
    fn counts(&self) -> GateCounts {
        self.0.counts()
    }
}

/// Rank 2 of 4 dies at different gates of its third step: the step fails with the reason, the
/// others keep what they have loaded, a replacement comes, and the tokens that were kept are
/// not evaluated again.
#[test]
fn a_lost_rank_fails_its_step_and_is_replaced() {
    let case = &ROUNDED;
    // Two statuses, then six sums and one of the vocabulary a step.
    for gate in [2 + 14 + 1, 2 + 14 + 6] {
        let group = LocalGroup::new(4, DEADLINE);
        thread::scope(|scope| {
            let local = |rank| group.join(rank).unwrap();
            let survivors = [1, 3].map(|rank| {
                let local = local(rank);
                scope.spawn(move || follow(case, local))
            });
            let mortal = Mortal(local(2), gate);
            let victim = scope.spawn(move || follow(case, mortal));
            let mut runner = lead(case, local(0));
            let next = |runner: &mut Runner, rows: usize| {
                let at = runner.state.position();
                let step = Step::single(&case.tokens[at..at + rows], at);
                let states = &mut [&mut runner.state];
                let logits =
                    runner.model.forward(&mut runner.cpu, &step, states, LogitsFor::Last)?;
                runner.model.commit(&mut runner.state, rows).unwrap();
                Ok::<_, Error>((at + rows - 1, logits.row(0).to_vec()))
            };
            let mut rows = vec![next(&mut runner, 40).unwrap(), next(&mut runner, 1).unwrap()];
            let error = next(&mut runner, 2).expect_err("rank 2 is dead");
            assert!(
                matches!(
                    error,
                    Error::Device(DeviceError::Exchange(ExchangeError::Lost { rank: 2, .. }))
                ),
                "{error}"
            );
            assert!(victim.join().unwrap().is_err());
            assert_eq!(runner.state.position(), 41, "what was kept stays");
            let before = crate::common::steps(&runner.cpu);
            let replacement = {
                let local = local(2);
                scope.spawn(move || follow(case, local))
            };
            rows.extend([1, 1, 60, 1].map(|count| next(&mut runner, count).unwrap()));
            assert_eq!(crate::common::steps(&runner.cpu) - before, 4 * 2, "nothing is replayed");
            for (row, logits) in rows {
                let v = case.vocabulary;
                same_bits(&logits, &case.rows.logits[row * v..][..v], "after the loss");
            }
            runner.model.dismiss(&mut runner.cpu);
            for other in survivors {
                let events = other.join().unwrap().unwrap();
                assert!(matches!(events[..], [Followed::Broken(_), Followed::Epoch(1)]));
            }
            // It came into a broken group, so its first order fails, and then it is one of them.
            assert!(matches!(
                replacement.join().unwrap().unwrap()[..],
                [Followed::Broken(_), Followed::Epoch(1)]
            ));
        });
    }
}

#[test]
fn another_model_on_a_rank_is_refused() {
    let (case, other) = (&ROUNDED, &EXACT);
    let mut group = LocalGroup::whole(2, DEADLINE);
    let one = group.pop().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || follow(other, one));
        let (mut cpu, model) = rank(case, group.pop().unwrap());
        let error = model.meet(&mut cpu, DEADLINE).expect_err("rank 1 has another model");
        assert!(error.to_string().contains("rank 1: it has another model"), "{error}");
        model.dismiss(&mut cpu);
    });
}

fn plan(gguf: &Gguf, rank: usize, ranks: usize) -> Result<Vec<u64>, Error> {
    let shape = Shape::from_metadata(gguf.metadata())?;
    let lines = rank_plan(gguf, &shape, &tensor_specs(&shape), Part { rank, ranks })?;
    Ok(lines.iter().map(|line| line.bytes).collect())
}

#[test]
fn what_is_cut_is_held_once_and_the_rest_is_listed() {
    let gguf = wide(4).gguf_as(&quantised);
    let whole = plan(&gguf, 0, 1).unwrap();
    let all: u64 = gguf.tensors().iter().map(|t| gguf.bytes(t).unwrap().len() as u64).sum();
    assert_eq!(whole.iter().sum::<u64>(), all, "every tensor is in one line");
    for ranks in [2, 4, 8] {
        let parts: Vec<_> = (0..ranks).map(|rank| plan(&gguf, rank, ranks).unwrap()).collect();
        for line in 0..2 {
            assert_eq!(parts.iter().map(|part| part[line]).sum::<u64>(), whole[line]);
        }
        assert!(parts.iter().all(|part| part[2..] == whole[2..]));
    }
}

#[test]
fn rank_counts_are_refused_with_the_reason() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nano.gguf");
    let nano = Gguf::open(&path).unwrap();
    for (ranks, reason) in [(2, ""), (4, ""), (8, "output groups"), (3, "1, 2, 4 or 8")] {
        let text = plan(&nano, 0, ranks).map_or_else(|error| error.to_string(), |_| String::new());
        assert_eq!(text.is_empty(), reason.is_empty(), "{ranks}: {text}");
        assert!(text.contains(reason), "{ranks}: {text}");
    }
    // A last matrix of an expert that is one block of 256 wide cannot be halved.
    let tiny = wide(4);
    let one_block = tiny.gguf_as(&|spec, values| match (spec.kind, spec.field) {
        (Kind::Routed, Field::ExpertDown) => encode(Format::Q2K, values),
        _ => quantised(spec, values),
    });
    assert!(plan(&one_block, 0, 1).is_ok());
    let text = plan(&one_block, 0, 2).expect_err("one block").to_string();
    assert!(text.contains("blk.0.ffn_down_exps.weight` has 256 columns"), "{text}");
}
