//! What a hostile rank can send: bytes of a link, words of the control connection, variables.

use super::{Target, signature};
use ironstar_cluster::{
    ByteLink, Bytes, Header, Limits, Link, LinkError, Mesh, Pace, Place, Preamble, Timing, Watch,
    Word, launch,
};
use ironstar_device::GateKind;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Duration;

/// Two bytes of cuts, then the bytes of a stream that a link reads.
pub const LINK: Target = Target {
    name: "cluster-link",
    seeds: streams,
    dictionary: &[b"IRG1", b"\x04\x00\x00\x00", b"\xff\xff\xff\xff", b"\x40\x01\x01\x00"],
    len_max: 4096,
    base_bytes: 4 << 20,
    bytes_per_byte: 64,
    run: run_link,
};

/// A byte that says what this end waits for, then messages with their lengths, as a rank gets them.
pub const GATE: Target = Target {
    name: "cluster-gate",
    seeds: gates,
    dictionary: &[b"IRG1", b"\x10\x00\x00\x00", b"\x11\x00\x00\x00", b"\xff\xff\xff\xff"],
    len_max: 4096,
    base_bytes: 4 << 20,
    bytes_per_byte: 64,
    run: run_gate,
};

/// A word of the control connection, a preamble, and variables of launchers, all from one text.
pub const WORD: Target = Target {
    name: "cluster-word",
    seeds: words,
    dictionary: &[
        b"{\"word\":\"join\"",
        b"\"rank\":null",
        b"\"committed\":18446744073709551615",
        b"IRONSTAR",
        b"RANK=0\n",
        b"SLURM_STEP_NODELIST=a[1-",
        b"[[[[[[[[",
    ],
    len_max: 4096,
    base_bytes: 4 << 20,
    bytes_per_byte: 256,
    run: run_word,
};

const LIMITS: Limits = Limits { message_bytes_max: 320, posted_max: 4 };

/// Bytes in pieces of one length, then the end.
struct Pieces<'a> {
    bytes: &'a [u8],
    piece: usize,
}

impl Bytes for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.piece.min(self.bytes.len()).min(into.len());
        into[..count].copy_from_slice(&self.bytes[..count]);
        self.bytes = &self.bytes[count..];
        Ok(count)
    }

    fn write(&mut self, _from: &[u8]) -> std::io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn rest(&mut self, _writing: bool, _at_most: Duration) {}
}

/// All messages that a link makes of the bytes, in pieces of this length, and how it ended.
fn read(bytes: &[u8], piece: usize) -> (Vec<Vec<u8>>, LinkError) {
    let pieces = Pieces { bytes, piece };
    let mut link = ByteLink::new(pieces, LIMITS, None, &[]).expect("no early bytes");
    for _ in 0..LIMITS.posted_max {
        link.post_recv(LIMITS.message_bytes_max).expect("within the grant");
    }
    let mut messages = Vec::new();
    loop {
        match link.receive() {
            Ok(Some(message)) => messages.push(message.to_vec()),
            Ok(None) => continue,
            Err(error) => return (messages, error),
        }
        link.post_recv(LIMITS.message_bytes_max).expect("one was used up");
    }
}

fn run_link(data: &[u8]) -> u64 {
    let Some((cut, bytes)) = data.split_first() else { return 0 };
    let whole = read(bytes, usize::MAX);
    assert_eq!(read(bytes, 1 + usize::from(*cut)), whole, "the cuts show in the messages");
    for message in &whole.0 {
        if let Ok((header, payload)) = Header::open(message) {
            assert_eq!([&header.seal(payload)[..], payload].concat(), *message);
        }
    }
    signature(&whole.1.to_string())
}

/// A link that takes everything, gives what it was given, and then is closed: nothing waits.
struct Liar {
    messages: VecDeque<Vec<u8>>,
    message: Vec<u8>,
}

impl Link for Liar {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn post_recv(&mut self, _bytes: usize) -> Result<(), LinkError> {
        Ok(())
    }

    fn send(&mut self, _head: &[u8], _body: &[u8]) -> Result<(), LinkError> {
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<&[u8]>, LinkError> {
        self.message = self.messages.pop_front().ok_or(LinkError::Closed)?;
        Ok(Some(&self.message))
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn rest(&mut self, _at_most: Duration) {}
}

fn run_gate(data: &[u8]) -> u64 {
    let Some((&what, mut bytes)) = data.split_first() else { return 0 };
    let mut messages = VecDeque::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        messages.push_back(rest[..length.min(LIMITS.message_bytes_max)].to_vec());
        bytes = &rest[length..];
    }
    let mine = Liar { messages, message: Vec::new() };
    let timing = Timing { gate: Duration::from_secs(1), pace: Pace::BLOCKING };
    let place = Place { rank: 1, ranks: 2, epoch: 0 };
    let mesh = Mesh::new(place, vec![(0, Box::new(mine))], timing, Watch::default());
    let mut mesh = mesh.expect("a link to the other");
    let mut outcome = String::new();
    for round in 0..4 {
        let ended = if what >> round & 1 == 0 {
            mesh.broadcast(&mut Vec::new())
        } else {
            mesh.post(GateKind::Ffn, &[1; 8]).and_then(|()| mesh.wait(&mut [0; 16]))
        };
        match ended {
            Ok(()) => outcome.push_str("ok "),
            Err(error) => {
                outcome.push_str(&error.to_string());
                assert_eq!(mesh.broadcast(&mut Vec::new()), Err(error), "a broken epoch stays so");
                break;
            }
        }
    }
    signature(&outcome)
}

fn run_word(data: &[u8]) -> u64 {
    let mut outcome = String::new();
    if let Some((bytes, _)) = data.split_first_chunk::<16>()
        && let Some(preamble) = Preamble::from_bytes(bytes)
    {
        outcome = format!("{:?}", Preamble::ours(false).agree(preamble, "a rank"));
    }
    match serde_json::from_slice::<Word>(data) {
        Ok(word) => {
            let text = serde_json::to_vec(&word).expect("a word is text");
            let again: Word = serde_json::from_slice(&text).expect("it was just written");
            assert_eq!(again, word);
            outcome.push_str("word");
        }
        Err(error) => outcome.push_str(&error.to_string()),
    }
    let text = String::from_utf8_lossy(data);
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let variables = pairs.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    match launch(&variables) {
        Ok(None) => {}
        Ok(Some(launch)) => assert!(launch.rank < launch.ranks && launch.port > 0),
        Err(error) => outcome.push_str(&error.to_string()),
    }
    signature(&outcome)
}

fn header(class: u32, part: u32, parts: u32, total: u64, number: u64, sequence: u64) -> Header {
    Header { epoch: 0, class, part, parts, total, exchange: number, sequence, tag: 0 }
}

/// A message and the number of its bytes in front.
fn framed<const N: usize>(
    header: Header,
    payload: &[u8],
    length: impl Fn(usize) -> [u8; N],
) -> Vec<u8> {
    let message = [&header.seal(payload)[..], payload].concat();
    [&length(message.len())[..], &message].concat()
}

fn long(length: usize) -> [u8; 4] {
    u32::try_from(length).expect("a seed has a few hundred bytes").to_le_bytes()
}

fn short(length: usize) -> [u8; 2] {
    u16::try_from(length).expect("a seed has a few hundred bytes").to_le_bytes()
}

fn streams() -> Vec<Vec<u8>> {
    let first = framed(header(1, 0, 1, 8, 1, 1), &[1; 8], long);
    let second = framed(header(Header::ACK, 0, 1, 0, 2, 2), &[], long);
    vec![[&[3][..], &first, &second].concat(), vec![0, 4, 0, 0, 0, 1, 2, 3, 4]]
}

fn gates() -> Vec<Vec<u8>> {
    let command = framed(header(Header::BROADCAST, 0, 1, 5, 1, 1), b"token", short);
    let gate = framed(header(1, 0, 1, 8, 2, 2), &[1; 8], short);
    let large = framed(header(Header::BROADCAST, 0, 2, 300, 1, 1), &[7; 256], short);
    let rest = framed(header(Header::BROADCAST, 1, 2, 300, 1, 2), &[7; 44], short);
    vec![[&[2][..], &command, &gate].concat(), [&[0][..], &large, &rest].concat()]
}

fn words() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 5] = [
        br#"{"word":"join","identity":{"model":"a","layout":"b","build":"c"},"rank":1,"ranks":2,
        "instance":7,"sealed":false,"address":"127.0.0.1:80","committed":0}"#,
        br#"{"word":"roster","rank":1,"epoch":0,"nonce":1,"transport":"tcp","streams":false,
        "addresses":["127.0.0.1:1","127.0.0.1:2"],"committed":0}"#,
        br#"{"word":"link","nonce":1,"epoch":0,"from":1,"to":0,"purpose":"gates"}"#,
        b"RANK=0\nWORLD_SIZE=2\nMASTER_ADDR=h\nMASTER_PORT=1\n",
        b"SLURM_PROCID=1\nSLURM_STEP_NUM_TASKS=2\nSLURM_STEP_NODELIST=a[1-3]x,b\n",
    ];
    let mut seeds: Vec<Vec<u8>> = texts.iter().map(|text| text.to_vec()).collect();
    seeds.push(Preamble::ours(true).to_bytes().to_vec());
    seeds
}
