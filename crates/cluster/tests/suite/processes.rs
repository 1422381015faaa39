//! Real processes: in two network namespaces with a cable between them where this user may make
//! them, else over loopback. A cable that is cut, a rank that stands still, one that is killed, and
//! what follows.

use crate::support::{PATIENCE, keyed, part, verbs};
use ironstar_cluster::{Cluster, Deadlines, Member, Settings, Transport};
use ironstar_device::{Exchange, GateKind};
use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const BYTES: usize = 16 * 1024;
/// Gates of an epoch after which a rank says that it is whole.
const GATES: usize = 20;

/// A busy machine may be silent for as long: then a group breaks more often than it is made to, and
/// comes back each time.
const SILENCE: Duration = Duration::from_secs(2);

fn settings() -> Settings {
    let mut settings = keyed('5');
    settings.deadlines = Deadlines { silence: SILENCE, ..settings.deadlines };
    settings.verbs = verbs("");
    settings
}

/// A rank's process: its first line of input says where rank 0 is, which rank this is, and what
/// carries the gates. Started by the tests below, which read the lines that begin with `@`.
#[test]
#[ignore = "the other end of ranks_in_processes_survive_a_cut_cable_and_a_killed_rank"]
fn child() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the parent says where");
    let mut words = line.trim().split(' ');
    let mut word = || words.next().expect("an address, a rank and a transport");
    let (address, rank, transport) = (word(), word(), word());
    let transport = Transport::NAMES.iter().find(|(name, _)| *name == transport);
    let transport = transport.expect("a name of a transport").1;
    let address: SocketAddr = address.parse().expect("the parent writes addresses");
    let mut group = if rank == "0" {
        let hub = Cluster::bind(address, 2, transport, settings()).expect("a port");
        say(&format!("at {}", hub.address()));
        Cluster::lead(hub)
    } else {
        Member::new(address, Some(1), Some(2), settings()).and_then(Cluster::join)
    }
    .expect("the group forms");
    // Any further line of input is the end.
    static ENDS: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        ENDS.store(true, Ordering::Release);
    });
    let rank = group.rank();
    let (mut gates, mut all) = (0, vec![0; 2 * BYTES]);
    loop {
        let mut command = vec![u8::from(ENDS.load(Ordering::Acquire))];
        let passed = group
            .broadcast(&mut command)
            .and_then(|()| group.gather(GateKind::Ffn, &part(rank, gates, BYTES), &mut all));
        match passed {
            Ok(()) => {
                let wanted = [part(0, gates, BYTES), part(1, gates, BYTES)].concat();
                assert!(all == wanted, "gate {gates}");
                gates += 1;
                if gates == GATES {
                    say("whole");
                }
                if command == [1] {
                    return say("end");
                }
            }
            Err(error) => {
                say(&format!("broken {error}"));
                group.reform().expect("the other rank comes back");
                gates = 0;
            }
        }
    }
}

#[allow(clippy::print_stdout, reason = "the parent reads it")]
fn say(text: &str) {
    println!("@{text}");
    // The parent may have gone; then nobody reads this.
    let _ = std::io::stdout().flush();
}

/// A rank's process as the test sees it.
struct Rank {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    whole: Cell<bool>,
}

impl Rank {
    fn start(place: &Place, rank: usize, address: SocketAddr, transport: Transport) -> Self {
        let program = std::env::current_exe().expect("a test is a program");
        let mut command = match place {
            Place::Loopback => Command::new(program),
            Place::Namespaces(names) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &names[rank]]).arg(program);
                command
            }
        };
        let words = ["--exact", "processes::child", "--ignored", "--nocapture"];
        let command = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a process");
        let mut input = process.stdin.take().expect("it was asked for");
        writeln!(input, "{address} {rank} {}", transport.name()).expect("it reads");
        let output = process.stdout.take().expect("it was asked for");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The harness writes its own words before the first line.
                if let Some((_, said)) = line.split_once('@') {
                    let _ = sender.send(said.to_string());
                }
            }
        });
        Self { process, input, lines, whole: Cell::new(false) }
    }

    fn signal(&self, name: &str) {
        // The shell's own: not every machine has the program.
        let words = ["-c".to_string(), format!("kill -{name} {}", self.process.id())];
        let sent = Command::new("sh").args(words).status();
        assert!(sent.is_ok_and(|status| status.success()), "`kill -{name}` of a child");
    }

    /// Its next line.
    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a rank says something in time")
    }

    /// The next line that begins with `wanted`; those before it say how its group is.
    fn hears(&self, wanted: &str) -> String {
        loop {
            let line = self.line();
            if line.starts_with(wanted) {
                return line;
            }
            self.note(&line);
        }
    }

    /// Its group is whole, or is broken, as far as it has said; waits until it is. On a busy
    /// machine it may have broken before the test breaks it.
    fn becomes(&self, whole: bool) {
        while let Ok(line) = self.lines.try_recv() {
            self.note(&line);
        }
        while self.whole.get() != whole {
            self.note(&self.line());
        }
    }

    fn note(&self, line: &str) {
        self.whole.set(line == "whole");
        assert!(self.whole.get() || line.starts_with("broken"), "{line}");
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Where the ranks run.
enum Place {
    Loopback,
    Namespaces([String; 2]),
}

impl Place {
    fn make() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let names = [0, 1].map(|rank| format!("ironstar-{}-{number}-{rank}", std::process::id()));
        if !ip(&format!("netns add {}", names[0])) {
            return Place::Loopback;
        }
        let place = Place::Namespaces(names.clone());
        let [first, second] = names;
        // Whoever may make one namespace may do the rest: what fails here is missing.
        for words in [
            format!("netns add {second}"),
            format!("link add v0 netns {first} type veth peer name v1 netns {second}"),
            format!("-n {first} addr add 10.77.0.1/24 dev v0"),
            format!("-n {second} addr add 10.77.0.2/24 dev v1"),
            format!("-n {first} link set v0 up"),
            format!("-n {second} link set v1 up"),
            format!("-n {first} link set lo up"),
        ] {
            assert!(ip(&words), "`ip {words}` failed, though `ip netns add` works for this user");
        }
        place
    }

    /// Where rank 0 listens.
    fn address(&self) -> SocketAddr {
        let text = match self {
            Place::Loopback => "127.0.0.1:0",
            // All addresses: the other rank must not believe that this is one.
            Place::Namespaces(_) => "0.0.0.0:0",
        };
        text.parse().expect("an address")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Place::Namespaces(names) = self {
            for name in names {
                ip(&format!("netns delete {name}"));
            }
        }
    }
}

fn ip(words: &str) -> bool {
    let command = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
    command.is_ok_and(|status| status.success())
}

/// Two ranks that have passed their gates, and where rank 0 is for rank 1.
fn start(place: &Place, transport: Transport) -> (Rank, Rank, SocketAddr) {
    let first = Rank::start(place, 0, place.address(), transport);
    let at = first.hears("at ");
    let mut address: SocketAddr = at[3..].parse().expect("an address");
    if matches!(place, Place::Namespaces(_)) {
        address.set_ip("10.77.0.1".parse().expect("an address"));
    }
    let second = Rank::start(place, 1, address, transport);
    first.becomes(true);
    second.becomes(true);
    (first, second, address)
}

/// Rank 1 is killed, noticed and replaced; then both end in peace.
fn kill_and_replace(
    place: &Place,
    transport: Transport,
    first: Rank,
    mut second: Rank,
    address: SocketAddr,
) {
    second.process.kill().expect("it runs");
    first.becomes(false);
    drop(second);
    let mut third = Rank::start(place, 1, address, transport);
    first.becomes(true);
    third.becomes(true);
    let mut first = first;
    writeln!(first.input, "end").expect("it reads");
    first.hears("end");
    third.hears("end");
    for rank in [&mut first, &mut third] {
        assert!(rank.process.wait().expect("it has ended").success(), "an end in peace");
    }
}

#[test]
fn ranks_over_rdma_in_processes_survive_a_killed_rank() {
    let place = Place::make();
    let (first, second, address) = start(&place, Transport::Verbs);
    kill_and_replace(&place, Transport::Verbs, first, second, address);
}

#[test]
#[allow(clippy::print_stdout, reason = "which of the two ran")]
fn ranks_in_processes_survive_a_cut_cable_and_a_killed_rank() {
    let place = Place::make();
    let (first, second, address) = start(&place, Transport::Tcp);
    match &place {
        Place::Loopback => println!("over loopback: this user may make no network namespaces"),
        Place::Namespaces(names) => {
            println!("in network namespaces");
            let cable = |state| assert!(ip(&format!("-n {} link set v0 {state}", names[0])));
            cable("down");
            let cut = Instant::now();
            first.becomes(false);
            second.becomes(false);
            println!("noticed after {:?}", cut.elapsed());
            cable("up");
            let back = Instant::now();
            first.becomes(true);
            second.becomes(true);
            println!("whole {:?} after the cable is back", back.elapsed());
        }
    }
    // A rank that stands still is given up, and is welcome when it goes on.
    second.signal("STOP");
    first.becomes(false);
    second.signal("CONT");
    first.becomes(true);
    second.becomes(true);
    kill_and_replace(&place, Transport::Tcp, first, second, address);
}
