//! Groups of threads over real links.

use crate::provider::provider;
use ironstar_cluster::{
    Channel, Cluster, Deadlines, Error, Hub, Identity, Key, Limits, Link, Member, MemoryLink, Pace,
    Settings, ShmLink, TcpLink, Timing, Transport, VerbsLink, VerbsSettings, connect_verbs, tune,
};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A port of this machine that the system chooses.
pub fn any_port() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// Longest wait of a test for anything. Only what hangs takes so long: a machine may be busy, and
/// stop any thread for seconds.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Settings of a test: what must be waited for is given a short deadline by the test itself.
pub fn settings() -> Settings {
    Settings {
        identity: Identity {
            model: "digest".into(),
            layout: "2 ranks".into(),
            build: "test".into(),
        },
        folder: std::env::temp_dir(),
        deadlines: Deadlines {
            handshake: PATIENCE,
            form: PATIENCE,
            links: PATIENCE,
            silence: PATIENCE,
        },
        timing: Timing { gate: PATIENCE, pace: Pace::BLOCKING },
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

/// Makes two ends of a link.
pub type MakePair = Box<dyn Fn(Limits) -> (Box<dyn Link>, Box<dyn Link>)>;
/// Every transport with its name.
pub type Transports = Vec<(&'static str, MakePair)>;

/// Every transport.
pub fn pairs() -> Transports {
    let all: Transports = vec![
        ("memory", Box::new(|limits| boxed(MemoryLink::pair(limits)))),
        ("tcp", Box::new(|limits| boxed(tcp_pair(limits, [None, None])))),
        (
            "sealed tcp",
            Box::new(|limits| {
                let (left, right) = ciphers();
                boxed(tcp_pair(limits, [Some(left), Some(right)]))
            }),
        ),
        ("shared memory", Box::new(|limits| boxed(shm_pair(limits)))),
        // What RoCE cards do, and what Thunderbolt does.
        ("verbs", Box::new(|limits| boxed(verbs_pair(["", ""], Some(limits)).expect("a link")))),
        (
            "framed verbs",
            Box::new(|limits| boxed(verbs_pair([THUNDERBOLT; 2], Some(limits)).expect("a link"))),
        ),
    ];
    #[cfg(feature = "mpi")]
    let all = all.into_iter().chain([("mpi", Box::new(mpi_pair) as MakePair)]).collect();
    all
}

/// Two ends in one process, which sends to itself; begun once for all tests, and never ended.
#[cfg(feature = "mpi")]
fn mpi_pair(limits: Limits) -> (Box<dyn Link>, Box<dyn Link>) {
    use ironstar_cluster::{MpiLink, MpiPlace, MpiSettings};
    use std::sync::LazyLock;
    static MPI: LazyLock<MpiSettings> = LazyLock::new(MpiSettings::default);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let mpi = MPI.get().expect("an MPI library");
    let tag = u16::try_from(number % 16_000 * 2).expect("below 2^15");
    let end = |tags: [u16; 2]| {
        let place = MpiPlace { peer: mpi.rank(), tags, nonce: 77 };
        MpiLink::new(mpi.clone(), place, limits).expect("a link")
    };
    boxed((end([tag, tag + 1]), end([tag + 1, tag])))
}

/// Words for the fake provider: Thunderbolt's rules, and buffers that hold rubbish until a message
/// is whole.
pub const THUNDERBOLT: &str = "apple,scribble";

/// Settings for the fake provider with these words.
pub fn verbs(words: &str) -> VerbsSettings {
    VerbsSettings { library: Some(provider(words)), ..VerbsSettings::default() }
}

/// Two ends over fake providers that behave as the words say, or why there are none: what the
/// first end was told.
pub fn verbs_pair(
    words: [&str; 2],
    limits: Option<Limits>,
) -> Result<(VerbsLink, VerbsLink), Error> {
    verbs_pair_of(words.map(verbs), limits)
}

/// [`verbs_pair`] with any settings.
pub fn verbs_pair_of(
    [left, right]: [VerbsSettings; 2],
    limits: Option<Limits>,
) -> Result<(VerbsLink, VerbsLink), Error> {
    let listener = TcpListener::bind(any_port()).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let time = PATIENCE;
    let other = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("somebody connects");
        let channel = Channel::answer(stream, None, time)?;
        connect_verbs(channel, &right, limits, Instant::now() + time)
    });
    let channel = Channel::dial(address, None, time).expect("it listens");
    let first = connect_verbs(channel, &left, limits, Instant::now() + time);
    let second = other.join().expect("the other end's thread");
    Ok((first?, second?))
}

fn boxed<L: Link + 'static>((left, right): (L, L)) -> (Box<dyn Link>, Box<dyn Link>) {
    (Box::new(left), Box::new(right))
}

fn tcp_pair(limits: Limits, ciphers: [Option<snow::TransportState>; 2]) -> (TcpLink, TcpLink) {
    let listener = TcpListener::bind(any_port()).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let left = TcpStream::connect(address).expect("it listens");
    let (right, _) = listener.accept().expect("somebody has connected");
    let [first, second] = ciphers;
    let link = |stream: TcpStream, cipher| {
        tune(&stream).expect("options of a TCP socket");
        TcpLink::new(stream, limits, cipher, &[]).expect("no early bytes")
    };
    (link(left, first), link(right, second))
}

fn shm_pair(limits: Limits) -> (ShmLink, ShmLink) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("ironstar-test-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let left = ShmLink::create(&path, limits, number).expect("a new file");
    let deadline = Instant::now() + PATIENCE;
    let right = ShmLink::open(&path, limits, number, deadline).expect("it was just made");
    assert!(!path.exists(), "the name is gone once both have the memory");
    (left, right)
}

/// Both sides of a sealed connection; the same at every call, so that what one call's left side
/// wrote, another's right side reads.
pub fn ciphers() -> (snow::TransportState, snow::TransportState) {
    let build = |own: &'static [u8; 32]| {
        let name = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s".parse().expect("a name of Noise");
        let builder = snow::Builder::new(name).psk(0, &[7; 32]).expect("a key of 32 bytes");
        builder.fixed_ephemeral_key_for_testing_only(own)
    };
    let mut left = build(&[1; 32]).build_initiator().expect("a key is there");
    let mut right = build(&[2; 32]).build_responder().expect("a key is there");
    let (mut message, mut plain) = ([0; 256], [0; 256]);
    let length = left.write_message(&[], &mut message).expect("the first message");
    right.read_message(&message[..length], &mut plain).expect("the same key");
    let length = right.write_message(&[], &mut message).expect("the second message");
    left.read_message(&message[..length], &mut plain).expect("the same key");
    (
        left.into_transport_mode().expect("two messages"),
        right.into_transport_mode().expect("two messages"),
    )
}
