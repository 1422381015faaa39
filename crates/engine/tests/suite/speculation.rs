//! Answers with guesses equal plain answers, token by token and bit by bit.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{Dice, bits, engine_of, generate, logits, options, sync, tiny};
use ironstar_device::{Gpu, GpuConfig};
use ironstar_engine::sampler::{Adjust, Settings};
use ironstar_engine::{
    CancelFlag, Control, DrafterChoice, Engine, EngineOptions, Error, Finish, Generate,
    Speculation, Token,
};
use ironstar_gguf::Gguf;
use ironstar_model::deepseek_v4::{Field, Kind, TensorSpec};
use ironstar_model::testing::{Tiny, encode};
use ironstar_quant::Format;

const VOCABULARY: usize = 6;

fn settings() -> Vec<Settings> {
    let all = Settings { min_p: 0.0, logprobs: Some(4), ..Settings::default() };
    vec![
        Settings { temperature: 0.0, ..all },
        Settings { temperature: 0.7, top_p: 0.9, ..all },
        Settings { temperature: 1.5, min_p: 0.1, ..all },
        all,
    ]
}

/// Tokens with the bits of their log probabilities, and the logits at the end.
type Answer = (Vec<(u32, u64, Vec<(u32, u64)>)>, Vec<u32>, Vec<u32>);

fn answer(engine: &mut Engine, prompt: &[u32], what: &Generate) -> (Answer, usize, usize) {
    let mut session = engine.session(700).unwrap();
    sync(&mut session, engine, prompt);
    let (tokens, report) = generate(&mut session, engine, what);
    let wanted = session.tokens().to_vec();
    sync(&mut session, engine, &wanted);
    let plain = |t: Token| {
        let top = t.top.iter().map(|(id, l)| (*id, l.to_bits())).collect();
        (t.id, t.logprob.unwrap().to_bits(), top)
    };
    let tokens: Vec<_> = tokens.into_iter().map(plain).collect();
    assert_eq!(report.tokens, tokens.len());
    let guesses = report.speculation;
    assert!(guesses.accepted <= guesses.drafted);
    ((tokens, wanted, logits(&session)), guesses.drafted, guesses.accepted)
}

/// A DSpark drafter for the tiny model that is always sure of itself: the first number of every
/// token's Markov row is 1, and the confidence head looks at nothing else.
fn sure_dspark(tiny: &Tiny) -> Gguf {
    let (rank, width) = (tiny.spark().rank, tiny.shape.width);
    tiny.dspark_as(&|spec, values| {
        let mut values = values.to_vec();
        if spec.field == Field::SparkMarkovEmbedding {
            values.iter_mut().step_by(rank).for_each(|value| *value = 1.0);
        }
        if spec.field == Field::SparkConfidence {
            values.fill(0.0);
            values[width] = 5.0;
        }
        encode(Format::F32, &values)
    })
}

#[test]
fn guesses_change_nothing() {
    let tiny = tiny(VOCABULARY);
    let (mut drafted, mut accepted) = ([0; 4], [0; 4]);
    let options = EngineOptions { checkpoint_spacing: 50, ..options() };
    let mut engine = engine_of(&tiny, options.clone());
    let spark = sure_dspark(&tiny);
    let mut sparked = Engine::from_gguf(&tiny.gguf(), Some(&spark), options, &mut |_| {}).unwrap();
    for (index, settings) in settings().into_iter().enumerate() {
        for seed in 0..3 {
            let prompt = Dice::new(seed).tokens(20 + 30 * index, VOCABULARY);
            let what = Generate {
                settings,
                seed,
                tokens_max: Some(120),
                speculation: Speculation::Off,
                ..Generate::default()
            };
            let (plain, none, _) = answer(&mut engine, &prompt, &what);
            assert_eq!((none, plain.0.len()), (0, 120));
            let all =
                [Speculation::Mtp, Speculation::Lookup, Speculation::Dspark, Speculation::Auto];
            for (i, speculation) in all.into_iter().enumerate() {
                let sparks = speculation == Speculation::Dspark;
                let engine = if sparks { &mut sparked } else { &mut engine };
                engine.forget_checkpoints();
                let what = Generate { speculation, ..what.clone() };
                let (guessed, d, a) = answer(engine, &prompt, &what);
                assert_eq!(guessed, plain, "{speculation:?} at {settings:?}, seed {seed}");
                (drafted[i], accepted[i]) = (drafted[i] + d, accepted[i] + a);
            }
        }
    }
    for i in 0..3 {
        let enough = accepted[i] > 50 && drafted[i] > accepted[i] + 50;
        assert!(enough, "right and wrong guesses: {accepted:?} of {drafted:?}");
    }
}

/// Every matrix of a drafter's file not a number (vectors are checked at load), or all of another
/// model.
#[test]
fn a_corrupted_drafter_changes_nothing() {
    let tiny = tiny(VOCABULARY);
    let no_numbers = |spec: &TensorSpec, values: &[f32]| match spec.kind {
        Kind::Vector => encode(Format::F32, values),
        _ => encode(Format::F32, &vec![f32::NAN; values.len()]),
    };
    let other = Tiny { seed: 1234, ..tiny.clone() }.drafter();
    let sparks = [tiny.dspark_as(&no_numbers), Tiny { seed: 1234, ..tiny.clone() }.dspark()];
    let broken = tiny.drafter_as(&no_numbers);
    let prompt = Dice::new(9).tokens(60, VOCABULARY);
    for settings in settings() {
        let what = Generate { settings, seed: 5, tokens_max: Some(80), ..Generate::default() };
        let mut plain =
            engine_of(&tiny, EngineOptions { drafter: DrafterChoice::None, ..options() });
        let (wanted, ..) = answer(&mut plain, &prompt, &what);
        let [not, alien] = &sparks;
        for (drafter, speculation) in [
            (&other, Speculation::Mtp),
            (&broken, Speculation::Mtp),
            (not, Speculation::Dspark),
            (alien, Speculation::Dspark),
        ] {
            let gguf = tiny.gguf();
            let mut engine =
                Engine::from_gguf(&gguf, Some(drafter), options(), &mut |_| {}).unwrap();
            let what = Generate { speculation, ..what.clone() };
            assert_eq!(answer(&mut engine, &prompt, &what).0, wanted, "{settings:?}");
        }
    }
}

/// Probabilities of logits at temperature 1, straight from the definition.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|l| f64::from(*l).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

/// Sum over cells of (seen - expected)^2 / expected; cells that are hardly expected share one.
fn chi_square(seen: &[f64], chances: &[f64], draws: f64) -> (f64, usize) {
    let (mut sum, mut cells, mut rest) = (0.0, 0, (0.0, 0.0));
    for (seen, chance) in seen.iter().zip(chances) {
        let expected = chance * draws;
        if expected < 5.0 {
            rest = (rest.0 + seen, rest.1 + expected);
        } else {
            (sum, cells) = (sum + (seen - expected).powi(2) / expected, cells + 1);
        }
    }
    if rest.1 > 0.0 {
        (sum, cells) = (sum + (rest.0 - rest.1).powi(2) / rest.1, cells + 1);
    }
    (sum, cells - 1)
}

/// Three tokens after a prompt, the second and third of them verified guesses where those are
/// right, have the probabilities that the model gives them. A sampler that takes a guess without
/// drawing fails the same test.
#[test]
fn guessed_answers_have_the_distribution_of_the_model() {
    const DRAWS: u64 = 3000;
    let mut engine = engine_of(&tiny(VOCABULARY), options());
    let prompt = Dice::new(9).tokens(40, VOCABULARY);
    let mut session = engine.session(60).unwrap();
    let mut chances = Vec::new();
    let id = |token: usize| u32::try_from(token).unwrap();
    for first in 0..VOCABULARY {
        for second in 0..VOCABULARY {
            let mut chance = 1.0;
            let mut so_far = prompt.clone();
            for token in [first, second] {
                sync(&mut session, &mut engine, &so_far);
                chance *= softmax(session.logits().unwrap())[token];
                so_far.push(id(token));
            }
            sync(&mut session, &mut engine, &so_far);
            let third = softmax(session.logits().unwrap());
            chances.extend(third.into_iter().map(|third| chance * third));
        }
    }
    let settings = Settings { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, logprobs: None };
    let (mut seen, mut greedy) = (vec![0.0; chances.len()], vec![0.0; chances.len()]);
    let (mut drafted, mut accepted) = (0, 0);
    let place = |tokens: &[u32]| tokens.iter().fold(0, |at, t| at * VOCABULARY + *t as usize);
    for seed in 0..DRAWS {
        sync(&mut session, &mut engine, &prompt);
        let what = Generate {
            settings,
            seed,
            tokens_max: Some(3),
            speculation: Speculation::Mtp,
            ..Generate::default()
        };
        let (tokens, report) = generate(&mut session, &mut engine, &what);
        let tokens: Vec<u32> = tokens.into_iter().map(|token| token.id).collect();
        seen[place(&tokens)] += 1.0;
        (drafted, accepted) =
            (drafted + report.speculation.drafted, accepted + report.speculation.accepted);
        // What a decoder would give that takes the likeliest second token half of the time.
        let second = &chances[tokens[0] as usize * 36..][..36];
        let likeliest = (0..36).max_by(|a, b| second[*a].total_cmp(&second[*b])).unwrap() / 6;
        let second = if seed % 2 == 0 { id(likeliest) } else { tokens[1] };
        greedy[place(&[tokens[0], second, tokens[2]])] += 1.0;
    }
    assert!(accepted > 500 && drafted > accepted + 500, "{accepted} of {drafted} were right");
    let draws = u32::try_from(DRAWS).unwrap().into();
    let (sum, freedom) = chi_square(&seen, &chances, draws);
    // A sum beyond this is seen once in some 100,000 such tests (Wilson and Hilferty).
    let nu = u32::try_from(freedom).unwrap();
    let spread = 2.0 / (9.0 * f64::from(nu));
    let most = f64::from(nu) * (1.0 - spread + 4.27 * spread.sqrt()).powi(3);
    assert!(freedom > 40 && sum < most, "{sum} with {freedom} degrees of freedom, {most} allowed");
    let (biased, _) = chi_square(&greedy, &chances, draws);
    assert!(biased > most, "the test would not see a bias: {biased} of {most}");
}

#[test]
fn an_answer_does_not_depend_on_how_it_is_cut() {
    let mut engine = engine_of(&tiny(VOCABULARY), options());
    let prompt = Dice::new(2).tokens(30, VOCABULARY);
    let adjust = Adjust { bias: vec![(1, 0.5)], repetition: 1.1, presence: 0.1, frequency: 0.05 };
    for adjust in
        [Adjust::default(), Adjust { presence: 0.0, frequency: 0.0, repetition: 1.1, ..adjust }]
    {
        let what = Generate { seed: 3, tokens_max: Some(60), adjust, ..Generate::default() };
        let mut whole = engine.session(200).unwrap();
        sync(&mut whole, &mut engine, &prompt);
        generate(&mut whole, &mut engine, &what);
        for speculation in [Speculation::Off, Speculation::Mtp, Speculation::Lookup] {
            let mut parts = engine.session(200).unwrap();
            sync(&mut parts, &mut engine, &prompt);
            for tokens_max in [1, 2, 0, 7, 30, 20] {
                let tokens_max = Some(tokens_max);
                let what = Generate { tokens_max, speculation, ..what.clone() };
                let (_, report) = generate(&mut parts, &mut engine, &what);
                assert_eq!(report.finish, Finish::TokensMax);
            }
            assert_eq!(parts.tokens(), whole.tokens(), "{speculation:?}");
        }
    }
}

#[test]
fn penalties_and_guesses_go_together() {
    let mut engine = engine_of(&tiny(VOCABULARY), options());
    let prompt = Dice::new(6).tokens(40, VOCABULARY);
    let adjust = Adjust { bias: vec![(2, -1.0)], repetition: 1.2, presence: 0.3, frequency: 0.1 };
    let what = Generate {
        settings: Settings { logprobs: Some(2), ..Settings::default() },
        adjust,
        tokens_max: Some(80),
        speculation: Speculation::Off,
        ..Generate::default()
    };
    let (plain, ..) = answer(&mut engine, &prompt, &what);
    for speculation in [Speculation::Mtp, Speculation::Lookup] {
        let what = Generate { speculation, ..what.clone() };
        assert_eq!(answer(&mut engine, &prompt, &what).0, plain, "{speculation:?}");
    }
    let without = Generate { adjust: Adjust::default(), ..what };
    assert_ne!(answer(&mut engine, &prompt, &without).0, plain, "they do something");
}

#[test]
fn answers_end_where_they_should() {
    let mut engine = engine_of(&tiny(VOCABULARY), options());
    let flag = CancelFlag::default();
    let prompt = [1, 2, 3, 1, 2, 3, 1, 2];
    for speculation in [Speculation::Off, Speculation::Mtp, Speculation::Lookup] {
        let what = Generate { seed: 8, speculation, ..Generate::default() };
        let mut session = engine.session(50).unwrap();
        sync(&mut session, &mut engine, &prompt);
        let (tokens, report) = generate(&mut session, &mut engine, &what);
        assert_eq!((report.finish, session.tokens().len()), (Finish::Context, 50));
        let ids: Vec<u32> = tokens.iter().map(|t| t.id).collect();
        assert!(tokens.iter().zip(8..).all(|(t, position)| t.position == position));

        // A stop token is the last that is given.
        let stop = ids[5];
        let first = ids.iter().position(|id| *id == stop).unwrap();
        sync(&mut session, &mut engine, &prompt);
        let what = Generate { stop: vec![stop], ..what };
        let (tokens, report) = generate(&mut session, &mut engine, &what);
        assert_eq!(report.finish, Finish::StopToken(stop));
        assert_eq!(tokens.iter().map(|t| t.id).collect::<Vec<_>>(), ids[..=first]);

        // The receiver says no, or raises the flag; the session then goes on as if it had not.
        let what = Generate { stop: Vec::new(), ..what };
        for cancel in [false, true] {
            sync(&mut session, &mut engine, &prompt);
            let mut given = 0;
            let mut on_token = |_: &Token| {
                given += 1;
                if given < 9 {
                    return Control::Continue;
                }
                if cancel {
                    flag.raise();
                    return Control::Continue;
                }
                Control::Stop
            };
            let report = session.generate(&mut engine, &what, &mut on_token, &flag).unwrap();
            let wanted = if cancel { Finish::Cancelled } else { Finish::Stopped };
            assert_eq!(report.finish, wanted);
            assert!(report.tokens >= 9);
            assert_eq!(session.tokens()[8..], ids[..report.tokens]);
            flag.clear();
            generate(&mut session, &mut engine, &what);
            assert_eq!(session.tokens()[8..], ids);
        }
    }
}

#[test]
fn a_flag_raised_before_stops_at_once() {
    let mut engine = engine_of(&tiny(VOCABULARY), options());
    let mut session = engine.session(50).unwrap();
    sync(&mut session, &mut engine, &[1, 2]);
    let (flag, before) = (CancelFlag::default(), engine.counters());
    flag.raise();
    let what = Generate::default();
    let report = session.generate(&mut engine, &what, &mut |_| Control::Continue, &flag).unwrap();
    assert_eq!((report.finish, engine.counters()), (Finish::Cancelled, before));
}

#[test]
fn guessing_without_a_drafter_is_refused_or_off() {
    let without = EngineOptions { drafter: DrafterChoice::None, ..options() };
    let mut engine = engine_of(&tiny(VOCABULARY), without);
    let mut session = engine.session(50).unwrap();
    sync(&mut session, &mut engine, &[1, 2]);
    let what =
        Generate { tokens_max: Some(5), speculation: Speculation::Mtp, ..Generate::default() };
    let mut on_token = |_: &Token| Control::Continue;
    for speculation in [Speculation::Mtp, Speculation::Dspark] {
        let what = Generate { speculation, ..what.clone() };
        let error = session.generate(&mut engine, &what, &mut on_token, &CancelFlag::default());
        assert!(matches!(error, Err(Error::NoDrafter)));
    }
    let what = Generate { speculation: Speculation::Auto, ..what };
    let report = generate(&mut session, &mut engine, &what).1;
    assert_eq!(report.speculation.drafting, std::time::Duration::ZERO, "only repeats are left");
}

/// DSpark on a card's kernels, as `draw.rs` has MTP: drafts, and steps that verify them, whose
/// tokens are drawn there.
#[test]
fn guesses_change_nothing_on_a_cards_kernels() {
    let tiny = tiny(VOCABULARY);
    let gpu = Box::new(Gpu::host(GpuConfig::default()).unwrap());
    let options = EngineOptions { step_rows: 16, store_ram_bytes: 0, ..options() };
    let spark = Some(sure_dspark(&tiny));
    let mut engine =
        Engine::on_backend(gpu, &tiny.gguf(), spark.as_ref(), options, &mut |_| {}).unwrap();
    let prompt = Dice::new(3).tokens(11, VOCABULARY);
    let mut answer = |speculation| {
        let settings = Settings { temperature: 0.8, min_p: 0.0, ..Settings::default() };
        let tokens_max = Some(12);
        let what = Generate { settings, seed: 2, tokens_max, speculation, ..Generate::default() };
        let mut session = engine.session(64).unwrap();
        sync(&mut session, &mut engine, &prompt);
        let (tokens, report) = generate(&mut session, &mut engine, &what);
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        // What the session knows afterwards, too.
        let after = bits(session.push(&mut engine, 1).unwrap());
        (ids, after, report.speculation.accepted)
    };
    let (plain, plain_after, _) = answer(Speculation::Off);
    let (guessed, guessed_after, right) = answer(Speculation::Dspark);
    assert!(plain == guessed && plain_after == guessed_after, "{plain:?}, {guessed:?}");
    assert!(right > 0, "no guess was right");
}
