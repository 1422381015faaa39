//! One suite for every transport: what a `Link` promises, each transport keeps.

use crate::support::{PATIENCE, Transports, pairs};
use ironstar_cluster::{Limits, Link, LinkError};
use std::time::{Duration, Instant};

/// Small limits, so that every edge is met in a few messages.
pub const SMALL: Limits = Limits { message_bytes_max: 300, posted_max: 4 };

type Pair = (Box<dyn Link>, Box<dyn Link>);

/// Runs `check` on a new pair of every transport, from both sides.
fn on_all(limits: Limits, check: impl Fn(&str, Pair)) {
    for (name, make) in pairs() {
        check(name, make(limits));
        let (left, right) = make(limits);
        check(name, (right, left));
    }
}

/// The next message, waited for.
pub fn next(link: &mut dyn Link) -> Result<Vec<u8>, LinkError> {
    let start = Instant::now();
    loop {
        if let Some(message) = link.receive()? {
            return Ok(message.to_vec());
        }
        assert!(start.elapsed() < PATIENCE, "a message is due");
        link.rest(Duration::from_millis(1));
    }
}

/// The error that is due.
fn error(link: &mut dyn Link) -> LinkError {
    next(link).expect_err("an error is due")
}

fn post(link: &mut dyn Link, count: usize) {
    for _ in 0..count {
        link.post_recv(link.limits().message_bytes_max).expect("within the grant");
    }
}

fn message(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (number * 37 + at * 3).to_le_bytes()[0]).collect()
}

#[test]
fn messages_of_all_lengths_arrive_in_order_both_ways_at_once() {
    on_all(SMALL, |name, (mut left, mut right)| {
        post(&mut *left, 4);
        post(&mut *right, 4);
        for (number, length) in (0..=300).step_by(25).chain([1, 299, 64, 3]).enumerate() {
            let (there, back) = (message(number, length), message(number + 1, 300 - length));
            left.send(&there[..length / 2], &there[length / 2..]).expect("room");
            right.send(&back, &[]).expect("room");
            assert_eq!(next(&mut *right).expect(name), there, "{name}");
            assert_eq!(next(&mut *left).expect(name), back, "{name}");
            post(&mut *left, 1);
            post(&mut *right, 1);
        }
    });
}

#[test]
fn a_whole_grant_of_the_longest_messages_fits_both_ways() {
    on_all(Limits::GATES, |name, (mut left, mut right)| {
        let (most, count) = (Limits::GATES.message_bytes_max, Limits::GATES.posted_max);
        post(&mut *left, count);
        post(&mut *right, count);
        for number in 0..count {
            left.send(&message(number, most), &[]).expect("room");
            right.send(&[], &message(number + 9, most)).expect("room");
        }
        for number in 0..count {
            assert!(next(&mut *right).expect(name) == message(number, most), "{name} {number}");
            assert!(next(&mut *left).expect(name) == message(number + 9, most), "{name}");
        }
        assert!(left.flush().expect(name) && right.flush().expect(name));
    });
}

#[test]
fn what_breaks_the_rules_of_this_end_is_refused() {
    on_all(SMALL, |name, (mut left, _right)| {
        post(&mut *left, 4);
        let fifth = left.post_recv(300).expect_err("four are granted");
        assert!(matches!(fifth, LinkError::Misuse { .. }), "{name}: {fifth}");
        for (head, body) in [(301, 0), (150, 151), (0, 301)] {
            let sent = left.send(&message(0, head), &message(0, body));
            let error = sent.expect_err("300 bytes are the most");
            assert!(matches!(error, LinkError::Misuse { .. }), "{name}: {error}");
        }
    });
    on_all(SMALL, |name, (mut left, _right)| {
        let error = left.post_recv(301).expect_err("300 bytes are the most");
        assert!(matches!(error, LinkError::Misuse { .. }), "{name}: {error}");
    });
}

#[test]
fn a_message_without_a_receive_or_too_long_for_it_is_an_error() {
    on_all(SMALL, |name, (mut left, mut right)| {
        left.send(b"nobody waits", &[]).expect("this end cannot know");
        let error = error(&mut *right);
        assert!(error.to_string().contains("no receive is posted"), "{name}: {error}");
    });
    on_all(SMALL, |name, (mut left, mut right)| {
        right.post_recv(8).expect("within the grant");
        left.send(b"nine bytes", &[]).expect("this end cannot know");
        let error = error(&mut *right);
        assert!(matches!(error, LinkError::Wrong { .. }), "{name}: {error}");
    });
}

#[test]
fn an_end_that_goes_is_noticed_after_its_last_message() {
    on_all(SMALL, |name, (mut left, mut right)| {
        post(&mut *right, 2);
        left.send(b"last", b" words").expect("room");
        assert!(left.flush().expect(name), "all is on its way");
        drop(left);
        assert_eq!(next(&mut *right).expect(name), b"last words");
        assert_eq!(error(&mut *right), LinkError::Closed, "{name}");
    });
}

#[test]
fn nothing_there_is_nothing_and_not_a_wait() {
    on_all(SMALL, |name, (mut left, mut right)| {
        post(&mut *left, 1);
        // The quickest of many looks: one that waits does so every time, a machine that is busy
        // does not.
        let quickest = (0..100).map(|_| {
            let start = Instant::now();
            assert_eq!(left.receive().expect(name), None);
            assert!(right.flush().expect(name));
            start.elapsed()
        });
        assert!(quickest.min() < Some(Duration::from_millis(10)), "{name}");
        left.rest(Duration::from_millis(5));
    });
}

#[test]
fn the_table_has_every_transport() {
    let names: Transports = pairs();
    let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    let wanted = ["memory", "tcp", "sealed tcp", "shared memory", "verbs", "framed verbs"];
    let more = cfg!(feature = "mpi").then_some("mpi");
    assert_eq!(names, wanted.into_iter().chain(more).collect::<Vec<_>>());
}
