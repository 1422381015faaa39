//! The gate protocol, every interleaving of two and three ranks: [`Flow`] itself, links as queues,
//! a message that may be lost, and a rank that may stop.

use ironstar_cluster::Flow;
use stateright::{Checker, Model, Property};

/// Parts of each gate: more than a window.
const PARTS: u8 = 2;
/// Receives that a link grants: windows of one.
const GRANTED: usize = 2;

/// One message under way: its number on the link, its gate and part.
type Message = (u64, u8, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rank {
    /// Its gate, and whether it has posted it.
    gate: u8,
    posted: bool,
    stopped: bool,
    failed: bool,
    /// By other rank.
    flows: Vec<Option<Flow>>,
    sent: Vec<u8>,
    came: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Group {
    ranks: Vec<Rank>,
    /// Messages from each rank to each.
    wires: Vec<Vec<Vec<Message>>>,
    lost: bool,
    /// A message met no posted receive, or a rank put together something wrong.
    empty_queue: bool,
    wrong: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Post(usize),
    Send(usize, usize),
    Receive(usize, usize),
    /// All parts are there: the next gate.
    Pass(usize),
    Lose(usize, usize),
    Stop(usize),
    /// A deadline: allowed only when nothing else of the rank can move.
    GiveUp(usize),
}

struct Protocol {
    ranks: usize,
    gates: u8,
    faults: bool,
    /// Whether ranks keep to what [`Flow`] allows.
    heeds_grant: bool,
}

impl Protocol {
    fn others(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.ranks).filter(move |&other| other != rank)
    }
}

impl Model for Protocol {
    type State = Group;
    type Action = Step;

    fn init_states(&self) -> Vec<Group> {
        let n = self.ranks;
        let rank = |rank: usize| {
            let flow = |other: usize| {
                (other != rank).then(|| {
                    let mut flow = Flow::new(GRANTED);
                    while flow.missing() > 0 {
                        flow.posted();
                    }
                    flow
                })
            };
            Rank {
                gate: 0,
                posted: false,
                stopped: false,
                failed: false,
                flows: (0..n).map(flow).collect(),
                sent: vec![0; n],
                came: vec![0; n],
            }
        };
        vec![Group {
            ranks: (0..n).map(rank).collect(),
            wires: vec![vec![Vec::new(); n]; n],
            lost: false,
            empty_queue: false,
            wrong: false,
        }]
    }

    fn actions(&self, group: &Group, steps: &mut Vec<Step>) {
        for (at, rank) in group.ranks.iter().enumerate() {
            if rank.stopped || rank.failed {
                continue;
            }
            let before = steps.len();
            if rank.gate < self.gates && !rank.posted {
                steps.push(Step::Post(at));
            }
            for other in self.others(at) {
                let flow = rank.flows[other].as_ref().expect("a flow to every other");
                if rank.posted && rank.sent[other] < PARTS && (flow.may_send() || !self.heeds_grant)
                {
                    steps.push(Step::Send(at, other));
                }
                // A rank looks at its links only while it waits at a gate.
                if rank.posted && rank.came[other] < PARTS && !group.wires[other][at].is_empty() {
                    steps.push(Step::Receive(at, other));
                }
            }
            let all = |counts: &[u8]| self.others(at).all(|other| counts[other] == PARTS);
            if rank.posted && all(&rank.sent) && all(&rank.came) {
                steps.push(Step::Pass(at));
            }
            let stuck = steps.len() == before && rank.gate < self.gates;
            if self.faults && stuck {
                steps.push(Step::GiveUp(at));
            }
            if self.faults && !group.lost && group.ranks.iter().all(|rank| !rank.stopped) {
                steps.push(Step::Stop(at));
                for other in self.others(at) {
                    if !group.wires[at][other].is_empty() {
                        steps.push(Step::Lose(at, other));
                    }
                }
            }
        }
    }

    fn next_state(&self, group: &Group, step: Step) -> Option<Group> {
        let mut group = group.clone();
        match step {
            Step::Post(at) => {
                let rank = &mut group.ranks[at];
                rank.posted = true;
                rank.sent.fill(0);
                rank.came.fill(0);
            }
            Step::Send(at, other) => {
                let rank = &mut group.ranks[at];
                let flow = rank.flows[other].as_mut().expect("a flow");
                let number = if self.heeds_grant { flow.send() } else { u64::MAX };
                group.wires[at][other].push((number, rank.gate, rank.sent[other]));
                group.ranks[at].sent[other] += 1;
                // What is under way must fit the receives that the other end has posted.
                let flow = group.ranks[other].flows[at].as_ref().expect("a flow");
                let waiting = group.wires[at][other].len() as u64;
                group.empty_queue |= waiting > flow.outstanding();
            }
            Step::Receive(at, other) => {
                let (number, gate, part) = group.wires[other][at].remove(0);
                let rank = &mut group.ranks[at];
                let flow = rank.flows[other].as_mut().expect("a flow");
                let due = if self.heeds_grant { flow.received() + 1 } else { u64::MAX };
                if (number, gate, part) == (due, rank.gate, rank.came[other]) {
                    flow.receive();
                    flow.posted();
                    rank.came[other] += 1;
                } else {
                    // Every message is checked: the epoch is over for this rank.
                    rank.failed = true;
                    group.wrong |= !group.lost;
                }
            }
            Step::Pass(at) => {
                group.ranks[at].gate += 1;
                group.ranks[at].posted = false;
            }
            Step::Lose(at, other) => {
                group.wires[at][other].remove(0);
                group.lost = true;
            }
            Step::Stop(at) => group.ranks[at].stopped = true,
            Step::GiveUp(at) => group.ranks[at].failed = true,
        }
        Some(group)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no send meets an empty queue", |_, group: &Group| !group.empty_queue),
            Property::always("nothing wrong without a fault", |_, group: &Group| !group.wrong),
            Property::always("ranks are one gate apart at most", |_, group: &Group| {
                let gates = group.ranks.iter().map(|rank| rank.gate);
                let (low, high) = (gates.clone().min(), gates.max());
                high.unwrap_or(0) - low.unwrap_or(0) <= 1
            }),
            Property::eventually(
                "every rank is through, or knows that it is not",
                |model: &Self, group: &Group| {
                    group
                        .ranks
                        .iter()
                        .all(|rank| rank.gate == model.gates || rank.failed || rank.stopped)
                },
            ),
            Property::sometimes("all pass all gates", |model: &Self, group: &Group| {
                group.ranks.iter().all(|rank| rank.gate == model.gates)
            }),
        ]
    }
}

fn check(ranks: usize, gates: u8, faults: bool, fewest: usize) {
    let checker = Protocol { ranks, gates, faults, heeds_grant: true }.checker().spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.is_done(), "all states were seen");
    let seen = checker.unique_state_count();
    assert!(seen >= fewest, "only {seen} states: the model does not walk the protocol");
}

#[test]
fn two_ranks_in_every_order_with_a_loss_or_a_stop() {
    check(2, 3, false, 20);
    check(2, 3, true, 100);
}

#[test]
fn three_ranks_in_every_order() {
    check(3, 1, false, 1000);
}

/// The model is no proof if it cannot fail.
#[test]
fn ranks_that_send_beyond_their_grant_are_found() {
    let careless = Protocol { ranks: 2, gates: 3, faults: false, heeds_grant: false };
    let checker = careless.checker().spawn_bfs().join();
    assert!(checker.discovery("no send meets an empty queue").is_some());
}
