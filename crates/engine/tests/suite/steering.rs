//! Steering of sessions: equal answers whatever the way, and nothing that was steered otherwise is
//! ever taken for the same state.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{Dice, engine, engine_of, generate, logits, options, sync, tiny};
use ironstar_engine::sampler::Settings;
use ironstar_engine::{Engine, EngineOptions, Generate, Speculation};
use ironstar_model::{Directions, SteeringScales};

fn directions(engine: &Engine) -> Directions {
    let (layers, width) = (engine.model().shape().layers, engine.model().shape().width);
    let mut dice = Dice::new(5);
    let mut values = Vec::new();
    for _ in 0..layers {
        let row: Vec<f32> = (0..width).map(|_| dice.below(41) as f32 - 20.0).collect();
        let length = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        values.extend(row.iter().map(|v| v / length));
    }
    Directions::new(layers, width, values).unwrap()
}

fn ffn(ffn: f32) -> SteeringScales {
    SteeringScales { attention: 0.0, ffn }
}

/// Logits of a fresh session on a fresh engine that is steered so from the start.
fn fresh(scale: f32, tokens: &[u32]) -> Vec<u32> {
    let mut engine = engine();
    let all = directions(&engine);
    engine.steer(Some((&all, ffn(scale)))).unwrap();
    let mut session = engine.session(600).unwrap();
    sync(&mut session, &mut engine, tokens);
    logits(&session)
}

#[test]
fn stored_states_belong_to_their_scales() {
    let tokens = Dice::new(1).tokens(300, 96);
    let (plain, half) = (fresh(0.0, &tokens), fresh(0.5, &tokens));
    assert_ne!(plain, half);
    let mut engine = engine_of(&tiny(96), EngineOptions { checkpoint_spacing: 64, ..options() });
    let all = directions(&engine);
    engine.steer(Some((&all, ffn(0.5)))).unwrap();
    for (scale, wanted) in [(0.5, &half), (0.0, &plain), (0.5, &half), (0.0, &plain)] {
        engine.set_steering_scales(ffn(scale)).unwrap();
        let mut session = engine.session(600).unwrap();
        sync(&mut session, &mut engine, &tokens);
        assert_eq!(logits(&session), *wanted, "scale {scale}");
        // Another one starts from what is stored.
        let mut second = engine.session(600).unwrap();
        assert!(sync(&mut second, &mut engine, &tokens).reused > 0, "scale {scale}");
        assert_eq!(logits(&second), *wanted, "scale {scale} from the store");
    }
}

#[test]
fn a_session_goes_on_under_other_scales_and_is_nobodys_prefix() {
    let tokens = Dice::new(2).tokens(300, 96);
    let plain = fresh(0.0, &tokens);
    let mut engine = engine_of(&tiny(96), EngineOptions { checkpoint_spacing: 64, ..options() });
    let all = directions(&engine);
    let mut session = engine.session(600).unwrap();
    engine.steer(Some((&all, ffn(-1.0)))).unwrap();
    sync(&mut session, &mut engine, &tokens[..150]);
    engine.steer(None).unwrap();
    assert_eq!(sync(&mut session, &mut engine, &tokens).evaluated, 150, "nothing is read again");
    assert_ne!(logits(&session), plain, "it remembers");
    let mixed = session.snapshot(&mut engine).unwrap();
    for _ in 0..2 {
        let mut other = engine.session(600).unwrap();
        sync(&mut other, &mut engine, &tokens);
        assert_eq!(logits(&other), plain);
    }
    // Nor is what a snapshot of it becomes.
    let mut restored = engine.session(600).unwrap();
    restored.restore(&mut engine, &mixed).unwrap();
    let more: Vec<u32> = tokens.iter().chain(&tokens[..80]).copied().collect();
    sync(&mut restored, &mut engine, &more);
    let mut other = engine.session(600).unwrap();
    sync(&mut other, &mut engine, &more);
    assert_eq!(logits(&other), fresh(0.0, &more));
}

#[test]
fn guessing_and_cuts_do_not_show() {
    let prompt = Dice::new(3).tokens(40, 96);
    let mut answers = Vec::new();
    for speculation in [Speculation::Off, Speculation::Mtp, Speculation::Lookup] {
        for rows in [1, 7, 512] {
            let mut engine = engine();
            let all = directions(&engine);
            let scales = SteeringScales { attention: -0.5, ffn: 1.5 };
            engine.steer(Some((&all, scales))).unwrap();
            engine.set_prompt_rows(rows);
            let mut session = engine.session(200).unwrap();
            sync(&mut session, &mut engine, &prompt);
            let settings = Settings { temperature: 0.8, ..Settings::default() };
            let what = Generate {
                settings,
                speculation,
                seed: 4,
                tokens_max: Some(60),
                ..Generate::default()
            };
            let (tokens, _) = generate(&mut session, &mut engine, &what);
            answers.push(tokens.iter().map(|token| token.id).collect::<Vec<_>>());
        }
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}
