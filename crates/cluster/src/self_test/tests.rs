use super::*;
use crate::Alone;

fn pair_of_sparks() -> StepCost {
    let single = Duration::from_millis(46);
    StepCost { single, replicated: 0.2, gates: 86, control: Duration::ZERO }
}

/// Figures that were worked out by hand for two machines, before this code was written.
#[test]
fn predictions_are_those_of_the_design() {
    for (gate_us, tokens) in [(13, 34.8), (20, 34.1), (60, 30.5), (100, 27.6)] {
        let found = pair_of_sparks().tokens_per_second(2, Duration::from_micros(gate_us));
        assert!((found - tokens).abs() < 0.06, "{gate_us} us: {found}");
    }
}

#[test]
fn a_gate_at_the_border_makes_two_ranks_as_fast_as_one() {
    let cost = StepCost { control: Duration::from_micros(300), ..pair_of_sparks() };
    let border = cost.gate_that_pays(2).expect("it pays on a fast link");
    let (one, two) = (cost.tokens_per_second(1, border), cost.tokens_per_second(2, border));
    assert!((one - two).abs() < 1e-3, "{one} and {two}");
    assert!(cost.tokens_per_second(2, border / 2) > one);
    let never = StepCost { replicated: 1.0, ..cost };
    assert_eq!(never.gate_that_pays(8), None);
}

#[test]
fn a_group_that_gives_wrong_bytes_is_found() {
    // A rank alone takes its own bytes for those of rank 1.
    let error = measure(&mut Alone::new(0, 2)).expect_err("rank 1 never spoke");
    assert!(matches!(error, ExchangeError::Wrong { rank: 1, .. }), "{error}");
    assert_eq!(measure(&mut Alone::new(0, 1)).expect("one rank").len(), SIZES.len());
}
