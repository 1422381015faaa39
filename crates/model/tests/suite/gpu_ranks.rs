//! Cards that share a model give the bits of one: the kernels on the host driver, a thread a card.
#![expect(clippy::unwrap_used, reason = "a failed fixture or step fails the test")]

use crate::common::{Rows, same_bits};
use crate::one_answer::quantised;
use crate::ranks::wide;
use ironstar_device::Backend as _;
use ironstar_device::{Gpu, GpuConfig, Local, LocalGroup, Peers};
use ironstar_gguf::Gguf;
use ironstar_model::testing::Tiny;
use ironstar_model::{
    LogitsFor, Model, Options, Pipeline, Shape, Sharing, Span, Stages, State, Step, Wanted, Wire,
};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// Long enough for a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// As many as the kernels for few rows take.
const SESSIONS: usize = 16;

struct Files {
    model: Gguf,
    drafter: Option<Gguf>,
}

/// A card of a group, with gates in its peers' memory or through the host's, or one alone.
fn card(files: &Files, local: Option<Local>, peers: Option<&Peers>) -> (Gpu, Model) {
    let mut gpu = Gpu::host(GpuConfig::default()).unwrap();
    if let Some(local) = local {
        gpu = gpu.with_exchange(Box::new(local));
    }
    if let Some(peers) = peers {
        let refused;
        (gpu, refused) = gpu.with_peers(peers, DEADLINE).unwrap();
        assert_eq!(refused, None);
    }
    let options = Options::default();
    let model =
        Model::load(&files.model, files.drafter.as_ref(), &mut gpu, options, &mut |_| {}).unwrap();
    (gpu, model)
}

fn steps(gpu: &mut Gpu, model: &mut Model, tokens: &[u32], lengths: &[usize]) -> (Rows, Vec<u8>) {
    let mut state: State = model.new_state(gpu, 256).unwrap();
    let drafts = if model.has_drafter() { LogitsFor::All } else { LogitsFor::None };
    let (mut rest, mut rows) = (tokens, Rows::default());
    for length in lengths {
        let (now, later) = rest.split_at(*length);
        let wanted = Wanted { logits: LogitsFor::All, drafts };
        let step = Step::single(now, state.position());
        let out = model.forward_observed(gpu, &step, &mut [&mut state], &wanted, None).unwrap();
        model.commit(&mut state, now.len()).unwrap();
        rows.add(&out);
        rest = later;
    }
    (rows, state.save(gpu).unwrap())
}

fn on_one(files: &Files, tokens: &[u32]) -> (Rows, Vec<u8>) {
    let (mut gpu, mut model) = card(files, None, None);
    steps(&mut gpu, &mut model, tokens, &[tokens.len()])
}

/// A session that reads, then another beside it in the same step, whose rows two cards share so
/// that each has some of the second's: logits, and both states as they are saved.
fn two_sessions(gpu: &mut Gpu, model: &mut Model, tokens: &[u32]) -> (Vec<f32>, [Vec<u8>; 2]) {
    let mut states = [0, 1].map(|_| model.new_state(gpu, 256).unwrap());
    let mut logits = Vec::new();
    let [one, two] = &mut states;
    let (first, second) = tokens.split_at(40);
    let step = Step::single(first, 0);
    model.forward(gpu, &step, &mut [&mut *one], LogitsFor::None).unwrap();
    model.commit(one, 40).unwrap();
    for (begin, ends) in [(0, [14, 32]), (32, [33, 34])] {
        let rows = [0..ends[0] - begin, ends[0] - begin..ends[1] - begin];
        let positions = [one.position(), two.position()];
        let spans = rows.iter().zip(positions);
        let spans = spans.map(|(rows, position)| Span { rows: rows.clone(), position }).collect();
        let step = Step { tokens: second[begin..ends[1]].to_vec(), spans };
        let made = model.forward(gpu, &step, &mut [&mut *one, &mut *two], LogitsFor::Last);
        logits.extend_from_slice(made.unwrap().values());
        model.commit(one, rows[0].len()).unwrap();
        model.commit(two, rows[1].len()).unwrap();
    }
    (logits, states.map(|state| state.save(gpu).unwrap()))
}

/// What rank 0 of so many cards answers.
fn on_cards<T>(
    files: &Files,
    (ranks, peers): (usize, Option<Peers>),
    work: impl FnOnce(&mut Gpu, &mut Model) -> T,
) -> T {
    let peers = peers.as_ref();
    let mut group = LocalGroup::whole(ranks, DEADLINE);
    let others = group.split_off(1);
    thread::scope(|scope| {
        let others: Vec<_> = others
            .into_iter()
            .map(|local| {
                scope.spawn(move || {
                    let (mut gpu, mut model) = card(files, Some(local), peers);
                    model.follow(&mut gpu, &mut |_| false).unwrap();
                })
            })
            .collect();
        let (mut gpu, mut model) = card(files, Some(group.remove(0)), peers);
        model.meet(&mut gpu, DEADLINE).unwrap();
        model.share(Sharing { rows_from: 16, ..Sharing::default() });
        let given = work(&mut gpu, &mut model);
        assert_eq!(peers.is_some(), !gpu.gate_times().unwrap().is_empty());
        model.dismiss(&mut gpu);
        others.into_iter().for_each(|other| other.join().unwrap());
        given
    })
}

#[test]
fn cards_give_the_bits_of_one() {
    let tiny = wide(4);
    let drafter = Some(tiny.drafter_as(&quantised));
    let files = Files { model: tiny.gguf_as(&quantised), drafter };
    let tokens = tiny.tokens(27);
    let (wanted, state) = on_one(&files, &tokens);
    for (ranks, peers, lengths) in [(2, Some(Peers::host(2)), [17, 1, 9]), (4, None, [1, 25, 1])] {
        let work = |gpu: &mut Gpu, model: &mut Model| steps(gpu, model, &tokens, &lengths);
        let (found, saved) = on_cards(&files, (ranks, peers), work);
        found.assert_same_bits(&wanted, &format!("{ranks} cards"));
        assert!(saved == state, "{ranks} cards: a saved state is that of one");
    }
}

/// The same file in planes, of which cards take their rows and columns.
fn packed(gguf: &Gguf) -> Gguf {
    let out = std::io::Cursor::new(Vec::new());
    let out = ironstar_gguf::pack(gguf, out, &mut |_| {}).unwrap();
    Gguf::from_bytes(out.into_inner()).unwrap()
}

#[test]
fn cards_take_their_parts_of_planes() {
    let tiny = wide(4);
    let drafter = tiny.drafter_as(&quantised);
    let files = Files { model: tiny.gguf_as(&quantised), drafter: Some(drafter) };
    let tokens = tiny.tokens(12);
    let (wanted, _) = on_one(&files, &tokens);
    let drafter = files.drafter.as_ref().map(packed);
    let files = Files { model: packed(&files.model), drafter };
    for (ranks, peers) in [(2, Some(Peers::host(2))), (4, None)] {
        let work = |gpu: &mut Gpu, model: &mut Model| steps(gpu, model, &tokens, &[1, 11]);
        let (found, _) = on_cards(&files, (ranks, peers), work);
        found.assert_same_bits(&wanted, &format!("{ranks} cards with planes"));
    }
}

/// A model whose vocabulary goes by equal parts, so that cards put logits together themselves.
fn even(seed: u64) -> Tiny {
    let odd = wide(seed);
    let shape = Shape { vocabulary: 96, ..odd.shape.clone() };
    Tiny { shape, ..odd }
}

/// Sessions that go on from one's saved state, all in common steps: logits of all rows, and two of
/// the states as they are saved.
fn many_sessions(gpu: &mut Gpu, model: &mut Model, tokens: &[u32]) -> (Vec<f32>, [Vec<u8>; 2]) {
    let (first, mut rest) = tokens.split_at(37);
    let mut states: Vec<State> =
        (0..SESSIONS).map(|_| model.new_state(gpu, 128).unwrap()).collect();
    let one = &mut states[0];
    model.forward(gpu, &Step::single(first, 0), &mut [&mut *one], LogitsFor::None).unwrap();
    model.commit(one, first.len()).unwrap();
    let saved = one.save(gpu).unwrap();
    states[1..].iter_mut().for_each(|state| state.restore(gpu, &saved).unwrap());
    let mut logits = Vec::new();
    for _ in 0..2 {
        let (now, later) = rest.split_at(SESSIONS);
        let spans = states.iter().enumerate();
        let spans =
            spans.map(|(row, state)| Span { rows: row..row + 1, position: state.position() });
        let step = Step { tokens: now.to_vec(), spans: spans.collect() };
        let mut all: Vec<&mut State> = states.iter_mut().collect();
        let made = model.forward(gpu, &step, &mut all, LogitsFor::All);
        logits.extend_from_slice(made.unwrap().values());
        states.iter_mut().for_each(|state| model.commit(state, 1).unwrap());
        rest = later;
    }
    let saved = [0, SESSIONS - 1].map(|at| states[at].save(gpu).unwrap());
    states.into_iter().for_each(|state| state.release(gpu));
    (logits, saved)
}

/// Sixteen sessions in common steps by the kernels for few rows, each card scoring its part of the
/// compressed rows, and the logits put together on the cards; the state that all go on from is one
/// card's, saved and restored.
#[test]
fn cards_answer_sixteen_sessions() {
    let tiny = even(8);
    let files = Files { model: tiny.gguf_as(&quantised), drafter: None };
    let tokens = tiny.tokens(37 + 2 * SESSIONS);
    let (mut gpu, mut model) = card(&files, None, None);
    let (wanted, states) = many_sessions(&mut gpu, &mut model, &tokens);
    for ranks in [2, 4] {
        let peers = Some(Peers::host(ranks));
        let (found, saved) = on_cards(&files, (ranks, peers), |gpu, model| {
            model.share(Sharing { index_from: 1, ..Sharing::NEVER });
            assert!(model.draw_rows(gpu) >= SESSIONS, "cards draw tokens");
            let given = many_sessions(gpu, model, &tokens);
            let launched = gpu.launches().kernels;
            let count = |name| launched.iter().find(|own| own.0 == name).map_or(0, |own| own.1);
            // One layer has an indexer; a step of 37 rows is too long to be split so.
            assert_eq!([count("index_pack"), count("index_merge")], [2, 2]);
            assert_eq!(count("rows_share"), 2 + 2, "candidates and logits of two steps");
            assert!(launched.iter().any(|own| own.0.starts_with("few_")), "{launched:?}");
            given
        });
        same_bits(&found, &wanted, &format!("{ranks} cards"));
        assert!(saved == states, "{ranks} cards: saved states are those of one");
    }
}

/// A layer pipeline over cards.
#[test]
fn nodes_of_cards_give_the_bits_of_one() {
    let tiny = even(9);
    let files = Files { model: tiny.gguf_as(&quantised), drafter: None };
    let tokens = tiny.tokens(27);
    let (wanted, state) = on_one(&files, &tokens);
    let node = |pipeline: Pipeline| {
        let mut gpu = Gpu::host(GpuConfig::default()).unwrap();
        let (options, pipeline) = (Options::default(), Some(pipeline));
        let model = &files.model;
        let model = Model::load_node(model, None, &mut gpu, options, pipeline, &mut |_| {});
        (gpu, model.unwrap())
    };
    let mut group = LocalGroup::whole(2, DEADLINE);
    let other = group.pop().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let pipeline = Pipeline::hear(Box::new(other), &mut |_| false).unwrap();
            let (mut gpu, mut model) = node(pipeline);
            model.follow(&mut gpu, &mut |_| false).unwrap();
        });
        let stages = Stages::parse("0,1-2").unwrap();
        let pipeline = Pipeline::lead(Box::new(group.remove(0)), stages, Wire::F32).unwrap();
        let (mut gpu, mut model) = node(pipeline);
        model.meet(&mut gpu, DEADLINE).unwrap();
        let (found, saved) = steps(&mut gpu, &mut model, &tokens, &[17, 1, 9]);
        found.assert_same_bits(&wanted, "two nodes");
        assert!(saved == state, "a saved state is that of one");
        model.dismiss(&mut gpu);
        other.join().unwrap();
    });
}

/// Rows of two sessions, some of either on each card.
#[test]
fn cards_share_rows_of_several_sessions() {
    let tiny = even(5);
    let files = Files { model: tiny.gguf_as(&quantised), drafter: None };
    let tokens = tiny.tokens(74);
    let (mut gpu, mut model) = card(&files, None, None);
    let (wanted, states) = two_sessions(&mut gpu, &mut model, &tokens);
    let (found, saved) = on_cards(&files, (2, Some(Peers::host(2))), |gpu, model| {
        let given = two_sessions(gpu, model, &tokens);
        let shared = gpu.launches().kernels;
        let count = |name| shared.iter().find(|own| own.0 == name).map_or(0, |own| own.1);
        // Two steps were long enough. Streams are shared where logits are wanted, and the logits of
        // two steps.
        let shared = 2 * (2 * 3 + 1) + 1 + 2;
        assert_eq!([count("rows_sum"), count("rows_share")], [2 * 2 * 3, shared]);
        given
    });
    same_bits(&found, &wanted, "two sessions");
    assert!(saved == states, "saved states are those of one");
}

#[test]
fn nano_on_two_cards() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/nano.gguf");
    let files = Files { model: Gguf::open(&path).unwrap(), drafter: None };
    let tokens = [17, 400, 32];
    let (wanted, _) = on_one(&files, &tokens);
    let work = |gpu: &mut Gpu, model: &mut Model| steps(gpu, model, &tokens, &[2, 1]);
    let (found, _) = on_cards(&files, (2, Some(Peers::host(2))), work);
    same_bits(&found.logits, &wanted.logits, "two cards");
}
