//! Records of a pipeline: any length, both ways at once, whole or an error.

use crate::support::{PATIENCE, hub, member, on_ranks, pairs, part, settings, verbs};
use ironstar_cluster::{Cluster, Limits, Pace, Record, Settings, Stream, Transport, Watch};
use ironstar_device::{Exchange, ExchangeError, GateKind};
use std::time::Duration;

const SOON: Duration = PATIENCE;

fn record(tag: usize, length: usize) -> Record {
    Record { tag: tag as u64, bytes: part(tag, 3, length) }
}

#[test]
fn records_of_all_lengths_pass_both_ways_at_once() {
    for (name, make) in pairs() {
        let (left, right) = make(Limits { message_bytes_max: 164, posted_max: 4 });
        let watch = [Watch::default(), Watch::default()];
        let open = |peer: usize, link| {
            Stream::new(peer, 1, link, Pace::BLOCKING, watch[peer].clone()).expect("threads")
        };
        let (left, right) = (open(1, left), open(0, right));
        let lengths = [0, 1, 99, 100, 101, 5000, 20_000];
        std::thread::scope(|scope| {
            for (mine, base) in [(&left, 0), (&right, 50)] {
                scope.spawn(move || {
                    for (index, length) in lengths.into_iter().enumerate() {
                        mine.send(record(base + index, length), SOON).expect(name);
                    }
                });
            }
            for (mine, base) in [(&left, 50), (&right, 0)] {
                scope.spawn(move || {
                    for (index, length) in lengths.into_iter().enumerate() {
                        let came = mine.receive(SOON).expect(name);
                        assert!(came == record(base + index, length), "{name}: {length}");
                    }
                });
            }
        });
        assert_eq!(left.try_receive().expect(name), None);
        // What was given before the end still arrives.
        left.send(record(8, 3000), SOON).expect(name);
        drop(left);
        assert_eq!(right.receive(SOON).expect(name), record(8, 3000), "{name}");
        let gone = right.receive(SOON).expect_err("the other end has gone");
        assert!(matches!(gone, ExchangeError::Lost { rank: 0, .. }), "{name}: {gone}");
    }
}

#[test]
fn a_pipeline_passes_activations_along_while_gates_go_on() {
    const RANKS: usize = 3;
    let settings = Settings { streams: true, verbs: verbs(""), ..settings() };
    for transport in [Transport::Tcp, Transport::Shm, Transport::Verbs] {
        let last = on_ranks(RANKS, transport, &settings, |mut group| {
            let rank = group.rank();
            assert!(group.take_stream(rank).is_none(), "no stream to itself");
            let up = (rank + 1 < RANKS).then(|| group.take_stream(rank + 1).expect("asked for"));
            let down = (rank > 0).then(|| group.take_stream(rank - 1).expect("asked for"));
            let mut sum = 0_u64;
            for step in 0..5_u64 {
                let mut bytes = match &down {
                    None => vec![1; 300_000],
                    Some(down) => {
                        let came = down.receive(SOON).expect("the rank below sends");
                        assert_eq!(came.tag, step);
                        came.bytes
                    }
                };
                bytes.iter_mut().for_each(|byte| *byte *= 2);
                sum += bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
                if let Some(up) = &up {
                    up.send(Record { tag: step, bytes }, SOON).expect("the rank above takes");
                }
                let gate = group.gather(GateKind::Status, &[1], &mut [0; RANKS]);
                gate.expect("all pass gates meanwhile");
            }
            sum
        });
        assert_eq!(last, [3_000_000, 6_000_000, 12_000_000]);
    }
}

#[test]
fn a_stream_ends_with_its_epoch() {
    let settings = Settings { streams: true, ..settings() };
    let hub = hub(2, Transport::Tcp, &settings);
    let other = member(hub.address(), None, &settings);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(Cluster::join(other).expect("the group forms")));
        let mut group = Cluster::lead(hub).expect("the group forms");
        let stream = group.take_stream(1).expect("asked for");
        let error = stream.receive(SOON).expect_err("rank 1 has gone");
        assert!(matches!(error, ExchangeError::Lost { rank: 1, .. }), "{error}");
    });
}

#[test]
fn nothing_for_too_long_is_late() {
    let (_, make) = pairs().swap_remove(0);
    let (left, _right) = make(Limits::GATES);
    let stream = Stream::new(1, 0, left, Pace::BLOCKING, Watch::default()).expect("a thread");
    let error = stream.receive(Duration::from_millis(30)).expect_err("nobody sends");
    assert!(matches!(error, ExchangeError::Late { rank: 1, .. }), "{error}");
}

/// The same through the interface that a model sees, between gates and in the next epoch.
#[test]
fn bytes_pass_between_two_ranks_through_an_exchange() {
    let streams = Settings { streams: true, ..settings() };
    for transport in [Transport::Tcp, Transport::Shm] {
        on_ranks(3, transport, &streams, |mut group| {
            assert!(group.has_streams());
            let (rank, long) = (group.rank(), 300_000);
            for epoch in 0..2 {
                if rank > 0 {
                    assert_eq!(group.receive(rank - 1).expect("it comes"), part(rank, epoch, long));
                }
                if rank < 2 {
                    group.send(rank + 1, part(rank + 1, epoch, long)).expect("room");
                }
                let mut all = vec![0; 3];
                let mine = [u8::try_from(rank).expect("few ranks")];
                match group.gather(GateKind::Status, &mine, &mut all) {
                    Ok(()) => assert_eq!(all, [0, 1, 2]),
                    // Somebody who has passed it is on the way to the next epoch already.
                    Err(ExchangeError::Aborted { .. } | ExchangeError::Lost { .. })
                        if epoch == 0 => {}
                    Err(error) => panic!("{error}"),
                }
                if epoch == 0 {
                    group.reform().expect("all come");
                }
            }
        });
    }
    on_ranks(2, Transport::Shm, &settings(), |mut group| {
        assert!(!group.has_streams());
        let error = group.send(1 - group.rank(), vec![1]).expect_err("none was asked for");
        assert!(matches!(error, ExchangeError::Misuse { .. }), "{error}");
    });
}
