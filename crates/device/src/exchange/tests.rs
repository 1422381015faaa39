use super::*;
use std::thread;
use std::time::Duration;

/// Long enough for a busy machine.
const LONG: Duration = Duration::from_secs(240);

/// Runs one closure a rank, each on its own thread.
fn on_all<T: Send>(group: &mut [Local], work: impl Fn(&mut Local) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            group.iter_mut().map(|rank| scope.spawn(move || work(rank))).collect();
        threads.into_iter().map(|t| t.join().expect("the closures do not panic")).collect()
    })
}

#[test]
fn every_rank_gets_all_parts_in_rank_order() {
    for ranks in [1, 2, 4, 8] {
        let mut group = LocalGroup::whole(ranks, LONG);
        let all = on_all(&mut group, |local| {
            let mut seen = Vec::new();
            for gate in 0..20u8 {
                let rank = u8::try_from(local.rank()).expect("few ranks");
                let mut all = vec![0; 3 * local.ranks()];
                local.gather(GateKind::Ffn, &[rank, gate, 7], &mut all).expect("all are there");
                seen.push(all);
            }
            (seen, local.counts())
        });
        for (seen, counts) in all {
            for (gate, all) in (0u8..).zip(seen) {
                let wanted = (0..u8::try_from(ranks).expect("few")).flat_map(|r| [r, gate, 7]);
                assert_eq!(all, wanted.collect::<Vec<_>>(), "{ranks} ranks");
            }
            assert_eq!((counts.of(GateKind::Ffn), counts.bytes[1]), (20, 60));
        }
    }
}

#[test]
fn orders_come_in_the_order_of_rank_0() {
    let mut group = LocalGroup::whole(3, LONG);
    let heard = on_all(&mut group, |local| {
        let mut heard = Vec::new();
        for order in 0..10u8 {
            let mut bytes = if local.rank() == 0 { vec![order; 4] } else { Vec::new() };
            local.broadcast(&mut bytes).expect("all are there");
            heard.push(bytes);
        }
        heard
    });
    assert!(heard.iter().all(|h| *h == heard[0]));
    assert_eq!(heard[2][9], [9; 4]);
}

#[test]
fn a_silent_rank_breaks_the_group_within_the_deadline() {
    let mut group = LocalGroup::whole(2, Duration::from_millis(30));
    let error = group[0].gather(GateKind::Attention, &[1], &mut [0; 2]).expect_err("nobody posts");
    assert!(matches!(error, ExchangeError::Late { rank: 1, gate: "attention", .. }), "{error}");
    assert_eq!(group[1].post(GateKind::Attention, &[1]), Err(error), "the first reason stays");
}

#[test]
fn another_kind_or_size_is_refused() {
    for (kind, bytes) in [(GateKind::Ffn, &[1][..]), (GateKind::Attention, &[1, 2])] {
        let mut group = LocalGroup::whole(2, LONG);
        group[1].post(kind, bytes).expect("whole");
        let error = group[0].gather(GateKind::Attention, &[1], &mut [0; 2]).expect_err("wrong");
        assert!(matches!(error, ExchangeError::Wrong { rank: 1, .. }), "{error}");
    }
}

#[test]
fn a_lost_rank_is_replaced_in_a_new_epoch() {
    let group = LocalGroup::new(2, LONG);
    let (mut zero, one) = (group.join(0).expect("free"), group.join(1).expect("free"));
    assert!(group.join(1).is_err(), "taken");
    thread::scope(|scope| {
        scope.spawn(move || drop(one));
        let error = zero.gather(GateKind::Ffn, &[1], &mut [0; 2]).expect_err("rank 1 is gone");
        assert!(matches!(error, ExchangeError::Lost { rank: 1, .. }), "{error}");
        let other = scope.spawn(|| {
            let mut one = group.join(1).expect("free again");
            assert_eq!(one.reform(), Ok(1));
            let mut all = [0; 2];
            one.gather(GateKind::Ffn, &[5], &mut all).map(|()| all)
        });
        assert_eq!(zero.reform(), Ok(1));
        let mut all = [0; 2];
        zero.gather(GateKind::Ffn, &[4], &mut all).expect("whole again");
        assert_eq!(all, [4, 5], "what was posted before is gone");
        assert_eq!(other.join().expect("no panic"), Ok([4, 5]));
    });
}

/// Who waits for a new epoch does not wait for a rank 0 that has gone, before or while it waits.
#[test]
fn nobody_waits_for_a_leader_that_has_gone() {
    let begun = std::time::Instant::now();
    for waits_first in [true, false] {
        let mut group = LocalGroup::whole(3, LONG);
        let zero = group.remove(0);
        thread::scope(|scope| {
            let mut zero = Some(zero);
            if !waits_first {
                zero = None;
            }
            let waiting: Vec<_> =
                group.iter_mut().map(|local| scope.spawn(|| local.reform())).collect();
            drop(zero);
            for waits in waiting {
                let error = waits.join().expect("no panic").expect_err("rank 0 is gone");
                assert!(matches!(error, ExchangeError::Lost { rank: 0, .. }), "{error}");
            }
        });
    }
    assert!(begun.elapsed() < LONG / 2);
}

#[test]
fn who_gives_up_is_heard_at_once() {
    let mut group = LocalGroup::whole(2, LONG);
    let (zero, one) = group.split_at_mut(1);
    thread::scope(|scope| {
        let waits = scope.spawn(|| one[0].broadcast(&mut Vec::new()));
        zero[0].abort("no memory");
        let error = waits.join().expect("no panic").expect_err("rank 0 gave up");
        assert_eq!(error.to_string(), "rank 0 gave up: no memory");
    });
}

#[test]
fn a_gate_is_waited_for_before_the_next() {
    let mut group = LocalGroup::whole(2, LONG);
    assert!(group[0].wait(&mut []).is_err(), "nothing was posted");
    let mut group = LocalGroup::whole(2, LONG);
    group[0].post(GateKind::Ffn, &[1]).expect("whole");
    assert!(matches!(group[0].post(GateKind::Ffn, &[1]), Err(ExchangeError::Misuse { .. })));
}

#[test]
fn bytes_for_one_rank_come_in_order_and_end_with_their_epoch() {
    let mut group = LocalGroup::whole(3, LONG);
    let heard = on_all(&mut group, |local| {
        let rank = local.rank();
        for number in 0..5u8 {
            let bytes = vec![number; usize::from(number)];
            local.send((rank + 1) % 3, bytes).expect("all are there");
        }
        let receive = |_| local.receive((rank + 2) % 3).expect("it was sent");
        (0..5).map(receive).collect::<Vec<_>>()
    });
    let wanted: Vec<Vec<u8>> = (0..5u8).map(|number| vec![number; usize::from(number)]).collect();
    assert!(heard.iter().all(|heard| *heard == wanted));
    group[0].send(1, vec![7]).expect("all are there");
    let epochs = on_all(&mut group, |local| local.reform().expect("all are there"));
    assert_eq!(epochs, [1, 1, 1]);
    group[0].send(1, vec![8]).expect("all are there");
    assert_eq!(group[1].receive(0).expect("it was sent"), [8], "nothing of the epoch before");
    let error = group[2].send(2, Vec::new()).expect_err("itself");
    assert!(matches!(error, ExchangeError::Misuse { .. }), "{error}");
    assert!(group[0].receive(1).is_err(), "misuse breaks the group");
}
