//! A running server, and a client that sends bytes and reads them.

use super::held::Held;
use ironstar_engine::scheduler::{Clock, SystemClock};
use ironstar_server::scripted::{Playbook, tiny_tokenizer};
use ironstar_server::{Error, Options, Server, Shutdown};
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest wait of a test for anything. Only what hangs takes so long: a machine may be busy, and
/// stop any thread for seconds.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// A time that nothing takes.
pub const NEVER: Duration = Duration::from_secs(24 * 3600);

/// A server on a port of its own; it is stopped when dropped.
pub struct Running {
    pub address: SocketAddr,
    pub shutdown: Shutdown,
    /// The engine's clock, where it is held.
    pub held: Held,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

/// Options for a test: a free port, and nothing happens because a time is over.
pub fn options() -> Options {
    Options {
        address: ([127, 0, 0, 1], 0).into(),
        head_timeout: NEVER,
        body_pause: NEVER,
        body_timeout: NEVER,
        write_timeout: NEVER,
        keepalive: NEVER,
        whole_patience: NEVER,
        grace: PATIENCE,
        last_words: PATIENCE,
        ..Options::default()
    }
}

/// Starts a server on prepared answers.
pub fn start(play: &str) -> Running {
    start_with(play, options())
}

pub fn start_with(play: &str, options: Options) -> Running {
    start_on(Box::new(SystemClock::default()), play, options)
}

/// Starts a server whose engine's steps that take time end when the test says so.
pub fn start_held(play: &str, options: Options) -> Running {
    let held = Held::default();
    held.close();
    let mut running = start_on(Box::new(held.clone()), play, options);
    running.held = held;
    running
}

fn start_on(clock: Box<dyn Clock>, play: &str, options: Options) -> Running {
    let play = Playbook::parse(play).unwrap();
    let (model, client, engine) = play.start_on(tiny_tokenizer().into(), clock).unwrap();
    let server = Server::bind(options).unwrap();
    let (address, shutdown) = (server.address(), Shutdown::default());
    let until = shutdown.clone();
    let thread = std::thread::spawn(move || {
        let served = server.run(model, client, &until);
        engine.join().unwrap();
        served
    });
    Running { address, shutdown, held: Held::default(), thread: Some(thread) }
}

impl Running {
    /// Waits for its end.
    pub fn join(mut self) -> Result<(), Error> {
        self.thread.take().unwrap().join().unwrap()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends a request and reads the whole answer.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut stream = self.connect();
        stream.write_all(head(method, path, headers, body.len()).as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        Reply::read(&mut stream)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &str) -> Reply {
        self.ask("POST", path, &[("content-type", "application/json")], body)
    }

    /// Sends a request and leaves the answer to be read.
    pub fn send(&self, path: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(head("POST", path, &[], body.len()).as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        stream
    }

    /// A number of `/metrics`.
    pub fn metric(&self, name: &str) -> u64 {
        let page = self.get("/metrics").body;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
    }

    /// Waits until a number is what it should be.
    pub fn wait_for(&self, name: &str, wanted: u64) {
        self.wait_until(name, |number| number == wanted);
    }

    pub fn wait_until(&self, name: &str, good: impl Fn(u64) -> bool) {
        let start = std::time::Instant::now();
        while !good(self.metric(name)) {
            assert!(start.elapsed() < PATIENCE, "{name} stays at {}", self.metric(name));
            pause(5);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.held.open();
        self.shutdown.stop();
        self.shutdown.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server panicked");
        }
    }
}

pub fn head(method: &str, path: &str, headers: &[(&str, &str)], length: usize) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + &format!("content-length: {length}\r\n\r\n")
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    /// Reads until the other side closes.
    pub fn read(stream: &mut TcpStream) -> Reply {
        let mut bytes = Vec::new();
        // A server that refuses early may reset the connection after its answer.
        let _reset = stream.read_to_end(&mut bytes);
        Reply::parse(&bytes)
    }

    pub fn parse(bytes: &[u8]) -> Reply {
        let split = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let split = split.unwrap_or_else(|| panic!("no head in {} bytes", bytes.len()));
        let head = String::from_utf8(bytes[..split].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
        let rest = &bytes[split + 4..];
        let body = if chunked { unchunk(rest) } else { rest.to_vec() };
        Reply { status, headers, body: String::from_utf8(body).expect("bodies are UTF-8") }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Events of a stream: name, and data as it was.
    pub fn events(&self) -> Vec<(Option<String>, String)> {
        events(&self.body)
    }

    /// Data of a stream as JSON, without `[DONE]`.
    pub fn data(&self) -> Vec<Value> {
        let events = self.events();
        let data = events.iter().map(|(_, data)| data).filter(|data| *data != "[DONE]");
        data.map(|data| serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}")))
            .collect()
    }
}

pub fn events(text: &str) -> Vec<(Option<String>, String)> {
    let mut events = Vec::new();
    for block in text.split("\n\n") {
        let field = |name: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim_start().to_owned())
        };
        if let Some(data) = field("data:") {
            events.push((field("event:"), data));
        }
    }
    events
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(at) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..at]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        let end = (at + 2 + size).min(bytes.len());
        body.extend_from_slice(&bytes[at + 2..end]);
        bytes = bytes.get(end + 2..).unwrap_or_default();
    }
    body
}

/// Reads a stream until some text is there; gives all that was read.
pub fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    read_until_times(stream, wanted, 1)
}

/// Reads a stream until some text is there so many times; gives all that was read.
pub fn read_until_times(stream: &mut TcpStream, wanted: &str, times: usize) -> String {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if text.matches(wanted).count() >= times {
            return text.into_owned();
        }
        match stream.read(&mut part) {
            // The process was stopped meanwhile, and goes on.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(count) if count > 0 => bytes.extend_from_slice(&part[..count]),
            end => panic!("{end:?} before {wanted:?} came {times} times: {text}"),
        }
    }
}

/// A Chat Completions body of one user message.
pub fn chat(text: &str, more: &str) -> String {
    let text = serde_json::to_string(text).unwrap();
    format!(r#"{{"messages": [{{"role": "user", "content": {text}}}]{more}}}"#)
}

/// Lets time go by for what has no end to wait for: a slow client is one that does nothing.
pub fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}
