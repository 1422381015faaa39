#![expect(clippy::unwrap_used, reason = "a failed draw fails the test")]
#![expect(clippy::float_cmp, reason = "bits are compared on purpose")]

use super::*;
use proptest::prelude::*;

const PLAIN: Settings =
    Settings { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, logprobs: None };

fn draw(logits: &[f32], settings: &Settings, seed: u64, position: usize) -> Sampled {
    Sampler::default().sample(logits, settings, seed, position).unwrap()
}

/// Kept tokens and their weights by the page, with a full sort and plain loops.
fn kept_plainly(logits: &[f32], settings: &Settings) -> Vec<(usize, u64)> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut weights = vec![0; logits.len()];
    exp_weights(logits, max, 1.0 / settings.temperature, &mut weights);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    if settings.top_k > 0 {
        order.truncate(settings.top_k);
    }
    let total: u128 = order.iter().map(|&i| u128::from(weights[i])).sum();
    if settings.top_p < 1.0 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2^53")]
        let part = (settings.top_p * 2f64.powi(53)).round() as u128;
        let (mut sum, mut count) = (0u128, 0);
        while count == 0 || sum << 53 < part * total {
            sum += u128::from(weights[order[count]]);
            count += 1;
        }
        order.truncate(count);
    }
    #[expect(clippy::cast_precision_loss, reason = "at most 2^44")]
    order.retain(|&i| weights[i] as f64 >= settings.min_p * 2f64.powi(44));
    order.sort_unstable();
    order.into_iter().map(|i| (i, weights[i])).collect()
}

fn draw_plainly(logits: &[f32], settings: &Settings, seed: u64, position: u64) -> u32 {
    let kept = kept_plainly(logits, settings);
    let total: u64 = kept.iter().map(|k| k.1).sum();
    let mut at = (u128::from(random::bits(seed, position)) * u128::from(total)) >> 64;
    for (id, weight) in kept {
        if at < u128::from(weight) {
            return u32::try_from(id).unwrap();
        }
        at -= u128::from(weight);
    }
    unreachable!()
}

/// Bell-shaped logits of a spread.
fn bell(count: usize, spread: f32, seed: u64) -> Vec<f32> {
    let uniform = |at: u64| {
        let word = u32::try_from(random::bits(seed, at) >> 40).unwrap();
        f64::from(word) / 16_777_216.0
    };
    let value = |i: u64| (0..12).map(|j| uniform(12 * i + j)).sum::<f64>() - 6.0;
    #[expect(clippy::cast_possible_truncation, reason = "logits are f32")]
    (0..count as u64).map(|i| (value(i) as f32) * spread).collect()
}

#[test]
fn random_numbers_are_philox() {
    // Known answers published with the generator (Random123, kat_vectors).
    let max = u32::MAX;
    let cases = [
        ([0; 4], [0; 2], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]),
        ([max; 4], [max; 2], [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]),
        (
            [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
            [0xA409_3822, 0x299F_31D0],
            [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
        ),
    ];
    for (counter, key, wanted) in cases {
        assert_eq!(random::philox(counter, key), wanted);
    }
}

/// Draws at many positions, and seeds, follow the probabilities that plain arithmetic gives.
#[test]
fn draws_follow_the_distribution() {
    let logits = [1.0, 0.5, -0.25, 2.0, 0.0, -3.0, 1.5, f32::NEG_INFINITY, 0.9, -1.0];
    let cases = [
        PLAIN,
        Settings { temperature: 0.6, ..PLAIN },
        Settings { temperature: 1.7, top_p: 0.8, ..PLAIN },
        Settings { top_k: 4, min_p: 0.2, ..PLAIN },
    ];
    const DRAWS: usize = 40_000;
    for settings in cases {
        // Probabilities in f64, from the definition and not from weights.
        let kept: Vec<usize> = kept_plainly(&logits, &settings).iter().map(|k| k.0).collect();
        let of = |i: &usize| (f64::from(logits[*i]) / settings.temperature).exp();
        let total: f64 = kept.iter().map(of).sum();
        for by_position in [true, false] {
            let mut seen = [0usize; 10];
            let mut sampler = Sampler::default();
            for i in 0..DRAWS {
                let (seed, position) = if by_position { (9, i) } else { (i as u64, 9) };
                let token = sampler.sample(&logits, &settings, seed, position).unwrap().token;
                seen[token as usize] += 1;
            }
            assert_eq!(kept.iter().map(|&i| seen[i]).sum::<usize>(), DRAWS, "{settings:?}");
            #[expect(clippy::cast_precision_loss, reason = "small counts")]
            let square: f64 = kept
                .iter()
                .filter(|i| logits[**i] > f32::NEG_INFINITY)
                .map(|i| {
                    let wanted = DRAWS as f64 * of(i) / total;
                    (seen[*i] as f64 - wanted).powi(2) / wanted
                })
                .sum();
            // 8 degrees of freedom at most: 26.1 is passed by chance once in a thousand.
            assert!(square < 26.1, "{settings:?}: chi-square {square}");
        }
    }
}

fn logits_strategy() -> impl Strategy<Value = Vec<f32>> {
    // A coarse grid makes ties; -inf forbids.
    let logit = prop_oneof![
        8 => (-40i8..40).prop_map(|i| f32::from(i) * 0.25),
        4 => -12f32..12.0,
        1 => Just(f32::NEG_INFINITY),
        1 => Just(-0.0f32),
    ];
    (proptest::collection::vec(logit, 0..400), -12f32..12.0, any::<usize>()).prop_map(
        |(mut all, one, at)| {
            let at = at % (all.len() + 1);
            all.insert(at, one);
            all
        },
    )
}

fn settings_strategy() -> impl Strategy<Value = Settings> {
    let temperature = prop_oneof![Just(1.0), 0.05..3.0, Just(1e-9), Just(1e9), Just(1e-30)];
    let top_k = prop_oneof![Just(0), 1usize..50, Just(1_000_000_000)];
    let top_p = prop_oneof![Just(1.0), Just(0.0), 0.0..1.0, 0.9..1.0, Just(1.0 - 1e-16)];
    let min_p = prop_oneof![Just(0.0), Just(1.0), 0.0..0.3, Just(1e-20)];
    (temperature, top_k, top_p, min_p).prop_map(|(temperature, top_k, top_p, min_p)| Settings {
        temperature,
        top_k,
        top_p,
        min_p,
        logprobs: None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_cut_is_that_of_a_full_sort(
        logits in logits_strategy(), settings in settings_strategy(), seed: u64,
        position in 0usize..1 << 40,
    ) {
        let wanted = draw_plainly(&logits, &settings, seed, position as u64);
        prop_assert_eq!(draw(&logits, &settings, seed, position).token, wanted);
    }

    #[test]
    fn nothing_depends_on_what_was_drawn_before(
        a in logits_strategy(), b in logits_strategy(), settings in settings_strategy(), seed: u64,
    ) {
        let settings = Settings { logprobs: Some(5), ..settings };
        let mut used = Sampler::default();
        used.sample(&a, &settings, seed, 3).unwrap();
        prop_assert_eq!(used.sample(&b, &settings, seed, 4).unwrap(), draw(&b, &settings, seed, 4));
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest(logits in logits_strategy(), seed: u64) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = logits.iter().position(|l| *l == max).unwrap();
        let by_count = Settings { top_k: 1, ..PLAIN };
        let by_part = Settings { top_p: 0.0, ..PLAIN };
        let tiny = Settings { temperature: 1e-310, ..PLAIN };
        for settings in [Settings::greedy(), by_count, by_part, tiny] {
            prop_assert_eq!(draw(&logits, &settings, seed, 1).token as usize, first);
        }
    }

    #[test]
    fn log_probabilities_are_a_distribution(logits in logits_strategy(), temperature in 0.0..2.0) {
        let settings = Settings { temperature, logprobs: Some(ALTERNATIVES_MAX), ..PLAIN };
        let sampled = draw(&logits, &settings, 1, 2);
        let total: f64 = sampled.top.iter().map(|t| t.1.exp()).sum();
        prop_assert!((total - 1.0).abs() < 1e-9, "sum {total}");
        let own = sampled.top.iter().find(|t| t.0 == sampled.token).unwrap();
        prop_assert_eq!(own.1, sampled.logprob.unwrap());
        prop_assert!(sampled.top.is_sorted_by(|a, b| (a.1, b.0) >= (b.1, a.0)));
        let exact = logits.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln();
        let wanted = f64::from(logits[sampled.token as usize]) - exact;
        prop_assert!((own.1 - wanted).abs() < 1e-9, "{} is not {wanted}", own.1);
    }

    #[test]
    fn order_of_ids_does_not_change_probabilities(
        logits in logits_strategy(), settings in settings_strategy(), turn in 1usize..399,
    ) {
        let mut turned = logits.clone();
        turned.rotate_left(turn % logits.len());
        let settings = Settings { logprobs: Some(8), ..settings };
        let (a, b) = (draw(&logits, &settings, 5, 6), draw(&turned, &settings, 5, 6));
        let values = |s: &Sampled| s.top.iter().map(|t| t.1.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(values(&a), values(&b));
        let kept = |l: &[f32]| {
            let mut weights: Vec<u64> = kept_plainly(l, &settings).iter().map(|k| k.1).collect();
            weights.sort_unstable();
            weights
        };
        prop_assert_eq!(kept(&logits), kept(&turned));
    }
}

#[test]
fn large_rows_agree_with_a_full_sort() {
    let mut rows = vec![vec![0.25; 129_280]];
    rows.extend([0.5, 2.0, 4.0].map(|spread| bell(129_280, spread, 77)));
    let mut peaked = bell(129_280, 2.0, 78);
    peaked[128_999] = 21.0;
    peaked[400] = 20.5;
    rows.push(peaked);
    let filters = [
        PLAIN,
        Settings { top_p: 0.9, ..PLAIN },
        Settings { top_p: 0.95, min_p: 0.05, ..PLAIN },
        Settings { top_k: 40, top_p: 0.999, ..PLAIN },
        Settings { top_k: 60_000, ..PLAIN },
        Settings { top_k: 100_000, top_p: 0.5, min_p: 1e-9, temperature: 1.3, ..PLAIN },
    ];
    for (index, logits) in rows.iter().enumerate() {
        for settings in &filters {
            for seed in 0..2 {
                let wanted = draw_plainly(logits, settings, seed, 11);
                let token = draw(logits, settings, seed, 11).token;
                assert_eq!(token, wanted, "row {index}, {settings:?}");
            }
        }
    }
}

#[test]
fn equal_logits_are_equally_likely() {
    let logits = [4.5; 1000];
    for settings in [PLAIN, Settings { top_k: 10, ..PLAIN }, Settings { top_p: 0.25, ..PLAIN }] {
        let kept = kept_plainly(&logits, &settings).len();
        let mut seen = vec![false; 1000];
        for position in 0..20_000 {
            seen[draw(&logits, &settings, 3, position).token as usize] = true;
        }
        assert_eq!(seen.iter().filter(|s| **s).count(), kept, "{settings:?}");
        assert!(seen[..kept].iter().all(|s| *s), "ties go to the lower ids: {settings:?}");
    }
}

#[test]
fn one_token_needs_no_luck() {
    let all = [PLAIN, Settings::greedy(), Settings { top_p: 0.0, min_p: 1.0, top_k: 1, ..PLAIN }];
    for settings in all {
        let settings = Settings { logprobs: Some(3), ..settings };
        let sampled = draw(&[-7.0], &settings, 1, 1);
        assert_eq!(sampled, Sampled { token: 0, logprob: Some(0.0), top: vec![(0, 0.0)] });
    }
}

#[test]
fn numbers_that_are_none_are_errors() {
    let mut sampler = Sampler::default();
    for settings in [PLAIN, Settings::greedy(), Settings { top_k: 1, ..PLAIN }] {
        for value in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for at in [0, 63, 64, 199] {
                let mut logits = vec![0.5; 200];
                logits[at] = value;
                let error = sampler.sample(&logits, &settings, 1, 5).unwrap_err();
                let wanted = u32::try_from(at).unwrap();
                assert!(
                    matches!(error, Error::Logit { token, position: 5, .. } if token == wanted),
                    "{error}"
                );
                assert_eq!(error.blame(), crate::Blame::Internal);
            }
        }
        let none = sampler.sample(&[f32::NEG_INFINITY; 70], &settings, 1, 5).unwrap_err();
        assert!(matches!(none, Error::NothingAllowed { position: 5 }), "{none}");
        assert!(matches!(sampler.sample(&[], &settings, 1, 5), Err(Error::Vocabulary { .. })));
    }
}

#[test]
fn settings_out_of_range_are_errors() {
    let wrong = [
        Settings { temperature: -0.1, ..PLAIN },
        Settings { temperature: f64::NAN, ..PLAIN },
        Settings { temperature: f64::INFINITY, ..PLAIN },
        Settings { top_p: 1.01, ..PLAIN },
        Settings { top_p: f64::NAN, ..PLAIN },
        Settings { min_p: -0.01, ..PLAIN },
        Settings { logprobs: Some(ALTERNATIVES_MAX + 1), ..PLAIN },
    ];
    for settings in wrong {
        let error = Sampler::default().sample(&[0.0], &settings, 1, 1).unwrap_err();
        assert!(matches!(error, Error::Setting { .. }), "{settings:?}");
    }
}

#[test]
fn forbidden_tokens_are_never_drawn() {
    let logits = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
    for temperature in [1e-6, 1.0, 1e9, f64::MAX] {
        for position in 0..200 {
            let settings = Settings { temperature, logprobs: Some(3), ..PLAIN };
            let sampled = draw(&logits, &settings, 8, position);
            assert_eq!(sampled.token, 1);
            assert_eq!(sampled.top, [(1, 0.0)]);
        }
    }
}

#[test]
fn penalties_and_biases_change_logits() {
    let mut counts = Counts::of_prompt(&[0, 0, 2]);
    counts.add(1);
    counts.add(1);
    let adjust = Adjust {
        bias: vec![(3, 2.5), (4, f32::NEG_INFINITY)],
        repetition: 2.0,
        presence: 0.5,
        frequency: 0.25,
    };
    adjust.check(5).unwrap();
    let mut logits = [2.0, 3.0, -1.0, 0.0, 9.0];
    adjust.apply(&mut logits, &counts);
    assert_eq!(logits, [1.0, 0.5, -2.0, 2.5, f32::NEG_INFINITY]);
    assert!(Adjust::default().is_off() && !adjust.is_off());
    for wrong in [
        Adjust { bias: vec![(5, 0.0)], ..Adjust::default() },
        Adjust { bias: vec![(1, f32::INFINITY)], ..Adjust::default() },
        Adjust { repetition: 0.0, ..Adjust::default() },
        Adjust { presence: f32::NAN, ..Adjust::default() },
    ] {
        assert!(matches!(wrong.check(5), Err(Error::Setting { .. })), "{wrong:?}");
    }
}
