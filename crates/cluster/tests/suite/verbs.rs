//! Links over the fake libibverbs (`tests/fake/`): every rule that devices have is kept, under both
//! accounts of what a send does that meets no receive, and every fault becomes a clear error.

use crate::links::next;
use crate::support::{PATIENCE, THUNDERBOLT, part, verbs, verbs_pair, verbs_pair_of};
use ironstar_cluster::{
    Limits, Link, LinkError, Mesh, Pace, Place, Timing, VerbsConnection, VerbsLink, VerbsSettings,
    Watch,
};
use ironstar_device::{ExchangeError, GateKind};
use std::path::PathBuf;
use std::time::Duration;

/// A gate of a Flash layer's row.
const LENGTH: usize = 16 * 1024;

/// How long the other rank may be silent where that is what a test is about.
const SHORT: Duration = Duration::from_millis(700);

/// Passes `gates` gates between two ranks, which wait so long for each; what each saw. No rank ever
/// sees wrong bytes.
fn walk(ends: (VerbsLink, VerbsLink), gates: usize, gate: Duration) -> [Option<ExchangeError>; 2] {
    let rank = |rank: usize, link: VerbsLink| {
        let place = Place { rank, ranks: 2, epoch: 2 };
        let timing = Timing { gate, pace: Pace::BLOCKING };
        let links: Vec<(usize, Box<dyn Link>)> = vec![(1 - rank, Box::new(link))];
        let mut mesh = Mesh::new(place, links, timing, Watch::default()).expect("one other rank");
        let mut all = vec![0; 2 * LENGTH];
        for gate in 0..gates {
            let passed = mesh.post(GateKind::Ffn, &part(rank, gate, LENGTH));
            if let Err(error) = passed.and_then(|()| mesh.wait(&mut all)) {
                return Some(error);
            }
            let wanted = [part(0, gate, LENGTH), part(1, gate, LENGTH)].concat();
            assert!(all == wanted, "gate {gate} on rank {rank}");
        }
        None
    };
    let (left, right) = ends;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| rank(1, right));
        [rank(0, left), other.join().expect("a rank's thread")]
    })
}

#[test]
fn gates_pass_whatever_kind_of_device_it_is() {
    for words in [
        // Receives are always there first, so it does not matter what happens where they are not.
        "flow=credit",
        "flow=poison",
        "flow=drop",
        "flow=rnr",
        "no-rc,flow=credit",
        "no-rc,flow=poison",
        "no-rc,flow=drop",
        "apple,flow=credit",
        "apple,flow=poison",
        "apple,flow=drop",
        // What is not whole is rubbish, and what is sent is read as late as may be.
        "scribble,delay=300",
        "apple,scribble,delay=300",
        // Devices that grant little, or want something else.
        "depth=9",
        "apple,depth=40",
        "mr-bytes=1000000",
        "mrs=1,mr-remote,mr-early",
        "infiniband",
        "gids=2",
        // Directions that are dead at first.
        "dead=1",
        "apple,dead=2",
    ] {
        let ends = verbs_pair([words; 2], None).unwrap_or_else(|e| panic!("{words}: {e}"));
        assert_eq!(walk(ends, 40, PATIENCE), [None, None], "{words}");
    }
}

#[test]
fn two_ends_take_what_they_share() {
    let of = |words: [&str; 2]| verbs_pair(words, None).expect("a link").0.limits();
    assert_eq!(of(["", ""]), Limits::GATES);
    let framed = of([THUNDERBOLT, ""]);
    assert!(framed.message_bytes_max >= LENGTH + 64, "a gate is one message: {framed:?}");
    assert!(framed.message_bytes_max < 5 * 4096, "of five frames: {framed:?}");
    assert_eq!(of(["depth=9", ""]).posted_max, 7, "two receives are kept for what goes beyond");
    assert_eq!(of(["", "mr-bytes=2000000"]).posted_max, 7, "a region of 2 MB holds nine each way");
    let only = |connection| VerbsSettings { connection, ..verbs("") };
    let ends = [only(VerbsConnection::Unreliable), only(VerbsConnection::Any)];
    assert_eq!(verbs_pair_of(ends, None).expect("a link").1.limits(), framed);
    let none = [only(VerbsConnection::Unreliable), only(VerbsConnection::Reliable)];
    let error = verbs_pair_of(none, None).err().expect("nothing in common").to_string();
    assert!(error.contains("unreliable ones only here, reliable ones only there"), "{error}");
}

/// What the first rank saw when the fourth gate of the second has this fault.
fn fault(words: &str) -> ExchangeError {
    // The first send is that of the handshake, the next three are gates.
    let ends = verbs_pair(["", words], None).unwrap_or_else(|e| panic!("{words}: {e}"));
    let silent = words.contains("silent");
    let [first, second] = walk(ends, 12, if silent { SHORT } else { PATIENCE });
    assert!(second.is_some(), "{words}: both ranks hear of it");
    first.unwrap_or_else(|| panic!("{words} passed unseen"))
}

#[test]
fn every_fault_of_the_wire_is_seen() {
    for (words, wanted) in [
        ("no-rc,lose=5", "one was lost"),
        ("no-rc,twice=5", "one was lost"),
        ("twice=5", "one was lost"),
        ("flip=5", "checksum"),
        ("cut=5", "cut to"),
        ("no-rc,silent-after=4", "was silent for"),
    ] {
        let error = fault(words);
        assert!(error.to_string().contains(wanted), "{words}: {error}");
    }
}

#[test]
fn completion_errors_have_their_names() {
    let pass = |words: &str| {
        let ends = verbs_pair([words, ""], None).unwrap_or_else(|e| panic!("{words}: {e}"));
        walk(ends, 12, PATIENCE)[0].clone().unwrap_or_else(|| panic!("{words} passed unseen"))
    };
    for (words, name) in [
        ("bad=5", "IBV_WC_LOC_PROT_ERR (4)"),
        ("bad=5,status=12", "IBV_WC_RETRY_EXC_ERR (12)"),
        ("bad=5,status=13", "IBV_WC_RNR_RETRY_EXC_ERR (13)"),
        ("no-rc,bad=5,status=19", "IBV_WC_FATAL_ERR (19)"),
        ("bad=5,status=77", "IBV_WC unknown (77)"),
    ] {
        let error = pass(words);
        assert!(error.to_string().contains(name), "{words}: {error}");
        assert!(matches!(error, ExchangeError::Lost { rank: 1, .. }), "{words}: {error}");
    }
    // Frames that do not match are an error of the one who receives.
    let ends = verbs_pair(["no-rc,frames,cut=5", "no-rc,frames"], None).expect("a link");
    let seen = walk(ends, 12, PATIENCE)[1].clone().expect("half a message");
    assert!(seen.to_string().contains("IBV_WC_LOC_LEN_ERR"), "{seen}");
}

#[test]
fn devices_that_cannot_do_it_are_refused_with_what_they_said() {
    for (words, wanted) in [
        ("devices=0", "there are no RDMA devices"),
        ("down", "no RDMA port is active"),
        ("gids=0", "has no IPv4 address"),
        ("no-rc,no-uc", "reliable: making a queue pair"),
        ("depth=3", "making a queue pair"),
        ("apple,depth=12", "a queue pair"),
        ("mrs=0", "registering"),
        ("mr-bytes=100000", "registering"),
        ("message=60000", "messages of 69632 bytes"),
        ("qps=0", "Thunderbolt allows 10"),
    ] {
        let made = verbs_pair([words, ""], Some(Limits::GATES));
        let error = made.err().unwrap_or_else(|| panic!("{words} makes no link")).to_string();
        assert!(error.contains(wanted), "{words}: {error}");
        // The other end hears of it too, and does not wait for its deadline.
        let made = verbs_pair(["", words], Some(Limits::GATES));
        let error = made.err().unwrap_or_else(|| panic!("{words} makes no link")).to_string();
        assert!(error.contains("it gave up") && error.contains(wanted), "{words}: {error}");
    }
    let nowhere = PathBuf::from("/nowhere/libibverbs.so.1");
    let nowhere = VerbsSettings { library: Some(nowhere), ..VerbsSettings::default() };
    let error = verbs_pair_of([nowhere, verbs("")], None).err().expect("no library").to_string();
    assert!(error.contains("/nowhere/") && error.contains("install it"), "{error}");
    let named = VerbsSettings { device: Some("mlx5_0".into()), ..verbs("") };
    let error = verbs_pair_of([named, verbs("")], None).err().expect("no device").to_string();
    assert!(error.contains("no RDMA device mlx5_0") && error.contains("fake0"), "{error}");
    let local = VerbsSettings { gid: Some(1), ..verbs("") };
    let error = verbs_pair_of([local, verbs("")], None).err().expect("link-local").to_string();
    assert!(error.contains("the GID may be wrong"), "{error}");
}

#[test]
fn a_wire_that_carries_nothing_is_given_up_after_four_queue_pairs() {
    let error = verbs_pair(["dead=99", ""], None).err().expect("nothing arrives").to_string();
    assert!(error.contains("4 connections carried none") && error.contains("GID"), "{error}");
}

#[test]
fn a_second_device_is_found_by_its_address() {
    // The control connection is on 127.0.0.1, which the second device has.
    let words = "devices=2,address=10.0.0.9,address2=127.0.0.1";
    let (left, _right) = verbs_pair([words, ""], None).expect("a link");
    assert_eq!(left.limits(), Limits::GATES);
}

#[test]
fn messages_that_the_device_is_slow_with_wait_and_keep_their_order() {
    let limits = Limits { message_bytes_max: 300, posted_max: 4 };
    let (mut left, mut right) = verbs_pair(["delay=3000", ""], Some(limits)).expect("a link");
    for _ in 0..4 {
        right.post_recv(300).expect("within the grant");
    }
    // Six slots and four that wait.
    for number in 0..10_u8 {
        left.send(&[number; 10], &[number; 20]).expect("there is room");
    }
    let error = left.send(&[11], &[]).expect_err("ten are enough");
    assert!(matches!(error, LinkError::Misuse { .. }), "{error}");
    assert!(!left.flush().expect("it stands"), "some wait");
    for number in 0..10_u8 {
        // Who sends polls too, as gates do.
        let mut got = None;
        while got.is_none() {
            let _more = left.flush().expect("it stands");
            got = right.receive().expect("it stands").map(<[u8]>::to_vec);
        }
        assert_eq!(got.as_deref(), Some(&[number; 30][..]));
        right.post_recv(300).expect("within the grant");
    }
    assert!(left.flush().expect("it stands"));
}

#[test]
fn what_was_sent_last_arrives_though_the_sender_goes_at_once() {
    for words in ["delay=2000", "apple,delay=2000"] {
        let limits = Limits { message_bytes_max: 300, posted_max: 4 };
        let (mut left, mut right) = verbs_pair([words, words], Some(limits)).expect("a link");
        right.post_recv(300).expect("within the grant");
        left.send(b"good", b"bye").expect("there is room");
        drop(left);
        assert_eq!(next(&mut right).expect(words), b"goodbye");
        assert_eq!(next(&mut right).expect_err("it has gone"), LinkError::Closed, "{words}");
    }
}
