//! Who gets in and who does not, and that nobody holds up the others.

use crate::support::{PATIENCE, any_port, hub, keyed, member, settings};
use ironstar_cluster::{
    Channel, Cluster, Error, Hub, Identity, Join, Member, Preamble, Refusal, Settings, Transport,
    Word,
};
use ironstar_device::{Exchange, GateKind};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Two ranks, and `guest` before the second comes: what the guest met. The group forms all the
/// same.
fn with_guest<T: Send>(settings: &Settings, guest: impl FnOnce(SocketAddr) -> T + Send) -> T {
    let hub = hub(2, Transport::Shm, settings);
    let address = hub.address();
    let other = member(address, None, settings);
    std::thread::scope(|scope| {
        let met = scope.spawn(move || {
            let met = guest(address);
            let mut group = Cluster::join(other).expect("the group forms");
            group.gather(GateKind::Status, &[2], &mut [0; 2]).expect("both are there");
            met
        });
        let mut group = Cluster::lead(hub).expect("the group forms");
        let mut all = [0; 2];
        group.gather(GateKind::Status, &[1], &mut all).expect("both are there");
        assert_eq!(all, [1, 2]);
        met.join().expect("the guest")
    })
}

/// The refusal of a rank with these settings.
fn refused(ours: &Settings, theirs: &Settings, rank: Option<usize>, ranks: Option<usize>) -> Error {
    with_guest(ours, |address| {
        let guest = Member::new(address, rank, ranks, theirs.clone()).expect("this machine");
        Cluster::join(guest).err().expect("it does not belong here")
    })
}

fn is(error: &Error, wanted: Refusal, words: &[&str]) {
    assert!(matches!(error, Error::Refused { refusal, .. } if *refusal == wanted), "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "no `{word}` in: {error}");
    }
}

#[test]
fn another_model_layout_or_rank_is_refused_with_both_sides_named() {
    let ours = settings();
    let identity = |model: &str, layout: &str| Settings {
        identity: Identity { model: model.into(), layout: layout.into(), build: "0.2".into() },
        ..settings()
    };
    let error = refused(&ours, &identity("other", "2 ranks"), None, None);
    is(&error, Refusal::Model, &["digest", "other", "0.2"]);
    let error = refused(&ours, &identity("digest", "fast"), None, None);
    is(&error, Refusal::Layout, &["2 ranks", "fast"]);
    is(&refused(&ours, &ours, Some(2), None), Refusal::Rank, &["no rank 2"]);
    is(&refused(&ours, &ours, Some(0), None), Refusal::Rank, &["no rank 0"]);
    is(&refused(&ours, &ours, None, Some(4)), Refusal::Layout, &["2 ranks", "told 4"]);
    let trusted = Settings { trusted_link: true, ..keyed('a') };
    is(&refused(&keyed('a'), &trusted, None, None), Refusal::Layout, &["trusted-link"]);
}

#[test]
fn another_key_and_none_are_refused() {
    is(&refused(&keyed('a'), &keyed('b'), None, None), Refusal::Key, &["different keys"]);
    is(&refused(&keyed('a'), &settings(), None, None), Refusal::Key, &["has none"]);
    is(&refused(&settings(), &keyed('a'), None, None), Refusal::Key, &["has no key"]);
}

#[test]
fn another_version_is_refused_on_both_sides() {
    let theirs = Preamble { version: (7, 3), has_key: false };
    let answer = with_guest(&settings(), |address| {
        let mut stream = TcpStream::connect(address).expect("the port is open");
        stream.write_all(&theirs.to_bytes()).expect("it listens");
        let mut answer = [0; 16];
        stream.read_exact(&mut answer).expect("it says its own version before it hangs up");
        Preamble::from_bytes(&answer).expect("one of ours")
    });
    let error = answer.agree(theirs, "a rank").expect_err("other versions");
    is(&error, Refusal::Version, &["7.3", "1.0", "same release"]);

    let listener = TcpListener::bind(any_port()).expect("a free port");
    let guest = member(listener.local_addr().expect("it is bound"), None, &settings());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody joins");
            stream.write_all(&theirs.to_bytes()).expect("it listens");
            let _ = stream.read(&mut [0; 64]);
        });
        let error = Cluster::join(guest).err().expect("other versions");
        is(&error, Refusal::Version, &["7.3", "1.0"]);
    });
}

#[test]
fn strangers_and_those_who_say_nothing_hold_up_nobody() {
    let text = with_guest(&settings(), |address| {
        let mut browser = TcpStream::connect(address).expect("the port is open");
        browser.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("it listens");
        let mut text = String::new();
        browser.read_to_string(&mut text).expect("an answer, then the end");
        let silent: Vec<TcpStream> =
            (0..5).map(|_| TcpStream::connect(address).expect("the port is open")).collect();
        (text, silent).0
    });
    assert!(text.starts_with("HTTP/1.1 400") && text.contains("ironstar worker --join"), "{text}");
}

/// What a guest says who wants this rank.
fn join_as(rank: Option<usize>, address: SocketAddr, settings: &Settings) -> Word {
    Word::Join(Join {
        identity: settings.identity.clone(),
        rank,
        ranks: None,
        instance: 9,
        sealed: false,
        address,
        committed: 0,
    })
}

/// A connection on which a guest has asked for rank 1.
fn asks_for_rank_1(address: SocketAddr) -> Channel {
    let mut channel = Channel::dial(address, None, PATIENCE).expect("no key");
    channel.say(&join_as(Some(1), address, &settings())).expect("it listens");
    channel
}

/// Whether it is refused, and why; what else is said meanwhile is not waited for.
fn is_refused(channel: &mut Channel) -> Option<String> {
    match channel.hear(Instant::now() + PATIENCE).expect("rank 0 speaks") {
        Some(Word::Refused { refusal: Refusal::Rank | Refusal::Full, reason }) => Some(reason),
        Some(Word::Waiting { .. }) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_group_says_so_and_a_rank_that_is_taken_too() {
    let hub = hub(3, Transport::Shm, &settings());
    let address = hub.address();
    std::thread::scope(|scope| {
        let lead = scope.spawn(move || Cluster::lead(hub).expect("the group forms"));
        // Nobody is rank 2, so the group waits.
        let mut guests = [asks_for_rank_1(address), asks_for_rank_1(address)];
        let refused: Vec<String> = guests.iter_mut().filter_map(is_refused).collect();
        assert_eq!(refused.len(), 1, "one place, one rank");
        assert!(refused[0].contains("joined already"), "{}", refused[0]);
        // Who had the place hangs up, and has not got it any more.
        drop(guests);
        let others = [None, None].map(|rank| {
            let member = member(address, rank, &settings());
            scope.spawn(move || Cluster::join(member).expect("the group forms"))
        });
        let group = lead.join().expect("rank 0's thread");
        let others = others.map(|thread| thread.join().expect("a rank's thread"));
        let reason = is_refused(&mut asks_for_rank_1(address)).expect("there is no place");
        assert!(reason.contains("all its ranks"), "{reason}");
        // A rank that people start does not give up before its deadline.
        let mut settings = settings();
        settings.deadlines.form = Duration::from_millis(300);
        let late = Cluster::join(member(address, Some(1), &settings)).err().expect("no place");
        assert!(matches!(late, Error::Late { .. }), "{late}");
        drop((group, others));
    });
}

/// A rank that joins and then says nothing loses its seat at the deadline, and the next gets it.
#[test]
fn a_rank_that_falls_silent_while_links_are_made_is_replaced() {
    let mut ours = settings();
    // The others may need more than one attempt on a busy machine.
    ours.deadlines.links = Duration::from_secs(1);
    with_guest(&ours, |address| {
        let mut channel = Channel::dial(address, None, PATIENCE).expect("no key");
        channel.say(&join_as(None, address, &settings())).expect("it listens");
        // Half open: the connection stays, and nothing more is said on it.
        std::mem::forget(channel);
    });
}

#[test]
fn words_that_make_no_sense_are_hung_up_on() {
    for word in [
        Word::Start,
        Word::Beat,
        Word::Abort { reason: "x".repeat(2000) },
        Word::Join(Join {
            identity: Identity { model: "m".repeat(5000), ..Identity::default() },
            rank: None,
            ranks: None,
            instance: 0,
            sealed: false,
            address: any_port(),
            committed: 0,
        }),
    ] {
        let heard = with_guest(&settings(), |address| {
            let mut channel = Channel::dial(address, None, PATIENCE).expect("no key");
            channel.say(&word).expect("it listens");
            channel.hear(Instant::now() + PATIENCE)
        });
        assert!(heard.is_err(), "{heard:?}");
    }
}

#[test]
fn nothing_beyond_this_machine_without_a_key() {
    let everywhere: SocketAddr = "0.0.0.0:0".parse().expect("an address");
    let open = |settings: Settings| Hub::bind(everywhere, 2, Transport::Tcp, settings).map(drop);
    let error = open(settings()).expect_err("no key");
    assert!(error.to_string().contains("openssl rand -hex 32"), "{error}");
    open(keyed('c')).expect("with a key");
    open(Settings { trusted_link: true, ..settings() }).expect("a private cable");
    let far: SocketAddr = "192.0.2.1:9".parse().expect("an address");
    assert!(Member::new(far, None, None, settings()).is_err());
    for ranks in [0, 65] {
        assert!(Hub::bind(any_port(), ranks, Transport::Tcp, settings()).is_err());
    }
}

#[test]
fn who_is_missing_is_said_at_the_deadline() {
    let mut settings = settings();
    settings.deadlines.form = Duration::from_millis(150);
    let hub = hub(3, Transport::Tcp, &settings);
    let address = hub.address();
    let error = Cluster::lead(hub).err().expect("nobody comes");
    let text = error.to_string();
    assert!(text.contains("[1, 2]") && text.contains(&address.to_string()), "{text}");
    let error = Cluster::join(member(address, None, &settings)).err().expect("nobody listens");
    assert!(matches!(error, Error::Late { .. }), "{error}");
}

#[test]
fn the_last_common_step_is_what_all_roll_back_to() {
    let settings = settings();
    let hub = hub(2, Transport::Shm, &settings);
    let other = member(hub.address(), None, &settings);
    let again = |mut group: Cluster, committed: u64| {
        assert_eq!(group.committed(), 0);
        group.reform_from(committed).expect("both are there");
        group.committed()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| again(Cluster::join(other).expect("the group forms"), 41));
        let lead = again(Cluster::lead(hub).expect("the group forms"), 42);
        assert_eq!((lead, other.join().expect("rank 1")), (41, 41));
    });
}
