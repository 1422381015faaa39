//! Gates over links that lose, repeat, swap, damage, delay and swallow messages: every rank gets
//! the right bytes or an error, within the deadline, on every transport.

use crate::support::{PATIENCE, pairs, part};
use ironstar_cluster::{Limits, Link, LinkError, Mesh, Pace, Place, Timing, Watch};
use ironstar_device::{ExchangeError, GateKind};
use std::time::{Duration, Instant};

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Drop,
    Repeat,
    /// It leaves after the next one.
    Swap,
    /// One bit of it is flipped.
    Flip(usize),
    /// It is shorter than it was.
    Cut(usize),
    /// It and what follows leave after so many looks.
    Delay(u32),
    /// This and all later ones are swallowed: the peer looks alive and says nothing.
    Silence,
    /// The link is closed instead.
    Close,
}

/// A link that does `fault` to its `at`th message, from 0.
struct Faulty {
    link: Option<Box<dyn Link>>,
    limits: Limits,
    fault: Fault,
    at: usize,
    sent: usize,
    /// What is to leave after the next message.
    swapped: Option<Vec<u8>>,
    /// What is to leave after so many looks.
    delayed: Vec<Vec<u8>>,
    looks: u32,
}

impl Faulty {
    fn new(link: Box<dyn Link>, fault: Fault, at: usize) -> Self {
        let limits = link.limits();
        let (swapped, delayed) = (None, Vec::new());
        Self { link: Some(link), limits, fault, at, sent: 0, swapped, delayed, looks: 0 }
    }

    /// One look nearer to what is delayed.
    fn look(&mut self) -> Result<(), LinkError> {
        self.looks = self.looks.saturating_sub(1);
        if self.looks == 0 {
            for message in std::mem::take(&mut self.delayed) {
                self.link()?.send(&message, &[])?;
            }
        }
        Ok(())
    }

    fn link(&mut self) -> Result<&mut Box<dyn Link>, LinkError> {
        self.link.as_mut().ok_or(LinkError::Closed)
    }
}

impl Link for Faulty {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn post_recv(&mut self, bytes: usize) -> Result<(), LinkError> {
        self.link()?.post_recv(bytes)
    }

    fn send(&mut self, head: &[u8], body: &[u8]) -> Result<(), LinkError> {
        let number = self.sent;
        self.sent += 1;
        let mut message = [head, body].concat();
        if self.fault == Fault::Silence && number >= self.at {
            return Ok(());
        }
        if number == self.at {
            match self.fault {
                Fault::Drop | Fault::Silence => return Ok(()),
                Fault::Repeat => self.link()?.send(&message, &[])?,
                Fault::Swap => {
                    self.swapped = Some(message);
                    return Ok(());
                }
                Fault::Delay(looks) => self.looks = looks,
                Fault::Flip(bit) => {
                    let bit = bit % (8 * message.len());
                    message[bit / 8] ^= 1 << (bit % 8);
                }
                Fault::Cut(bytes) => message.truncate(message.len().saturating_sub(1 + bytes)),
                Fault::Close => {
                    self.link = None;
                    return Err(LinkError::Closed);
                }
            }
        }
        if self.looks > 0 {
            self.delayed.push(message);
            return Ok(());
        }
        self.link()?.send(&message, &[])?;
        match self.swapped.take() {
            Some(swapped) => self.link()?.send(&swapped, &[]),
            None => Ok(()),
        }
    }

    fn receive(&mut self) -> Result<Option<&[u8]>, LinkError> {
        self.look()?;
        self.link.as_mut().ok_or(LinkError::Closed)?.receive()
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        self.look()?;
        Ok(self.link()?.flush()? && self.delayed.is_empty())
    }

    fn rest(&mut self, at_most: Duration) {
        if let Some(link) = &mut self.link {
            link.rest(at_most.min(Duration::from_micros(200)));
        }
    }
}

/// A gate has two parts of a message each.
const LIMITS: Limits = Limits { message_bytes_max: 128, posted_max: 4 };
const LENGTH: usize = 100;
const GATES: usize = 6;

/// Passes gates between two ranks, the second behind a faulty link; what each rank saw, and that
/// nothing it saw was wrong.
fn walk(
    (left, right): (Box<dyn Link>, Box<dyn Link>),
    fault: Fault,
    at: usize,
    deadline: Duration,
) -> [Option<ExchangeError>; 2] {
    let faulty: Box<dyn Link> = Box::new(Faulty::new(right, fault, at));
    let rank = |rank: usize, link: Box<dyn Link>| {
        let place = Place { rank, ranks: 2, epoch: 4 };
        let timing = Timing { gate: deadline, pace: Pace::BLOCKING };
        let mesh = Mesh::new(place, vec![(1 - rank, link)], timing, Watch::default());
        let mut mesh = mesh.expect("a link to the other");
        let mut all = [0; 2 * LENGTH];
        for gate in 0..GATES {
            if gate == 2 {
                let mut command = if rank == 0 { vec![5; 150] } else { Vec::new() };
                if let Err(error) = mesh.broadcast(&mut command) {
                    return Some(error);
                }
                assert_eq!(command, [5; 150], "{fault:?} at {at}");
            }
            if let Err(error) = mesh.post(GateKind::Ffn, &part(rank, gate, LENGTH)) {
                return Some(error);
            }
            if let Err(error) = mesh.wait(&mut all) {
                return Some(error);
            }
            let wanted = [part(0, gate, LENGTH), part(1, gate, LENGTH)].concat();
            assert_eq!(all[..], wanted, "{fault:?} at {at}, gate {gate} on rank {rank}");
        }
        None
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| rank(1, faulty));
        [rank(0, left), other.join().expect("a rank's thread")]
    })
}

/// Whether a run of gates may end well under this fault: the last messages of it may be lost
/// without anybody waiting for them.
fn is_harmless(fault: Fault) -> bool {
    matches!(fault, Fault::Delay(_))
}

#[test]
fn no_fault_passes_unseen_on_any_transport() {
    let faults = [
        Fault::Drop,
        Fault::Repeat,
        Fault::Swap,
        Fault::Flip(77),
        Fault::Flip(800),
        Fault::Cut(0),
        Fault::Cut(70),
        Fault::Silence,
        Fault::Close,
    ];
    for (name, make) in pairs() {
        for fault in faults {
            // Messages in the middle: a later one shows what happened to them.
            for at in [0, 1, 5] {
                let start = Instant::now();
                let errors = walk(make(LIMITS), fault, at, Duration::from_millis(60));
                assert!(errors[0].is_some(), "{name}: {fault:?} at {at} passed unseen");
                assert!(start.elapsed() < PATIENCE, "{name}: {fault:?} at {at}");
            }
        }
        let errors = walk(make(LIMITS), Fault::Delay(3), 4, PATIENCE);
        assert_eq!(errors, [None, None], "{name}: a delay is no fault");
    }
}

/// The seeds of the schedules, one after the other: the same at every run.
fn mix(seed: u64) -> impl FnMut(u64) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below).expect("small")
    }
}

#[test]
fn five_hundred_schedules_of_faults_give_right_bytes_or_an_error_in_time() {
    let (_, make) = pairs().swap_remove(0);
    let mut seen = 0;
    for seed in 0..500 {
        let mut pick = mix(seed);
        let at = pick(16);
        let fault = match pick(8) {
            0 => Fault::Drop,
            1 => Fault::Repeat,
            2 => Fault::Swap,
            3 => Fault::Flip(pick(2000)),
            4 => Fault::Cut(pick(160)),
            5 => Fault::Delay(u32::try_from(1 + pick(50)).expect("small")),
            6 => Fault::Silence,
            _ => Fault::Close,
        };
        let start = Instant::now();
        // A delay is not to be a fault on a busy machine; what is lost is to be noticed soon.
        let deadline = if is_harmless(fault) { PATIENCE } else { Duration::from_millis(10) };
        let errors = walk(make(LIMITS), fault, at, deadline);
        assert!(start.elapsed() < PATIENCE, "seed {seed}: {fault:?} at {at}");
        if is_harmless(fault) {
            assert_eq!(errors, [None, None], "seed {seed}");
        }
        seen += usize::from(errors.iter().any(Option::is_some));
    }
    assert!(seen > 300, "most schedules meet their fault: {seen}");
}

#[test]
fn links_that_do_not_make_a_group_are_refused() {
    let (_, make) = pairs().swap_remove(0);
    for (rank, ranks, other) in [(0, 3, 1), (0, 2, 0), (1, 2, 1), (0, 1, 1)] {
        let (link, _keep) = make(LIMITS);
        let place = Place { rank, ranks, epoch: 0 };
        let made = Mesh::new(place, vec![(other, link)], Timing::default(), Watch::default());
        assert!(made.is_err(), "rank {rank} of {ranks} with a link to {other}");
    }
}
