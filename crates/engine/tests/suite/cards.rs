//! Cards of one process, here host drivers on threads: their answers are those of one.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{generate, logits, options, sync, tiny};
use ironstar_device::{Error as DeviceError, GateRoute, Gpu, GpuConfig, HostFault, Peers};
use ironstar_engine::sampler::Settings;
use ironstar_engine::{Cards, Engine, EngineOptions, Error, Generate, OpenFiles, Speculation};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Long enough for a busy machine: only what hangs takes it.
const LONG: Duration = Duration::from_secs(300);

fn host() -> Result<Gpu, DeviceError> {
    Gpu::host(GpuConfig::default())
}

fn open() -> Arc<OpenFiles> {
    Arc::new(|| Ok((tiny(96).gguf(), None)))
}

fn options_of_cards() -> EngineOptions {
    EngineOptions { drafter: ironstar_engine::DrafterChoice::None, ..options() }
}

fn lead(cards: Cards, open: &Arc<OpenFiles>) -> Result<Engine, Error> {
    let options = options_of_cards();
    let backend = cards.lead(open, &options, &mut |note| panic!("{note}"))?;
    let mut engine = Engine::on_backend(backend, &tiny(96).gguf(), None, options, &mut |_| {})?;
    engine.meet(LONG)?;
    Ok(engine)
}

fn answer(engine: &mut Engine) -> Vec<Vec<u32>> {
    let mut session = engine.session(40).unwrap();
    sync(&mut session, engine, &[3, 5, 8, 13, 21, 34]);
    let mut all = vec![logits(&session)];
    for token in [55, 89] {
        session.push(engine, token).unwrap();
        all.push(logits(&session));
    }
    all
}

#[test]
fn two_cards_answer_as_one() {
    let one = Box::new(host().unwrap());
    let gguf = tiny(96).gguf();
    let mut one = Engine::on_backend(one, &gguf, None, options_of_cards(), &mut |_| {}).unwrap();
    let wanted = answer(&mut one);
    let cards = Cards::made_by(2, Arc::new(|_| host()), Some(Peers::host(2)));
    let parts = cards.plan(&gguf, None).unwrap();
    let all: u64 = gguf.tensors().iter().map(|t| gguf.bytes(t).unwrap().len() as u64).sum();
    assert!(parts.iter().all(|part| *part < all) && parts.iter().sum::<u64>() >= all);
    let mut two = lead(cards, &open()).unwrap();
    assert_eq!(answer(&mut two), wanted);
    assert!(!two.gate_times().unwrap().is_empty());
}

/// Cards as processes of their own have them: gates in each other's memory, in memory of the host,
/// shared or carried, and without gates inside a graph. A host driver's card that is a thread
/// stands for the process.
#[test]
fn cards_of_processes_answer_as_one() {
    let gguf = tiny(96).gguf();
    let one = Box::new(host().unwrap());
    let mut one = Engine::on_backend(one, &gguf, None, options_of_cards(), &mut |_| {}).unwrap();
    let wanted = answer(&mut one);
    for most in [GateRoute::Peer, GateRoute::Shared, GateRoute::Carried, GateRoute::Host] {
        let make = move |_| Ok(host()?.with_gates(most, LONG));
        let mut two = lead(Cards::made_by(2, Arc::new(make), None), &open()).unwrap();
        let note = two.gates_note().unwrap();
        assert_eq!(note.contains("inside the graph"), most > GateRoute::Host, "{note}");
        assert_eq!(answer(&mut two), wanted, "{most:?}");
    }
}

/// Answers with guesses and without, drawn on the card where nothing else is wanted of the logits,
/// and a session that is saved and goes on: tokens, and the saved bytes.
fn drawn(engine: &mut Engine) -> (Vec<Vec<u32>>, Vec<u8>, Vec<u32>) {
    let settings = Settings { temperature: 0.9, top_p: 0.9, ..Settings::default() };
    let mut all = Vec::new();
    for speculation in [Speculation::Off, Speculation::Mtp] {
        let (seed, tokens_max) = (7, Some(12));
        let what = Generate { settings, seed, tokens_max, speculation, ..Generate::default() };
        let mut session = engine.session(60).unwrap();
        sync(&mut session, engine, &[3, 5, 8, 13, 5, 8, 13, 5]);
        let (tokens, _) = generate(&mut session, engine, &what);
        all.push(tokens.iter().map(|token| token.id).collect());
    }
    let mut session = engine.session(60).unwrap();
    sync(&mut session, engine, &[3, 5, 8, 13, 21]);
    let saved = session.snapshot(engine).unwrap();
    session.push(engine, 34).unwrap();
    session.restore(engine, &saved).unwrap();
    session.push(engine, 55).unwrap();
    (all, saved.state().to_vec(), logits(&session))
}

#[test]
fn cards_draw_guess_and_restore_as_one() {
    let files = || (tiny(96).gguf(), tiny(96).drafter());
    let (gguf, drafter) = files();
    let (one, drafter) = (Box::new(host().unwrap()), Some(&drafter));
    let mut one = Engine::on_backend(one, &gguf, drafter, options(), &mut |_| {}).unwrap();
    let wanted = drawn(&mut one);
    let open: Arc<OpenFiles> = Arc::new(move || {
        let (gguf, drafter) = files();
        Ok((gguf, Some(drafter)))
    });
    let cards = Cards::made_by(2, Arc::new(|_| host()), Some(Peers::host(2)));
    let backend = cards.lead(&open, &options(), &mut |note| panic!("{note}")).unwrap();
    let mut two = Engine::on_backend(backend, &gguf, drafter, options(), &mut |_| {}).unwrap();
    two.meet(LONG).unwrap();
    let found = drawn(&mut two);
    assert_eq!(found.0, wanted.0);
    assert!(found == wanted, "saved bytes and what follows are those of one");
}

/// A card that fails in the middle of a token: the request fails with the reason, at once; the next
/// one forms the group again, and goes on with the right bits. A card that fails for good refuses
/// every request, and nothing hangs.
#[test]
fn a_card_that_fails_while_it_answers_is_survived() {
    let gguf = tiny(96).gguf();
    let mut one =
        Engine::on_backend(Box::new(host().unwrap()), &gguf, None, options_of_cards(), &mut |_| {})
            .unwrap();
    let wanted = answer(&mut one);
    let fault = HostFault::default();
    let planted = fault.clone();
    let make = move |rank: usize| match rank {
        1 => Gpu::host_failing(GpuConfig::default(), planted.clone()),
        _ => host(),
    };
    let cards = Cards::made_by(2, Arc::new(make), Some(Peers::host(2)));
    let mut two = lead(cards, &open()).unwrap();
    let mut session = two.session(40).unwrap();
    let mut tokens = vec![3, 5, 8, 13, 21, 34];
    sync(&mut session, &mut two, &tokens);
    let mut found = vec![logits(&session)];
    for (token, after) in [(55, 9), (89, 0)] {
        fault.plant(after, false);
        let begun = Instant::now();
        let error = session.push(&mut two, token).map(|_| ()).expect_err("a planted fault");
        assert!(error.to_string().contains("rank 1 gave up"), "{error}");
        assert!(error.to_string().contains("a planted fault"), "{error}");
        assert!(fault.is_gone() && begun.elapsed() < LONG, "{:?}", begun.elapsed());
        tokens.push(token);
        sync(&mut session, &mut two, &tokens);
        found.push(logits(&session));
    }
    assert!(found == wanted, "bits of one card after each fault");
    fault.plant(3, true);
    for _ in 0..2 {
        let error = session.push(&mut two, 7).map(|_| ()).expect_err("gone for good").to_string();
        assert!(error.contains("a planted fault"), "{error}");
    }
    let begun = Instant::now();
    drop(two);
    assert!(begun.elapsed() < LONG, "its thread ends with rank 0: {:?}", begun.elapsed());
}

/// A card that cannot be opened, a file that is not there, and a bug: the start fails with the
/// reason, at once.
#[test]
fn a_rank_that_fails_ends_the_start_with_its_reason() {
    let unsupported = |found: &str| DeviceError::Unsupported {
        found: found.to_owned(),
        wanted: "a test's".into(),
    };
    let no_card = move |rank: usize| if rank == 1 { Err(unsupported("card 1")) } else { host() };
    let cards = Cards::made_by(2, Arc::new(no_card), None);
    let error = lead(cards, &open()).map(|_| ()).expect_err("no card 1").to_string();
    assert!(error.contains("rank 1 gave up: card 1 cannot be used"), "{error}");

    let no_file: Arc<OpenFiles> = Arc::new(move || Err(unsupported("a missing file").into()));
    let cards = Cards::made_by(2, Arc::new(|_| host()), Some(Peers::host(2)));
    let error = lead(cards, &no_file).map(|_| ()).expect_err("no file").to_string();
    assert!(error.contains("rank 1 gave up: a missing file"), "{error}");

    let bug: Arc<OpenFiles> = Arc::new(|| panic!("a planted bug"));
    let cards = Cards::made_by(2, Arc::new(|_| host()), None);
    let error = lead(cards, &bug).map(|_| ()).expect_err("a bug").to_string();
    assert!(error.contains("rank 1 gave up: its thread panicked"), "{error}");
}
