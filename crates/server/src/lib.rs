//! HTTP server of the engine: OpenAI's and Anthropic's protocols, metrics, a page.
//!
//! It owns sockets, time, keys and limits. What requests and answers mean is `ironstar_wire`'s;
//! what they become is the scheduler's of `ironstar_engine`, which this crate only talks to. It
//! must not know models, devices or files of weights.
//!
//! Start reading at [`Server`], then `routes.rs` for what is served where, then `answer/` for the
//! life of a request. The async runtime ends at this crate's border.
//!
//! ```
//! use ironstar_server::scripted::{Playbook, tiny_tokenizer};
//! use ironstar_server::{Model, Options, Server, Shutdown};
//! let play = Playbook::parse(r#"{"other": ["Hello ", "there."]}"#)?;
//! let (model, client, _engine) = play.start(tiny_tokenizer().into())?;
//! let options = Options { address: ([127, 0, 0, 1], 0).into(), ..Options::default() };
//! let (server, shutdown) = (Server::bind(options)?, Shutdown::default());
//! assert!(server.address().ip().is_loopback());
//! shutdown.stop();
//! server.run(model, client, &shutdown)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answer;
mod answers;
mod app;
mod body;
mod failure;
mod grammar;
mod guard;
mod info;
mod listen;
mod metrics;
mod options;
mod patient;
mod routes;
pub mod scripted;
mod trace;

pub use listen::Shutdown;
pub use options::{Error, Log, Model, Options};

use ironstar_engine::scheduler::Client;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// A server that has its address and waits for its model.
pub struct Server {
    options: Options,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Takes the address. This is quick, so that a port in use is told before a model is loaded.
    pub fn bind(options: Options) -> Result<Server, Error> {
        options.check()?;
        let listener = listen::bind(options.address)?;
        let address = options.address;
        let address = listener.local_addr().map_err(|error| Error::Listen { address, error })?;
        Ok(Server { options, listener, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown`, with a runtime of its own. The scheduler behind `client` is stopped
    /// before this returns; who started its thread joins it, and so gets what it keeps of sessions.
    pub fn run(self, model: Model, client: Client, shutdown: &Shutdown) -> Result<(), Error> {
        let Server { options, listener, address } = self;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(options.threads.max(1))
            .thread_name("server")
            .enable_all()
            .build()
            .map_err(Error::Start)?;
        let engine = client.clone();
        let app = Arc::new(app::App::new((options, model), client, address, shutdown));
        let served = runtime.block_on(listen::run(app, listener, shutdown.clone()));
        engine.stop();
        // Whoever still hangs on a socket is let go.
        runtime.shutdown_background();
        served
    }

    /// Calls [`Shutdown::stop`] when the system asks the process to end (SIGTERM, Ctrl-C), each
    /// time that it does.
    pub fn stop_on_signals(shutdown: &Shutdown) -> Result<(), Error> {
        listen::stop_on_signals(shutdown.clone())
    }
}
