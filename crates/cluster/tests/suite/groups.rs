//! Groups over every transport: gates, commands, breaks and what follows.

use crate::support::{
    PATIENCE, THUNDERBOLT, any_port, hub, keyed, member, on_ranks, part, settings, verbs,
};
use ironstar_cluster::{Alone, Cluster, Settings, Transport, VerbsSettings, measure};
use ironstar_device::{Exchange, ExchangeError, GateKind};
use std::sync::mpsc::channel;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

/// Lengths that are less than a message, exactly one, one more, and many.
const LENGTHS: [usize; 6] = [0, 5, 16 * 1024, 64 * 1024, 64 * 1024 + 1, 3 * 1024 * 1024 + 17];

/// Gates of all lengths with commands between them; every rank checks every part.
fn passes(transport: Transport, ranks: usize, settings: &Settings) {
    let counts = on_ranks(ranks, transport, settings, |mut group| {
        let (rank, mut all) = (group.rank(), Vec::new());
        for (gate, length) in LENGTHS.into_iter().enumerate() {
            let mut command = if rank == 0 { vec![7; 3 * length] } else { vec![1, 2, 3] };
            group.broadcast(&mut command).expect("rank 0 says what is next");
            assert_eq!(command, vec![7; 3 * length]);
            all.clear();
            all.resize(ranks * length, 0);
            let kind = GateKind::ALL[gate % GateKind::ALL.len()];
            group.gather(kind, &part(rank, gate, length), &mut all).expect("all are there");
            let wanted: Vec<u8> = (0..ranks).flat_map(|r| part(r, gate, length)).collect();
            assert!(all == wanted, "gate {gate} of {length} bytes on rank {rank}");
        }
        group.counts()
    });
    for count in counts {
        assert_eq!(count.gates.iter().sum::<u64>(), LENGTHS.len() as u64);
        assert_eq!(count.bytes.iter().sum::<u64>(), LENGTHS.iter().sum::<usize>() as u64);
    }
}

#[test]
fn one_to_eight_ranks_over_tcp() {
    for ranks in [1, 2, 4, 8] {
        passes(Transport::Tcp, ranks, &settings());
    }
}

#[test]
fn one_to_eight_ranks_over_shared_memory() {
    for ranks in [1, 2, 4, 8] {
        passes(Transport::Shm, ranks, &settings());
    }
}

/// Settings whose RDMA links go over the fake provider with these words.
fn over_verbs(words: &str) -> Settings {
    Settings { verbs: verbs(words), ..settings() }
}

#[test]
fn one_to_four_ranks_over_verbs() {
    for ranks in [1, 2, 3, 4] {
        passes(Transport::Verbs, ranks, &over_verbs(""));
    }
    passes(Transport::Verbs, 2, &over_verbs(THUNDERBOLT));
    passes(Transport::Verbs, 3, &Settings { verbs: verbs(THUNDERBOLT), ..keyed('7') });
}

#[test]
fn a_group_without_the_library_is_told_before_it_waits() {
    let nowhere = Some("/nowhere/libibverbs.so.1".into());
    let verbs = VerbsSettings { library: nowhere, ..VerbsSettings::default() };
    let settings = Settings { verbs, ..settings() };
    let error = Cluster::bind(any_port(), 2, Transport::Verbs, settings).err().expect("no library");
    assert!(error.to_string().contains("choose another transport"), "{error}");
}

#[test]
fn with_a_key_everything_is_sealed_unless_the_link_is_trusted() {
    passes(Transport::Tcp, 3, &keyed('7'));
    passes(Transport::Tcp, 3, &Settings { trusted_link: true, ..keyed('7') });
    passes(Transport::Shm, 2, &keyed('7'));
}

/// A rank drops its end, as a process that was killed does; the others notice at once, and are
/// whole again when somebody takes the place.
fn comes_back(transport: Transport) {
    const RANKS: usize = 3;
    let settings = over_verbs("");
    let hub = hub(RANKS, transport, &settings);
    let address = hub.address();
    let gate = |group: &mut Cluster| {
        let mut all = vec![0; RANKS * 100];
        let mine = part(group.rank(), 1, 100);
        group.gather(GateKind::Ffn, &mine, &mut all).map(|()| all)
    };
    let whole: Vec<u8> = (0..RANKS).flat_map(|rank| part(rank, 1, 100)).collect();
    let survive = |mut group: Cluster| {
        assert_eq!(gate(&mut group).expect("all are there"), whole);
        let start = Instant::now();
        let error = gate(&mut group).expect_err("rank 2 has gone");
        assert!(start.elapsed() < PATIENCE, "noticed before any deadline");
        assert!(!matches!(error, ExchangeError::Late { .. }), "{error}");
        assert_eq!(gate(&mut group).expect_err("broken until it is formed again"), error);
        let epoch = group.reform().expect("a replacement comes");
        assert!(epoch > 0 && group.epoch() == epoch);
        assert_eq!(gate(&mut group).expect("all are there again"), whole);
        (group.rank(), error)
    };
    std::thread::scope(|scope| {
        let survive = &survive;
        let one = member(address, Some(1), &settings);
        let one = scope.spawn(move || survive(Cluster::join(one).expect("the group forms")));
        let (two, other) = (member(address, Some(2), &settings), member(address, None, &settings));
        let two = scope.spawn(|| {
            let mut group = Cluster::join(two).expect("the group forms");
            gate(&mut group).expect("all are there");
            drop(group);
            let mut group = Cluster::join(other).expect("there is a free place");
            assert_eq!(group.rank(), 2, "the place of the rank that went");
            assert_eq!(gate(&mut group).expect("all are there again"), whole);
        });
        let lead = survive(Cluster::lead(hub).expect("the group forms"));
        assert_eq!((lead.0, one.join().expect("a survivor").0), (0, 1));
        two.join().expect("the replacement");
    });
}

#[test]
fn a_lost_rank_is_replaced_and_the_others_go_on() {
    comes_back(Transport::Tcp);
    comes_back(Transport::Shm);
    comes_back(Transport::Verbs);
}

#[test]
fn an_abort_reaches_everybody_with_its_reason() {
    let all_know = Barrier::new(3);
    let errors = on_ranks(3, Transport::Shm, &settings(), |mut group| {
        if group.rank() == 1 {
            group.abort("the disk is full");
        }
        let error = group.gather(GateKind::Status, &[1], &mut [0; 3]);
        // A link that closes before the reason is heard is a reason too.
        all_know.wait();
        error.expect_err("rank 1 gave up")
    });
    for error in errors {
        assert!(error.to_string().contains("the disk is full"), "{error}");
    }
}

#[test]
fn a_late_rank_ends_the_wait_at_the_deadline() {
    let mut settings = settings();
    settings.timing.gate = Duration::from_millis(100);
    let (done, wait) = channel::<()>();
    let (done, wait) = (Mutex::new(Some(done)), Mutex::new(wait));
    let errors = on_ranks(2, Transport::Tcp, &settings, |mut group| {
        if group.rank() == 1 {
            // It lives, and beats, but comes to no gate before rank 0 has given up.
            let ended = wait.lock().expect("nobody else waits").recv();
            assert!(ended.is_err(), "the sender is dropped");
            return None;
        }
        let error = group.gather(GateKind::Attention, &[1; 64], &mut [0; 128]);
        drop(done.lock().expect("nobody else has it").take());
        Some(error.expect_err("rank 1 is late"))
    });
    let error = errors[0].clone().expect("rank 0's");
    let late = matches!(&error, ExchangeError::Late { rank: 1, gate: "attention", .. });
    assert!(late, "{error}");
}

#[test]
fn gates_that_do_not_match_are_an_error_on_both_sides() {
    for (left, right) in [
        ((GateKind::Ffn, 64), (GateKind::Attention, 64)),
        ((GateKind::Ffn, 64), (GateKind::Ffn, 60)),
    ] {
        let errors = on_ranks(2, Transport::Shm, &settings(), |mut group| {
            let (kind, length) = if group.rank() == 0 { left } else { right };
            let mine = vec![1; length];
            group.gather(kind, &mine, &mut vec![0; 2 * length]).expect_err("not the same gate")
        });
        for error in errors {
            assert!(!matches!(error, ExchangeError::Late { .. }), "{error}");
        }
    }
}

#[test]
fn a_gate_out_of_order_is_the_callers_error() {
    on_ranks(1, Transport::Tcp, &settings(), |mut group| {
        let mut all = [0; 4];
        let error = group.wait(&mut all).expect_err("nothing was posted");
        assert!(matches!(error, ExchangeError::Misuse { .. }));
    });
    on_ranks(1, Transport::Tcp, &settings(), |mut group| {
        group.post(GateKind::Ffn, &[1]).expect("the first");
        let error = group.post(GateKind::Ffn, &[1]).expect_err("the second");
        assert!(error.to_string().contains("wait for it first"), "{error}");
    });
}

#[test]
fn what_a_group_spends_is_counted_by_kind() {
    let profiles = on_ranks(2, Transport::Shm, &settings(), |mut group| {
        for _ in 0..5 {
            group.gather(GateKind::Ffn, &[1; 4096], &mut [0; 8192]).expect("both are there");
        }
        group.gather(GateKind::Index, &[1; 8], &mut [0; 16]).expect("both are there");
        group.profile()
    });
    for profile in profiles {
        assert_eq!((profile.of(GateKind::Ffn).gates, profile.of(GateKind::Index).gates), (5, 1));
        let table = profile.table();
        assert!(table.contains("ffn") && !table.contains("attention"), "{table}");
    }
}

#[test]
fn a_rank_alone_counts_its_gates_and_gives_its_own_part_back() {
    let mut group = Alone::new(0, 3);
    let mut all = [0; 6];
    group.broadcast(&mut vec![1]).expect("rank 0");
    group.gather(GateKind::Ffn, &[7, 8], &mut all).expect("nobody is waited for");
    assert_eq!(all, [7, 8, 7, 8, 7, 8]);
    assert_eq!((group.counts().of(GateKind::Ffn), group.counts().bytes[1]), (1, 2));
    assert!(group.wait(&mut all).is_err() && Alone::new(1, 3).broadcast(&mut Vec::new()).is_err());
}

#[test]
fn the_self_test_times_every_size_on_every_rank() {
    let settings = settings();
    let times = on_ranks(2, Transport::Shm, &settings, |mut group| measure(&mut group));
    for times in times {
        let times = times.expect("both are there");
        assert_eq!(times.iter().map(|time| time.bytes).max(), Some(16 * 1024 * 1024));
        assert!(times.iter().all(|time| time.best <= time.p50 && time.bytes_per_second() > 0.0));
    }
}
