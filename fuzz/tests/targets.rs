//! Every target on its own seeds, on cut seeds, and twice with the same seed.

use ironstar_fuzz::{Session, TARGETS};

#[test]
fn seeds_and_their_beginnings_pass() {
    for target in TARGETS {
        for seed in (target.seeds)() {
            assert!(seed.len() <= target.len_max, "{}: a seed is longer than len_max", target.name);
            let step = (seed.len() / 40).max(1);
            for end in (0..=seed.len()).step_by(step) {
                (target.run)(&seed[..end]);
            }
        }
    }
}

#[test]
fn seeds_reach_more_than_one_outcome() {
    for target in TARGETS {
        let mut outcomes: Vec<u64> =
            (target.seeds)().iter().map(|seed| (target.run)(seed)).collect();
        outcomes.push((target.run)(b""));
        outcomes.sort_unstable();
        outcomes.dedup();
        assert!(outcomes.len() > 1, "{}: seeds and nothing look alike", target.name);
    }
}

#[test]
fn a_session_repeats() {
    for target in TARGETS {
        let inputs = |seed| {
            let mut session = Session::new(target, seed);
            let mut next = || {
                let input = session.next_input();
                session.keep(input.clone(), (target.run)(&input));
                input
            };
            (0..60).map(|_| next()).collect::<Vec<_>>()
        };
        assert_eq!(inputs(3), inputs(3), "{}", target.name);
    }
}

/// What lies behind a parser is fuzzed only if good inputs get there.
#[test]
fn good_inputs_go_all_the_way() {
    let outcomes = |name: &str| {
        let target = ironstar_fuzz::find(name).expect("a target");
        (target.seeds)().iter().map(|seed| (target.run)(seed)).collect::<Vec<_>>()
    };
    assert_eq!(outcomes("model-load"), [2], "rows of logits from a model of zeros");
    let positions: Vec<u64> = (0..=10).map(|step| step * 15).collect();
    assert_eq!(outcomes("state-restore"), positions);
}
