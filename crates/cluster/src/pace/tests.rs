use super::*;

/// What a wait does at the first, and then at every look that finds nothing.
fn looks(pace: Pace, count: usize) -> Vec<Next> {
    let mut waiting = Waiting::new(pace, Instant::now());
    (0..count).map(|_| waiting.next(false)).collect()
}

#[test]
fn ranks_that_share_cores_do_not_spin() {
    assert_eq!(Pace::SPINNING.shared(2, 2), Pace::SPINNING);
    assert_eq!(Pace::SPINNING.shared(4, 2), Pace::BLOCKING);
    assert_eq!(Pace::BLOCKING.shared(1, 8), Pace::BLOCKING);
}

#[test]
fn a_wait_spins_then_offers_then_rests() {
    let long = Duration::from_secs(100);
    let spins = looks(Pace { spin: long, offer: long, rest: long }, 64);
    assert_eq!(spins.iter().filter(|next| **next == Next::Check).count(), 2, "once in 32 looks");
    assert!(spins.iter().all(|next| matches!(next, Next::Look | Next::Check)));
    let offers = looks(Pace { spin: Duration::ZERO, offer: long, rest: long }, 4);
    assert_eq!(offers, [Next::Check; 4]);
    let rests = looks(Pace { spin: Duration::ZERO, offer: Duration::ZERO, rest: long }, 2);
    assert_eq!(rests, [Next::Rest(long); 2]);
}

#[test]
fn what_moved_begins_the_stages_again() {
    let pace = Pace { spin: Duration::ZERO, offer: Duration::ZERO, rest: Duration::from_secs(1) };
    let mut waiting = Waiting::new(pace, Instant::now());
    assert!(matches!(waiting.next(false), Next::Rest(_)));
    assert_eq!(waiting.next(true), Next::Look);
}
