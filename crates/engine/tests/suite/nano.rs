//! The bundled model, as a program with files and text would use it.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{generate, logits, steps, sync};
use ironstar_engine::sampler::Settings;
use ironstar_engine::{DrafterChoice, Engine, EngineOptions, Generate, Speculation};
use std::path::PathBuf;

fn model() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/nano.gguf")
}

fn open(drafter: DrafterChoice) -> Engine {
    let options = EngineOptions { drafter, ..EngineOptions::default() };
    Engine::open(&model(), options, &mut |_| {}).unwrap()
}

const TEXT: &str = "Once upon a time there was a little girl named Lily. She loved to play";

#[test]
fn the_drafter_beside_the_model_guesses_and_changes_nothing() {
    let (mut engine, mut plain) = (open(DrafterChoice::Beside), open(DrafterChoice::None));
    assert!(engine.model().has_drafter() && !plain.model().has_drafter());
    let mut prompt = vec![engine.tokenizer().unwrap().bos().unwrap()];
    prompt.extend(engine.tokenizer().unwrap().encode(TEXT));
    let (mut accepted, mut drafted) = (0, 0);
    for (seed, temperature) in [(1, 0.0), (2, 0.7), (3, 1.0), (4, 1.5)] {
        let settings = Settings { temperature, logprobs: Some(3), ..Settings::default() };
        let what = Generate { settings, seed, tokens_max: Some(100), ..Generate::default() };
        let mut session = plain.session(300).unwrap();
        sync(&mut session, &mut plain, &prompt);
        let (wanted, _) = generate(&mut session, &mut plain, &what);
        for speculation in [Speculation::Mtp, Speculation::Lookup, Speculation::Auto] {
            let what = Generate { speculation, ..what.clone() };
            let mut session = engine.session(300).unwrap();
            sync(&mut session, &mut engine, &prompt);
            let (tokens, report) = generate(&mut session, &mut engine, &what);
            assert!(tokens == wanted, "{speculation:?} at temperature {temperature}");
            if speculation == Speculation::Mtp {
                let guesses = report.speculation;
                assert_eq!(guesses.steps + guesses.accepted + 1, 100, "steps saved");
                (accepted, drafted) = (accepted + guesses.accepted, drafted + guesses.drafted);
            }
        }
    }
    assert!(accepted * 3 > drafted, "{accepted} of {drafted} guesses were right");
}

#[test]
fn chunks_threads_and_restores_give_the_same_bits() {
    let text = TEXT.repeat(12);
    let mut wanted = None;
    for (threads, rows) in [(1, 512), (2, 512), (2, 61), (1, 3)] {
        let options = EngineOptions { threads, step_rows: rows, ..EngineOptions::default() };
        let mut engine = Engine::open(&model(), options, &mut |_| {}).unwrap();
        let prompt = engine.tokenizer().unwrap().encode(&text);
        let mut session = engine.session(prompt.len()).unwrap();
        sync(&mut session, &mut engine, &prompt[..prompt.len() / 2]);
        let shot = session.snapshot(&mut engine).unwrap();
        let before = steps(&engine);
        let mut other = engine.session(prompt.len()).unwrap();
        other.restore(&mut engine, &shot).unwrap();
        assert_eq!(steps(&engine), before);
        sync(&mut session, &mut engine, &prompt);
        engine.forget_checkpoints();
        sync(&mut other, &mut engine, &prompt);
        let bits = logits(&session);
        assert_eq!(logits(&other), bits, "restored");
        assert_eq!(*wanted.get_or_insert(bits.clone()), bits, "{threads} threads, {rows} rows");
    }
}
