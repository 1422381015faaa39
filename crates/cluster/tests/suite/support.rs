//! Groups of threads over real links.

use ironstar_cluster::{
    Cluster, Deadlines, Hub, Identity, Key, Member, Pace, Settings, Timing, Transport,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// A port of this machine that the system chooses.
pub fn any_port() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// Settings of a test: short deadlines, since nothing is slow but the machine.
pub fn settings() -> Settings {
    Settings {
        identity: Identity {
            model: "digest".into(),
            layout: "2 ranks".into(),
            build: "test".into(),
        },
        folder: std::env::temp_dir(),
        deadlines: Deadlines {
            handshake: Duration::from_secs(2),
            form: Duration::from_secs(20),
            links: Duration::from_secs(10),
            silence: Duration::from_secs(3),
        },
        timing: Timing { gate: Duration::from_secs(10), pace: Pace::BLOCKING },
        ..Settings::default()
    }
}

/// Settings with the key of this text's digit.
pub fn keyed(digit: char) -> Settings {
    let text: String = std::iter::repeat_n(digit, 64).collect();
    Settings { key: Some(Key::from_hex(&text).expect("64 digits")), ..settings() }
}

/// Opens a port.
pub fn hub(ranks: usize, transport: Transport, settings: &Settings) -> Hub {
    Cluster::bind(any_port(), ranks, transport, settings.clone()).expect("a free port")
}

/// Will join.
pub fn member(hub: SocketAddr, rank: Option<usize>, settings: &Settings) -> Member {
    Member::new(hub, rank, None, settings.clone()).expect("a port of this machine")
}

/// Runs `work` on every rank of a new group, each on its thread; what each gave, in rank order.
pub fn on_ranks<T: Send>(
    ranks: usize,
    transport: Transport,
    settings: &Settings,
    work: impl Fn(Cluster) -> T + Sync,
) -> Vec<T> {
    let hub = hub(ranks, transport, settings);
    let address = hub.address();
    std::thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = (1..ranks)
            .map(|rank| {
                let member = member(address, Some(rank), settings);
                scope.spawn(move || work(Cluster::join(member).expect("the group forms")))
            })
            .collect();
        let first = work(Cluster::lead(hub).expect("the group forms"));
        std::iter::once(first)
            .chain(others.into_iter().map(|t| t.join().expect("a rank's thread")))
            .collect()
    })
}

/// Bytes that say which rank and gate they are of.
pub fn part(rank: usize, gate: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (31 * rank + 7 * gate + at).to_le_bytes()[0]).collect()
}
