//! What a server is told when it starts.

use ironstar_engine::Speculation;
use ironstar_engine::sampler::Settings;
use ironstar_text::Tokenizer;
use ironstar_wire::{Limits, Profile};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The model that is served, as far as a server must know it.
#[derive(Clone)]
pub struct Model {
    /// Its name in answers and in `/v1/models`.
    pub name: String,
    /// Other names that the list shows; any name in a request is answered by the one model.
    pub aliases: Vec<String>,
    /// Its vocabulary.
    pub tokenizer: Arc<Tokenizer>,
    /// Rows of its logits: tokens that there are, names or not.
    pub vocabulary: usize,
    /// Most tokens of prompt and answer together.
    pub context: usize,
    /// Prompt format, and thinking where a request does not say.
    pub profile: Profile,
    /// Sampling where a request does not say.
    pub settings: Settings,
    /// Where guesses come from.
    pub speculation: Speculation,
}

/// Receives lines for the log; they have no line end.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// How a server behaves.
#[derive(Clone)]
pub struct Options {
    /// Where to listen. Port 0 takes a free one.
    pub address: SocketAddr,
    /// Keys, one of which a request must bring; none, and every request is welcome.
    pub keys: Vec<String>,
    /// Listens beyond this machine without a key.
    pub no_key: bool,
    /// The one origin, or `*`, whose web pages may read answers.
    pub cors: Option<String>,
    /// Bounds on a request's content.
    pub limits: Limits,
    /// Most requests that wait or run; more are told to come back.
    pub requests_max: usize,
    /// Most open connections; more wait in the listener's queue.
    pub connections_max: usize,
    /// Most bytes of a request's head.
    pub head_bytes: usize,
    /// Time for a request's head, and for an idle connection.
    pub head_timeout: Duration,
    /// Longest pause between two parts of a body.
    pub body_pause: Duration,
    /// Time for a whole body.
    pub body_timeout: Duration,
    /// Longest time that a client may take nothing of what is sent.
    pub write_timeout: Duration,
    /// Silence in a stream after which a sign of life is sent.
    pub keepalive: Duration,
    /// Time after which an answer that is no stream gets its head, and spaces as signs of life.
    pub whole_patience: Duration,
    /// Time that running answers get when the server stops.
    pub grace: Duration,
    /// Time for answers to write their last event after they were told to end.
    pub last_words: Duration,
    /// Answers of `/v1/responses` that are kept in memory, in bytes of their conversations.
    pub store_bytes: usize,
    /// Folder in which they are kept instead, and outlive the server.
    pub store_dir: Option<std::path::PathBuf>,
    /// Bytes of that folder.
    pub store_disk_bytes: u64,
    /// Threads of the server, beside the engine's.
    pub threads: usize,
    /// Where log lines go.
    pub log: Log,
    /// Where each request leaves a file, for diagnosis.
    pub trace: Option<std::path::PathBuf>,
    /// Seed of requests that name none; without it each has one of its own.
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            address: SocketAddr::from(([127, 0, 0, 1], 8080)),
            keys: Vec::new(),
            no_key: false,
            cors: None,
            limits: Limits::default(),
            requests_max: 1024,
            connections_max: 4096,
            head_bytes: 64 << 10,
            head_timeout: Duration::from_secs(60),
            body_pause: Duration::from_secs(10),
            body_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(30),
            keepalive: Duration::from_secs(5),
            whole_patience: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            last_words: Duration::from_secs(2),
            store_bytes: 256 << 20,
            store_dir: None,
            store_disk_bytes: 1 << 30,
            threads: 2,
            log: Arc::new(|_| {}),
            trace: None,
            seed: None,
        }
    }
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else listens there.
    #[error(
        "{0} is in use: another server, perhaps of ours, listens there; choose another --port, or \
         stop it"
    )]
    InUse(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// Anybody in the network could use the server.
    #[error(
        "{0} can be reached from other machines, and no key is set; give --api-key-file FILE, or \
         say --no-key if everybody who reaches it may use it"
    )]
    Public(SocketAddr),
    /// A key that no header can carry.
    #[error("key {number} has {found}; a key is 8 to 512 visible ASCII characters without spaces")]
    Key {
        /// Its place in the list, from 1.
        number: usize,
        /// What is wrong.
        found: String,
    },
    /// Threads or timers.
    #[error("starting the server: {0}")]
    Start(std::io::Error),
}

impl Error {
    /// Whether the caller asked for what cannot be; otherwise the machine is to blame.
    #[must_use]
    pub fn is_input(&self) -> bool {
        matches!(self, Error::Public(_) | Error::Key { .. })
    }
}

impl Options {
    /// Refuses what must not be served.
    pub fn check(&self) -> Result<(), Error> {
        if !self.address.ip().is_loopback() && self.keys.is_empty() && !self.no_key {
            return Err(Error::Public(self.address));
        }
        for (index, key) in self.keys.iter().enumerate() {
            let number = index + 1;
            if !(8..=512).contains(&key.len()) {
                return Err(Error::Key { number, found: format!("{} bytes", key.len()) });
            }
            if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                let found = "a space or a character that is not ASCII".to_owned();
                return Err(Error::Key { number, found });
            }
        }
        Ok(())
    }
}
