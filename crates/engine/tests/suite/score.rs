//! Scores are the logits that sessions have anyway.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{Dice, bits, engine, engine_of, logits, options, sync, tiny};
use ironstar_engine::{CancelFlag, Control, DrafterChoice, EngineOptions, Error, Score};

#[test]
fn scores_are_the_logits_of_each_prefix() {
    let (mut engine, tokens) = (engine(), Dice::new(5).tokens(90, 96));
    let flag = CancelFlag::default();
    let mut prefixes = engine.session(100).unwrap();
    let wanted: Vec<_> = (1..=90)
        .map(|end| {
            sync(&mut prefixes, &mut engine, &tokens[..end]);
            logits(&prefixes)
        })
        .collect();
    for (rows, from) in [(512, 0), (7, 0), (1, 0), (512, 33), (10, 89), (10, 90), (10, 1000)] {
        engine.set_prompt_rows(rows);
        let (mut session, mut seen) = (engine.session(90).unwrap(), Vec::new());
        let what = Score { from, drafts: true };
        let mut on_row = |row: ironstar_engine::Scored<'_>| {
            assert_eq!(row.next, tokens.get(row.position + 1).copied());
            assert_eq!(row.draft.is_some(), row.position > 0);
            seen.push((row.position, bits(row.logits), row.draft.map(bits)));
            Control::Continue
        };
        session.score(&mut engine, &tokens, what, &mut on_row, &flag).unwrap();
        let from = from.min(90);
        assert_eq!(seen.len(), 90 - from);
        for (row, position) in seen.iter().zip(from..) {
            assert_eq!(row.0, position);
            assert_eq!(row.1, wanted[position], "{rows} rows from {from}: position {position}");
        }
        assert_eq!(session.tokens(), tokens);
        assert_eq!(logits(&session), wanted[89]);
        sync(&mut session, &mut engine, &tokens[..50]);
        assert_eq!(logits(&session), wanted[49], "a session that was scored is like any other");
    }
}

#[test]
fn draft_scores_do_not_depend_on_cuts() {
    let (mut engine, tokens) = (engine(), Dice::new(6).tokens(64, 96));
    let mut all = Vec::new();
    for rows in [64, 13, 1] {
        engine.set_prompt_rows(rows);
        let (mut session, mut seen) = (engine.session(64).unwrap(), Vec::new());
        let what = Score { from: 0, drafts: true };
        let mut on_row = |row: ironstar_engine::Scored<'_>| {
            seen.push(row.draft.map(bits));
            Control::Continue
        };
        session.score(&mut engine, &tokens, what, &mut on_row, &CancelFlag::default()).unwrap();
        all.push(seen);
    }
    assert!(all[0][1..].iter().all(Option::is_some));
    assert!(all.iter().all(|seen| *seen == all[0]));
}

#[test]
fn a_score_can_be_stopped_and_cancelled() {
    let (mut engine, tokens) = (engine(), Dice::new(7).tokens(40, 96));
    engine.set_prompt_rows(8);
    let (mut session, flag, mut seen) = (engine.session(40).unwrap(), CancelFlag::default(), 0);
    let mut on_row = |_: ironstar_engine::Scored<'_>| {
        seen += 1;
        if seen == 12 { Control::Stop } else { Control::Continue }
    };
    session.score(&mut engine, &tokens, Score::default(), &mut on_row, &flag).unwrap();
    assert_eq!((seen, session.position()), (12, 16));
    let mut cancel = |_: ironstar_engine::Scored<'_>| {
        flag.raise();
        Control::Continue
    };
    let error = session.score(&mut engine, &tokens, Score::default(), &mut cancel, &flag);
    assert!(matches!(error, Err(Error::Cancelled { position: 8, wanted: 40 })));
    let report = sync(&mut session, &mut engine, &tokens);
    assert_eq!((report.reused, report.evaluated), (8, 32));

    let without = EngineOptions { drafter: DrafterChoice::None, ..options() };
    let mut plain = engine_of(&tiny(96), without);
    let mut session = plain.session(40).unwrap();
    let what = Score { from: 0, drafts: true };
    let flag = CancelFlag::default();
    let error = session.score(&mut plain, &tokens, what, &mut |_| Control::Continue, &flag);
    assert!(matches!(error, Err(Error::NoDrafter)));
}
