//! Sessions against an engine that evaluates the same tokens afresh, and what the counters show.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{Dice, engine, engine_of, generate, logits, options, steps, sync, tiny};
use ironstar_engine::{
    CancelFlag, DrafterChoice, Engine, EngineOptions, Error, Generate, Session, Snapshot,
};
use std::collections::HashMap;

/// Logits and state after tokens, from a fresh session in one step.
struct Oracle {
    engine: Engine,
    known: HashMap<Vec<u32>, (Vec<u32>, Vec<u8>)>,
}

impl Oracle {
    fn new() -> Self {
        let engine = engine_of(&tiny(96), EngineOptions { store_ram_bytes: 0, ..options() });
        Oracle { engine, known: HashMap::new() }
    }

    #[track_caller]
    fn check(&mut self, session: &Session, engine: &mut Engine) {
        let tokens = &session.tokens()[..session.position()];
        if tokens.is_empty() {
            return;
        }
        let fresh = &mut self.engine;
        let (wanted, state) = self.known.entry(tokens.to_vec()).or_insert_with(|| {
            let mut session = fresh.session(600).unwrap();
            sync(&mut session, fresh, tokens);
            (logits(&session), session.snapshot(fresh).unwrap().state().to_vec())
        });
        if session.position() == session.tokens().len() {
            assert_eq!(logits(session), *wanted, "logits after {} tokens", tokens.len());
        }
        let snapshot = session.snapshot(engine).unwrap();
        assert!(snapshot.state() == *state, "state after {} tokens", tokens.len());
    }
}

/// A random walk over everything that a session can do; the seed of a failing one is in the output.
#[expect(clippy::print_stdout, reason = "only failing tests show it")]
fn walk(seed: u64, oracle: &mut Oracle, spacing: usize) {
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    let options = EngineOptions {
        checkpoint_spacing: spacing,
        store_ram_bytes: dice.below(3) as u64 * 200_000,
        ..options()
    };
    let mut engine = engine_of(&tiny(96), options);
    let mut sessions = [engine.session(600).unwrap(), engine.session(600).unwrap()];
    let mut shots: Vec<Snapshot> = Vec::new();
    for _ in 0..30 {
        let session = &mut sessions[dice.below(2)];
        engine.set_prompt_rows(1 + dice.below(130));
        let here = session.tokens().to_vec();
        match dice.below(9) {
            // Going on, back, and off to the side.
            0 => {
                let more = dice.below(200).min(580 - here.len().min(580));
                let tokens = [here, dice.tokens(more + 1, 96)].concat();
                sync(session, &mut engine, &tokens);
            }
            1 => {
                let keep = dice.below(here.len() + 1);
                sync(session, &mut engine, &here[..keep]);
            }
            2 => {
                let keep = here.len() - dice.below(here.len().min(70) + 1);
                let tokens = [&here[..keep], &dice.tokens(5, 96)].concat();
                sync(session, &mut engine, &tokens);
            }
            3 => {
                let token = dice.tokens(1, 96)[0];
                session.push(&mut engine, token).unwrap();
            }
            4 => shots.push(session.snapshot(&mut engine).unwrap()),
            5 if !shots.is_empty() => {
                let shot = &shots[dice.below(shots.len())];
                session.restore(&mut engine, shot).unwrap();
            }
            // A prompt that is stopped after some steps.
            6 => {
                let tokens = [&here[..here.len() / 2], &dice.tokens(150, 96)].concat();
                let (flag, stop_at) = (CancelFlag::default(), dice.below(tokens.len()));
                let on_progress = &mut |p: ironstar_engine::SyncProgress| {
                    if p.done >= stop_at {
                        flag.raise();
                    }
                };
                match session.sync(&mut engine, &tokens, on_progress, &flag) {
                    Ok(_) | Err(Error::Cancelled { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
                assert_eq!(session.tokens(), tokens);
            }
            7 if !here.is_empty() && here.len() < 560 => {
                let (seed, tokens_max) = (dice.below(1000) as u64, Some(1 + dice.below(20)));
                let what = Generate { seed, tokens_max, ..Generate::default() };
                generate(session, &mut engine, &what);
            }
            _ => engine.forget_checkpoints(),
        }
        if session.tokens().len() > 560 {
            sync(session, &mut engine, &[5, 6]);
        }
        oracle.check(session, &mut engine);
    }
}

#[test]
fn any_way_to_some_tokens_gives_the_same_bits() {
    let mut oracle = Oracle::new();
    for seed in 0..9 {
        walk(seed, &mut oracle, [2048, 64, 37][usize::try_from(seed % 3).unwrap()]);
    }
}

#[test]
fn steps_of_a_prompt_are_its_chunks() {
    let without = EngineOptions { drafter: DrafterChoice::None, ..options() };
    let mut engine = engine_of(&tiny(96), without);
    let tokens = Dice::new(1).tokens(1100, 96);
    for (rows, wanted) in [(512, 3), (100, 11), (64, 18), (1000, 3)] {
        engine.set_prompt_rows(rows);
        engine.forget_checkpoints();
        let mut session = engine.session(1100).unwrap();
        let (before, mut seen) = (engine.counters(), Vec::new());
        let flag = CancelFlag::default();
        session.sync(&mut engine, &tokens, &mut |p| seen.push(p.done), &flag).unwrap();
        assert_eq!(engine.counters().steps - before.steps, wanted, "{rows} rows a step");
        assert_eq!(engine.counters().rows - before.rows, 1100);
        assert_eq!((seen.len() as u64, seen.last()), (wanted, Some(&1100)));
    }
}

#[test]
fn restoring_runs_no_rows() {
    let mut engine = engine();
    let (mut session, tokens) = (engine.session(400).unwrap(), Dice::new(2).tokens(300, 96));
    sync(&mut session, &mut engine, &tokens);
    let (shot, wanted) = (session.snapshot(&mut engine).unwrap(), logits(&session));
    sync(&mut session, &mut engine, &[1, 2, 3]);
    let mut other = engine.session(300).unwrap();
    let before = engine.counters();
    for session in [&mut session, &mut other] {
        session.restore(&mut engine, &shot).unwrap();
        assert_eq!(session.tokens(), tokens);
        assert_eq!(logits(session), wanted);
        assert_eq!(sync(session, &mut engine, &tokens).reused, 300);
    }
    assert_eq!(engine.counters(), before);
    let mut short = engine.session(299).unwrap();
    let error = short.restore(&mut engine, &shot).unwrap_err();
    assert!(error.to_string().contains("larger context"), "{error}");
}

#[test]
fn a_sync_does_only_what_is_needed() {
    let options = EngineOptions { checkpoint_spacing: 128, ..options() };
    let mut engine = engine_of(&tiny(96), options);
    let (mut session, tokens) = (engine.session(800).unwrap(), Dice::new(3).tokens(700, 96));
    let report = |r: ironstar_engine::SyncReport| (r.reused, r.evaluated, r.rebuilt);
    let mut go = |tokens: &[u32]| report(sync(&mut session, &mut engine, tokens));

    assert_eq!(go(&tokens[..500]), (0, 500, 0), "from the start");
    assert_eq!(go(&tokens[..500]), (500, 0, 0), "nothing");
    assert_eq!(go(&tokens[..620]), (500, 120, 0), "going on");
    assert_eq!(
        go(&tokens[..600]),
        (599, 1, 1),
        "within the rings: the last token again, for its logits"
    );
    assert_eq!(go(&tokens[..300]), (256, 44, 44), "from the checkpoint before it");
    assert_eq!(
        go(&tokens[..620]),
        (620, 0, 0),
        "a checkpoint with logits, from the end of that prompt"
    );
    let branch = [&tokens[..400], &[1, 2, 3]].concat();
    assert_eq!(go(&branch), (384, 19, 16), "a branch");
    assert_eq!(go(&tokens[..610]), (600, 10, 0), "and back, further than the branch went");
    assert_eq!(go(&[]), (0, 0, 0), "empty");
    assert_eq!(go(&tokens[..129]), (128, 1, 0), "another session's checkpoints would do as well");
    drop(session);

    let mut other = engine.session(800).unwrap();
    assert_eq!(report(sync(&mut other, &mut engine, &tokens[..700])), (620, 80, 0));
    engine.forget_checkpoints();
    assert_eq!(engine.store().status().ram_bytes, 0);
    assert_eq!(report(sync(&mut other, &mut engine, &tokens[..300])), (0, 300, 300), "rebuilt");
}

#[test]
fn checkpoints_stay_within_their_memory() {
    let options = EngineOptions { checkpoint_spacing: 16, store_ram_bytes: 300_000, ..options() };
    let mut engine = engine_of(&tiny(96), options);
    let mut session = engine.session(2000).unwrap();
    let mut most = 0;
    for seed in 0..6 {
        sync(&mut session, &mut engine, &Dice::new(seed).tokens(400, 96));
        most = most.max(engine.store().status().ram_bytes);
    }
    assert!((150_000..=300_000).contains(&most), "{most} bytes");
}

#[test]
fn a_cancelled_prompt_goes_on_where_it_was() {
    let mut engine = engine();
    engine.set_prompt_rows(50);
    let (mut session, tokens) = (engine.session(400).unwrap(), Dice::new(4).tokens(400, 96));
    let flag = CancelFlag::default();
    let mut stop = |p: ironstar_engine::SyncProgress| {
        if p.done >= 150 {
            flag.raise();
        }
    };
    let error = session.sync(&mut engine, &tokens, &mut stop, &flag).unwrap_err();
    assert!(matches!(error, Error::Cancelled { position: 150, wanted: 400 }), "{error}");
    assert_eq!((session.position(), session.logits()), (150, None));
    let report = sync(&mut session, &mut engine, &tokens);
    assert_eq!((report.reused, report.evaluated), (150, 250));
    let mut fresh = engine.session(400).unwrap();
    engine.forget_checkpoints();
    sync(&mut fresh, &mut engine, &tokens);
    assert_eq!(logits(&session), logits(&fresh));
}

#[test]
fn wrong_arguments_change_nothing() {
    let mut engine = engine();
    let mut session = engine.session(20).unwrap();
    sync(&mut session, &mut engine, &[3, 4, 5]);
    let wanted = logits(&session);
    let (flag, before) = (CancelFlag::default(), steps(&engine));
    for wrong in [vec![3, 4, 96], vec![u32::MAX], vec![0; 21]] {
        let error = session.sync(&mut engine, &wrong, &mut |_| {}, &flag).unwrap_err();
        assert_eq!(error.blame(), ironstar_engine::Blame::Input, "{error}");
        assert!(session.push(&mut engine, 96).is_err());
    }
    assert_eq!((session.tokens(), logits(&session)), (&[3, 4, 5][..], wanted));
    assert_eq!(steps(&engine), before);
    assert!(engine.session(0).is_err());
    assert!(engine.session(5000).is_err(), "more than the model's context");
    let mut empty = engine.session(20).unwrap();
    let nothing = empty.generate(
        &mut engine,
        &Generate::default(),
        &mut |_| ironstar_engine::Control::Continue,
        &flag,
    );
    assert!(matches!(nothing, Err(Error::Empty(_))));
}

#[test]
fn sessions_on_one_engine_do_not_touch_each_other() {
    let mut engine = engine();
    let prompts: Vec<_> = (10..13).map(|seed| Dice::new(seed).tokens(150, 96)).collect();
    let alone: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let mut session = engine.session(200).unwrap();
            sync(&mut session, &mut engine, prompt);
            logits(&session)
        })
        .collect();
    engine.forget_checkpoints();
    let mut sessions: Vec<_> = prompts.iter().map(|_| engine.session(200).unwrap()).collect();
    for end in [40, 41, 90, 150] {
        for (session, prompt) in sessions.iter_mut().zip(&prompts) {
            sync(session, &mut engine, &prompt[..end]);
        }
    }
    assert_eq!(sessions.iter().map(logits).collect::<Vec<_>>(), alone);
}
